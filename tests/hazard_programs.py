"""Random programs on the simulated GPU, and which of their accesses nothing orders.

The truth comes from the engine. A program runs once for each of its pieces of work, with that piece
put off for a virtual second once everything that it follows is done. Whatever else the program orders
behind it waits; whatever it does not is over long before. So a later access races with an earlier
one if, and only if, it comes first in the run in which the earlier one is late: the version that
the engine lets it see, or leaves behind, is then another. Who looks for hazards sees none of this: it
is given one run, with nothing late.

Which bytes an access covers follows from strides, one bit for each byte. What the versions hold is compared
too: every write depends on its writer and on what that read, so a program without a race must
leave the same values in every run.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.simulator.engine import ops
from gpuscope.trace.facts import HazardFact

LATE_NS = 10**9
SHAPE = (6, 4)
_NAMES = ("scale", "add")  # where grouping is tried: of all kernels


# -- one piece of work late ----------------------------------------------------------------
class _Late:
    """Work that starts so much later than all that it follows would let it."""

    __slots__ = ()

    @property
    def free_ns(self) -> int:
        return ops.Op.free_ns.__get__(self) + LATE_NS

    @free_ns.setter
    def free_ns(self, time_ns: int) -> None:
        ops.Op.free_ns.__set__(self, time_ns)


_LATE = {
    kind: type(f"Late{kind.__name__}", (_Late, kind), {"__slots__": ()})
    for kind in (ops.KernelOp, ops.CopyOp, ops.HostOp)
}


# -- bytes ---------------------------------------------------------------------------------
@functools.lru_cache(1 << 16)
def _mask(start: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> int:
    """Return a bit for each byte of an array that starts so far behind its memory's first."""
    firsts = [start]
    for size, step in zip(shape, strides, strict=True):
        firsts = [first + step * index for first in firsts for index in range(size)]
    mask = 0
    for first in firsts:
        mask |= ((1 << item) - 1) << first
    return mask


@dataclass
class Bytes:
    """What a piece of work reads and writes of one piece of memory, which was given out before."""

    generation: int
    reads: int = 0
    writes: int = 0


@dataclass
class Piece:
    """A piece of work, a graph's node in one launch, or an access of the host's."""

    name: str
    stream: str
    uses: dict[int, Bytes]
    is_copy: bool = False
    is_host: bool = False
    op: Any = None
    node: int | None = None
    start_ns: int = 0
    end_ns: int = 0


@dataclass
class Memory:
    """An array and what it lies in.

    Attributes
    ----------
    base
        Address of its memory's first byte.
    """

    array: Any
    base: int
    pinned: bool = False
    generation: int = 0

    def part(self, rng: random.Random, shape: tuple[int, int] | None = None) -> Any:
        """Return a view: of a shape, or any."""
        array = self.array
        if shape is None:
            way = rng.randrange(7)
            if way == 5:
                return array[rng.randrange(2) :: 2, :]
            if way == 6:
                return array[::-1, rng.randrange(4) :].T
            shape = ((6, 4), (6, 4), (3, 4), (2, 4), (6, 1))[way]
        row = rng.randrange(SHAPE[0] - shape[0] + 1)
        column = rng.randrange(SHAPE[1] - shape[1] + 1)
        return array[row : row + shape[0], column : column + shape[1]]


def _mix(number: int, shape: tuple[int, ...], values: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return what a writer writes: of its own, and of what it read."""
    total = sum(int(value.astype(np.uint64).sum()) * (2 * place + 3)
                for place, value in enumerate(values))  # fmt: skip
    return np.full(shape, (number * 2654435761 + total * 31) % (1 << 32), np.uint32)


# -- a program -----------------------------------------------------------------------------
class Program:
    """One run of a random program.

    Parameters
    ----------
    late
        Number of the piece that is late; ``None``: none.
    polls
        What the host saw where it asked whether work was done, for it to see the same again.
    mends
        Hazards whose missing order the program has, as the facts say.
    graphs
        So many times as many graphs as by default.
    """

    def __init__(
        self,
        seed: int,
        late: int | None = None,
        polls: list[bool] | None = None,
        *,
        mends: Sequence[HazardFact] = (),
        graphs: int = 1,
    ) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 - no secret
        self.gpu = gpu = gs.open_device("sim:h200", quiet=True)
        self.late = late
        self.known_polls = polls
        self.mends = mends
        self.behind: defaultdict[HazardFact, list[Any]] = defaultdict(list)
        self.more_graphs = graphs
        self.polls: list[bool] = []
        self.pieces: list[Piece] = []
        self.coming: list[Piece] = []
        self.saw: dict[tuple[str, int], int] = {}
        self.times: dict[tuple[int, int], tuple[int, int]] = {}
        self.runs: Counter[str] = Counter()
        self.generations: Counter[int] = Counter()
        self.captured: list[Piece] | None = None
        self.graphs: list[tuple[Any, list[Piece]]] = []
        self.host_pieces: dict[str, list[Piece]] = {}
        self.is_grouped, self.has_threads = rng.random() < 0.25, rng.random() < 0.3
        self._submit = gpu.backend.engine.submit
        gpu.backend.engine.submit = self.submit
        gpu.calls.observe(self)
        self.parts = None
        homes: list[Any] = [gpu]
        if rng.random() < 0.3:
            self.parts = gpu.carve([16, "rest"])
            homes += self.parts.values()
        self.streams: list[Any] = []
        for number in range(rng.randint(2, 4)):
            home, options = rng.choice(homes), {"name": f"s{number}"}
            if home is gpu and rng.random() < 0.3:
                options["blocking"] = True
            self.streams.append(home.create_stream(priority=rng.choice([0, 0, -1]), **options))
        self.defaults: list[Any] = rng.sample(["legacy", "thread"], rng.choice([0, 0, 1, 2]))
        self.legacy = gpu.wrap_stream(0)
        self.memory: list[Memory] = []
        self.matrices = [gpu.empty((4, 4)) for _ in range(3)]
        self.events: list[Any] = []
        self.product = gs.Gemm(gpu, m=4, n=4, k=4, dtype="float32")
        self.scratched = gs.workloads.workload(self.with_scratch)(gpu)

    # -- what a device tells ------------------------------------------------------------
    def call_begins(self, call: Any) -> None:
        """Give a copy or a write of Python's a name of its own."""
        if call.name in ("copy", "assign") and self.coming and not self.is_grouped:
            call.name = self.coming[0].name

    def call_ends(self, call: Any) -> None:
        pass

    def execution_begins(self, call: Any) -> None:
        pass

    def execution_seen(self, call: Any) -> None:
        pass

    def activity(self, activity: Any) -> None:
        """Note when a graph's node ran."""
        if activity.node is not None:
            place = activity.correlation, activity.node
            self.times[place] = activity.start_ns, activity.end_ns

    def submit(self, op: Any) -> None:
        """Queue work for the engine; what is to be late is made so."""
        if isinstance(op, ops.RecordOp | ops.StreamWait):
            self._submit(op)
            return
        coming, self.coming = self.coming, []
        place = None if self.late is None else self.late - len(self.pieces)
        if isinstance(op, ops.GraphOp):
            for number, piece in enumerate(coming):
                piece.op, piece.node = op, number
            self.pieces += coming
            self._submit(op)
            if place is not None and 0 <= place < len(coming):
                nodes = list(op.graph.nodes)
                late, after = replace(nodes[place][0]), nodes[place][1]
                late.__class__ = _LATE[type(late)]
                nodes[place] = late, after
                op.graph = ops.SimGraph(nodes)
            return
        (piece,) = coming
        piece.op = op
        self.pieces.append(piece)
        if place == 0:
            op.__class__ = _LATE[type(op)]
            op.free_ns = self.gpu.now_ns()
        self._submit(op)

    # -- accesses -------------------------------------------------------------------------
    def uses(self, reads: list[Any], writes: list[Any]) -> dict[int, Bytes]:
        """Return which bytes are read and written."""
        found: dict[int, Bytes] = {}
        for arrays, what in ((reads, "reads"), (writes, "writes")):
            for array in arrays:
                if isinstance(array, np.ndarray):
                    address = array.__array_interface__["data"][0]
                    base = next(
                        (m.base for m in self.memory
                         if m.pinned and m.base <= address < m.base + m.array.nbytes), None
                    )  # fmt: skip
                    if base is None:  # pageable
                        continue
                else:
                    address, base = array.address, array.buffer.address
                item = array.dtype.itemsize
                mask = _mask(address - base, tuple(array.shape), tuple(array.strides), item)
                known = found.setdefault(base, Bytes(self.generations[base]))
                setattr(known, what, getattr(known, what) | mask)
        return found

    @contextlib.contextmanager
    def work(
        self, kind: str, stream: Any, reads: list[Any], writes: list[Any], *, named: bool = True
    ) -> Iterator[tuple[str, int]]:
        """Announce the work that the block queues; gives it a name, of its own if it can, a number."""
        number = len(self.pieces) + len(self.captured or ()) + 1000 * len(self.graphs)
        name = f"{kind} {number}" if named and not self.is_grouped else kind
        piece = Piece(name, stream.name, self.uses(reads, writes), kind == "copy")
        if stream.capturing:
            assert self.captured is not None
            self.captured.append(piece)
            self.mend("capture", piece, stream)
            yield name, number
        else:
            self.mend("work", piece, stream)
            self.coming = [piece]
            yield name, number
            assert not self.coming, name
            self.record_behind(piece, stream)

    def host(self, name: str, reads: list[Any], writes: list[Any]) -> None:
        """Note an access of the host's."""
        piece = Piece(f"NumPy's {name}", "host", self.uses(reads, writes), is_host=True)
        self.mend("host", piece, None)
        piece.start_ns = piece.end_ns = self.gpu.now_ns()
        self.pieces.append(piece)

    # -- mends ----------------------------------------------------------------------------
    def mend(self, where: str, second: Piece, stream: Any) -> None:
        """Add the order that hazards lack in front of their second work, as their facts say.

        ``stream`` is the one that launches it, or is captured with it.
        """
        for fact in self.mends:
            if (
                fact.where != where
                or (fact.second_name, fact.second_stream) != (second.name, second.stream)
                or (stream is not None and stream.name != fact.waits)
            ):
                continue
            if fact.behind:
                events = self.behind[fact]
            else:
                awaited = [
                    one for one in (*self.streams, self.legacy)
                    if one.name == fact.awaits and one.capturing == (where == "capture")
                ]  # fmt: skip
                events = [one.record() for one in awaited]
            for event in events:
                if stream is None:
                    event.synchronize()
                else:
                    stream.wait(event)

    def record_behind(self, first: Piece, stream: Any) -> None:
        """Record the events that mends want behind a first work."""
        for fact in self.mends:
            if (fact.first_name, fact.first_stream, stream.name, first.name) == (
                first.name, first.stream, fact.awaits, fact.behind,
            ):  # fmt: skip
                self.behind[fact].append(stream.record())

    def note(self, name: str, value: Any) -> None:
        """Note what the host or a host function saw."""
        self.runs[name] += 1
        self.saw[name, self.runs[name]] = int(value)

    def launch(self, stream: Any, target: Any, *reads: Any) -> None:
        """Launch a kernel that writes one array and reads others."""
        rng = self.rng
        kind = rng.choice(_NAMES) if self.is_grouped else "kernel"
        blocks, block_ns = rng.choice([1, 1, 8, 200]), rng.randint(500, 5000)
        with self.work(kind, stream, list(reads), [target]) as (name, number):
            model = KernelModel(
                lambda *_: KernelCost(blocks, block_ns),
                reads=lambda args: args[1:],
                writes=lambda args: args[0],
                compute=lambda *values: _mix(number, target.shape, values),
            )
            kernel = self.gpu.compile("", name, model=model)
            stream.launch(kernel, target, *reads, grid=1, block=32)

    # -- what is chosen -----------------------------------------------------------------
    def stream(self) -> Any:
        """Choose a stream."""
        chosen = self.rng.choice(self.streams + self.defaults)
        if isinstance(chosen, str):
            chosen = self.legacy if chosen == "legacy" else self.gpu.default_stream()
        return chosen

    def on_device(self) -> Memory:
        return self.rng.choice([one for one in self.memory if not one.pinned])

    def on_host(self) -> Memory:
        return self.rng.choice([one for one in self.memory if one.pinned])

    # -- actions --------------------------------------------------------------------------
    def renew(self, place: int | None = None) -> None:
        """Let go of an array and take another, or take the first ones."""
        pinned = place is not None and self.memory[place].pinned
        if place is not None:
            del self.memory[place]
        elif len([one for one in self.memory if not one.pinned]) >= 3:
            pinned = True
        if pinned:
            array = self.gpu.empty_pinned(SHAPE, "uint32")
            self.memory.append(Memory(array, array.ctypes.data, pinned=True))
            self.host("write", [], [array])
            array[...] = 0
        else:
            array = self.gpu.empty(SHAPE, "uint32")
            self.memory.append(Memory(array, array.buffer.address))

    def do_kernel(self, stream: Any = None) -> None:
        """Launch a kernel."""
        stream = stream or self.stream()
        arrays = [
            (self.on_host() if self.rng.random() < 0.1 else self.on_device()).part(self.rng)
            for _ in range(self.rng.choice([1, 2, 2, 3]))
        ]
        self.launch(stream, *arrays)

    def do_copy(self, stream: Any = None) -> None:
        """Copy."""
        rng, stream = self.rng, stream or self.stream()
        shape = rng.choice([(6, 4), (6, 4), (3, 4), (6, 1)])
        device, other = (self.on_device().part(rng, shape) for _ in range(2))
        host = self.on_host().part(rng, shape)
        pageable = np.full(shape, rng.randrange(1 << 30), np.uint32)
        ways = [(device, other), (device, host), (host, device), (host, device), (device, host)]
        if not stream.capturing:
            ways += [(device, pageable), (pageable, device), (host, pageable), (pageable, host)]
        target, source = rng.choice(ways)
        with self.work("copy", stream, [source], [target]):
            stream.copy(target, source)

    def do_assign(self) -> None:
        """Write to an array as Python does."""
        shape = self.rng.choice([(6, 4), (3, 4), (6, 1)])
        part, other = (self.on_device().part(self.rng, shape) for _ in range(2))
        if self.rng.random() < 0.5:
            with self.work("assign", self.legacy, [], [part]) as (_, number):
                part[...] = number
        else:
            with self.work("assign", self.legacy, [other], [part]):
                part[...] = other

    def do_record(self) -> None:
        """Record an event, perhaps again."""
        stream = self.stream()
        if self.events and self.rng.random() < 0.3:
            stream.record(self.rng.choice(self.events))
        else:
            self.events.append(stream.record())

    def do_wait(self) -> None:
        """Let a stream wait for an event."""
        stream = self.stream()
        if self.rng.random() < 0.5 or not self.events:
            stream.wait(self.stream().record())
        else:
            stream.wait(self.rng.choice(self.events))

    def do_synchronize(self) -> None:
        """Let the host wait."""
        rng = self.rng
        way = rng.randrange(8)
        if way < 2 and self.events:
            rng.choice(self.events).synchronize()
        elif way < 4:
            self.stream().synchronize()
        elif way == 4:
            self.gpu.synchronize()
        elif way == 5:
            self.product.wait()
        elif way == 6 and self.product.completion is not None:
            self.product.completion.wait()
        else:
            self.gpu.to_host(self.on_device().array)

    def do_poll(self) -> None:
        """Let the host ask whether work is done: once, or until it is."""
        rng = self.rng
        asked = rng.choice(self.events) if self.events and rng.random() < 0.5 else self.stream()
        until_done = rng.random() < 0.4
        wanted = self.known_polls[len(self.polls)] if self.known_polls is not None else None
        done = asked.is_done
        while not done and (until_done or wanted):
            wait_ns = LATE_NS // 2 if self.late is not None else 10_000
            self.gpu.backend.wait_until_ns(self.gpu.now_ns() + wait_ns)
            done = asked.is_done
        self.polls.append(done)

    def do_host(self) -> None:
        """Let the host read or write page-locked memory."""
        part, name = self.on_host().part(self.rng), f"host {len(self.pieces)}"
        way = self.rng.randrange(5)
        if way < 2:
            self.host("sum", [part], [])
            self.note(name, np.sum(part))
        elif way == 2:
            self.host("read", [part[0:1, 0:1]], [])
            self.note(name, part[0, 0])
        elif way == 3:
            self.host("add", [part], [part])
            np.add(part, 1, out=part)
        else:
            self.host("write", [], [part])
            part[...] = self.rng.randrange(1 << 30)

    def do_host_function(self, stream: Any = None) -> None:
        """Queue a function that reads or writes page-locked memory."""
        stream = stream or self.stream()
        read, written = self.on_host().part(self.rng), self.on_host().part(self.rng)
        reads, writes = self.rng.choice([([read], []), ([], [written]), ([read], [written])])
        with self.work("function", stream, reads, writes) as (name, number):

            def function() -> None:
                total = np.sum(read) if reads else 0
                if reads:
                    self.note(name, total)
                if writes:
                    written[...] = (int(total) * 31 + number) % (1 << 32)

            function.__name__ = name
            stream.host_call(function)

    def do_capture(self) -> None:
        """Capture work on one stream, and on others that join."""
        rng, pieces = self.rng, []
        streams = [one for one in self.streams if not one.capturing]
        origin, *others = rng.sample(streams, min(len(streams), rng.randint(1, 3)))
        self.captured = pieces
        with origin.capture() as graph:
            events, joined = [], [origin]
            for other in others:
                if rng.random() < 0.5:
                    self.captured_work(origin)
                other.wait(origin.record())
                joined.append(other)
            for _ in range(rng.randint(1, 5)):
                stream = rng.choice(joined)
                if rng.random() < 0.25:
                    events.append(stream.record())
                elif events and rng.random() < 0.3:
                    stream.wait(rng.choice(events))
                else:
                    self.captured_work(stream)
            for other in others:
                origin.wait(other.record())
        self.captured = None
        if not self.is_grouped:
            nodes = graph.captured.nodes
            nodes[:] = [
                node._replace(name=piece.name) for node, piece in zip(nodes, pieces, strict=True)
            ]
        self.graphs.append((graph, pieces))

    def captured_work(self, stream: Any) -> None:
        acts = [self.do_kernel, self.do_copy, self.do_host_function, self.do_product]
        act = self.rng.choices(acts, [6, 3, 1, 1])[0]
        act(stream)

    def do_graph(self) -> None:
        """Launch a graph, or close it."""
        if not self.graphs:
            self.do_capture()
        place = self.rng.randrange(len(self.graphs))
        graph, pieces = self.graphs[place]
        if self.rng.random() < 0.1 and not self.is_grouped:
            graph.close()
            self.graphs[place] = (graph, [])
        if graph.closed:
            return
        coming = [Piece(one.name, one.stream, one.uses, one.is_copy) for one in pieces]
        stream = self.stream()
        for piece in coming:
            self.mend("graph", piece, stream)
        self.coming = coming
        graph.launch(stream=stream)
        assert not self.coming
        for piece in coming:
            self.record_behind(piece, stream)

    def do_renew(self) -> None:
        """Let go of an array, and take another."""
        self.renew(self.rng.randrange(len(self.memory)))

    def do_product(self, stream: Any = None) -> None:
        """Multiply by a handle, or without one."""
        rng, stream = self.rng, stream or self.stream()
        a, b, out = rng.sample(self.matrices, 3)
        way = rng.randrange(4 if stream.capturing else 6)
        used = stream if way < 5 else self.gpu.default_stream()
        with self.work("gemm_float32_4x4x4", used, [a, b], [out], named=False):
            if way < 2:
                self.product.execute(a, b, out, stream=stream)
            elif way < 4:
                gs.mm_out(out, a, b, stream=stream)
            elif way == 4:
                with gs.CallerStreamGuard(stream):
                    self.product.execute(a, b, out)
            else:  # without a stream, which waits
                gs.mm_out(out, a, b)

    def do_scratch(self) -> None:
        """Call a workload that takes scratch; or take some for which the device waits."""
        if self.rng.random() < 0.8:
            self.scratched.execute(stream=self.stream())
            return
        with self.gpu.scratch(96) as taken:
            self.use_scratch(taken, self.stream(), self.stream())

    def with_scratch(self, ctx: Any) -> None:
        """Use scratch of a call's stream, or of another."""
        for _ in range(self.rng.choice([1, 1, 2])):
            home, other = ctx.stream, self.stream()
            if self.rng.random() < 0.2:
                home, other = other, home
            with ctx.scratch(96, home) as taken:
                self.use_scratch(taken, home, other)

    def use_scratch(self, taken: Any, home: Any, other: Any) -> None:
        """Use scratch on its stream, and perhaps on another, perhaps without order."""
        rng = self.rng
        scratch = taken.view(SHAPE, "uint32")
        self.generations[scratch.buffer.address] += 1
        self.launch(home, scratch, self.on_device().part(rng))
        if rng.random() < 0.4:
            if rng.random() < 0.6:
                other.wait(home.record())
            self.launch(other, self.on_device().part(rng), scratch)
            if rng.random() < 0.6:
                home.wait(other.record())
        else:
            self.launch(home, self.on_device().part(rng), scratch)

    def do_close(self) -> None:
        """Close a stream, and make another."""
        place = self.rng.randrange(len(self.streams))
        stream = self.streams[place]
        stream.close()
        self.streams[place] = self.gpu.create_stream(name=stream.name + "'")

    def run(self, *, hazards: bool = False) -> Any:
        """Run it; returns the facts on hazards if they are wanted."""
        gpu, facts = self.gpu, None
        with contextlib.ExitStack() as at_end:
            if hazards:
                recording = at_end.enter_context(gs.profile(gpu, hazards=True))
            for _ in range(5):
                self.renew()
            actions = [
                (self.do_kernel, 30), (self.do_copy, 20), (self.do_record, 8), (self.do_wait, 12),
                (self.do_synchronize, 6), (self.do_poll, 4), (self.do_host, 8),
                (self.do_host_function, 4), (self.do_capture, 2 * self.more_graphs),
                (self.do_graph, 6 * self.more_graphs),
                (self.do_renew, 4), (self.do_product, 5), (self.do_scratch, 4),
                (self.do_close, 1), (self.do_assign, 3),
            ]  # fmt: skip
            acts, weights = zip(*actions, strict=True)
            left = self.rng.randint(6, 24)
            while left > 0:
                some = min(left, self.rng.randint(1, 6))
                left -= some
                if self.has_threads and self.rng.random() < 0.5:
                    in_thread(lambda some=some: self.perform(acts, weights, some))
                else:
                    self.perform(acts, weights, some)
            self.finish()
        if hazards:
            facts = recording.trace.metadata.hazards
        gpu.calls.unobserve(self)
        self.scratched.close()
        self.product.close()
        for graph, _ in self.graphs:
            graph.close()
        for stream in self.streams:
            stream.close()
        if self.parts is not None:
            self.parts.close()
        gpu.backend.engine.submit = self._submit  # as long as it is open, others may use it
        return facts

    def perform(self, acts: Any, weights: Any, count: int) -> None:
        for act in self.rng.choices(acts, weights, k=count):
            act()

    def finish(self) -> None:
        """Wait for all, and note when it ran and what it left."""
        self.gpu.synchronize()
        for piece in self.pieces:
            if piece.node is not None:
                piece.start_ns, piece.end_ns = self.times[piece.op.correlation, piece.node]
            elif piece.op is not None:
                piece.start_ns, piece.end_ns = piece.op.start_ns, piece.op.done_ns
        for place, memory in enumerate(self.memory):
            values = _plain(memory.array) if memory.pinned else self.gpu.to_host(memory.array)
            self.note(
                f"memory {place}", _mix(0, (1,), (values * np.arange(1, 25).reshape(6, 4),))[0]
            )


def _plain(array: Any) -> Any:
    """Return NumPy's own array: of page-locked memory, or one that shares what ours do."""
    return np.asarray(array) if isinstance(array, np.ndarray) else array


def in_thread(act: Callable[[], None]) -> None:
    """Act in a thread of its own, and wait for it."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


# -- the truth -----------------------------------------------------------------------------
@dataclass
class Verdict:
    """What a program's hazards are, and how those that were reported differ.

    Attributes
    ----------
    accesses
        How many pieces of work and accesses of the host's it has.
    racy
        How many pairs of them race.
    missed, false
        Pairs that race and were not reported, nor hidden behind one that was; and pairs that were
        reported and do not race: between whom, and how often.
    wrong
        What else is wrong with what was reported.
    """

    seed: int
    accesses: int = 0
    racy: int = 0
    missed: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether what was reported is the truth."""
        return not (self.missed or self.false or self.wrong)


def conflict(first: Piece, second: Piece, hidden: dict[int, int]) -> tuple[set[str], int]:
    """Return which kinds of hazard two pieces are if nothing orders them, and on how many bytes."""
    kinds: set[str] = set()
    nbytes = 0
    for base, one in first.uses.items():
        two = second.uses.get(base)
        if two is None:
            continue
        left = ~hidden.get(base, 0)
        masks = {
            "read after write": one.writes & two.reads,
            "write after write": one.writes & two.writes,
            "write after read": one.reads & two.writes,
        }
        special = ""
        if second.is_host:
            special = "host access too early"
        elif one.generation != two.generation:
            special = "reuse of freed memory"
        elif first.is_copy:
            special = "use before a copy ended"
        for kind, mask in masks.items():
            if mask & left:
                kinds.add(special or kind)
        nbytes += (functools.reduce(operator.or_, masks.values()) & left).bit_count()
    return kinds, nbytes


def races(
    seed: int, judged: Program
) -> tuple[dict[tuple[int, int], tuple[set[str], int, int]], list[str]]:
    """Return which pairs of a program's pieces race.

    Their kinds; on how many bytes, of those that nothing that follows the first one hides and of
    all.
    """
    found: dict[tuple[int, int], tuple[set[str], int, int]] = {}
    differ: list[str] = []
    for number, piece in enumerate(judged.pieces):
        later = judged.pieces[number + 1 :]
        if piece.is_host or not any(conflict(piece, other, {})[0] for other in later):
            continue
        program = Program(
            seed, late=number, polls=judged.polls, mends=judged.mends, graphs=judged.more_graphs
        )
        program.run()
        assert [one.name for one in program.pieces] == [one.name for one in judged.pieces]
        if program.saw != judged.saw:
            differ.append(piece.name)
        first, *others = program.pieces[number:]
        hidden: dict[int, int] = {}
        for place, other in enumerate(others, number + 1):
            if other.start_ns >= first.end_ns:  # it follows
                for base, use in other.uses.items() if not other.is_host else ():
                    mine = first.uses.get(base)
                    if mine is not None:
                        covered = use.writes | (use.reads & ~mine.writes)
                        hidden[base] = hidden.get(base, 0) | covered
                continue
            assert other.end_ns <= first.start_ns, (seed, first, other)
            kinds, nbytes = conflict(first, other, {})
            if kinds:
                found[number, place] = kinds, conflict(first, other, hidden)[1], nbytes
    return found, differ


def judge(seed: int) -> Verdict:
    """Compare the hazards that are reported in a program with its true ones."""
    judged = Program(seed)
    facts = judged.run(hazards=True)
    true, differ = races(seed, judged)
    verdict = Verdict(seed, len(judged.pieces), len(true))
    if differ and not true:
        verdict.wrong.append(f"no race, but values change with {differ}")
    if facts.unseen or facts.accesses != len(judged.pieces):
        verdict.wrong.append(f"{facts.accesses} of {len(judged.pieces)} seen: {facts.unseen_names}")
    most: Counter[tuple[str, ...]] = Counter()
    least: Counter[tuple[str, ...]] = Counter()
    kinds: dict[tuple[str, ...], set[str]] = {}
    sizes: dict[tuple[str, ...], list[int]] = {}
    for (one, two), (how, open_bytes, all_bytes) in true.items():
        first, second = judged.pieces[one], judged.pieces[two]
        key = first.name, second.name, first.stream, second.stream
        most[key] += 1
        least[key] += open_bytes > 0
        sizes.setdefault(key, []).extend((open_bytes, all_bytes))
        kinds.setdefault(key, set()).update(how)
    reported: Counter[tuple[str, ...]] = Counter()
    for fact in facts.found:
        key = fact.first_name, fact.second_name, fact.first_stream, fact.second_stream
        reported[key] += fact.count
        if key in kinds and fact.kind not in kinds[key]:
            verdict.wrong.append(f"{key} is {kinds[key]}, not {fact.kind}")
        if key in sizes and not min(sizes[key]) <= fact.nbytes <= max(sizes[key]):
            verdict.wrong.append(f"{key} shares {sizes[key]} bytes, not {fact.nbytes}")
    verdict.missed = [f"{key}: {count - reported[key]}" for key, count in least.items()
                      if count > reported[key]]  # fmt: skip
    verdict.false = [f"{key}: {count - most[key]}" for key, count in reported.items()
                     if count > most[key]]  # fmt: skip
    return verdict


# -- mends -----------------------------------------------------------------------------------
def what_mends_leave(seed: int, alone: int | None = None) -> tuple[int, list[str]]:
    """Add the missing orders that are told in a program with many graphs, and look for the races.

    Each order alone has to leave no hazard of its own; all of them together, no race at all, as
    the engine runs the program.

    Parameters
    ----------
    alone
        How many are tried alone; ``None``: all.

    Returns
    -------
    tuple
        How many hazards were told, and those that are left.
    """
    racy = Program(seed, graphs=5)
    found = racy.run(hazards=True).found
    left = []
    for fact in found[:alone]:
        again = Program(seed, polls=racy.polls, mends=[fact], graphs=5).run(hazards=True)
        left += [f"alone: {one}" for one in again.found if _group(one) == _group(fact)]
    if found:
        mended = Program(seed, polls=racy.polls, mends=found, graphs=5)
        left += [f"together: {one}" for one in mended.run(hazards=True).found]
        pieces = mended.pieces
        left += [f"{pieces[one]} and {pieces[two]}" for one, two in races(seed, mended)[0]]
    return len(found), left


def _group(fact: HazardFact) -> tuple[object, ...]:
    streams = fact.first_stream, fact.second_stream
    return (
        fact.kind,
        fact.first_name,
        fact.second_name,
        *streams,
        fact.waits,
        fact.awaits,
        fact.where,
        fact.behind,
    )
