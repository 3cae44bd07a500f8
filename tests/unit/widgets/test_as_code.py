"""Code to copy: gpuscope's runs, cuda.core's carves on a fake driver, C++ on a fake header."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope.experiments.experiment import Experiment
from gpuscope.widgets.as_code import carving, gpuscope_code
from gpuscope.widgets.presets import TEMPLATE

DECLARED = Path(__file__).parents[2] / "data" / "cuda_driver.h"
FOREIGN = "a\"\\\n\u2028*/ <b>'"
SHORT = {
    **TEMPLATE,
    "workloads": {
        "small": {**TEMPLATE["workloads"]["small"], "repeats": 20},
        "load": TEMPLATE["workloads"]["load"],
    },
}
EXPERIMENTS = {
    "the template": TEMPLATE,
    "five partitions": {
        **SHORT,
        "partitions": {"a": 64, "b": 32, "c": 16, "d": 8, "e": "rest"},
        "streams": {
            "small": {"partition": "a", "priority": -3}, "load": {"partition": "e"},
            "w": {"blocking": True}, "x": {"partition": "a"},
        },
    },
    "no partition": {**SHORT, "partitions": {}, "streams": {"small": {}, "load": {}}},
    "something left": {**SHORT, "partitions": {"small": 20, "load": 16}},
    "foreign names": {
        "name": FOREIGN,
        "partitions": {FOREIGN: 8},
        "streams": {FOREIGN: {"partition": FOREIGN}},
        "workloads": {FOREIGN: {"kind": "spin", "duration_us": 2, "stream": FOREIGN}},
    },
}  # fmt: skip


@pytest.fixture(params=EXPERIMENTS)
def experiment(request) -> Experiment:
    return Experiment.from_dict(EXPERIMENTS[request.param])


@pytest.fixture
def plan(experiment):
    gpu = gs.open_device("sim:h200", quiet=True)
    return gpu.plan_carve(experiment.partitions) if experiment.partitions else None


def test_gpuscope_code_runs_and_is_the_experiment(experiment, capsys):
    code = gpuscope_code(experiment, "sim:h200")
    assert max(map(len, code.splitlines())) < 120
    made: dict[str, object] = {}
    exec(compile(code, "copied", "exec"), made)  # noqa: S102 - it is what a person would run
    assert made["experiment"] == experiment
    assert isinstance(made["run"], gs.experiments.Run)
    assert made["run"].experiment == experiment.to_dict()
    said = capsys.readouterr().out
    assert ("confinement" in said) == bool(experiment.partitions)


# -- cuda.core ----------------------------------------------------------------------------
class FakeCore(ModuleType):
    """cuda.core as the code may use it: an H200 with a driver that splits into quanta."""

    def __init__(self):
        super().__init__("cuda.core")
        self.open = []
        self.contexts = []
        core = self

        class Options:
            def __init__(self, **given):
                assert set(given) <= set(self.allowed), given
                self.__dict__.update(given)

        def options(name, *allowed):
            return type(name, (Options,), {"allowed": allowed})

        self.SMResourceOptions = options("SMResourceOptions", "count", "backfill")
        self.ContextOptions = options("ContextOptions", "resources")
        self.StreamOptions = options("StreamOptions", "nonblocking", "priority")

        class Closed:
            def __init__(self, **facts):
                self.__dict__.update(facts)
                core.open.append(self)

            def close(self):
                core.open.remove(self)

        def split(asked):
            assert set(asked.count) == {8}
            groups = [
                SimpleNamespace(sm_count=8, ids={n}) for n in range(min(15, len(asked.count)))
            ]
            return groups, SimpleNamespace(sm_count=12, ids={-1})

        class Context(Closed):
            def create_stream(self, *, options):
                assert options.nonblocking, "a partition's stream never blocks"
                return Closed(home=self, options=options)

        class Device:
            def __init__(self, index=None):
                assert index == 0
                sm = SimpleNamespace(split=split, sm_count=132)
                self.resources = SimpleNamespace(sm=sm)

            def set_current(self):
                pass

            def create_context(self, asked):
                assert isinstance(asked.resources, list)
                granted = sum(group.sm_count for group in asked.resources)
                core.contexts.append(
                    Context(
                        sms=granted,
                        ids=set.union(*(group.ids for group in asked.resources)),
                        resources=SimpleNamespace(sm=SimpleNamespace(sm_count=granted)),
                    )
                )
                return core.contexts[-1]

            def create_stream(self, *, options):
                return Closed(home=None, options=options)

            def sync(self):
                core.at_sync = list(core.open)

        self.Device = Device


def test_cuda_core_code_carves_as_planned_and_leaves_nothing(experiment, plan, monkeypatch):
    core = FakeCore()
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    made: dict[str, object] = {"__name__": "__main__"}
    code = carving("cuda.core", experiment, plan, 0)
    exec(compile(code, "copied", "exec"), made)  # noqa: S102 - it is what a person would run
    contexts = made.get("contexts", {})
    granted = {name: context.sms for name, context in contexts.items()}
    assert granted == (plan.granted() if plan else {})
    for part in plan.partitions if plan else ():
        assert contexts[part.name].ids == set(part.parts)
    assert list(made["streams"]) == list(experiment.streams)
    for name, spec in experiment.streams.items():
        stream = made["streams"][name]
        assert stream.home is (contexts[spec.partition] if spec.partition else None)
        assert (stream.options.priority, stream.options.nonblocking) == (
            spec.priority, not spec.blocking
        )  # fmt: skip
    assert len(core.at_sync) == len(contexts) + len(experiment.streams)
    assert core.open == []


def test_cuda_core_code_refuses_another_gpu(monkeypatch):
    core = FakeCore()
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    plan = gs.open_device("sim:h200", quiet=True).plan_carve(TEMPLATE["partitions"])
    code = carving("cuda.core", Experiment.from_dict(TEMPLATE), plan, 0)
    space: dict[str, object] = {"__name__": "carved"}
    exec(code.replace("SM_COUNT, QUANTUM = 132", "SM_COUNT, QUANTUM = 108"), space)  # noqa: S102
    with pytest.raises(RuntimeError, match="for 108 SMs, but the GPU has 132"):
        space["carve"](core.Device(0))


def test_cuda_core_code_uses_only_what_the_cuda_backend_uses(experiment, plan):
    folder = Path(gs.__file__).parent / "device" / "cuda"
    known = "".join(path.read_text() for path in folder.glob("*.py"))
    code = carving("cuda.core", experiment, plan, 0)
    (line,) = re.findall(r"from cuda\.core import (.*)", code)
    for name in line.split(", "):
        assert f".{name}(" in known, name
    for call in re.findall(r"\.(\w+)\(", code):
        assert call in {"sync", "values", "items", "append", "pop"} or f".{call}(" in known, call


# -- C++ ----------------------------------------------------------------------------------
def declared() -> dict[str, int]:
    """Driver call → number of arguments."""
    text = re.sub(r"\s+", " ", DECLARED.read_text())
    calls = re.findall(r"CUresult (cu\w+)\(([^)]*)\)", text)
    return {name: 0 if args == "void" else args.count(",") + 1 for name, args in calls}


def test_cpp_code_calls_the_driver_with_the_right_arguments(experiment, plan):
    code = re.sub(r"//.*", "", carving("C++", experiment, plan, 0))
    known = declared()
    calls = re.findall(r"\b(cu[A-Z]\w+)\(((?:[^()]|\([^()]*\))*)\)", code)
    assert {"cuDevSmResourceSplitByCount", "cuGreenCtxCreate", "cuStreamDestroy"} <= dict(
        calls
    ).keys()
    for name, args in calls:
        assert (args.count(",") + 1 if args.strip() else 0) == known[name], name


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_cpp_code_compiles(experiment, plan, tmp_path):
    shutil.copyfile(DECLARED, tmp_path / "cuda.h")
    source = tmp_path / "carve.cpp"
    source.write_text(carving("C++", experiment, plan, 0), "utf-8")
    subprocess.run(
        ["g++", "-std=c++14", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", tmp_path,
         source],
        check=True,
    )  # fmt: skip


def test_cpp_code_names_what_was_planned(experiment, plan):
    code = carving("C++", experiment, plan, 0)
    partitions, streams = (
        re.search(rf"{name} = {{(.*?)}};", code, re.DOTALL).group(1).splitlines()[1:]
        for name in ("kPartitions", "kStreams")
    )
    counts = list(plan.granted().values()) if plan else []
    assert [int(re.search(r", (\d+)},$", line).group(1)) for line in partitions] == counts
    assert len(streams) == len(experiment.streams)
    for line, spec in zip(streams, experiment.streams.values(), strict=True):
        flags = "CU_STREAM_DEFAULT" if spec.blocking else "CU_STREAM_NON_BLOCKING"
        assert line.endswith(f"{flags}, {spec.priority}}},")
        assert (', "", ' in line) == (spec.partition is None)
