"""Spans by width class, the pyramid over them, and which reach into a window; see ``query``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._types import Array
from gpuscope.trace.joins import latest

OPEN_NS = int(np.iinfo(np.int64).max)
"""The end of a span that is still open."""
_LOWEST = int(np.iinfo(np.int64).min)
CLASSES = 30
_BITS = 6
_SMALLER = 2
"""How many times smaller a level is than what it stands for; others are not worth their memory."""
_FEWEST_CELLS = 64
_FEW = 1000
"""Tracks that are looked at one by one; of more, all at once, which costs a sort."""


def cell_bits(level: int) -> int:
    """Return the binary logarithm of the ns of a cell of ``level`` (from 1 on)."""
    return _BITS + 2 * (level - 1)


def class_width_ns(klass: int) -> int:
    """Return the greatest width in a class."""
    return 1 << (_BITS + 2 * klass)


def level_of(pixel_ns: float) -> int:
    """Return the coarsest level whose cells are no wider than a pixel; 0 if there is none."""
    return max(0, (int(pixel_ns).bit_length() - 1 - _BITS) // 2 + 1)


def _classes(start: Array, end: Array) -> Array:
    # As unsigned numbers, since an open span may be wider than int64 tells.
    width = end.view(np.uint64) - start.view(np.uint64)
    bits = np.frexp(np.maximum(width, 1) - 1.0)[1]
    classes: Array = np.maximum((bits - _BITS + 1) // 2, 0).astype(np.uint8)
    return classes


@dataclass(frozen=True)
class Level:
    """Cells that are not empty, by track and place.

    Attributes
    ----------
    base, cell
        Where the cells are, in cells: ``base`` + ``cell``, which is int32 where that will do.
    busy
        Which fraction of it the union of the narrow spans covers, float32.
    begins
        Narrow spans that begin in it.
    first
        Track → position of its first cell, and the number of cells at the end.
    """

    base: int
    cell: Array
    busy: Array
    begins: Array
    first: Array


@dataclass(frozen=True)
class Part:
    """Spans that were indexed together.

    Attributes
    ----------
    tracks
        Numbers of the tracks that have spans here, ascending; *place* is a position in it.
    low_ns, high_ns, depth
        Place → first start, last end, most spans at once (at least 1).
    start, end, row
        The spans by class, place and start.
    first
        Class × place, flat → position of the first of these spans, and their number at the end.
    levels
        Level → its cells; ``None`` where they would save too little.
    """

    tracks: Array
    low_ns: Array
    high_ns: Array
    depth: Array
    start: Array
    end: Array
    row: Array
    first: Array
    levels: tuple[Level | None, ...]

    @classmethod
    def of(cls, start: Array, end: Array, track: Array, row: Array) -> Part:
        """Sort spans, which end no earlier than they start and have tracks from 0 on."""
        present = np.bincount(track) > 0
        tracks = np.flatnonzero(present)
        small = np.min_scalar_type(len(tracks))  # 16 bits and fewer are sorted by radix
        place = (np.cumsum(present) - 1).astype(small)[track]
        order = np.argsort(start, kind="stable")
        order = order[np.argsort(place[order], kind="stable")]
        start, end, place = start[order], end[order], place[order]
        bounds = np.searchsorted(place, np.arange(len(tracks) + 1))
        depth = np.ones(len(tracks), np.int64)
        high = np.maximum.reduceat(end, bounds[:-1])
        # Where spans of a track overlap, one and the next do.
        over = (start[1:] < np.maximum(end, start + 1)[:-1]) & (place[1:] == place[:-1])
        for one in np.flatnonzero(np.bincount(place[1:][over], minlength=len(tracks))).tolist():
            mine = slice(bounds[one], bounds[one + 1])
            depth[one] = _depth(start[mine], end[mine])
        klass = _classes(start, end)
        levels = _levels(start, end, place, klass, bounds, np.flatnonzero(depth > 1))
        by_class = np.argsort(klass, kind="stable")
        size = np.bincount(
            klass.astype(np.int64) * len(tracks) + place, minlength=CLASSES * len(tracks)
        )
        return cls(
            tracks, start[bounds[:-1]], high, depth, start[by_class], end[by_class],
            row[order[by_class]], np.r_[0, np.cumsum(size)], levels,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.start)

    def columns(self) -> tuple[Array, Array, Array, Array]:
        """Return start, end, track and row, as :meth:`of` takes them."""
        place = np.repeat(np.tile(np.arange(len(self.tracks)), CLASSES), np.diff(self.first))
        return self.start, self.end, self.tracks[place], self.row

    def find(self, tracks: Array) -> tuple[Array, Array]:
        """Return positions in ``tracks`` of those that are here, and their places."""
        place = np.searchsorted(self.tracks, tracks)
        here = np.flatnonzero(np.r_[self.tracks, -1][place] == tracks)
        return here, place[here]

    def level_at_most(self, level: int) -> int:
        """Return the coarsest level there is that is no coarser; 0 if there is none."""
        level = min(level, len(self.levels) - 1)
        while self.levels[level] is None and level:
            level -= 1
        return level


def _depth(start: Array, end: Array) -> int:
    """Return how many spans, sorted by start, are at most there at once; instants last 1 ns."""
    end = np.maximum(end, start + 1)
    over = np.searchsorted(np.sort(end), start, "right")
    return int((np.arange(1, len(start) + 1) - over).max())


def _levels(
    start: Array, end: Array, place: Array, klass: Array, bounds: Array, overlapping: Array
) -> tuple[Level | None, ...]:
    """Return the levels of spans sorted by place and start."""
    levels: list[Level | None] = [None]
    sizes = np.bincount(klass, minlength=CLASSES)
    extent = int(start.max()) - int(start.min()) if len(start) else 0
    stands_for = 0
    while extent >> cell_bits(len(levels)) >= _FEWEST_CELLS:
        level = len(levels)
        stands_for += int(sizes[level - 1])
        before = levels[-1]
        found = None
        if before is not None and not sizes[level - 1]:
            found = _coarser(before, stands_for // _SMALLER)
        elif stands_for:
            narrow = slice(None) if sizes[level:].sum() == 0 else np.flatnonzero(klass < level)
            found = _cells(
                start[narrow], end[narrow], place[narrow], len(bounds) - 1, overlapping, level,
                stands_for // _SMALLER,
            )  # fmt: skip
        levels.append(found)
        if found is not None:
            stands_for = len(found.cell)
    return tuple(levels)


def _cells(
    start: Array, end: Array, place: Array, places: int, overlapping: Array, level: int, most: int
) -> Level | None:
    """Return the cells of spans no wider than one; nothing if there are more than ``most``."""
    bits = cell_bits(level)
    cell = start >> bits
    at = _group_starts(cell, place)
    if len(at) > most:
        return None
    begin, until = start, end
    if len(overlapping):  # what a span adds to the union of those before it in its track
        begin, until = start.copy(), end.copy()
        is_over = np.zeros(places, bool)
        is_over[overlapping] = True
        mine = np.flatnonzero(is_over[place])
        after = place[mine][1:] == place[mine][:-1]
        reach = _running_max(end[mine], place[mine])[:-1][after]
        mine = mine[1:][after]
        begin[mine] = np.maximum(start[mine], reach)
        until[mine] = np.maximum(end[mine], begin[mine])
    edge = (cell + 1) << bits
    here = np.add.reduceat(np.maximum(np.minimum(until, edge) - begin, 0), at)
    # A span is no wider than a cell, so the rest of it lies in the next one.
    there = np.add.reduceat(np.maximum(until - np.maximum(begin, edge), 0), at)
    begins = np.diff(np.r_[at, len(start)]).astype(np.int32)
    cell, place = cell[at], place[at]
    spilling = np.flatnonzero(there)
    following = np.minimum(spilling + 1, len(cell) - 1)
    has_cell = (place[following] == place[spilling]) & (cell[following] == cell[spilling] + 1)
    here[following[has_cell]] += there[spilling[has_cell]]
    new = spilling[~has_cell]
    return _level(
        np.insert(cell, new + 1, cell[new] + 1),
        np.insert(place, new + 1, place[new]),
        np.insert(here, new + 1, there[new]) * (1 / (1 << bits)),
        np.insert(begins, new + 1, 0),
        places,
    )


def _running_max(values: Array, place: Array) -> Array:
    """Return the running maximum, which begins anew at each place; places ascend."""
    bounds = np.flatnonzero(np.r_[True, place[1:] != place[:-1]][: len(place)])
    if len(bounds) <= _FEW:
        parts = np.split(values, bounds[1:])
        return np.concatenate([np.maximum.accumulate(part) for part in parts])
    highest: Array = values[latest(place, values)]
    return highest


def _coarser(level: Level, most: int) -> Level | None:
    """Return the cells four at a time; nothing if these are more than ``most``."""
    places = len(level.first) - 1
    place = np.repeat(np.arange(places), np.diff(level.first))
    cell = (level.cell.astype(np.int64) + level.base) >> 2
    at = _group_starts(cell, place)
    if len(at) > most:
        return None
    return _level(
        cell[at],
        place[at],
        np.add.reduceat(level.busy, at, dtype=np.float64) / 4,
        np.add.reduceat(level.begins, at),
        places,
    )


def _level(cell: Array, place: Array, busy: Array, begins: Array, places: int) -> Level:
    first = np.searchsorted(place, np.arange(places + 1))
    base = int(cell.min())
    cell = cell - base
    if int(cell.max()) < 2**31:
        cell = cell.astype(np.int32)
    return Level(base, cell, busy.astype(np.float32), begins.astype(np.int32), first)


def _group_starts(cell: Array, place: Array) -> Array:
    return np.flatnonzero(
        np.r_[True, (cell[1:] != cell[:-1]) | (place[1:] != place[:-1])][: len(cell)]
    )


def bisect(values: Array, low: Array, high: Array, target: Array) -> Array:
    """Return, for slices ``[low, high)`` of ``values`` that ascend, where targets belong."""
    low, high = low.copy(), high.copy()
    while True:
        searching = low < high
        if not searching.any():
            return low
        middle = (low + high) >> 1
        less = searching & (values[np.where(searching, middle, 0)] < target)
        low = np.where(less, middle + 1, low)
        high = np.where(searching & ~less, middle, high)


def slices(low: Array, high: Array) -> tuple[Array, Array]:
    """Return the positions in many slices one after the other, and the slice of each."""
    size = high - low
    which = np.repeat(np.arange(len(size)), size)
    return np.arange(len(which)) + (low - np.cumsum(size) + size)[which], which


@dataclass(frozen=True)
class Spans:
    """Spans that may be in a window.

    Attributes
    ----------
    track
        Position in the tracks asked for.
    merged
        Whether cells, which were added up apart, hold it as well.
    """

    start: Array
    end: Array
    row: Array
    klass: Array
    track: Array
    merged: Array


@dataclass(frozen=True)
class Reach:
    """Where the spans of a part that may be in a window are.

    Attributes
    ----------
    here, place
        Positions in the tracks asked for, and places in the part.
    begin, until
        Class × track: slices of the part's spans.
    counts
        Class × track: spans in the window.
    """

    part: Part
    here: Array
    place: Array
    begin: Array
    until: Array
    counts: Array

    @classmethod
    def of(cls, part: Part, tracks: Array, low_ns: int, high_ns: int) -> Reach:
        """Look for the spans of ``tracks`` in a window."""
        here, place = part.find(tracks)
        shape = (CLASSES, len(place))
        at = np.arange(CLASSES)[:, None] * len(part.tracks) + place
        first, last = part.first[at].ravel(), part.first[at + 1].ravel()
        earliest = [max(low_ns - class_width_ns(klass) + 1, _LOWEST) for klass in range(CLASSES)]
        # Of many tracks most have no span in most classes.
        used = np.flatnonzero(last > first)
        targets = np.concatenate(
            [
                np.array(earliest)[used // max(1, len(place))],
                *np.repeat([[low_ns], [high_ns]], len(used), 1),
            ]
        )
        found, middle, stop = bisect(
            part.start, np.tile(first[used], 3), np.tile(last[used], 3), targets
        ).reshape(3, -1)
        early, which = slices(found, middle)
        inside = stop - middle
        inside += np.bincount(which[part.end[early] > low_ns], minlength=len(inside))
        begin, until, counts = first, first.copy(), np.zeros(len(first), np.int64)
        begin[used], until[used], counts[used] = found, stop, inside
        return cls(
            part, here, place, begin.reshape(shape), until.reshape(shape),
            counts.reshape(shape),
        )  # fmt: skip

    def spans(self, lowest: int, level: int) -> Spans:
        """Return those of the classes from ``lowest`` on; cells of ``level`` are counted apart."""
        at, which = slices(self.begin[lowest:].ravel(), self.until[lowest:].ravel())
        klass = lowest + which // max(1, len(self.here))
        track = self.here[which % max(1, len(self.here))]
        part = self.part
        return Spans(part.start[at], part.end[at], part.row[at], klass, track, klass < level)
