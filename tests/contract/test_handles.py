"""Contract B: reusable handles (rules 1, 2 and 4)."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope.device import caller
from gpuscope.workloads.spin import Spin

HOLD_NS = 30_000_000


def gemm(gpu, **kwargs):
    return gs.Gemm(gpu, m=64, n=32, k=16, **kwargs)


def streams_of(watcher, kind="launch"):
    return [call.stream for call in watcher.begun if call.kind == kind]


def test_handle_01_stream_choice(gpu, watcher):
    handle = gemm(gpu)
    handle.operands()
    key = gpu.info.key
    with gpu.create_stream() as one, gpu.create_stream() as two, gpu.create_stream() as three:
        handle.execute()
        assert streams_of(watcher)[-1] is gpu.default_stream()
        caller.set_current_stream(key, three)
        try:
            handle.execute()
            assert streams_of(watcher)[-1] is three
            with gs.CallerStreamGuard(two):
                handle.execute()
                assert streams_of(watcher)[-1] is two
                handle.execute(stream=one)
                assert streams_of(watcher)[-1] is one
            handle.execute()
            assert streams_of(watcher)[-1] is three
        finally:
            caller.clear_current_stream(key)


def test_handle_01_without_a_selection_it_has_finished(gpu):
    handle = gemm(gpu)
    handle.execute()
    assert handle.completion.is_done
    assert not handle.in_flight


def test_handle_01_owns_no_stream(gpu):
    handle = gemm(gpu)
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
    assert stream.closed
    handle.wait()
    handle.close()


def test_handle_02_returns_at_once_and_is_in_flight(gpu):
    handle = gemm(gpu)
    handle.operands()
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
        handle.wait()
        hold = Spin(gpu, duration_ns=HOLD_NS)
        hold.execute(stream=stream)
        out = handle.execute(stream=stream)
        assert out is handle.operands()[2]
        assert handle.in_flight
        handle.wait()
        assert not handle.in_flight


def test_handle_04_reuse_on_one_stream_needs_no_wait(gpu, watcher):
    handle = gemm(gpu)
    handle.operands()
    with gpu.create_stream() as stream:
        handle.execute(stream=stream)
        handle.execute(stream=stream)
        kinds = [call.kind for call in watcher.begun]
        assert "wait" not in kinds
        assert "sync" not in kinds
    handle.close()


def test_handle_04_another_stream_waits_for_the_completion_event(gpu):
    handle = gemm(gpu)
    handle.operands()
    with gpu.create_stream() as one, gpu.create_stream() as two:
        handle.execute(stream=one)
        handle.execute(stream=two)
        handle.wait()
        hold = Spin(gpu, duration_ns=HOLD_NS)
        hold.execute(stream=one)
        handle.execute(stream=one)
        first = handle.completion
        handle.execute(stream=two)
        second = handle.completion
        assert not first.is_done  # the host did not wait
        second.wait()
        assert first.is_done


def test_handle_05_close_waits_and_a_closed_handle_refuses(gpu):
    handle = gemm(gpu)
    with gpu.create_stream() as stream:
        hold = Spin(gpu, duration_ns=1_000_000)
        hold.execute(stream=stream)
        handle.execute(stream=stream)
        completion = handle.completion
        handle.close()
        assert completion.is_done
        handle.close()
        with pytest.raises(gs.ClosedError, match="make a new one"):
            handle.execute(stream=stream)


def test_handle_made_in_a_partition_is_closed_with_it(gpu):
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        handle = gemm(parts["a"])
        with gs.CallerStreamGuard(parts["a"].create_stream()):
            handle.execute()
    with pytest.raises(gs.ClosedError):
        handle.execute()


def test_handle_11_the_partition_is_told_as_granted(gpu):
    with gpu.carve({"a": 10, "b": "rest"}, rounding="up") as parts:
        assert parts["a"].asked == 10
        assert parts["a"].sm_count == 12


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"m": 0, "n": 1, "k": 1}, "m is 0"),
        ({"m": 1, "n": -2, "k": 1}, "n is -2"),
        ({"m": 1, "n": 1, "k": 1.5}, "k is 1.5"),
        ({"m": 1, "n": 1, "k": 1, "dtype": "int8"}, "int8"),
        ({"m": 1, "n": 1, "k": 1, "sm_count_target": 0}, "sm_count_target"),
    ],
)
def test_gemm_refuses_what_it_cannot_be(gpu, kwargs, text):
    with pytest.raises(gs.InvalidOperand, match=text):
        gs.Gemm(gpu, **kwargs)


def test_gemm_refuses_operands_of_other_sizes(gpu):
    with pytest.raises(gs.InvalidOperand, match="64x32x16"):
        gemm(gpu).execute(gpu.empty((8, 8), "float16"), gpu.empty((8, 8), "float16"),
                          gpu.empty((8, 8), "float16"))  # fmt: skip
