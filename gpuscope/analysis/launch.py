"""Launch latency: from a launch call to the start of its kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.gaps_analysis import track_labels
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.latency_analysis import P99_NEEDS
from gpuscope.analysis.result import Result, Row, us
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, rows_of
from gpuscope.trace.model import Trace


def positions(trace: Trace, ids: pa.ChunkedArray) -> Array:
    """Return where in the trace the rows with these ids are; −1 for one that is not there."""
    if pa.types.is_null(ids.type):
        return np.full(len(ids), -1, np.int64)
    found = pc.index_in(ids, value_set=trace.spans.column("id").combine_chunks())
    return np.asarray(found.cast(pa.int64()).fill_null(-1))


def launch_calls(trace: Trace) -> Array:
    """Row → position of the host call that launched it, −1 where none is known.

    Of several calls that the edges name for one row, the last to begin: the innermost.
    """
    calls = np.full(len(trace), -1, np.int64)
    code, kinds = codes(trace.edges.column("kind"))
    if "launch" not in kinds or not len(trace):
        return calls
    edges = trace.edges.filter(pa.array(code == kinds.index("launch")))
    call, work = (positions(trace, edges.column(name)) for name in ("from", "to"))
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
class LaunchLatency:
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

    name: str
    n: int
    p50_ns: float
    p90_ns: float
    p99_ns: float | None
    max_ns: int
    queueing_p50_ns: float | None
    queueing_share: float | None


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
    provenance: str
    weight = "n"

    def _rows(self) -> list[Row]:
        """One row per stream, then one per kernel name."""
        return [
            {
                "of": what,
                "name": one.name,
                "n": one.n,
                "p50 (µs)": one.p50_ns / 1e3,
                "p90 (µs)": one.p90_ns / 1e3,
                "p99 (µs)": us(one.p99_ns),
                "max (µs)": one.max_ns / 1e3,
                "queueing p50 (µs)": us(one.queueing_p50_ns),
                "queueing share": one.queueing_share,
            }
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
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
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
        provenance=trace.provenance,
        incomplete=trace.metadata.incomplete,
    )


def _groups(
    code: Array, labels: list[str], waited: Array, queued: Array
) -> tuple[LaunchLatency, ...]:
    """Return the quantiles of each group that has rows; ``queued`` is −1 where unknown."""
    first, dense = combined(code)
    groups = Groups(dense, [labels[one] for one in code[first].tolist()])
    quantiles = groups.quantiles(waited, (0.5, 0.9, 0.99, 1)).tolist()
    known = queued >= 0
    told = Groups.of(dense[known], range(len(groups)))
    medians = dict(
        zip(told.labels, told.quantiles(queued[known], (0.5,))[:, 0].tolist(), strict=True)
    )
    total = groups.sums(np.where(known, waited, 0)).tolist()
    queueing = groups.sums(np.where(known, queued, 0)).tolist()
    return tuple(
        LaunchLatency(
            label, count, p50, p90, p99 if count >= P99_NEEDS else None, int(most),
            medians.get(index), queueing[index] / total[index] if total[index] > 0 else None,
        )
        for index, (label, count, (p50, p90, p99, most)) in enumerate(
            zip(groups.labels, groups.counts.tolist(), quantiles, strict=True)
        )
    )  # fmt: skip
