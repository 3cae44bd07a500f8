"""Ordinary PyTorch programs, each slow for one known reason: is the culprit named, and its gain?

    python benchmarks/culprits.py [--rounds 3] [--only NAME ...] [--traces FOLDER] [--ranks]

Each program of `culprits/` has a mended twin (`--mended`). Both run bare, in turns, a process each;
what mending gains is the median of the rounds' relative gains in the time of the loop. Then the slow
one runs under `gpuscope record`. What is told first of its trace is the culprit if its change is one of
those in CULPRITS; the predicted gain, as a share of the recorded loop, has a band. With --ranks the
program that needs two GPUs runs, and no other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from facts import write

FOLDER = Path(__file__).resolve().parent / "culprits"
CULPRITS = {
    path.stem: ()
    for path in sorted(FOLDER.glob("*.py"))
    if not path.stem.startswith("_") and path.stem != "straggler_rank"
}


def loop_s(name: str, *arguments: str) -> float:
    """Run a program bare and return what its loop took."""
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node=2"] * (name == "straggler_rank")
    done = subprocess.run(
        [sys.executable, *ranks, str(FOLDER / f"{name}.py"), *arguments],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    times = [float(line.split()[1]) for line in done.stdout.splitlines() if "loop_s" in line]
    if not times:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return max(times)


def recorded(name: str, folder: Path) -> tuple[list[Path], float]:
    """Record a program; returns its traces and what its loop took."""
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node=2"] * (name == "straggler_rank")
    command = [sys.executable, "-m", "gpuscope.cli", "record", "--no-report", "--out"]
    done = subprocess.run(
        [*command, str(folder), *ranks, str(FOLDER / f"{name}.py")],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    times = [float(line.split()[1]) for line in done.stdout.splitlines() if "loop_s" in line]
    traces = sorted(folder.glob("*.parquet"))
    if not times or not traces:
        raise SystemExit(f"{name} under gpuscope record:\n{done.stdout}{done.stderr[-2000:]}")
    return traces, max(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(CULPRITS))
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ranks", action="store_true")
    arguments = parser.parse_args()
    names = ["straggler_rank"] if arguments.ranks else arguments.only
    folder = arguments.traces or Path(tempfile.mkdtemp())
    rows = []
    for name in names:
        began_s = time.monotonic()
        times = [(loop_s(name), loop_s(name, "--mended")) for _ in range(arguments.rounds)]
        gains = [1 - mended_s / slow_s for slow_s, mended_s in times]
        traces, recorded_s = recorded(name, folder / name)
        slow_s, mended_s = (statistics.median(column) for column in zip(*times, strict=True))
        rows.append(
            {"program": name, "slow_s": slow_s, "mended_s": mended_s, "recorded_s": recorded_s,
             "gain": statistics.median(gains), "traces": [path.name for path in traces]}
        )  # fmt: skip
        sys.stderr.write(f"{json.dumps(rows[-1])} {time.monotonic() - began_s:.0f} s\n")
    if arguments.out:
        write(arguments.out, rows)


if __name__ == "__main__":
    main()
