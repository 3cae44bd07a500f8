"""Parts of the time of the host: of handles' calls, of host waits, and before other calls."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpuscope._types import Ints
from gpuscope.analysis.part import Part, PartKind, filled
from gpuscope.analysis.span_rows import OPEN, SpanRows
from gpuscope.analysis.work_parts import WorkParts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.joins import match

HOST = ("api", "sync", "event", "handle", "range", "mark")
_DEEPEST = 64
"""Levels of calls in a handle's call."""


def handles_of(rows: SpanRows, *, innermost: bool) -> Ints:
    """Return work → the innermost or outermost finished handle's call that launched it, or −1."""
    is_handle = rows.having("kind", ("handle",))
    if not is_handle.any():
        return np.broadcast_to(np.int64(-1), len(rows.ids))
    is_handle &= rows.ends != OPEN
    handle = np.full(len(rows.ids), -1)
    above = match(rows.parents, rows.ids)
    at = np.where(rows.is_work, rows.calls, -1)
    for _ in range(_DEEPEST):
        inside = at >= 0
        if not inside.any():
            break
        handle = np.where(inside & is_handle[at], at, handle)
        at = np.where(inside & ~(innermost & (handle >= 0)), above[at], -1)
    return handle


def last_of_handles(rows: SpanRows, handle: Ints) -> tuple[Ints, Ints]:
    """Return the work that ended last of each handle's call, and that call."""
    works = np.flatnonzero(handle >= 0)
    works = works[np.lexsort((-works, rows.ends[works], handle[works]))]
    calls = handle[works]
    is_last = np.r_[calls[1:] != calls[:-1], True][: len(calls)]
    return works[is_last], calls[is_last]


def handle_parts(work: WorkParts, row: int, own: Collection[int] = ()) -> list[Part]:
    """Return the parts of a handle's call: those of its work that ended last.

    From entering ``execute()`` until the host saw it done. Where that work waited for other work
    of the call, or for ``own``, the parts are of that.
    """
    rows = work.rows
    start, end = int(rows.starts[row]), rows.end_ns(row)
    launched = launched_inside(rows, row)
    if not launched:
        raise MissingEvidence(
            f"no work in the trace is linked to the launch calls of handle call {rows.ids[row]}: "
            "record with launch ids, profile(launch_ids=True), which is the default"
        )
    last = max(launched, key=lambda work_row: (int(rows.ends[work_row]), -work_row))
    path = work.path(last, {int(rows.ids[work_row]) for work_row in (*launched, *own)})
    call = int(rows.calls[last])
    cause = None if call < 0 else int(rows.ids[call])
    after: PartKind = "not looking" if rows.ends[last] != OPEN else "unexplained"
    return filled(path, start, end, "launch call", after, cause)


def launched_inside(rows: SpanRows, row: int) -> list[int]:
    """Return the work that the calls inside a row launched, at whatever depth."""
    launched: list[int] = []
    inside, seen = [row], {row}
    while inside:
        call = inside.pop()
        launched += rows.launched(call)
        below = set(rows.same("parent", int(rows.ids[call])).tolist()) - seen
        seen |= below
        inside += below
    return launched


def wait_parts(work: WorkParts, row: int) -> list[Part]:
    """Return the parts of a host wait, from entering the call until it returned.

    Until each work that it waited for had ended, they are of that work.
    """
    rows = work.rows
    start, end = int(rows.starts[row]), rows.end_ns(row)
    parts: list[Part] = []
    at = start
    linked = rows.linked(row, "host wait")
    waited = work.orders.last[linked].tolist()  # who waits for a node, waits for its graph
    for work_row in sorted(waited, key=lambda work_row: int(rows.ends[work_row])):
        until = min(int(rows.ends[work_row]), end)
        if until > at:
            parts += filled(work.parts(work_row), at, until, "unexplained", "unexplained")
            at = until
    return filled(parts, start, end, "not looking", "not looking")


def host_parts(rows: SpanRows, row: int) -> list[Part]:
    """Return the parts of another call, range or mark.

    From the return of the call before on its thread, or the beginning of the trace, to its end;
    where its end was not seen, to its start.
    """
    start = int(rows.starts[row])
    before = _call_before(rows, row)
    since = min(rows.zero_ns, start) if before is None else int(rows.ends[before])
    cause = None if before is None else int(rows.ids[before])
    parts = [Part("host", since, start, cause)]
    if int(rows.ends[row]) != OPEN:
        parts.append(Part("running", start, int(rows.ends[row]), int(rows.ids[row])))
    return [part for part in parts if part.duration_ns]


def _call_before(rows: SpanRows, row: int) -> int | None:
    """Return the host's row of the same thread that was the last to end before a row began."""
    start = rows.starts[row]
    earlier = rows.having("kind", HOST) & (rows.ends <= start) & (rows.ids != rows.ids[row])
    if rows.threads[row] >= 0:
        earlier &= rows.threads == rows.threads[row]
    places = np.flatnonzero(earlier)
    return int(places[np.argmax(rows.ends[places])]) if len(places) else None
