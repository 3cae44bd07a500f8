"""Benchmarks that need no GPU: import, simulator, cost model, traces.

python benchmarks/cpu.py --out benchmarks/results/cpu.json [NAME …]

With names of benchmarks, only these run, and the file keeps the rows of the others.
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
import tracemalloc
from pathlib import Path
from typing import Any

import facts  # beside this file
import pairs
import shapes

import gpuscope as gs
from gpuscope.experiments.execution import run
from gpuscope.simulator.profiles.profile import GpuProfile


def import_time() -> dict[str, Any]:
    code = "import time; t = time.perf_counter(); import gpuscope; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True).stdout)
        for _ in range(7)
    ]  # fmt: skip
    return {"what": "import gpuscope", "seconds": statistics.median(times)}


def launched(count: int, size: int = 512) -> tuple[float, float]:
    """Launch on four streams in three partitions; CPU seconds until all is over, bytes.

    The bytes are those that launches hold, before any wait; 0 unless they are traced.
    """
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"a": 64, "b": 32, "c": "rest"}) as parts:
        streams = [part.create_stream() for part in parts.values()]
        streams.append(parts["a"].create_stream())
        a, b, out = (gpu.empty((size, size), "float16") for _ in range(3))
        for stream in streams:
            gs.mm_out(out, a, b, stream=stream)
        gpu.synchronize()
        before = tracemalloc.get_traced_memory()[0]
        start = time.process_time()
        for index in range(count):
            gs.mm_out(out, a, b, stream=streams[index % 4])
        held = tracemalloc.get_traced_memory()[0] - before
        gpu.synchronize()
        return time.process_time() - start, held


def simulated_launches(count: int = 100_000) -> dict[str, Any]:
    seconds, _ = launched(count)
    return {"what": f"{count} simulated launches on 4 streams in 3 partitions", "seconds": seconds}


def simulated_memory(pending: int = 4000) -> dict[str, Any]:
    """Bytes of a launch that has not run: of kernels so long that nearly all are pending."""
    tracemalloc.start()
    _, held = launched(pending, size=8192)
    tracemalloc.stop()
    return {"what": "memory of a pending simulated launch", "bytes": held / pending}


def simulated_growth() -> dict[str, Any]:
    """Seconds a launch of ever more launches: 1 is linear."""
    each = {count: launched(count)[0] / count for count in (10_000, 100_000, 1_000_000)}
    return {
        "what": "10⁶ against 10⁴ simulated launches, time of each",
        "ratio": each[1_000_000] / each[10_000],
        "us": {str(count): seconds * 1e6 for count, seconds in each.items()},
    }


def quickstart() -> dict[str, Any]:
    path = Path(__file__).parent.parent / "examples" / "quickstart.toml"
    gpu = gs.open_device("sim:h200", quiet=True)
    start = time.perf_counter()
    result = run(path, gpu)
    seconds = time.perf_counter() - start
    trace = next(iter(result.values()))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        gs.export(trace, Path(folder) / "t.parquet")
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
    """Error of a GEMM's time when the fold its shape is in was left out of the fit, by dtype.

    Beside it, on the same rows, "whole-GPU rate × SM share": the time on all SMs, scaled.
    """
    sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
    import fit_profile as script

    data = script.read(script.DATA)
    rows = data["gemm"]
    return {
        "what": "simulated GEMM times, 5 folds over shapes",
        "folds": script.FOLDS,
        "shapes": len({tuple(row["shape"]) for row in rows}),
        "error": script.cross_validate(rows),
        "in_fit": script.judged(script.fit_gemm(rows), rows, layout=script.LAYOUT),
        "told": told(data["sm_count_target"]),
    }


def told(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Errors where the library was told an SM count: measured apart, not in the fit."""
    profile = GpuProfile.load("h200")
    errors = []
    for row in rows:
        n, sms = row["n"], row["sms"]
        cost = profile.gemm_cost(n, n, n, "float16", sms, sms)
        micros = cost.alone_ns(sms) / 1e3
        errors.append(abs(micros / row["target_us"] - 1))
    return {"rows": len(errors), "median": statistics.median(errors), "max": max(errors)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu.json"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    benchmarks = (
        import_time, simulated_launches, simulated_memory, simulated_growth, quickstart, cost_model,
        shapes.forecast, pairs.pair_figures, pairs.thirteen_figures,
    )  # fmt: skip
    rows: list[Any] = [None] * len(benchmarks)
    if arguments.names:
        rows = json.loads(arguments.out.read_text("utf-8"))["rows"]
    for place, benchmark in enumerate(benchmarks):
        if not arguments.names or benchmark.__name__ in arguments.names:
            rows[place] = benchmark()
            print(json.dumps(rows[place], indent=1), flush=True)
    facts.write(arguments.out, "make bench", f"{os.cpu_count()} cores", rows)


if __name__ == "__main__":
    main()
