"""Arrays of the simulated GPU: versions instead of values.

A buffer's version says how its value would be computed. Work binds the versions of its
inputs when it starts and commits a new version of its output when it ends, so a
consumer that does not wait sees the version that it would see on a GPU. A value is
computed only when somebody reads it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gpuscope._types import Array, DType
from gpuscope.device.api import Shape
from gpuscope.device.arrays import fitted
from gpuscope.device.memory import Block
from gpuscope.errors import InvalidOperand

Index: TypeAlias = "EllipsisType | int | slice | tuple[int | slice, ...]"

_addresses = itertools.count(1)
_ALIGNMENT = 1 << 40  # every buffer has an address range of its own


class UniformValues(NamedTuple):
    """Uniform values in [-0.5, 0.5), drawn from a seed."""

    seed: int
    size: int
    dtype: DType

    def values(self) -> Array:
        """Draw them."""
        values = np.random.default_rng(self.seed).random(self.size, dtype=np.float32)
        return (values - np.float32(0.5)).astype(self.dtype)


class CollectiveResult(NamedTuple):
    """What a collective, by its group and number, left on a rank."""

    group: str
    sequence: int
    rank: int


Recipe: TypeAlias = "UniformValues | CollectiveResult"


@dataclass(eq=False, repr=False, slots=True)
class Version:
    """One value of a buffer, computed at first need.

    Attributes
    ----------
    recipe
        How any process can make it, where that takes less than its bytes.
    """

    _compute: Callable[..., Array] | None
    _inputs: Sequence[Version] = ()
    recipe: Recipe | None = None
    _value: Array | None = field(default=None, init=False)

    def value(self) -> Array:
        """Return the flat value; computes what it rests on first, without recursion."""
        pending = [self]
        while pending:
            version = pending[-1]
            if version._value is not None:
                pending.pop()
                continue
            if missing := [source for source in version._inputs if source._value is None]:
                pending.extend(missing)
                continue
            assert version._compute is not None  # noqa: S101 - no value yet, so it is there
            version._value = version._compute(*(source._value for source in version._inputs))
            version._compute, version._inputs = None, ()
        assert self._value is not None  # noqa: S101 - the loop ends with it
        return self._value


class Buffer:
    """A piece of simulated device memory."""

    __slots__ = ("__weakref__", "address", "dtype", "nbytes", "size", "version")

    def __init__(self, size: int, dtype: DType) -> None:
        self.size = size
        self.dtype = dtype
        self.nbytes = size * dtype.itemsize
        self.version: Version
        self.clear()
        self.address = next(_addresses) * _ALIGNMENT

    def clear(self) -> None:
        """Let its value be unspecified: zeros, here."""
        size, dtype = self.size, self.dtype
        self.version = Version(lambda: np.zeros(size, dtype))


class ArrayOwner(Protocol):
    """The simulated GPU that made an array."""

    def assign(self, array: SimArray, value: npt.ArrayLike | SimArray) -> None:
        """Queue a kernel that writes ``value``."""


@dataclass(eq=False, repr=False)
class SimArray:
    """An array in simulated device memory, or a view of one.

    Reading values takes :meth:`Device.to_host`. Basic slices and ``T`` give views.

    Attributes
    ----------
    shape, size
        In elements.
    steps
        Strides in elements.
    strides
        Strides in bytes, as NumPy has them.
    nbytes
        Bytes of its elements.
    offset, address
        Of the first element: in its buffer, in elements; and in memory, in bytes.
    is_whole
        Whether it covers its buffer in C order.
    block
        What keeps the buffer from being given out again; ``None`` where nothing does.
    """

    owner: ArrayOwner
    buffer: Buffer
    shape: Shape
    steps: Shape
    dtype: DType
    offset: int = 0
    block: Block[Buffer] | None = None
    _bare: SimArray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        item = self.dtype.itemsize
        self.address = self.buffer.address + self.offset * item
        self.size = math.prod(self.shape)
        self.nbytes = self.size * item
        self.strides = tuple([step * item for step in self.steps])
        covers = self.offset == 0 and self.nbytes == self.buffer.nbytes
        self.is_whole = covers and self.steps == c_steps(self.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def bare(self) -> SimArray:
        """It as work sees it: by its address, which keeps no memory from being given out."""
        if self.block is None:
            return self
        if self._bare is None:
            self._bare = replace(self, block=None)
        return self._bare

    @property
    def T(self) -> SimArray:  # noqa: N802 - NumPy's name
        """The transposed view."""
        return self._part(self.shape[::-1], self.steps[::-1], self.offset)

    def _part(
        self, shape: Shape, steps: Shape, offset: int, dtype: DType | None = None
    ) -> SimArray:
        """Return a view of the same memory."""
        dtype = self.dtype if dtype is None else dtype
        return replace(self, shape=shape, steps=steps, offset=offset, dtype=dtype)

    def view(self, dtype: DType) -> SimArray:
        """See the same bytes as one dimension of another dtype; of an array in C order only."""
        first = self.offset * self.dtype.itemsize
        if self.steps != c_steps(self.shape) or self.nbytes % dtype.itemsize:
            raise InvalidOperand(f"{self!r} cannot be seen as {dtype.name}: its bytes do not fit")
        if first % dtype.itemsize:
            raise InvalidOperand(
                f"{self!r} cannot be seen as {dtype.name}: it begins at byte {first}, which is no "
                f"multiple of {dtype.itemsize}"
            )
        shape = (self.nbytes // dtype.itemsize,)
        return self._part(shape, (1,), first // dtype.itemsize, dtype)

    def reshape(self, shape: Shape) -> SimArray:
        """See an array in C order in another shape of as many elements."""
        if self.steps != c_steps(self.shape) or math.prod(shape) != self.size:
            raise InvalidOperand(f"{self!r} cannot be seen in shape {shape}")
        return self._part(shape, c_steps(shape), self.offset)

    def __getitem__(self, key: Index) -> SimArray:
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > self.ndim:
            raise IndexError(f"{len(keys)} indices for {self.ndim} dimensions")
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for axis, (size, stride) in enumerate(zip(self.shape, self.steps, strict=True)):
            part = keys[axis] if axis < len(keys) else slice(None)
            if isinstance(part, slice):
                start, stop, step = part.indices(size)
                shape.append(len(range(start, stop, step)))
                strides.append(stride * step)
                offset += start * stride
            elif isinstance(part, int):
                if not -size <= part < size:
                    raise IndexError(f"index {part} is out of range for an axis of {size}")
                offset += (part % size) * stride
            else:
                raise InvalidOperand(f"simulated arrays take slices and integers, not {part!r}")
        return self._part(tuple(shape), tuple(strides), offset)

    def __setitem__(self, key: Index, value: npt.ArrayLike | SimArray) -> None:
        """Write values, as CuPy does: on the legacy default stream, without waiting."""
        self.owner.assign(self[key] if key is not ... else self, value)

    def view_of(self, flat: Array) -> Array:
        """Return this view's part of its buffer's flat value."""
        if flat.dtype != self.dtype:
            bytes_ = flat.view(np.uint8)
            flat = bytes_[: bytes_.size // self.dtype.itemsize * self.dtype.itemsize].view(
                self.dtype
            )
        return np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, self.strides)

    def flat(self, values: Array) -> Array:
        """Return values of this array, which covers its buffer, as the buffer's."""
        return np.ascontiguousarray(values).reshape(-1).view(self.buffer.dtype)

    def __repr__(self) -> str:
        return f"SimArray(shape={self.shape}, dtype={self.dtype.name}; values: to_host())"


def c_steps(shape: Shape) -> Shape:
    """Strides of a C-ordered array, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(eq=False, repr=False, slots=True)
class Write:
    """An effect that binds ``sources`` when it starts and writes ``destination`` at its end.

    Attributes
    ----------
    compute
        Values of the sources → new values of the destination.
    """

    destination: SimArray
    sources: tuple[SimArray, ...]
    compute: Callable[..., Array]

    def __post_init__(self) -> None:
        self.destination = self.destination.bare
        self.sources = tuple([source.bare for source in self.sources])

    def __call__(self) -> Callable[[], None]:
        """Bind the inputs; returns what commits the output."""
        bound = [source.buffer.version for source in self.sources]
        return lambda: self._commit(bound)

    def _commit(self, bound: list[Version]) -> None:
        buffer = self.destination.buffer
        if self.destination.is_whole:
            buffer.version = Version(self._whole, bound)
        else:
            buffer.version = Version(self._patched, [buffer.version, *bound])

    def _values(self, *flats: Array) -> Array:
        views = [array.view_of(flat) for array, flat in zip(self.sources, flats, strict=True)]
        return fitted(self.compute(*views), self.destination.shape, self.destination.dtype)

    def _whole(self, *flats: Array) -> Array:
        return self.destination.flat(self._values(*flats))

    def _patched(self, old: Array, *flats: Array) -> Array:
        flat = old.copy()
        self.destination.view_of(flat)[...] = self._values(*flats)
        return flat
