"""Tiles: stretches of a timeline as typed arrays, which the browser keeps and paints on a canvas.

A tile of level ``n`` lasts ``COLUMNS`` times 2ⁿ ns, and starts on a multiple of that after the
time axis' zero. It has the columns of its stretch, and the spans of the tracks in which they are
wide. ``tiles.js`` reads them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuscope.timeline import style
from gpuscope.timeline.canvas.snapshot import Snapshot
from gpuscope.timeline.canvas.window import Window
from gpuscope.timeline.frame import look, shared_lines, tails
from gpuscope.timeline.index import OPEN_NS
from gpuscope.timeline.labels import MARKS_PX, Class, in_order
from gpuscope.timeline.scene import FREE_PX, LEAST_PX, WIDE_PX
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import clean
from gpuscope.timeline.view import View

SCRIPT = Path(__file__).with_name("tiles.js").read_text("utf-8")
"""What paints tiles in a page."""
COLUMNS = 1024
SPANS = 8000
"""Spans of a tile at most: a view has two or three tiles."""
_NAMES = 60_000
"""Characters of the names of a tile at most, so that it stays below 250 kB."""
_SHORTEST, _LONGEST = 24, 120


def top_level(extent_ns: int) -> int:
    """Return the level at which one tile holds all of a trace that is so long."""
    return max(0, (max(extent_ns, 1) - 1) // COLUMNS).bit_length()


def window_of(snapshot: Snapshot, level: int, index: int) -> Window:
    """Return the stretch of a tile on the trace's clock."""
    size = COLUMNS << level
    low = snapshot.zero_ns + index * size
    return low, low + size


def tile(snapshot: Snapshot, window: Window, pixels: int = COLUMNS) -> Properties:
    """Return what is painted of a stretch of time; ``data`` holds its arrays, one after the other.

    First those of the spans: start and end (float64, ns since the axis' zero; an open span ends
    at infinity), row and name (int32), how much later the start and earlier the end may truly be
    (float32, ns). Then the columns in which escapes, or spans that cover nothing, start: group,
    column, how many (uint32). Then how long each group was busy in each column, in ``unit`` ns, in
    ``bits`` bits. Then, of the spans again, class and tail (uint16), track and line (uint8).
    ``groups`` has the track and the class of each group, ``spans`` whether a track's are here.
    """
    tracks = snapshot.tracks
    view = View.among(
        tracks, snapshot.places.tracks, window,
        max_spans=SPANS, pixels=pixels, row_lanes=snapshot.lanes,
    )  # fmt: skip
    scene, rows = view.scene, view.rows
    start, end = tracks.start_ns[rows], tracks.end_ns[rows]
    till = np.where(end == OPEN_NS, np.inf, (end - snapshot.zero_ns).astype(float))
    code, name = np.unique(tracks.coded["name"].codes[rows], return_inverse=True)
    number = {bar_class: place for place, bar_class in enumerate(classes_of(snapshot))}
    of_group = [number[bar_class] for _, bar_class in tracks.groups]
    lines, tail = tails(view)
    groups = [
        [place, of_group[group], escaped]
        for place, row in enumerate(scene.rows)
        for group, escaped in zip(row.groups, row.escaped, strict=True)
    ]
    there = np.flatnonzero(scene.is_there.any(axis=1))
    groups = [groups[one] for one in there.tolist()]
    busy, begins = scene.busy_ns[there], scene.begins[there]
    columns = len(scene.edges) - 1
    longest = int(np.diff(scene.edges).max())
    unit, bits = max(1, longest >> 31), 16 if longest < 2**16 else 32
    escaped = np.array([one for *_, one in groups], bool)[:, None]
    marked = np.nonzero(np.where(escaped | (busy == 0), begins, 0))
    kind = np.array(of_group, int)[tracks.group[rows]]
    arrays = (
        (start - snapshot.zero_ns, np.float64), (till, np.float64),
        (rows, np.int32), (name, np.int32),
        *((column, np.float32) for column in tracks.uncertainties(rows)),
        *((side, np.uint32) for side in (*marked, begins[marked])),
        (busy // unit, np.uint16 if bits == 16 else np.uint32),
        (kind, np.uint16), (tail, np.uint16), (view.place, np.uint8), (view.lanes, np.uint8),
    )  # fmt: skip
    limit = min(_LONGEST, max(_SHORTEST, _NAMES // max(1, len(code))))
    values = tracks.coded["name"].values
    return {
        "low": window[0] - snapshot.zero_ns, "high": window[1] - snapshot.zero_ns,
        "count": len(rows), "columns": columns, "unit": unit, "bits": bits, "marks": len(marked[0]),
        "groups": [group[:2] for group in groups], "spans": view.with_spans.tolist(),
        "names": [clean(values[one], limit) for one in code.tolist()], "tails": lines,
        "data": b"".join(np.asarray(held).astype(kind).tobytes() for held, kind in arrays),
    }  # fmt: skip


def classes_of(snapshot: Snapshot) -> tuple[Class, ...]:
    """Return the classes of bars that there are, in the order of drawing."""
    return in_order(snapshot.tracks.classes, snapshot.colours)


def scene(snapshot: Snapshot, extent: Window, root: Properties, *, live: bool) -> Properties:
    """Return what the browser has to know to paint tiles.

    Parameters
    ----------
    root
        The tile that is painted where there is no finer one.
    live
        Whether there are no others: every frame brings a new one.
    """
    places, whole = snapshot.places, View.among(snapshot.tracks, (), extent).scene
    low, high = (edge - snapshot.zero_ns for edge in extent)
    classes = []
    for bar_class in classes_of(snapshot):
        how = look(
            snapshot.tracks, bar_class, snapshot.colours, "µs", outlined=snapshot.theme.outlined
        )["marker"]
        classes.append({
            "fill": how["color"], "edge": how["line"]["color"],
            "pattern": how.get("pattern", {}).get("shape", ""), "escaped": bar_class.escaped,
            "text": style.on(how["color"]), "lines": shared_lines(snapshot.tracks, bar_class),
        })  # fmt: skip
    return {
        "version": snapshot.version, "live": live, "extent": [low, high],
        # Where the page moves to by itself: for Plotly it would be a whole frame.
        "view": [edge - snapshot.zero_ns for edge in snapshot.window_ns]
        if snapshot.following else None,
        "top": top_level(high), "columns": COLUMNS, "height": snapshot.height, "root": root,
        "tops": places.tops, "heights": places.heights, "lines": places.lines,
        "marks": MARKS_PX, "least": LEAST_PX, "free": FREE_PX, "wide": WIDE_PX,
        "breaks": [
            [low - snapshot.zero_ns, high - snapshot.zero_ns, what]
            for found, what in whole.missing for low, high in found
        ],
        "classes": classes, "ink": snapshot.theme.ink, "paper": snapshot.theme.paper,
    }  # fmt: skip
