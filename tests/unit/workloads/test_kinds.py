"""Workload kinds: one declaration each, from this package and from others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import example_plugin
import pytest

import gpuscope as gs
from gpuscope.errors import GpuscopeError, InvalidExperiment
from gpuscope.workloads import registry
from gpuscope.workloads.python_kind import PythonSpec
from gpuscope.workloads.spec import WorkloadSpec
from gpuscope.workloads.spin import Spin

FILL = """
name = "plugged in"
alone_repeats = 0
streams.s = {}
workloads.w = { kind = "fill", elements = 1000, value = 2.5, stream = "s", repeats = 3 }
"""
IMPORT = "from typing import Literal\nfrom gpuscope.workloads import WorkloadSpec\n"
GEMM = {"kind": "gemm", "m": 8, "n": 8, "k": 8, "stream": "s"}


def described(**fields) -> gs.experiments.Experiment:
    return gs.experiments.Experiment.from_dict(
        {"name": "x", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"w": fields}}
    )


# -- a kind of another package -----------------------------------------------------------
def test_a_plugins_kind_runs_from_toml(plugin):
    experiment = gs.experiments.Experiment.from_toml(FILL)
    assert experiment.workloads["w"].value == 2.5
    assert gs.experiments.Experiment.from_toml(experiment.to_toml()) == experiment
    assert gs.experiments.Experiment.from_dict(experiment.to_dict()) == experiment
    gpu = gs.open_device("sim:h200", quiet=True)
    run = gs.run(experiment, gpu)
    assert run["default"].kind_counts()["kernel"] == 3
    handle = experiment.workloads["w"].make(gpu, name="w", seed=0)
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
        assert gpu.to_host(handle.out).tolist() == [2.5] * 1000
    gpu.close()


def test_a_plugins_field_is_checked_like_any_other(plugin):
    with pytest.raises(InvalidExperiment, match=r"workloads\.w\.elements: should be greater than"):
        described(kind="fill", elements=0, stream="s")
    with pytest.raises(InvalidExperiment, match=r"w\.bytes: unknown key; allowed: 'stream', .*'el"):
        described(kind="fill", elements=1, bytes=1, stream="s")


def test_a_plugins_kind_is_on_the_dashboard(plugin):
    table = gs.widgets.WorkloadTable(streams=["s"])
    fields = {field["name"]: field for field in table.fields}
    assert ["fill", "fill"] in fields["kind"]["options"]
    assert fields["elements"]["label"] == "Elements (float32)"
    assert fields["elements"]["when"] == {"kind": ["fill"]}
    table.edit("workload 1", kind="fill")
    spec = table.workloads["workload 1"]
    assert (spec.kind, spec.elements, spec.value) == ("fill", 4096, 1.0)
    table.close()


def test_a_plugins_kind_is_in_the_command_line(tmp_path):
    path = [*example_plugin.make_visible(tmp_path / "installed"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "COLUMNS": "160", "PYTHONPATH": os.pathsep.join(path)}

    def gpuscope(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "gpuscope.cli", *arguments],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    listed = json.loads(gpuscope("kinds", "--json"))
    assert listed["fill"]["what"].startswith("A kernel that fills")
    assert "elements, value = 1.0" in gpuscope("kinds")
    (tmp_path / "fill.toml").write_text(FILL)
    facts = json.loads(gpuscope("run", "fill.toml", "--device", "sim:h200", "--json"))
    assert facts["comparison"][0]["kernels"] == 3


# -- a broken package ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("module", "what"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "AttributeError"),
        ("Odd = 3", "3 is no subclass of gpuscope.workloads.WorkloadSpec"),
        (
            f"{IMPORT}class Odd(WorkloadSpec): pass",
            "Odd has no method make",
        ),
        (
            f"{IMPORT}class Odd(WorkloadSpec):\n def make(self, *_, **__): pass",
            "Odd needs a field kind: Literal",
        ),
        (
            (
                f"{IMPORT}class Odd(WorkloadSpec):\n kind: Literal['even']\n"
                " def make(self, *_, **__): pass"
            ),
            "Odd calls itself 'even'",
        ),
        (
            (
                f"{IMPORT}class Odd(WorkloadSpec):\n kind: Literal['odd']\n name: str\n"
                " def make(self, *_, **__): pass"
            ),
            "Odd has a field 'name', a name that the dashboard needs",
        ),
    ],
)
def test_a_broken_package_is_named_and_takes_nothing_down(
    tmp_path, monkeypatch, other_package, module, what
):
    other_package("broken", "gpuscope.workloads", 'odd = "broken:Odd"', "broken", module)
    assert described(**GEMM).workloads["w"].m == 8
    with pytest.raises(InvalidExperiment) as refused:
        described(**{**GEMM, "kind": "odd"})
    words = str(refused.value)
    assert words.count("workloads.w.kind: the kind 'odd' of the package 'broken-package'") == 1
    assert "(broken:Odd) cannot be used: " in words
    assert what in words
    assert "allowed: 'gemm', 'copy'" in words
    assert [*gs.workloads.kinds()] == [*registry.BUILT_IN]
    assert gs.widgets.WorkloadTable(streams=["s"]).is_valid
    (broken,) = registry.broken_kinds()
    assert what in broken


def test_a_kind_is_imported_only_where_it_is_named(tmp_path, monkeypatch, other_package):
    other_package("broken", "gpuscope.workloads", 'odd = "broken:Odd"', "broken", "Odd = 3")
    spin = {"kind": "spin", "blocks": 1, "duration_us": 5, "stream": "s"}
    gs.run(described(**spin), gs.open_device("sim:h200", quiet=True))
    for unknown in ("spim", "od", None, 3):
        with pytest.raises(InvalidExperiment, match=r"allowed: .*'odd'") as refused:
            described(**{**spin, "kind": unknown})
        assert (" (did you mean 'odd'?)" in str(refused.value)) == (unknown == "od")
    assert "broken" not in sys.modules
    with pytest.raises(InvalidExperiment, match="is no subclass"):
        described(**{**spin, "kind": "odd"})
    assert "broken" in sys.modules


MALFORMED = ["[group]\nno value\n", "\xff\xfe", "[gpuscope.workloads]\nodd = not a reference!\n"]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_entry_points_of_a_package_break_nothing(
    plugin, tmp_path, monkeypatch, other_package, text
):
    installed = tmp_path / "other" / "odd_package-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-package\nVersion: 1\n")
    (installed / "entry_points.txt").write_bytes(text.encode("latin-1"))
    monkeypatch.syspath_prepend(tmp_path / "other")
    registry.forget_kinds()
    assert described(**GEMM).workloads["w"].m == 8
    assert gs.experiments.Experiment.from_toml(FILL).workloads["w"].value == 2.5
    (words,) = registry.broken_kinds()
    assert "the package 'odd-package'" in words
    assert "Mend or uninstall the package" in words


def test_a_kind_of_ours_cannot_be_replaced(tmp_path, monkeypatch, other_package):
    other_package("broken", "gpuscope.workloads", 'gemm = "broken:Odd"', "broken", "Odd = 3")
    assert gs.workloads.kinds()["gemm"] is registry.BUILT_IN["gemm"]
    assert "gpuscope has a kind of that name" in registry.broken_kinds()[0]


def test_kinds_may_share_a_fields_name(tmp_path, monkeypatch, other_package):
    module = f"""
{IMPORT}from pydantic import Field
class Odd(WorkloadSpec):
    kind: Literal["odd"]
    m: int = Field(title="Another", examples=[7])
    dtype: Literal["int8", "float16"] = "int8"
    note: str = "x"
    wide: bool = False
    several: list[int] = [1]
    def make(self, *_, **__): pass
"""
    other_package("broken", "gpuscope.workloads", 'odd = "broken:Odd"', "broken", module)
    table = gs.widgets.WorkloadTable(streams=["s"])
    fields = {field["name"]: field for field in table.fields}
    assert table.workloads["workload 1"].m == 1024
    assert fields["m"]["label"] == "m"
    assert fields["m"]["when"] == {"kind": ["gemm", "traced_gemm", "odd"]}
    assert ["int8", "int8"] in fields["dtype"]["options"]
    assert (fields["note"]["type"], fields["wide"]["type"]) == ("text", "flag")
    assert (fields["several"]["type"], fields["several"]["label"]) == ("text", "several (JSON)")
    assert fields["several"]["when"] == {"kind": ["odd"]}
    table.edit("workload 1", kind="odd", dtype="int8", wide=True)
    spec = table.workloads["workload 1"]
    assert (spec.m, spec.dtype, spec.note, spec.wide) == (1024, "int8", "x", True)
    assert spec.several == [1]
    table.edit("workload 1", several="[2, 3]")
    assert table.workloads["workload 1"].several == [2, 3]
    table.edit("workload 1", several="2 and 3")
    assert "several" in table.rows[0]["problems"]
    table.close()


# -- the declaration ----------------------------------------------------------------------
@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_a_declaration_says_what_others_show(name):
    spec = registry.BUILT_IN[name]
    assert spec.kind_name() == name
    assert spec.kind_spelling().partition(":")[0] == name
    assert spec.kind_summary().endswith(".")
    for field in spec.kind_fields():
        assert field.label
        assert field.start != "", f"{name}.{field.name} has nothing to start from"


def test_a_kind_needs_no_package(monkeypatch):
    class NapSpec(WorkloadSpec):
        """A nap."""

        kind: Literal["nap"]

        def make(self, device, *, name, seed):
            return Spin(device, duration_ns=1000, name=name)

    experiment = described(**GEMM)
    nap = NapSpec(kind="nap", stream="s", repeats=2)
    experiment = gs.experiments.Experiment(
        name="x", alone_repeats=0, streams={"s": {}}, workloads={"w": nap}
    )
    run = gs.run(experiment, gs.open_device("sim:h200", quiet=True))
    assert run["default"].kind_counts()["kernel"] == 2


# -- python: ------------------------------------------------------------------------------
class Nap(Spin):
    """A subclass of Handle with arguments of its own."""

    def __init__(self, owner, *, length_us: float = 1, name: str = "nap", seed: int = 3) -> None:
        super().__init__(owner, duration_ns=round(length_us * 1000), name=name)
        self.seed = seed


class Nameless(Spin):
    """Takes neither a name nor a seed."""

    def __init__(self, owner) -> None:
        super().__init__(owner, duration_ns=1000)


def test_python_takes_a_subclass_of_handle(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    gpu = gs.open_device("sim:h200", quiet=True)
    fields = {"kind": "python:test_kinds:Nap", "stream": "s", "repeats": 2}
    run = gs.run(described(**fields, args={"length_us": 7}), gpu)
    assert run["default"].kind_counts()["kernel"] == 2
    assert run.comparison.column("kernel_median_us").to_pylist() == [7.0]
    for attribute in ("Nap", "Nameless"):
        spec = PythonSpec(kind=f"python:{__name__}:{attribute}", stream="s")
        handle = spec.make(gpu, name="w", seed=5)
        assert handle.name == "w"
        assert getattr(handle, "seed", 5) == 5
    with pytest.raises(InvalidExperiment, match=r"workloads\.w\.args: .* unexpected keyword"):
        gs.run(described(**fields, args={"lenght": 7}), gpu)
    with pytest.raises(InvalidExperiment, match="or name a subclass of"):
        gs.run(described(kind="python:json:JSONDecoder", stream="s"), gpu)
    with pytest.raises(GpuscopeError):
        gs.run(described(**fields, args={"length_us": -1}), gpu)
    gpu.close()
