"""How long a simulated collective takes, by bus bandwidth, and what it keeps busy."""

from __future__ import annotations

import math

from gpuscope.device.api import KernelCost
from gpuscope.simulator.models import assumed


def collective_cost(
    bytes_per_us: int, bus_bytes: float, world_size: int, sm_count: int
) -> KernelCost:
    """Return the cost of one rank's kernel.

    Parameters
    ----------
    bytes_per_us
        The bandwidth of the memory.
    bus_bytes
        What crosses each rank's link.
    sm_count
        SMs of the stream.

    Notes
    -----
    NCCL's blocks run in waves of one on each SM. A wave takes a latency, and its bytes at the
    bandwidth of its blocks or of the link, whichever is less. Also a last wave that does not fill
    the SMs keeps all of them busy here. Fitted to all-reduces of two ranks, and taken to hold for
    other collectives and more ranks.
    """
    blocks = min(assumed.COLLECTIVE_BLOCKS, math.ceil(bus_bytes / assumed.COLLECTIVE_BLOCK_BYTES))
    protocols = assumed.COLLECTIVE_PROTOCOLS
    latency_ns, of_block, of_link = next(
        figures for most, *figures in protocols if bus_bytes <= most
    )
    waiting_ns = moving_ns = 0.0
    for first in range(0, blocks, sm_count):
        wave = min(sm_count, blocks - first)
        waiting_ns += latency_ns + assumed.COLLECTIVE_STEP_NS * (world_size - 2)
        moving_ns += 1000 * bus_bytes * wave / blocks / min(of_link, wave * of_block)
    took_ns = round(waiting_ns + moving_ns)
    exposed = assumed.COLLECTIVE_WAITING * waiting_ns + assumed.COLLECTIVE_MOVING * moving_ns
    moved = int(assumed.COLLECTIVE_MEMORY * bus_bytes)
    most = bytes_per_us * took_ns // 1000
    return KernelCost(min(blocks, sm_count), took_ns, min(moved, most), exposure=exposed / took_ns)
