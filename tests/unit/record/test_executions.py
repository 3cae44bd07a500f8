"""A handle's call that is one launch is noted at once, and told as any other call is."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import warnings

import pytest
from interrupting import Interrupt

import gpuscope as gs
from gpuscope.device.calls import Execution

NOTING = ("record/calls.py", "record/ranges.py", "record/activity.py", "device/call_log.py")
HANDLES = ("workloads/gemm.py", "workloads/handle.py", "workloads/in_flight.py")


class Watcher:
    """An observer that is told of each call by itself: where it watches, nothing is shortened."""

    def call_begins(self, call):
        assert not isinstance(call, Execution)

    call_ends = activity = call_begins


@contextlib.contextmanager
def made():
    """Yield a device, a handle that is ready, its operands and a stream."""
    gpu = gs.open_device("sim:h200", quiet=True)
    handle = gs.Gemm(gpu, m=64, n=64, k=64, name="product", max_in_flight=2)
    operands = handle.operands()
    with gpu.create_stream(name="s") as stream:
        for _ in range(4):  # both contexts are ready
            handle.execute(*operands, stream=stream)
            handle.wait()
        yield gpu, handle, operands, stream


@pytest.fixture
def ready():
    with made() as found:
        yield found


def rows_of(trace):
    spans = sorted(trace.spans.to_pylist(), key=lambda row: row["id"])
    edges = sorted((edge["from"], edge["to"], edge["kind"]) for edge in trace.edges.to_pylist())
    return spans, edges, trace.metadata.counts


def alone(gpu, handle, operands, stream, other):
    handle.execute(*operands, stream=stream)
    handle.wait()


def queued(gpu, handle, operands, stream, other):
    for _ in range(5):
        handle.execute(*operands, stream=stream)
    handle.wait()


def in_ranges(gpu, handle, operands, stream, other):
    with gs.annotate("outer"), gs.annotate("inner"):
        handle.execute(*operands, stream=stream)
    with gs.annotate("waits"):
        handle.wait()


def never_seen(gpu, handle, operands, stream, other):
    handle.execute(*operands, stream=stream)
    stream.synchronize()


def polled(gpu, handle, operands, stream, other):
    handle.execute(*operands, stream=stream)
    while handle.in_flight:
        pass
    handle.wait()


def handed_out(gpu, handle, operands, stream, other):
    handle.execute(*operands, stream=stream)
    first = handle.completion
    handle.execute(*operands, stream=stream)
    handle.execute(*operands, stream=stream)
    first.wait()
    other.wait(first.event)
    gs.mm_out(operands[2], *operands[:2], stream=other)
    handle.wait()
    other.synchronize()


def moved(gpu, handle, operands, stream, other):
    for on in (stream, other, stream, other):
        handle.execute(*operands, stream=on)
    handle.wait()


def by_another_thread(gpu, handle, operands, stream, other):
    handle.execute(*operands, stream=stream)
    thread = threading.Thread(target=handle.wait, name="waits")
    thread.start()
    thread.join()


def inside_another(gpu, handle, operands, stream, other):
    @gs.workloads.workload
    def function(context):
        handle.execute(*operands)
        handle.wait()

    with function(gpu, name="function") as outer:
        outer.execute(stream=stream)
        outer.wait()


def meant_for_another(gpu, handle, operands, stream, other):
    with gpu.calls.meant_for(other):
        handle.execute(*operands, stream=stream)
    handle.wait()


def behind_others(gpu, handle, operands, stream, other):
    kernel = gs.workloads.spin_kernel(gpu)
    other.launch(kernel, 5_000, grid=1, block=32)
    stream.wait(other.record())
    handle.execute(*operands, stream=stream)
    other.wait(stream.record())
    handle.wait()
    other.launch(kernel, 5_000, grid=1, block=32)
    gpu.synchronize()


PROGRAMS = [
    alone, queued, in_ranges, never_seen, polled, handed_out, moved, by_another_thread,
    inside_another, meant_for_another, behind_others,
]  # fmt: skip


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_note_of_a_call_and_its_launch_becomes_the_rows_of_both(program, read):
    found, seen = [], []
    for kinds in ((), (Watcher,)):
        with (
            made() as (gpu, *used),
            gpu.create_stream(name="other") as other,
            gs.profile(gpu) as recording,
        ):
            for kind in kinds:
                gpu.calls.observe(kind())
            seen.append(bool(gpu.calls.recorders))
            for _ in range(3):
                program(gpu, *used, other)
                if read:
                    recording.batches()
        found.append((*rows_of(recording.trace), gpu.now_ns()))
        assert recording.trace.metadata.complete
    assert seen == [True, False]
    assert found[0] == found[1]


def test_a_recording_that_begins_meanwhile_tells_of_what_begins_in_it(ready):
    gpu, handle, operands, stream = ready
    handle.execute(*operands, stream=stream)
    with gs.profile(gpu) as outer:
        handle.execute(*operands, stream=stream)
        with gs.profile(gpu) as inner:
            handle.wait()
            handle.execute(*operands, stream=stream)
        handle.wait()
    assert outer.trace.kind_counts()["handle"] == outer.trace.kind_counts()["kernel"] == 2
    assert inner.trace.kind_counts()["handle"] == inner.trace.kind_counts()["kernel"] == 1
    assert outer.trace.metadata.complete
    assert inner.trace.metadata.complete


def interrupted(gpu, number, act, *rooms):
    """Record ``act`` three times, interrupted at one line of the second; returns the trace."""
    with warnings.catch_warnings(), gs.profile(gpu) as recording:
        warnings.simplefilter("ignore", UserWarning)
        act()
        with Interrupt(*rooms, at=number) as interrupt:
            act()
        recording.batches()
        act()
    return interrupt.raised, recording.trace


@pytest.mark.filterwarnings("ignore:the recording is incomplete")
@pytest.mark.parametrize("rooms", [NOTING, HANDLES])
def test_an_interrupt_at_any_line_loses_no_other_call_and_leaves_the_handle_usable(ready, rooms):
    gpu, handle, operands, stream = ready

    def act():
        with gs.annotate("range"):
            handle.execute(*operands, stream=stream)
            handle.wait()

    for number in itertools.count(1):
        again, trace = interrupted(gpu, number, act, *rooms)
        counts = trace.kind_counts()
        ids = trace.array("id").tolist()
        assert len(set(ids)) == len(ids)
        assert counts["kernel"] in (2, 3)
        assert counts["handle"] in (2, 3)
        finished = trace.where(kind="handle").spans.column("end_ns").drop_null()
        assert counts["sync"] in (2, 3, 4), "a wait that was interrupted may be repeated"
        assert len(finished) >= 2
        assert not handle.in_flight
        if not again:
            break
        for _ in range(2):  # what failed is not ready
            handle.execute(*operands, stream=stream)
            handle.wait()
    assert number > 20
    assert counts["kernel"] == counts["handle"] == counts["sync"] == 3
    assert trace.metadata.complete


def test_a_wait_that_fails_is_a_row_and_the_next_one_sees_the_end(ready, monkeypatch):
    gpu, handle, operands, stream = ready
    wait = gpu.backend.sync_event
    with gs.profile(gpu) as recording:
        stream.launch(
            gs.workloads.spin_kernel(gpu), 1_000_000, grid=1, block=32
        )  # it waits for this
        handle.execute(*operands, stream=stream)

        def fails(event):
            monkeypatch.setattr(gpu.backend, "sync_event", wait)
            raise KeyboardInterrupt

        monkeypatch.setattr(gpu.backend, "sync_event", fails)
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        assert not handle.completion.is_done
        handle.completion.wait()
    counts = recording.trace.kind_counts()
    assert (counts["sync"], counts["handle"]) == (2, 1)
    assert None not in recording.trace.spans.column("end_ns").to_pylist()


def test_threads_that_wait_for_one_call_see_it_once(ready):
    gpu, handle, operands, stream = ready
    with gs.profile(gpu) as recording:
        for _ in range(50):
            handle.execute(*operands, stream=stream)
            threads = [threading.Thread(target=handle.wait) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not handle.in_flight
    assert recording.trace.kind_counts()["handle"] == 50
    assert recording.trace.metadata.complete


def test_a_handle_that_is_recorded_keeps_its_event_and_leaves_the_collector_nothing(ready):
    gpu, handle, operands, stream = ready
    with gs.profile(gpu) as recording:
        handle.execute(*operands, stream=stream)
        handle.wait()
        before = handle._latest.next.event, handle._latest.event
        gc.collect()
        for _ in range(100):
            handle.execute(*operands, stream=stream)
            handle.wait()
        assert {handle._latest.next.event, handle._latest.event} == set(before)
        tracked = [each for each in gc.get_objects() if isinstance(each, Execution)]
        assert tracked == []
    assert recording.trace.kind_counts()["handle"] == 101
