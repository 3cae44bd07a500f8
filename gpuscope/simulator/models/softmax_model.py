"""How long the softmax kernel takes on so many SMs: interpolated in a table of measured times."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import numpy as np

from gpuscope._types import Array

_THREADS = 256
"""Threads of a block: fewer columns take as long as so many."""


@cache
def _table() -> tuple[tuple[Array, ...], Array]:
    """Return the logarithms of the axes, and of the times in µs on their grid.

    The axes are thread blocks for each SM, columns, and SMs. ``benchmarks/softmax.py`` measured
    the times on an H100; ``scripts/softmax_table.py`` writes the file.
    """
    file = resources.files("gpuscope.simulator.models") / "softmax.json"
    table = json.loads(file.read_text("utf-8"))
    axes = tuple(np.log(table[name]) for name in ("blocks_per_sm", "columns", "sm_counts"))
    return axes, np.log(np.array(table["us"]))


def duration_us(rows: int, columns: int, sm_count: int) -> float:
    """Return how long a softmax over rows × columns takes alone on ``sm_count`` SMs.

    Interpolated linearly between the logarithms of blocks for each SM, columns and SMs. Beyond the
    table's largest values the time grows with the number of elements.
    """
    axes, times = _table()
    at = (-(-rows // sm_count), max(columns, _THREADS), sm_count)
    beyond = 1.0
    weighted = times
    for axis, value in zip(axes, at, strict=True):
        position = float(np.interp(np.log(value), axis, range(len(axis))))
        low = min(int(position), len(axis) - 2)
        weighted = weighted[low] * (low + 1 - position) + weighted[low + 1] * (position - low)
    for axis, value in zip(axes[:2], at[:2], strict=True):
        beyond *= max(1.0, value / float(np.exp(axis[-1])))
    return float(np.exp(weighted)) * beyond
