"""Every public name stands in the reference, and is documented with an example that runs."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import re
import warnings
from functools import cached_property
from pathlib import Path

import pytest

import gpuscope as gs
import gpuscope_lessons
from gpuscope.analysis.result import Result

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs" / "reference"
MODULES = ("analysis", "telling", "errors", "figures", "experiments.nsight")
ROOMS = ("device", "experiments", "extending", "races", "search", "widgets", "workloads")
"""Rooms whose public names resolve at first use."""

WITHOUT_EXAMPLE = {
    "extending.Untyped": "a name for any type",
    "analysis.Collective": "part of what collectives() returns",
    "analysis.CollectiveGroup": "part of what collectives() returns",
    "analysis.Escape": "part of what confinement() returns",
    "analysis.Evidence": "part of what confinement() returns",
    "analysis.Gap": "part of what gaps() returns",
    "analysis.HandleLatency": "part of what latency() returns",
    "analysis.SeenFunction": "part of what idle_causes() returns",
    "analysis.HostTime": "part of what host_times() returns",
    "analysis.StackTime": "part of what host_times() returns",
    "analysis.IdleCause": "part of what idle_causes() returns",
    "analysis.KernelSms": "part of what idle_sms() returns",
    "analysis.KernelUse": "part of what partition_use() returns",
    "analysis.PartitionUse": "part of what partition_use() returns",
    "analysis.KernelTime": "part of what top_kernels() returns",
    "analysis.LaunchLatency": "part of what launch_latency() returns",
    "analysis.NamedProjection": "part of what range_projection() returns",
    "analysis.Change": "part of what what_would_help() returns",
    "analysis.HelpCase": "for packages: docs/develop.md is its example",
    "analysis.PathPart": "part of what critical_path() returns",
    "analysis.PairOverlap": "part of what overlap() returns",
    "analysis.RankTimes": "part of what ranks() returns",
    "analysis.Served": "part of what requests() returns",
    "analysis.PartitionConfinement": "part of what confinement() returns",
    "analysis.Step": "part of what steps() returns",
    "analysis.SummaryRow": "part of what summary() returns",
    "analysis.TrackGaps": "part of what gaps() returns",
    "analysis.TunedSetting": "part of what tune() returns",
    "simulator.calibration.calibrator.Calibration": "what calibrate() returns, which needs a GPU",
    "device.Kernel": "what Device.compile() returns: KernelModel's example launches one",
    "device.KernelCost": "in KernelModel's example",
    "device.SmLayout": "what plan_carve() needs to know of a GPU, for tests and tools",
    "device.plan_carve": "Device.plan_carve() has one, and needs no layout",
    "device.caller_stream_capsule": "for C: docs/native.md is its example",
    "search.load_sweep": "reads the folder that sweep() writes",
    "device.PlannedPartition": "part of a CarvePlan",
    "device.Access": "part of what Recording.happened() returns",
    "device.NativeArray": "what every array of a device is",
    "device.PinnedArray": "what Device.empty_pinned() returns",
    "gpuscope_lessons.Case": "what case() returns",
    "gpuscope_lessons.Feedback": "what Lesson.check() returns",
    "gpuscope_lessons.Outcome": "what Lesson.reveal() returns",
    "gpuscope_lessons.Result": "part of an Outcome",
    "races.Happened": "part of what Recording.happened() returns",
    "races.Watched": "what watch() yields",
    "experiments.nsight.Profile": "what nsight.profile() returns",
    "experiments.nsight.profile": "its example needs nsys and a GPU, so it is skipped",
    "experiments.runner.Progress": "what viewers are given",
    "analysis.Part": "what parts() returns",
    "workloads.Completion": "what Handle.completion returns, in the example there",
    "workloads.FunctionHandle": "what a workload returns when it is called",
}
"""Name → why it has no example of its own that runs. Errors and analyses' results have none."""


def resolve(dotted):
    """Return what a name under gpuscope, or one of the lessons', stands for, or None."""
    found, parts = gs, dotted.split(".")
    if parts[0] == "gpuscope_lessons":
        found, parts = gpuscope_lessons, parts[1:]
    for part in parts:
        if inspect.ismodule(found) and not hasattr(found, part):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part, None)
    return found


def offered(module):
    """Names of the functions and classes that a module of gpuscope's offers as its own."""
    found = importlib.import_module(f"gpuscope.{module}")
    own = re.compile(rf"gpuscope\.{module}(\.|$)")
    return [
        f"{module}.{name}"
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and own.match(value.__module__)
    ]


def documented():
    """Names under gpuscope that the reference lists, in its order, and those of the lessons."""
    names = []
    inside = package = ""
    pages = "".join((REFERENCE / name).read_text("utf-8") for name in ("index.md", "lessons.md"))
    for block in re.findall(r"```\{eval-rst\}\n(.*?)```", pages, re.DOTALL):
        for line in block.splitlines():
            if found := re.match(r"\.\. (\w+)::\s*([\w.]*)$", line):
                inside = found[1]
                if inside == "automodule":
                    names.append(module := found[2].removeprefix("gpuscope."))
                elif inside == "currentmodule":
                    package = "" if found[2] == "gpuscope" else f"{found[2]}."
            elif inside == "automodule" and line.strip() == ":members:":
                names += offered(module)
            elif inside == "autosummary" and re.match(r"   \w", line):
                names.append(package + line.strip())
    return names


NAMES = documented()
CALLED = [name for name in NAMES if callable(resolve(name))]
PUBLIC = [
    *(name for name in gs.__all__ if not inspect.ismodule(getattr(gs, name))),
    *(name for module in MODULES for name in offered(module)),
    *(
        f"{room}.{name}"
        for room in ROOMS
        for name in resolve(room).__all__
        if not inspect.ismodule(getattr(resolve(room), name))
    ),
    *(f"gpuscope_lessons.{name}" for name in gpuscope_lessons.__all__),
]


def test_every_public_name_is_in_the_reference():
    assert len(PUBLIC) > 100
    listed = {id(resolve(name)) for name in NAMES}
    assert [name for name in PUBLIC if id(resolve(name)) not in listed] == []


def test_every_name_in_the_reference_exists_and_is_there_once():
    assert [name for name in NAMES if resolve(name) is None] == []
    assert sorted(set(NAMES)) == sorted(NAMES)


@pytest.mark.parametrize("name", CALLED)
def test_it_says_what_it_is_and_what_it_takes(name):
    thing = resolve(name)
    assert thing.__doc__, f"{name} has no docstring"
    if inspect.isclass(thing):
        for method, member in members(thing):
            assert inspect.getdoc(member), f"{name}.{method} has no docstring"
    if not inspect.isclass(thing) or re.search(r"\n *Parameters\n", thing.__doc__):
        for one in inspect.signature(thing).parameters.values():
            assert one.kind is one.VAR_KEYWORD or re.search(rf"\b{one.name}\b", thing.__doc__), (
                f"{name} does not say what {one.name} is"
            )


def members(kind):
    """Public methods and properties of a class that gpuscope defines."""
    for name in dir(kind):
        home = next((one for one in kind.__mro__ if name in vars(one)), object)
        member = vars(home).get(name)
        if (
            home.__module__.startswith("gpuscope")
            and not name.startswith("_")
            and name not in getattr(home, "__dataclass_fields__", ())
            and (
                inspect.isroutine(member)
                or isinstance(member, property | cached_property | classmethod | staticmethod)
            )
        ):
            yield name, getattr(kind, name)


def needs_an_example(name):
    thing = resolve(name)
    return name not in WITHOUT_EXAMPLE and not (
        inspect.isclass(thing) and issubclass(thing, (gs.errors.GpuscopeError, Result))
    )


@pytest.mark.parametrize("name", list(filter(needs_an_example, CALLED)))
def test_it_has_an_example_that_runs(name):
    examples = doctest.DocTestParser().get_examples(resolve(name).__doc__)
    run = [
        one.source
        for one in examples
        if not one.options.get(doctest.SKIP) and not one.source.startswith(("import ", "from "))
    ]
    assert run, f"{name} has no example in its docstring that runs"


def test_the_exceptions_are_names_of_the_reference():
    assert set(WITHOUT_EXAMPLE) - set(NAMES) == set()


@pytest.mark.parametrize(
    "module",
    [
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for folder in (ROOT, ROOT / "lessons")
        for path in sorted(folder.glob("gpuscope*/**/*.py"))
        if ">>> " in path.read_text("utf-8")
    ],
)
def test_docstring_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
    assert [str(one.message) for one in seen if "never closed" in str(one.message)] == []
