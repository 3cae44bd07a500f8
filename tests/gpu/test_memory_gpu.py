"""Memory on a GPU: workspaces, other libraries' streams, and what cuBLAS refuses."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from latches import Latch

import gpuscope as gs

pytestmark = pytest.mark.gpu

SIDE = 64
A = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) % 5 + 1
B = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) % 3 + 1


@pytest.fixture
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


@pytest.mark.parametrize("captured", [False, True])
def test_streams_08_products_of_many_threads_on_one_stream_share_its_workspace(gpu, captured):
    """A product with a long k is two kernels, and the second reads what the first left there."""
    m, k, n, turns, threads = 64, 16384, 64, 60, 1 if captured else 6
    rng = np.random.default_rng(81)
    hosts = [(rng.integers(-2, 3, (m, k)), rng.integers(-2, 3, (k, n))) for _ in range(threads)]
    operands = [tuple(gpu.asarray(x, "float32") for x in pair) for pair in hosts]
    outs = [[gpu.empty((m, n)) for _ in range(turns)] for _ in range(threads)]
    start = threading.Barrier(threads)
    with gpu.create_stream() as stream:

        def work(index):
            a, b = operands[index]
            start.wait()
            for out in outs[index]:
                gs.mm_out(out, a, b, stream=stream)

        if captured:
            work(0)
            with stream.capture() as graph:
                work(0)
            for _ in range(3):
                graph.launch(stream=stream)
                gs.mm_out(outs[0][0], *operands[0], stream=stream)
            graph.close()
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, range(threads)))
        stream.synchronize()
    for index, (a, b) in enumerate(hosts):
        expected = (a @ b).astype(np.float32)
        assert all((gpu.to_host(out) == expected).all() for out in outs[index])


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_operands_dropped_on_another_librarys_stream_keep_their_values(gpu, library):
    made = pytest.importorskip(library)
    stream = (
        made.cuda.Stream(non_blocking=True) if library == "cupy" else made.cuda.Stream(device=0)
    )
    out = gpu.empty((SIDE, SIDE))
    gs.mm_out(out, gpu.asarray(A), gpu.asarray(B), stream=stream)
    gpu.synchronize()
    with Latch(gpu) as latch:
        latch.hold(gpu.wrap_stream(stream))
        gs.mm_out(out, gpu.asarray(A), gpu.asarray(B), stream=stream)
        others = [gpu.asarray(np.full_like(A, 99)) for _ in range(8)]
        latch.open()
        stream.synchronize()
    assert np.array_equal(gpu.to_host(out), A @ B)
    del others


def test_what_another_librarys_capture_uses_is_never_given_out_again(gpu):
    """Nobody tells when its graph is gone; the copy of a strided operand is in it too."""
    torch = pytest.importorskip("torch")
    wide, b = gpu.asarray(np.repeat(A, 2, axis=1)), gpu.asarray(B)
    out, stream, graph = (
        gpu.empty((SIDE, SIDE)),
        torch.cuda.Stream(device=0),
        torch.cuda.CUDAGraph(),
    )
    gs.mm_out(out, wide[:, ::2], b, stream=stream)
    gpu.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        gs.mm_out(out, wide[:, ::2], b, stream=stream)
    del wide, b
    others = [gpu.asarray(np.full_like(A, 99)) for _ in range(8)]
    others += [gpu.asarray(np.full((SIDE, 2 * SIDE), 99, np.float32)) for _ in range(8)]
    graph.replay()
    torch.cuda.synchronize()
    assert np.array_equal(gpu.to_host(out), A @ B)
    del others


def test_setup_waits_for_no_stream_that_is_held(gpu):
    """Not for blocking ones either, as the legacy default stream would."""
    gpu.to_host(gpu.random((SIDE, SIDE)))
    with gpu.create_stream(blocking=True) as held, Latch(gpu) as latch:
        latch.hold(held)
        gpu.asarray(A)
        gpu.random((SIDE, SIDE))
        assert not held.is_done
        latch.open()


def test_setup_is_possible_while_a_blocking_stream_is_captured(gpu):
    gpu.to_host(gpu.random((SIDE, SIDE)))
    out = gpu.empty((SIDE, SIDE))
    with gpu.create_stream(blocking=True) as stream:
        gs.mm_out(out, gpu.asarray(A), gpu.asarray(B), stream=stream)
        with stream.capture() as graph:
            gs.mm_out(out, gpu.asarray(A), gpu.asarray(B), stream=stream)
        graph.launch(stream=stream)
        stream.synchronize()
        assert np.array_equal(gpu.to_host(out), A @ B)
        graph.close()


def test_handle_11_a_product_that_cublas_refuses_in_a_partition_is_explained(gpu, monkeypatch):
    from gpuscope.device.cuda import blas

    out, a, b = gpu.empty((SIDE, SIDE)), gpu.asarray(A), gpu.asarray(B)
    with gpu.carve([16]) as parts:
        stream = parts[0].create_stream()
        internal_error = 14  # CUBLAS_STATUS_INTERNAL_ERROR
        monkeypatch.setattr(blas, "_multiply", lambda *_: internal_error)
        with pytest.raises(gs.errors.GpuscopeError, match="16 SMs of partition"):
            gs.mm_out(out, a, b, stream=stream)
        monkeypatch.setattr(gpu.backend._blas, "_is_green", lambda: True)
        with pytest.raises(gs.errors.GpuscopeError, match="a green context is current"):
            gs.mm_out(out, a, b, stream=stream)
        monkeypatch.undo()
        gs.mm_out(out, a, b, stream=stream)
        stream.synchronize()
        assert np.array_equal(gpu.to_host(out), A @ B)


def test_what_other_threads_wait_for_spoils_no_capture(gpu):
    """The driver spoils every capture when a thread waits for the device, or its handle goes."""
    ones = gpu.asarray(np.ones((64, 64), np.float32))
    out, theirs = gpu.empty((64, 64)), gpu.empty((64, 64))
    multiplied, may_end = threading.Event(), threading.Event()

    def multiply(stream):
        gs.mm_out(theirs, ones, ones, stream=stream)
        multiplied.set()
        may_end.wait()

    with gpu.create_stream() as stream, gpu.create_stream() as other:
        gs.mm_out(out, ones, ones, stream=stream)
        ending = threading.Thread(target=multiply, args=(other,))
        ending.start()
        multiplied.wait()
        waiting = threading.Thread(target=gpu.synchronize)
        with stream.capture() as graph:
            gs.mm_out(out, ones, ones, stream=stream)
            may_end.set()
            ending.join()
            waiting.start()
            gs.mm_out(out, ones, ones, stream=stream)
            with pytest.raises(gs.errors.StreamError, match="leave the capture first"):
                gpu.synchronize()
        waiting.join()
        with graph:
            graph.launch(stream=stream)
            stream.synchronize()
    assert (gpu.to_host(out) == 64).all()
