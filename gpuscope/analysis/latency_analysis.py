"""Latency of handles: from entering execute() to completion seen, and what was queued then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.intervals import Groups, by_workload
from gpuscope.analysis.result import Result, Row, named
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace

P99_NEEDS = 1000
"""Samples below which no p99 is stated."""


@dataclass(frozen=True)
class HandleLatency:
    """Latency of one handle, ns.

    Attributes
    ----------
    n
        Samples whose completion was seen.
    unseen
        Calls whose completion nobody looked for: not in the quantiles.
    p99_ns
        ``None`` with fewer than 1,000 samples.
    """

    name: str
    n: int
    unseen: int
    p50_ns: float
    p90_ns: float
    p99_ns: float | None
    max_ns: int


@dataclass(frozen=True)
class LatencyResult(Result):
    """Latency by handle."""

    handles: tuple[HandleLatency, ...]
    provenance: str
    weight = "n"

    def __getitem__(self, name: str) -> HandleLatency:
        return named(self.handles, name, "handle")

    def _rows(self) -> list[Row]:
        """One row per handle."""
        return [
            {
                "handle": handle.name,
                "n": handle.n,
                "p50 (µs)": handle.p50_ns / 1e3,
                "p90 (µs)": handle.p90_ns / 1e3,
                "p99 (µs)": None if handle.p99_ns is None else handle.p99_ns / 1e3,
                "max (µs)": handle.max_ns / 1e3,
                "never waited for": handle.unseen,
            }
            for handle in self.handles
        ]

    @property
    def note(self) -> str:
        """Definition and provenance in one line."""
        return (
            "latency: host time from entering execute() to its completion seen; p99 needs n ≥ "
            f"{P99_NEEDS}. {self.provenance}"
        )


def durations_ns(trace: Trace) -> tuple[Groups[str], Array, dict[str, int]]:
    """Return the calls whose completion was seen, by handle, their durations, and all calls.

    Returns
    -------
    Groups, array, dict
        Seen calls by label, ns of each, and label → number of calls, seen or not.
    """
    rows = trace.where(kind="handle")
    every = by_workload(rows)
    seen = ~is_open(rows)
    took = (rows.array("end_ns", fill=0) - rows.array("start_ns"))[seen]
    counts = dict(zip(every.labels, every.counts.tolist(), strict=True))
    return Groups.of(every.code[seen], every.labels), took, counts


@door(trace=Trace)
def latency(trace: Trace) -> LatencyResult:
    """Return the latency of every handle in a trace.

    Raises
    ------
    MissingEvidence
        The trace holds no handle row whose completion was seen.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream() as stream, gs.Gemm(gpu, m=64, n=64, k=64, name="w") as gemm:
    ...     with gs.profile(gpu) as recording:
    ...         for _ in range(5):
    ...             _ = gemm.execute(stream=stream)
    ...             gemm.wait()
    >>> seen = gs.analysis.latency(recording.trace)["w"]
    >>> seen.n, seen.p50_ns <= seen.max_ns, seen.p99_ns
    (5, True, None)
    """
    calls, took, every = durations_ns(trace)
    found = []
    if len(calls):
        quantiles = calls.quantiles(took, (0.5, 0.9, 0.99, 1)).tolist()
        found = [
            HandleLatency(
                label, count, every[label] - count, p50, p90, p99 if count >= P99_NEEDS else None,
                int(most),
            )
            for label, count, (p50, p90, p99, most) in zip(
                calls.labels, calls.counts.tolist(), quantiles, strict=True
            )
        ]  # fmt: skip
    if not found:
        raise MissingEvidence(
            "no handle's completion was seen: call handle.wait() or ask is_done while recording"
        )
    return LatencyResult(tuple(found), trace.provenance, incomplete=trace.metadata.incomplete)


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

    def _rows(self) -> list[Row]:
        """One row: the smallest, the median and the number of samples."""
        return [
            {
                "kernels of": self.of,
                "queued at each call of": self.at,
                "n": len(self.depths),
                "least": self.minimum,
                "median": float(np.median(self.depths)),
            }
        ]


@door(trace=Trace, of=str, at=str)
def queue_depth(trace: Trace, *, of: str, at: str) -> QueueDepth:
    """Count the unfinished kernels of workload ``of`` at each ``execute()`` of ``at``.

    A kernel counts from its launch call's return to its end, as the trace has them; one that
    ends before its call returns is never queued.

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
    return QueueDepth(
        of, at, tuple(int(depth) for depth in depths), incomplete=trace.metadata.incomplete
    )
