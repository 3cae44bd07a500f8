"""Threads of a program on a simulated GPU: who waits lets time pass when all others stand still."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from gpuscope import _interrupts
from gpuscope._threads import number_of, thread_number
from gpuscope._types import Untyped
from gpuscope.device.device import Device

_NAP_S = 0.002
"""Between two questions of a thread that waits. A look at another thread takes 0.3 ms: with naps
several times as long, who waits leaves the processor to those it waits for. Each nap makes a wait
longer by as much, so it is no longer than that."""
_SPINS_S = 0.3
"""Of a processor's time: a thread that took more since time passed last only asks again and again,
for what another one shall do. Chosen between two limits: a thread that computes before it launches
must not be taken for one, and thirty waits beside one must fit into a lesson's patience of 10 s."""
_POLLS = 20
"""In so many looks a thread slept and woke, and made no call of the device: it only asks again and
again, with short sleeps. At 12 ms a look that is about the 0.3 s of one that asks without. Looks
are counted, and no time, so that a busy machine, where it seldom runs, does not shorten it."""
_POLLS_AGAIN = 3
"""So many of these looks must come after time has passed: it may have found then what it asks for.
It wakes in each of them. One may have begun before, one is for what it does next, one is spare."""
_ASKS = 20
"""So often in a row a thread asks whether work is done before it counts as one that waits. A
program that asks now and then, while it does something else, shall not wait. So many questions take
73 us of the H200's time: a kernel of a lesson, which takes some ms, is not over by then."""
_NEW = 0
"""The number of a thread that was started, and has none yet."""


class State(NamedTuple):
    """Of a thread: the system's letter, how often it went to sleep, and its processor's time."""

    letter: str
    sleeps: int
    spent_s: float


def state(task: int) -> State | None:
    """Return what the system tells of a thread of this process; ``None``: it ended."""
    if task == _NEW:
        return State("R", 0, 0.0)
    folder = Path(f"/proc/self/task/{task}")
    try:
        letter, *numbers = (folder / "stat").read_text().rpartition(")")[2].split()
        status = (folder / "status").read_text()
    except OSError:
        return None
    spent_s = (int(numbers[10]) + int(numbers[11])) / os.sysconf("SC_CLK_TCK")
    sleeps = int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return State(letter, sleeps, spent_s)


def _nap(seconds: float) -> None:
    """Sleep in a wait; an interrupt that came is raised before. No lock may be held."""
    if _interrupts.pending:
        _interrupts.deliver()
    time.sleep(seconds)


class _Looked(NamedTuple):
    """So many looks at a thread had it sleep and wake, without a call of the device.

    ``sleeps`` and ``calls`` are what it had counted at the end of the latest one.
    """

    looks: int
    sleeps: int
    calls: int


class ThreadTurns:
    """Has the threads of this process take turns in a block, where they wait for a device.

    The clock of a simulated GPU is one for all threads. A wait that let time pass at once would be
    over before another thread had launched what it launches meanwhile. So none does before all
    threads stand still: they wait, too, or for one another, or sleep, or only ask again and again.
    Then the wait ends that is over first.

    Nothing where the device is a GPU, whose time passes by itself, or where the system does not
    tell what threads do: then a wait ends at once.
    """

    def __init__(self, device: Device) -> None:
        self._backend: Untyped = device.backend
        self._calls = device.calls
        self._is_simulated = device.is_simulated and sys.platform == "linux"
        self._callers = set[int]()
        self._lock = threading.RLock()
        self._waiting: dict[int, Callable[[], bool]] = {}
        self._passed = 0
        self._spent_s: dict[int, float] = {}
        self._asked: dict[int, tuple[object, int]] = {}
        self._called = Counter[int]()  # each thread counts its own calls
        self._looked: dict[int, _Looked] = {}

    def __enter__(self) -> ThreadTurns:
        self._before = {number_of(thread) for thread in threading.enumerate()}
        self._callers = {thread_number()}
        backend, self._usual_number = self._backend, self._calls.next_correlation
        if self._is_simulated:
            for name, awaited in _AWAITED.items():
                setattr(backend, name, self._in_turn(name, getattr(backend, name), awaited))
            self._calls.next_correlation = self._counting(self._usual_number)
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._is_simulated:
            self._calls.next_correlation = self._usual_number
            for name in _AWAITED:
                delattr(self._backend, name)

    # -- waiting ----------------------------------------------------------------------
    def wait(self, task: int, is_over: Callable[[], bool]) -> None:
        """Wait in a thread until its wait may end."""
        try:
            while not self._may_end(task, is_over):
                _nap(_NAP_S)
        finally:
            self._goes_on(task)

    def ask(self, task: int, work: object, is_over: Callable[[], bool]) -> None:
        """Let those run that are about to, before a thread asks whether work is done.

        To ask takes time. Who asks for the same work again and again waits for it.
        """
        while any(
            thread_state.letter == "R" for thread_state in self._states(self._others(task)).values()
        ):
            _nap(_NAP_S)
        asked, count = self._asked.get(task, (None, 0))
        self._asked[task] = work, count + 1 if asked is work else 1
        passed = self._passed
        if self._asked[task][1] > _ASKS:
            try:
                while not self._may_end(task, is_over) and passed == self._passed:
                    _nap(_NAP_S)
            finally:
                self._goes_on(task)

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread waits, and lets time pass."""
        return bool(self._waiting)

    def _may_end(self, task: int, is_over: Callable[[], bool]) -> bool:
        """Whether a thread's wait may end now; it asks until it may, and then goes on."""
        with self._lock:
            self._waiting[task], passed = is_over, self._passed
            if is_over():
                return True
        if not self.others_stand(task):
            return False
        with self._lock:
            if passed != self._passed:
                return False
            while not any(over() for over in self._waiting.values()):
                if not self._backend.step():  # it never ends, and says so itself
                    return True
            return is_over()

    def _goes_on(self, task: int) -> None:
        with self._lock:
            if self._waiting.pop(task, None) is not None:
                self._passed += 1
                self._spent_s.clear()
                most = _POLLS - _POLLS_AGAIN
                self._looked = {
                    other: looked._replace(looks=min(looked.looks, most))
                    for other, looked in self._looked.items()
                }

    # -- what the other threads do ----------------------------------------------------
    @property
    def are_several(self) -> bool:
        """Whether more than one thread uses the device, or began in the block."""
        began = {number_of(thread) for thread in threading.enumerate()} - self._before
        return len(self._callers | began) > 1

    def others_stand(self, task: int) -> bool:
        """Whether no thread but this one and those that wait runs, or is about to."""
        other_tasks = self._others(task)
        before = self._states(other_tasks)
        if any(thread_state.letter != "S" for thread_state in before.values()):
            return False
        # Who waits for Python's interpreter looks for it again after this interval.
        _nap(2 * sys.getswitchinterval() + _NAP_S if other_tasks else 0)
        after = self._states(other_tasks)
        for other_task in before.keys() & after.keys():
            self._note_look(other_task, before[other_task], after[other_task])
        return _doings(after) == _doings(before)

    def _others(self, task: int) -> set[int]:
        """Return the threads that may launch: those that began in the block, and that may go on."""
        idle = self._before - self._callers
        threads = {
            number_of(thread) or _NEW
            for thread in threading.enumerate()
            if not (thread.daemon and number_of(thread) in idle)
        }
        with self._lock:
            return threads - {task, *self._waiting}

    def _states(self, tasks: Collection[int]) -> dict[int, State]:
        """Return what threads do that neither ended nor only ask again and again."""
        states = {}
        for task in tasks:
            now = state(task)
            if now is None or self._polls(task):
                continue
            if now.spent_s - self._spent_s.setdefault(task, now.spent_s) < _SPINS_S:
                states[task] = now
        return states

    def _polls(self, task: int) -> bool:
        looked = self._looked.get(task)
        return looked is not None and looked.looks >= _POLLS and looked.calls == self._called[task]

    def _note_look(self, task: int, before: State, after: State) -> None:
        """Count a look at a thread if it slept and woke, and no look of another one overlaps."""
        with self._lock:
            looked, calls = self._looked.get(task), self._called[task]
            if looked is None or looked.calls != calls:
                self._looked[task] = _Looked(0, after.sleeps, calls)
            elif (
                before.letter == after.letter == "S"
                and looked.sleeps <= before.sleeps < after.sleeps
            ):
                self._looked[task] = _Looked(looked.looks + 1, after.sleeps, calls)

    # -- calls of the device ----------------------------------------------------------
    def _counting(self, usual: Callable[[], int]) -> Callable[[], int]:
        """Return what numbers calls, which each of them asks, and counts those of each thread."""
        called = self._called

        def number() -> int:
            called[thread_number()] += 1
            return usual()

        return number

    def _in_turn(
        self, name: str, usual: Callable[..., Untyped], awaited: Callable[..., list[Untyped]]
    ) -> Callable[..., Untyped]:
        """Return a call of the backend that waits, or asks, when it is this thread's turn."""

        @functools.wraps(usual)
        def in_turn(*what: object) -> Untyped:
            task = thread_number()
            self._callers.add(task)
            self._called[task] += 1  # to ask has no number
            if self.are_several and not self._backend.is_inside():
                work = awaited(self._backend, *what)

                def is_over() -> bool:
                    return all(op is None or op.done_ns is not None for op in work)

                if name.endswith("_done"):
                    self.ask(task, work[-1], is_over)
                else:
                    self.wait(task, is_over)
            return usual(*what)

        return in_turn


def _doings(states: dict[int, State]) -> dict[int, tuple[str, int]]:
    return {
        task: (thread_state.letter, thread_state.sleeps) for task, thread_state in states.items()
    }


_AWAITED: dict[str, Callable[..., list[Untyped]]] = {
    "sync_stream": lambda backend, raw: backend.awaited(raw),
    "stream_done": lambda backend, raw: backend.awaited(raw),
    "sync_event": lambda _, raw: [raw.record],
    "event_done": lambda _, raw: [raw.record],
    "synchronize": lambda backend: backend.awaited(None),
}
"""Calls of a simulated device that wait, or ask, and what for."""
