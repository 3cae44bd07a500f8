"""Driving the workloads of one round: who launches what, and when.

A stream whose calls run Python of the user's is launched on by a thread of its own, so that this
Python does not delay the launches of others. One thread launches everything else: its launches
take less time than it takes to hand Python's interpreter over. A simulated GPU has one host with a
virtual clock: there, one thread launches everything, in an order that depends on the seed alone.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from gpuscope import _interrupts
from gpuscope.device.device import Device
from gpuscope.experiments.workers import Worker
from gpuscope.record.annotate import annotate
from gpuscope.workloads.collective import Collective
from gpuscope.workloads.function import FunctionHandle

LOOK_NS = 50_000_000
"""How long the host waits at most without looking whether to stop, or telling how far it is."""
NAP_NS = 20_000
"""How long the host looks away when nothing is due but a background is to be kept busy."""
_SWITCH_S = 5e-5
"""How long a thread may keep others waiting for the interpreter while several launch."""


class Driving:
    """What drives the workers of one round.

    Parameters
    ----------
    stop
        Ends it when set.
    tell
        Called from the caller's thread again and again.
    ranges
        Names of the ranges that launches are in.
    around
        Those that the caller is in: threads enter them, too.
    """

    def __init__(
        self,
        device: Device,
        workers: Sequence[Worker],
        stop: threading.Event,
        tell: Callable[[], None],
        ranges: Sequence[str],
        around: Sequence[str] = (),
    ) -> None:
        self._device = device
        self._workers = workers
        self._foreground = [worker for worker in workers if not worker.spec.background]
        self._stop = stop
        self._tell = tell
        self._ranges = ranges
        self._around = around
        self._unfilled = {worker for worker in workers if worker.spec.background}
        self._halted = False
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._slow = {worker.stream.name for worker in workers if _runs_python(worker)}
        self.launched_ns = 0
        """When the last thread that launches launched no more: what was queued ran on."""
        self.has_threads = bool(self._slow) and not device.is_simulated
        """Whether streams have threads of their own."""

    def warm_up(self) -> None:
        """Warm up each workload, one after the other, in the thread that launches it."""
        for worker in self._workers:
            if not self.has_threads:
                worker.warm_up(self._device.now_ns, self._stop)
            elif not self._stop.is_set():
                self._await([self._thread(worker).submit(self._warm_up, worker)])

    def drive(self) -> None:
        """Launch until the foreground is done.

        Raises
        ------
        Exception
            A workload's, which ends the others.
        """
        if not self.has_threads:
            self._launch(self._workers)
            return
        groups: dict[ThreadPoolExecutor, list[Worker]] = {}
        for worker in self._workers:
            groups.setdefault(self._thread(worker), []).append(worker)
        with _quick_switches():
            self._await([thread.submit(self._launch, group) for thread, group in groups.items()])

    def end(self) -> None:
        """End every thread: what they launched is done. Idempotent."""
        self._halted = True
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)

    def _thread(self, worker: Worker) -> ThreadPoolExecutor:
        """Return the thread that launches on a worker's stream."""
        name = f"stream {worker.stream.name}" if worker.stream.name in self._slow else "streams"
        if name not in self._threads:
            self._threads[name] = ThreadPoolExecutor(1, thread_name_prefix=name)
        return self._threads[name]

    def _await(self, futures: Sequence[Future[None]]) -> None:
        """Wait for threads; what one of them raised ends the others, and is raised here."""
        left: set[Future[None]] = set(futures)
        try:
            while left:
                done, left = wait(left, LOOK_NS / 1e9, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                self._tell()
                _interrupts.deliver()
        finally:
            self._halted = self._halted or bool(left)

    def _warm_up(self, worker: Worker) -> None:
        if not self._halted:
            worker.warm_up(self._device.now_ns, self._stop)

    @property
    def _is_over(self) -> bool:
        return (
            self._halted or self._stop.is_set() or all(worker.over for worker in self._foreground)
        )

    def _launch(self, workers: Sequence[Worker]) -> None:
        """Launch and poll until the foreground of all threads is done, or these have no more."""
        foreground = [worker for worker in workers if not worker.spec.background]
        background = [worker for worker in workers if worker.spec.background]
        with contextlib.ExitStack() as ranges:
            for name in (*(self._around if self.has_threads else ()), *self._ranges):
                ranges.enter_context(annotate(name))
            self._begin(workers, background)
            while not (self._halted or self._stop.is_set()):
                _interrupts.deliver()
                waiting = self._turn(foreground, background)
                if not self.has_threads:
                    self._tell()
                if self._is_over or (not background and all(worker.over for worker in foreground)):
                    break
                if self.has_threads and not (foreground and background):
                    self._block(workers)
                elif not waiting:
                    self._nap(foreground, LOOK_NS if not background else NAP_NS)
                elif self.has_threads:
                    time.sleep(0)  # others may run
            self.launched_ns = max(self.launched_ns, self._device.now_ns())
            for worker in workers:
                worker.finish()

    def _turn(self, foreground: Sequence[Worker], background: Sequence[Worker]) -> bool:
        """Poll, and launch what is due; return whether the foreground has calls in flight."""
        clock = self._device.now_ns
        for worker in foreground:
            worker.poll(clock)
        waiting = any(worker.queued for worker in foreground)
        for worker in background:
            # While a latency is being measured, look away as long as enough is queued.
            if not waiting or worker.runs_low(clock()):
                worker.poll(clock)
                worker.top_up()
        for worker in foreground:
            if worker.due(clock()):
                for load in background:
                    load.poll(clock)
                    load.top_up()
                worker.issue_due()
                waiting = True
        return waiting

    def _begin(self, workers: Sequence[Worker], background: Sequence[Worker]) -> None:
        """Fill the queues of the background; the foreground begins when all of them are full."""
        now_ns = self._device.now_ns()
        for worker in workers:
            worker.begin(now_ns)
        if not self.has_threads:
            return
        for load in background:
            load.top_up()
            self._unfilled.discard(load)
        while self._unfilled and not self._is_over:
            time.sleep(NAP_NS / 1e9)
        now_ns = self._device.now_ns()
        for worker in workers:
            worker.begin(now_ns)

    def _nap(self, foreground: Sequence[Worker], longest_ns: int) -> None:
        """Wait for the next call to be due, but not for longer."""
        nap_ns = self._device.now_ns() + longest_ns
        self._device.backend.wait_until_ns(min(nap_ns, *_dues(foreground)))

    def _block(self, workers: Sequence[Worker]) -> None:
        """Wait, without the interpreter, until there may be something to do for this thread."""
        busy = [worker for worker in workers if worker.queued]
        due_ns = min(_dues(worker for worker in workers if worker.has_room), default=None)
        if len(busy) == 1 and due_ns is None:
            busy[0].await_oldest()
        elif busy:
            time.sleep(0)
        elif due_ns is None:  # before calls of other threads have ended
            time.sleep(NAP_NS / 1e9)
        else:
            self._nap(workers, LOOK_NS)


def _runs_python(worker: Worker) -> bool:
    """Whether its calls run Python of the user's: a collective's is a short call of PyTorch's."""
    return isinstance(worker.handle, FunctionHandle) and not isinstance(worker.handle, Collective)


def _dues(workers: Iterable[Worker]) -> Iterator[int]:
    """Yield when the next calls of foreground workers are due."""
    for worker in workers:
        if not worker.spec.background and (due_ns := worker.next_ns) is not None:
            yield due_ns


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    """Let threads that launch not wait long for one that runs Python."""
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(min(before, _SWITCH_S))
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python's garbage collector out of what is being timed."""
    was_on = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_on:
            gc.enable()
