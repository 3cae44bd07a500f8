"""Two processes sweep: no two points overlap on a GPU, and the table is the serial one.

    python benchmarks/scale_out_gpu.py [--device cuda] [--points 24] [--rounds 3] [--out FILE]

Each point tells when its run began and ended, and when its first kernel began and its last one
ended, on the clock of the host. It fails if two overlap on a GPU, if a point is missing, or if the
median of the kernels' durations differs from the serial sweep's by more than 5 % at a quarter of
the points: noise of one GPU is less. Where there are two GPUs, two workers shall sweep 1.9 times as
fast as one: both have started, rounds of one and of two take turns, and the best of each counts.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from facts import BESIDE, row, write

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.experiments.pool import Processes
from gpuscope.search.scale_out import Team

GEMM = {"kind": "gemm", "m": 2048, "n": 2048, "k": 2048, "stream": "s", "repeats": 200}
PLAN: dict[str, Any] = {
    "name": "one", "alone_repeats": 0, "partitions": {"a": 8},
    "streams": {"s": {"partition": "a"}}, "workloads": {"w": GEMM},
}  # fmt: skip


def timed(seed: int, device: Device) -> dict[str, Any]:
    """Run a point; say when, in which process, and what its kernels took."""
    began_ns = time.time_ns()
    kernels = gs.run({**PLAN, "seed": seed}, device)["default"].where(kind="kernel")
    ended_ns = time.time_ns()
    starts, ends = kernels.array("start_ns"), kernels.array("end_ns")
    return {
        "run": (began_ns, ended_ns), "kernels": (int(starts.min()), int(ends.max())),
        "process": os.getpid(), "gpu": device.info.uuid,
    }  # fmt: skip


def overlaps(told: list[dict[str, Any]], name: str) -> int:
    """Return how many windows begin before the one before them on the same GPU has ended."""
    found = 0
    for gpu in {one["gpu"] for one in told}:
        windows = sorted(one[name] for one in told if one["gpu"] == gpu)
        found += sum(two[0] < one[1] for one, two in itertools.pairwise(windows))
    return found


def seconds(points: int, device: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return what sweeps take on one worker and on two that have started, round by round."""
    took: tuple[list[float], list[float]] = ([], [])
    with Processes(1) as one, Processes(2) as two:
        for number in range(rounds + 1):
            for executor, own in zip((one, two), took, strict=True):
                start = time.perf_counter()
                gs.search.sweep(PLAN, {"seed": [*range(points)]}, device, executor=executor)
                if number:  # the first starts them
                    own.append(round(time.perf_counter() - start, 3))
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    sizes = [8 * (number % 15 + 1) for number in range(asked.points)]
    serial = gs.search.sweep(PLAN, {"partitions.a": sizes}, asked.device)
    found = gs.search.sweep(PLAN, {"partitions.a": sizes}, asked.device, executor="processes:2")
    ratios = [
        two / one
        for one, two in zip(
            *(one.table["kernel_median_us"].to_pylist() for one in (serial, found)), strict=True
        )
    ]
    off = sum(abs(ratio - 1) > 0.05 for ratio in ratios)
    with Processes(2) as own:
        here = importlib.import_module("scale_out_gpu")  # whose functions processes find
        jobs = {seed: partial(here.timed, seed) for seed in range(asked.points)}
        told = [one for _, one in Team(own, asked.device).results(jobs, threading.Event())]
    runs, kernels = overlaps(told, "run"), overlaps(told, "kernels")
    gpus = len({one["gpu"] for one in told})
    processes = len({one["process"] for one in told})
    rows = [
        row("runs that overlap on the GPU", "0", runs, "", met=runs == 0),
        row("kernels of two points that overlap", "0", kernels, "", met=kernels == 0),
        row("processes that ran points", "2", processes, "", met=processes == 2),
        row("points", str(asked.points), len(ratios), "", met=len(ratios) == asked.points),
        row("points whose kernels' median is off by more than 5 %", "under a quarter", off, "",
            met=off * 4 <= len(ratios), ratios=[round(one, 4) for one in ratios]),
        row("GPUs", BESIDE, gpus, "", met=True),
    ]  # fmt: skip
    if gpus > 1:
        one_s, two_s = seconds(asked.points, asked.device, asked.rounds)
        gain = round(min(one_s) / min(two_s), 3)
        rows.append(
            row("times as fast on two workers as on one", "≥ 1.9", gain, "", met=gain >= 1.9,
                one_s=one_s, two_s=two_s)
        )  # fmt: skip
    for one in rows:
        print(f"{one['what']:55} {one['value']:>6}  {'met' if one['met'] else 'NOT MET'}")
    if asked.out is not None:
        write(asked.out, "python benchmarks/scale_out_gpu.py", serial.provenance, rows, gpus=gpus)
    if not all(one["met"] for one in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
