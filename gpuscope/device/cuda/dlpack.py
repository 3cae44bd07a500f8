"""Arrays of other libraries through DLPack, read without any of these libraries.

An exporter hands out a capsule around a C struct (github.com/dmlc/dlpack). A capsule that is
never renamed stays its own owner: as long as it lives so does the memory, and when it is
collected it tells its exporter. So nothing is consumed here, only read.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from gpuscope._types import DType, Untyped
from gpuscope.device.accesses import c_strides

CUDA, CUDA_MANAGED = 2, 13
"""Kinds of memory in ``DLDeviceType``."""
ON_CUDA = (CUDA, CUDA_MANAGED)

NO_SYNC = -1
"""For an exporter: queue no waits on any stream."""

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


READ_ONLY = 1
"""Flag of DLPack 1.0."""


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``, of DLPack 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


@dataclass(frozen=True, eq=False)
class Exported:
    """An array that some library shares.

    Attributes
    ----------
    pointer
        Address of the first element.
    nbytes
        From the lowest address to the end of the last element.
    strides
        In bytes.
    owner
        Keep it as long as the memory is used.
    read_only
        Whether its owner says that nobody may write it.
    """

    pointer: int
    nbytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    owner: object
    read_only: bool = False


def device_of(value: object) -> tuple[int, int]:
    """Return kind and index of the device that holds ``value``; (0, 0) if it does not say."""
    if (ask := getattr(value, "__dlpack_device__", None)) is None:
        return 0, 0
    try:
        kind, index = ask()
    except (BufferError, RuntimeError, TypeError, ValueError):  # it has no memory at all
        return 0, 0
    return int(kind), int(index)


def export(value: Untyped) -> Exported:
    """Ask ``value`` for its memory, without a copy and without a wait.

    Raises
    ------
    BufferError, TypeError, ValueError, RuntimeError
        The exporter refuses, or exports what no array of ours can be.
    """
    try:
        capsule = value.__dlpack__(stream=NO_SYNC, max_version=(1, 0))
    except TypeError:  # it knows no versions: then nothing says what is read-only
        capsule = value.__dlpack__(stream=NO_SYNC)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    is_valid = ctypes.pythonapi.PyCapsule_IsValid
    is_valid.restype = ctypes.c_int
    is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    read_only = False
    if is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(pointer_of(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise BufferError(f"it is exported as DLPack {versioned.major}, and 1 was asked for")
        tensor, read_only = versioned.tensor, bool(versioned.flags & READ_ONLY)
    else:
        # The struct begins with the tensor: what follows it is the exporter's business.
        tensor = _Tensor.from_address(pointer_of(capsule, b"dltensor"))
    dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = None
    if tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim])
    pointer = (tensor.data or 0) + tensor.byte_offset
    return exported(pointer, shape, strides, dtype, capsule, read_only=read_only)


def exported(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: DType,
    owner: object,
    *,
    read_only: bool,
) -> Exported:
    """Describe shared memory; without strides it is in C order."""
    if strides is None:
        strides = c_strides(shape, dtype.itemsize)
    nbytes = 0
    if 0 not in shape:
        steps = zip(shape, strides, strict=True)
        nbytes = dtype.itemsize + sum((size - 1) * abs(step) for size, step in steps)
    return Exported(pointer, nbytes, shape, strides, dtype, owner, read_only)


def _dtype(code: int, bits: int, lanes: int) -> DType:
    kind = _KINDS.get(code)
    if lanes != 1 or kind is None or bits % 8:
        raise TypeError(f"no array has elements of DLPack type {code} with {bits} bits × {lanes}")
    name = {"bfloat": ml_dtypes.bfloat16, "bool": np.bool_}.get(kind, f"{kind}{bits}")
    dtype: DType = np.dtype(name)
    if dtype.itemsize * 8 != bits:
        raise TypeError(f"no array has elements of DLPack type {code} with {bits} bits")
    return dtype
