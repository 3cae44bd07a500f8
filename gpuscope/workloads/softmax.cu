struct Greater { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };

// Combines one value of each thread; the threads are a power of two.
template <class Combine>
__device__ float over_block(float value, float* shared, Combine combine) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned step = blockDim.x / 2; step; step /= 2) {
    if (threadIdx.x < step)
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + step]);
    __syncthreads();
  }
  float combined = shared[0];
  __syncthreads();  // the next use of shared begins when all have read
  return combined;
}

extern "C" __global__ void softmax_kernel(float* out, const float* in, long long columns) {
  __shared__ float shared[256];
  const float* row = in + blockIdx.x * columns;
  float most = row[0];
  for (long long i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, row[i]);
  most = over_block(most, shared, Greater());
  float sum = 0;
  for (long long i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - most);
  sum = over_block(sum, shared, Sum());
  for (long long i = threadIdx.x; i < columns; i += blockDim.x)
    out[blockIdx.x * columns + i] = expf(row[i] - most) / sum;
}
