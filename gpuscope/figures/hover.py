"""Hover texts of a timeline."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpuscope.figures import style
from gpuscope.figures.labels import Class, partition_label
from gpuscope.figures.text import duration, escape
from gpuscope.figures.tracks import Tracks
from gpuscope.figures.view import View

_CHARACTERS = 44_000
"""What the names in a frame may take; with many spans each is cut shorter."""
_SHORTEST, _LONGEST = 32, 120

_escaped = lru_cache(maxsize=65_536)(escape)


def template(tracks: Tracks, bar_class: Class, unit: str) -> str:
    """Return what Plotly puts around the texts of a class."""
    kind, partition, _ = bar_class
    lines = [style.KIND_STYLES[kind].label]
    if partition is not None:
        lines[0] += f", partition {escape(partition_label(tracks.names, partition or None))}"
    sources = tracks.classes.get(bar_class, ())
    if len(sources) == 1:
        lines.append(f"source: {escape(sources[0], 40)}")
    # A percent sign would make Plotly look for a variable.
    constant = "<br>".join(lines).replace("%", "&#37;")
    return f"<b>%{{hovertext}}<br>from %{{base:,.3f}} {unit}<br>{constant}<extra></extra>"


def hovers(view: View) -> list[str]:
    """Return one text a drawn span, for the template of its class."""
    tracks, rows = view.tracks, view.found.rows
    limit = min(_LONGEST, max(_SHORTEST, _CHARACTERS // max(1, len(rows))))
    coded = tracks.coded["name"]
    names = [_short(coded.values[code], limit) for code in coded.codes[rows].tolist()]
    tails = _tails(view)
    early, late = (column.tolist() for column in tracks.uncertainties(rows))
    times = zip(tracks.start_ns[rows].tolist(), tracks.end_ns[rows].tolist(), strict=True)
    low, high = view.found.window_ns
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
        said.append(f"{names[place]}</b><br>{lasts}{tails[place]}")
    return said


def _short(text: str, limit: int) -> str:
    said = _escaped(text, limit)
    # Letters outside ASCII and escapes take more than a byte each.
    return said if 2 * len(said.encode()) <= 3 * limit else _escaped(text, limit // 3)


def _tails(view: View) -> list[str]:
    """Return what rows that differ in little else share: stream, intention, status."""
    tracks, rows = view.tracks, view.found.rows
    columns = ("partition", "intended_partition", "stream", "status", "source")
    codes = zip(*(tracks.coded[name].codes[rows].tolist() for name in columns), strict=True)
    made: dict[tuple[Any, ...], str] = {}
    tails = []
    for known in zip(view.classes, view.is_host, codes, strict=True):
        if known not in made:
            bar_class, is_host, of_columns = known
            values = [
                tracks.coded[name].values[code]
                for name, code in zip(columns, of_columns, strict=True)
            ]
            one_source = len(tracks.classes[bar_class]) == 1
            made[known] = _tail(tracks, values, is_host=is_host, one_source=one_source)
        tails.append(made[known])
    return tails


def _tail(tracks: Tracks, values: list[Any], *, is_host: bool, one_source: bool) -> str:
    partition, intended, stream, status, source = values
    lines = []
    if stream is not None or not is_host:
        known = escape(tracks.names.stream_name(stream), 60)
        lines.append(known if "stream" in known else f"stream {known}")
    if intended is not None and intended != partition:
        lines.append(f"<b>intended for partition {escape(intended, 40)}</b>")
    if status is not None:
        lines.append(f"status {escape(status, 60)}")
    if not one_source:
        lines.append(f"source: {escape(source, 40)}")
    return "".join(f"<br>{line}" for line in lines)
