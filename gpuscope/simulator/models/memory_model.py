"""How memory that others load, and a cache that others fill, slow kernels down.

An access waits ``latency(load)`` times as long as on an idle memory, where ``load`` is what
all would move at that speed over what the memory can move. Kernels that issue all they can keep the
same number of accesses in flight, so that a longer latency lowers their demand: one latency solves
this for all who run (:func:`solve`). It rises smoothly to the roof: an element-wise copy's rate on
n SMs is the soft minimum of n times an SM's and the memory's, of the same exponent. Smaller
partitions meet less of it, seen on an H100 (``benchmarks/contention.py``).

Kernels of many small blocks also share what the GPU launches of these (:func:`slowdowns`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpuscope.device.api import KernelCost
from gpuscope.simulator.models.assumed import BLOCKS_PER_US

_MOST_ALONE = 0.97
"""Of the bandwidth: what moves more alone is taken to ask for the latency at this."""
_STEPS, _CLOSE = 12, 1e-3


class LoadedMemory(NamedTuple):
    """Device memory and the cache before it.

    Attributes
    ----------
    bytes_per_us
        What the memory moves at most.
    smallest_share
        Of an added latency, what kernels on hardly any SMs meet. From half of the SMs on it is all.
    cache_bytes
        Bytes that replace all that work left in the cache; 0 if nothing is ever replaced.
    """

    bytes_per_us: int
    smallest_share: float = 1.0
    cache_bytes: int = 0

    def kept(self, brought: float) -> float:
        """Return which share of what work left in the cache others' bytes have not replaced."""
        return max(0.0, 1 - brought / self.cache_bytes) if self.cache_bytes else 1.0

    def demand(self, work: KernelCost, cached_share: float, count: int, sm_share: float) -> Demand:
        """Return what blocks ask of the memory.

        Parameters
        ----------
        cached_share
            Which share of what it left in the cache is still there.
        count
            How many run.
        sm_share
            Of all SMs, those that they hold.
        """
        rate = moved(work, cached_share) * count / (work.busy_ns * self.bytes_per_us / 1000)
        exposure, idle = work.exposure, work.idle
        if not idle:
            exposure = max(exposure, min(1.0, rate))
            idle = idle_share(rate, exposure)
        met = self.smallest_share + (1 - self.smallest_share) * min(1.0, 2 * sm_share)
        blocks_per_us = 1000 * work.launched * count / work.busy_ns
        return Demand(
            rate,
            exposure,
            idle,
            met,
            cold=1 + (1 - cached_share) * work.cold,
            launching=min(1.0, blocks_per_us / BLOCKS_PER_US),
        )


def moved(work: KernelCost, cached_share: float) -> float:
    """Return the bytes that come into the cache while work runs.

    Parameters
    ----------
    cached_share
        Which share of what it left there is still in the cache.
    """
    return work.nbytes + work.traffic + (1 - cached_share) * max(0, work.cold_nbytes - work.nbytes)


class Demand(NamedTuple):
    """What one of several kernels asks of the memory.

    Attributes
    ----------
    rate
        Of the bandwidth, what it moves alone.
    exposure
        By how much of its time on an idle memory it grows for each multiple of the latency.
    idle
        Its time on an idle memory, of that alone.
    met
        Which share of the added latency it meets: smaller partitions meet less.
    cold
        How many times as long its accesses take because they miss the cache.
    launching
        Of the blocks that the GPU can launch in a time, what it takes alone.
    """

    rate: float
    exposure: float
    idle: float
    met: float
    cold: float
    launching: float = 0.0

    def slowdown(self, latency: float) -> float:
        """Return its time at a latency, of that alone."""
        waits = (1 + self.met * (latency - 1)) * self.cold - 1
        return self.idle * (1 + self.exposure * waits)


def latency(load: float) -> float:
    """Return how many times an idle memory's latency accesses take."""
    return math.sqrt(math.sqrt(1 + load**4))


def idle_share(moved: float, exposure: float) -> float:
    """Return a kernel's time on an idle memory, of that alone.

    Parameters
    ----------
    moved
        What it moves alone, of the bandwidth.
    exposure
        As in :class:`Demand`.
    """
    moved = min(moved, _MOST_ALONE)
    return 1 / (1 + exposure * (1 / math.sqrt(math.sqrt(1 - moved**4)) - 1))


def solve(demands: Sequence[Demand]) -> float:
    """Return the latency at which all of them together move what memory can."""
    at = 1.0
    for _ in range(_STEPS):
        moving = (demand.rate / demand.slowdown(at) for demand in demands)
        following = latency(at * math.fsum(moving))  # in whatever order
        if abs(following - at) < _CLOSE * at:
            return following
        at = math.sqrt(at * following)
    return at


def slowdowns(demands: Sequence[Demand]) -> list[float]:
    """Return by how much each kernel is slower beside the others: by memory or by block launches.

    Kernels wait for each other's blocks by what they launch themselves, so that all together launch
    what the GPU can.
    """
    at = solve(demands)
    slower = [demand.slowdown(at) for demand in demands]
    launching = [demand.launching for demand in demands]
    if math.fsum(launching) <= 1:
        return slower
    wait = _wait_for_launches(launching)
    return [max(by, 1 + share * wait) for by, share in zip(slower, launching, strict=True)]


def _wait_for_launches(launching: Sequence[float]) -> float:
    """Return the wait at which all together launch what the GPU can, by bisection."""
    least, most = 0.0, float(len(launching))
    for _ in range(_STEPS):
        middle = (least + most) / 2
        launched = math.fsum(share / (1 + share * middle) for share in launching)
        least, most = (middle, most) if launched > 1 else (least, middle)
    return (least + most) / 2


def share_cached(footprint: float, held: tuple[float, float]) -> float:
    """Return which share of its bytes repeated work finds in the cache, alone.

    Parameters
    ----------
    footprint
        Bytes that it touches.
    held
        Footprints up to which it finds all, and from which it finds none.
    """
    most, none = held
    return min(1.0, max(0.0, (none - footprint) / (none - most)))
