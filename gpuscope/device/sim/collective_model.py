"""How long a simulated collective takes, by bus bandwidth, and what it keeps busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuscope.device.api import KernelCost
from gpuscope.device.sim import assumed

if TYPE_CHECKING:
    from gpuscope.device.sim.profile import Profile


def collective_cost(
    profile: Profile, bus_bytes: float, world_size: int, sm_count: int
) -> KernelCost:
    """Return the cost of one rank's kernel.

    Parameters
    ----------
    bus_bytes
        What crosses each rank's link.
    sm_count
        SMs of the stream.

    Notes
    -----
    A latency, and the bytes of the bus at the bandwidth that so many SMs reach: measured with two
    ranks, interpolated over the logarithm of the count, and taken to hold for more ranks.
    """
    counts, rates = zip(*assumed.COLLECTIVE_BYTES_PER_US, strict=True)
    rate = float(np.interp(np.log(sm_count), np.log(counts), rates))
    latency_ns = assumed.COLLECTIVE_LATENCY_NS + assumed.COLLECTIVE_STEP_NS * (world_size - 2)
    took_ns = latency_ns + round(1000 * bus_bytes / rate)
    blocks = min(assumed.COLLECTIVE_BLOCKS, sm_count)
    moved = int(assumed.COLLECTIVE_MEMORY * bus_bytes)
    most = profile.constants["device_copy_bytes_per_us"] * took_ns // 1000
    return KernelCost(blocks, took_ns, min(moved, most), stall=assumed.COLLECTIVE_STALL)
