"""What a timeline draws of a trace in one window: tracks, spans, lines inside the tracks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpuscope._types import Array
from gpuscope.errors import InvalidArgument
from gpuscope.figures.labels import Class, Track
from gpuscope.figures.tracks import Tracks, busiest
from gpuscope.trace.columns import combined
from gpuscope.trace.query import OPEN_NS, Selection

LANES = 8
"""Lines inside a track for spans that overlap or nest; what is deeper shares the last."""
PIXELS = 1000
"""Columns of the picture of what is not drawn one by one."""
_ESCAPES = 500
"""Escapes drawn of a window at most, the longest, besides its widest spans."""


@dataclass(frozen=True)
class View:
    """One window of a trace.

    Attributes
    ----------
    shown
        The tracks drawn, top to bottom; rows of ``found.coverage`` are theirs.
    found
        The spans drawn one by one, and how full the rest makes each column.
    total, hidden_tracks
        Spans in the window on any track, and how many tracks are left out.
    row_lanes
        Row → line inside its track, as of :func:`lanes_of`; ``None``: what is drawn gets lines.
    """

    tracks: Tracks
    shown: tuple[Track, ...]
    found: Selection
    total: int
    hidden_tracks: int
    row_lanes: Array | None = None

    @classmethod
    def of(cls, tracks: Tracks, window_ns: tuple[int, int], *, max_spans: int) -> View:
        """Look at the tracks in which something is in a window, the busiest if they are many.

        Raises
        ------
        ValueError
            The window is empty, or no span may be drawn.
        """
        low, high = window_ns
        if max_spans < 1:
            raise InvalidArgument(f"max_spans is at least 1, not {max_spans}")
        if low >= high:
            raise InvalidArgument(f"the window ends at {high} ns, not after its start at {low} ns")
        counts = tracks.index.counts(
            window_ns, np.array([track.number for track in tracks.tracks], int)
        )
        there = [track for track, count in zip(tracks.tracks, counts, strict=True) if count]
        shown, hidden = busiest(there, tracks.busy_ns)
        view = cls.among(tracks, shown, window_ns, max_spans=max_spans)
        return replace(view, total=int(counts.sum()), hidden_tracks=hidden)

    @classmethod
    def among(
        cls,
        tracks: Tracks,
        shown: Sequence[Track],
        window_ns: tuple[int, int],
        *,
        max_spans: int,
        pixels: int = PIXELS,
        row_lanes: Array | None = None,
    ) -> View:
        """Look at certain tracks, whether or not something is in them; escapes are not merged."""
        numbers = np.array([track.number for track in shown], np.int64)
        found = tracks.index.query(window_ns, pixels=pixels, k=max_spans, tracks=numbers)
        more = _escapes(tracks, found)
        if len(more):
            found = replace(found, rows=np.concatenate([found.rows, more]))
        return cls(tracks, tuple(shown), found, found.total, 0, row_lanes)

    @cached_property
    def place(self) -> list[int]:
        """Drawn span → position of its track in ``shown``."""
        position = np.zeros(len(self.tracks.tracks), np.int64)
        position[self.found.tracks] = np.arange(len(self.shown))
        return [int(at) for at in position[self.tracks.track[self.found.rows]]]

    @cached_property
    def is_open(self) -> list[bool]:
        """Drawn span → whether its end is unknown."""
        return [bool(unknown) for unknown in self.tracks.end_ns[self.found.rows] == OPEN_NS]

    @cached_property
    def is_host(self) -> list[bool]:
        """Drawn span → whether it shows what the host did."""
        return [self.shown[place].is_host for place in self.place]

    @cached_property
    def classed(self) -> tuple[list[Class], Array]:
        """The classes of the drawn spans, and drawn span → which of these is its own."""
        tracks, rows = self.tracks, self.found.rows
        kinds, partitions = tracks.coded["kind"], tracks.coded["partition"]
        kind, partition = kinds.codes[rows], partitions.codes[rows]
        is_open = tracks.end_ns[rows] == OPEN_NS
        is_host = np.array([track.is_host for track in self.shown] or [False])[self.place]
        escaped = np.isin(rows, tracks.escaped)
        first, number = combined(kind, partition, is_open, is_host, escaped.astype(np.int64))
        return [
            Class(
                kinds.values[kind[at]],
                partitions.values[partition[at]] if partition[at] or is_host[at] else "",
                bool(is_open[at]),
                bool(escaped[at]),
            )
            for at in first.tolist()
        ], number

    @cached_property
    def classes(self) -> list[Class]:
        """Drawn span → what bar it is."""
        classes, number = self.classed
        return [classes[at] for at in number.tolist()]

    @cached_property
    def lanes(self) -> list[int]:
        """Drawn span → line inside its track: those that overlap have different ones."""
        if self.row_lanes is not None:
            return [int(lane) for lane in self.row_lanes[self.found.rows]]
        return self._lanes[0]

    @cached_property
    def depth(self) -> list[int]:
        """Shown track → how many lines the spans drawn need."""
        return self._lanes[1]

    @cached_property
    def crowded(self) -> list[str]:
        """Labels of tracks in which more spans overlap than there are lines."""
        return [self.shown[place].label for place in self._lanes[2]]

    @cached_property
    def _lanes(self) -> tuple[list[int], list[int], list[int]]:
        rows = self.found.rows
        depth = [1] * len(self.shown)
        free: list[list[int]] = [[] for _ in self.shown]
        lanes = [0] * len(rows)
        crowded: set[int] = set()
        starts, ends = self.tracks.start_ns[rows], self.tracks.end_ns[rows]
        start, end, place = starts.tolist(), ends.tolist(), self.place
        for at in np.lexsort((-ends, starts)).tolist():
            track = place[at]
            busy_until = free[track]
            lane = next(
                (line for line, until in enumerate(busy_until) if until <= start[at]), LANES
            )
            if lane == LANES and len(busy_until) < LANES:
                lane = len(busy_until)
                busy_until.append(0)
                depth[track] = lane + 1
            elif lane == LANES:
                lane = LANES - 1
                crowded.add(track)
            busy_until[lane] = max(busy_until[lane], end[at])
            lanes[at] = lane
        return lanes, depth, sorted(crowded)


def _escapes(tracks: Tracks, found: Selection) -> Array:
    """Return the rows of the escapes in a window that are not among the rows found."""
    low, high = found.window_ns
    rows = tracks.escaped
    start, end = tracks.start_ns[rows], tracks.end_ns[rows]
    seen = (start < high) & (end > low) & np.isin(tracks.track[rows], found.tracks)
    rows = np.setdiff1d(rows[seen], found.rows)
    if len(rows) > _ESCAPES:
        width = tracks.end_ns[rows] - tracks.start_ns[rows]
        rows = rows[np.argpartition(-width, _ESCAPES)[:_ESCAPES]]
    return rows


def lanes_of(tracks: Tracks) -> Array:
    """Return row → line inside its track, the first that is free when it starts, whatever is seen.

    Spans that find no free one among ``LANES`` share the last; rows without a track have 0.
    """
    lanes = np.zeros(len(tracks), np.int8)
    numbers = np.array([track.number for track in tracks.tracks], np.int64)
    deep = numbers[tracks.index.depths(numbers) > 1]
    rows = np.flatnonzero(np.isin(tracks.track, deep))
    start, end = tracks.start_ns[rows], tracks.end_ns[rows]
    rows = rows[np.lexsort((-end, start, tracks.track[rows]))]
    for mine in np.split(rows, np.flatnonzero(np.diff(tracks.track[rows])) + 1):
        left = mine
        for lane in range(LANES - 1):
            lanes[left] = lane
            left = left[~_on_first_line(tracks.start_ns[left], tracks.end_ns[left])]
        lanes[left] = LANES - 1
    return lanes


def _on_first_line(start: Array, end: Array) -> Array:
    """Return which spans, in order of their starts, come first, or when those before have ended."""
    there = np.zeros(len(start), bool)
    after = np.maximum(np.searchsorted(start, end), np.arange(1, len(start) + 1)).tolist()
    at = 0
    while at < len(after):
        there[at] = True
        at = after[at]
    return there
