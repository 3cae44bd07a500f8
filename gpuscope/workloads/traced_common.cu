// What only the GPU knows, and the instructions that C++ has no word for. Kept apart from the
// kernels so that these can be compiled for, and checked on, a host.
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
