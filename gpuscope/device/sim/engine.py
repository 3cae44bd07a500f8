"""The discrete-event engine: streams, events, SM slots and copy engines, in integer ns.

Work enters at the virtual time at which the host queued it, so the engine can run late:
nothing that the host does later can change what happened before. Streams are first in,
first out. A kernel is a number of equal blocks; each holds one SM of the stream's
partition for ``block_ns``. Blocks take free SMs in the order in which their kernels
became ready, higher priority first, and nothing is pre-empted; so an unpartitioned
kernel queues behind one that fills the GPU, and a tail lets the next one in.

Not modelled here: memory bandwidth shared by what runs at once, blocking streams,
graphs. `docs/simulator.md` says so to users.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from gpuscope.device.api import Activity
from gpuscope.errors import StreamError

Effect = Callable[[], Callable[[], None]]
"""Called at the start of work, binds inputs; returns what commits the output at its end."""


class SimEvent:
    """An event: the latest record counts, older waits keep the one they saw."""

    __slots__ = ("correlation", "record", "time_ns")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.correlation: int | None = None
        self.time_ns: int | None = None


class Op:
    """One piece of work in a stream."""

    __slots__ = ("correlation", "done_ns", "effect", "name", "queued_ns", "stream")

    kind = ""

    def __init__(
        self, stream: SimStream, queued_ns: int, correlation: int, name: str, effect: Effect | None
    ) -> None:
        self.stream = stream
        self.queued_ns = queued_ns
        self.correlation = correlation
        self.name = name
        self.effect = effect
        self.done_ns: int | None = None


class KernelOp(Op):
    """Equal blocks that need SMs."""

    __slots__ = ("block_ns", "commit", "left", "ready_ns", "running", "start_ns")

    kind = "kernel"

    def __init__(
        self,
        stream: SimStream,
        queued_ns: int,
        correlation: int,
        name: str,
        effect: Effect | None,
        blocks: int,
        block_ns: int,
    ) -> None:
        super().__init__(stream, queued_ns, correlation, name, effect)
        self.left = blocks
        self.block_ns = block_ns
        self.running = 0
        self.ready_ns = 0
        self.start_ns: int | None = None
        self.commit: Callable[[], None] | None = None


class CopyOp(Op):
    """A transfer that holds one copy engine."""

    __slots__ = ("duration_ns", "engine")

    kind = "memcpy"

    def __init__(
        self,
        stream: SimStream,
        queued_ns: int,
        correlation: int,
        name: str,
        effect: Effect | None,
        engine: str,
        duration_ns: int,
    ) -> None:
        super().__init__(stream, queued_ns, correlation, name, effect)
        self.engine = engine
        self.duration_ns = duration_ns


class HostOp(Op):
    """A host function run in stream order."""

    __slots__ = ("duration_ns", "function")

    kind = "host"

    def __init__(
        self,
        stream: SimStream,
        queued_ns: int,
        correlation: int,
        name: str,
        function: Callable[[], None],
        duration_ns: int,
    ) -> None:
        super().__init__(stream, queued_ns, correlation, name, None)
        self.function = function
        self.duration_ns = duration_ns


class Record(Op):
    """An event's record: done when the work before it is."""

    __slots__ = ("event", "waiting")

    kind = "record"

    def __init__(
        self, stream: SimStream, queued_ns: int, correlation: int, event: SimEvent
    ) -> None:
        super().__init__(stream, queued_ns, correlation, "event.record", None)
        self.event = event
        self.waiting: list[Wait] = []


class Wait(Op):
    """A stream's wait for one record of an event."""

    __slots__ = ("target",)

    kind = "wait"

    def __init__(self, stream: SimStream, queued_ns: int, correlation: int, target: Record) -> None:
        super().__init__(stream, queued_ns, correlation, "stream.wait", None)
        self.target = target


class SimStream:
    """A queue of work on some SMs.

    Attributes
    ----------
    sms
        Bit mask of the SMs its kernels may use.
    free_ns
        When the work before the head of the queue ended.
    """

    __slots__ = ("closed", "free_ns", "handle", "last", "priority", "queue", "sms", "waited")

    def __init__(self, handle: int, sms: int, priority: int) -> None:
        self.handle = handle
        self.sms = sms
        self.priority = priority
        self.queue: deque[Op] = deque()
        self.free_ns = 0
        self.last: Op | None = None
        self.closed = False
        self.waited: list[int] = []


class Engine:
    """Runs work on virtual SMs.

    Parameters
    ----------
    sms
        Bit mask of all SMs.
    launch_latency_ns
        From a kernel being queued on an idle stream to its first block.
    kernel_gap_ns
        Between one kernel's end and the next one's start on one stream.
    """

    def __init__(self, sms: int, *, launch_latency_ns: int, kernel_gap_ns: int) -> None:
        self.free = sms
        self.now_ns = 0
        self.sink: Callable[[Activity], None] | None = None
        self._launch_latency_ns = launch_latency_ns
        self._kernel_gap_ns = kernel_gap_ns
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._ready: list[tuple[int, int, int, int, KernelOp]] = []
        self._engines: dict[str, int] = {}

    # -- queueing ---------------------------------------------------------------------
    def submit(self, op: Op) -> None:
        """Queue ``op`` at its stream's tail."""
        stream = op.stream
        stream.last = op
        stream.queue.append(op)
        if len(stream.queue) == 1:
            self._at(max(op.queued_ns, stream.free_ns), lambda: self._head(stream))

    def _at(self, time_ns: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (max(time_ns, self.now_ns), self._sequence, action))

    # -- running ----------------------------------------------------------------------
    def run_until(self, time_ns: int) -> None:
        """Let everything happen that happens up to ``time_ns``."""
        while self._heap and self._heap[0][0] <= time_ns:
            self._step()
        self.now_ns = max(self.now_ns, time_ns)

    def run_until_done(self, op: Op | None) -> int:
        """Run until ``op`` is done; returns when that was."""
        if op is None:
            return self.now_ns
        while op.done_ns is None:
            if not self._heap:
                raise StreamError(
                    f"{op.name!r} can never finish: its stream waits for work that is not queued"
                )
            self._step()
        return op.done_ns

    def run_all(self) -> int:
        """Run until nothing is left; returns when the last thing ended."""
        while self._heap:
            self._step()
        return self.now_ns

    def _step(self) -> None:
        """Let everything happen that happens at the next instant, then hand out SMs."""
        time_ns = self._heap[0][0]
        self.now_ns = max(self.now_ns, time_ns)
        while self._heap and self._heap[0][0] <= time_ns:
            heapq.heappop(self._heap)[2]()
        if self._ready and self.free:
            self._dispatch()

    def _head(self, stream: SimStream) -> None:
        """Start what stands at the head of a stream."""
        op = stream.queue[0]
        if isinstance(op, KernelOp):
            idle = stream.free_ns + self._kernel_gap_ns
            op.ready_ns = max(op.queued_ns + self._launch_latency_ns, idle)
            self._at(op.ready_ns, lambda: self._enter(op))
        elif isinstance(op, CopyOp):
            begin = max(self.now_ns, self._engines.get(op.engine, 0))
            self._engines[op.engine] = begin + op.duration_ns
            self._at(begin, lambda: self._begin_copy(op))
        elif isinstance(op, HostOp):
            op.function()
            begin = self.now_ns
            self._at(begin + op.duration_ns, lambda: self._finish(op, begin))
        elif isinstance(op, Record):
            op.event.time_ns = self.now_ns if op.event.record is op else op.event.time_ns
            self._finish(op, self.now_ns)
            for waiter in op.waiting:
                self._finish(waiter, self.now_ns)
        elif isinstance(op, Wait):
            if op.target.done_ns is None:
                op.target.waiting.append(op)
                stream.waited.append(op.target.correlation)
            else:
                self._finish(op, self.now_ns)

    def _enter(self, op: KernelOp) -> None:
        self._sequence += 1  # decides between equals: operations have no order of their own
        entry = (op.stream.priority, op.ready_ns, op.correlation, self._sequence, op)
        heapq.heappush(self._ready, entry)

    def _dispatch(self) -> None:
        """Give free SMs to ready kernels, in order; a kernel short of SMs stays in front."""
        waiting: list[tuple[int, int, int, int, KernelOp]] = []
        while self._ready and self.free:
            entry = heapq.heappop(self._ready)
            op = entry[-1]
            usable = self.free & op.stream.sms
            if usable:
                self._place(op, usable)
            if op.left or op.start_ns is None:
                waiting.append(entry)
        for entry in waiting:
            heapq.heappush(self._ready, entry)

    def _place(self, op: KernelOp, usable: int) -> None:
        count = min(op.left, usable.bit_count())
        taken = usable
        if count < usable.bit_count():
            taken = 0
            for _ in range(count):
                lowest = usable & -usable
                taken |= lowest
                usable ^= lowest
        if op.start_ns is None:
            op.start_ns = self.now_ns
            op.commit = op.effect() if op.effect else None
        op.left -= count
        op.running += count
        self.free &= ~taken
        self._at(self.now_ns + op.block_ns, lambda: self._release(op, taken, count))

    def _release(self, op: KernelOp, taken: int, count: int) -> None:
        self.free |= taken
        op.running -= count
        if not op.left and not op.running:
            if op.commit is not None:
                op.commit()
            assert op.start_ns is not None  # noqa: S101 - it ran, so it started
            self._finish(op, op.start_ns)

    def _begin_copy(self, op: CopyOp) -> None:
        begin = self.now_ns
        commit = op.effect() if op.effect else None

        def end() -> None:
            if commit is not None:
                commit()
            self._finish(op, begin)

        self._at(begin + op.duration_ns, end)

    def _finish(self, op: Op, start_ns: int) -> None:
        stream = op.stream
        op.done_ns = stream.free_ns = self.now_ns
        stream.queue.popleft()
        op.effect = None
        if self.sink is not None and op.kind != "wait":
            waited = tuple(stream.waited) if op.kind in ("kernel", "memcpy") else ()
            self.sink(
                Activity(
                    op.kind, op.name, op.correlation, op.queued_ns, start_ns, self.now_ns, waited
                )
            )
        if op.kind in ("kernel", "memcpy"):
            stream.waited.clear()
        if stream.queue:
            following = stream.queue[0]
            self._at(max(following.queued_ns, self.now_ns), lambda: self._head(stream))
