"""Makes the frame that is sent to the browser from a snapshot of the state."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.timeline import plotly_parts, style
from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.canvas.snapshot import STRIPE, DrawnFrame, Frame, Legend, Snapshot
from gpuscope.timeline.canvas.window import Window, widened
from gpuscope.timeline.hatches import HATCHES
from gpuscope.timeline.index import OPEN_NS
from gpuscope.timeline.labels import Class
from gpuscope.timeline.look import Look, PartLook, look
from gpuscope.timeline.picture import Panel
from gpuscope.timeline.plotly_parts import arrow_lines, gapped
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.sm_map_figure import sm_axis, sm_image
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import duration
from gpuscope.timeline.words import shares_of

_NOTES = 2
_LEGEND_PX, _LEGEND_ROWS = 20, (2, 5)
_LEFT, _LABEL, _LETTER = 224, 32, 6.4
"""Px for the labels of tracks at most, characters that fit, and px of one: to have Plotly find out
costs a second pass."""
_IN_COLUMNS = ", narrow ones as columns of busy time"


def compose_frame(snapshot: Snapshot, before: DrawnFrame | None) -> DrawnFrame:
    """Make a frame; of what seldom changes it has what is new since the frame ``before``."""
    fetched = widened(snapshot.window_ns, snapshot.margin)
    pixels = max(1, round(snapshot.pixels * (1 + 2 * snapshot.margin)))
    scene = Scene.among(
        snapshot.tracks,
        snapshot.places.tracks,
        fetched,
        max_spans=tiles.SPANS,
        pixels=pixels,
        row_lanes=snapshot.lanes,
    )
    page = _page(snapshot, fetched, before)
    shares = shares_of(snapshot.tracks, snapshot.places.tracks, snapshot.window_ns)
    frame = Frame(_legend(snapshot, page), {}, {}, page, _words(snapshot, scene), shares)
    drawn, layout = DrawnFrame(snapshot, scene, frame), frame.layout
    frame.overlays.update(_overlays(drawn))
    layout["xaxis.range"] = [_on_axis(snapshot, edge) for edge in snapshot.window_ns]
    layout["images"] = []
    if snapshot.sm_index is not None:
        # Columns of two pixels: half the work, and nobody sees it.
        cells = snapshot.sm_index.cells(fetched, max(1, pixels // 2))
        owners = snapshot.sm_index.blocks.colours(snapshot.colours)
        layout["images"].append(sm_image(cells, owners, snapshot.zero_ns, 1e3))
    old = None if before is None else before.snapshot
    divided = (old is None or old.sm_index is None) != (snapshot.sm_index is None)
    if divided:
        _divide(frame, snapshot)
    if divided or old is None or old.places is not snapshot.places:
        layout.update(_tracks(snapshot))
    if old is None or old.theme is not snapshot.theme:
        layout.update(snapshot.theme.layout())
    if old is None or old.heading != snapshot.heading:
        title, *notes = snapshot.heading
        layout["title.text"] = f"<b>{title}</b>"
        layout["title.subtitle.text"] = "<br>".join(notes)
    return drawn


def _legend(snapshot: Snapshot, page: Properties) -> Legend:
    """Return what the legend has of bars; ``meta`` is the place of their class.

    Those of the host are in it if its rows are shown. Parts of calls have none: they stay.
    """
    legend = {}
    tracks, rows = snapshot.tracks, snapshot.places.tracks
    shown = {number for track in rows if not track.folded for number in track.numbers}
    shown_classes = {bar_class for track, bar_class in tracks.groups if track in shown}
    for at, bar_class in enumerate(tiles.classes_of(snapshot)):
        if bar_class not in shown_classes:
            continue
        how = look(snapshot.tracks, bar_class, snapshot.colours, snapshot.theme.outlined)
        legend[bar_class] = {**plotly_parts.bar_look(how, "µs"), "meta": at}
    parts = [PartLook(**how) for how in page["root"]["calls"]["looks"]]
    hatched = [part for part in parts if part.pattern]
    parts = sorted(hatched, key=lambda part: [*HATCHES].index(part.pattern))
    for part in [*parts, *_layers(page["counters"])]:
        how = Look(
            part.name, part.fill, part.fill, part.fill, part.pattern, escaped=False, lines=()
        )
        legend[Class(part.name, None, is_open=False)] = plotly_parts.bar_look(how, "µs")
    return legend


def _layers(lanes: Sequence[Properties]) -> list[PartLook]:
    """Return how the layers look that lanes of counters draw: the first of each name."""
    looks: dict[str, PartLook] = {}
    for layer in (layer for lane in lanes for layer in lane["layers"]):
        if layer["isDrawn"]:
            looks.setdefault(layer["name"], PartLook(layer["name"], layer["fill"], ""))
    return [*looks.values()]


def _page(snapshot: Snapshot, fetched: Window, before: DrawnFrame | None) -> Properties:
    """Return what the browser paints; while rows still come, with all that is in view."""
    extent = snapshot.extent_ns
    if snapshot.lanes is None:
        pixels = tiles.FINER * round(snapshot.pixels * (1 + 2 * snapshot.margin))
        return tiles.page(snapshot, extent, tiles.tile(snapshot, fetched, pixels), live=True)
    if before is not None and before.frame.page:
        old = before.snapshot
        if old.version == snapshot.version and old.theme is snapshot.theme:
            return before.frame.page
    top = tiles.top_level(extent[1] - snapshot.zero_ns)
    root = tiles.tile(snapshot, tiles.window_of(snapshot, top, 0))
    return tiles.page(snapshot, extent, root, live=False)


def _words(snapshot: Snapshot, scene: Scene) -> str:
    """Say how much is in view, and how much of it has a bar of its own."""
    tracks = snapshot.tracks
    groups = [group for track in scene.shown for group in tracks.row_of(track).groups]
    total = int(tracks.index.counts(snapshot.window_ns, groups).sum())
    return f"{total:,} spans in view" + ("" if scene.with_spans.all() else _IN_COLUMNS)


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
    on_gpu = [kind for kind in snapshot.tracks.classes if kind.partition is not None]
    entries = len(on_gpu) + len(_layers(tiles.counters(snapshot)))
    rows = min(max(-(-entries // columns), least), most)
    axis = style.x_axis(
        "", tickformat=None, tickangle=0, fixedrange=False, ticklabeloverflow="allow"
    )
    layout = style.base_layout(
        title,
        notes,
        height,
        legend_rows=rows,
        xaxis=axis,
        yaxis=plotly_parts.track_axis(
            [snapshot.places], snapshot.height, automargin=False, ticklabeloverflow="allow"
        ),
        barmode="overlay",
        dragmode="pan",
        uniformtext={"minsize": 10, "mode": "hide"},
    )
    layout["margin"]["r"] = plotly_parts.RIGHT
    layout["margin"]["l"] = _left(_labels(snapshot))
    layout["legend"]["maxheight"] = _LEGEND_PX * rows + 14
    layout["autosize"] = True
    layout["modebar"]["remove"] += ["zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]
    return layout


def _labels(snapshot: Snapshot) -> list[str]:
    """Return the labels that stand at the left; those of lanes of waits are short."""
    places = snapshot.places
    lanes = [spot.facts.label for spot in places.counters]
    return [*(track.label for track in places.tracks), *lanes]


def _left(labels: Sequence[str]) -> int:
    longest = max((len(label) for label in labels), default=0)
    return min(_LEFT, round(24 + _LETTER * min(longest, _LABEL)))


def _tracks(snapshot: Snapshot) -> Properties:
    """Return what marks the tracks."""
    places = snapshot.places
    scale = (snapshot.plot_px - snapshot.sms_px) / snapshot.height
    px = scale * min((8 + 18 * lines for lines in places.lines), default=26)
    ticks = plotly_parts.ticks_of(places, _LABEL)
    nothing = [] if places.tracks else [plotly_parts.nothing(snapshot.height / 2)]
    return {
        "margin.l": _left(_labels(snapshot)),
        "yaxis.range": [snapshot.height, 0],
        "yaxis.tickvals": [at for at, _ in ticks],
        "yaxis.ticktext": [label for _, label in ticks],
        "yaxis.tickfont.size": min(12, max(6, 0.9 * px)),
        "shapes": plotly_parts.behind(places, STRIPE, at_once=True),
        "annotations": plotly_parts.headings(places) + nothing,
    }


def _divide(frame: Frame, snapshot: Snapshot) -> None:
    """Give the SMs the lower part of the plot, or the tracks all of it."""
    frame.overlays["sms"] = {"visible": snapshot.sm_index is not None}
    if snapshot.sm_index is None:
        whole = {"yaxis.domain": [0, 1], "xaxis.anchor": "y", "yaxis2.visible": False}
        frame.layout.update(whole)
        return
    share = snapshot.sms_px / snapshot.plot_px
    axis = sm_axis(snapshot.sm_index.blocks.height, snapshot.sms_px)
    axis |= {"domain": [0, share - 0.05], "automargin": False, "visible": True}
    frame.layout.update({"yaxis.domain": [share, 1], "xaxis.anchor": "y2", "yaxis2": axis})


# -- overlays: dependencies, selection, measurement -----------------------------------------
def _overlays(drawn: DrawnFrame) -> dict[str, Properties]:
    """Return the lines over the bars, in whole properties: Plotly loses parts of such."""
    snapshot, scene = drawn.snapshot, drawn.scene
    ink = snapshot.theme.ink
    panel = Panel(scene, snapshot.places, snapshot.zero_ns)
    lines = {
        "waits": arrow_lines(panel, scene.waits),
        "links": _links(drawn),
        "selected": _outlines(drawn),
        "measure": _ruler(snapshot),
        "hazards": arrow_lines(panel, scene.hazards),
    }
    overlays: dict[str, Properties] = {}
    for name, line in lines.items():
        colour, dash = (style.ESCAPED, "dot") if name == "hazards" else (ink, "solid")
        head = {**plotly_parts.ARROW, "color": colour, "size": [0, 10, 0] * (len(line["x"]) // 3)}
        line_look = {"color": colour, "width": 2, "dash": dash}
        overlays[name] = {"x": line["x"], "y": line["y"], "line": line_look, "marker": head}
    overlays["measure"] |= {
        "text": lines["measure"]["text"],
        "textfont": {"color": ink, "size": 14},
    }
    return overlays


def _links(drawn: DrawnFrame) -> Properties:
    """Return arrows from spans to those that had to follow them."""
    causes = [cause for cause, _ in drawn.snapshot.links]
    effects = [effect for _, effect in drawn.snapshot.links]
    starts = [_span(drawn, effect)[0] for effect in effects]
    ends = [_span(drawn, cause)[1] for cause in causes]
    return {
        "x": gapped(map(min, ends, starts), starts),
        "y": gapped(*([drawn.place(row)[0] for row in side] for side in (causes, effects))),
    }


def _outlines(drawn: DrawnFrame) -> Properties:
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
    at = [_on_axis(snapshot, mark) for mark in sorted(snapshot.marks)]
    x, y = gapped(at, at), gapped([0] * len(at), [snapshot.height] * len(at))
    text = [""] * len(x)
    if len(at) == 2:
        first, last = sorted(snapshot.marks)
        x += [at[0], sum(at) / 2, at[1]]
        y += [snapshot.height * 0.04] * 3
        text += ["", f"<b>{duration(last - first)}</b>", ""]
    return {"x": x, "y": y, "text": text}


def _on_axis(snapshot: Snapshot, time_ns: int) -> float:
    """Return where a time is on the axis."""
    return (time_ns - snapshot.zero_ns) / 1e3


def _span(drawn: DrawnFrame, row: int) -> tuple[float, float]:
    """Return where a span starts and ends on the axis, an open one at the edge of the frame."""
    tracks, edge = drawn.snapshot.tracks, drawn.scene.window_ns[1]
    start, end = int(tracks.start_ns[row]), int(tracks.end_ns[row])
    end = max(edge, start) if end == OPEN_NS else end
    return _on_axis(drawn.snapshot, start), _on_axis(drawn.snapshot, end)
