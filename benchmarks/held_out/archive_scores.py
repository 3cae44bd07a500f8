"""Scores an archive of sensor windows that is too large for the card, lot by lot from pinned memory."""
import json
import sys
import time

import torch
import torch.nn as nn

ROWS = 16384
SAMPLES = 5120
WIDTH = 4096
DEPTH = 7
SHARDS = 4
WARMUP = 6
LOTS = 340


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(SAMPLES, WIDTH), nn.ReLU()]
        for _ in range(DEPTH - 1):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


class Archive:
    """Pinned host memory that holds the lots in turn."""

    def __init__(self, device):
        self.shards = []
        for number in range(SHARDS):
            gen = torch.Generator(device=device).manual_seed(number)
            lot = torch.randn(ROWS, SAMPLES, device=device, generator=gen)
            host = torch.empty(ROWS, SAMPLES, pin_memory=True)
            host.copy_(lot)
            self.shards.append(host)

    def lots(self, count):
        for number in range(count):
            yield self.shards[number % SHARDS]


class Feeder:
    """Two buffers on the device, filled in turn on a stream of their own."""

    def __init__(self, lots, device, early):
        self.lots = iter(lots)
        self.early = early
        self.stream = torch.cuda.Stream()
        self.buffers = [torch.empty(ROWS, SAMPLES, device=device) for _ in range(2)]
        self.turn = 0
        self.ready = None

    def load(self):
        host = next(self.lots, None)
        if host is None:
            self.ready = None
            return
        buffer = self.buffers[self.turn]
        self.turn = 1 - self.turn
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            buffer.copy_(host, non_blocking=True)
        self.ready = buffer

    def __iter__(self):
        self.load()
        while self.ready is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            lot = self.ready
            if self.early:
                self.load()
                yield lot
            else:
                yield lot
                self.load()


def score(model, archive, count, device, early):
    highest = torch.full((), -1e9, device=device)
    total = torch.zeros((), device=device)
    with torch.inference_mode():
        for number, lot in enumerate(Feeder(archive.lots(count), device, early), 1):
            values = model(lot.to(torch.bfloat16)).float()
            highest = torch.maximum(highest, values.max())
            total += values.sum()
            if number % 100 == 0:
                print(f"queued {number} of {count} lots")
    return highest, total


def main():
    variant = sys.argv[1]
    device = torch.device("cuda")
    torch.manual_seed(0)
    with device:
        model = Detector()
    model = model.to(torch.bfloat16).eval()
    archive = Archive(device)
    early = variant != "slow"

    score(model, archive, WARMUP, device, early)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    highest, total = score(model, archive, LOTS, device, early)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin

    print(f"highest score {highest.item():.4f}, mean {total.item() / (LOTS * ROWS):.6f}")
    print("RESULT " + json.dumps({
        "name": "archive_scores", "variant": variant, "units": LOTS, "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
