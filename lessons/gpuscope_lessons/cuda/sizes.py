"""How many blocks and threads a launch may have, and how much shared memory."""

from __future__ import annotations

import math
import struct

from gpuscope.errors import CapabilityError, StreamError

_MOST_BLOCKS, _MOST_THREADS = (2**31 - 1, 65_535, 65_535), (1_024, 1_024, 64)
_MOST_THREADS_IN_ALL, _MOST_SHARED = 1_024, 48 << 10
"""Of a launch, by dimension; the shared memory that a block gets of a kernel whose attributes
nobody sets. CUDA C++ Programming Guide, "Compute Capabilities"."""
SIZES = struct.Struct("7Q")
"""Blocks and threads, by dimension, and bytes of shared memory, as the header sends them."""


def require_sizes(*sizes: int) -> tuple[int, int]:
    """Return how many blocks of how many threads a launch has; refuses what CUDA refuses."""
    blocks, threads, shared = sizes[:3], sizes[3:6], sizes[6]
    sizes_text = f"it was launched with {_times(blocks)} blocks of {_times(threads)} threads"
    limits = zip(blocks + threads, _MOST_BLOCKS + _MOST_THREADS, strict=True)
    if not all(1 <= size <= most for size, most in limits) or (
        math.prod(threads) > _MOST_THREADS_IN_ALL
    ):
        raise StreamError(
            f"cudaErrorInvalidConfiguration: {sizes_text}; a kernel has at least one of each, "
            f"at most {_times(_MOST_BLOCKS)} blocks, and in a block at most "
            f"{_times(_MOST_THREADS)} and {_MOST_THREADS_IN_ALL:,} threads in all"
        )
    if shared > _MOST_SHARED:
        raise StreamError(
            f"cudaErrorInvalidValue: it was launched with {shared:,} bytes of shared memory for "
            f"each block; there are {_MOST_SHARED:,}"
        )
    if max(*blocks[1:], *threads[1:]) > 1:
        raise CapabilityError(
            f"{sizes_text}; the kernels of the exercises have blocks and threads in one dimension "
            "(cudaErrorNotSupported)"
        )
    return blocks[0], threads[0]


def _times(sizes: tuple[int, ...]) -> str:
    return " × ".join(f"{size:,}" for size in sizes)
