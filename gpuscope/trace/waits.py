"""What waits were for: the work behind an event, a stream or all of them at a moment.

The work of a stream is in the order of its calls' numbers. Behind a moment of a stream is the last
work before it, and behind a wait of the stream since then what was behind its event.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpuscope._types import Array, Bools, Ints
from gpuscope.trace import arrow
from gpuscope.trace.arrow import NONE
from gpuscope.trace.joins import distinct

RECORD, EVENT_SYNC, STREAM_WAIT, STREAM_SYNC, CONTEXT_SYNC = range(5)
"""What a row is of: an event's record, or ``CUpti_ActivitySynchronizationType``."""
Columns = dict[str, Array]
_NEVER = 1 << 32
_MOST_WAITS, _MOST = 16, 1 << 20
"""Waits of a stream without work between: so many are followed, over so many streams; and so many
of all: a bound on time and memory, whatever a file holds."""


def wait_edges(
    work: Columns, waits: Columns, until: int = _NEVER, green: Collection[int] = ()
) -> tuple[Ints, Ints, Ints]:
    """Return edges of waits: which wait, what it was for, and what waited.

    What waited is the call, or the first work of the stream behind it.

    Parameters
    ----------
    work
        By stream and call, as :func:`by_stream` returns it.
    waits
        Columns: ``what`` it is, ``number`` of the call, ``key`` of its stream, ``of_key`` and
        ``of_number`` of what it waits for, ``row`` of the call; ``is_done`` is set where edges
        were returned, and need not be again.
    until
        Lowest number of a call whose work, or wait, may not be here.
    green
        Contexts for which a wait for their device's own context waits, too.
    """
    streams, what, is_new = _Streams(work, waits), waits["what"], waits["is_done"] == 0
    at = np.flatnonzero(_orders(waits) & is_new)
    targets = streams.after(waits["key"][at], waits["number"][at], until)
    at, targets = at[targets != NONE], targets[targets != NONE]
    due = is_new & (waits["number"] < until) & (what != STREAM_WAIT)
    waits["is_done"][due] = waits["is_done"][at] = 1
    due &= waits["row"] != NONE
    calls = np.flatnonzero(due & (waits["of_key"] != NONE) & (what != CONTEXT_SYNC))
    waiting, to = np.r_[calls, at], np.r_[waits["row"][calls], targets]
    which, source = streams.behind(waits["of_key"][waiting], waits["of_number"][waiting])
    edges = [(waiting[which], source, to[which])]
    due &= what == CONTEXT_SYNC
    for context in np.unique(waits["key"][due] >> 32).tolist():
        calls = np.flatnonzero(due & (waits["key"] >> 32 == context))
        calls = calls[np.argsort(waits["number"][calls])]
        which, source = streams.behind_all(context, waits["number"][calls], green)
        edges.append((calls[which], source, waits["row"][calls[which]]))
    pairs = arrow.coded_array(*map(np.concatenate, zip(*edges, strict=True)))[1]
    return pairs[:, 0], pairs[:, 1], pairs[:, 2]


def by_kind(what: Ints, source: Ints, target: Ints) -> list[tuple[Ints, Ints, str]]:
    """Return edges by their kinds.

    Parameters
    ----------
    what
        What each edge's wait is.
    """
    kinds = (("host wait", what != STREAM_WAIT), ("event wait", what == STREAM_WAIT))
    return [(source[chosen], target[chosen], kind) for kind, chosen in kinds]


def by_stream(work: Columns) -> Columns:
    """Return work with one row for each call in each stream, in their order.

    Parameters
    ----------
    work
        Columns: ``number`` of the call, ``launch`` that tells it from calls of other processes,
        ``key`` of the stream (context in the upper 32 bits), ``device``, ``first`` and ``last``
        row, ``start`` of the first, ``end`` of the last. Of a graph's launch the last is that of
        its last node, in each stream that it ran in.
    """
    by_end = np.lexsort((work["end"], work["launch"]))
    last = by_end[is_last(work["launch"][by_end])]
    last = last[np.searchsorted(work["launch"][last], work["launch"])]
    work = work | {name: work[name][last] for name in ("last", "end")}
    order = np.lexsort((work["start"], work["number"], work["key"]))
    places = np.stack([work["key"], work["number"]])[:, order]
    first = np.ones(len(order), bool)
    first[1:] = (places[:, 1:] != places[:, :-1]).any(axis=0)
    return {name: values[order[first]] for name, values in work.items()}


def is_last(groups: Array) -> Bools:
    """Whether each is the last of its group; they are sorted."""
    last: Bools = np.append(groups[1:] != groups[:-1], True)[: len(groups)]
    return last


class _Streams:
    def __init__(self, work: Columns, waits: Columns) -> None:
        self._work = work
        self._keys = distinct(np.r_[work["key"], waits["key"], waits["of_key"]])
        self._at = self._places(work["key"], work["number"])
        orders = np.flatnonzero(_orders(waits))
        orders = orders[np.lexsort((waits["number"][orders], waits["key"][orders]))]
        self._waits = self._places(waits["key"][orders], waits["number"][orders])
        self._events = self._places(waits["of_key"][orders], waits["of_number"][orders])

    def _places(self, keys: Ints, numbers: Ints) -> Ints:
        """Return numbers that ascend by stream, and in it by call."""
        return np.searchsorted(self._keys, keys) << 32 | numbers

    def _last(self, places: Ints) -> Ints:
        """Return the position of the last work before each place in its stream, or NONE."""
        at = np.searchsorted(self._at, places) - 1
        return np.where(arrow.picked(self._at, at) >> 32 == places >> 32, at, NONE)

    def after(self, keys: Ints, numbers: Ints, until: int) -> Ints:
        """Return the row of the first work of a stream behind each call, or NONE."""
        places = self._places(keys, numbers)
        at = np.searchsorted(self._at, places)
        behind = np.append(self._at, NONE)[at]
        has_work = (behind >> 32 == places >> 32) & (behind & 0xFFFFFFFF < until)
        return np.where(has_work, np.append(self._work["first"], NONE)[at], NONE)

    def behind(self, keys: Ints, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the rows behind moments of streams, and of which moment each is."""
        places, which, pairs = self._places(keys, numbers), np.arange(len(keys)), []
        for _ in range(_MOST_WAITS):
            at = self._last(places)
            pairs.append((which[at != NONE], self._work["last"][at[at != NONE]]))
            since = np.where(at == NONE, places >> 32 << 32, arrow.picked(self._at, at))
            low, high = np.searchsorted(self._waits, since), np.searchsorted(self._waits, places)
            count = np.minimum(high - low, _MOST_WAITS)
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            events = self._events[np.repeat(high, count) - 1 - within]
            which, places = arrow.coded_array(np.repeat(which, count), events)[1].T
            if not 0 < len(which) < _MOST:
                break
        which, rows = map(np.concatenate, zip(*pairs, strict=True))
        return which, rows

    def behind_all(self, context: int, numbers: Ints, green: Collection[int]) -> tuple[Ints, Ints]:
        """Return the last rows of a context's streams before each call since the one before."""
        contexts, device = self._keys >> 32, np.full(len(self._keys), NONE)
        device[self._at >> 32] = self._work["device"]
        chosen = contexts == context
        if context not in green and chosen.any():
            same = (device == device[chosen].max()) & (device != NONE)
            chosen |= np.isin(contexts, [*green]) & same
        stream, call = self._at >> 32, np.searchsorted(numbers, self._work["number"])
        last = is_last(stream << 32 | call) & chosen[stream] & (call < len(numbers))
        return call[last], self._work["last"][last]


def _orders(waits: Columns) -> Bools:
    """Whether each is a wait of a stream for another, as far as that is known."""
    is_wait = (waits["what"] == STREAM_WAIT) & (waits["of_key"] != NONE)
    orders: Bools = is_wait & (waits["of_key"] != waits["key"])
    return orders
