"""A thread that computes holds the interpreter lock that another needs; mended: a process."""

import multiprocessing
import threading

import torch
from _common import MENDED, timed


def scores(is_over):
    total = 0
    while not is_over.is_set():
        for number in range(20_000):
            total += number * number % 7
    return total


def main():
    layers = [torch.nn.Linear(512, 512).cuda().half() for _ in range(8)]
    state = torch.randn(16, 512, device="cuda", dtype=torch.half)

    @torch.no_grad()
    def step(_number):
        hidden = state
        for layer in layers:
            hidden = torch.relu(layer(hidden))

    if MENDED:
        spawning = multiprocessing.get_context("spawn")
        is_over = spawning.Event()
        other = spawning.Process(target=scores, args=(is_over,), daemon=True)
    else:
        is_over = threading.Event()
        other = threading.Thread(target=scores, args=(is_over,), name="scores")
    other.start()
    timed(step, 30)
    is_over.set()
    other.join()


if __name__ == "__main__":
    main()
