"""What is seen of a window: for each row and pixel column, how busy it was, and with what.

Painters draw a :class:`Scene` and decide nothing of what is seen: the canvas of a widget,
Plotly's figures and the PNG show the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuscope._types import Array, Bools
from gpuscope.timeline.index import Index

WIDE_PX = 3
"""How wide the median span of a row is once the row draws its spans instead of columns."""
LEAST_PX, FREE_PX = 2, 1
"""Least height of what was busy at all, and what stays free of a column that was not full."""
Stretch = tuple[int, int]
"""Start and end on the trace's clock."""


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
class Scene:
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
    breaks, lost
        Stretches of the window in which nothing was recorded; whose rows are known to be
        missing.
    """

    rows: tuple[Row, ...]
    edges: Array
    first: Array
    busy_ns: Array
    begins: Array
    hazards: Array
    breaks: tuple[Stretch, ...]
    lost: tuple[Stretch, ...]

    def of_row(self, row: int) -> slice:
        """Return where the groups of a row are."""
        return slice(int(self.first[row]), int(self.first[row + 1]))

    @property
    def missing(self) -> tuple[tuple[tuple[Stretch, ...], str], ...]:
        """Stretches of which not everything is here, and what to call them."""
        return (self.breaks, "not recorded"), (self.lost, "rows lost")

    @property
    def is_there(self) -> Bools:
        """Group × column: whether anything of the group is in it, instants too."""
        return (self.busy_ns > 0) | (self.begins > 0)

    @cached_property
    def escapes(self) -> Array:
        """Row × column: how many escapes start in it."""
        escaped = np.array([one for row in self.rows for one in row.escaped], np.int64)
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


def scene_of(
    index: Index,
    window_ns: Stretch,
    pixels: int,
    rows: Sequence[Row],
    *,
    hazards: Sequence[Array] = (),
    recorded: Sequence[Stretch] = (),
    kept_since_ns: int | None = None,
) -> Scene:
    """Compute the columns of a window.

    Parameters
    ----------
    hazards
        Row → starts of works that nothing orders; nothing: there are none.
    recorded
        The stretches of time that were recorded, as far as they are known.
    kept_since_ns
        What ended before is known to be missing.
    """
    edges = edges_of(window_ns, pixels)
    groups = [group for row in rows for group in row.groups]
    busy, begins = index.columns(edges, groups)
    found = np.zeros((len(rows), len(edges) - 1), np.int64)
    for place, starts in enumerate(hazards):
        found[place] = np.histogram(starts[(starts >= edges[0]) & (starts < edges[-1])], edges)[0]
    first = np.r_[0, np.cumsum([len(row.groups) for row in rows], dtype=np.int64)]
    lost = [] if kept_since_ns is None else [(int(edges[0]), kept_since_ns)]
    return Scene(
        tuple(rows), edges, first, busy, begins, found,
        _inside(breaks_of(recorded), window_ns), _inside(lost, window_ns),
    )  # fmt: skip


def breaks_of(recorded: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches between those that were recorded."""
    found = []
    reach: int | None = None
    for low, high in sorted((int(low), int(high)) for low, high in recorded):
        if reach is not None and low > reach:
            found.append((reach, low))
        reach = high if reach is None else max(reach, high)
    return found


def _inside(stretches: Sequence[Stretch], window_ns: Stretch) -> tuple[Stretch, ...]:
    clipped = [(max(low, window_ns[0]), min(high, window_ns[1])) for low, high in stretches]
    return tuple((low, high) for low, high in clipped if low < high)


def with_spans(
    index: Index,
    window_ns: Stretch,
    pixels: int,
    rows: Sequence[Row],
    counts: Sequence[int],
    most: int,
) -> Bools:
    """Return row → whether it draws its spans, if any: once half of them are 3 pixels wide.

    Instants have no width and do not count. Of more than ``most`` spans in all, the rows with
    the most draw columns instead: a row draws all of its spans in the window, or none.
    ``counts`` says how many each has there.
    """
    low, high = window_ns
    wide_ns = WIDE_PX * (high - low) / pixels
    drawn = np.equal(counts, 0)
    for place in np.argsort(counts, kind="stable").tolist():
        if not counts[place]:
            continue
        most -= counts[place]
        if most < 0:
            break
        start, end = index.times(window_ns, rows[place].groups)
        wide = np.count_nonzero(np.minimum(end, high) - np.maximum(start, low) >= wide_ns)
        drawn[place] = 0 < 2 * wide >= np.count_nonzero(end > start)
        most += 0 if drawn[place] else counts[place]
    return drawn


# -- what painters decide ------------------------------------------------------------------
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
    found = np.where(there, np.maximum(np.rint(share * px), LEAST_PX), 0).astype(np.int64)
    over = found.sum(axis=0) - np.where(total >= column_ns, px, px - FREE_PX)
    largest = found.argmax(axis=0), np.arange(found.shape[1])
    found[largest] -= np.maximum(over, 0)
    # Rounded down one by one, several that are full together may leave a gap.
    found[largest] += np.where(total >= column_ns, np.maximum(-over, 0), 0)
    return found


def resampled(values: Array, count: int) -> Array:
    """Return columns as another number of columns of the same window: means weighted by time."""
    before = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    at = np.linspace(0, values.shape[1], count + 1)
    low = np.minimum(at.astype(np.int64), values.shape[1] - 1)
    summed = before[:, low] + values[:, low] * (at - low)
    # Rounded, or what is full would be so but for the last digit.
    return np.round(np.diff(summed, axis=1) * (count / values.shape[1]), 9)


def marks(counts: Array, columns: int) -> tuple[Array, Array]:
    """Return where marks stand and for how many each: those of ``columns`` merge.

    Returns
    -------
    tuple
        Columns; counts, whose sum is that of ``counts``.
    """
    at = np.flatnonzero(counts)
    _, first, number = np.unique(at // max(1, columns), return_index=True, return_inverse=True)
    return at[first], np.bincount(number, counts[at], len(first)).astype(np.int64)
