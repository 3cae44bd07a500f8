"""What a timeline draws of a trace in one window: tracks, spans, lines inside the tracks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.figures.labels import Class, Track
from gpuscope.figures.tracks import Tracks, busiest
from gpuscope.trace.query import OPEN_NS, Selection

LANES = 8
"""Lines inside a track for spans that overlap or nest; what is deeper shares the last."""
PIXELS = 1000
"""Columns of the picture of what is not drawn one by one."""


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
    """

    tracks: Tracks
    shown: tuple[Track, ...]
    found: Selection
    total: int
    hidden_tracks: int

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
    ) -> View:
        """Look at certain tracks, whether or not something is in them."""
        numbers = np.array([track.number for track in shown], np.int64)
        found = tracks.index.query(window_ns, pixels=pixels, k=max_spans, tracks=numbers)
        return cls(tracks, tuple(shown), found, found.total, 0)

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
    def classes(self) -> list[Class]:
        """Drawn span → what bar it is."""
        rows = self.found.rows
        kinds, partitions = self.tracks.coded["kind"], self.tracks.coded["partition"]
        return [
            (
                kinds.values[kind],
                partitions.values[partition] if partition or is_host else "",
                is_open,
            )
            for kind, partition, is_host, is_open in zip(
                kinds.codes[rows].tolist(),
                partitions.codes[rows].tolist(),
                self.is_host,
                self.is_open,
                strict=True,
            )
        ]

    @cached_property
    def lanes(self) -> list[int]:
        """Drawn span → line inside its track: those that overlap have different ones."""
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
