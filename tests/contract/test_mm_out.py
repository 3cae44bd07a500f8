"""Contract E: mm_out (rules 1, 2, 3, 4 and 7)."""

from __future__ import annotations

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
        with pytest.raises(gs.InvalidOperand, match=text):
            gs.mm_out(*arguments)


def test_mm_out_01_checks_come_in_order(gpu):
    f = "float16"
    odd = gpu.empty((4, 6), "int32"), gpu.empty((4, 8), f), gpu.empty((7, 6), f)
    with pytest.raises(gs.InvalidOperand, match="must agree"):  # before dtypes
        gs.mm_out(*odd)
    with pytest.raises(gs.InvalidOperand, match="a has 3 dimensions"):  # before inner sizes
        gs.mm_out(odd[0], gpu.empty((1, 4, 8), f), odd[2])


def test_mm_out_01_another_device(gpu):
    other = gs.open_device("sim:h200", quiet=True)
    f = "float16"
    with pytest.raises(gs.InvalidOperand, match=r"(another device|not an array on)"):
        gs.mm_out(gpu.empty((4, 6), f), other.empty((4, 8), f), gpu.empty((8, 6), f))


def test_mm_out_01_checks_again_what_a_known_shape_cannot_tell(gpu):
    a = gpu.empty((8, 8))
    gs.mm_out(gpu.empty((8, 8)), a, a)  # these sizes are known now
    with pytest.raises(gs.InvalidOperand, match="overlaps"):
        gs.mm_out(a, a, gpu.empty((8, 8)))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "bool"])
def test_mm_out_02_integers_are_refused(gpu, dtype):
    with pytest.raises(gs.InvalidOperand, match="not supported"):
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
