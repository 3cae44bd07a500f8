"""Latency: of handles, from entering execute() to completion seen; of launches, to kernel start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.gaps_analysis import track_labels
from gpuscope.analysis.intervals import Groups, by_workload
from gpuscope.analysis.result import P99_NEEDS, Result, Row, about, named, row_of, sentences
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, launch_calls, rows_of
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


def quantiles_by_group(
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
    entries = "handles"
    weight = "n"

    def __getitem__(self, name: str) -> HandleLatency:
        return named(self.handles, name, "handle")

    @property
    def definition(self) -> str:
        """What a latency is."""
        return (
            "latency: host time from entering execute() to its completion seen; p99 needs n ≥ "
            f"{P99_NEEDS}"
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
    handles = [
        HandleLatency(*quantiles, unseen=every[quantiles[0]] - quantiles[1])
        for quantiles in quantiles_by_group(calls, took)
    ]
    if not handles:
        raise MissingEvidence(
            "no handle's completion was seen: call handle.wait() or ask is_done while recording"
        )
    return LatencyResult(tuple(handles), **about(trace))


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
        streams = [{"of": "stream", **row_of(latency)} for latency in self.streams]
        return streams + [{"of": "kernel", **row_of(latency)} for latency in self.kernels]

    @property
    def definition(self) -> str:
        """What a launch latency is, and which kernels are not in it."""
        lost, early = self.unmatched, self.before_call
        return sentences(
            "launch latency: kernel start − start of its launch call; queueing: the part after "
            f"the call returned; p99 needs n ≥ {P99_NEEDS}",
            f"{lost:,} kernels have no known launch call" if lost else "",
            f"{early:,} seem to start before theirs (clock error)" if early else "",
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
    >>> kernel = gs.workloads.spin_kernel(gpu)
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
        _groups(name[rows], [str(label) for label in names], waited, queued),
        unmatched=len(every) - len(rows),
        before_call=int(np.count_nonzero(waited < 0)),
        **about(trace),
    )


def _groups(
    code: Array, labels: list[str], waited: Array, queued: Array
) -> tuple[LaunchLatency, ...]:
    """Return the quantiles of each group that has rows; ``queued`` is −1 where unknown."""
    first, dense = combined(code)
    groups = Groups(dense, [labels[label_code] for label_code in code[first].tolist()])
    is_queue_known = queued >= 0
    medians = groups.medians(queued, is_queue_known)
    total = groups.sums(np.where(is_queue_known, waited, 0)).tolist()
    queueing = groups.sums(np.where(is_queue_known, queued, 0)).tolist()
    return tuple(
        LaunchLatency(
            *quantiles, medians[index], queueing[index] / total[index] if total[index] > 0 else None
        )
        for index, quantiles in enumerate(quantiles_by_group(groups, waited))
    )
