"""Which spans of an index reach into a window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._types import Array
from gpuscope.trace.levels import CLASSES, Part, class_width_ns

_LOWEST = int(np.iinfo(np.int64).min)


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
