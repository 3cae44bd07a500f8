"""CUDA C++ of the kernels that tell when and where each of their thread blocks ran."""

from __future__ import annotations

# What only the GPU knows, and the instructions that C++ has no word for. Kept apart from the
# kernels so that these can be compiled for, and checked on, a host.
INSTRUCTIONS = r"""
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

RECORD = r"""
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
GEMM = r"""
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

COPY = r"""
extern "C" __global__ void traced_copy(float4* out, const float4* in, i64 n, u64* records) {
  u64 start = block_begins(records);
  i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    out[i] = in[i];
  block_ends(records, start);
}
"""

TRACED_GEMM = INSTRUCTIONS + RECORD + GEMM
TRACED_COPY = INSTRUCTIONS + RECORD + COPY
