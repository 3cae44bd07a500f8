"""What explanations name as the cause, against an engine that keeps why each span started."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.record.rows import node_row, work_row
from gpuscope.simulator.engine import host
from gpuscope.simulator.engine.engine import Engine
from gpuscope.simulator.engine.ops import CopyOp, GraphOp, KernelOp

SPANS = 10_000
NEVER = -(1 << 62)
WORK = ("kernel", "memcpy", "host")


class Telling(Engine):
    """An engine that keeps all that each piece of work followed, and who released its SMs."""

    def __init__(self, *args, launch_latency_ns, kernel_gap_ns, **more):
        super().__init__(
            *args, launch_latency_ns=launch_latency_ns, kernel_gap_ns=kernel_gap_ns, **more
        )
        self.latency, self.gap = launch_latency_ns, kernel_gap_ns
        self.followed = {}  # op → (rule, op that it follows)
        self.nodes = {}  # graph's launch → its nodes
        self.released = {}  # SM → when, by whom
        self.holders = {}  # kernel → who released the SMs of its first blocks, and when
        self.turns = {}  # kernel → its place among those of one priority
        self.done = []
        self._free = {}

    def _wake(self, op):
        if op.owner is None and op not in self.followed:
            self.followed[op] = [rule for before in op.behind for rule in self._rules(op, before)]
        super()._wake(op)

    def _rules(self, op, before):
        if before.stream is op.stream:
            yield "stream order", before
        if before is op.after:
            yield "graph order" if isinstance(op, GraphOp) else "event wait", before
        one, other = op.stream, before.stream
        if (one.blocking and other is self.legacy) or (one is self.legacy and other.blocking):
            yield "legacy default stream", before

    def _expand(self, op):
        super()._expand(op)
        for node, (_, after) in zip(op.nodes, op.graph.nodes, strict=True):
            self.followed[node] = [("graph order", op.nodes[one]) for one in after]

    def _enter(self, op):
        super()._enter(op)
        self.turns[op] = (op.ready_ns, op.correlation, self._sequence)

    def _place(self, op, usable):
        free, first = self.room.free, op.start_ns is None
        super()._place(op, usable)
        if first:
            taken = free & ~self.room.free
            self.holders[op] = {
                self.released.get(sm) for sm in range(taken.bit_length()) if taken >> sm & 1
            }

    def _end(self, wave):
        if wave.end_ns == self.now_ns and wave.sms:
            for sm in range(wave.sms.bit_length()):
                if wave.sms >> sm & 1:
                    self.released[sm] = (self.now_ns, wave.op)
        super()._end(wave)

    def _finish(self, op):
        self.done.append(op)
        if op.owner is not None:
            self.nodes.setdefault(op.owner, []).append(op)
        super()._finish(op)

    # -- causes -----------------------------------------------------------------------
    def order(self, op):
        """Return when the last work that ``op`` follows ended, and (rule, work) for all such."""
        if op not in self._free:
            found = []
            for rule, before in self.followed.get(op, ()):
                if before.kind in WORK:
                    found.append((before.done_ns, rule, before))
                elif before in self.nodes:
                    found += [(node.done_ns, rule, node) for node in self.nodes[before]]
                else:  # a marker: what it follows is what counts
                    at, inner = self.order(before)
                    found += [
                        (at, rule if rule != "stream order" else further, work)
                        for further, work in inner
                    ]
            at = max((end for end, _, _ in found), default=NEVER)
            self._free[op] = at, {(rule, work) for end, rule, work in found if end == at}
        return self._free[op]

    def causes(self, op):
        """Return all that held work back to the last, as (kind, work)."""
        of = op
        latency, gap = (self.latency, self.gap) if isinstance(op, KernelOp) else (0, 0)
        if op.owner is not None and not self.followed.get(op):
            of, latency, gap = op.owner, self.latency, self.gap
        free, tight = self.order(of)
        called = NEVER if of.owner is not None else of.queued_ns + latency
        ready = max(called, free + gap)
        if op.start_ns == ready:
            return ({("launch", None)} if called == ready else set()) | (
                tight if free + gap == ready else set()
            )
        assert op.start_ns > ready
        if isinstance(op, CopyOp):
            return {
                ("copy engine", one) for one in self.done
                if isinstance(one, CopyOp) and one is not op and one.engine == op.engine
                and one.done_ns == op.start_ns
            }  # fmt: skip
        found = set()
        for at, other in self.holders[op]:
            assert at == op.start_ns, "an SM idled while it was ready"
            ahead = other.stream.priority < op.stream.priority
            ahead = ahead and self.turns[other] > self.turns[op]
            found.add(("priority" if ahead else "SMs held", other))
        return found


def row_of(op):
    return work_row(op.correlation) if op.node is None else node_row(op.correlation, op.node)


@pytest.fixture
def telling(monkeypatch):
    monkeypatch.setattr(host, "Engine", Telling)


# -- random programs ----------------------------------------------------------------------
MODEL = KernelModel(cost=lambda _profile, grid, args, _sms: KernelCost(grid, args[0], args[1]))
SIZES = (1, 5_000, 400_000)


@dataclass
class Machine:
    """A simulated GPU with streams of every kind, and what programs use."""

    seed: int

    def __post_init__(self):
        self.draw = random.Random(self.seed)  # noqa: S311 - a program, no secret
        self.gpu = gpu = gs.open_device("sim:h200", quiet=True)
        self.kernel = gpu.compile("", "work", model=MODEL)
        self.parts = gpu.carve({"a": 16, "b": 24} if self.draw.random() < 0.7 else {"all": 132})
        make = [gpu.create_stream, gpu.create_stream]
        make += [part.create_stream for part in self.parts.values() for _ in range(2)]
        self.streams = [
            one(name=f"s{number}", priority=self.draw.choice([0, 0, -1, -3]))
            for number, one in enumerate(make)
        ]
        for number in range(self.draw.randint(0, 3)):
            priority = self.draw.choice([0, -2])
            self.streams.append(
                gpu.create_stream(name=f"b{number}", priority=priority, blocking=True)
            )
        self.captured = list(self.streams)
        if self.draw.random() < 0.6:
            self.streams.append(gpu.wrap_stream(0, name="legacy"))
        if self.draw.random() < 0.5:
            self.streams.append(gpu.wrap_stream(2, name="mine"))
            thread = threading.Thread(
                target=lambda: self.streams.append(gpu.wrap_stream(2, name="theirs"))
            )
            thread.start()
            thread.join()
        self.events = [gpu.create_event() for _ in range(4)]
        self.device = {size: [gpu.empty(size) for _ in range(2)] for size in SIZES}
        self.host = {size: [gpu.empty_pinned(size), np.zeros(size, np.float32)] for size in SIZES}
        self.graphs = [self.capture() for _ in range(3)]

    def work(self, stream):
        draw = self.draw
        what = draw.choice(["kernel"] * 5 + ["copy"] * 2 + ["host"])
        if what == "kernel":
            blocks = draw.choice([1, 4, 16, 60, 132, 300])
            ns, nbytes = draw.choice([7_000, 50_000, 400_000]), draw.choice([0, 0, 100_000_000])
            stream.launch(self.kernel, ns, nbytes, grid=blocks, block=32)
        elif what == "host":
            stream.host_call(lambda: None)
        else:
            size = draw.choice(SIZES)
            array, other = self.device[size]
            host = self.host[size][draw.random() < 0.2]
            stream.copy(*draw.choice([(array, host), (host, array), (array, other)]))

    def capture(self):
        draw = self.draw
        origin = draw.choice(self.captured)
        forks = draw.sample([one for one in self.captured if one is not origin], draw.randint(0, 2))
        with origin.capture() as graph:
            if draw.random() < 0.2:
                return graph
            for _ in range(draw.randint(0, 2)):
                self.work(origin)
            begin = origin.record()
            for fork in forks:
                fork.wait(begin)
            for _ in range(draw.randint(0, 5)):
                self.work(draw.choice([origin, *forks]))
            for fork in forks:
                origin.wait(fork.record())
            for _ in range(draw.randint(0, 1)):
                self.work(origin)
        return graph

    def run(self, steps):
        draw, gpu = self.draw, self.gpu
        kinds = ["work"] * 10 + ["graph"] * 2 + ["record"] * 3 + ["wait"] * 4 + ["hand over"] * 2
        kinds += ["sync", "device", "event", "idle", "idle"] if draw.random() < 0.6 else []
        for _ in range(steps):
            stream, event = draw.choice(self.streams), draw.choice(self.events)
            what = draw.choice(kinds)
            if what == "work":
                for _ in range(draw.randint(1, 2)):
                    self.work(stream)
            elif what == "graph":
                draw.choice(self.graphs).launch(stream=stream)
            elif what == "record":
                stream.record(event)
            elif what == "wait":
                stream.wait(event)
            elif what == "hand over":
                draw.choice(self.streams).wait(stream.record())
            elif what == "sync":
                stream.synchronize()
            elif what == "event":
                event.synchronize()
            elif what == "device" and draw.random() < 0.3:
                gpu.synchronize()
            elif what == "idle":
                gpu.backend.wait_until_ns(gpu.now_ns() + draw.choice([300, 4_000, 60_000]))


def cause(parts):
    """Return what held a span back to the last: how long a launch takes is no cause by itself."""
    part = [one for one in parts if one.kind not in ("on the way", "running")][-1]
    return ("launch", None) if part.kind == "launch call" else (part.kind, part.span)


def checked(seed):
    """Check the explanation of all work of a random program; returns how often each cause was."""
    machine = Machine(seed)
    with gs.profile(machine.gpu) as recording:
        machine.run(60)
    trace, engine = recording.trace, machine.gpu.backend.engine
    kinds = ("kernel", "memcpy", "host function")
    rows = trace.where(kind=kinds).array("id").tolist()
    work = [op for op in engine.done if op.kind in WORK]
    assert sorted(map(row_of, work)) == sorted(rows)
    counts = {}
    for op in work:
        found = gs.telling.explain(trace, row_of(op))
        right = {(kind, one and row_of(one)) for kind, one in engine.causes(op)}
        said = cause(found.parts)
        assert said in right, f"seed {seed}: {found}\n{found.parts}\n{right}"
        assert found.unexplained_ns == 0
        assert found.doubts == ()
        counts[said[0]] = counts.get(said[0], 0) + 1
    return counts


@pytest.mark.no_cover
def test_explanations_name_the_binding_cause_of_every_span_of_random_programs(telling):
    totals, seed = {}, 0
    while sum(totals.values()) < SPANS:
        for kind, count in checked(seed).items():
            totals[kind] = totals.get(kind, 0) + count
        seed += 1
    assert set(totals) == {
        "launch", "stream order", "event wait", "legacy default stream", "graph order", "SMs held",
        "priority", "copy engine",
    }  # fmt: skip
    assert min(totals.values()) >= 20, totals
