"""What recorders add to a launch, ours and others, all measured the same way.

    python benchmarks/recorders.py [--out benchmarks/results/recorders.json]

Each recorder has processes of its own, which take turns with bare ones; a process tells the least
of its loops. Needs a CUDA GPU and PyTorch; Nsight Systems is compared where it is found.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sqlite3
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import recording
from facts import BESIDE, row, spread, write

import gpuscope as gs
from gpuscope import _nsys
from gpuscope.errors import MissingDependency


def added_by_each() -> list[dict]:
    """Return what each recorder adds to a launch: all in processes of their own, in turns."""
    recorders: dict[str, tuple[str, tuple[str, ...]]] = {
        "gpuscope, kernels only": ("kernels", ()),
        "gpuscope, with launch ids": ("ids", ()),
        "gpuscope, with launch ids and sites": ("sites", ()),
        "gpuscope, with launch ids of the CUDA runtime alone": ("runtime", ()),
        "torch.profiler, CUDA only": ("torch.profiler", ()),
        "Proton (Triton)": ("Proton", ()),
    }
    with tempfile.TemporaryDirectory() as folder:
        try:
            under_nsys = nsys_profile(str(_nsys.find("nsys")), Path(folder) / "report")
            recorders["Nsight Systems (CUDA and NVTX)"] = "bare", under_nsys
        except MissingDependency as error:
            print(f"  not compared: {error}")
        bare_us: list[float] = []
        added_us: dict[str, list[float]] = {name: [] for name in recorders}
        for _ in range(recording.TURNS):
            bare_us.append(recording.child("recorded bare")["us"])
            for name, (mode, prefix) in recorders.items():
                try:
                    us = recording.child(f"recorded {mode}", prefix)["us"]
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(f"  {name}: {error}")
                else:
                    added_us[name].append(us - bare_us[-1])
    turns = f"median, least and most of {recording.TURNS} turns"
    loops = f"least of {recording.LOOPS} loops of {recording.LAUNCHES} launches"
    host = row(
        f"torch.mm 64³, not recorded: {loops} ({turns})",
        BESIDE,
        statistics.median(bare_us),
        "µs",
        met=True,
        spread=spread(bare_us),
    )
    goals = {
        "gpuscope, kernels only": 0.8,
        "gpuscope, with launch ids": 1.3,
        "gpuscope, with launch ids and sites": 1.5,
    }
    return [host] + [
        row(
            f"recording torch.mm 64³ by {name}: added a launch to the bare process's ({turns})",
            f"≤ {goals[name]} µs" if name in goals else BESIDE,
            statistics.median(added),
            "µs",
            met=statistics.median(added) <= goals.get(name, math.inf),
            spread=spread(added),
        )
        for name, added in added_us.items()
        if added
    ]


def nsys_profile(nsys: str, report: Path, *more: str) -> tuple[str, ...]:
    """Return what stands before a command that Nsight Systems records, with more options."""
    return (nsys, "profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", *more,
            "--force-overwrite=true", "-o", str(report))  # fmt: skip


def nsys_kernels(report: Path) -> dict[str, Any]:
    with contextlib.closing(sqlite3.connect(report)) as base:
        found = base.execute(
            "SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.demangledName"
        ).fetchall()
    return recording.summary([name for name, _ in found], np.array([length for _, length in found]))


def under_nsys(nsys: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        recording.child("program plain", nsys_profile(nsys, report))
        subprocess.run(
            [nsys, "export", "--type=sqlite", "--force-overwrite=true",
             f"--output={report}.sqlite", f"{report}.nsys-rep"],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        return nsys_kernels(Path(f"{report}.sqlite"))


def beside_nsys() -> list[dict]:
    try:
        nsys = str(_nsys.find("nsys"))
    except MissingDependency as error:
        print(f"  not compared: {error}")
        return []
    ours, theirs = [], []
    for _ in range(recording.TURNS):
        ours.append(recording.child("program ours")["seen"])
        theirs.append(under_nsys(nsys))
    # nsys recorded the warm-up, too: its counts are a multiple, and one before the passes.
    counts, worst = True, 0.0
    shared = set.intersection(*(set(one) for one in (*ours, *theirs)))
    compared = {}
    for name in sorted(shared):
        mine = statistics.mean(one[name]["median_ns"] for one in ours)
        other = statistics.mean(one[name]["median_ns"] for one in theirs)
        difference = mine / other - 1
        compared[name[:60]] = {
            "ours_ns": mine, "nsys_ns": other, "difference": difference,
            "ours_count": ours[0][name]["count"], "nsys_count": theirs[0][name]["count"],
        }  # fmt: skip
        if ours[0][name]["count"] >= 400:
            worst = max(worst, abs(difference))
            counts &= (theirs[0][name]["count"] - 1) % ours[0][name]["count"] <= 1
    return [row(
        "one program under gpuscope and under nsys, in turns: largest difference of a kernel's "
        "median duration", "≤ 1 %, equal counts", worst * 100, "%", met=worst <= 0.01 and counts,
        kernels=compared, equal_counts=counts,
    )]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/recorders.json"))
    asked = parser.parse_args()
    rows = added_by_each()
    try:
        rows += beside_nsys()
    except subprocess.CalledProcessError as error:  # what was measured is not lost
        print(f"  not compared: {error}")
    gpu = gs.open_device("cuda:0", quiet=True)
    command = "python benchmarks/recorders.py"
    write(asked.out, command, gpu.info.name, rows, driver=gpu.info.driver)
    for each in rows:
        print(f"{each['value']:8.3f} {each['unit']}  {each['what']}")


if __name__ == "__main__":
    main()
