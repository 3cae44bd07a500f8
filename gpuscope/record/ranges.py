"""Ranges that :func:`~gpuscope.record.annotate.annotate` names, as rows of a recording."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from struct import Struct

from gpuscope._fork import free_in_children
from gpuscope._sites import site_text
from gpuscope.record.rows import Row, Rows, keep, move, noted_row, range_row
from gpuscope.trace.metadata import NO_THREAD

MOMENT = Struct("=qqqIIIIII")
"""What a thread did, and what another did that let it, as _handover.c packs it: since when it
waited, or :data:`NOT_WAITED`, when it did it, when the other did, 0 if that is unknown; thread,
site and name of the one and of the other."""
NOT_WAITED = -1
_names: list[str] = []
_names_lock = free_in_children(threading.Lock())


def moment_name(text: str) -> int:
    """Return the number of a name of what threads do."""
    with _names_lock:
        if text not in _names:
            _names.append(text)
        return _names.index(text)


class RangeLog:
    """Notes the ranges of one recording, of all threads.

    Parameters
    ----------
    clock
        Reads the recording's clock, ns.
    thread
        Returns the number of the thread that calls it, as rows have it.
    process
        Number of the process, as rows have it.

    Attributes
    ----------
    thread_names
        Thread → its name, of every thread that was seen.
    used
        Whether any range has begun.
    moments
        Gets what threads handed over to each other, each packed as :data:`MOMENT`: the collector
        has nothing to look at.
    """

    def __init__(self, clock: Callable[[], int], thread: Callable[[], int], process: int) -> None:
        self._clock = clock
        self._thread = thread
        self._process = process
        self.thread_names: dict[int, str] = {}
        self.used = False
        self._numbers = itertools.count(1)
        self._of_thread = threading.local()
        self._open: dict[int, Row] = {}
        self._ended: deque[tuple[int, Row]] = deque()
        self._taken: list[tuple[int, Row]] = []
        self.moments: deque[bytes] = deque()
        self._handed: list[bytes] = []
        self._read: list[int] = []
        """Ranges that are rows, and may still be among the open."""
        self._full = sys.maxsize
        self._relieve: Callable[[], object] = lambda: None

    def relieve_at(self, full: int, relieve: Callable[[], object]) -> None:
        """Have so many ended ranges read by who ends one."""
        self._full, self._relieve = full, relieve

    def _stack(self) -> list[int]:
        try:
            stack: list[int] = self._of_thread.stack
        except AttributeError:
            stack = self._of_thread.stack = []
        return stack

    def current(self) -> int | None:
        """Return the row of this thread's innermost range."""
        stack = self._stack()
        return stack[-1] if stack else None

    def note(self, name: str, start_ns: int, end_ns: int, category: str, payload: str) -> None:
        """Add a range that no thread was in; such ranges may overlap.

        Parameters
        ----------
        start_ns, end_ns
            On the recording's clock.
        category
            What the range is of, such as a workload.
        payload
            More about it, as JSON.
        """
        self.thread_names[NO_THREAD] = "requests"
        number = noted_row(next(self._numbers))
        row = self._row(number, None, name, start_ns, NO_THREAD)
        row |= {"end_ns": end_ns, "category": category, "payload": payload}
        self._ended.append((number, row | {"range_style": "start/end", "source": "host"}))

    def _row(self, number: int, parent: int | None, name: str, start_ns: int, thread: int) -> Row:
        """Return the row of a range that has begun."""
        return {
            "id": number,
            "parent": parent,
            "kind": "range",
            "name": name,
            "start_ns": start_ns,
            "process": self._process,
            "thread": thread,
            "domain": "gpuscope",
            "range_style": "push/pop",
            "source": "nvtx",
        }

    def begin(self, name: str) -> int:
        """Open a range on this thread; returns its row's id."""
        self.used = True
        stack = self._stack()
        number = range_row(next(self._numbers))
        thread = self._thread()
        parent = stack[-1] if stack else None
        row = self._row(number, parent, name, self._clock(), thread)
        self.thread_names.setdefault(thread, threading.current_thread().name)
        self._open[number] = row
        stack.append(number)
        return number

    def end(self, number: int) -> None:
        """Close a range; one of a recording that has ended is ignored."""
        end_ns = self._clock()
        stack = self._stack()
        if number in stack:
            stack.remove(number)
        row = self._open.get(number)
        if row is not None:
            row["end_ns"] = end_ns
            self._ended.append((number, row))
            if len(self._ended) >= self._full:
                self._relieve()

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that reading does next."""
        move(self._ended, self._taken)
        move(self.moments, self._handed)
        return keep(self, "_taken", "_handed", "_read")

    def settle(self) -> None:
        """Forget what was handed out; continues where it was interrupted."""
        while self._read:
            self._open.pop(self._read[-1], None)
            self._read.pop()

    def drain(self, rows: Rows) -> None:
        """Add the ranges that ended, and at the end, as open rows, those that are still open."""
        taken, self._taken = self._taken, []
        handed, self._handed = self._handed, []
        thread, since_ns = rows.ending or (NO_THREAD, 0)
        for waited_ns, at_ns, by_ns, *parts in map(MOMENT.unpack, handed):
            after, before = parts[:3], parts[3:]
            is_ending = after[0] == thread and at_ns >= since_ns
            is_ours = self.thread_names.get(after[0], "").startswith("gpuscope")
            if not is_ending and not is_ours:
                self._add_moments(waited_ns, (at_ns, *after), (by_ns, *before), rows)
        if rows.over:
            read = {*self._read, *(number for number, _ in taken)}
            taken += [entry for entry in self._open.copy().items() if entry[0] not in read]
        for number, row in taken:
            rows.cut()
            rows.spans.append(row)
            self._read.append(number)

    def _add_moments(
        self,
        waited_ns: int,
        after: tuple[int, int, int, int],
        before: tuple[int, int, int, int],
        rows: Rows,
    ) -> None:
        """Add the rows of two moments, each a time, a thread, a site and a name, and their edge."""
        numbers = noted_row(next(self._numbers)), noted_row(next(self._numbers))
        for number, (at_ns, thread, site, name) in zip(numbers, (before, after), strict=True):
            if not at_ns:
                continue
            row = self._row(number, None, _names[name], at_ns, thread)
            row |= {"kind": "mark", "end_ns": at_ns, "site": site_text(site) or None}
            row |= {"domain": None, "range_style": None, "source": "host"}
            rows.spans.append(row)
        if waited_ns != NOT_WAITED:
            row |= {"kind": "sync", "start_ns": waited_ns}
        if before[0]:
            edge = "thread start" if waited_ns == NOT_WAITED else "hand-over"
            rows.edges.append((*numbers, edge))


running: tuple[RangeLog, ...] = ()
"""Of the recordings that are on, for :func:`~gpuscope.record.annotate.annotate`."""
_running_lock = free_in_children(threading.Lock())


def hear(log: RangeLog, *, on: bool) -> None:
    """Let a log hear of ranges, or no more."""
    global running  # noqa: PLW0603 - the one place that knows what is on
    with _running_lock:
        other_logs = tuple(other for other in running if other is not log)
        running = (*other_logs, log) if on else other_logs


def _forget_running() -> None:
    """In a forked child: it records nothing, and its ranges are not its parent's."""
    global running  # noqa: PLW0603 - the one place that knows what is on
    running = ()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_running)
