"""The lanes of waits of a scene: calls and the parts of their time, below the rows of the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuscope._types import Array, Bools
from gpuscope.analysis.part import PartKind
from gpuscope.timeline.calls import TrackedCalls
from gpuscope.timeline.columns import step_of
from gpuscope.timeline.labels import Track
from gpuscope.timeline.tracks import Tracks

CALL_PX = 8
"""How wide the median call of a lane is once the lane draws parts as spans."""
MOST_CALLS = 500
"""Calls of a lane that are drawn as spans at most."""
_OF_HOST = ("launch call", "on the way", "not looking", "host", "unexplained")
_OWN = ("running", "stream order")


class PartClass(NamedTuple):
    """What parts of one look have in common.

    Attributes
    ----------
    kind
        As in :class:`~gpuscope.analysis.part.Part`.
    partition
        Where the work ran that the part is of, or that held this one; ``""`` on the whole GPU;
        ``None``: it is the host's.
    stream
        Of that work, where the trace has no partitions; ``""`` otherwise.
    """

    kind: PartKind
    partition: str | None
    stream: str = ""


@dataclass(frozen=True)
class Waiting:
    """Calls that are drawn in lanes.

    Attributes
    ----------
    at_row, row, start_ns, end_ns, line
        One a call: position of its track in the scene, row of the trace, times, line in the lane.
    first
        Call → its first part; and the number of parts.
    length_ns, look
        Part → how long it lasts, and which of the classes it is of. Parts of a call are in order.
    classes
        What parts there are.
    spans_from
        Shown track → from how many px per ns on its lane draws parts as spans; infinite: it draws
        columns, each with the parts of the longest call that starts in it.
    """

    at_row: Array
    row: Array
    start_ns: Array
    end_ns: Array
    line: Array
    first: Array
    length_ns: Array
    look: Array
    classes: list[PartClass]
    spans_from: Array
    lines: list[int]


class Boxes(NamedTuple):
    """Rectangles of parts, within their lanes.

    Attributes
    ----------
    part
        Position in :class:`Waiting`.
    at_row
        Shown track.
    from_ns, to_ns
        Sides.
    low, high
        From the bottom of the lane, as shares of it.
    """

    part: Array
    at_row: Array
    from_ns: Array
    to_ns: Array
    low: Array
    high: Array


def waiting_of(
    tracks: Tracks, shown: Sequence[Track], window_ns: tuple[int, int], edges: Array
) -> Waiting:
    """Return the calls that lanes draw of a window: those in view, or the longest by column."""
    calls = tracks.calls or TrackedCalls.none()
    spans_from, lines = np.full(len(shown), np.inf), [1] * len(shown)
    chosen, places = [], []
    for at, track in enumerate(shown):
        if track.number not in calls.tracks:
            continue
        lines[at] = calls.lines[track.number]
        inside = calls.inside(track.number, window_ns)
        zoom = _spans_from(calls.end_ns[inside] - calls.start_ns[inside])
        has_room = zoom * (window_ns[1] - window_ns[0]) <= len(edges) - 1
        if has_room and len(inside) <= MOST_CALLS and (calls.line[inside] >= 0).all():
            spans_from[at] = zoom
        else:
            inside = calls.longest(track.number, edges)
        chosen.append(inside)
        places.append(np.full(len(inside), at))
    seen = calls.seen(chosen)
    work = np.repeat(calls.work[seen.call], np.diff(seen.first))
    classes, look = classed(tracks, seen.kind, seen.cause, work)
    return Waiting(
        np.concatenate([np.zeros(0, np.int64), *places]),
        calls.row[seen.call],
        calls.start_ns[seen.call],
        calls.end_ns[seen.call],
        calls.line[seen.call],
        seen.first,
        seen.length_ns,
        look,
        classes,
        spans_from,
        lines,
    )


def classed(
    tracks: Tracks, part_kinds: Sequence[PartKind], cause: Array, work: Array
) -> tuple[list[PartClass], Array]:
    """Return the classes of parts, and part → which of these is its own.

    Parameters
    ----------
    cause, work
        Part → row that caused it, −1 for none; row of the work that it is of.
    """
    kinds = [*dict.fromkeys(part_kinds)]
    kind = np.array([kinds.index(part) for part in part_kinds], np.int64)
    is_own = np.array([name in _OWN for name in kinds], bool)[kind]
    is_host = np.array([name in _OF_HOST for name in kinds], bool)[kind]
    owner = np.where(is_own, work, cause)
    is_host |= (owner < 0) | (tracks.track[owner] < 0)
    group = np.where(is_host, -1, tracks.group[owner])
    pairs, look = np.unique(np.stack([kind, group]), axis=1, return_inverse=True)
    of_group = [bar_class for _, bar_class in tracks.groups]
    classes = [
        PartClass(
            kinds[name], *((None,) if at < 0 else (of_group[at].partition, of_group[at].stream))
        )
        for name, at in pairs.T.tolist()
    ]
    distinct = [*dict.fromkeys(classes)]
    same = np.array([distinct.index(part_class) for part_class in classes], np.int64)
    return distinct, same[look.reshape(-1)]


def _spans_from(length_ns: Array) -> float:
    if not len(length_ns):
        return 0.0
    half = len(length_ns) // 2
    return CALL_PX / int(np.partition(length_ns, half)[half])


def boxes_of(
    waiting: Waiting, window_ns: tuple[int, int], edges: Array
) -> tuple[Boxes, dict[int, int]]:
    """Return what lanes draw, and shown track → what its lane reaches to, if it has columns."""
    in_spans = np.isfinite(waiting.spans_from)[waiting.at_row]
    length = waiting.end_ns - waiting.start_ns
    column = np.searchsorted(edges, waiting.start_ns, "right") - 1
    begins = (column >= 0) & (column < len(edges) - 1) & ~in_spans
    most = np.zeros(len(waiting.spans_from), np.int64)
    np.maximum.at(most, waiting.at_row[begins], length[begins])
    tops = {at: round(step_of(top, 1)) for at, top in enumerate(most.tolist()) if top}
    # Of the calls that start in a column the longest, of equals the first.
    order = np.lexsort((waiting.start_ns, -length, column, waiting.at_row))
    order = order[begins[order]]
    key = np.stack([waiting.at_row[order], column[order]])
    is_first = np.ones(len(order), bool)
    is_first[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    drawn: Bools = in_spans.copy()
    drawn[order[is_first]] = True

    count = np.diff(waiting.first)
    call = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(waiting.length_ns) - waiting.length_ns
    before -= before[np.minimum(waiting.first[:-1], max(0, len(before) - 1))][call]
    top = np.array([tops.get(at, 1) for at in range(len(most))])[waiting.at_row[call]]
    lines = np.array(waiting.lines)[waiting.at_row[call]]
    as_span = in_spans[call]
    from_ns = waiting.start_ns[call] + before
    at = np.clip(column[call], 0, len(edges) - 2)
    line = waiting.line[call]
    boxes = Boxes(
        np.arange(len(call)),
        waiting.at_row[call],
        np.where(as_span, from_ns, edges[at]),
        np.where(as_span, from_ns + waiting.length_ns, edges[at + 1]),
        np.where(as_span, 1 - (line + 1) / lines, before / top),
        np.where(as_span, 1 - line / lines, (before + waiting.length_ns) / top),
    )
    is_running = np.array([part.kind == "running" for part in waiting.classes], bool)[waiting.look]
    is_visible = drawn[call] & (boxes.to_ns > window_ns[0]) & (boxes.from_ns < window_ns[1])
    is_visible &= ~(as_span & is_running)  # the row above shows it
    return Boxes(*(side[is_visible] for side in boxes)), tops
