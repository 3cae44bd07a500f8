"""Running an experiment: on a device, on a simulated one, or for a tool that records it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from gpuscope._checks import door, require_kind
from gpuscope.device.device import Device
from gpuscope.device.select import open_device
from gpuscope.runs.experiment import Description, Experiment, as_experiment
from gpuscope.runs.runner import Performance, Runner, Viewer
from gpuscope.trace.run import Run


def run(
    experiment: Description,
    device: Device | str | None = None,
    *,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Run an experiment: each of its settings, in turns.

    Parameters
    ----------
    experiment
        The description, or a TOML or JSON file, or a dict.
    device
        An open device or a name for :func:`open_device`; ``"auto"`` if not given.
    viewer
        Called from this thread with the progress, many times.
    stop
        Set it to end early; what was recorded is kept.

    Returns
    -------
    Run
        Setting → Trace, with the comparison. After Ctrl-C or ``stop`` it holds what was
        recorded until then, and ``stopped`` is true. A second Ctrl-C, while that is put together,
        leaves at once, without it.

    Raises
    ------
    InvalidExperiment, InvalidPartition, GpuscopeError
        Before anything is launched where that can be told.

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
    described, target = _prepared(experiment, device, viewer, stop)
    return Runner(described, target, viewer, stop or threading.Event()).run()


@door(gpu_profile=(str, Path))
def predict(
    experiment: Description,
    gpu_profile: str | Path = "h200",
    *,
    viewer: Viewer | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """Run an experiment on the simulated GPU of a profile: what a real one may be expected to do.

    Parameters
    ----------
    experiment
        The description, or a TOML or JSON file, or a dict, such as a measured run's
        ``experiment``.
    gpu_profile
        A profile's name: what stands behind ``sim:`` in :func:`open_device`.
    viewer, stop
        As in :func:`run`.

    Returns
    -------
    Run
        Its traces are marked as simulated; how good their times are: `docs/simulator.md`.
        :func:`gpuscope.figures.prediction` sets it beside a measured run.

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
    >>> gs.runs.predict(one).comparison.column("kernel_median_us").to_pylist()
    [10.0]
    """
    device = open_device(f"sim:{gpu_profile}", quiet=True)
    return run(experiment, device, viewer=viewer, stop=stop)


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
    described, target = _prepared(experiment, device, None, stop)
    performance = Performance(described, target, None, stop or threading.Event())
    interrupted = False
    try:
        performance.perform()
    except KeyboardInterrupt:
        interrupted = True
    if interrupted:
        performance.settle()
        raise KeyboardInterrupt


def _prepared(
    experiment: Description,
    device: Device | str | None,
    viewer: Viewer | None,
    stop: threading.Event | None,
) -> tuple[Experiment, Device]:
    require_kind("device", device, Device, str, None)
    require_kind("viewer", viewer, Callable, None)
    require_kind("stop", stop, threading.Event, None)
    return as_experiment(experiment), opened(device)


def opened(device: Device | str | None) -> Device:
    """Return a device: itself, or the one of that name; ``"auto"`` without one."""
    if isinstance(device, Device):
        return device
    return open_device("auto" if device is None else device)
