"""Batches are copied from pageable memory; mended: from pinned memory, without blocking."""

import torch
from _common import MENDED, timed

weights = torch.randn(4096, 4096, device="cuda", dtype=torch.half)
batches = [torch.randn(4096, 4096, dtype=torch.half) for _ in range(4)]
if MENDED:
    batches = [batch.pin_memory() for batch in batches]


def step(number):
    batch = batches[number % 4].to("cuda", non_blocking=MENDED)
    for _ in range(3):
        batch = torch.relu(batch @ weights)


timed(step, 150)
