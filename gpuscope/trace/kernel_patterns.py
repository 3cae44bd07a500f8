"""Which names of kernels a person calls what: patterns, as data for ``naming``."""

from __future__ import annotations

PATTERNS = r"""
^(?:memcpy )?HtoD(?: copy)?$ -> copy to the GPU
^(?:memcpy )?DtoH(?: copy)?$ -> copy to the host
^(?:memcpy )?DtoD(?: copy)?$ -> copy on the GPU
^(?:memcpy )?PtoP(?: copy)?$ -> copy between GPUs
^(cu[A-Z]\w+?|cuda[A-Z]\w+?)_v\d+$ -> =
^triton_(?:poi|red|per|tem)_fused_*(\w+?)_\d+$ -> fused \1 (Triton)
^triton_(?:mm|bmm|addmm)\w*$ -> GEMM (Triton)
^nccl(?:Dev)?Kernel_AllReduce_([A-Za-z]+) -> NCCL all-reduce (\1 *)
^nccl(?:Dev)?Kernel_ReduceScatter_([A-Za-z]+) -> NCCL reduce-scatter (\1 *)
^nccl(?:Dev)?Kernel_Reduce_([A-Za-z]+) -> NCCL reduce (\1 *)
^nccl(?:Dev)?Kernel_AllGather -> NCCL all-gather
^nccl(?:Dev)?Kernel_Broadcast -> NCCL broadcast
^nccl(?:Dev)?Kernel_SendRecv -> NCCL send and receive
^nccl\w* -> NCCL
^cupy_(\w+?)__ -> \1 *
^cupy_(\w+)$ -> \1
sdpa\w*flash|flash_[fb]wd -> flash attention *
sdpa|fmha|attention_kernel -> attention *
(?i:splitk_?reduce) -> GEMM, sum of its parts
nchwToNhwc|nhwcToNchw -> memory layout *
conv_depthwise -> depthwise convolution *
[dw]grad|fprop|implicit_convolve|(?i:winograd)|conv[23]d|scudnn|convolve -> convolution *
(?:nvjet|gemm)_(?:\w*?_)??(?:tilesize)?(\d+)x(\d+) -> GEMM \1×\2 &
(?i:gemmk1|gemmsn|gemv|cublas\w*::dot_kernel) -> matrix times vector
nvjet|^cutlass|xmma_gemm|_[sdhc]gemm|cutlass::\w*gemm|cutlass::device_kernel -> GEMM &
(?i:batch_?norm)|bn_[fb]w -> batch norm *
(?i:group_?norm)|ComputeFusedParams -> group norm *
(?i:rms_?norm) -> RMS norm *
(?i:layer_?norm)|GammaBeta -> layer norm *
RowwiseMoments -> mean and variance of rows *
(?i:log_?softmax) -> log softmax *
(?i:softmax) -> softmax *
nll_loss -> NLL loss *
multi_tensor_apply.*Adam -> fused Adam *
multi_tensor_apply.*(?:LpNorm|Norm)Functor -> norm of several tensors *
multi_tensor_apply.*?Op\w*Functor.*?std::(\w+?)< -> \1 of several tensors *
multi_tensor_apply -> update of several tensors *
dropout -> dropout *
embedding -> embedding *
indexSelect|index_elementwise|index_kernel|indexFunc|index_put -> index
gather|scatter -> gather or scatter
CatArrayBatchedCopy -> concatenate
(?i:topk) -> top k
(?i:sort) -> sort
(?i:scan) -> scan *
(?i:max_?pool) -> max pool *
(?i:avg_?pool|average_?pool) -> average pool *
upsample -> upsample *
generate_seed|gen_sequenced|curand|distribution_elementwise|philox -> random numbers
reduce_kernel.*?::(\w+?)_functor -> reduce (\1 *)
reduce_kernel.*?::(\w+?)(?:NanFunctor)?Ops< -> reduce (\1 *)
reduce_kernel.*?::(\w+?)_kernel_(?:cuda|impl) -> reduce (\1 *)
reduce_kernel|DeviceReduce -> reduce *
(vectorized_)?elementwise.*?(?:CUDAFunctor\w*?_|binary_internal::)(\w+?)(?:Functor)?< -> \1\2 *
elementwise_kernel.*?copy_kernel_cuda -> copy *
(vectorized_)?elementwise.*?FillFunctor -> \1fill *
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
cutlass::bfloat16_t=bf16 cutlass::half_t=float16 double=float64 float=float32 bool=bool
unsigned_char=uint8 signed_char=int8 short=int16 int=int32
long=int64 i32=int32 i64=int64
"""
LETTERS = {"h": "float16", "t": "bf16", "s": "float32", "d": "float64", "q": "fp8", "i": "int8"}
"""Letters by which cuBLAS names the type of a product's first operand."""
