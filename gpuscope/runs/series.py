"""Several experiments one after the other: what interference and sweeps have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import TypeVar

from gpuscope.device.device import Device
from gpuscope.errors import NothingRecorded
from gpuscope.runs.execution import run
from gpuscope.runs.experiment import Experiment
from gpuscope.runs.runner import Progress, Viewer
from gpuscope.trace.run import Run

_Result = TypeVar("_Result")


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
            self.runs[key] = run(experiment, self._device, viewer=viewer, stop=self._stop)
            self.stopped = self.runs[key].stopped
        except (KeyboardInterrupt, NothingRecorded):  # after Ctrl-C the event tells nothing
            self.stopped = True


def _calls(experiment: Experiment) -> int:
    """Foreground calls of a run, as its progress counts them."""
    foreground = (spec for spec in experiment.workloads.values() if not spec.background)
    return sum(spec.repeats for spec in foreground) * max(1, len(experiment.settings))
