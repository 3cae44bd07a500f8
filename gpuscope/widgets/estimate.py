"""Progress and remaining time of a run."""

from __future__ import annotations

from collections.abc import Callable

from gpuscope.runs.experiment import Experiment
from gpuscope.runs.runner import Progress


class Estimate:
    """Estimates when a run of one setting and round ends.

    Timed calls come at the rate of those before. Then each background workload runs alone,
    twice, for as long as it ran with the others; timed workloads alone take next to nothing.

    Parameters
    ----------
    clock
        Monotonic, in seconds.
    """

    def __init__(self, experiment: Experiment, clock: Callable[[], float]) -> None:
        queued = sum(workload.background for workload in experiment.workloads.values())
        self._factor = 1 + (2 * queued if experiment.alone_repeats else 0)
        self._clock = clock
        self._began_s: float | None = None
        self._together_s = 0.0

    def at(self, progress: Progress) -> tuple[float, float | None]:
        """Return the share of the time that has passed, and the seconds left if they are known."""
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        passed_s = now_s - self._began_s
        if progress.phase == "together" and progress.done:
            self._together_s = passed_s * progress.total / progress.done
        if not self._together_s:
            return 0.0, None
        whole_s = self._factor * self._together_s
        return min(0.99, passed_s / whole_s), max(0.0, whole_s - passed_s)


def in_words(left_s: float | None) -> str:
    """Write how much time is left."""
    if left_s is None:
        return ""
    if left_s < 90:
        return f"about {max(1, round(left_s))} s left"
    return f"about {round(left_s / 60)} min left"
