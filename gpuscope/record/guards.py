"""Which stream each thread had selected when: what a library's launches were given to.

A guard's entry and exit are noted while a recording is on. A guard in an asyncio task holds
for that task alone; the event loop does not tell when it runs another. So a callback is put
into the loop on entry: if it ran by the time the guard is left, other tasks may have
launched in between, and the guard's time counts for nobody.
"""

from __future__ import annotations

import asyncio
import bisect
import threading
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np

from gpuscope._fork import free_in_children
from gpuscope._threads import thread_number
from gpuscope._types import Ints
from gpuscope.device import caller

NOTHING, UNSURE = -1, -2
"""No stream was selected; it is not known, as a task's guard was and other tasks may have run, or
as it is forgotten."""


class SelectionLog:
    """Notes what guards select, of all threads.

    Parameters
    ----------
    met
        Called with each stream when it is selected for the first time.
    """

    def __init__(self, met: Callable[[Any], None] = lambda _: None) -> None:
        self._met = met
        self.streams: list[Any] = []
        """What was selected: each distinct object once."""
        self._numbers: dict[int, int] = {}
        self._changes: dict[int, list[list[int]]] = {}
        self._tables: dict[int, Ints] = {}
        """Thread → its changes as far as they were looked at."""
        self._rewritten: set[int] = set()
        """Threads of which such a change became another since."""
        self._in_tasks: dict[int, tuple[int, int, threading.Event, asyncio.Handle]] = {}
        """Guard of a task that is entered → thread, its first change, whether others ran."""
        self._forgetful: set[int] = set()
        """Threads whose first changes are forgotten."""
        self._lock = free_in_children(threading.Lock())

    def open(self) -> None:
        """Begin to note, with what this thread has selected now."""
        caller.watch(self)
        for thread, guard in caller.guards_of_threads().items():
            if thread not in self._changes:
                self._note(thread, self._number(guard.stream))
        innermost = caller.innermost_guard()
        if innermost is not None and innermost is not caller.guards_of_threads().get(
            thread_number()
        ):
            self.entered(innermost)  # one of a task

    def close(self) -> None:
        """Note no more."""
        caller.unwatch(self)

    def _number(self, stream: Any) -> int:
        if stream is None:
            return NOTHING
        number = self._numbers.get(id(stream))
        if number is None:
            with self._lock:
                number = self._numbers[id(stream)] = len(self.streams)
                self.streams.append(stream)  # held, so that its id stays its own
            self._met(stream)
        return number

    def _note(self, thread: int, number: int) -> None:
        changes = self._changes.get(thread)
        if changes is None:
            changes = self._changes.setdefault(thread, [])
        changes.append([time.time_ns(), number])

    def entered(self, guard: Any) -> None:
        """Note that a guard was entered."""
        thread = thread_number()
        self._note(thread, self._number(guard.stream))
        loop = asyncio._get_running_loop()
        if loop is not None and asyncio.current_task(loop) is not None:
            others_ran = threading.Event()
            handle = loop.call_soon(others_ran.set)
            with self._lock:
                first = len(self._changes[thread]) - 1
                self._in_tasks[id(guard)] = (thread, first, others_ran, handle)

    def left(self, guard: Any, before: Any) -> None:
        """Note that a guard was left, and ``before`` is selected again."""
        thread = thread_number()
        was_in_task = id(guard) in self._in_tasks
        if was_in_task:
            with self._lock:
                _, first, others_ran, handle = self._in_tasks.pop(id(guard))
                handle.cancel()
                if others_ran.is_set():
                    for change in self._changes[thread][first:]:
                        change[1] = UNSURE
                    self._rewritten.add(thread)
        number = self._number(before)
        if was_in_task and before is None and caller.thread_has_guard():
            number = UNSURE  # in a task nothing is selected; when the loop ends, the thread's is
        self._note(thread, number)

    def selected(self, threads: Ints, times: Ints) -> Ints:
        """Return the number of the stream selected on each thread at each Unix time, ns."""
        selections = np.full(len(times), NOTHING, np.int64)
        for thread in list(self._changes):
            of_thread = np.flatnonzero(threads == thread)
            if not len(of_thread):
                continue
            table = self._table(thread)
            for other, first, others_ran, _ in list(self._in_tasks.values()):
                if other == thread and others_ran.is_set():
                    table = table.copy()
                    table[first:, 1] = UNSURE
            at = np.searchsorted(table[:, 0], times[of_thread], "right") - 1
            earlier = UNSURE if thread in self._forgetful else NOTHING
            selections[of_thread] = np.where(at >= 0, table[np.maximum(at, 0), 1], earlier)
        return selections

    def forget(self, before_ns: int) -> None:
        """Forget what was selected before a moment, and no more then; not while it is asked."""
        for thread, changes in list(self._changes.items()):
            with self._lock:  # a task's guard knows the number of its change
                if any(thread == other for other, *_ in list(self._in_tasks.values())):
                    continue
                gone = bisect.bisect_right(changes, before_ns, key=itemgetter(0)) - 1
                if gone > 0:
                    self._forgetful.add(thread)
                    self._tables.pop(thread, None)
                    del changes[:gone]

    def _table(self, thread: int) -> Ints:
        """Return a thread's changes; while it records this is asked again and again."""
        if thread in self._rewritten:
            self._rewritten.discard(thread)
            self._tables.pop(thread, None)
        table = self._tables.get(thread, np.zeros((0, 2), np.int64))
        new = self._changes[thread][len(table) :]
        if new:
            table = self._tables[thread] = np.concatenate([table, np.array(new, np.int64)])
        return table
