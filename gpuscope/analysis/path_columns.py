"""The parts of a critical path as columns: what each was, on which thread, by which line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.causes import Causes
from gpuscope.analysis.span_rows import OPEN, WORK
from gpuscope.analysis.work_causes import NUMBER
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import rows_of
from gpuscope.trace.joins import innermost, numbered
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import range_labels, ranges_in
from gpuscope.trace.schema import CALLS
from gpuscope.trace.sites import lines_of

LASTING = ("range", "handle")
"""Kinds of rows whose path begins with them."""
PATH_KINDS = (
    *("start-up", "host", "call", "launch call", "on the way", "unexplained", "running", "copy"),
    *("not looking", "thread start", "hand-over", "host function"),
)
"""Kinds of parts of a path."""
_PART = {kind: number for number, kind in enumerate(PATH_KINDS)}
ENDING = (*WORK, *CALLS, "handle")
"""Kinds of rows one of which ends a trace."""
_AS = {
    "turn": "host",
    "collective": "running",
    "host wait": "not looking",
    "full queue": "launch call",
    "launch": "unexplained",
}
_OF_HOST = ("start-up", "host", "turn", "full queue", "host wait", "thread start", "hand-over")
Column = tuple[Ints, list[Any]]
"""Part → number of its value, and the values."""


def ending(causes: Causes) -> Bools:
    """Row → whether a program may end with it: work that is not elastic, calls of who launches it.

    Other threads feed these, and what they wait for holds nothing up by itself. What has no end
    ends nothing.
    """
    rows = causes.rows
    calls = rows.calls[rows.calls >= 0]
    of_launching = np.isin(causes.owners, causes.owners[calls]) if len(calls) else True
    has_end: Bools = ~causes.elastic & (rows.ends != OPEN)
    return rows.having("kind", ENDING) & (rows.is_work | of_launching) & has_end


def last_node(causes: Causes, until_ns: int = OPEN - 1) -> int:
    """Return the end of the last work or call that ended by a time, of which the program ends."""
    rows = causes.rows
    last = np.flatnonzero(ending(causes) & (rows.ends <= until_ns))
    if not len(last):
        raise MissingEvidence("the trace holds no finished work and no call: no path leads to any")
    return 2 * int(last[np.lexsort((~rows.is_work[last], rows.ends[last]))[-1]]) + 1


def path_columns(
    trace: Trace, causes: Causes, node: int, since_ns: int, until_ns: int
) -> tuple[Ints, dict[str, Column]]:
    """Return when each part of the path to a node begins, and its columns.

    Its parts cover ``[since_ns, until_ns)``, each of 1 ns or more.
    """
    rows = causes.rows
    starts, kind, row, host = _parts(trace, causes, node, since_ns, until_ns)
    is_host = row < 0
    caller = np.where(rows.is_work[row] & ~is_host, rows.calls[row], host)
    moment = np.where(rows.is_work[row] & ~is_host, rows.starts[caller], starts)
    thread = np.where(caller >= 0, rows.threads[caller], -1)
    owner = np.where(caller >= 0, caller, row)
    process = np.where(owner >= 0, rows.processes[owner], -1)
    ranges = around(causes, ranges_in(trace)[0], caller, moment)
    calls = np.where(is_host, next_call(host, rows.having("kind", CALLS)), row)
    site, sites = rows.coded("site")
    name, names = rows.coded("name")
    label, labels = range_labels(trace)
    lines = [str(lines[0]) if (lines := lines_of(text)) else None for text in sites]
    is_run = np.isin(kind, (_PART["running"], _PART["copy"]))
    ranks = {facts.process: facts.rank for facts in trace.metadata.ranks}
    return starts, {
        "kind": (kind, list(PATH_KINDS)),
        "span": _ids(rows.ids, row),
        "name": (np.where(is_host, len(names), name[row]), [*names, ""]),
        "kernel": _values(np.where(is_run, name[row], -1), names.__getitem__),
        "thread": _values(thread, int),
        "stream": _values(np.where(is_host, -1, rows.streams[row]), int),
        "line": _values(np.where(calls >= 0, site[calls], -1), lines.__getitem__),
        "range": _values(np.where(ranges >= 0, label[ranges], -1), labels.__getitem__),
        "rank": _values(process, ranks.get),
    }


def _values(keys: Ints, value: Callable[[int], Any]) -> Column:
    """Return a column from keys, −1 for none; keys of one value have one number."""
    distinct, code = numbered(keys)
    values = [None if key < 0 else value(key) for key in distinct.tolist()]
    number = {cell: at for at, cell in enumerate(dict.fromkeys(values))}
    return np.array([number[cell] for cell in values], np.int64)[code], list(number)


def _ids(ids: Ints, rows: Ints) -> Column:
    """Return a column of the ids of rows, −1 for none."""
    distinct, code = np.unique(rows, return_inverse=True)
    values: list[int | None] = ids[distinct].tolist()
    if len(distinct) and distinct[0] < 0:
        values[0] = None
    return code, values


def next_call(rows: Ints, is_call: Bools) -> Ints:
    """Return of each part the next row of calls, of the parts' rows; −1 where none follows."""
    here = np.where((rows >= 0) & is_call[rows], np.arange(len(rows)), len(rows))
    following = np.minimum.accumulate(here[::-1])[::-1]
    calls: Ints = np.r_[rows, -1][following]
    return calls


def around(causes: Causes, spans: Ints, rows: Ints, moments: Ints) -> Ints:
    """Return the innermost of some rows on the threads of others, just after moments, or −1.

    Parameters
    ----------
    spans
        The rows that may be around.
    rows, moments
        Rows of the threads that are asked about, −1 for none, and when.
    """
    at = np.where(rows >= 0, 2 * moments + 1, -1)
    since = 2 * causes.rows.starts[spans]
    until = 2 * causes.times[2 * spans + 1]
    inside = innermost(causes.owners[rows], at, causes.owners[spans], since, until)
    return np.where(inside >= 0, np.r_[spans, -1][inside], -1)


def _parts(
    trace: Trace, causes: Causes, node: int, since_ns: int, until_ns: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return of each part when it begins, its kind, its row or −1, and the row of the host's."""
    rows = causes.rows
    times = causes.times
    edges = causes.back_from(node)[::-1]
    source = causes.source[edges]
    target = causes.target[edges]
    kind = causes.kind[edges]
    begin = len(times) - 1
    low = times[source]
    high = times[target]
    launched = kind == NUMBER["launch"]
    of_host = np.isin(kind, [NUMBER[edge_kind] for edge_kind in _OF_HOST])
    # Who had the SMs, and went on.
    beside = ~of_host & ~launched & (source % 2 == 0) & (target % 2 == 0) & (source != begin)
    gap = ~of_host & (target % 2 == 0) & ~beside
    row = np.where(beside, source, target) // 2
    queued = np.where(launched, np.clip(rows.queued[row], low, high), low)
    ready = np.where(gap, np.clip(causes.ready.ready_ns[row], queued, high), low)
    last = np.array(
        [_PART.get(_AS.get(edge_kind, edge_kind), _PART["unexplained"]) for edge_kind in NUMBER]
    )[kind]
    is_copy = rows.having("kind", ("memcpy", "memset"))[row]
    last[(last == _PART["running"]) | beside] = _PART["running"]
    last[(last == _PART["running"]) & is_copy] = _PART["copy"]
    is_function = rows.having("kind", ("host function",))[row]
    last[(last == _PART["running"]) & is_function] = _PART["host function"]
    first = np.where(source == begin, _PART["host"], _PART["launch call"])
    kinds = np.stack([first, np.full(len(edges), _PART["on the way"]), last], axis=1)
    starts = np.stack([low, queued, ready], axis=1)
    caller = causes.rows.calls[row]
    host = np.where(of_host, row, caller)
    parts_rows = np.stack([np.where(caller >= 0, caller, -1), row, row], axis=1)
    is_call = kind == NUMBER["host"]
    inside = around(causes, rows_of(trace, *CALLS), np.where(is_call, row, -1), low)
    launches = np.zeros(len(rows.ids), bool)
    launches[causes.rows.calls[causes.rows.calls >= 0]] = True
    kinds[is_call & (inside >= 0), 2] = _PART["call"]
    kinds[is_call & (inside >= 0) & launches[inside], 2] = _PART["launch call"]
    parts_rows[is_call, 2] = inside[is_call]
    parts_rows[np.isin(kind, [NUMBER["start-up"], NUMBER["turn"]]), 2] = -1
    starts = np.r_[since_ns, starts.ravel(), times[node]]
    bounds = np.clip(np.r_[starts, until_ns], since_ns, until_ns)
    has_length = bounds[1:] > bounds[:-1]
    columns = (
        bounds[:-1],
        np.r_[_PART["unexplained"], kinds.ravel(), _PART["host"]],
        np.r_[-1, parts_rows.ravel(), -1],
        np.r_[-1, np.repeat(host, 3), node // 2],
    )
    starts, kinds, parts_rows, host = (column[has_length] for column in columns)
    return starts, kinds, parts_rows, host
