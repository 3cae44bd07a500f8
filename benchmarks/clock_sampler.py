"""What reading clocks and power costs: a loop of launches with and without the sampler, ABBA.

    python benchmarks/clock_sampler.py --out benchmarks/results/clock_sampler.json

Each turn launches an empty kernel again and again for a while and counts; the sampler reads as in
a recording. Beside that, what one reading takes. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from facts import BESIDE, clocks, row, spread, write

import gpuscope as gs
from gpuscope.device.cuda.health import clocks_of
from gpuscope.record.sampler import EVERY_S

GOAL = 0.001
"""Share of the launches that the sampler may cost."""
QUEUED = 500
"""Launches between two waits, so that the queue never fills."""
SOURCE = 'extern "C" __global__ void nothing() {}'


def launches_per_s(stream: Any, kernel: Any, seconds: float) -> float:
    """Launch for so long; return how often a second."""
    count, start = 0, time.perf_counter_ns()
    until = start + round(seconds * 1e9)
    while time.perf_counter_ns() < until:
        for _ in range(QUEUED):
            stream.launch(kernel, grid=1, block=32)
        stream.synchronize()
        count += QUEUED
    return count * 1e9 / (time.perf_counter_ns() - start)


def in_turns(gpu: Any, turns: int, seconds: float) -> tuple[list[float], dict[str, Any]]:
    """Return which share of the launches each pair of turns lost by the sampler, and the clocks."""
    kernel, costs, found = gpu.compile(SOURCE, "nothing"), [], {}
    with gpu.create_stream() as stream:
        launches_per_s(stream, kernel, seconds)  # warm-up
        for turn in range(turns):
            rate: dict[bool, float] = {}
            for reads in (False, True) if turn % 2 == 0 else (True, False):
                with clocks(gpu) if reads else contextlib.nullcontext() as read:
                    rate[reads] = launches_per_s(stream, kernel, seconds)
                found = read or found
            costs.append(1 - rate[True] / rate[False])
    return costs, found


def reading_us(gpu: Any, times: int = 500) -> list[float]:
    """Return what readings take, one by one, µs."""
    took = []
    for _ in range(times):
        start = time.perf_counter_ns()
        clocks_of(gpu.info.uuid)
        took.append((time.perf_counter_ns() - start) / 1e3)
    return took[times // 10 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu = gs.open_device(options.device, quiet=True)
    if not clocks_of(gpu.info.uuid):
        sys.exit(f"NVML tells nothing of {gpu.name}: see that its driver's NVML can be loaded")
    took_us = reading_us(gpu)
    costs, stood = in_turns(gpu, options.turns, options.seconds)
    cost = statistics.median(costs)
    error = statistics.stdev(costs) / len(costs) ** 0.5 if len(costs) > 1 else 0.0
    duty = statistics.median(took_us) / (EVERY_S * 1e6)
    rows = [
        row("share of the launches that the sampler costs", BESIDE, 100 * cost, "%",
            met=cost + 2 * error <= GOAL, standard_error=100 * error,
            turns=spread([100 * each for each in costs])),
        row("a reading, of its period", f"≤ {GOAL:.1%}", 100 * duty, "%", met=duty <= GOAL),
        row("a reading", BESIDE, statistics.median(took_us), "µs", met=True, times=spread(took_us)),
    ]  # fmt: skip
    for each in rows:
        print(f"{each['what']:<48} {each['value']:8.3g} {each['unit']:<3} {each['goal']}")
    print(f"± {100 * error:.2g} % (standard error of {len(costs)} pairs); {stood}")
    if options.out is not None:
        write(options.out, "python benchmarks/clock_sampler.py", gpu.name, rows, clocks=stood)


if __name__ == "__main__":
    main()
