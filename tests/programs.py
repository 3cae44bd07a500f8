"""Random stream programs: what they are, what order CUDA's rules require, how they are run.

A :class:`Program` is plain data and knows no device. :func:`required_order` derives from the
rules alone, not from any engine, which work must end before which other work may start.
:class:`Runner` runs one through gpuscope's public interface and collects when work ran; on
the simulated GPU, which tells that itself. On a GPU another source of spans is needed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gpuscope.device.api import Activity, Call, KernelCost, KernelModel

BUFFERS = 4
BUFFER_ITEMS = 64
PRIME = 65_521

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
        Buffers.
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


# -- drawing ------------------------------------------------------------------------------
@st.composite
def programs(draw: Any, most: int = 14) -> Program:
    """Draw a program that CUDA accepts and that ends."""
    partitions = draw(st.sampled_from([(), (16, 24), (8, 8, 116)]))
    places = [Place("created", None, draw(st.integers(-1, 0)))]
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["created", "created", "created", "blocking"]))
        where = st.none() if kind != "created" or not partitions else _partition(partitions)
        places.append(Place(kind, draw(where), draw(st.integers(-1, 1))))
    places += [Place(kind) for kind in ("default", "legacy") if draw(st.booleans())]
    steps: list[Step] = []
    recorded: set[int] = set()
    graphs: set[int] = set()
    kinds = [*WORK, "kernel", "kernel", "record", "wait", "query", "capture", "graph"]
    kinds += ["sync stream", "sync event", "sync device"]
    for _ in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(kinds))
        stream = draw(st.integers(0, len(places) - 1))
        if kind in WORK:
            steps.append(_work(draw, kind, stream))
        elif kind in ("record", "wait", "sync event"):
            steps.append(Step(kind, stream, draw(st.integers(0, 2))))
            recorded.add(steps[-1].number)
        elif kind == "capture":
            created = [one for one, place in enumerate(places) if place.kind == "created"]
            steps.append(_capture(draw, created, draw(st.integers(0, 1))))
            graphs.add(steps[-1].number)
        elif kind == "graph":
            if graphs:
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


# -- running ------------------------------------------------------------------------------
class Runner:
    """Runs a program on a device.

    Attributes
    ----------
    spans
        Work → when it ran, by the device's clock.
    host_ns
        The host's clock before each call and after the last.
    values
        Of all buffers when everything is over.
    """

    def __init__(self, device: Any, program: Program) -> None:
        self.device = device
        self.program = program
        self.spans: dict[Label, tuple[int, int]] = {}
        self.host_ns: list[int] = []
        self.activities: list[Activity] = []
        self.values: list[list[float]] = []
        self.told: list[int] = []
        self._step = 0
        self._of: dict[int, int] = {}
        self._kernels = [
            device.compile("", f"after {count}", model=_model(count)) for count in range(3)
        ]

    def run(self) -> Runner:
        """Run it to its end."""
        device, program = self.device, self.program
        self._buffers = [
            device.asarray(np.full(BUFFER_ITEMS, float(one))) for one in range(BUFFERS)
        ]
        self._pinned = [device.empty_pinned(BUFFER_ITEMS, "float64") for _ in range(BUFFERS)]
        self._pageable = [np.zeros(BUFFER_ITEMS) for _ in range(BUFFERS)]
        for one, array in enumerate([*self._pinned, *self._pageable]):
            array[...] = 100 + one
        self._events: dict[int, Any] = {}
        self._graphs: dict[int, Any] = {}
        self._captured: list[Any] = []
        with contextlib.ExitStack() as stack:
            parts = ()
            if program.partitions:
                parts = stack.enter_context(device.carve(list(program.partitions)))
            self._streams = [self._stream(place, parts) for place in program.places]
            device.observe(self)
            stack.callback(device.unobserve, self)
            for index, step in enumerate(program.steps):
                self._step = index
                self.host_ns.append(device.now_ns())
                self._do(step)
            device.synchronize()
            self.host_ns.append(device.now_ns())
            for graph in self._captured:
                graph.close()
            for stream in self._streams:
                stream.close()
        arrays = [device.to_host(buffer) for buffer in self._buffers]
        self.values = [array.tolist() for array in (*arrays, *self._pinned, *self._pageable)]
        return self

    def _stream(self, place: Place, parts: Any) -> Any:
        device = self.device
        if place.kind == "default":
            return device.default_stream()
        if place.kind == "legacy":
            return device.wrap_stream(0)
        if place.kind == "blocking":
            return device.create_stream(priority=place.priority, blocking=True)
        owner = device if place.partition is None else parts[place.partition]
        return owner.create_stream(priority=place.priority)

    def _event(self, number: int) -> Any:
        if number not in self._events:
            self._events[number] = self.device.create_event()
        return self._events[number]

    def _do(self, step: Step) -> None:
        stream = self._streams[step.stream]
        if step.kind == "kernel":
            reads = [self._buffers[one] for one in step.reads]
            stream.launch(
                self._kernels[len(reads)], step, self._buffers[step.writes], *reads,
                grid=step.blocks, block=32,
            )  # fmt: skip
        elif step.kind == "host":
            stream.host_call(lambda: self.told.append(step.writes))
        elif step.kind in WORK:
            self._copy(stream, step)
        elif step.kind == "record":
            self._event(step.number).record(stream)
        elif step.kind == "wait":
            stream.wait(self._event(step.number))
        elif step.kind == "sync stream":
            stream.synchronize()
        elif step.kind == "sync event":
            self._event(step.number).synchronize()
        elif step.kind == "sync device":
            self.device.synchronize()
        elif step.kind == "query":
            stream.is_done  # noqa: B018 - asking is the point
        elif step.kind == "capture":
            with stream.capture() as graph:
                for inner in step.steps:
                    self._do(inner)
            self._graphs[step.number] = graph
            self._captured.append(graph)  # closing one waits for the device: not before the end
        elif step.kind == "graph":
            self._graphs[step.number].launch(stream=stream)

    def _copy(self, stream: Any, step: Step) -> None:
        host = (self._pinned if step.pinned else self._pageable)[step.writes]
        buffer = self._buffers[step.reads[0]]
        if step.kind == "up":
            stream.copy(buffer, host)
        elif step.kind == "down":
            stream.copy(host, buffer)
        else:
            stream.copy(self._buffers[step.writes], buffer)

    def call_begins(self, call: Call) -> None:
        """Note which step a call is."""
        self._of[call.correlation] = self._step

    def call_ends(self, call: Call) -> None:
        """Nothing: its begin told all."""

    def activity(self, activity: Activity) -> None:
        """Note when a step's work ran."""
        self.activities.append(activity)
        if activity.kind not in ("kernel", "memcpy", "host"):
            return
        step = self._of.get(activity.correlation)
        if step is None:
            return
        label = (step,) if activity.node is None else (step, activity.node)
        assert label not in self.spans, "it ran twice"
        self.spans[label] = (activity.start_ns, activity.end_ns)


def _model(reads: int) -> KernelModel:
    """A kernel that mixes what it reads, so that every order gives another value."""

    def mixed(*values: Any) -> Any:
        found = 17.0
        for value in values:
            found = (found * 31 + value) % PRIME
        return np.broadcast_to(found, BUFFER_ITEMS)

    return KernelModel(
        cost=lambda _profile, _grid, args, _sms: KernelCost(
            args[0].blocks, args[0].block_ns, args[0].nbytes
        ),
        reads=lambda args: list(args[2:]),
        writes=lambda args: args[1],
        compute=mixed,
    )
