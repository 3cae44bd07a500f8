"""Imports of 10⁶ spans: seconds and peak memory; HolisticTraceAnalysis beside them.

python benchmarks/importing.py [--out FILE] [--spans 1000000] [--hta PYTHON] [nsight chrome …]

Each format in a process of its own, on one core, the second of two loads (the first imports
NumPy and PyArrow). ``--hta`` names a Python that has HolisticTraceAnalysis.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import facts

CAPTURE = Path(__file__).resolve().parents[1] / "tests/data/nsight/graph_nodes.sqlite.xz"
PID = 458
GOALS_S = {"nsight": 3.0, "chrome": 6.0}
BIG_JSON = 75_000_000
HTA = """
import sys, time
from hta.trace_analysis import TraceAnalysis
start, cpu = time.perf_counter(), time.process_time()
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
print(time.perf_counter() - start, time.process_time() - cpu, len(found.t.get_trace(0)))
"""


# -- the files ---------------------------------------------------------------------------------
def nsight(path: Path, spans: int) -> None:
    """Write a report with a genuine one's schema: 44 % kernels, 44 % calls, 4 % copies, ranges."""
    genuine = path.with_suffix(".genuine")
    genuine.write_bytes(lzma.decompress(CAPTURE.read_bytes()))
    source, target = sqlite3.connect(genuine), sqlite3.connect(path)
    for line in source.iterdump():
        filled = line.startswith("INSERT") and ('"CUPTI_ACTIVITY' in line or '"NVTX' in line)
        if not filled and not line.startswith(("BEGIN", "COMMIT")):
            target.execute(line)
    rng = random.Random(1)  # noqa: S311 - no secrets
    calls, kernels, copies = (int(spans * share) for share in (0.44, 0.44, 0.04))
    starts, now = [], 10**9
    for _ in range(calls):
        now += rng.randrange(1500, 4000)
        starts.append(now)
    vm = 1 << 48 | PID << 24
    changes: dict[str, tuple[int, Any]] = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": (calls, lambda n: {
            "start": starts[n], "end": starts[n] + 1000, "globalTid": vm | PID + n % 4,
            "correlationId": n + 1}),
        "CUPTI_ACTIVITY_KIND_KERNEL": (kernels, lambda n: {
            "start": starts[n] + 5000, "end": starts[n] + 9000, "globalPid": vm,
            "correlationId": n + 1, "streamId": 7 + n % 8, "greenContextId": n % 3,
            "demangledName": n % 80, "gridX": n % 50 + 1}),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (copies, lambda n: {
            "start": starts[10 * n] + 5000, "end": starts[10 * n] + 7000, "globalPid": vm,
            "correlationId": 10 * n + 1}),
        "NVTX_EVENTS": (spans - calls - kernels - copies, lambda n: {
            "start": 10**9 + 30_000 * n, "end": 10**9 + 30_000 * n + 20_000, "eventType": 59,
            "globalTid": vm | PID + n % 4}),
    }  # fmt: skip
    for table, (count, change) in changes.items():
        cursor = source.execute(f"SELECT * FROM {table} ORDER BY rowid DESC LIMIT 50")  # noqa: S608
        names = [one[0] for one in cursor.description]
        seeds = [dict(zip(names, row, strict=True)) for row in cursor]
        rows = ([*(seeds[n % len(seeds)] | change(n)).values()] for n in range(count))
        places = ", ".join("?" * len(names))
        target.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608
    target.commit()
    genuine.unlink()


def plain(count: int) -> Iterator[str]:
    """Yield functions as viztracer writes them."""
    for n in range(count):
        yield (
            f'{{"ph":"X","name":"f{n % 500} (m.py:{n % 90})","ts":{1000 + 3.017 * n:.3f},'
            f'"dur":2.345,"pid":{PID},"tid":{7 + n % 4}}}'
        )


def kineto(count: int) -> Iterator[str]:
    """Yield calls and kernels as PyTorch's profiler writes them."""
    for n in range(count // 2):
        at = 1000 + 5.123 * n
        yield (
            f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{PID},"tid":{PID},'
            f'"ts":{at:.3f},"dur":1.234,"args":{{"External id":{n},"cbid":211,"correlation":{n}}}}}'
        )
        yield (
            f'{{"ph":"X","cat":"kernel","name":"kernel_{n % 80}","pid":0,"tid":{7 + n % 4},'
            f'"ts":{at + 4:.3f},"dur":2.345,"args":{{"External id":{n},"queued":0,"device":0,'
            f'"context":1,"stream":{7 + n % 4},"correlation":{n},"registers per thread":32,'
            f'"shared memory":1024,"blocks per SM":1.5,"warps per SM":6.0,"grid":[{n % 100 + 1},1,1'
            '],"block":[128,1,1],"est. achieved occupancy %":50}}'
        )


def write_json(path: Path, events: Iterator[str]) -> None:
    top = {"schemaVersion": 1, "displayTimeUnit": "ms",
           "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
           "baseTimeNanoseconds": 1_795_257_927_753_519_961}  # fmt: skip
    with path.open("w") as file:
        file.write(json.dumps(top)[:-1] + ',"traceEvents":[\n')
        name = {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "args": {"name": "python"}}
        file.write(json.dumps(name))
        file.writelines(f",\n{event}" for event in events)
        file.write("]}\n")


def chrome(path: Path, spans: int) -> None:
    write_json(path, plain(spans))


def kineto_75mb(path: Path, spans: int) -> None:
    size = sum(len(one) + 2 for one in kineto(2000)) / 2000
    write_json(path, kineto(int(BIG_JSON / size * spans / 1_000_000)))


def kineto_all(path: Path, spans: int) -> None:
    write_json(path, kineto(spans))


FILES = {
    "nsight": (nsight, "run.sqlite"),
    "chrome": (chrome, "run.json"),
    "kineto": (kineto_75mb, "kineto.json"),
    "kineto_all": (kineto_all, "kineto_all.json"),
}


# -- measuring ---------------------------------------------------------------------------------
def once(path: Path) -> dict[str, Any]:
    """Load in this process, twice; the second counts."""
    import gpuscope as gs

    for _ in range(2):
        wall, cpu = time.perf_counter(), time.process_time()
        trace = gs.load_trace(path)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "spans": len(trace), "edges": trace.edges.num_rows, "seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2), "file_mb": round(path.stat().st_size / 1e6, 1),
        "trace_mb": round((trace.spans.nbytes + trace.edges.nbytes) / 1e6, 1),
        "peak_mb": round(peak / 1e6),
    }  # fmt: skip


def alone(*command: str | Path) -> str:
    """Run on one core; returns what it printed last."""
    core = str(max(os.sched_getaffinity(0)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    done = subprocess.run(
        ["taskset", "-c", core, *command], env=environment, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--hta", type=Path, help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--load", type=Path, help="load one file in this process: for profilers")
    parser.add_argument("formats", nargs="*", default=list(FILES))
    asked = parser.parse_args()
    if asked.load:
        print(json.dumps(once(asked.load)))
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for form in asked.formats:
            make, name = FILES[form]
            path = Path(folder) / name
            make(path, asked.spans)
            found = json.loads(alone(sys.executable, __file__, "--load", path))
            row = {"what": f"import {form}", **found, "goal_s": GOALS_S.get(form)}
            if asked.hta and form.startswith("kineto"):
                wall, cpu, rows = alone(asked.hta, "-c", HTA, path).split()
                row["hta"] = {"seconds": round(float(wall), 2), "cpu_seconds": round(float(cpu), 2),
                              "rows": int(rows)}  # fmt: skip
            results.append(row)
            print(row, flush=True)
            path.unlink()
    if asked.out:
        beside = " --hta PYTHON" if asked.hta else ""
        facts.write(asked.out, f"python benchmarks/importing.py{beside}", "one core", results)


if __name__ == "__main__":
    main()
