"""When kernels kept the GPU busy: overlap and gain, concurrency, what each stream did."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.intervals import Busy, Groups, Intervals, grouped, kernels, makespan_ns
from gpuscope.analysis.rates import done
from gpuscope.analysis.result import P99_NEEDS, Result, Row, about, row_of
from gpuscope.analysis.steps_analysis import steady_part
from gpuscope.errors import NotFound
from gpuscope.trace.columns import combined
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named

MOST = 50
"""Groups whose pairs are listed, those that were busy longest."""
_NAMED = 20


@dataclass(frozen=True)
class PairOverlap:
    """How much two groups' kernels ran at the same time.

    Attributes
    ----------
    tight_fraction
        ``fraction`` with every span shortened by its stated uncertainty; ``None`` if the source
        states none. Events around a launch count waiting for SMs as running.
    """

    a: Annotated[str, "a"]
    b: Annotated[str, "b"]
    busy_a_ns: Annotated[int, "busy a (ms)"]
    busy_b_ns: Annotated[int, "busy b (ms)"]
    overlap_ns: Annotated[int, "overlap (ms)"]
    tight_fraction: float | None = None

    @property
    def fraction(self) -> float:
        """``|busy(a) ∩ busy(b)| / min(|busy(a)|, |busy(b)|)``."""
        return _fraction(self.overlap_ns, self.busy_a_ns, self.busy_b_ns)


@dataclass(frozen=True)
class OverlapResult(Result):
    """Overlap of each pair of groups, and the gain where solo times are known.

    Attributes
    ----------
    by
        The kind of group.
    pairs
        Pairs of the :data:`MOST` groups that were busy longest; ``result[a, b]`` gives any other.
    gain
        Sum of the solo busy times / makespan, or ``None`` if a solo time is unknown.
    makespan_ns
        First kernel start to last kernel end, in the recording windows.
    left_out
        Pairs of other groups.
    """

    by: str
    pairs: tuple[PairOverlap, ...]
    gain: float | None
    makespan_ns: int
    left_out: int
    _all: tuple[dict[str, int], Busy, Busy | None] = field(repr=False, compare=False)
    """Label → group, and when groups were busy: any pair can be worked out from it."""
    weight = "overlap (ms)"

    def __getitem__(self, names: tuple[str, str]) -> float:
        return self.pair(*names).fraction

    @door(a=str, b=str)
    def pair(self, a: str, b: str) -> PairOverlap:
        """Return what two groups had in common, also if it is left out of ``pairs``.

        Raises
        ------
        NotFound
            There is no such pair.
        """
        number, busy, tight = self._all
        if a == b or not {a, b} <= number.keys():
            shown_pairs = [(pair.a, pair.b) for pair in self.pairs[:_NAMED]]
            rest = len(self.pairs) + self.left_out - len(shown_pairs)
            more = f" and {rest:,} more" if rest else ""
            raise NotFound(f"no pair {(a, b)}; there are {shown_pairs}{more}")
        chosen = np.array([number[name] for name in sorted((a, b))])
        return next(_pairs(list(number), chosen, busy, tight))

    def _rows(self) -> list[Row]:
        """One row per pair."""
        return [
            row_of(pair)
            | {"overlap": pair.fraction, "overlap (tight)": pair.tight_fraction, "gain": self.gain}
            for pair in self.pairs
        ]

    @property
    def definition(self) -> str:
        """By what, and the gain."""
        gain = "unknown: no solo times" if self.gain is None else f"{self.gain:.3f}"
        return f"overlap by {self.by}; gain {gain}"

    @property
    def _left_out(self) -> str:
        if not self.left_out:
            return ""
        return (
            f"{self.left_out:,} pairs are left out, of others than the {MOST} {self.by}s that were "
            "busy longest; result['a', 'b'] has any"
        )


@door(trace=Trace, by=str)
def overlap(trace: Trace, *, by: str = "stream") -> OverlapResult:
    """Compute which groups of kernels ran at the same time, and for how long.

    Parameters
    ----------
    by
        ``"partition"``, ``"stream"`` or ``"workload"``.

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
    >>> gs.analysis.overlap(trace)["stream 7", "stream 8"]
    0.4
    """
    finished = kernels(trace)
    starts, ends = finished.array("start_ns"), finished.array("end_ns")
    groups = grouped(finished, by)
    busy = Busy.of(groups, starts, ends)
    tight = _shrunk(finished, starts, ends, groups)
    makespan = makespan_ns(finished, starts, ends)
    longest = np.argsort(-busy.ns, kind="stable")[:MOST]
    chosen = np.array(sorted(longest.tolist(), key=groups.labels.__getitem__), np.int64)
    number = {label: index for index, label in enumerate(groups.labels)}
    pairs = tuple(_pairs(groups.labels, chosen, busy, tight))
    left_out = len(groups) * (len(groups) - 1) // 2 - len(pairs)
    gain, every = _gain(finished, makespan), (number, busy, tight)
    return OverlapResult(by, pairs, gain, makespan, left_out, every, **about(trace))


def _pairs(
    labels: Sequence[str], chosen: Array, busy: Busy, tight: Busy | None
) -> Iterator[PairOverlap]:
    """Yield every pair of the chosen groups, in their order."""
    shared = busy.shared_ns(chosen).tolist()
    least = None if tight is None else tight.shared_ns(chosen).tolist()
    for (i, a), (j, b) in itertools.combinations(enumerate(chosen.tolist()), 2):
        tight_fraction = None
        if tight is not None and least is not None:
            tight_fraction = _fraction(least[i][j], int(tight.ns[a]), int(tight.ns[b]))
        yield PairOverlap(
            labels[a], labels[b], int(busy.ns[a]), int(busy.ns[b]), shared[i][j], tight_fraction
        )


def _gain(finished: Trace, makespan: int) -> float | None:
    if not finished.metadata.solo:
        return None
    groups = grouped(finished, "workload")
    solo_ns = 0.0
    for label, count in zip(groups.labels, groups.counts.tolist(), strict=True):
        alone = finished.metadata.solo.get(label)
        if alone is None or alone.kernel_ns is None:
            return None
        solo_ns += float(alone.kernel_ns) * count
    return solo_ns / makespan if makespan else None


def _shrunk(
    finished: Trace, starts: Intervals, ends: Intervals, groups: Groups[str]
) -> Busy | None:
    """Busy time of each group with spans shrunk by their uncertainties; None without any."""
    late = finished.array("start_uncertainty_ns", fill=0)
    early = finished.array("end_uncertainty_ns", fill=0)
    if not late.any() and not early.any():
        return None
    return Busy.of(groups, starts + late, np.maximum(starts + late, ends - early))


def _fraction(shared_ns: int, *busy_ns: int) -> float:
    shorter = min(busy_ns)
    return shared_ns / shorter if shorter else 0.0


@dataclass(frozen=True)
class ConcurrencyResult(Result):
    """How many groups were busy, over time.

    Attributes
    ----------
    mean
        Average number of busy groups over the time in which at least one is busy.
    time_ns
        Number of busy groups → ns.
    """

    by: str
    mean: float
    time_ns: dict[int, int]
    weight = "ms"

    def _rows(self) -> list[Row]:
        """One row per number of busy groups."""
        total = sum(self.time_ns.values())
        return [
            {f"busy {self.by}s": count, "ms": ns / 1e6, "share of busy time": ns / total}
            for count, ns in sorted(self.time_ns.items())
        ]

    @property
    def definition(self) -> str:
        """The mean."""
        return f"on average {self.mean:.3f} {self.by}s busy while any is"


@door(trace=Trace, by=str)
def concurrency(trace: Trace, *, by: str = "stream") -> ConcurrencyResult:
    """Count how many groups of kernels are busy at the same time.

    Parameters
    ----------
    by
        ``"partition"``, ``"stream"`` or ``"workload"``.

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
    >>> gs.analysis.concurrency(trace).time_ns
    {1: 120, 2: 40}
    """
    finished = kernels(trace)
    busy = Busy.of(grouped(finished, by), finished.array("start_ns"), finished.array("end_ns"))
    times = np.r_[busy.start, busy.end]
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.where(order < len(busy.start), 1, -1))[:-1]
    used, code = np.unique(level, return_inverse=True)
    totals = Groups(code, used.tolist()).sums(np.diff(times[order]))
    spent = zip(used.tolist(), totals.tolist(), strict=True)
    time_ns = {count: ns for count, ns in spent if count > 0 and ns > 0}
    busy_ns = sum(time_ns.values())
    mean = sum(count * ns for count, ns in time_ns.items()) / busy_ns if busy_ns else 0.0
    return ConcurrencyResult(by, mean, time_ns, **about(trace))


@dataclass(frozen=True)
class SummaryRow:
    """Summary of one stream of one partition.

    Attributes
    ----------
    busy_ns
        Union of its kernel spans.
    p99_ns
        ``None`` with fewer than 1,000 kernels.
    calls_per_s
        Calls of handles / time from the first kernel's start to the last one's end; ``None`` if it
        had none.
    tflop_per_s, gb_per_s
        Floating-point operations, and bytes, over that time; ``None`` if neither its calls nor its
        kernels state them.
    """

    partition: Annotated[str, "partition"]
    stream: Annotated[str, "stream"]
    kernels: Annotated[int, "kernels"]
    busy_ns: Annotated[int, "busy (ms)"]
    median_ns: Annotated[float, "median (µs)"]
    p99_ns: Annotated[float | None, "p99 (µs)"]
    calls_per_s: Annotated[float | None, "calls/s"]
    tflop_per_s: Annotated[float | None, "TFLOP/s"]
    gb_per_s: Annotated[float | None, "GB/s"]


@dataclass(frozen=True)
class SummaryResult(Result):
    """One row per partition and stream."""

    streams: tuple[SummaryRow, ...]
    is_steady: bool = False
    entries = "streams"
    weight = "busy (ms)"

    @property
    def definition(self) -> str:
        """What is left out."""
        return "start-up and warm-up are left out" * self.is_steady


@door(trace=Trace, whole=bool)
def summary(trace: Trace, *, whole: bool = False) -> SummaryResult:
    """Summarise kernels per partition and stream.

    Parameters
    ----------
    whole
        Whether start-up and warm-up of a recorded program count (see :func:`steps`).

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
    part = named(trace) if whole else steady_part(named(trace))
    finished = kernels(part)
    starts, ends = finished.array("start_ns"), finished.array("end_ns")
    groups, did = _by_both(finished), done(part, _by_both)
    busy = Busy.of(groups, starts, ends).ns.tolist()
    quantiles = groups.quantiles(ends - starts, (0.5, 0.99)).tolist()
    columns = zip(groups.labels, groups.counts.tolist(), busy, quantiles, strict=True)
    rows = []
    for label, count, busy_ns, (median, p99) in sorted(columns):
        rates = did[label].calls_per_s, did[label].tflop_per_s, did[label].gb_per_s
        known_p99 = p99 if count >= P99_NEEDS else None
        rows.append(SummaryRow(*label, count, busy_ns, median, known_p99, *rates))
    return SummaryResult(tuple(rows), len(part) < len(trace), **about(trace))


def _by_both(spans: Trace) -> Groups[tuple[str, str]]:
    """Group rows by partition and stream."""
    partitions, streams = grouped(spans, "partition"), grouped(spans, "stream")
    first, code = combined(partitions.code, streams.code)
    labels = [
        (partitions.labels[partitions.code[row]], streams.labels[streams.code[row]])
        for row in first.tolist()
    ]
    return Groups(code, labels)
