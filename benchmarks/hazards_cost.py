"""What looking for hazards adds to the host time of a call, over recording alone.

    python benchmarks/hazards_cost.py [--device cuda:0] [--out benchmarks/results/NAME.json]

Bare, recorded, and recorded with hazards take turns in one run: p50 by the clock, and time of this
thread on the CPU, which other programs on the machine change least. What notes cost who reads them
is a row of its own. PyTorch's operators are a row on a GPU, where PyTorch is installed; see
hazards_torch.py, too.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from facts import BESIDE, row, spread, write

import gpuscope as gs
from gpuscope.device import Device

TURNS = {"sim": 60, "cuda": 12}
"""A recording on a GPU starts and ends CUPTI's."""

CALLS = 150
GOAL_US = 1.0
Call = Callable[[], object]


def calls_on(gpu: Device) -> dict[str, Call]:
    """Return what is measured: name → one call."""
    stream = gpu.create_stream()
    gemm = gs.Gemm(gpu, m=64, n=64, k=64)
    a, b, out = gemm.operands()
    source, destination = gpu.random((64, 64), "float16"), gpu.empty((64, 64), "float16")

    def execute() -> None:
        gemm.execute(a, b, out, stream=stream)

    def execute_and_wait() -> None:
        gemm.execute(a, b, out, stream=stream)
        gemm.wait()

    def product() -> None:
        with gs.CallerStreamGuard(stream):
            gs.mm_out(out, a, b)

    calls: dict[str, Call] = {
        "Gemm.execute": execute,
        "Gemm.execute + wait": execute_and_wait,
        "guard + mm_out": product,
        "stream.copy": lambda: stream.copy(destination, source),
    }
    with contextlib.suppress(ImportError):
        import torch

        if gpu.info.kind == "cuda":
            mine, other, into = (torch.randn(64, 64, device="cuda") for _ in range(3))
            calls["torch.mm(out=)"] = lambda: torch.mm(mine, other, out=into)
    return calls


def took_us(call: Call, wait: Call) -> tuple[float, float]:
    """Return p50 of a call by the clock, and its mean time on the CPU, of ``CALLS``."""
    for _ in range(10):
        call()
    wait()
    gc.collect()
    times = []
    cpu = time.thread_time_ns()
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    cpu = time.thread_time_ns() - cpu
    wait()
    return statistics.median(times) / 1e3, cpu / CALLS / 1e3


def measured(name: str, call: Call, gpu: Device) -> list[dict]:
    """Return the rows of one call."""
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "bare": contextlib.nullcontext,
        "recorded": lambda: gs.profile(gpu),
        "hazards": lambda: gs.profile(gpu, hazards=True),
    }
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    reading = []
    for _ in range(TURNS[gpu.info.kind]):
        for way, recorded in ways.items():
            with recorded() as recording:
                times[way].append(took_us(call, gpu.synchronize))
                if way == "hazards":
                    start = time.thread_time_ns()
                    recording.observers[0].read(over=True)
                    reading.append((time.thread_time_ns() - start) / CALLS / 1e3)
    rows = []
    for place, clock in enumerate(("p50 by the clock", "mean on the CPU")):
        us = {way: [each[place] for each in values] for way, values in times.items()}
        added = [one - other for one, other in zip(us["hazards"], us["recorded"], strict=True)]
        low, middle, high = statistics.quantiles(added, n=4)
        goal = BESIDE if name.startswith("torch") else f"≤ {GOAL_US} µs"
        rows.append(row(
            f"{name}: what hazards=True adds, {clock}", goal, round(middle, 2), "µs",
            met=goal == BESIDE or middle <= GOAL_US, quartiles=[round(low, 2), round(high, 2)],
            us={way: round(statistics.median(values), 2) for way, values in us.items()},
        ))  # fmt: skip
    return [
        *rows,
        row(f"{name}: reading its notes, later", BESIDE, round(statistics.median(reading), 2),
            "µs", met=True, spread=spread(reading)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="sim:h200")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    gpu = gs.open_device(args.device, quiet=True)
    rows = []
    for name, call in calls_on(gpu).items():
        rows += measured(name, call, gpu)
    for found in rows:
        us = found.get("us", {})
        beside = ", ".join(f"{way} {value:.2f}" for way, value in us.items())
        print(f"{found['what']:62} {found['value']:7.2f} µs  {found['goal']:10} {beside}")
    if args.out:
        command = f"python benchmarks/hazards_cost.py --device {args.device}"
        machine = args.device if gpu.is_simulated else gpu.info.name
        write(args.out, command, f"{os.cpu_count()} cores, {machine}", rows)


if __name__ == "__main__":
    main()
