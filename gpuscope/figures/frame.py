"""One view of a timeline as plain data: what the static figure and the widget both draw."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from gpuscope._types import Array
from gpuscope.figures import style
from gpuscope.figures.arrows import waits_and_hazards
from gpuscope.figures.labels import Class, Places, partition_label
from gpuscope.figures.style import Properties
from gpuscope.figures.text import clean, duration, escape
from gpuscope.figures.tracks import Tracks
from gpuscope.figures.view import LANES, View
from gpuscope.trace.columns import combined
from gpuscope.trace.query import Selection

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
    tracks, rows = view.tracks, view.found.rows
    limit = min(_LONGEST, max(_SHORTEST, _CHARACTERS // max(1, len(rows))))
    coded = tracks.coded["name"]
    names = [_short(coded.values[code], limit) for code in coded.codes[rows].tolist()]
    lines, number = tails(view)
    ends = ["".join(map(_emphasised, own)) for own in lines]
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
    tracks, rows = view.tracks, view.found.rows
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


SHADES = 10
_FAINTEST, _STRONGEST = 0.2, 0.85
_PX = 2
_MARGIN = 2
"""Px of a track above and below its part of the picture."""


def shades(places: Places, colours: dict[str, str]) -> list[str]:
    """Return the colour of each track's shading."""
    return [
        style.HOST_COLOUR if track.is_host
        else style.WHOLE_GPU_COLOUR if track.partition is None
        else colours[track.partition]
        for track in places.tracks
    ]  # fmt: skip


def coverage_image(
    found: Selection, places: Places, colours: dict[str, str], zero_ns: int, unit_ns: float
) -> Properties | None:
    """Return the picture as a layout image for Plotly; ``None`` if every span has a bar.

    A column is as opaque as its time is covered, and never quite empty where a span begins.
    """
    if not found.merged:
        return None
    names = shades(places, colours)
    palette = list(dict.fromkeys(names))
    shade = np.maximum(np.ceil(found.coverage * SHADES), found.begins > 0).astype(np.uint8)
    first = np.array([palette.index(name) * SHADES for name in names], np.uint8)[:, None]
    spare = np.zeros((1, shade.shape[1]), np.uint8)
    pixels = np.concatenate([np.where(shade, first + shade, 0), spare]).astype(np.uint8)
    track = np.full(places.bottom // _PX, -1)
    for index, (top, height) in enumerate(zip(places.tops, places.heights, strict=True)):
        track[(top + _MARGIN) // _PX : (top + height - _MARGIN) // _PX] = index
    return layout_image(
        png(pixels[track], palette),
        x=(found.origin_ns - zero_ns) / unit_ns,
        length=found.coverage.shape[1] * found.column_ns / unit_ns,
        height=places.bottom,
    )


def layout_image(
    picture: bytes, *, x: float, length: float, height: float, axis: str = ""
) -> Properties:
    """Return a picture as a layout image that lies under the traces and moves with the axes."""
    return {
        "source": "data:image/png;base64," + base64.b64encode(picture).decode(),
        "xref": "x", "x": x, "sizex": length, "xanchor": "left",
        "yref": f"y{axis}", "y": 0, "sizey": height, "yanchor": "top",
        "sizing": "stretch", "layer": "below",
    }  # fmt: skip


def png(pixels: Array, colours: Sequence[str]) -> bytes:
    """Encode rows of pixels: 0 is empty, else colour · ``SHADES`` + shade, shades from 1 on."""
    alphas = np.linspace(255 * _FAINTEST, 255 * _STRONGEST, SHADES).astype(np.uint8).tobytes()
    image = Image.fromarray(pixels)
    image.putpalette(b"\0\0\0" + b"".join(bytes.fromhex(colour[1:]) * SHADES for colour in colours))
    file = io.BytesIO()
    # More compression takes eight times as long and saves a fifth.
    image.save(file, "PNG", transparency=b"\0" + alphas * len(colours), compress_level=1)
    return file.getvalue()


_MAX_TEXTS = 300
_NAME = 60
"""Characters of a name in a bar at most."""
_WIDTH, _LETTER, _LEAST_LETTERS = 850, 6.2, 4
"""Px of a plot and of a letter, about, and with how few letters a name still tells something."""
_MARK_PX = 7
"""How far above the middle of a bar the mark of an escape stands."""


def bar_properties(
    view: View, places: Places, zero_ns: int, unit_ns: float, seen_ns: float
) -> dict[Class, Properties]:
    """Return what changes from view to view of the bar trace of each class that has spans.

    Times are clipped to the window and given since ``zero_ns`` in units of ``unit_ns``. Names are
    as long as their bars are where ``seen_ns`` are seen at once. ``customdata`` holds the spans'
    rows.
    """
    tracks, rows = view.tracks, view.found.rows
    low, high = view.found.window_ns
    start = np.maximum(tracks.start_ns[rows], low)
    width = (np.minimum(tracks.end_ns[rows], high) - start) / unit_ns
    base = ((start - zero_ns) / unit_ns).tolist()
    says = hovers(view)
    texts = _texts(view, width * unit_ns * _WIDTH / seen_ns)
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
        name = str(names.values[names.codes[view.found.rows[place]]]).removeprefix("void ")
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


def escape_marks(bars: dict[Class, Properties]) -> Properties:
    """Return where the marks of escapes stand: above the middle of their bars."""
    mine = [bar for bar_class, bar in bars.items() if bar_class.escaped]
    x = [np.asarray(bar["base"]) + bar["x"] / 2 for bar in mine]
    y = [bar["y"] - _MARK_PX for bar in mine]
    return {"x": np.concatenate([np.zeros(0), *x]), "y": np.concatenate([np.zeros(0), *y])}


def escape_look(ink: str) -> Properties:
    """Return what stays the same of the trace of these marks."""
    return {
        "mode": "markers", "showlegend": False, "hoverinfo": "skip", "cliponaxis": False,
        "marker": {"symbol": "triangle-down", "size": 11, "color": style.ESCAPED,
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
    image
        Layout image of what has no bar; ``None`` where every span has one.
    """

    bars: dict[Class, Properties]
    arrows: Properties
    hazards: Properties
    left_out: int
    image: Properties | None


def frame_of(
    view: View,
    places: Places,
    colours: dict[str, str],
    *,
    zero_ns: int,
    unit_ns: float = 1e3,
    seen_ns: int | None = None,
) -> Frame:
    """Return what is drawn of a view.

    Parameters
    ----------
    places
        Where the tracks of the view stand.
    colours
        Partition → colour, as of ``style.partition_colours``.
    zero_ns
        Where the time axis starts to count.
    unit_ns
        Its unit, µs by default.
    seen_ns
        How much of the window is seen at once, if not all.
    """
    low, high = view.found.window_ns
    return Frame(
        bar_properties(view, places, zero_ns, unit_ns, seen_ns or high - low),
        *waits_and_hazards(view, places, zero_ns, unit_ns),
        coverage_image(view.found, places, colours, zero_ns, unit_ns),
    )


def statement(view: View, *, besides: Collection[str] = ()) -> str:
    """Say in plain text what is drawn and what is not.

    Parameters
    ----------
    besides
        Kinds that are drawn elsewhere in the figure.
    """
    total, drawn = view.total, len(view.found.rows)
    if total > drawn:
        merged = view.found.merged
        said = [f"{drawn:,} of {total:,} spans drawn, widest first"]
        if merged:
            which = "narrower ones" if drawn else "spans"
            said.append(f"{merged:,} {which} merged into the shading of their track")
        if view.hidden_tracks:
            hidden = total - view.found.total
            said.append(f"{view.hidden_tracks:,} less busy tracks not shown, with {hidden:,} spans")
    elif total:
        said = [f"all {total:,} spans of the window drawn"]
    else:
        said = ["no spans in the window"]
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
