"""Summary: what each partition and stream did."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope._checks import door
from gpuscope.analysis.intervals import Busy, Groups, by_stream, grouped, kernels, makespans_ns
from gpuscope.analysis.latency_analysis import P99_NEEDS
from gpuscope.analysis.result import Result, Row
from gpuscope.trace.columns import combined
from gpuscope.trace.model import Trace


@dataclass(frozen=True)
class SummaryRow:
    """What one stream of one partition did.

    Attributes
    ----------
    busy_ns
        Union of its kernel spans.
    p99_ns
        ``None`` with fewer than 1,000 kernels.
    tflop_per_s
        Its floating-point operations / first start to last end, in TFLOP/s; ``None``
        where its kernels do not state their operations.
    """

    partition: str
    stream: str
    kernels: int
    busy_ns: int
    median_ns: float
    p99_ns: float | None
    tflop_per_s: float | None


@dataclass(frozen=True)
class SummaryResult(Result):
    """One row per partition and stream."""

    streams: tuple[SummaryRow, ...]
    provenance: str
    weight = "busy (ms)"

    def _rows(self) -> list[Row]:
        """One row per partition and stream."""
        return [
            {
                "partition": row.partition,
                "stream": row.stream,
                "kernels": row.kernels,
                "busy (ms)": row.busy_ns / 1e6,
                "median (µs)": row.median_ns / 1e3,
                "p99 (µs)": None if row.p99_ns is None else row.p99_ns / 1e3,
                "TFLOP/s": row.tflop_per_s,
            }
            for row in self.streams
        ]

    @property
    def note(self) -> str:
        """Definition and provenance in one line."""
        return self.provenance


@door(trace=Trace)
def summary(trace: Trace) -> SummaryResult:
    """Summarise kernels per partition and stream.

    Raises
    ------
    MissingEvidence
        The trace holds no finished kernel.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> [(row.stream, row.kernels, row.busy_ns) for row in gs.analysis.summary(trace).streams]
    [('stream 7', 1, 100), ('stream 8', 1, 100)]
    """
    found = kernels(trace)
    starts, ends = found.array("start_ns"), found.array("end_ns")
    flops = found.array("flop_count", fill=-1)
    groups = _by_both(grouped(found, "partition"), by_stream(found))
    durations = ends - starts
    quantiles = groups.quantiles(durations, (0.5, 0.99)).tolist()
    span_ns = makespans_ns(found, groups, starts, ends).tolist()
    unknown, total = groups.sums(flops < 0).tolist(), groups.sums(flops).tolist()
    busy_ns, counts = Busy.of(groups, starts, ends).ns.tolist(), groups.counts.tolist()
    rows = [
        SummaryRow(
            *label,
            kernels=counts[index],
            busy_ns=busy_ns[index],
            median_ns=quantiles[index][0],
            p99_ns=quantiles[index][1] if counts[index] >= P99_NEEDS else None,
            tflop_per_s=None
            if unknown[index] or span_ns[index] <= 0
            else float(total[index]) / span_ns[index] / 1e3,
        )
        for label, index in sorted(zip(groups.labels, range(len(groups)), strict=True))
    ]
    return SummaryResult(tuple(rows), trace.provenance, incomplete=trace.metadata.incomplete)


def _by_both(partitions: Groups[str], streams: Groups[str]) -> Groups[tuple[str, str]]:
    """Group rows by partition and stream."""
    first, code = combined(partitions.code, streams.code)
    labels = [
        (partitions.labels[partitions.code[row]], streams.labels[streams.code[row]])
        for row in first.tolist()
    ]
    return Groups(code, labels)
