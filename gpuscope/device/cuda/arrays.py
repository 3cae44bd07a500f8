"""Arrays on a CUDA device are CuPy's."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Array, DType, Untyped
from gpuscope.device.cuda import dlpack
from gpuscope.device.cuda.driver import import_cupy
from gpuscope.device.memory import Block, pinned_block
from gpuscope.errors import InvalidOperand

cupy = import_cupy()
_Array = cupy.ndarray


class DeviceMemory(cupy.cuda.UnownedMemory):  # type: ignore[name-defined,misc]
    """A block of memory under CuPy's arrays and their views, which keep it.

    Attributes
    ----------
    block
        Goes back to its pool with the last of them.
    tags
        Of the streams that use it, which every launch asks for.
    """

    def __init__(self, block: Block[Untyped], nbytes: int, index: int) -> None:
        super().__init__(block.raw.ptr, nbytes, block, index)
        self.block = block
        self.tags = block.tags

    def array(self, shape: tuple[int, ...], dtype: DType) -> Untyped:
        """Return it as an array, uninitialised."""
        return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(self, 0))


def block_of(value: object) -> Block[Untyped] | None:
    """Return the memory of ours under an array of the device or page-locked memory, if any."""
    if isinstance(value, _Array):
        memory = value.data.mem
        return memory.block if type(memory) is DeviceMemory else None
    return pinned_block(value)


def device_index_of(value: Untyped) -> int:
    """Return the ordinal of the device that holds an array of any library."""
    if isinstance(value, cupy.ndarray):
        return int(value.data.device_id)
    kind, index = dlpack.device_of(value)
    if kind == dlpack.CUDA:
        return index
    if kind == dlpack.CUDA_MANAGED:  # its index means nothing: any device may hold it
        return _device_of_pointer(_exported(value).pointer)
    return _device_of_pointer(_described(value).pointer)


def _device_of_pointer(pointer: int) -> int:
    if pointer == 0:
        return int(cupy.cuda.runtime.getDevice())
    return int(cupy.cuda.runtime.pointerGetAttributes(pointer).device)


def adopt(value: Untyped, *, write: bool = False) -> Untyped | None:
    """View ``value`` as a CuPy array without a copy; ``None`` if it is no device array.

    DLPack and the CUDA array interface are read here rather than by CuPy, which refuses
    bfloat16, lets read-only memory be written, and waits for the exporter's stream: DLPack's on
    its own current stream, the interface's on the host.

    Raises
    ------
    InvalidOperand
        It is one, but it cannot be exported or read, or to ``write``, is read-only; says why.
    """
    if isinstance(value, cupy.ndarray):
        return value
    if dlpack.device_of(value)[0] in dlpack.ON_CUDA:
        shared = _exported(value)
    elif hasattr(value, "__cuda_array_interface__"):
        shared = _described(value)
    else:
        return None
    if write and shared.read_only:
        raise InvalidOperand(
            f"{type(value).__name__} shares its memory as read-only: give an array that can be "
            "written"
        )
    try:
        return _view(shared, device_index_of(value))
    except (TypeError, ValueError) as error:
        raise InvalidOperand(
            f"{type(value).__name__} cannot be seen as a CuPy array ({error}): give a CuPy array"
        ) from error


def stream_of(value: object) -> int | None:
    """Return the stream that a CUDA array interface says to wait for; ``None`` for none."""
    if isinstance(value, cupy.ndarray) or dlpack.device_of(value)[0] in dlpack.ON_CUDA:
        return None
    handle = getattr(value, "__cuda_array_interface__", {}).get("stream")
    if handle is None:
        return None
    if isinstance(handle, bool) or not isinstance(handle, int) or handle <= 0:
        raise InvalidOperand(
            f"{type(value).__name__} offers a CUDA array interface whose stream is {handle!r}: 1 "
            "(the legacy default stream), 2 (the per-thread one) or a stream's handle is needed"
        )
    return handle


def _described(value: Untyped) -> dlpack.Exported:
    """Read a CUDA array interface."""
    try:
        return _read_interface(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidOperand(
            f"{type(value).__name__} offers a CUDA array interface that cannot be read "
            f"({type(error).__name__}: {error}): give a CuPy array"
        ) from error


def _read_interface(value: Untyped) -> dlpack.Exported:
    """Describe the memory that ``value`` shares through the CUDA array interface.

    Of version 3 or older: ``numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html``.
    Nothing is waited for here: whoever uses the memory lets its stream wait for the one that the
    interface names.

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
    return dlpack.exported(
        int(pointer or 0), shape, strides, dtype, (value, offer), read_only=bool(read_only)
    )


def _exported(value: Untyped) -> dlpack.Exported:
    try:
        return dlpack.export(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidOperand(
            f"{type(value).__name__} is on the device, but cannot be shared as it is ({error}): "
            "give a plain, dense array or tensor, such as a PyTorch tensor's detach()"
        ) from error


def _view(exported: dlpack.Exported, index: int) -> Untyped:
    """View exported memory as a CuPy array that keeps it alive."""
    memory = cupy.cuda.UnownedMemory(exported.pointer, exported.nbytes, exported.owner, index)
    at = cupy.cuda.MemoryPointer(memory, 0)
    return cupy.ndarray(exported.shape, exported.dtype, memptr=at, strides=exported.strides)


def host_array(value: object) -> Array:
    """Check that ``value`` is a C-contiguous NumPy array, to copy from or to."""
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        raise InvalidOperand(
            f"copy takes arrays of the device or C-contiguous NumPy arrays, not "
            f"{type(value).__name__}"
        )
    return value
