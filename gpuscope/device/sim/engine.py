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

An interrupt, as Ctrl-C is, may strike between any two instructions; the next call goes on
where it struck. Whatever is begun is noted by one store that stays until all of it is done
(``_submitting``, the first entry of the heap, ``_placing``, ``_unsettled``), and to do it
again changes nothing: phases only go forward, values are set and never counted up or down,
and an entry that comes twice finds its work done. Activities may be reported twice so.
"""

from __future__ import annotations

import functools
import heapq
import operator
import weakref
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuscope.device.calls import Activity, Release
from gpuscope.errors import StreamError

Effect = Callable[[], Callable[[], None]]
"""Called at the start of work, binds inputs; returns what commits the output at its end."""

FULL = 1 << 30
"""Speed of work that nothing holds up, and the unit of shares of a byte a nanosecond."""

_ORDERED_BY_EVENTS = ("kernel", "memcpy")

# What an op has come to: it waits for others; it will begin at its time; it began; all is done.
_WAITING, _STARTED, _RUNNING, _OVER = range(4)


class Failure:
    """What a piece of work raised: told once, by the first call that waits for that work.

    Attributes
    ----------
    before
        One that the same work or what it follows met earlier.
    told
        Whether somebody was told.
    """

    __slots__ = ("before", "error", "told")

    def __init__(self, error: Exception, before: Failure | None) -> None:
        self.error = error
        self.before = before
        self.told = False

    def first(self) -> Failure | None:
        """Return the earliest of them that nobody was told."""
        found, failure = None, self if not self.told else self.before
        while failure is not None:
            if not failure.told:
                found = failure
            failure = failure.before
        return found

    def tell(self) -> None:
        """Raise the error, unless somebody was told."""
        if not self.told:
            self.told = True
            raise self.error


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
    behind
        All work that it must follow and that was not done when it was queued.
    followers
        Work to look at again when it is done, if any; the same may stand there twice.
    free_ns
        When the last piece of work that it must follow ended.
    number
        Its place in its stream, from 1; 0 in a graph.
    phase
        How far it has come; only grows.
    owner, node
        The launched graph that it is a node of, and which one.
    failure
        What it raised, or what it follows did.
    """

    __slots__ = (
        "after", "behind", "correlation", "done_ns", "effect", "failure", "followers", "free_ns",
        "name", "node", "number", "owner", "phase", "queued_ns", "start_ns", "stream",
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
        self.behind: Sequence[Op] = ()
        self.free_ns = 0
        self.number = 0
        self.phase = _WAITING
        self.failure: Failure | None = None
        self.followers: list[Op] | None = None
        self.owner: GraphOp | None = None
        self.node: int | None = None

    def again(self, queued_ns: int, correlation: int) -> Op:
        """Return the same work, not yet done: what a graph's launch makes of a node."""
        raise NotImplementedError

    def forget(self) -> None:
        """Let go of other work and of memory: it is done."""
        self.effect = self.after = None
        self.behind = ()
        self.followers = None


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
    left
        How many blocks have no SM yet.
    running
        The waves that its other blocks are in, until they end; ``None`` before the first.
    released_by
        Who released the SMs that its first blocks got, where it waited for SMs.
    turn
        Its place among those that became ready at the same time.
    """

    __slots__ = ("blocks", "left", "nbytes", "ready_ns", "released_by", "running", "turn")

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
        self.running: dict[Wave, None] | None = None
        self.ready_ns = 0
        self.released_by: tuple[Release, ...] = ()
        self.turn = 0

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
    """A host function run in stream order.

    Attributes
    ----------
    calls
        Gives the function's result when it is asked for the first time, and nothing then: to
        be asked and to call are one step, so that no interrupt makes it two calls or none.
    """

    __slots__ = ("calls", "duration_ns", "function")

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
        self.calls = map(operator.call, (function,))
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

    def forget(self) -> None:
        """Let go of other work, too."""
        super().forget()
        self.before = None


class SimGraph:
    """Captured work, ready to launch.

    Attributes
    ----------
    nodes
        Work, each with the numbers of those it follows. It keeps its stream, and with it the
        SMs and the priority that it was captured with.
    last
        The latest launch, which the next one follows: a graph never runs beside itself.
    """

    def __init__(self, nodes: Sequence[tuple[Op, Sequence[int]]]) -> None:
        self.nodes = nodes
        self.last: GraphOp | None = None


class GraphOp(Op):
    """The launch of a graph: done when all of its nodes are.

    Attributes
    ----------
    nodes
        What :meth:`Op.again` made of the graph's nodes when it started.
    done
        That many of the first nodes are known to be done.
    """

    __slots__ = ("done", "graph", "nodes")

    kind = "graph"

    def __init__(
        self, stream: SimStream, queued_ns: int, correlation: int, graph: SimGraph
    ) -> None:
        super().__init__(stream, queued_ns, correlation, "graph", None)
        self.graph = graph
        self.after = graph.last
        self.nodes: list[Op] = []
        self.done = 0

    def forget(self) -> None:
        """Let go of its nodes, too."""
        super().forget()
        self.nodes = []


class Wave:
    """Blocks of one kernel that started together, or a copy.

    Attributes
    ----------
    sms
        Bit mask of the SMs they hold.
    left
        How many blocks of the kernel have no SM yet once these have theirs.
    pace
        What was left to do at a time, that time in ns, and the speed since: of FULL, that much
        is done a ns at full speed.
    end_ns
        When it will end; -1 when it has.
    """

    __slots__ = ("count", "end_ns", "left", "op", "pace", "sms")

    def __init__(self, op: WaveOp, sms: int, count: int, left: int, now_ns: int) -> None:
        self.op = op
        self.sms = sms
        self.count = count
        self.left = left
        self.pace = (op.work_ns * FULL, now_ns, FULL)
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
    done
        The number of what was done last.
    waited
        Records that held back what comes next.
    capture
        The capture that what is queued now becomes part of.
    """

    __slots__ = (
        "__weakref__", "blocking", "capture", "context", "done", "handle", "last", "priority",
        "sms", "waited",
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
        self.done = 0
        self.waited: tuple[int, ...] = ()
        self.capture: Any = None

    @property
    def depth(self) -> int:
        """How much is queued and not done."""
        return 0 if self.last is None else self.last.number - self.done


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
        self.blocking: weakref.WeakKeyDictionary[SimStream, None] = weakref.WeakKeyDictionary()
        self.failures: list[Failure] = []
        self._launch_latency_ns = launch_latency_ns
        self._kernel_gap_ns = kernel_gap_ns
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._ready: list[tuple[int, int, int, int, KernelOp]] = []  # sorted
        self._copies: dict[str, list[tuple[int, int, int, CopyOp]]] = {}
        self._copying: set[str] = set()
        self._copies_wait = False
        self._bandwidth = None if bytes_per_us is None else bytes_per_us * FULL // 1000
        self._sharing: dict[Wave, int] = {}  # each wave, and what it asks for
        self._shared = False  # whether anything runs slower than it could
        self._demand_changed = False
        self._released: list[tuple[int, KernelOp]] = []  # SMs, and who released them, at an instant
        self._released_ns = -1
        # What was begun and is not done, after an interrupt: see the top of this file.
        self._submitting: Op | None = None
        self._placing: Wave | None = None
        self._unsettled = False

    def _resume(self) -> None:
        """Do the rest of what an interrupt cut short."""
        if self._submitting is not None:
            self._admit(self._submitting)
        if self._unsettled:
            self._step()

    # -- queueing ---------------------------------------------------------------------
    def submit(self, op: Op) -> None:
        """Queue ``op`` at its stream's tail."""
        if self._submitting is not None or self._unsettled:
            self._resume()
        stream = op.stream
        last = stream.last
        behind: list[Op] = []
        if last is not None:
            self._follow(op, last, behind)
        if op.after is not None:
            self._follow(op, op.after, behind)
        if stream.blocking:
            if self.legacy.last is not None:
                self._follow(op, self.legacy.last, behind)
        elif stream is self.legacy:
            for other in self.blocking:
                if other.last is not None:
                    self._follow(op, other.last, behind)
        op.behind = tuple(behind)
        op.number = 1 if last is None else last.number + 1
        self._submitting = op
        self._admit(op)

    def _follow(self, op: Op, before: Op, behind: list[Op]) -> None:
        """Let ``op`` start no earlier than ``before`` is done; what is not goes to ``behind``."""
        if before.done_ns is None:
            behind.append(before)
        else:
            _note_done(op, before, before.done_ns)

    def _admit(self, op: Op) -> None:
        """Make the work that is being submitted its stream's tail."""
        op.stream.last = op
        if isinstance(op, GraphOp):
            op.graph.last = op
        self._wake(op)
        self._submitting = None

    def _wake(self, op: Op) -> None:
        """Take up work if all that it must follow is done; else look again when more is."""
        if op.phase != _WAITING:
            return
        for before in op.behind:
            if before.done_ns is None:
                if before.followers is None:
                    before.followers = [op]
                else:
                    before.followers.append(op)
                return
            _note_done(op, before, before.done_ns)
        self._start(op)
        op.phase = _STARTED

    def _at(self, time_ns: int, action: Callable[[Any], None], subject: Any) -> None:
        self._sequence += 1
        heapq.heappush(
            self._heap,
            (time_ns if time_ns > self.now_ns else self.now_ns, self._sequence, action, subject),
        )

    # -- running ----------------------------------------------------------------------
    def run_until(self, time_ns: int) -> None:
        """Let everything happen that happens up to ``time_ns``."""
        if self._submitting is not None or self._unsettled:
            self._resume()
        heap = self._heap
        while heap and heap[0][0] <= time_ns:
            self._step()
        self.now_ns = time_ns if time_ns > self.now_ns else self.now_ns

    def run_until_done(self, op: Op | None) -> int:
        """Run until ``op`` is done; returns when that was."""
        self._resume()
        if op is None:
            return self.now_ns
        while op.done_ns is None:
            self._step_for(op.name)
        return op.done_ns

    def run_until_room(self, stream: SimStream, depth: int) -> int:
        """Run until fewer than ``depth`` pieces of work wait in ``stream``; returns when."""
        self._resume()
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
        self._resume()
        while self._heap:
            self._step()
        return self.now_ns

    def _step(self) -> None:
        """Let everything happen that happens at the next instant, then hand out what is free."""
        heap = self._heap
        if not self._unsettled:
            self.now_ns = heap[0][0]
            self._unsettled = True
        while heap and heap[0][0] == self.now_ns:
            entry = heap[0]  # stays first until all that it asks for is done
            entry[2](entry[3])
            if heap and heap[0] is entry:
                heapq.heappop(heap)
        if self._placing is not None:
            self._run(self._placing)
        if self._ready and self.free:
            self._dispatch()
        if self._copies_wait:
            self._dispatch_copies()
        if self._demand_changed:
            self._share()
        self._unsettled = False

    def _start(self, op: Op) -> None:
        """Let work begin as soon as it can, now that all it must follow is done."""
        if isinstance(op, KernelOp):
            op.ready_ns = self._ready_ns(op)
            self._at(op.ready_ns, self._enter, op)
        elif isinstance(op, GraphOp) and op.graph.nodes:
            self._at(self._ready_ns(op), self._expand, op)
        else:
            self._at(max(op.queued_ns, op.free_ns), self._begin, op)

    def _ready_ns(self, op: Op) -> int:
        launched_ns = op.queued_ns + self._launch_latency_ns
        free_ns = op.free_ns + self._kernel_gap_ns
        return launched_ns if launched_ns > free_ns else free_ns

    def _begin(self, op: Op) -> None:
        """Start what needs no SM."""
        if op.phase != _STARTED:
            return
        if isinstance(op, CopyOp):
            self._sequence += 1
            entry = (self.now_ns, op.correlation, self._sequence, op)
            heapq.heappush(self._copies.setdefault(op.engine, []), entry)
            self._copies_wait = True
            op.phase = _RUNNING
            return
        op.start_ns = self.now_ns
        if isinstance(op, HostOp):
            try:
                next(op.calls, None)
            except Exception as error:  # noqa: BLE001 - who waits for it is told
                self._fail(op, error)
            self._at(op.start_ns + op.duration_ns, self._finish, op)
            op.phase = _RUNNING
            return
        if isinstance(op, Wait):
            self._note_wait(op)
        self._finish(op)

    def _note_wait(self, op: Wait) -> None:
        """Remember a record that held the stream back."""
        before_ns = op.before.done_ns if op.before is not None else None
        target_ns = op.after.done_ns if op.after is not None else None
        held = (target_ns or 0) > max(op.queued_ns, before_ns or 0)
        if held and op.correlation not in op.stream.waited:
            op.stream.waited += (op.correlation,)

    def _expand(self, op: GraphOp) -> None:
        """Start a graph: make its nodes, and let those run that follow none."""
        if op.phase == _STARTED:
            made: list[Op] = []
            for number, (captured, after) in enumerate(op.graph.nodes):
                node = captured.again(op.queued_ns, op.correlation)
                node.owner, node.node = op, number
                node.free_ns = self.now_ns - self._kernel_gap_ns
                node.behind = [made[before] for before in after]
                made.append(node)
            op.nodes = made
            op.phase = _RUNNING
        if op.phase == _RUNNING:
            for node in op.nodes:
                self._wake(node)
            self._look_at(op)

    def _look_at(self, op: GraphOp) -> None:
        """Finish a graph if all of its nodes are done."""
        nodes = op.nodes
        while op.done < len(nodes) and nodes[op.done].done_ns is not None:
            op.done += 1
        if op.done == len(nodes):
            self._finish(op)

    # -- SMs and copy engines ---------------------------------------------------------
    def _enter(self, op: KernelOp) -> None:
        if op.phase != _STARTED:
            return
        self._sequence += 1  # decides between equals: operations have no order of their own
        op.turn = self._sequence
        insort(self._ready, (op.stream.priority, op.ready_ns, op.correlation, op.turn, op))
        op.phase = _RUNNING

    def _dispatch(self) -> None:
        """Give free SMs to ready kernels, in order; a kernel short of SMs stays in front."""
        ready, index = self._ready, 0
        while index < len(ready) and self.free:
            op = ready[index][-1]
            usable = self.free & op.stream.sms
            if usable and (op.left or op.start_ns is None):
                self._place(op, usable)
            if op.left or op.start_ns is None:
                index += 1
            else:
                del ready[index]

    def _place(self, op: KernelOp, usable: int) -> None:
        available = usable.bit_count()
        count = op.left
        taken = usable
        if count < available:
            taken = _lowest(usable, count)
        else:
            count = available
        if op.start_ns is None and op.ready_ns < self.now_ns == self._released_ns:
            op.released_by = _releases(op, taken, self._released)
        self._placing = wave = Wave(op, taken, count, op.left - count, self.now_ns)
        self._run(wave)

    def _dispatch_copies(self) -> None:
        """Give free copy engines to copies, in the order in which they became ready."""
        for engine, waiting in self._copies.items():
            while waiting:
                op = waiting[0][-1]
                if op.start_ns is None:
                    if engine in self._copying:
                        break
                    self._placing = wave = Wave(op, 0, 1, 0, self.now_ns)
                    self._run(wave)
                heapq.heappop(waiting)
        self._copies_wait = False

    def _run(self, wave: Wave) -> None:
        """Let the wave that is being placed run."""
        op = wave.op
        if op.start_ns is None:
            try:
                op.commit = op.effect() if op.effect else None
            except Exception as error:  # noqa: BLE001 - who waits for it is told
                self._fail(op, error)
            op.start_ns = self.now_ns
        if op.rate:
            self._sharing[wave] = op.rate * wave.count
            self._demand_changed = True
        if isinstance(op, KernelOp):
            self.free &= ~wave.sms
            if op.running is None:
                op.running = {}
            op.running[wave] = None
            op.left = wave.left
        elif isinstance(op, CopyOp):
            self._copying.add(op.engine)
        self._at(wave.end_ns, self._end, wave)
        self._placing = None

    def _end(self, wave: Wave) -> None:
        """End a wave, unless its end was put off or is past."""
        if wave.end_ns != self.now_ns:
            return
        op = wave.op
        if op.rate:
            self._sharing.pop(wave, None)
            self._demand_changed = True
        if isinstance(op, KernelOp):
            if self._released_ns != self.now_ns:
                self._released.clear()
                self._released_ns = self.now_ns
            self._released.append((wave.sms, op))
            self.free |= wave.sms
            if op.running is not None:
                op.running.pop(wave, None)
            is_over = not (op.left or op.running)
        else:
            assert isinstance(op, CopyOp)  # noqa: S101 - the other kind that has waves
            self._copying.discard(op.engine)
            is_over = self._copies_wait = True
        if is_over:
            if op.commit is not None:
                try:
                    op.commit()
                except Exception as error:  # noqa: BLE001 - who waits for it is told
                    self._fail(op, error)
                op.commit = None
            self._finish(op)
        wave.end_ns = -1

    # -- bandwidth --------------------------------------------------------------------
    def _share(self) -> None:
        """Let the waves that move bytes advance as fast as their bandwidth allows."""
        if self._bandwidth is not None and (
            self._shared or sum(self._sharing.values()) > self._bandwidth
        ):
            level = fair_level(self._bandwidth, ((w.op.rate, w.count) for w in self._sharing))
            shared = False
            for wave in self._sharing:
                speed = speed_at(level, wave.op.rate)
                shared |= speed < FULL
                left, since_ns, before = wave.pace
                if speed != before:
                    left -= (self.now_ns - since_ns) * before
                    end_ns = self.now_ns - (-left // speed)
                    self._at(end_ns, self._end, wave)
                    wave.end_ns = end_ns
                    wave.pace = (left, self.now_ns, speed)
            self._shared = shared
        self._demand_changed = False

    # -- ends -------------------------------------------------------------------------
    def _fail(self, op: Op, error: Exception) -> None:
        """Keep what a piece of work raised for who waits for it; what follows it goes on."""
        op.failure = Failure(error, op.failure)
        self.failures = [one for one in self.failures if not one.told] + [op.failure]

    def _finish(self, op: Op) -> None:
        if op.phase == _OVER:
            return
        op.done_ns = self.now_ns
        stream, owner = op.stream, op.owner
        if self.sink is not None and op.kind != "wait":
            self._report(self.sink, op)
        if owner is None:
            stream.done = op.number
            if stream.waited and op.kind in _ORDERED_BY_EVENTS:
                stream.waited = ()
        for follower in op.followers or ():
            self._wake(follower)
        if owner is not None:
            if owner.start_ns is None or (op.start_ns or 0) < owner.start_ns:
                owner.start_ns = op.start_ns
            _note_failure(owner, op)
            self._look_at(owner)
        op.phase = _OVER
        op.forget()

    def _report(self, sink: Callable[[Activity], None], op: Op) -> None:
        assert op.start_ns is not None  # noqa: S101 - it is done, so it started
        held = op.owner is None and op.kind in _ORDERED_BY_EVENTS
        after: Sequence[int] = ()
        if op.owner is not None and op.node is not None:
            after = op.owner.graph.nodes[op.node][1]
        sink(
            Activity(
                op.kind, op.name, op.correlation, op.queued_ns, op.start_ns, self.now_ns,
                op.stream.waited if held else (), op.node, op.stream.context, tuple(after),
                op.released_by if isinstance(op, KernelOp) else (),
                *((op.engine, op.nbytes) if isinstance(op, CopyOp) else ()),
            )
        )  # fmt: skip


def _note_done(op: Op, before: Op, done_ns: int) -> None:
    """Let ``op`` know of work that it follows and that was done at ``done_ns``."""
    op.free_ns = done_ns if done_ns > op.free_ns else op.free_ns
    if before.failure is not None:
        _note_failure(op, before)


def _note_failure(op: Op, before: Op) -> None:
    failure = before.failure
    if failure is not None and failure is not op.failure and failure.first() is not None:
        op.failure = failure


def _turn(op: KernelOp) -> tuple[int, int, int]:
    """Return the order in which kernels of one priority get SMs."""
    return op.ready_ns, op.correlation, op.turn


def _releases(
    op: KernelOp, taken: int, released: Iterable[tuple[int, KernelOp]]
) -> tuple[Release, ...]:
    """Return who released the SMs that ``op`` took at an instant, each once."""
    found: dict[Release, None] = {}
    for sms, other in released:
        if sms & taken:
            later = _turn(other) > _turn(op)
            ahead = later and other.stream.priority < op.stream.priority
            found[Release(other.correlation, other.node, ahead)] = None
    return tuple(found)


@functools.lru_cache(1024)
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
