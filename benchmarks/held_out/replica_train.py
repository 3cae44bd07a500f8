"""Deep, narrow language model trained on two GPUs that hold the same weights.

    torchrun --nproc_per_node=2 replica_train.py slow|mended
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512
LAYERS = 32
VOCAB = 16000
CONTEXT = 512
BATCH = 8
WARMUP = 4
STEPS = 60


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.o = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x):
        b, t, w = x.shape
        return x.view(b, t, self.heads, w // self.heads).transpose(1, 2)

    def forward(self, x):
        h = self.norm1(x)
        y = F.scaled_dot_product_attention(
            self.split(self.q(h)), self.split(self.k(h)), self.split(self.v(h)), is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH, WIDTH // 64) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def average_gradients(model, world):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= world


class Trainer:
    def __init__(self, variant, device, rank, world):
        torch.manual_seed(0)
        self.model = LanguageModel().to(device)
        self.by_hand = variant == "slow"
        if not self.by_hand:
            self.model = DistributedDataParallel(self.model, device_ids=[device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-4, fused=True)
        self.world = world
        gen = torch.Generator(device=device).manual_seed(100 + rank)
        self.text = torch.randint(
            0, VOCAB, (WARMUP + STEPS, BATCH, CONTEXT + 1), device=device, generator=gen)
        self.loss = torch.zeros((), device=device)

    def step(self, number):
        ids = self.text[number]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = self.model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.by_hand:
            average_gradients(self.model, self.world)
        self.optimizer.step()
        self.loss += loss.detach()


def main():
    variant = sys.argv[1]
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    trainer = Trainer(variant, device, rank, dist.get_world_size())

    for number in range(WARMUP):
        trainer.step(number)
    trainer.loss.zero_()
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for number in range(WARMUP, WARMUP + STEPS):
        trainer.step(number)
        done = number - WARMUP + 1
        if done % 20 == 0 and rank == 0:
            print(f"step {done}: loss {trainer.loss.item() / done:.4f}", flush=True)
    torch.cuda.synchronize()
    dist.barrier()
    seconds = time.perf_counter() - begin

    dist.destroy_process_group()
    if rank == 0:
        print("RESULT " + json.dumps({
            "name": "replica_train", "variant": variant, "units": STEPS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
