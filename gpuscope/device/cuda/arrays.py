"""Arrays on a CUDA device are CuPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.device.cuda import dlpack
from gpuscope.device.cuda.driver import import_cupy
from gpuscope.errors import InvalidOperand

cupy = import_cupy()


def device_index_of(value: Any) -> int:
    """Return the ordinal of the device that holds an array of any library."""
    if isinstance(value, cupy.ndarray):
        return int(value.data.device_id)
    kind, index = dlpack.device_of(value)
    if kind == dlpack.CUDA:
        return index
    if kind == dlpack.CUDA_MANAGED:  # its index means nothing: any device may hold it
        return _device_of_pointer(_exported(value).pointer)
    return _device_of_pointer(int(value.__cuda_array_interface__["data"][0]))


def _device_of_pointer(pointer: int) -> int:
    if pointer == 0:
        return int(cupy.cuda.runtime.getDevice())
    return int(cupy.cuda.runtime.pointerGetAttributes(pointer).device)


def adopt(value: Any) -> Any:
    """View ``value`` as a CuPy array without a copy; ``None`` if it is no device array.

    DLPack is read here rather than by CuPy, which refuses bfloat16 and would make its own
    current stream wait for the exporter's: which stream waits for what is the caller's
    choice.

    Raises
    ------
    InvalidOperand
        It is one, but it cannot be exported or read; says why.
    """
    if isinstance(value, cupy.ndarray):
        return value
    if dlpack.device_of(value)[0] in dlpack.ON_CUDA:
        return _view(_exported(value), device_index_of(value))
    if hasattr(value, "__cuda_array_interface__"):
        try:
            return cupy.asarray(value)
        except (TypeError, ValueError) as error:
            raise InvalidOperand(
                f"{type(value).__name__} offers a CUDA array interface that CuPy cannot read "
                f"({error}): give a CuPy array"
            ) from error
    return None


def _exported(value: Any) -> dlpack.Exported:
    try:
        return dlpack.export(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidOperand(
            f"{type(value).__name__} is on the device, but cannot be shared as it is ({error}): "
            "give a plain, dense array or tensor, such as a PyTorch tensor's detach()"
        ) from error


def _view(exported: dlpack.Exported, index: int) -> Any:
    """View exported memory as a CuPy array that keeps it alive."""
    memory = cupy.cuda.UnownedMemory(exported.pointer, exported.nbytes, exported.owner, index)
    return cupy.ndarray(
        exported.shape,
        exported.dtype,
        memptr=cupy.cuda.MemoryPointer(memory, 0),
        strides=exported.strides,
    )


def host_array(value: Any) -> Any:
    """Check that ``value`` is a C-contiguous NumPy array, to copy from or to."""
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        raise InvalidOperand(
            f"copy takes arrays of the device or C-contiguous NumPy arrays, not "
            f"{type(value).__name__}"
        )
    return value
