"""What the simulator assumes because no measurement of it is in the profile."""

from __future__ import annotations

import math

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

BLOCKS_PER_US = 1_650
"""Thread blocks that a GPU launches in a µs, of all kernels together: element-wise copies of 2^28
float32 by blocks of 64 and of 128 threads take 2.52 and 1.27 ms on all SMs of an H200 (CuPy's
``ElementwiseKernel``, 2026-11-28), and by larger ones 0.80 ms or less."""

IDLE_POWER = round(0.67 * (1 << 30))
"""What a GPU draws that computes nothing, of what it may draw for long (in ``ops.FULL``)."""

POWER_FOLLOWS_NS = 45_000_000
"""How slowly the power that counts follows what is drawn: an H200 computes at its highest clock
for so long before the power cap slows it down."""

CAP_W = 700
"""What an H100 or H200 (SXM) may draw for long, as its data sheet states."""

IDLE_W = 118
SM_W = 0.53
MEMORY_W = 297
GEMM_W = 1_120
"""What a GPU draws: idle with a context; for each busy SM; at all of the memory bandwidth; and for
each unit of a profile's ``power``, at the highest clock. From an H100 80GB HBM3 (driver 580.159),
by NVML's counter over 2 s: idle 118 W, a kernel that waits on all 132 SMs 188 W, a device copy
485 W, a float16 GEMM of 4096³ 684 W."""

COLLECTIVE_BLOCKS = 24
COLLECTIVE_BLOCK_BYTES = 8 << 10
"""NCCL's kernel has a thread block for so many bytes that cross a rank's link, at most one for each
channel of NVLink. Each block has an SM of its own: on fewer SMs they run in waves."""

COLLECTIVE_PROTOCOLS = (1 << 20, 4_520, 8_540, 161_100), (math.inf, 16_940, 22_990, 352_600)
"""NCCL's protocols: the most bytes of a collective, a wave's latency in ns, and bytes a µs that a
block and a link move. These and what follows up to ``ALL_TO_ALL`` are fitted to all-reduces on two
H200s (``tests/data/all_reduce_h200.json``: 3 % off at the median, 10 % at most) and to four kinds
on two and four H100s (``benchmarks/results/ranks_gpu.json``: 3 % and 31 %). Fitted without half of
the sizes on four, these are 4 % off at the median and 20 % at most."""

COLLECTIVE_STEP = 0.156
"""By which share latencies grow for each rank beyond two: a ring has more steps."""

COLLECTIVE_OWN = 0.465
"""Which share of a rank's own part counts beside what crosses its link: it is copied or added, but
not sent."""

REDUCE_SCATTER = 0.73
"""Its latency, of an all-gather's."""

ALL_TO_ALL = 4_960.0, 2_690.0, 18_420, 392_900
ALL_TO_ALL_BLOCKS, ALL_TO_ALL_MOST = 16, 64
"""Of an all-to-all: latencies in ns of the kernel and of each wave, bytes a µs that a block and a
link move; its blocks for each rank, and at most."""

COLLECTIVE_MEMORY = 3.0
"""Bytes that a rank moves in device memory for each that crosses its link: a ring's step reads what
it sends and what it adds to, and writes what came."""

COLLECTIVE_WAITING = 14.0
COLLECTIVE_MOVING = 4.0
COLLECTIVE_LINKED = 1.0
"""By how much the latency of a collective, and its moving of bytes by blocks or at the link's
bandwidth, wait for memory. From collectives beside 4096³ GEMMs on two and four H100s."""
