"""Tiles: stretches of a timeline as typed arrays, which the browser keeps and paints on a canvas.

A tile of level ``n`` lasts ``COLUMNS`` times 2ⁿ ns, and starts on a multiple of that after the
time axis' zero. It has the columns of its stretch, and the spans of the tracks in which they are
wide. ``tiles.js`` reads them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from gpuscope.timeline import hatches, style
from gpuscope.timeline.canvas.snapshot import Snapshot
from gpuscope.timeline.canvas.window import LEAST_NS, Window
from gpuscope.timeline.columns import FREE_PX, LEAST_PX, MARK_PX
from gpuscope.timeline.counter_lanes import OVER_PX
from gpuscope.timeline.labels import LANE_MARGIN, MARKS_PX, WAITS_PX, Class, in_order
from gpuscope.timeline.look import layer_looks, look, part_look
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import clean, duration
from gpuscope.timeline.words import mark_text, tails

_LOOKS = f"const LOOKS = {json.dumps(hatches.for_pages())};\n"
DOM = _LOOKS + Path(__file__).with_name("dom.js").read_text("utf-8")
"""What makes elements in a page, and how patterns and marks look."""
SCRIPT = Path(__file__).with_name("tiles.js").read_text("utf-8")
"""What paints tiles in a page."""
COLUMNS = 1024
FINER = 2
"""Columns of tiles in a pixel at least, or their grid would beat with the pixels'."""
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

    First those of the bars: start and end (float64, ns since the axis' zero; an open span ends
    at infinity), row and name (int32), how much later the start and earlier the end may truly be
    (float32, ns). Then the columns in which spans that cover nothing start: group and column
    (uint32). Then, of so many quantities of lanes as ``counters`` says, all or none, the sums in
    each column (float32, by ``unit`` ns). Then how long each group was busy in each column, in
    ``unit`` ns, in ``bits`` bits. Then, of the bars again, class and tail (uint16), track and line
    (uint8). ``groups`` has the track and the class of each group, ``spans`` from how many px per ns
    on a track draws its spans, ``marks`` the track, the column, the kind and the words of each
    mark; ``calls`` what :func:`_calls` says.
    """
    tracks = snapshot.tracks
    scene = Scene.among(
        tracks,
        snapshot.places.tracks,
        window,
        max_spans=SPANS,
        pixels=pixels,
        row_lanes=snapshot.lanes,
    )
    columns, rows = scene.columns, scene.rows
    till = np.where(scene.is_open, np.inf, (scene.end_ns - snapshot.zero_ns).astype(float))
    code, name = np.unique(tracks.coded["name"].codes[rows], return_inverse=True)
    number = {bar_class: at for at, bar_class in enumerate(classes_of(snapshot))}
    of_group = [number[bar_class] for _, bar_class in tracks.groups]
    lines, tail = tails(scene)
    shown_groups = np.flatnonzero(columns.is_there.any(axis=1))
    groups = [[at, of_group[group]] for at, row in enumerate(columns.rows) for group in row.groups]
    busy = columns.busy_ns[shown_groups]
    instants = np.nonzero((busy == 0) & (columns.begins[shown_groups] > 0))
    longest = int(np.diff(columns.edges).max())
    unit, bits = max(1, longest >> 31), 16 if longest < 2**16 else 32
    is_sampled = any(lane.is_there.any() for lane in scene.counters)
    quantities = [sums for lane in scene.counters for sums in lane.sums] if is_sampled else []
    arrays = (
        (scene.start_ns - snapshot.zero_ns, np.float64),
        (till, np.float64),
        (rows, np.int32),
        (name, np.int32),
        *((column, np.float32) for column in tracks.uncertainties(rows)),
        *((side, np.uint32) for side in instants),
        *((sums / unit, np.float32) for sums in quantities),
        (busy // unit, np.uint16 if bits == 16 else np.uint32),
        (np.array(of_group, int)[tracks.group[rows]], np.uint16),
        (tail, np.uint16),
        (scene.place, np.uint8),
        (scene.lanes, np.uint8),
    )
    calls, call_data = _calls(snapshot, scene)
    data = b"".join(np.asarray(values).astype(kind).tobytes() for values, kind in arrays)
    data += bytes(-len(data) % 8)
    limit = min(_LONGEST, max(_SHORTEST, _NAMES // max(1, len(code))))
    values = tracks.coded["name"].values
    low, high = (edge - snapshot.zero_ns for edge in window)
    return {
        "low": low,
        "high": high,
        "count": len(rows),
        "columns": len(columns.edges) - 1,
        "unit": unit,
        "bits": bits,
        "instants": len(instants[0]),
        "counters": len(quantities),
        "groups": [groups[at] for at in shown_groups.tolist()],
        "spans": [float(zoom) if np.isfinite(zoom) else None for zoom in scene.spans_from],
        "marks": [
            [row, column, what, mark_text(what, count)]
            for what, marks in scene.marks(MARK_PX * FINER).items()
            for row, column, count in zip(*(side.tolist() for side in marks), strict=True)
        ],
        "names": [clean(values[at], limit) for at in code.tolist()],
        "tails": lines,
        "calls": {**calls, "at": len(data)},
        "data": data + call_data,
    }


def _calls(snapshot: Snapshot, scene: Scene) -> tuple[Properties, bytes]:
    """Return what lanes of waits have, and the arrays of it, 8 bytes each first.

    Start and end of calls and the length of their parts (float64, ns), row and first part of calls
    (int32, one more), look of parts (uint16), track and line of calls (uint8).
    """
    waiting = scene.waiting
    zero_ns = snapshot.zero_ns
    arrays = (
        (waiting.start_ns - zero_ns, np.float64),
        (waiting.end_ns - zero_ns, np.float64),
        (waiting.length_ns, np.float64),
        (waiting.row, np.int32),
        (waiting.first, np.int32),
        (waiting.look, np.uint16),
        (waiting.at_row, np.uint8),
        (waiting.line, np.uint8),
    )
    looks = [part_look(snapshot.tracks, part, snapshot.colours) for part in waiting.classes]
    facts = {
        "count": len(waiting.row),
        "parts": len(waiting.length_ns),
        "looks": [asdict(how) for how in looks],
        "spans": [float(zoom) if np.isfinite(zoom) else None for zoom in waiting.spans_from],
        "lines": waiting.lines,
    }
    return facts, b"".join(values.astype(kind).tobytes() for values, kind in arrays)


def counters(snapshot: Snapshot) -> list[Properties]:
    """Return where lanes of counters are, how they look, and what is said of them.

    ``at`` is where the quantities of a lane begin among those of all lanes.
    """
    lanes = snapshot.tracks.counters
    first = np.cumsum([0, *(len(lane.values) for lane in lanes)]).tolist()
    return [
        {
            "at": first[spot.number],
            "quantities": len(lanes[spot.number].values),
            "top": spot.top,
            "tall": spot.facts.px,
            "over": OVER_PX,
            "margin": LANE_MARGIN,
            "reach": spot.facts.reach,
            "layers": [
                {"what": layer, "name": how.name, "fill": how.fill, "isDrawn": is_drawn}
                for layer, how, is_drawn in zip(
                    spot.facts.layers,
                    layer_looks(spot.facts, snapshot.colours),
                    lanes[spot.number].is_drawn,
                    strict=True,
                )
            ],
            "isMemory": spot.facts.is_memory,
            "byModel": spot.facts.by_model,
            "isToPeak": spot.facts.is_to_peak,
            "unit": spot.facts.unit,
            "label": spot.facts.label,
            "words": spot.facts.top,
            "scale": spot.facts.scale,
        }
        for spot in snapshot.places.counters
    ]


def classes_of(snapshot: Snapshot) -> tuple[Class, ...]:
    """Return the classes of bars that there are, in the order of drawing."""
    return in_order(snapshot.tracks.classes, snapshot.colours)


def looks(snapshot: Snapshot) -> list[Properties]:
    """Return how these classes look, in the colours of the theme."""
    outlined = snapshot.theme.outlined
    return [
        asdict(look(snapshot.tracks, bar_class, snapshot.colours, outlined))
        for bar_class in classes_of(snapshot)
    ]


def page(snapshot: Snapshot, extent: Window, root: Properties | None, *, live: bool) -> Properties:
    """Return what the browser has to know to paint tiles.

    Parameters
    ----------
    root
        The tile that is painted where there is no finer one; ``None``: the page makes it.
    live
        Whether there are no others: every frame brings a new one.
    """
    places, zero_ns = snapshot.places, snapshot.zero_ns
    missing = Scene.among(snapshot.tracks, (), extent).columns.missing
    low, high = (edge - zero_ns for edge in extent)
    return {
        "version": snapshot.version,
        "live": live,
        "extent": [low, high],
        # Where the page moves to by itself: for Plotly it would be a whole frame.
        "view": [edge - zero_ns for edge in snapshot.window_ns] if snapshot.following else None,
        "top": top_level(high),
        "columns": COLUMNS,
        "finer": FINER,
        "merged": MARK_PX * FINER,
        "narrowest": LEAST_NS,
        "height": snapshot.height,
        "root": root,
        "tops": places.tops,
        "heights": places.heights,
        "lines": places.lines,
        "lane": MARKS_PX,
        "waits": places.lanes,
        "wait": WAITS_PX,
        "counters": counters(snapshot),
        "gpu": [track.is_work for track in places.tracks],
        "focus": style.FOCUS,
        "least": LEAST_PX,
        "free": FREE_PX,
        "breaks": [
            [start - zero_ns, end - zero_ns, [what, duration(end - start)]]
            for start, end, what in missing
        ],
        "classes": looks(snapshot),
        "marked": style.ESCAPED,
        "ink": snapshot.theme.ink,
        "paper": snapshot.theme.paper,
    }
