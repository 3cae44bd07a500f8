"""One frame of the timeline: all that it is made of, and what the browser gets of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.figures import style
from gpuscope.figures.bars import look
from gpuscope.figures.frame import frame
from gpuscope.figures.labels import Class, Track
from gpuscope.figures.places import Places, nothing, y_axis
from gpuscope.figures.text import duration
from gpuscope.figures.tracks import Tracks
from gpuscope.figures.view import View
from gpuscope.trace.query import OPEN_NS
from gpuscope.widgets import camera
from gpuscope.widgets.camera import Window
from gpuscope.widgets.theme import STRIPE, Theme

SNAP_PX, HIT_PX = 6, 2
_NOTES, _LEGEND_ROWS = 2, 2
_LEFT, _LABEL = 210, 32
"""Px for the labels of tracks, and characters that fit: Plotly's own margin costs a second pass."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Shot:
    """All that a frame is made of; nothing in it changes any more."""

    tracks: Tracks
    places: Places
    colours: dict[str, str]
    window_ns: Window
    margin: float
    most: int
    pixels: int
    zero_ns: int
    height: float
    plot_px: float
    theme: Theme
    selected: int | None
    links: tuple[tuple[int, int], ...]
    marks: tuple[int, ...]
    heading: tuple[str, ...]

    def is_like(self, other: Shot) -> bool:
        """Whether the frame would be the same."""
        mine, others = vars(self), vars(other)
        by_identity = ("tracks", "places", "theme")
        return all(
            value is others[name] if name in by_identity else value == others[name]
            for name, value in mine.items()
        )


@dataclass(frozen=True)
class Drawn:
    """A frame, and where its bars are.

    Attributes
    ----------
    bars
        Class → how its bars look, and which there are.
    overlays, layout
        What changes of the canvas' overlays, and of its layout.
    """

    shot: Shot
    view: View
    bars: dict[Class, tuple[dict[str, Any], dict[str, Any]]]
    overlays: dict[str, dict[str, Any]]
    layout: dict[str, Any]

    def words(self) -> str:
        """Say how much is in view, and how much of it has a bar of its own."""
        tracks, (low, high) = self.shot.tracks, self.shot.window_ns
        total = int(tracks.index.counts((low, high), self.view.found.tracks).sum())
        rows = self.view.found.rows
        start, end = tracks.start_ns[rows], tracks.end_ns[rows]
        single = int(np.count_nonzero((start < high) & ((end > low) | (start >= low))))
        if single >= total:
            return f"{total:,} spans in view"
        return f"{total:,} spans in view, the {single:,} widest drawn one by one, others as shading"

    def place(self, row: int) -> tuple[float, float]:
        """Return the centre and height of a span, px from the top: its bar's, or its track's."""
        shot = self.shot
        at = np.flatnonzero(self.view.found.rows == row)
        if len(at):
            return shot.places.bar(self.view.place[at[0]], self.view.lanes[at[0]])
        number = int(shot.tracks.track[row])
        for index, track in enumerate(shot.places.tracks):
            if track.number == number:
                return shot.places.tops[index] + shot.places.heights[index] / 2, (
                    shot.places.heights[index] - 6
                )
        return -100.0, 0.0  # its track is hidden: out of sight

    def at(self, x: float, y: float) -> int | None:
        """Return the row that is drawn at a point; 0 and 1 are the edges of the plot."""
        shot = self.shot
        low, high = shot.window_ns
        time_ns, px = low + (high - low) * x, shot.height * y
        near = HIT_PX * (high - low) / shot.pixels
        rows = self.view.found.rows
        start, end = shot.tracks.start_ns[rows], shot.tracks.end_ns[rows]
        hit = np.flatnonzero((start <= time_ns + near) & (end >= time_ns - near))
        for one in hit[::-1].tolist():  # the narrower lie above the wider
            centre, size = shot.places.bar(self.view.place[one], self.view.lanes[one])
            if abs(px - centre) <= size / 2 + 1:
                return int(rows[one])
        for index, track in enumerate(shot.places.tracks):
            if 0 <= px - shot.places.tops[index] < shot.places.heights[index]:
                return self._merged_at(track, time_ns, near)
        return None

    def _merged_at(self, track: Track, time_ns: float, near: float) -> int | None:
        window = (int(time_ns - near), int(time_ns + near) + 1)
        found = self.shot.tracks.index.query(
            window, pixels=1, k=1, tracks=np.array([track.number])
        )  # fmt: skip
        return int(found.rows[0]) if len(found.rows) else None

    def snapped(self, x: float) -> int:
        """Return the time at a point, or that of a bar's edge next to it."""
        shot = self.shot
        low, high = shot.window_ns
        time_ns = round(low + (high - low) * x)
        rows = self.view.found.rows
        edges = np.concatenate([shot.tracks.start_ns[rows], shot.tracks.end_ns[rows]])
        edges = edges[edges != OPEN_NS]
        if not len(edges):
            return time_ns
        nearest = int(edges[np.abs(edges - time_ns).argmin()])
        is_near = abs(nearest - time_ns) * shot.pixels <= SNAP_PX * (high - low)
        return nearest if is_near else time_ns


def compose(shot: Shot, before: Drawn | None) -> Drawn:
    """Make a frame; of what seldom changes it has what is new since the frame ``before``."""
    fetched = camera.widened(shot.window_ns, shot.margin)
    # Shading in columns of two pixels: half the work, and nobody sees it.
    pixels = max(1, round(shot.pixels * (1 + 2 * shot.margin) / 2))
    view = View.among(shot.tracks, shot.places.tracks, fetched, max_spans=shot.most, pixels=pixels)
    made = frame(view, shot.places, shot.colours, zero_ns=shot.zero_ns)
    bars = {
        one: (look(shot.tracks, one, shot.colours, "µs"), properties)
        for one, properties in made.bars.items()
    }
    drawn = Drawn(shot, view, bars, {}, {})
    waits = {name: made.arrows[name] for name in ("x", "y")}
    drawn.overlays.update(
        waits=waits, links=_links(drawn), selected=_outlines(drawn), measure=_ruler(shot)
    )
    for one in drawn.overlays.values():
        _ink(one, shot.theme.ink)
    ticks = camera.ticks(shot.window_ns, fetched, shot.zero_ns)
    drawn.layout.update({f"xaxis.{name}": value for name, value in ticks.items()})
    drawn.layout["xaxis.range"] = [_x(shot, edge) for edge in shot.window_ns]
    drawn.layout["images"] = [made.image] if made.image is not None else []
    if before is None or before.shot.places is not shot.places:
        drawn.layout.update(_tracks(shot))
    if before is None or before.shot.theme is not shot.theme:
        drawn.layout.update(shot.theme.layout())
    if before is None or before.shot.heading != shot.heading:
        title, *notes = shot.heading
        drawn.layout["title.text"] = f"<b>{title}</b>"
        drawn.layout["title.subtitle.text"] = "<br>".join(notes)
    return drawn


def first_layout(shot: Shot, height: float) -> dict[str, Any]:
    """Return the layout of the plot before anything is drawn.

    Parameters
    ----------
    height
        Of the plotting area, px, for ever.
    """
    title, *notes = shot.heading
    notes = (notes + [""] * _NOTES)[:_NOTES]
    # To find out which labels overlap takes Plotly half of a frame's time.
    axis = style.x_axis("", tickformat=None, fixedrange=False, ticklabeloverflow="allow")
    layout = style.base_layout(
        title, notes, height, legend_rows=_LEGEND_ROWS, xaxis=axis,
        yaxis=y_axis(
            [shot.places], shot.height, automargin=False, ticklabeloverflow="allow"
        ),
        barmode="overlay", dragmode="pan", uniformtext={"minsize": 10, "mode": "hide"},
    )  # fmt: skip
    layout["margin"]["l"] = _LEFT
    layout["autosize"] = True
    layout["modebar"]["remove"] += ["zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]
    return layout


def _tracks(shot: Shot) -> dict[str, Any]:
    """Return what marks the tracks."""
    centres, labels = shot.places.ticks()
    px = min(shot.places.heights, default=26) * shot.plot_px / shot.height
    shapes = [
        {**one, "fillcolor": STRIPE} if one["type"] == "rect" else one for one in shot.places.shapes
    ]
    return {
        "yaxis.range": [shot.height, 0],
        "yaxis.tickvals": centres,
        "yaxis.ticktext": [_short(label) for label in labels],
        "yaxis.tickfont.size": min(12, max(6, 0.9 * px)),
        "shapes": shapes,
        "annotations": shot.places.annotations
        if shot.places.tracks
        else [nothing(shot.height / 2)],
    }


def _short(label: str) -> str:
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"


def _ink(overlay: dict[str, Any], ink: str) -> None:
    """Add an overlay's colours."""
    # Whole properties only: one update with `marker` here and `marker.color` there loses some.
    overlay["line"] = {"color": ink, "width": 2}
    overlay["textfont"] = {"color": ink, "size": 14}
    overlay["marker"] = {
        "symbol": "arrow", "angleref": "previous", "color": ink,
        "size": [0, 10, 0] * (len(overlay["x"]) // 3),
    }  # fmt: skip


def _x(shot: Shot, time_ns: float) -> float:
    return (time_ns - shot.zero_ns) / 1e3


def _span(drawn: Drawn, row: int) -> tuple[float, float]:
    """Return where a span starts and ends on the axis, an open one at the edge of the frame."""
    tracks, edge = drawn.shot.tracks, drawn.view.found.window_ns[1]
    start, end = int(tracks.start_ns[row]), int(tracks.end_ns[row])
    return _x(drawn.shot, start), _x(drawn.shot, max(edge, start) if end == OPEN_NS else end)


def _links(drawn: Drawn) -> dict[str, Any]:
    """Return arrows from spans to those that had to follow them."""
    x: list[float | None] = []
    y: list[float | None] = []
    for cause, effect in drawn.shot.links:
        (_, end), (start, _) = _span(drawn, cause), _span(drawn, effect)
        x += [min(end, start), start, None]
        y += [drawn.place(cause)[0], drawn.place(effect)[0], None]
    return {"x": x, "y": y}


def _outlines(drawn: Drawn) -> dict[str, Any]:
    """Return rectangles around the selected span and those that it is linked to."""
    rows = dict.fromkeys(row for link in drawn.shot.links for row in link)
    if drawn.shot.selected is not None:
        rows[drawn.shot.selected] = None
    x: list[float | None] = []
    y: list[float | None] = []
    for row in rows:
        (left, right), (centre, size) = _span(drawn, row), drawn.place(row)
        top, bottom = centre - size / 2, centre + size / 2
        x += [left, right, right, left, left, None]
        y += [top, top, bottom, bottom, top, None]
    return {"x": x, "y": y}


def _ruler(shot: Shot) -> dict[str, Any]:
    """Return a line at each point that is measured from and to, and the time between."""
    x: list[float | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for mark in shot.marks:
        x += [_x(shot, mark), _x(shot, mark), None]
        y += [0, shot.height, None]
        text += ["", "", ""]
    if len(shot.marks) == 2:
        first, last = sorted(shot.marks)
        at = shot.height * 0.04
        x += [_x(shot, first), _x(shot, (first + last) / 2), _x(shot, last)]
        y += [at, at, at]
        text += ["", f"<b>{duration(last - first)}</b>", ""]
    return {"x": x, "y": y, "text": text}
