// A block of 256 threads computes 128 x 128 of out, 32 of k at a time: 8 warps, two down and four
// across, 64 x 32 each. Tiles of a and b are in shared memory as chunks of 8 float16, placed so
// that neither a warp's stores nor its loads of matrices meet in a bank. Three stages take turns:
// one is computed with while two are under way.
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
