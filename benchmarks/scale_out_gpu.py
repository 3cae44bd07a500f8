"""Two processes sweep on one GPU: no two points overlap there, and the table is the serial one.

    python benchmarks/scale_out_gpu.py [--device cuda] [--points 12] [--out FILE]

Each point tells when its run began and ended, and when its first kernel began and its last one
ended, on the clock of the host. It fails if two overlap, if a point is missing, or if the median
of the kernels' durations differs from the serial sweep's by more than 5 % at a quarter of the
points: noise of one GPU is less.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import statistics
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from facts import row, write

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.runs.pool import Processes
from gpuscope.runs.scale_out import Team

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
        "process": os.getpid(), "median_ns": float(statistics.median((ends - starts).tolist())),
    }  # fmt: skip


def overlaps(windows: list[tuple[int, int]]) -> int:
    """Return how many begin before the one before them has ended."""
    return sum(two[0] < one[1] for one, two in itertools.pairwise(sorted(windows)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    sizes = [8 * (number % 15 + 1) for number in range(asked.points)]
    start = time.perf_counter()
    serial = gs.runs.sweep(PLAN, {"partitions.a": sizes}, asked.device)
    serial_s = time.perf_counter() - start
    start = time.perf_counter()
    found = gs.runs.sweep(PLAN, {"partitions.a": sizes}, asked.device, executor="processes:2")
    workers_s = time.perf_counter() - start
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
    runs, kernels = (overlaps([one[name] for one in told]) for name in ("run", "kernels"))
    processes = len({one["process"] for one in told})
    rows = [
        row("runs that overlap on the GPU", "0", runs, "", met=runs == 0),
        row("kernels of two points that overlap", "0", kernels, "", met=kernels == 0),
        row("processes that ran points", "2", processes, "", met=processes == 2),
        row("points", str(asked.points), len(ratios), "", met=len(ratios) == asked.points),
        row("points whose kernels' median is off by more than 5 %", "under a quarter", off, "",
            met=off * 4 <= len(ratios), ratios=[round(one, 4) for one in ratios]),
        row("GPUs", "1", len(set(found.table["gpu"].to_pylist())), "", met=True,
            serial_s=round(serial_s, 2), workers_s=round(workers_s, 2)),
    ]  # fmt: skip
    for one in rows:
        print(f"{one['what']:55} {one['value']:>6}  {'met' if one['met'] else 'NOT MET'}")
    if asked.out is not None:
        write(asked.out, "python benchmarks/scale_out_gpu.py", serial.provenance, rows)
    if not all(one["met"] for one in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
