"""What a timeline draws of a trace in one window: tracks, spans, lines inside the tracks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpuscope._types import Array, Bools
from gpuscope.errors import InvalidArgument
from gpuscope.timeline.index import OPEN_NS
from gpuscope.timeline.labels import Class, Track
from gpuscope.timeline.scene import Scene, scene_of, with_spans
from gpuscope.timeline.tracks import Tracks, busiest

LANES = 8
"""Lines inside a track for spans that overlap or nest; what is deeper shares the last."""
PIXELS = 1000
"""Columns of a view where nobody says how wide the picture is."""
MOST_SPANS = 2000
"""Spans of a view that are drawn as themselves at most."""


@dataclass(frozen=True)
class View:
    """One window of a trace.

    Attributes
    ----------
    shown
        The tracks drawn, top to bottom.
    pixels
        Columns of the window.
    with_spans
        Shown track → whether it draws its spans, all of those in the window; else its columns.
    rows
        The spans drawn, the widest first.
    total, hidden_tracks
        Spans in the window on any track, and how many tracks are left out.
    row_lanes
        Row → line inside its track, as of :func:`lanes_of`; ``None``: what is drawn gets lines.
    """

    tracks: Tracks
    shown: tuple[Track, ...]
    window_ns: tuple[int, int]
    pixels: int
    with_spans: Bools
    rows: Array
    total: int
    hidden_tracks: int
    row_lanes: Array | None = None

    @classmethod
    def of(cls, tracks: Tracks, window_ns: tuple[int, int], *, max_spans: int = MOST_SPANS) -> View:
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
        counts = [_count(tracks, track, window_ns) for track in tracks.tracks]
        there = [track for track, count in zip(tracks.tracks, counts, strict=True) if count]
        shown, hidden = busiest(there, tracks.busy_ns)
        view = cls.among(tracks, shown, window_ns, max_spans=max_spans)
        return replace(view, total=sum(counts), hidden_tracks=hidden)

    @classmethod
    def among(
        cls,
        tracks: Tracks,
        shown: Sequence[Track],
        window_ns: tuple[int, int],
        *,
        max_spans: int = MOST_SPANS,
        pixels: int = PIXELS,
        row_lanes: Array | None = None,
    ) -> View:
        """Look at certain tracks, whether or not something is in them."""
        own = [tracks.rows[track.number] for track in shown]
        counts = [_count(tracks, track, window_ns) for track in shown]
        drawn = with_spans(tracks.index, window_ns, pixels, own, counts, max_spans)
        groups = [
            group for row, is_drawn in zip(own, drawn, strict=True) if is_drawn
            for group in row.groups
        ]  # fmt: skip
        rows = tracks.index.rows(window_ns, groups)
        width = np.minimum(tracks.end_ns[rows], window_ns[1])
        width -= np.maximum(tracks.start_ns[rows], window_ns[0])
        rows = rows[np.lexsort((rows, tracks.start_ns[rows], -width))]
        return cls(
            tracks, tuple(shown), window_ns, pixels, drawn, rows, sum(counts), 0, row_lanes
        )  # fmt: skip

    @cached_property
    def scene(self) -> Scene:
        """The columns of the window, of all tracks shown."""
        tracks, metadata = self.tracks, self.tracks.names.metadata
        works = np.concatenate([np.zeros(0, np.int64), *tracks.hazards])
        on = tracks.track[works]
        return scene_of(
            tracks.index, self.window_ns, self.pixels,
            [tracks.rows[track.number] for track in self.shown],
            hazards=[tracks.start_ns[works[on == track.number]] for track in self.shown]
            if len(works) else (),
            recorded=metadata.windows_ns,
            kept_since_ns=metadata.kept.since_ns
            if metadata.kept is not None and metadata.kept.rows_left_out else None,
        )  # fmt: skip

    @cached_property
    def place(self) -> list[int]:
        """Drawn span → position of its track in ``shown``."""
        position = np.zeros(len(self.tracks.tracks), np.int64)
        position[[track.number for track in self.shown]] = np.arange(len(self.shown))
        return [int(at) for at in position[self.tracks.track[self.rows]]]

    @cached_property
    def is_open(self) -> list[bool]:
        """Drawn span → whether its end is unknown."""
        return [bool(unknown) for unknown in self.tracks.end_ns[self.rows] == OPEN_NS]

    @cached_property
    def classed(self) -> tuple[list[Class], Array]:
        """The classes of the drawn spans, and drawn span → which of these is its own."""
        used, number = np.unique(self.tracks.group[self.rows], return_inverse=True)
        classes = [bar_class for _, bar_class in self.tracks.groups]
        return [classes[group] for group in used.tolist()], number

    @cached_property
    def classes(self) -> list[Class]:
        """Drawn span → what bar it is."""
        classes, number = self.classed
        return [classes[at] for at in number.tolist()]

    @cached_property
    def lanes(self) -> list[int]:
        """Drawn span → line inside its track: those that overlap have different ones."""
        if self.row_lanes is not None:
            return [int(lane) for lane in self.row_lanes[self.rows]]
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
        rows = self.rows
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


def _count(tracks: Tracks, track: Track, window_ns: tuple[int, int]) -> int:
    return int(tracks.index.counts(window_ns, tracks.rows[track.number].groups).sum())


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
