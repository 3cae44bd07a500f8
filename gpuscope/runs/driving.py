"""Driving the workloads of one round: each stream's launches come from a thread of its own.

So the Python of one workload does not delay the launches of another. A simulated GPU has one host
with a virtual clock: there, one thread launches for all streams, in an order that depends on the
seed alone.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from gpuscope.device.device import Device
from gpuscope.record.annotate import annotate
from gpuscope.runs.workers import Worker

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
        Names of ranges that every launching thread is in.
    """

    def __init__(
        self,
        device: Device,
        workers: Sequence[Worker],
        stop: threading.Event,
        tell: Callable[[], None],
        ranges: Sequence[str],
    ) -> None:
        self._device = device
        self._workers = workers
        self._foreground = [worker for worker in workers if not worker.spec.background]
        self._stop = stop
        self._tell = tell
        self._ranges = ranges
        self._halted = False
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self.has_threads = not device.is_simulated
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
        now_ns = self._device.now_ns()
        for worker in self._workers:
            worker.begin(now_ns)
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
        name = worker.stream.name
        if name not in self._threads:
            # Kept before it runs anything: an interrupt may strike anywhere.
            self._threads[name] = ThreadPoolExecutor(1, thread_name_prefix=f"stream {name}")
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
        clock = self._device.now_ns
        foreground = [worker for worker in workers if not worker.spec.background]
        background = [worker for worker in workers if worker.spec.background]
        with contextlib.ExitStack() as ranges:
            for name in self._ranges:
                ranges.enter_context(annotate(name))
            while not (self._halted or self._stop.is_set()):
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
                if not self.has_threads:
                    self._tell()
                if self._is_over or (not background and all(one.over for one in foreground)):
                    break
                self._rest(workers, waiting=waiting, has_background=bool(background))
            for worker in workers:
                worker.finish()

    def _rest(self, workers: Sequence[Worker], *, waiting: bool, has_background: bool) -> None:
        """Wait until there may be something to do."""
        now_ns = self._device.now_ns()
        if not self.has_threads:
            if waiting:
                return
            nap_ns = now_ns + (NAP_NS if has_background else LOOK_NS)
            self._device.backend.wait_until_ns(min(nap_ns, *_dues(workers)))
            return
        ready = (worker for worker in workers if worker.has_room)
        due_ns = min(_dues(ready), default=None)
        busy = [worker for worker in workers if worker.queued]
        if due_ns is None and len(busy) == 1:
            busy[0].await_oldest()
        elif due_ns is None or due_ns > now_ns:
            nap_ns = now_ns + (NAP_NS if busy or due_ns is None else LOOK_NS)
            self._device.backend.wait_until_ns(nap_ns if due_ns is None else min(due_ns, nap_ns))


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
