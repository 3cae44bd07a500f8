"""Groups of rows, and their sets of time intervals: sorted, disjoint, ``(n, 2)`` arrays of ns.

All of it takes time and memory in proportion to the rows, however many groups there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from gpuscope._types import Array, Bools, Ints
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.trace import joins
from gpuscope.trace.columns import codes, combined, is_open
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named

Intervals: TypeAlias = Ints
union = joins.union


def ended_kernels(trace: Trace) -> Trace:
    """Return the finished kernels of a trace, if there are any."""
    every = named(trace).where(kind="kernel")
    return every.where(~is_open(every))


def kernels(trace: Trace) -> Trace:
    """Return the finished kernels of a trace.

    Raises
    ------
    MissingEvidence
        There is none.
    """
    finished = ended_kernels(trace)
    if not len(finished):
        raise MissingEvidence(
            "the trace holds no finished kernel: record with profile() while work is launched on a "
            "device of ours"
        )
    return finished


Label = TypeVar("Label", bound=Hashable)


@dataclass(frozen=True)
class Groups(Generic[Label]):
    """Rows by label.

    Attributes
    ----------
    code
        Row → position of its label in ``labels``.
    labels
        In order of first appearance; each has rows.
    """

    code: Array
    labels: list[Label]

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, key: Array, texts: Sequence[Label]) -> Groups[Label]:
        """Group rows by the text of their key; several keys may have one text."""
        first, code = combined(key)
        number: dict[Label, int] = {}
        number_of = np.empty(len(first), np.int64)
        for index in np.argsort(first, kind="stable").tolist():
            number_of[index] = number.setdefault(texts[key[first[index]]], len(number))
        return cls(number_of[code], list(number))

    @cached_property
    def counts(self) -> Array:
        """Group → how many rows it has."""
        return np.asarray(np.bincount(self.code, minlength=len(self)))

    @cached_property
    def first(self) -> Array:
        """Group → position in ``order`` of its first row, and the number of rows at the end."""
        return np.asarray(np.r_[0, np.cumsum(self.counts)])

    @cached_property
    def order(self) -> Array:
        """Rows by group, in their order within each."""
        return np.asarray(np.argsort(self.code, kind="stable"))

    def rows(self, index: int) -> Array:
        """Return the rows of one group."""
        return self.order[self.first[index] : self.first[index + 1]]

    @cached_property
    def _index(self) -> dict[Label, int]:
        return {label: index for index, label in enumerate(self.labels)}

    def rows_of(self, label: Label) -> Array:
        """Return the rows of a label, if there are any."""
        index = self._index.get(label)
        return self.order[:0] if index is None else self.rows(index)

    def of_label(self, label: Label) -> Bools:
        """Row → whether it has a label."""
        return np.asarray(self.code == self._index.get(label, -1), bool)

    def sums(self, values: Array) -> Array:
        """Group → sum of its rows' values, as whole numbers."""
        if not len(self):
            return values[:0]
        return np.asarray(np.add.reduceat(values[self.order], self.first[:-1]))

    def quantiles(self, values: Array, shares: Sequence[float]) -> Array:
        """Group × share → quantile of its rows' values, as ``numpy.quantile`` has it."""
        ordered = values[np.lexsort((values, self.code))]
        rank = (self.counts - 1)[:, None] * np.asarray(shares, np.float64)
        low = np.floor(rank).astype(np.int64)
        part = rank - low
        high = np.minimum(low + 1, (self.counts - 1)[:, None])
        below, above = (ordered[self.first[:-1, None] + at] for at in (low, high))
        apart = above - below
        # From the nearer of the two, as numpy does: the last digit is the same.
        near = part < 0.5
        return np.asarray(np.where(near, below + apart * part, above - apart * (1 - part)))

    def medians(self, values: Array, known: Bools) -> list[float | None]:
        """Group → median of its rows' known values; ``None`` where it has none."""
        some = Groups.of(self.code[known], range(len(self)))
        middle = some.quantiles(values[known], (0.5,))[:, 0].tolist()
        medians = dict(zip(some.labels, middle, strict=True))
        return [medians.get(index) for index in range(len(self))]


def grouped(trace: Trace, by: str) -> Groups[str]:
    """Group the rows of a trace by partition, stream or workload.

    Raises
    ------
    ValueError
        ``by`` is none of these.
    """
    if by == "partition":
        code, names = codes(trace.spans.column("partition"))
        return Groups.of(code, ["whole GPU" if name is None else name for name in names])
    if by == "stream":
        return by_stream(trace)
    if by == "workload":
        return by_workload(trace)
    raise InvalidArgument(f"by is 'partition', 'stream' or 'workload', not {by!r}")


def by_workload(trace: Trace) -> Groups[str]:
    """Group rows by the workload they belong to, or by their names where they belong to none."""
    category, categories = codes(trace.spans.column("category"))
    name, names = codes(trace.spans.column("name"))
    has_workload = np.array([bool(category_name) for category_name in categories])[category]
    key = np.where(has_workload, category, len(categories) + name)
    return Groups.of(key, [str(label) for label in (*categories, *names)])


def by_stream(trace: Trace) -> Groups[str]:
    """Group rows by the names of their streams."""
    code, streams = codes(trace.spans.column("stream"))
    return Groups.of(code, [trace.stream_name(stream) for stream in streams])


def merged(groups: Groups[Label], starts: Intervals, ends: Intervals) -> tuple[Array, Array]:
    """Return the intervals of each group's union as the rows that began and that ended each.

    By group, then by start.
    """
    order = np.lexsort((starts, groups.code))
    group, starts, ends = groups.code[order], starts[order], ends[order]
    last = joins.latest(group, ends)
    apart = (group[1:] != group[:-1]) | (starts[1:] > ends[last[:-1]])
    opens = np.flatnonzero(np.r_[True, apart][: len(starts)])
    closes = np.r_[opens[1:], len(starts)][: len(opens)] - 1
    return order[opens], order[last[closes]]


@dataclass(frozen=True)
class Busy:
    """The union of the spans of each group: by group, then by start.

    Attributes
    ----------
    group, start, end
        One an interval; those of one group are apart.
    first
        Group → position of its first interval, and their number at the end.
    ns
        Group → total ns.
    """

    group: Array
    start: Array
    end: Array
    first: Array
    ns: Array

    @classmethod
    def of(cls, groups: Groups[Label], starts: Intervals, ends: Intervals) -> Busy:
        """Merge the spans of each group that touch or overlap."""
        opened_by, closed_by = merged(groups, starts, ends)
        group, starts, ends = groups.code[opened_by], starts[opened_by], ends[closed_by]
        first = np.searchsorted(group, np.arange(len(groups) + 1))
        return cls(group, starts, ends, first, stretch_sums(ends - starts, first))

    def intervals(self, index: int) -> Intervals:
        """Return the union of one group's spans."""
        stretch = slice(self.first[index], self.first[index + 1])
        return np.stack([self.start[stretch], self.end[stretch]], axis=1)

    def shared_ns(self, chosen: Array) -> Array:
        """Return for each pair of the chosen groups how long both were busy.

        Takes time in proportion to their intervals times their number.
        """
        number = np.full(len(self.ns), -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        intervals = np.flatnonzero(number[self.group] >= 0)
        intervals = intervals[np.argsort(number[self.group[intervals]], kind="stable")]
        group, count = number[self.group[intervals]], len(intervals)
        first = np.searchsorted(group, np.arange(len(chosen) + 1))
        times = np.r_[self.start[intervals], self.end[intervals]]
        order = np.argsort(times, kind="stable")
        at = np.empty(2 * count, np.int64)
        at[order] = np.arange(2 * count)
        spent = np.diff(times[order], append=times[order[-1:]])
        shared = np.zeros((len(chosen), len(chosen)), np.int64)
        step = np.zeros(2 * count, np.int8)
        for index in range(len(chosen)):
            stretch = slice(first[index], first[index + 1])
            step[at[:count][stretch]], step[at[count:][stretch]] = 1, -1
            # How long this group was busy before each edge of any other.
            now = np.cumsum(step, dtype=np.int8) * spent
            before = np.cumsum(now) - now
            shared[index] = stretch_sums(before[at[count:]] - before[at[:count]], first)
            step[at[:count][stretch]] = step[at[count:][stretch]] = 0
        return shared


def stretch_sums(values: Array, first: Array) -> Array:
    """Return the sum of each stretch of values, which may be empty."""
    total = np.r_[0, np.cumsum(values)]
    sums: Array = total[first[1:]] - total[first[:-1]]
    return sums


def makespans_ns(trace: Trace, groups: Groups[Label], starts: Intervals, ends: Intervals) -> Array:
    """Group → first start to last end of its spans, summed over the trace's recording windows.

    A span belongs to the window it starts in, to the later one of two that touch; windows that
    overlap count as one, and no time counts twice.
    """
    if not len(groups):
        return np.zeros(0, np.int64)
    windows = np.array(trace.metadata.windows_ns, np.int64).reshape(-1, 2)
    window, inside = np.zeros(len(starts), np.int64), np.ones(len(starts), bool)
    if len(windows):
        apart = union(windows[:, 0], windows[:, 1] - 1)
        window = np.searchsorted(apart[:, 0], starts, "right") - 1
        inside = (window >= 0) & (starts <= apart[window, 1] + 1)
    code, window = groups.code[inside], window[inside]
    starts, ends = starts[inside], ends[inside]
    first, part = combined(code, window)
    order = np.argsort(part, kind="stable")
    bounds = np.searchsorted(part[order], np.arange(len(first)))
    group = Groups(code[first], groups.labels)
    if not len(first):
        return np.zeros(len(groups), np.int64)
    return Busy.of(
        group, np.minimum.reduceat(starts[order], bounds), np.maximum.reduceat(ends[order], bounds)
    ).ns


def makespan_ns(trace: Trace, starts: Intervals, ends: Intervals) -> int:
    """Return the same for all spans together."""
    return int(makespans_ns(trace, Groups(np.zeros(len(starts), np.int64), [""]), starts, ends)[0])
