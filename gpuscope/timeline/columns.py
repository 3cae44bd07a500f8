"""The columns of a scene: for each row and pixel column, how busy it was, and with what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpuscope._types import Array, Bools
from gpuscope.timeline.index import Index

WIDE_PX = 3
"""How wide the median span of a row is once the row draws its spans instead of columns."""
LEAST_PX, FREE_PX = 2, 1
"""Least height of what was busy at all, and what stays free of a column that was not full."""
MARK_PX = 12
"""In which marks merge into one."""
Stretch = tuple[int, int]
"""Start and end on the trace's clock."""
Missing = tuple[int, int, str]
"""A stretch of which rows are missing, and why."""


@dataclass(frozen=True)
class Row:
    """A row of a timeline.

    Attributes
    ----------
    groups
        Numbers of its groups in the index, the lowest in the stack first.
    escaped
        Group → whether its spans ran outside the partition that they were intended for.
    """

    groups: tuple[int, ...]
    escaped: tuple[bool, ...]


@dataclass(frozen=True)
class Columns:
    """Columns of a window.

    Attributes
    ----------
    rows
        As asked for.
    edges
        Column ``i`` is the time from edge ``i`` to edge ``i + 1``; all of them whole ns.
    first
        Row → position of its first group in ``busy_ns`` and ``begins``, and their number.
    busy_ns
        Group × column, int64: for how long the union of the group's spans covers the column.
    begins
        Group × column, int64: how many spans start in it, which tells of instants, too.
    hazards
        Row × column, int64: how many works of hazards start in it.
    missing
        Stretches of the window of which not everything is here: start, end, what to call it.
    """

    rows: tuple[Row, ...]
    edges: Array
    first: Array
    busy_ns: Array
    begins: Array
    hazards: Array
    missing: tuple[Missing, ...]

    def of_row(self, row: int) -> slice:
        """Return where the groups of a row are."""
        return slice(int(self.first[row]), int(self.first[row + 1]))

    @property
    def is_there(self) -> Bools:
        """Group × column: whether anything of the group is in it, instants too."""
        return (self.busy_ns > 0) | (self.begins > 0)

    @cached_property
    def escapes(self) -> Array:
        """Row × column: how many escapes start in it."""
        escaped = np.array([flag for row in self.rows for flag in row.escaped], np.int64)
        if not escaped.any():
            return np.zeros_like(self.hazards)
        sums = np.cumsum(self.begins * escaped[:, None], axis=0)
        return np.diff(np.r_[np.zeros((1, sums.shape[1]), np.int64), sums][self.first], axis=0)


def edges_of(window_ns: Stretch, pixels: int) -> Array:
    """Return the edges of a window's columns, one column a pixel, none shorter than 1 ns."""
    low, high = window_ns
    count = max(1, min(pixels, high - low))
    # Whole numbers of any size: the product of a long window and many pixels exceeds 64 bits.
    whole, rest = divmod(high - low, count)
    at = np.arange(count + 1, dtype=np.int64)
    return low + at * whole + at * rest // count


def columns_of(
    index: Index,
    window_ns: Stretch,
    pixels: int,
    rows: Sequence[Row],
    *,
    hazards: Sequence[Array] = (),
    missing: Sequence[Missing] = (),
) -> Columns:
    """Compute the columns of a window.

    Parameters
    ----------
    hazards
        Row → starts of works that nothing orders; nothing: there are none.
    missing
        What :func:`missing_in` says of the window.
    """
    edges = edges_of(window_ns, pixels)
    groups = [group for row in rows for group in row.groups]
    busy, begins = index.columns(edges, groups)
    begun_hazards = np.zeros((len(rows), len(edges) - 1), np.int64)
    for row, starts in enumerate(hazards):
        inside = (starts >= edges[0]) & (starts < edges[-1])
        begun_hazards[row] = np.histogram(starts[inside], edges)[0]
    first = np.r_[0, np.cumsum([len(row.groups) for row in rows], dtype=np.int64)]
    return Columns(
        rows=tuple(rows),
        edges=edges,
        first=first,
        busy_ns=busy,
        begins=begins,
        hazards=begun_hazards,
        missing=tuple(missing),
    )


def breaks_of(recorded: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches between those that were recorded."""
    breaks = []
    reach: int | None = None
    for low, high in sorted((int(low), int(high)) for low, high in recorded):
        if reach is not None and low > reach:
            breaks.append((reach, low))
        reach = high if reach is None else max(reach, high)
    return breaks


def missing_in(
    window_ns: Stretch, recorded: Sequence[Stretch], kept_since_ns: int | None
) -> list[Missing]:
    """Return the stretches of a window of which rows are missing, and why.

    Parameters
    ----------
    recorded
        The stretches of time that were recorded, as far as they are known.
    kept_since_ns
        What ended before is known to be missing.
    """
    missing = [(*stretch, "not recorded") for stretch in breaks_of(recorded)]
    if kept_since_ns is not None:
        missing.append((window_ns[0], kept_since_ns, "rows lost"))
    clipped = [
        (max(low, window_ns[0]), min(high, window_ns[1]), what) for low, high, what in missing
    ]
    return [(low, high, what) for low, high, what in clipped if low < high]


def seen_in(window_ns: Stretch, missing: Sequence[Missing]) -> list[Stretch]:
    """Return the stretches of a window of which no rows are missing: of them shares are told."""
    seen, since = [], window_ns[0]
    for low, high, _ in sorted(missing):
        if low > since:
            seen.append((since, low))
        since = max(since, high)
    return [*seen, (since, window_ns[1])] if since < window_ns[1] else seen


def spans_from(
    index: Index,
    window_ns: Stretch,
    pixels: int,
    rows: Sequence[Row],
    counts: Sequence[int],
    most: int,
) -> Array:
    """Return row → from how many px per ns on it draws its spans: half of them are 3 px wide then.

    Infinite where that is more than the window has, and the row draws columns. Instants have no
    width and do not count. Of more than ``most`` spans in all, the rows with the most draw columns,
    too: a row draws all of its spans in the window, or none. ``counts`` says how many each has
    there.
    """
    low, high = window_ns
    px_per_ns = np.where(np.equal(counts, 0), 0.0, np.inf)
    for row in np.argsort(counts, kind="stable").tolist():
        if not counts[row]:
            continue
        if counts[row] > most:
            break
        start, end = index.times(window_ns, rows[row].groups)
        width = (np.minimum(end, high) - np.maximum(start, low))[end > start]
        half = len(width) // 2
        median = int(np.partition(width, half)[half]) if len(width) else 0
        if median * pixels >= WIDE_PX * (high - low):
            px_per_ns[row] = WIDE_PX / median
            most -= counts[row]
    return px_per_ns


# -- the time axis -------------------------------------------------------------------------


def step_of(length: float, most: int) -> float:
    """Return 1, 2 or 5 times a power of ten, so many of which at most are shorter than a length."""
    step = 10.0 ** math.floor(math.log10(length / most))
    return step * next(times for times in (1, 2, 5, 10) if length <= step * times * most)


# -- how they look in px -------------------------------------------------------------------
def heights(busy_ns: Array, there: Bools, column_ns: Array, px: int) -> Array:
    """Return the height of each group of a row in each column, in whole pixels.

    What was busy at all is at least 2 px high, and at least 1 px stays free of a column that
    was not full. Groups that overlap share the column in proportion to their times.

    Parameters
    ----------
    busy_ns, there
        Group × column: for how long it was busy; whether it is to be seen even so.
    column_ns
        How long the columns are.
    px
        Height of the row.
    """
    if not len(busy_ns):
        return np.zeros(busy_ns.shape, np.int64)
    total = busy_ns.sum(axis=0)
    share = busy_ns / np.maximum(total, column_ns)
    tall = np.where(there, np.maximum(np.floor(share * px + 0.5), LEAST_PX), 0).astype(np.int64)
    over = tall.sum(axis=0) - np.where(total >= column_ns, px, px - FREE_PX)
    largest = tall.argmax(axis=0), np.arange(tall.shape[1])
    # Rounded down one by one, several that are full together may leave a gap.
    tall[largest] -= np.where(total >= column_ns, over, np.maximum(over, 0))
    return tall


def resampled(values: Array, count: int) -> Array:
    """Return columns as another number of columns of the same window: means weighted by time."""
    before = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    at = np.linspace(0, values.shape[1], count + 1)
    low = np.minimum(at.astype(np.int64), values.shape[1] - 1)
    summed = before[:, low] + values[:, low] * (at - low)
    # Rounded, or what is full would be so but for the last digit.
    return np.round(np.diff(summed, axis=1) * (count / values.shape[1]), 9)


class MarkColumns(NamedTuple):
    """Marks above rows: of which, in which column, and for how many each stands."""

    row: Array
    column: Array
    number: Array


def marks(counts: Array, columns: int) -> MarkColumns:
    """Return where marks stand: those of ``columns`` merge into the first of them.

    Parameters
    ----------
    counts
        Row × column; those of the marks have the same sum.
    """
    row, column = np.nonzero(counts)
    block = row * counts.shape[1] + column // columns
    _, first, number = np.unique(block, return_index=True, return_inverse=True)
    merged = np.bincount(number, counts[row, column], len(first)).astype(np.int64)
    return MarkColumns(row[first], column[first], merged)
