"""Adds a correction to shards of features and normalises each row, in one Triton kernel."""
import json
import sys
import time

import torch
import triton
import triton.language as tl

SHARDS = 4
ROWS = 131072
WIDTH = 4096
WARMUP = 20
PASSES = 1500
REPORT = 500


@triton.jit
def add_norm_kernel(x_ptr, fix_ptr, gain_ptr, out_ptr, rms_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < width
    x = tl.load(x_ptr + row * width + cols, mask=keep, other=0.0).to(tl.float32)
    x += tl.load(fix_ptr + row * width + cols, mask=keep, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    gain = tl.load(gain_ptr + cols, mask=keep, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + cols, (x * inverse * gain).to(out_ptr.dtype.element_ty), mask=keep)
    tl.store(rms_ptr + row, 1.0 / inverse)


def add_norm(x, fix, gain, out, rms, eps=1e-6):
    rows, width = x.shape
    add_norm_kernel[(rows,)](
        x, fix, gain, out, rms, width, eps, BLOCK=triton.next_power_of_2(width), num_warps=8)
    return out


class Shard:
    def __init__(self, number, device):
        gen = torch.Generator(device=device).manual_seed(number)
        shape = (ROWS, WIDTH)
        self.features = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=gen)
        self.fix = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=gen)
        self.out = torch.empty_like(self.features)
        self.rms = torch.empty(ROWS, dtype=torch.float32, device=device)


def reference(x, fix, gain, eps=1e-6):
    y = x.float() + fix.float()
    return y * torch.rsqrt(y.square().mean(dim=1, keepdim=True) + eps) * gain.float()


def check(shard, gain):
    part = slice(0, 256)
    want = reference(shard.features[part], shard.fix[part], gain)
    worst = (shard.out[part].float() - want).abs().max().item()
    print(f"largest difference from the reference: {worst:.4f}")


def run(shards, gain, passes):
    for number in range(1, passes + 1):
        for shard in shards:
            add_norm(shard.features, shard.fix, gain, shard.out, shard.rms)
        if number % REPORT == 0:
            print(f"queued pass {number}")


def main():
    variant = sys.argv[1]
    if variant not in ("slow", "mended"):
        sys.exit("usage: feature_norm.py slow|mended")
    device = torch.device("cuda")
    gain = torch.rand(WIDTH, device=device).to(torch.bfloat16)
    shards = [Shard(number, device) for number in range(SHARDS)]

    run(shards, gain, WARMUP)
    check(shards[0], gain)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run(shards, gain, PASSES)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin

    moved = PASSES * SHARDS * (3 * ROWS * WIDTH * 2 + ROWS * 4)
    print(f"{moved / seconds / 1e12:.2f} TB/s")
    print("RESULT " + json.dumps({
        "name": "feature_norm", "variant": variant, "units": PASSES, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
