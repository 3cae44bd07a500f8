"""Interference forecast from few pairs against the matrix measured whole, of six workloads.

A copy, a softmax, two GEMMs, a GEMV and a kernel that spins run without partitions, three and
three on two partitions, and each on its own. Of each, ``measure_interference`` measures all pairs
twice. The first time tells what n and 2n pairs (n = 6 workloads) say, chosen as it would choose
them for many seeds, and the cells of the others are forecast from those. What is judged is how far
these are off the second time, in percentage points of A's time alone, and how many of their 80 %
intervals hold its value, at least as many. Beside it is the error of the mean of the cells of these
pairs, which a forecast has to beat, and by how much the two times differ, which none can.

    python benchmarks/interference_pairs.py [--device NAME] [--seeds N] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from facts import row, spread, write

import gpuscope as gs
from gpuscope.analysis.interference_analysis import FORECAST_CONFIDENCE
from gpuscope.analysis.interference_forecast import forecast_cells
from gpuscope.search.interference import chosen_pairs

HERE = Path(__file__).resolve().parent
HELD = FORECAST_CONFIDENCE
"""Share of intervals that hold the value at least."""
INSIDE = 0.15
"""Kernels count from this share on: some are several times as long as others' busy times."""
WORKLOADS: dict[str, dict[str, Any]] = {
    "copy": {"kind": "copy", "nbytes": 2**28},
    "softmax": {"kind": "softmax", "rows": 8192, "columns": 8192},
    "gemm float16": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096},
    "gemm float32": {"kind": "gemm", "m": 2048, "n": 2048, "k": 2048, "dtype": "float32"},
    "gemv": {"kind": "gemm", "m": 1, "n": 16384, "k": 16384},
    "spin": {"kind": "spin", "duration_us": 200},
}
DIVISIONS: dict[str, tuple[dict[str, int | str] | None, str]] = {
    "no partition": (None, ""),
    "two partitions": ({"a": 64, "b": "rest"}, "ababab"),
    "six partitions": ({**dict.fromkeys("abcde", 24), "f": "rest"}, "abcdef"),
}
"""Name → sizes, and the partition of each workload."""


def errors(device: Any, division: str, seeds: int) -> list[dict]:
    """Return a row for n and for 2n pairs: how far forecasts are off what was measured."""
    sizes, homes = DIVISIONS[division]
    workloads = {
        name: {**spec, **({"partition": homes[at]} if homes else {})}
        for at, (name, spec) in enumerate(WORKLOADS.items())
    }
    first, second = (
        gs.search.measure_interference(
            device, sizes, workloads, repeats=10, rounds=2, inside=INSIDE, seed=seed
        )
        for seed in range(2)
    )
    truth = {(cell.of, cell.given): cell.value for cell in second.cells}
    apart = [
        100 * abs(value - again)
        for cell in first.cells
        if (value := cell.value) is not None and (again := truth[cell.of, cell.given]) is not None
    ]
    rows = []
    for pairs in (len(WORKLOADS), 2 * len(WORKLOADS)):
        off, off_mean, widths, held = [], [], [], 0
        for seed in range(seeds):
            chosen = chosen_pairs([*WORKLOADS], pairs, seed)
            wanted = [
                (cell.of, cell.given)
                for cell in first.cells
                if frozenset((cell.of, cell.given)) not in chosen
            ]
            known = [
                replace(cell, value=None) if (cell.of, cell.given) in wanted else cell
                for cell in first.cells
            ]
            mean = statistics.mean(cell.value for cell in known if cell.value is not None)
            for cell in forecast_cells(known, wanted):
                value = truth[cell.of, cell.given]
                low, high = cell.forecast_low, cell.forecast_high
                if cell.forecast is None or low is None or high is None or value is None:
                    continue
                off.append(100 * abs(cell.forecast - value))
                off_mean.append(100 * abs(mean - value))
                widths.append(100 * (high - low))
                held += low <= value <= high
        error, error_mean = statistics.median(off), statistics.median(off_mean)
        rows.append(
            row(f"{division}: median error of forecast cells, from {pairs} pairs of 15",
                f"below the mean's, and {HELD:.0%} of the 80 % intervals hold", round(error, 2),
                "percentage points",
                met=error < error_mean and held >= HELD * len(off),
                error=spread(off), error_mean=statistics.mean(off),
                error_of_the_mean=spread(off_mean), in_interval=round(held / len(off), 3),
                interval_width=spread(widths), forecast_cells=len(off), apart=spread(apart))
        )  # fmt: skip
    matrices = {
        f"{cell.of} | {cell.given}": [cell.value, truth[cell.of, cell.given]]
        for cell in first.cells
    }
    return [{**rows[0], "matrices": matrices}, *rows[1:]]


def main(arguments: list[str] | None = None) -> int:
    """Measure, writing what was found as it comes; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="sim:h100")
    parser.add_argument("--seeds", type=int, default=50, help="choices of pairs")
    out = HERE / "results" / "interference_pairs_simulated.json"
    parser.add_argument("--out", type=Path, default=out)
    asked = parser.parse_args(arguments)
    device = gs.open_device(asked.device, quiet=True)
    name = device.info.key if device.is_simulated else device.info.name
    rows: list[dict] = []
    for division in DIVISIONS:
        for each in errors(device, division, asked.seeds):
            rows.append(each)
            command = f"python benchmarks/interference_pairs.py --device {asked.device}"
            write(asked.out, command, f"{name}, driver {device.info.driver}", rows)
            print(json.dumps({key: each[key] for key in each if key != "matrices"}), flush=True)
    return int(not all(each["met"] for each in rows))


if __name__ == "__main__":
    sys.exit(main())
