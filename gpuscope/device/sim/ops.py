"""What the simulated GPU runs: work of each kind, streams, events, graphs, and waves of blocks.

The engine moves work on; see its notes on what an interrupt may leave half done.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuscope.device.calls import Release

if TYPE_CHECKING:
    from gpuscope.device.sim.capture import Capture

Effect = Callable[[], Callable[[], None]]
"""Called at the start of work, binds inputs; returns what commits the output at its end."""

FULL = 1 << 30
"""Speed of work that nothing holds up, and the unit of shares of a byte a nanosecond."""

# What an op has come to: it waits for others; it will begin at its time; it began; all is done.
WAITING, STARTED, RUNNING, OVER = range(4)


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
        self.captured: tuple[Capture, frozenset[int]] | None = None


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
        self.phase = WAITING
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
        self.capture: Capture | None = None

    @property
    def depth(self) -> int:
        """How much is queued and not done."""
        return 0 if self.last is None else self.last.number - self.done
