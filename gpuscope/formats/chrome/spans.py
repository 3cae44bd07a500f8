"""Which events of a Chrome trace are spans, from when to when, and who they are of."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.formats.chrome import events as raw
from gpuscope.formats.chrome.events import ChromeEvent
from gpuscope.trace import arrow, joins, schema
from gpuscope.trace.arrow import NONE
from gpuscope.trace.metadata import TimeBase

_KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
    "cuda_runtime": "api",
    "cuda_driver": "api",
    "cuda_sync": "sync",
    "cuda_event": "event",
}
"""Kineto's categories → kinds; anything else that lasts is a range."""
KINDS = ("kernel", "memcpy", "memset", "api", "sync", "event", "range", "mark")
"""Kinds by number."""
WORK = ("kernel", "memcpy", "memset")
_DERIVED = "gpu_user_annotation"
"""Kineto's projection of ranges: ours is made from the ranges, range_projection()."""
_UNIX_NS = 1_000_000_000_000_000_000
"""Times after 2001, if they count from 1970."""
_HINTS = ("process_labels", "process_sort_index", "thread_sort_index")
_INSTANTS = ("i", "I", "R", "n")
LONGEST_FACT = 80
_LAUNCHES = ("ac2g", "async_cpu_to_gpu")
"""Kineto's categories of arrows from calls to what they launched."""
NEVER = np.iinfo(np.int64).max
"""End of a span whose end is unknown."""


class Spans:
    """The events of a trace as arrays, and those of them that are spans.

    Attributes
    ----------
    starts, ends, open, phase, process, thread, category
        Event → ns from the trace's base, whether its end is unknown, and numbers.
    process_names, thread_names
        Number → name.
    left
        What was not taken → number.
    rows
        Events that are spans, in the file's order.
    kind
        Span → position in :data:`KINDS`.
    """

    def __init__(self, events: list[ChromeEvent], top: dict[str, msgspec.Raw]) -> None:
        self.events = events
        self.left = raw.Tally()
        self.base_ns = 0
        self.time_base: TimeBase = "relative"
        self.starts, timed = raw.nanoseconds([event.ts for event in events])
        lasts, lasting = raw.nanoseconds([event.dur for event in events])
        for event in events:  # they are read, and take more than all else of an event
            event.ts = event.dur = raw.ABSENT
        phase, phases = arrow.coded(pa.array([event.ph for event in events], pa.string()))
        self.phase, self.phases = phase, phases
        self.process, self.process_names = raw.numbers([event.pid for event in events])
        self.thread, self.thread_names = raw.numbers([event.tid for event in events])
        self.ends = np.where(lasting, self.starts + lasts, 0)
        self.open = ~lasting
        self._leave("events without a readable time", ~timed & ~self.of("M"))
        category, categories = arrow.coded(
            pa.array([event.cat or "" for event in events], pa.string())
        )
        self.category, self.categories = category.astype(np.int64), categories
        self._describe(top)
        self.rows = self._spans(timed)
        numbers = [KINDS.index(_KINDS.get(name, "range")) for name in categories]
        kind = np.array(numbers or [0], np.int64)[self.category[self.rows]]
        self.kind = np.where(self.of(*_INSTANTS)[self.rows], KINDS.index("mark"), kind)

    def of(self, *phases: str) -> Array:
        """Event → whether it has one of these phases."""
        return np.array([name in phases for name in (*self.phases, "")])[self.phase]

    def is_(self, *kinds: str) -> Array:
        """Span → whether it has one of these kinds."""
        return np.array([name in kinds for name in KINDS])[self.kind]

    def _describe(self, top: dict[str, msgspec.Raw]) -> None:
        """Take the clock and the names of processes and threads."""
        base = fact(top, "baseTimeNanoseconds")
        event_starts = self.starts[~self.of("M")]
        if isinstance(base, int) and 0 < base < _UNIX_NS * 4:
            self.base_ns, self.time_base = base, "unix"
        elif len(event_starts) and int(np.median(event_starts)) > _UNIX_NS:
            self.time_base = "unix"
        names = {
            "process_name": (self.process, self.process_names),
            "thread_name": (self.thread, self.thread_names),
        }
        for row in np.flatnonzero(self.of("M")).tolist():
            event = self.events[row]
            if event.name in names:
                ids, names_of = names[str(event.name)]
                given = raw.values(event.args)
                name = given.get("name") if isinstance(given, dict) else None
                if name is not None and ids[row] != NONE:
                    names_of[int(ids[row])] = str(name)[:LONGEST_FACT]
            elif event.name not in _HINTS:
                self.left[f"metadata events {str(event.name)[:40]!r}"] += 1

    def _spans(self, timed: Array) -> Array:
        """Pair begins and ends, count what is not taken, and return the events that are spans."""
        events = self.events
        derived = np.array([name == _DERIVED for name in (*self.categories, "")])[self.category]
        stacked = np.flatnonzero(self.of("B", "E") & timed).tolist()
        crossing = np.flatnonzero(self.of("b", "e", "S", "F") & timed).tolist()
        for rows, begins, keys in (
            (stacked, "B", [(self.process[row], self.thread[row]) for row in stacked]),
            (crossing, "bS", [identity(events[row], self.process[row]) for row in crossing]),
        ):
            ends, lost = raw.pairs(events, rows, keys, begins, self.starts)
            for begin, end in ends.items():
                self.ends[begin], self.open[begin] = self.starts[end], False
            self.left["ends of spans without a begin"] += lost
        instant = self.of(*_INSTANTS)
        self.ends = np.where(instant, self.starts, self.ends)
        self.open &= ~instant
        late = ~self.open & (self.ends >= schema.LATEST_NS - self.base_ns)
        self._leave("ends later than any time", late)
        self.open |= late
        backwards = ~self.open & (self.ends < self.starts)
        self._leave("ends before their begin", backwards)
        self.open |= backwards
        taken = (self.of("X", "B", "b", "S") | instant) & timed & ~derived
        used = taken | self.of("E", "e", "F", "M", "s", "t", "f", "C") | ~timed
        for number, count in Counter(self.phase[~used & ~derived].tolist()).items():
            self.left[f"events of phase {self.phases[number][:10]!r}"] += count
        self._leave(f"events of category {_DERIVED}", derived & timed)
        return np.flatnonzero(taken)

    def _leave(self, what: str, events: Array) -> None:
        """Count events that are not taken."""
        self.left[what] += int(events.sum())


def fact(top: dict[str, msgspec.Raw], name: str) -> object:
    """Return what stands beside the events under a name."""
    return raw.values(top[name]) if name in top else None


Identity: TypeAlias = tuple[str | None, bytes, bytes, int]
"""What the events of one async span or arrow share: category, ids, process."""


def identity(event: ChromeEvent, process: int) -> Identity:
    """Return what the events of one async span or arrow share."""
    return event.cat, bytes(event.id), bytes(event.id2), process if bytes(event.id2) else NONE


# -- arrows --------------------------------------------------------------------------------
def flows(spans: Spans, ids: Array) -> list[tuple[Array, Array, str]]:
    """Return the edges that arrows tell: (from, to, kind) by category."""
    rows = np.flatnonzero(spans.of("s", "t", "f"))
    if not len(rows):
        return []
    events = spans.events
    bound = _bind(spans, rows, ids)
    by_key: dict[Identity, list[tuple[int, int, int]]] = {}
    for end, row in enumerate(rows.tolist()):
        key = identity(events[row], NONE)
        order = "stf".index(events[row].ph)
        by_key.setdefault(key, []).append((int(spans.starts[row]), order, end))
    by_edge: dict[str, list[tuple[int, int]]] = {}
    for key, ends in by_key.items():
        ends.sort()
        category = key[0] or ""
        edge = "launch" if category in _LAUNCHES else category
        for (_, _, begin), (_, order, other) in itertools.pairwise(ends):
            if order == 0 or bound[begin] == NONE or bound[other] == NONE:
                spans.left["arrows that lead to no span"] += order != 0
            elif edge in schema.EDGE_KINDS:
                by_edge.setdefault(edge, []).append((int(bound[begin]), int(bound[other])))
            else:
                spans.left[f"arrows of category {category[:40]!r}"] += 1
    return [
        (np.array([source for source, _ in ends]), np.array([other for _, other in ends]), edge)
        for edge, ends in by_edge.items()
    ]


def _bind(spans: Spans, rows: Array, ids: Array) -> Array:
    """Return the id of the span that each end of an arrow is at, or NONE.

    A step or an end without ``bp: "e"`` is at the next span that begins on its thread.
    """
    slices = np.flatnonzero(spans.of("X", "B")[spans.rows])
    event = spans.rows[slices]
    key = arrow.coded_rows(
        np.r_[spans.process[event], spans.process[rows]],
        np.r_[spans.thread[event], spans.thread[rows]],
    )[0].astype(np.int64)
    owner, wanted = key[: len(event)], key[len(event) :]
    starts = spans.starts[event]
    ends = np.where(spans.open[event], NEVER, spans.ends[event])
    around = joins.innermost(wanted, spans.starts[rows], owner, starts, ends)
    follows = np.array([spans.events[row].bp != "e" for row in rows.tolist()])
    follows &= ~spans.of("s")[rows]
    order = np.lexsort((starts, owner))
    times = np.unique(np.r_[starts, spans.starts[rows]], return_inverse=True)[1]
    scale = int(times.max(initial=0)) + 1
    sorted_keys = (owner * scale + times[: len(event)])[order]
    at = np.searchsorted(sorted_keys, wanted * scale + times[len(event) :])
    inside = np.minimum(at, max(len(order) - 1, 0))
    if len(order):
        after = np.where((at < len(order)) & (owner[order][inside] == wanted), order[inside], NONE)
        around = np.where(follows & (after >= 0), after, around)
    return arrow.picked(ids[slices], around)
