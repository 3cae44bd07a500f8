"""How long a GEMM takes on so many SMs, and which kernel the library takes for it.

A kernel cuts the product into tiles and, by split-K, each tile's sum over k into parts that a
second kernel adds up; every part is a block. Blocks that find no free SM wait for the next
wave; a *persistent* kernel launches at most as many blocks as it believes there are SMs, and
each works through several tiles. The time is a launch, the body and the second kernel; the
body is a soft maximum of what blocks wait for (their latency), what an SM works through
(multiplying and loading, by its blocks) and what memory has to deliver.

The library is imitated by its aim: of the tiles and splits that its kernels have, the one that
this same model thinks fastest on the SMs that the library believes in.

All times are in µs. Everything is written for arrays, of kernels or of measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from gpuscope._types import Array, Bools, Ints
from gpuscope.device.carve import SmLayout
from gpuscope.device.dtypes import DTYPES
from gpuscope.simulator.profiles.schema import GemmKernels, KernelTimes

ITEM_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items() if dtype.calibrated}
_SPLITS = np.array(
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64, 96, 128]
)
Numbers: TypeAlias = int | Array
"""One number, or one for each kernel."""
_SMALL_SPLIT_TILE = 4096
"""Elements of the tiles of the split kernels that small products go to."""

_SMALL_SPLIT_K = 16
_SMALL_SPLITS = 4

_WASTE = 1.22
"""Clusters of eight are kept up to so many times the blocks that clusters of four need."""


class Kernels(NamedTuple):
    """Kernels, each at one place of equally long arrays.

    Attributes
    ----------
    rows, columns, depth
        A tile of the result, and how far along k one step goes.
    resident
        Blocks that one SM holds at a time.
    splits
        Parts into which k is split.
    """

    rows: Array
    columns: Array
    depth: Array
    resident: Array
    splits: Array

    @classmethod
    def every(cls, tiles: list[tuple[int, int, int, int]]) -> Kernels:
        """Every tile with every split."""
        rows, columns, depth, resident = np.repeat(np.array(tiles), len(_SPLITS), axis=0).T
        return cls(rows, columns, depth, resident, np.tile(_SPLITS, len(tiles)))

    @classmethod
    def joined(cls, parts: Sequence[Kernels]) -> Kernels:
        """Return the kernels of all parts."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def where(self, index: int | Ints | Bools | slice) -> Kernels:
        """Return those at an index or mask."""
        return Kernels(*(column[index] for column in self))

    def blocks(self, m: Numbers, n: Numbers) -> Array:
        """Count the blocks of an m × n product."""
        return np.asarray(np.ceil(m / self.rows) * np.ceil(n / self.columns) * self.splits)


def alignment(m: int, n: int, k: int, dtype: str) -> int:
    """Bytes, at most 16, to which every row of both operands and of the result is aligned."""
    del m  # rows lie one behind the other: how many there are does not matter
    item = ITEM_BYTES[dtype]
    return next(width for width in (16, 8, 4, 2) if not (n * item % width or k * item % width))


def _holding_clusters(sm_count: Numbers, layout: SmLayout) -> Array:
    """Return the SMs that hold clusters of blocks: the driver's remainder holds none."""
    outside = layout.remainder_sm_count
    mixed = (sm_count % layout.quantum_sm_count != 0) & (sm_count > outside)
    return np.asarray(np.where(mixed, sm_count - outside, sm_count))


def _padded(rows: Array, columns: Array, up: int, along: int) -> Array:
    """Count blocks in whole clusters of up × along or along × up, whichever needs fewer."""

    def whole(first: int, second: int) -> Array:
        return np.asarray(np.ceil(rows / first) * first * np.ceil(columns / second) * second)

    return np.minimum(whole(up, along), whole(along, up))


def grid(
    kernels: Kernels, m: Numbers, n: Numbers, believed: int, layout: SmLayout
) -> tuple[Array, Array]:
    """Count the blocks that a persistent kernel launches, and say where in large clusters.

    Clusters are of eight blocks if so many fit at a time, of four in a row where that wastes
    many fewer; else of two. Blocks that complete a cluster have no tile.
    """
    rows, columns = np.ceil(m / kernels.rows), np.ceil(n / kernels.columns)
    eights, fours = _padded(rows, columns, 2, 4), _padded(rows, columns, 1, 4)
    large = np.where(eights <= _WASTE * fours, eights, fours) * kernels.splits
    small = _padded(rows, columns, 1, 2) * kernels.splits
    clustered = large <= _holding_clusters(np.asarray(believed), layout)
    return np.where(clustered, large, np.minimum(small, believed)), clustered


def _rounded(waves: Array, share: float) -> Array:
    """Round waves up, by a share of the way: the last one is rarely as long as the others."""
    return np.where(waves <= 1, 1.0, share * np.ceil(waves) + (1 - share) * waves)


def durations(
    times: KernelTimes,
    kernels: Kernels,
    shape: tuple[Numbers, Numbers, Numbers],
    item: int,
    sm_count: Numbers,
    *,
    believed: int,
    layout: SmLayout,
    capped: bool = True,
    idle: bool = False,
) -> Array:
    """Return how long kernels take, alone on ``sm_count`` SMs.

    Parameters
    ----------
    shape
        m, n and k, as numbers or arrays.
    item
        Bytes of one element.
    believed
        SMs that the library believes there are.
    capped
        Exceed no measured rate: the power cap's effect, of which the library knows nothing.
    idle
        Let memory deliver whatever all SMs ask for.
    """
    m, n, k = shape
    area, side = kernels.rows * kernels.columns, kernels.rows + kernels.columns
    steps = np.ceil(np.ceil(k / kernels.splits) / kernels.depth) * kernels.depth
    blocks = kernels.blocks(m, n)
    if times.persistent:
        launched, clustered = grid(kernels, m, n, believed, layout)
        if capped:  # told, the library launches clusters of four or eight, wherever they fit
            clustered = clustered | (believed <= layout.quantum_sm_count * layout.quanta)
        usable = np.where(clustered, _holding_clusters(sm_count, layout), sm_count)
        # The tiles go to whichever block is free; blocks that came late find few or none.
        late = (blocks > launched) & (launched > usable)
        work = np.maximum(blocks, launched) / np.minimum(launched, usable)
        rounds = _rounded(work, times.wave_rounding)
        rounds = rounds + times.late_rounds * late
        waiting = _rounded(launched / usable, times.wave_rounding) * times.block_us
        waiting = waiting + rounds * steps * times.latency_us
        sm_count = np.minimum(sm_count, believed)
    else:
        waves = blocks / sm_count
        rounds = _rounded(waves, times.wave_rounding)
        held_rounds = _rounded(waves / kernels.resident, times.held_rounding)
        waiting = held_rounds * (times.block_us + steps * times.latency_us)
    slower = np.where(n * item % 16 + k * item % 16 == 0, 1.0, times.misaligned)
    step = slower * (area * times.multiply_us + side * times.load_us)
    working = rounds * (steps * step + area * times.store_us)
    us_per_byte = 1 / (sm_count * times.sm_bytes_per_us)
    if not idle:
        us_per_byte = np.maximum(us_per_byte, 1 / times.bytes_per_us)
    moving = (m * k + k * n + m * n) * item * us_per_byte
    p = times.sharpness
    body = (waiting**p + working**p + moving**p) ** (1 / p)
    if capped:
        rate = np.minimum(sm_count * times.sm_tflop_per_s, times.tflop_per_s)
        body = np.maximum(body, 2 * m * n * k / (rate * 1e6))
    if times.vector:
        body = np.where(np.minimum(m, n) == 1, moving, body)
    adding = times.reduce_us + m * n * (4 * kernels.splits + item) * us_per_byte
    return np.asarray(times.launch_us + body + np.where(kernels.splits > 1, adding, 0.0))


def traits(shape: tuple[int, int, int], believed: int, layout: SmLayout) -> Array:
    """Return what the library's preferences among tiles go by, of a library told and not."""
    m, n, k = shape
    is_targeted = believed < layout.sm_count
    work, depth = np.log2(m * n / believed) - 12, np.log2(k) - 8
    of_one, smaller = np.array([1, work, depth]), [np.log2(min(m, n)) - 8]
    return np.concatenate((of_one * (not is_targeted), of_one * is_targeted, smaller))


@dataclass(frozen=True)
class GemmLibrary:
    """One kind of a library's kernels on a GPU, and how the library chooses among them.

    Attributes
    ----------
    item
        Bytes of one element.
    """

    kernels: GemmKernels
    item: int
    layout: SmLayout

    @cached_property
    def every(self) -> Kernels:
        """Each tile with each split, by tiles."""
        return Kernels.every(list(self.kernels.tiles))

    def durations(
        self,
        kernels: Kernels,
        shape: tuple[Numbers, Numbers, Numbers],
        sm_count: Numbers,
        believed: int,
        *,
        capped: bool = True,
    ) -> Array:
        """Return how long kernels of this kind take: see :func:`durations`."""
        inputs = self.kernels.times, kernels, shape, self.item, sm_count
        return durations(*inputs, believed=believed, layout=self.layout, capped=capped)

    def timed(
        self, kernels: Kernels, shape: tuple[int, int, int], sm_count: int, believed: int
    ) -> tuple[float, float, float]:
        """Return how long a kernel takes in µs, how long on an idle memory, and its moving's share.

        The last is of its time after the launch, by which moving its operands bounds it.
        """
        inputs = self.kernels.times, kernels, shape, self.item, sm_count
        us, idle_us = (
            float(durations(*inputs, believed=believed, layout=self.layout, idle=idle)[0])
            for idle in (False, True)
        )
        m, n, k = shape
        times = self.kernels.times
        rate = min(sm_count * times.sm_bytes_per_us, times.bytes_per_us)
        moving_us = (m * k + k * n + m * n) * self.item / rate
        return us, idle_us, min(1.0, moving_us / max(us - times.launch_us, 1e-9))

    def weighed(self, shape: tuple[int, int, int], believed: int) -> Array:
        """Return how long the library seems to think kernels take; infinity where it takes none.

        Splitting small products in any case is a habit of a library that was told no SM count.
        """
        m, n, k = shape
        every, choice = self.every, self.kernels.choice
        blocks, splits = every.blocks(m, n), every.splits
        is_targeted = believed < self.layout.sm_count
        if not is_targeted and blocks[splits == 1].max() < choice.split_below_blocks:
            most = max(_SMALL_SPLITS, k / _SMALL_SPLIT_K)
            allowed = (splits > 1) & (splits <= most) & (blocks <= believed)
            allowed &= every.rows * every.columns >= _SMALL_SPLIT_TILE
        else:
            least = choice.split_side_at_least
            wide = (every.rows >= min(least, m)) & (every.columns >= min(least, n))
            allowed = (k / splits >= choice.split_k_at_least) & wide
            allowed = (splits == 1) | (allowed & (blocks <= choice.blocks_at_most))
        if not allowed.any():
            allowed = splits == 1
        us = self.durations(every, shape, believed, believed, capped=False)
        crowd = np.minimum(blocks / believed, 1) - choice.crowded_from
        us = us * (1 + choice.crowding * np.maximum(0, crowd))
        if choice.preferences:
            liked = np.array(choice.preferences) @ traits(shape, believed, self.layout)
            us = us * np.repeat(np.exp(-liked), len(_SPLITS))
        return np.asarray(np.where(allowed, us, np.inf))

    def choose(self, shape: tuple[int, int, int], believed: int) -> Kernels:
        """Return the kernel that the library takes, by the model's own times and its habits."""
        best = int(np.argmin(self.weighed(shape, believed)))
        return self.every.where(slice(best, best + 1))
