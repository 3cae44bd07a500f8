"""Makes the frame that is sent to the browser from a snapshot of the state."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.timeline import style
from gpuscope.timeline.arrows import waits_and_hazards
from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.canvas.snapshot import STRIPE, Bars, Drawn, Snapshot
from gpuscope.timeline.canvas.window import Window, axis_ticks, widened
from gpuscope.timeline.columns import mark_points
from gpuscope.timeline.frame import look, mark_look
from gpuscope.timeline.index import OPEN_NS
from gpuscope.timeline.labels import Class, nothing, y_axis
from gpuscope.timeline.sm_map_figure import sm_axis, sm_image
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import duration, escape
from gpuscope.timeline.view import View

_NOTES = 2
_LEGEND_PX, _LEGEND_ROWS = 20, (3, 5)
_LEFT, _LABEL, _LETTER = 224, 32, 6.4
"""Px for the labels of tracks at most, characters that fit, and px of one: to have Plotly find out
costs a second pass."""


def compose_frame(snapshot: Snapshot, before: Drawn | None) -> Drawn:
    """Make a frame; of what seldom changes it has what is new since the frame ``before``."""
    fetched = widened(snapshot.window_ns, snapshot.margin)
    pixels = max(1, round(snapshot.pixels * (1 + 2 * snapshot.margin)))
    view = View.among(
        snapshot.tracks, snapshot.places.tracks, fetched,
        max_spans=tiles.SPANS, pixels=pixels, row_lanes=snapshot.lanes,
    )  # fmt: skip
    arrows, hazards, _ = waits_and_hazards(view, snapshot.places, snapshot.zero_ns, 1e3)
    drawn = Drawn(snapshot, view, _legend(snapshot), {}, {}, _scene(snapshot, fetched, before))
    waits = {name: arrows[name] for name in ("x", "y")}
    drawn.overlays.update(
        waits=waits, links=_links(drawn), selected=_outlines(drawn), measure=_ruler(snapshot)
    )
    for overlay in drawn.overlays.values():
        _ink(overlay, snapshot.theme.ink)
    drawn.overlays["hazards"] = {name: hazards[name] for name in ("x", "y")}
    _ink(drawn.overlays["hazards"], style.ESCAPED, dash="dot")
    if len(snapshot.tracks.hazards[0]):
        points = mark_points(
            view, view.scene.hazards, snapshot.places, snapshot.zero_ns, 1e3, "hazard"
        )
        drawn.overlays["in no order"] = {**mark_look(snapshot.theme.ink, "diamond"), **points}
    ticks = axis_ticks(snapshot.window_ns, fetched, snapshot.zero_ns, snapshot.pixels)
    drawn.layout.update({f"xaxis.{name}": value for name, value in ticks.items()})
    drawn.layout["xaxis.range"] = [_on_axis(snapshot, edge) for edge in snapshot.window_ns]
    drawn.layout["images"] = []
    if snapshot.held is not None:
        # Columns of two pixels: half the work, and nobody sees it.
        cells = snapshot.held.cells(fetched, max(1, pixels // 2))
        owners = snapshot.held.blocks.colours(snapshot.colours)
        drawn.layout["images"].append(sm_image(cells, owners, snapshot.zero_ns, 1e3))
    divided = (before is None or before.snapshot.held is None) != (snapshot.held is None)
    if divided:
        _divide(drawn, snapshot)
    if divided or before is None or before.snapshot.places is not snapshot.places:
        drawn.layout.update(_tracks(snapshot))
    if before is None or before.snapshot.theme is not snapshot.theme:
        drawn.layout.update(snapshot.theme.layout())
    if before is None or before.snapshot.heading != snapshot.heading:
        title, *notes = snapshot.heading
        drawn.layout["title.text"] = f"<b>{title}</b>"
        drawn.layout["title.subtitle.text"] = "<br>".join(notes)
    return drawn


def _look(snapshot: Snapshot, bar_class: Class) -> Properties:
    return look(
        snapshot.tracks, bar_class, snapshot.colours, "µs", outlined=snapshot.theme.outlined
    )


def _legend(snapshot: Snapshot) -> Bars:
    """Return bars out of sight that put the classes into the legend; ``meta`` is their place."""
    there = {"base": [0], "x": [1], "y": [-100], "width": [1], "hovertext": [""], "text": [""]}
    return {
        bar_class: (
            {**_look(snapshot, bar_class), "meta": place},
            there,
        )
        for place, bar_class in enumerate(tiles.classes_of(snapshot))
    }


def _scene(snapshot: Snapshot, fetched: Window, before: Drawn | None) -> Properties:
    """Return what the browser paints; while rows still come, with all that is in view."""
    extent = snapshot.extent_ns
    if snapshot.lanes is None:
        pixels = 2 * round(snapshot.pixels * (1 + 2 * snapshot.margin))
        return tiles.scene(snapshot, extent, tiles.tile(snapshot, fetched, pixels), live=True)
    if before is not None and before.scene:
        old = before.snapshot
        if old.version == snapshot.version and old.theme is snapshot.theme:
            return before.scene
    top = tiles.top_level(extent[1] - snapshot.zero_ns)
    root = tiles.tile(snapshot, tiles.window_of(snapshot, top, 0))
    return tiles.scene(snapshot, extent, root, live=False)


def first_layout(snapshot: Snapshot, height: float) -> Properties:
    """Return the layout of the plot before anything is drawn.

    Parameters
    ----------
    height
        Of the plotting area, px, for ever.
    """
    title, *notes = snapshot.heading
    notes = (notes + [""] * _NOTES)[:_NOTES]
    # To find out which labels overlap takes Plotly half of a frame's time.
    least, most = _LEGEND_ROWS
    columns = 2 if len(snapshot.tracks.escaped) else 3  # of entries as wide as the widest
    rows = min(max(-(-len(snapshot.tracks.classes) // columns), least), most)
    axis = style.x_axis(
        "", tickformat=None, tickangle=0, fixedrange=False, ticklabeloverflow="allow"
    )
    layout = style.base_layout(
        title, notes, height, legend_rows=rows, xaxis=axis,
        yaxis=y_axis(
            [snapshot.places], snapshot.height, automargin=False, ticklabeloverflow="allow"
        ),
        barmode="overlay", dragmode="pan", uniformtext={"minsize": 10, "mode": "hide"},
    )  # fmt: skip
    layout["margin"]["l"] = _left([track.label for track in snapshot.places.tracks])
    layout["legend"]["maxheight"] = _LEGEND_PX * rows + 14
    layout["autosize"] = True
    layout["modebar"]["remove"] += ["zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]
    return layout


def _left(labels: Sequence[str]) -> int:
    longest = max((len(label) for label in labels), default=0)
    return min(_LEFT, round(24 + _LETTER * min(longest, _LABEL)))


def _tracks(snapshot: Snapshot) -> Properties:
    """Return what marks the tracks."""
    centres, _ = snapshot.places.ticks()
    scale = (snapshot.plot_px - snapshot.sms_px) / snapshot.height
    px = scale * min(snapshot.places.heights, default=26)
    shapes = [
        {**shape, "fillcolor": STRIPE} if shape["type"] == "rect" else shape
        for shape in snapshot.places.shapes
    ]
    notes = snapshot.places.annotations
    return {
        "margin.l": _left([track.label for track in snapshot.places.tracks]),
        "yaxis.range": [snapshot.height, 0],
        "yaxis.tickvals": centres,
        "yaxis.ticktext": [escape(track.label, _LABEL) for track in snapshot.places.tracks],
        "yaxis.tickfont.size": min(12, max(6, 0.9 * px)),
        "shapes": shapes,
        "annotations": notes if snapshot.places.tracks else [nothing(snapshot.height / 2)],
    }


def _divide(drawn: Drawn, snapshot: Snapshot) -> None:
    """Give the SMs the lower part of the plot, or the tracks all of it."""
    if snapshot.held is None:
        drawn.layout.update({"yaxis.domain": [0, 1], "xaxis.anchor": "y"})
        drawn.overlays["sms"] = {"visible": False}
        return
    share = snapshot.sms_px / snapshot.plot_px
    axis = sm_axis(snapshot.held.blocks.height, snapshot.sms_px)
    axis |= {"domain": [0, share - 0.05], "automargin": False}
    drawn.layout.update({"yaxis.domain": [share, 1], "xaxis.anchor": "y2", "yaxis2": axis})
    drawn.overlays["sms"] = {"visible": True}


# -- overlays: dependencies, selection, measurement -----------------------------------------
def _links(drawn: Drawn) -> Properties:
    """Return arrows from spans to those that had to follow them."""
    x: list[float | None] = []
    y: list[float | None] = []
    for cause, effect in drawn.snapshot.links:
        (_, end), (start, _) = _span(drawn, cause), _span(drawn, effect)
        x += [min(end, start), start, None]
        y += [drawn.place(cause)[0], drawn.place(effect)[0], None]
    return {"x": x, "y": y}


def _outlines(drawn: Drawn) -> Properties:
    """Return rectangles around the selected span and those that it is linked to."""
    rows = dict.fromkeys(row for link in drawn.snapshot.links for row in link)
    if drawn.snapshot.selected is not None:
        rows[drawn.snapshot.selected] = None
    x: list[float | None] = []
    y: list[float | None] = []
    for row in rows:
        (left, right), (centre, size) = _span(drawn, row), drawn.place(row)
        top, bottom = centre - size / 2, centre + size / 2
        x += [left, right, right, left, left, None]
        y += [top, top, bottom, bottom, top, None]
    return {"x": x, "y": y}


def _ruler(snapshot: Snapshot) -> Properties:
    """Return a line at each point that is measured from and to, and the time between."""
    x: list[float | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for mark in snapshot.marks:
        x += [_on_axis(snapshot, mark), _on_axis(snapshot, mark), None]
        y += [0, snapshot.height, None]
        text += ["", "", ""]
    if len(snapshot.marks) == 2:
        first, last = sorted(snapshot.marks)
        at = snapshot.height * 0.04
        x += [_on_axis(snapshot, time_ns) for time_ns in (first, (first + last) / 2, last)]
        y += [at, at, at]
        text += ["", f"<b>{duration(last - first)}</b>", ""]
    return {"x": x, "y": y, "text": text}


def _ink(overlay: Properties, ink: str, dash: str = "solid") -> None:
    """Add an overlay's colours."""
    # Whole properties only: one update with `marker` here and `marker.color` there loses some.
    overlay["line"] = {"color": ink, "width": 2, "dash": dash}
    overlay["textfont"] = {"color": ink, "size": 14}
    overlay["marker"] = {
        "symbol": "arrow", "angleref": "previous", "color": ink,
        "size": [0, 10, 0] * (len(overlay["x"]) // 3),
    }  # fmt: skip


def _on_axis(snapshot: Snapshot, time_ns: float) -> float:
    """Return where a time is on the axis."""
    return (time_ns - snapshot.zero_ns) / 1e3


def _span(drawn: Drawn, row: int) -> tuple[float, float]:
    """Return where a span starts and ends on the axis, an open one at the edge of the frame."""
    tracks, edge = drawn.snapshot.tracks, drawn.view.window_ns[1]
    start, end = int(tracks.start_ns[row]), int(tracks.end_ns[row])
    end = max(edge, start) if end == OPEN_NS else end
    return _on_axis(drawn.snapshot, start), _on_axis(drawn.snapshot, end)
