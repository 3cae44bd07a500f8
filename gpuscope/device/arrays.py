"""Arguments that are arrays, or say what an array is to be: shapes, dtypes, which device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import numpy as np
import numpy.typing as npt

from gpuscope._checks import count, given
from gpuscope._text import clean
from gpuscope._types import Array, DType
from gpuscope.device.api import NativeArray
from gpuscope.device.dtypes import DTYPES, did_you_mean, dtype_name
from gpuscope.device.owner import Owner
from gpuscope.errors import InvalidOperand

_LARGEST = 2**62


def as_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as a tuple of sizes, checked."""
    if isinstance(shape, str | bytes):
        raise InvalidOperand(f"shape is {given(shape)}; whole numbers are needed")
    try:
        sizes: tuple[object, ...] = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    except TypeError:  # an array of no dimensions says it can be iterated over
        sizes = (shape,)
    checked = tuple(
        count("a size in shape", size, least=-_LARGEST, most=_LARGEST, error=InvalidOperand)
        for size in sizes
    )
    if any(size < 0 for size in checked):
        raise InvalidOperand(f"a shape has no negative sizes, but {checked} was asked for")
    return checked


def as_dtype(dtype: npt.DTypeLike | None) -> DType:
    """Return a NumPy dtype; knows ``"bfloat16"`` and PyTorch's types too."""
    name = dtype_name(dtype)
    if name in DTYPES:
        return DTYPES[name].numpy
    is_named = dtype is None or type(dtype).__module__ == "torch"
    try:  # of None NumPy would make float64
        chosen: DType = np.dtype(name or "none is given" if is_named else dtype)
    except Exception as error:  # NumPy evaluates what it is given, which fails in many ways
        raise InvalidOperand(
            f"dtype is {given(dtype)}; one that NumPy or ml_dtypes has is needed."
            f"{did_you_mean(name)}"
        ) from error
    if chosen.kind in "OSUMm" or chosen.names is not None or chosen.subdtype is not None:
        raise InvalidOperand(f"dtype is {clean(chosen, 60)}; one of numbers is needed")
    if not chosen.isnative:
        raise InvalidOperand(
            f"dtype is {clean(chosen, 60)}, in another byte order than this machine's, which no "
            f"device computes with; use {chosen.newbyteorder('=').name}"
        )
    return chosen


def fitted(values: npt.ArrayLike, shape: tuple[int, ...], dtype: DType) -> Array:
    """Return what a kernel's model computed as the array that it writes.

    Raises
    ------
    InvalidOperand
        It is no numbers, or not as many.
    """
    try:
        made = np.asarray(values, dtype)
    except (TypeError, ValueError) as error:
        raise InvalidOperand(
            f"KernelModel.compute returned {given(values)}, which cannot be made {dtype.name} "
            f"({clean(error, 100)}): return the new values of the array written"
        ) from error
    if made.size != math.prod(shape):
        raise InvalidOperand(
            f"KernelModel.compute returned {made.size} values, in shape {made.shape}, for an array "
            f"of shape {shape}: return {math.prod(shape)}"
        )
    return made.reshape(shape)


def adopted(device: Owner, value: object, name: str, *, write: bool = False) -> NativeArray:
    """Return an array of any library as the device's; to ``write``, one that may be written.

    Raises
    ------
    InvalidOperand
        It is none on such a device, or read-only; names the argument.
    """
    try:
        array = device.backend.adopt(value, write=write)
    except InvalidOperand as error:
        raise InvalidOperand(f"{name}: {error}") from error
    if array is None:
        raise InvalidOperand(
            f"{name} is {type(value).__name__}, not an array on {device.info.key}: make one with "
            "the device's asarray() or empty()"
        )
    return array


def require_array(
    device: Owner, value: object, name: str, *, write: bool = False, on_host: bool = True
) -> None:
    """Refuse what is neither an array of ``device`` nor one of NumPy, or is read-only.

    Raises
    ------
    InvalidOperand
        Names the argument.
    """
    backend = device.backend
    if isinstance(value, np.ndarray) and (on_host or type(value) is backend.array_type):
        if write and not value.flags.writeable:
            raise InvalidOperand(f"{name} is read-only: give an array that can be written")
        return
    is_ours = type(value) is backend.array_type
    array = cast("NativeArray", value) if is_ours else adopted(device, value, name, write=write)
    if backend.home_of(array) != backend.home:
        raise InvalidOperand(
            f"{name} is on another device than {device.info.key}: copy it there first"
        )
