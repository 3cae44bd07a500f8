"""Latency: of handles, from entering execute() to completion seen; of launches, to kernel start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pyarrow as pa

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.gaps_analysis import track_labels
from gpuscope.analysis.intervals import Groups, by_workload
from gpuscope.analysis.result import P99_NEEDS, Result, Row, about, named, row_of
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, edge_rows, is_open, rows_of
from gpuscope.trace.model import Trace


@dataclass(frozen=True)
class _Quantiles:
    """How long what goes by one name took, ns; ``p99_ns`` is ``None`` below 1,000 samples."""

    name: Annotated[str, "name"]
    n: Annotated[int, "n"]
    p50_ns: Annotated[float, "p50 (µs)"]
    p90_ns: Annotated[float, "p90 (µs)"]
    p99_ns: Annotated[float | None, "p99 (µs)"]
    max_ns: Annotated[int, "max (µs)"]


def _quantiles(
    groups: Groups[str], took: Array
) -> Iterator[tuple[str, int, float, float, float | None, int]]:
    """Yield what :class:`_Quantiles` holds of each group."""
    quantiles = groups.quantiles(took, (0.5, 0.9, 0.99, 1)).tolist()
    for name, n, (p50, p90, p99, most) in zip(
        groups.labels, groups.counts.tolist(), quantiles, strict=True
    ):
        yield name, n, p50, p90, p99 if n >= P99_NEEDS else None, int(most)


@dataclass(frozen=True)
class HandleLatency(_Quantiles):
    """Latency of one handle, ns.

    Attributes
    ----------
    n
        Samples whose completion was seen.
    unseen
        Calls whose completion the host did not look for by itself; not in the quantiles. A wait
        for a later call may have covered them.
    p99_ns
        ``None`` with fewer than 1,000 samples.
    """

    name: Annotated[str, "handle"]
    unseen: Annotated[int, "completion not seen"]


@dataclass(frozen=True)
class LatencyResult(Result):
    """Latency by handle."""

    handles: tuple[HandleLatency, ...]
    weight = "n"

    def __getitem__(self, name: str) -> HandleLatency:
        return named(self.handles, name, "handle")

    def _rows(self) -> list[Row]:
        """One row per handle."""
        return list(map(row_of, self.handles))

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
    found = [
        HandleLatency(*quantiles, unseen=every[quantiles[0]] - quantiles[1])
        for quantiles in _quantiles(calls, took)
    ]
    if not found:
        raise MissingEvidence(
            "no handle's completion was seen: call handle.wait() or ask is_done while recording"
        )
    return LatencyResult(tuple(found), **about(trace))


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
    return QueueDepth(
        of, at, tuple(int(depth) for depth in depths), incomplete=trace.metadata.incomplete
    )


def launch_calls(trace: Trace) -> Array:
    """Row → position of the host call that launched it, −1 where none is known.

    Of several calls that the edges name for one row, the last to begin: the innermost.
    """
    calls = np.full(len(trace), -1, np.int64)
    code, kinds = codes(trace.edges.column("kind"))
    if "launch" not in kinds or not len(trace):
        return calls
    edges = trace.edges.filter(pa.array(code == kinds.index("launch")))
    call, work = edge_rows(trace, edges)
    known = (call >= 0) & (work >= 0)
    call, work = call[known], work[known]
    order = np.argsort(trace.array("start_ns")[call], kind="stable")
    calls[work[order]] = call[order]  # of equal targets the last assignment stays
    return calls


def launched(trace: Trace, rows: Array) -> tuple[Array, Array]:
    """Return those of ``rows`` whose launch call is known, and the calls' positions.

    Raises
    ------
    MissingEvidence
        None of them has one.
    """
    calls = launch_calls(trace)[rows]
    if not (calls >= 0).any():
        raise MissingEvidence(
            f"none of {len(rows):,} rows of GPU work is linked to its launch call: record with "
            "launch ids, profile(launch_ids=True), which is the default"
        )
    return rows[calls >= 0], calls[calls >= 0]


@dataclass(frozen=True)
class LaunchLatency(_Quantiles):
    """Launch latency of the kernels of one stream or name, ns.

    Attributes
    ----------
    p99_ns
        ``None`` with fewer than 1,000 kernels.
    queueing_p50_ns
        Median of the time from the launch call's end to the kernel's start, 0 where the kernel
        started before the call returned; ``None`` where no call's end is known.
    queueing_share
        The sum of these times / the sum of the latencies.
    """

    queueing_p50_ns: Annotated[float | None, "queueing p50 (µs)"]
    queueing_share: Annotated[float | None, "queueing share"]


@dataclass(frozen=True)
class LaunchLatencyResult(Result):
    """Launch latency by stream and by kernel.

    Attributes
    ----------
    unmatched
        Kernels whose launch call is unknown: not in the quantiles.
    before_call
        Kernels that seem to start before their launch call, by an error of the clocks. They
        are in the quantiles as they are.
    """

    streams: tuple[LaunchLatency, ...]
    kernels: tuple[LaunchLatency, ...]
    unmatched: int
    before_call: int
    weight = "n"

    def _rows(self) -> list[Row]:
        """One row per stream, then one per kernel name."""
        return [
            {"of": what, **row_of(one)}
            for what, group in (("stream", self.streams), ("kernel", self.kernels))
            for one in group
        ]

    @property
    def note(self) -> str:
        """Definition and provenance in one line."""
        doubts = ""
        if self.unmatched:
            doubts += f" {self.unmatched:,} kernels have no known launch call."
        if self.before_call:
            doubts += f" {self.before_call:,} seem to start before theirs (clock error)."
        return (
            "launch latency: kernel start − start of its launch call; queueing: the part after "
            f"the call returned; p99 needs n ≥ {P99_NEEDS}.{doubts} {self.provenance}"
        )


@door(trace=Trace)
def launch_latency(trace: Trace) -> LaunchLatencyResult:
    """Return how long after its launch call each kernel started, by stream and by kernel.

    The kernels of a graph share one launch call.

    Raises
    ------
    MissingEvidence
        The trace holds no kernel, or no kernel is linked to its launch call.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.learn.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, 900_000, grid=1, block=32)
    ...     stream.launch(kernel, 900_000, grid=1, block=32)
    >>> seen = gs.analysis.launch_latency(recording.trace).streams[0]
    >>> seen.name, seen.n, seen.max_ns > 50_000  # the second one queued behind the first
    ('s', 2, True)
    """
    every = rows_of(trace, "kernel")
    if not len(every):
        raise MissingEvidence(
            "the trace holds no kernel: record with profile() while work is launched"
        )
    rows, calls = launched(trace, every)
    starts = trace.array("start_ns")
    waited = starts[rows] - starts[calls]
    returned = trace.array("end_ns", fill=0)[calls]
    queued = np.where(is_open(trace)[calls], -1, np.maximum(starts[rows] - returned, 0))
    code, labels = track_labels(trace, rows, "stream")
    name, names = codes(trace.spans.column("name"))
    return LaunchLatencyResult(
        _groups(code, labels, waited, queued),
        _groups(name[rows], [str(one) for one in names], waited, queued),
        unmatched=len(every) - len(rows),
        before_call=int(np.count_nonzero(waited < 0)),
        **about(trace),
    )


def _groups(
    code: Array, labels: list[str], waited: Array, queued: Array
) -> tuple[LaunchLatency, ...]:
    """Return the quantiles of each group that has rows; ``queued`` is −1 where unknown."""
    first, dense = combined(code)
    groups = Groups(dense, [labels[one] for one in code[first].tolist()])
    known = queued >= 0
    medians = groups.medians(queued, known)
    total = groups.sums(np.where(known, waited, 0)).tolist()
    queueing = groups.sums(np.where(known, queued, 0)).tolist()
    return tuple(
        LaunchLatency(
            *quantiles,
            medians[index],
            queueing[index] / total[index] if total[index] > 0 else None,
        )
        for index, quantiles in enumerate(_quantiles(groups, waited))
    )
