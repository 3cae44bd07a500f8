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
