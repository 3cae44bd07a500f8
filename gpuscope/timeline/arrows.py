"""Arrows between bars: event waits, collectives, and hazards."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.labels import Places
from gpuscope.timeline.style import Properties
from gpuscope.timeline.view import View

HAZARD = "hazard: in no order"
"""What the legend calls arrows between work that nothing orders."""
_MAX_ARROWS = 200


def arrows(
    view: View,
    places: Places,
    zero_ns: int,
    unit_ns: float,
    pairs: tuple[Array, Array],
    joint: Array | None = None,
) -> tuple[Properties, int]:
    """Return arrows between rows as one line trace, and how many in the window have none.

    Arrows lead from bar to bar, the earliest first: from the end of the first row of a pair, such
    as the span that recorded an event, to the start of the second, which waited for it. Where
    they are ``joint``, in a collective, from the start of the one to the end of the other.
    """
    tracks, (cause, effect) = view.tracks, pairs
    low, high = view.window_ns
    ends, starts = tracks.end_ns[cause], tracks.start_ns[effect]
    if joint is not None:
        ends = np.where(joint, tracks.start_ns[cause], ends)
        starts = np.where(joint, tracks.end_ns[effect], starts)
    shown = np.zeros(len(tracks.tracks) + 1, bool)
    shown[[track.number for track in view.shown]] = True
    seen = np.flatnonzero(
        (np.minimum(ends, starts) < high) & (np.maximum(ends, starts) > low)
        & shown[tracks.track[cause]] & shown[tracks.track[effect]]
    )  # fmt: skip
    rows = view.rows
    both = seen[np.isin(cause[seen], rows) & np.isin(effect[seen], rows)]
    both = both[np.argsort(starts[both], kind="stable")][:_MAX_ARROWS]
    at = {row: place for place, row in enumerate(rows.tolist())}
    x: list[float | None] = []
    y: list[float | None] = []
    for wait in both.tolist():
        x += [(int(ends[wait]) - zero_ns) / unit_ns, (int(starts[wait]) - zero_ns) / unit_ns, None]
        for row in (int(cause[wait]), int(effect[wait])):
            place = at[row]
            y.append(places.bar(view.place[place], view.lanes[place])[0])
        y.append(None)
    return {"x": x, "y": y, "marker.size": [0, 9, 0] * len(both)}, len(seen) - len(both)


def waits_and_hazards(
    view: View, places: Places, zero_ns: int, unit_ns: float
) -> tuple[Properties, Properties, int]:
    """Return the arrows of waits and of hazards, and how many waits have none."""
    waits = view.tracks.waits
    pairs = waits.cause, waits.effect
    drawn, left_out = arrows(view, places, zero_ns, unit_ns, pairs, waits.joint)
    hazards, _ = arrows(view, places, zero_ns, unit_ns, view.tracks.hazards)
    return drawn, hazards, left_out


def arrow_name(views: Iterable[View]) -> str:
    """Return what the legend calls the arrows of these views' waits."""
    joint = np.concatenate([np.zeros(0, bool), *(view.tracks.waits.joint for view in views)])
    if not joint.any():
        return "event wait"
    return "collective: last to begin → end" if joint.all() else "event wait, collective"


def arrow_look(name: str) -> Properties:
    """Return what stays the same of the trace of waits, or of hazards."""
    colour = style.INK
    line: Properties = {"width": 1.3, "color": colour}
    if name == HAZARD:
        colour = style.ESCAPED
        line = {"width": 3, "color": colour, "dash": "dot"}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "line": line,
        "marker": {
            "symbol": "arrow", "angleref": "previous", "color": colour, "opacity": 1,
            "line": {"width": 0},
        },
        "hoverinfo": "skip",
    }  # fmt: skip
