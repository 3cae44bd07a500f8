"""The discrete-event engine: streams, events, SM slots, copy engines, memory bandwidth.

Work enters at the virtual time at which the host queued it, so the engine can run late:
nothing that the host does later can change what happened before. A piece of work starts
when what it must follow is done: the work before it in its stream, the record that a wait
names, across the legacy default stream's barrier, or inside a graph. A kernel is a number
of equal blocks; each holds one SM of the stream's partition. Blocks take free SMs in the
order in which their kernels became ready, higher priority first, and nothing is
pre-empted; so an unpartitioned kernel queues behind one that fills the GPU, and a tail
lets the next one in.

Blocks that start together advance together, as one counted *wave*. Waves share the memory
bandwidth max-min fairly: where all of them ask for more than there is, every block gets
what it asks for up to one common level. All of it is integer arithmetic: a wave has
``work_ns * FULL`` units of work left, and does ``speed`` of them a nanosecond.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuscope.device.api import Activity, Release
from gpuscope.errors import StreamError

Effect = Callable[[], Callable[[], None]]
"""Called at the start of work, binds inputs; returns what commits the output at its end."""

FULL = 1 << 30
"""Speed of work that nothing holds up, and the unit of shares of a byte a nanosecond."""

_ORDERED_BY_EVENTS = ("kernel", "memcpy")


class SimEvent:
    """An event: the latest record counts, older waits keep the one they saw.

    Attributes
    ----------
    captured
        The capture and the place in it, if the latest record became part of a graph.
    """

    __slots__ = ("captured", "record")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.captured: Any = None


class Op:
    """One piece of work in a stream.

    Attributes
    ----------
    after
        Work elsewhere that it must follow.
    pending
        How many pieces of work it must follow that are not done.
    followers
        Work that must follow it.
    free_ns
        When the last piece of work that it must follow ended.
    owner, node
        The launched graph that it is a node of, and which one.
    """

    __slots__ = (
        "after", "correlation", "done_ns", "effect", "followers", "free_ns", "name", "node",
        "owner", "pending", "queued_ns", "start_ns", "stream",
    )  # fmt: skip

    kind = ""

    def __init__(
        self, stream: SimStream, queued_ns: int, correlation: int, name: str, effect: Effect | None
    ) -> None:
        self.stream = stream
        self.queued_ns = queued_ns
        self.correlation = correlation
        self.name = name
        self.effect = effect
        self.start_ns: int | None = None
        self.done_ns: int | None = None
        self.after: Op | None = None
        self.pending = 0
        self.free_ns = 0
        self.followers: list[Op] | None = None
        self.owner: GraphOp | None = None
        self.node: int | None = None

    def again(self, queued_ns: int, correlation: int) -> Op:
        """Return the same work, not yet done: what a graph's launch makes of a node."""
        raise NotImplementedError


class WaveOp(Op):
    """Work that takes time on the device, and bandwidth.

    Attributes
    ----------
    work_ns
        How long one of its blocks takes when nothing holds it up.
    rate
        What a block asks of the memory bandwidth, in units of 1/FULL bytes a ns.
    """

    __slots__ = ("commit", "rate", "work_ns")

    def __init__(
        self,
        stream: SimStream,
        queued_ns: int,
        correlation: int,
        name: str,
        effect: Effect | None,
        work_ns: int,
        rate: int,
    ) -> None:
        super().__init__(stream, queued_ns, correlation, name, effect)
        self.work_ns = work_ns
        self.rate = rate
        self.commit: Callable[[], None] | None = None


class KernelOp(WaveOp):
    """Equal blocks that need SMs, and move ``nbytes`` together.

    Attributes
    ----------
    released_by
        Who released the SMs that its first blocks got, where it waited for SMs.
    """

    __slots__ = ("blocks", "left", "nbytes", "ready_ns", "released_by", "running")

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
        nbytes: int = 0,
    ) -> None:
        rate = nbytes * FULL // max(1, blocks * block_ns)
        super().__init__(stream, queued_ns, correlation, name, effect, block_ns, rate)
        self.blocks = self.left = blocks
        self.nbytes = nbytes
        self.running = 0
        self.ready_ns = 0
        self.released_by: tuple[Release, ...] = ()

    def again(self, queued_ns: int, correlation: int) -> KernelOp:
        """Return the same kernel, not yet run."""
        return KernelOp(
            self.stream, queued_ns, correlation, self.name, self.effect, self.blocks,
            self.work_ns, self.nbytes,
        )  # fmt: skip


class CopyOp(WaveOp):
    """A transfer that holds one copy engine, and moves ``nbytes`` in device memory."""

    __slots__ = ("engine", "nbytes")

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
        nbytes: int = 0,
    ) -> None:
        rate = nbytes * FULL // max(1, duration_ns)
        super().__init__(stream, queued_ns, correlation, name, effect, duration_ns, rate)
        self.engine = engine
        self.nbytes = nbytes

    def again(self, queued_ns: int, correlation: int) -> CopyOp:
        """Return the same copy, not yet run."""
        return CopyOp(
            self.stream, queued_ns, correlation, self.name, self.effect, self.engine,
            self.work_ns, self.nbytes,
        )  # fmt: skip


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

    def again(self, queued_ns: int, correlation: int) -> HostOp:
        """Return the same call, not yet made."""
        return HostOp(
            self.stream, queued_ns, correlation, self.name, self.function, self.duration_ns
        )


class Record(Op):
    """An event's record: done when the work before it is."""

    __slots__ = ()

    kind = "record"

    def __init__(self, stream: SimStream, queued_ns: int, correlation: int) -> None:
        super().__init__(stream, queued_ns, correlation, "event.record", None)


class Wait(Op):
    """A stream's wait for one record of an event."""

    __slots__ = ("before",)

    kind = "wait"

    def __init__(self, stream: SimStream, queued_ns: int, correlation: int, target: Record) -> None:
        super().__init__(stream, queued_ns, correlation, "stream.wait", None)
        self.after = target
        self.before = stream.last


class GraphOp(Op):
    """The launch of a graph: done when all of its nodes are.

    Attributes
    ----------
    nodes
        Work that :meth:`Op.again` makes anew, each with the numbers of those it follows.
    left
        How many nodes are not done.
    after
        The launch of the same graph before: a graph never runs beside itself.
    """

    __slots__ = ("left", "nodes")

    kind = "graph"

    def __init__(
        self,
        stream: SimStream,
        queued_ns: int,
        correlation: int,
        nodes: Sequence[tuple[Op, Sequence[int]]],
        after: Op | None = None,
    ) -> None:
        super().__init__(stream, queued_ns, correlation, "graph", None)
        self.after = after
        self.nodes = nodes
        self.left = len(nodes)


class Wave:
    """Blocks of one kernel that started together, or a copy.

    Attributes
    ----------
    sms
        Bit mask of the SMs they hold.
    left
        What is left to do as of ``since_ns``; FULL of it is done a ns at full speed.
    """

    __slots__ = ("count", "end_ns", "left", "op", "since_ns", "sms", "speed")

    def __init__(self, op: WaveOp, sms: int, count: int, now_ns: int) -> None:
        self.op = op
        self.sms = sms
        self.count = count
        self.left = op.work_ns * FULL
        self.since_ns = now_ns
        self.speed = FULL
        self.end_ns = now_ns + op.work_ns


class SimStream:
    """A queue of work on some SMs.

    Attributes
    ----------
    sms
        Bit mask of the SMs its kernels may use.
    context
        Number of its partition's context.
    blocking
        Whether it stands in the legacy default stream's barrier.
    last
        What was queued last.
    depth
        How much is queued and not done.
    waited
        Records that held back what comes next.
    capture
        The capture that what is queued now becomes part of.
    """

    __slots__ = (
        "blocking", "capture", "context", "depth", "handle", "last", "priority", "sms", "waited",
    )  # fmt: skip

    def __init__(
        self,
        handle: int,
        sms: int,
        priority: int,
        *,
        context: int | None = None,
        blocking: bool = False,
    ) -> None:
        self.handle = handle
        self.sms = sms
        self.context = context
        self.priority = priority
        self.blocking = blocking
        self.last: Op | None = None
        self.depth = 0
        self.waited: list[int] = []
        self.capture: Any = None


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
    bytes_per_us
        Memory bandwidth that everything shares; ``None`` for no limit.
    """

    def __init__(
        self,
        sms: int,
        *,
        launch_latency_ns: int,
        kernel_gap_ns: int,
        bytes_per_us: int | None = None,
    ) -> None:
        self.free = sms
        self.now_ns = 0
        self.sink: Callable[[Activity], None] | None = None
        self.legacy = SimStream(0, sms, 0)
        self.blocking: dict[SimStream, None] = {}
        self._launch_latency_ns = launch_latency_ns
        self._kernel_gap_ns = kernel_gap_ns
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._ready: list[tuple[int, int, int, int, KernelOp]] = []
        self._copies: dict[str, list[tuple[int, int, int, CopyOp]]] = {}
        self._copying: set[str] = set()
        self._copies_wait = False
        self._bandwidth = None if bytes_per_us is None else bytes_per_us * FULL // 1000
        self._demand = 0
        self._sharing: dict[Wave, None] = {}
        self._shared = False  # whether anything runs slower than it could
        self._demand_changed = False
        self._released: list[tuple[int, KernelOp]] = []  # SMs, and who released them, at an instant
        self._released_ns = -1

    # -- queueing ---------------------------------------------------------------------
    def submit(self, op: Op) -> None:
        """Queue ``op`` at its stream's tail."""
        stream = op.stream
        if stream.last is not None:
            self._follow(op, stream.last)
        if op.after is not None:
            self._follow(op, op.after)
        if stream.blocking:
            if self.legacy.last is not None:
                self._follow(op, self.legacy.last)
        elif stream is self.legacy:
            for other in self.blocking:
                if other.last is not None:
                    self._follow(op, other.last)
        stream.last = op
        stream.depth += 1
        if not op.pending:
            self._start(op)

    def _follow(self, op: Op, before: Op) -> None:
        """Let ``op`` start no earlier than ``before`` is done."""
        done_ns = before.done_ns
        if done_ns is not None:
            op.free_ns = max(op.free_ns, done_ns)
            return
        op.pending += 1
        if before.followers is None:
            before.followers = [op]
        else:
            before.followers.append(op)

    def _at(self, time_ns: int, action: Callable[[Any], None], subject: Any) -> None:
        self._sequence += 1
        heapq.heappush(
            self._heap,
            (time_ns if time_ns > self.now_ns else self.now_ns, self._sequence, action, subject),
        )

    # -- running ----------------------------------------------------------------------
    def run_until(self, time_ns: int) -> None:
        """Let everything happen that happens up to ``time_ns``."""
        heap = self._heap
        while heap and heap[0][0] <= time_ns:
            self._step()
        self.now_ns = max(self.now_ns, time_ns)

    def run_until_done(self, op: Op | None) -> int:
        """Run until ``op`` is done; returns when that was."""
        if op is None:
            return self.now_ns
        while op.done_ns is None:
            self._step_for(op.name)
        return op.done_ns

    def run_until_room(self, stream: SimStream, depth: int) -> int:
        """Run until fewer than ``depth`` pieces of work wait in ``stream``; returns when."""
        while stream.depth >= depth:
            self._step_for("the next launch")
        return self.now_ns

    def _step_for(self, name: str) -> None:
        if not self._heap:
            raise StreamError(
                f"{name!r} can never finish: its stream waits for work that is not queued"
            )
        self._step()

    def run_all(self) -> int:
        """Run until nothing is left; returns when the last thing ended."""
        while self._heap:
            self._step()
        return self.now_ns

    def _step(self) -> None:
        """Let everything happen that happens at the next instant, then hand out what is free."""
        heap, pop = self._heap, heapq.heappop
        time_ns = self.now_ns = heap[0][0]
        while heap and heap[0][0] == time_ns:
            entry = pop(heap)
            entry[2](entry[3])
        if self._ready and self.free:
            self._dispatch()
        if self._copies_wait:
            self._dispatch_copies()
        if self._demand_changed:
            self._share()

    def _start(self, op: Op) -> None:
        """Take up work that need not wait for other work any more."""
        if isinstance(op, KernelOp):
            op.ready_ns = self._ready_ns(op)
            self._at(op.ready_ns, self._enter, op)
        elif isinstance(op, GraphOp) and op.nodes:
            self._at(self._ready_ns(op), self._expand, op)
        else:
            self._at(max(op.queued_ns, op.free_ns), self._begin, op)

    def _ready_ns(self, op: Op) -> int:
        return max(op.queued_ns + self._launch_latency_ns, op.free_ns + self._kernel_gap_ns)

    def _begin(self, op: Op) -> None:
        """Start what needs no SM."""
        if isinstance(op, CopyOp):
            self._sequence += 1
            entry = (self.now_ns, op.correlation, self._sequence, op)
            heapq.heappush(self._copies.setdefault(op.engine, []), entry)
            self._copies_wait = True
            return
        op.start_ns = self.now_ns
        if isinstance(op, HostOp):
            op.function()
            self._at(self.now_ns + op.duration_ns, self._finish, op)
            return
        if isinstance(op, Wait):
            self._note_wait(op)
        self._finish(op)

    def _note_wait(self, op: Wait) -> None:
        """Remember a record that held the stream back."""
        before_ns = op.before.done_ns if op.before is not None else None
        target_ns = op.after.done_ns if op.after is not None else None
        if (target_ns or 0) > max(op.queued_ns, before_ns or 0):
            op.stream.waited.append(op.correlation)
        op.before = None

    def _expand(self, op: GraphOp) -> None:
        """Start a graph: make its nodes, and let those run that follow none."""
        made: list[Op] = []
        for number, (captured, after) in enumerate(op.nodes):
            node = captured.again(op.queued_ns, op.correlation)
            node.owner, node.node = op, number
            node.free_ns = self.now_ns - self._kernel_gap_ns
            for before in after:
                self._follow(node, made[before])
            made.append(node)
        for node in made:
            if not node.pending:
                self._start(node)

    # -- SMs and copy engines ---------------------------------------------------------
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
        available = usable.bit_count()
        count = op.left
        taken = usable
        if count < available:
            taken = _lowest(usable, count)
        else:
            count = available
        op.left -= count
        op.running += count
        self.free &= ~taken
        if op.start_ns is None and op.ready_ns < self.now_ns == self._released_ns:
            op.released_by = _releases(op, taken, self._released)
        self._run(Wave(op, taken, count, self.now_ns))

    def _dispatch_copies(self) -> None:
        """Give free copy engines to copies, in the order in which they became ready."""
        for engine, waiting in self._copies.items():
            if waiting and engine not in self._copying:
                self._copying.add(engine)
                self._run(Wave(heapq.heappop(waiting)[-1], 0, 1, self.now_ns))
        self._copies_wait = False

    def _run(self, wave: Wave) -> None:
        op = wave.op
        if op.start_ns is None:
            op.start_ns = self.now_ns
            op.commit = op.effect() if op.effect else None
        if op.rate:
            self._sharing[wave] = None
            self._demand += op.rate * wave.count
            self._demand_changed = True
        self._at(wave.end_ns, self._end, wave)

    def _end(self, wave: Wave) -> None:
        """End a wave, unless its end was put off or is past."""
        if wave.end_ns != self.now_ns:
            return
        wave.end_ns = -1
        op = wave.op
        if op.rate:
            del self._sharing[wave]
            self._demand -= op.rate * wave.count
            self._demand_changed = True
        if isinstance(op, KernelOp):
            if self._released_ns != self.now_ns:
                self._released_ns = self.now_ns
                self._released.clear()
            self._released.append((wave.sms, op))
            self.free |= wave.sms
            op.running -= wave.count
            if op.left or op.running:
                return
        elif isinstance(op, CopyOp):
            self._copying.discard(op.engine)
            self._copies_wait = True
        if op.commit is not None:
            op.commit()
            op.commit = None
        self._finish(op)

    # -- bandwidth --------------------------------------------------------------------
    def _share(self) -> None:
        """Let the waves that move bytes advance as fast as their bandwidth allows."""
        self._demand_changed = False
        if self._bandwidth is None or (self._demand <= self._bandwidth and not self._shared):
            return
        level = fair_level(self._bandwidth, ((w.op.rate, w.count) for w in self._sharing))
        self._shared = False
        for wave in self._sharing:
            speed = speed_at(level, wave.op.rate)
            self._shared |= speed < FULL
            if speed != wave.speed:
                wave.left -= (self.now_ns - wave.since_ns) * wave.speed
                wave.since_ns = self.now_ns
                wave.speed = speed
                wave.end_ns = self.now_ns - (-wave.left // speed)
                self._at(wave.end_ns, self._end, wave)

    # -- ends -------------------------------------------------------------------------
    def _finish(self, op: Op) -> None:
        now_ns = op.done_ns = self.now_ns
        op.effect = op.after = None
        stream, owner = op.stream, op.owner
        if self.sink is not None and op.kind != "wait":
            self._report(self.sink, op)
        if owner is None:
            stream.depth -= 1
            if stream.waited and op.kind in _ORDERED_BY_EVENTS:
                stream.waited.clear()
        followers = op.followers
        if followers is not None:
            op.followers = None
            for follower in followers:
                follower.pending -= 1
                if not follower.pending:
                    follower.free_ns = now_ns
                    self._start(follower)
        if owner is not None:
            if owner.start_ns is None or (op.start_ns or 0) < owner.start_ns:
                owner.start_ns = op.start_ns
            owner.left -= 1
            if not owner.left:
                self._finish(owner)

    def _report(self, sink: Callable[[Activity], None], op: Op) -> None:
        assert op.start_ns is not None  # noqa: S101 - it is done, so it started
        held = op.owner is None and op.kind in _ORDERED_BY_EVENTS
        after = op.owner.nodes[op.node][1] if op.owner is not None and op.node is not None else ()
        sink(
            Activity(
                op.kind, op.name, op.correlation, op.queued_ns, op.start_ns, self.now_ns,
                tuple(op.stream.waited) if held else (), op.node, op.stream.context, tuple(after),
                op.released_by if isinstance(op, KernelOp) else (),
                *((op.engine, op.nbytes) if isinstance(op, CopyOp) else ()),
            )
        )  # fmt: skip


def _releases(
    op: KernelOp, taken: int, released: Iterable[tuple[int, KernelOp]]
) -> tuple[Release, ...]:
    """Return who released the SMs that ``op`` took at an instant, each once."""
    found: dict[Release, None] = {}
    for sms, other in released:
        if sms & taken:
            later = (other.ready_ns, other.correlation) > (op.ready_ns, op.correlation)
            ahead = later and other.stream.priority < op.stream.priority
            found[Release(other.correlation, other.node, ahead)] = None
    return tuple(found)


def _lowest(mask: int, count: int) -> int:
    """Return the ``count`` lowest set bits of ``mask``, which has more."""
    below, above = -1, mask.bit_length()  # that many bits have too few, that many have enough
    while above - below > 1:
        middle = (below + above) // 2
        if (mask & ((1 << middle) - 1)).bit_count() < count:
            below = middle
        else:
            above = middle
    return mask & ((1 << above) - 1)


def fair_level(bandwidth: int, asked: Iterable[tuple[int, int]]) -> int | None:
    """Return what a block may have at most, for all to have no more than ``bandwidth``.

    Parameters
    ----------
    asked
        What each block of a wave asks for, and how many blocks the wave has.

    Returns
    -------
    int or None
        The max-min fair level; ``None`` where everybody can have what they ask for.
    """
    left, waves = bandwidth, sorted(asked)
    blocks = sum(count for _, count in waves)
    for rate, count in waves:
        if rate * blocks > left:
            return left // blocks
        left -= rate * count
        blocks -= count
    return None


def speed_at(level: int | None, rate: int) -> int:
    """Return how fast a block goes that asks for ``rate`` and may have ``level``."""
    if level is None or rate <= level:
        return FULL
    return max(1, FULL * level // rate)
