"""When kernels of a simulated GPU would get SMs: their blocks on free SMs, in their order."""

from __future__ import annotations

import heapq

import numpy as np

from gpuscope._types import Bools, Ints
from gpuscope.analysis.causes import Causes
from gpuscope.analysis.work_causes import NEVER

_MOST_BLOCKS, _MOST_EDGES = 50_000, 200_000
"""Of a trace that is scheduled: a pass takes about a microsecond for each."""
_AGAIN = 6
"""Passes in the order that the one before gave."""


class SmSchedule:
    """Blocks of kernels on SMs, one on each, in the order in which kernels are ready."""

    def __init__(self, causes: Causes) -> None:
        self._causes, rows = causes, causes.rows
        blocks, self._sms = rows.blocks_and_sms
        kernels = np.flatnonzero(rows.having("kind", ("kernel",)))
        order = np.lexsort((causes.ready.ready_ns[kernels], rows.starts[kernels]))
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

    @classmethod
    def of(cls, causes: Causes) -> SmSchedule | None:
        """Return the schedule of a trace whose kernels waited for the SMs of simulated GPUs."""
        kernels = causes.rows.having("kind", ("kernel",))
        blocks, sms = (counts[kernels] for counts in causes.rows.blocks_and_sms)
        is_modelled = causes.ready.is_known[kernels] & (sms > 0)
        is_modelled &= causes.rows.coded("partition")[0][kernels] == 0
        few = blocks.sum() < _MOST_BLOCKS and len(causes.lag) < _MOST_EDGES
        is_held = causes.of("SMs held", "priority").any()
        return cls(causes) if is_modelled.all() and few and is_held else None

    def _free(self) -> dict[int, list[int]]:
        """Return device → when each of its SMs is free, as a heap."""
        devices = self._causes.rows.devices
        return {int(devices[row]): [0] * int(self._sms[row]) for row in self._blocks}

    def forward(self, lag: Ints, kept: Bools) -> Ints:
        """Return node → when it would be, as :meth:`Causes.forward`, kernels as they get SMs.

        In the recorded order, and again in the order that this gives.
        """
        causes = self._causes
        edges = np.flatnonzero(kept & ~causes.of("SMs held", "priority"))
        ready, then = self._pass(lag, edges)
        for _ in range(_AGAIN):
            ranks = np.empty(len(ready), np.int64)
            ranks[np.lexsort((causes.rank, ready))] = np.arange(len(ready))
            edges = edges[np.argsort(ranks[causes.target[edges]], kind="stable")]
            ready, then = self._pass(lag, edges)
        return then

    def _pass(self, lag: Ints, edges: Ints) -> tuple[Ints, Ints]:
        """Return node → when it would be ready, and when it would be."""
        causes, devices = self._causes, self._causes.rows.devices
        runs = causes.of("running")
        share = np.ones(len(causes.times) // 2)
        share[causes.target[runs] // 2] = lag[runs] / np.maximum(causes.lag[runs], 1)
        started = np.array(causes.times)
        started[causes.target[edges]] = NEVER
        then_ns: list[int] = started.tolist()
        ready_ns: dict[int, int] = {}
        free, ends = self._free(), {}
        columns = (causes.source[edges], causes.target[edges], lag[edges])
        last = -1
        for before, after, lasts in zip(*(column.tolist() for column in columns), strict=True):
            row = last // 2
            if after != last and last % 2 == 0 and row in self._blocks:  # it is ready by now
                device, ready_ns[last] = int(devices[row]), then_ns[last]
                block_ns = max(1, round(self._block_ns[row] * share[row]))
                then_ns[last], ends[row], free[device] = _placed(
                    free[device], then_ns[last], self._blocks[row], block_ns
                )
            last = after
            is_run = before == after - 1 and before // 2 in ends
            at_ns = ends[before // 2] if is_run else then_ns[before] + lasts
            then_ns[after] = max(then_ns[after], at_ns)
        then = np.array(then_ns, np.int64)
        ready = then.copy()
        ready[[*ready_ns]] = [*ready_ns.values()]
        return ready, then


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
