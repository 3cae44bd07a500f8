"""Rows drained from every source are rows handed out, whatever raises or races in between."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from fake_cupti import World
from interrupting import Interrupt

import gpuscope as gs
from gpuscope.record import events, sources
from gpuscope.record.recorder import Recording

# What is raised in a callback from C is printed and forgotten.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
ERRORS = (KeyboardInterrupt, MemoryError, RuntimeError)
READING = ("record", "trace")
NOTING = ("record/calls.py", "record/ranges.py", "record/activity.py")


@pytest.fixture
def gpu():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def errors():
    return (kind() for kind in itertools.cycle(ERRORS))


def kernels(trace):
    """Return how many kernels there are; no row of any kind is there twice."""
    ids = trace.array("id")
    assert len(np.unique(ids)) == len(ids)
    return trace.kind_counts().get("kernel", 0)


def read_with_an_exception_at_each_line(work, recording, *rooms, since=0, most=None):
    """Work, read with an exception, and read: again and again, each time one line later.

    Parameters
    ----------
    since
        How many lines were met before.
    most
        How many to meet; ``None``: all that are left.

    Returns
    -------
    tuple
        How many lines were met by now, and whether all were.
    """
    last = None if most is None else since + most
    for number, error in itertools.islice(enumerate(errors(), 1), since, last):
        work()
        with Interrupt(*rooms, at=number, error=error) as interrupt:
            recording.batches()
        if not interrupt.raised:
            return number, True
        recording.batches()
    return last, False


class TimedByEvents(events.EventSource):
    """Times a simulated device by events; what the device tells by itself is not needed."""


# -- readers that fail -----------------------------------------------------------------------
def test_an_exception_at_any_line_of_reading_loses_nothing(gpu):
    kernel, handle = gs.workloads.spin_kernel(gpu), gs.Gemm(gpu, m=64, n=64, k=64)
    launched = itertools.count()
    with gpu.create_stream() as stream, gpu.create_stream() as other, gs.profile(gpu) as recording:

        def work():
            with gs.annotate("range"):
                stream.launch(kernel, 1_000, grid=1, block=32)
                other.wait(stream.record())
                handle.execute(stream=other)
                handle.wait()
            next(launched)

        lines, _ = read_with_an_exception_at_each_line(work, recording, *READING)
    count = next(launched)
    assert lines > 100
    trace = recording.trace
    assert kernels(trace) == 2 * count
    assert trace.kind_counts()["range"] == trace.kind_counts()["handle"] == count
    kinds = [edge["kind"] for edge in trace.edges.to_pylist()]
    assert kinds.count("launch") == 2 * count
    assert kinds.count("event wait") == count
    assert trace.metadata.complete


@pytest.mark.no_cover
def test_an_exception_at_any_line_of_reading_cupti_loses_nothing(monkeypatch):
    """In recordings of 100 lines each: one is read the longer, the more often it was before."""
    world = World(monkeypatch)
    lines, are_all = 0, False
    with world.device.create_stream() as stream:

        def work():
            world.launch(stream)
            world.gpu.foreign("theirs")
            world.gpu.foreign("theirs", on=stream)
            with gs.annotate("range"):
                world.launch(stream)

        while not are_all:
            before = lines
            with world.profile(detail="full") as recording:
                lines, are_all = read_with_an_exception_at_each_line(
                    work, recording, *READING, since=before, most=100
                )
            count = lines - before
            trace = recording.trace
            assert kernels(trace) == 4 * count
            assert trace.kind_counts()["range"] == count
            assert [edge["kind"] for edge in trace.edges.to_pylist()].count("launch") == 4 * count
            assert trace.metadata.complete
            assert trace.metadata.counts["dropped"] == trace.metadata.counts["unmatched"] == 0
    assert lines > 100


def test_readers_that_fail_take_nothing_from_another_recording(monkeypatch):
    world = World(monkeypatch)
    launched = itertools.count()
    with world.device.create_stream() as stream, world.profile() as outer, world.profile() as inner:

        def work():
            world.launch(stream)
            world.gpu.foreign("theirs")
            next(launched)
            outer.batches()

        read_with_an_exception_at_each_line(work, inner, "record/cupti/collector.py")
    count = next(launched)
    assert kernels(outer.trace) == kernels(inner.trace) == 2 * count


def test_an_exception_at_any_line_of_reading_events_loses_nothing(gpu, monkeypatch):
    launched = itertools.count()
    kernel = gs.workloads.spin_kernel(gpu)
    compile_any = gpu.backend.compile
    monkeypatch.setattr(
        gpu.backend,
        "compile",
        lambda source, name, model: compile_any(source, name, model or kernel.model),
    )
    launch = gpu.backend.launch
    monkeypatch.setattr(
        gpu.backend, "launch",
        lambda stream, kernel, grid, block, args, number: launch(
            stream, kernel, grid, block, args or (1_000,), number
        ),
    )  # fmt: skip
    monkeypatch.setattr(sources, "ActivitySource", TimedByEvents)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:

        def work():
            for _ in range(2):
                stream.launch(kernel, 1_000, grid=1, block=32)
            stream.synchronize()
            next(launched)

        lines, _ = read_with_an_exception_at_each_line(work, recording, *READING)
    assert lines > 100
    assert kernels(recording.trace) == 2 * next(launched)
    assert recording.trace.metadata.complete


# -- recordings whose end fails ----------------------------------------------------------------
def ended_with_an_exception(number, error, recording, stop):
    """End a recording with an exception at one line, then end what is left."""
    recording.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        stop()
        with Interrupt("record", at=number, error=error) as interrupt:
            recording.stop()
        recording.stop(wait=False)
    return interrupt.raised


def test_an_exception_at_any_line_of_the_end_loses_nothing_or_says_so(gpu):
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream() as stream:

        def work():
            for _ in range(2):
                stream.launch(kernel, 1_000, grid=1, block=32)
            stream.synchronize()

        for number, error in zip(itertools.count(1), errors(), strict=False):
            recording = Recording((gpu,))
            again = ended_with_an_exception(number, error, recording, work)
            assert kernels(recording.trace) == 2
            assert not gpu.calls.observers
            if not again:
                break
    assert number > 100
    assert recording.trace.metadata.complete


@pytest.mark.no_cover
def test_an_exception_at_any_line_of_cupti_s_end_loses_nothing_or_says_so(monkeypatch):
    world = World(monkeypatch)
    with world.device.create_stream() as stream:

        def work():
            world.launch(stream)
            world.gpu.foreign("theirs")

        for number, error in zip(itertools.count(1), errors(), strict=False):
            recording = world.recording()
            again = ended_with_an_exception(number, error, recording, work)
            trace = recording.trace
            assert kernels(trace) == 2 or not trace.metadata.complete
            if not again:
                break
    assert number > 200
    assert trace.metadata.complete
    assert world.cupti.at_rest


# -- launches that are interrupted -------------------------------------------------------------
def test_an_exception_at_any_line_of_noting_a_launch_loses_no_other_and_is_counted(gpu):
    kernel = gs.workloads.spin_kernel(gpu)
    with warnings.catch_warnings(), gpu.create_stream() as stream:
        warnings.simplefilter("ignore", UserWarning)
        for number, error in zip(itertools.count(1), errors(), strict=False):
            with gs.profile(gpu) as recording:
                stream.launch(kernel, 1_000, grid=1, block=32)
                with Interrupt(*NOTING, at=number, error=error) as interrupt:
                    stream.launch(kernel, 1_000, grid=1, block=32)
                stream.launch(kernel, 1_000, grid=1, block=32)
            found = kernels(recording.trace)
            if not interrupt.raised:
                break
            assert found in (2, 3)
    assert number > 10
    assert found == 3


# -- readers and launching threads that race -----------------------------------------------------
@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("waits", [True, False])
def test_live_readers_racing_launching_threads_lose_nothing(gpu, waits):
    handles = [gs.Gemm(gpu, m=64, n=64, k=64, name=f"w{number}") for number in range(3)]
    streams = [gpu.create_stream(name=f"s{number}") for number in range(3)]
    launched, failures, over = [0] * 3, [], threading.Event()

    def launch(number):
        for _ in range(20):
            for _ in range(50):
                handles[number].execute(stream=streams[number])
                launched[number] += 1
            if waits:
                handles[number].wait()

    def read(recording):
        while not over.is_set():
            try:
                recording.batches()
                recording.known()
            except Exception as error:  # noqa: BLE001 - none is expected
                failures.append(error)

    with gs.profile(gpu) as recording:
        readers = [threading.Thread(target=read, args=(recording,)) for _ in range(2)]
        launching = [threading.Thread(target=launch, args=(number,)) for number in range(3)]
        for thread in [*readers, *launching]:
            thread.start()
        for thread in launching:
            thread.join()
        over.set()
        for thread in readers:
            thread.join()
    trace = recording.trace
    assert failures == []
    for number in range(3):
        mine = trace.where(kind="kernel", category=f"w{number}")
        assert len(mine) == launched[number] == 1_000
    assert trace.kind_counts()["handle"] == kernels(trace) == 3_000
    assert trace.metadata.complete
    for stream in streams:
        stream.close()


# -- a clock that is set -------------------------------------------------------------------------
def test_a_wall_clock_that_jumps_back_is_told_and_the_recording_ends_after_it_began(monkeypatch):
    gpu = gs.open_device("cpu", quiet=True)
    with gpu.create_stream() as stream:
        with gs.profile(gpu) as recording:
            stream.record()
            now = time.time_ns
            monkeypatch.setattr(time, "time_ns", lambda: now() - 3_600_000_000_000)
            stream.record()
            (window,) = recording.known().windows_ns
            assert window[1] >= window[0]
        metadata = recording.trace.metadata
    (window,) = metadata.windows_ns
    assert 0 <= window[1] - window[0] < 1_800_000_000_000
    assert any("clock was set by -" in note for note in metadata.notes)


def test_no_stream_that_is_waited_for_at_the_end_goes_meanwhile(monkeypatch):
    """The collector may find one while the device is waited for; the driver has its handle."""
    gpu, there = gs.open_device("sim:h200", quiet=True), []

    def wait_for_all(handles):
        gc.collect()
        there.extend(gpu.find_stream(handle) is not None for handle in handles)

    monkeypatch.setattr(gpu.backend, "wait_for_all", wait_for_all)
    with gs.profile(gpu):
        forgotten = [gpu.create_stream()]
        forgotten.append(forgotten)  # so that only the collector finds it
        del forgotten
    assert there == [True]
