"""From a shot to a frame: what the browser gets."""

from __future__ import annotations

from typing import Any

from gpuscope.figures import style
from gpuscope.figures.bars import look
from gpuscope.figures.frame import frame
from gpuscope.figures.places import nothing, y_axis
from gpuscope.figures.sm_picture import sm_axis, sm_image
from gpuscope.figures.text import escape
from gpuscope.figures.view import View
from gpuscope.widgets import camera
from gpuscope.widgets.overlays import ink, links, on_axis, outlines, ruler
from gpuscope.widgets.shot import SPANS, Drawn, Shot
from gpuscope.widgets.theme import STRIPE

_CHARACTERS = 110_000
"""What the texts of a frame may take, so that it stays below 250 kB."""
_NOTES = 2
_LEGEND_PX, _LEGEND_ROWS = 20, (3, 5)
_LEFT, _LABEL = 210, 32
"""Px for the labels of tracks, and characters that fit: Plotly's own margin costs a second pass."""


def compose(shot: Shot, before: Drawn | None) -> Drawn:
    """Make a frame; of what seldom changes it has what is new since the frame ``before``."""
    fetched = camera.widened(shot.window_ns, shot.margin)
    # Shading in columns of two pixels: half the work, and nobody sees it.
    pixels = max(1, round(shot.pixels * (1 + 2 * shot.margin) / 2))
    view = View.among(shot.tracks, shot.places.tracks, fetched, max_spans=SPANS, pixels=pixels)
    made = frame(view, shot.places, shot.colours, zero_ns=shot.zero_ns)
    said = sum(len(text) for one in made.bars.values() for text in one["hovertext"])
    bars = {
        one: (look(shot.tracks, one, shot.colours, "µs"), _light(properties, said, shot))
        for one, properties in made.bars.items()
    }
    drawn = Drawn(shot, view, bars, {}, {})
    waits = {name: made.arrows[name] for name in ("x", "y")}
    drawn.overlays.update(
        waits=waits, links=links(drawn), selected=outlines(drawn), measure=ruler(shot)
    )
    for one in drawn.overlays.values():
        ink(one, shot.theme.ink)
    ticks = camera.ticks(shot.window_ns, fetched, shot.zero_ns)
    drawn.layout.update({f"xaxis.{name}": value for name, value in ticks.items()})
    drawn.layout["xaxis.range"] = [on_axis(shot, edge) for edge in shot.window_ns]
    drawn.layout["images"] = [made.image] if made.image is not None else []
    if shot.held is not None:
        cells = shot.held.cells(fetched, pixels)
        drawn.layout["images"].append(sm_image(cells, _owners(shot), shot.zero_ns, 1e3))
    divided = (before is None or before.shot.held is None) != (shot.held is None)
    if divided:
        _divide(drawn, shot)
    if divided or before is None or before.shot.places is not shot.places:
        drawn.layout.update(_tracks(shot))
    if before is None or before.shot.theme is not shot.theme:
        drawn.layout.update(shot.theme.layout())
    if before is None or before.shot.heading != shot.heading:
        title, *notes = shot.heading
        drawn.layout["title.text"] = f"<b>{title}</b>"
        drawn.layout["title.subtitle.text"] = "<br>".join(notes)
    return drawn


def _light(bars: dict[str, Any], said: int, shot: Shot) -> dict[str, Any]:
    """Return bars without what is not needed, and without the narrowest ones' texts if too long."""
    texts = bars["hovertext"]
    kept = len(texts) if said <= _CHARACTERS else len(texts) * _CHARACTERS // said
    less = {name: value for name, value in bars.items() if name != "customdata"}
    if shot.following and "text" in less:  # nobody reads what moves, and to fit it in takes long
        less["text"] = [""] * len(texts)
    return {**less, "hovertext": texts[:kept] + [""] * (len(texts) - kept)}


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
    least, most = _LEGEND_ROWS
    rows = min(max(-(-len(shot.tracks.classes) // 3), least), most)
    axis = style.x_axis("", tickformat=None, fixedrange=False, ticklabeloverflow="allow")
    layout = style.base_layout(
        title, notes, height, legend_rows=rows, xaxis=axis,
        yaxis=y_axis(
            [shot.places], shot.height, automargin=False, ticklabeloverflow="allow"
        ),
        barmode="overlay", dragmode="pan", uniformtext={"minsize": 10, "mode": "hide"},
    )  # fmt: skip
    layout["margin"]["l"] = _LEFT
    layout["legend"]["maxheight"] = _LEGEND_PX * rows + 14
    layout["autosize"] = True
    layout["modebar"]["remove"] += ["zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]
    return layout


def _tracks(shot: Shot) -> dict[str, Any]:
    """Return what marks the tracks."""
    centres, _ = shot.places.ticks()
    px = min(shot.places.heights, default=26) * (shot.plot_px - shot.sms_px) / shot.height
    shapes = [
        {**one, "fillcolor": STRIPE} if one["type"] == "rect" else one for one in shot.places.shapes
    ]
    return {
        "yaxis.range": [shot.height, 0],
        "yaxis.tickvals": centres,
        "yaxis.ticktext": [escape(track.label, _LABEL) for track in shot.places.tracks],
        "yaxis.tickfont.size": min(12, max(6, 0.9 * px)),
        "shapes": shapes,
        "annotations": shot.places.annotations
        if shot.places.tracks
        else [nothing(shot.height / 2)],
    }


def _owners(shot: Shot) -> list[str]:
    """Return the colour of each partition of the blocks."""
    assert shot.held is not None  # noqa: S101 - asked for only where there are any
    return [
        style.WHOLE_GPU_COLOUR if name is None else shot.colours[name]
        for name in shot.held.blocks.partitions
    ]


def _divide(drawn: Drawn, shot: Shot) -> None:
    """Give the SMs the lower part of the plot, or the tracks all of it."""
    if shot.held is None:
        drawn.layout.update({"yaxis.domain": [0, 1], "xaxis.anchor": "y"})
        drawn.overlays["sms"] = {"visible": False}
        return
    share = shot.sms_px / shot.plot_px
    axis = {**sm_axis(shot.held.blocks.height), "domain": [0, share - 0.05], "automargin": False}
    drawn.layout.update({"yaxis.domain": [share, 1], "xaxis.anchor": "y2", "yaxis2": axis})
    drawn.overlays["sms"] = {"visible": True}
