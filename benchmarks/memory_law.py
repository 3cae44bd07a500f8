"""Measure on a GPU what the constants of its memory, cache and row-wise kernels are fitted to.

    python benchmarks/memory_law.py [--device cuda:0] [--out benchmarks/data/h200_memory.json]

What ``calibrate`` measures for them, kept: copies and softmax alone, and kernels beside others.
``scripts/fit_profile.py`` fits the shipped H200 to it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import time
from pathlib import Path

import gpuscope as gs
from gpuscope.simulator.calibration import contention


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    started = time.monotonic()
    gpu = gs.open_device(asked.device, quiet=True)
    source = "auto" if gpu.is_simulated else "cupti"
    tables = {
        "copy": contention.copy_kernels(gpu, source),
        "softmax": contention.row_kernels(gpu, source),
        "vector": contention.vector_kernels(gpu, source),
        "pairs": [pair._asdict() for pair in contention.pairs(gpu)],
    }
    if asked.out:
        day = dt.datetime.now(dt.UTC).date()
        about = f"{gpu.info.name}, {gpu.info.driver}, {day}; python benchmarks/memory_law.py"
        parts = [f'"about": {json.dumps(about)}']
        for name, rows in tables.items():
            lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
            parts.append(f'"{name}": [\n{lines}\n]')
        asked.out.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")
    counted = ", ".join(f"{len(rows)} of {name}" for name, rows in tables.items())
    print(f"{counted} in {time.monotonic() - started:.0f} s on {gpu.info.name}")


if __name__ == "__main__":
    main()
