"""What measured GEMMs say of the library's kernels: tiles by their names, splits by their grids."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np

from gpuscope._types import Bools, Floats, Ints
from gpuscope.simulator.models.gemm_model import ITEM_BYTES, Kernels, alignment

Launched = tuple[str, int, int]
"""A kernel's name, thread blocks, and threads a block."""


class MeasuredShape(TypedDict):
    """One measured shape and dtype.

    Attributes
    ----------
    shape
        m, n and k.
    kernels
        In the order in which they ran on all SMs.
    us
        SM count, as text → µs.
    told
        SM count, as text → the one that the library was told.
    ran
        SM count, as text → the kernels that ran there, of a library that was told.
    """

    dtype: str
    shape: list[int]
    kernels: list[Launched]
    us: dict[str, float]
    told: NotRequired[dict[str, int]]
    ran: NotRequired[dict[str, list[Launched]]]


Tile = tuple[int, int, int, int]
"""Rows, columns, step along k, and blocks that one SM holds."""

Key = tuple[str, int]
"""A dtype and the alignment that a kind of kernels needs."""

_NVJET, _ROWS, _COLUMNS = r"nvjet_(?:sm\d+_)?[a-z]+_", r"(?P<rows>\d+)", r"(?P<columns>\d+)"
_DEPTH, _STAGES = r"(?P<depth>\d+)", r"(?P<stages>\d+)"
_TILES = [
    re.compile(pattern)
    for pattern in (
        rf"{_NVJET}{_COLUMNS}x{_ROWS}_{_DEPTH}x\d+_",
        rf"{_NVJET}mma_{_COLUMNS}x{_ROWS}x{_DEPTH}_{_STAGES}_",
        rf"tilesize{_ROWS}x{_COLUMNS}x{_DEPTH}_(?:stage(?P<stages>\d))?",
        r"wmma.*_(?P<rows>32)x(?P<columns>32)_",
        rf"gemm_(?:[a-z]+\d*_)*{_COLUMNS}x{_ROWS}(?=_)(?:.*?_{_DEPTH}x(?P<stages>\d)_)?",
    )
]
"""How names tell tiles; the first is of kernels that are persistent."""

_ALIGNMENTS = {2: (16, 4, 2), 4: (16, 4), 8: (16, 8)}
"""Bytes of an element → alignments with kernels of their own."""

KINDS: list[Key] = [
    (dtype, width) for dtype, item in ITEM_BYTES.items() for width in _ALIGNMENTS[item]
]
"""Every kind of kernels."""

_SIDES = (256, 128, 64, 32, 16, 8)
_REGISTERS, _SHARED_BYTES = 65536, 227 * 1024
"""Of one SM; the least that a block takes of them is estimated from its tile."""

_NO_TILE = (32, 64, 32, 4)
"""Stands where a kernel has no tile that could be told."""


@dataclass(frozen=True)
class MeasuredKernel:
    """What a measured kernel's name and grid say.

    Attributes
    ----------
    persistent
        Whether its blocks loop over tiles.
    known
        Whether the tile was told: by the name, or by the grids of this name.
    """

    tile: Tile
    splits: int = 1
    persistent: bool = False
    known: bool = True


def kernel_of(
    row: MeasuredShape, by_grid: dict[str, tuple[int, int]] | None = None
) -> MeasuredKernel:
    """Read a kernel's tile from its name; cuBLAS counts columns first, most kernels do too.

    Parameters
    ----------
    by_grid
        Rows and columns of the tiles of kernels whose names tell none: see
        :func:`tiles_by_grid`.
    """
    name, blocks, threads = row["kernels"][0]
    item = ITEM_BYTES[row["dtype"]]
    m, n, _ = row["shape"]
    matches = [pattern.search(name) for pattern in _TILES]
    match = next(filter(None, matches), None)
    sizes = {"depth": 32, "stages": 2}
    if match is not None:
        sizes |= {part: int(size) for part, size in match.groupdict().items() if size}
    elif by_grid and name in by_grid:
        sizes["rows"], sizes["columns"] = by_grid[name]
    else:
        return MeasuredKernel(_NO_TILE, known=False)
    rows, columns, depth = sizes["rows"], sizes["columns"], sizes["depth"]
    tiles = -(-m // rows) * -(-n // columns)
    persistent = matches[0] is not None or blocks < tiles
    split = "splitK" in name or len(row["kernels"]) > 1
    split |= not persistent and blocks >= 2 * tiles
    if persistent:
        resident = 1
    else:  # as many as registers and shared memory have room for
        registers = min(255, rows * columns / threads * max(1, item // 4) + 56) * threads
        shared = sizes["stages"] * (rows + columns) * depth * item
        resident = max(1, min(16, int(_REGISTERS // registers), _SHARED_BYTES // shared))
    splits = max(1, round(blocks / tiles)) if split else 1
    return MeasuredKernel((rows, columns, depth, resident), splits, persistent)


def tiles_by_grid(rows: Iterable[MeasuredShape]) -> dict[str, tuple[int, int]]:
    """Infer the tiles of kernels whose names tell none, from two or more grids of each.

    Returns
    -------
    dict
        Name → rows and columns, the squarest and then largest that gives every one of its grids.
        What no tile explains is left out.
    """
    grids: dict[str, set[tuple[int, int, int]]] = {}
    for row in rows:
        if not kernel_of(row).known and not is_vector(row):
            name, blocks, _ = row["kernels"][0]
            m, n, _ = row["shape"]
            grids.setdefault(name, set()).add((m, n, blocks))
    tiles = {}
    for name, seen in grids.items():
        if len({blocks for _, _, blocks in seen}) < 2:
            continue
        fitting = [
            (rows, columns)
            for rows in _SIDES
            for columns in _SIDES
            if all(-(-m // rows) * -(-n // columns) == blocks for m, n, blocks in seen)
        ]
        if fitting:
            tiles[name] = min(fitting, key=lambda tile: (max(tile) / min(tile), -math.prod(tile)))
    return tiles


def is_vector(row: MeasuredShape) -> bool:
    """Whether a row is a matrix times a vector, which has kernels of its own without tiles."""
    m, n, _ = row["shape"]
    return bool(min(m, n) == 1)


@dataclass(frozen=True)
class MeasuredShapes:
    """Measured GEMMs as arrays, one place a shape and SM count.

    Attributes
    ----------
    shape
        m, n and k, shape (3, rows).
    kernels
        What ran.
    readable
        Whether the kernel's tile is known, or none is needed.
    tiles
        Known tile → rows that it ran in.
    persistent
        Whether most of the kernels are persistent.
    vector
        Whether a kernel of the library's for matrix × vector ran.
    """

    shape: Ints
    sms: Ints
    us: Floats
    kernels: Kernels
    readable: Bools
    tiles: Counter[Tile]
    persistent: bool
    vector: bool

    @classmethod
    def of(cls, rows: Sequence[MeasuredShape]) -> MeasuredShapes:
        """Read measured rows."""
        by_grid = tiles_by_grid(rows)
        kernels = [kernel_of(row, by_grid) for row in rows]
        counts = [len(row["us"]) for row in rows]
        ran = np.array([(*kernel.tile, kernel.splits) for kernel in kernels])
        pairs = zip(kernels, rows, strict=True)
        readable = [kernel.known or is_vector(row) for kernel, row in pairs]
        looping = sum(kernel.persistent for kernel in kernels)
        return cls(
            shape=np.repeat(np.array([row["shape"] for row in rows]), counts, axis=0).T,
            sms=np.array([int(count) for row in rows for count in row["us"]]),
            us=np.array([us for row in rows for us in row["us"].values()]),
            kernels=Kernels(*np.repeat(ran, counts, axis=0).T),
            readable=np.repeat(readable, counts),
            tiles=Counter(kernel.tile for kernel in kernels if kernel.known),
            persistent=2 * looping > len(rows),
            vector=any("gemv" in row["kernels"][0][0] for row in rows),
        )


def unreadable(rows: Sequence[MeasuredShape]) -> list[str]:
    """Names of kernels whose tile is not known: no constant is fitted to their times."""
    by_grid = tiles_by_grid(rows)
    tiled = [row for row in rows if not is_vector(row)]
    return sorted({row["kernels"][0][0] for row in tiled if not kernel_of(row, by_grid).known})


def kind(row: MeasuredShape) -> Key:
    """Dtype and alignment of the kernels that a row's operands can take."""
    m, n, k = row["shape"]
    dtype = row["dtype"]
    width = alignment(m, n, k, dtype)
    return dtype, next(least for least in _ALIGNMENTS[ITEM_BYTES[dtype]] if least <= width)


def shares_constants(key: Key) -> Key:
    """Kinds whose kernels differ in alignment alone: fitted together, then each near the result."""
    dtype, width = key
    return (dtype, 16) if ITEM_BYTES[dtype] > 2 or width == 16 else (dtype, 2)
