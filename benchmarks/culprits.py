"""Ordinary PyTorch programs, each slow for one known reason: is it named first, and what it costs?

    python benchmarks/culprits.py [--rounds 3] [--only NAME ...] [--ranks] [--traces FOLDER]

Each program of `culprits/` has a mended twin (`--mended`). Both run bare, in turns, a process each:
what mending gains is the median over rounds of the share of the loop that it saves. Then the slow
one runs under `gpuscope record`. The culprit is named first if the first change that the trace's
first page offers, or its first finding, is the one of `CULPRITS`; its predicted gain has a band,
as shares of the recorded steady time. `--ranks` runs the program that needs two GPUs. `--judge
FOLDER` judges traces that were recorded before, and times that a file there holds. With
`--profiled` a few steps are recorded by torch.profiler, too: what gpuscope says of that trace, and
HolisticTraceAnalysis where it is installed.
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
from pathlib import Path

from facts import write

FOLDER = Path(__file__).resolve().parent / "culprits"
CULPRITS = {
    "allocator_thrash": "keep the memory",
    "copies_not_overlapped": "copy beside kernels",
    "first_step_compiles": "program.compiles",
    "gil": "give it a process of its own",
    "hidden_sync": "keep the mask on the GPU",
    "input_pipeline": "have input ready",
    "item_sync": "do not wait for the GPU",
    "oversubscribed_partition": "give it a larger partition",
    "pageable_copies": "pin the memory",
    "python_overhead": "shorten the Python before",
    "slow_kernel": "multiply in a narrower type",
    "small_kernels": "record as graphs",
    "wrong_stream": "use another stream",
    "straggler_rank": "program.straggler",
}
RANKS = "straggler_rank"
TIMES = "times.json"


def started(name: str, *before: str, mended: bool = False, **environment: str) -> str:
    """Run a program and return its output."""
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node=2"] * (name == RANKS)
    command = [*before, *ranks, str(FOLDER / f"{name}.py"), *["--mended"] * mended]
    done = subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{name}:\n{done.stdout}{done.stderr[-2000:]}")
    return done.stdout


def loop_s(output: str) -> float:
    """Return what the loop took, of ranks the slowest one's."""
    return max(map(float, re.findall(r"loop_s (\d+\.\d{6})", output)))


def measured(name: str, rounds: int, folder: Path, *, profiled: bool) -> dict:
    """Time a program and its twin in turns, and record it."""
    slow_s, mended_s = [], []
    for _ in range(rounds):
        slow_s.append(loop_s(started(name)))
        mended_s.append(loop_s(started(name, mended=True)))
    command = ("-m", "gpuscope.cli", "record", "--no-report", "--out", str(folder / name))
    recorded_s = loop_s(started(name, *command))
    if profiled:
        started(name, CULPRIT_PROFILE=str(folder / f"{name}.json.gz"))
    return {"slow_s": slow_s, "mended_s": mended_s, "recorded_s": recorded_s}


def judged(name: str, times: dict, folder: Path) -> dict:
    """Say what a recorded trace names first, and whether what mending gained lies in its band."""
    import gpuscope as gs
    from gpuscope.analysis.help_analysis import help_in_steps

    traces = [gs.load_trace(path) for path in sorted((folder / name).glob("*.parquet"))]
    trace = gs.merge(traces) if len(traces) > 1 else traces[0]
    found = gs.findings(trace)
    first = next(each for each in found.findings if each.family == "program")
    changes = help_in_steps(trace).changes
    begin, end = gs.analysis.steps(trace).steady_ns
    span_ns = end - begin
    rules = {finding.rule: finding for finding in found.findings}
    wanted = CULPRITS[name]
    if wanted in rules:
        is_first = found.findings[0].rule == wanted
        lost = rules[wanted].values
        lost_ns = next(each.value for each in lost if each.name in ("compiled", "waited"))
        whole_ns = span_ns + (lost_ns if wanted == "program.compiles" else 0)
        gain, least, most, about = lost_ns, 0, lost_ns, rules[wanted].text
    else:
        is_first = changes[0].change == wanted
        change = next((each for each in changes if each.change == wanted), changes[0])
        gain, least, most, whole_ns = change.gain_ns, change.low_ns, change.high_ns, span_ns
        about = f"{changes[0].change}: {changes[0].about}"
    gains = [
        1 - mended / slow for slow, mended in zip(times["slow_s"], times["mended_s"], strict=True)
    ]
    share = statistics.median(gains)
    low, high = least / whole_ns, most / whole_ns
    return {
        "program": name, "named first": about, "is the culprit": is_first, "rule": first.rule,
        "slow_s": round(statistics.median(times["slow_s"]), 4),
        "mended_s": round(statistics.median(times["mended_s"]), 4),
        "recorded_s": round(times["recorded_s"], 4),
        "gain": round(share, 3), "predicted": round(gain / whole_ns, 3),
        "band": [round(low, 3), round(high, 3)], "in band": low <= share <= high,
    }  # fmt: skip


def by_hta(path: Path) -> dict | None:
    """Return what HolisticTraceAnalysis, if it is installed, says of a trace of torch.profiler."""
    try:
        from hta.trace_analysis import TraceAnalysis
    except ImportError:
        return None
    analysis = TraceAnalysis(trace_files={0: str(path)})
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    (busy,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
    ratios = idle.groupby("idle_category")["idle_time_ratio"].sum().round(2)
    return {"idle %": round(busy["idle_time_pctg"], 1), "idle by": ratios.to_dict()}


def by_profiler(path: Path) -> dict:
    """Return what gpuscope and HolisticTraceAnalysis say of a trace of torch.profiler."""
    import gpuscope as gs

    trace = gs.load_trace(path)
    changes = gs.analysis.what_would_help(trace, gs.analysis.steps(trace).steady_ns).changes
    idle = gs.analysis.idle_causes(trace)
    begin, end = idle.window_ns
    first = f"{changes[0].change}: {changes[0].about}" if changes else ""
    share = round(100 * idle.idle_ns / (end - begin), 1)
    name = path.name.partition(".")[0]
    is_culprit = bool(changes) and changes[0].change == CULPRITS[name]
    told = {"program": name, "named first": first, "is the culprit": is_culprit, "idle %": share}
    return {**told, "HolisticTraceAnalysis": by_hta(path)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[name for name in CULPRITS if name != RANKS])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--machine", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--profiled", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.judge or arguments.traces or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    times = json.loads((folder / TIMES).read_text()) if (folder / TIMES).exists() else {}
    if arguments.judge is None:
        for name in [RANKS] if arguments.ranks else arguments.only:
            times[name] = measured(name, arguments.rounds, folder, profiled=arguments.profiled)
            (folder / TIMES).write_text(json.dumps(times))
    rows = [judged(name, of_name, folder) for name, of_name in times.items()]
    for row in rows:
        print("ok " if row["is the culprit"] and row["in band"] else "-- ", json.dumps(row))
    named, inside = (sum(row[key] for row in rows) for key in ("is the culprit", "in band"))
    print(f"{named} of {len(rows)} culprits named first; {inside} gains in their band")
    profiled = [by_profiler(path) for path in sorted(folder.glob("*.json.gz"))]
    for row in profiled:
        print(json.dumps(row))
    if arguments.out:
        command = "python benchmarks/culprits.py --profiled; on two GPUs --ranks"
        write(arguments.out, command, arguments.machine, rows, profiled=profiled)


if __name__ == "__main__":
    main()
