"""Pinned copies wait behind the products of the batch before; mended: a stream of their own."""

import torch
from _common import MENDED, timed

weights = torch.randn(4096, 4096, device="cuda", dtype=torch.half)
batches = [torch.randn(8192, 4096, dtype=torch.half).pin_memory() for _ in range(4)]
copying = torch.cuda.Stream()
ready = []


def fetch(number):
    if not MENDED:
        return batches[number % 4].to("cuda", non_blocking=True)
    with torch.cuda.stream(copying):
        return batches[number % 4].to("cuda", non_blocking=True)


def step(number):
    if MENDED:
        batch = ready.pop() if ready else fetch(number)
        torch.cuda.current_stream().wait_stream(copying)
        batch.record_stream(torch.cuda.current_stream())
        ready.append(fetch(number + 1))
    else:
        batch = fetch(number)
    for _ in range(4):
        batch = torch.relu(batch @ weights)


timed(step, 200)
