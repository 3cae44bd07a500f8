"""Programs with a fault, written by somebody who knew neither code nor rules: is it named?

    python benchmarks/held_out.py [--only NAME ...] [--traces FOLDER] [--judge FOLDER] [--out FILE]

Each program of `held_out/` runs under `gpuscope record` as it is, then bare as it is and mended;
two of them need two GPUs. Printed are the first findings, the first change of what would help with
its band, as shares of the recorded steady time, and what mending gains: the share of the measured
part that it saves. `--judge` judges a folder that was recorded before. Needs a CUDA GPU, and of
each program the library.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from facts import write
from programs_of_others import gathered, row_of

FOLDER = Path(__file__).resolve().parent / "held_out"
TRUTH = json.loads((FOLDER / "truth.json").read_text("utf-8"))
SECONDS = re.compile(r'RESULT .*"seconds": ([0-9.]+)')


def run(name: str, variant: str, *before: str) -> tuple[int, float | None]:
    """Run a program; return how it ended, and the seconds of its measured part."""
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node=2"] * (TRUTH[name]["gpus"] > 1)
    done = subprocess.run(
        [sys.executable, *before, *ranks, str(FOLDER / f"{name}.py"), variant],
        check=False, capture_output=True, text=True, timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    seconds = SECONDS.search(done.stdout)
    return done.returncode, float(seconds[1]) if seconds else None


def measured(name: str, folder: Path) -> dict:
    """Record a program, then run it bare, as it is and mended."""
    out = folder / (name if TRUTH[name]["gpus"] > 1 else f"{name}.parquet")
    record = ("-m", "gpuscope.cli", "record", "--no-report", "--out", str(out))
    rc, recorded_s = run(name, "slow", *record)
    slow_s, mended_s = (run(name, variant)[1] for variant in ("slow", "mended"))
    return {"rc": rc, "recorded_s": recorded_s, "slow_s": slow_s, "mended_s": mended_s}


def with_truth(name: str, found: dict, folder: Path) -> dict:
    """Join what a program's trace says with its fault and with what mending it gains."""
    row = {**row_of(name, found, folder), "fault": TRUTH[name]["fault"]}
    if found["slow_s"] and found["mended_s"]:
        row["mended gains"] = round(1 - found["mended_s"] / found["slow_s"], 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[*TRUTH])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--machine", default="")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    folder = asked.judge or asked.traces or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    rows = gathered(asked.only, folder, None if asked.judge else measured, with_truth)
    if asked.out:
        write(asked.out, "python benchmarks/held_out.py", asked.machine, rows)


if __name__ == "__main__":
    main()
