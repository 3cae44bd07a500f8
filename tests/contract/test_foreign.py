"""What belongs to another device, or to a call, is refused; what there is one of is not copied."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device import caller
from gpuscope.device.device import Device
from gpuscope.device.scratch import WorkloadContext
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.spin import Spin


@pytest.fixture
def other() -> Device:
    """A second simulated GPU, which has the key of the first."""
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


def test_handles_refuse_operands_of_another_device(gpu, other):
    ours, theirs = (device.random((8, 8)) for device in (gpu, other))
    out = other.empty((8, 8))
    with gs.Gemm(gpu, m=8, n=8, k=8, dtype="float32") as gemm, gpu.create_stream() as stream:
        for operands in ((theirs, theirs, out), (ours, theirs, None), (ours, ours, out)):
            for _ in range(2):  # a known shape too
                with pytest.raises(
                    gs.errors.InvalidOperand, match=r"another device|not an array on"
                ):
                    gemm.execute(*operands, stream=stream)
        gs.mm_out(out, theirs, theirs)
        with pytest.raises(gs.errors.InvalidOperand, match=r"another device|not an array on"):
            gemm.execute(theirs, theirs, out, stream=stream)
        gemm.execute(ours, ours, stream=stream)


def test_plans_that_devices_of_another_kind_made_are_not_taken(gpu, other):
    cpu = gs.open_device("cpu", quiet=True)
    pairs = [(gpu, cpu), (cpu, gpu)] + ([] if gpu.is_simulated else [(gpu, other), (other, gpu)])
    for here, there in pairs:
        a, b, out = (there.asarray(np.ones((8, 8)), "float32") for _ in range(3))
        gs.mm_out(out, a, b)  # which plans for such arrays
        there.synchronize()
        with gs.Gemm(here, m=8, n=8, k=8, dtype="float32") as gemm:
            gemm.execute()
            if there is cpu:  # host memory, which is staged
                out[:] = 0
                assert (gemm.execute(a, b, out) == 8).all()
                continue
            with pytest.raises(gs.errors.InvalidOperand, match="not an array on"):
                gemm.execute(a, b, out)


def test_copies_and_reads_refuse_arrays_of_another_device(gpu, other):
    ours, theirs = (device.random((8, 8)) for device in (gpu, other))
    with gpu.create_stream() as stream:
        for pair, name in (((ours, theirs), "source"), ((theirs, ours), "destination")):
            with pytest.raises(
                gs.errors.InvalidOperand, match=f"{name} is .*(another device|not an)"
            ):
                stream.copy(*pair)
    with pytest.raises(gs.errors.InvalidOperand, match=r"array is .*(another device|not an array)"):
        gpu.to_host(theirs)


def test_kernels_refuse_arrays_of_another_device(other):
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with (
        gpu.create_stream() as stream,
        pytest.raises(gs.errors.InvalidOperand, match="another device"),
    ):
        stream.launch(kernel, other.empty(4), grid=1, block=32)


def test_streams_and_events_of_another_device_are_refused_and_told_apart(other):
    gpu = gs.open_device("sim:h200", quiet=True)
    apart = r"sim:h200 \(no\. \d+ of this process\), not (of|to) sim:h200 \(no\. \d+"
    with gpu.create_stream() as ours, other.create_stream() as theirs:
        event = theirs.record()
        for act in (
            lambda: gs.Gemm(gpu, m=8, n=8, k=8).execute(stream=theirs),
            lambda: gpu.wrap_stream(theirs),
            lambda: ours.record(event),
            lambda: ours.wait(event),
            lambda: ours.record().elapsed_ns(since=event),
        ):
            with pytest.raises(gs.errors.StreamError, match=apart):
                act()
        for act in (
            lambda: gs.Gemm(gpu, m=8, n=8, k=8).execute(stream=theirs.handle),
            lambda: gpu.wrap_stream(theirs.handle),
        ):
            with pytest.raises(gs.errors.StreamError, match="no stream of this simulated GPU"):
                act()


def test_current_streams_of_devices_with_one_key_are_apart(other):
    gpu = gs.open_device("sim:h200", quiet=True)
    mine, theirs = caller.get_current_stream(gpu), caller.get_current_stream(other)
    assert (mine.device, theirs.device) == (gpu, other)
    assert caller.get_current_stream(gpu) is mine
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream() as stream:
        stream.launch(kernel, 1000, grid=1, block=32)
    assert caller.peek_current_stream(other.identity) is theirs
    mine.close()
    assert caller.peek_current_stream(gpu.identity) is None
    assert caller.peek_current_stream(other.identity) is theirs
    theirs.close()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps, lambda x: [
    pickle.dumps(x, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL)
]], ids=["copy", "deepcopy", "pickle", "every protocol"])  # fmt: skip
def test_what_there_is_one_of_cannot_be_copied(gpu, duplicate):
    with (
        gpu.carve({"a": 16}) as parts,
        parts["a"].create_stream() as stream,
        gs.Gemm(gpu, m=8, n=8, k=8) as gemm,
        Copy(gpu, nbytes=64) as copied,
        Spin(gpu, duration_ns=1000) as spin,
        gpu.scratch(16) as scratch,
    ):
        gemm.execute(stream=stream)
        with stream.capture() as graph:
            spin.execute(stream=stream)
        for thing in (
            gpu, parts, parts["a"], stream, stream.record(), gemm, gemm.completion, copied, spin,
            scratch, graph, WorkloadContext(gpu, stream), gs.workloads.workload(lambda _: None)(gpu),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=f"{type(thing).__name__} cannot be copied"):
                duplicate(thing)
        graph.close()
        assert not stream.closed


@gs.workloads.workload
def closing(ctx, close):
    """Close something in the middle of a call."""
    with pytest.raises(gs.errors.StreamError, match="borrowed"):
        close(ctx)


def test_a_borrowed_stream_is_not_closed_inside_its_call(gpu):
    with gpu.carve({"a": 16}) as parts:
        part = parts["a"]
        with closing(part) as handle, part.create_stream() as stream:
            for close in (
                lambda ctx: ctx.stream.close(),
                lambda ctx: ctx.stream.__exit__(None, None, None),
                lambda _: part.close(),
                lambda _: parts.close(),
            ):
                handle.execute(close, stream=stream)
                assert not stream.closed
                assert not part.closed
                assert not parts.closed
            handle.execute(lambda ctx: gpu.wrap_stream(ctx.stream).close(), stream=stream)
        assert stream.closed


def of_another_byte_order(gpu):
    """Return memory of the device that claims to hold floats in the other byte order."""
    array = gpu.empty((4, 4))
    if gpu.is_simulated:
        return array.view(np.dtype(">f4")).reshape((4, 4))
    claimed = {**array.__cuda_array_interface__, "typestr": ">f4"}
    return SimpleNamespace(__cuda_array_interface__=claimed, array=array)


def test_mm_out_01_dtypes_of_another_byte_order_are_refused(gpu):
    native = [gpu.empty((4, 4)) for _ in range(3)]
    gs.mm_out(*native)
    for position in range(3):
        operands = list(native)
        operands[position] = of_another_byte_order(gpu)
        with pytest.raises(gs.errors.InvalidOperand, match="dtypes differ"):
            gs.mm_out(*operands)
    with pytest.raises(gs.errors.InvalidOperand, match=r"dtype >f4 .*not supported"):
        gs.mm_out(*(of_another_byte_order(gpu) for _ in range(3)))


def test_arrays_are_in_this_machines_byte_order(gpu):
    array = gpu.asarray(np.array([1, 2], ">f4"))
    assert array.dtype == np.float32
    assert array.dtype.isnative
    assert gpu.to_host(array).tolist() == [1, 2]
    for make in (
        lambda: gpu.asarray([1, 2], ">f4"),
        lambda: gpu.empty(2, ">f4"),
        lambda: gpu.random(2, ">f4"),
        lambda: gpu.empty_pinned(2, ">f4"),
    ):
        with pytest.raises(gs.errors.InvalidOperand, match=r"dtype is >f4.* use float32"):
            make()


def test_mm_out_01_only_what_overlaps_is_refused(gpu):
    base = gpu.random((8, 64))
    square = gpu.asarray(np.ones((4, 4)), "float32")
    out = base[1, 32:48].reshape((4, 4))
    beside, across = base[0:4, 0:4], base[0:4, 30:34]
    before = gpu.to_host(beside)
    gs.mm_out(out, beside, square)
    assert np.allclose(gpu.to_host(out), before @ np.ones((4, 4)))
    for operands in ((across, square), (square, across), (out.T, square)):
        with pytest.raises(gs.errors.InvalidOperand, match="out overlaps an input"):
            gs.mm_out(out, *operands)
    empty = out[:, 2:2]
    gs.mm_out(out, empty, empty.T)
    assert not gpu.to_host(out).any()
