"""Driving one workload: what is queued, what is left, when the next call is due."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuscope import _interrupts
from gpuscope.device.caller import CallerStreamGuard
from gpuscope.device.stream import Stream
from gpuscope.experiments.serving import Feed
from gpuscope.workloads.handle import Completion, Handle
from gpuscope.workloads.spec import WorkloadSpec

QUEUED_NS = 100_000_000
"""Estimated work kept queued at most, by all workloads together: CUDA cannot cancel it, so Stop
means this soon."""


@dataclass(eq=False)
class Worker:
    """One workload being driven.

    Attributes
    ----------
    left
        Calls to launch.
    queued_ns
        Estimated work that it may keep queued.
    waits_on
        Its stream waits for the latest call of each of these.
    unguarded
        Where it launches in place of its stream, if it does without a guard.
    feed
        Says when calls are due, in place of ``left`` and the spec's arrivals.
    ends
        Calls left, before each of the foreground → whether to make none of them.
    limit
        Calls in flight at most: 1 until it is known how long a call takes.
    """

    handle: Handle
    stream: Stream
    spec: WorkloadSpec
    left: int
    rng: random.Random
    queued_ns: int = QUEUED_NS
    waits_on: Sequence[Handle] = ()
    unguarded: Stream | None = None
    feed: Feed | None = None
    ends: Callable[[int], bool] | None = None
    limit: int = field(default=1, init=False)
    finished: int = field(default=0, init=False)
    due_ns: int = field(default=0, init=False)
    _queue: deque[Completion] = field(default_factory=deque, init=False)
    _last_done_ns: int = field(default=0, init=False)
    _pace_ns: int = field(default=0, init=False)

    @property
    def queued(self) -> int:
        """Calls in flight."""
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        """Whether one more call may be in flight."""
        return len(self._queue) < self.limit

    @property
    def over(self) -> bool:
        """Whether every call was launched and has completed."""
        over = self.feed.over if self.feed is not None else not self.left
        return over and not self._queue

    @property
    def next_ns(self) -> int | None:
        """When the next call is due; ``None`` where none is, or not before others have ended."""
        if self.feed is not None:
            return self.feed.due_ns
        return self.due_ns if self.left else None

    def begin(self, now_ns: int) -> None:
        """Start the clock of arrivals and of the pace."""
        self.due_ns = self._last_done_ns = now_ns

    def warm_up(self, clock: Callable[[], int], stop: threading.Event) -> None:
        """Run it, one call at a time so that Stop means soon, and learn how long a call takes."""
        for _ in range(self.spec.warmup):
            _interrupts.deliver()
            if stop.is_set():
                return
            began_ns = clock()
            self._launch()
            self.handle.wait()
            self._learn(clock() - began_ns)

    def _learn(self, pace_ns: int) -> None:
        """Queue as many calls as may be, for calls that take so long."""
        self._pace_ns = pace_ns
        self.limit = max(1, min(self.spec.max_queued, self.queued_ns // max(1, pace_ns)))

    def _launch(self) -> None:
        stream = self.unguarded or self.stream
        for other in self.waits_on:
            if (completion := other.completion) is not None:
                stream.wait(completion.event)
        if self.unguarded is not None:
            with self.handle.device.calls.meant_for(self.stream):
                self.handle.execute(stream=self.unguarded)
            return
        with CallerStreamGuard(self.stream):
            self.handle.execute()

    def issue_due(self) -> None:
        """Launch the call that is due."""
        if self.feed is not None:
            self.feed.take()
        elif self.ends is not None and self.ends(self.left):
            self.left = 0
            return
        else:
            self.left -= 1
        self.issue()

    def issue(self) -> None:
        """Launch one call, and say when the next is due."""
        self._launch()
        completion = self.handle.completion
        assert completion is not None  # noqa: S101 - execute() made one
        self._queue.append(completion)
        self.due_ns += self.spec.interval_ns(self.rng, 0)

    def top_up(self) -> None:
        """Queue up to the limit."""
        while self.has_room:
            self.issue()

    def runs_low(self, now_ns: int) -> bool:
        """Whether fewer than two of what was queued can still be running, by its pace."""
        return now_ns - self._last_done_ns > max(0, self.limit - 2) * self._pace_ns

    def due(self, now_ns: int) -> bool:
        """Whether the next call is to be launched now."""
        due_ns = self.next_ns if self.has_room else None
        return due_ns is not None and now_ns >= due_ns

    def poll(self, clock: Callable[[], int]) -> None:
        """See what is done; learn from its pace how much may be queued."""
        before = self.finished
        while self._queue and self._queue[0].is_done:
            self._queue.popleft()
            self.finished += 1
            if self.feed is not None:
                self.feed.ended(clock())
        if self.finished > before:
            now_ns = clock()
            self._learn((now_ns - self._last_done_ns) // (self.finished - before))
            self._last_done_ns = now_ns

    def await_oldest(self) -> None:
        """Wait until the oldest call is done, which :meth:`poll` then sees."""
        self._queue[0].settle()

    def wait_one(self) -> None:
        """Wait for the oldest call."""
        self._queue.popleft().wait()

    def finish(self) -> None:
        """Wait for every call."""
        while self._queue:
            _interrupts.deliver()
            self.wait_one()
