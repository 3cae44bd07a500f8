"""How long a kernel with a thread block for each row takes, such as softmax, alone."""

from __future__ import annotations

import math
from typing import NamedTuple

from gpuscope.simulator.models.memory_model import share_cached
from gpuscope.simulator.profiles.schema import CopyTimes, RowTimes

_THREADS, BLOCKS_HELD = 256, 8
"""Threads of a block: fewer columns take as long as so many; and blocks that an SM holds."""
_ITEM = 4


class RowTime(NamedTuple):
    """How long a softmax takes.

    Attributes
    ----------
    us
        Alone.
    idle_us
        With a memory that delivers whatever is asked at once.
    waiting
        Share of the SMs' work that is moving data.
    read_again
        Bytes that SMs read a second and a third time, past their level-1 cache.
    """

    us: float
    idle_us: float
    waiting: float
    read_again: float


def row_time(
    times: RowTimes,
    rows: int,
    columns: int,
    sm_count: int,
    *,
    cached_bytes: tuple[int, int],
    copy: CopyTimes,
) -> RowTime:
    """Return how long a softmax over rows × columns of float32 takes on ``sm_count`` SMs.

    Parameters
    ----------
    cached_bytes
        Footprints up to which the cache holds all, and from which on nothing.
    copy
        Its rates are those of cache and memory.
    """
    columns = max(columns, _THREADS)
    blocks, row_bytes = -(-rows // sm_count), columns * _ITEM
    held_bytes = min(blocks, BLOCKS_HELD) * row_bytes
    past = 1 - share_cached(held_bytes, times.sm_cached_bytes)
    touched, read_again = 2 * rows * row_bytes, 2 * rows * row_bytes * past
    in_work = min(sm_count * held_bytes, rows * row_bytes)
    lost = 1 - share_cached(in_work, times.reread_bytes)
    missed = touched * (1 - share_cached(touched, cached_bytes)) + read_again * lost
    bounds = (
        max(1.0, blocks / BLOCKS_HELD) * (times.block_us + times.column_us * columns),
        blocks * (times.sm_block_us + times.sm_column_us * columns),
        (touched + read_again) / (min(sm_count, rows) * times.sm_bytes_per_us),
        (touched + read_again) / copy.cached_bytes_per_us,
    )
    p, launch_us = times.sharpness, times.launch_us
    idle_us = float(sum(bound**p for bound in bounds)) ** (1 / p)
    us = math.hypot(idle_us**2, (missed / copy.bytes_per_us) ** 2) ** 0.5
    waiting = columns / (columns + times.sm_block_us / times.sm_column_us)
    return RowTime(launch_us + us, launch_us + idle_us, waiting, read_again)
