"""Contract D: streams and events."""

from __future__ import annotations

import gc
import inspect
import threading
import warnings

import pytest

import gpuscope as gs
from gpuscope.device import caller
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
    with pytest.raises(gs.ClosedError, match="carve again"):
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
    gpu.backend.record(event.raw, raw, gpu.next_correlation())  # the stream still works
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
        with pytest.raises(gs.ClosedError, match="gone"):
            use()
    event.close()
    for use in (
        event.synchronize,
        lambda: event.is_done,
        lambda: other.record(event),
        lambda: other.wait(event),
        lambda: event.elapsed_ns(since=event),
    ):
        with pytest.raises(gs.ClosedError, match="event is closed"):
            use()
    other.close()


def test_streams_04_launching_sets_the_current_stream_and_restores_it(gpu, watcher):
    key = gpu.info.key
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
        with pytest.raises(gs.StreamError, match="timing=True"):
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
    with pytest.raises(gs.StreamError, match="elsewhere"):
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
    import numpy as np

    source = np.arange(12, dtype=np.float32)
    device, back = gpu.empty(12), np.zeros(12, np.float32)
    with gpu.create_stream() as stream:
        stream.copy(device, source)
        stream.copy(back, device)
        stream.synchronize()
        assert back.tolist() == source.tolist()
        with pytest.raises(gs.InvalidOperand, match="one shape and dtype"):
            stream.copy(gpu.empty(11), device)
