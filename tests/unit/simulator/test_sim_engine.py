"""The simulated GPU's engine, alone and behind a device."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope import open_device
from gpuscope.device.api import Activity, KernelCost, KernelModel
from gpuscope.errors import GpuscopeError, InvalidOperand, StreamError
from gpuscope.simulator.engine.backend import SimBackend
from gpuscope.simulator.engine.engine import Engine
from gpuscope.simulator.engine.jitter import Jitter
from gpuscope.simulator.engine.ops import (
    FULL,
    CopyOp,
    HostOp,
    KernelOp,
    Op,
    RecordOp,
    SimEvent,
    SimStream,
    StreamWait,
)
from gpuscope.simulator.engine.room import WHOLE
from gpuscope.simulator.engine.waves import Sharing, Wave
from gpuscope.simulator.models.assumed import BLOCKS_PER_US, PENDING_LAUNCHES
from gpuscope.simulator.models.memory_model import LoadedMemory, latency, solve

LATENCY = 4
GAP = 2
START = 100
CLOSE = 2e-3
"""How exactly the latency is solved for."""
"""The first work is queued here, after any gap that could count from 0."""


def numbers(sms: int) -> list[int]:
    return [sm for sm in range(sms.bit_length()) if sms >> sm & 1]


class Watched(Engine):
    """An engine that keeps books of its own: of each SM, how many eighths are taken."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.taken = dict.fromkeys(numbers(self._sms), 0)
        self.placed = 0

    def check(self) -> None:
        left = {sm: WHOLE - taken for sm, taken in self.taken.items()}
        for needed in range(1, WHOLE + 1):
            assert numbers(self.room.usable(needed)) == [sm for sm in left if left[sm] >= needed]

    def _place(self, op: KernelOp, usable: int) -> None:
        waiting = op.left
        fits = [sm for sm in numbers(op.stream.sms) if self.taken[sm] + op.needed <= WHOLE]
        before = dict(self.taken)
        self.placed = 0
        super()._place(op, usable)
        for sm in numbers(self.placed):
            self.taken[sm] += op.needed
            assert self.taken[sm] <= WHOLE, "an SM was booked twice"
        self.check()
        placed = waiting - op.left
        assert placed == min(waiting, len(fits))
        taken = sorted(before[sm] for sm in fits if self.taken[sm] > before[sm])
        assert taken == sorted(before[sm] for sm in fits)[:placed], "they are not the emptiest"

    def _run(self, wave: Wave) -> None:
        super()._run(wave)
        if isinstance(wave.op, KernelOp):
            assert wave.sms & ~wave.op.stream.sms == 0, "a block left its partition"
            self.placed |= wave.sms

    def _release(self, op: KernelOp, since_ns: int, sms: int) -> None:
        super()._release(op, since_ns, sms)
        for sm in numbers(sms):
            self.taken[sm] -= op.needed
        self.check()

    def _end(self, wave: Wave) -> None:
        if wave.end_ns == self.now_ns:
            if wave.sms:
                assert wave.sms.bit_count() == wave.count
            left, since_ns, speed = wave.pace
            assert (self.now_ns - since_ns) * speed >= left, "it ended early"
        super()._end(wave)

    def _dispatch(self) -> None:
        super()._dispatch()
        for *_, op in self._ready:
            assert not self.room.usable(op.needed) & op.stream.sms, (
                "an SM idles while a kernel could use it"
            )


class WatchedSharing(Sharing):
    """Sharing that checks its own books after every move."""

    def share(self, now_ns: int) -> list[Wave]:
        moved = super().share(now_ns)
        if self._memory is not None:
            rates = (
                wave.count * wave.op.cost.nbytes / wave.op.cost.busy_ns * wave.pace[2] / FULL
                for wave in self.waves
            )
            most = self._memory.bytes_per_us / 1000 * (1 + CLOSE)
            assert sum(rates) <= most, "more bytes a ns than there are"
        return moved


class Bench:
    """An engine with a few SMs and what it reported."""

    def __init__(self, sm_count: int = 4, bytes_per_us: int | None = None) -> None:
        self.all = (1 << sm_count) - 1
        memory = None if bytes_per_us is None else LoadedMemory(bytes_per_us)
        self.engine = Watched(self.all, launch_latency_ns=LATENCY, kernel_gap_ns=GAP, memory=memory)
        self.engine._sharing = WatchedSharing(memory, sm_count)
        self.seen: list[Activity] = []
        self.engine.sink = self.seen.append
        self.count = 0

    def stream(
        self, sms: int | None = None, priority: int = 0, *, blocking: bool = False
    ) -> SimStream:
        stream = SimStream(
            self.count, self.all if sms is None else sms, priority, blocking=blocking
        )
        if blocking:
            self.engine.blocking[stream] = None
        return stream

    def submit(self, op: Op) -> Any:
        self.engine.submit(op)
        return op

    def kernel(
        self,
        stream: SimStream,
        blocks: int,
        block_ns: int,
        at: int = START,
        name: str = "",
        nbytes: int = 0,
        tiles: int = 0,
    ) -> KernelOp:
        self.count += 1
        cost = KernelCost(blocks, block_ns, nbytes, tiles)
        return self.submit(KernelOp(stream, at, self.count, name, None, cost))

    def copy(
        self, stream: SimStream, engine: str, duration_ns: int, at: int = START, nbytes: int = 0
    ) -> CopyOp:
        self.count += 1
        cost = KernelCost(1, duration_ns, nbytes)
        return self.submit(CopyOp(stream, at, self.count, "copy", None, cost, engine=engine))

    def record(self, stream: SimStream, event: SimEvent, at: int = START) -> RecordOp:
        self.count += 1
        event.record = self.submit(RecordOp(stream, at, self.count))
        return event.record

    def wait(self, stream: SimStream, event: SimEvent, at: int = START) -> StreamWait:
        assert event.record is not None
        return self.submit(StreamWait(stream, at, event.record.correlation, event.record))

    def run(self) -> dict[int, tuple[int, int]]:
        """Run all; correlation → (start, end)."""
        self.engine.run_all()
        assert self.engine.room.free == self.all, "SMs were lost"
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


@given(
    blocks=st.integers(1, 12),
    more=st.integers(0, 40),
    sm_count=st.integers(1, 9),
    tile_ns=st.integers(1, 50),
)
def test_tiles_go_to_whichever_block_is_free(blocks, more, sm_count, tile_ns):
    bench = Bench(sm_count)
    ((start, end),) = bench.times(
        bench.kernel(bench.stream(), blocks, tile_ns, tiles=blocks + more)
    )
    cost = KernelCost(blocks, tile_ns, tiles=blocks + more)
    assert end - start == cost.alone_ns(sm_count)
    assert end - start == -(-(blocks + more) // min(blocks, sm_count)) * tile_ns


def test_blocks_of_a_persistent_kernel_end_when_their_tiles_do():
    # 10 tiles on 4 blocks: two blocks do three of them, two do two, which end at two thirds.
    bench = Bench(4)
    load = bench.kernel(bench.stream(), 4, 50, tiles=10)
    small = bench.kernel(bench.stream(), 2, 5, at=110)
    assert bench.times(load, small) == [(104, 254), (204, 209)]
    assert bench.seen[0].released_by[0].correlation == load.correlation


def test_a_block_that_comes_late_takes_tiles_that_are_left():
    # One SM is held until 134: the kernel's first block does three of its six tiles by then,
    # and each block goes on with one of the last two; the late one had a tile of its own.
    bench = Bench(2)
    bench.kernel(bench.stream(0b10), 1, 30)
    late = bench.kernel(bench.stream(), 2, 10, tiles=6)
    assert bench.times(late) == [(104, 154)]
    # Alone on one SM the second block has its own tile only, after all others.
    bench = Bench(2)
    narrow = bench.kernel(bench.stream(0b01), 2, 10, tiles=6)
    assert bench.times(narrow) == [(104, 164)]


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


# -- several on one SM --------------------------------------------------------------------
def part(bench: Bench, sms: int, blocks: int, needed: int, computing: float = 0.0) -> KernelOp:
    bench.count += 1
    cost = KernelCost(blocks, 100, share=needed / WHOLE, computing=computing)
    return bench.submit(KernelOp(bench.stream(sms), START, bench.count, "part", None, cost))


def test_blocks_that_leave_room_run_beside_others_on_one_sm():
    bench = Bench(1)
    together = [part(bench, 1, 1, needed) for needed in (4, 3, 1)]
    late = part(bench, 1, 1, 1)
    assert bench.times(*together, late) == [(104, 204)] * 3 + [(204, 304)]


def test_blocks_take_the_emptiest_sms_and_leave_whole_ones_to_nobody():
    # A block of two eighths on SM 0; three blocks on SMs 1, 2 and 0; a whole SM is free at 204.
    bench = Bench(3)
    small = [part(bench, 0b001, 1, 2), part(bench, 0b111, 3, 2)]
    whole = bench.kernel(bench.stream(), 1, 5)
    assert bench.times(*small, whole) == [(104, 204), (104, 204), (204, 209)]


@pytest.mark.parametrize(
    ("computing", "end_ns"),
    [
        pytest.param((0.5, 0.5), 204, id="as much as there is"),
        pytest.param((1.0, 1.0), 304, id="twice as much"),
        pytest.param((1.0, 0.5), 254, id="half as much again"),
    ],
)
def test_blocks_on_one_sm_slow_each_other_where_they_compute(computing, end_ns):
    bench = Bench(1)
    both = [part(bench, 1, 1, 4, busy) for busy in computing]
    (_, first), (_, last) = bench.times(*both)
    assert first == last == pytest.approx(end_ns, abs=1)


def test_blocks_on_other_sms_do_not_slow_each_other():
    bench = Bench(2)
    both = [part(bench, sms, 1, 4, 1.0) for sms in (0b01, 0b10)]
    assert bench.times(*both) == [(104, 204)] * 2


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
    unqueued = RecordOp(elsewhere, START, 99)
    bench.submit(StreamWait(stream, START, 99, unqueued))
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
        bench.submit(KernelOp(bench.stream(), START, 0, name, None, KernelCost(1, 10)))
        for name in ("a", "b")
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


# -- bandwidth ----------------------------------------------------------------------------
def test_kernels_that_ask_for_little_are_hardly_slowed():
    bench = Bench(4, bytes_per_us=40_000)
    a = bench.kernel(bench.stream(), 2, 5000, nbytes=10_000)  # 1 byte a ns for each block
    b = bench.kernel(bench.stream(), 2, 7000, nbytes=14_000)
    for (start, end), alone_ns in zip(bench.times(a, b), (5000, 7000), strict=True):
        assert end - start == pytest.approx(alone_ns, rel=1e-3)


def test_kernels_that_ask_for_more_slow_each_other_down():
    bench = Bench(4, bytes_per_us=2000)
    a = bench.kernel(bench.stream(), 2, 5000, nbytes=10_000)
    b = bench.kernel(bench.stream(), 2, 5000, nbytes=10_000)
    # Each would use all of the memory, and 1 / 0.97 of an idle one's latency alone: see idle_share.
    alone = (1 - 0.97**4) ** -0.25
    for start, end in bench.times(a, b):
        assert (end - start) / 5000 == pytest.approx(latency(2 * alone) / alone, rel=CLOSE)
        assert 2 <= (end - start) / 5000 <= 2.02


def test_a_kernel_alone_never_gets_more_than_there_is():
    bench = Bench(4, bytes_per_us=1000)
    ((start, end),) = bench.times(bench.kernel(bench.stream(), 4, 10, nbytes=400))
    assert end - start in (400, 401)


def test_what_computes_only_is_never_slowed():
    bench = Bench(4, bytes_per_us=1000)
    greedy = bench.kernel(bench.stream(), 2, 100, nbytes=400)
    computing = bench.kernel(bench.stream(), 2, 100)
    ((_, slowed), (start, end)) = bench.times(greedy, computing)
    assert (start, end) == (104, 204)
    assert slowed in (504, 505)


def test_copies_share_the_bandwidth_too():
    bench = Bench(4, bytes_per_us=2000)
    copy = bench.copy(bench.stream(), "device", 1000, at=104, nbytes=2000)
    kernel = bench.kernel(bench.stream(), 1, 1000, nbytes=2000)
    for start, end in bench.times(copy, kernel):
        assert end - start == pytest.approx(2000, rel=0.01)


def test_what_others_bring_replaces_what_was_left_in_the_cache():
    memory = LoadedMemory(10_000, cache_bytes=1000)
    took = {}
    for brought in (0, 500, 5000):
        bench = Bench(4)
        bench.engine._sharing = Sharing(memory, 4)
        mine, other = bench.stream(0b0011), bench.stream(0b1100)
        for at in (START, START + 2000):
            cold = KernelCost(2, 100, exposure=1.0, cold=1.0)
            bench.submit(KernelOp(mine, at, at, "mine", None, cold))
            if brought:
                cost = KernelCost(2, 50, brought)
                bench.submit(KernelOp(other, at + 500, at + 1, "other", None, cost))
        bench.engine.run_all()
        first, second = (one.end_ns - one.start_ns for one in bench.seen if one.name == "mine")
        assert first == 100, "nothing was there before: it takes as long as alone"
        took[brought] = second
    assert took[0] == 100
    assert took[500] == pytest.approx(150, abs=1)  # half of it was replaced
    assert took[5000] == pytest.approx(200, abs=1)


# -- the legacy default stream ------------------------------------------------------------
def test_the_legacy_stream_waits_for_blocking_streams_and_they_for_it():
    bench = Bench()
    a, b = bench.stream(blocking=True), bench.stream(blocking=True)
    free = bench.stream()
    before_a, before_b = bench.kernel(a, 1, 50), bench.kernel(b, 1, 80)
    middle = bench.kernel(bench.engine.legacy, 1, 10)
    after_a, after_b, beside = (
        bench.kernel(a, 1, 5), bench.kernel(b, 1, 7), bench.kernel(free, 1, 20),
    )  # fmt: skip
    assert bench.times(before_a, before_b, middle, after_a, after_b, beside) == [
        (104, 154), (104, 184), (186, 196), (198, 203), (198, 205), (104, 124),
    ]  # fmt: skip


def test_the_barrier_holds_copies_and_events_too():
    bench = Bench()
    a, event = bench.stream(blocking=True), SimEvent()
    bench.kernel(a, 1, 50)
    copy = bench.copy(bench.engine.legacy, "host to device", 6)
    record = bench.record(a, event)
    assert bench.times(copy, record) == [(154, 160), (160, 160)]


def test_blocking_streams_do_not_wait_for_each_other():
    bench = Bench()
    a, b = (bench.kernel(bench.stream(blocking=True), 1, 50) for _ in range(2))
    assert bench.times(a, b) == [(104, 154), (104, 154)]


# -- against a simulation that knows only blocks -----------------------------------------
@dataclass(frozen=True)
class Step:
    """One queued operation: a kernel, a copy, or the record or wait of an event by number."""

    kind: str
    stream: int
    at: int
    blocks: int = 0
    block_ns: int = 0
    nbytes: int = 0
    event: int = 0
    engine: str = ""
    tiles: int = 0
    needed: int = WHOLE


@dataclass
class Program:
    sm_count: int
    masks: list[int]
    priorities: list[int]
    kinds: list[str]
    bytes_per_us: int | None
    steps: list[Step] = field(default_factory=list)


@st.composite
def programs(draw) -> Program:
    sm_count = draw(st.integers(1, 5))
    count = draw(st.integers(1, 4))
    masks = draw(st.lists(st.integers(1, 2**sm_count - 1), min_size=count, max_size=count))
    priorities = draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count))
    kinds = draw(st.lists(st.sampled_from(["free", "blocking"]), min_size=count, max_size=count))
    if draw(st.booleans()):
        masks[0], priorities[0], kinds[0] = 2**sm_count - 1, 0, "legacy"
    bytes_per_us = draw(st.sampled_from([None, 700, 2000, 9000]))
    steps, at, recorded = [], START, []
    for _ in range(draw(st.integers(1, 12))):
        at += draw(st.integers(0, 12))
        stream = draw(st.integers(0, count - 1))
        kind = draw(st.sampled_from(["kernel", "kernel", "kernel", "copy", "record", "wait"]))
        if kind == "kernel":
            blocks, block_ns = draw(st.integers(1, 7)), draw(st.integers(1, 20))
            tiles = draw(st.sampled_from([0, 0, blocks + 1, 2 * blocks, 3 * blocks + 2]))
            work = blocks, block_ns, draw(st.integers(0, 90))
            needed = draw(st.sampled_from([WHOLE, WHOLE, 1, 3, 4, 5]))
            steps.append(Step(kind, stream, at, *work, tiles=tiles, needed=needed))
        elif kind == "copy":
            steps.append(
                Step(kind, stream, at, 1, draw(st.integers(1, 20)), draw(st.integers(0, 40)),
                     engine=draw(st.sampled_from(["up", "down"])))
            )  # fmt: skip
        elif kind == "record":
            event = draw(st.integers(0, 2))
            recorded.append(event)
            steps.append(Step(kind, stream, at, event=event))
        elif recorded:
            steps.append(Step(kind, stream, at, event=draw(st.sampled_from(recorded))))
    return Program(sm_count, masks, priorities, kinds, bytes_per_us, steps)


def by_the_engine(program: Program, *, eager: bool) -> tuple[dict[int, tuple[int, int]], list[Any]]:
    """Run a program; step → (start, end) of kernels, copies and records; all that was reported."""
    bench = Bench(program.sm_count, program.bytes_per_us)
    streams = [
        bench.engine.legacy
        if kind == "legacy"
        else bench.stream(mask, priority, blocking=kind == "blocking")
        for mask, priority, kind in zip(
            program.masks, program.priorities, program.kinds, strict=True
        )
    ]
    events: dict[int, SimEvent] = {}
    for number, step in enumerate(program.steps):
        if eager:
            bench.engine.run_until(step.at)
        stream = streams[step.stream]
        if step.kind == "kernel":
            cost = KernelCost(
                step.blocks, step.block_ns, step.nbytes, step.tiles, share=step.needed / WHOLE
            )
            op = KernelOp(stream, step.at, number, "k", None, cost)
        elif step.kind == "copy":
            cost = KernelCost(1, step.block_ns, step.nbytes)
            op = CopyOp(stream, step.at, number, "c", None, cost, engine=step.engine)
        elif step.kind == "record":
            event = events.setdefault(step.event, SimEvent())
            op = event.record = RecordOp(stream, step.at, number)
        else:
            target = events[step.event].record
            assert target is not None
            op = StreamWait(stream, step.at, target.correlation, target)
        bench.submit(op)
    times = bench.run()
    assert not any(stream.depth for stream in streams)
    return times, bench.seen


class ByBlocks:
    """The same by moving the clock one ns at a time, each block and each SM by itself."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps = program.steps
        self.memory = None
        if program.bytes_per_us is not None:
            self.memory = LoadedMemory(program.bytes_per_us)
        self.before = [self.must_follow(number) for number in range(len(self.steps))]
        self.left = [step.blocks for step in self.steps]
        self.spare = [max(step.tiles, step.blocks) - step.blocks for step in self.steps]
        self.start: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.running: dict[Any, list[int]] = {}  # SM or copy engine, turn → [step, units left]
        self.turn = 0
        self.now = START

    def must_follow(self, number: int) -> set[int]:
        """What the rules say comes first, from the program alone."""
        step, found = self.steps[number], set()
        kinds = self.program.kinds
        for earlier, other in enumerate(self.steps[:number]):
            pair = {kinds[step.stream], kinds[other.stream]}
            if other.stream == step.stream or pair == {"legacy", "blocking"}:
                found.add(earlier)
        if step.kind == "wait":
            found.add(
                max(
                    earlier for earlier, other in enumerate(self.steps[:number])
                    if other.kind == "record" and other.event == step.event
                )
            )  # fmt: skip
        return found

    def run(self) -> dict[int, tuple[int, int]]:
        while len(self.done) < len(self.steps):
            for place in [place for place, (_, left) in self.running.items() if left <= 0]:
                number = self.running[place][0]
                if self.spare[number]:  # of those done in one ns, whose tile began first goes first
                    self.spare[number] -= 1
                    _, left = self.running.pop(place)
                    self.running[place] = [number, left + self.steps[number].block_ns * FULL]
                else:
                    del self.running[place]
            while self.finish_one():  # records and waits take no time: one may let the next go
                pass
            self.give_out_places()
            self.advance()
            self.now += 1
        return {
            number: (self.start[number], self.done[number])
            for number, step in enumerate(self.steps)
            if step.kind != "wait"
        }

    def possible(self) -> list[int]:
        return [
            number
            for number, step in enumerate(self.steps)
            if number not in self.done and step.at <= self.now
            and self.before[number] <= self.done.keys()
        ]  # fmt: skip

    def finish_one(self) -> bool:
        for number in self.possible():
            if self.steps[number].kind in ("kernel", "copy"):
                running = any(number == owner for owner, _ in self.running.values())
                if self.left[number] or running:
                    continue
            self.done[number] = self.now
            self.start.setdefault(number, self.now)
            return True
        return False

    def give_out_places(self) -> None:
        ready = []
        for number in self.possible():
            step = self.steps[number]
            freed = max((self.done[one] for one in self.before[number]), default=0)
            if step.kind == "kernel":
                since = max(step.at + LATENCY, freed + GAP)
                rank = self.program.priorities[step.stream]
                places = [
                    sm for sm in range(self.program.sm_count)
                    if self.program.masks[step.stream] >> sm & 1
                ]  # fmt: skip
            else:
                since, rank, places = max(step.at, freed), 0, [step.engine]
            if since <= self.now:
                ready.append((rank, since, number, places))
        for _, _, number, places in sorted(ready):
            while self.left[number] and (fits := self.with_room(number, places)):
                for place in sorted(fits[: self.left[number]]):  # one block each, then another
                    self.turn += 1
                    work = [number, self.steps[number].block_ns * FULL]
                    self.running[place, self.turn] = work
                    self.left[number] -= 1
                    self.start.setdefault(number, self.now)

    def with_room(self, number: int, places: list[Any]) -> list[Any]:
        """The SMs, or the copy engine, that one more block of a step fits on: emptiest first."""
        held = dict.fromkeys(places, 0)
        for (place, _), (owner, _) in self.running.items():
            if place in held:
                held[place] += self.steps[owner].needed
        needed = self.steps[number].needed
        fits = [place for place in places if held[place] + needed <= WHOLE]
        return sorted(fits, key=held.__getitem__)

    def paces(self) -> dict[int, float]:
        """What the memory lets each piece of work do, by how many of its blocks run."""
        counts: dict[int, int] = {}
        for number, _ in self.running.values():
            if self.steps[number].nbytes:
                counts[number] = counts.get(number, 0) + 1
        if self.memory is None or not counts:
            return {}
        demands = {}
        for number, count in counts.items():
            step = self.steps[number]
            work = SimpleNamespace(
                nbytes=step.nbytes, traffic=0, cold_nbytes=0, exposure=0.0, idle=0.0, cold=0.0,
                launched=0, busy_ns=max(step.tiles, step.blocks) * step.block_ns,
            )  # fmt: skip
            share = count / self.program.sm_count if step.kind == "kernel" else 1.0
            demands[number] = self.memory.demand(work, 1.0, count, share)
        if len(demands) == 1:
            ((number, demand),) = demands.items()
            return {number: min(1.0, 1 / demand.rate)}
        at = solve([*demands.values()])
        paces = {number: 1 / demand.slowdown(at) for number, demand in demands.items()}
        return {
            number: min(1.0, pace) if self.is_whole(number, counts[number]) else pace
            for number, pace in paces.items()
        }

    def is_whole(self, number: int, count: int) -> bool:
        """Whether as many blocks run as alone, or it takes several waves."""
        step = self.steps[number]
        at_once = min(step.blocks, self.program.masks[step.stream].bit_count())
        return count >= at_once or max(step.tiles, step.blocks) > at_once

    def advance(self) -> None:
        """One ns: every block does what the memory lets it do."""
        paces = self.paces()
        for block in self.running.values():
            block[1] -= max(1, int(FULL * paces.get(block[0], 1.0)))


@pytest.mark.no_cover
@settings(max_examples=300, deadline=None)
@given(programs())
def test_the_engine_agrees_with_a_simulation_by_blocks(program):
    assert by_the_engine(program, eager=True)[0] == ByBlocks(program).run()


def in_order(activity: Activity) -> int:
    return activity.correlation


@given(programs())
def test_running_late_changes_nothing(program):
    late, early = (by_the_engine(program, eager=eager) for eager in (False, True))
    assert late[0] == early[0]
    assert sorted(late[1], key=in_order) == sorted(early[1], key=in_order)


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
    backend._jitter = Jitter(())
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
    call = backend.profile.constants["launch_call_ns"]
    assert 700_000 + gap <= backend.elapsed_ns(begin, end) <= 700_000 + 2 * latency + call


def test_copies_through_a_backend_take_turns_one_way_and_overlap_both_ways():
    backend, a, b, seen = two_streams()
    c = backend.make_stream(None, 0)[0]
    host, other = (backend.empty_pinned((1 << 20,), np.dtype(np.float32)) for _ in range(2))
    device = [backend.empty(host.shape, host.dtype) for _ in range(3)]
    backend.copy(a, device[0], host, 1)
    backend.copy(b, device[1], host, 2)
    backend.copy(c, other, device[2], 3)
    backend.synchronize()
    times = {one.correlation: (one.start_ns, one.end_ns) for one in seen}
    assert times[2][0] == times[1][1]
    assert times[3][0] < times[1][1]
    expected_ns = backend.profile.transfer_ns("pinned_host_to_device", host.nbytes)
    assert times[1][1] - times[1][0] == pytest.approx(expected_ns, abs=2)


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


@pytest.mark.parametrize("device", ["sim:h200", "cpu"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "wrong", [lambda v: v[:3], lambda v: 1.0, lambda v: np.tile(v, 2), lambda v: v[:0],
              lambda v: ["x"] * 1000, lambda v: [[1], [2, 3]]],
)  # fmt: skip
def test_a_model_that_computes_another_number_of_values_is_refused(device, whole, wrong):
    gpu = open_device(device, quiet=True)
    model = KernelModel(
        cost=lambda _profile, _grid, _args, _sms: KernelCost(1, 1000),
        reads=lambda args: [args[0]],
        writes=lambda args: args[1],
        compute=wrong,
    )
    source, result = gpu.asarray(np.ones(1000)), gpu.asarray(np.zeros(2000))
    kernel = gpu.compile("", "wrong", model=model)
    target = gpu.empty(1000, "float64") if whole else result[:1000]
    with (
        gpu.create_stream() as stream,
        pytest.raises(InvalidOperand, match=r"KernelModel\.compute"),
    ):
        stream.launch(kernel, source, target, grid=1, block=32)
        gpu.to_host(target)


@pytest.mark.parametrize("wrong", [[1.0, 2.0], "text", [[1], [2, 3]], None.__class__])
def test_values_that_do_not_fit_are_not_assigned(gpu, wrong):
    array = gpu.asarray(np.ones(1000))
    with pytest.raises(InvalidOperand, match="cannot be assigned"):
        array[...] = wrong
    with pytest.raises(InvalidOperand, match="cannot be assigned"):
        array[:500] = gpu.asarray(np.ones(3))
    assert gpu.to_host(array).tolist() == [1.0] * 1000


@pytest.mark.parametrize("whole", [True, False])
def test_assigned_arrays_are_broadcast(gpu, whole):
    array, row = gpu.asarray(np.zeros((3, 2))), gpu.asarray([[5.0, 6.0]])
    array[... if whole else slice(0, 2)] = row
    assert gpu.to_host(array)[:2].tolist() == [[5.0, 6.0]] * 2


def test_a_model_may_compute_its_values_in_another_shape(gpu):
    model = KernelModel(
        cost=lambda _profile, _grid, _args, _sms: KernelCost(1, 1000),
        reads=lambda args: [args[0]],
        writes=lambda args: args[1],
        compute=np.ravel,
    )
    source, result = gpu.asarray([[1.0, 2.0], [3.0, 4.0]]), gpu.empty((2, 2), "float64")
    with gpu.create_stream() as stream:
        stream.launch(gpu.compile("", "flat", model=model), source, result, grid=1, block=32)
    assert gpu.to_host(result).tolist() == [[1.0, 2.0], [3.0, 4.0]]


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
    gpu.backend._jitter = Jitter(())
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


# -- copies, pinned and pageable ----------------------------------------------------------
def copied_with(gpu, memory):
    """Copy 8 MiB up behind a kernel of 1 ms; (was it done when the call returned, values)."""
    kernel = gpu.compile("", "k", model=add_one(1_000_000))
    value, target = gpu.asarray([1.0]), gpu.empty(1 << 21)
    with gpu.create_stream() as stream:
        stream.launch(kernel, value, value, grid=1, block=32)
        stream.copy(target, memory)
        done = stream.is_done
        memory[...] = 7  # too early for pinned memory: the copy has not begun
        stream.synchronize()
    return done, gpu.to_host(target)[0]


def test_a_copy_of_pinned_memory_returns_at_once_and_reads_it_when_it_runs(gpu):
    pinned = gpu.empty_pinned(1 << 21)
    pinned[...] = 3
    assert copied_with(gpu, pinned) == (False, 7)
    assert copied_with(gpu, gpu.empty_pinned((2, 1 << 21))[1]) == (False, 7), "so does its part"


def test_a_copy_of_pageable_memory_waits(gpu):
    assert copied_with(gpu, np.full(1 << 21, 3, np.float32)) == (True, 3)
    like_pinned = np.full(1 << 21, 3, np.float32)  # new memory is pageable again
    assert copied_with(gpu, like_pinned) == (True, 3)


def test_small_pageable_memory_is_staged_at_the_call(gpu):
    kernel = gpu.compile("", "k", model=add_one(1_000_000))
    value, small, target = gpu.asarray([1.0]), np.ones(8, np.float32), gpu.empty(8)
    with gpu.create_stream() as stream:
        stream.launch(kernel, value, value, grid=1, block=32)
        stream.copy(target, small)
        assert not stream.is_done
        small[...] = 7
        stream.synchronize()
    assert gpu.to_host(target)[0] == 1


def test_a_copy_to_pageable_memory_waits_whatever_its_size(gpu):
    kernel = gpu.compile("", "k", model=add_one(1_000_000))
    for memory, done in ((np.zeros(8, np.float32), True), (gpu.empty_pinned(8), False)):
        value = gpu.asarray(np.ones(8, np.float32))
        with gpu.create_stream() as stream:
            stream.launch(kernel, value, value, grid=1, block=32)
            stream.copy(memory, value)
            assert stream.is_done is done
            stream.synchronize()
            assert memory[0] == 2


def test_pageable_copies_are_slower():
    backend, a, _, seen = two_streams()
    pinned, pageable = backend.empty_pinned((1 << 22,), np.dtype(np.uint8)), np.zeros(1 << 22, "u1")
    device = backend.empty((1 << 22,), np.dtype(np.uint8))
    for number, memory in enumerate((pinned, pageable)):
        backend.copy(a, device, memory, number)
    backend.synchronize()
    fast, slow = (one.end_ns - one.start_ns for one in seen)
    assert slow > 2.5 * fast, "measured: 234 and 78 µs"


# -- default streams ----------------------------------------------------------------------
@pytest.mark.parametrize("handle", [0, 1])
def test_the_legacy_stream_is_borrowed_by_its_handle(handle):
    backend, a, _, seen = two_streams()
    legacy, mine = backend.borrow_stream(handle), backend.borrow_stream(2)
    assert mine is backend.default_stream()[0]
    theirs = backend.borrow_stream(backend.make_stream(None, 0, blocking=True)[1])
    for number, stream in enumerate((theirs, mine, legacy, a, mine)):
        spin(backend, stream, 1_000_000, number)
    backend.synchronize()
    times = kernel_times(seen)
    assert times[2][0] >= max(times[0][1], times[1][1])
    assert times[4][0] >= times[2][1]
    assert times[3][0] < times[0][1], "other streams know no barrier"


def test_each_thread_has_a_default_stream_of_its_own():
    backend, *_ = two_streams()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(backend.default_stream).result()[0]
    assert other is not backend.default_stream()[0]
    assert other.blocking


def test_partition_streams_know_no_barrier(gpu):
    seen: list[Activity] = []
    gpu.backend._jitter = Jitter(())
    spin_ = gpu.compile("", "spin", model=add_one(100_000))
    value, other = gpu.asarray([1.0]), gpu.asarray([1.0])
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        inside, legacy = parts["a"].create_stream(), gpu.wrap_stream(0)
        gpu.backend.set_activity_sink(seen.append)
        legacy.launch(spin_, value, value, grid=1, block=32)
        inside.launch(spin_, other, other, grid=1, block=32)
        gpu.synchronize()
    first, second = seen
    assert second.start_ns < first.end_ns


# -- the host -----------------------------------------------------------------------------
def test_a_full_launch_queue_blocks_the_host():
    backend, a, b, _ = two_streams()
    spin(backend, a, 1_000_000, 0)
    began_ns = backend.now_ns()
    for number in range(1, PENDING_LAUNCHES):
        spin(backend, a, 10, number)
    constants = backend.profile.constants
    call_ns = constants["launch_call_ns"] + constants["launch_return_ns"]
    assert backend.now_ns() - began_ns == (PENDING_LAUNCHES - 1) * call_ns
    assert a.depth < PENDING_LAUNCHES, "the first is over by now"

    spin(backend, b, 200_000_000, 0)
    began_ns = backend.now_ns()
    for number in range(1, PENDING_LAUNCHES):
        spin(backend, b, 10, number)
    assert b.depth == PENDING_LAUNCHES
    assert backend.now_ns() - began_ns == (PENDING_LAUNCHES - 1) * call_ns
    spin(backend, b, 10, 9999)
    assert b.depth <= PENDING_LAUNCHES
    assert backend.now_ns() - began_ns > 90_000_000, "it waited for the long one"
    spin(backend, a, 10, 9999)
    backend.synchronize()


def test_a_host_that_waits_sees_the_end_later_than_it_was():
    backend, a, _, seen = two_streams()
    spin(backend, a, 50_000, 1)
    backend.sync_stream(a)
    late = backend.profile.constants["synchronize_return_ns"]
    assert backend.now_ns() == kernel_times(seen)[1][1] + late


# -- graphs -------------------------------------------------------------------------------
def graph_of(backend, stream, capture):
    """Capture what ``capture`` queues on a raw stream."""
    wrapped = SimpleNamespace(raw=stream)
    backend.begin_capture(wrapped)
    capture()
    return backend.end_capture(wrapped)


def test_a_graph_runs_its_branches_side_by_side_and_its_chains_in_order():
    backend, a, b, seen = two_streams()
    fork, join = backend.make_event(timing=True), backend.make_event(timing=True)

    def capture():
        spin(backend, a, 1000, 0)
        backend.record(fork, a, 0)
        backend.wait(b, fork)
        spin(backend, a, 5000, 0)
        spin(backend, b, 9000, 0)
        backend.record(join, b, 0)
        backend.wait(a, join)
        spin(backend, a, 1000, 0)

    graph = graph_of(backend, a, capture)
    assert [after for _, after in graph.nodes] == [(), (0,), (0,), (1, 2)]
    assert seen == []
    backend.launch_graph(graph, a, 7)
    backend.synchronize()
    nodes = {one.node: (one.start_ns, one.end_ns) for one in seen if one.kind == "kernel"}
    gap = backend.profile.constants["kernel_gap_ns"]
    assert nodes[1][0] == nodes[2][0] == nodes[0][1] + gap
    assert nodes[3][0] == nodes[2][1] + gap
    (whole,) = (one for one in seen if one.kind == "graph")
    assert (whole.correlation, whole.start_ns, whole.end_ns) == (7, nodes[0][0], nodes[3][1])


def test_a_node_keeps_the_sms_and_the_priority_it_was_captured_with(gpu):
    kernel = gpu.compile("", "k", model=KernelModel(lambda *_: KernelCost(24, 1000)))
    seen: list[Activity] = []
    with gpu.carve({"a": 8, "b": 24}) as parts, gpu.create_stream() as whole:
        one, two = parts["a"].create_stream(), parts["b"].create_stream()
        with one.capture() as graph:
            two.wait(one.record())
            one.launch(kernel, grid=1, block=1)
            two.launch(kernel, grid=1, block=1)
            one.wait(two.record())
        gpu.backend.set_activity_sink(seen.append)
        graph.launch(stream=whole)
        gpu.synchronize()
    lasted = {one.node: one.end_ns - one.start_ns for one in seen if one.node is not None}
    assert lasted == {0: 3000, 1: 1000}


def test_a_graph_of_copies_and_host_calls_replays_them(gpu):
    told, source = [], gpu.empty_pinned(4)
    middle, back = gpu.empty(4), gpu.empty_pinned(4)
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            stream.copy(middle, source)
            stream.host_call(lambda: told.append(1))
            stream.copy(back, middle)
        for turn in range(3):
            source[...] = turn
            graph.launch(stream=stream)
            stream.synchronize()
            assert back.tolist() == [turn] * 4
        assert told == [1] * 3
        graph.close()


def test_the_legacy_stream_and_a_capturing_blocking_stream_exclude_each_other():
    backend, a, *_ = two_streams()
    theirs, _ = backend.make_stream(None, 0, blocking=True)
    wrapped = SimpleNamespace(raw=theirs)
    backend.begin_capture(wrapped)
    with pytest.raises(StreamError, match="cudaErrorStreamCaptureImplicit"):
        spin(backend, backend.borrow_stream(0), 10, 0)
    with pytest.raises(StreamError, match="cudaErrorStreamCaptureInvalidated"):
        backend.end_capture(wrapped)
    with pytest.raises(StreamError, match="cudaErrorStreamCaptureUnsupported"):
        backend.begin_capture(SimpleNamespace(raw=backend.borrow_stream(0)))

    graph_of(backend, a, lambda: spin(backend, backend.borrow_stream(0), 10, 0))


def test_a_captured_event_can_be_neither_asked_nor_waited_for():
    backend, a, b, _ = two_streams()
    event = backend.make_event(timing=True)
    wrapped = SimpleNamespace(raw=a)
    for refused in (backend.event_done, backend.sync_event):
        backend.begin_capture(wrapped)
        backend.record(event, a, 0)
        with pytest.raises(StreamError, match="cudaErrorCapturedEvent"):
            refused(event)
        with pytest.raises(StreamError, match="cudaErrorStreamCaptureInvalidated"):
            backend.end_capture(wrapped)
    with pytest.raises(StreamError, match="cudaError"):
        backend.wait(b, event)
    backend.record(event, b, 1)
    backend.sync_event(event)


def test_a_capture_ends_on_the_stream_it_began_on():
    backend, a, b, _ = two_streams()
    event = backend.make_event(timing=True)
    backend.begin_capture(SimpleNamespace(raw=a))
    backend.record(event, a, 0)
    backend.wait(b, event)
    with pytest.raises(StreamError, match="cudaErrorStreamCaptureUnmatched"):
        backend.end_capture(SimpleNamespace(raw=b))
    with pytest.raises(StreamError, match="cudaErrorStreamCaptureInvalidated"):
        backend.end_capture(SimpleNamespace(raw=a))
    spin(backend, b, 10, 1)
    backend.synchronize()


# -- what work raises ---------------------------------------------------------------------
def _fail() -> None:
    raise ValueError("a host function's own error")


def test_what_a_host_function_raises_is_told_once_to_who_waits_for_its_stream(gpu):
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream() as bad, gpu.create_stream() as other:
        bad.host_call(_fail)
        bad.launch(kernel, 1_000, grid=1, block=32)
        for _ in range(3):  # somebody else's calls, long after it was called
            other.launch(kernel, 1_000_000, grid=1, block=32)
            other.synchronize()
        with pytest.raises(ValueError, match="own error"):
            bad.synchronize()
        bad.synchronize()
        bad.launch(kernel, 1_000, grid=1, block=32)
        bad.synchronize()
        gpu.synchronize()


def test_a_host_function_that_is_interrupted_holds_nothing_up(gpu):
    kernel, called = gs.workloads.spin_kernel(gpu), []

    def interrupted():
        called.append(1)
        raise KeyboardInterrupt

    with gpu.create_stream() as stream, stream.capture() as graph:
        stream.host_call(interrupted)
    with graph, gpu.create_stream() as stream:
        for queue in (lambda: stream.host_call(interrupted), lambda: graph.launch(stream=stream)):
            stream.launch(kernel, 1_000_000, grid=1, block=32)
            queue()
            done = stream.record()
            with pytest.raises(KeyboardInterrupt):
                done.synchronize()
            done.synchronize()
            gpu.synchronize()
            assert stream.is_done
    assert called == [1, 1]


def test_time_that_a_host_function_waits_holds_its_stream_and_no_launch(gpu):
    kernel, seen = gs.workloads.spin_kernel(gpu), []

    def slow():
        began_ns = gpu.now_ns()
        gpu.backend.wait_until_ns(began_ns + 1_000_000)
        seen.append((began_ns, gpu.now_ns()))

    with gpu.create_stream() as stream, gpu.create_stream() as other, gs.profile(gpu) as recording:
        stream.host_call(slow)
        other.launch(kernel, 500_000, grid=1, block=32)
        stream.launch(kernel, 1_000, grid=1, block=32)
        launched_ns = gpu.now_ns()
        gpu.synchronize()
    (function,) = recording.trace.where(kind="host function").spans.to_pylist()
    beside, behind = recording.trace.where(kind="kernel").spans.to_pylist()
    assert seen == [(function["start_ns"], function["end_ns"])]
    assert function["end_ns"] - function["start_ns"] == 1_000_000
    assert beside["end_ns"] < function["end_ns"] < behind["start_ns"]
    assert launched_ns < function["start_ns"] + 500_000, "the host went on meanwhile"
    assert gpu.now_ns() > function["end_ns"]


def test_what_a_host_function_raises_reaches_who_waits_for_work_behind_it(gpu):
    with gpu.create_stream() as bad, gpu.create_stream() as behind:
        before = bad.record()
        bad.host_call(_fail)
        done = bad.record()
        behind.wait(done)
        before.synchronize()
        with pytest.raises(ValueError, match="own error"):
            behind.synchronize()
        done.synchronize()
        gpu.synchronize()


def test_waiting_for_the_device_tells_what_each_stream_raised(gpu):
    streams = [gpu.create_stream() for _ in range(2)]
    for stream in streams:
        stream.host_call(_fail)
    for _ in streams:
        with pytest.raises(ValueError, match="own error"):
            gpu.synchronize()
    gpu.synchronize()
    for stream in streams:
        stream.close()


def test_what_a_graphs_host_function_raises_reaches_who_waits_for_the_launch(gpu):
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            stream.host_call(_fail)
        with graph:
            for _ in range(2):
                graph.launch(stream=stream)
                with pytest.raises(ValueError, match="own error"):
                    stream.synchronize()


def test_a_copy_from_host_memory_to_host_memory_runs_in_order(gpu):
    source, between, last = np.ones(4, np.float32), gpu.empty_pinned(4), gpu.empty_pinned(4)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        stream.copy(between, source)
        stream.copy(last, between)
        stream.synchronize()
    assert last.tolist() == [1.0] * 4
    copies = recording.trace.where(kind="memcpy")
    assert copies.texts("copy_kind") == ["HtoH", "HtoH"]


@pytest.mark.parametrize("when", ["at its start", "at its end"])
def test_a_copy_that_fails_holds_up_nothing(when):
    def effect() -> Any:
        if when == "at its start":
            _fail()
        return _fail

    bench = Bench()
    stream = bench.stream()
    cost = KernelCost(1, 10)
    copy = bench.submit(CopyOp(stream, START, 90, "copy", effect, cost, engine="device to host"))
    after = bench.copy(stream, "device to host", 5)
    assert bench.times(copy, after) == [(100, 110), (110, 115)]
    assert after.failure is copy.failure
    with pytest.raises(ValueError, match="own error"):
        after.failure.tell()
    after.failure.tell()


# -- threads ------------------------------------------------------------------------------
def test_threads_that_follow_each_other_share_no_default_stream():
    backend = SimBackend()
    found = []

    def ask() -> None:
        found.append((backend.process_and_thread()[1], backend.default_stream()[1]))

    for _ in range(20):  # a thread's ident is soon another's
        thread = Thread(target=ask)
        thread.start()
        thread.join()
    assert [number for number, _ in found] == list(range(1, 21))
    assert len({handle for _, handle in found}) == 20


def test_a_default_stream_goes_with_its_thread_and_its_last_work():
    gpu = open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    for _ in range(5):
        thread = Thread(target=lambda: gpu.default_stream().launch(kernel, 9_000, grid=1, block=32))
        thread.start()
        thread.join()
    assert len(gpu.backend.engine.blocking) > 1, "their work is not done"
    gpu.synchronize()
    gc.collect()
    assert len(gpu.backend.engine.blocking) <= 1


# -- how much memory there is -------------------------------------------------------------
def test_a_product_that_does_not_fit_is_refused(gpu):
    with pytest.raises(GpuscopeError, match="device memory cannot be taken"):
        gs.Gemm(gpu, m=400_000, n=400_000, k=400_000).execute()


@pytest.mark.no_cover
def test_memory_that_was_let_go_of_can_be_taken_again(gpu):
    half = gpu.info.memory_bytes // 2
    first, second = gpu.empty(half, "uint8"), gpu.empty(half, "uint8")
    with pytest.raises(GpuscopeError, match="device memory cannot be taken"):
        gpu.empty(4, "uint8")
    del first
    for _ in range(3):
        third = gpu.empty(half - 1, "uint8")
        del third
    del second
    gpu.empty(2 * half, "uint8")


@pytest.mark.parametrize("share", [0.5, 1.0, 3.0])
def test_a_kernel_waits_as_long_as_others_make_it(share):
    bench = Bench(4, 8000)
    other, mine = bench.stream(sms=0b0011), bench.stream(sms=0b1100)
    moved = int(8000 * share)
    brings = KernelCost(2, 1000, moved, exposure=1.0, idle=1.0)
    bench.submit(KernelOp(other, START, 1, "other", None, brings))
    waits = KernelCost(2, 100, exposure=0.5, idle=1.0)
    bench.submit(KernelOp(mine, START, 2, "mine", None, waits))
    bench.engine.run_all()
    took = {one.name: one.end_ns - one.start_ns for one in bench.seen}
    assert took["mine"] == pytest.approx(100 * (1 + 0.5 * (latency(share) - 1)), rel=0.01)


@pytest.mark.parametrize("launched", [(400, 400), (1000, 500), (1000, 1000), (1000, 10)])
def test_kernels_of_many_blocks_share_what_the_gpu_launches_of_them(launched):
    bench, ns = Bench(4, 8000), 1_000_000  # that launches 1,000 blocks at once at most
    each = [round(of * BLOCKS_PER_US) for of in launched]
    for number, (count, sms) in enumerate(zip(each, (0b0011, 0b1100), strict=True)):
        cost = KernelCost(2, ns, launched=count)
        bench.submit(KernelOp(bench.stream(sms=sms), START, number, str(number), None, cost))
    bench.engine.run_all()
    took = {one.name: one.end_ns - one.start_ns for one in bench.seen}
    every, longest = sum(launched) / 1000, max(took.values()) / ns
    assert longest >= 1
    if every <= 1:
        assert [*took.values()] == [ns, ns]
    elif launched[0] == launched[1]:
        assert longest == pytest.approx(every, rel=0.01)
    else:  # the one that launches more waits more, and all blocks take the time that they need
        assert took["0"] > took["1"]
        assert longest == pytest.approx(every, rel=0.01)


def test_a_kernels_own_gap_counts_instead_of_the_engines():
    bench = Bench()
    stream = bench.stream()
    bench.submit(KernelOp(stream, START, 1, "first", None, KernelCost(1, 10)))
    bench.submit(KernelOp(stream, START, 2, "second", None, KernelCost(1, 10, gap_ns=30)))
    bench.submit(CopyOp(stream, START, 3, "third", None, KernelCost(1, 10, gap_ns=5), engine="e"))
    bench.engine.run_all()
    first, second, third = bench.seen
    assert second.start_ns - first.end_ns == 30
    assert third.start_ns - second.end_ns == 5


def test_a_step_is_one_instant_and_never_at_the_limit():
    bench = Bench()
    bench.submit(KernelOp(bench.stream(), START, 1, "k", None, KernelCost(1, 10)))
    assert not bench.engine.step(START + LATENCY)
    assert bench.engine.step(START + LATENCY + 1)
    assert bench.engine.now_ns == START + LATENCY
    assert bench.engine.step(None)
    assert not bench.engine.step(None)
    assert bench.seen[0].end_ns == START + LATENCY + 10


@pytest.mark.parametrize(("n", "watts"), [(0, 118), (4096, 684)])
def test_power_is_near_that_of_a_gpu(n, watts):
    # Measured on an H100 80GB HBM3 by NVML's counter: idle, and a float16 GEMM without end.
    gpu = gs.open_device("sim:h100", quiet=True)
    if n:
        with gs.Gemm(gpu, m=n, n=n, k=n) as gemm, gpu.create_stream() as stream:
            for number in range(2000):
                if number == 1000:
                    began = gpu.now_ns(), gpu.backend.energy_j()
                gemm.execute(stream=stream)
            stream.synchronize()
    else:
        began = gpu.now_ns(), gpu.backend.energy_j()
        gpu.backend.wait_until_ns(gpu.now_ns() + 1_000_000)
    drawn = (gpu.backend.energy_j() - began[1]) / (gpu.now_ns() - began[0]) * 1e9
    assert drawn == pytest.approx(watts, rel=0.05)
