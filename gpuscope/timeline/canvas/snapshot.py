"""A frame of the timeline: the snapshot it is made from, and what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.canvas.window import Window
from gpuscope.timeline.index import OPEN_NS
from gpuscope.timeline.labels import Class, Places
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.sms import HeldIndex
from gpuscope.timeline.style import Properties
from gpuscope.timeline.tracks import Tracks

Legend = dict[Class, Properties]
"""Class of bars → how they look."""
SM_HEIGHT = 200
"""Of the SMs below the tracks in px, or half of the plot where that is less."""
MARGIN = 0.5
"""What is drawn on either side of the view, for panning, as a part of its width."""
LARGEST = 4
"""How much larger than usual tracks are drawn at most, to fill the plot."""
SNAP_PX, HIT_PX = 6, 2


@dataclass(frozen=True)
class Theme:
    """Colours that have to differ from the paper."""

    ink: str
    muted: str
    grid: str
    paper: str
    outlined: Callable[[str], str]
    """Colour of a bar → that of its outline."""

    def layout(self) -> Properties:
        """Return them as properties of a layout."""
        axis = {"gridcolor": self.grid, "linecolor": self.muted, "tickcolor": self.muted}
        return {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font.color": self.ink,
            "title.subtitle.font.color": self.muted,
            "hoverlabel.bgcolor": self.paper,
            "hoverlabel.font.color": self.ink,
            "modebar.color": self.muted,
            "modebar.activecolor": self.ink,
            "modebar.bgcolor": "rgba(0,0,0,0)",
            **{f"xaxis.{name}": colour for name, colour in axis.items()},
        }


STRIPE = "rgba(128,128,128,0.09)"
"""Behind every second track, on either paper."""
LIGHT = Theme(style.INK, style.MUTED, "rgba(27,31,36,0.1)", "#FFFFFF", style.darker)
DARK = Theme("#E6EAEE", "#A9B3BD", "rgba(230,234,238,0.14)", "#1C2128", style.lighter)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Immutable snapshot of the state that a frame is made from."""

    tracks: Tracks
    places: Places
    colours: dict[str, str]
    window_ns: Window
    extent_ns: Window
    following: bool
    pixels: int
    zero_ns: int
    plot_px: float
    theme: Theme
    selected: int | None
    links: tuple[tuple[int, int], ...]
    marks: tuple[int, ...]
    heading: tuple[str, ...]
    sm_index: HeldIndex | None
    lanes: Array | None
    """Row → line inside its track; ``None`` while rows still come."""
    version: int
    """Another one where tiles made before are of no use."""

    @property
    def margin(self) -> float:
        """How much more than the view is fetched on either side, in widths of the view."""
        return 0.0 if self.following else MARGIN

    @property
    def sms_px(self) -> float:
        """Px of the plot for the SMs."""
        return min(SM_HEIGHT, self.plot_px / 2) if self.sm_index is not None else 0

    @property
    def height(self) -> float:
        """What the vertical axis of the tracks reaches to: few are drawn larger, many smaller."""
        return max((self.plot_px - self.sms_px) / LARGEST, self.places.bottom + 2)

    def is_like(self, other: Snapshot) -> bool:
        """Whether the frame would be the same."""
        by_identity = ("tracks", "places", "theme", "sm_index", "lanes")
        other_values = vars(other)
        return all(
            value is other_values[name] if name in by_identity else value == other_values[name]
            for name, value in vars(self).items()
        )


@dataclass(frozen=True)
class Frame:
    """What goes to the browser.

    Attributes
    ----------
    legend
        Classes that are in it.
    overlays, layout
        What changes of the plot's overlays, and of its layout.
    page
        What the canvas shows, as of :func:`~gpuscope.timeline.canvas.tiles.page`.
    words
        How much is in view, and how much of it has a bar of its own.
    shares
        Track → which share of the view the GPU was busy for with it, and for how long; in words.
    """

    legend: Legend
    overlays: dict[str, Properties]
    layout: Properties
    page: Properties
    words: str
    shares: list[list[str]]


@dataclass(frozen=True)
class DrawnFrame:
    """A frame that was made here, and what it was made from."""

    snapshot: Snapshot
    scene: Scene
    frame: Frame

    @property
    def following(self) -> bool:
        """Whether the window follows the newest spans."""
        return self.snapshot.following

    def place(self, row: int) -> tuple[float, float]:
        """Return the centre and height of a span, px from the top: its bar's, or its track's."""
        scene, places, lanes = self.scene, self.snapshot.places, self.snapshot.lanes
        position = {
            number: at for at, track in enumerate(places.tracks) for number in track.numbers
        }
        track = position.get(int(scene.tracks.track[row]))
        if track is None:
            return -100.0, 0.0  # it is hidden: out of sight
        bars = np.flatnonzero(scene.rows == row)
        if len(bars):
            line = int(scene.lanes[bars[0]])
        elif lanes is not None:
            line = int(lanes[row])
        else:
            return places.centres[track], places.heights[track] - 6
        centre, size = places.bars(track, line)
        return float(centre), float(size)

    def at(self, x: float, y: float) -> int | None:
        """Return the row that is drawn at a point; 0 and 1 are the edges of the plot."""
        snapshot, scene = self.snapshot, self.scene
        low, high = snapshot.window_ns
        time_ns, px = low + (high - low) * x, snapshot.height * y
        near = HIT_PX * (high - low) / snapshot.pixels
        centre, size = snapshot.places.bars(scene.place, scene.lanes)
        hit = (scene.start_ns <= time_ns + near) & (scene.end_ns >= time_ns - near)
        bars = np.flatnonzero(hit & (np.abs(px - centre) <= size / 2 + 1))
        if len(bars):  # the narrower lie above the wider
            return int(scene.rows[bars[-1]])
        places, tracks = snapshot.places, snapshot.tracks
        for track, top, height in zip(places.tracks, places.tops, places.heights, strict=True):
            if 0 <= px - top < height:  # columns: the longest of the spans there
                window = (int(time_ns - near), int(time_ns + near) + 1)
                rows = tracks.index.rows(window, tracks.row_of(track).groups)
                width = tracks.end_ns[rows] - tracks.start_ns[rows]
                order = np.lexsort((rows, tracks.start_ns[rows], -width))
                return int(rows[order[0]]) if len(rows) else None
        return None

    def snapped(self, x: float) -> int:
        """Return the time at a point, or that of a bar's edge next to it."""
        snapshot = self.snapshot
        low, high = snapshot.window_ns
        time_ns = round(low + (high - low) * x)
        edges = np.concatenate([self.scene.start_ns, self.scene.end_ns])
        edges = edges[edges != OPEN_NS]
        if not len(edges):
            return time_ns
        nearest = int(edges[np.abs(edges - time_ns).argmin()])
        is_near = abs(nearest - time_ns) * snapshot.pixels <= SNAP_PX * (high - low)
        return nearest if is_near else time_ns


# -- between the process that records and the one that paints ----------------------------
@dataclass(frozen=True)
class WantedFrame:
    """What is to be seen.

    Attributes
    ----------
    following
        Whether the window moves to the newest spans.
    paint
        Whether a frame is wanted.
    """

    window_ns: Window
    following: bool
    hidden: tuple[str, ...]
    pixels: int
    height: float
    dark: bool
    paint: bool


@dataclass(frozen=True)
class Painted:
    """A frame that another process made, and what is to be known of it.

    Attributes
    ----------
    rows
        How many rows there are.
    labels, left_out, extent_ns
        As :class:`~gpuscope.timeline.canvas.state.TimelineState` has them.
    """

    frame: Frame
    window_ns: Window
    following: bool
    extent_ns: Window
    labels: list[tuple[str, bool]]
    left_out: int
    rows: int
