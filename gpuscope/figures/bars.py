"""The marks of a timeline as plain properties: bars for spans, arrows for event waits."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Array
from gpuscope.figures import style
from gpuscope.figures.hover import hovers, template
from gpuscope.figures.labels import Class
from gpuscope.figures.places import Places
from gpuscope.figures.style import Properties
from gpuscope.figures.text import escape
from gpuscope.figures.tracks import Tracks
from gpuscope.figures.view import View

MAX_ARROWS = 200
_MAX_TEXTS = 300
_TEXTED = "range"


def bar_properties(
    view: View, places: Places, zero_ns: int, unit_ns: float
) -> dict[Class, Properties]:
    """Return what changes from view to view of the bar trace of each class that has spans.

    Times are clipped to the window and given since ``zero_ns`` in units of ``unit_ns``.
    ``customdata`` holds the spans' rows.
    """
    tracks, rows = view.tracks, view.found.rows
    low, high = view.found.window_ns
    start = np.maximum(tracks.start_ns[rows], low)
    width = (np.minimum(tracks.end_ns[rows], high) - start) / unit_ns
    base = ((start - zero_ns) / unit_ns).tolist()
    says = hovers(view)
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
            **_texts(view, bar_class, rows[mine]),
        }
        for bar_class, mine in members.items()
    }


def _texts(view: View, bar_class: Class, rows: Array) -> Properties:
    """Return what stands in the bars of ranges, where they are few enough."""
    if bar_class[0] != _TEXTED:
        return {}
    if len(rows) > _MAX_TEXTS:
        return {"text": [""] * len(rows)}
    names = view.tracks.coded["name"]
    return {"text": [escape(names.values[code], 40) for code in names.codes[rows].tolist()]}


def look(tracks: Tracks, bar_class: Class, colours: dict[str, str], unit: str) -> Properties:
    """Return what stays the same of the bar trace of a class."""
    kind, partition, is_open = bar_class
    how = style.KIND_STYLES[kind]
    label = how.label + (", open" if is_open else "")
    if partition is None:
        colour, name = style.HOST_COLOUR, label
    elif not partition:
        colour, name = style.WHOLE_GPU_COLOUR, f"whole GPU: {label}"
    else:
        colour, name = colours[partition], f"{escape(partition, 24)}: {label}"
    marker: Properties = {
        "color": style.tinted(colour, 0.7 * how.strength if is_open else how.strength),
        "line": {"width": 0.7, "color": style.darker(colour)},
    }
    if how.pattern or is_open:
        marker["pattern"] = {"shape": how.pattern or "-", "size": 6, "solidity": 0.35}
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "marker": marker,
        "hovertemplate": template(tracks, bar_class, unit),
        "insidetextanchor": "start",
        "textangle": 0,
        "textposition": "inside" if kind == _TEXTED else "none",
        "textfont": {"size": 11, "color": style.INK},
        "cliponaxis": True,
    }


def arrows(
    view: View, places: Places, zero_ns: int, unit_ns: float, most: int = MAX_ARROWS
) -> tuple[Properties, int]:
    """Return event waits as one line trace, and how many in the window have no arrow.

    Arrows lead from bar to bar, the earliest first: from the end of the span that recorded
    the event to the start of the one that waited for it.
    """
    tracks, waits = view.tracks, view.tracks.waits
    cause, effect = waits.cause, waits.effect
    low, high = view.found.window_ns
    ends, starts = tracks.end_ns[cause], tracks.start_ns[effect]
    shown = np.zeros(len(tracks.tracks) + 1, bool)
    shown[view.found.tracks] = True
    seen = np.flatnonzero(
        (np.minimum(ends, starts) < high) & (np.maximum(ends, starts) > low)
        & shown[tracks.track[cause]] & shown[tracks.track[effect]]
    )  # fmt: skip
    rows = np.sort(view.found.rows)
    both = seen[_among(cause[seen], rows) & _among(effect[seen], rows)]
    both = both[np.argsort(starts[both], kind="stable")][:most]
    at = {row: place for place, row in enumerate(view.found.rows.tolist())}
    x: list[float | None] = []
    y: list[float | None] = []
    for wait in both.tolist():
        x += [(int(ends[wait]) - zero_ns) / unit_ns, (int(starts[wait]) - zero_ns) / unit_ns, None]
        for row in (int(cause[wait]), int(effect[wait])):
            place = at[row]
            y.append(places.bar(view.place[place], view.lanes[place])[0])
        y.append(None)
    return {"x": x, "y": y, "marker.size": [0, 9, 0] * len(both)}, len(seen) - len(both)


def _among(values: Array, ascending: Array) -> Array:
    place = np.searchsorted(ascending, values)
    among: Array = np.r_[ascending, -1][place] == values
    return among


def arrow_look() -> Properties:
    """Return what stays the same of the arrows' trace."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "event wait",
        "line": {"width": 1.3, "color": style.INK},
        "marker": {
            "symbol": "arrow", "angleref": "previous", "color": style.INK, "opacity": 1,
            "line": {"width": 0},
        },
        "hoverinfo": "skip",
    }  # fmt: skip
