"""Contract E: mm_out; rules 5 and 6 also in tests/gpu and tests/unit/device/test_dlpack.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.workloads.spin import Spin

DTYPES = ("float16", "bfloat16", "float32", "float64")
TOLERANCE = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}


def product(gpu, a, b, dtype):
    out = gpu.asarray(np.full((a.shape[0], b.shape[1]), np.nan), dtype)
    gs.mm_out(out, gpu.asarray(a, dtype), gpu.asarray(b, dtype))
    return gpu.to_host(out).astype(np.float64)


def wrong(gpu):
    """Arguments that are wrong in exactly one way, in the contract's order."""
    f = "float16"
    ok = gpu.empty((4, 6), f), gpu.empty((4, 8), f), gpu.empty((8, 6), f)
    wide = gpu.empty((4, 12), f)
    whole = gpu.empty((8, 8), f)
    return [
        ("out is int, not an array", (3, ok[1], ok[2])),
        ("a is str, not an array", (ok[0], "a", ok[2])),
        ("b is ndarray, not an array", (ok[0], ok[1], np.zeros((8, 6), np.float16))),
        ("a has 1 dimensions", (ok[0], gpu.empty(8, f), ok[2])),
        ("columns .8. and b's rows .7. must agree", (ok[0], ok[1], gpu.empty((7, 6), f))),
        ("out is .4, 5., but a @ b is .4, 6.", (gpu.empty((4, 5), f), ok[1], ok[2])),
        ("dtypes differ", (gpu.empty((4, 6), "float32"), ok[1], ok[2])),
        ("int32 of out, a and b is not supported", [gpu.empty(x.shape, "int32") for x in ok]),
        ("out is not C-contiguous", (wide[:, ::2], ok[1], ok[2])),
        ("out overlaps an input", (whole, whole, gpu.empty((8, 8), f))),
    ]


def test_mm_out_01_each_error_names_the_argument(gpu):
    for text, arguments in wrong(gpu):
        with pytest.raises(gs.errors.InvalidOperand, match=text):
            gs.mm_out(*arguments)


def test_mm_out_01_checks_come_in_order(gpu):
    f = "float16"
    odd = gpu.empty((4, 6), "int32"), gpu.empty((4, 8), f), gpu.empty((7, 6), f)
    with pytest.raises(gs.errors.InvalidOperand, match="must agree"):  # before dtypes
        gs.mm_out(*odd)
    with pytest.raises(gs.errors.InvalidOperand, match="a has 3 dimensions"):  # before inner sizes
        gs.mm_out(odd[0], gpu.empty((1, 4, 8), f), odd[2])


def test_mm_out_01_another_device(gpu):
    other = gs.open_device("sim:h200", quiet=True)
    f = "float16"
    with pytest.raises(gs.errors.InvalidOperand, match=r"(another device|not an array on)"):
        gs.mm_out(gpu.empty((4, 6), f), other.empty((4, 8), f), gpu.empty((8, 6), f))


def test_mm_out_01_checks_again_what_a_known_shape_cannot_tell(gpu):
    a = gpu.empty((8, 8))
    gs.mm_out(gpu.empty((8, 8)), a, a)  # these sizes are known now
    with pytest.raises(gs.errors.InvalidOperand, match="overlaps"):
        gs.mm_out(a, a, gpu.empty((8, 8)))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "bool"])
def test_mm_out_02_integers_are_refused(gpu, dtype):
    with pytest.raises(gs.errors.InvalidOperand, match="not supported"):
        gs.mm_out(*(gpu.empty((4, 4), dtype) for _ in range(3)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mm_out_02_nan_in_out_does_not_survive_and_empty_sizes(gpu, dtype):
    zeros = product(gpu, np.zeros((3, 0)), np.zeros((0, 5)), dtype)
    assert zeros.tolist() == np.zeros((3, 5)).tolist()
    assert product(gpu, np.zeros((0, 4)), np.zeros((4, 5)), dtype).shape == (0, 5)
    assert product(gpu, np.zeros((4, 4)), np.zeros((4, 0)), dtype).shape == (4, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mm_out_03_views_give_the_same(gpu, dtype):
    rng = np.random.default_rng(3)
    a, b = rng.integers(-4, 5, (12, 20)), rng.integers(-4, 5, (20, 9))
    expected = (a @ b).astype(np.float64)
    column_a = gpu.asarray(np.ascontiguousarray(a.T), dtype).T
    column_b = gpu.asarray(np.ascontiguousarray(b.T), dtype).T
    wide_a = gpu.asarray(np.repeat(np.repeat(a, 2, axis=0), 2, axis=1), dtype)[::2, ::2]
    padded_b = gpu.asarray(np.pad(b, ((0, 0), (0, 7))), dtype)[:, :9]
    reversed_a = gpu.asarray(np.ascontiguousarray(a[::-1]), dtype)[::-1]
    for left in (gpu.asarray(a, dtype), column_a, wide_a, reversed_a):
        for right in (gpu.asarray(b, dtype), column_b, padded_b):
            out = gpu.empty((12, 9), dtype)
            with gpu.create_stream() as stream:
                assert gs.mm_out(out, left, right, stream=stream) is out
            assert gpu.to_host(out).astype(np.float64).tolist() == expected.tolist()


@pytest.fixture
def copies(gpu, monkeypatch):
    """What the backend was asked to copy into C order."""
    made = []
    plain = gpu.backend.rearrange

    def rearrange(stream, into, array, correlation):
        made.append((stream, array.shape))
        plain(stream, into, array, correlation)

    monkeypatch.setattr(gpu.backend, "rearrange", rearrange)
    return made


def layouts(gpu, values, dtype):
    """The same matrix in every layout that BLAS takes as it is."""
    rows, columns = values.shape
    turned = gpu.asarray(np.ascontiguousarray(values.T), dtype)
    padded = np.pad(values, ((1, 2), (3, 4)))
    return {
        "row-major": gpu.asarray(values, dtype),
        "column-major": turned.T,
        "part of wider rows": gpu.asarray(padded, dtype)[1 : 1 + rows, 3 : 3 + columns],
        "transposed part of wider rows": gpu.asarray(np.ascontiguousarray(padded.T), dtype)[
            3 : 3 + columns, 1 : 1 + rows
        ].T,
        "every other row": gpu.asarray(np.repeat(values, 2, axis=0), dtype)[::2],
        "transposed twice": gpu.asarray(values, dtype).T.T,
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_mm_out_03_layouts_of_a_matrix_are_never_copied(gpu, copies, dtype):
    rng = np.random.default_rng(33)
    a, b = rng.integers(-4, 5, (7, 10)), rng.integers(-4, 5, (10, 5))
    expected = (a @ b).astype(float).tolist()
    with gpu.create_stream() as stream:
        for how_a, left in layouts(gpu, a, dtype).items():
            for how_b, right in layouts(gpu, b, dtype).items():
                out = gpu.asarray(np.full((7, 5), np.nan), dtype)
                gs.mm_out(out, left, right, stream=stream)
                stream.synchronize()
                found = gpu.to_host(out).astype(float).tolist()
                assert found == expected, (how_a, how_b)
    assert copies == []


@pytest.mark.parametrize("shape", [(1, 8, 5), (6, 8, 1), (6, 1, 5), (1, 1, 1), (1, 8, 1)])
def test_mm_out_03_vectors_are_never_copied(gpu, copies, shape):
    m, k, n = shape
    rng = np.random.default_rng(34)
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    for left in (gpu.asarray(a, "float32"), gpu.asarray(np.ascontiguousarray(a.T), "float32").T):
        for right in layouts(gpu, b, "float32").values():
            out = gpu.empty((m, n))
            gs.mm_out(out, left, right)
            assert gpu.to_host(out).tolist() == (a @ b).astype(float).tolist()
    assert copies == []


def test_mm_out_03_other_strides_are_copied_on_the_stream_that_runs_it(gpu, copies):
    rng = np.random.default_rng(35)
    a, b = rng.integers(-4, 5, (6, 8)), rng.integers(-4, 5, (8, 6))
    strided_a = gpu.asarray(np.repeat(np.repeat(a, 2, 0), 3, 1), "float32")[::2, ::3]
    backward_b = gpu.asarray(np.ascontiguousarray(b[::-1]), "float32")[::-1]
    out = gpu.empty((6, 6))
    with gpu.create_stream() as stream:
        gs.mm_out(out, strided_a, gpu.asarray(b, "float32"), stream=stream)
        gs.mm_out(out, gpu.asarray(a, "float32"), backward_b, stream=stream)
        gs.mm_out(out, strided_a, backward_b, stream=stream)
        stream.synchronize()
        assert [home for home, _ in copies] == [stream] * 4
        assert [shape for _, shape in copies] == [(6, 8), (8, 6), (6, 8), (8, 6)]
    assert gpu.to_host(out).tolist() == (a @ b).astype(float).tolist()


def test_mm_out_03_a_copy_reads_what_the_stream_has_written_by_then(gpu, copies):
    """The copy is queued, not made at the call: it follows what is on the stream already."""
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    wide = gpu.asarray(np.zeros((8, 16), np.float32))
    source = gpu.asarray(np.repeat(values, 2, axis=1))
    out = gpu.empty((8, 8))
    hold = Spin(gpu, duration_ns=5_000_000)
    with gpu.create_stream() as stream:
        hold.execute(stream=stream)
        stream.copy(wide, source)
        gs.mm_out(out, wide[:, ::2], gpu.asarray(np.eye(8), "float32"), stream=stream)
        stream.synchronize()
    assert len(copies) == 1
    assert gpu.to_host(out).tolist() == values.tolist()


def test_mm_out_04_returns_without_waiting_when_a_stream_is_selected(gpu):
    a = gpu.random((64, 64), "float16")
    out = gpu.empty((64, 64), "float16")
    with gpu.create_stream() as stream:
        gs.mm_out(out, a, a, stream=stream)
        stream.synchronize()
        hold = Spin(gpu, duration_ns=30_000_000)
        hold.execute(stream=stream)
        with gs.CallerStreamGuard(stream):
            gs.mm_out(out, a, a)
        assert not stream.is_done
        gs.mm_out(gpu.empty((64, 64), "float16"), a, a)  # nothing selected: it has waited
        assert gpu.default_stream().is_done


def test_mm_out_04_takes_raw_handles_and_foreign_streams(gpu):
    a = gpu.random((8, 8))
    out = gpu.empty((8, 8))

    class Foreign:
        def __init__(self, handle):
            self.handle = handle

        def __cuda_stream__(self):
            return (0, self.handle)

    with gpu.create_stream() as stream:
        for selected in (stream.handle, Foreign(stream.handle)):
            with gs.CallerStreamGuard(selected):
                gs.mm_out(out, a, a)
        stream.synchronize()
    expected = gpu.to_host(a).astype(np.float64) @ gpu.to_host(a).astype(np.float64)
    assert np.allclose(gpu.to_host(out), expected, atol=1e-5)


def test_mm_out_05_many_threads_on_many_streams(gpu):
    """Eight threads, each on its own stream, then each on all of them in turn."""
    threads, turns, size = 8, 12, 48
    rng = np.random.default_rng(5)
    hosts = [rng.integers(-3, 4, (size, size)) for _ in range(threads)]
    operands = [gpu.asarray(host, DTYPES[i % 4]) for i, host in enumerate(hosts)]
    outs = [[gpu.empty((size, size), DTYPES[i % 4]) for _ in range(2 * turns)]
            for i in range(threads)]  # fmt: skip
    streams = [gpu.create_stream() for _ in range(threads)]
    start = threading.Barrier(threads)

    def work(index):
        a = operands[index]
        start.wait()
        with gs.CallerStreamGuard(streams[index]):
            for out in outs[index][:turns]:
                gs.mm_out(out, a, a)
        for turn, out in enumerate(outs[index][turns:]):
            gs.mm_out(out, a, a, stream=streams[(index + turn) % threads])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    for stream in streams:
        stream.synchronize()
        stream.close()
    for index, host in enumerate(hosts):
        expected = (host @ host).astype(float).tolist()
        for out in outs[index]:
            assert gpu.to_host(out).astype(float).tolist() == expected


def test_mm_out_05_no_lock_is_held_across_threads(gpu):
    """One thread inside mm_out does not keep another one out of it."""
    a, outs = gpu.random((16, 16)), [gpu.empty((16, 16)) for _ in range(2)]
    inside, go_on = threading.Event(), threading.Event()

    class Watcher:
        def call_begins(self, call):
            if threading.current_thread() is slow:
                inside.set()
                assert go_on.wait()

        def call_ends(self, call):
            pass

        def activity(self, activity):
            pass

    watcher = Watcher()
    with gpu.create_stream() as one, gpu.create_stream() as two:
        slow = threading.Thread(target=lambda: gs.mm_out(outs[0], a, a, stream=one))
        gpu.calls.observe(watcher)
        slow.start()
        try:
            assert inside.wait()
            gs.mm_out(outs[1], a, a, stream=two)
            two.synchronize()
        finally:
            go_on.set()
            slow.join()
            gpu.calls.unobserve(watcher)
    host = gpu.to_host(a).astype(np.float64)
    for out in outs:
        assert np.allclose(gpu.to_host(out), host @ host, atol=1e-5)


@pytest.mark.parametrize("granted", [16, 64, "rest"])
def test_mm_out_05_the_library_is_told_of_the_streams_partition(gpu, monkeypatch, granted):
    told = []
    plain = gpu.backend.matmul

    def matmul(stream, plan, operands, sm_count, correlation):
        told.append(sm_count)
        plain(stream, plan, operands, sm_count, correlation)

    monkeypatch.setattr(gpu.backend, "matmul", matmul)
    a, out = gpu.random((8, 8)), gpu.empty((8, 8))
    with gpu.carve({"mine": granted, "other": 8}) as parts:
        with gs.CallerStreamGuard(parts["mine"].create_stream()):
            gs.mm_out(out, a, a)
        with gpu.create_stream() as whole:
            gs.mm_out(out, a, a, stream=whole)
        assert told == [parts["mine"].sm_count_target, 0]


def test_mm_out_06_what_holds_no_device_memory_is_refused_by_name(gpu):
    ok = gpu.empty((4, 4))

    class Elsewhere:
        """On some other kind of device."""

        def __dlpack_device__(self):
            return (7, 0)

    class Nowhere:
        """Without memory, as PyTorch's meta tensors."""

        def __dlpack_device__(self):
            raise ValueError("no device")

    for wrong in (np.zeros((4, 4), np.float32), Elsewhere(), Nowhere(), [[1.0]], None):
        name = type(wrong).__name__
        for place in range(3):
            arguments = [ok, gpu.empty((4, 4)), gpu.empty((4, 4))]
            arguments[place] = wrong
            argument = ("out", "a", "b")[place]
            with pytest.raises(
                gs.errors.InvalidOperand, match=f"{argument} is {name}, not an array"
            ):
                gs.mm_out(*arguments)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mm_out_07_exact_on_small_integers(gpu, dtype):
    def pattern(rows, columns, modulus):
        return (np.arange(rows * columns) % modulus + 1).reshape(rows, columns)

    for m, k, n in ((4, 8, 6), (1, 16, 8)):
        a, b = pattern(m, k, 5), pattern(k, n, 3)
        assert product(gpu, a, b, dtype).tolist() == (a @ b).astype(float).tolist()
    ones = product(gpu, np.ones((1, 2048)), np.ones((2048, 256)), dtype)
    assert ones.tolist() == np.full((1, 256), 2048.0).tolist()
    b = pattern(32, 32, 7)
    assert product(gpu, np.eye(32), b, dtype).tolist() == b.astype(float).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_mm_out_07_close_to_a_float64_reference(gpu, dtype, monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    for seed, (m, k, n) in enumerate(((33, 65, 17), (256, 512, 128), (1, 1000, 300))):
        a, b = gpu.random((m, k), dtype, seed=seed), gpu.random((k, n), dtype, seed=seed + 9)
        out = gpu.empty((m, n), dtype)
        gs.mm_out(out, a, b)
        left, right = (gpu.to_host(x).astype(np.float64) for x in (a, b))
        reference = left @ right
        error = np.linalg.norm(gpu.to_host(out).astype(np.float64) - reference)
        assert error / np.linalg.norm(reference) < TOLERANCE[dtype]
