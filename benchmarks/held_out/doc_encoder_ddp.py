"""Document classifier on two GPUs with DistributedDataParallel.

    torchrun --nproc_per_node=2 doc_encoder_ddp.py slow|mended
"""
import json
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WIDTH = 1024
LAYERS = 12
VOCAB = 16000
CLASSES = 20
BATCH = 64
WARMUP = 3
STEPS = 45
SHORTEST, LONGEST = 32, 1024


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        b, t, w = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH, WIDTH // 64) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids, real):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, real[:, None, None, :])
        x = (self.norm(x) * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True)
        return self.head(x)


def corpus_lengths(count):
    rng = np.random.default_rng(7)
    return np.clip(rng.lognormal(5.0, 1.4, size=count), SHORTEST, LONGEST).astype(np.int64)


def my_batches(lengths, rank, world, by_block):
    """Documents of similar length go together, so that little is padded."""
    order = np.argsort(lengths, kind="stable")
    if by_block:
        mine = np.array_split(order, world)[rank]
    else:
        mine = order[rank::world]
    batches = [mine[i:i + BATCH] for i in range(0, len(mine) - BATCH + 1, BATCH)]
    np.random.default_rng(1).shuffle(batches)
    return batches


def load(docs, lengths, device):
    sizes = torch.from_numpy(lengths[docs])
    width = int(sizes.max() + 7) // 8 * 8
    gen = torch.Generator().manual_seed(int(docs[0]))
    ids = torch.randint(0, VOCAB, (len(docs), width), generator=gen)
    real = torch.arange(width) < sizes[:, None]
    labels = torch.from_numpy(docs % CLASSES)
    return [t.pin_memory().to(device, non_blocking=True) for t in (ids, real, labels)]


def main():
    variant = sys.argv[1]
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    world = dist.get_world_size()

    torch.manual_seed(0)
    model = DDP(Encoder().to(device), device_ids=[local])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    lengths = corpus_lengths((WARMUP + STEPS) * BATCH * world)
    batches = my_batches(lengths, rank, world, by_block=variant == "slow")
    total = torch.zeros((), device=device)

    def train(docs):
        ids, real, labels = load(docs, lengths, device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(ids, real), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())

    for docs in batches[:WARMUP]:
        train(docs)
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for step, docs in enumerate(batches[WARMUP:], 1):
        train(docs)
        if step % 15 == 0 and rank == 0:
            print(f"step {step}: loss {total.item() / (step + WARMUP):.4f}", flush=True)
    torch.cuda.synchronize()
    dist.barrier()
    seconds = time.perf_counter() - begin

    dist.destroy_process_group()
    if rank == 0:
        print("RESULT " + json.dumps({
            "name": "doc_encoder_ddp", "variant": variant, "units": STEPS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
