"""The state of a timeline: rows and tracks, which may grow, selection and marks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from gpuscope._types import Array
from gpuscope.errors import MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.canvas.snapshot import DARK, LIGHT, SM_HEIGHT, Snapshot, Theme
from gpuscope.timeline.canvas.window import Window
from gpuscope.timeline.extent import default_window_ns, whole_ns
from gpuscope.timeline.index import OPEN_NS
from gpuscope.timeline.labels import Track, busiest, folded
from gpuscope.timeline.scene import LANES, lanes_of
from gpuscope.timeline.sms import Blocks, HeldIndex
from gpuscope.timeline.text import provenance_lines, provenance_of, title_suffix
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace.model import Trace

HEIGHTS = (140, 1200)
"""Least and most px of the plotting area, if nobody says."""
LISTED = 500
"""Tracks that are listed to be shown or hidden."""
_LINKS = 60
_versions = itertools.count(1)


class TimelineState:
    """The state that frames are made from. Not thread-safe: callers hold a lock.

    Parameters
    ----------
    trace
        What to show, or, of a recording that begins, a trace with metadata alone.
    height
        Of the plotting area in px; ``None``: what the tracks of ``trace`` need.

    Attributes
    ----------
    tracks
        The rows.
    extent_ns
        First start and last end.
    height, pixels
        Height and width of the plotting area, px.
    labels
        Label of each track, in order, and whether it is shown; of many those of the busiest.
    left_out
        Less busy tracks that nobody hid and that are not shown.
    zero_ns, colours
        Where the time axis starts to count; of partitions, or of streams.
    folds
        Whether the host's tracks are one row.
    has_blocks
        Whether there are thread blocks; a recording's come when it has ended.
    """

    def __init__(self, trace: Trace, height: float | None) -> None:
        self.pixels = 900
        self._theme: Theme = LIGHT
        self._hidden: tuple[str, ...] = ()
        self._shows_sms = False
        self.folds = True
        self.show(trace)
        below = SM_HEIGHT if self.has_blocks else 0
        needed = min(max(self._places.bottom + 6 + below, HEIGHTS[0]), HEIGHTS[1])
        self.height = float(needed if height is None else height)

    def show(self, trace: Trace) -> None:
        """Show another trace."""
        self.tracks = Tracks.of(trace)
        self.extent_ns = whole_ns(trace)
        windows = trace.metadata.windows_ns
        began_ns = int(windows[0][0]) if windows else self.extent_ns[0]
        self.zero_ns = min(began_ns, self.extent_ns[0])
        self.has_blocks = "block" in self.tracks.elsewhere()
        self._blocks_of = trace
        self._sm_index: HeldIndex | None = None
        self._lanes: Array | None = lanes_of(self.tracks)
        self._version = next(_versions)
        if self._shows_sms:
            self.show_sms(shown=True)
        self._heading = (f"Timeline{title_suffix([trace])}", *provenance_lines({"": trace}))
        self.selected: int | None = None
        self._links: tuple[tuple[int, int], ...] = ()
        self.marks: tuple[int, ...] = ()
        self._place()

    def first_view(self, trace: Trace) -> Window:
        """Return what of a trace to show at first."""
        return default_window_ns(trace) if len(trace) else self.extent_ns

    def extend(self, more: Trace) -> Window:
        """Add rows; return when they were."""
        self._lanes = None
        count, sources = len(self.tracks), len(self.tracks.coded["source"].values)
        self.tracks = self.tracks.extended(more.spans, more.edges, more.metadata)
        if not count or len(self.tracks.coded["source"].values) > sources:
            self._heading = _live_heading(self.tracks)
        self._place()
        start, end = self.tracks.start_ns[count:], self.tracks.end_ns[count:]
        if not len(start):
            return self.extent_ns
        low = int(start.min())
        high = int(np.where(end == OPEN_NS, start, end).max())
        self.extent_ns = min(low, self.extent_ns[0]), max(high, self.extent_ns[1], low + 1)
        return low, high

    # -- SMs --------------------------------------------------------------------------
    def show_sms(self, *, shown: bool) -> None:
        """Show the SMs below the tracks, or not; where there are no blocks, nothing changes."""
        self._shows_sms = shown
        if shown and self._sm_index is None:
            with suppress(MissingEvidence):  # none of the blocks has ended, or names its SM
                self._sm_index = HeldIndex(Blocks(self._blocks_of, None))

    # -- tracks -----------------------------------------------------------------------
    def hide(self, hidden: Sequence[str]) -> None:
        """Leave out the tracks with these labels."""
        self._hidden = tuple(hidden)
        self._place()

    def _place(self) -> None:
        hidden = set(self._hidden)
        tracks, busy_ns = self.tracks.tracks, self.tracks.busy_ns
        listed = busiest(tracks, busy_ns, LISTED)[0]
        labels = dict.fromkeys([*(track.label for track in listed), *self._hidden])
        self.labels = [(label, label not in hidden) for label in labels]
        wanted = [track for track in tracks if track.label not in hidden]
        shown, self.left_out = busiest(wanted, busy_ns)
        rows = folded(shown) if self.folds else shown
        depths = self.tracks.index.depths(np.array([max(0, row.number) for row in rows], np.int64))
        lines = [
            1 if row.folded else min(int(depth), LANES)
            for row, depth in zip(rows, depths, strict=True)
        ]
        before = getattr(self, "_places", None)
        places = self.tracks.placed(rows, lines)
        if before is None or places != before:
            self._places = places
            self._version = next(_versions)
        self.colours = style.partition_colours([self.tracks.names], self.tracks.partitions())

    def fold(self, *, folds: bool) -> None:
        """Show the host as one row, or each of its rows."""
        self.folds = folds
        self._place()

    @property
    def rows(self) -> tuple[Track, ...]:
        """What is drawn, one under the other."""
        return self._places.tracks

    # -- rows -------------------------------------------------------------------------
    def row(self, span: int) -> int:
        """Return the position of the row with an id.

        Raises
        ------
        MissingEvidence
            There is none.
        """
        rows = np.flatnonzero(self.tracks.ids == span)
        if not len(rows):
            raise MissingEvidence(f"no row {span} is shown: rows are named by their id")
        return int(rows[0])

    def span_ns(self, row: int) -> Window:
        """Return start and end of a row; one that is open ends with what is known."""
        start, end = int(self.tracks.start_ns[row]), int(self.tracks.end_ns[row])
        return start, max(start, self.extent_ns[1]) if end == OPEN_NS else end

    def named(self, text: str) -> Array:
        """Return the rows with a text in their or their workload's name: by start, calls last."""
        if not text:
            return np.zeros(0, np.int64)
        wanted = text.casefold()
        match = np.zeros(len(self.tracks), bool)
        for column in ("name", "category"):
            coded = self.tracks.coded[column]
            has = [value is not None and wanted in str(value).casefold() for value in coded.values]
            match |= np.array(has)[coded.codes]
        rows = np.flatnonzero(match & (self.tracks.track >= 0))
        return rows[np.lexsort((self.tracks.start_ns[rows], self.is_call(rows)))]

    def is_call(self, rows: Array) -> Array:
        """Return which rows are API calls."""
        kinds = self.tracks.coded["kind"]
        return np.array([kind == "api" for kind in kinds.values])[kinds.codes[rows]]

    def neighbour(self, window: Window, along: int, across: int) -> int | None:
        """Return the row next to the selected one, along its track or on another track.

        Along from a call it is the next call on its track. Without a selected row, it is the first
        call that starts in the window, or the first row.
        """
        tracks, calls = self.tracks, self.tracks.calls
        start, places = tracks.start_ns, self._places.tracks
        row_of_track = np.full(len(tracks.tracks) + 1, -1)
        for number, track in enumerate(places):
            row_of_track[[*track.numbers]] = number
        row_at, row = row_of_track[tracks.track], self.selected
        if row is None or row_at[row] < 0:
            inside = (row_at >= 0) & (start >= window[0]) & (start < window[1])
            rows = np.flatnonzero(inside)
            if calls is not None and inside[calls.work].any():
                seen = np.flatnonzero(inside[calls.work])
                order = np.lexsort((calls.start_ns[seen], row_at[calls.work[seen]]))
                return int(calls.row[seen[order[0]]])
            return int(rows[start[rows].argmin()]) if len(rows) else None
        if across:
            rows = np.flatnonzero((row_at >= 0) & (row_at == row_at[row] + across))
            return int(rows[np.abs(start[rows] - start[row]).argmin()]) if len(rows) else None
        same = np.flatnonzero(tracks.track == tracks.track[row])
        same = same[np.argsort(start[same], kind="stable")]
        if calls is not None and len(call := np.flatnonzero(calls.row == row)):
            same = calls.row[calls.of(int(calls.track[call[0]]))]
        at = int(np.flatnonzero(same == row)[0]) + (1 if along > 0 else -1)
        return int(same[at]) if 0 <= at < len(same) else None

    def next_escape(self, time_ns: int) -> int | None:
        """Return the next row that escaped, after the last one the first again.

        The next after the selected row or, where none is, from a time on.
        """
        rows = self.tracks.escaped
        if not len(rows):
            return None
        if self.selected is not None:
            time_ns = int(self.tracks.start_ns[self.selected]) + 1
        start = self.tracks.start_ns[rows]
        order = np.argsort(start, kind="stable")
        return int(rows[order[np.searchsorted(start[order], time_ns) % len(rows)]])

    def waited_longest(self) -> int | None:
        """Return the row of the call whose work waited longest before it began.

        If that is selected, of the next longest.
        """
        calls = self.tracks.calls
        if calls is None or not len(calls.row):
            return None
        rows = calls.row[calls.by_wait]
        at = np.flatnonzero(rows == self.selected)
        return int(rows[(at[0] + 1) % len(rows) if len(at) else 0])

    def select(self, row: int | None, links: Sequence[tuple[int, int]] = ()) -> None:
        """Mark a row, and which rows had to come before which."""
        self.selected = row
        self._links = tuple(links[:_LINKS])

    def window_at(self, low_us: float, high_us: float) -> Window:
        """Return the window that the time axis has with this range."""
        low, high = (round(edge * 1e3) + self.zero_ns for edge in (low_us, high_us))
        return low, max(high, low + 1)

    # -- the picture ------------------------------------------------------------------
    def resize(self, pixels: int) -> bool:
        """Take the width of the plotting area; return whether that calls for a new frame."""
        changed = pixels > 0 and abs(pixels - self.pixels) > 0.2 * self.pixels
        if changed:
            self.pixels = pixels
        return changed

    def repaint(self, *, dark: bool) -> bool:
        """Take the colour of the page; return whether it changed."""
        before, self._theme = self._theme, DARK if dark else LIGHT
        return before is not self._theme

    @property
    def is_dark(self) -> bool:
        """Whether the page is dark."""
        return self._theme is DARK

    def snapshot(self, window: Window, *, following: bool) -> Snapshot:
        """Return all that a frame is made of."""
        return Snapshot(
            tracks=self.tracks,
            places=self._places,
            colours=self.colours,
            window_ns=window,
            extent_ns=self.extent_ns,
            following=following,
            pixels=self.pixels,
            zero_ns=self.zero_ns,
            plot_px=self.height,
            theme=self._theme,
            selected=self.selected,
            links=self._links,
            marks=self.marks,
            heading=self._heading,
            sm_index=self._sm_index if self._shows_sms else None,
            lanes=self._lanes,
            version=self._version,
        )


def _live_heading(tracks: Tracks) -> tuple[str, ...]:
    """Return title and provenance while rows still come; how uncertain they are is said later."""
    sources = tracks.coded["source"].values[1:]
    rows = range(len(sources))
    trace = Trace.from_columns(
        {
            "id": list(rows),
            "kind": ["kernel" for _ in rows],
            "name": ["" for _ in rows],
            "start_ns": list(rows),
            "source": sources,
        },
        metadata=tracks.names.metadata,
    )
    return f"Timeline, live{title_suffix([trace])}", *provenance_of(trace.provenance)


class TextSearch:
    """A search text, its matches, and the current one.

    Attributes
    ----------
    text
        What names are searched for; empty: nothing.
    rows
        The rows that match, as :meth:`TimelineState.named` orders them.
    at
        Position in ``rows``; −1 before the first step.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.rows: Array = np.zeros(0, np.int64)
        self.at = -1

    def look(self, state: TimelineState) -> None:
        """Update the matches: rows may have been added."""
        here = self.rows[self.at] if self.at >= 0 else None
        self.rows = state.named(self.text)
        self.at = -1 if here is None else int(np.flatnonzero(self.rows == here)[0])

    def go(self, step: int, state: TimelineState, window: Window) -> int | None:
        """Return the row that is ``step`` further; at first, the one that is next in the view."""
        if not len(self.rows):
            return None
        if self.at < 0:
            calls = int(np.count_nonzero(state.is_call(self.rows)))
            first = len(self.rows) - calls or calls
            starts = state.tracks.start_ns[self.rows[:first]]
            self.at = int(np.searchsorted(starts, window[0])) - (step < 0)
        else:
            self.at += step
        self.at %= len(self.rows)
        return int(self.rows[self.at])
