"""An interrupt at any line leaves the invariants, is not lost, and is raised in time."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupting import (
    CARVED,
    Interrupt,
    Moment,
    experiment,
    gemm,
    kernels_of,
    left_behind,
    places,
    wrong_product,
)

import gpuscope as gs
from gpuscope._text import clean
from gpuscope.device.device import Device
from gpuscope.record import ranges, rows
from gpuscope.trace import Trace

_SIMULATED = ("engine", "ops", "host", "allocation", "backend", "capture", "memory")
ENGINE = tuple(f"simulator/engine/{name}.py" for name in _SIMULATED)
RUNNER = tuple(
    f"experiments/{name}.py" for name in ("execution", "profiling", "runner", "workers", "driving")
)


SOON = 5_000
"""So many functions of the package may be called before an interrupt is raised: some ms."""


def new_gpu() -> Device:
    return gs.open_device("sim:h200", quiet=True)


def try_everywhere(
    program: Callable[[Device], Any],
    rooms: tuple[str, ...],
    after: Callable[[Device, Any], None],
) -> None:
    """Interrupt ``program`` at each place of ``rooms``, on a fresh device each time.

    Parameters
    ----------
    after
        Told of the device, and of what the program returned: ``None`` if it was interrupted.
    """
    wrong: list[str] = []
    tried = 0
    program(new_gpu())  # imports what it needs, and fills what is kept
    gc.collect()  # what other tests left runs none of the package's lines from now on
    gc.freeze()  # what is collected after an interrupt is what that left, not all of pytest
    for place in places(lambda: program(new_gpu()), *rooms):
        gpu, result = new_gpu(), None
        tried += 1
        try:
            with Interrupt(*rooms, at=place) as interrupt:
                result = program(gpu)
        except Exception as error:  # noqa: BLE001 - every place is tried
            wrong.append(f"{place}: the program raised {error!r}")
            continue
        if interrupt.waited > SOON:
            wrong.append(f"{place}: raised {interrupt.waited} calls later")
        try:
            after(gpu, result)
        except (Exception, AssertionError) as error:  # noqa: BLE001 - every place is tried
            wrong.append(f"{place}: afterwards {error!r}")
    gc.unfreeze()
    assert tried > 50
    assert not wrong, f"{len(wrong)} of {tried} places:\n" + "\n".join(wrong[:20])


def in_another_thread(act: Callable[[], Any]) -> Any:
    """Call ``act`` in another thread: it hangs where a lock was left held."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()), daemon=True)
    thread.start()
    thread.join(60)
    assert found, "another thread could not use the device"
    return found[0]


def work(gpu: Device) -> tuple[Any, list[int]]:
    """Use everything the engine has; return values that are right only if all was in order."""
    kernel = gs.workloads.spin_kernel(gpu)
    a = gpu.asarray(np.arange(64).reshape(8, 8) % 5, "float32")
    called: list[int] = []
    with (
        gpu.carve({"small": 16, "load": "rest"}) as parts,
        gpu.create_stream(blocking=True) as blocking,
    ):
        one = parts["small"].create_stream(name="one")
        two = parts["load"].create_stream(name="two")
        legacy = gpu.wrap_stream(0)
        first, second = gpu.empty((8, 8)), gpu.empty((8, 8))
        pinned, pageable = gpu.empty_pinned((8, 8)), np.zeros((8, 8), np.float32)
        one.launch(kernel, 3_000, grid=40, block=32)
        gs.mm_out(first, a, a, stream=one)
        two.wait(one.record())
        gs.mm_out(second, first, a, stream=two)
        two.launch(kernel, 2_000, grid=300, block=32)
        two.host_call(lambda: called.append(1))
        two.copy(pinned, second)
        blocking.launch(kernel, 1_000, grid=1, block=32)
        legacy.launch(kernel, 1_000, grid=1, block=32)
        blocking.launch(kernel, 1_000, grid=1, block=32)
        one.wait(two.record())
        one.copy(first, pinned)
        one.copy(pageable, first)
        with one.capture() as graph:
            one.launch(kernel, 500, grid=4, block=32)
            blocking.wait(one.record())
            blocking.launch(kernel, 700, grid=4, block=32)
            one.launch(kernel, 100, grid=200, block=32)
            one.host_call(lambda: called.append(2))
            one.wait(blocking.record())
        with graph:
            graph.launch(stream=one)
            graph.launch(stream=two)
            one.synchronize()
        with gs.Gemm(gpu, m=64, n=64, k=64) as handle:
            handle.execute(stream=one)
            handle.execute(stream=two)
            handle.wait()
        assert two.record().is_done or not two.is_done
        gpu.synchronize()
        return (gpu.to_host(second).tolist(), pinned.tolist(), pageable.tolist()), called


@pytest.mark.no_cover
def test_interrupts_in_the_engine_leave_the_device_as_it_was():
    right = work(new_gpu())

    def after(gpu: Device, result: Any) -> None:
        assert result in (None, right)
        assert in_another_thread(lambda: work(gpu)) == right

    try_everywhere(work, ENGINE, after)


def test_what_was_queued_before_an_interrupt_is_done_after_it():
    # All is queued before the first step of the engine; the interrupt strikes in the wait.
    def queue(gpu: Device) -> tuple[Any, Any, list[int]]:
        kernel = gs.workloads.spin_kernel(gpu)
        called: list[int] = []
        a = gpu.asarray(np.arange(16).reshape(4, 4), "float32")
        out = gpu.empty((4, 4))
        one, two = gpu.create_stream(), gpu.create_stream()
        for _ in range(3):
            one.launch(kernel, 500, grid=200, block=32)
            two.launch(kernel, 900, grid=300, block=32)
            two.host_call(lambda: called.append(len(called)))
        two.wait(one.record())
        gs.mm_out(out, a, a, stream=two)
        return (one, two), out, called

    def program(gpu: Device) -> None:
        streams.clear()
        streams.append(queue(gpu))
        gpu.synchronize()

    streams: list[Any] = []
    right = (np.arange(16).reshape(4, 4) @ np.arange(16).reshape(4, 4)).tolist()

    def after(gpu: Device, _: Any) -> None:
        pair, out, called = streams[0] if streams else (None, None, None)
        if pair is None:
            return  # it was interrupted while it queued
        assert gpu.to_host(out).tolist() == right
        assert called == [0, 1, 2]
        for stream in pair:
            stream.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of streams that a queueing left
        try_everywhere(program, ENGINE[:1], after)
        gc.collect()


# -- runs ---------------------------------------------------------------------------------
SMALL = experiment(
    {"kind": "spin", "duration_us": 30, "warmup": 1},
    gemm(64, repeats=2, warmup=1),
    alone_repeats=0,
)
ONE_SETTING = {**SMALL, "settings": {"carved": CARVED}}
CARVED_ALONE = {**ONE_SETTING, "alone_repeats": 1}
POINT = {
    "name": "point", "alone_repeats": 0, "streams": {"s": {}},
    "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
}  # fmt: skip


class Launches:
    """Counts the launches on a device while somebody else watches it, too: while it is recorded."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.count = 0

    def call_begins(self, call: Any) -> None:
        del call

    def call_ends(self, call: Any) -> None:
        if call.kind == "launch" and len(self._gpu.calls.observers) > 1:
            self.count += 1

    def activity(self, activity: Any) -> None:
        del activity


def nothing_is_left(gpu: Device) -> None:
    assert left_behind(gpu) is None
    assert {stream.name for stream in gpu.streams} <= {"per-thread default"}
    assert gs.get_caller_stream() is None
    assert gc.isenabled()


@pytest.mark.no_cover
def test_interrupts_of_a_run_keep_what_was_recorded():
    counts: list[Launches] = []

    def program(gpu: Device) -> gs.experiments.Run | None:
        counts.append(Launches(gpu))
        gpu.calls.observe(counts[-1])
        try:
            return gs.run(SMALL, gpu)
        except gs.errors.NothingRecorded:
            return None

    whole = gs.run(ONE_SETTING, new_gpu())
    assert not whole.stopped

    def after(gpu: Device, run: gs.experiments.Run | None) -> None:
        gpu.calls.unobserve(counts[-1])
        nothing_is_left(gpu)
        recorded = 0 if run is None else kernels_of(run)
        assert recorded == counts[-1].count, f"{recorded} of {counts[-1].count} kernels are kept"
        assert kernels_of(gs.run(ONE_SETTING, gpu)) == kernels_of(whole)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try_everywhere(program, RUNNER, after)


class Told:
    """The rows of kernels that a device told of, while somebody else watches it, too."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._recorded: set[int] = set()
        self.kernels: set[int] = set()

    def call_begins(self, call: Any) -> None:
        if len(self._gpu.calls.observers) > 1:
            self._recorded.add(call.correlation)

    def call_ends(self, call: Any) -> None:
        del call

    def activity(self, activity: Any) -> None:
        if activity.kind == "kernel" and activity.correlation in self._recorded:
            self.kernels.add(rows.node_row(activity.correlation, activity.node or 0))


def record_work(gpu: Device) -> Trace:
    """Do what leaves every kind of row; the recording is read while it goes on, too."""
    kernel = gs.workloads.spin_kernel(gpu)
    with (
        gpu.carve({"small": 16}) as parts,
        gpu.create_stream(blocking=True) as blocking,
        gpu.wrap_stream(0) as legacy,
    ):
        own = parts["small"].create_stream()
        with gs.profile(gpu) as recording:
            recordings.append(recording)
            with gs.annotate("outer"), gs.annotate("inner"):
                own.launch(kernel, 3_000, grid=40, block=32)
                blocking.wait(own.record())
                blocking.launch(kernel, 3_000, grid=40, block=32)
            with gs.Gemm(gpu, m=64, n=64, k=64) as handle:
                handle.execute(stream=own)
                handle.wait()
            recording.batches()
            with own.capture() as graph:
                own.launch(kernel, 500, grid=4, block=32)
                own.launch(kernel, 500, grid=4, block=32)
            with graph:
                graph.launch(stream=own)
                own.synchronize()
            legacy.launch(kernel, 1_000, grid=1, block=32)
            blocking.host_call(lambda: None)
            gpu.synchronize()
            recording.snapshot()
    return recording.trace


recordings: list[gs.Recording] = []


@pytest.mark.no_cover
def test_interrupts_of_a_recording_keep_every_row_once():
    told: list[Told] = []

    def program(gpu: Device) -> Trace:
        recordings.clear()
        told.append(Told(gpu))
        gpu.calls.observe(told[-1])
        return record_work(gpu)

    whole = record_work(new_gpu()).kind_counts()

    def after(gpu: Device, _: Trace | None) -> None:
        gpu.calls.unobserve(told[-1])
        nothing_is_left(gpu)
        assert ranges.running == ()
        if recordings:  # else it was interrupted before the block
            trace = recordings[0].trace
            assert sorted(trace.where(kind="kernel").array("id")) == sorted(told[-1].kernels)
            assert trace.metadata.counts["dropped"] == 0
        assert record_work(gpu).kind_counts() == whole

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try_everywhere(program, ("record",), after)


@pytest.mark.parametrize("at", [None, 1])
def test_an_interrupt_leaves_who_traced_before(at: int | None):
    before, called = sys.gettrace(), []
    sys.settrace(lambda frame, *_: called.append(frame.f_code.co_name))
    try:
        with Interrupt("_text.py", at=at) as interrupt:
            clean("a")
        set(map(lambda _: None, "a"))  # noqa: C417 - one that is called
    finally:
        sys.settrace(before)
    assert interrupt.raised == (at is not None)
    assert called[-1] == "<lambda>"


@pytest.mark.parametrize("program", ["a launch", "a workload"])
def test_an_interrupt_at_any_moment_leaves_no_stream_current(program: str):
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[2] / "moments.py", program],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.no_cover
def test_two_hundred_random_interrupts_of_runs_leave_the_device_usable():
    gs.run(CARVED_ALONE, new_gpu())  # imports what it needs
    gc.collect()  # what other tests left passes no moments from now on
    gc.freeze()
    with Moment() as moment:
        whole = gs.run(CARVED_ALONE, new_gpu())
    rng = random.Random(20)  # noqa: S311 - moments, not secrets
    gpu = new_gpu()
    ended: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(200):
            number = rng.randrange(1, moment.passed)
            try:
                with Moment(number):
                    run = gs.run(CARVED_ALONE, gpu)
                ended["stopped" if run.stopped else "whole"] += 1
            except (KeyboardInterrupt, gs.errors.NothingRecorded) as error:
                ended[type(error).__name__] += 1
            nothing_is_left(gpu)
            assert wrong_product(gpu) is None, number
        gc.unfreeze()
        assert kernels_of(gs.run(CARVED_ALONE, gpu)) == kernels_of(whole)
    assert ended["stopped"] > 100, ended


@pytest.mark.no_cover
def test_interrupts_of_a_sweep_keep_the_points_that_were_measured():
    values = {"workloads.w.duration_us": [10, 20]}
    whole = kernels_of(gs.run(POINT, new_gpu()))
    ended: list[int] = []

    def program(gpu: Device) -> Any:
        ended.clear()

        def view(progress: Any) -> None:
            if progress.done % 2 == 0:
                ended.append(progress.done)

        try:
            return gs.search.sweep(POINT, values, gpu, viewer=view)
        except gs.errors.NothingRecorded:
            return None

    def after(gpu: Device, result: Any) -> None:
        nothing_is_left(gpu)
        kept = 0 if result is None else len(result.table)
        assert kept >= len(ended), f"{kept} rows of {len(ended)} points"
        assert kernels_of(gs.run(POINT, gpu)) == whole

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = ("sweeps", "points", "point_table", "series")
        try_everywhere(program, tuple(f"search/{name}.py" for name in modules), after)


@pytest.mark.no_cover
def test_interrupts_of_a_tuning_keep_what_was_measured():
    values = {"workloads.w.duration_us": [10, 20]}
    whole = kernels_of(gs.run(POINT, new_gpu()))
    ended: list[int] = []

    def program(gpu: Device) -> Any:
        ended.clear()

        def view(progress: Any) -> None:
            if progress.done % 2 == 0 and not progress.setting.startswith("forecast"):
                ended.append(progress.done)

        try:
            return gs.tune(POINT, values, "w.kernel_median_us", None, gpu, repeats=3, viewer=view)
        except gs.errors.NothingRecorded:
            return None

    def after(gpu: Device, result: Any) -> None:
        nothing_is_left(gpu)
        kept = 0 if result is None else result.measurements
        assert kept >= len(ended), f"{kept} of {len(ended)} measurements"
        assert kernels_of(gs.run(POINT, gpu)) == whole

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = ("tuning", "searching", "points", "point_table", "series")
        try_everywhere(program, tuple(f"search/{name}.py" for name in modules), after)
