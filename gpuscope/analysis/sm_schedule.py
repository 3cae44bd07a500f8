"""When kernels of a simulated GPU would get SMs: their blocks on free SMs, in their order."""

from __future__ import annotations

import heapq

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.causes import Causes
from gpuscope.analysis.work_causes import NEVER

_MOST_BLOCKS = 200_000
"""Of all kernels: each takes the host about a microsecond, 20 times when it is sized."""


class SmSchedule:
    """Blocks of kernels, each on an SM of its own, given out in the order in which kernels began.

    Attributes
    ----------
    end_ns
        When the last row ends where nothing is changed.
    """

    def __init__(self, causes: Causes) -> None:
        self._causes, rows = causes, causes.rows
        blocks, self._sms = rows.blocks_and_sms
        kernels = np.flatnonzero(rows.having("kind", ("kernel",)))
        order = np.lexsort((causes.launches.ready_ns[kernels], rows.starts[kernels]))
        self._blocks = {row: int(blocks[row]) for row in kernels[order].tolist()}
        self._block_ns: dict[int, int] = {}
        free = self._free()
        for row, count in self._blocks.items():
            device, start_ns = int(rows.devices[row]), int(rows.starts[row])
            end_ns = int(causes.times[2 * row + 1])
            low, high = 1, max(1, end_ns - start_ns)
            while low < high:  # the least with which the last block ends when the kernel did
                middle = (low + high) // 2
                ended = _placed(free[device], start_ns, count, middle)[1] >= end_ns
                low, high = (low, middle) if ended else (middle + 1, high)
            self._block_ns[row] = low
            _, _, free[device] = _placed(free[device], start_ns, count, low)
        kept = np.ones(len(causes.lag), bool)
        self.end_ns = int(self.forward(causes.lag, kept).max())

    @classmethod
    def of(cls, causes: Causes) -> SmSchedule | None:
        """Return the schedule of a trace whose kernels waited for the SMs of simulated GPUs."""
        kernels = causes.rows.having("kind", ("kernel",))
        blocks, sms = (each[kernels] for each in causes.rows.blocks_and_sms)
        is_modelled = bool((causes.launches.is_known[kernels] & (sms > 0)).all())
        few = blocks.sum() < _MOST_BLOCKS and causes.of("SMs held", "priority").any()
        return cls(causes) if is_modelled and few else None

    def _free(self) -> dict[int, list[int]]:
        """Return device → when each of its SMs is free, as a heap."""
        devices = self._causes.rows.devices
        return {int(devices[row]): [0] * int(self._sms[row]) for row in self._blocks}

    def forward(self, lag: Ints, kept: Bools) -> Ints:
        """Return node → when it would be, as :meth:`Causes.forward`, kernels as they get SMs."""
        causes, devices = self._causes, self._causes.rows.devices
        runs = causes.of("running")
        share = np.ones(len(causes.times) // 2)
        share[causes.target[runs] // 2] = lag[runs] / np.maximum(causes.lag[runs], 1)
        kept = kept & ~causes.of("SMs held", "priority")
        started = np.array(causes.times)
        started[causes.target[kept]] = NEVER
        then_ns: list[int] = started.tolist()
        free, ends = self._free(), {}
        columns = (causes.source[kept], causes.target[kept], lag[kept])
        last = -1
        for before, after, lasts in zip(*(column.tolist() for column in columns), strict=True):
            row = last // 2
            if after != last and last % 2 == 0 and row in self._blocks:  # it is ready by now
                device = int(devices[row])
                block_ns = max(1, round(self._block_ns[row] * share[row]))
                then_ns[last], ends[row], free[device] = _placed(
                    free[device], then_ns[last], self._blocks[row], block_ns
                )
            last = after
            is_run = before == after - 1 and before // 2 in ends
            at_ns = ends[before // 2] if is_run else then_ns[before] + lasts
            then_ns[after] = max(then_ns[after], at_ns)
        return np.array(then_ns, np.int64)


def _placed(
    free: list[int], ready_ns: int, blocks: int, block_ns: int
) -> tuple[int, int, list[int]]:
    """Return start and end of a kernel that is ready at a time, and when SMs are free then."""
    free, end_ns = list(free), 0
    start_ns = max(free[0], ready_ns)
    for _ in range(blocks):
        end_ns = max(free[0], ready_ns) + block_ns
        heapq.heapreplace(free, end_ns)
    return start_ns, end_ns, free
