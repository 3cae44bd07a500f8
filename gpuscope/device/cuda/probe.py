"""Which SMs a stream's work runs on: one block an SM, all resident at once, tells its id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

from gpuscope._types import Untyped
from gpuscope.device.cuda.arrays import cupy
from gpuscope.device.cuda.driver import all_shared_memory
from gpuscope.errors import InvalidPartition

# Every block takes all the shared memory of an SM, so no two share one, and none leaves
# before as many are resident as there should be SMs: so each SM is seen exactly once.
_SOURCE = r"""
extern "C" __global__ void sm_probe(unsigned* out, unsigned want, unsigned long long limit_ns) {
  unsigned* arrived = out; unsigned* timed_out = out + 1; unsigned* ids = out + 2;
  if (threadIdx.x) return;
  unsigned sm; unsigned long long start, now;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  ids[blockIdx.x] = sm;
  __threadfence();
  atomicAdd(arrived, 1u);
  while (atomicAdd(arrived, 0u) < want) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - start > limit_ns) { atomicExch(timed_out, 1u); break; }
  }
}
"""
_LIMIT_NS = 1_000_000_000
_HEADER = 2
_CLUSTER = 4


class SmProbe:
    """The probe kernel of one device, compiled once."""

    def __init__(self, device: Device) -> None:
        options = ProgramOptions(arch=f"sm_{device.arch}")
        self._kernel = Program(_SOURCE, "c++", options).compile("cubin").get_kernel("sm_probe")
        self._has_clusters = device.compute_capability.major >= 9
        self._shared_bytes = all_shared_memory(self._kernel, device)

    def cluster_sm_count(self, stream: Untyped, sm_count: int) -> int:
        """Return on how many of a stream's SMs clusters of four blocks fit at the same time.

        One block an SM, as GEMM libraries launch them. Devices without clusters use every SM.
        """
        if not self._has_clusters:
            return sm_count
        config = LaunchConfig(grid=1, cluster=_CLUSTER, block=32, shmem_size=self._shared_bytes)
        fitting = self._kernel.occupancy.max_active_clusters(config, stream=stream) * _CLUSTER
        return min(int(fitting), sm_count)

    def sm_ids(self, streams: Sequence[Untyped], counts: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the sorted SM ids behind each stream, all probed at the same time.

        Raises
        ------
        InvalidPartition
            A stream does not run on as many SMs as granted, or other work holds its SMs.
        """
        width = _HEADER + max(counts)
        seen = cupy.zeros((len(streams), width), cupy.uint32)
        cupy.cuda.runtime.streamSynchronize(cupy.cuda.get_current_stream().ptr)
        for row, (stream, count) in enumerate(zip(streams, counts, strict=True)):
            config = LaunchConfig(grid=count, block=32, shmem_size=self._shared_bytes)
            pointer = seen.data.ptr + row * width * 4
            launch(stream, config, self._kernel, pointer, np.uint32(count), np.uint64(_LIMIT_NS))
        for stream in streams:
            stream.sync()
        host = cupy.asnumpy(seen)
        seen_by: list[tuple[int, ...]] = []
        for count, (arrived, timed_out, *ids) in zip(counts, host.tolist(), strict=True):
            distinct = tuple(sorted(set(ids[:count])))
            if timed_out or arrived != count or len(distinct) != count:
                why = ": this driver does not confine work as it says"
                if timed_out:
                    why = "; other work may hold them: wait for it, then carve again"
                raise InvalidPartition(
                    f"{count} SMs were granted, but {len(distinct)} were seen to run work at the "
                    f"same time{why}"
                )
            seen_by.append(distinct)
        return seen_by
