"""Spans by group and start, which answer for any window how busy each column of it was.

A group holds the spans that look the same on one track. An index consists of parts that were
indexed together, such as the batches of a recording; small ones are joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope._types import Array
from gpuscope.analysis.intervals import Busy, Groups, union
from gpuscope.trace.columns import chosen

OPEN_NS = int(np.iinfo(np.int64).max)
"""The end of a span that is still open."""
_FROZEN, _SMALL = 131_072, 4096
"""Spans of a part that is never joined with others, and of one that always is."""


@dataclass(frozen=True)
class _Part:
    """Spans by group and start, and the union of each group's.

    Attributes
    ----------
    start, end, row
        One a span.
    track
        Group → its track.
    first
        Group → position of its first span, and the number of spans at the end.
    reach
        The latest end of the group's spans so far.
    left
        The group's ends in order; an instant's is 1 ns later, so that it is there at its start.
    busy, before
        The union, and the ns of it before each of its intervals, modulo 2⁶⁴.
    depth
        Track → how many of its spans are there at once, at most.
    """

    start: Array
    end: Array
    row: Array
    track: Array
    first: Array
    reach: Array
    left: Array
    busy: Busy
    before: Array
    depth: Array

    @classmethod
    def of(cls, start: Array, end: Array, track: Array, group: Array, row: Array) -> _Part:
        groups, tracks = int(group.max()) + 1, int(track.max()) + 1
        if not (start[1:] >= start[:-1]).all():
            order = np.argsort(start, kind="stable")
            columns = (start, end, track, group, row)
            start, end, track, group, row = (column[order] for column in columns)
        group = group.astype(np.min_scalar_type(groups))
        order = np.argsort(group, kind="stable")
        first = np.searchsorted(group[order], np.arange(groups + 1, dtype=group.dtype))
        nonempty = np.flatnonzero(np.diff(first))
        of_group = np.zeros(groups, track.dtype)
        of_group[nonempty] = track[order[first[nonempty]]]
        start = start[order]
        end = end[order]
        row = row[order]
        depth = np.ones(tracks, np.int64)
        by_track = nonempty[np.argsort(of_group[nonempty], kind="stable")]
        for number, members in _slices(of_group[by_track]):
            parts = [slice(first[at], first[at + 1]) for at in by_track[members].tolist()]
            depth[number] = _depth(*(_joined(side, parts) for side in (start, end)))
        left = end if (end > start).all() else np.maximum(end, start + 1)
        reach = end
        apart = start[1:] >= left[:-1]
        apart[first[1 + nonempty[:-1]] - 1] = True
        if apart.all():
            nothing = np.zeros(0, np.int64)
            busy = Busy(nothing, start, end, first, nothing)
        else:
            group = np.repeat(np.arange(groups), np.diff(first))
            busy = Busy.of(Groups(group, [*range(groups)]), start, end)
            reach, left = end.copy(), left.copy()
            for number in np.flatnonzero(np.bincount(group[1:][~apart], minlength=groups)).tolist():
                spans = slice(first[number], first[number + 1])
                reach[spans] = np.maximum.accumulate(reach[spans])
                left[spans] = np.sort(left[spans])
        before = np.zeros(len(busy.start) + 1, np.int64)
        np.cumsum(np.subtract(busy.end, busy.start, out=before[1:]), out=before[1:])
        return cls(start, end, row, of_group, first, reach, left, busy, before, depth)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def group(self) -> Array:
        """Span → group."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def spans_of(self, group: int) -> slice:
        """Return where the spans of a group are."""
        if group + 1 >= len(self.first):
            return slice(0, 0)
        return slice(int(self.first[group]), int(self.first[group + 1]))

    def rows(self, low: int, high: int, group: int) -> Array:
        """Return the positions of a group's spans in a window."""
        spans = self.spans_of(group)
        start, reach = self.start[spans], self.reach[spans]
        began = np.searchsorted(start, low)
        at = min(int(began), int(np.searchsorted(reach, low, "right")))
        inside: Array = np.arange(at, int(np.searchsorted(start, high))) + spans.start
        return inside[(self.end[inside] > low) | (self.start[inside] >= low)]


class Index:
    """Spans by group and time. Immutable; :meth:`extended` shares what is there.

    Parameters
    ----------
    start_ns, end_ns
        One a row. :data:`OPEN_NS` as an end stands for a span that is still open. A span that
        ends before it starts counts as an instant at its start.
    track
        Row → number of its track, small integers; rows of negative ones are left out.
    group
        Row → number of its group, small integers; the spans of a group are on one track.
        Default: each track is a group.

    Raises
    ------
    ValueError
        The columns have different lengths.

    Examples
    --------
    >>> index = Index(np.array([0, 10, 400]), np.array([300, 20, 900]), np.array([0, 1, 0]))
    >>> busy, begun = index.columns(np.array([0, 500, 1000]), [0, 1])
    >>> busy.tolist()
    [[400, 400], [10, 0]]
    >>> begun.tolist()
    [[2, 0], [1, 0]]
    """

    def __init__(
        self, start_ns: Array, end_ns: Array, track: Array, group: Array | None = None
    ) -> None:
        rows = _columns(start_ns, end_ns, track, track if group is None else group, 0)
        self._grow((), rows, len(start_ns))

    def __len__(self) -> int:
        """Rows, those without a track too."""
        return self._count

    def extended(self, start_ns: Array, end_ns: Array, track: Array, group: Array) -> Index:
        """Return an index with more rows behind those that are here.

        The new rows may lie anywhere in time. Takes time in proportion to their number, on
        average: small parts are joined with them, large ones are shared.
        """
        rows = _columns(start_ns, end_ns, track, group, self._count)
        parts = list(self._parts)
        while parts and len(parts[-1]) < _FROZEN and len(parts[-1]) < max(2 * len(rows[0]), _SMALL):
            last = parts.pop()
            last_columns = (last.start, last.end, last.track[last.group], last.group, last.row)
            rows = tuple(np.concatenate(both) for both in zip(last_columns, rows, strict=True))
        new = object.__new__(Index)
        new._grow(parts, rows, self._count + len(start_ns))
        return new

    def _grow(self, parts: Sequence[_Part], rows: tuple[Array, ...], count: int) -> None:
        self._parts = [*parts, _Part.of(*rows)] if len(rows[0]) else list(parts)
        self._count = count
        groups = max((len(part.first) - 1 for part in self._parts), default=0)
        # Groups of which one part begins before another of its parts has ended.
        self._crossing = np.zeros(groups, bool)
        low, high = np.full(groups, OPEN_NS), np.full(groups, np.iinfo(np.int64).min)
        for part in self._parts:
            nonempty = np.flatnonzero(np.diff(part.first))
            start, end = part.start[part.first[nonempty]], part.reach[part.first[nonempty + 1] - 1]
            self._crossing[nonempty] |= (start < high[nonempty]) & (end > low[nonempty])
            low[nonempty] = np.minimum(low[nonempty], start)
            high[nonempty] = np.maximum(high[nonempty], end)

    def depths(self, tracks: Array) -> Array:
        """Return how many spans of each track are there at once, at most; at least 1.

        An instant lasts 1 ns here.
        Of overlaps between rows that came with different calls of :meth:`extended` it may
        know only later.
        """
        depths = np.ones(len(tracks), np.int64)
        for part in self._parts:
            in_part = np.asarray(tracks) < len(part.depth)
            depths[in_part] = np.maximum(depths[in_part], part.depth[np.asarray(tracks)[in_part]])
        return depths

    def counts(self, window_ns: tuple[int, int], groups: Sequence[int]) -> Array:
        """Return how many spans of each group are in a window.

        A span is in it if it covers some of it; an instant, if it is not before its start and
        before its end.
        """
        low, high = window_ns
        counts = np.zeros(len(groups), np.int64)
        for row, group in enumerate(groups):
            for part in self._parts:
                spans = part.spans_of(group)
                counts[row] += np.searchsorted(part.start[spans], high)
                counts[row] -= np.searchsorted(part.left[spans], low, "right")
        return counts

    def rows(self, window_ns: tuple[int, int], groups: Sequence[int]) -> Array:
        """Return the rows of the spans of these groups in a window, by group and start."""
        rows = [part.row[part.rows(*window_ns, group)] for group in groups for part in self._parts]
        return np.concatenate([np.zeros(0, np.int64), *rows])

    def times(self, window_ns: tuple[int, int], groups: Sequence[int]) -> tuple[Array, Array]:
        """Return starts and ends of the same spans."""
        times = [
            (part.start[at], part.end[at])
            for group in groups
            for part in self._parts
            for at in [part.rows(*window_ns, group)]
        ]
        start, end = zip(*times, strict=True) if times else ((), ())
        nothing = np.zeros(0, np.int64)
        return np.concatenate([nothing, *start]), np.concatenate([nothing, *end])

    def columns(self, edges: Array, groups: Sequence[int]) -> tuple[Array, Array]:
        """Return what was busy between edges in time.

        Returns
        -------
        tuple
            Two arrays of int64, groups × columns: for how many ns the union of the group's
            spans covers the column; how many of its spans start in it.
        """
        busy = np.zeros((len(groups), len(edges) - 1), np.int64)
        begun = np.zeros_like(busy)
        for row, group in enumerate(groups):
            for part in self._parts:
                starts = part.start[part.spans_of(group)]
                if len(starts):
                    begun[row] += np.diff(np.searchsorted(starts, edges))
            for start, end, before in self._unions(edges, group):
                at = np.searchsorted(start, edges, "right")
                # Modulo 2⁶⁴, as what is open may last longer than int64 tells.
                rest = np.where((at > 0) & (end[at - 1] > edges), end[at - 1] - edges, 0)
                busy[row] += np.diff(before[at] - rest)
        return busy, begun

    def _unions(self, edges: Array, group: int) -> Iterator[tuple[Array, Array, Array]]:
        """Yield intervals of a group, and the ns before each; no two of them overlap in time."""
        intervals = []
        for part in self._parts:
            if group + 1 >= len(part.first):
                continue
            busy = part.busy
            low, high = int(busy.first[group]), int(busy.first[group + 1])
            if low == high:
                continue
            if not self._crossing[group]:
                yield busy.start[low:high], busy.end[low:high], part.before[low : high + 1]
                continue
            low += int(np.searchsorted(busy.end[low:high], edges[0], "right"))
            high = low + int(np.searchsorted(busy.start[low:high], edges[-1]))
            intervals.append((busy.start[low:high], busy.end[low:high]))
        if intervals:
            start, end = union(*(np.concatenate(side) for side in zip(*intervals, strict=True))).T
            if len(start):
                yield start, end, np.r_[0, np.cumsum(end - start)]


def _columns(
    start_ns: Array, end_ns: Array, track: Array, group: Array, first: int
) -> tuple[Array, ...]:
    """Return start, end, track, group and row of the rows that have a track."""
    if not len(start_ns) == len(end_ns) == len(track) == len(group):
        raise ValueError(
            f"{len(start_ns)} starts, {len(end_ns)} ends, {len(track)} tracks and {len(group)} "
            "groups: one of each is needed for every row"
        )
    placed = chosen(np.asarray(track) >= 0)
    number = np.int32 if first + len(start_ns) < 2**31 else np.int64
    start, end = (np.asarray(side, np.int64)[placed] for side in (start_ns, end_ns))
    row = np.arange(first, first + len(start_ns), dtype=number)[placed]
    end = end if (end >= start).all() else np.maximum(start, end)
    return start, end, np.asarray(track)[placed], np.asarray(group)[placed], row


def _joined(column: Array, parts: Sequence[slice]) -> Array:
    """Return parts of a column one after the other, a single one without copying it."""
    return column[parts[0]] if len(parts) == 1 else np.concatenate([column[at] for at in parts])


def _slices(track: Array) -> Iterator[tuple[int, slice]]:
    """Yield each track of a column in order, and where its rows are."""
    edges = np.flatnonzero(np.r_[True, track[1:] != track[:-1], True][: len(track) + 1])
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield int(track[low]), slice(low, high)


def _depth(start: Array, end: Array) -> int:
    """Return how many spans are at most there at once; instants last 1 ns."""
    start, end = (np.sort(side, kind="stable") for side in (start, np.maximum(end, start + 1)))
    if (start[1:] >= end[:-1]).all():
        return 1
    over = np.searchsorted(end, start, "right")
    return int((np.arange(1, len(start) + 1) - over).max())
