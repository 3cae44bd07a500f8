"""Ranks of several GPUs: clocks, collectives, a sweep and a straggler, by one command that resumes.

    python benchmarks/ranks_gpu.py [--seconds N] [--only PART ...] [--out FOLDER] [--again]
    python benchmarks/ranks_gpu.py --simulated 4 8 64 [--like h200] …

On GPUs it uses as many as there are; collectives are measured on two as well. Parts, each once for
each number of ranks: `merging` (ranks of 10⁶ rows whose clocks are apart by known amounts),
`clocks` (flags that GPUs pass to each other, by clocks.py; simulated ones pass none),
`collectives` (four kinds and sizes on partitions of 8 to 64 SMs, alone and beside GEMMs),
`stragglers` (each rank is slowed in turn, of many only one: who is named?) and `sweep` (96 points
on a worker a GPU, two of which are killed).

The file of results is written after each part. What it holds is left out by the next call; a part
that failed is there with its traceback, and done again. No part begins after --seconds. The exit
status is 0 when all parts are done and all goals met.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ranks_merging
import ranks_work
from facts import BESIDE, row, write
from ranks_work import HOW

import gpuscope as gs
from gpuscope.device.cuda import driver
from gpuscope.experiments.pool import Processes

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
ROWS = 1_000_000
MOST_ROWS = 8_000_000
"""Of all ranks that are merged: what 24 GB hold."""
POINTS, ON_ONE = 96, 24
KILLED = 2
LIMIT_S = 150
"""For the ranks of one part."""


@dataclass
class Ranks:
    """So many ranks, and where they are.

    Attributes
    ----------
    like
        Name of the simulated GPU; empty on GPUs.
    left_s
        Says how long a part may take.
    facts
        What ranks on GPUs tell of these.
    """

    count: int
    like: str
    left_s: Callable[[], float]
    facts: dict[str, Any] = field(default_factory=dict)

    def do(self, job: str, folder: Path, **options: Any) -> None:
        """Do a job of ranks_work.py on all ranks.

        Raises
        ------
        RuntimeError
            A rank has failed, or they took too long: with the end of what they wrote.
        """
        if self.like:
            ranks_work.on_simulated(self.like, job, self.count, folder, options)
            return
        shared = {
            **os.environ, "WORLD_SIZE": str(self.count), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()), "NCCL_NVLS_ENABLE": "0",
        }  # fmt: skip
        command = [sys.executable, str(HERE / "ranks_work.py"), job, str(folder)]
        command.append(json.dumps(options))
        logs = [folder / f"{rank}.log" for rank in range(self.count)]
        started = []
        for rank, log in enumerate(logs):
            with log.open("w") as file:
                env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                started.append(subprocess.Popen(command, env=env, stdout=file, stderr=file))
        _wait(started, min(LIMIT_S, self.left_s()), logs)
        self.facts |= json.loads((folder / "0.json").read_text("utf-8"))

    def merged(self, folder: Path, name: str) -> Any:
        """Return the trace of all ranks of one recording."""
        traces = [gs.load_trace(folder / f"{name}-{rank}.parquet") for rank in range(self.count)]
        if self.like:  # their clocks were put on one time at the beginning
            traces = [trace.with_metadata(clock="of one simulation") for trace in traces]
        return gs.merge(traces)


def _wait(started: list[subprocess.Popen], limit_s: float, logs: list[Path]) -> None:
    """Wait for processes; ends all when one fails or the time is over, and raises."""
    until_s = time.monotonic() + limit_s
    while any(process.poll() is None for process in started):
        if any(process.poll() for process in started) or time.monotonic() > until_s:
            time.sleep(2)  # others tell why
            break
        time.sleep(0.1)
    for process in started:
        process.kill()
    statuses = [process.wait() for process in started]
    if any(statuses):
        ends = [f"{log.name}:\n{log.read_text('utf-8', 'replace')[-1500:]}" for log in logs]
        raise RuntimeError(
            f"exit statuses {statuses} after {limit_s:.0f} s at most\n" + "".join(ends)
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


Outcome = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Rows with a goal, and a table."""


def merging(ranks: Ranks, folder: Path) -> Outcome:
    """Merge ranks whose clocks are apart by known amounts."""
    del folder
    return ranks_merging.judged(ranks.count, min(ROWS, MOST_ROWS // ranks.count)), []


def clocks(ranks: Ranks, folder: Path) -> Outcome:
    """Pass flags between all GPUs: see clocks.py."""
    out, log = folder / "clocks.json", folder / "clocks.log"
    flags = ranks.count * (ranks.count - 1)
    rounds = max(25, 3600 // flags)
    command = [sys.executable, str(HERE / "clocks.py"), "--ranks", str(ranks.count), "--rounds",
               str(rounds), "--out", str(out)]  # fmt: skip
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(LIMIT_S, ranks.left_s()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not out.exists():
        raise RuntimeError(f"no flags were passed:\n{log.read_text('utf-8', 'replace')[-3000:]}")
    found = json.loads(out.read_text("utf-8"))
    return [{**each, "way": found["way"]} for each in found["rows"]], []


def collectives(ranks: Ranks, folder: Path) -> Outcome:
    """Measure collectives on partitions of all sizes, alone and beside GEMMs.

    Where ranks fail, the settings that they had ended are told.
    """
    calls = 20 if not ranks.like else max(1, 16 // ranks.count)
    failed = ""
    try:
        ranks.do("collectives", folder, calls=calls, sms=[*ranks_work.SMS])
    except RuntimeError as error:
        failed = str(error)[-4000:]
        print(failed, flush=True)
    table: list[dict[str, Any]] = []
    alone_us: dict[int, float] = {}
    for sms in ranks_work.SMS:
        for beside in (False, True):
            name = f"{sms}-{'beside' if beside else 'alone'}"
            if all((folder / f"{name}-{rank}.parquet").exists() for rank in range(ranks.count)):
                try:
                    merged = ranks.merged(folder, name)
                    table += _table(merged, sms, alone_us, beside=beside)
                except Exception:  # noqa: BLE001 - of the others there is something to tell
                    failed += f"\n{name}:\n{traceback.format_exc()[-2000:]}"
    wanted = 2 * len(ranks_work.SMS) * len(ranks_work.KINDS) * len(ranks_work.SIZES_MIB)
    complete = sum(not each["incomplete"] for each in table)
    if not table:
        raise RuntimeError(failed)
    return [
        row("rows of collectives, all complete", str(wanted), complete, "", met=complete == wanted,
            gemm_alone_us={rank: round(us, 1) for rank, us in alone_us.items()}, calls=calls,
            failed=failed)
    ], table  # fmt: skip


def _table(
    merged: Any, sms: int | str, alone_us: dict[int, float], *, beside: bool
) -> list[dict[str, Any]]:
    """Return a row for each collective of one setting.

    Parameters
    ----------
    alone_us
        Rank → from GEMM to GEMM alone on the whole GPU: taken of the first trace.
    """
    kernels = merged.where(kind="kernel")
    times = {name: kernels.array(name) for name in ("start_ns", "end_ns", "process")}
    category = np.array(kernels.texts("category"))
    is_gemm = category == "gemm"
    of_rank = {each.rank: times["process"] == each.process for each in merged.metadata.ranks}
    if not alone_us:
        alone_us |= {rank: _period_us(times, is_gemm & own) for rank, own in of_rank.items()}
    table = []
    for group in gs.analysis.collectives(merged).groups:
        period_us: dict[int, float] = {}
        for rank, own in of_rank.items() if beside else ():
            together = own & (category == group.group)
            low, high = times["start_ns"][together].min(), times["end_ns"][together].max()
            inside = (times["start_ns"] >= low) & (times["end_ns"] <= high)
            period_us[rank] = _period_us(times, is_gemm & own & inside)
        # On the rank that keeps least.
        kept = [alone_us[rank] / us for rank, us in period_us.items() if us]
        table.append({
            "kind": group.kind, "bytes": group.nbytes, "sms": sms, "granted": group.sm_count,
            "ranks": group.ranks, "beside_gemm": beside, "n": group.n,
            "time_us": round(group.time_ns / 1e3, 1), "skew_us": round(group.skew_ns / 1e3, 1),
            "bus_gb_per_s": round(group.bus_gb_per_s or 0, 1),
            "gemm_us": round(max(period_us.values()), 1) if kept else None,
            "gemm_keeps": round(min(kept), 3) if kept else None,
            "error_ns": max(each.error_ns or 0 for each in merged.metadata.ranks),
            "incomplete": merged.metadata.incomplete,
        })  # fmt: skip
    return table


def _period_us(times: dict[str, np.ndarray], chosen: np.ndarray) -> float:
    """Return the time from GEMM to GEMM; 0 where there are fewer than two."""
    count = int(np.count_nonzero(chosen))
    if count < 2:
        return 0.0
    starts, ends = times["start_ns"][chosen], times["end_ns"][chosen]
    return float(ends.max() - starts.min()) / count / 1e3


def stragglers(ranks: Ranks, folder: Path) -> Outcome:
    """Slow each rank in turn, on its host and on its GPU; ask who it was."""
    is_many = ranks.count > 8
    slow = [ranks.count // 2 - 1] if is_many else [*range(ranks.count)]
    ranks.do("steps", folder, slow=slow, count=8 if is_many else 40)
    table = []
    for late in slow:
        for how in HOW:
            merged = ranks.merged(folder, f"{late}-{how}")
            first = gs.findings(merged).findings[0]
            told = {each.name: each.value for each in first.values}
            path = gs.analysis.critical_path(merged).by("rank")
            table.append({
                "slow": late, "how": how, "first finding": first.rule, "names": told.get("rank"),
                "longest waited for": gs.analysis.ranks(merged).straggler.rank,
                "most of the path": next(iter(path)),
                "share of the path": round(next(iter(path.values())) / sum(path.values()), 3),
                "text": first.text,
            })  # fmt: skip
    named = [
        each["first finding"] == "program.straggler" and each["names"] == each["slow"]
        for each in table
    ]
    on_path = [each["most of the path"] == each["slow"] for each in table]
    return [
        row(what, f"all {len(table)}", sum(met), "", met=all(met))
        for what, met in (
            ("slow ranks that the first finding names", named),
            ("slow ranks that have most of the critical path", on_path),
        )
    ], table


def sweep(ranks: Ranks, folder: Path) -> Outcome:
    """Sweep on one worker and on all, and once more while two are killed."""
    simulated = bool(ranks.like)
    device = ranks.like or "cuda"
    pause_s = 1.0 if simulated else 0.0
    plan: dict[str, Any] = {
        "name": "one", "alone_repeats": 0, "partitions": {"a": 8},
        "streams": {"s": {"partition": "a"}},
        "workloads": {
            "w": {"kind": "gemm", "m": 2048, "n": 2048, "k": 2048, "stream": "s",
                  "repeats": 5 if simulated else 200},
            "begun": {"kind": "python:ranks_work:point", "stream": "s", "repeats": 1, "warmup": 0,
                      "args": {"folder": "", "number": 0, "pause_s": pause_s}},
        },
    }  # fmt: skip

    def swept(executor: Any, name: str, points: int, viewer: Any = None) -> tuple[float, Any]:
        marks = folder / name
        marks.mkdir()
        plan["workloads"]["begun"]["args"]["folder"] = str(marks)
        start_s = time.perf_counter()
        grid = {"workloads.begun.args.number": [*range(points)]}
        found = gs.search.sweep(plan, grid, device, executor=executor, viewer=viewer)
        return time.perf_counter() - start_s, found.table

    rounds, on_one = (1, ON_ONE) if simulated else (2, POINTS)
    one_s, all_s = [], []
    deaths = [POINTS // 4, POINTS // 2]
    killed: list[int] = []
    with Processes(1) as one, Processes(ranks.count) as team:
        for executor, count in ((one, 1), (team, 2 * ranks.count)):
            swept(executor, f"start {count}", count)
        for number in range(rounds):
            one_s.append(swept(one, f"one {number}", on_one)[0] * POINTS / on_one)
            all_s.append(swept(team, f"all {number}", POINTS)[0])

        def kill(progress: Any) -> None:
            if progress.done in deaths[:KILLED] and len(killed) < KILLED:
                running = [each.pid for each in team._all or () if each.poll() is None]
                killed.append(running[len(killed)])
                os.kill(killed[-1], signal.SIGKILL)

        kill_s, table = swept(team, "killed", POINTS, kill)
    efficiency = min(one_s) / min(all_s) / ranks.count
    cores = len(os.sched_getaffinity(0))
    fits = not simulated or ranks.count <= 4 * cores
    rows_a_point = [0] * POINTS
    for number in table.column("workloads.begun.args.number").to_pylist():
        rows_a_point[number] += 1
    usual = statistics.mode(rows_a_point)
    odd = sum(count != usual or not count for count in rows_a_point)
    begun: dict[int, int] = {}
    for mark in (folder / "killed").iterdir():
        number = int(mark.name.partition("-")[0])
        begun[number] = begun.get(number, 0) + 1
    again = sum(begun.values()) - POINTS
    return [
        row(f"of {ranks.count} workers' speed: what a sweep on all has of it",
            "≥ 0.9" if fits else BESIDE, round(efficiency, 3), "",
            met=efficiency >= 0.9 or not fits,
            one_s=one_s, all_s=all_s, points=POINTS, points_on_one=on_one, pause_s=pause_s,
            cores=cores),
        row("workers killed", str(KILLED), len(killed), "", met=len(killed) == KILLED,
            seconds=round(kill_s, 2)),
        row("points lost, or there twice, after that", "0", odd, "",
            met=odd == 0 and len(begun) == POINTS),
        row("points begun again", f"≤ {KILLED}", again, "", met=0 <= again <= KILLED),
    ], []  # fmt: skip


PARTS: dict[str, Callable[[Ranks, Path], Outcome]] = {
    "clocks": clocks, "stragglers": stragglers, "collectives": collectives, "sweep": sweep,
    "merging": merging,
}  # fmt: skip


def main() -> int:
    """Do the parts that are missing, print a table, and write the results."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--simulated", type=int, nargs="+", metavar="N", help="so many ranks")
    parser.add_argument("--like", default="h200", help="which GPU to simulate: h200 or h100")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then begin no more")
    parser.add_argument("--again", action="store_true", help="do again what was done before")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    asked = parser.parse_args()
    began_s = time.monotonic()

    def left_s() -> float:
        return asked.seconds - (time.monotonic() - began_s)

    like = f"sim:{asked.like}" if asked.simulated else ""
    gpus = [] if like else driver.gpus()
    if not like and len(gpus) < 2:
        sys.stderr.write(f"{len(gpus)} GPUs are here, two are needed. Or: --simulated 4 8 64\n")
        return 2
    names = [name for name in asked.only if not (like and name == "clocks")]
    todo = [(count, name) for name in names for count in asked.simulated or [len(gpus)]]
    if not like and len(gpus) > 2 and "collectives" in asked.only:
        todo.append((2, "collectives"))
    file = asked.out / f"ranks_gpu{f'_simulated_{asked.like}' if like else ''}.json"
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    parts: dict[str, Any] = kept.get("parts", {})
    facts: dict[str, Any] = kept.get("facts", {})
    for count, name in todo:
        label = f"{name} {count}"
        if left_s() < 0:
            break
        if not asked.again and _is_done(parts.get(label)):
            continue
        print(f"== {label}", flush=True)
        start_s = time.monotonic()
        ranks = Ranks(count, like, left_s)
        try:
            with tempfile.TemporaryDirectory() as folder:
                rows, table = PARTS[name](ranks, Path(folder))
            parts[label] = {"rows": rows, "table": table}
        except Exception:  # noqa: BLE001 - the other parts go on
            parts[label] = {"error": traceback.format_exc()[-6000:]}
            print(parts[label]["error"], flush=True)
        parts[label]["seconds"] = round(time.monotonic() - start_s, 1)
        facts |= ranks.facts
        write(
            file, "python benchmarks/ranks_gpu.py" + (f" --simulated {_listed(parts)} --like "
            f"{asked.like}" if like else ""), like or f"{len(gpus)} × {gpus[0].name}",
            [{"part": at, **each} for at, part in parts.items() for each in part.get("rows", ())],
            simulated=bool(like), facts=facts, parts=parts,
        )  # fmt: skip
    return _summary(todo, parts)


def _is_done(part: dict[str, Any] | None) -> bool:
    return part is not None and not any(
        each.get("failed") for each in part.get("rows", ({"failed": 1},))
    )


def _listed(parts: dict[str, Any]) -> str:
    return " ".join(map(str, sorted({int(label.split()[-1]) for label in parts})))


def _summary(todo: list[tuple[int, str]], parts: dict[str, Any]) -> int:
    """Print what was found; returns 1 where something is missing."""
    ok = True
    print(f"\n{'part':16} {'s':>6} what")
    for count, name in todo:
        part = parts.get(f"{name} {count}", {"seconds": 0.0, "error": "left"})
        lines = [
            f"{'  ' if each['met'] else '! '}{each['what']}: {each['value']:g} {each['unit']} "
            f"({each['goal']})"
            for each in part.get("rows", ())
            if not each["what"].startswith("rank ")
        ]
        if "error" in part:
            lines.append("! " + part["error"].strip().splitlines()[-1][:150])
        ok &= "error" not in part and all(each["met"] for each in part["rows"])
        for number, line in enumerate(lines):
            begin = f"{f'{name} {count}':16} {part['seconds']:6.1f}" if not number else " " * 23
            print(f"{begin} {line}")
        off = [each for each in part.get("table", ()) if each.get("bytes") == 8 << 20]
        for kind in dict.fromkeys(each["kind"] for each in off):
            times = [
                f"{each['sms']}: {each['time_us']:.0f}"
                for each in off
                if each["kind"] == kind and not each["beside_gemm"]
            ]
            print(f"{'':25} {kind} of 8 MiB, µs on SMs: {', '.join(times)}")
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
