"""Triton's fused softmax and autotuned matrix product, each checked and timed beside PyTorch's."""
# After triton's python/tutorials/02-fused-softmax.py and 03-matrix-multiplication.py, MIT: written
# anew, their methods kept. Other than there: fewer shapes and configurations, no plots.

import torch
import triton
import triton.language as tl
from _common import timed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLUMNS, SQUARES = 4096, (256, 1024, 4096, 16384), (1024, 4096)


@triton.jit
def softmax_kernel(out, x, out_stride, x_stride, columns, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    values = tl.load(x + row * x_stride + offsets, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * out_stride + offsets, powers / tl.sum(powers, axis=0), mask=inside)


def softmax(x):
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    warps = 16 if block >= 4096 else 8 if block >= 2048 else 4
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](
        out, x, out.stride(0), x.stride(0), columns, BLOCK=block, num_warps=warps
    )
    return out


def configuration(m, n, k, *, stages, warps):
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}
    return triton.Config(blocks, num_stages=stages, num_warps=warps)


@triton.autotune(
    configs=[
        configuration(128, 256, 64, stages=3, warps=8),
        configuration(128, 128, 32, stages=4, warps=4),
        configuration(64, 64, 32, stages=4, warps=4),
    ],
    key=["m_size", "n_size", "k_size"],
)
@triton.jit
def matmul_kernel(
    a, b, c, m_size, n_size, k_size, a_m, a_k, b_k, b_n, c_m, c_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,  # noqa: N803
):  # fmt: skip
    # Programs that run together share rows and columns of blocks, which the L2 cache then holds.
    program = tl.program_id(0)
    m_blocks, n_blocks = tl.cdiv(m_size, BLOCK_M), tl.cdiv(n_size, BLOCK_N)
    in_group = GROUP_M * n_blocks
    first_m = program // in_group * GROUP_M
    group_m = min(m_blocks - first_m, GROUP_M)
    block_m = first_m + (program % in_group) % group_m
    block_n = (program % in_group) // group_m

    rows = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m_size
    columns = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n_size
    inner = tl.arange(0, BLOCK_K)
    a_at = a + rows[:, None] * a_m + inner[None, :] * a_k
    b_at = b + inner[:, None] * b_k + columns[None, :] * b_n
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(k_size, BLOCK_K)):
        left = k_size - k * BLOCK_K
        a_block = tl.load(a_at, mask=inner[None, :] < left, other=0.0)
        b_block = tl.load(b_at, mask=inner[:, None] < left, other=0.0)
        total = tl.dot(a_block, b_block, total)
        a_at += BLOCK_K * a_k
        b_at += BLOCK_K * b_k

    out_m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    out_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (out_m[:, None] < m_size) & (out_n[None, :] < n_size)
    tl.store(c + out_m[:, None] * c_m + out_n[None, :] * c_n, total.to(tl.float16), mask=inside)


def matmul(a, b):
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=torch.float16)

    def grid(meta):
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
    return c


def main():
    torch.manual_seed(0)
    with timed():
        x = torch.randn(1823, 781, device=DEVICE)
        torch.testing.assert_close(softmax(x), torch.softmax(x, axis=1))
        a, b = (torch.rand((512, 512), device=DEVICE).half() - 0.5 for _ in range(2))
        torch.testing.assert_close(matmul(a, b), torch.matmul(a, b), atol=1e-2, rtol=0)
        for columns in COLUMNS:
            x = torch.randn(ROWS, columns, device=DEVICE)
            times_ms = [
                triton.testing.do_bench(lambda x=x: softmax(x)),
                triton.testing.do_bench(lambda x=x: torch.softmax(x, axis=-1)),
            ]
            speeds = [2 * x.numel() * x.element_size() * 1e-6 / ms for ms in times_ms]
            print(f"softmax {columns:6d} columns: {speeds[0]:7.1f} and {speeds[1]:7.1f} GB/s")
        for size in SQUARES:
            a, b = (torch.randn((size, size), device=DEVICE).half() for _ in range(2))
            times_ms = [
                triton.testing.do_bench(lambda a=a, b=b: matmul(a, b)),
                triton.testing.do_bench(lambda a=a, b=b: torch.matmul(a, b)),
            ]
            speeds = [2 * size**3 * 1e-9 / ms for ms in times_ms]
            print(f"matmul {size:5d}: {speeds[0]:6.1f} and {speeds[1]:6.1f} TFLOPS")


if __name__ == "__main__":
    main()
