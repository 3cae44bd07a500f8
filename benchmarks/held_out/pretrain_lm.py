"""Pretraining steps of a wide decoder in bfloat16."""
import json
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 16384
    width: int = 4096
    heads: int = 32
    hidden: int = 11008
    layers: int = 6
    context: int = 2048
    batch: int = 4
    lr: float = 1e-4
    warmup: int = 3
    steps: int = 36
    report: int = 12


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width, bias=False)
        self.out = nn.Linear(cfg.width, cfg.width, bias=False)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class FeedForward(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.gate = nn.Linear(cfg.width, cfg.hidden, bias=False)
        self.up = nn.Linear(cfg.width, cfg.hidden, bias=False)
        self.down = nn.Linear(cfg.hidden, cfg.width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.attention = Attention(cfg)
        self.feed = FeedForward(cfg)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.width)
        self.place = nn.Embedding(cfg.context, cfg.width)
        self.blocks = nn.Sequential(*[Block(cfg) for _ in range(cfg.layers)])
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.embed(ids) + self.place(positions))
        return self.head(self.norm(x))


def build(cfg):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Decoder(cfg)
        for weight in model.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), fused=True)
    return model, optimizer


def main():
    variant = sys.argv[1]
    if variant not in ("slow", "mended"):
        sys.exit("usage: pretrain_lm.py slow|mended")
    cfg = Config()
    model, optimizer = build(cfg)
    gen = torch.Generator(device="cuda").manual_seed(1)
    text = torch.randint(0, cfg.vocab, (16, cfg.batch, cfg.context + 1), device="cuda", generator=gen)
    total = torch.zeros((), device="cuda")

    def step(number):
        ids = text[number % len(text)]
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total.add_(loss.detach())

    for number in range(cfg.warmup):
        step(number)
    total.zero_()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in range(1, cfg.steps + 1):
        step(cfg.warmup + number)
        if number % cfg.report == 0:
            print(f"step {number}: loss {total.item() / number:.4f}")
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin

    rate = cfg.steps * cfg.batch * cfg.context / seconds
    print(f"{rate:.0f} tokens a second")
    print("RESULT " + json.dumps({
        "name": "pretrain_lm", "variant": variant, "units": cfg.steps, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
