"""Fit the simulator's GPU profile to measurements, and say how good the fit is.

    python scripts/fit_profile.py [MEASUREMENTS] [--out PROFILE.json] [--keep COPY.json]

MEASUREMENTS is a folder with gemm_solo.json, gemm_random_cal.json, sm_count_target.json and
copy.json, or the compact copy of one that --keep wrote (default: benchmarks/data/h200.json).
What is not fitted, the costs of host calls and their jitter, what GEMMs draw, and the times of
copies, is in benchmarks/data/h200_host.json: what benchmarks/latencies.py (``calibrated``) and
benchmarks/transfers.py (``rows``) measured on the host that the profile is of. Memory, cache and
row-wise kernels are fitted to benchmarks/data/h200_memory.json, which benchmarks/memory_law.py
measured.
--out writes the profile; without it nothing is written. The table that is printed comes from
5 folds over shapes: every dtype and SM count of a shape is in one fold, and a fold is
predicted by constants, tiles and habits learned from the other four alone.

Of every measurement the kernel's name gives its tile, and its grid the splits of k. Constants
are fitted for these kernels by least absolute error of the logarithm (Levenberg-Marquardt on
reweighted squares), then the library's habits of choice by search, on the times of whatever
kernels they choose.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from gpuscope.simulator.calibration import errors
from gpuscope.simulator.calibration import fit as fitting
from gpuscope.simulator.calibration.errors import FOLDS, judged
from gpuscope.simulator.calibration.memory import Pair, fitted
from gpuscope.simulator.calibration.written import profile_of, write_profile
from gpuscope.simulator.profiles.schema import DeviceLayout

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "data" / "h200.json"
HOST = ROOT / "benchmarks" / "data" / "h200_host.json"
MEMORY = ROOT / "benchmarks" / "data" / "h200_memory.json"
DEVICE = DeviceLayout(
    name="NVIDIA H200",
    quantum_sm_count=8,
    quanta=15,
    remainder_sm_count=12,
    compute_capability=(9, 0),
    memory_bytes=150_754_820_096,
)
MEASURED = {
    "driver": "driver 580.159, CUDA 13.0",
    "software": "CuPy 14.2.0 (cuda13x), cuda-core 1.2.0",
    "source": "kernel durations by CUPTI, one NVIDIA H200",
}
LAYOUT = DEVICE.layout


# -- measurements ----------------------------------------------------------------------


def read(source: Path) -> dict[str, Any]:
    """Measurements in the compact form: one row a shape and dtype, with its kernels."""
    if source.is_file():
        return json.loads(source.read_text("utf-8"))
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def add(dtype: str, shape: list[int], sms: int, us: float, kernels: list[list[Any]]) -> None:
        row = rows.setdefault(
            (dtype, *shape),
            {"dtype": dtype, "shape": shape, "kernels": [one[:3] for one in kernels], "us": {}},
        )
        row["us"].setdefault(str(sms), round(us, 3))

    for one in json.loads((source / "gemm_solo.json").read_text()):
        shape = [one["m"], one["n"], one["k"]]
        add(one["dtype"], shape, one["sms"], one["us"], one["kernels"])
    for dtype, m, n, k, sms, us, _, kernels in json.loads(
        (source / "gemm_random_cal.json").read_text()
    )["rows"]:
        add(dtype, [m, n, k], sms, us, kernels)
    copies = json.loads((source / "copy.json").read_text())["copy"]
    return {
        "gemm": [rows[key] for key in sorted(rows)],
        "sm_count_target": json.loads((source / "sm_count_target.json").read_text()),
        "copy": [{name: one[name] for name in ("mb", "sms", "us")} for one in copies],
    }


def keep(data: dict[str, Any], target: Path) -> None:
    """Write measurements in the compact form, one row a line."""
    parts = []
    for name, rows in data.items():
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        parts.append(f'"{name}":[\n{lines}\n]')
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


def fit(data: dict[str, Any]) -> dict[str, Any]:
    """The whole profile."""
    host = json.loads(HOST.read_text("utf-8"))
    del host["copy"]  # on fewer SM counts than those of MEMORY
    memory = json.loads(MEMORY.read_text("utf-8"))
    tables = profile_of(
        fit_gemm(data["gemm"]), data["gemm"],
        name="h200", device=DEVICE, measured=MEASURED, **host,
    )  # fmt: skip
    pairs = [Pair(**row) for row in memory["pairs"]]
    return fitted(tables, memory["copy"], memory["softmax"], memory["vector"], pairs)


fit_gemm = partial(fitting.fit_gemm, layout=LAYOUT)


def cross_validate(rows: list[dict[str, Any]], folds: Iterable[int] = range(FOLDS)) -> errors.Table:
    """Return the table of errors, each fold predicted by what the others taught.

    Every dtype and SM count of a shape is in one fold. What only shapes of one fold show, kernels
    for some alignment, is not judged.
    """
    by_dtype: errors.Errors = defaultdict(list)
    held: list[dict[str, Any]] = []
    for index in folds:
        fitted, out, _ = errors.without_fold(rows, index, layout=LAYOUT)
        for dtype, of_dtype in errors.errors_of(fitted, out, layout=LAYOUT).items():
            by_dtype[dtype].extend(of_dtype)
        held += out
    return errors.table(by_dtype, errors.share_errors(held, layout=LAYOUT))


def show(rows: dict[str, Any]) -> None:
    print(f"{'dtype':10} {'rows':>5} {'median':>8} {'p90':>8}   share: median      p90")
    for dtype, one in rows.items():
        cells = (one[name] for name in ("median", "p90", "share_median", "share_p90"))
        first, second, third, fourth = (f"{100 * cell:6.1f} %" for cell in cells)
        print(f"{dtype:10} {one['rows']:5} {first} {second}       {third} {fourth}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("measurements", type=Path, nargs="?", default=DATA)
    parser.add_argument("--out", type=Path, help="write the profile there")
    parser.add_argument("--keep", type=Path, help="write a compact copy of the measurements")
    arguments = parser.parse_args()
    data = read(arguments.measurements)
    if arguments.keep:
        keep(data, arguments.keep)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_profile(fit(data), arguments.out)
    print("in the fit:")
    show(judged(fit_gemm(data["gemm"]), data["gemm"], layout=LAYOUT))
    print(f"{FOLDS}-fold over shapes:")
    show(cross_validate(data["gemm"]))


if __name__ == "__main__":
    main()
