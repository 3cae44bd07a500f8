"""The element types of matrix products: one table for BLAS, simulator, workloads and experiments.

Loads no NumPy: describing an experiment needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

Dtype = Literal["float16", "bfloat16", "float32", "float64"]
"""Their names."""


@dataclass(frozen=True)
class ElementType:
    """An element type that matrix products take.

    Attributes
    ----------
    itemsize
        Bytes of an element.
    accumulator
        Name of the type in which products are summed.
    cublas_data, cublas_compute
        Its ``cudaDataType_t``, and the ``cublasComputeType_t`` of its products: no TF32.
    calibrated
        Whether GPU profiles have measured times of its products.
    """

    name: Dtype
    itemsize: int
    accumulator: Literal["float32", "float64"]
    cublas_data: int
    cublas_compute: int
    calibrated: bool = True

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's type."""
        import ml_dtypes  # noqa: PLC0415 - describing needs no NumPy
        import numpy as np  # noqa: PLC0415 - the same

        return np.dtype(getattr(ml_dtypes, self.name, self.name))


_FLOAT, _DOUBLE = 68, 70
"""CUBLAS_COMPUTE_32F and CUBLAS_COMPUTE_64F."""

DTYPES: Mapping[str, ElementType] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            ElementType("float16", 2, "float32", 2, _FLOAT),
            ElementType("bfloat16", 2, "float32", 14, _FLOAT),
            ElementType("float32", 4, "float32", 0, _FLOAT),
            ElementType("float64", 8, "float64", 1, _DOUBLE),
        )
    }
)
"""Name → element type."""
