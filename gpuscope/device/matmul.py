"""A matrix product that was checked: its sizes, and how its inputs lie in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Layout(NamedTuple):
    """How an input of a product lies in memory.

    Attributes
    ----------
    row
        Leading dimension in elements.
    nbytes
        From its lowest byte to the one after its highest.
    below
        Bytes below its first element: a reversed view has some.
    is_transposed
        Whether it is column-major, that is, a transposed view.
    is_copied
        Whether its strides are neither, so that it is copied first.
    """

    row: int
    nbytes: int
    below: int
    is_transposed: bool = False
    is_copied: bool = False


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """A checked ``out[m, n] = a[m, k] @ b[k, n]`` of one dtype, ``out`` in C order.

    Attributes
    ----------
    bytes_out
        Of ``out``.
    a, b
        How the inputs lie in memory.
    copies
        Whether any input is copied.
    name
        Of the kernel in traces.
    quick
        What the backend that took note of it launches it by.
    """

    m: int
    n: int
    k: int
    dtype: str
    bytes_out: int
    a: Layout
    b: Layout
    copies: bool = field(init=False)
    name: str = field(init=False)
    quick: object = field(init=False, default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "copies", self.a.is_copied or self.b.is_copied)
        object.__setattr__(self, "name", f"gemm_{self.dtype}_{self.m}x{self.n}x{self.k}")

    @property
    def nbytes(self) -> int:
        """Bytes that it reads and writes."""
        return self.bytes_out + self.a.nbytes + self.b.nbytes

    @property
    def flop_count(self) -> int:
        """Floating-point operations: a multiply and an add for each of m · n · k."""
        return 2 * self.m * self.n * self.k
