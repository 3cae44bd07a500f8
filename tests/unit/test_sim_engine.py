"""The simulated GPU's engine, alone and behind a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope import open_device
from gpuscope.device.api import Activity, KernelCost, KernelModel
from gpuscope.device.sim.backend import SimBackend
from gpuscope.device.sim.engine import (
    CopyOp,
    Engine,
    HostOp,
    KernelOp,
    Op,
    Record,
    SimEvent,
    SimStream,
    Wait,
)
from gpuscope.errors import StreamError

LATENCY = 4
GAP = 2
START = 100
"""The first work is queued here, after any gap that could count from 0."""


class Watched(Engine):
    """An engine that checks its own books after every move."""

    def _place(self, op: KernelOp, usable: int) -> None:
        free, left = self.free, op.left
        super()._place(op, usable)
        taken = free & ~self.free
        assert self.free & ~free == 0, "placing a block freed an SM"
        assert taken & ~op.stream.sms == 0, "a block left its partition"
        assert taken.bit_count() == min(left, (free & op.stream.sms).bit_count())

    def _release(self, op: KernelOp, taken: int, count: int) -> None:
        assert taken & self.free == 0, "an SM was booked twice"
        assert taken.bit_count() == count
        super()._release(op, taken, count)

    def _dispatch(self) -> None:
        super()._dispatch()
        for *_, op in self._ready:
            assert not self.free & op.stream.sms, "an SM idles while a kernel could use it"


class Bench:
    """An engine with a few SMs and what it reported."""

    def __init__(self, sm_count: int = 4) -> None:
        self.all = (1 << sm_count) - 1
        self.engine = Watched(self.all, launch_latency_ns=LATENCY, kernel_gap_ns=GAP)
        self.seen: list[Activity] = []
        self.engine.sink = self.seen.append
        self.count = 0

    def stream(self, sms: int | None = None, priority: int = 0) -> SimStream:
        return SimStream(self.count, self.all if sms is None else sms, priority)

    def submit(self, op: Op) -> Any:
        self.engine.submit(op)
        return op

    def kernel(
        self, stream: SimStream, blocks: int, block_ns: int, at: int = START, name: str = ""
    ) -> KernelOp:
        self.count += 1
        return self.submit(KernelOp(stream, at, self.count, name, None, blocks, block_ns))

    def copy(self, stream: SimStream, engine: str, duration_ns: int, at: int = START) -> CopyOp:
        self.count += 1
        return self.submit(CopyOp(stream, at, self.count, "copy", None, engine, duration_ns))

    def record(self, stream: SimStream, event: SimEvent, at: int = START) -> Record:
        self.count += 1
        event.record = self.submit(Record(stream, at, self.count, event))
        return event.record

    def wait(self, stream: SimStream, event: SimEvent, at: int = START) -> Wait:
        assert event.record is not None
        return self.submit(Wait(stream, at, event.record.correlation, event.record))

    def run(self) -> dict[int, tuple[int, int]]:
        """Run all; correlation → (start, end)."""
        self.engine.run_all()
        assert self.engine.free == self.all, "SMs were lost"
        return {one.correlation: (one.start_ns, one.end_ns) for one in self.seen}

    def times(self, *ops: Op) -> list[tuple[int, int]]:
        found = self.run()
        return [found[op.correlation] for op in ops]


# -- one stream ---------------------------------------------------------------------------
@given(blocks=st.integers(1, 40), sm_count=st.integers(1, 9), block_ns=st.integers(1, 50))
def test_equal_blocks_advance_in_waves(blocks, sm_count, block_ns):
    bench = Bench(sm_count)
    ((start, end),) = bench.times(bench.kernel(bench.stream(), blocks, block_ns))
    assert start == START + LATENCY
    assert end - start == -(-blocks // sm_count) * block_ns


def test_a_stream_is_first_in_first_out():
    # The second could run beside the first, but its stream says after: at 114 + gap.
    bench = Bench()
    stream = bench.stream()
    first, second = bench.kernel(stream, 1, 10), bench.kernel(stream, 1, 5)
    assert bench.times(first, second) == [(104, 114), (116, 121)]


def test_a_late_kernel_pays_the_launch_latency_not_the_gap():
    bench = Bench()
    stream = bench.stream()
    first, second = bench.kernel(stream, 1, 10), bench.kernel(stream, 1, 5, at=200)
    assert bench.times(first, second) == [(104, 114), (204, 209)]


def test_a_kernel_queued_just_before_the_end_pays_the_longer_of_both():
    # Queued at 113: 113 + 4 = 117 is later than 114 + 2.
    bench = Bench()
    stream = bench.stream()
    first, second = bench.kernel(stream, 1, 10), bench.kernel(stream, 1, 5, at=113)
    assert bench.times(first, second) == [(104, 114), (117, 122)]


def test_everything_in_a_stream_keeps_its_order():
    bench = Bench()
    stream = bench.stream()
    ran: list[int] = []
    kernel = bench.kernel(stream, 1, 10)
    copy = bench.copy(stream, "host to device", 7)
    host = bench.submit(
        HostOp(stream, START, 50, "host", lambda: ran.append(bench.engine.now_ns), 3)
    )
    last = bench.kernel(stream, 1, 1)
    # 104–114, copy 114–121, host 121–124, kernel after the gap.
    assert bench.times(kernel, copy, host, last) == [(104, 114), (114, 121), (121, 124), (126, 127)]
    assert ran == [121]
    assert [one.kind for one in bench.seen] == ["kernel", "memcpy", "host", "kernel"]


# -- SMs ----------------------------------------------------------------------------------
def test_a_kernel_queues_behind_one_that_fills_the_gpu():
    bench = Bench(4)
    big, small = bench.kernel(bench.stream(), 8, 50), bench.kernel(bench.stream(), 1, 5)
    # Two waves of 4: 104–204. The small one is ready at 104 too, and starts at 204.
    assert bench.times(big, small) == [(104, 204), (204, 209)]


def test_a_tail_lets_the_next_one_in():
    bench = Bench(4)
    big, small = bench.kernel(bench.stream(), 6, 50), bench.kernel(bench.stream(), 2, 5)
    # The second wave has 2 blocks, 154–204; the other 2 SMs take the small one at 154.
    assert bench.times(big, small) == [(104, 204), (154, 159)]


def test_kernels_that_fit_run_together():
    bench = Bench(4)
    a, b = bench.kernel(bench.stream(), 2, 50), bench.kernel(bench.stream(), 2, 70)
    assert bench.times(a, b) == [(104, 154), (104, 174)]


def test_the_first_ready_is_served_first():
    bench = Bench(1)
    late, early = bench.kernel(bench.stream(), 1, 10, at=101), bench.kernel(bench.stream(), 1, 10)
    assert bench.times(early, late) == [(104, 114), (114, 124)]


def test_a_kernel_short_of_sms_stays_in_front():
    # Big is ready first and takes SMs as they come free, before the later one.
    bench = Bench(2)
    short = bench.kernel(bench.stream(0b01), 1, 10)
    long = bench.kernel(bench.stream(0b10), 1, 30)
    big = bench.kernel(bench.stream(), 3, 10, at=101)
    later = bench.kernel(bench.stream(), 1, 10, at=102)
    # SM 0: short 104–114, big 114–124, –134, –144. SM 1: long 104–134, then big's third at 134?
    # At 134 SM 0 and 1 are free: big has one block left, the later one takes the other.
    assert bench.times(short, long, big, later) == [
        (104, 114), (104, 134), (114, 144), (134, 144),
    ]  # fmt: skip


def test_partitions_isolate():
    bench = Bench(4)
    full = bench.kernel(bench.stream(0b0011), 20, 50)
    beside = bench.kernel(bench.stream(0b1100), 2, 5)
    assert bench.times(full, beside) == [(104, 604), (104, 109)]


def test_a_partition_is_slower_by_its_share():
    bench = Bench(4)
    narrow = bench.kernel(bench.stream(0b0001), 4, 10)
    assert bench.times(narrow) == [(104, 144)]


def test_an_unpartitioned_kernel_takes_what_partitions_leave():
    bench = Bench(4)
    held = bench.kernel(bench.stream(0b0011), 2, 100)
    everywhere = bench.kernel(bench.stream(), 4, 10)
    # Two SMs are free: two waves of two.
    assert bench.times(held, everywhere) == [(104, 204), (104, 124)]


# -- priority -----------------------------------------------------------------------------
def test_priority_chooses_among_what_is_pending():
    bench = Bench(1)
    running = bench.kernel(bench.stream(), 1, 50)
    normal = bench.kernel(bench.stream(priority=0), 1, 10, at=110)
    urgent = bench.kernel(bench.stream(priority=-1), 1, 10, at=120)
    lazy = bench.kernel(bench.stream(priority=1), 1, 10, at=105)
    assert bench.times(running, urgent, normal, lazy) == [
        (104, 154), (154, 164), (164, 174), (174, 184),
    ]  # fmt: skip


def test_priority_never_preempts_a_block_but_passes_pending_ones():
    bench = Bench(2)
    low = bench.kernel(bench.stream(), 4, 50)
    urgent = bench.kernel(bench.stream(priority=-5), 2, 10, at=110)
    # The first wave 104–154 runs on; then the urgent blocks; then the second wave 164–214.
    assert bench.times(low, urgent) == [(104, 214), (154, 164)]


# -- events -------------------------------------------------------------------------------
def test_a_wait_orders_two_streams():
    bench = Bench()
    a, b, event = bench.stream(), bench.stream(), SimEvent()
    first = bench.kernel(a, 1, 50)
    record = bench.record(a, event)
    bench.wait(b, event)
    second = bench.kernel(b, 1, 5)
    assert bench.times(first, record, second) == [(104, 154), (154, 154), (156, 161)]
    waited = {one.correlation: one.waited_for for one in bench.seen}
    assert waited[second.correlation] == (record.correlation,)
    assert waited[first.correlation] == ()


def test_without_the_wait_they_run_together():
    bench = Bench()
    a, b = bench.stream(), bench.stream()
    assert bench.times(bench.kernel(a, 1, 50), bench.kernel(b, 1, 5)) == [(104, 154), (104, 109)]


def test_a_wait_holds_only_what_comes_after_it():
    bench = Bench()
    a, b, event = bench.stream(), bench.stream(), SimEvent()
    bench.kernel(a, 1, 50)
    bench.record(a, event)
    before = bench.kernel(b, 1, 5)
    bench.wait(b, event)
    after = bench.kernel(b, 1, 5)
    assert bench.times(before, after) == [(104, 109), (156, 161)]


def test_a_wait_for_what_is_done_holds_nothing():
    bench = Bench()
    a, b, event = bench.stream(), bench.stream(), SimEvent()
    bench.kernel(a, 1, 10)
    bench.record(a, event)
    bench.wait(b, event, at=300)
    late = bench.kernel(b, 1, 5, at=300)
    assert bench.times(late) == [(304, 309)]
    assert bench.seen[-1].waited_for == ()


def test_several_streams_wait_for_one_event_and_one_for_several():
    bench = Bench()
    a, b, c, one, two = bench.stream(), bench.stream(), bench.stream(), SimEvent(), SimEvent()
    bench.kernel(a, 1, 50)
    bench.record(a, one)
    bench.wait(b, one)
    middle = bench.kernel(b, 1, 20)
    bench.record(b, two)
    bench.wait(c, two)
    bench.wait(c, one)
    last = bench.kernel(c, 1, 5)
    assert bench.times(middle, last) == [(156, 176), (178, 183)]


def test_a_chain_through_streams_takes_no_time_of_its_own():
    bench = Bench()
    head = bench.stream()
    bench.kernel(head, 1, 10)
    event = SimEvent()
    bench.record(head, event)
    for _ in range(5):
        stream, following = bench.stream(), SimEvent()
        bench.wait(stream, event)
        bench.record(stream, following)
        event = following
    tail = bench.stream()
    bench.wait(tail, event)
    assert bench.times(bench.kernel(tail, 1, 1)) == [(116, 117)]


def test_a_wait_that_can_never_end_is_an_error():
    bench = Bench()
    stream, elsewhere = bench.stream(), bench.stream()
    unqueued = Record(elsewhere, START, 99, SimEvent())
    bench.submit(Wait(stream, START, 99, unqueued))
    kernel = bench.kernel(stream, 1, 5)
    with pytest.raises(StreamError, match="can never finish"):
        bench.engine.run_until_done(kernel)


# -- copies -------------------------------------------------------------------------------
def test_one_copy_engine_each_way_in_order():
    bench = Bench()
    streams = [bench.stream() for _ in range(4)]
    up_one = bench.copy(streams[0], "host to device", 30)
    up_two = bench.copy(streams[1], "host to device", 10, at=101)
    up_three = bench.copy(streams[2], "host to device", 10, at=102)
    down = bench.copy(streams[3], "device to host", 20)
    assert bench.times(up_one, up_two, up_three, down) == [
        (100, 130), (130, 140), (140, 150), (100, 120),
    ]  # fmt: skip


def test_copies_need_no_sms():
    bench = Bench(1)
    kernel = bench.kernel(bench.stream(), 1, 500)
    copy = bench.copy(bench.stream(), "host to device", 10, at=200)
    assert bench.times(kernel, copy) == [(104, 604), (200, 210)]


# -- edges of the model -------------------------------------------------------------------
def test_a_kernel_without_blocks_is_not_lost_on_a_full_gpu():
    bench = Bench(1)
    bench.kernel(bench.stream(), 1, 50)
    empty = bench.kernel(bench.stream(), 0, 10)
    bench.run()
    assert empty.done_ns is not None


def test_kernels_that_tie_in_everything_have_an_order():
    bench = Bench(1)
    ops = [
        bench.submit(KernelOp(bench.stream(), START, 0, name, None, 1, 10)) for name in ("a", "b")
    ]
    bench.run()
    assert [op.done_ns for op in ops] == [114, 124]


def test_running_up_to_a_time_goes_no_further():
    bench = Bench()
    kernel = bench.kernel(bench.stream(), 1, 10)
    bench.engine.run_until(113)
    assert (kernel.done_ns, bench.engine.now_ns) == (None, 113)
    bench.engine.run_until(114)
    assert kernel.done_ns == 114


# -- against a simulation that knows only blocks -----------------------------------------
@dataclass(frozen=True)
class Step:
    """One queued operation: a kernel, or the record or wait of an event by number."""

    kind: str
    stream: int
    at: int
    blocks: int = 0
    block_ns: int = 0
    event: int = 0


@dataclass
class Program:
    sm_count: int
    masks: list[int]
    priorities: list[int]
    steps: list[Step] = field(default_factory=list)


@st.composite
def programs(draw) -> Program:
    sm_count = draw(st.integers(1, 5))
    count = draw(st.integers(1, 4))
    masks = draw(st.lists(st.integers(1, 2**sm_count - 1), min_size=count, max_size=count))
    priorities = draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count))
    steps, at, recorded = [], START, []
    for _ in range(draw(st.integers(1, 12))):
        at += draw(st.integers(0, 12))
        stream = draw(st.integers(0, count - 1))
        kind = draw(st.sampled_from(["kernel", "kernel", "kernel", "record", "wait"]))
        if kind == "kernel":
            blocks, block_ns = draw(st.integers(1, 7)), draw(st.integers(1, 20))
            steps.append(Step(kind, stream, at, blocks, block_ns))
        elif kind == "record":
            event = draw(st.integers(0, 2))
            recorded.append(event)
            steps.append(Step(kind, stream, at, event=event))
        elif recorded:
            steps.append(Step(kind, stream, at, event=draw(st.sampled_from(recorded))))
    return Program(sm_count, masks, priorities, steps)


def by_the_engine(program: Program, *, eager: bool) -> tuple[dict[int, tuple[int, int]], list[Any]]:
    """Run a program; step → (start, end) of kernels and records, and all that was reported."""
    bench = Bench(program.sm_count)
    streams = [
        bench.stream(mask, priority)
        for mask, priority in zip(program.masks, program.priorities, strict=True)
    ]
    events: dict[int, SimEvent] = {}
    for number, step in enumerate(program.steps):
        if eager:
            bench.engine.run_until(step.at)
        stream = streams[step.stream]
        if step.kind == "kernel":
            op = KernelOp(stream, step.at, number, "k", None, step.blocks, step.block_ns)
        elif step.kind == "record":
            event = events.setdefault(step.event, SimEvent())
            op = event.record = Record(stream, step.at, number, event)
        else:
            target = events[step.event].record
            assert target is not None
            op = Wait(stream, step.at, target.correlation, target)
        bench.submit(op)
    times = bench.run()
    assert not any(stream.queue for stream in streams)
    return times, bench.seen


class ByBlocks:
    """The same by moving the clock one ns at a time and giving out SMs one by one."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps = program.steps
        self.queues: dict[int, list[int]] = {number: [] for number in range(len(program.masks))}
        self.target: dict[int, int] = {}
        latest: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            self.queues[step.stream].append(number)
            if step.kind == "record":
                latest[step.event] = number
            elif step.kind == "wait":
                self.target[number] = latest[step.event]
        self.left = [step.blocks for step in self.steps]
        self.start: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.freed = dict.fromkeys(self.queues, 0)
        self.on_sm: dict[int, tuple[int, int]] = {}  # SM → (step, end)
        self.now = START

    def run(self) -> dict[int, tuple[int, int]]:
        while any(self.queues.values()):
            self.on_sm = {sm: block for sm, block in self.on_sm.items() if block[1] != self.now}
            while self.finish_one():  # records and waits take no time: one may let the next go
                pass
            self.give_out_sms()
            self.now += 1
        return {
            number: (self.start[number], self.done[number])
            for number, step in enumerate(self.steps)
            if step.kind != "wait"
        }

    def heads(self) -> list[tuple[int, int, Step]]:
        found = [(stream, queue[0]) for stream, queue in self.queues.items() if queue]
        return [
            (stream, number, self.steps[number])
            for stream, number in found
            if self.steps[number].at <= self.now
        ]

    def is_over(self, number: int, step: Step) -> bool:
        if step.kind == "kernel":
            running = any(number == owner for owner, _ in self.on_sm.values())
            return number in self.start and not self.left[number] and not running
        return step.kind == "record" or self.target[number] in self.done

    def finish_one(self) -> bool:
        for stream, number, step in self.heads():
            if self.is_over(number, step):
                self.queues[stream].pop(0)
                self.done[number] = self.freed[stream] = self.now
                self.start.setdefault(number, self.now)
                return True
        return False

    def give_out_sms(self) -> None:
        ready = []
        for stream, number, step in self.heads():
            since = max(step.at + LATENCY, self.freed[stream] + GAP)
            if step.kind == "kernel" and since <= self.now:
                ready.append((self.program.priorities[stream], since, number, stream))
        for _, _, number, stream in sorted(ready):
            for sm in range(self.program.sm_count):
                usable = sm not in self.on_sm and self.program.masks[stream] >> sm & 1
                if self.left[number] and usable:
                    self.on_sm[sm] = (number, self.now + self.steps[number].block_ns)
                    self.left[number] -= 1
                    self.start.setdefault(number, self.now)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_the_engine_agrees_with_a_simulation_by_blocks(program):
    assert by_the_engine(program, eager=True)[0] == ByBlocks(program).run()


@given(programs())
def test_running_late_changes_nothing(program):
    assert by_the_engine(program, eager=False)[0] == by_the_engine(program, eager=True)[0]


@given(programs())
def test_the_same_program_gives_the_same_activities(program):
    assert by_the_engine(program, eager=True)[1] == by_the_engine(program, eager=True)[1]


# -- behind a backend ---------------------------------------------------------------------
def spin(backend: SimBackend, raw: SimStream, block_ns: int, correlation: int) -> None:
    """Launch one block that takes ``block_ns``."""
    model = KernelModel(cost=lambda _profile, _grid, _args, _sms: KernelCost(1, block_ns))
    backend.launch(raw, backend.compile("", "spin", model), 1, 1, (), correlation)


def two_streams() -> tuple[SimBackend, SimStream, SimStream, list[Activity]]:
    backend = SimBackend("h200")
    seen: list[Activity] = []
    backend.set_activity_sink(seen.append)
    return backend, backend.make_stream(None, 0)[0], backend.make_stream(None, 0)[0], seen


def kernel_times(seen: list[Activity]) -> dict[int, tuple[int, int]]:
    return {one.correlation: (one.start_ns, one.end_ns) for one in seen if one.kind == "kernel"}


def test_waiting_for_an_event_that_was_never_recorded_does_nothing():
    backend, a, b, seen = two_streams()
    spin(backend, a, 1_000_000, 1)
    backend.wait(b, backend.make_event(timing=True))
    spin(backend, b, 1000, 2)
    backend.synchronize()
    times = kernel_times(seen)
    assert times[2][1] < times[1][1]


def test_recording_again_changes_nothing_for_waits_already_queued():
    backend, a, b, seen = two_streams()
    event = backend.make_event(timing=True)
    spin(backend, a, 100_000, 1)
    backend.record(event, a, 2)
    backend.wait(b, event)
    spin(backend, b, 1000, 3)
    spin(backend, a, 900_000, 4)
    backend.record(event, a, 5)
    spin(backend, b, 1000, 6)  # the same wait is behind it
    backend.wait(b, event)
    spin(backend, b, 1000, 7)
    backend.synchronize()
    times = kernel_times(seen)
    assert times[1][1] < times[3][0] < times[6][0] < times[4][1] < times[7][0]
    waited = {one.correlation: one.waited_for for one in seen}
    assert (waited[3], waited[6], waited[7]) == ((2,), (), (5,))


def test_waiting_on_the_host_reaches_the_latest_record():
    backend, a, _, seen = two_streams()
    event = backend.make_event(timing=True)
    backend.record(event, a, 1)
    spin(backend, a, 500_000, 2)
    backend.record(event, a, 3)
    assert not backend.event_done(event)
    backend.sync_event(event)
    assert backend.event_done(event)
    assert backend.now_ns() >= kernel_times(seen)[2][1]


def test_elapsed_time_is_that_of_the_work_between():
    backend, a, _, _ = two_streams()
    begin, end = backend.make_event(timing=True), backend.make_event(timing=True)
    spin(backend, a, 1000, 1)
    backend.record(begin, a, 2)
    spin(backend, a, 700_000, 3)
    backend.record(end, a, 4)
    with pytest.raises(StreamError, match="synchronize first"):
        backend.elapsed_ns(begin, end)
    backend.sync_event(end)
    gap = backend.profile.constants["kernel_gap_ns"]
    latency = backend.profile.constants["launch_latency_ns"]
    assert 700_000 + gap <= backend.elapsed_ns(begin, end) <= 700_000 + 2 * latency


def test_copies_through_a_backend_take_turns_one_way_and_overlap_both_ways():
    backend, a, b, seen = two_streams()
    c = backend.make_stream(None, 0)[0]
    host = np.zeros(1 << 20, np.float32)
    device = [backend.empty(host.shape, host.dtype) for _ in range(3)]
    backend.copy(a, device[0], host, 1)
    backend.copy(b, device[1], host, 2)
    backend.copy(c, host.copy(), device[2], 3)
    backend.synchronize()
    times = {one.correlation: (one.start_ns, one.end_ns) for one in seen}
    assert times[2][0] == times[1][1]
    assert times[3][0] < times[1][1]
    microseconds = host.nbytes / backend.profile.constants["pinned_copy_bytes_per_us"]
    assert times[1][1] - times[1][0] == int(microseconds * 1000)


def test_the_same_host_program_gives_the_same_trace_to_the_ns():
    def program() -> list[Activity]:
        backend, a, b, seen = two_streams()
        event = backend.make_event(timing=True)
        for round_ in range(3):
            spin(backend, a, 10_000, 10 * round_)
            backend.record(event, a, 10 * round_ + 1)
            backend.wait(b, event)
            spin(backend, b, 5000, 10 * round_ + 2)
        backend.synchronize()
        return seen

    assert program() == program()


# -- values -------------------------------------------------------------------------------
def add_one(block_ns: int) -> KernelModel:
    """Destination = source + 1, one block."""
    return KernelModel(
        cost=lambda _profile, _grid, _args, _sms: KernelCost(1, block_ns),
        reads=lambda args: [args[0]],
        writes=lambda args: args[1],
        compute=lambda values: values + 1,
    )


@pytest.fixture
def gpu():
    return open_device("sim:h200", quiet=True)


@pytest.mark.parametrize(("with_wait", "expected"), [(False, 8.0), (True, 3.0)])
def test_a_consumer_sees_the_stale_value_unless_it_waits(gpu, with_wait, expected):
    source, middle, result = gpu.asarray([1.0]), gpu.asarray([7.0]), gpu.asarray([0.0])
    slow = gpu.compile("", "slow", model=add_one(1_000_000))
    fast = gpu.compile("", "fast", model=add_one(1000))
    with gpu.create_stream() as producer, gpu.create_stream() as consumer:
        producer.launch(slow, source, middle, grid=1, block=32)
        ready = producer.record()
        if with_wait:
            consumer.wait(ready)
        consumer.launch(fast, middle, result, grid=1, block=32)
        # With the wait 1 + 1 + 1; without it the old 7 + 1.
        assert gpu.to_host(result).tolist() == [expected]
        assert gpu.to_host(middle).tolist() == [2.0]


def test_inputs_are_bound_when_a_kernel_starts(gpu):
    # The slow reader starts first; the source changes while it runs, and it does not see that.
    source, other, result = gpu.asarray([1.0]), gpu.asarray([50.0]), gpu.asarray([0.0])
    slow = gpu.compile("", "slow", model=add_one(1_000_000))
    fast = gpu.compile("", "fast", model=add_one(1000))
    with gpu.create_stream() as reader, gpu.create_stream() as writer:
        reader.launch(slow, source, result, grid=1, block=32)
        writer.launch(fast, other, source, grid=1, block=32)
        assert gpu.to_host(result).tolist() == [2.0]
        assert gpu.to_host(source).tolist() == [51.0]


def test_outputs_appear_when_a_kernel_ends(gpu):
    source, result = gpu.asarray([1.0]), gpu.asarray([9.0])
    slow = gpu.compile("", "slow", model=add_one(1_000_000))
    with gpu.create_stream() as stream:
        stream.launch(slow, source, result, grid=1, block=32)
        assert gpu.backend.to_host(result).tolist() == [9.0]  # no wait: as of now
        stream.synchronize()
        assert gpu.backend.to_host(result).tolist() == [2.0]


def test_parts_of_an_array_are_written_apart(gpu):
    source, result = gpu.asarray([[1.0, 2.0]]), gpu.asarray([[0.0] * 2] * 3)
    slow = gpu.compile("", "slow", model=add_one(1_000_000))
    fast = gpu.compile("", "fast", model=add_one(1000))
    with gpu.create_stream() as a, gpu.create_stream() as b:
        a.launch(slow, source, result[0:1], grid=1, block=32)
        b.launch(fast, source, result[2:3], grid=1, block=32)
        b.launch(fast, result[2:3, ::-1], result[1:2], grid=1, block=32)
        assert gpu.to_host(result).tolist() == [[2.0, 3.0], [4.0, 3.0], [2.0, 3.0]]


def test_nothing_is_computed_that_nobody_reads(gpu):
    computed: list[int] = []

    def counting(values: Any) -> Any:
        computed.append(1)
        return values + 1

    model = KernelModel(
        cost=lambda _profile, _grid, _args, _sms: KernelCost(1, 1000),
        reads=lambda args: [args[0]],
        writes=lambda args: args[1],
        compute=counting,
    )
    kernel = gpu.compile("", "counting", model=model)
    source, read, unread = gpu.asarray([1.0]), gpu.asarray([0.0]), gpu.asarray([0.0])
    with gpu.create_stream() as stream:
        stream.launch(kernel, source, read, grid=1, block=32)
        stream.launch(kernel, source, unread, grid=1, block=32)
        stream.synchronize()
    assert computed == []
    assert gpu.to_host(read).tolist() == gpu.to_host(read).tolist() == [2.0]
    assert computed == [1]


def test_a_long_chain_of_updates_is_computed_without_recursion(gpu):
    value = gpu.asarray([0.0])
    kernel = gpu.compile("", "k", model=add_one(1000))
    with gpu.create_stream() as stream:
        for _ in range(3000):
            stream.launch(kernel, value, value, grid=1, block=32)
    assert gpu.to_host(value).tolist() == [3000.0]


def test_a_copy_to_the_host_takes_the_value_of_its_place_in_the_stream(gpu):
    value, host = gpu.asarray([1.0]), np.zeros(1)
    kernel = gpu.compile("", "k", model=add_one(100_000))
    with gpu.create_stream() as stream:
        stream.launch(kernel, value, value, grid=1, block=32)
        stream.copy(host, value)
        stream.launch(kernel, value, value, grid=1, block=32)
        stream.synchronize()
    assert host.tolist() == [2.0]
    assert gpu.to_host(value).tolist() == [3.0]


def test_partitions_of_a_device_isolate(gpu):
    """A kernel on the small partition does not wait for one that fills the rest."""
    seen: list[Activity] = []
    full = KernelModel(cost=lambda _profile, _grid, _args, sms: KernelCost(10 * sms, 100_000))
    fill = gpu.compile("", "fill", model=full)
    spin_ = gpu.compile("", "spin", model=add_one(1000))
    value = gpu.asarray([1.0])
    with gpu.carve({"small": 16, "load": "rest"}) as parts:
        load, small = parts["load"].create_stream(), parts["small"].create_stream()
        gpu.backend.set_activity_sink(seen.append)
        load.launch(fill, grid=1, block=32)
        small.launch(spin_, value, value, grid=1, block=32)
        gpu.synchronize()
    times = {one.name: (one.start_ns, one.end_ns) for one in seen}
    assert times["fill"][1] - times["fill"][0] == 10 * 100_000
    assert times["fill"][0] < times["spin"][1] < times["fill"][0] + 100_000


def test_without_partitions_the_same_two_wait_for_each_other(gpu):
    seen: list[Activity] = []
    full = KernelModel(cost=lambda _profile, _grid, _args, sms: KernelCost(10 * sms, 100_000))
    fill = gpu.compile("", "fill", model=full)
    spin_ = gpu.compile("", "spin", model=add_one(1000))
    value = gpu.asarray([1.0])
    with gpu.create_stream() as load, gpu.create_stream() as small:
        gpu.backend.set_activity_sink(seen.append)
        load.launch(fill, grid=1, block=32)
        small.launch(spin_, value, value, grid=1, block=32)
        gpu.synchronize()
    times = {one.name: (one.start_ns, one.end_ns) for one in seen}
    assert times["spin"][0] == times["fill"][1]
