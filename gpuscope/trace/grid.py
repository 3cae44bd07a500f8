"""How full the columns of a picture are of spans."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Array
from gpuscope.trace.levels import Reach, Spans, bisect, cell_bits, level_of, slices


class Grid:
    """Coverage being added up.

    Attributes
    ----------
    covered, begins
        Tracks × columns, float64.
    level
        The coarsest level that is fine enough.
    """

    def __init__(self, low: int, high: int, pixels: int, tracks: Array, overlapping: Array) -> None:
        pixel = (high - low) / pixels
        self.level = level_of(pixel)
        step = 1 << cell_bits(self.level) if self.level else 1
        self.column = step * max(1, round(pixel / step))
        self.origin = low // self.column * self.column
        self.columns = -(-high // self.column) - low // self.column
        self.covered = np.zeros((len(tracks), self.columns))
        self.begins = np.zeros((len(tracks), self.columns))
        self._overlapping = np.isin(tracks, overlapping)
        self._summands = np.zeros(len(tracks), np.int64)

    @property
    def exact(self) -> Array:
        """Track → whether what was added up is a union."""
        return ~self._overlapping | (self._summands < 2)

    def add_cells(self, reach: Reach, level: int) -> None:
        """Add the cells of a part."""
        cells = reach.part.levels[level]
        if cells is None:
            return
        bits = cell_bits(level)
        begin = (self.origin >> bits) - cells.base
        end = begin + (self.columns * self.column >> bits)
        first, last = cells.first[reach.place], cells.first[reach.place + 1]
        at, which = slices(
            bisect(cells.cell, first, last, np.full(len(first), begin)),
            bisect(cells.cell, first, last, np.full(len(first), end)),
        )
        column = (cells.cell[at] - np.int64(begin)) // (self.column >> bits)
        track = reach.here[which]
        share = (1 << bits) / self.column
        self.covered += self._sums(track, column, cells.busy[at]) * share
        self.begins += self._sums(track, column, cells.begins[at])
        self._count_summand(track)

    def add_spans(self, spans: Spans, drawn: Array) -> None:
        """Add the spans that cells do not hold, and take out of cells those that are drawn."""
        sign = (~drawn & ~spans.merged).astype(np.int64) - (drawn & spans.merged)
        changed = np.flatnonzero(sign)
        track, sign = spans.track[changed], sign[changed]
        self._count_summand(track)
        column = (np.maximum(spans.start[changed], self.origin) - self.origin) // self.column
        inside = spans.start[changed] >= self.origin
        self.begins += self._sums(track[inside], column[inside], sign[inside])
        end = self.origin + self.columns * self.column
        edges = [
            np.clip(side[changed], self.origin, end) - self.origin
            for side in (spans.start, spans.end)
        ]
        over = self._overlapping[track]
        alone = ~over
        self._add_intervals(track[alone], edges[0][alone], edges[1][alone], sign[alone])
        over &= sign > 0  # the others stay in the cells: what they cover may be another's too
        offset = track[over] * (self.columns + 1) * self.column
        begin, until = edges[0][over] + offset, edges[1][over] + offset
        order = np.argsort(begin, kind="stable")  # few runs that ascend: quick to merge
        begin, until, offset = begin[order], until[order], offset[order]
        reach = np.maximum.accumulate(until)
        begin[1:] = np.maximum(begin[1:], reach[:-1])
        until = np.maximum(until, begin)
        self._add_intervals(track[over][order], begin - offset, until - offset, np.ones(len(order)))

    def _add_intervals(self, track: Array, begin: Array, until: Array, sign: Array) -> None:
        """Add intervals, in ns from the origin, that do not overlap in a track."""
        # Each is a step up and a step down; in the column of a step part of it counts. They are
        # summed in whole ns: sums of fractions would leave a trace of what has ended.
        steps = np.zeros((len(self.covered), self.columns + 2))
        for at, weight in ((begin, sign), (until, -sign)):
            column, late = np.divmod(at, self.column)
            for shift, part in ((0, self.column - late), (1, late)):
                steps += np.bincount(
                    track * (self.columns + 2) + column + shift, weight * part, steps.size
                ).reshape(steps.shape)
        self.covered += np.cumsum(steps, axis=1)[:, : self.columns] / self.column

    def _count_summand(self, track: Array) -> None:
        self._summands += np.bincount(track, minlength=len(self._summands)) > 0

    def _sums(self, track: Array, column: Array, weight: Array) -> Array:
        at = track * self.columns + column
        return np.bincount(at, weight, self.begins.size).reshape(self.begins.shape)
