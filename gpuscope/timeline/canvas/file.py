"""A timeline for a file: all of its spans, packed, from which the page makes tiles by itself."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from gpuscope._types import Array
from gpuscope.errors import MissingEvidence
from gpuscope.telling.explanation import explain
from gpuscope.timeline import waiting
from gpuscope.timeline.calls import TrackedCalls
from gpuscope.timeline.canvas import tiles
from gpuscope.timeline.canvas.snapshot import DARK, Snapshot
from gpuscope.timeline.canvas.state import HEIGHTS, TimelineState
from gpuscope.timeline.canvas.window import Window
from gpuscope.timeline.columns import MARK_PX, edges_of
from gpuscope.timeline.index import OPEN_NS
from gpuscope.timeline.look import part_look
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import clean, duration
from gpuscope.timeline.words import mark_text, tails
from gpuscope.trace.columns import combined
from gpuscope.trace.model import Trace
from gpuscope.trace.run import incomplete

SCRIPT = "\n".join(
    [
        tiles.DOM,
        tiles.SCRIPT,
        *(Path(__file__).with_name(name).read_text("utf-8") for name in ("served.js", "file.js")),
    ]
)
"""What draws the timelines of a page."""
STYLE = Path(__file__).with_name("file.css").read_text("utf-8")
MOST_SPANS, MOST_CALLS, MOST_STEPS = 1_000_000, 30_000, 20_000
"""Spans of a timeline in a file at most; calls with the parts of their time; steps of a lane."""
_THOUSANDTHS = 1000
_REST = 1024
"""Columns of the time of which a file has not all spans."""
_LONGEST = 120
_LEVEL = 6
"""Of compression: 9 takes four times as long for 2 % less."""


def timeline_html(
    trace: Trace, *, window_ns: Window | None = None, selected: int | None = None
) -> str:
    """Return a timeline that a page with :data:`SCRIPT` and :data:`STYLE` draws.

    It holds all spans of the trace or, of more than :data:`MOST_SPANS`, the earliest of the
    crowded tracks; the others are in columns of busy time. Busy shares are of all.

    Parameters
    ----------
    window_ns
        What is in view at first.
    selected
        The id of the row that is selected at first, whose time is explained.

    Raises
    ------
    MissingEvidence
        There is no such row, or no track shows it.
    """
    state = TimelineState(trace, None)
    folded = state.snapshot(state.extent_ns, following=False)
    state.fold(folds=False)
    snapshot = state.snapshot(state.extent_ns, following=False)
    if not snapshot.places.tracks:
        return '<p class="muted">There are no spans to draw.</p>'
    low, high = window_ns or state.first_view(trace)
    facts, rows = packed(snapshot)
    left_out = facts["rest"]["spans"] if facts["rest"] else 0
    facts |= {
        "layouts": [layout(folded, snapshot), layout(snapshot, snapshot)],
        "dark": tiles.looks(replace(snapshot, theme=DARK)),
        "first": [low - snapshot.zero_ns, high - snapshot.zero_ns],
        "label": f"Timeline of {len(rows):,} spans",
        "selected": None,
        "explained": {},
    }
    if selected is not None:
        at = np.flatnonzero(rows == state.row(selected))
        if not len(at):
            among = f" or among the {left_out:,} spans in columns" if left_out else ""
            raise MissingEvidence(
                f"row {selected} is on no track of this timeline{among}: select another"
            )
        facts |= {"selected": int(at[0]), "explained": {int(at[0]): str(explain(trace, selected))}}
    written = json.dumps(facts, ensure_ascii=False).replace("<", "\\u003c")
    missing = incomplete({"": trace})
    notes = [f"{missing}."] if missing else []
    if state.left_out:
        notes.append(f"{state.left_out:,} less busy tracks are not shown.")
    if left_out:
        notes.append(
            f"Of {left_out + len(rows):,} spans, {left_out:,} are in columns of busy time, hatched;"
            " busy shares are of all."
        )
    merged = [lane for lane in facts["counters"]["lanes"] if lane["steps"] < lane["of"]]
    if merged:
        steps, samples = (max(lane[of] for lane in merged) for of in ("steps", "of"))
        notes.append(f"Lanes of counters have {steps:,} means of {samples:,} samples.")
    above = f"<p>{html.escape(' '.join(notes))}</p>" if notes else ""
    return (
        f'{above}<div class="timeline" data-timeline>'
        f'<script type="application/json">{written}</script></div>'
        '<p class="muted">Click into the timeline for its keys; Ctrl and the wheel zoom, dragging '
        "moves.</p>"
    )


def layout(snapshot: Snapshot, unfolded: Snapshot) -> Properties:
    """Return where rows are: ``scene``, their labels, and track → its row."""
    rows = snapshot.places.tracks
    of_number = {number: at for at, track in enumerate(rows) for number in track.numbers}
    return {
        # Files of one trace are the same.
        "scene": tiles.page(
            replace(snapshot, version=int(snapshot is unfolded)),
            snapshot.extent_ns,
            None,
            live=False,
        ),
        "height": min(max(snapshot.places.bottom + 6, HEIGHTS[0]), HEIGHTS[1]),
        "labels": [clean(track.label, _LONGEST) for track in rows],
        "rows": [of_number[track.number] for track in unfolded.places.tracks],
    }


def packed(snapshot: Snapshot) -> tuple[Properties, Array]:
    """Return all spans of the tracks shown as ``served.js`` reads them, and their rows in order.

    ``groups`` has the track, the class and the number of spans of each group, and whether it has
    more; they stand one after the other in ``data``, by start. Of each, four columns: the start,
    since the start of the span before; the length and 1, or 0 of an open span; the position in
    ``codes``; and the line inside the track. A column is so many ``planes``: the lowest byte of
    each value, then the next.
    ``codes`` has name, tail, and by how much the start may be later and the end earlier (ns).
    ``rest`` is what :func:`_rest` says of spans that are left out.
    """
    tracks, zero_ns = snapshot.tracks, snapshot.zero_ns
    number = {of: at for at, of in enumerate(tiles.classes_of(snapshot))}
    class_of = [bar_class for _, bar_class in tracks.groups]
    groups, numbers, rows_of = [], [], []
    for position, track in enumerate(snapshot.places.tracks):
        for group in tracks.row_of(track).groups:
            rows = tracks.index.rows((int(np.iinfo(np.int64).min), OPEN_NS), [group])
            rows_of.append(rows[np.argsort(tracks.start_ns[rows], kind="stable")])
            groups.append((position, number[class_of[group]]))
            numbers.append(group)
    counts, from_ns = _kept(tracks.start_ns, rows_of)
    is_cut = [len(rows) > count for rows, count in zip(rows_of, counts, strict=True)]
    rest = None
    if from_ns is not None:
        rest = _rest(snapshot, numbers, from_ns, sum(map(len, rows_of)) - sum(counts))
    rows_of = [rows[:count] for rows, count in zip(rows_of, counts, strict=True)]
    rows = np.concatenate([np.zeros(0, np.int64), *rows_of])
    scene = Scene(tracks, snapshot.places.tracks, snapshot.extent_ns, 1, np.zeros(0), rows, 0, 0)
    lines, tail = tails(scene)
    names, name = np.unique(tracks.coded["name"].codes[rows], return_inverse=True)
    later, earlier = tracks.uncertainties(rows)
    first, code = combined(name, tail, later, earlier)
    start = tracks.start_ns[rows] - zero_ns
    length = np.where(scene.is_open, 0, tracks.end_ns[rows] - tracks.start_ns[rows] + 1)
    lanes = np.zeros(len(rows), np.int64) if snapshot.lanes is None else snapshot.lanes[rows]
    begins = np.cumsum([0, *counts])[:-1]
    since = np.diff(start, prepend=0)
    since[begins[begins < len(rows)]] = start[begins[begins < len(rows)]]
    columns = (since, length, code, lanes)
    planes = [*map(_planes_of, columns)]
    data = b"".join(
        _planes(column[begin : begin + count], many)
        for begin, count in zip(begins.tolist(), counts, strict=True)
        for column, many in zip(columns, planes, strict=True)
    )
    values = tracks.coded["name"].values
    works = np.unique(np.concatenate([np.zeros(0, np.int64), *tracks.hazards]))
    facts: Properties = {
        "groups": [
            [*group, count, more] for group, count, more in zip(groups, counts, is_cut, strict=True)
        ],
        "rest": rest,
        "planes": planes,
        "data": _compressed(data),
        "calls": _packed_calls(snapshot, rows),
        "counters": _packed_counters(snapshot),
        "codes": [
            [int(name[at]), int(tail[at]), float(later[at]), float(earlier[at])]
            for at in first.tolist()
        ],
        "names": [clean(values[at], _LONGEST) for at in names.tolist()],
        "tails": lines,
        "hazards": [
            [
                int(tracks.start_ns[row]) - zero_ns
                for row in works
                if tracks.track[row] == track.number
            ]
            for track in snapshot.places.tracks
        ],
        "escaped": [of.escaped for of in tiles.classes_of(snapshot)],
        "most": tiles.SPANS,
        "mark": MARK_PX * tiles.FINER,
        "words": {what: [mark_text(what, 1), mark_text(what, 2)] for what in ("escape", "hazard")},
    }
    return facts, rows


def _kept(start_ns: Array, rows_of: Sequence[Array]) -> tuple[list[int], int | None]:
    """Return how many rows of each group a file has, and from when on others are left out.

    Groups of few rows are whole. Of the others, which share what room is left, all have what
    starts before the same time.
    """
    counts = [len(rows) for rows in rows_of]
    crowded, room = sorted(range(len(counts)), key=counts.__getitem__), MOST_SPANS
    while crowded and counts[crowded[0]] * len(crowded) <= room:
        room -= counts[crowded.pop(0)]
    if not crowded:
        return counts, None
    starts = np.concatenate([start_ns[rows_of[at]] for at in crowded])
    from_ns = int(np.partition(starts, room)[room])
    for at in crowded:
        counts[at] = int(np.searchsorted(start_ns[rows_of[at]], from_ns))
    return counts, from_ns


def _rest(snapshot: Snapshot, groups: Sequence[int], from_ns: int, left_out: int) -> Properties:
    """Return for how long groups, and then tracks, were busy from a time on, column by column.

    ``data`` has the busy ns in each of the ``columns``, which are ``column`` ns wide; ``spans``
    says how many spans are left out.
    """
    tracks, end_ns = snapshot.tracks, max(snapshot.extent_ns[1], from_ns + 1)
    wide = -(-(end_ns - from_ns) // _REST)
    edges = from_ns + wide * np.arange(_REST + 1)
    busy = [*tracks.index.columns(edges, groups)[0]]
    busy += [tracks.busy_between(track.numbers, edges) for track in snapshot.places.tracks]
    planes = _planes_of(np.array([wide]))
    return {
        "spans": left_out,
        "words": [f"spans in columns of {duration(wide)}"],
        "from": from_ns - snapshot.zero_ns,
        "column": wide,
        "columns": _REST,
        "planes": planes,
        "data": _compressed(b"".join(_planes(column, planes) for column in busy)),
    }


def _packed_calls(snapshot: Snapshot, rows: Array) -> Properties:
    """Return what calls waited for: columns of calls in ``data``, then columns of their parts.

    Of a call the start, since the start of the call before on its track; how many parts it has;
    its line and 1; and the position of its row in ``rows`` and 1. Of a part its length and look.
    Of more calls than :data:`MOST_CALLS` it has those that are the longest in a column.
    """
    tracks = snapshot.tracks
    calls = tracks.calls or TrackedCalls.none()
    position = np.full(len(tracks) + 1, -1, np.int64)
    position[rows] = np.arange(len(rows))
    shown = [
        (at, track.number)
        for at, track in enumerate(snapshot.places.tracks)
        if track.number in calls.tracks
    ]
    edges = edges_of(snapshot.extent_ns, MOST_CALLS // max(1, len(shown)))
    is_whole = len(calls.row) <= MOST_CALLS
    chosen = [
        np.arange(len(calls.row))[calls.of(number)] if is_whole else calls.longest(number, edges)
        for _, number in shown
    ]
    seen = calls.seen(chosen, keep=False)
    work = np.repeat(calls.work[seen.call], np.diff(seen.first))
    classes, look = waiting.classed(tracks, seen.kind, seen.cause, work)
    since = [np.diff(calls.start_ns[some], prepend=snapshot.zero_ns) for some in chosen]
    of_calls = (
        np.concatenate([np.zeros(0, np.int64), *since]),
        np.diff(seen.first),
        calls.line[seen.call].astype(np.int64) + 1,
        position[calls.row[seen.call]] + 1,
    )
    columns = (*of_calls, seen.length_ns, look)
    planes = [_planes_of(column) for column in columns]
    data = b"".join(map(_planes, columns, planes))
    return {
        "tracks": [
            [at, len(some), calls.lines[number]]
            for (at, number), some in zip(shown, chosen, strict=True)
        ],
        "parts": len(seen.length_ns),
        "planes": planes,
        "data": _compressed(data),
        "looks": [asdict(part_look(tracks, part, snapshot.colours)) for part in classes],
        "px": waiting.CALL_PX,
        "most": waiting.MOST_CALLS,
        # Lanes show all that is to be seen until a pixel is less than a column.
        "column": None if is_whole else int(np.diff(edges).max()),
        "words": [
            f"the longest {len(some):,} of {count:,} calls" * (len(some) < count)
            for (_, number), some in zip(shown, chosen, strict=True)
            for count in [len(calls.row[calls.of(number)])]
        ],
    }


def _packed_counters(snapshot: Snapshot) -> Properties:
    """Return the steps of lanes of counters: of each lane columns in ``data``, one after the other.

    Of a step how long after the end of the step before it begins, its length, and its quantities in
    thousandths. Of more than :data:`MOST_STEPS`, steps are even columns of all time.
    """
    lanes, data = [], b""
    for whole in snapshot.tracks.counters:
        lane = whole.within(MOST_STEPS)
        since = lane.starts - np.r_[snapshot.zero_ns, lane.ends[:-1]]
        values = np.rint(_THOUSANDTHS * lane.values).astype(np.int64)
        columns = (since, lane.ends - lane.starts, *values)
        planes = [_planes_of(column) for column in columns]
        lanes.append({"steps": len(since), "of": len(whole.starts), "planes": planes})
        data += b"".join(map(_planes, columns, planes))
    return {"lanes": lanes, "size": _THOUSANDTHS, "data": _compressed(data)}


def _compressed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, _LEVEL, mtime=0)).decode()


def _planes_of(column: Array) -> int:
    """Return how many bytes the largest value of a column needs."""
    return max(1, (int(column.max(initial=0)).bit_length() + 7) // 8)


def _planes(values: Array, many: int) -> bytes:
    """Return the lowest bytes of all values, then the next, so many in all."""
    return values.astype("<i8").view(np.uint8).reshape(-1, 8).T[:many].tobytes()
