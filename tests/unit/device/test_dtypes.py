"""The table of element types says what NumPy, cuBLAS and the type checker say."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.dtypes import DTYPES, Dtype


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
