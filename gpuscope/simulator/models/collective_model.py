"""How long a simulated collective takes, by bus bandwidth, and what it keeps busy."""

from __future__ import annotations

import math

from gpuscope.device.api import KernelCost
from gpuscope.simulator.models import assumed


def collective_cost(
    bytes_per_us: int, kind: str, bus_bytes: float, world_size: int, sm_count: int
) -> KernelCost:
    """Return the cost of one rank's kernel.

    Parameters
    ----------
    bytes_per_us
        The bandwidth of the memory.
    kind
        As :class:`~gpuscope.trace.facts.CollectiveFacts` names it.
    bus_bytes
        What crosses each rank's link.
    sm_count
        SMs of the stream.

    Notes
    -----
    NCCL's blocks run in waves of one on each SM. A wave takes a latency, which grows with the ring,
    and its bytes at the bandwidth of its blocks or of the link, whichever is less. Of the bytes, a
    share of the rank's own part counts beside those that cross the link. An all-to-all has no ring:
    more blocks, and a latency of the kernel besides. Also a last wave that does not fill the SMs
    keeps all of them busy here.
    """
    steps = (world_size - 1) * (2 if kind == "all_reduce" else 1)
    part = bus_bytes / steps
    blocks, started_ns = assumed.COLLECTIVE_BLOCKS, 0.0
    if kind == "all_to_all":
        blocks = min(assumed.ALL_TO_ALL_MOST, assumed.ALL_TO_ALL_BLOCKS * world_size)
        started_ns, latency_ns, of_block, of_link = assumed.ALL_TO_ALL
    else:
        ring_ns, of_block, of_link = next(
            figures for most, *figures in assumed.COLLECTIVE_PROTOCOLS if part * world_size <= most
        )
        latency_ns = ring_ns * (1 + assumed.COLLECTIVE_STEP * (world_size - 2))
        latency_ns *= assumed.REDUCE_SCATTER if kind == "reduce_scatter" else 1
    blocks = min(blocks, math.ceil(bus_bytes / assumed.COLLECTIVE_BLOCK_BYTES))
    of_each = (bus_bytes + assumed.COLLECTIVE_OWN * part) / blocks
    took_ns, exposed = started_ns, assumed.COLLECTIVE_WAITING * started_ns
    for first in range(0, blocks, sm_count):
        wave = min(sm_count, blocks - first)
        moving_ns = 1000 * of_each * wave / min(of_link, wave * of_block)
        took_ns += latency_ns + moving_ns
        is_linked = wave * of_block >= of_link
        exposure = assumed.COLLECTIVE_LINKED if is_linked else assumed.COLLECTIVE_MOVING
        exposed += assumed.COLLECTIVE_WAITING * latency_ns + exposure * moving_ns
    moved = min(int(assumed.COLLECTIVE_MEMORY * bus_bytes), int(bytes_per_us * took_ns / 1000))
    return KernelCost(min(blocks, sm_count), round(took_ns), moved, exposure=exposed / took_ns)
