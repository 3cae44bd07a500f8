"""Arrays of other libraries through the CUDA array interface, version 3 and older.

``numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html``. Nothing is waited for here:
whoever uses the memory lets its stream wait for the one that the interface names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from gpuscope._types import DType
from gpuscope.device.cuda.dlpack import Exported, exported


class SupportsInterface(Protocol):
    """An array that offers the CUDA array interface."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        """What the specification lists."""


def read(value: SupportsInterface) -> Exported:
    """Describe the memory that ``value`` shares.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError
        What it offers is no CUDA array interface, or that of a masked array.
    """
    offer = value.__cuda_array_interface__
    if offer.get("mask") is not None:
        raise ValueError("it is a masked array")
    shape = tuple(int(size) for size in offer["shape"])
    steps = offer.get("strides")
    strides = None if steps is None else tuple(int(step) for step in steps)
    if any(size < 0 for size in shape) or (strides is not None and len(strides) != len(shape)):
        raise ValueError(f"its shape is {shape} and its strides are {strides}")
    pointer, read_only = offer["data"]
    typestr = offer["typestr"]
    dtype: DType = np.dtype(typestr)
    if not isinstance(typestr, str) or dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"no array has elements of type {typestr!r}")
    return exported(
        int(pointer or 0), shape, strides, dtype, (value, offer), read_only=bool(read_only)
    )
