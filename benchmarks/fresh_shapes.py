"""Times of GEMMs that no calibration measured, on a GPU: three families of shapes.

    python benchmarks/fresh_shapes.py --out benchmarks/results/shapes_h100.json

*odd16*: 16-bit products most of whose sides are odd; *thin32*: float32 products with one short
side; *random*: sides of 16 to 8192 of every alignment. Each on all SMs and on 120, 64, 24 and 8 of
them, the library told how many there are and not told. scripts/docs_pages.py compares a profile
with them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.simulator.calibration import design, gemms

SEED = 18_2026
COUNT = 48
STEPS = (64, 64, 8, 1, 64, 16, 2, 64, 8, 1)
"""Sides of random shapes are multiples of these; where it is 1, they are odd."""
SM_COUNTS = (120, 64, 24, 8)

Shape = tuple[int, int, int]


def families() -> dict[str, tuple[list[Shape], tuple[str, ...]]]:
    """Return family → its shapes and dtypes; none of the shapes is one that calibration takes."""
    rng = np.random.default_rng(SEED)
    known = set(design.shapes(1000))

    def side(low: int, high: int, step: int) -> int:
        drawn = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        return max(step, round(drawn / step) * step)

    def drawn(count: int, draw: Callable[[int], Shape]) -> list[Shape]:
        kept: list[Shape] = []
        while len(kept) < count:
            shape = draw(len(kept))
            if shape not in known:
                known.add(shape)
                kept.append(shape)
        return kept

    def random(number: int) -> Shape:
        step = STEPS[number % len(STEPS)]
        m, n, k = (side(16, 8192, step) | (step == 1) for _ in range(3))
        return m, n, k

    def odd(number: int) -> Shape:
        if number % 4 == 0:
            return side(512, 6144, 1), side(512, 6144, 1) | 1, side(16, 512, 1)
        m, n, k = (side(32, 6144, 1) | (number % 3 > 0) for _ in range(3))
        return m, n, k

    def thin(number: int) -> Shape:
        long, short, k = side(512, 8192, 8), side(16, 160, 8), side(512, 8192, 8)
        return (long, short, k) if number % 2 else (short, long, k)

    return {
        "random": (drawn(70, random), ("float16", "bfloat16", "float32", "float64")),
        "odd16": ([(2768, 2763, 112), *drawn(COUNT - 1, odd)], ("float16", "bfloat16")),
        "thin32": ([(896, 80, 4976), *drawn(COUNT - 1, thin)], ("float32",)),
    }


def measured(gpu: gs.device.Device, seconds: float, few: int | None) -> list[dict[str, Any]]:
    """Return a row a shape and dtype, the random ones last; as many as the seconds allow."""
    design.sm_counts = lambda layout: [layout.sm_count, *SM_COUNTS]
    until_ns = gpu.now_ns() + round(seconds * 1e9)
    every = families()
    rows = []
    for family in ("odd16", "thin32", "random"):
        shapes, dtypes = every[family]
        source = "auto" if gpu.is_simulated else "cupti"
        seen = gemms.measure(gpu, shapes[:few], dtypes, source, until_ns=until_ns)
        told = {(*row["shape"], row["dtype"]): row for row in seen.told}
        for row in seen.rows:
            shape = [int(side) for side in row["shape"]]
            beside = told.get((*row["shape"], row["dtype"]), {})
            rows.append(
                {"family": family, "dtype": row["dtype"], "shape": shape, "us": row["us"],
                 "told_us": beside.get("us", {}), "told": beside.get("told", {})}
            )  # fmt: skip
    return rows


def main() -> int:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=120.0, help="at most, roughly")
    parser.add_argument("--calibrated-s", type=float, help="what calibrate measured for there")
    parser.add_argument("--few", type=int, help="so many shapes of each family only")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    gpu = gs.open_device(args.device)
    began = time.monotonic()
    rows = measured(gpu, args.seconds, args.few)
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": "python benchmarks/fresh_shapes.py",
        "device": gpu.info.name,
        "driver": gpu.info.driver,
        "source": "kernel durations by CUPTI",
        "calibrated_s": args.calibrated_s,
        "rows": rows,
    }
    args.out.write_text(json.dumps(facts) + "\n", "utf-8")
    print(
        f"{len(rows)} products of {gpu.info.name} in {time.monotonic() - began:.0f} s → {args.out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
