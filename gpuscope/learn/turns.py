"""Threads of a program on a simulated GPU: who waits lets time pass when all others stand still."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from gpuscope._types import Untyped
from gpuscope.device.device import Device

_NAP_S = 0.002
_SPINS_S = 0.3
"""Of a processor's time: a thread that took more since time passed last only asks again and again,
for what another one shall do."""

_NEW = 0
"""The number of a thread that was started, and has none yet."""
_ASKS = 20
"""So often in a row a thread asks whether work is done before it counts as one that waits."""

State = tuple[str, int]
"""Of a thread: the system's letter, and how often it went to sleep."""


class Turns:
    """Ends waits in the order of a simulated GPU's time.

    Its clock is one for all threads. A wait that let time pass at once would be over before
    another thread had launched what it launches meanwhile. So none does before all threads stand
    still: they wait, too, or for one another, or sleep. Then the wait ends that is over first.

    Parameters
    ----------
    step
        Lets the next thing happen on the GPU; says whether anything did.
    tasks
        Returns the numbers that the system has for the program's threads.
    process
        Whose they are.
    """

    def __init__(
        self, step: Callable[[], bool], tasks: Callable[[], Collection[int]], process: int | str
    ) -> None:
        self._step, self._tasks, self._process = step, tasks, process
        self._lock = threading.RLock()
        self._waiting: dict[int, Callable[[], bool]] = {}
        self._passed = 0
        self._spent_s: dict[int, float] = {}
        self._asked: dict[int, tuple[object, int]] = {}

    def wait(self, task: int, is_over: Callable[[], bool]) -> None:
        """Wait in a thread until its wait may end."""
        try:
            while not self.may_end(task, is_over):
                time.sleep(_NAP_S)
        finally:
            self._goes_on(task)

    def may_end(self, task: int, is_over: Callable[[], bool]) -> bool:
        """Whether a thread's wait may end now; it asks until it may."""
        with self._lock:
            self._waiting[task], passed = is_over, self._passed
            if is_over():
                self._goes_on(task)
                return True
        if not self.others_stand(task):
            return False
        with self._lock:
            if passed != self._passed:
                return False
            while not any(over() for over in self._waiting.values()):
                if not self._step():  # it never ends, and says so itself
                    self._goes_on(task)
                    return True
            if is_over():
                self._goes_on(task)
                return True
            return False

    def _goes_on(self, task: int) -> None:
        with self._lock:
            if self._waiting.pop(task, None) is not None:
                self._passed += 1
                self._spent_s.clear()

    def others_stand(self, task: int) -> bool:
        """Whether no thread but this one and those that wait runs, or is about to."""
        others = self._others(task)
        before = self._states(others)
        if any(letter != "S" for letter, _ in before.values()):
            return False
        # Who waits for Python's interpreter looks for it again after this interval.
        time.sleep(2 * sys.getswitchinterval() + _NAP_S if others else 0)
        return self._states(others) == before

    def _others(self, task: int) -> set[int]:
        with self._lock:
            return set(self._tasks()) - {task, *self._waiting}

    def ask(self, task: int, work: object, is_over: Callable[[], bool]) -> None:
        """Let those run that are about to, before a thread asks whether work is done.

        To ask takes time. Who asks for the same work again and again waits for it.
        """
        while "R" in (letter for letter, _ in self._states(self._others(task)).values()):
            time.sleep(_NAP_S)
        asked, count = self._asked.get(task, (None, 0))
        self._asked[task] = work, count + 1 if asked is work else 1
        passed = self._passed
        if self._asked[task][1] > _ASKS:
            while not self.may_end(task, is_over) and passed == self._passed:
                time.sleep(_NAP_S)
            self._goes_on(task)

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread waits, and lets time pass."""
        return bool(self._waiting)

    def _states(self, tasks: Collection[int]) -> dict[int, State]:
        """Return what threads do that neither ended nor spin."""
        states = {}
        for task in tasks:
            if task == _NEW:
                states[task] = "R", 0
                continue
            folder = Path(f"/proc/{self._process}/task/{task}")
            try:
                letter, *numbers = (folder / "stat").read_text().rpartition(")")[2].split()
                status = (folder / "status").read_text()
            except OSError:  # it ended
                continue
            spent_s = (int(numbers[10]) + int(numbers[11])) / os.sysconf("SC_CLK_TCK")
            if spent_s - self._spent_s.setdefault(task, spent_s) < _SPINS_S:
                states[task] = (
                    letter,
                    int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0]),
                )
        return states


class ThreadTurns(Turns):
    """Has the threads of this process take turns in a block, where they wait for a device.

    Nothing where it is a GPU, whose time passes by itself, or where the system does not tell what
    threads do: then a wait ends at once.
    """

    def __init__(self, device: Device) -> None:
        self._backend: Untyped = device.backend
        self._is_simulated = device.is_simulated and sys.platform == "linux"
        self._callers = set[int]()
        super().__init__(getattr(self._backend, "step", bool), self._threads, "self")

    def __enter__(self) -> ThreadTurns:
        self._before = {thread.native_id for thread in threading.enumerate()}
        self._callers = {threading.get_native_id()}
        backend = self._backend
        if self._is_simulated:
            for name, awaited in _AWAITED.items():
                setattr(backend, name, self._in_turn(name, getattr(backend, name), awaited))
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._is_simulated:
            for name in _AWAITED:
                delattr(self._backend, name)

    def _threads(self) -> set[int]:
        """Return the threads that may launch: those that began in the block, and that may go on."""
        idle = self._before - self._callers
        return {
            thread.native_id or _NEW
            for thread in threading.enumerate()
            if not (thread.daemon and thread.native_id in idle)
        }

    @property
    def are_several(self) -> bool:
        """Whether more than one thread uses the device, or began in the block."""
        began = {thread.native_id for thread in threading.enumerate()} - self._before
        return len(self._callers | began) > 1

    def _in_turn(
        self, name: str, usual: Callable[..., Untyped], awaited: Callable[..., list[Untyped]]
    ) -> Callable[..., Untyped]:
        """Return a call of the backend that waits, or asks, when it is this thread's turn."""

        @functools.wraps(usual)
        def in_turn(*what: object) -> Untyped:
            task = threading.get_native_id()
            self._callers.add(task)
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


_AWAITED: dict[str, Callable[..., list[Untyped]]] = {
    "sync_stream": lambda backend, raw: backend.awaited(raw),
    "stream_done": lambda backend, raw: backend.awaited(raw),
    "sync_event": lambda _, raw: [raw.record],
    "event_done": lambda _, raw: [raw.record],
    "synchronize": lambda backend: backend.awaited(None),
}
"""Calls of a simulated device that wait, or ask, and what for."""
