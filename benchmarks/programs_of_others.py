"""Programs as users of other libraries write them, none with a planted fault: what is said of each?

    python benchmarks/programs_of_others.py [--only NAME ...] [--ranks] [--traces FOLDER]

Each program of `programs_of_others/` runs under `gpuscope record`; printed are how it ended, the
seconds that it took, the first findings, and the first change of what would help, with its gain
and band as shares of the recorded steady time. `--ranks` runs the program that needs two GPUs.
`--judge FOLDER` judges traces that were recorded before. With `--rounds` a program that has a
mended twin runs bare, too, in turns with its twin: what mending gains is the median over rounds of
the share of the loop that it saves. Needs a CUDA GPU, and of each program the library.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from facts import write

FOLDER = Path(__file__).resolve().parent / "programs_of_others"
RANKS = "ddp_imagenet"
NAMES = [path.stem for path in sorted(FOLDER.glob("[a-z]*.py")) if path.stem != RANKS]
RUNS = "runs.json"
FIRST = 3
RAISED = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception): .")


def run(name: str, *before: str, mended: bool = False) -> dict:
    """Run a program; return how it ended, the seconds of it and of its loop, and its last error."""
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node=2"] * (name == RANKS)
    command = [*before, *ranks, str(FOLDER / f"{name}.py"), *["--mended"] * mended]
    began_s = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *command], check=False, capture_output=True, text=True, timeout=300,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        rc, output, errors = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        rc, output, errors = 124, "", str(late)
    seconds = round(time.perf_counter() - began_s, 2)
    loops_s = [float(loop) for loop in re.findall(r"loop_s (\d+\.\d{6})", output)]
    lines = [line for line in (errors or output).splitlines() if line.strip()]
    raised = [line for line in lines if RAISED.match(line)]
    error = (raised or lines or [""])[-1] if rc else ""
    return {"rc": rc, "seconds": seconds, "loop_s": max(loops_s, default=None), "error": error}


def measured(name: str, rounds: int, folder: Path) -> dict:
    """Record a program; time it and its twin in turns, if it has one."""
    out = folder / (name if name == RANKS else f"{name}.parquet")
    found = run(name, "-m", "gpuscope.cli", "record", "--no-report", "--out", str(out))
    if "MENDED" in (FOLDER / f"{name}.py").read_text():
        pairs = [(run(name), run(name, mended=True)) for _ in range(rounds)]
        loops_s = [[each["loop_s"] for each in pair] for pair in pairs]
        found["pairs_s"] = [pair for pair in loops_s if all(pair)]
    return found


def judged(name: str, folder: Path) -> dict:
    """Say what a recorded trace names first."""
    import gpuscope as gs
    from gpuscope.analysis.help_analysis import help_in_steps

    paths = sorted((folder / name).glob("*.parquet")) or [folder / f"{name}.parquet"]
    traces = [gs.load_trace(path) for path in paths]
    trace = gs.merge(traces) if len(traces) > 1 else traces[0]
    found = [finding.text for finding in gs.findings(trace).findings[:FIRST]]
    helps = help_in_steps(trace)
    if not helps.changes:
        return {"findings": found}
    first = helps.changes[0]
    gains = (first.gain_ns, first.low_ns, first.high_ns)
    gain, *band = (round(each / helps.span_ns, 3) for each in gains)
    change = f"{first.change}: {first.about}"
    return {"findings": found, "change": change, "gain": gain, "band": band}


def row_of(name: str, found: dict, folder: Path) -> dict:
    """Join how a program ran and what its trace says; what cannot be judged stops no other."""
    row = {"program": name, **found}
    if pairs := found.get("pairs_s"):
        row["mended gains"] = statistics.median(1 - mended / slow for slow, mended in pairs)
    try:
        return {**row, **judged(name, folder)}
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one trace
        return {**row, "not judged": f"{type(error).__name__}: {error}"}


def gathered(
    names: list[str],
    folder: Path,
    measure: Callable[..., dict] | None,
    told: Callable[[str, dict, Path], dict],
) -> list[dict]:
    """Measure programs, or take all that a folder has, and say of each what is told of it."""
    kept = folder / RUNS
    runs = json.loads(kept.read_text()) if kept.exists() else {}
    rows = []
    for name in names if measure else [*runs]:
        if measure:
            runs[name] = measure(name, folder=folder)
            kept.write_text(json.dumps(runs))
        rows.append(told(name, runs[name], folder))
        print(json.dumps(rows[-1], indent=1), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=NAMES)
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--machine", default="")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = arguments.judge or arguments.traces or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    names = [RANKS] if arguments.ranks else arguments.only
    measure = None if arguments.judge else partial(measured, rounds=arguments.rounds)
    rows = gathered(names, folder, measure, row_of)
    print(f"{sum(not row['rc'] for row in rows)} of {len(rows)} programs ended well")
    if arguments.out:
        command = "python benchmarks/programs_of_others.py; on two GPUs --ranks"
        write(arguments.out, command, arguments.machine, rows)


if __name__ == "__main__":
    main()
