"""What kernels of ours compute, as far as the rows of a trace say it, and what that costs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from gpuscope.device.api import KernelCost
from gpuscope.device.carve import sm_count_to_tell
from gpuscope.device.dtypes import DTYPES
from gpuscope.simulator.profiles.profile import GpuProfile

_SIZE = r"([1-9]\d{0,9})"
_PRODUCT = re.compile(rf"gemm_(\w+)_{_SIZE}x{_SIZE}x{_SIZE}")


@dataclass(frozen=True)
class Product:
    """An m × n × k product, and what the library is told.

    Attributes
    ----------
    target
        The SM count that it is told; 0 for none, ``None`` for that of the partition, if any.
    """

    kind: ClassVar[str] = "product"
    m: int
    n: int
    k: int
    dtype: str
    target: int | None = None

    def cost(self, profile: GpuProfile, sm_count: int, scale: float) -> KernelCost:
        """Return the cost of so many times m."""
        layout, target = profile.layout, self.target
        if target is None:
            with_remainder = sm_count % layout.quantum_sm_count != 0
            holding = sm_count - layout.remainder_sm_count * with_remainder
            target = sm_count_to_tell(sm_count, holding) * (sm_count != layout.sm_count)
        m = max(1, round(self.m * scale))
        return profile.gemm_cost(m, self.n, self.k, self.dtype, sm_count, target)


@dataclass(frozen=True)
class SoftmaxModel:
    """A softmax over the rows of a float32 matrix."""

    kind: ClassVar[str] = "softmax"
    rows: int
    columns: int

    def cost(self, profile: GpuProfile, sm_count: int, scale: float) -> KernelCost:
        """Return the cost of so many times the rows."""
        return profile.softmax_cost(max(1, round(self.rows * scale)), self.columns, sm_count)


@dataclass(frozen=True)
class Copied:
    """A copy of so many bytes by a kernel."""

    kind: ClassVar[str] = "copy"
    nbytes: int

    def cost(self, profile: GpuProfile, sm_count: int, scale: float) -> KernelCost:
        """Return the cost of so many times the bytes."""
        return profile.copy_cost(max(1, round(self.nbytes * scale)), sm_count)


Known: TypeAlias = Product | SoftmaxModel | Copied
"""What a kernel of ours computes."""


def known_of(
    name: str,
    launched_by: str = "",
    blocks: int = 0,
    nbytes: int | None = None,
    flop_count: int | None = None,
    target: int | None = None,
) -> Known | None:
    """Return what a kernel of ours computes, by its row, whatever the workload is called.

    Parameters
    ----------
    name, launched_by
        Of the kernel, and of the call that launched it: that of a product of ours states its
        sizes, also where the library's kernels have other names.
    blocks
        Of its grid; 0 if the row does not state them.
    nbytes, flop_count
        Bytes read and written, and operations, if the row states them.
    target
        As in :class:`Product`.
    """
    moved = (nbytes or 0) // 2  # it reads as many as it writes
    if name == "copy_kernel" and moved:
        return Copied(moved)
    if name == "softmax_kernel" and blocks and moved:  # a block for each row of float32
        return SoftmaxModel(blocks, max(1, moved // (4 * blocks)))
    for text in (name, launched_by):
        match = _PRODUCT.fullmatch(text)
        if match is None or match[1] not in DTYPES:
            continue
        m, n, k = (int(size) for size in match.group(2, 3, 4))
        if flop_count == 2 * m * n * k or (flop_count is None and text is name):
            return Product(m, n, k, match[1], target)
    return None
