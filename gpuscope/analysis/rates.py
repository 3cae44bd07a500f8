"""What workloads do a second: calls, operations and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.analysis.intervals import Groups, Label, by_workload, ended_kernels, makespans_ns
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace

RATES = ("share_of_alone_on_whole_gpu", "calls_per_s", "tflop_per_s", "gb_per_s")
"""The columns of rates."""


@dataclass(frozen=True)
class Done:
    """What a workload did.

    Attributes
    ----------
    calls
        Calls that ended; 0 where the trace holds none, as those of other programs.
    flop_count, nbytes
        Operations, and bytes read and written; ``None`` where they are not stated.
    span_ns
        First start to last end of its kernels, or of its calls where it has none, summed over
        recordings.
    """

    calls: int
    flop_count: int | None
    nbytes: int | None
    span_ns: int

    def __add__(self, other: Done) -> Done:
        flop_count, nbytes = (
            None if count is None or added is None else count + added
            for count, added in ((self.flop_count, other.flop_count), (self.nbytes, other.nbytes))
        )
        return Done(self.calls + other.calls, flop_count, nbytes, self.span_ns + other.span_ns)

    @property
    def calls_per_s(self) -> float | None:
        """Calls a second."""
        return self._rate(self.calls or None, 1e-9)

    @property
    def tflop_per_s(self) -> float | None:
        """Operations a second, in TFLOP/s."""
        return self._rate(self.flop_count, 1e3)

    @property
    def gb_per_s(self) -> float | None:
        """Bytes read and written a second, in GB/s."""
        return self._rate(self.nbytes, 1.0)

    def _rate(self, count: int | None, unit: float) -> float | None:
        if count is None or self.span_ns <= 0:
            return None
        return float(count) / self.span_ns / unit


def done(trace: Trace, group: Callable[[Trace], Groups[Label]]) -> dict[Label, Done]:
    """Return what was done, by the groups of kernels and of handles' calls.

    What its handle states of a call counts, else what its kernels state. Bytes that kernels state
    beside operations are those of their operands, which say little of the memory's traffic.
    """
    kernels, calls = ended_kernels(trace), trace.where(kind="handle")
    calls = calls.where(~is_open(calls))
    of_kernels, of_calls = group(kernels), group(calls)
    spans_ns = _spans(trace, calls, of_calls) | _spans(trace, kernels, of_kernels)
    flops, moved = _sums(kernels, of_kernels, "flop_count"), _sums(kernels, of_kernels, "nbytes")
    moved = {name: nbytes for name, nbytes in moved.items() if not flops.get(name)}
    flops |= _sums(calls, of_calls, "flop_count")
    moved |= _sums(calls, of_calls, "nbytes")
    counts = dict(zip(of_calls.labels, of_calls.counts.tolist(), strict=True))
    return {
        name: Done(counts.get(name, 0), flops.get(name), moved.get(name), span_ns)
        for name, span_ns in spans_ns.items()
    }


def done_alone(traces: Sequence[Trace]) -> Done | None:
    """Return what the one workload of several traces did; ``None`` if they hold none."""
    total: Done | None = None
    for trace in traces:
        every = [*done(trace, by_workload).values()]
        for workload in [work for work in every if work.calls] or every:
            total = workload if total is None else total + workload
    return total


def _spans(trace: Trace, spans: Trace, groups: Groups[Label]) -> dict[Label, int]:
    starts, ends = spans.array("start_ns"), spans.array("end_ns", fill=0)
    spans_ns = makespans_ns(trace, groups, starts, ends).tolist()
    return dict(zip(groups.labels, spans_ns, strict=True))


def _sums(spans: Trace, groups: Groups[Label], column: str) -> dict[Label, int]:
    """Return the sums of a column, of the groups all of whose rows have a value."""
    values = spans.array(column, fill=-1)
    missing, sums = groups.sums(values < 0).tolist(), groups.sums(np.maximum(values, 0)).tolist()
    by_group = zip(groups.labels, missing, sums, strict=True)
    return {name: int(total) for name, absent, total in by_group if not absent}
