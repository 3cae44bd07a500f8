"""Benchmarks that need no GPU: import, simulator, cost model, traces.

python benchmarks/cpu.py --out benchmarks/results/cpu.json
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.device.sim.profile import Profile
from gpuscope.session import run


def import_time() -> dict[str, Any]:
    code = "import time; t = time.perf_counter(); import gpuscope; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True).stdout)
        for _ in range(7)
    ]  # fmt: skip
    return {"what": "import gpuscope", "seconds": statistics.median(times)}


def simulated_launches(count: int = 100_000) -> dict[str, Any]:
    """Launch on four streams in three partitions and let everything finish."""
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"a": 64, "b": 32, "c": "rest"}) as parts:
        streams = [part.create_stream() for part in parts.values()]
        streams.append(parts["a"].create_stream())
        a, b, out = (gpu.empty((512, 512), "float16") for _ in range(3))
        start = time.perf_counter()
        for index in range(count):
            gs.mm_out(out, a, b, stream=streams[index % 4])
        gpu.synchronize()
        seconds = time.perf_counter() - start
    return {"what": f"{count} simulated launches on 4 streams in 3 partitions", "seconds": seconds}


def quickstart() -> dict[str, Any]:
    path = Path(__file__).parent.parent / "examples" / "quickstart.toml"
    gpu = gs.open_device("sim:h200", quiet=True)
    start = time.perf_counter()
    result = run(path, gpu)
    seconds = time.perf_counter() - start
    trace = next(iter(result.values()))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        gs.save_trace(trace, Path(folder) / "t.parquet")
        saved = time.perf_counter() - start
    start = time.perf_counter()
    gs.figures.timeline(trace)
    drawn = time.perf_counter() - start
    return {
        "what": "quickstart on the simulated H200", "seconds": seconds, "rows": len(trace),
        "save_seconds": saved, "timeline_seconds": drawn,
        "comparison": result.comparison.to_pylist(),
    }  # fmt: skip


def cost_model() -> dict[str, Any]:
    """Error of a GEMM's time when its shape is left out of the profile, by dtype.

    Beside it, on the same rows, "whole-GPU rate × SM share": the time on all SMs, scaled.
    """
    profile = Profile.load("h200")
    rows = profile.gemm
    errors: dict[str, list[float]] = {}
    by_share: dict[str, list[float]] = {}
    for left_out in rows:
        dtype, m, n, k, timings = left_out
        others = [row for row in rows if row is not left_out and row[1:4] != [m, n, k]]
        rest = dataclasses.replace(profile, gemm=others, _costs={})
        whole = next((us for sms, us, _ in timings if sms == profile.layout.sm_count), None)
        for sms, us, _ in timings:
            cost = rest.gemm_cost(m, n, k, dtype, sms, 0)
            predicted_us = cost.block_ns * -(-cost.blocks // sms) / 1e3
            errors.setdefault(dtype, []).append(abs(predicted_us / us - 1))
            if whole is not None:
                share = whole * profile.layout.sm_count / sms
                by_share.setdefault(dtype, []).append(abs(share / us - 1))
    table = {
        dtype: {
            "rows": len(found),
            "median": float(np.median(found)),
            "p90": float(np.quantile(found, 0.9)),
            "share_median": float(np.median(by_share[dtype])),
            "share_p90": float(np.quantile(by_share[dtype], 0.9)),
        }
        for dtype, found in sorted(errors.items())
    }
    every = np.concatenate([np.array(found) for found in errors.values()])
    every_share = np.concatenate([np.array(found) for found in by_share.values()])
    table["all"] = {
        "rows": len(every), "median": float(np.median(every)),
        "p90": float(np.quantile(every, 0.9)), "share_median": float(np.median(every_share)),
        "share_p90": float(np.quantile(every_share, 0.9)),
    }  # fmt: skip
    return {"what": "simulated GEMM times, leaving one shape out", "error": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu.json"))
    arguments = parser.parse_args()
    rows = []
    for benchmark in (import_time, simulated_launches, quickstart, cost_model):
        rows.append(benchmark())
        print(json.dumps(rows[-1], indent=1), flush=True)
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": "make bench",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "rows": rows,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
