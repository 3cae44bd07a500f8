"""Fit the simulator's GPU profile to measurements, and say how good the fit is.

    python scripts/fit_profile.py [MEASUREMENTS] [--out PROFILE.json] [--keep COPY.json]

MEASUREMENTS is a folder with gemm_solo.json, gemm_random_cal.json, sm_count_target.json and
copy.json, or the compact copy of one that --keep wrote (default: benchmarks/data/h200.json).
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
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.device.carve import SmLayout
from gpuscope.device.sim.gemm_model import ITEM_BYTES, Kernels, alignment, choose, durations
from gpuscope.device.sim.schema import Choice, KernelTimes, ProfileFile

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "data" / "h200.json"
FOLDS = 5
NOISE = 0.03
"""Errors below this are not worth a constant: repeated measurements differ as much."""

WARINESS = 0.02
"""Weight of a constant's distance from where it started, in the logarithm."""

NEAR = 1.0
"""The same for one kind of kernels, from the constants of those it is fitted together with."""

DEVICE: dict[str, Any] = {
    "name": "NVIDIA H200",
    "quantum_sm_count": 8,
    "quanta": 15,
    "remainder_sm_count": 12,
    "compute_capability": [9, 0],
    "memory_bytes": 150_754_820_096,
}
MEASURED = {
    "driver": "580.159 (CUDA 13.0)",
    "software": "CuPy 14.2.0 (cuda13x), cuda-core 1.2.0",
    "source": "kernel durations by CUPTI, one NVIDIA H200",
}
HOST_COSTS = {
    "launch_call_ns": 3000,
    "gemm_call_ns": 9000,
    "event_record_call_ns": 1000,
    "stream_wait_call_ns": 200,
    "query_call_ns": 1000,
    "synchronize_return_ns": 4000,
    "launch_latency_ns": 4000,
    "kernel_gap_ns": 2300,
    "create_stream_call_ns": 15000,
    "create_partition_call_ns": 1000000,
    "pinned_copy_bytes_per_us": 55000,
    "device_copy_bytes_per_us": 4300000,
}
LAYOUT = SmLayout(*(DEVICE[name] for name in ("quantum_sm_count", "quanta", "remainder_sm_count")))
SM_COUNT = LAYOUT.sm_count
WHOLE = {"believed": SM_COUNT, "layout": LAYOUT}

Shape = tuple[int, int, int]
Key = tuple[str, int]
"""A dtype and the alignment that a kind of kernels needs."""


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


@dataclass(frozen=True)
class Kernel:
    """What a measured kernel's name and grid say. A tile: rows, columns, depth, resident."""

    tile: tuple[int, int, int, int]
    splits: int
    persistent: bool
    known: bool


def kernel_of(row: dict[str, Any]) -> Kernel:
    """Read a kernel's tile from its name; cuBLAS counts columns first, most kernels do too."""
    name, blocks, threads = row["kernels"][0]
    item = ITEM_BYTES[row["dtype"]]
    m, n, _ = row["shape"]
    stages, persistent = 2, False
    if found := re.search(r"nvjet_sm90_[a-z]+_(\d+)x(\d+)_64x", name):
        columns, rows, depth, persistent = *map(int, found.groups()), 64, True
    elif found := re.search(r"tilesize(\d+)x(\d+)x(\d+)_stage(\d)", name):
        rows, columns, depth, stages = map(int, found.groups())
    elif found := re.search(r"wmma.*_32x32_", name):
        rows, columns, depth = 32, 32, 32
    elif found := re.search(r"gemm_(?:bf16_|f16_)?(\d+)x(\d+)_(?:(\d+)x(\d))?", name):
        columns, rows = int(found[1]), int(found[2])
        depth, stages = int(found[3] or 32), int(found[4] or 2)
    else:
        return Kernel((32, 64, 32, 4), 1, persistent=False, known=False)  # matrix × vector
    tiles = -(-m // rows) * -(-n // columns)
    split = "splitK" in name or len(row["kernels"]) > 1
    split |= not persistent and blocks >= 2 * tiles
    if persistent:
        resident = 1
    else:  # as many as registers and shared memory have room for
        registers = min(255, rows * columns / threads * max(1, item // 4) + 56) * threads
        shared = stages * (rows + columns) * depth * item
        resident = max(1, min(16, int(65536 // registers), 227 * 1024 // shared))
    splits = max(1, round(blocks / tiles)) if split else 1
    return Kernel((rows, columns, depth, resident), splits, persistent=persistent, known=True)


@dataclass(frozen=True)
class Rows:
    """Measured GEMMs of one kind: times on SM counts, and the kernels that ran."""

    shape: np.ndarray[Any, Any]
    sms: np.ndarray[Any, Any]
    us: np.ndarray[Any, Any]
    kernels: Kernels
    tiles: Counter[tuple[int, int, int, int]]

    @classmethod
    def of(cls, rows: list[dict[str, Any]]) -> Rows:
        shape, sms, us, ran = [], [], [], []
        tiles: Counter[tuple[int, int, int, int]] = Counter()
        for row in rows:
            kernel = kernel_of(row)
            if kernel.known:
                tiles[kernel.tile] += 1
            for count, time in row["us"].items():
                shape.append(row["shape"])
                sms.append(int(count))
                us.append(time)
                ran.append((*kernel.tile, kernel.splits))
        return cls(
            np.array(shape).T, np.array(sms), np.array(us),
            Kernels(*np.array(ran).T), tiles,
        )  # fmt: skip


def kind(row: dict[str, Any]) -> Key:
    """Dtype and alignment of the kernels that a row's operands can take."""
    dtype, width = row["dtype"], alignment(*row["shape"], row["dtype"])
    kinds = {2: (16, 4, 2), 4: (16, 4), 8: (16, 8)}[ITEM_BYTES[dtype]]
    return dtype, next(one for one in kinds if one <= width)


def shares_constants(key: Key) -> Key:
    """Kinds whose kernels differ in alignment alone: fitted together, then each near the result."""
    dtype, width = key
    return (dtype, 16) if ITEM_BYTES[dtype] > 2 or width == 16 else (dtype, 2)


# -- fitting ---------------------------------------------------------------------------

START = {
    "launch_us": 1.5, "block_us": 0.7, "latency_us": 1.5e-3, "multiply_us": 3e-7,
    "load_us": 2e-5, "store_us": 5e-5, "misaligned": 1.3, "sharpness": 1.5,
    "sm_bytes_per_us": 55e3, "bytes_per_us": 3.6e6, "wave_rounding": 0.8,
    "held_rounding": 0.5, "late_rounds": 1.0, "reduce_us": 2.5,
}  # fmt: skip
BY_KIND = {
    ("float16", 2): {"multiply_us": 9e-7, "load_us": 6e-5},
    ("bfloat16", 2): {"multiply_us": 9e-7, "load_us": 6e-5},
    ("float32", 16): {"multiply_us": 4e-6, "load_us": 4e-5, "latency_us": 1e-2},
    ("float64", 16): {"multiply_us": 4e-6, "load_us": 4e-5, "latency_us": 5e-3},
}
BOUNDS = {
    "sharpness": (1.0, 8.0), "wave_rounding": (0.05, 1.0), "held_rounding": (0.05, 1.0),
    "late_rounds": (0.0, 4.0), "misaligned": (1.0, 4.0),
}  # fmt: skip
HABITS: dict[str, list[float]] = {
    "split_k_at_least": [32, 64, 128, 256, 512, 1024],
    "split_below_blocks": [0, 16, 24, 32, 36, 44],
    "blocks_at_most": [132, 264, 400],
    "split_side_at_least": [8, 32],
    "crowded_from": [0.7, 0.8, 0.85],
    "crowding": [0, 0.1, 0.2, 0.3, 0.5],
}


def digits(value: float) -> float:
    return float(f"{value:.5g}")


def descend(
    start: np.ndarray[Any, Any],
    errors: Callable[[Any], np.ndarray[Any, Any]],
    wariness: float = WARINESS,
) -> np.ndarray[Any, Any]:
    """Least absolute error, by Levenberg-Marquardt on reweighted squares."""

    def loss(x: Any, found: Any) -> float:
        away = wariness * float(np.sum((x - start) ** 2))
        return float(np.sum(np.sqrt(found**2 + NOISE**2))) + away

    x, found, damping = start.copy(), errors(start), 1e-2
    best = loss(x, found)
    step = 1e-4
    for _ in range(60):
        slopes = np.array([(errors(x + step * one) - found) / step for one in np.eye(len(x))]).T
        weights = 1 / np.sqrt(found**2 + NOISE**2)
        curve = slopes.T @ (slopes * weights[:, None]) + 2 * wariness * np.eye(len(x))
        slope = slopes.T @ (weights * found) + 2 * wariness * (x - start)
        before = best
        for _ in range(8):
            damped = curve + damping * np.diag(np.diag(curve) + 1e-3)
            there = x - np.clip(np.linalg.solve(damped, slope), -1, 1)
            found_there = errors(there)
            if loss(there, found_there) < best:
                x, found, best = there, found_there, loss(there, found_there)
                damping = max(damping / 3, 1e-6)
                break
            damping *= 4
        if before - best < 1e-5 * before:
            break
    return x


def fit_times(key: Key, rows: Rows, near: KernelTimes | None = None) -> KernelTimes:
    """Fit the constants of one kind's times to the kernels that ran, near others if given."""
    persistent = ITEM_BYTES[key[0]] == 2 and key[1] == 16
    start = START | BY_KIND.get(key, {})
    if near is not None:
        start = {name: getattr(near, name) for name in START}
    idle = {"misaligned", "held_rounding"} if persistent else {"late_rounds"}
    names = [name for name in start if name not in idle]
    flop = 2 * np.prod(rows.shape.astype(float), axis=0)
    rates = {
        "tflop_per_s": digits(np.max(flop / rows.us * (rows.sms == SM_COUNT)) / 1e6),
        "sm_tflop_per_s": digits(np.max(flop / rows.us / rows.sms) / 1e6),
    }

    def times(x: Any) -> KernelTimes:
        values = dict.fromkeys(idle, 1.0)
        values |= {name: float(np.exp(value)) for name, value in zip(names, x, strict=True)}
        for name, (low, high) in BOUNDS.items():
            values[name] = min(max(values[name], low), high)
        return KernelTimes.model_construct(
            persistent=persistent, vector=ITEM_BYTES[key[0]] > 2, **rates,
            **{name: digits(values[name]) if final else values[name] for name in start},
        )  # fmt: skip

    def errors(x: Any) -> np.ndarray[Any, Any]:
        found = durations(
            times(x), rows.kernels, tuple(rows.shape), ITEM_BYTES[key[0]], rows.sms, **WHOLE
        )
        return np.log(found / rows.us)

    final = False
    wariness = WARINESS if near is None else NEAR
    best = descend(np.log([max(start[name], 1e-9) for name in names]), errors, wariness)
    final = True
    return times(best)


def tiles_of(rows: Rows) -> list[tuple[int, int, int, int]]:
    """The tiles that ran, each with its most frequent depth."""
    found: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for tile, _ in sorted(rows.tiles.items(), key=lambda one: (-one[1], one[0])):
        found.setdefault(tile[:2], tile)
    return sorted(found.values())


def predict(times: KernelTimes, choice: Choice, every: Kernels, item: int, rows: Rows) -> Any:
    """Times of rows, each by the kernel that the library is thought to choose."""
    _, first, back = np.unique(rows.shape, axis=1, return_index=True, return_inverse=True)
    chosen = [
        choose(times, choice, every, tuple(rows.shape[:, at].tolist()), item, **WHOLE)
        for at in first
    ]
    names = ("rows", "columns", "depth", "resident", "splits")
    ran = Kernels(*(np.array([getattr(one, name)[0] for one in chosen])[back] for name in names))
    return durations(times, ran, tuple(rows.shape), item, rows.sms, **WHOLE)


def fit_choice(times: KernelTimes, tiles: list[Any], item: int, rows: Rows) -> Choice:
    """Search the habits under which the chosen kernels' times are nearest to the measured."""
    every = Kernels.every(tiles)
    habits: dict[str, float] = {
        "split_k_at_least": 1024 if times.persistent else 64, "split_side_at_least": 8,
        "split_below_blocks": 0, "blocks_at_most": 132 if times.persistent else 400,
        "crowding": 0, "crowded_from": 0.8,
    }  # fmt: skip

    def loss(values: dict[str, float]) -> float:
        choice = Choice.model_construct(**values)
        errors = np.log(predict(times, choice, every, item, rows) / rows.us)
        return float(np.mean(np.sqrt(errors**2 + NOISE**2)))

    best = loss(habits)
    for _ in range(2):
        before = best
        for name, values in HABITS.items():
            if name == "crowded_from" and habits["crowding"] == 0:
                continue
            for value in values:
                if value == habits[name]:
                    continue
                found = loss(habits | {name: value})
                if found < best - 1e-6:
                    best, habits = found, habits | {name: value}
        if best == before:
            break
    return Choice.model_validate(habits)


@dataclass(frozen=True)
class Fitted:
    """One kind of kernels, as it stands in the profile."""

    times: KernelTimes
    choice: Choice
    tiles: list[tuple[int, int, int, int]]


def fit_gemm(rows: list[dict[str, Any]]) -> dict[Key, Fitted]:
    """Fit every kind of kernels that there is."""
    found: dict[Key, Fitted] = {}
    keys = sorted({kind(row) for row in rows})
    by_key = {key: [row for row in rows if kind(row) == key] for key in keys}
    times = {
        shared: fit_times(
            shared, Rows.of([r for key in keys if shares_constants(key) == shared
                             for r in by_key[key]])
        )
        for shared in {shares_constants(key) for key in keys}
    }  # fmt: skip
    for key in keys:
        dtype, width = key
        item = ITEM_BYTES[dtype]
        # The kernels of float16 and bfloat16 for aligned rows have the same tiles; rows of
        # 4-byte alignment can take whatever those of 2 bytes take.
        twins = [key]
        if item == 2 and width == 16:
            twins = [("bfloat16", 16), ("float16", 16)]
        elif item == 2 and width == 4:
            twins = [key, (dtype, 2)]
        tiles = tiles_of(Rows.of([row for one in twins for row in by_key.get(one, [])]))
        mine = fit_times(key, Rows.of(by_key[key]), times[shares_constants(key)])
        found[key] = Fitted(mine, fit_choice(mine, tiles, item, Rows.of(by_key[key])), tiles)
    return found


def fit_copy(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Fit the copy kernel: launch + bytes / (soft minimum of the SMs' and memory's rate)."""
    moved = np.array([2 * row["mb"] * 2**20 for row in rows])
    sms, us = (np.array([row[name] for row in rows]) for name in ("sms", "us"))
    names = ("launch_us", "sm_bytes_per_us", "bytes_per_us", "sharpness")

    def errors(x: Any) -> np.ndarray[Any, Any]:
        launch, one, every, p = np.exp(x)
        rate = ((sms * one) ** -p + every**-p) ** (-1 / p)
        return np.log((launch + moved / rate) / us)

    best = descend(np.log([2.0, 2e4, 1.7e6, 10.0]), errors)
    return dict(zip(names, map(digits, np.exp(best)), strict=True))


def fit(data: dict[str, Any]) -> dict[str, Any]:
    """The whole profile."""
    found = fit_gemm(data["gemm"])
    gemm = {
        dtype: [
            {
                "alignment": width,
                "tiles": found[dtype, width].tiles,
                "times": found[dtype, width].times.model_dump(),
                "choice": found[dtype, width].choice.model_dump(),
            }
            for width in sorted((one for name, one in found if name == dtype), reverse=True)
        ]
        for dtype in ITEM_BYTES
    }
    shapes = {tuple(row["shape"]) for row in data["gemm"]}
    count = sum(len(row["us"]) for row in data["gemm"])
    return {
        "schema": 2,
        "name": "h200",
        "device": DEVICE,
        "measured": MEASURED | {"shapes": len(shapes), "rows": count},
        "constants": HOST_COSTS,
        "copy": fit_copy(data["copy"]),
        "gemm": gemm,
    }


# -- how good it is --------------------------------------------------------------------


def fold_of(shapes: list[Shape]) -> dict[Shape, int]:
    """Deal shapes to folds, the same at every run."""
    order = np.random.default_rng(0).permutation(len(shapes))
    ordered = sorted(shapes)
    return {ordered[at]: index % FOLDS for index, at in enumerate(order)}


def errors_of(found: dict[Key, Fitted], rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Relative errors of predicted times, by dtype."""
    errors: dict[str, list[float]] = {}
    for key in sorted({kind(row) for row in rows}):
        mine, one = Rows.of([row for row in rows if kind(row) == key]), found[key]
        item = ITEM_BYTES[key[0]]
        us = predict(one.times, one.choice, Kernels.every(one.tiles), item, mine)
        errors.setdefault(key[0], []).extend(np.abs(us / mine.us - 1).tolist())
    return errors


def share_errors(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Relative errors of the time on all SMs, scaled by the share of SMs, by dtype."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        whole = row["us"][str(SM_COUNT)] * SM_COUNT
        errors.setdefault(row["dtype"], []).extend(
            abs(whole / int(sms) / us - 1) for sms, us in row["us"].items()
        )
    return errors


def table(errors: dict[str, list[float]], by_share: dict[str, list[float]]) -> dict[str, Any]:
    """Median and 90th percentile of errors, by dtype and of all."""
    rows = {}
    for dtype in [*sorted(errors), "all"]:
        ours, theirs = (
            np.concatenate([one[name] for name in (sorted(one) if dtype == "all" else [dtype])])
            for one in (errors, by_share)
        )
        rows[dtype] = {
            "rows": len(ours), "median": float(np.median(ours)),
            "p90": float(np.quantile(ours, 0.9)), "share_median": float(np.median(theirs)),
            "share_p90": float(np.quantile(theirs, 0.9)),
        }  # fmt: skip
    return rows


def cross_validate(rows: list[dict[str, Any]], folds: range = range(FOLDS)) -> dict[str, Any]:
    """The table of errors, each fold predicted by what the others taught."""
    fold = fold_of(list({tuple(row["shape"]) for row in rows}))
    errors: dict[str, list[float]] = {}
    held: list[dict[str, Any]] = []
    for index in folds:
        out = [row for row in rows if fold[tuple(row["shape"])] == index]
        rest = [row for row in rows if fold[tuple(row["shape"])] != index]
        for dtype, found in errors_of(fit_gemm(rest), out).items():
            errors.setdefault(dtype, []).extend(found)
        held += out
    return table(errors, share_errors(held))


def show(rows: dict[str, Any]) -> None:
    print(f"{'dtype':10} {'rows':>5} {'median':>8} {'p90':>8}   share: median      p90")
    for dtype, one in rows.items():
        cells = (one[name] for name in ("median", "p90", "share_median", "share_p90"))
        first, second, third, fourth = (f"{100 * cell:6.1f} %" for cell in cells)
        print(f"{dtype:10} {one['rows']:5} {first} {second}       {third} {fourth}")


def write(profile: dict[str, Any], target: Path) -> None:
    """Write a profile, checked, its tiles on one line each kind."""
    text = json.dumps(profile, indent=1)
    text = re.sub(r"\[[\s\d,\[\]]+\]", lambda found: re.sub(r"\s+", "", found[0]), text)
    ProfileFile.parse(text, str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n", "utf-8")


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
        write(fit(data), arguments.out)
    print("in the fit:")
    show(table(errors_of(fit_gemm(data["gemm"]), data["gemm"]), share_errors(data["gemm"])))
    print(f"{FOLDS}-fold over shapes:")
    show(cross_validate(data["gemm"]))


if __name__ == "__main__":
    main()
