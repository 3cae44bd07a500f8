"""Queues: how much work of a background was queued whenever another workload was timed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._checks import door
from gpuscope.analysis.result import Result, Row, about, sentences
from gpuscope.errors import MissingEvidence
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace


@dataclass(frozen=True)
class QueueDepth(Result):
    """How many kernels of one workload were queued or running at each call of another.

    Attributes
    ----------
    depths
        One count per sample, in order.
    """

    of: str
    at: str
    depths: tuple[int, ...]

    @property
    def minimum(self) -> int:
        """The smallest count."""
        return min(self.depths)

    @property
    def unloaded(self) -> int:
        """Samples at which nothing was queued or running."""
        return sum(depth <= 0 for depth in self.depths)

    def _rows(self) -> list[Row]:
        """One row: the smallest, the median and the number of samples."""
        names = {"kernels of": self.of, "queued at each call of": self.at}
        depths = {"n": len(self.depths), "least": self.minimum}
        median = float(np.median(self.depths))
        return [{**names, **depths, "median": median, "with nothing queued": self.unloaded}]


@door(trace=Trace, of=str, at=str)
def queue_depth(trace: Trace, *, of: str, at: str) -> QueueDepth:
    """Count the unfinished kernels of workload ``of`` at each ``execute()`` of ``at``.

    A kernel counts from the return of its launch call to its end, as recorded. A kernel that ends
    before its call returns is never queued.

    Raises
    ------
    MissingEvidence
        The trace has no such rows, or the kernels' launch times are unknown.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2, 3], "kind": ["kernel", "kernel", "handle"], "name": ["k", "k", "w"],
    ...     "category": ["load", "load", "small"], "source": ["cupti", "cupti", "host"],
    ...     "queued_ns": [0, 10, None], "start_ns": [5, 100, 50], "end_ns": [100, 200, 80],
    ... })
    >>> gs.analysis.queue_depth(trace, of="load", at="small").depths
    (2,)
    """
    load = trace.where(kind="kernel", category=of)
    samples = trace.where(kind="handle", category=at)
    if not len(load) or not len(samples):
        raise MissingEvidence(
            f"queue_depth needs kernels of {of!r} and calls of {at!r}; the trace has {len(load)} "
            f"and {len(samples)}"
        )
    ends = load.array("end_ns", fill=np.iinfo(np.int64).max)
    queued = np.sort(np.minimum(load.array("queued_ns"), ends))
    ended = np.sort(ends)
    times = samples.array("start_ns")
    depths = np.searchsorted(queued, times, "right") - np.searchsorted(ended, times, "right")
    return QueueDepth(of, at, tuple(depths.tolist()), incomplete=trace.metadata.incomplete)


@dataclass(frozen=True)
class QueueDepthsResult(Result):
    """How much of each background was queued at the calls of each workload that is timed.

    Attributes
    ----------
    pairs
        One a background and a timed workload.
    unknown
        Why that is not known of others.
    """

    pairs: tuple[QueueDepth, ...]
    unknown: tuple[str, ...]

    def _rows(self) -> list[Row]:
        """One row per pair."""
        return [row for pair in self.pairs for row in pair.rows()]

    @property
    def definition(self) -> str:
        """Why it is not known of other pairs."""
        return sentences(*self.unknown)


def described_workloads(trace: Trace) -> tuple[dict[str, Description], list[str]]:
    """Return the workloads that the trace's experiment describes, and those in the background."""
    workloads: dict[str, Description] = (trace.metadata.experiment or {}).get("workloads") or {}
    return workloads, [name for name, facts in workloads.items() if facts.get("background")]


@door(trace=Trace)
def queue_depths(trace: Trace) -> QueueDepthsResult:
    """Count what of each background was queued at each call that was timed, in an experiment.

    Raises
    ------
    MissingEvidence
        The experiment of the trace has no background, or times nothing beside it.

    Examples
    --------
    >>> import gpuscope as gs
    >>> run = gs.experiments.predict({
    ...     "name": "load", "alone_repeats": 0, "streams": {"a": {}, "b": {}}, "workloads": {
    ...         "big": {"kind": "spin", "duration_us": 400, "stream": "a", "background": True},
    ...         "small": {"kind": "spin", "duration_us": 10, "stream": "b", "repeats": 5},
    ...     },
    ... })
    >>> (pair,) = gs.analysis.queue_depths(run["default"]).pairs
    >>> pair.of, pair.at, pair.unloaded
    ('big', 'small', 0)
    """
    workloads, background = described_workloads(trace)
    pairs: list[QueueDepth] = []
    unknown: list[str] = []
    for of in background:
        for at in workloads:
            if at not in background:
                try:
                    pairs.append(queue_depth(trace, of=of, at=at))
                except MissingEvidence as error:
                    unknown.append(str(error))
    if not pairs and not unknown:
        raise MissingEvidence(
            "no workload in the background is described beside one that is timed: run an "
            "experiment with background = true"
        )
    return QueueDepthsResult(tuple(pairs), tuple(unknown), **about(trace))
