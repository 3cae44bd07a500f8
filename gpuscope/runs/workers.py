"""Driving one workload: what is queued, what is left, when the next call is due."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence

from gpuscope.device.caller import CallerStreamGuard
from gpuscope.device.stream import Stream
from gpuscope.workloads.handle import Completion, Handle
from gpuscope.workloads.spec import WorkloadSpec

QUEUED_NS = 100_000_000
"""Estimated work kept queued at most, by all workloads together: CUDA cannot cancel it, so Stop
means this soon."""


class Worker:
    """One workload being driven: what is queued, what is left, when the next is due."""

    def __init__(
        self,
        handle: Handle,
        stream: Stream,
        spec: WorkloadSpec,
        repeats: int,
        rng: random.Random,
        *,
        queued_ns: int = QUEUED_NS,
        waits_on: Sequence[Handle] = (),
        unguarded: Stream | None = None,
    ) -> None:
        self.handle = handle
        self.stream = stream
        self.background = spec.background
        self.limit = 1  # until it is known how long a call takes
        self.left = repeats
        self.finished = 0
        self.due_ns = 0
        self._spec = spec
        self._rng = rng
        self._queued_ns = queued_ns
        self._waits_on = waits_on
        self._unguarded = unguarded
        self._queue: deque[Completion] = deque()
        self._last_done_ns = 0
        self._pace_ns = 0

    @property
    def queued(self) -> int:
        """Calls in flight."""
        return len(self._queue)

    @property
    def over(self) -> bool:
        """Whether every call was launched and has completed."""
        return not self.left and not self._queue

    def begin(self, now_ns: int) -> None:
        """Start the clock of arrivals and of the pace."""
        self.due_ns = self._last_done_ns = now_ns

    def warm_up(self, clock: Callable[[], int], stop: threading.Event) -> None:
        """Run it, one call at a time so that Stop means soon, and learn how long a call takes."""
        for _ in range(self._spec.warmup):
            if stop.is_set():
                return
            began_ns = clock()
            self._launch()
            self.handle.wait()
            self._learn(clock() - began_ns)

    def _learn(self, pace_ns: int) -> None:
        """Queue as many calls as may be, for calls that take so long."""
        self._pace_ns = pace_ns
        self.limit = max(1, min(self._spec.max_queued, self._queued_ns // max(1, pace_ns)))

    def _launch(self) -> None:
        stream = self._unguarded or self.stream
        for other in self._waits_on:
            if (completion := other.completion) is not None:
                stream.wait(completion.event)
        if self._unguarded is not None:
            with self.handle.device.calls.meant_for(self.stream):
                self.handle.execute(stream=self._unguarded)
            return
        with CallerStreamGuard(self.stream):
            self.handle.execute()

    def issue(self) -> None:
        """Launch one call, and say when the next is due."""
        self._launch()
        completion = self.handle.completion
        assert completion is not None  # noqa: S101 - execute() made one
        self._queue.append(completion)
        rate = self._spec.rate_hz
        if rate is not None:
            poisson = self._spec.arrival == "poisson"
            self.due_ns += round(1e9 * (self._rng.expovariate(rate) if poisson else 1 / rate))

    def top_up(self) -> None:
        """Queue up to the limit."""
        while len(self._queue) < self.limit:
            self.issue()

    def runs_low(self, now_ns: int) -> bool:
        """Whether fewer than two of what was queued can still be running, by its pace."""
        return now_ns - self._last_done_ns > max(0, self.limit - 2) * self._pace_ns

    def due(self, now_ns: int) -> bool:
        """Whether the next call is to be launched now."""
        return bool(self.left) and len(self._queue) < self.limit and now_ns >= self.due_ns

    def poll(self, clock: Callable[[], int]) -> None:
        """See what is done; learn from its pace how much may be queued."""
        before = self.finished
        while self._queue and self._queue[0].is_done:
            self._queue.popleft()
            self.finished += 1
        if self.finished > before:
            now_ns = clock()
            self._learn((now_ns - self._last_done_ns) // (self.finished - before))
            self._last_done_ns = now_ns

    def wait_one(self) -> None:
        """Wait for the oldest call."""
        self._queue.popleft().wait()

    def finish(self) -> None:
        """Wait for every call."""
        while self._queue:
            self.wait_one()
