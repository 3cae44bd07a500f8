"""A timeline as a table: for who does not see the picture, from the same scene."""

from __future__ import annotations

from html import escape

import numpy as np

from gpuscope.timeline.picture import Panel, Picture
from gpuscope.timeline.text import clean

_MOST = 100
"""Rows of a table: more are counted."""
_NAME = 60


def table_of(picture: Picture) -> str:
    """Return HTML, folded: for each span drawn its row, name, start and duration, by start."""
    tables = "".join(_table(panel, picture.unit) for panel in picture.panels)
    return f"<details><summary>This timeline as a table</summary>{tables}</details>"


def _table(panel: Panel, unit: str) -> str:
    scene = panel.scene
    names = scene.tracks.coded["name"]
    order = np.lexsort((scene.rows, scene.start_ns))
    lines = []
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
        lines.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    heads = ("row", "name", f"start ({unit})", f"duration ({unit})")
    head = "".join(f"<th scope='col'>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    missing = scene.total - len(lines)
    note = f"<p>{missing:,} further spans are not listed.</p>" if missing > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"
