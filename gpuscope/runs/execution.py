"""Running experiments: one or several, on a device, on a simulated one, or for another tool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpuscope._checks import door, require_kind
from gpuscope.device.device import Device
from gpuscope.device.select import open_device
from gpuscope.errors import NothingRecorded
from gpuscope.runs.experiment import Description, Experiment, as_experiment
from gpuscope.runs.runner import Progress, Runner, Viewer, foreground_calls
from gpuscope.runs.scale_out import locked
from gpuscope.trace.run import Run

_Result = TypeVar("_Result")


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
        An open device or a name for :func:`open_device`; ``"auto"`` if not given.
    viewer
        Called repeatedly from this thread with the progress.
    stop
        An event that ends the run early when set. What was recorded is kept.

    Returns
    -------
    Run
        Setting → trace, with a comparison of the settings. After Ctrl-C or ``stop``, it holds
        what was recorded until then, and ``stopped`` is true. A second Ctrl-C during this step
        aborts at once, without a result.

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
    return _runner(experiment, device, viewer, stop).run()


@door(gpu_profile=(str, Path))
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
        are. :func:`gpuscope.figures.prediction` compares it with a measured run.

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
    device = open_device(f"sim:{gpu_profile}", jitter=jitter, quiet=True)
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
    runner = _runner(experiment, device, None, stop, records=False)
    try:
        runner.perform()
    except KeyboardInterrupt:
        pass  # what it left is looked after when nothing holds on to it any more
    else:
        return
    runner.settle()
    raise KeyboardInterrupt


def _runner(
    experiment: Description,
    device: Device | str | None,
    viewer: Viewer | None,
    stop: threading.Event | None,
    *,
    records: bool = True,
) -> Runner:
    require_kind("device", device, Device, str, None)
    require_kind("viewer", viewer, Callable, None)
    require_kind("stop", stop, threading.Event, None)
    described, target = as_experiment(experiment), opened(device)
    return Runner(described, target, viewer, stop or threading.Event(), records=records)


def opened(device: Device | str | None) -> Device:
    """Return a device: itself, or the one of that name; ``"auto"`` without one."""
    if isinstance(device, Device):
        return device
    return open_device("auto" if device is None else device)


# -- several, one after the other ----------------------------------------------------------
def as_far_as_measured(measure: Callable[[], None], result: Callable[[], _Result]) -> _Result:
    """Measure, and return the result; after an interrupt of either, that of what there is."""
    try:
        measure()
        return result()
    except KeyboardInterrupt:
        pass
    return result()


class Series:
    """Runs experiments for one viewer: it sees one progress over all of them.

    Attributes
    ----------
    stopped
        Whether Ctrl-C or ``stop`` ended one of them early.
    runs
        What was recorded, by key: it stands here before anything can interrupt.
    """

    def __init__(
        self,
        plans: Iterable[Experiment],
        device: Device,
        viewer: Viewer | None,
        stop: threading.Event | None,
    ) -> None:
        self.stopped = False
        self.runs: dict[Hashable, Run] = {}
        self._total = sum(map(_calls, plans))
        self._done = 0
        self._device = device
        self._viewer = viewer
        self._stop = stop or threading.Event()

    def run(
        self, experiment: Experiment, label: str, key: Hashable, *, number: int | None = None
    ) -> None:
        """Run the next one; what it recorded, if anything, is ``runs[key]`` then.

        Parameters
        ----------
        label
            Which one it is, for the viewer: stands before the setting where there are several.
        number
            The round to tell the viewer, where each of these runs is but one.
        """
        before = self._done
        self._done += _calls(experiment)
        self.stopped = self.stopped or self._stop.is_set()
        if self.stopped:
            return

        def view(progress: Progress) -> None:
            assert self._viewer is not None  # noqa: S101 - or nobody calls this
            # Alone on the whole GPU it names no setting.
            several = experiment.settings and progress.setting
            setting = f"{label}: {progress.setting}" if several else label
            overall = replace(
                progress, setting=setting, done=before + progress.done, total=self._total,
                round=progress.round if number is None else number,
            )  # fmt: skip
            self._viewer(overall)

        try:
            viewer = None if self._viewer is None else view
            with locked([self._device.info]):
                self.runs[key] = run(experiment, self._device, viewer=viewer, stop=self._stop)
            self.stopped = self.runs[key].stopped
        except (KeyboardInterrupt, NothingRecorded):  # after Ctrl-C the event tells nothing
            self.stopped = True


def _calls(experiment: Experiment) -> int:
    """Foreground calls of a run, as its progress counts them."""
    return foreground_calls(experiment) * max(1, len(experiment.settings))
