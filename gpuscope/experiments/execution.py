"""Running an experiment: on a device, on a simulated one, or for another tool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gpuscope import _interrupts
from gpuscope._checks import door, require_kind
from gpuscope.device.device import Device
from gpuscope.device.ranks import ranks_of_process
from gpuscope.device.select import open_device
from gpuscope.experiments.experiment import Description, Experiment, as_experiment
from gpuscope.experiments.ranks import run_on_ranks
from gpuscope.experiments.runner import Runner, Viewer
from gpuscope.trace.run import Run


def run(
    experiment: Description,
    device: Device | str | None = None,
    *,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Run an experiment. Its settings take turns.

    Parameters
    ----------
    experiment
        The experiment: an ``Experiment``, the path of a TOML or JSON file, or a dict.
    device
        An open device or a name for :func:`open_device`; ``"auto"`` if not given. Where the
        experiment names ``devices``, those are used, unless a simulated one is given: then every
        rank has one like it.
    viewer
        Called repeatedly from this thread with the progress, of rank 0 if there are several.
    stop
        An event that ends the run early when set. What was recorded is kept. Several ranks stop
        before their next round, so that all make the same calls.

    Returns
    -------
    Run
        Setting → trace, with a comparison of the settings; of several ranks, their merged traces.
        After Ctrl-C or ``stop``, it holds what was recorded until then, and ``stopped`` is true. A
        second Ctrl-C during this step aborts at once, without a result.

    Raises
    ------
    InvalidExperiment, InvalidPartition, GpuscopeError
        If possible, raised before anything is launched.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> run = gs.run(one, gpu)
    >>> run["default"].kind_counts()["kernel"]
    2
    """
    require_kind("device", device, Device, str, None)
    require_kind("viewer", viewer, Callable, None)
    require_kind("stop", stop, threading.Event, None)
    described = as_experiment(experiment)
    names = devices_of(described, device)
    if len(names) > 1:
        return run_on_ranks(described, names, viewer=viewer, stop=stop)
    target = opened(names[0] if names else device)
    return Runner(described, target, viewer, stop or threading.Event()).run()


def devices_of(experiment: Experiment, device: Device | str | None) -> list[str]:
    """Return the names of the devices on which :func:`run` runs an experiment in place of this one.

    None where it names none, or where this process is a rank. Where ``device`` is simulated, all
    are like it.
    """
    if ranks_of_process() is not None:
        return []
    key = device.info.key if isinstance(device, Device) else device or ""
    return [key if key.startswith("sim:") else name for name in experiment.devices]


@door("gpu_profile")
def predict(
    experiment: Description,
    gpu_profile: str | Path = "h200",
    *,
    jitter: bool = True,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Predict a run: run an experiment on the simulated GPU of a profile.

    Parameters
    ----------
    experiment
        The experiment: an ``Experiment``, such as a measured run's ``experiment``, the path of a
        TOML or JSON file, or a dict.
    gpu_profile
        The name of a profile: the part after ``sim:`` in :func:`open_device`.
    jitter
        Let the times of host calls vary, as the experiment's ``seed`` draws them. False: every
        call takes its median time.
    viewer, stop
        As in :func:`run`.

    Returns
    -------
    Run
        Its traces are marked as simulated; `docs/simulator.md` states how accurate their times
        are. :func:`gpuscope.compare` checks it by a measured run.

    Raises
    ------
    DeviceUnavailable
        There is no such profile.
    InvalidExperiment, InvalidPartition, GpuscopeError
        As in :func:`run`.

    Examples
    --------
    >>> import gpuscope as gs
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> gs.experiments.predict(one).comparison.column("kernel_median_us").to_pylist()
    [10.0]
    """
    key, described = f"sim:{gpu_profile}", as_experiment(experiment)
    if len(names := devices_of(described, key)) > 1:
        return run_on_ranks(described, names, viewer=viewer, stop=stop, jitter=jitter)
    device = open_device(key, jitter=jitter, quiet=True)
    return run(described, device, viewer=viewer, stop=stop)


@door("device", "stop")
def perform(
    experiment: Description,
    device: Device | str | None = None,
    *,
    stop: threading.Event | None = None,
) -> None:
    """Do an experiment's work and record nothing: for a tool that records from outside.

    Ranges name settings and rounds; workloads are not run alone.

    Parameters
    ----------
    experiment, device, stop
        As in :func:`run`.

    Raises
    ------
    InvalidExperiment, InvalidPartition, GpuscopeError
        As in :func:`run`.
    """
    _interrupts.install()
    described, stop = as_experiment(experiment), stop or threading.Event()
    Runner(described, opened(device), None, stop, records=False).perform()


def opened(device: Device | str | None) -> Device:
    """Return a device: itself, or the one of that name; ``"auto"`` without one."""
    if isinstance(device, Device):
        return device
    return open_device("auto" if device is None else device)
