"""The element types of matrix products: one table for BLAS, simulator, workloads and experiments.

Loads no NumPy: describing an experiment needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from gpuscope._checks import given
from gpuscope.errors import InvalidOperand

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

_TYPES = (
    ElementType("float16", 2, "float32", 2, _FLOAT),
    ElementType("bfloat16", 2, "float32", 14, _FLOAT),
    ElementType("float32", 4, "float32", 0, _FLOAT),
    ElementType("float64", 8, "float64", 1, _DOUBLE),
)
DTYPES: Mapping[str, ElementType] = MappingProxyType({dtype.name: dtype for dtype in _TYPES})
"""Name → element type."""

_OTHER_NAMES: dict[str, Dtype] = {
    **dict.fromkeys(("half", "fp16", "f16", "f2", "e"), "float16"),
    **dict.fromkeys(("bf16", "bfloat", "brainfloat16"), "bfloat16"),
    **dict.fromkeys(("single", "fp32", "f32", "f4", "f", "tf32"), "float32"),
    **dict.fromkeys(("double", "fp64", "f64", "f8", "d", "float"), "float64"),
}
"""What else they go by: suggested, since "float" means other things elsewhere."""


def dtype_name(dtype: object) -> str:
    """Return what a type is called, whoever made it; empty where that cannot be told.

    Parameters
    ----------
    dtype
        ``"float16"``, ``np.float16``, ``np.dtype("float16")``, ``ml_dtypes.bfloat16``,
        ``cupy.float16`` or ``torch.float16``.
    """
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    if isinstance(dtype, type):
        return dtype.__name__
    if type(dtype).__module__ == "torch":  # its name is in nothing but its text
        return str(dtype).removeprefix("torch.")
    return str(getattr(dtype, "name", "")) if getattr(dtype, "isnative", False) else ""


def did_you_mean(name: str) -> str:
    """Return a question that names the element type nearest to a name, or nothing."""
    lower = name.lower()
    near = [str(name) for name in (_OTHER_NAMES.get(lower),) if name]
    near += get_close_matches(lower, DTYPES)
    return f" Did you mean {near[0]!r}?" if near else ""


def element_type(dtype: object) -> ElementType:
    """Return the element type that :func:`dtype_name` names.

    Raises
    ------
    InvalidOperand
        There is none of that name; the message says which there are and suggests the nearest.
    """
    name = dtype_name(dtype)
    if name in DTYPES:
        return DTYPES[name]
    shown = given(name if name else dtype)
    names = [repr(supported) for supported in DTYPES]
    raise InvalidOperand(
        f"dtype should be {', '.join(names[:-1])} or {names[-1]}, but found {shown}."
        f"{did_you_mean(name)}"
    )
