"""Figures as tables: for who does not see the picture, from the same data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape, unescape

import numpy as np
import plotly.graph_objects as go

from gpuscope._text import shown
from gpuscope._types import Untyped
from gpuscope.timeline.picture import Panel, Picture
from gpuscope.timeline.text import clean

_MOST = 100
"""Rows of a table: more are counted."""
_NAME = 60
_NAMED = """<script>(() => {
const own = document.currentScript, output = own.closest(".jp-OutputArea-child");
const picture = output?.previousElementSibling?.querySelector(".plot-img");
if (picture) picture.alt = own.previousElementSibling.dataset.title;
})()</script>"""
"""Name the picture in the output above, which JupyterLab's renderer of figures leaves without."""


def folded(tables: str, title: str | None) -> str:
    """Return tables as they stand below their figure, whose picture they name by its title."""
    text = clean(plain(title or ""), 4 * _NAME)
    head = f'<details data-title="{escape(text)}"><summary>This figure as a table</summary>'
    return f"{head}{tables}</details>{_NAMED}"


def plain(text: str) -> str:
    """Return a text of a figure without its tags."""
    return " ".join(unescape(re.sub(r"<[^<>]*>", " ", text)).split())


def table_of(picture: Picture) -> str:
    """Return HTML: for each span drawn its row, name, start and duration, by start."""
    return "".join(_table(panel, picture.unit) for panel in picture.panels)


def table_of_points(figure: go.Figure) -> str:
    """Return HTML: the points of each curve or series of bars; of many, as many as a table has."""
    drawn = [
        trace
        for trace in figure.data
        if trace.type in ("scatter", "bar") and trace.x is not None and trace.y is not None
    ]
    rows = []
    for trace in drawn:
        points = [pair for pair in zip(trace.x, trace.y, strict=True) if None not in pair]
        most = min(len(points), max(2, _MOST // len(drawn)))
        heading, name = _heading(figure, trace), clean(plain(trace.name or ""), 2 * _NAME)
        thinned = np.linspace(0, len(points) - 1, most).round().astype(int).tolist()
        rows += [(heading, name, *map(_value, points[at])) for at in thinned]
    if not rows:
        return ""
    axis = clean(plain(figure.layout.xaxis.title.text or "x"), _NAME)
    return _html(("figure", "series", axis, "value"), rows)


def _heading(figure: go.Figure, trace: Untyped) -> str:
    """Return what a series' vertical axis is called: by itself, or by the text above it."""
    axis = figure.layout["yaxis" + (trace.yaxis or "y")[1:]]
    above = [
        note.text for note in figure.layout.annotations if axis.domain and note.y == axis.domain[1]
    ]
    return clean(plain(axis.title.text or next(iter(above), "")), _NAME)


def _value(value: object) -> str:
    if isinstance(value, int | float | np.number):
        return f"{value:,.4g}"
    return clean(plain(str(value)), _NAME)


def _html(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th scope='col'>{shown(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{shown(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _table(panel: Panel, unit: str) -> str:
    scene = panel.scene
    names = scene.tracks.coded["name"]
    order = np.lexsort((scene.rows, scene.start_ns))
    rows = []
    for at in order[:_MOST].tolist():
        row = scene.rows[at]
        text = clean(names.values[names.codes[row]], _NAME)
        lasts = (scene.end_ns[at] - scene.start_ns[at]) / panel.unit_ns
        cells = (
            scene.shown[scene.place[at]].label,
            text,
            f"{float(panel.x(scene.start_ns[at])):,.1f}",
            "end not seen" if scene.is_open[at] else f"{lasts:,.1f}",
        )
        rows.append(cells)
    missing = scene.total - len(rows)
    note = f"<p>{missing:,} further spans are not listed.</p>" if missing > 0 else ""
    return _html(("row", "name", f"start ({unit})", f"duration ({unit})"), rows) + note
