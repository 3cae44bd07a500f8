"""Accesses: which bytes a piece of work reads or writes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from gpuscope._checks import given
from gpuscope._types import Untyped
from gpuscope.device.memory import is_pageable
from gpuscope.errors import InvalidOperand

if TYPE_CHECKING:
    from gpuscope.device.api import Kernel, KernelArgs

_PIECES = 256
"""Into so many accesses an array falls at most; beyond, it is one, of rows that consist of rows."""


class Access(NamedTuple):
    """Bytes of memory that a piece of work reads or writes.

    Attributes
    ----------
    start, stop
        Addresses of the first byte and of the one after the last.
    reads, writes
        What it does there.
    step, width
        Of rows that lie apart, as the columns of a matrix do: bytes from one row to the next, and
        of each; 0 where every byte between ``start`` and ``stop`` counts.
    inner
        Step and width of the rows that a row consists of, and so on; empty where all of its bytes
        count.
    """

    start: int
    stop: int
    reads: bool = True
    writes: bool = False
    step: int = 0
    width: int = 0
    inner: tuple[tuple[int, int], ...] = ()


class Accessing(Protocol):
    """What a piece of work reads or writes, without its memory, to be looked at later."""

    def accesses(self) -> tuple[Access, ...]:
        """Return the bytes that the work reads or writes."""


class Operand(Struct, gc=False):
    """An array that a piece of work reads or writes: see :class:`Accessing`.

    Attributes
    ----------
    address
        Of the first element.
    strides, item
        In bytes; of an element.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    reads: bool = True
    writes: bool = False

    def accesses(self) -> tuple[Access, ...]:
        """Return the bytes that the work reads or writes."""
        return ranges(
            self.address, self.shape, self.strides, self.item, reads=self.reads, writes=self.writes
        )


class _Copied(Struct, gc=False):
    """A copy between arrays of one shape and dtype: see :class:`Accessing`."""

    shape: tuple[int, ...]
    item: int
    source: int
    source_strides: tuple[int, ...]
    destination: int
    destination_strides: tuple[int, ...]

    def accesses(self) -> tuple[Access, ...]:
        """Return the bytes that it reads and writes."""
        shape, item = self.shape, self.item
        written = ranges(
            self.destination, shape, self.destination_strides, item, reads=False, writes=True
        )
        return (*ranges(self.source, shape, self.source_strides, item), *written)


_AT: dict[type, Callable[[Untyped], int]] = {}
"""Types of arrays of this kind of device that were met → what tells their address, soon."""
_NOWHERE = Operand(0, (0,), (0,), 1)
"""An operand of no bytes."""


def operand_of(value: Untyped, *, reads: bool = True, writes: bool = False) -> Operand:
    """Return an array of ours, NumPy's, PyTorch's, or with a CUDA array interface, as an operand.

    It has no bytes where it tells no address.
    """
    at = _AT.get(type(value))
    if at is not None:
        return Operand(at(value), value.shape, value.strides, value.dtype.itemsize, reads, writes)
    if hasattr(value, "data_ptr"):  # PyTorch's
        item = value.element_size()
        strides = tuple([step * item for step in value.stride()])
        return Operand(value.data_ptr(), tuple(value.shape), strides, item, reads, writes)
    if (address := address_of(value)) is None:
        return _NOWHERE
    shape, strides, item = tuple(value.shape), value.strides, int(value.dtype.itemsize)
    if callable(strides) or strides is None:  # of other libraries, of which some count elements
        offered = getattr(value, "__cuda_array_interface__", None)
        steps = offered.get("strides") if isinstance(offered, dict) else None
        strides = steps or c_strides(shape, item)
    elif address == getattr(value, "address", None):
        _AT[type(value)] = attrgetter("address")
    elif type(value).__module__.partition(".")[0] == "cupy":
        _AT[type(value)] = attrgetter("data.ptr")
    return Operand(address, shape, tuple(strides), item, reads, writes)


def accesses_of_tensor(tensor: Untyped, *, reads: bool, writes: bool) -> tuple[Access, ...]:
    """Return the accesses to a tensor of PyTorch's."""
    item = tensor.element_size()
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return (Access(start, start + tensor.numel() * item, reads, writes),)
    strides = [step * item for step in tensor.stride()]
    return ranges(tensor.data_ptr(), tensor.shape, strides, item, reads=reads, writes=writes)


def address_of(value: object) -> int | None:
    """Return the address of an array's first element; ``None`` of what tells none."""
    address = getattr(value, "address", None)  # the simulated GPU's
    if type(address) is int:
        return address
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    pointer = getattr(getattr(value, "data", None), "ptr", None)  # CuPy's
    if type(pointer) is int:
        return pointer
    offered = getattr(value, "__cuda_array_interface__", None)
    return int(offered["data"][0] or 0) if isinstance(offered, dict) else None


def address(array: object) -> int:
    """Return where an array begins: in the device's memory, simulated or not, or the host's.

    Parameters
    ----------
    array
        Of a device, of NumPy, or with a CUDA array interface.

    Raises
    ------
    InvalidOperand
        It is no such array.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> array = gpu.empty(8, "float32")
    >>> gs.device.address(array[2:]) - gs.device.address(array)
    8
    """
    start: int | None = address_of(array)
    if start is None:
        raise InvalidOperand(f"array is {given(array)}; an array with an address is needed")
    return start


def byte_ranges(array: object) -> list[tuple[int, int]]:
    """Return where an array's elements lie: addresses of first bytes, and of those after the last.

    Parameters
    ----------
    array
        Of a device, of NumPy, or with a CUDA array interface. Rows that lie apart may be one range.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> array = gpu.empty((4, 8), "float32")
    >>> [(start, stop)] = gs.device.byte_ranges(array)
    >>> stop - start
    128
    """
    return [(access.start, access.stop) for access in operand_of(array).accesses()]


def c_strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Return the strides of an array in C order, in bytes."""
    sizes = [max(size, 1) for size in shape]
    return tuple(item * math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def ranges(
    address: int,
    shape: Iterable[int],
    strides: Iterable[int],
    item: int,
    *,
    reads: bool = True,
    writes: bool = False,
) -> tuple[Access, ...]:
    """Return the accesses to elements of ``item`` bytes in a shape, with strides in bytes."""
    axes = []
    for size, step in zip(shape, strides, strict=True):
        if size == 0:
            return ()
        if size > 1 and step:
            address += min(0, (size - 1) * step)
            axes.append((abs(step), size))
    width, step, count = item, 0, 1
    pieces = [address]
    stop = address + sum((size - 1) * step for step, size in axes) + item
    for apart, size in sorted(axes):
        if not step and apart <= width:  # they touch each other
            width += (size - 1) * apart
        elif not step:
            step, count = apart, size
        elif apart == step * count:
            count *= size
        elif apart >= step * (count - 1) + width and len(pieces) * size <= _PIECES:
            pieces = [piece + index * apart for piece in pieces for index in range(size)]
        else:
            return (_nested(Access(address, stop, reads, writes), sorted(axes), item),)
    length = (count - 1) * step + width
    return tuple(
        Access(piece, piece + length, reads, writes, step, width if step else 0) for piece in pieces
    )


def _nested(whole: Access, axes: Iterable[tuple[int, int]], item: int) -> Access:
    """Return an access with rows that consist of rows; as it is where those are interleaved."""
    levels: list[tuple[int, int]] = []
    length = item
    for apart, size in axes:
        if apart < length:
            return whole
        if apart > length:
            levels.insert(0, (apart, length))
        length += (size - 1) * apart
    (step, width), *inner = levels
    return whole._replace(step=step, width=width, inner=tuple(inner))


def pointers_of(source: str, name: str) -> tuple[bool | None, ...]:
    """Return of each parameter of a kernel whether it points to ``const``; ``None``: no pointer.

    Nothing of a kernel that is not found in the source.
    """
    signature = re.search(rf"\b{re.escape(name)}\s*\(([^)]*)\)\s*\{{", source)
    return tuple(
        bool(re.search(r"\bconst\b[^*]*\*", parameter)) if "*" in parameter else None
        for parameter in (signature[1].split(",") if signature is not None else ())
    )


def of_launch(kernel: Kernel, args: KernelArgs) -> tuple[Operand, ...] | None:
    """Return what a launch reads and writes; ``None`` where a pointer is given as a number.

    What the kernel's model names, and otherwise what its source says.
    """
    reads: list[object] = []
    writes: list[object] = []
    if kernel.model is not None:
        target = kernel.model.writes(args)
        reads, writes = [*kernel.model.reads(args)], [] if target is None else [target]
    named = {id(array) for array in (*reads, *writes)}
    pointer_operands = of_pointers(args, kernel.pointers[: len(args)], named)
    return None if pointer_operands is None else (*of_arrays(reads, writes), *pointer_operands)


def of_pointers(
    args: Iterable[object], pointers: tuple[bool | None, ...], named: Container[int] = ()
) -> tuple[Operand, ...] | None:
    """Return what a kernel reads and writes of arrays; ``None``: a pointer is given as a number.

    What its source declares ``const`` is read, everything else read and written.

    Parameters
    ----------
    pointers
        As :func:`pointers_of` tells them.
    named
        Ids of arguments to leave out.
    """
    reads: list[object] = []
    updates: list[object] = []
    for value, points_to_const in zip_longest(args, pointers):
        if points_to_const is not None and isinstance(value, int | np.integer) and value:
            return None
        if id(value) not in named and hasattr(value, "dtype") and hasattr(value, "shape"):
            (reads if points_to_const else updates).append(value)
    return of_arrays(reads, (), updates)


def inside(value: object) -> Iterator[object]:
    """Yield what containers, those in them too, hold."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for item in value:
        yield from inside(item)


def of_arrays(
    reads: Iterable[object], writes: Iterable[object], updates: Iterable[object] = ()
) -> tuple[Operand, ...]:
    """Return the operands of work that reads some arrays, writes others, and updates some."""
    return (
        *[operand_of(array) for array in reads],
        *[operand_of(array, reads=False, writes=True) for array in writes],
        *[operand_of(array, writes=True) for array in updates],
    )


def of_copy(source: Untyped, destination: Untyped) -> tuple[Accessing, ...]:
    """Return what a copy reads and writes, without memory of the host that the GPU cannot see."""
    read_at, write_at = _AT.get(type(source)), _AT.get(type(destination))
    if read_at is None or write_at is None:
        return of_arrays(
            *[[] if is_pageable(array) else [array] for array in (source, destination)]
        )
    read, written = (read_at(source), source.strides), (write_at(destination), destination.strides)
    return (_Copied(source.shape, source.dtype.itemsize, *read, *written),)


def accesses_of(every: Iterable[Accessing]) -> tuple[Access, ...]:
    """Return the bytes that work reads and writes, by all that it accesses."""
    return tuple([access for operand in every for access in operand.accesses()])
