"""Summary: what each partition and stream did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.analysis.intervals import kernels, length, makespan_ns, stream_labels, union
from gpuscope.analysis.result import Result
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

    def _rows(self) -> list[dict[str, Any]]:
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


def summary(trace: Trace) -> SummaryResult:
    """Summarise kernels per partition and stream.

    Raises
    ------
    MissingEvidence
        The trace holds no finished kernel.

    Examples
    --------
    >>> import gpuscope as gs
    >>> trace = gs.Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> [(row.stream, row.kernels, row.busy_ns) for row in gs.analysis.summary(trace).streams]
    [('stream 7', 1, 100), ('stream 8', 1, 100)]
    """
    found = kernels(trace)
    starts, ends = found.array("start_ns"), found.array("end_ns")
    flops = found.array("flop_count", fill=-1)
    partitions = [name or "whole GPU" for name in found.texts("partition")]
    labels = list(zip(partitions, stream_labels(found), strict=True))
    rows = []
    for label in sorted(set(labels)):
        mine = np.array([other == label for other in labels])
        durations = (ends - starts)[mine]
        span_ns = makespan_ns(found, starts[mine], ends[mine])
        known = bool((flops[mine] >= 0).all()) and span_ns > 0
        rows.append(
            SummaryRow(
                partition=label[0],
                stream=label[1],
                kernels=len(durations),
                busy_ns=length(union(starts[mine], ends[mine])),
                median_ns=float(np.median(durations)),
                p99_ns=float(np.quantile(durations, 0.99)) if len(durations) >= 1000 else None,
                tflop_per_s=float(flops[mine].sum()) / span_ns / 1e3 if known else None,
            )
        )
    return SummaryResult(tuple(rows), trace.provenance, incomplete=trace.metadata.incomplete)
