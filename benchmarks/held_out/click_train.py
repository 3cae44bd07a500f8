"""Click-through model trained straight from JSON log lines, parsed ahead of the training loop."""
import json
import multiprocessing
import random
import sys
import time
import zlib
from collections import deque
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

LINES = 40000
BATCH = 4096
AHEAD = 12
WORKERS = 8
WARMUP = 12
STEPS = 80
BUCKETS = 200_000
COUNTS = ["views", "clicks", "age", "basket", "visits", "price", "rating", "stock"]
FIELDS = ["shop", "brand", "city", "device", "browser", "campaign", "page", "query",
          "colour", "size", "seller", "channel", "segment", "weekday", "referrer", "plan"]
LOG = []


def write_log(count, seed=0):
    rng = random.Random(seed)
    for _ in range(count):
        record = {name: rng.randint(0, 5000) for name in COUNTS}
        record.update({name: f"{name}-{rng.randint(0, 100000)}" for name in FIELDS})
        record["clicked"] = rng.random() < 0.1
        LOG.append(json.dumps(record))


def parse(batch_number):
    """JSON lines -> (log counts, hashed fields, labels)"""
    first = (batch_number * BATCH) % (len(LOG) - BATCH)
    counts = np.empty((BATCH, len(COUNTS)), dtype=np.float32)
    fields = np.empty((BATCH, len(FIELDS)), dtype=np.int64)
    labels = np.empty(BATCH, dtype=np.float32)
    for row, line in enumerate(LOG[first:first + BATCH]):
        record = json.loads(line)
        counts[row] = [float(record[name]) for name in COUNTS]
        fields[row] = [zlib.crc32(record[name].encode()) % BUCKETS for name in FIELDS]
        labels[row] = record["clicked"]
    return np.log1p(counts), fields, labels


class ClickModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.table = nn.Embedding(BUCKETS, width)
        self.dense = nn.Sequential(nn.Linear(len(COUNTS), 256), nn.ReLU(), nn.Linear(256, width))
        self.top = nn.Sequential(
            nn.Linear((len(FIELDS) + 1) * width, 1024), nn.ReLU(),
            nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, counts, fields):
        parts = [self.dense(counts).unsqueeze(1), self.table(fields)]
        return self.top(torch.cat(parts, dim=1).flatten(1)).squeeze(1)


def parsed_batches(pool, total):
    waiting = deque(pool.submit(parse, n) for n in range(min(AHEAD, total)))
    for number in range(total):
        done = waiting.popleft().result()
        if number + AHEAD < total:
            waiting.append(pool.submit(parse, number + AHEAD))
        yield tuple(torch.from_numpy(part) for part in done)


def make_pool(variant):
    if variant == "slow":
        return ThreadPoolExecutor(WORKERS)
    return ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork"))


def main():
    variant = sys.argv[1]
    write_log(LINES)
    with make_pool(variant) as pool:
        batches = parsed_batches(pool, WARMUP + STEPS)
        first = next(batches)

        torch.manual_seed(0)
        model = ClickModel().to("cuda")
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, foreach=True)
        total = torch.zeros((), device="cuda")

        def train(batch):
            counts, fields, labels = (part.to("cuda") for part in batch)
            loss = F.binary_cross_entropy_with_logits(model(counts, fields), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total.add_(loss.detach())

        train(first)
        for _ in range(WARMUP - 1):
            train(next(batches))
        total.zero_()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for step, batch in enumerate(batches, 1):
            train(batch)
            if step % 20 == 0:
                print(f"step {step}: log loss {total.item() / step:.4f}")
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin

    print("RESULT " + json.dumps({
        "name": "click_train", "variant": variant, "units": STEPS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
