"""What a backend hands out and takes back, opaque to everything else; arrays; plans of GEMMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from gpuscope._types import DType

Shape = tuple[int, ...]

RawStream: TypeAlias = Any
"""A backend's own stream: cuda.core's, or the simulator's."""
RawEvent: TypeAlias = Any
"""A backend's own event: cuda.core's, or the simulator's."""
RawGraph: TypeAlias = Any
"""A backend's own captured graph."""
RawPartition: TypeAlias = Any
"""A backend's own partition: a green context of cuda.core, or the simulator's."""
RawMemory: TypeAlias = Any
"""A backend's own piece of memory, as its pool gives it out."""
RawKernel: TypeAlias = Any
"""A backend's own compiled kernel; ``None`` where a model takes its place."""
Mark: TypeAlias = Any
"""What a backend remembers of a place in a stream's work."""
NativeArray: TypeAlias = Any
"""An array of the device's own kind: CuPy's, the simulator's :class:`SimArray`, or NumPy's."""
KernelArgs: TypeAlias = Sequence[Any]
"""What a kernel is launched with: arrays, NumPy scalars and numbers."""
Operands: TypeAlias = Any
"""What a backend's ``matmul`` takes of out, a and b: addresses, or arrays."""
Places = tuple[tuple[object, object, object], tuple[int, int, int], Operands]
"""Of out, a and b: the device that holds each, the address of each first element, and
whatever the backend's ``matmul`` takes of them."""


class Health(TypedDict, total=False):
    """Clocks in MHz, power in W and throttle reasons, where they can be told."""

    sm_clock_mhz: int
    memory_clock_mhz: int
    throttle_reasons: tuple[str, ...]
    power_w: float


class DeviceArray(Protocol):
    """An array of any library, as far as everything asks of it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""

    @property
    def dtype(self) -> DType:
        """Type of its elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""


StreamKind = Literal["legacy default", "per-thread default", "blocking", "non-blocking"]
"""How a stream stands to the legacy default stream: what is queued in that one follows all work of
blocking streams, and theirs follows its. ``"per-thread default"`` is CUDA's handle 2, which is
another stream, a blocking one, on each thread."""


@dataclass(frozen=True, eq=False)
class Memory:
    """Scratch memory.

    Attributes
    ----------
    array
        Its bytes as an array of the device, shape (nbytes,), uint8.
    raw
        What the backend frees.
    """

    array: NativeArray
    raw: RawMemory
    nbytes: int


@dataclass(frozen=True)
class GrantedPartition:
    """What a backend made of one planned partition.

    Attributes
    ----------
    sm_count_target
        SMs that libraries are told to tune for; 0 if they are told nothing. See
        :func:`~gpuscope.device.carve.sm_count_to_tell`.
    """

    raw: RawPartition
    sm_count: int
    sm_ids: tuple[int, ...]
    context: int
    sm_count_target: int


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """A checked ``out[m, n] = a[m, k] @ b[k, n]`` of one dtype, ``out`` in C order.

    Attributes
    ----------
    transpose_a, transpose_b
        Whether an input is column-major, that is, a transposed view.
    row_a, row_b
        Leading dimensions in elements.
    copy_a, copy_b
        Whether an input's strides are neither, so that it is copied first.
    bytes_out, bytes_a, bytes_b
        From an operand's lowest byte to the one after its highest.
    below_a, below_b
        Bytes below an input's first element: a reversed view has some.
    copies
        Whether any input is copied.
    name
        Of the kernel in traces.
    """

    m: int
    n: int
    k: int
    dtype: str
    transpose_a: bool
    row_a: int
    copy_a: bool
    transpose_b: bool
    row_b: int
    copy_b: bool
    bytes_out: int
    bytes_a: int
    bytes_b: int
    below_a: int
    below_b: int
    copies: bool
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"gemm_{self.dtype}_{self.m}x{self.n}x{self.k}")

    @property
    def flop_count(self) -> int:
        """Floating-point operations: a multiply and an add for each of m · n · k."""
        return 2 * self.m * self.n * self.k
