"""Overlays on the bars: dependencies, selection, measurement."""

from __future__ import annotations

from gpuscope.figures.style import Properties
from gpuscope.figures.text import duration
from gpuscope.trace.query import OPEN_NS
from gpuscope.widgets.snapshot import Drawn, Snapshot


def links(drawn: Drawn) -> Properties:
    """Return arrows from spans to those that had to follow them."""
    x: list[float | None] = []
    y: list[float | None] = []
    for cause, effect in drawn.snapshot.links:
        (_, end), (start, _) = _span(drawn, cause), _span(drawn, effect)
        x += [min(end, start), start, None]
        y += [drawn.place(cause)[0], drawn.place(effect)[0], None]
    return {"x": x, "y": y}


def outlines(drawn: Drawn) -> Properties:
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


def ruler(snapshot: Snapshot) -> Properties:
    """Return a line at each point that is measured from and to, and the time between."""
    x: list[float | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for mark in snapshot.marks:
        x += [on_axis(snapshot, mark), on_axis(snapshot, mark), None]
        y += [0, snapshot.height, None]
        text += ["", "", ""]
    if len(snapshot.marks) == 2:
        first, last = sorted(snapshot.marks)
        at = snapshot.height * 0.04
        x += [
            on_axis(snapshot, first),
            on_axis(snapshot, (first + last) / 2),
            on_axis(snapshot, last),
        ]
        y += [at, at, at]
        text += ["", f"<b>{duration(last - first)}</b>", ""]
    return {"x": x, "y": y, "text": text}


def ink(overlay: Properties, ink: str) -> None:
    """Add an overlay's colours."""
    # Whole properties only: one update with `marker` here and `marker.color` there loses some.
    overlay["line"] = {"color": ink, "width": 2}
    overlay["textfont"] = {"color": ink, "size": 14}
    overlay["marker"] = {
        "symbol": "arrow", "angleref": "previous", "color": ink,
        "size": [0, 10, 0] * (len(overlay["x"]) // 3),
    }  # fmt: skip


def on_axis(snapshot: Snapshot, time_ns: float) -> float:
    """Return where a time is on the axis."""
    return (time_ns - snapshot.zero_ns) / 1e3


def _span(drawn: Drawn, row: int) -> tuple[float, float]:
    """Return where a span starts and ends on the axis, an open one at the edge of the frame."""
    tracks, edge = drawn.snapshot.tracks, drawn.view.found.window_ns[1]
    start, end = int(tracks.start_ns[row]), int(tracks.end_ns[row])
    return on_axis(drawn.snapshot, start), on_axis(
        drawn.snapshot, max(edge, start) if end == OPEN_NS else end
    )
