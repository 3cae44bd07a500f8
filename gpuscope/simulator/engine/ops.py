"""What the simulated GPU runs: work of each kind, streams, events and graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from gpuscope.device.api import KernelCost, Release
from gpuscope.errors import StreamError
from gpuscope.simulator.engine.failure import Failure
from gpuscope.simulator.engine.room import WHOLE, eighths

Effect = Callable[[], Callable[[], None]]
"""Called at the start of work, binds inputs; returns what commits the output at its end."""

ORDERED_BY_EVENTS = ("kernel", "memcpy")
"""Kinds of work of which it is told which event records held them back."""

FULL = 1 << 30
"""Speed of work that nothing holds up."""


class Capturing(Protocol):
    """What is being captured: see :class:`~gpuscope.simulator.engine.capture.Capture`."""

    def add(self, op: Op) -> None:
        """Take work that was queued on one of its streams."""

    def record(self, event: SimEvent, stream: SimStream) -> None:
        """Record an event at a stream's place in the graph."""

    def join(self, stream: SimStream, tail: frozenset[int]) -> None:
        """Let what a stream queues next follow an event at a place in the graph."""

    def end(self, stream: SimStream) -> SimGraph:
        """End it where it began; returns its graph."""

    def invalidate(self) -> None:
        """Let its end fail: something in it was refused."""

    def refuse(self, what: str, reason: str = ...) -> StreamError:
        """Return the error of a call that a capture forbids, and that spoils it."""


class CollectiveLaunch(Protocol):
    """What a collective's launch has in common with that on other ranks."""

    def begin(self, now_ns: int) -> Callable[[], None]:
        """Tell the other ranks; returns what writes the result at the end."""

    def end_ns(self, start_ns: int, now_ns: int) -> int:
        """Return until when it lasts at least, on all ranks."""


@dataclass(eq=False, repr=False, slots=True)
class SimEvent:
    """An event: the latest record counts, older waits keep the one they saw.

    Attributes
    ----------
    captured
        The capture and the place in it, if the latest record became part of a graph.
    """

    record: RecordOp | None = None
    captured: tuple[Capturing, frozenset[int]] | None = None


@dataclass(eq=False, repr=False, slots=True)
class Op:
    """One piece of work in a stream.

    Attributes
    ----------
    after
        Work elsewhere that it must follow.
    behind
        All work that it must follow and that was not done when it was queued.
    followers
        Work to look at again when it is done, if any.
    free_ns
        When the last piece of work that it must follow ended.
    number
        Its place in its stream, from 1; 0 in a graph.
    owner, node
        The launched graph that it is a node of, and which one.
    failure
        What it raised, or what it follows did.
    """

    kind: ClassVar[str] = ""

    stream: SimStream
    queued_ns: int
    correlation: int
    name: str
    start_ns: int | None = field(default=None, init=False)
    done_ns: int | None = field(default=None, init=False)
    after: Op | None = field(default=None, init=False)
    behind: Sequence[Op] = field(default=(), init=False)
    free_ns: int = field(default=0, init=False)
    number: int = field(default=0, init=False)
    failure: Failure | None = field(default=None, init=False)
    followers: list[Op] | None = field(default=None, init=False)
    owner: GraphOp | None = field(default=None, init=False)
    node: int | None = field(default=None, init=False)

    def fail_like(self, before: Op) -> None:
        """Note what failed before it, if anything did that nobody was told of."""
        failure = before.failure
        if failure is not None and failure is not self.failure and failure.first() is not None:
            self.failure = failure

    def forget(self) -> None:
        """Let go of other work and of memory: it is done."""
        self.after = self.followers = None
        self.behind = ()


@dataclass(eq=False, repr=False, slots=True)
class WaveOp(Op):
    """Work that takes time on the device, and bandwidth: equal blocks.

    Attributes
    ----------
    cached_share
        Which share of what its cache held is still there.
    left
        How many blocks have not begun.
    spare
        Tiles that are no block's own and that none has taken: every block does one of its own, the
        others go to whichever block is done with one.
    power
        What a block draws of what the GPU may draw for long: so much of FULL.
    crowding
        What each of its blocks computes of an SM that it leaves room on.
    shares
        Whether what else runs matters to it, or it to that.
    asks
        A number that is the same for all that ask the same of the memory.
    """

    effect: Effect | None
    cost: KernelCost
    cached_share: float = field(default=1.0, init=False)
    left: int = field(init=False)
    spare: int = field(default=0, init=False)
    power: int = field(default=0, init=False)
    crowding: float = field(default=0.0, init=False)
    shares: bool = field(init=False)
    asks: int = field(default=-1, init=False)
    commit: Callable[[], None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        cost = self.cost
        self.left = cost.blocks
        self.shares = bool(cost.nbytes or cost.traffic or cost.exposure or cost.launched)

    @property
    def pieces(self) -> int:
        """How many times ``cost.block_ns`` its blocks take together: once for each tile."""
        return max(self.cost.blocks, self.cost.tiles)


@dataclass(eq=False, repr=False, slots=True)
class KernelOp(WaveOp):
    """Blocks that need SMs.

    Attributes
    ----------
    running
        The waves that its blocks are in, until they end; ``None`` before the first.
    released_by
        Who released the SMs that its first blocks got, where it waited for SMs.
    sm_intervals
        Bit masks of SMs, and from when to when its blocks held these, where anybody watches.
    turn
        Its place among those that became ready at the same time.
    needed
        How many eighths of an SM a block holds.
    together
        Of a collective: what it has in common with the same one on other ranks.
    launch_config
        As in traces; empty: not known; ``None``: as its call says.
    """

    kind = "kernel"

    together: CollectiveLaunch | None = field(default=None, kw_only=True)
    launch_config: str | None = field(default=None, kw_only=True)
    running: dict[object, None] | None = field(default=None, init=False)
    ready_ns: int = field(default=0, init=False)
    released_by: tuple[Release, ...] = field(default=(), init=False)
    sm_intervals: list[tuple[int, int, int]] | None = field(default=None, init=False)
    turn: int = field(default=0, init=False)
    needed: int = field(default=WHOLE, init=False)

    def __post_init__(self) -> None:
        WaveOp.__post_init__(self)
        cost = self.cost
        if cost.tiles > cost.blocks:
            self.spare = cost.tiles - cost.blocks
        if cost.power:
            at_once = min(cost.blocks, self.stream.sms.bit_count())
            self.power = int(cost.power * FULL) // max(1, at_once)
            self.shares = True
        if cost.share < 1:
            self.needed = eighths(cost.share)
            self.crowding = cost.computing if self.needed < WHOLE else 0.0
            self.shares = self.shares or bool(self.crowding)

    def all_here(self, sms: int) -> bool:
        """Whether no other block of it can begin while it holds these SMs."""
        return not self.left or (sms == self.stream.sms and self.needed == WHOLE)


@dataclass(eq=False, repr=False, slots=True)
class CopyOp(WaveOp):
    """A transfer that holds one copy engine: one block.

    Attributes
    ----------
    memory
        The kinds of memory, as in traces, that it reads and writes.
    awaited
        Whether the host waits for it in the call that queues it.
    """

    kind = "memcpy"

    engine: str = field(kw_only=True)
    memory: tuple[str, str] | None = field(default=None, kw_only=True)
    awaited: bool = field(default=False, kw_only=True)


@dataclass(eq=False, repr=False, slots=True)
class HostOp(Op):
    """A host function run in stream order."""

    kind = "host"

    function: Callable[[], None]
    duration_ns: int


@dataclass(eq=False, repr=False, slots=True)
class RecordOp(Op):
    """An event's record: done when the work before it is."""

    kind = "record"

    name: str = field(default="event.record", init=False)


@dataclass(eq=False, repr=False, slots=True)
class StreamWait(Op):
    """A stream's wait for one record of an event."""

    kind = "wait"

    name: str = field(default="stream.wait", init=False)
    after: Op | None
    before: Op | None = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.stream.last

    def forget(self) -> None:
        """Let go of other work, too."""
        Op.forget(self)
        self.before = None


@dataclass(eq=False, repr=False)
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

    nodes: Sequence[tuple[Op, Sequence[int]]]
    last: GraphOp | None = None


@dataclass(eq=False, repr=False, slots=True)
class GraphOp(Op):
    """The launch of a graph: done when all of its nodes are.

    Attributes
    ----------
    nodes
        What its start made of the graph's nodes.
    done
        How many of its nodes are done.
    last
        The node that ended last, once all are done.
    """

    kind = "graph"

    name: str = field(default="graph", init=False)
    graph: SimGraph
    nodes: list[Op] = field(default_factory=list, init=False)
    done: int = field(default=0, init=False)
    last: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.after = self.graph.last

    def forget(self) -> None:
        """Let go of its nodes, too."""
        Op.forget(self)
        self.nodes = []


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
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
    brought
        Name of work → bytes that had come into the cache when the last of it was over.
    capture
        The capture that what is queued now becomes part of.
    """

    handle: int
    sms: int
    priority: int
    context: int | None = None
    blocking: bool = field(default=False, kw_only=True)
    last: Op | None = field(default=None, init=False)
    done: int = field(default=0, init=False)
    waited: tuple[int, ...] = field(default=(), init=False)
    brought: dict[str, float] = field(default_factory=dict, kw_only=True)
    capture: Capturing | None = field(default=None, init=False)

    @property
    def depth(self) -> int:
        """How much is queued and not done."""
        return 0 if self.last is None else self.last.number - self.done
