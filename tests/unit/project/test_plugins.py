"""Other packages add backends, commands, observers and forecasters; broken ones break nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import example_plugin
import numpy as np
import pytest

import gpuscope as gs
from gpuscope._plugins import ROOMS, Plugins
from gpuscope.analysis.mechanisms import CHANGES
from gpuscope.device.families import FAMILIES
from gpuscope.device.select import device_of
from gpuscope.errors import DeviceUnavailable, MissingDependency
from gpuscope.record.observers import OBSERVERS
from gpuscope.search.forecasters import FORECASTERS
from gpuscope.workloads.copy import Copy

REGISTRIES = (FAMILIES, OBSERVERS, FORECASTERS, CHANGES)


@pytest.fixture
def broken(other_package):
    """Make a package visible that declares this in a group, in its module ``broken_plugin``."""

    def declare(group: str, name: str, expression: str) -> list[str]:
        entry, text = f'{name} = "broken_plugin:VALUE"', f"VALUE = {expression}"
        return other_package("broken", group, entry, "broken_plugin", text)

    return declare


def gpuscope(paths: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "gpuscope.cli", *arguments],
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


# -- what a package adds ------------------------------------------------------------------
def test_a_backend(plugin):
    gs.open_device("cpu", quiet=True)  # whose arrays are of a base of the others' type
    others = gs.open_device("shared:them", quiet=True)
    ours = gs.open_device("shared:us", quiet=True)
    assert (ours.info.key, ours.info.name) == ("shared:us", "CPU shared by us")
    for device in (ours, others):
        assert device_of(device.asarray(np.arange(4.0)), "array") is device
    with ours.create_stream() as stream, gs.profile(ours) as recording:
        Copy(ours, nbytes=1024).execute(stream=stream)
    assert recording.trace.kind_counts()["kernel"] == 1
    with pytest.raises(DeviceUnavailable, match=r"'sim:h100', 'shared:…' or 'cpu'"):
        gs.open_device("odd:1")


def test_commands_are_in_the_help_and_run(tmp_path):
    paths = example_plugin.make_visible(tmp_path / "installed")
    assert "Greet somebody." in gpuscope(paths, "--help").stdout
    assert gpuscope(paths, "greet", "Ada").stdout == "hello Ada\n"
    assert "shared:everybody: CPU shared by everybody" in gpuscope(paths, "devices").stdout


def test_an_observer(plugin):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.create_stream() as stream, gs.profile(gpu, hazards=True) as recording:
        for _ in range(3):
            Copy(gpu, nbytes=1024, name="c").execute(stream=stream)
    assert recording.trace.metadata.counts["launches of copy_kernel"] == 3
    assert recording.trace.metadata.hazards is not None
    with gs.profile(gpu, keep="1 s") as recording:
        pass
    assert not recording.observers


def test_a_forecaster_is_asked_before_our_own(plugin):
    spin = {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 3}
    experiment = {"name": "one", "streams": {"s": {}}, "workloads": {"w": spin}}
    forecasts = [
        gs.tune(
            experiment, {"workloads.w.duration_us": [10, 20]}, "w.calls_per_s",
            device=gs.open_device("sim:h200", quiet=True), gpu_profile=profile, repeats=3,
        ).forecasts
        for profile in ("oracle", "h200")
    ]  # fmt: skip
    assert forecasts[0] == "forecasts: by the oracle"
    assert "SIMULATED" in forecasts[1]


def copying():
    gpu = gs.open_device("sim:h200", quiet=True)
    pairs = [(gpu.empty(256), gpu.empty_pinned(256)) for _ in range(4)]
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        for to, source in pairs:
            stream.copy(to, source)
        stream.synchronize()
    return gs.analysis.what_would_help(recording.trace)


def test_a_change_is_ranked_among_ours(plugin):
    changes = {change.change: change for change in copying().changes}
    assert changes["copy at once"].gain_ns > 0
    assert changes["copy at once"].code == "gather them in one array"
    assert changes.keys() > {"copy at once", "copy beside kernels"}


# -- broken ones --------------------------------------------------------------------------
@pytest.mark.parametrize("expression", ["1 / 0", "exit(3)", "__import__('no_such_module')", "3"])
@pytest.mark.parametrize(
    "registry", REGISTRIES, ids=["backends", "observers", "forecasters", "changes"]
)
def test_one_that_cannot_be_used_is_named(broken, registry, expression):
    broken(registry.group, "odd", expression)
    with pytest.raises(MissingDependency, match=r"the .* 'odd' of the package 'broken-package'"):
        registry.find("odd")
    assert [*registry.usable()] == [*ROOMS.get(registry.group, ())]
    (problem,) = registry.problems()
    assert "Mend or uninstall the package" in problem


def test_a_broken_backend_breaks_no_other(broken):
    broken("gpuscope.backends", "odd", "1 / 0")
    with pytest.raises(MissingDependency, match="ZeroDivisionError"):
        gs.open_device("odd:1")
    assert gs.open_device("sim:h200", quiet=True).is_simulated


def test_a_broken_observer_is_a_note(broken):
    broken("gpuscope.observers", "odd", "3")
    with gs.profile(gs.open_device("sim:h200", quiet=True)) as recording:
        pass
    assert any("'odd'" in note for note in recording.trace.metadata.notes)


@pytest.mark.parametrize("expression", ["1 / 0", "lambda view: 1 / 0", "lambda view: [view.no]"])
def test_a_broken_change_is_told_beside_the_others(broken, expression):
    broken("gpuscope.changes", "odd", expression)
    result = copying()
    (problem,) = result.problems
    assert "'odd' of the package 'broken-package'" in problem
    assert result.changes
    assert problem in result.readable()[1]


def test_a_broken_command_says_why_and_breaks_no_other(broken):
    paths = broken("gpuscope.commands", "odd", "1 / 0")
    done = gpuscope(paths, "odd", "--whatever", "x")
    assert done.returncode == 2
    assert "ZeroDivisionError" in done.stderr
    assert gpuscope(paths, "kinds").returncode == 0


@pytest.mark.parametrize("group", ROOMS)
def test_nobody_takes_the_name_of_a_room_of_ours(broken, group):
    (name, *_) = ROOMS[group]
    broken(group, name, "print")
    registry = Plugins(group, "thing", lambda *_: "")
    assert "gpuscope has a thing of that name" in registry.problems()[0]
    assert registry.find(name) is not print
