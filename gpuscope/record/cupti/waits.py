"""What the host and streams waited for, of CUPTI's records and noted calls, reading by reading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.device.calls import Call
from gpuscope.record.cupti import order
from gpuscope.record.cupti.library import EVENT_POLL, ORDER, STREAM_POLL
from gpuscope.record.cupti.tables import Columns, middle, select
from gpuscope.record.rows import Row, is_call_row, is_own_work, keep
from gpuscope.trace import arrow, joins, schema, waits
from gpuscope.trace.arrow import NONE

Edges = tuple[Ints, Ints, str]
LATE = 1 << 15
"""So many of the newest events, waits of streams and pieces of work are held for later readings."""
_CALLS = ("number", "row", "role", "handle", "own")
_RECORDS = ("number", "what", "key", "sync", "of_key", "of_number", "is_done")
_WORK = ("number", "launch", "key", "device", "first", "start", "last", "end")


class Waits:
    """Joins waits to the work that they were for."""

    def __init__(self) -> None:
        self._calls: list[Columns] = []
        """Calls that do not launch: ``row`` is NONE where none tells of it; ``own``: it is ours."""
        self._records: list[Columns] = []
        """CUPTI's, of events and waits; of a wait also the stream and call that it is for."""
        self._work: list[Columns] = []
        """Work of a call in a stream."""
        self._upto = 0
        """The highest number of a call until the reading before."""

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that is done here next."""
        return keep(self, *vars(self))

    def forget(self) -> None:
        """Let go of everything: the recording begins now."""
        for parts in (self._calls, self._records, self._work):
            parts.clear()

    def take(self, records: Mapping[int, Columns]) -> None:
        """Take what a buffer tells of events and waits."""
        for part in order.waits_of(records):
            number, key = part["correlation"], _key(part)
            of_key = np.where(part["what"] == waits.STREAM_SYNC, key, NONE)
            of = {"of_key": of_key, "of_number": number, "is_done": np.zeros(len(key))}
            self._records.append({**part, **of, "number": number, "key": key})

    def add_calls(self, calls: Columns) -> None:
        """Take calls that do not launch, with their rows."""
        self._calls.append({**calls, "number": calls["correlation"]})

    def add_work(self, work: Columns, rows: Ints) -> None:
        """Take work and its rows."""
        number, key = work["correlation"], _key(work)
        names = {"number": number, "launch": number, "key": key, "first": rows, "last": rows}
        self._work.append({**{name: work[name] for name in ("device", "start", "end")}, **names})

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
        work = waits.by_stream(_joined(self._work, _WORK))
        until = until if over else min(until, self._upto + 1)  # some may be on their way
        numbers = [columns["number"] for columns in (calls, records, work)]
        self._upto = int(np.concatenate(numbers).max(initial=0))
        _resolve(records)
        every = _polls(calls, records)
        every = {name: np.r_[values, every[name]] for name, values in records.items()}
        call = joins.match(every["number"], calls["number"])
        every["row"], own = arrow.picked(calls["row"], call), arrow.picked(calls["own"], call) > 0
        wait, source, target = waits.wait_edges(work, every, until, green)
        what = every["what"][wait]
        ours = (what != waits.STREAM_WAIT) | is_own_work(target)
        new = ~(own[wait] & is_own_work(source) & ours)  # our calls tell of the others
        records["is_done"] = every["is_done"][: len(records["what"])]
        lasting = np.isin(records["what"], (waits.RECORD, waits.STREAM_WAIT))
        nothing = np.zeros(1, bool)
        self._calls = [_held(calls, calls["role"] == ORDER, until, nothing)]
        self._records = [_held(records, lasting, until, nothing)]
        self._work = [_held(work, work["number"] >= 0, until, waits.is_last(work["key"]))]
        return waits.by_kind(what[new], source[new], target[new])


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


def _polls(calls: Columns, records: Columns) -> Columns:
    """Return the polls that were the first to see an event, or a stream, done, as records."""
    polls = np.flatnonzero(calls["role"] == EVENT_POLL)
    polls = polls[np.argsort(calls["number"][polls])]
    events = np.flatnonzero((calls["role"] == ORDER) & (calls["handle"] > 0))
    _, handle = np.unique(calls["handle"], return_inverse=True)
    places = handle << 32 | calls["number"]
    events = events[np.argsort(places[events])]
    event = arrow.picked(events, np.searchsorted(places[events], places[polls]) - 1)
    same = (event != NONE) & (handle[event] == handle[polls])
    event, first = np.unique(event[same], return_index=True)
    recorded = np.flatnonzero(records["what"] == waits.RECORD)
    at = arrow.picked(recorded, joins.match(calls["number"][event], records["number"][recorded]))
    of_streams = np.flatnonzero((calls["role"] == STREAM_POLL) & (calls["handle"] > 0))
    number = calls["number"][np.r_[polls[same][first], of_streams]]
    of_number = np.r_[arrow.picked(records["number"], at), calls["number"][of_streams]]
    of_key = np.r_[arrow.picked(records["key"], at), calls["handle"][of_streams]]
    none = np.zeros(len(number), np.int64)
    known = {"number": number, "of_key": of_key, "of_number": of_number, "key": of_key}
    return {**known, "what": none + waits.EVENT_SYNC, "sync": none, "is_done": none}


def _resolve(records: Columns) -> None:
    """Find the record of the event of each wait."""
    events = np.flatnonzero(records["what"] == waits.RECORD)
    of_events = np.isin(records["what"], (waits.EVENT_SYNC, waits.STREAM_WAIT))
    rows = np.flatnonzero(of_events & (records["of_key"] == NONE))
    at = joins.match(records["sync"][rows], records["sync"][events])
    rows, at = rows[at != NONE], events[at[at != NONE]]
    records["of_key"][rows], records["of_number"][rows] = (
        records["key"][at],
        records["number"][at],
    )


def _held(columns: Columns, newest: Bools, until: int, always: Bools) -> Columns:
    """Return what is not due yet, and the newest of what a later reading may ask for."""
    number, at = columns["number"], np.flatnonzero(newest)
    held = (number >= until) | always
    held[at[np.argsort(number[at])[-LATE:]]] = True
    return select(columns, held)


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
