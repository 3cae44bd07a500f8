"""Kernels that tell when and where each of their thread blocks ran.

Thread 0 of a block reads the GPU's ``%globaltimer`` when the block begins and when all of
its threads are at the end, and its ``%smid``. While a device is observed, each launch
writes these to an array of its own, which goes with the launch's
:class:`~gpuscope.device.api.Call` as ``blocks``: shape (blocks, 3), uint64, row i for
block i: start and end in ns on the GPU's clock, SM id. Whoever keeps the call keeps the array;
it is read when the launch is done. The end is when all threads got there; what they stored may
still be on its way to memory. While nobody observes, a launch writes nothing and takes no memory.

A launch that becomes part of a graph writes nothing either: every replay would overwrite
what the one before wrote. Devices that run no source, the simulated one among them, have
no block records: there ``blocks`` is ``None``.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gpuscope._checks import require_kind
from gpuscope.device import binding
from gpuscope.device.api import Backend, Kernel, KernelModel, MatmulPlan
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, InvalidOperand
from gpuscope.workloads import copy
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.gemm import Gemm

# What only the GPU knows, and the instructions that C++ has no word for. Kept apart from the
# kernels so that these can be compiled for, and checked on, a host.
_INSTRUCTIONS = r"""
typedef unsigned short half_bits;  // a float16; NVRTC comes without cuda_fp16.h
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

__device__ inline u64 now_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) :: "memory");
  return now;
}

__device__ inline u32 sm_id() {
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

__device__ inline u32 shared_address(const void* pointer) {
  u32 address;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
      : "=r"(address) : "l"(pointer));
  return address;
}

// Copies 16 bytes to shared memory, or fills them with zeros; done when its group is.
__device__ inline void copy_16_bytes(u32 to, const void* from, bool there) {
  u32 count = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(to), "l"(from), "r"(count) : "memory");
}

__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most one of this thread's groups is not done.
__device__ inline void wait_for_all_groups_but_one() {
  asm volatile("cp.async.wait_group 1;" ::: "memory");
}

__device__ inline void store_16_bytes(u32 to, const u32 (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Loads four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(u32 (&into)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(row) : "memory");
}

__device__ inline void load_matrices_transposed(u32 (&into)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(row) : "memory");
}

// sum[16, 8] += a[16, 16] @ b[16, 8], by the tensor cores.
__device__ inline void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b_low, u32 b_high) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

__device__ inline half_bits to_half(float value) {
  half_bits bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
"""

_RECORD = r"""
__device__ inline u64 block_begins(const u64* records) {
  return records && !threadIdx.x ? now_ns() : 0;
}

// Covers the whole block: no thread leaves before all are here.
__device__ inline void block_ends(u64* records, u64 start) {
  if (!records) return;
  __syncthreads();
  if (threadIdx.x) return;
  u64* record = records + 3 * (u64)blockIdx.x;
  record[0] = start;
  record[1] = now_ns();
  record[2] = sm_id();
}
"""

# A block of 256 threads computes 128 x 128 of out, 32 of k at a time: 8 warps, two down and four
# across, 64 x 32 each. Tiles of a and b are in shared memory as chunks of 8 float16, placed so
# that neither a warp's stores nor its loads of matrices meet in a bank. Three stages take turns:
# one is computed with while two are under way.
_GEMM = r"""
enum : u32 { STAGES = 3, A_BYTES = 128 * 32 * 2, STAGE_BYTES = 2 * A_BYTES };

__device__ inline u32 place_a(u32 row, u32 chunk) {
  return row * 64 + (chunk ^ (row >> 1 & 3)) * 16;
}

__device__ inline u32 place_b(u32 row, u32 chunk) {
  return A_BYTES + row * 256 + (chunk ^ (row & 7)) * 16;
}

// Brings 8 elements of a matrix to shared memory, zeros for those beyond its edges.
template <bool WHOLE_CHUNKS>
__device__ inline void bring(u32 to, const half_bits* from, u32 row, u32 rows, u32 column,
                             u32 columns) {
  const half_bits* first = from + (u64)row * columns + column;
  if (WHOLE_CHUNKS) {  // columns % 8 == 0: all of a chunk is there, or nothing
    bool there = row < rows && column < columns;
    copy_16_bytes(to, there ? first : from, there);
  } else {
    u32 words[4];
    for (u32 i = 0; i < 4; ++i) {
      u32 here = column + 2 * i;
      u32 low = row < rows && here < columns ? first[2 * i] : 0;
      u32 high = row < rows && here + 1 < columns ? first[2 * i + 1] : 0;
      words[i] = low | high << 16;
    }
    store_16_bytes(to, words);
  }
}

template <bool WHOLE_CHUNKS>
__device__ inline void bring_tiles(u32 stage, const half_bits* a, const half_bits* b, u32 m,
                                   u32 n, u32 k, u32 first_row, u32 first_column, u32 first_k) {
  u32 thread = threadIdx.x;
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    u32 row = thread / 4 + half * 64, chunk = thread % 4;
    bring<WHOLE_CHUNKS>(stage + place_a(row, chunk), a, first_row + row, m,
                        first_k + chunk * 8, k);
  }
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    u32 row = thread / 16 + half * 16, chunk = thread % 16;
    bring<WHOLE_CHUNKS>(stage + place_b(row, chunk), b, first_k + row, k,
                        first_column + chunk * 8, n);
  }
}

template <bool WHOLE_CHUNKS>
__device__ inline void multiply(u32 stages, half_bits* out, const half_bits* a,
                                const half_bits* b, u32 m, u32 n, u32 k, u32 first_row,
                                u32 first_column) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
  float sums[4][4][4] = {};
  u32 first_k = 0;
  for (u32 stage = 0; stage < STAGES - 1; ++stage, first_k += 32) {
    if (first_k < k)
      bring_tiles<WHOLE_CHUNKS>(stages + stage * STAGE_BYTES, a, b, m, n, k, first_row,
                                first_column, first_k);
    end_group();
  }
  u32 current = 0, next = STAGES - 1;
  for (u32 done_k = 0; done_k < k; done_k += 32, first_k += 32) {
    wait_for_all_groups_but_one();
    __syncthreads();  // this stage is there for all, and nobody reads the one before any more
    if (first_k < k)
      bring_tiles<WHOLE_CHUNKS>(stages + next * STAGE_BYTES, a, b, m, n, k, first_row,
                                first_column, first_k);
    end_group();
    u32 stage = stages + current * STAGE_BYTES;
#pragma unroll
    for (u32 step = 0; step < 2; ++step) {
      u32 from_a[4][4], from_b[2][4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i)
        load_matrices(from_a[i],
                      stage + place_a(warp_row + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (u32 j = 0; j < 2; ++j)
        load_matrices_transposed(
            from_b[j],
            stage + place_b(step * 16 + lane % 16, warp_column / 8 + j * 2 + lane / 16));
#pragma unroll
      for (u32 i = 0; i < 4; ++i)
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
          multiply_add(sums[i][j], from_a[i], from_b[j / 2][j % 2 * 2],
                       from_b[j / 2][j % 2 * 2 + 1]);
    }
    current = current + 1 == STAGES ? 0 : current + 1;
    next = next + 1 == STAGES ? 0 : next + 1;
  }
#pragma unroll
  for (u32 i = 0; i < 4; ++i)
#pragma unroll
    for (u32 low = 0; low < 2; ++low) {
      u32 row = first_row + warp_row + i * 16 + low * 8 + lane / 4;
      if (row >= m) continue;
#pragma unroll
      for (u32 j = 0; j < 4; ++j) {
        u32 column = first_column + warp_column + j * 8 + lane % 4 * 2;
        u32 first = to_half(sums[i][j][low * 2]), second = to_half(sums[i][j][low * 2 + 1]);
        half_bits* here = out + (u64)row * n + column;
        if (WHOLE_CHUNKS) {
          if (column < n) *(u32*)here = first | second << 16;
        } else {
          if (column < n) here[0] = (half_bits)first;
          if (column + 1 < n) here[1] = (half_bits)second;
        }
      }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2)
traced_gemm(half_bits* out, const half_bits* a, const half_bits* b, i64 m, i64 n, i64 k,
            u64* records) {
  u64 start = block_begins(records);
  __shared__ __align__(128) unsigned char stages[STAGES * STAGE_BYTES];
  // Eight rows of tiles together, column by column: neighbours find their operands in L2.
  u32 down = (u32)((m + 127) / 128), across = (u32)((n + 127) / 128);
  u32 group = blockIdx.x / (8 * across), inside = blockIdx.x % (8 * across);
  u32 height = down - group * 8 < 8 ? down - group * 8 : 8;
  u32 first_row = (group * 8 + inside % height) * 128;
  u32 first_column = inside / height * 128;
  bool whole_chunks = k % 8 == 0 && n % 8 == 0 && ((u64)a | (u64)b | (u64)out) % 16 == 0;
  if (whole_chunks)
    multiply<true>(shared_address(stages), out, a, b, m, n, k, first_row, first_column);
  else
    multiply<false>(shared_address(stages), out, a, b, m, n, k, first_row, first_column);
  block_ends(records, start);
}
"""

_COPY = r"""
extern "C" __global__ void traced_copy(float4* out, const float4* in, i64 n, u64* records) {
  u64 start = block_begins(records);
  i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    out[i] = in[i];
  block_ends(records, start);
}
"""

_TILE = 128
_THREADS = 256
_TENSOR_CORES_SINCE = (8, 0)
_NOWHERE = 0


def _records(device: Device, stream: Stream, blocks: int) -> Any:
    """Return an array for one launch's block records; ``None`` if it shall write none."""
    if not (device.calls.observers and device.capabilities.compile_source) or stream.capturing:
        return None
    with device.backend.current():
        # CuPy's pool takes memory from, and gives it back to, its current stream's share: as
        # this is the stream of the launch, nobody who lets go too early does any harm.
        bound = binding.bind(stream)
        try:
            return device.empty((blocks, 3), "uint64")
        finally:
            binding.unbind(bound)


class TracedGemm(Gemm):
    """A matrix product ``out[m, n] = a[m, k] @ b[k, n]`` that tells of its thread blocks.

    A kernel of ours on the tensor cores: float16 in and out, summed in float32. It is there
    to be looked into, not to be fast: each thread block computes 128 × 128 of ``out``.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    m, n, k
        Sizes in elements. Multiples of 8 for n and k make it more than twice as fast.
    name
        For people, timelines and analyses; it says the sizes if not given.
    seed
        Of its own operands: uniform values in [-0.5, 0.5), made at first use.
    max_in_flight
        How many calls may overlap; each has operands of its own.

    Raises
    ------
    InvalidOperand
        A size is not positive.
    CapabilityError
        The GPU's tensor cores are older than compute capability 8.0.

    Notes
    -----
    ``execute()`` is :meth:`Gemm.execute <gpuscope.workloads.gemm.Gemm.execute>`, but arrays
    given to it are in C order: others are refused with InvalidOperand.

    While the device is observed, each call's launch has an array of
    ``ceil(m / 128) * ceil(n / 128)`` block records: see :mod:`gpuscope.workloads.traced`. A
    launch that becomes part of a graph has none, so neither has a call that replays one.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> from gpuscope.workloads.traced import TracedGemm
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = TracedGemm(gpu, m=256, n=256, k=64).execute(stream=stream)
    >>> recording.trace.kind_counts().get("block", 0)  # on a CUDA GPU 4: 2 × 2 tiles
    0
    """

    def __init__(
        self,
        owner: Device | Partition,
        *,
        m: int,
        n: int,
        k: int,
        name: str | None = None,
        seed: int = 0,
        max_in_flight: int = 1,
    ) -> None:
        require_kind("name", name, str, None)
        super().__init__(
            owner, m=m, n=n, k=k, dtype="float16", sm_count_target=None, name=name, seed=seed,
            max_in_flight=max_in_flight,
        )  # fmt: skip
        self.name = name or f"traced gemm {m}x{n}x{k}"
        device = self.device
        found = device.info.compute_capability
        if device.capabilities.compile_source and found < _TENSOR_CORES_SINCE:
            raise CapabilityError(
                f"a TracedGemm is not possible here: compute capability 8.0 or newer is required, "
                f"{found[0]}.{found[1]} was found. A Gemm is possible, without block records"
            )
        self._kernel = device.compile(
            _INSTRUCTIONS + _RECORD + _GEMM, "traced_gemm",
            model=KernelModel(
                lambda profile, _grid, args, sm_count: profile.gemm_cost(
                    *args[3:6], "float16", sm_count, 0
                ),
                reads=lambda args: args[1:3],
                writes=lambda args: args[0],
                compute=_product,
            ),
        )  # fmt: skip
        # What Gemm calls where nobody observes; it must not refer to this handle.
        self._matmul = functools.partial(_launch_unseen, device.backend, self._kernel)

    def _fits(self, plan: MatmulPlan) -> bool:
        if not super()._fits(plan):
            return False
        if (
            plan.copies
            or (plan.transpose_a or plan.row_a != plan.k)
            or (plan.transpose_b or plan.row_b != plan.n)
        ):
            name = "a" if plan.copy_a or plan.transpose_a or plan.row_a != plan.k else "b"
            raise InvalidOperand(
                f"{name} is not C-contiguous, and a TracedGemm takes nothing else: give a whole "
                "array, or use a Gemm"
            )
        return True

    def _launch(self, stream: Stream, operands: Any) -> None:
        plan, _, out, a, b = operands
        grid = _grid(plan)
        records = _records(self.device, stream, grid)
        stream.launch(
            self._kernel, out, a, b, plan.m, plan.n, plan.k,
            _NOWHERE if records is None else records,
            grid=grid, block=_THREADS, flop_count=plan.flop_count,
            nbytes=plan.bytes_out + plan.bytes_a + plan.bytes_b, blocks=records,
        )  # fmt: skip


def _grid(plan: MatmulPlan) -> int:
    return -(-plan.m // _TILE) * -(-plan.n // _TILE)


def _launch_unseen(
    backend: Backend,
    kernel: Kernel,
    stream: Stream,
    plan: MatmulPlan,
    placed: Any,
    sm_count: int,
    correlation: int,
) -> None:
    """Launch the product without records; takes, after two of its own, what matmul takes."""
    del sm_count
    args = (*placed, plan.m, plan.n, plan.k, _NOWHERE)
    backend.launch(stream.raw, kernel, _grid(plan), _THREADS, args, correlation)


def _product(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore", invalid="ignore"):  # a GPU says nothing either
        found: np.ndarray[Any, Any] = (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
        return found


class TracedCopy(Copy):
    """A :class:`~gpuscope.workloads.copy.Copy` that tells of its thread blocks.

    Parameters
    ----------
    owner
        The device, or a partition that closes the handle with itself.
    nbytes
        Bytes read, and bytes written; rounded up to a multiple of 16.
    name
        For people, timelines and analyses; it says the size if not given.
    seed
        Of the array that is read: uniform values in [-0.5, 0.5).
    max_in_flight
        How many calls may overlap; each writes an array of its own.

    Raises
    ------
    InvalidOperand
        ``nbytes`` is not positive.

    Notes
    -----
    While the device is observed, each call's launch has an array of block records, four for
    each SM that it may run on: see :mod:`gpuscope.workloads.traced`. A launch that becomes
    part of a graph has none, so neither has a call that replays one.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> from gpuscope.workloads.traced import TracedCopy
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = TracedCopy(gpu, nbytes=1 << 20).execute(stream=stream)
    >>> recording.trace.kind_counts().get("block", 0)  # on a CUDA GPU 4 for each SM
    0
    """

    def __init__(
        self,
        owner: Device | Partition,
        *,
        nbytes: int,
        name: str | None = None,
        seed: int = 0,
        max_in_flight: int = 1,
    ) -> None:
        require_kind("name", name, str, None)
        super().__init__(owner, nbytes=nbytes, name=name, seed=seed, max_in_flight=max_in_flight)
        self.name = name or f"traced copy {nbytes} B"
        self._kernel = self.device.compile(
            _INSTRUCTIONS + _RECORD + _COPY, "traced_copy", model=self._kernel.model
        )

    def _launch(self, stream: Stream, operands: Any) -> None:
        grid = self._grid(stream)
        records = _records(self.device, stream, grid)
        stream.launch(
            self._kernel, operands, self._source, self._vectors,
            _NOWHERE if records is None else records,
            grid=grid, block=copy._BLOCK, nbytes=2 * self.nbytes, blocks=records,
        )  # fmt: skip
