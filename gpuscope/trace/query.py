"""What is worth drawing of a window: its widest spans, and how full the rest makes each pixel.

An :class:`Index` sorts the spans of each track by width class and start. Class ``c`` holds
widths in ``(64·4^(c−1), 64·4^c]`` ns, so spans of a class that reach into a window start at
most one class width before it, however they nest. Over them stands a pyramid: level ``j`` has,
for each track and each cell of ``64·4^(j−1)`` ns that is not empty, how much of it the union of
all spans no wider than a cell covers, and how many of them begin in it. Cells lie on multiples
of their size, so parts that were indexed apart, such as the batches of a recording, add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gpuscope._types import Array
from gpuscope.trace.columns import chosen
from gpuscope.trace.grid import Grid
from gpuscope.trace.levels import OPEN_NS, Part, Reach, Spans, class_width_ns

__all__ = ["OPEN_NS", "ROOM", "Index", "Selection"]


ROOM = 65_536
"""Spans that a query looks at one by one before it leaves the narrow ones to the pyramid."""
_FROZEN = 131_072
_SMALL = 4096


@dataclass(frozen=True)
class Selection:
    """What an index knows of a window.

    Attributes
    ----------
    window_ns
        Start and end, as asked. A span is in it if it covers some of it; an instant, if it
        is not before its start and before its end.
    tracks
        The tracks asked for.
    rows
        Rows to draw one by one, the widest part in the window first; where that is the same,
        the earlier start, then the lower row. Exactly the ``k`` widest of those in the window
        that last longer than ``floor_ns``; all of these where they are fewer.
    floor_ns
        −1 where every span was considered, which holds up to :data:`ROOM` in the window;
        else at most what a pixel lasts.
    coverage
        Tracks × columns, float32: which fraction of a column is covered by spans that are not
        in ``rows``. All 0 where no span in the window is left out. The first and the last
        column may reach beyond the window, and what is there may count.
    begins
        Tracks × columns, int32: how many spans that are not in ``rows`` begin in a column:
        it tells of instants too, which cover nothing.
    exact
        Track → whether ``coverage`` is the measure of the union, up to float32's rounding;
        always where spans of a track do not overlap. Else it may be too high, never too low.
    origin_ns, column_ns
        Where the first column starts, and how long one is: 2/3 to 4/3 of a pixel (and at
        least 1 ns), on multiples of itself.
    total
        Spans in the window.
    """

    window_ns: tuple[int, int]
    tracks: Array
    rows: Array
    floor_ns: int
    coverage: Array
    begins: Array
    exact: Array
    origin_ns: int
    column_ns: int
    total: int

    @property
    def merged(self) -> int:
        """How many spans in the window are not drawn one by one."""
        return self.total - len(self.rows)


class Index:
    """Spans by track, width and time. Immutable; :meth:`extended` shares what is there.

    Parameters
    ----------
    start_ns, end_ns
        One a row. :data:`OPEN_NS` as an end stands for a span that is still open. A span that
        ends before it starts counts as an instant at its start.
    track
        Row → number of its track, small integers; rows of negative ones are left out.

    Raises
    ------
    ValueError
        The columns have different lengths.

    Examples
    --------
    >>> index = Index(np.array([0, 10, 400]), np.array([300, 20, 900]), np.array([0, 1, 0]))
    >>> found = index.query((0, 1000), pixels=100, k=2)
    >>> found.rows.tolist(), found.total, found.merged
    ([2, 0], 3, 1)
    >>> float(found.coverage.sum() * found.column_ns)
    10.0
    """

    def __init__(self, start_ns: Array, end_ns: Array, track: Array) -> None:
        self._grow((), _columns(start_ns, end_ns, track, 0), len(start_ns))

    def __len__(self) -> int:
        """Rows, those without a track too."""
        return self._count

    @property
    def tracks(self) -> Array:
        """Numbers of the tracks that have spans, ascending."""
        return self._tracks

    def extended(self, start_ns: Array, end_ns: Array, track: Array) -> Index:
        """Return an index with more rows behind those that are here.

        The new rows may lie anywhere in time. Takes time in proportion to their number, on
        average: small parts are joined with them, large ones are shared.
        """
        rows = _columns(start_ns, end_ns, track, self._count)
        parts = list(self._parts)
        while parts and len(parts[-1]) < _FROZEN and len(parts[-1]) < max(2 * len(rows[0]), _SMALL):
            joined = zip(parts.pop().columns(), rows, strict=True)
            rows = tuple(np.concatenate(both) for both in joined)
        new = object.__new__(Index)
        new._grow(parts, rows, self._count + len(start_ns))
        return new

    def _grow(self, parts: Sequence[Part], rows: tuple[Array, ...], count: int) -> None:
        self._parts = [*parts, Part.of(*rows)] if len(rows[0]) else list(parts)
        self._count = count
        track, low, high, depth = (
            np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in self._parts)])
            for name in ("tracks", "low_ns", "high_ns", "depth")
        )
        self._tracks, place = np.unique(track, return_inverse=True)
        self._depth = np.zeros(len(self._tracks), np.int64)
        np.maximum.at(self._depth, place, depth)
        # Parts of a track overlap where one starts before the greatest end of those before it.
        order = np.lexsort((low, place))
        rank = np.empty(len(high), np.int64)
        rank[np.argsort(high, kind="stable")] = np.arange(len(high))
        reach = np.maximum.accumulate((place * len(high) + rank)[order])[:-1] % max(1, len(high))
        after = order[1:]
        over = (low[after] < np.sort(high)[reach]) & (place[after] == place[order[:-1]])
        self._overlapping = np.union1d(self._tracks[self._depth > 1], track[after[over]])

    def depths(self, tracks: Array) -> Array:
        """Return how many spans of each track are there at once, at most; at least 1.

        An instant lasts 1 ns here.
        Of overlaps between rows that came with different calls of :meth:`extended` it may
        know only later.
        """
        place = np.searchsorted(self._tracks, tracks)
        known = np.r_[self._tracks, -1][place] == tracks
        return np.where(known, np.r_[self._depth, 1][place], 1)

    def counts(self, window_ns: tuple[int, int], tracks: Array) -> Array:
        """Return how many spans of each track are in a window."""
        total = np.zeros(len(tracks), np.int64)
        for part in self._parts:
            reach = Reach.of(part, np.asarray(tracks, np.int64), *window_ns)
            total[reach.here] += reach.counts.sum(axis=0)
        return total

    def query(
        self, window_ns: tuple[int, int], *, pixels: int, k: int, tracks: Array | None = None
    ) -> Selection:
        """Return what is worth drawing of a window.

        Parameters
        ----------
        window_ns
            Start and end on the clock of the rows.
        pixels
            Width of the picture.
        k
            Most spans to draw one by one.
        tracks
            Numbers of the tracks wanted, each once; default all, ascending.

        Raises
        ------
        ValueError
            The window is empty, ``pixels`` is below 1, or ``k`` below 0.
        """
        low, high = (int(edge) for edge in window_ns)
        if low >= high:
            raise ValueError(f"the window ends at {high} ns, not after its start at {low} ns")
        if pixels < 1 or k < 0:
            raise ValueError(f"pixels is at least 1 and k at least 0, not {pixels} and {k}")
        wanted = self._tracks if tracks is None else np.asarray(tracks, np.int64)
        grid = Grid(low, high, pixels, wanted, self._overlapping)
        found = [Reach.of(part, wanted, low, high) for part in self._parts]
        total = sum(int(one.counts.sum()) for one in found)
        lowest = self._lowest_class(found, grid.level, max(ROOM, k))
        levels = [one.part.level_at_most(grid.level) if lowest else 0 for one in found]
        spans = _joined(
            [one.spans(min(level, lowest), level) for one, level in zip(found, levels, strict=True)]
        )
        in_window = (spans.start < high) & ((spans.end > low) | (spans.start >= low))
        may = np.flatnonzero(in_window & (spans.klass >= lowest))
        width = np.minimum(spans.end[may], high) - np.maximum(spans.start[may], low)
        best = may[_largest(width, spans.start[may], spans.row[may], k)]
        if total > len(best):
            drawn = np.zeros(len(spans.row), bool)
            drawn[best] = True
            for one, level in zip(found, levels, strict=True):
                if level:
                    grid.add_cells(one, level)
            grid.add_spans(spans, drawn)
        return Selection(
            window_ns=(low, high),
            tracks=wanted,
            rows=spans.row[best],
            floor_ns=class_width_ns(lowest - 1) if lowest else -1,
            coverage=np.clip(grid.covered, 0, 1).astype(np.float32),
            begins=grid.begins.astype(np.int32),
            exact=grid.exact,
            origin_ns=grid.origin,
            column_ns=grid.column,
            total=total,
        )

    @staticmethod
    def _lowest_class(found: list[Reach], at_most: int, room: int) -> int:
        """Return from which class on spans are looked at one by one."""
        if not found:
            return 0
        wider = np.sum([one.counts.sum(axis=1) for one in found], axis=0)[::-1].cumsum()[::-1]
        return min(at_most, int(np.count_nonzero(wider > room)))


def _columns(start_ns: Array, end_ns: Array, track: Array, first: int) -> tuple[Array, ...]:
    """Return start, end, track and row of the rows that have a track."""
    if not len(start_ns) == len(end_ns) == len(track):
        raise ValueError(
            f"{len(start_ns)} starts, {len(end_ns)} ends and {len(track)} tracks: "
            "one of each is needed for every row"
        )
    mine = chosen(np.asarray(track) >= 0)
    number = np.int32 if first + len(start_ns) < 2**31 else np.int64
    start, end = (np.asarray(side, np.int64)[mine] for side in (start_ns, end_ns))
    row = np.arange(first, first + len(start_ns), dtype=number)[mine]
    return start, np.maximum(start, end), np.asarray(track)[mine], row


def _joined(pieces: list[Spans]) -> Spans:
    if not pieces:
        nothing = np.zeros(0, np.int64)
        return Spans(nothing, nothing, nothing, nothing, nothing, nothing.astype(bool))
    if len(pieces) == 1:
        return pieces[0]
    return Spans(
        *(np.concatenate([getattr(one, each.name) for one in pieces]) for each in fields(Spans))
    )


def _largest(width: Array, start: Array, row: Array, k: int) -> Array:
    """Return where the ``k`` widest are, widest first, then by start and row."""
    at = np.arange(len(width) if k else 0)
    if len(width) > k > 0:
        least = np.partition(width, len(width) - k)[len(width) - k]
        at = np.flatnonzero(width >= least)
    return at[np.lexsort((row[at], start[at], -width[at]))[:k]]
