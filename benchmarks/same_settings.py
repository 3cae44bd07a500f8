"""How far two settings of one run that are the same lie apart, and whether that is told.

    python benchmarks/same_settings.py [--device cuda:0] [--runs 12] [--out FILE]

What :mod:`gpuscope.comparing.noise` widens the intervals of comparisons by comes from this. The
table comes last; the exit status is 1 if a change was told.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
from pathlib import Path

from facts import BESIDE, row, write

import gpuscope as gs
from gpuscope.widgets.presets import TEMPLATE

COLUMNS = ("latency_p50_us", "latency_p90_us", "latency_p99_us", "calls_per_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="sim:h200")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/same_settings.json"))
    asked = parser.parse_args()
    gpu = gs.open_device(asked.device, quiet=True)
    apart: dict[str, list[float]] = {column: [] for column in COLUMNS}
    told = 0
    for seed in range(asked.runs):
        plan = copy.deepcopy(TEMPLATE) | {"seed": seed, "settings": {"a": {}, "b": {}}}
        plan["workloads"]["small"]["repeats"] = 1000
        run = gs.run(plan, gpu)
        result = gs.compare(run["a"], run["b"])
        told += result.verdict in ("slower", "faster")
        for difference in result.differences:
            if difference.column in apart:
                ratio = difference.after / difference.before
                apart[difference.column].append(math.expm1(abs(math.log(ratio))))
    rows = [row("told as a change", "0", told, "runs", met=not told)]
    for column, shares in apart.items():
        if shares:
            value, every = 100 * max(shares), sorted(100 * share for share in shares)
            rows.append(row(f"{column}: farthest apart", BESIDE, value, "%", met=True, every=every))
    command = f"python benchmarks/same_settings.py --device {asked.device} --runs {asked.runs}"
    machine = gpu.info.name if asked.device.startswith("cuda") else asked.device
    write(asked.out, command, f"{os.cpu_count()} cores, {machine}", rows)
    for each in rows:
        print(f"{each['what']:38} {each['value']:8.2f} {each['unit']:5} {each['goal']}")
    sys.exit(bool(told))


if __name__ == "__main__":
    main()
