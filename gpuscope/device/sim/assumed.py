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

COLLECTIVE_LATENCY_NS = 10_000
"""What a collective of two ranks takes beside moving its bytes: about what nccl-tests shows for
messages of a few bytes over NVLink. Only 128 MiB were measured."""

COLLECTIVE_STEP_NS = 2_000
"""So much longer for each rank more: a ring has more steps."""

COLLECTIVE_BYTES_PER_US = (
    (1, 19_000), (8, 148_960), (16, 215_800), (32, 280_200), (64, 296_940), (132, 297_600),
)  # fmt: skip
"""SMs → bytes a µs that cross a rank's link: an all-reduce of 128 MiB on two H200s (NCCL 2.28,
without NVLink multicast) took 911 µs on 8 SMs, 632 on 16, 489 on 32, 462 on 64 and 461 on all,
less the latency. One SM was not measured: an eighth of what eight reach."""

COLLECTIVE_BLOCKS = 24
"""Thread blocks, each on an SM of its own: the channels that NCCL uses over an H200's NVLink.
On fewer SMs several blocks share one, which the measured times hold."""

COLLECTIVE_MEMORY = 3.0
"""Bytes that a rank moves in device memory for each that crosses its link: a ring's step reads what
it sends and what it adds to, and writes what came."""

COLLECTIVE_STALL = 0.3
"""How much longer a collective takes while others use all of the memory bandwidth. Seen beside
4096³ GEMMs on two H200s: 524 µs in place of 489 on 32 SMs, 769 in place of 632 on 16."""
