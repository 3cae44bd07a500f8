"""Which stream each thread had selected when: what a library's launches were given to.

A guard's entry and exit are noted while a recording is on. A guard in an asyncio task holds
for that task alone; the event loop does not tell when it runs another. So a callback is put
into the loop on entry: if it ran by the time the guard is left, other tasks may have
launched in between, and the guard's time counts for nobody.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np

from gpuscope.device import caller

NOTHING, UNSURE = -1, -2
"""No stream was selected; a task's guard was, and other tasks may have run."""


class SelectionLog:
    """Notes what guards select, of all threads."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        """What was selected: each distinct object once."""
        self._numbers: dict[int, int] = {}
        self._changes: dict[int, list[list[int]]] = {}
        self._open: dict[int, tuple[int, threading.Event, asyncio.Handle]] = {}
        self._lock = threading.Lock()
        self.thread_names: dict[int, str] = {}

    def open(self) -> None:
        """Begin to note, with what this thread has selected now."""
        now = caller.get_caller_stream()
        if now is not None:
            self._note(threading.get_native_id(), self._number(now))
        caller.watchers = (*caller.watchers, self)

    def close(self) -> None:
        """Note no more."""
        caller.watchers = tuple(other for other in caller.watchers if other is not self)

    def _number(self, stream: Any) -> int:
        if stream is None:
            return NOTHING
        number = self._numbers.get(id(stream))
        if number is None:
            with self._lock:
                number = self._numbers[id(stream)] = len(self.streams)
                self.streams.append(stream)  # held, so that its id stays its own
        return number

    def _note(self, thread: int, number: int) -> None:
        changes = self._changes.get(thread)
        if changes is None:
            changes = self._changes.setdefault(thread, [])
            self.thread_names[thread] = threading.current_thread().name
        changes.append([time.time_ns(), number])

    def entered(self, guard: Any) -> None:
        """Note that a guard was entered."""
        thread = threading.get_native_id()
        self._note(thread, self._number(guard.stream))
        loop = asyncio._get_running_loop()
        if loop is not None and asyncio.current_task(loop) is not None:
            others_ran = threading.Event()
            handle = loop.call_soon(others_ran.set)
            self._open[id(guard)] = (len(self._changes[thread]) - 1, others_ran, handle)

    def left(self, guard: Any, before: Any) -> None:
        """Note that a guard was left, and ``before`` is selected again."""
        thread = threading.get_native_id()
        in_task = self._open.pop(id(guard), None)
        if in_task is not None:
            first, others_ran, handle = in_task
            handle.cancel()
            if others_ran.is_set():
                for change in self._changes[thread][first:]:
                    change[1] = UNSURE
        self._note(thread, self._number(before))

    def selected(
        self, threads: np.ndarray[Any, Any], times: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the number of the stream selected on each thread at each Unix time, ns."""
        found = np.full(len(times), NOTHING, np.int64)
        for thread, changes in list(self._changes.items()):
            mine = np.flatnonzero(threads == thread)
            if not len(mine):
                continue
            table = np.array(changes, np.int64)
            at = np.searchsorted(table[:, 0], times[mine], "right") - 1
            found[mine] = np.where(at >= 0, table[np.maximum(at, 0), 1], NOTHING)
        return found
