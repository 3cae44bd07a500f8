"""What the host and streams waited for: edges from CUPTI's records of waits and noted calls.

The work of a stream is in the order of its calls' numbers. Behind a moment of a stream is the last
work before it, and behind a wait of the stream since then what was behind its event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from gpuscope._types import Array, Bools, Ints
from gpuscope.record.cupti import order
from gpuscope.record.cupti.library import EVENT_POLL, ORDER, STREAM_POLL
from gpuscope.record.cupti.tables import Columns, select
from gpuscope.record.rows import is_own_work, keep
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE

Edges = tuple[Ints, Ints, str]
LATE = 1 << 15
"""So many of the newest calls, records and pieces of work are held for a later reading."""
_MOST_WAITS = 64
"""Waits of a stream without work between: so many are followed, over so many streams."""
_CALLS = ("number", "row", "role", "handle", "own")
_RECORDS = ("number", "what", "key", "sync", "of_key", "of_number", "is_done")
_WORK = ("number", "key", "device", "first", "start", "last", "end")


class Waits:
    """Joins waits to the work that they were for, reading by reading."""

    def __init__(self) -> None:
        self._calls: list[Columns] = []
        """Calls that do not launch: ``row`` is NONE where none tells of it; ``own``: it is ours."""
        self._records: list[Columns] = []
        """CUPTI's, of events and waits; of a wait also the stream and call of its event's."""
        self._work: list[Columns] = []
        """Work of a call in a stream, its first and its last row."""
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
            unknown = np.full(len(part["sync"]), NONE)
            more = {"of_key": unknown, "of_number": unknown, "is_done": unknown + 1}
            self._records.append({**_numbered(part), **more})

    def add_calls(self, calls: Columns) -> None:
        """Take calls that do not launch, with their rows."""
        self._calls.append({**calls, "number": calls["correlation"]})

    def add_work(self, work: Columns, rows: Ints) -> None:
        """Take work and its rows."""
        self._work.append({**_numbered(work), "first": rows, "last": rows})

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
        work = _joined(self._work, _WORK)
        until = until if over else min(until, self._upto + 1)  # some may be on their way
        numbers = [columns["number"] for columns in (calls, records, work)]
        self._upto = int(np.concatenate(numbers).max(initial=0))
        _resolve(records)
        streams = _Streams(work, records)
        edges = [
            (*_host_waits(calls, records, streams, until, green), "host wait"),
            (*_stream_waits(calls, records, streams, until), "event wait"),
        ]
        lasting = np.isin(records["what"], (order.RECORD, order.STREAM_WAIT))
        self._calls = [_held(calls, calls["role"] == ORDER, until)]
        self._records = [_held(records, lasting, until)]
        self._work = [_held(streams.work, streams.work["number"] > 0, until, streams.is_last)]
        return edges


class _Streams:
    """The work and the waits of streams, in the order of their calls.

    Attributes
    ----------
    work
        By stream and call: of a graph's launch the last row is that of its last node, in each
        stream that it ran in.
    """

    def __init__(self, work: Columns, records: Columns) -> None:
        self._keys = np.unique(np.r_[work["key"], records["key"], records["of_key"]])
        by_end = np.lexsort((work["end"], work["number"]))
        last = by_end[_ends(work["number"][by_end])]
        last = last[np.searchsorted(work["number"][last], work["number"])]
        places = self._places(work["key"], work["number"])
        by_start = np.lexsort((work["start"], places))
        self._work, first = np.unique(places[by_start], return_index=True)
        rows = by_start[first]
        self.work = select(work, rows) | {name: work[name][last[rows]] for name in ("last", "end")}
        self.is_last = _ends(self._work >> 32)
        waits = _orders(records)
        wait = self._places(records["key"][waits], records["number"][waits])
        event = self._places(records["of_key"][waits], records["of_number"][waits])
        self._waits, self._events = wait[np.argsort(wait)], event[np.argsort(wait)]

    def _places(self, keys: Ints, numbers: Ints) -> Ints:
        """Return numbers that ascend by stream, and in it by call."""
        return np.searchsorted(self._keys, keys) << 32 | numbers

    def _last(self, places: Ints) -> Ints:
        """Return the position of the last work before each place in its stream, or NONE."""
        at = np.searchsorted(self._work, places) - 1
        return np.where(arrow.picked(self._work, at) >> 32 == places >> 32, at, NONE)

    def after(self, keys: Ints, numbers: Ints, until: int) -> Ints:
        """Return the row of the first work of a stream behind each call, or NONE."""
        places = self._places(keys, numbers)
        at = np.searchsorted(self._work, places)
        next_one = np.append(self._work, NONE)[at]
        there = (next_one >> 32 == places >> 32) & (next_one & 0xFFFFFFFF < until)
        return np.where(there, np.append(self.work["first"], NONE)[at], NONE)

    def behind(self, what: Ints, keys: Ints, numbers: Ints) -> tuple[Ints, Ints]:
        """Return what waits, and the rows that it waits for, for each moment of a stream."""
        places = self._places(keys, numbers)
        pairs: list[tuple[Ints, Ints]] = []
        for _ in range(_MOST_WAITS):
            at = self._last(places)
            pairs.append((what[at != NONE], self.work["last"][at[at != NONE]]))
            since = np.where(at == NONE, places >> 32 << 32, arrow.picked(self._work, at))
            low, high = np.searchsorted(self._waits, since), np.searchsorted(self._waits, places)
            count = np.minimum(high - low, _MOST_WAITS)
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            events = self._events[np.repeat(high, count) - 1 - within]
            what, places = arrow.coded_array(np.repeat(what, count), events)[1].T
            if not len(what):
                break
        what, rows = _concatenated(pairs)
        return what, rows

    def before_all(
        self, what: Ints, contexts: Ints, numbers: Ints, green: Collection[int]
    ) -> list[tuple[Ints, Ints]]:
        """Return for waits for contexts their streams' last rows since the wait before."""
        of_stream, device = self._keys >> 32, np.full(len(self._keys), NONE)
        device[self._work >> 32] = self.work["device"]
        pairs = []
        for context in np.unique(contexts).tolist():
            waited = of_stream == context
            if context not in green and waited.any():
                same = (device == device[waited].max()) & (device != NONE)
                waited |= np.isin(of_stream, [*green]) & same
            waits = np.flatnonzero(contexts == context)
            waits = waits[np.argsort(numbers[waits])]
            before = np.repeat(np.r_[0, numbers[waits[:-1]]], waited.sum())
            streams, wait = (part.ravel() for part in np.meshgrid(np.flatnonzero(waited), waits))
            at = self._last(streams << 32 | numbers[wait])
            new = arrow.picked(self.work["number"], at) > before
            pairs.append((what[wait[new]], self.work["last"][at[new]]))
        return pairs


def _host_waits(
    calls: Columns, records: Columns, streams: _Streams, until: int, green: Collection[int]
) -> tuple[Ints, Ints]:
    """Return the edges to calls that waited, or saw that work was done."""
    call_of = joins.match(records["number"], calls["number"])
    what, now = records["what"], records["number"] < until
    due = (call_of != NONE) & now & (records["is_done"] == 0)
    waits = np.flatnonzero(due & (what == order.STREAM_SYNC))
    of_events = np.flatnonzero(due & (what == order.EVENT_SYNC) & (records["of_key"] != NONE))
    moments = [
        (call_of[waits], records["key"][waits], records["number"][waits]),
        (call_of[of_events], records["of_key"][of_events], records["of_number"][of_events]),
        *_polls(calls, records, until),
    ]
    pairs = [streams.behind(*_concatenated(moments))]
    all_of = np.flatnonzero(due & (what == order.CONTEXT_SYNC))
    contexts = records["key"][all_of] >> 32
    pairs += streams.before_all(call_of[all_of], contexts, records["number"][all_of], green)
    records["is_done"][now & (what != order.STREAM_WAIT)] = 1
    call, rows = _concatenated(pairs)
    new = (calls["row"][call] != NONE) & ~((calls["own"][call] > 0) & is_own_work(rows))
    return _distinct(rows[new], calls["row"][call[new]])


def _polls(calls: Columns, records: Columns, until: int) -> list[tuple[Ints, Ints, Ints]]:
    """Return the polls that were the first to see an event, or a stream, done; and of which."""
    polls = np.flatnonzero((calls["role"] == EVENT_POLL) & (calls["number"] < until))
    polls = polls[np.argsort(calls["number"][polls])]
    events = np.flatnonzero((calls["role"] == ORDER) & (calls["handle"] > 0))
    _, handle = np.unique(calls["handle"], return_inverse=True)
    places = handle << 32 | calls["number"]
    events = events[np.argsort(places[events])]
    event = arrow.picked(events, np.searchsorted(places[events], places[polls]) - 1)
    same = (event != NONE) & (handle[event] == handle[polls])
    event, first = np.unique(event[same], return_index=True)
    recorded = np.flatnonzero(records["what"] == order.RECORD)
    at = joins.match(calls["number"][event], records["number"][recorded])
    polls, at = polls[same][first][at != NONE], recorded[at[at != NONE]]
    streams = np.flatnonzero((calls["role"] == STREAM_POLL) & (calls["number"] < until))
    streams = streams[calls["handle"][streams] > 0]
    return [
        (polls, records["key"][at], records["number"][at]),
        (streams, calls["handle"][streams], calls["number"][streams]),
    ]


def _stream_waits(
    calls: Columns, records: Columns, streams: _Streams, until: int
) -> tuple[Ints, Ints]:
    """Return the edges to the first work behind each wait of a stream."""
    waits = np.flatnonzero(_orders(records) & (records["is_done"] == 0))
    target = streams.after(records["key"][waits], records["number"][waits], until)
    waits, target = waits[target != NONE], target[target != NONE]
    records["is_done"][waits] = 1
    moments = (records[name][waits] for name in ("of_key", "of_number"))
    which, rows = streams.behind(np.arange(len(waits)), *moments)
    call = joins.match(records["number"][waits], calls["number"])
    is_own = arrow.picked(calls["own"], call)[which] > 0
    new = ~(is_own & is_own_work(rows) & is_own_work(target[which]))
    return _distinct(rows[new], target[which[new]])


def _orders(records: Columns) -> Bools:
    """Whether each record is of a wait of a stream for another, as far as that is known."""
    is_wait = (records["what"] == order.STREAM_WAIT) & (records["of_key"] != NONE)
    orders: Bools = is_wait & (records["of_key"] != records["key"])
    return orders


def _resolve(records: Columns) -> None:
    """Find the record of the event of each wait."""
    events = np.flatnonzero(records["what"] == order.RECORD)
    of_events = np.isin(records["what"], (order.EVENT_SYNC, order.STREAM_WAIT))
    waits = np.flatnonzero(of_events & (records["of_key"] == NONE))
    at = joins.match(records["sync"][waits], records["sync"][events])
    waits, at = waits[at != NONE], events[at[at != NONE]]
    records["of_key"][waits], records["of_number"][waits] = (
        records["key"][at],
        records["number"][at],
    )


def _held(columns: Columns, lasting: Bools, until: int, always: Bools | None = None) -> Columns:
    """Return what is not due yet, and the newest of what a later reading may ask for."""
    number = columns["number"]
    held = number >= until if always is None else (number >= until) | always
    newest = np.flatnonzero(lasting)
    held[newest[np.argsort(number[newest])[-LATE:]]] = True
    return select(columns, held)


def _numbered(columns: Columns) -> Columns:
    """Return CUPTI's columns, and one number for the call and for context and stream."""
    context, stream = (columns[name].astype(np.int64) for name in ("context", "stream"))
    return {**columns, "number": columns["correlation"], "key": context << 32 | stream}


def _joined(parts: list[Columns], names: Collection[str]) -> Columns:
    """Concatenate some of the columns, as whole numbers."""
    empty = [np.zeros(0, np.int64)]
    return {
        name: np.concatenate(empty + [part[name].astype(np.int64) for part in parts])
        for name in names
    }


def _concatenated(parts: Collection[tuple[Ints, ...]]) -> list[Ints]:
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _ends(groups: Array) -> Bools:
    """Whether each is the last of its group; they are sorted."""
    ends: Bools = np.append(groups[1:] != groups[:-1], True)[: len(groups)]
    return ends


def _distinct(sources: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Return each pair once."""
    pairs = arrow.coded_array(sources, targets)[1]
    return pairs[:, 0], pairs[:, 1]
