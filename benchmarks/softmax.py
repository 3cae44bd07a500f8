"""How long the softmax kernel takes on partitions of a GPU, and how far the simulated one is off.

    python benchmarks/softmax.py [--device cuda:0] [--out benchmarks/results/softmax.json]
    python benchmarks/softmax.py --check benchmarks/results/softmax.json

The first command measures a grid (thread blocks an SM × columns × SMs), from which the simulated
GPU interpolates, and cases off the grid, which nothing is fitted to. ``--check`` simulates the
latter and says how far off they are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from facts import write

import gpuscope as gs
from gpuscope.workloads import Softmax

BLOCKS_PER_SM = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SM_COUNTS = (8, 16, 32, 64, 96, 132)
HELD_OUT = 80
HELD_OUT_SM_COUNTS = (8, 24, 40, 48, 72, 88, 104, 120, 132)
MOST_ELEMENTS = 64 * 132 * 32768
CALLS = 9
SEED = 7


def grid(sm_count: int) -> Iterator[tuple[int, int]]:
    for blocks in BLOCKS_PER_SM:
        for columns in COLUMNS:
            yield blocks * sm_count, columns


def held_out() -> dict[int, list[tuple[int, int]]]:
    """Return SM count → rows and columns of cases off the grid, and those of a known report."""
    rng = np.random.default_rng(SEED)
    cases: dict[int, list[tuple[int, int]]] = {40: [(2048, 4096), (512, 4096)]}
    for number in range(HELD_OUT):
        sm_count = HELD_OUT_SM_COUNTS[number % len(HELD_OUT_SM_COUNTS)]
        rows = int(np.exp(rng.uniform(np.log(16), np.log(32768))))
        columns = int(np.exp(rng.uniform(np.log(32), np.log(MOST_ELEMENTS / rows / 4))))
        cases.setdefault(sm_count, []).append((rows, min(columns, 32768)))
    return cases


def measure(gpu: Any, sm_count: int, cases: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the median duration of the kernel for each case, in µs."""
    durations: dict[tuple[int, int], list[int]] = {}
    is_whole = sm_count == gpu.sm_count
    carved = contextlib.nullcontext([gpu]) if is_whole else gpu.carve([sm_count])
    with carved as owners, owners[0].create_stream() as stream:
        for rows, columns in cases:
            with Softmax(gpu, rows=rows, columns=columns, name="softmax") as softmax:
                for _ in range(2):
                    softmax.execute(stream=stream)
                stream.synchronize()
                with gs.profile(gpu) as recording:
                    for _ in range(CALLS):
                        softmax.execute(stream=stream)
                    stream.synchronize()
            kernels = recording.trace.where(kind="kernel")
            durations[rows, columns] = (
                kernels.array("end_ns") - kernels.array("start_ns")
            ).tolist()
    return [
        {
            "sm_count": sm_count,
            "rows": rows,
            "columns": columns,
            "us": statistics.median(took) / 1e3,
            "spread_us": (max(took) - min(took)) / 1e3,
        }
        for (rows, columns), took in durations.items()
    ]


def check(rows: list[dict[str, Any]], name: str) -> None:
    gpu = gs.open_device(name, quiet=True, jitter=False)
    off = []
    for sm_count in sorted({row["sm_count"] for row in rows}):
        cases = [row for row in rows if row["sm_count"] == sm_count]
        simulated = measure(gpu, sm_count, [(row["rows"], row["columns"]) for row in cases])
        for row, again in zip(cases, simulated, strict=True):
            off.append(abs(again["us"] / row["us"] - 1))
            print(
                f"{row['rows']:6} x {row['columns']:5} on {sm_count:3} SMs: measured "
                f"{row['us']:9.1f} us, simulated {again['us']:9.1f}"
            )
    median, p90 = np.quantile(off, [0.5, 0.9])
    print(
        f"{name}: {len(off)} cases, off by {median:.1%} (median), {p90:.1%} (p90), {max(off):.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--simulated", default="sim:h100", help="what --check compares")
    asked = parser.parse_args()
    if asked.check:
        check(json.loads(asked.check.read_text())["held_out"], asked.simulated)
        return
    gpu = gs.open_device(asked.device, quiet=True)
    table = [row for count in SM_COUNTS for row in measure(gpu, count, list(grid(count)))]
    other = [row for count, cases in held_out().items() for row in measure(gpu, count, cases)]
    if asked.out:
        command = "python benchmarks/softmax.py"
        write(asked.out, command, gpu.info.name, table, driver=gpu.info.driver, held_out=other)
    for row in other[:12]:
        print(row)
    print(f"{len(table)} points of the grid, {len(other)} cases off it, on {gpu.info.name}")


if __name__ == "__main__":
    main()
