"""Does the idle table name the function at fault, in programs that others wrote?

    python benchmarks/idle_functions.py FOLDER [--sample 200] [--out FILE]

FOLDER has programs that run as ``NAME.py slow``; each is recorded by ``gpuscope record``, which
samples stacks by default. Named: the function is in what the first two rows of the idle table say
that threads did meanwhile. Needs a CUDA GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from facts import row, write

import gpuscope as gs
from gpuscope.trace import Trace

AT_FAULT = {
    "keyword_spotter": ("log_mel", "collate"),
    "contrastive": ("draw", "train"),
    "transcripts": ("word_errors", "score"),
    "reranker": ("softmax",),
}
"""Program → the innermost functions of which one is at fault, or calls what is."""
ROWS = 2


def recorded(program: Path, hertz: int, folder: Path) -> Trace:
    """Run a program under a recording and return its trace."""
    out = folder / program.stem
    command = [sys.executable, "-m", "gpuscope.cli", "record", "--no-report", "--sample"]
    done = subprocess.run(
        [*command, str(hertz), "--out", str(out), str(program), "slow"],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{program.stem}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    traces = sorted(out.glob("*.parquet"), key=lambda path: -path.stat().st_size)
    return gs.load_trace(traces[0])


def judged(name: str, trace: Trace) -> dict:
    """Return a row for one program, and print its idle table."""
    idle = gs.analysis.idle_causes(trace)
    first = []
    for cause in idle.causes[:ROWS]:
        print(f"  {cause.idle_ns / 1e6:9.1f} ms {cause.cause} at {cause.line}: {cause.meanwhile}")
        for function in cause.functions:
            words = f"{function.share:.0%} {function.thread} {function.state}: {function}"
            print(f"      {words} (n {function.samples:.0f})")
            first.append(function.function.rpartition(" in ")[2].rpartition(".")[2])
    found = [function for function in AT_FAULT[name] if function in first]
    sampling = trace.metadata.sampling
    if sampling is None:
        raise SystemExit(f"{name}: {trace.metadata.notes}")
    facts = {
        name: getattr(sampling, name)
        for name in ("samples", "torn", "cut", "unread", "late", "lost")
    }
    return row(
        f"{name}: a function at fault is in the first {ROWS} rows of the idle table",
        "yes",
        int(bool(found)),
        "",
        met=bool(found),
        found=found,
        meanwhile=[cause.meanwhile for cause in idle.causes[:ROWS]],
        **facts,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("idle_functions.json"))
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in AT_FAULT:
            print(name, flush=True)
            program = asked.folder / f"{name}.py"
            rows.append(judged(name, recorded(program, asked.sample, Path(folder))))
    gpu = gs.open_device("cuda:0", quiet=True)
    command = f"python benchmarks/idle_functions.py FOLDER --sample {asked.sample}"
    write(asked.out, command, gpu.info.name, rows, driver=gpu.info.driver)


if __name__ == "__main__":
    main()
