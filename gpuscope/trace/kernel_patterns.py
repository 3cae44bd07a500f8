"""Which names of kernels a person calls what: patterns, as data for ``naming``."""

from __future__ import annotations

PATTERNS = r"""
^(?:memcpy )?HtoD(?: copy)?$ -> copy to the GPU
^(?:memcpy )?DtoH(?: copy)?$ -> copy to the host
^(?:memcpy )?DtoD(?: copy)?$ -> copy on the GPU
^(?:memcpy )?PtoP(?: copy)?$ -> copy between GPUs
^(cuda?[A-Z]\w+?)_v\d+$ -> =
^triton_(?:poi|red|per|tem)_fused_*(\w+?)_\d+$ -> fused \1 (Triton)
^nccl\w*?Kernel_(AllReduce|ReduceScatter|Reduce)_([A-Za-z]+) -> NCCL \1 (\2 *)
^nccl\w*?Kernel_([A-Za-z]+) -> NCCL \1
^cupy_(\w+?)__ -> \1 *
sdpa\w*flash|flash_[fb]wd -> flash attention *
sdpa|fmha|attention_kernel -> attention *
(?i:splitk_?reduce) -> GEMM, sum of its parts
nchwToNhwc|nhwcToNchw -> memory layout *
conv_depthwise -> depthwise convolution *
[dw]grad|fprop|implicit_convolve|(?i:winograd)|conv[23]d|scudnn -> convolution *
(?:nvjet|gemm)_(?:\w*?_)??(?:tilesize)?(\d+)x(\d+) -> GEMM \1×\2 &
(?i:gemmk1|gemmsn|gemv) -> matrix times vector
nvjet|^cutlass|xmma_gemm|[_ ][sdhc]gemm|cutlass::\w*gemm|cutlass::device_kernel -> GEMM &
(?i:(batch|layer|group|rms)_?norm) -> \1 norm *
bn_[fb]w -> batch norm *
GammaBeta -> layer norm *
ComputeFusedParams -> group norm *
RowwiseMoments -> mean and variance of rows *
(?i:log_?softmax) -> log softmax *
(?i:softmax) -> softmax *
nll_loss -> NLL loss *
multi_tensor_apply.*Adam -> fused Adam *
multi_tensor_apply.*NormFunctor -> norm of several tensors *
multi_tensor_apply.*?Op\w*Functor.*?std::(\w+?)< -> \1 of several tensors *
multi_tensor_apply -> update of several tensors *
(dropout|embedding|upsample) -> \1 *
indexSelect|index_elementwise|index_kernel|indexFunc|index_put -> index
gather|scatter -> gather or scatter
CatArrayBatchedCopy -> concatenate
(?i:topk) -> top k
DeviceSelect|DeviceCompact -> select
(?i:(sort|scan)) -> \1
(?i:(max|avg|average)_?pool) -> \1 pool *
generate_seed|gen_sequenced|curand|distribution_elementwise|philox -> random numbers
reduce_kernel.*?::(\w+?)(?:_functor|(?:NanFunctor)?Ops<|_kernel_cuda|_kernel_impl) -> reduce (\1 *)
reduce_kernel|DeviceReduce -> reduce *
(vectorized_)?elementwise.*?(?:CUDAFunctor\w*?_|binary_internal::)(\w+?)(?:Functor)?< -> \1\2 *
elementwise_kernel.*?copy_kernel_cuda -> copy *
(vectorized_)?elementwise.*?launch_(\w+?)(?:_scalar|_kernel)?\( -> \1\2 *
(vectorized_)?elementwise.*?::(?!gpu_)(\w+?)(?:_kernel\w*|_cuda|(?:CUDA)?Kernel\w*)[(<] -> \1\2 *
(vectorized_)?elementwise.*?::(?!operator)(\w+?)Functor -> \1\2 *
elementwise_kernel -> elementwise *
"""
"""A pattern of names → what a person says; ``*`` stands for the element type in parentheses, ``&``
for the type alone, ``=`` for the group as it is. The first that fits holds. A name that speaks of a
backward pass adds “backward” before the type."""
TYPES = """
c10::BFloat16=bf16 __nv_bfloat16=bf16 bfloat16=bf16 bf16=bf16 c10::Half=float16 __half=float16
float16=float16 fp16=float16 f16=float16 half=float16 c10::Float8_e4m3fn=fp8 e4m3=fp8 s8=int8
tf32=tf32 float32=float32 f32=float32 float64=float64 f64=float64 c10::complex<float>=complex64
cutlass::bfloat16_t=bf16 cutlass::half_t=float16 double=float64 float=float32
unsigned_char=uint8 signed_char=int8 short=int16 int=int32
long=int64 i32=int32 i64=int64
"""
LETTERS = {"h": "float16", "t": "bf16", "s": "float32", "d": "float64", "q": "fp8", "i": "int8"}
"""Letters by which cuBLAS names the type of a product's first operand."""
