"""Contract D: streams and events."""

from __future__ import annotations

import gc
import inspect
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device import caller
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.event import Event
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.spin import Spin

HOLD_NS = 30_000_000


def test_streams_01_with_waits_then_destroys(gpu):
    hold = Spin(gpu, duration_ns=HOLD_NS)
    with gpu.create_stream() as stream:
        hold.execute(stream=stream)
        event = stream.record()
        assert not event.is_done
    assert event.is_done
    assert stream.closed


def test_streams_01_with_waits_also_on_an_exception(gpu):
    hold = Spin(gpu, duration_ns=HOLD_NS)
    with pytest.raises(ZeroDivisionError), gpu.create_stream() as stream:
        hold.execute(stream=stream)
        event = stream.record()
        raise ZeroDivisionError
    assert event.is_done
    assert stream.closed


def test_streams_01_close_is_idempotent(gpu):
    stream = gpu.create_stream()
    stream.close()
    stream.close()
    assert stream.closed


def test_streams_01_a_partition_owns_its_streams(gpu):
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        stream = parts["a"].create_stream()
        assert stream.partition is parts["a"]
        assert parts["a"].streams == (stream,)
    assert stream.closed
    assert parts["a"].closed
    with pytest.raises(gs.errors.ClosedError, match="carve again"):
        parts["a"].create_stream()


def test_streams_01_an_unclosed_one_warns_once_and_is_destroyed(gpu):
    stream = gpu.create_stream(name="forgotten")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del stream
        gc.collect()
    ours = [w for w in seen if issubclass(w.category, ResourceWarning) and "forgotten" in str(w)]
    ours += [w for w in seen if "forgotten" in str(w.message) and w not in ours]
    assert len(ours) == 1


def test_streams_02_a_borrowed_stream_is_never_destroyed(gpu):
    raw, handle = gpu.backend.make_stream(None, 0)
    with gpu.wrap_stream(handle) as borrowed:
        assert borrowed.handle == handle
        hold = Spin(gpu, duration_ns=1000)
        hold.execute(stream=borrowed)
    assert borrowed.closed
    event = gpu.create_event()
    gpu.backend.record(event.raw, raw, gpu.calls.next_correlation())  # the stream still works
    gpu.backend.sync_event(event.raw)
    assert event.is_done
    gpu.backend.close_stream(raw, handle)


def test_streams_03_closed_ones_raise_and_never_fall_through(gpu):
    kernel_user = Spin(gpu, duration_ns=1000)
    gemm = gs.Gemm(gpu, m=8, n=8, k=8)
    stream = gpu.create_stream(name="gone")
    event = stream.record()
    other = gpu.create_stream()
    stream.close()
    for use in (
        stream.record,
        stream.synchronize,
        lambda: stream.wait(event),
        lambda: stream.is_done,
        lambda: stream.handle,
        stream.__cuda_stream__,
        lambda: stream.host_call(lambda: None),
        lambda: stream.copy(gpu.empty(1), gpu.empty(1)),
        lambda: kernel_user.execute(stream=stream),
        lambda: gemm.execute(stream=stream),
        lambda: gs.mm_out(*gemm.operands()[::-1], stream=stream),
        stream.__enter__,
    ):
        with pytest.raises(gs.errors.ClosedError, match="gone"):
            use()
    event.close()
    for use in (
        event.synchronize,
        lambda: event.is_done,
        lambda: other.record(event),
        lambda: other.wait(event),
        lambda: event.elapsed_ns(since=event),
    ):
        with pytest.raises(gs.errors.ClosedError, match="event is closed"):
            use()
    other.close()


def test_streams_04_launching_sets_the_current_stream_and_restores_it(gpu, watcher):
    key = gpu.identity
    spin = Spin(gpu, duration_ns=1000)
    during = []
    watcher.on_begin = lambda call: during.append(caller.peek_current_stream(key))
    with gpu.create_stream() as before, gpu.create_stream() as stream:
        assert caller.peek_current_stream(key) is None
        stream.launch(spin._kernel, 1000, grid=1, block=32)
        assert during == [stream]
        assert caller.peek_current_stream(key) is None
        caller.set_current_stream(key, before)
        try:
            stream.launch(spin._kernel, 1000, grid=1, block=32)
            assert caller.peek_current_stream(key) is before
        finally:
            caller.clear_current_stream(key)


def test_streams_05_events_order_and_time(gpu):
    hold = Spin(gpu, duration_ns=5_000_000)
    with gpu.create_stream() as one, gpu.create_stream() as other:
        start = one.record()
        hold.execute(stream=one)
        end = gpu.create_event()
        end.record(one)
        other.wait(end)
        after = other.record()
        assert not after.is_done
        after.synchronize()
        assert end.is_done
        assert 5_000_000 <= end.elapsed_ns(since=start) < 1_000_000_000
        assert start.elapsed_ns(since=end) == -end.elapsed_ns(since=start)
        assert after.elapsed_ns(since=end) >= -1000  # CUDA's resolution is 0.5 µs


def test_streams_05_waiting_for_an_unrecorded_event_does_nothing(gpu):
    with gpu.create_stream() as stream:
        event = gpu.create_event()
        assert event.is_done
        stream.wait(event)
        event.synchronize()
        stream.synchronize()


@pytest.mark.gpu_alone("30 ms must outlast a wait")
def test_streams_05_recording_again_changes_nothing_for_queued_waits(gpu):
    with gpu.create_stream() as one, gpu.create_stream() as other:
        event = one.record()
        other.wait(event)
        hold = Spin(gpu, duration_ns=HOLD_NS)
        hold.execute(stream=one)
        one.record(event)
        mark = other.record()
        mark.synchronize()
        assert not event.is_done


def test_streams_05_timing_can_be_off(gpu):
    with gpu.create_stream() as stream:
        timed, untimed = stream.record(), stream.record(timing=False)
        stream.synchronize()
        with pytest.raises(gs.errors.StreamError, match="timing=True"):
            untimed.elapsed_ns(since=timed)


def test_streams_05_time_between_partitions(gpu):
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        a, b = parts["a"].create_stream(), parts["b"].create_stream()
        start = a.record()
        hold = Spin(gpu, duration_ns=2_000_000)
        hold.execute(stream=a)
        middle = a.record()
        b.wait(middle)
        end = b.record()
        end.synchronize()
        assert end.elapsed_ns(since=start) >= 2_000_000


def test_streams_07_any_thread_may_use_any_stream(gpu):
    errors = []

    def work(stream):
        try:
            hold = Spin(gpu, duration_ns=1000)
            hold.execute(stream=stream)
            stream.synchronize()
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    with gpu.create_stream() as stream:
        threads = [threading.Thread(target=work, args=(stream,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_streams_11_every_launch_takes_a_keyword_only_stream():
    for function in (gs.mm_out, gs.Gemm.execute, Copy.execute, Spin.execute):
        parameter = inspect.signature(function).parameters["stream"]
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is None


def test_a_stream_of_another_device_is_refused(gpu):
    elsewhere = gs.open_device("sim:h200", quiet=True)
    stream = elsewhere.create_stream(name="elsewhere")
    with pytest.raises(gs.errors.StreamError, match="elsewhere"):
        hold = Spin(gpu, duration_ns=1000)
        hold.execute(stream=stream)
    stream.close()


def test_host_calls_run_in_stream_order(gpu):
    seen = []
    with gpu.create_stream() as stream:
        hold = Spin(gpu, duration_ns=1_000_000)
        hold.execute(stream=stream)
        stream.host_call(lambda: seen.append("first"))
        stream.host_call(lambda: seen.append("second"))
        stream.synchronize()
    assert seen == ["first", "second"]


def test_copies_move_values_in_stream_order(gpu):
    source = np.arange(12, dtype=np.float32)
    device, back = gpu.empty(12), np.zeros(12, np.float32)
    with gpu.create_stream() as stream:
        stream.copy(device, source)
        stream.copy(back, device)
        stream.synchronize()
        assert back.tolist() == source.tolist()
        with pytest.raises(gs.errors.InvalidOperand, match="one shape and dtype"):
            stream.copy(gpu.empty(11), device)


def together(count, work):
    """Run ``work(index)`` on ``count`` threads that begin at the same time; raises its errors."""
    start = threading.Barrier(count)

    def begin(index):
        start.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def test_streams_07_many_threads_on_many_streams(gpu):
    streams = [gpu.create_stream() for _ in range(4)]
    holds = [Spin(gpu, duration_ns=1000) for _ in range(4)]

    def work(index):
        for turn in range(20):
            stream = streams[(index + turn) % 4]
            holds[index].execute(stream=stream)
            event = stream.record()
            streams[(index + turn + 1) % 4].wait(event)
            event.synchronize()
            event.close()

    together(4, work)
    for stream in streams:
        stream.synchronize()
        stream.close()


COPY_SOURCE = r"""
extern "C" __global__ void copy_floats(float* out, const float* in, long long n) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    out[i] = in[i];
}
"""


def test_streams_08_two_threads_launching_one_kernel_do_not_share_its_arguments(gpu):
    n, turns = 1000, 40
    kernel = gpu.compile(
        COPY_SOURCE,
        "copy_floats",
        model=KernelModel(
            lambda *_: KernelCost(1, 1000),
            reads=lambda args: [args[1]],
            writes=lambda args: args[0],
            compute=lambda values: values,
        ),
    )
    values = [[gpu.asarray(np.full(n, 100 * i + t, np.float32)) for t in range(turns)]
              for i in range(2)]  # fmt: skip
    outs = [[gpu.empty(n) for _ in range(turns)] for _ in range(2)]
    with gpu.create_stream() as one, gpu.create_stream() as two:

        def work(index):
            stream = (one, two)[index]
            for out, value in zip(outs[index], values[index], strict=True):
                stream.launch(kernel, out, value, n, grid=4, block=64)

        together(2, work)
    for index in range(2):
        for turn in range(turns):
            assert (gpu.to_host(outs[index][turn]) == 100 * index + turn).all()


@pytest.mark.parametrize("how", ["one handle", "a handle each", "mm_out", "mm_out, no stream"])
def test_streams_08_two_threads_launching_one_workload_do_not_share_memory(gpu, how):
    """A long inner dimension makes a BLAS split it, and keep partial sums in a workspace."""
    m, k, n, turns = 64, 4096, 64, 15
    rng = np.random.default_rng(8)
    hosts = [(rng.integers(-3, 4, (m, k)), rng.integers(-3, 4, (k, n))) for _ in range(2)]
    operands = [tuple(gpu.asarray(array, "float32") for array in pair) for pair in hosts]
    outs = [[gpu.empty((m, n)) for _ in range(turns)] for _ in range(2)]
    shared = gs.Gemm(gpu, m=m, n=n, k=k, dtype="float32")
    own = [gs.Gemm(gpu, m=m, n=n, k=k, dtype="float32") for _ in range(2)]
    with gpu.create_stream() as one, gpu.create_stream() as two:

        def work(index):
            stream = (one, two)[index]
            a, b = operands[index]
            for out in outs[index]:
                if how == "one handle":
                    shared.execute(a, b, out, stream=stream)
                elif how == "a handle each":
                    own[index].execute(a, b, out, stream=stream)
                elif how == "mm_out":
                    gs.mm_out(out, a, b, stream=stream)
                else:
                    gs.mm_out(out, a, b)

        together(2, work)
    gpu.synchronize()
    for index, (a, b) in enumerate(hosts):
        expected = (a @ b).astype(np.float32)
        for out in outs[index]:
            assert (gpu.to_host(out) == expected).all()
    for handle in (shared, *own):
        handle.close()


@pytest.mark.gpu_alone("measures overlap")
def test_streams_10_two_streams_that_should_overlap_do(gpu):
    """The benchmark says how well; this says that they do, on their own partitions and not."""
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        pairs = [
            (parts["a"].create_stream(), parts["b"].create_stream()),
            (gpu.create_stream(), gpu.create_stream()),
        ]
        for one, two in pairs:
            holds = Spin(gpu, duration_ns=HOLD_NS), Spin(gpu, duration_ns=HOLD_NS)
            for hold, stream in zip(holds, (one, two), strict=True):  # kernels are loaded now
                stream.launch(hold._kernel, 1000, grid=1, block=32)
                stream.synchronize()
            begin = one.record()
            two.wait(begin)
            holds[0].execute(stream=one)
            holds[1].execute(stream=two)
            ends = one.record(), two.record()
            for end in ends:
                end.synchronize()
            assert max(end.elapsed_ns(since=begin) for end in ends) < 1.7 * HOLD_NS
        for stream in pairs[1]:
            stream.close()


def test_streams_12_time_across_partitions_adds_up(gpu):
    """Both clocks are the GPU's: what two streams measure of each other agrees."""
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        a, b = parts["a"].create_stream(), parts["b"].create_stream()
        hold = Spin(gpu, duration_ns=2_000_000)
        first = a.record()
        hold.execute(stream=a)
        middle = a.record()
        b.wait(middle)
        crossed = b.record()
        hold.execute(stream=b)
        last = b.record()
        last.synchronize()
        whole = last.elapsed_ns(since=first)
        steps = (
            middle.elapsed_ns(since=first),
            crossed.elapsed_ns(since=middle),
            last.elapsed_ns(since=crossed),
        )
        assert all(isinstance(step, int) for step in steps)
        assert abs(sum(steps) - whole) <= 4 * 500, "CUDA's resolution is 0.5 µs for each"
        assert steps[0] >= 2_000_000
        assert steps[2] >= 2_000_000
        assert steps[1] >= -500
        assert first.elapsed_ns(since=last) == -whole


def test_streams_12_the_resolution_is_documented():
    assert "Resolution" in Event.elapsed_ns.__doc__
    assert "0.5 µs" in Event.elapsed_ns.__doc__
    assert "worse over long spans" in Event.__doc__
