"""What holds for every stream program on the simulated GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from program_runner import Runner, mixed
from programs import (
    BUFFERS,
    Place,
    Program,
    Step,
    determined,
    missing_wait,
    programs,
    required_order,
    touched,
)

from gpuscope import open_device
from gpuscope.simulator.engine import allocation, backend, host
from gpuscope.simulator.engine.engine import Engine
from gpuscope.simulator.engine.memory import Version
from gpuscope.simulator.engine.ops import KernelOp
from gpuscope.simulator.engine.waves import Wave
from gpuscope.simulator.profiles.profile import GpuProfile

SOLVED_TO = 2e-3
"""By how much more than memory can move, work may: the latency that all meet is solved to 1e-3."""


class Seen(Engine):
    """An engine that keeps what ran where: (work, SMs, blocks, start, end)."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.waves = []
        self.all = self.room.free
        self._begun = {}

    def _run(self, wave: Wave) -> None:
        self._begun[wave] = self.now_ns
        super()._run(wave)

    def _end(self, wave: Wave) -> None:
        if wave.end_ns == self.now_ns:
            begun_ns = self._begun.pop(wave)
            self.waves.append((wave.op, wave.sms, wave.count, begun_ns, self.now_ns))
        super()._end(wave)

    def _dispatch(self) -> None:
        super()._dispatch()
        for *_, op in self._ready:
            assert not self.room.usable(op.needed) & op.stream.sms, (
                "an SM idles while a kernel could use it"
            )


def run(program: Program) -> tuple[Runner, Seen]:
    with mock.patch.object(host, "Engine", Seen):
        device = open_device("sim:h200", quiet=True)
    runner = Runner(device, program).run()
    engine = device.backend.engine
    assert isinstance(engine, Seen)
    device.close()
    return runner, engine


def eager_effect(destination, sources, compute):
    """Like ``Write``, but every value is computed at once, in time's order."""

    def start():
        values = [source.view_of(source.buffer.version.value()).copy() for source in sources]
        result = np.asarray(compute(*values), dtype=destination.dtype)

        def end():
            flat = destination.buffer.version.value().copy()
            destination.view_of(flat)[...] = result
            destination.buffer.version = Version(lambda: flat)

        return end

    return start


@settings(deadline=None)
@given(programs())
def test_nothing_starts_before_what_it_must_follow_ends(program):
    runner, _ = run(program)
    order = required_order(program)
    assert runner.spans.keys() == order.work.keys(), "all work ran, and none twice"
    assert not runner.broken(order)


@settings(deadline=None)
@given(programs())
def test_blocks_never_exceed_slots_and_work_is_conserved(program):
    _, engine = run(program)
    assert engine.room.free == engine.all
    held = {}
    blocks = {}
    for op, sms, count, start_ns, end_ns in engine.waves:
        if isinstance(op, KernelOp):
            assert sms & ~op.stream.sms == 0, "a block left its partition"
            assert sms.bit_count() == count
            assert end_ns - start_ns >= op.cost.block_ns, "a block was done before its work was"
            blocks[op] = blocks.get(op, 0) + count
            for sm in range(engine.all.bit_length()):
                if sms >> sm & 1:
                    held.setdefault(sm, []).append((start_ns, end_ns))
    for spans in held.values():
        spans.sort()
        for (_, end_ns), (start_ns, _) in itertools.pairwise(spans):
            assert end_ns <= start_ns, "two blocks were on one SM"
    assert all(count == op.cost.blocks for op, count in blocks.items())


@settings(deadline=None)
@given(programs())
def test_bytes_moved_never_exceed_bandwidth_times_time(program):
    _, engine = run(program)
    moved = [
        (start_ns, end_ns, op.cost.nbytes * count / op.cost.blocks)
        for op, _, count, start_ns, end_ns in engine.waves
        if op.cost.nbytes
    ]
    bytes_per_ns = GpuProfile.load("h200").constants["device_copy_bytes_per_us"] / 1e3
    for since_ns, *_ in moved:
        for _, until_ns, _ in moved:
            inside = sum(
                size for start, end, size in moved if since_ns <= start and end <= until_ns
            )
            assert inside <= bytes_per_ns * max(0, until_ns - since_ns) * (1 + SOLVED_TO) + 1


@settings(deadline=None)
@given(programs())
def test_values_are_those_of_an_engine_that_computes_at_once(program):
    lazy, _ = run(program)
    with (
        mock.patch.object(allocation, "Write", eager_effect),
        mock.patch.object(backend, "Write", eager_effect),
    ):
        eager, _ = run(program)
    assert lazy.values == eager.values
    assert lazy.activities == eager.activities


def at_another_pace(step: Step) -> Step:
    """Make what is slow fast, and the other way round."""
    inner = tuple(at_another_pace(one) for one in step.steps)
    return replace(step, block_ns=61_000 - step.block_ns, nbytes=0, steps=inner)


@settings(deadline=None)
@given(programs())
def test_what_no_race_decides_does_not_depend_on_time(program):
    one, _ = run(program)
    other, _ = run(replace(program, steps=tuple(map(at_another_pace, program.steps))))
    for place in determined(required_order(program)):
        assert one.values[place] == other.values[place]


@pytest.mark.parametrize("waits", [True, False])
def test_a_missing_wait_shows_the_stale_value_each_time(waits):
    program = missing_wait(waits=waits)
    assert determined(required_order(program)) == ({0, 1} if waits else {0})
    found = mixed(mixed() if waits else 0.0)
    for _ in range(3):
        runner, _ = run(program)
        assert set(runner.values[0]) == {mixed()}
        assert set(runner.values[1]) == {found}


@settings(deadline=None)
@given(programs())
def test_the_same_program_gives_the_same_everything(program):
    first, second = (run(program)[0] for _ in range(2))
    assert first.activities == second.activities
    assert first.host_ns == second.host_ns
    assert first.values == second.values


@settings(deadline=None)
@given(programs())
def test_the_host_pays_for_every_call_and_waits_where_a_host_would(program):
    runner, _ = run(program)
    order = required_order(program)
    for index, step in enumerate(program.steps):
        before_ns, after_ns = runner.host_ns[index : index + 2]
        assert after_ns > before_ns or step.kind == "capture"
        if step.kind == "sync device":
            done = [span[1] for label, span in runner.spans.items() if label[0] < index]
            assert after_ns >= max(done, default=0)
    for label in order.work:
        assert runner.spans[label][0] >= runner.host_ns[label[0]], "it ran before it was queued"


def test_the_generator_reaches_everything():
    """Among some hundred programs there is one of each: nothing is drawn in vain."""
    kinds, forked, held = set(), False, False

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(programs())
    def look(program: Program) -> None:
        nonlocal forked, held
        kinds.update(step.kind for step in program.steps)
        kinds.update(place.kind for place in program.places)
        for step in program.steps:
            forked = forked or len({inner.stream for inner in step.steps}) > 1
        held = held or any(place.partition is not None for place in program.places)

    look()
    assert forked
    assert held
    assert {"kernel", "wait", "graph", "capture", "sync event", "legacy", "blocking"} <= kinds


def test_some_values_are_determined_and_some_are_not():
    """Else nothing would be compared between devices, or races would be taken for none."""
    written, certain = 0, 0

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(programs())
    def look(program: Program) -> None:
        nonlocal written, certain
        order = required_order(program)
        written += len(set().union(*(touched(step)[1] for step in order.work.values())))
        certain += len(determined(order))

    look()
    assert written > 300
    assert 0.4 * written < certain < 0.9 * written


def test_what_is_determined_in_an_example():
    """Written out by hand: copies there and back, and a read beside a write."""
    steps = (
        Step("up", 0, reads=(0,), writes=1),  # pinned 1 → 0
        Step("down", 0, reads=(0,), writes=2),  # 0 → pinned 2
        Step("kernel", 0, reads=(0,), writes=1),
        Step("kernel", 1, writes=3),
        Step("kernel", 0, reads=(3,), writes=2),
        Step("up", 1, reads=(3,), writes=0, pinned=False),
    )
    order = required_order(Program((), (Place(), Place()), steps))
    assert determined(order) == {0, BUFFERS + 2, 1, 3}


def test_the_order_of_an_example():
    """Written out by hand: a fork, the barrier of the legacy stream, and a wait of the host."""
    program = Program(
        (),
        (Place(), Place("default"), Place("legacy")),
        (
            Step("kernel", 0), Step("record", 0, 0), Step("wait", 1, 0), Step("kernel", 1),
            Step("kernel", 0), Step("kernel", 2), Step("kernel", 1), Step("sync stream", 0),
            Step("kernel", 0),
        ),
    )  # fmt: skip
    assert required_order(program).pairs == {
        ((0,), (3,)), ((0,), (4,)), ((3,), (5,)), ((3,), (6,)), ((5,), (6,)), ((4,), (8,)),
    }  # fmt: skip
