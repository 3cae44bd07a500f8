"""What recorders cost whole programs, ours and others.

    python benchmarks/recording_programs.py [--only ours|parts|others|once] [--program NAME ...]
                                            [--rounds N] [--seconds S] [--out FILE]

The programs are Hugging Face's models and loops with random weights (recorded_work.py), and
``torch.mm`` of 64³. *ours*, *parts* and *others*: blocks that are recorded stand between blocks
that are not, in one process; what a recorder costs is told of each block against its two
neighbours, and where our own cost goes by what is left out. *once*: processes in turns, for who
records whole processes, and the seconds after a program's end; a run of it that is ended early
stores what it has. Rows of programs and recorders that were not run again stay in FILE, with the
date and command of their own. Needs a CUDA GPU, PyTorch and transformers; Nsight Systems is
compared where it is found.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from facts import BESIDE, command, row, spread, write
from recorders import nsys_profile
from recording import quartiles

import gpuscope as gs
from gpuscope import _nsys
from gpuscope.errors import MissingDependency

HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "mm": "torch.mm 64³",
    "decode": "generate() of a Llama of 6 layers, eager",
    "decode_graph": "a Llama of 12 layers, a CUDA graph a token",
    "train": "fine-tuning a BERT of 4 layers",
    "server": "a server of 8 clients",
}
UNITS = {"mm": "launches", "decode": "tokens", "decode_graph": "tokens", "train": "steps",
         "server": "answers"}  # fmt: skip
OURS = (
    "bare again",
    "CUPTI",
    "CUPTI, kernels",
    "CUPTI, kernels, empty callback",
    "kernels",
    "ids",
    "lines",
    "journal, untaken",
    "journal",
)
PARTS = ("lines", "lines, no hand-over", "lines, no clocks", "ids, neither")
GROUPS = {
    "ours": (OURS,),
    "parts": (PARTS,),
    "others": (("torch.profiler",), ("torch.profiler, CPU too",), ("Proton",)),
}
"""Recorders by process: whoever took CUPTI's subscription may keep it."""
CALLED = {
    "bare again": "nothing (A against A)",
    "CUPTI": "bare CUPTI: work, ranges, API calls",
    "CUPTI, kernels": "bare CUPTI: work and ranges",
    "CUPTI, kernels, empty callback": "bare CUPTI: work and ranges, an empty callback a call",
    "CUPTI, whole graphs": "bare CUPTI: work, ranges, whole graphs",
    "CUPTI, whole graphs, API calls": "bare CUPTI: work, ranges, API calls, whole graphs",
    "kernels": "gs.profile(launch_ids=False, stacks=False)",
    "ids": "gs.profile(stacks=False)",
    "lines": "gs.profile()",
    "journal": "what gpuscope record runs in a process",
    "journal, untaken": "what gpuscope record runs in a process, its journal never taken",
    "lines, no hand-over": "gs.profile() that notes no hand-over between threads",
    "lines, no clocks": "gs.profile() that reads no clocks of the GPU",
    "ids, neither": "gs.profile(stacks=False) without hand-overs and clocks",
    "torch.profiler": "torch.profiler, CUDA only",
    "torch.profiler, CPU too": "torch.profiler, CPU and CUDA",
    "Proton": "Proton (Triton)",
}


# -- blocks in turns, in one process -------------------------------------------------------
def child(*arguments: str, before: Iterable[str] = ()) -> dict[str, Any]:
    """Run recorded_work.py; returns what it found, and how long after its last word it ended."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        environment = {name: v for name, v in os.environ.items() if "NVTX_INJECTION" not in name}
        at = list(arguments)
        at[at.index("OUT")] = str(out)
        done = subprocess.run(
            [*before, *([] if before else [sys.executable]), str(HERE / "recorded_work.py"), *at],
            capture_output=True,
            text=True,
            timeout=500,
            env=environment,
            check=False,
        )
        ended_ns = time.time_ns()
        if not out.exists():
            raise RuntimeError(f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(out.read_text("utf-8"))
        if "ended_ns" in found:
            found["after_s"] = (ended_ns - found["ended_ns"]) / 1e9
        return found


def costs(blocks: list[tuple[float, float, float]]) -> list[float]:
    """Return how much of the bare neighbours' rate each block lost, %."""
    return [100 * (1 - rate / statistics.mean((before, behind))) for before, rate, behind in blocks]


def in_turns(
    program: str, groups: Iterable[tuple[str, ...]], seconds: float, rounds: int
) -> Iterator[dict]:
    """Yield the rows of a program."""
    for names in groups:
        try:
            of_child = child("turns", program, str(seconds), str(rounds), "OUT", *names)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"  {program}: {names}: {error}")
            continue
        found = of_child["modes"]
        between = [before for blocks in found.values() for before, _, _ in blocks]
        for when, bare in (("before any recording", of_child["untouched"]), ("between", between)):
            yield row(
                f"{PROGRAMS[program]}, not recorded, {when}",
                BESIDE,
                statistics.median(bare),
                f"{UNITS[program]}/s",
                met=True,
                spread=quartiles(bare),
                program=program,
            )
        for name, blocks in found.items():
            lost = costs(blocks)
            worst = max(lost) - statistics.median(lost)
            detail: dict[str, Any] = {"spread": quartiles(lost), "program": program, "mode": name,
                                      "blocks": blocks, "worst_above_median": worst}  # fmt: skip
            if program == "mm":
                added = [
                    1e6 / rate - 1e6 / statistics.mean((before, behind))
                    for before, rate, behind in blocks
                ]
                detail["added_us"] = quartiles(added)
            yield row(
                f"{PROGRAMS[program]}: cost of {CALLED[name]}",
                BESIDE,
                statistics.median(lost),
                "%",
                met=True,
                **detail,
            )


def table(rows: list[dict]) -> None:
    for each in rows:
        of = each.get("spread", {})
        between = f"({of['min']:.2f} to {of['max']:.2f})" if of else ""
        added = each.get("added_us")
        more = (
            f"  +{added['median']:.2f} µs ({added['min']:.2f} to {added['max']:.2f})"
            if added
            else ""
        )
        print(
            f"{each['value']:10.2f} {each['unit']:10} {between:22} {each['what']}{more}", flush=True
        )


# -- whole processes, in turns -------------------------------------------------------------
def commands(
    folder: Path, *, with_graphs: bool
) -> dict[str, tuple[list[str], list[str], Path | None]]:
    """Return who records a process → what stands before its command and behind it, and its file."""
    trace = folder / "trace.parquet"
    ours = [sys.executable, "-m", "gpuscope.cli", "record", "--no-report", "--out", str(trace)]
    found: dict[str, tuple[list[str], list[str], Path | None]] = {
        "nothing": ([], [], None),
        CALLED["CUPTI"]: ([], ["CUPTI"], None),
        "gpuscope record": (ours, [], trace),
        "gpuscope record --no-samples": (
            [*ours[:-1], str(folder / "without.parquet"), "--no-samples"],
            [],
            folder / "without.parquet",
        ),
    }
    for mode in ("CUPTI, whole graphs", "CUPTI, whole graphs, API calls") if with_graphs else ():
        found[CALLED[mode]] = [], [mode], None
    for graphs in ("launch", "sampled") if with_graphs else ():
        command = [*ours[:-1], str(folder / f"{graphs}.parquet"), "--graphs", graphs]
        found[f"gpuscope record --graphs {graphs}"] = command, [], folder / f"{graphs}.parquet"
    try:
        nsys = str(_nsys.find("nsys"))
    except MissingDependency as error:
        print(f"  not compared: {error}")
    else:
        for graphs in ("graph", "node") if with_graphs else ("graph",):
            options = [f"--cuda-graph-trace={graphs}"]
            before = [*nsys_profile(nsys, folder / "report", *options), sys.executable]
            found[f"Nsight Systems, {graphs}s"] = before, [], folder / "report.nsys-rep"
    return found


def whole_processes(program: str, seconds: float, rounds: int) -> Iterator[dict]:
    """Yield the rows of a program whose processes are recorded by one after another."""
    rates: dict[str, list[float]] = {}
    after_s: dict[str, list[float]] = {}
    nbytes: dict[str, int] = {}
    try:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                for name, (before, mode, left) in commands(
                    Path(folder), with_graphs=program == "decode_graph"
                ).items():
                    try:
                        found = child("once", program, str(seconds), "OUT", *mode, before=before)
                    except (RuntimeError, subprocess.TimeoutExpired) as error:
                        print(f"  {program}: {name}: {error}")
                        continue
                    print(f"  {program}: {name}: {found['rate']:.1f}", flush=True)
                    rates.setdefault(name, []).append(found["rate"])
                    after_s.setdefault(name, []).append(found["after_s"])
                    if left is not None and left.exists():
                        nbytes[name] = left.stat().st_size
    except KeyboardInterrupt:
        print(f"  {program}: interrupted: what was measured stays")
    if "nothing" not in rates:
        return
    bare = statistics.median(rates["nothing"])
    for name, each in rates.items():
        lost = [100 * (1 - rate / bare) for rate in each]
        yield row(
            f"{PROGRAMS[program]}, a process each: cost of {name}",
            BESIDE,
            statistics.median(lost),
            "%",
            met=True,
            spread=quartiles(lost),
            program=program,
            mode=name,
            rates=each,
            after_s=spread(after_s[name]),
            megabytes=nbytes.get(name, 0) / 1e6,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", choices=("ours", "parts", "others", "once"), action="append")
    parser.add_argument("--program", choices=tuple(PROGRAMS), action="append")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/recording_programs.json")
    )
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    only = asked.only or ("ours", "parts", "others", "once")
    rows: list[dict] = []
    if asked.out.exists():
        rows = json.loads(asked.out.read_text("utf-8"))["rows"]
    info = gs.open_device("cuda:0", quiet=True).info
    run = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": command(),
    }
    for program in asked.program or PROGRAMS:
        for what in only:
            if what == "once" and program == "mm":
                continue
            measured = (
                whole_processes(program, 4 * asked.seconds, max(1, asked.rounds // 2))
                if what == "once"
                else in_turns(program, GROUPS[what], asked.seconds, asked.rounds)
            )
            new = [{**each, "group": what, **run} for each in measured]
            table(new)
            stay = [each for each in rows if (each["program"], each["group"]) != (program, what)]
            rows = stay + new if new else rows
            rows.sort(key=lambda each: [*PROGRAMS].index(each["program"]))
            write(asked.out, run["command"], info.name, rows, driver=info.driver)  # by now


if __name__ == "__main__":
    main()
