"""Contract B when the driver fails: a fake one at the backend seam, which fails on demand.

After each fault: no deadlock, the right error, nothing left running, the handle usable.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.device.event import take_event
from gpuscope.simulator.engine.backend import SimBackend
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.spin import Spin

JOIN_S = 20
HOLD_NS = 30_000_000


class DriverFault(gs.errors.GpuscopeError):
    """What a failing driver call raises."""


class FaultyBackend(SimBackend):
    """A simulated GPU whose calls fail when told to.

    Attributes
    ----------
    faults
        Name of a call → errors that its next calls raise; ``None`` lets one through.
    calls
        Names of the calls made, in order.
    """

    def __init__(self):
        self.faults = {}
        self.calls = []
        super().__init__()

    def fail(self, name, *, after=0, times=1, error=None):
        self.faults[name] = [None] * after + [error or DriverFault(name)] * times

    def meet(self, name):
        self.calls.append(name)
        left = self.faults.get(name)
        error = left.pop(0) if left else None
        if error is not None:
            raise error


def _watched(name):
    real = getattr(SimBackend, name)

    def call(self, *args, **kwargs):
        self.meet(name)
        return real(self, *args, **kwargs)

    return call


for _name in (
    "copy", "launch", "make_event", "matmul", "record", "sync_event", "sync_stream",
    "synchronize", "wait",
):  # fmt: skip
    setattr(FaultyBackend, _name, _watched(_name))


@pytest.fixture
def backend():
    return FaultyBackend()


@pytest.fixture
def gpu(backend):
    device = Device(backend)
    yield device
    backend.faults.clear()
    device.close()
    spare = Counter(id(event) for event in device.registry.spare_events)
    assert not spare or max(spare.values()) == 1, "an event came back twice"


@pytest.fixture
def stream(gpu):
    with gpu.create_stream() as stream:
        yield stream


@pytest.fixture
def hold_on():
    kept = []

    def keep(gpu, stream, duration_ns=HOLD_NS):
        kept.append(Spin(gpu, duration_ns=duration_ns))
        kept[-1].execute(stream=stream)

    return keep


@pytest.fixture
def hold(gpu, hold_on):
    return lambda stream: hold_on(gpu, stream)


def bounded(function, *args, **kwargs):
    """Call on a thread of its own and give up waiting for it: a deadlock fails the test."""
    found = []

    def call():
        try:
            found.append((function(*args, **kwargs), None))
        except BaseException as error:  # noqa: BLE001 - raised again below
            found.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(JOIN_S)
    assert not thread.is_alive(), "deadlock"
    ((value, error),) = found
    if error is not None:
        raise error
    return value


A = np.arange(24, dtype=np.float32).reshape(6, 4) % 5 + 1
B = np.arange(20, dtype=np.float32).reshape(4, 5) % 3 + 1


def product(gpu, **kwargs):
    return gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32", **kwargs)


def assert_usable(gpu, handle, stream):
    """The lock is free, and calls with host and device operands do what they should."""
    assert not handle._lock.locked()
    assert not bounded(lambda: handle.in_flight)
    out = np.zeros((6, 5), np.float32)
    bounded(handle.execute, A, B, out, stream=stream)
    assert np.array_equal(out, A @ B)
    on_device = gpu.empty((6, 5))
    for _ in range(3):
        bounded(handle.execute, gpu.asarray(A), gpu.asarray(B), on_device, stream=stream)
    bounded(handle.wait)
    assert np.array_equal(gpu.to_host(on_device), A @ B)
    assert not handle.in_flight
    bounded(handle.close)
    with pytest.raises(gs.errors.ClosedError, match="make a new one"):
        bounded(handle.execute, stream=stream)


def warm(handle, stream):
    """Go through all the ways of a call, so that the next one takes the common path."""
    for _ in range(3):
        handle.execute(stream=stream)


# -- what fails while a call is queued -----------------------------------------------------


@pytest.mark.parametrize("warmed", [False, True], ids=["first call", "common path"])
@pytest.mark.parametrize("name", ["record", "matmul"])
def test_handle_06_a_call_that_fails_halfway_is_drained(gpu, backend, stream, hold, name, warmed):
    handle = product(gpu)
    handle.operands()
    if warmed:
        warm(handle, stream)
    hold(stream)
    backend.fail(name)
    backend.calls.clear()
    with pytest.raises(DriverFault, match=name):
        bounded(handle.execute, stream=stream)
    assert backend.calls[-1] == "sync_stream"
    assert backend.stream_done(stream.raw)
    assert_usable(gpu, handle, stream)


@pytest.mark.parametrize("warmed", [False, True], ids=["first call", "common path"])
def test_handle_06_also_when_somebody_holds_the_completion_before(gpu, backend, stream, warmed):
    handle = product(gpu)
    handle.execute(stream=stream)
    if warmed:
        warm(handle, stream)
    before = handle.completion
    backend.fail("record")
    with pytest.raises(DriverFault):
        bounded(handle.execute, stream=stream)
    assert before.is_done
    assert_usable(gpu, handle, stream)
    assert before.is_done


@pytest.mark.parametrize("kind", [Copy, Spin])
@pytest.mark.parametrize("name", ["record", "launch"])
def test_handle_06_of_other_handles(gpu, backend, stream, hold, name, kind):
    handle = kind(gpu, **({"nbytes": 64} if kind is Copy else {"duration_ns": 1000}))
    backend.fail(name)
    with pytest.raises(DriverFault, match=name):
        bounded(handle.execute, stream=stream)
    assert backend.stream_done(stream.raw)
    assert not handle.in_flight
    hold(stream)
    bounded(handle.execute, stream=stream)
    assert handle.in_flight
    bounded(handle.close)
    assert not handle._lock.locked()


def test_handle_06_when_the_stream_cannot_be_synchronised_the_device_is(gpu, backend, stream):
    handle = product(gpu)
    backend.fail("record")
    backend.fail("sync_stream")
    with pytest.raises(DriverFault, match="record"):
        bounded(handle.execute, stream=stream)
    assert backend.calls[-2:] == ["sync_stream", "synchronize"]
    assert_usable(gpu, handle, stream)


def test_handle_06_where_nothing_can_be_waited_for_the_first_error_says_so(gpu, backend, stream):
    handle = product(gpu)
    backend.fail("record")
    backend.fail("sync_stream")
    backend.fail("synchronize")
    with pytest.raises(DriverFault, match="record") as caught:
        bounded(handle.execute, stream=stream)
    assert caught.value.__notes__ == ["Waiting for what was queued failed too: synchronize"]
    assert_usable(gpu, handle, stream)


def test_handle_06_an_interrupt_is_drained_too(gpu, backend, stream, hold):
    handle = product(gpu)
    hold(stream)
    backend.fail("record", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bounded(handle.execute, stream=stream)
    assert backend.stream_done(stream.raw)
    assert_usable(gpu, handle, stream)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_handle_07_a_copy_that_fails_drains_before_the_error_leaves(
    gpu, backend, stream, hold, after
):
    handle = product(gpu)
    hold(stream)
    out = np.zeros((6, 5), np.float32)
    backend.fail("copy", after=after)
    with pytest.raises(DriverFault, match="copy"):
        bounded(handle.execute, A, B, out, stream=stream)
    assert ("matmul" in backend.calls) == (after == 2)
    assert backend.calls[-1] == "sync_stream"
    assert backend.stream_done(stream.raw)
    assert_usable(gpu, handle, stream)


def test_handle_04_an_event_that_cannot_be_made_leaves_everything_as_it_was(gpu, backend, stream):
    handle = product(gpu)
    backend.fail("make_event")
    with pytest.raises(DriverFault, match="make_event"):
        bounded(handle.execute, stream=stream)
    assert "matmul" not in backend.calls, "nothing was launched"
    assert handle.completion is None
    warm(handle, stream)
    before = handle.completion
    backend.fail("make_event")
    backend.calls.clear()
    with pytest.raises(DriverFault, match="make_event"):
        bounded(handle.execute, stream=stream)
    assert "matmul" not in backend.calls
    assert handle.completion is before
    before.wait()
    assert_usable(gpu, handle, stream)


@pytest.mark.parametrize("warmed", [False, True], ids=["second call", "common path"])
def test_handle_04_a_stream_that_cannot_wait_launches_nothing(gpu, backend, stream, hold, warmed):
    handle = product(gpu)
    hold(stream)
    handle.execute(stream=stream)
    if warmed:
        warm(handle, stream)
    with gpu.create_stream() as other:
        backend.fail("wait")
        backend.calls.clear()
        with pytest.raises(DriverFault, match="wait"):
            bounded(handle.execute, stream=other)
        assert backend.calls == ["wait"]
        assert handle.in_flight, "the call before is still there, and in flight"
        handle.execute(stream=other)
        assert backend.calls[1:] == ["wait", "matmul", "record"], "the order is not forgotten"
        handle.wait()
    assert_usable(gpu, handle, stream)


# -- what fails while somebody waits -------------------------------------------------------


def test_handle_04_the_mark_clears_even_if_the_wait_before_overwriting_fails(
    gpu, backend, stream, hold
):
    handle = product(gpu)
    handle.operands()
    hold(stream)
    handle.execute(stream=stream)
    backend.fail("sync_event")
    out = np.zeros((6, 5), np.float32)
    backend.calls.clear()
    with pytest.raises(DriverFault, match="sync_event"):
        bounded(handle.execute, A, B, out, stream=stream)
    assert backend.calls == ["sync_event"], "nothing was copied over what may be read"
    assert not handle.in_flight
    assert_usable(gpu, handle, stream)


def test_handle_04_the_mark_clears_even_if_a_wait_fails(gpu, backend, stream, hold):
    handle = product(gpu, max_in_flight=2)
    hold(stream)
    handle.execute(stream=stream)
    handle.execute(stream=stream)
    backend.fail("sync_event")
    with pytest.raises(DriverFault, match="sync_event"):
        bounded(handle.wait)
    assert backend.calls.count("sync_event") == 2, "the other call is waited for all the same"
    assert not handle.in_flight
    assert_usable(gpu, handle, stream)


def test_handle_03_a_final_wait_that_fails_drains_the_stream(gpu, backend, stream, hold):
    handle = product(gpu)
    hold(stream)
    out = np.zeros((6, 5), np.float32)
    backend.fail("sync_event")
    with pytest.raises(DriverFault, match="sync_event"):
        bounded(handle.execute, A, B, out, stream=stream)
    assert backend.calls[-1] == "sync_stream"
    assert backend.stream_done(stream.raw)
    assert_usable(gpu, handle, stream)


def test_handle_01_so_does_one_on_the_default_stream(gpu, backend, stream):
    handle = product(gpu)
    backend.fail("sync_event")
    with pytest.raises(DriverFault, match="sync_event"):
        bounded(handle.execute)
    assert backend.calls[-1] == "sync_stream"
    assert_usable(gpu, handle, stream)


# -- closing -------------------------------------------------------------------------------


def leave_by_close(handle):
    handle.close()


def leave_by_with(handle):
    with handle:
        pass


@pytest.mark.parametrize("leave", [leave_by_close, leave_by_with])
def test_handle_05_closing_never_raises_and_logs(gpu, backend, stream, caplog, leave):
    handle = product(gpu, name="mine")
    handle.execute(stream=stream)
    backend.fail("sync_event")
    with caplog.at_level(logging.ERROR, logger="gpuscope"):
        bounded(leave, handle)
    (record,) = caplog.records
    assert record.name == "gpuscope"
    assert "waiting for handle 'mine' failed" in record.getMessage()
    assert record.exc_info[0] is DriverFault
    assert not handle._lock.locked()
    assert not handle.in_flight
    with pytest.raises(gs.errors.ClosedError):
        bounded(handle.execute, stream=stream)
    bounded(handle.close)
    assert len(caplog.records) == 1


def test_handle_05_every_call_of_a_ring_is_waited_for_though_one_fails(
    gpu, backend, stream, caplog
):
    handle = product(gpu, max_in_flight=3)
    for _ in range(3):
        handle.execute(stream=stream)
    backend.fail("sync_event")
    with caplog.at_level(logging.ERROR, logger="gpuscope"):
        bounded(handle.close)
    assert backend.calls.count("sync_event") == 3
    assert len(caplog.records) == 1


def test_handle_05_a_collected_handle_never_raises_and_logs(gpu, backend, stream, caplog):
    handle = product(gpu, name="mine", max_in_flight=2)
    handle.execute(stream=stream)
    handle.execute(stream=stream)
    backend.fail("sync_event")
    with caplog.at_level(logging.ERROR, logger="gpuscope"):
        del handle
        gc.collect()
    assert backend.calls.count("sync_event") == 2
    (record,) = caplog.records
    assert "waiting for handle 'mine' failed" in record.getMessage()


def test_handle_05_a_collected_event_is_there_for_the_handle_that_waits(gpu, backend, stream):
    handle = product(gpu)
    handle.execute(stream=stream)
    cycle = [handle]
    cycle.append(cycle)
    del handle, cycle
    backend.calls.clear()
    gc.collect()
    assert "sync_event" in backend.calls
    assert "close_event" not in backend.calls
    assert all(not event.closed for event in gpu.registry.spare_events)


def test_handle_05_collection_tells_no_observer(gpu, stream):
    """The collector may run inside an observer, which holds a lock of its own."""

    class Lockable:
        def __init__(self):
            self.lock = threading.Lock()

        def call_begins(self, call):
            with self.lock:
                pass

        call_ends = call_begins

        def activity(self, activity):
            """Comes from the simulated GPU itself, which a wait lets run."""

    handle = product(gpu)
    handle.execute(stream=stream)
    watcher = Lockable()
    gpu.calls.observe(watcher)
    held = [handle]
    del handle

    def collect():
        with watcher.lock:
            held.clear()

    bounded(collect)
    gpu.calls.unobserve(watcher)


def test_handle_05_the_stream_may_be_destroyed_before(gpu, backend):
    handle = product(gpu)
    handle.operands()
    raw, number = backend.make_stream(None, 0)
    theirs = gpu.wrap_stream(number)
    handle.execute(stream=theirs)
    backend.close_stream(raw, number)
    backend.calls.clear()
    bounded(handle.close)
    assert backend.calls == ["sync_event"]


def test_handle_05_a_destroyed_stream_is_refused_and_the_handle_goes_on(gpu, backend, stream):
    handle = product(gpu)
    with gpu.create_stream() as gone:
        warm(handle, gone)
    backend.calls.clear()
    for way in ({"stream": gone}, {}):
        with pytest.raises(gs.errors.ClosedError, match="is closed"):
            if way:
                bounded(handle.execute, **way)
            else:
                with gs.CallerStreamGuard(gone):
                    handle.execute()
    assert backend.calls == []
    assert_usable(gpu, handle, stream)


def test_handle_05_a_stream_that_dies_under_a_call_is_an_error_and_no_hang(gpu, backend):
    """Somebody else's stream, destroyed: every driver call on it fails, the device's do not."""
    handle = product(gpu)
    handle.operands()
    _, number = backend.make_stream(None, 0)
    theirs = gpu.wrap_stream(number)
    handle.execute(stream=theirs)
    backend.fail("record")
    backend.fail("sync_stream")
    with pytest.raises(DriverFault, match="record"):
        bounded(handle.execute, stream=theirs)
    assert backend.calls[-1] == "synchronize"
    with gpu.create_stream() as ours:
        assert_usable(gpu, handle, ours)


# -- threads -------------------------------------------------------------------------------


def test_handle_09_faults_on_many_threads_leave_no_lock_and_no_event_behind(gpu, backend):
    handle = product(gpu, max_in_flight=3)
    errors, kept, streams = [], [], [gpu.create_stream() for _ in range(4)]
    wild = {"record": 7, "wait": 5, "sync_event": 3, "make_event": 2, "copy": 4}
    for name, count in wild.items():
        backend.faults[name] = [None, None, DriverFault(name)] * count
    a, b = gpu.asarray(A), gpu.asarray(B)

    def work(index):
        for turn in range(60):
            out = np.zeros((6, 5), np.float32)
            try:
                if turn % 3 == 0:
                    handle.execute(A, B, out, stream=streams[index])
                    assert np.array_equal(out, A @ B)
                else:
                    handle.execute(a, b, stream=streams[(index + turn) % 4])
                if turn % 7 == 0:
                    handle.wait()
                if turn % 5 == 0:
                    kept.append(handle.completion)
            except DriverFault as error:
                errors.append(str(error))

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), "deadlock"
    backend.faults.clear()
    assert {"record", "copy"} <= set(errors)
    handle.wait()
    assert not handle.in_flight
    assert_usable(gpu, handle, streams[0])
    for one in streams:
        one.close()


def test_two_threads_never_take_the_same_spare_event(gpu):
    for _ in range(3):
        gpu.registry.give_event(gpu.create_event(timing=False))
    taken, start = [], threading.Barrier(4)

    def take():
        start.wait()
        taken.extend(take_event(gpu) for _ in range(50))

    threads = [threading.Thread(target=take, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    assert len({id(event) for event in taken}) == 200


def test_an_event_that_somebody_asked_for_is_not_recorded_again(gpu, stream, hold):
    """A completion's event goes back to the spare ones only if nobody may still hold it."""
    handle = product(gpu)
    handle.execute(stream=stream)
    event = handle.completion.event
    handle.wait()
    hold(stream)
    for _ in range(3):
        handle.execute(stream=stream)
    assert event.is_done
    assert all(event is not spare for spare in gpu.registry.spare_events)


def test_completions_that_come_and_go_take_no_new_events(gpu, backend, stream):
    handle = product(gpu)
    for _ in range(5):
        handle.execute(stream=stream)
        handle.completion.wait()
    backend.calls.clear()
    for _ in range(50):
        handle.execute(stream=stream)
        handle.wait()
        assert handle.completion.is_done
    assert "make_event" not in backend.calls
    assert len(gpu.registry.spare_events) <= 2


# -- graphs --------------------------------------------------------------------------------


class GraphBackend(FaultyBackend):
    """A simulated GPU with graphs of GEMMs: while a stream is captured, they are only noted."""

    def __init__(self):
        super().__init__()
        self.capabilities = replace(self.capabilities, graphs=True)
        self.captured = {}

    def matmul(self, stream, plan, operands, sm_count, correlation, event=None):
        if stream.handle in self.captured:
            self.captured[stream.handle].append((plan, operands, sm_count))
            return
        super().matmul(stream, plan, operands, sm_count, correlation, event)

    def begin_capture(self, stream):
        self.meet("begin_capture")
        self.captured[stream.handle] = []

    def end_capture(self, stream):
        if stream.handle not in self.captured:
            raise gs.errors.GpuscopeError("nothing is being captured")
        found = self.captured.pop(stream.handle)
        self.meet("end_capture")
        return found

    def launch_graph(self, graph, stream, correlation):
        self.meet("launch_graph")
        for plan, operands, sm_count in graph:
            SimBackend.matmul(
                self, SimpleNamespace(raw=stream), plan, operands, sm_count, correlation
            )

    def graph_is_empty(self, graph):
        return not graph

    def close_graph(self, graph):
        self.meet("close_graph")


@pytest.fixture
def graphs():
    backend = GraphBackend()
    device = Device(backend)
    yield device
    backend.faults.clear()
    device.close()


WORK = {"matmul", "launch_graph", "begin_capture", "close_graph", "copy"}


def did(backend):
    """What was done since the last time."""
    found = [name for name in backend.calls if name in WORK]
    backend.calls.clear()
    return found


def test_guard_14_a_handle_runs_once_is_captured_and_replays(graphs):
    backend, handle = graphs.backend, product(graphs)
    a, b, out = graphs.asarray(A), graphs.asarray(B), graphs.empty((6, 5))
    handle.use_graph()
    with graphs.create_stream() as one, graphs.create_stream() as two:
        handle.execute(a, b, out, stream=one)
        assert did(backend) == ["matmul", "begin_capture"]
        for stream in (one, two, one):
            handle.execute(a, b, out, stream=stream)
            assert did(backend) == ["launch_graph"]
        assert np.array_equal(graphs.to_host(out), A @ B)
        other = graphs.empty((6, 5))
        handle.execute(a, b, other, stream=one)
        assert did(backend) == ["matmul", "close_graph", "begin_capture"], "another address"
        handle.execute(a, b, other, stream=one)
        assert did(backend) == ["launch_graph"]
        with graphs.carve([16]) as parts:
            handle.execute(a, b, other, stream=parts[0].create_stream())
            assert did(backend) == ["matmul", "close_graph", "begin_capture"], "another partition"
        handle.execute(a, b, other, stream=one)
        assert "launch_graph" not in did(backend), "that graph was closed with its partition"
        host = np.zeros((6, 5), np.float32)
        for expected in (["matmul", "close_graph", "begin_capture"], ["launch_graph"]):
            handle.execute(A, B, host, stream=two)
            assert sorted(did(backend)) == sorted(["copy"] * 3 + expected)
            assert np.array_equal(host, A @ B)
            host[...] = 0
        handle.drop_graph()
        assert did(backend) == ["close_graph"]
        handle.execute(a, b, out, stream=one)
        assert did(backend) == ["matmul"]
    handle.close()


def test_guard_14_refused_before_any_state_changes_also_once_captured(graphs):
    backend, handle = graphs.backend, product(graphs)
    handle.use_graph()
    with graphs.create_stream() as stream:
        handle.execute(stream=stream)
        handle.execute(stream=stream)
        before = handle.completion
        backend.calls.clear()
        for selected in (stream, stream.handle, 0):
            with (
                gs.CallerStreamGuard(selected),
                pytest.raises(gs.errors.StreamError, match="drop_graph"),
            ):
                handle.execute()
        assert backend.calls == []
        assert handle.completion is before
        with gs.CallerStreamGuard(stream):
            handle.execute(stream=stream)
        assert did(backend) == ["launch_graph"], "an explicit stream is not the guard's"
    handle.close()


def test_guard_14_without_a_stream_a_replay_has_finished_when_it_returns(graphs):
    handle = product(graphs)
    handle.use_graph()
    for _ in range(3):
        handle.execute()
        assert not handle.in_flight
    assert "launch_graph" in graphs.backend.calls
    handle.close()
    assert graphs.backend.calls[-1] == "close_graph"


@pytest.mark.parametrize("name", ["begin_capture", "end_capture", "launch_graph"])
def test_handle_06_a_capture_or_replay_that_fails_is_drained(graphs, hold_on, name):
    backend, handle = graphs.backend, product(graphs)
    handle.use_graph()
    with graphs.create_stream() as stream:
        if name == "launch_graph":
            handle.execute(stream=stream)
        hold_on(graphs, stream)
        backend.fail(name)
        with pytest.raises(DriverFault, match=name):
            bounded(handle.execute, stream=stream)
        assert backend.stream_done(stream.raw)
        assert not stream.capturing
        backend.calls.clear()
        handle.execute(stream=stream)
        handle.execute(stream=stream)
        assert did(backend)[-1] == "launch_graph"
        handle.wait()
        assert_usable(graphs, handle, stream)


def test_handle_02_inside_somebodys_capture_it_records_nothing(graphs):
    backend, handle = graphs.backend, product(graphs)
    a, b, out = graphs.asarray(A), graphs.asarray(B), graphs.empty((6, 5))
    with graphs.create_stream() as stream:
        handle.execute(a, b, out, stream=stream)
        handle.wait()
        before = handle.completion
        backend.calls.clear()
        with stream.capture() as graph, gs.CallerStreamGuard(stream):
            handle.execute(a, b, out)
            with pytest.raises(gs.errors.StreamError, match="host memory"):
                handle.execute(A, b, out)
            with pytest.raises(gs.errors.StreamError, match=r"call operands\(\) before"):
                handle.execute(a, b)
        assert backend.calls == ["begin_capture", "end_capture"]
        assert handle.completion is before
        graph.launch(stream=stream)
        assert np.array_equal(graphs.to_host(out), A @ B)
        graph.close()
        assert_usable(graphs, handle, stream)
