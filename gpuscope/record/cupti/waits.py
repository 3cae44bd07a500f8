"""What the host and streams waited for: edges from CUPTI's records of waits and noted calls.

The work of a stream is in the order of its calls' numbers. Behind a moment of a stream is the last
work before it, and behind a wait of the stream since then what was behind its event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from gpuscope._types import Array, Ints
from gpuscope.record.cupti import order
from gpuscope.record.cupti.library import EVENT_POLL, ORDER, STREAM_POLL
from gpuscope.record.cupti.tables import Columns, select
from gpuscope.record.rows import is_own_work, keep
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE

Edges = tuple[Ints, Ints, str]
Places = tuple[Ints, Ints, Ints]
"""What waits; the stream, and the number of a call, that it waits for what is behind of."""
LATE = 1 << 15
"""So many events, waits and pieces of work are held for what a later reading brings."""
_MOST_WAITS = 64
"""Waits of a stream without work between: so many are followed, over so many streams."""
_CALLS = ("number", "row", "role", "handle", "own")
_RECORDS = ("number", "what", "key", "sync", "event", "of_key", "of_number", "told")
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
            count = len(part["sync"])
            none, told = np.full(count, NONE), np.zeros(count)
            more = {"of_key": none, "of_number": none, "told": told}
            self._records.append({**part, "number": part["correlation"], "key": _key(part), **more})

    def add_calls(self, calls: Columns) -> None:
        """Take calls that do not launch, with their rows."""
        self._calls.append({**calls, "number": calls["correlation"]})

    def add_work(self, work: Columns, rows: Ints) -> None:
        """Take work and its rows."""
        ends = {"first": rows, "start": work["start"], "last": rows, "end": work["end"]}
        number, device = work["correlation"], work["device"]
        self._work.append({"number": number, "key": _key(work), "device": device, **ends})

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
        numbers = [columns["number"] for columns in (calls, records, work)]
        until = until if over else min(until, self._upto + 1)  # some may be on their way
        self._upto = int(np.concatenate(numbers).max(initial=0))
        _resolve(records)
        streams = _Streams(work, records)
        host = self._host_waits(calls, records, streams, until, green)
        stream = self._stream_waits(calls, records, streams, until)
        if not over:
            self._let_go(calls, records, streams, until)
        return [(*host, "host wait"), (*stream, "event wait")]

    def _host_waits(
        self,
        calls: Columns,
        records: Columns,
        streams: _Streams,
        until: int,
        green: Collection[int],
    ) -> tuple[Ints, Ints]:
        """Return the edges to calls that waited, or saw that work was done."""
        call_of = joins.match(records["number"], calls["number"])
        due = (call_of >= 0) & (records["told"] == 0) & (records["number"] < until)
        what = records["what"]
        streams_at = np.flatnonzero(due & (what == order.STREAM_SYNC))
        events = np.flatnonzero(due & (what == order.EVENT_SYNC) & (records["of_key"] != NONE))
        places = (
            (call_of[streams_at], records["key"][streams_at], records["number"][streams_at]),
            (call_of[events], records["of_key"][events], records["of_number"][events]),
            *_polls(calls, records, until),
        )
        found = [streams.behind(*(np.concatenate(part) for part in zip(*places, strict=True)))]
        contexts = np.flatnonzero(due & (what == order.CONTEXT_SYNC))
        found += streams.before_all(
            call_of[contexts], records["key"][contexts] >> 32, records["number"][contexts], green
        )
        call, rows = (np.concatenate(part) for part in zip(*found, strict=True))
        records["told"][(records["number"] < until) & (what != order.STREAM_WAIT)] = 1
        new = (calls["row"][call] != NONE) & ~((calls["own"][call] > 0) & is_own_work(rows))
        return _distinct(rows[new], calls["row"][call[new]])

    def _stream_waits(
        self, calls: Columns, records: Columns, streams: _Streams, until: int
    ) -> tuple[Ints, Ints]:
        """Return the edges to the first work behind each wait of a stream."""
        waits = (records["what"] == order.STREAM_WAIT) & (records["told"] == 0)
        waits &= records["of_key"] != NONE
        at = np.flatnonzero(waits & (records["of_key"] != records["key"]))
        target = streams.after(records["key"][at], records["number"][at], until)
        at, target = at[target != NONE], target[target != NONE]
        records["told"][at] = 1
        which, rows = streams.behind(
            np.arange(len(at)), records["of_key"][at], records["of_number"][at]
        )
        call = joins.match(records["number"][at], calls["number"])
        is_own = arrow.picked(calls["own"], call)[which] > 0
        new = ~(is_own & is_own_work(rows) & is_own_work(target[which]))
        return _distinct(rows[new], target[which[new]])

    def _let_go(self, calls: Columns, records: Columns, streams: _Streams, until: int) -> None:
        """Hold what a later reading may ask for, and the newest of it."""
        later = calls["number"] >= until
        events = np.flatnonzero((calls["role"] == ORDER) & (calls["handle"] > 0))
        later[_newest(events, calls["number"], calls["handle"])] = True
        self._calls = [select(calls, later)]
        held = (records["number"] >= until) & (records["told"] == 0)
        events = np.flatnonzero(records["what"] == order.RECORD)
        events = _newest(events, records["number"], records["event"])
        waits = np.flatnonzero(records["what"] == order.STREAM_WAIT)
        held[events] = held[_newest(waits, records["number"])] = True
        self._records = [select(records, held)]
        behind = streams.last(records["key"][events], records["number"][events])
        self._work = [select(streams.work, streams.needed(behind, until))]


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
        is_last = np.r_[work["number"][by_end][1:] != work["number"][by_end][:-1], True]
        last = by_end[is_last[: len(by_end)]]
        last = last[np.searchsorted(work["number"][last], work["number"])]
        place = self._place(work["key"], work["number"])
        begins = np.lexsort((work["start"], place))
        self.place, first = np.unique(place[begins], return_index=True)
        chosen = begins[first]
        ends = {name: work[name][last[chosen]] for name in ("last", "end")}
        self.work = select(work, chosen) | ends
        waits = (records["what"] == order.STREAM_WAIT) & (records["of_key"] != NONE)
        waits &= records["of_key"] != records["key"]
        wait = self._place(records["key"][waits], records["number"][waits])
        ascending = np.argsort(wait)
        self._waits = wait[ascending]
        self._of = self._place(records["of_key"][waits], records["of_number"][waits])[ascending]

    def _place(self, keys: Ints, numbers: Ints) -> Ints:
        """Return numbers that ascend by stream, and in it by call."""
        return np.searchsorted(self._keys, keys) << 32 | numbers

    def last(self, keys: Ints, numbers: Ints) -> Ints:
        """Return the last work of a stream before each call, by position, or NONE."""
        return self._last(self._place(keys, numbers))

    def _last(self, place: Ints) -> Ints:
        at = np.searchsorted(self.place, place) - 1
        return np.where(arrow.picked(self.place, at) >> 32 == place >> 32, at, NONE)

    def after(self, keys: Ints, numbers: Ints, until: int) -> Ints:
        """Return the row of the first work of a stream behind each call, or NONE."""
        place = self._place(keys, numbers)
        at = np.searchsorted(self.place, place, "right")
        at = np.where(at < len(self.place), at, NONE)
        there = arrow.picked(self.place, at) >> 32 == place >> 32
        there &= arrow.picked(self.work["number"], at) < until
        return np.where(there, arrow.picked(self.work["first"], at), NONE)

    def behind(self, what: Ints, keys: Ints, numbers: Ints) -> tuple[Ints, Ints]:
        """Return what waits, and the rows that it waits for, for each place."""
        place = self._place(keys, numbers)
        found: list[tuple[Ints, Ints]] = []
        for _ in range(_MOST_WAITS):
            at = self._last(place)
            found.append((what[at != NONE], self.work["last"][at[at != NONE]]))
            since = np.where(at == NONE, place >> 32 << 32, arrow.picked(self.place, at))
            low, high = np.searchsorted(self._waits, since), np.searchsorted(self._waits, place)
            count = np.minimum(high - low, _MOST_WAITS)
            if not count.any():
                break
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            wait = np.repeat(high, count) - 1 - within
            what, place = arrow.coded_array(np.repeat(what, count), self._of[wait])[1].T
        waiting, rows = (np.concatenate(part) for part in zip(*found, strict=True))
        return waiting, rows

    def before_all(
        self, what: Ints, contexts: Ints, numbers: Ints, green: Collection[int]
    ) -> list[tuple[Ints, Ints]]:
        """Return for waits for contexts their places' last rows since the wait before."""
        of_stream = self._keys >> 32
        device = np.full(len(self._keys), NONE)
        device[self.place >> 32] = self.work["device"]
        found = []
        for context in np.unique(contexts).tolist():
            own = of_stream == context
            if context not in green and own.any():
                own |= np.isin(of_stream, [*green]) & (device == device[own].max()) & (device >= 0)
            waits = np.flatnonzero(contexts == context)
            waits = waits[np.argsort(numbers[waits])]
            before = np.r_[0, numbers[waits[:-1]]]
            stream, wait = (part.ravel() for part in np.meshgrid(np.flatnonzero(own), waits))
            at = self._last(stream << 32 | numbers[wait])
            new = arrow.picked(self.work["number"], at) > np.repeat(before, own.sum())
            found.append((what[wait[new]], self.work["last"][at[new]]))
        return found

    def needed(self, behind: Ints, until: int) -> Ints:
        """Return the work to hold: the newest, the last of each stream, and some other."""
        number = self.work["number"]
        ends = np.flatnonzero(np.r_[self.place[1:] >> 32 != self.place[:-1] >> 32, True])
        newest = np.argsort(number)[-LATE:]
        kept = (np.flatnonzero(number >= until), newest, ends[: len(number)], behind[behind >= 0])
        return np.unique(np.concatenate(kept))


def _joined(parts: list[Columns], names: Collection[str]) -> Columns:
    """Concatenate some of the columns, as whole numbers."""
    empty = [np.zeros(0, np.int64)]
    return {
        name: np.concatenate(empty + [part[name].astype(np.int64) for part in parts])
        for name in names
    }


def _key(columns: Columns) -> Ints:
    """Return one number for each context and stream."""
    return columns["context"].astype(np.int64) << 32 | columns["stream"].astype(np.int64)


def _resolve(records: Columns) -> None:
    """Find the record of the event of each wait."""
    events = np.flatnonzero(records["what"] == order.RECORD)
    waits = np.isin(records["what"], (order.EVENT_SYNC, order.STREAM_WAIT))
    open_waits = np.flatnonzero(waits & (records["of_key"] == NONE))
    at = joins.match(records["sync"][open_waits], records["sync"][events])
    open_waits, at = open_waits[at != NONE], events[at[at != NONE]]
    records["of_key"][open_waits] = records["key"][at]
    records["of_number"][open_waits] = records["number"][at]


def _polls(calls: Columns, records: Columns, until: int) -> tuple[Places, Places]:
    """Return the polls that were the first to see an event, or a stream, done."""
    now = calls["number"] < until
    streams = np.flatnonzero(now & (calls["role"] == STREAM_POLL) & (calls["handle"] > 0))
    of_streams = (streams, calls["handle"][streams], calls["number"][streams])
    polls = np.flatnonzero(now & (calls["role"] == EVENT_POLL))
    polls = polls[np.argsort(calls["number"][polls])]
    events = np.flatnonzero((calls["role"] == ORDER) & (calls["handle"] > 0))
    _, handle = np.unique(calls["handle"], return_inverse=True)
    place = handle << 32 | calls["number"]
    events = events[np.argsort(place[events])]
    at = np.searchsorted(place[events], place[polls]) - 1
    event = arrow.picked(events, at)
    there = (event != NONE) & (handle[event] == handle[polls])
    polls, event = polls[there], event[there]
    recorded = np.flatnonzero(records["what"] == order.RECORD)
    at = joins.match(calls["number"][event], records["number"][recorded])
    polls, event, at = polls[at != NONE], event[at != NONE], recorded[at[at != NONE]]
    _, first = np.unique(event, return_index=True)
    return (polls[first], records["key"][at[first]], records["number"][at[first]]), of_streams


def _newest(rows: Ints, numbers: Ints, groups: Array | None = None) -> Ints:
    """Return the newest rows, of each group the last."""
    rows = rows[np.argsort(-numbers[rows], kind="stable")]
    if groups is not None:
        rows = rows[np.sort(np.unique(groups[rows], return_index=True)[1])]
    return rows[:LATE]


def _distinct(sources: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Return each pair once."""
    pairs = arrow.coded_array(sources, targets)[1]
    return pairs[:, 0], pairs[:, 1]
