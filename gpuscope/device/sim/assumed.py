"""What the simulator assumes because no measurement of it is in the profile."""

from __future__ import annotations

PENDING_LAUNCHES = 1024
"""Work that a stream holds before the next launch blocks the host: what CUDA drivers are
seen to do."""

PAGEABLE_BYTES_PER_US = 12_000
"""How fast the host stages small pageable memory at the call: a usual rate of one core."""

STAGED_AT_ONCE_BYTES = 64 * 1024
"""Pageable memory up to this size is staged at the call, as CUDA documents."""

GRAPH_LAUNCH_CALL_NS = 5_000
"""Host cost of launching a graph."""

HOST_FUNCTION_NS = 2_000
"""How long a host function holds its stream."""

GEMM_STALLS = 0.27, 0.41
"""How much longer a GEMM takes while others use all of the memory bandwidth: of its time, and so
much more over its rounds, as few of them hide little. Seen in pairs of workloads on an H200."""

GEMM_MISSES = 0.26
"""Share of the operands that tiles load which keeps memory busy: the cache holds the others. From
the same pairs."""

IDLE_POWER = round(0.67 * (1 << 30))
"""What a GPU draws that computes nothing, of what it may draw for long (in ``ops.FULL``)."""

POWER_FOLLOWS_NS = 45_000_000
"""How slowly the power that counts follows what is drawn: an H200 computes at its highest clock
for so long before the power cap slows it down."""
