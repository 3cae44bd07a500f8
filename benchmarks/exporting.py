"""Exports of a trace of 10⁶ spans: seconds, and peak memory over the trace's own.

python benchmarks/exporting.py [--out FILE] [--spans 1000000] [json sqlite parquet pftrace]

Each format in a process of its own, on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import facts
import numpy as np
import pyarrow as pa

import gpuscope as gs
from gpuscope.trace import Trace, arrow, schema
from gpuscope.trace.metadata import DeviceFacts, PartitionFacts, StreamFacts, TraceMetadata

FORMATS = {name: f"run.{name}" for name in ("json", "sqlite", "parquet", "pftrace")}
GOALS_S = {"json": 5.0, "sqlite": 6.0, "parquet": 0.5, "pftrace": 6.0}
MEMORY_GOAL = 4.0


def a_trace(spans: int) -> Trace:
    """Three rows a step: range, API call, kernel, on two partitions with two streams each."""
    steps = spans // 3
    number = np.arange(steps, dtype=np.int64)
    rng = np.random.default_rng(1)
    begin = 1_795_000_000_000_000_000 + number * 12_000 + rng.integers(0, 1000, steps)
    stream = number % 4
    kernel_ns = rng.integers(2000, 40_000, steps)
    start = begin + 8000
    for one in range(4):  # in each stream one after another
        mine = np.flatnonzero(stream == one)
        length = kernel_ns[mine]
        before = np.r_[0, np.cumsum(length)[:-1]]
        start[mine] = np.maximum.accumulate(start[mine] - before) + before
    three = np.repeat(number, 3)
    what = np.tile(np.arange(3), steps)
    starts = np.select([what == 0, what == 1], [begin[three], begin[three] + 2000], start[three])
    ends = np.select(
        [what == 0, what == 1],
        [begin[three] + 9000, begin[three] + 6500],
        start[three] + kernel_ns[three],
    )
    is_range, is_kernel = what == 0, what == 2
    kernels = [f"nvjet_sm90_hsh_{128 + 8 * one}x128_64x4_coopA_NNT" for one in range(40)]
    names = [*(f"step {one}" for one in range(1000)), "cudaLaunchKernel", "cuLaunchKernelEx",
             *kernels]  # fmt: skip
    name = np.select(
        [is_range, what == 1], [three % 1000, 1000 + three % 2], 1002 + (three * 7) % 40
    )
    configs = [json.dumps({"grid": [one + 1, 1, 1], "block": [384, 1, 1], "registers": 168,
                           "shared_memory": 200_000}) for one in range(40)]  # fmt: skip
    ids = np.arange(len(three), dtype=np.int64)
    part = np.where(is_range, arrow.NONE, (three % 4) // 2)
    columns: dict[str, Any] = {
        "id": ids,
        "parent": arrow.nullable(ids - 1, what != 1),
        "kind": arrow.text_column(what, ["range", "api", "kernel"]),
        "name": arrow.text_column(name, list(names)),
        "start_ns": starts,
        "end_ns": ends,
        "process": arrow.nullable(np.full(len(ids), 4711), is_kernel),
        "thread": arrow.nullable(np.full(len(ids), 4712), is_kernel),
        "device": arrow.nullable(np.zeros(len(ids), np.int64), is_range).cast(pa.int16()),
        "context": arrow.nullable(2 + part, ~is_kernel),
        "green_context": arrow.nullable(2 + part, ~is_kernel),
        "partition": arrow.text_column(part, ["decode", "prefill"]),
        "intended_partition": arrow.text_column(part, ["decode", "prefill"]),
        "stream": arrow.nullable(13 + three % 4, is_range),
        "correlation": arrow.nullable(1 + three, is_range),
        "queued_ns": arrow.nullable(starts - 1500, ~is_kernel),
        "launch_config": arrow.text_column(np.where(is_kernel, three % 40, arrow.NONE), configs),
        "domain": arrow.text_column(np.where(is_range, 0, arrow.NONE), ["gpuscope"]),
        "range_style": arrow.text_column(np.where(is_range, 0, arrow.NONE), ["push/pop"]),
        "source": arrow.constant("cupti", len(ids)),
    }
    edges = pa.table(
        {
            "from": ids[what == 1],
            "to": ids[is_kernel],
            "kind": arrow.constant("launch", steps).cast(schema.EDGE_TYPES["kind"]),
        }
    )
    metadata = TraceMetadata(
        devices={"cuda:0": DeviceFacts(0, name="NVIDIA H200", sm_count=132)},
        partitions={
            "decode": PartitionFacts(asked=16, sm_count=16, context=2),
            "prefill": PartitionFacts(asked="rest", sm_count=116, context=3),
        },
        streams={
            str(13 + one): StreamFacts(f"s{one}", ("decode", "prefill")[one // 2], 0, "cuda:0")
            for one in range(4)
        },
        process_names={"4711": "python3"},
        thread_names={"4712": "MainThread"},
    )
    return Trace(arrow.table(columns, len(ids)), edges, metadata)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(form: str, spans: int) -> dict[str, Any]:
    """Export in this process; memory over what stood before is the export's own."""
    trace = a_trace(spans)
    small = a_trace(300)
    size = trace.spans.nbytes + trace.edges.nbytes
    with tempfile.TemporaryDirectory() as folder:
        gs.export(small, Path(folder) / f"warm-{FORMATS[form]}")
        path = Path(folder) / FORMATS[form]
        # The peak is reset, so that making the trace does not count.
        Path("/proc/self/clear_refs").write_text("5")
        before = resident()
        cpu, began = time.process_time(), time.perf_counter()
        gs.export(trace, path)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return {
            "what": f"export {form}", "spans": len(trace), "edges": trace.edges.num_rows,
            "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3), "goal_s": GOALS_S[form],
            "file_mb": round(path.stat().st_size / 1e6, 1), "trace_mb": round(size / 1e6, 1),
            "peak_over_trace": round((high_water() - before + size) / size, 2),
            "memory_goal": MEMORY_GOAL,
        }  # fmt: skip


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel does not tell {name}")


def resident() -> int:
    return status("VmRSS:")


def high_water() -> int:
    return status("VmHWM:")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true", help="in this process: for profilers")
    parser.add_argument("formats", nargs="*", default=list(FORMATS))
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(one(asked.formats[0], asked.spans)))
        return
    results = []
    for form in asked.formats:
        command = [sys.executable, __file__, "--here", "--spans", str(asked.spans), form]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
        done = subprocess.run(
            ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command],
            env=environment,
            check=True,
            capture_output=True,
        )
        results.append(json.loads(done.stdout))
        print(results[-1])
    if asked.out:
        facts.write(asked.out, "python benchmarks/exporting.py", "one core", results)


if __name__ == "__main__":
    main()
