"""What the host and streams waited for, of CUPTI's records and noted calls, reading by reading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from gpuscope._types import Ints
from gpuscope.device.calls import Call
from gpuscope.record.cupti import library, order
from gpuscope.record.cupti.tables import Columns, middle, select
from gpuscope.record.rows import Edge, Row, is_call_row, is_own_work, keep
from gpuscope.trace import arrow, joins, schema, waits
from gpuscope.trace.arrow import NONE

Edges = tuple[Ints, Ints, str]
LATE = 1 << 15
"""What came in so many of the latest calls is held for waits that a later reading brings."""
_LOW, _UNSURE = (1 << 32) - 1, 1 << 62
"""Of a stream: its number, and whether it may be of another context than the one told, as
``_launches.c`` notes it: where that has no such stream with work, of the only one that has."""
_WHAT = np.full(library.OTHER + 1, NONE)
"""What a call of each role is, of those that are noted with a stream or an event."""
_WHAT[library.RECORDS], _WHAT[library.AWAITS] = waits.RECORD, waits.STREAM_WAIT
_WHAT[library.OF_EVENT], _WHAT[library.OF_STREAM] = waits.EVENT_SYNC, waits.STREAM_SYNC
_WHAT[library.OF_CONTEXT] = waits.CONTEXT_SYNC
_CALLS = ("number", "row", "own")
_RECORDS = ("number", "what", "key", "event", "is_done")
_WORK = ("number", "launch", "own", "key", "device", "first", "start", "last", "end")


class Waits:
    """Joins waits to the work that they were for."""

    def __init__(self) -> None:
        self._calls: list[Columns] = []
        """Calls that do not launch: ``row`` is NONE where none tells of it; ``own``: it is ours."""
        self._records: list[Columns] = []
        """Of events and waits, CUPTI's and those that follow from what was noted of calls: stream
        or context, and event."""
        self._work: list[Columns] = []
        """Work of a call in a stream; ``own``: the row of a call of ours, or NONE."""
        self._behind: list[Edge] = []
        """Edges of ours from graphs' launches, by their first row, until all nodes have come."""
        self._upto = 0
        """The highest number of a call until the reading before."""

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that is done here next."""
        return keep(self, *vars(self))

    def forget(self) -> None:
        """Let go of everything: the recording begins now."""
        for parts in (self._calls, self._records, self._work):
            parts.clear()
        self._behind.clear()

    def take(self, records: Mapping[int, Columns]) -> None:
        """Take what a buffer tells of events and waits."""
        for part in order.waits_of(records):
            # The record of an event names the context that made the event: another, perhaps.
            key = _key(part) + _UNSURE
            self._add(part["correlation"], part["what"], key, part["sync"])

    def add_calls(self, calls: Columns) -> None:
        """Take calls that do not launch, with their rows."""
        number = calls["correlation"]
        self._calls.append({"number": number, "row": calls["row"], "own": calls["own"]})
        noted = select(calls, (calls["handle"] > 0) | (calls["event"] > 0))
        what = _WHAT[noted["role"]]
        self._add(noted["correlation"], what, noted["handle"], noted["event"])

    def end_events(self, calls: Columns) -> None:
        """Take calls that end events: another may get the handle, and has no record yet."""
        nothing = np.zeros(len(calls["event"]), np.int64)
        self._add(calls["correlation"], nothing + waits.RECORD, nothing, calls["event"])

    def _add(self, number: Ints, what: Ints, key: Ints, event: Ints) -> None:
        columns = {"number": number, "what": what, "key": key, "event": event}
        self._records.append({**columns, "is_done": np.zeros(len(number))})

    def add_work(self, work: Columns, rows: Ints) -> None:
        """Take work and its rows."""
        number, key = work["correlation"], _key(work)
        our_rows = np.where(is_own_work(rows), rows, NONE)
        names = {"number": number, "launch": number, "key": key, "first": rows, "last": rows}
        work_columns = {name: work[name] for name in ("device", "start", "end")}
        self._work.append({**work_columns, **names, "own": our_rows})

    def hold(self, edges: list[Edge]) -> None:
        """Take edges from launches of graphs that follow from our calls."""
        self._behind += edges

    def edges(self, until: int, green: Collection[int], *, over: bool) -> list[Edges]:
        """Return the edges of waits before which everything has come by now.

        Parameters
        ----------
        until
            The lowest number of a call whose work is still to come.
        green
            Contexts for which a wait for their device's own context waits, too.
        over
            Nothing more comes.
        """
        calls, records = _joined(self._calls, _CALLS), _joined(self._records, _RECORDS)
        work = waits.by_stream(_with_own(_joined(self._work, _WORK)))
        until = until if over else min(until, self._upto + 1)  # some may be on their way
        numbers = [columns["number"] for columns in (calls, records, work)]
        self._upto = int(np.concatenate(numbers).max(initial=0))
        joined = records | _subjects(records, work["key"])
        call = joins.match(joined["number"], calls["number"])
        joined["row"] = arrow.picked(calls["row"], call)
        is_ours = arrow.picked(calls["own"], call) > 0
        wait, source, target = waits.wait_edges(work, joined, until, green)
        what = np.where(joined["what"][wait] == waits.STREAM_WAIT, waits.STREAM_WAIT, NONE)
        ours = (what != waits.STREAM_WAIT) | is_own_work(target)
        of_ours = work["last"][work["own"] != NONE]
        new = ~(is_ours[wait] & np.isin(source, of_ours) & ours)  # our calls tell of the others
        since = until - LATE
        self._calls = [select(calls, calls["number"] >= since)]
        self._records = [select(records, records["number"] >= since)]
        self._work = [select(work, work["number"] >= since)]
        what, source, target = arrow.coded_array(what[new], source[new], target[new])[1].T
        return waits.by_kind(what, source, target) + self._behind_graphs(work, until, over=over)

    def _behind_graphs(self, work: Columns, until: int, *, over: bool) -> list[Edges]:
        """Return edges of ours from the last nodes of graphs all of whose nodes have come."""
        if not self._behind:
            return []
        behind, self._behind = self._behind, []
        launched = joins.match(np.array([first for first, _, _ in behind]), work["own"])
        last = arrow.picked(work["last"], launched)
        has_come = (launched != NONE) & (arrow.picked(work["number"], launched) < until)
        has_come[: max(0, len(behind) - LATE)] = True  # their nodes are held no longer
        pairs: dict[str, list[tuple[int, int]]] = {}
        for edge, row, is_told in zip(behind, last.tolist(), has_come.tolist(), strict=True):
            first, after, kind = edge
            if is_told or over:
                pairs.setdefault(kind, []).append((first if row == NONE else row, after))
            else:
                self._behind.append(edge)
        return [(*np.array(ends).T, kind) for kind, ends in pairs.items()]


def in_ours(
    apis: Columns, ended: list[Row], launches: list[Call], ending: tuple[int, int] | None
) -> tuple[Ints, Ints]:
    """Return which of our calls each API call was made in, or NONE, and the rows of these.

    Parameters
    ----------
    ended
        Rows of calls of ours.
    launches
        Other calls of ours.
    ending
        As in :class:`~gpuscope.record.rows.Rows`.
    """
    ours = [
        (row["thread"], row["start_ns"], row["end_ns"] or row["start_ns"], row["id"])
        for row in ended
        if row["kind"] != "handle" and row["thread"] is not None and is_call_row(row)
    ]
    ours += [(call.thread, call.start_ns, call.end_ns or call.start_ns, NONE) for call in launches]
    ours += [(*ending, schema.LATEST_NS, NONE)] if ending is not None else []
    *lasting, ids = np.array(ours, np.int64).reshape(-1, 4).T
    return joins.innermost(apis["thread"], middle(apis), *lasting), ids


def _subjects(records: Columns, worked: Ints) -> Columns:
    """Return the stream of each, and the stream and call whose work it waits for, or NONE.

    Parameters
    ----------
    worked
        Streams with work.
    """
    what, number = records["what"], records["number"]
    key = records["key"].copy()
    is_unsure = key >= _UNSURE
    key[is_unsure] = _with_work(key[is_unsure] - _UNSURE, worked)
    event = np.unique(records["event"], return_inverse=True)[1]
    places = event << 32 | number
    recorded = np.flatnonzero(what == waits.RECORD)
    recorded = recorded[np.argsort(places[recorded])]
    last = arrow.picked(recorded, np.searchsorted(places[recorded], places) - 1)
    of_event = np.isin(what, (waits.EVENT_SYNC, waits.STREAM_WAIT))
    last[(event[last] != event) | ~of_event] = NONE
    is_stream = what == waits.STREAM_SYNC
    return {
        "key": key,
        "of_key": np.where(is_stream, key, arrow.picked(key, last)),
        "of_number": np.where(is_stream, number, arrow.picked(number, last)),
    }


def _with_own(work: Columns) -> Columns:
    """Return work whose every piece has the row of ours of its launch, if that has one."""
    is_ours = work["own"] != NONE
    at = joins.match(work["launch"], work["launch"][is_ours])
    return {**work, "own": arrow.picked(work["own"][is_ours], at)}


def _with_work(streams: Ints, worked: Ints) -> Ints:
    """Return streams with their context: where that has none with work, the only one that has."""
    keys = np.unique(worked)
    low, at, count = np.unique(keys & _LOW, return_index=True, return_counts=True)
    alike = arrow.picked(keys[at[count == 1]], joins.match(streams & _LOW, low[count == 1]))
    return np.where(np.isin(streams, keys) | (alike == NONE), streams, alike)


def _key(columns: Columns) -> Ints:
    """Return one number for each context and stream."""
    return columns["context"].astype(np.int64) << 32 | columns["stream"].astype(np.int64)


def _joined(parts: list[Columns], names: Collection[str]) -> Columns:
    """Concatenate some of the columns, as whole numbers."""
    empty = [np.zeros(0, np.int64)]
    return {
        name: np.concatenate(empty + [part[name].astype(np.int64) for part in parts])
        for name in names
    }
