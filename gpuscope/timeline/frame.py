"""One view of a timeline as plain data: what the static figure and the widget both draw."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.arrows import waits_and_hazards
from gpuscope.timeline.labels import Class, Places, partition_label
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import clean, duration, escape
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.view import LANES, View
from gpuscope.trace.columns import combined

_CHARACTERS = 44_000
"""What the names in a frame may take; with many spans each is cut shorter."""
_SHORTEST, _LONGEST = 32, 120
OUTSIDE = "ESCAPED"
"""What a tooltip says first of a kernel that ran outside the partition it was intended for."""

_escaped = lru_cache(maxsize=65_536)(escape)


def shared_lines(tracks: Tracks, bar_class: Class) -> list[str]:
    """Return what the tooltips of a class end with, in plain text."""
    lines = [style.KIND_STYLES[bar_class.kind].label]
    if bar_class.partition is not None:
        where = partition_label(tracks.names, bar_class.partition or None)
        lines[0] += f", partition {where}" if bar_class.partition else f", {where}"
    sources = tracks.classes.get(bar_class, ())
    if len(sources) == 1:
        lines.append(f"source: {clean(sources[0], 40)}")
    return lines


def template(tracks: Tracks, bar_class: Class, unit: str) -> str:
    """Return what Plotly puts around the texts of a class."""
    lines = [escape(line) for line in shared_lines(tracks, bar_class)]
    # A percent sign would make Plotly look for a variable.
    constant = "<br>".join(lines).replace("%", "&#37;")
    return f"<b>%{{hovertext}}<br>starts at %{{base:,.3f}} {unit}<br>{constant}<extra></extra>"


def hovers(view: View) -> list[str]:
    """Return one text a drawn span, for the template of its class."""
    tracks, rows = view.tracks, view.rows
    limit = min(_LONGEST, max(_SHORTEST, _CHARACTERS // max(1, len(rows))))
    coded = tracks.coded["name"]
    names = [_short(coded.values[code], limit) for code in coded.codes[rows].tolist()]
    lines, number = tails(view)
    ends = ["".join(map(_emphasised, own)) for own in lines]
    early, late = (column.tolist() for column in tracks.uncertainties(rows))
    times = zip(tracks.start_ns[rows].tolist(), tracks.end_ns[rows].tolist(), strict=True)
    low, high = view.window_ns
    said = []
    for place, (start, end) in enumerate(times):
        is_open = view.is_open[place]
        if is_open:
            lasts = f"OPEN: its end was not seen; {duration(high - start)} until the window's end"
        else:
            lasts = duration(end - start) if end > start else "an instant"
            if end > high:
                lasts += f", {duration(end - high)} of it after the window"
        if start < low:
            lasts += f", {duration(low - start)} of it before the window"
        if early[place]:
            lasts += f"<br>true start up to {duration(early[place])} later"
        if late[place] and not is_open:
            lasts += f"<br>true end up to {duration(late[place])} earlier"
        said.append(f"{names[place]}</b><br>{lasts}{ends[number[place]]}")
    return said


def _short(text: str, limit: int) -> str:
    said = _escaped(text, limit)
    # Letters outside ASCII and escapes take more than a byte each.
    return said if 2 * len(said.encode()) <= 3 * limit else _escaped(text, limit // 3)


def _emphasised(line: str) -> str:
    said = escape(line)
    return f"<br><b>{said}</b>" if line.startswith(OUTSIDE) else f"<br>{said}"


def tails(view: View) -> tuple[list[list[str]], Array]:
    """Return what tooltips say of stream, intention and status, and which of it each span has.

    Returns
    -------
    tuple
        Lines of plain text, of which many spans have the same; drawn span → number of its own.
    """
    tracks, rows = view.tracks, view.rows
    columns = ("partition", "intended_partition", "stream", "status", "source")
    coded = [tracks.coded[name].codes[rows] for name in columns]
    classes, of_class = view.classed
    first, number = combined(of_class, *coded)
    lines = []
    for at in first.tolist():
        bar_class = classes[of_class[at]]
        values = [
            tracks.coded[name].values[codes[at]] for name, codes in zip(columns, coded, strict=True)
        ]
        lines.append(_tail(tracks, bar_class, values))
    return lines, number


def _tail(tracks: Tracks, bar_class: Class, values: list[Any]) -> list[str]:
    partition, intended, stream, status, source = values
    lines = []
    if stream is not None or bar_class.partition is not None:
        known = clean(tracks.names.stream_name(stream), 60)
        lines.append(known if "stream" in known else f"stream {known}")
    if intended is not None and intended != partition:
        escaped = f"{OUTSIDE}: " if bar_class.escaped else ""
        lines.append(f"{escaped}intended for partition {clean(intended, 40)}")
    if status is not None:
        lines.append(f"status {clean(status, 60)}")
    if len(tracks.classes[bar_class]) != 1:
        lines.append(f"source: {clean(source, 40)}")
    return lines


_MAX_TEXTS = 300
_NAME = 60
"""Characters of a name in a bar at most."""
_WIDTH, _LETTER, _LEAST_LETTERS = 850, 6.2, 4
"""Px of a plot and of a letter, about, and with how few letters a name still tells something."""


def bar_properties(
    view: View, places: Places, zero_ns: int, unit_ns: float
) -> dict[Class, Properties]:
    """Return what changes from view to view of the bar trace of each class that has spans.

    Times are clipped to the window and given since ``zero_ns`` in units of ``unit_ns``. Names are
    as long as their bars are. ``customdata`` holds the spans' rows.
    """
    tracks, rows = view.tracks, view.rows
    low, high = view.window_ns
    start = np.maximum(tracks.start_ns[rows], low)
    width = (np.minimum(tracks.end_ns[rows], high) - start) / unit_ns
    base = ((start - zero_ns) / unit_ns).tolist()
    says = hovers(view)
    texts = _texts(view, width * unit_ns * _WIDTH / (high - low))
    heights = [places.bar(place, lane) for place, lane in zip(view.place, view.lanes, strict=True)]
    centre, size = np.array(heights, np.float32).reshape(-1, 2).T
    members: dict[Class, list[int]] = {}
    for place, bar_class in enumerate(view.classes):
        members.setdefault(bar_class, []).append(place)
    return {
        bar_class: {
            "base": [base[place] for place in mine],
            "x": width[mine],
            "y": centre[mine],
            "width": size[mine],
            "hovertext": [says[place] for place in mine],
            "customdata": rows[mine],
            "text": [texts[place] for place in mine],
        }
        for bar_class, mine in members.items()
    }


def _texts(view: View, pixels: Array) -> list[str]:
    """Return the names that stand in bars: of the widest, as fitting them takes Plotly long."""
    room = (pixels - 10) // _LETTER
    names = view.tracks.coded["name"]
    texts = [""] * len(pixels)
    for place in np.flatnonzero(room >= _LEAST_LETTERS)[:_MAX_TEXTS].tolist():
        name = str(names.values[names.codes[view.rows[place]]]).removeprefix("void ")
        texts[place] = escape(name, int(min(room[place], _NAME)))
    return texts


def look(
    tracks: Tracks,
    bar_class: Class,
    colours: dict[str, str],
    unit: str,
    outlined: Callable[[str], str] = style.darker,
) -> Properties:
    """Return what stays the same of the bar trace of a class; ``outlined`` colours its outline."""
    kind, partition, is_open, escaped = bar_class
    how = style.KIND_STYLES[kind]
    label = how.label.partition(",")[0] + (", open" if is_open else "")
    if partition is None:
        colour, name = style.HOST_COLOUR, label
    elif not partition:
        colour, name = style.WHOLE_GPU_COLOUR, f"whole GPU: {label}"
    else:
        colour, name = colours[partition], f"{escape(partition, 24)}: {label}"
    if escaped:
        colour, name = style.ESCAPED, f"<b>{OUTSIDE}</b> to {name}"
    fill = style.tinted(colour, 0.7 * how.strength if is_open else how.strength)
    marker: Properties = {"color": fill, "line": {"width": 0.7, "color": outlined(colour)}}
    if how.pattern or is_open:
        marker["pattern"] = {"shape": how.pattern or "-", "size": 6, "solidity": 0.35}
    if escaped:  # its outline shows where the bar is too narrow to
        marker["line"] = {"width": 3, "color": colour}
        marker["pattern"] = {
            "shape": "x", "size": 6, "solidity": 0.2, "fillmode": "overlay", "fgcolor": style.INK,
        }  # fmt: skip
    # Or the pattern, and on a dark page what is behind it, would run through the letters.
    around = ", ".join([f"0 0 2px {fill}"] * 6) if how.pattern else "none"
    return {
        "type": "bar", "orientation": "h", "name": name, "marker": marker,
        "legendrank": 1 if escaped else 1000,
        "hovertemplate": template(tracks, bar_class, unit), "cliponaxis": True,
        "insidetextanchor": "start", "textangle": 0, "textposition": "inside",
        "textfont": {"size": 11, "color": style.on(fill), "shadow": around},
    }  # fmt: skip


def mark_look(ink: str, symbol: str = "triangle-down") -> Properties:
    """Return what stays the same of a trace of marks: of escapes, or of hazards."""
    return {
        "mode": "markers", "showlegend": False, "hoverinfo": "text", "cliponaxis": False,
        "marker": {"symbol": symbol, "size": 11, "color": style.ESCAPED,
                   "line": {"width": 1.5, "color": ink}},
    }  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """What is drawn of one window.

    Attributes
    ----------
    bars
        Class → base, x, y, width, hovertext, text, customdata (rows) of its bar trace. Only
        classes that have spans in the window.
    arrows
        x, y and marker.size of the waits' trace; ``left_out`` waits have none.
    hazards
        The same of hazards.
    """

    bars: dict[Class, Properties]
    arrows: Properties
    hazards: Properties
    left_out: int


def frame_of(
    view: View,
    places: Places,
    *,
    zero_ns: int,
    unit_ns: float = 1e3,
) -> Frame:
    """Return what is drawn of a view.

    Parameters
    ----------
    places
        Where the tracks of the view stand.
    zero_ns
        Where the time axis starts to count.
    unit_ns
        Its unit, µs by default.
    """
    return Frame(
        bar_properties(view, places, zero_ns, unit_ns),
        *waits_and_hazards(view, places, zero_ns, unit_ns),
    )


def statement(view: View, *, besides: Collection[str] = ()) -> str:
    """Say in plain text what is drawn and what is not.

    Parameters
    ----------
    besides
        Kinds that are drawn elsewhere in the figure.
    """
    total, drawn = view.total, len(view.rows)
    if not total:
        said = ["no spans in the window"]
    elif drawn == total:
        said = [f"all {total:,} spans of the window drawn"]
    else:
        column = duration((view.window_ns[1] - view.window_ns[0]) // (len(view.scene.edges) - 1))
        said = [
            f"{drawn:,} of {total:,} spans drawn as themselves",
            f"tracks of narrow spans drawn in columns of {column}, as high as they were busy",
        ]
        if view.hidden_tracks:
            said.append(f"{view.hidden_tracks:,} less busy tracks not shown")
    if escapes := int(view.scene.escapes.sum()):
        said.append(f"{escapes:,} escape{'s' if escapes > 1 else ''} marked")
    opened = sum(view.is_open)
    if opened:
        said.append(f"{opened:,} open, drawn to the window's end")
    if view.crowded:
        names = ", ".join(clean(name, 30) for name in view.crowded[:3])
        said.append(f"more than {LANES} at once share a line in {names}")
    unseen = [
        f"{clean(kind)} ({count:,})"
        for kind, count in view.tracks.elsewhere().items()
        if kind not in besides
    ]
    if unseen:
        said.append(f"rows of other kinds not shown: {', '.join(unseen)}")
    return "; ".join(said)
