"""Scenes as Plotly draws them: bars, columns, marks, arrows, and what lies behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.columns import MARK_PX, heights
from gpuscope.timeline.hatches import ESCAPED, HATCHES, MARKS, TINT
from gpuscope.timeline.labels import MARKS_PX, WAITS_PX, Class, Places
from gpuscope.timeline.look import Look, PartLook, layer_looks
from gpuscope.timeline.picture import HAZARD, Panel, Picture, arrow_colours
from gpuscope.timeline.scene import Arrows, Scene
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import duration, escape
from gpuscope.timeline.waiting import boxes_of
from gpuscope.timeline.words import OUTSIDE, hovers, mark_text, shares_of

MARGIN = 2
"""Px of a track above and below its columns."""
ARROW = {"symbol": "arrow", "angleref": "previous"}
"""A marker that points away from the one before it."""
RIGHT = 78
"""Px at the right of rows, for their shares."""
_LABEL_SHARE = 0.07
"""Of a window: a stretch without rows that is shorter has no label."""
_MAX_TEXTS = 300
_NAME = 60
"""Characters of a name in a bar at most."""
_WIDTH, _LETTER, _LEAST_LETTERS = 850, 6.2, 4
"""Px of a plot and of a letter, about, and with how few letters a name still tells something."""


def traces_of(picture: Picture) -> list[Properties]:
    """Return the traces of a picture."""
    panels, looks, unit = picture.panels, picture.looks, picture.unit
    bars_of_panels = [bars(panel) for panel in panels]
    data = []
    for bar_class, how in looks.items():
        parts = [panel_bars[bar_class] for panel_bars in bars_of_panels if bar_class in panel_bars]
        if parts:
            data.append({**bar_look(how, unit), **_joined(parts)})
    for panel in panels:
        data += _columns(panel, looks, unit)
    data += _waits(picture)
    data += _counters(picture)
    seen = set()
    for trace in data:  # a class that has bars and columns has one entry in the legend
        group = trace.setdefault("legendgroup", trace.get("name"))
        if trace.get("showlegend", True):
            trace["showlegend"] = group not in seen
            seen.add(group)
    for what in MARKS:
        points = _joined([mark_points(panel, what) for panel in panels])
        if points["x"]:
            data.append({"name": f"{what}s", **mark_look(what), **points})
    for name in arrow_colours(panel.scene for panel in panels):
        kind = "hazards" if name == HAZARD else "waits"
        lines = [arrow_lines(panel, getattr(panel.scene, kind)) for panel in panels]
        data.append({**_arrow_look(name), **_joined(lines)})
    return data


def _joined(parts: Sequence[Properties]) -> Properties:
    """Join arrays and lists of the same names."""
    return {
        name: np.concatenate([part[name] for part in parts])
        if isinstance(first, np.ndarray)
        else [value for part in parts for value in part[name]]
        for name, first in parts[0].items()
    }


# -- bars and columns -------------------------------------------------------------------------
def bars(panel: Panel) -> dict[Class, Properties]:
    """Return what changes from scene to scene of the bar trace of each class that has bars.

    Times are clipped to the window. Names are as long as their bars are. ``customdata`` holds the
    spans' rows.
    """
    scene = panel.scene
    low, high = scene.window_ns
    start = np.maximum(scene.start_ns, low)
    width = np.minimum(scene.end_ns, high) - start
    centre, size = panel.places.bars(scene.place, scene.lanes)
    columns = {
        "base": panel.x(start),
        "x": width / panel.unit_ns,
        "y": centre.astype(np.float32),
        "width": size.astype(np.float32),
        "hovertext": np.array(hovers(scene), object),
        "customdata": scene.rows,
        "text": _texts(scene, width * _WIDTH / (high - low)),
    }
    as_lists = ("base", "hovertext", "text")
    classes, number = scene.classed
    return {
        bar_class: {
            name: values[number == at].tolist() if name in as_lists else values[number == at]
            for name, values in columns.items()
        }
        for at, bar_class in enumerate(classes)
    }


def _texts(scene: Scene, pixels: Array) -> Array:
    """Return the names that stand in bars: of the widest, as fitting them takes Plotly long."""
    room = (pixels - 10) // _LETTER
    names = scene.tracks.coded["name"]
    texts = np.full(len(pixels), "", object)
    for bar in np.flatnonzero(room >= _LEAST_LETTERS)[:_MAX_TEXTS].tolist():
        name = str(names.values[names.codes[scene.rows[bar]]]).removeprefix("void ")
        texts[bar] = escape(name, int(min(room[bar], _NAME)))
    return texts


def legend_name(how: Look) -> str:
    """Return what a legend calls a class."""
    return escape(how.name).replace(OUTSIDE, f"<b>{OUTSIDE}</b>", int(how.escaped))


def bar_look(how: Look, unit: str) -> Properties:
    """Return what stays the same of the bar trace of a class."""
    marker: Properties = {"color": how.fill, "line": {"width": 0.7, "color": how.edge}}
    around = "none"
    if how.escaped:  # its outline shows where the bar is too narrow to
        marker["line"]["width"] = 3
        marker["pattern"] = {**ESCAPED.plotly(), "fillmode": "overlay", "fgcolor": style.INK}
    elif how.pattern:
        marker["pattern"] = HATCHES[how.pattern].plotly()
        # Or the pattern, and on a dark page what is behind it, would run through the letters.
        around = ", ".join([f"0 0 2px {how.fill}"] * 6)
    return {
        "type": "bar",
        "orientation": "h",
        "name": legend_name(how),
        "marker": marker,
        "legendrank": 1 if how.escaped else 1000,
        "hovertemplate": "<b>%{hovertext}<br>"
        f"starts at %{{base:,.3f}} {unit}<br>{_lines(how)}<extra></extra>",
        "cliponaxis": True,
        "insidetextanchor": "start",
        "textangle": 0,
        "textposition": "inside",
        "textfont": {"size": 11, "color": how.text, "shadow": around},
    }


def _lines(how: Look) -> str:
    """Return what tooltips of a class end with; a percent sign would begin a variable."""
    return "<br>".join(escape(line) for line in how.lines).replace("%", "&#37;")


def _columns(panel: Panel, looks: dict[Class, Look], unit: str) -> Iterator[Properties]:
    """Yield the tracks that draw columns: for each class a line below, and a fill above it.

    The fill's ``customdata`` holds which share of each column the class was busy for.
    """
    scene, places = panel.scene, panel.places
    columns, classes = scene.columns, [bar_class for _, bar_class in scene.tracks.groups]
    lasts, whole = np.diff(columns.edges), scene.window_ns[1] - scene.window_ns[0]
    length = duration(whole // len(lasts))
    for track in np.flatnonzero(~scene.with_spans).tolist():
        groups, px = columns.of_row(track), places.heights[track] - 2 * MARGIN
        busy = columns.busy_ns[groups]
        tall = heights(busy, columns.is_there[groups], lasts, px)
        low = np.full(len(lasts), places.tops[track] + places.heights[track] - MARGIN)
        for number in np.flatnonzero(tall.any(axis=1)).tolist():
            how = looks[classes[columns.rows[track].groups[number]]]
            name, high = legend_name(how), low - tall[number]
            line = {
                "type": "scatter",
                "mode": "lines",
                "legendgroup": name,
                "x0": float(panel.x(scene.window_ns[0])),
                "dx": whole / len(lasts) / panel.unit_ns,
                "line": {"width": 0, "shape": "hv", "color": how.fill},
            }
            share = 100 * busy[number].sum() / whole
            yield {**line, "y": _stepped(low), "hoverinfo": "skip", "showlegend": False}
            yield {
                **line,
                "y": _stepped(high),
                "fill": "tonexty",
                "fillcolor": how.fill,
                "name": name,
                "legendrank": 1 if how.escaped else 1000,
                "customdata": _stepped(busy[number] / lasts, np.float32),
                "hovertemplate": f"<b>busy for %{{customdata:.3p}} of {length}</b>"
                f"<br>at %{{x:,.3f}} {unit}<br>{_lines(how)}"
                f"<br>busy for {share:.3g} &#37; of the window<extra></extra>",
            }
            low = high


def _stepped(values: Array, kind: type = np.int16) -> Array:
    """Return columns as the corners of steps: the last one ends with its own value."""
    return np.concatenate([values, values[-1:]]).astype(kind)


def _waits(picture: Picture) -> Iterator[Properties]:
    """Yield what calls waited for, one trace a look: rectangles in the lanes below the rows."""
    corners: dict[PartLook, list[Array]] = {}
    for panel in picture.panels:
        scene = panel.scene
        boxes, high, low = panel.boxes(scene.columns.edges)
        left, right = (
            panel.x(np.clip(side, *scene.window_ns)) for side in (boxes.from_ns, boxes.to_ns)
        )
        gap = np.full(len(low), np.nan)
        x = np.stack([left, right, right, left, gap], axis=1)
        y = np.stack([low, low, high, high, gap], axis=1)
        number = scene.waiting.look[boxes.part]
        for at, part in enumerate(scene.waiting.classes):
            points = np.stack([x[number == at].ravel(), y[number == at].ravel()])
            corners.setdefault(picture.part_looks[part], []).append(points)
    for how, pieces in corners.items():
        x, y = np.concatenate(pieces, axis=1)
        if not len(x):
            continue
        colour = f"rgba{(*style.rgb(how.fill), TINT)}"
        hatch = HATCHES[how.pattern].plotly() if how.pattern else {}
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": escape(how.name),
            "x": x,
            "y": y.astype(np.float32),
            "line": {"width": 0.5, "color": how.fill},
            "fill": "toself",
            "fillcolor": colour if how.pattern else how.fill,
            "fillpattern": {**hatch, "fgcolor": how.fill, "bgcolor": colour},
            "hoveron": "fills",
            "hoverinfo": "text",
            "text": escape(how.name),
        }


def _counters(picture: Picture) -> Iterator[Properties]:
    """Yield the layers of lanes of counters: for each a line below, and a fill above it."""
    for panel in picture.panels:
        low_ns, high_ns = panel.scene.window_ns
        for spot, lane in panel.counters():
            texts = lane.words()
            tops = np.concatenate([np.zeros((1, len(texts))), lane.tops])
            line: Properties = {
                "type": "scatter",
                "mode": "lines",
                "x0": float(panel.x(low_ns)),
                "dx": (high_ns - low_ns) / len(texts) / panel.unit_ns,
            }
            for below, above, how in zip(
                tops[:-1], tops[1:], layer_looks(lane.facts, picture.colours), strict=True
            ):
                is_there = above > below
                if not is_there.any():
                    continue
                name = escape(how.name)
                line["line"] = {"width": 0, "shape": "hv", "color": how.fill}
                low, high = (_stepped(spot.bottom - side, np.float32) for side in (below, above))
                nothing = {"hoverinfo": "skip", "showlegend": False}
                yield {**line, "y": low, "legendgroup": name, **nothing}
                words = [text * at for text, at in zip(texts, is_there.tolist(), strict=True)]
                yield {
                    **line,
                    "y": high,
                    "fill": "tonexty",
                    "fillcolor": how.fill,
                    "name": name,
                    "hoverinfo": "text",
                    "text": [*words, words[-1]],
                }


# -- marks and arrows -------------------------------------------------------------------------
def mark_points(panel: Panel, what: str) -> Properties:
    """Return where marks stand; ``customdata`` holds for how many each stands."""
    row, column, count = panel.scene.marks(MARK_PX)[what]
    return {
        "x": panel.x(panel.scene.columns.edges[column]).tolist(),
        "y": (np.array(panel.places.tops)[row] - MARKS_PX / 2).tolist(),
        "customdata": count.tolist(),
        "hovertext": [mark_text(what, number) for number in count.tolist()],
    }


def mark_look(what: str) -> Properties:
    """Return what stays the same of a trace of marks."""
    return {
        "type": "scatter",
        "mode": "markers",
        "showlegend": False,
        "hoverinfo": "text",
        "cliponaxis": False,
        "marker": {
            "symbol": MARKS[what].symbol,
            "size": 11,
            "color": style.ESCAPED,
            "line": {"width": 1.5, "color": style.INK},
        },
    }


def gapped(*columns: Iterable[object]) -> list[object]:
    """Return the points of lines, with a gap after each.

    Parameters
    ----------
    columns
        The first points of all lines, their second ones, and so on.
    """
    return [value for points in zip(*columns, strict=True) for value in (*points, None)]


def arrow_lines(panel: Panel, arrows: Arrows) -> Properties:
    """Return arrows as one line trace, from bar to bar."""
    scene, ends = panel.scene, (arrows.cause, arrows.effect)
    centres = [panel.places.bars(scene.place[end], scene.lanes[end])[0].tolist() for end in ends]
    return {
        "x": gapped(panel.x(arrows.from_ns).tolist(), panel.x(arrows.to_ns).tolist()),
        "y": gapped(*centres),
        "marker.size": [0, 9, 0] * len(arrows.cause),
    }


def _arrow_look(name: str) -> Properties:
    colour = style.ESCAPED if name == HAZARD else style.INK
    line: Properties = {"width": 1.3, "color": colour}
    if name == HAZARD:
        line |= {"width": 3, "dash": "dot"}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "line": line,
        "marker": {**ARROW, "color": colour, "opacity": 1, "line": {"width": 0}},
        "hoverinfo": "skip",
    }


# -- what lies behind them --------------------------------------------------------------------
def behind(
    places: Places, colour: str = style.STRIPE, *, at_once: bool = False
) -> list[Properties]:
    """Return the shapes behind tracks: stripes, and what parts host and GPU.

    Parameters
    ----------
    at_once
        Whether all stripes are one shape: with each move, Plotly makes each shape anew.
    """
    line = {"width": 1, "color": style.HOST_COLOUR}
    stripes = [style.stripe(top, bottom, colour) for top, bottom in places.stripes]
    if at_once and stripes:
        path = "".join(f"M0,{top}H1V{bottom}H0Z" for top, bottom in places.stripes)
        stripes = [style.stripe(0, 0, colour, type="path", path=path)]
    return [
        *stripes,
        *(style.stripe(y, y, style.WHITE, type="line", line=line) for y in places.rules),
    ]


def grants(places: Places) -> list[Properties]:
    """Return the lines at the tops of lanes of counters."""
    line = {"width": 1, "color": style.MUTED}
    tops = [spot.top - 1 for spot in places.counters]
    return [style.stripe(y, y, style.WHITE, type="line", line=line) for y in tops]


def missing(panel: Panel) -> tuple[list[Properties], list[Properties]]:
    """Return shapes and annotations of breaks of the recording, and of where rows are lost."""
    shapes, annotations = [], []
    low_ns, high_ns = panel.scene.window_ns
    top, bottom = min(panel.places.tops, default=0), panel.places.bottom
    line = {"width": 1, "dash": "dot", "color": style.MUTED}
    font = {"size": 12, "color": style.MUTED}
    for low, high, what in panel.scene.columns.missing:
        x0, x1 = float(panel.x(low)), float(panel.x(high))
        stretch = {"xref": "x", "x0": x0, "x1": x1, "opacity": 0.18, "line": line}
        shapes.append(style.stripe(top, bottom, style.MUTED, **stretch))
        if high - low >= _LABEL_SHARE * (high_ns - low_ns):
            text = f"{what}<br>{duration(high - low)}"
            where = {"xref": "x", "x": (x0 + x1) / 2, "xanchor": "auto", "yanchor": "auto"}
            middle = (top + bottom) / 2
            annotations.append(style.heading(text, middle, font=font, align="center", **where))
    return shapes, annotations


def shares(panel: Panel) -> list[Properties]:
    """Return what stands at the right of rows: how busy they were, and what lanes reach to."""
    scene, places = panel.scene, panel.places
    _, tops = boxes_of(scene.waiting, scene.window_ns, scene.columns.edges)
    right = {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 6}
    words = shares_of(scene.tracks, scene.shown, scene.window_ns)
    notes = [
        style.heading("<br>".join(text), centre, **right, font={"size": 11})
        for centre, text in zip(places.centres, words, strict=True)
        if text
    ]
    font = {"size": 11, "color": style.MUTED}
    reached = [(duration(top), places.lanes[row] + 9.0) for row, top in tops.items()]
    reached += [(spot.facts.top, spot.top + 6) for spot in places.counters]
    beside = [(f"▔ {top}", y) for top, y in reached]
    beside += [(lane.used, spot.top + 19) for spot, lane in panel.counters() if lane.used]
    return notes + [style.heading(text, y, **right, font=font) for text, y in beside]


def headings(places: Places) -> list[Properties]:
    """Return the names of processes."""
    return [style.heading(escape(name), y) for name, y in places.processes]


def nothing(y: float) -> Properties:
    """Return what stands where there is no track."""
    where = {"x": 0.5, "xanchor": "auto", "yanchor": "auto"}
    font = {"size": 15, "color": style.MUTED}
    return style.heading("no spans to draw here", y, font=font, **where)


def ticks_of(places: Places, limit: int | None = None) -> list[tuple[float, str]]:
    """Return the labels of tracks and of the lanes below them, and where they stand."""
    lanes = [lane + WAITS_PX / 2 for lane in places.lanes if lane]
    labels = [escape(track.label, limit) for track in places.tracks]
    return [
        *zip(places.centres, labels, strict=True),
        *((lane, "calls, by cause") for lane in lanes),
        *(((spot.top + spot.bottom) / 2, spot.facts.label) for spot in places.counters),
    ]


def track_axis(places: Sequence[Places], height: float, **more: object) -> Properties:
    """Return the vertical axis: px from the top, the tracks' labels as ticks."""
    ticks = [tick for part in places for tick in ticks_of(part)]
    return style.label_axis(
        [at for at, _ in ticks],
        [label for _, label in ticks],
        range=[height, 0],
        tickfont={"size": 12},
        **more,
    )
