"""A scene's columns, marks and breaks as Plotly draws them."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.frame import look, shared_lines
from gpuscope.timeline.labels import MARKS_PX, Places
from gpuscope.timeline.scene import heights, marks
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import duration, escape
from gpuscope.timeline.view import View

MARGIN = 2
"""Px of a track above and below its columns."""
_MARK_PX = 12
"""Px in which marks merge into one."""
_LABEL_SHARE = 0.07
"""Of a window: a stretch without rows that is shorter has no label."""


def column_traces(
    view: View, places: Places, colours: dict[str, str], zero_ns: int, unit_ns: float, unit: str
) -> list[Properties]:
    """Return the tracks that draw columns: for each class a line below, and a fill above it.

    The fill's ``customdata`` holds which share of each column the class was busy for; the line
    with which a track begins has its height in ``meta``, px.
    """
    scene, classes = view.scene, [bar_class for _, bar_class in view.tracks.groups]
    lasts, whole = np.diff(scene.edges), view.window_ns[1] - view.window_ns[0]
    length = duration(whole // len(lasts))
    data: list[Properties] = []
    for place in np.flatnonzero(~view.with_spans).tolist():
        mine, px = scene.of_row(place), places.heights[place] - 2 * MARGIN
        busy = scene.busy_ns[mine]
        tall = heights(busy, scene.is_there[mine], lasts, px)
        low = np.full(len(lasts), places.tops[place] + places.heights[place] - MARGIN)
        meta = {"meta": px}
        for number in np.flatnonzero(tall.any(axis=1)).tolist():
            bar_class = classes[scene.rows[place].groups[number]]
            how = look(view.tracks, bar_class, colours, unit)
            line = {
                "type": "scatter", "mode": "lines", "legendgroup": how["name"],
                "x0": (view.window_ns[0] - zero_ns) / unit_ns, "dx": whole / len(lasts) / unit_ns,
                "line": {"width": 0, "shape": "hv", "color": how["marker"]["color"]},
            }  # fmt: skip
            text = "<br>".join(escape(said) for said in shared_lines(view.tracks, bar_class))
            text += f"<br>busy for {100 * busy[number].sum() / whole:.3g} % of the window"
            share = _stepped(busy[number] / lasts, np.float32)
            data += [
                {**line, "y": _stepped(low, np.int16), "hoverinfo": "skip", "showlegend": False,
                 **meta},
                {**line, "y": _stepped(low - tall[number], np.int16), "fill": "tonexty",
                 "fillcolor": how["marker"]["color"], "name": how["name"],
                 "legendrank": how["legendrank"], "customdata": share,
                 "hovertemplate": f"<b>busy for %{{customdata:.3p}} of {length}</b>"
                 f"<br>at %{{x:,.3f}} {unit}<br>{text.replace('%', '&#37;')}<extra></extra>"},
            ]  # fmt: skip
            low, meta = low - tall[number], {}
    return data


def _stepped(values: Array, kind: type) -> Array:
    """Return columns as the corners of steps: the last one ends with its own value."""
    return np.concatenate([values, values[-1:]]).astype(kind)


def mark_points(
    view: View, counts: Array, places: Places, zero_ns: int, unit_ns: float, what: str
) -> Properties:
    """Return where marks stand: in the columns in which something starts, those near merge.

    ``customdata`` holds for how many each stands.
    """
    x: list[float] = []
    y: list[float] = []
    number: list[int] = []
    for place, row in enumerate(counts):
        for at, count in zip(*(side.tolist() for side in marks(row, _MARK_PX)), strict=True):
            x.append((int(view.scene.edges[at]) - zero_ns) / unit_ns)
            y.append(places.tops[place] - MARKS_PX / 2)
            number.append(count)
    text = [f"{count:,} {what}{'s' if count > 1 else ''} from here on" for count in number]
    return {"x": x, "y": y, "customdata": number, "hovertext": text}


def stretches(
    view: View, places: Places, zero_ns: int, unit_ns: float
) -> tuple[list[Properties], list[Properties]]:
    """Return shapes and annotations of breaks of the recording, and of where rows are lost."""
    shapes, annotations = [], []
    whole = view.window_ns[1] - view.window_ns[0]
    top = min(places.tops, default=0)
    for found, what in view.scene.missing:
        for low, high in found:
            x0, x1 = ((edge - zero_ns) / unit_ns for edge in (low, high))
            shapes.append({
                "type": "rect", "xref": "x", "x0": x0, "x1": x1, "yref": "y", "y0": top,
                "y1": places.bottom, "fillcolor": style.MUTED, "opacity": 0.18,
                "line": {"width": 1, "dash": "dot", "color": style.MUTED}, "layer": "below",
            })  # fmt: skip
            if high - low >= _LABEL_SHARE * whole:
                annotations.append({
                    "text": f"{what}<br>{duration(high - low)}", "showarrow": False,
                    "xref": "x", "x": (x0 + x1) / 2, "yref": "y", "y": (top + places.bottom) / 2,
                    "font": {"size": 12, "color": style.MUTED},
                })  # fmt: skip
    return shapes, annotations
