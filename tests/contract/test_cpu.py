"""Contract D, rule 9: a device without streams, where every operation works and does nothing."""

from __future__ import annotations

import sys
import threading
import warnings

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device import caller
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.spin import Spin

DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture
def cpu():
    device = gs.open_device("cpu", quiet=True)
    yield device
    device.close()


def test_streams_09_there_is_one_and_it_says_what_it_is(cpu, capsys):
    assert gs.open_device("cpu") is cpu
    assert "CPU" in capsys.readouterr().out
    assert cpu.info.key == cpu.info.kind == "cpu"
    assert not cpu.is_simulated
    assert cpu.sm_count == 0


def test_streams_09_capabilities_say_so_and_why(cpu):
    can = cpu.capabilities
    for name in (
        "streams", "partitions", "arbitrary_split", "stream_ordered_memory", "compile_source",
        "graphs",
    ):  # fmt: skip
        assert getattr(can, name) is False
        with pytest.raises(gs.errors.CapabilityError, match=r"CPU|SMs") as caught:
            can.require(name, feature="this")
        assert "open" in str(caught.value), "and what to do instead"
    assert can.partition_path is None


def test_streams_09_every_operation_of_a_stream_works_and_does_nothing(cpu):
    seen = []
    with cpu.create_stream(name="mine", priority=-1) as stream:
        assert stream.handle == 0
        assert stream.__cuda_stream__() == (0, 0)
        assert (stream.name, stream.priority, stream.partition) == ("mine", -1, None)
        assert stream.sm_count_target == 0
        assert stream.is_done
        stream.synchronize()
        event = stream.record()
        stream.wait(event)
        stream.wait(cpu.create_event())
        stream.host_call(lambda: seen.append("called"))
        assert seen == ["called"], "work is done when its call returns"
        assert stream.is_done
    assert stream.closed
    with pytest.raises(gs.errors.ClosedError):
        stream.synchronize()
    stream.close()
    cpu.synchronize()


def test_streams_09_every_operation_of_an_event_works_and_does_nothing(cpu):
    with cpu.create_stream() as stream:
        event = cpu.create_event()
        assert event.is_done
        event.synchronize()
        event.record(stream)
        later = stream.record()
        assert later.is_done
        assert later.elapsed_ns(since=event) >= 0
        assert event.elapsed_ns(since=event) == 0
        with pytest.raises(gs.errors.StreamError, match="timing=True"):
            stream.record(timing=False).elapsed_ns(since=event)
        event.close()
        event.close()
        with pytest.raises(gs.errors.ClosedError):
            stream.wait(event)


def test_streams_09_handles_are_zero_everywhere(cpu):
    with cpu.create_stream() as stream, cpu.wrap_stream(0) as borrowed:
        found = stream, borrowed, cpu.default_stream()
        assert [one.handle for one in found] == [0, 0, 0]
        with gs.CallerStreamGuard(stream):
            assert gs.get_caller_stream() is stream
        with gs.CallerStreamGuard(0):
            gs.mm_out(cpu.empty((2, 2)), cpu.empty((2, 2)), cpu.empty((2, 2)))


def test_streams_09_streams_are_told_apart_though_their_handles_are_not(cpu):
    one, two = cpu.create_stream(name="one"), cpu.create_stream(name="two")
    assert one.id != two.id
    default = cpu.default_stream()
    assert default is not one
    assert default is not two
    assert default.name == "per-thread default"
    two.close()
    assert not one.closed
    cpu.close()
    assert one.closed, "closing the device closes every stream"
    gs.mm_out(cpu.empty((2, 2)), cpu.empty((2, 2)), cpu.empty((2, 2)))  # it stays usable
    assert not cpu.default_stream().closed


def test_streams_09_nothing_is_left_behind_quietly(cpu):
    with pytest.warns(ResourceWarning, match="forgotten"):
        cpu.create_stream(name="forgotten")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cpu.create_stream(), cpu.create_stream():
            pass


def test_streams_09_arrays_and_copies(cpu):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = cpu.asarray(values)
    values[0, 0] = 99
    assert cpu.to_host(array)[0, 0] == 0, "asarray copies"
    assert cpu.empty((2, 3), "bfloat16").dtype.name == "bfloat16"
    random = cpu.to_host(cpu.random(1000, seed=1))
    assert -0.5 <= random.min() < random.max() < 0.5
    assert (random == cpu.to_host(cpu.random(1000, seed=1))).all()
    out, back = cpu.empty((3, 4)), np.zeros((3, 4), np.float32)
    with cpu.create_stream() as stream:
        stream.copy(out, array)
        stream.copy(back, out)
        with pytest.raises(gs.errors.InvalidOperand, match="one shape and dtype"):
            stream.copy(cpu.empty(3), array)
    assert back.tolist() == np.arange(12.0).reshape(3, 4).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_streams_09_mm_out(cpu, dtype):
    rng = np.random.default_rng(9)
    a, b = rng.integers(-4, 5, (12, 20)), rng.integers(-4, 5, (20, 9))
    left = cpu.asarray(a, dtype), cpu.asarray(np.ascontiguousarray(a.T), dtype).T
    right = cpu.asarray(b, dtype), cpu.asarray(np.repeat(b, 2, axis=1), dtype)[:, ::2]
    for one in left:
        for two in right:
            out = cpu.asarray(np.full((12, 9), np.nan), dtype)
            with cpu.create_stream() as stream:
                assert gs.mm_out(out, one, two, stream=stream) is out
            assert cpu.to_host(out).astype(float).tolist() == (a @ b).astype(float).tolist()


@pytest.mark.parametrize("sizes", [(3, 0, 5), (0, 4, 5), (4, 4, 0)])
def test_streams_09_mm_out_of_empty_sizes(cpu, sizes):
    m, k, n = sizes
    out = cpu.asarray(np.full((m, n), np.nan))
    gs.mm_out(out, cpu.empty((m, k), "float64"), cpu.empty((k, n), "float64"))
    assert cpu.to_host(out).tolist() == np.zeros((m, n)).tolist()


def test_streams_09_mm_out_checks_as_everywhere(cpu):
    whole = cpu.empty((8, 8))
    with pytest.raises(gs.errors.InvalidOperand, match="overlaps"):
        gs.mm_out(whole, whole, cpu.empty((8, 8)))
    with pytest.raises(gs.errors.InvalidOperand, match="not an array on"):
        gs.mm_out(whole, np.zeros((8, 8), np.float32), cpu.empty((8, 8)))
    with pytest.raises(gs.errors.InvalidOperand, match="not an array"):
        gs.mm_out(np.zeros((8, 8), np.float32), whole, whole)


def test_streams_09_mm_out_takes_no_array_of_a_simulated_gpu(cpu):
    sim = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(gs.errors.InvalidOperand, match="not an array on"):
        gs.mm_out(cpu.empty((8, 8)), sim.empty((8, 8)), cpu.empty((8, 8)))


def test_streams_09_handles(cpu):
    gemm = gs.Gemm(cpu, m=8, n=8, k=8, dtype="float32")
    a, b, out = gemm.operands()
    with cpu.create_stream() as stream:
        gemm.execute(stream=stream)
        assert not gemm.in_flight
        gemm.wait()
        assert gemm.completion.is_done
    gemm.execute()
    expected = cpu.to_host(a) @ cpu.to_host(b)
    assert np.allclose(cpu.to_host(out), expected, atol=1e-6)
    gemm.close()
    with pytest.raises(gs.errors.ClosedError):
        gemm.execute()
    with Copy(cpu, nbytes=1000) as copy:
        target = copy.execute()
        assert (cpu.to_host(target) == cpu.to_host(copy.x)).all()
    with Spin(cpu, duration_ns=1_000_000_000) as spin:
        spin.execute()


def test_streams_09_kernels_do_what_their_model_does(cpu):
    model = KernelModel(
        lambda *_: KernelCost(1, 1),
        reads=lambda args: [args[1]],
        writes=lambda args: args[0],
        compute=lambda values: values + 1,
    )
    kernel = cpu.compile("not looked at", "add_one", model=model)
    out, values = cpu.empty(4), cpu.asarray(np.arange(4, dtype=np.float32))
    with cpu.create_stream() as stream:
        stream.launch(kernel, out, values, grid=1, block=1)
    assert cpu.to_host(out).tolist() == [1, 2, 3, 4]
    with pytest.raises(gs.errors.CapabilityError, match="open a CUDA device"):
        cpu.compile("source", "name")


def test_streams_09_current_streams_and_guards_work_as_everywhere(cpu):
    key = cpu.identity
    with cpu.create_stream() as stream, cpu.create_stream() as other:
        caller.set_current_stream(key, stream)
        try:
            assert cpu.choose_stream() == (stream, True)
            with gs.CallerStreamGuard(other):
                assert cpu.choose_stream() == (other, True)
        finally:
            caller.clear_current_stream(key)
    assert cpu.choose_stream() == (cpu.default_stream(), False)


def test_streams_09_any_thread_may_use_it(cpu):
    wrong = []

    def work(index):
        a = cpu.asarray(np.full((8, 8), index, np.float32))
        out = cpu.empty((8, 8))
        with cpu.create_stream() as stream, gs.CallerStreamGuard(stream):
            for _ in range(50):
                gs.mm_out(out, a, a)
        if not (cpu.to_host(out) == 8 * index * index).all():
            wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_streams_09_carving_is_refused_and_says_what_is_required(cpu):
    for carve in (cpu.carve, cpu.plan_carve):
        with pytest.raises(gs.errors.CapabilityError, match=r"CUDA 12\.4") as caught:
            carve({"a": 16, "b": "rest"})
        assert "sim:h200" in str(caught.value)
    assert cpu.registry.held_parts() == {}


def test_streams_09_it_cannot_be_captured(cpu):
    with cpu.create_stream() as stream:
        with pytest.raises(gs.errors.CapabilityError, match="capturing"), stream.capture():
            pass
        assert not stream.capturing
        stream.synchronize()


def test_streams_09_a_recording_has_rows_of_the_host(cpu):
    gemm = gs.Gemm(cpu, m=64, n=64, k=64)
    gemm.operands()
    with cpu.create_stream(name="mine") as stream, gs.profile(cpu) as recording:
        with gs.annotate("step"), gs.CallerStreamGuard(stream):
            gemm.execute()
        stream.copy(cpu.empty(4), cpu.empty(4))
        stream.record().synchronize()
    trace = recording.trace
    assert trace.metadata.time_base == "unix"
    assert not trace.metadata.simulated
    rows = {row["kind"]: row for row in trace.spans.to_pylist()}
    assert {rows[kind]["source"] for kind in ("kernel", "memcpy", "handle", "api")} == {"host"}
    kernel = rows["kernel"]
    assert kernel["name"].startswith("gemm_")
    assert trace.stream_name(kernel["stream"]) == "mine"
    assert kernel["partition"] is None
    assert rows["range"]["start_ns"] <= kernel["start_ns"] <= kernel["end_ns"]
    assert kernel["end_ns"] <= rows["range"]["end_ns"]


def test_streams_09_opening_it_never_looks_for_a_gpu(monkeypatch):
    for name in ("cuda", "cuda.core", "cuda.bindings", "cupy", "nvmath"):
        monkeypatch.setitem(sys.modules, name, None)
    device = gs.open_device("cpu", quiet=True)
    gs.mm_out(*(device.empty((2, 2)) for _ in range(3)))


def test_what_the_host_has_no_memory_for_is_refused_before_it_is_filled():
    cpu = gs.open_device("cpu", quiet=True)
    beyond = cpu.info.memory_bytes // 4 + 1
    for take in (
        lambda: cpu.random(beyond, "float32"),
        lambda: cpu.empty((2**31 - 1, 2**31 - 1)),
        lambda: cpu.empty_pinned(2**62, "uint8"),
        lambda: gs.Gemm(cpu, m=2**31 - 1, n=2**31 - 1, k=8).execute(),
    ):
        with pytest.raises(gs.errors.GpuscopeError, match="host memory cannot be taken"):
            take()


def test_a_simulated_gpu_refuses_what_the_host_has_no_memory_for():
    with pytest.raises(gs.errors.GpuscopeError, match="host memory cannot be taken"):
        gs.open_device("sim:h200", quiet=True).empty_pinned(2**62, "uint8")
