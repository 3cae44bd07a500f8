"""A scene: all that is seen of a trace in one window, as plain columns.

Painters draw it and decide nothing of what is seen: the canvas of a widget, Plotly's figures and
the PNG show the same tracks, bars, columns of busy time, arrows and marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gpuscope._types import Array, Bools
from gpuscope.errors import InvalidArgument
from gpuscope.timeline.columns import Columns, MarkColumns, columns_of, marks, spans_from
from gpuscope.timeline.counter_lanes import LaneColumns
from gpuscope.timeline.index import OPEN_NS, Index
from gpuscope.timeline.labels import Class, Track, busiest, folded
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.waiting import Waiting, waiting_of
from gpuscope.timeline.waits import WaitColumns

LANES = 8
"""Lines inside a track for spans that overlap or nest; what is deeper shares the last."""
PIXELS = 1000
"""Columns of a scene where nobody says how wide the picture is."""
MOST_SPANS = 2000
"""Spans of a scene that are drawn as themselves at most."""
_MAX_ARROWS = 200


class Arrows(NamedTuple):
    """Arrows between bars, the earliest first.

    Attributes
    ----------
    from_ns, to_ns
        Where each begins and ends, on the trace's clock.
    cause, effect
        Positions of the two bars in the scene.
    joint
        Whether it is a collective that the two are of.
    left_out
        How many there are in the window that have none.
    """

    from_ns: Array
    to_ns: Array
    cause: Array
    effect: Array
    joint: Array
    left_out: int


@dataclass(frozen=True)
class Scene:
    """What is seen of one window.

    Attributes
    ----------
    shown
        The tracks drawn, top to bottom.
    pixels
        Columns of the window.
    spans_from
        Shown track → from how many px per ns on it draws its spans, all of those in the window;
        infinite where it draws its columns.
    rows
        The spans drawn, the widest first: bars are numbered as they stand here.
    total, hidden_tracks
        Spans in the window on any track, and how many tracks are left out.
    row_lanes
        Row → line inside its track, as of :func:`lanes_of`; ``None``: what is drawn gets lines.
    """

    tracks: Tracks
    shown: tuple[Track, ...]
    window_ns: tuple[int, int]
    pixels: int
    spans_from: Array
    rows: Array
    total: int
    hidden_tracks: int
    row_lanes: Array | None = None

    @classmethod
    def of(
        cls,
        tracks: Tracks,
        window_ns: tuple[int, int],
        *,
        max_spans: int = MOST_SPANS,
        host: bool = False,
    ) -> Scene:
        """Look at the tracks in which something is in a window, the busiest if they are many.

        Parameters
        ----------
        host
            Whether each track of the host is shown, or all as one.

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
        occupied = [track for track, count in zip(tracks.tracks, counts, strict=True) if count]
        shown, hidden = busiest(occupied, tracks.busy_ns)
        shown = shown if host else folded(shown)
        scene = cls.among(tracks, shown, window_ns, max_spans=max_spans)
        return replace(scene, total=sum(counts), hidden_tracks=hidden)

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
    ) -> Scene:
        """Look at certain tracks, whether or not something is in them."""
        all_rows = [tracks.row_of(track) for track in shown]
        counts = [_count(tracks, track, window_ns) for track in shown]
        zoom = spans_from(tracks.index, window_ns, pixels, all_rows, counts, max_spans)
        groups = [all_rows[at].groups for at in np.flatnonzero(np.isfinite(zoom)).tolist()]
        rows = tracks.index.rows(window_ns, sum(groups, ()))
        width = np.minimum(tracks.end_ns[rows], window_ns[1])
        width -= np.maximum(tracks.start_ns[rows], window_ns[0])
        rows = rows[np.lexsort((rows, tracks.start_ns[rows], -width))]
        return cls(tracks, tuple(shown), window_ns, pixels, zoom, rows, sum(counts), 0, row_lanes)

    def alone(self) -> Scene:
        """Return the same without the rows that it does not show: pictures may outlive these."""
        seen = ("columns", "classes", "place", "is_open", "lanes", "depth", "waits", "hazards")
        for name in (*seen, "waiting", "counters"):
            getattr(self, name)  # computed now, and kept below
        nothing = np.zeros(0, np.int64)
        names = self.tracks.coded["name"]
        tracks = replace(
            self.tracks,
            index=Index(nothing, nothing, nothing),
            coded={"name": names.chosen(self.rows)},
            escaped=nothing,
            waits=WaitColumns.none(),
            calls=None,
            counters=(),
            _columns={},
        )
        scene = replace(self, tracks=tracks, rows=np.arange(len(self.rows)))
        field_names = {field.name for field in fields(self)}
        vars(scene).update(
            {name: value for name, value in vars(self).items() if name not in field_names}
        )
        return scene

    # -- columns and marks ----------------------------------------------------------------
    @cached_property
    def with_spans(self) -> Bools:
        """Shown track → whether it draws its spans."""
        return np.isfinite(self.spans_from)

    @cached_property
    def columns(self) -> Columns:
        """The columns of the window, of all tracks shown."""
        tracks = self.tracks
        works = np.concatenate([np.zeros(0, np.int64), *tracks.hazards])
        track_of = tracks.track[works]
        return columns_of(
            tracks.index,
            self.window_ns,
            self.pixels,
            [tracks.row_of(track) for track in self.shown],
            hazards=[
                tracks.start_ns[works[np.isin(track_of, track.numbers)]] for track in self.shown
            ]
            if len(works)
            else (),
            missing=tracks.missing_in(self.window_ns),
        )

    @cached_property
    def waiting(self) -> Waiting:
        """What calls waited for, in the lanes below their tracks."""
        return waiting_of(self.tracks, self.shown, self.window_ns, self.columns.edges)

    @cached_property
    def counters(self) -> tuple[LaneColumns, ...]:
        """The columns of each lane of counters."""
        return tuple(lane.columns(self.columns.edges) for lane in self.tracks.counters)

    def marks(self, columns: int) -> dict[str, MarkColumns]:
        """Return what is marked above tracks: escapes, and works of hazards, where they start.

        Those of so many columns merge.
        """
        counts = {"escape": self.columns.escapes, "hazard": self.columns.hazards}
        return {what: marks(count, columns) for what, count in counts.items()}

    # -- bars -----------------------------------------------------------------------------
    @cached_property
    def start_ns(self) -> Array:
        """Bar → start of its span."""
        return self.tracks.start_ns[self.rows]

    @cached_property
    def end_ns(self) -> Array:
        """Bar → end of its span, :data:`~gpuscope.timeline.index.OPEN_NS` where it is open."""
        return self.tracks.end_ns[self.rows]

    @cached_property
    def place(self) -> Array:
        """Bar → position of its track in ``shown``."""
        position = np.zeros(len(self.tracks.tracks), np.int64)
        for at, track in enumerate(self.shown):
            position[[*track.numbers]] = at
        return position[self.tracks.track[self.rows]]

    @cached_property
    def is_open(self) -> Bools:
        """Bar → whether the end of its span is unknown."""
        return np.equal(self.end_ns, OPEN_NS)

    @cached_property
    def classed(self) -> tuple[list[Class], Array]:
        """The classes of the bars, and bar → which of these is its own."""
        groups, number = np.unique(self.tracks.group[self.rows], return_inverse=True)
        all_classes = [bar_class for _, bar_class in self.tracks.groups]
        used = [all_classes[group] for group in groups.tolist()]
        classes = [*dict.fromkeys(used)]
        return classes, np.array([classes.index(kind) for kind in used], np.int64)[number]

    @cached_property
    def classes(self) -> set[Class]:
        """What is drawn, as bars or in columns."""
        classes = [bar_class for _, bar_class in self.tracks.groups]
        shown = np.asarray(self.columns.is_there.any(axis=1))
        in_columns = {
            classes[group]
            for at in np.flatnonzero(~self.with_spans).tolist()
            for group, is_there in zip(
                self.columns.rows[at].groups, shown[self.columns.of_row(at)], strict=True
            )
            if is_there
        }
        return in_columns | set(self.classed[0])

    @cached_property
    def lanes(self) -> Array:
        """Bar → line inside its track: those that overlap have different ones."""
        return self._lanes[0] if self.row_lanes is None else self.row_lanes[self.rows]

    @cached_property
    def depth(self) -> list[int]:
        """Shown track → how many lines the bars need."""
        return self._lanes[1]

    @cached_property
    def crowded(self) -> list[str]:
        """Labels of tracks in which more spans overlap than there are lines."""
        return [self.shown[at].label for at in self._lanes[2]]

    @cached_property
    def _lanes(self) -> tuple[Array, list[int], list[int]]:
        depth = [1] * len(self.shown)
        free: list[list[int]] = [[] for _ in self.shown]
        lanes = np.zeros(len(self.rows), np.int64)
        crowded: set[int] = set()
        start, end, tracks = self.start_ns.tolist(), self.end_ns.tolist(), self.place.tolist()
        for bar in np.lexsort((-self.end_ns, self.start_ns)).tolist():
            track = tracks[bar]
            if self.shown[track].folded:
                continue
            busy_until = free[track]
            lane = next(
                (line for line, until in enumerate(busy_until) if until <= start[bar]), LANES
            )
            if lane == LANES and len(busy_until) < LANES:
                lane = len(busy_until)
                busy_until.append(0)
                depth[track] = lane + 1
            elif lane == LANES:
                lane = LANES - 1
                crowded.add(track)
            busy_until[lane] = max(busy_until[lane], end[bar])
            lanes[bar] = lane
        return lanes, depth, sorted(crowded)

    # -- arrows ---------------------------------------------------------------------------
    @cached_property
    def waits(self) -> Arrows:
        """Arrows of event waits and collectives.

        From the end of a span, such as one that recorded an event, to the start of the one that
        waited for it; in a collective, from the start of the one to the end of the other.
        """
        waits = self.tracks.waits
        return self._arrows(waits.cause, waits.effect, waits.joint)

    @cached_property
    def hazards(self) -> Arrows:
        """Arrows between works that nothing orders, from the end of one to the other's start."""
        cause, effect = self.tracks.hazards
        return self._arrows(cause, effect, np.zeros(len(cause), bool))

    def _arrows(self, cause: Array, effect: Array, joint: Array) -> Arrows:
        tracks, (low, high) = self.tracks, self.window_ns
        from_ns = np.where(joint, tracks.start_ns[cause], tracks.end_ns[cause])
        to_ns = np.where(joint, tracks.end_ns[effect], tracks.start_ns[effect])
        shown = np.zeros(len(tracks.tracks) + 1, bool)
        shown[[number for track in self.shown for number in track.numbers]] = True
        seen = np.flatnonzero(
            (np.minimum(from_ns, to_ns) < high)
            & (np.maximum(from_ns, to_ns) > low)
            & shown[tracks.track[cause]]
            & shown[tracks.track[effect]]
        )
        by_row = np.argsort(self.rows, kind="stable")
        both = seen[np.isin(cause[seen], self.rows) & np.isin(effect[seen], self.rows)]
        both = both[np.argsort(to_ns[both], kind="stable")][:_MAX_ARROWS]
        causes, effects = (
            by_row[np.searchsorted(self.rows[by_row], side[both])] for side in (cause, effect)
        )
        left_out = len(seen) - len(both)
        return Arrows(from_ns[both], to_ns[both], causes, effects, joint[both], left_out)


def _count(tracks: Tracks, track: Track, window_ns: tuple[int, int]) -> int:
    return int(tracks.index.counts(window_ns, tracks.row_of(track).groups).sum())


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
    for left in np.split(rows, np.flatnonzero(np.diff(tracks.track[rows])) + 1):
        for lane in range(LANES - 1):
            lanes[left] = lane
            left = left[~_on_first_line(tracks.start_ns[left], tracks.end_ns[left])]  # noqa: PLW2901
        lanes[left] = LANES - 1
    return lanes


def _on_first_line(start: Array, end: Array) -> Array:
    """Return which spans, in order of their starts, come first, or when those before have ended."""
    first = np.zeros(len(start), bool)
    after = np.maximum(np.searchsorted(start, end), np.arange(1, len(start) + 1)).tolist()
    at = 0
    while at < len(after):
        first[at] = True
        at = after[at]
    return first
