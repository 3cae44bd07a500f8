"""The contracts' rules that only a real GPU can show: other libraries, cuBLAS, memory."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.workloads.spin import Spin

pytestmark = pytest.mark.gpu

TOLERANCE = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}
HOLD_NS = 50_000_000


@pytest.fixture
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


@pytest.fixture
def cupy(gpu):
    return pytest.importorskip("cupy")


@pytest.fixture
def torch(gpu):
    return pytest.importorskip("torch")


@pytest.fixture
def second(gpu, cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    device = gs.open_device("cuda:1", quiet=True)
    yield device
    device.close()


def current(cupy, torch):
    return cupy.cuda.get_current_stream().ptr, torch.cuda.current_stream().cuda_stream


# -- A10 ----------------------------------------------------------------------------------
def test_guard_10_cupy_and_pytorch_are_given_the_stream_and_restored(gpu, cupy, torch):
    before = current(cupy, torch)
    with gpu.create_stream() as stream, gpu.create_stream() as inner:
        with gs.CallerStreamGuard(stream, bind=True):
            assert current(cupy, torch) == (stream.handle, stream.handle)
            with pytest.raises(KeyError), gs.CallerStreamGuard(inner, bind=True):
                assert current(cupy, torch) == (inner.handle, inner.handle)
                raise KeyError
            assert current(cupy, torch) == (stream.handle, stream.handle)
            with gs.CallerStreamGuard(inner):
                assert current(cupy, torch) == (stream.handle, stream.handle)
        assert current(cupy, torch) == before


def test_guard_10_their_own_streams_are_restored(gpu, cupy, torch):
    theirs, tensors = cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream()
    with gpu.create_stream() as stream, theirs, torch.cuda.stream(tensors):
        with gs.CallerStreamGuard(stream, bind=True):
            assert current(cupy, torch) == (stream.handle, stream.handle)
        assert current(cupy, torch) == (theirs.ptr, tensors.cuda_stream)


def test_guard_10_what_they_launch_runs_on_the_stream(gpu, cupy, torch):
    array, tensor = cupy.zeros(1000), torch.zeros(1000, device="cuda")
    array += 1
    tensor += 1
    cupy.cuda.runtime.deviceSynchronize()
    hold = Spin(gpu, duration_ns=HOLD_NS)
    with gpu.create_stream() as stream:
        hold.execute(stream=stream)
        with gs.CallerStreamGuard(stream, bind=True):
            array += 1
            tensor += 1
            done = cupy.cuda.Event(), torch.cuda.Event()
            done[0].record()
            done[1].record()
        assert not done[0].done, "CuPy's kernel waits behind the spin"
        assert not done[1].query(), "PyTorch's does, too"
        stream.synchronize()
        assert done[0].done
        assert done[1].query()
    assert float(array.sum()) == float(tensor.sum()) == 2000


def test_guard_10_streams_of_theirs_can_be_bound_and_are_not_destroyed(gpu, cupy, torch):
    theirs, tensors = cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream()
    for stream in (theirs, tensors, theirs.ptr, tensors.cuda_stream):
        handle = getattr(stream, "ptr", None) or getattr(stream, "cuda_stream", stream)
        if not isinstance(stream, int) and not hasattr(stream, "__cuda_stream__"):
            continue  # an older PyTorch
        with gs.CallerStreamGuard(stream, bind=True) as entered:
            assert entered is stream
            assert current(cupy, torch) == (handle, handle)
    gc.collect()
    with theirs:
        cupy.arange(10).sum()
    theirs.synchronize()
    with torch.cuda.stream(tensors):
        torch.arange(10, device="cuda").sum()
    tensors.synchronize()


def test_guard_10_the_null_and_the_per_thread_stream(gpu, cupy, torch):
    before = current(cupy, torch)
    for handle in (0, 2):
        with gs.CallerStreamGuard(handle, bind=True):
            assert cupy.cuda.get_current_stream().ptr == handle
    assert current(cupy, torch) == before


def test_guard_10_out_of_order_across_awaits_touches_nothing(gpu, cupy, torch):
    before = current(cupy, torch)

    async def first(stream, entered, overlapped):
        guard = gs.CallerStreamGuard(stream, bind=True)
        guard.__enter__()
        entered.set()
        await overlapped.wait()
        found = current(cupy, torch)
        with pytest.raises(RuntimeError, match="do not await inside a bound one"):
            guard.__exit__(None, None, None)
        assert current(cupy, torch) == found

    async def main(one, two):
        entered, overlapped = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(first(one, entered, overlapped))
        await entered.wait()
        with gs.CallerStreamGuard(two, bind=True):
            overlapped.set()
            await task
            assert current(cupy, torch) == (two.handle, two.handle)

    with gpu.create_stream() as one, gpu.create_stream() as two:
        asyncio.run(main(one, two))
    cupy.cuda.Stream.null.use()
    torch.cuda.set_stream(torch.cuda.default_stream())
    assert current(cupy, torch) == before


def test_guard_10_a_closed_stream_is_refused(gpu, cupy, torch):
    before = current(cupy, torch)
    stream = gpu.create_stream()
    with gs.CallerStreamGuard(stream, bind=True):
        pass
    stream.close()
    with pytest.raises(gs.errors.ClosedError), gs.CallerStreamGuard(stream, bind=True):
        pass
    assert current(cupy, torch) == before


def test_guard_10_a_stream_of_another_gpu(gpu, second, cupy, torch):
    before = current(cupy, torch)
    with second.create_stream() as stream:
        with pytest.raises(gs.errors.StreamError, match="make the stream's device current"):
            gs.CallerStreamGuard(stream, bind=True).__enter__()
        assert current(cupy, torch) == before
        assert torch.cuda.current_device() == 0
        with cupy.cuda.Device(1), gs.CallerStreamGuard(stream, bind=True):
            assert cupy.cuda.get_current_stream().ptr == stream.handle
            assert torch.cuda.current_device() == 1
            assert torch.cuda.current_stream().cuda_stream == stream.handle
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream(1).cuda_stream != stream.handle
    assert current(cupy, torch) == before


# -- C4 -----------------------------------------------------------------------------------
def test_scratch_04_what_goes_back_untagged_never_stops_a_wait_for_the_device():
    """In a process of its own, since a wait that never returns cannot be left.

    With driver 580 there is such a wait, once memory of a pool went back in the legacy default
    stream and a thread ended while the work in its per-thread default stream was running.
    """
    program = """
import threading, gpuscope as gs
from gpuscope.workloads.spin import Spin
gpu = gs.open_device("cuda:0", quiet=True)
handle = gs.workloads.workload(lambda ctx: ctx.scratch(64).nbytes)(gpu)
with gpu.create_stream() as stream:
    handle.execute(stream=stream)
handle.close()  # its stream is gone: the scratch goes back untagged
spin = Spin(gpu, duration_ns=2_000_000)
spin.execute()
for _ in range(6):
    thread = threading.Thread(target=lambda: spin.execute(stream=gpu.wrap_stream(2)))
    thread.start()
    thread.join()
    gpu.synchronize()
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "done\n", done.stderr


# -- D8 -----------------------------------------------------------------------------------
def test_streams_08_per_thread_streams_have_workspaces_of_their_own(gpu):
    """They all have handle 2, but each thread's is a stream of its own."""
    m, k, n, turns, threads = 64, 16384, 64, 40, 4
    rng = np.random.default_rng(8)
    hosts = [(rng.integers(-2, 3, (m, k)), rng.integers(-2, 3, (k, n))) for _ in range(threads)]
    operands = [tuple(gpu.asarray(x, "float32") for x in pair) for pair in hosts]
    outs = [[gpu.empty((m, n)) for _ in range(turns)] for _ in range(threads)]
    start = threading.Barrier(threads)

    def work(index):
        a, b = operands[index]
        gs.mm_out(outs[index][0], a, b)
        start.wait()
        with gs.CallerStreamGuard(2):  # nothing waits in between
            for out in outs[index]:
                gs.mm_out(out, a, b)
        gpu.synchronize()
        workspace = gpu.backend._blas._local.workspace
        start.wait()
        return workspace.ptr

    with ThreadPoolExecutor(threads) as pool:
        assert len(set(pool.map(work, range(threads)))) == threads
    for index, (a, b) in enumerate(hosts):
        expected = (a @ b).astype(np.float32)  # whole numbers: NumPy takes its time over them
        for out in outs[index]:
            assert (gpu.to_host(out) == expected).all()


# -- E5 -----------------------------------------------------------------------------------
def test_mm_out_05_one_cublas_handle_a_thread(gpu):
    blas, threads = gpu.backend._blas, 6
    all_ran = threading.Barrier(threads)
    a, outs = gpu.random((64, 64)), [gpu.empty((64, 64)) for _ in range(threads)]

    def work(index):
        handles = []
        with gpu.create_stream() as one, gpu.create_stream() as two:
            for stream in (one, two, one):
                gs.mm_out(outs[index], a, a, stream=stream)
                handles.append(blas._local.raw)
        all_ran.wait()  # all threads live, so none can have another's
        return handles

    with ThreadPoolExecutor(threads) as pool:
        of_threads = list(pool.map(work, range(threads)))
    assert all(len(set(handles)) == 1 for handles in of_threads), "whatever the streams"
    in_use = {handles[0] for handles in of_threads}
    assert len(in_use) == threads, "each thread has its own"
    gc.collect()
    assert in_use <= set(blas._idle), "and when the thread ends, another may have it"
    expected = gpu.to_host(a).astype(np.float64)
    for out in outs:
        assert np.allclose(gpu.to_host(out), expected @ expected, atol=1e-4)


def test_mm_out_05_a_workspace_belongs_to_a_stream(gpu):
    a, out = gpu.random((64, 64)), gpu.empty((64, 64))
    workspaces = gpu.backend._blas._workspaces
    with gpu.create_stream() as one, gpu.create_stream() as two:
        for stream in (one, two, one):
            gs.mm_out(out, a, a, stream=stream)
        assert workspaces[one.handle].ptr != workspaces[two.handle].ptr
        handles = {one.handle, two.handle}
    assert not handles & set(workspaces), "closed with the stream"


def test_mm_out_05_the_current_device_is_restored(gpu, second, cupy):
    a, out = gpu.random((64, 64)), gpu.empty((64, 64))
    errors = []

    def work():  # a thread without a cuBLAS handle, on the other device
        try:
            cupy.cuda.runtime.setDevice(1)
            with gpu.create_stream() as stream:
                gs.mm_out(out, a, a, stream=stream)
                assert cupy.cuda.runtime.getDevice() == 1
            gs.mm_out(out, a, a)
            assert cupy.cuda.runtime.getDevice() == 1
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    elsewhere = second.random((64, 64))
    with pytest.raises(gs.errors.InvalidOperand, match="b is on another device than out"):
        gs.mm_out(out, a, elsewhere)


# -- E6 -----------------------------------------------------------------------------------
class Interface:
    """Offers a CUDA array interface and nothing else."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.array = array


class Dlpack:
    """Offers DLPack and nothing else; remembers which stream was asked to wait."""

    def __init__(self, array):
        self.array = array
        self.streams = []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.array.__dlpack__(stream=stream)


def close_enough(out, a, b, dtype):
    expected = a.double() @ b.double()
    error = (out.double() - expected).norm() / expected.norm()
    return float(error) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_mm_out_06_pytorch_tensors_in_every_layout(gpu, torch, monkeypatch, dtype):
    def no_copy(*_):
        raise AssertionError("an operand was copied")

    monkeypatch.setattr(gpu.backend, "rearrange", no_copy)
    kind = getattr(torch, dtype)
    a, b = torch.randn(64, 32, device="cuda").to(kind), torch.randn(32, 48, device="cuda").to(kind)
    wide = torch.randn(64, 96, device="cuda").to(kind)
    lefts = a, a.t().contiguous().t(), wide[:, 8:40]
    rights = b, b.t().contiguous().t(), torch.randn(64, 96, device="cuda").to(kind)[8:40, 16:64]
    with gpu.create_stream() as stream:
        for left in lefts:
            for right in rights:
                out = torch.full((64, 48), float("nan"), device="cuda", dtype=kind)
                torch.cuda.synchronize()
                with gs.CallerStreamGuard(stream):
                    assert gs.mm_out(out, left, right) is out
                stream.synchronize()
                assert close_enough(out, left, right, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_mm_out_06_the_memory_is_the_tensors_own(gpu, torch, dtype):
    tensor = torch.zeros(6, 4, device="cuda", dtype=getattr(torch, dtype))[1:, 1:].t()
    seen = gpu.backend.adopt(tensor)
    assert seen.data.ptr == tensor.data_ptr()
    assert seen.shape == tuple(tensor.shape)
    assert seen.strides == tuple(step * tensor.element_size() for step in tensor.stride())
    assert seen.dtype.name == dtype
    assert seen.data.device_id == 0
    seen[...] = gpu.asarray(np.ones(seen.shape), dtype)
    gpu.synchronize()
    assert float(tensor.double().sum()) == tensor.numel()


def test_mm_out_06_the_memory_lives_as_long_as_the_view(gpu, torch):
    tensor = torch.full((1000, 1000), 7.0, device="cuda")
    torch.cuda.synchronize()
    seen = gpu.backend.adopt(tensor)
    del tensor
    gc.collect()
    torch.zeros(1000, 1000, device="cuda")  # would be given the same memory
    torch.cuda.synchronize()
    assert float(seen.sum()) == 7_000_000


@pytest.mark.parametrize("wrap", [Interface, Dlpack])
def test_mm_out_06_anything_with_either_protocol(gpu, cupy, wrap):
    rng = np.random.default_rng(6)
    a, b = rng.integers(-4, 5, (16, 24)), rng.integers(-4, 5, (24, 8))
    arrays = [cupy.asarray(np.asarray(x, np.float32)) for x in (np.full((16, 8), np.nan), a, b)]
    column = cupy.asarray(np.asarray(b.T, np.float32, order="C")).T
    gpu.synchronize()
    for right in (arrays[2], column):
        out, left, wrapped = wrap(arrays[0]), wrap(arrays[1]), wrap(right)
        with gpu.create_stream() as stream, gs.CallerStreamGuard(stream):
            assert gs.mm_out(out, left, wrapped) is out
        assert cupy.asnumpy(arrays[0]).tolist() == (a @ b).astype(float).tolist()
        if wrap is Dlpack:
            assert set(out.streams + left.streams + wrapped.streams) == {-1}


def test_mm_out_06_libraries_can_be_mixed(gpu, cupy, torch):
    a = gpu.asarray(np.arange(64, dtype=np.float32).reshape(8, 8) % 5)
    b = torch.eye(8, device="cuda")
    out = Interface(cupy.zeros((8, 8), cupy.float32))
    torch.cuda.synchronize()
    gpu.synchronize()
    gs.mm_out(out, a, b)
    assert (cupy.asnumpy(out.array) == gpu.to_host(a)).all()


def test_mm_out_06_handles_take_tensors_too(gpu, torch):
    a = torch.randn(64, 64, device="cuda").to(torch.bfloat16)
    out = torch.empty(64, 64, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    handle = gs.Gemm(gpu, m=64, n=64, k=64, dtype="bfloat16")
    with gpu.create_stream() as stream:
        for _ in range(3):
            handle.execute(a, a, out, stream=stream)
        handle.wait()
    assert close_enough(out, a, a, "bfloat16")
    handle.close()


def test_mm_out_06_empty_tensors(gpu, torch):
    out = torch.full((4, 5), float("nan"), device="cuda")
    gs.mm_out(out, torch.empty(4, 0, device="cuda"), torch.empty(0, 5, device="cuda"))
    assert not out.any()
    gs.mm_out(*(torch.empty(s, device="cuda") for s in ((0, 5), (0, 4), (4, 5))))


def test_mm_out_06_what_a_tensor_refuses_to_share_is_told(gpu, torch):
    ok = torch.zeros(4, 4, device="cuda")
    gradient = torch.zeros(4, 4, device="cuda", requires_grad=True)
    with pytest.raises(gs.errors.InvalidOperand, match="detach"):
        gs.mm_out(ok, gradient, torch.zeros(4, 4, device="cuda"))
    with pytest.raises(gs.errors.InvalidOperand, match="cannot be shared"):
        gs.mm_out(ok, torch.eye(4, device="cuda").to_sparse(), torch.zeros(4, 4, device="cuda"))
    with pytest.raises(gs.errors.InvalidOperand, match="a is Tensor, not an array on"):
        gs.mm_out(ok, torch.zeros(4, 4), torch.zeros(4, 4, device="cuda"))
    with pytest.raises(gs.errors.InvalidOperand, match="overlaps an input"):
        gs.mm_out(ok, ok, torch.zeros(4, 4, device="cuda"))
    gs.mm_out(ok, gradient.detach(), torch.zeros(4, 4, device="cuda"))


def test_mm_out_06_managed_memory(gpu, cupy):
    memory = cupy.cuda.malloc_managed(64 * 4)
    array = cupy.ndarray((8, 8), cupy.float32, memptr=memory)
    array[...] = cupy.eye(8, dtype=cupy.float32)
    out = gpu.empty((8, 8))
    gpu.synchronize()
    gs.mm_out(out, Dlpack(array), array)
    assert (gpu.to_host(out) == np.eye(8)).all()


def test_mm_out_06_nothing_waits_for_the_library_the_operands_come_from(gpu, torch):
    """Which stream follows which is the caller's choice: sharing memory queues no waits."""
    a, out = torch.randn(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    torch.cuda.synchronize()
    theirs = torch.cuda.Stream()
    with gpu.create_stream() as stream:
        gs.mm_out(out, a, a, stream=stream)  # everything is loaded now
        stream.synchronize()
        with torch.cuda.stream(theirs):
            torch.cuda._sleep(2_000_000_000)  # about a second
            gs.mm_out(out, a, a, stream=stream)
            stream.synchronize()
            assert not theirs.query(), "theirs still runs"
        theirs.synchronize()


def test_mm_out_06_tensors_can_be_captured_into_a_graph(gpu, torch):
    a, out = torch.randn(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    torch.cuda.synchronize()
    with gpu.create_stream() as stream:
        gs.mm_out(out, a, a, stream=stream)
        stream.synchronize()
        out.zero_()
        torch.cuda.synchronize()
        with stream.capture() as graph:
            gs.mm_out(out, a, a, stream=stream)
        assert not out.any()
        graph.launch(stream=stream)
        stream.synchronize()
        assert close_enough(out, a, a, "float32")
        graph.close()


# -- D2 and D12 ---------------------------------------------------------------------------
def test_streams_02_streams_of_other_libraries_live_on(gpu, cupy, torch):
    theirs, tensors = cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream()
    hold = Spin(gpu, duration_ns=1000)
    for stream in (theirs, tensors.cuda_stream):
        with gpu.wrap_stream(stream) as borrowed:
            hold.execute(stream=borrowed)
    hold.close()
    gc.collect()
    with theirs:
        assert int(cupy.arange(10).sum()) == 45
    with torch.cuda.stream(tensors):
        assert int(torch.arange(10, device="cuda").sum()) == 45


def test_streams_12_event_times_agree_with_the_host(gpu):
    with gpu.create_stream() as stream:
        hold = Spin(gpu, duration_ns=200_000_000)
        stream.launch(hold._kernel, 1000, grid=1, block=32)
        stream.synchronize()
        before = gpu.now_ns()
        start = stream.record()
        hold.execute(stream=stream)
        end = stream.record()
        end.synchronize()
        after = gpu.now_ns()
        assert 200_000_000 <= end.elapsed_ns(since=start) <= after - before + 1000


# -- B8 and B10: two GPUs -----------------------------------------------------------------
def test_handle_08_the_current_device_is_restored_on_every_way_out(gpu, second, cupy):
    runtime = cupy.cuda.runtime
    errors = []

    def work():
        try:
            runtime.setDevice(1)
            handle = gs.Gemm(gpu, m=64, n=64, k=64, dtype="float32")
            assert runtime.getDevice() == 1, "after construction"
            with gpu.create_stream() as stream:
                for selected in (stream, None):
                    out = handle.execute(stream=selected)
                    assert runtime.getDevice() == 1, "after a call"
                handle.wait()
                with pytest.raises(gs.errors.InvalidOperand):
                    handle.execute(out, out, out, stream=stream)
                assert runtime.getDevice() == 1, "after an error"
                with gs.CallerStreamGuard(stream):
                    gs.mm_out(out, *handle.operands()[:2])
            assert runtime.getDevice() == 1, "after a stream was closed"
            handle.close()
            assert runtime.getDevice() == 1, "after it was closed"
            gs.Gemm(gpu, m=8, n=8, k=8).execute()
            gc.collect()
            assert runtime.getDevice() == 1, "after it was collected"
            with gpu.carve([16]) as parts:
                parts[0].create_stream()
            assert runtime.getDevice() == 1, "after a carving"
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []


def test_handle_10_a_stream_of_another_gpu_is_refused_by_name(gpu, second):
    handle = gs.Gemm(gpu, m=64, n=64, k=64)
    with second.create_stream(name="elsewhere") as stream:
        for call in (
            lambda: handle.execute(stream=stream),
            lambda: gs.mm_out(*handle.operands()[::-1], stream=stream),
        ):
            with pytest.raises(
                gs.errors.StreamError, match=r"'elsewhere' belongs to cuda:1.*create_str"
            ):
                call()
            with gs.CallerStreamGuard(stream), pytest.raises(gs.errors.StreamError, match="cuda:1"):
                handle.execute()
    handle.execute()
    handle.close()
