"""Random stream programs: what they are, what order CUDA's rules require.

A :class:`Program` is plain data and knows no device. :func:`required_order` derives from the
rules alone, not from any engine, which work must end before which other work may start, and
:func:`determined` which values follow from that. ``program_runner`` runs programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

BUFFERS = 4

Label = tuple[int, ...]
"""A piece of work: the number of its step, and in a launched graph its node."""


@dataclass(frozen=True)
class Place:
    """A stream: where, of which kind.

    Attributes
    ----------
    kind
        ``"created"``, ``"default"`` (the thread's), ``"legacy"``, or ``"blocking"``, created
        to know that one's barrier.
    partition
        Number of the partition of a created one, or ``None``.
    """

    kind: str = "created"
    partition: int | None = None
    priority: int = 0


@dataclass(frozen=True)
class Step:
    """One call of the host.

    Attributes
    ----------
    kind
        Work: ``"kernel"``, ``"up"``, ``"down"``, ``"device"`` (copies), ``"host"``. Order:
        ``"record"``, ``"wait"``. The host: ``"sync stream"``, ``"sync event"``, ``"sync
        device"``, ``"query"``. Graphs: ``"capture"``, ``"graph"``.
    number
        Of the event or the graph.
    reads, writes
        Buffers. A copy between host and device goes between device buffer ``reads[0]`` and
        host buffer ``writes``, whichever way.
    steps
        What is captured, beginning on ``stream``.
    """

    kind: str
    stream: int = 0
    number: int = 0
    blocks: int = 1
    block_ns: int = 1
    nbytes: int = 0
    reads: tuple[int, ...] = ()
    writes: int = 0
    pinned: bool = True
    steps: tuple[Step, ...] = ()


WORK = ("kernel", "up", "down", "device", "host")


@dataclass(frozen=True)
class Program:
    """Partitions by their SM counts, streams, and what the host calls, in order."""

    partitions: tuple[int, ...]
    places: tuple[Place, ...]
    steps: tuple[Step, ...]


# -- what the rules require ---------------------------------------------------------------
@dataclass
class Order:
    """Which work must end before which starts.

    Attributes
    ----------
    work
        Every piece of work that must run, once, with the step that says what it is.
    pairs
        (what must end, what may start then).
    """

    work: dict[Label, Step] = field(default_factory=dict)
    pairs: set[tuple[Label, Label]] = field(default_factory=set)

    def before(self) -> dict[Label, set[Label]]:
        """Work → all that must end before it starts, whatever lies between."""
        found: dict[Label, set[Label]] = {label: set() for label in self.work}
        for first, second in sorted(self.pairs):  # all that leads to ``first`` came already
            found[second] |= {first} | found[first]
        return found


def required_order(program: Program) -> Order:
    """Derive what CUDA's rules require."""
    order = Order()
    nothing: frozenset[Label] = frozenset()
    tails = dict.fromkeys(range(len(program.places)), nothing)  # what the next op follows
    kinds = [place.kind for place in program.places]
    events: dict[int, frozenset[Label]] = {}
    graphs: dict[int, list[tuple[Step, frozenset[int]]]] = {}
    ends: dict[int, frozenset[int]] = {}
    launched: dict[int, frozenset[Label]] = {}
    seen_done: set[Label] = set()  # by the host: all that is queued later comes after it

    def enter(stream: int) -> frozenset[Label]:
        """The legacy stream's barrier, for anything that is queued on ``stream``."""
        if kinds[stream] == "legacy":
            others = [one for one, kind in enumerate(kinds) if kind in ("blocking", "default")]
        else:
            others = [
                one for one, kind in enumerate(kinds)
                if kind == "legacy" and kinds[stream] in ("blocking", "default")
            ]  # fmt: skip
        tails[stream] = tails[stream].union(*(tails[one] for one in others))
        return tails[stream]

    def add(label: Label, step: Step, before: frozenset[Label]) -> None:
        order.work[label] = step
        order.pairs |= {(one, label) for one in before | seen_done}

    for index, step in enumerate(program.steps):
        if step.kind in WORK:
            add((index,), step, enter(step.stream))
            tails[step.stream] = frozenset([(index,)])
            if step.kind == "down" and not step.pinned:
                seen_done.add((index,))
        elif step.kind == "record":
            events[step.number] = enter(step.stream)
        elif step.kind == "wait":
            if step.number in events:
                tails[step.stream] = enter(step.stream) | events[step.number]
        elif step.kind == "sync stream":
            seen_done |= tails[step.stream]
        elif step.kind == "sync event":
            seen_done |= events.get(step.number, nothing)
        elif step.kind == "sync device":
            seen_done |= order.work.keys()
        elif step.kind == "capture":
            graphs[step.number], ends[step.number] = captured(step)
            launched.pop(step.number, None)
        elif step.kind == "graph":
            before = enter(step.stream) | launched.get(step.number, nothing)
            for node, (what, after) in enumerate(graphs[step.number]):
                inside = {(index, one) for one in after}
                add((index, node), what, before | inside)
            last = frozenset((index, node) for node in ends[step.number])
            tails[step.stream] = last or before
            launched[step.number] = last or before
    return order


def captured(step: Step) -> tuple[list[tuple[Step, frozenset[int]]], frozenset[int]]:
    """Return a captured graph's nodes, with the numbers of those each follows, and its ends."""
    nodes: list[tuple[Step, frozenset[int]]] = []
    tails: dict[int, frozenset[int]] = {step.stream: frozenset()}
    events: dict[int, frozenset[int]] = {}
    for inner in step.steps:
        if inner.kind == "record":
            events[inner.number] = tails[inner.stream]
        elif inner.kind == "wait":
            tails[inner.stream] = tails.get(inner.stream, frozenset()) | events[inner.number]
        else:
            nodes.append((inner, tails[inner.stream]))
            tails[inner.stream] = frozenset([len(nodes) - 1])
    return nodes, tails[step.stream]


# -- what the order leaves open -----------------------------------------------------------
def touched(step: Step) -> tuple[set[int], set[int]]:
    """Return which arrays work reads and which it writes, by their numbers.

    Device buffers come first, then as many pinned host buffers, then the pageable ones.
    """
    on_host = step.writes + BUFFERS * (1 if step.pinned else 2)
    if step.kind == "up":
        return {on_host}, {step.reads[0]}
    if step.kind == "down":
        return {step.reads[0]}, {on_host}
    return (set(), set()) if step.kind == "host" else (set(step.reads), {step.writes})


def determined(order: Order) -> set[int]:
    """Return the arrays that are written and whose last values no race decides.

    Such a value comes from a write that all other writes to the array come before, and
    everything that this write read is just as certain: the work that read it did not run
    beside a write to it.
    """
    before = order.before()
    sources = {label: touched(step)[0] for label, step in order.work.items()}
    writers: dict[int, list[Label]] = {}
    for label, step in order.work.items():
        for place in touched(step)[1]:
            writers.setdefault(place, []).append(label)

    def certain(place: int, reader: Label | None) -> bool:
        """Whether what ``reader``, or who comes after everything, finds there is."""
        others = [one for one in writers.get(place, []) if one != reader]
        if reader is not None:
            if any(one not in before[reader] and reader not in before[one] for one in others):
                return False
            others = [one for one in others if one in before[reader]]
        if not others:
            return True
        last = others[-1]  # no other can be: none that was queued before it follows it
        return before[last].issuperset(others[:-1]) and all(
            certain(source, last) for source in sources[last]
        )

    return {place for place in writers if certain(place, None)}


def missing_wait(*, waits: bool) -> Program:
    """Return a program in which one stream reads what another writes, and waits or does not.

    Buffer 0 holds 0 until a slow kernel without inputs writes it; buffer 1 gets what the
    other stream makes of it.
    """
    steps = [Step("kernel", 0, block_ns=1_000_000, writes=0), Step("record", 0)]
    steps += [Step("wait", 1)] if waits else []
    steps += [Step("kernel", 1, block_ns=1_000, reads=(0,), writes=1)]
    return Program((), (Place(), Place()), tuple(steps))


# -- drawing ------------------------------------------------------------------------------
@st.composite
def programs(draw: Any, least: int = 1, most: int = 14) -> Program:
    """Draw a program that CUDA accepts and that ends, of ``least`` to ``most`` pieces."""
    partitions = draw(st.sampled_from([(), (16, 24), (8, 8, 116)]))
    places = [Place("created", None, draw(st.integers(-1, 0)))]
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["created", "created", "created", "blocking"]))
        where = st.none() if kind != "created" or not partitions else _partition(partitions)
        places.append(Place(kind, draw(where), draw(st.integers(-2, 0))))
    places += [Place(kind) for kind in ("default", "legacy") if draw(st.booleans())]
    steps: list[Step] = []
    recorded: set[int] = set()
    graphs: set[int] = set()
    kinds = [*WORK, *2 * ["kernel"], "record", "wait", *4 * ["hand over"], "query", "capture"]
    kinds += ["sync stream", "sync event", "sync device"]
    for _ in range(draw(st.integers(least, most))):
        kind = draw(st.sampled_from(kinds + 3 * ["graph"] if graphs else kinds))
        stream = draw(st.integers(0, len(places) - 1))
        if kind in WORK:
            steps.append(_work(draw, kind, stream))
        elif kind == "record":
            steps.append(Step(kind, stream, draw(st.integers(0, 2))))
            recorded.add(steps[-1].number)
        elif kind == "hand over":  # what one stream did, to another
            other = (stream + draw(st.integers(1, len(places) - 1))) % len(places)
            number = draw(st.integers(0, 2))
            steps += [Step("record", stream, number), Step("wait", other, number)]
            steps.append(_work(draw, draw(st.sampled_from(WORK)), other))
            recorded.add(number)
        elif kind in ("wait", "sync event"):  # of none that is recorded it is a no-op
            steps.append(Step(kind, stream, draw(st.sampled_from(sorted(recorded) or [0]))))
        elif kind == "capture":
            created = [one for one, place in enumerate(places) if place.kind == "created"]
            steps.append(_capture(draw, created, draw(st.integers(0, 1))))
            graphs.add(steps[-1].number)
        elif kind == "graph":
            steps.append(Step(kind, stream, draw(st.sampled_from(sorted(graphs)))))
        else:
            steps.append(Step(kind, stream))
    return Program(partitions, tuple(places), tuple(steps))


def _partition(partitions: tuple[int, ...]) -> Any:
    return st.one_of(st.none(), st.integers(0, len(partitions) - 1))


def _work(draw: Any, kind: str, stream: int) -> Step:
    buffer = st.integers(0, BUFFERS - 1)
    if kind != "kernel":
        return Step(
            kind, stream, reads=(draw(buffer),), writes=draw(buffer), pinned=draw(st.booleans())
        )
    return Step(
        kind,
        stream,
        blocks=draw(st.sampled_from([1, 5, 16, 132, 300])),
        block_ns=draw(st.sampled_from([1_000, 7_001, 60_000])),
        nbytes=draw(st.sampled_from([0, 0, 1_000_000, 300_000_000])),
        reads=tuple(draw(st.lists(buffer, max_size=2))),
        writes=draw(buffer),
    )


_FORK, _JOIN = 100, 200  # events of captures: the first for the fork, then one for each stream


def _capture(draw: Any, created: list[int], graph: int) -> Step:
    """Draw a capture: work on one stream, and a part of it forked onto others and joined."""
    origin = draw(st.sampled_from(created))
    others = [one for one in created if one != origin]
    forked = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    steps = [_captured_work(draw, origin) for _ in range(draw(st.integers(0, 2)))]
    steps.append(Step("record", origin, _FORK))
    steps += [Step("wait", one, _FORK) for one in forked]
    for _ in range(draw(st.integers(0, 4))):
        steps.append(_captured_work(draw, draw(st.sampled_from([origin, *forked]))))
    for one in forked:
        steps += [Step("record", one, _JOIN + one), Step("wait", origin, _JOIN + one)]
    steps += [_captured_work(draw, origin) for _ in range(draw(st.integers(0, 1)))]
    return Step("capture", origin, graph, steps=tuple(steps))


def _captured_work(draw: Any, stream: int) -> Step:
    return _work(draw, draw(st.sampled_from(["kernel", "kernel", "device", "host"])), stream)
