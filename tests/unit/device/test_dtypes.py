"""The table of element types says what NumPy, cuBLAS and the type checker say."""

from __future__ import annotations

from typing import get_args

import ml_dtypes
import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.dtypes import DTYPES, Dtype
from gpuscope.errors import InvalidExperiment, InvalidOperand


def test_the_type_checker_knows_the_same_names():
    assert tuple(DTYPES) == get_args(Dtype)


@pytest.mark.parametrize("name", DTYPES)
def test_a_type_is_numpys_of_that_name(name):
    dtype = DTYPES[name]
    assert dtype.numpy.name == name
    assert dtype.numpy.itemsize == dtype.itemsize
    assert np.dtype(dtype.accumulator).itemsize >= dtype.itemsize
    with gs.Gemm(gs.open_device("sim:h200", quiet=True), m=8, n=8, k=8, dtype=name) as gemm:
        gemm.execute()
        assert gemm.operands()[2].dtype == dtype.numpy


def test_codes_are_those_of_cublas():
    cublas = pytest.importorskip("nvmath.bindings.cublas")
    codes = {"float32": cublas.ComputeType.COMPUTE_32F, "float64": cublas.ComputeType.COMPUTE_64F}
    for dtype in DTYPES.values():
        assert dtype.cublas_compute == int(codes[dtype.accumulator])


class TorchDtype:
    """Says what it is as ``torch.dtype`` does: in its text alone."""

    __module__ = "torch"

    def __init__(self, name):
        self.name = name

    def __getattribute__(self, name):
        if name == "name":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __repr__(self):
        return f"torch.{vars(self)['name']}"


def gemm_of(dtype):
    return {
        "name": "x", "streams": {"s": {}},
        "workloads": {"w": {"kind": "gemm", "m": 8, "n": 8, "k": 8, "stream": "s", "dtype": dtype}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float16, "float16"),
        (np.dtype("float32"), "float32"),
        (np.float64, "float64"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        (TorchDtype("float16"), "float16"),
        (TorchDtype("bfloat16"), "bfloat16"),
    ],
    ids=str,
)
def test_types_of_other_libraries_are_taken(dtype, name):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.Gemm(gpu, m=8, n=8, k=8, dtype=dtype) as gemm:
        assert (gemm.dtype, gemm.name) == (name, f"gemm 8x8x8 {name}")
    assert gpu.empty((2,), dtype).dtype == DTYPES[name].numpy
    assert (
        gs.experiments.Experiment.from_dict(gemm_of(dtype)).to_dict()["workloads"]["w"]["dtype"]
        == name
    )


def test_an_array_may_have_any_type_of_torchs():
    gpu = gs.open_device("sim:h200", quiet=True)
    assert gpu.empty((2,), TorchDtype("int32")).dtype == np.int32


@pytest.mark.parametrize(
    ("dtype", "near"),
    [
        ("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"), ("FLOAT32", "float32"),
        ("flaot64", "float64"), (float, "float64"), (TorchDtype("float8"), "float"),
    ],
    ids=str,
)  # fmt: skip
def test_a_near_miss_gets_a_suggestion(dtype, near):
    gpu = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(InvalidOperand, match=rf"Did you mean '{near}"):
        gs.Gemm(gpu, m=8, n=8, k=8, dtype=dtype)
    with pytest.raises(InvalidExperiment, match=rf"w\.dtype: should be .*Did you mean '{near}"):
        gs.experiments.Experiment.from_dict(gemm_of(dtype))


@pytest.mark.parametrize("dtype", ["int8", None, 3, np.dtype(">f2"), np.int32], ids=str)
def test_what_is_no_element_type_gets_none(dtype):
    gpu = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(InvalidOperand, match="dtype should be 'float16', 'bfloat16'") as caught:
        gs.Gemm(gpu, m=8, n=8, k=8, dtype=dtype)
    assert "Did you mean" not in str(caught.value)
