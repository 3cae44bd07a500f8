"""What the host and streams waited for, of CUPTI's records and noted calls, reading by reading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from gpuscope._types import Ints
from gpuscope.device.calls import Call
from gpuscope.record.cupti import order
from gpuscope.record.cupti.library import OF_CONTEXT, OF_EVENT, OF_STREAM, ORDER
from gpuscope.record.cupti.tables import Columns, middle, select
from gpuscope.record.rows import Row, is_call_row, is_own_work, keep
from gpuscope.trace import arrow, joins, schema, waits
from gpuscope.trace.arrow import NONE

Edges = tuple[Ints, Ints, str]
LATE = 1 << 15
"""What came in so many of the latest calls is held for waits that a later reading brings."""
_LOW, _UNSURE = (1 << 32) - 1, 1 << 62
"""Of what was noted of a stream: its number, and whether it may be of another context than the
current one: then of the only one that has such a stream with work."""
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
        # The record of an event names the context that made the event.
        mapped = {name: _with_work(records[name], work["key"]) for name in ("key", "of_key")}
        mapped = records | mapped
        of_calls = _of_calls(calls, mapped, work)
        every = {name: np.r_[values, of_calls[name]] for name, values in mapped.items()}
        call = joins.match(every["number"], calls["number"])
        every["row"] = arrow.picked(calls["row"], call)
        is_ours = arrow.picked(calls["own"], call) > 0
        wait, source, target = waits.wait_edges(work, every, until, green)
        what = np.where(every["what"][wait] == waits.STREAM_WAIT, waits.STREAM_WAIT, NONE)
        ours = (what != waits.STREAM_WAIT) | is_own_work(target)
        new = ~(is_ours[wait] & is_own_work(source) & ours)  # our calls tell of the others
        records["is_done"] = every["is_done"][: len(records["what"])]
        since = until - LATE
        since_call = np.where(calls["role"] == ORDER, since, until)  # of the others all is told
        self._calls = [select(calls, calls["number"] >= since_call)]
        self._records = [select(records, records["number"] >= since)]
        self._work = [select(work, work["number"] >= since)]
        what, source, target = arrow.coded_array(what[new], source[new], target[new])[1].T
        return waits.by_kind(what, source, target)


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


def _of_calls(calls: Columns, records: Columns, work: Columns) -> Columns:
    """Return waits as records, by what was noted of their calls."""
    subject, role = calls["handle"].copy(), calls["role"]
    events = np.flatnonzero((role == ORDER) & (subject > 0))
    handle = np.unique(subject, return_inverse=True)[1]
    places = handle << 32 | calls["number"]
    events = events[np.argsort(places[events])]
    event = arrow.picked(events, np.searchsorted(places[events], places) - 1)
    event[(handle[event] != handle) | (event == NONE) | (role != OF_EVENT)] = NONE
    recorded = np.flatnonzero(records["what"] == waits.RECORD)
    number = np.where(event == NONE, NONE, calls["number"][event])
    at = arrow.picked(recorded, joins.match(number, records["number"][recorded]))
    is_stream = (role == OF_STREAM) & (subject > 0)
    is_unsure = is_stream & (subject >= _UNSURE)
    subject[is_unsure] -= _UNSURE
    subject[is_unsure] = _with_work(subject[is_unsure], work["key"])
    of = {
        "number": calls["number"],
        "what": np.where(role == OF_CONTEXT, waits.CONTEXT_SYNC, waits.EVENT_SYNC),
        "key": subject,
        "of_key": np.where(is_stream, subject, arrow.picked(records["key"], at)),
        "of_number": np.where(is_stream, calls["number"], arrow.picked(records["number"], at)),
    }
    chosen = np.isin(role, (OF_EVENT, OF_STREAM, OF_CONTEXT)) & (subject > 0)
    return {name: values[chosen] for name, values in of.items()} | dict.fromkeys(
        ("sync", "is_done"), np.zeros(chosen.sum(), np.int64)
    )


def _with_work(streams: Ints, worked: Ints) -> Ints:
    """Return streams with their context: where that has none with work, the only one that has."""
    keys = np.unique(worked)
    low, at, count = np.unique(keys & _LOW, return_index=True, return_counts=True)
    alike = arrow.picked(keys[at[count == 1]], joins.match(streams & _LOW, low[count == 1]))
    return np.where((streams == NONE) | np.isin(streams, keys) | (alike == NONE), streams, alike)


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
