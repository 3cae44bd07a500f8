"""Fragments of HTML that the dashboard shows; every foreign text in them is escaped."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import unescape

import plotly.graph_objects as go

from gpuscope import _text
from gpuscope._columns import TOGETHER, readable
from gpuscope._tables import html_table
from gpuscope._text import safe
from gpuscope.analysis.part import PartKind
from gpuscope.analysis.result import Row
from gpuscope.timeline.raster import png

_MUTED = "color:var(--jp-ui-font-color2,#57606a)"

text = _text.shown
"""Returns foreign text, harmless in HTML between tags."""

_PARTS: dict[PartKind, str] = {
    "launch call": "launch",
    "on the way": "way",
    "SMs held": "sms",
    "priority": "sms",
    "running": "run",
    "not looking": "look",
    "host": "host",
}
"""Kind of part → its class in ``verdict.css``; others wait for other work."""


def note(words: str) -> str:
    """Return a quiet remark."""
    return f'<div style="line-height:1.4;{_MUTED}">{text(words)}</div>'


def section(title: str, lines: Iterable[str]) -> str:
    """Return lines of HTML under a title; nothing without lines."""
    listed = "".join(f"<li>{line}</li>" for line in lines)
    return f'<h4 style="margin:4px 0 0">{text(title)}</h4><ul>{listed}</ul>' if listed else ""


def swatch(color: str) -> str:
    """Return a small square of a partition's colour; nothing where it has none."""
    if not re.fullmatch("#[0-9a-fA-F]{6}", color):
        return ""
    return (
        '<span aria-hidden="true" style="display:inline-block;width:10px;height:10px;'
        f'margin-right:4px;background:{color}"></span>'
    )


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table with room between its columns."""
    return html_table(rows, limit=60, style="padding:3px 7px 3px 0;")


def workloads(rows: Sequence[Row], background: Sequence[str]) -> str:
    """Return a row a workload, those that are timed first."""
    ordered = sorted(rows, key=lambda row: row["workload"] in background)
    return table(readable(ordered, full=True, without=("setting", "incomplete", *TOGETHER)))


def picture(figure: go.Figure) -> str:
    """Return a timeline's figure as a picture, for a page that runs no script."""
    title = re.sub("<[^>]*>", "", figure.layout.title.text or "")
    data = base64.b64encode(png(figure)).decode()
    return (
        f'<img style="max-width:100%" alt="{safe(unescape(title))}" '
        f'src="data:image/png;base64,{data}">'
    )


def part_class(kind: PartKind) -> str:
    """Return what of ``verdict.css`` draws a part of a call, in the colour ``--c``."""
    return _PARTS.get(kind, "queue")
