"""Fragments of HTML that the dashboard shows; every foreign text in them is escaped."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import unescape

import plotly.graph_objects as go

from gpuscope import _text
from gpuscope._columns import TOGETHER, readable
from gpuscope._tables import html_table
from gpuscope._text import safe
from gpuscope.analysis.result import Row
from gpuscope.timeline.raster import png

_MUTED = "color:var(--jp-ui-font-color2,#57606a)"

text = _text.shown
"""Returns foreign text, harmless in HTML between tags."""


def note(words: str) -> str:
    """Return a quiet remark."""
    return f'<div style="line-height:1.4;{_MUTED}">{text(words)}</div>'


def card(
    title: str,
    lines: Sequence[str],
    *,
    good: bool | None = None,
    more: Sequence[str] = (),
    wide: bool = False,
) -> str:
    """Return a box with a title; ``lines`` are HTML. Good and bad have a colour, too.

    Parameters
    ----------
    more
        Lines that open at a click.
    wide
        Whether it has a row to itself.
    """
    edge = {None: "var(--jp-border-color1,#bdbdbd)", True: "#2e7d32", False: "#c62828"}[good]
    hidden = "".join(f"<div>{line}</div>" for line in more)
    details = (
        f'<details><summary style="{_MUTED};position:absolute;top:4px;right:10px">Details</summary>'
        f"{hidden}</details>"
    )
    return (
        f'<div style="flex:1 1 {"100%" if wide else "160px"};min-width:0;'
        "box-sizing:border-box;position:relative;padding:4px 10px;border:1px solid "
        f'var(--jp-border-color1,#bdbdbd);border-left:5px solid {edge};border-radius:3px">'
        f'<div style="font-weight:600">{text(title)}</div>'
        f"{''.join(f'<div>{line}</div>' for line in lines)}{details if more else ''}</div>"
    )


def side_by_side(cards: Sequence[str]) -> str:
    """Return cards in a row, as many as have room."""
    return (
        '<div class="gpuscope-verdicts" style="display:flex;flex-wrap:wrap;gap:6px;'
        'line-height:1.35">'
        f"{''.join(cards)}</div>"
    )


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
    return html_table(rows, limit=60, style="padding:3px 14px 3px 0;")


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
