"""Random stream programs on a GPU and on the simulated one: the same order, the same values.

Latches hold all streams while the host queues, and let go of them in random order, so that
what may run in another order than it was queued in does. When a kernel ran it says itself.
A copy or a host function stands between two stamps, small kernels on its stream, and counts
as running from the first to the second: what must come before it must end before the first,
and what must come after it begins after the second. So the order of copies and host
functions against all other streams is measured. That a host function runs between its stamps
is measured too: it looks whether they are there. Of copies only their values tell.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from program_runner import BUFFER_ITEMS, Runner, mixed
from programs import (
    Place,
    Program,
    Step,
    determined,
    missing_wait,
    programs,
    required_order,
)

import gpuscope as gs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.gpu_alone("latches open µs apart, and give up"),
    pytest.mark.timeout(240),
]

PROGRAMS = 1000
ROWS = 4096
STREAMS = 8
WATCHDOG_NS = 2_000_000_000
HOST_WAITS = ("capture", "sync stream", "sync event", "sync device")

# Both write to host memory, which nobody else writes to meanwhile: no atomics are needed.
SOURCE = r"""
typedef unsigned long long u64;
__device__ u64 now() { u64 ns; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)); return ns; }

extern "C" __global__ void stamp(u64* marks, long long row, long long side) {
  volatile u64* totals = marks + 4 * row;
  u64 launch = totals[side];
  totals[4 * launch + 2 + side] = now();
  __threadfence_system();
  totals[side] = launch + 1;
}

extern "C" __global__ void latch(volatile u64* opened, u64 turn, volatile u64* gave_up,
                                 long long limit_ns) {
  u64 begun = now();
  while (*opened < turn) {
    if ((long long)(now() - begun) > limit_ns) { *gave_up = 1; return; }
  }
}
"""


class Bench:
    """What all runs on a GPU share: kernels, and where they leave marks and look for latches.

    ``marks``, in device memory, is for kernels, ``stamps``, in host memory, for the rest. Rows
    are those that ``program_runner.SOURCE`` tells of.
    """

    def __init__(self, device) -> None:
        self.device = device
        self.latch = device.compile(SOURCE, "latch")
        self.stamp = device.compile(SOURCE, "stamp")
        self.unused = device.empty(BUFFER_ITEMS, "float64")
        self.stamps = device.empty_pinned((ROWS, 4), "uint64")
        self.opened = device.empty_pinned(STREAMS, "uint64")
        self.gave_up = device.empty_pinned(1, "uint64")
        self.opened[...] = self.gave_up[...] = self.turn = 0

    def reset(self) -> None:
        fresh = np.zeros((ROWS, 4), np.uint64)
        fresh[:, 2] = np.iinfo(np.uint64).max
        self.marks = self.device.asarray(fresh)
        self.stamps[...] = fresh
        self.gave_up[...] = 0


class HeldRunner(Runner):
    """Runs a program on a GPU behind latches.

    Before the host waits for anything, or makes a graph, all latches open; then new ones
    follow. The legacy stream gets one only while nothing is pending: there it is a barrier.

    Parameters
    ----------
    turns
        Numbers of the streams held → in which order they are let go, each with the ns until
        the next.

    Attributes
    ----------
    faults
        What host functions, and the host after copies that it waited for, found amiss.
    """

    def __init__(self, bench: Bench, program: Program, turns) -> None:
        super().__init__(bench.device, program)
        self.bench = bench
        self.faults = []
        self._turns = turns
        self._held = []
        self._next_row = 0
        self._blocks = {}
        self._launches = Counter()
        self._row_of = {}
        self._nodes = {}
        self._capturing = None

    # -- latches ----------------------------------------------------------------------
    def _begin(self) -> None:
        bench = self.bench
        bench.reset()
        for stream in self.streams:  # what is loaded behind a latch would wait for it
            unused = [bench.unused] * 3
            stream.launch(self._kernel, 1, 0, bench.marks, 0, 0, *unused, grid=1, block=32)
            self._stamp(stream, 0, 0)
            self._stamp(stream, 0, 1)
        self._hold(idle=True)
        self._release()
        self.device.synchronize()
        bench.reset()
        self._hold(idle=True)

    def _hold(self, *, idle: bool) -> None:
        bench, places = self.bench, self.program.places
        bench.turn += 1
        for number in sorted(range(len(places)), key=lambda one: places[one].kind != "legacy"):
            if idle or places[number].kind != "legacy":
                opened = bench.opened.ctypes.data + 8 * number
                self.streams[number].launch(
                    bench.latch, opened, bench.turn, bench.gave_up.ctypes.data, WATCHDOG_NS,
                    grid=1, block=1,
                )  # fmt: skip
                self._held.append(number)

    def _release(self) -> None:
        for number, pause_ns in self._turns(self._held):
            self.bench.opened[number] = self.bench.turn
            self.device.backend.wait_until_ns(self.device.now_ns() + pause_ns)
        self._held = []

    def _call(self, step: Step) -> None:
        waits = step.kind in HOST_WAITS or (step.kind in ("up", "down") and not step.pinned)
        if waits:
            self._release()
        if step.kind == "capture":
            self._nodes[step.number] = self._capturing = []
        elif step.kind == "graph":
            for node, row in enumerate(self._nodes[step.number]):
                self._launches_at((self._step, node), row)
        super()._call(step)
        if step.kind == "capture":
            self._capturing = None
        if waits:
            self._hold(idle=step.kind == "sync device")

    # -- when work runs ---------------------------------------------------------------
    def _launches_at(self, label, row: int) -> None:
        self._row_of[label] = row + self._launches[row]
        self._launches[row] += 1

    def _work(self, stream, step: Step) -> None:
        row = self._next_row
        self._next_row += len(self.program.steps)  # a captured one is launched less often
        assert self._next_row <= ROWS
        self._blocks[row] = step.blocks if step.kind == "kernel" else 1
        if self._capturing is None:
            self._launches_at((self._step,), row)
        else:
            self._capturing.append(row)
        if step.kind == "kernel":
            self._launch(stream, step, self.bench.marks, row)
            return
        self._stamp(stream, row, 0)
        if step.kind == "host":
            stream.host_call(self._looking(row))
        else:
            self._copy(stream, step)
        host_waited = step.kind == "down" and not step.pinned
        if host_waited and not self.bench.stamps[row, 0]:
            self.faults.append("the host did not wait for its copy")
        self._stamp(stream, row, 1)
        if host_waited:  # it did not wait for the stamp, which is to stand for the copy
            stream.synchronize()

    def _stamp(self, stream, row: int, side: int) -> None:
        stamps = self.bench.stamps.ctypes.data
        stream.launch(self.bench.stamp, stamps, row, side, grid=1, block=1)

    def _looking(self, row: int):
        """Make a host function that looks for the stamps around it."""
        runs = itertools.count()
        totals = self.bench.stamps[row, :2]

        def look() -> None:
            run = next(runs)
            if totals.tolist() != [run + 1, run]:
                self.faults.append(f"a host function in its run {run} found stamps {totals}")

        return look

    def _finish(self) -> None:
        self._release()
        super()._finish()
        assert not self.bench.gave_up[0], "a latch gave up: something waited for it"
        marks, stamps = self.device.to_host(self.bench.marks), self.bench.stamps
        begins = np.minimum(marks[:, 2], stamps[:, 2]).tolist()
        ends = np.maximum(marks[:, 3], stamps[:, 3]).tolist()
        self.spans = {label: (begins[row], ends[row]) for label, row in self._row_of.items()}
        for row, blocks in self._blocks.items():
            found = (marks[row, :2] + stamps[row, :2]).tolist()
            assert found == [blocks * self._launches[row]] * 2, "not all work ran once"


@pytest.fixture(scope="module")
def bench():
    device = gs.open_device("cuda:0", quiet=True)
    yield Bench(device)
    device.close()


def simulated(program: Program) -> Runner:
    device = gs.open_device("sim:h200", quiet=True)
    runner = Runner(device, program).run()
    device.close()
    return runner


def drawn(count: int) -> list[Program]:
    """Draw programs, the same ones each time."""
    found = []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(programs(least=6, most=20))
    def keep(program: Program) -> None:
        found.append(program)

    keep()
    return found


def in_random_order(seed: int):
    chance = np.random.default_rng(seed)
    return lambda held: [(one, int(chance.integers(30_000))) for one in chance.permutation(held)]


def test_cuda_s_order_holds_and_race_free_values_are_equal_on_both(bench):
    tally, failed = Counter(), []

    def examine(program: Program) -> None:
        tally["programs"] += 1
        real = HeldRunner(bench, program, in_random_order(tally["programs"])).run()
        simulation = simulated(program)
        order = required_order(program)
        for runner in (real, simulation):
            assert runner.spans.keys() == order.work.keys()
            assert runner.broken(order) == []
        assert real.faults == []
        places = determined(order)
        for place in places:
            assert real.values[place] == simulation.values[place], place
        before = order.before()
        tally["work"] += len(order.work)
        tally["pairs"] += len(order.pairs)
        tally["values"] += len(places)
        tally["with values"] += bool(places)
        tally["run in another order than queued"] += any(
            real.spans[later][1] <= real.spans[earlier][0]
            for earlier, later in itertools.combinations(order.work, 2)
            if earlier not in before[later]
        )

    for program in drawn(PROGRAMS):
        try:
            examine(program)
        except Exception as error:  # noqa: BLE001 - told below, with its program
            failed.append(f"{type(error).__name__}: {error}\n{program}")
            if len(failed) == 5:
                break
    logging.getLogger(__name__).info("%s", dict(tally))
    assert not failed, "\n\n".join([f"{len(failed)} programs failed; {dict(tally)}", *failed])
    assert tally["programs"] >= 300
    assert tally["with values"] >= 0.7 * tally["programs"]
    assert tally["run in another order than queued"] >= 0.3 * tally["programs"]


def without_waits(program: Program) -> Program:
    steps = [replace(one, kind="query") if one.kind == "wait" else one for one in program.steps]
    return replace(program, steps=tuple(steps))


def without_barrier(program: Program) -> Program:
    places = [Place() if place.kind == "legacy" else place for place in program.places]
    return replace(program, places=tuple(places))


@pytest.mark.parametrize("spoil", [without_waits, without_barrier])
def test_order_that_is_not_kept_is_seen(bench, spoil):
    """What was spoilt runs in an order that the whole program does not allow."""
    seen = Counter()
    for number, program in enumerate(drawn(200)):
        runner = HeldRunner(bench, spoil(program), in_random_order(number)).run()
        seen["spoilt"] += spoil(program) != program
        seen["broken"] += bool(runner.broken(required_order(program)))
    logging.getLogger(__name__).info("%s", dict(seen))
    assert seen["broken"] >= 0.1 * seen["spoilt"] > 0


@pytest.mark.parametrize("waits", [True, False])
def test_a_missing_wait_shows_the_stale_value_on_both(bench, waits):
    """The reader is let go 10 ms before the writer: time enough to read what is not there."""
    program = missing_wait(waits=waits)
    found = mixed(mixed() if waits else 0.0)
    for _ in range(5):
        real = HeldRunner(bench, program, lambda held: [(one, 10_000_000) for one in held[::-1]])
        for runner in (real.run(), simulated(program)):
            assert set(runner.values[0]) == {mixed()}
            assert set(runner.values[1]) == {found}
