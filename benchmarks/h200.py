"""Benchmarks on a real GPU: each figure is a ratio or a time measured in one run.

    python benchmarks/h200.py --out benchmarks/results/h200.json

Compared libraries run in the same process on the same data, taking turns, so that clocks
and heat meet them alike. Needs a CUDA GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import json
import os
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import contracts  # beside this file
import cupy
import ml_dtypes
import numpy as np
import observer
import recording
import shapes
import torch
from facts import BESIDE, clocks, row, spread
from msgspec import to_builtins as plain

import gpuscope as gs
from gpuscope.experiments.execution import run

ROUNDS = 15
PACKAGES = ("gpuscope", "numpy", "cupy-cuda13x", "cupy-cuda12x", "cuda-core", "cuda-bindings",
            "nvmath-python", "cupti-python", "nvidia-cuda-cupti", "nvtx", "torch",
            "triton")  # fmt: skip


def carving(gpu: Any) -> list[dict]:
    """Carve five partitions with one stream each, probe included; the first compiles it."""
    times, again, ids = [], [], []
    for turn in range(40 + 1):
        if turn <= 20:
            gpu.close()  # destroys the contexts that are kept: these carvings make new ones
        start = time.perf_counter_ns()
        parts = gpu.carve({"a": 64, "b": 32, "c": 16, "d": 8, "e": "rest"})
        for part in parts.values():
            part.create_stream()
        (times if turn <= 20 else again).append((time.perf_counter_ns() - start) / 1e6)
        ids = [set(part.sm_ids) for part in parts.values()]
        parts.close()
    disjoint = sum(map(len, ids)) == len(set().union(*ids))
    found = spread(times[1:])
    return [
        row(
            "carve {64, 32, 16, 8, rest}, one stream each, probe included", "≤ 8 ms, disjoint, "
            "union 132", found["median"], "ms",
            met=found["median"] <= 8 and disjoint and len(set().union(*ids)) == gpu.sm_count,
            spread=found, first_ms=times[0], again_ms=spread(again), disjoint=disjoint,
            union=len(set().union(*ids)), granted=[len(one) for one in ids],
        )
    ]  # fmt: skip


def host_us(call: Any, settle: Any, count: int = 2000) -> float:
    for _ in range(50):
        call()
    settle()
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    elapsed = (time.perf_counter_ns() - start) / count / 1e3
    settle()
    return elapsed


def host_cost(gpu: Any) -> list[dict]:
    """Host time of one 64³ product: ours under a guard, PyTorch's and CuPy's on a stream."""
    a, b, out = gpu.random((64, 64), "float16"), gpu.random((64, 64), "float16"), None
    out = gpu.empty((64, 64), "float16")
    ta, tb, tc = (torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    stream, torch_stream = gpu.create_stream(), torch.cuda.Stream()
    cupy_stream = cupy.cuda.Stream.from_external(stream)
    handle = gs.Gemm(gpu, m=64, n=64, k=64)

    def ours() -> None:
        with gs.CallerStreamGuard(stream):
            gs.mm_out(out, a, b)

    def gemm() -> None:
        with gs.CallerStreamGuard(stream):
            handle.execute(a, b, out)

    def guard() -> None:
        with gs.CallerStreamGuard(stream):
            pass

    def bound() -> None:
        with gs.CallerStreamGuard(stream, bind=True):
            pass

    def theirs() -> None:
        with torch.cuda.stream(torch_stream):
            torch.mm(ta, tb, out=tc)

    def cupys() -> None:
        with cupy_stream:
            cupy.matmul(a, b, out=out)

    calls = {
        "guard + mm_out": ours,
        "guard + Gemm.execute": gemm,
        "guard alone": guard,
        "guard bound to CuPy and PyTorch": bound,
        "torch.mm in torch.cuda.stream": theirs,
        "cupy.matmul in a stream": cupys,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(host_us(call, gpu.synchronize))
    stream.close()
    found = {name: spread(values) for name, values in times.items()}

    def ratio_to_torch(name: str) -> float:
        pairs = zip(times[name], times["torch.mm in torch.cuda.stream"], strict=True)
        return statistics.median(x / y for x, y in pairs)

    ratio = ratio_to_torch("guard + mm_out")
    execute = ratio_to_torch("guard + Gemm.execute")
    return [
        row("guard + mm_out 64³ float16, host cost / torch.mm in torch.cuda.stream", "≤ 0.7 ×",
            ratio, "×", met=ratio <= 0.7, us=found),
        row("guard + mm_out 64³ float16, host cost / torch.mm in torch.cuda.stream (contracts)",
            "≤ 0.68 ×", ratio, "×", met=ratio <= 0.68),
        row("guard + Gemm.execute 64³ float16, host cost / torch.mm in torch.cuda.stream",
            "≤ 0.6 ×", execute, "×", met=execute <= 0.6),
    ]  # fmt: skip


def operands(n: int, dtype: str) -> tuple[list[Any], list[Any]]:
    """The same memory as PyTorch tensors and as CuPy arrays: a, b and two outputs."""
    kind = torch.float16 if dtype == "float16" else torch.bfloat16
    tensors = [torch.randn(n, n, device="cuda", dtype=kind) for _ in range(4)]
    raw = [cupy.asarray(tensor.view(torch.int16)) for tensor in tensors]
    numpy_kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    return tensors, [array.view(numpy_kind) for array in raw]


def device_us(stream: Any, call: Any, count: int) -> float:
    start = stream.record()
    for _ in range(count):
        call()
    end = stream.record()
    end.synchronize()
    return end.elapsed_ns(since=start) / count / 1e3


def against_torch(stream: Any, n: int, dtype: str) -> dict[str, Any]:
    """GPU time of one product, ours and PyTorch's on one stream, in turns; and its result."""
    (ta, tb, tc, _), (a, b, _, out) = operands(n, dtype)
    torch.cuda.synchronize()
    torch_stream = torch.cuda.ExternalStream(stream.handle)

    def ours() -> None:
        gs.mm_out(out, a, b, stream=stream)

    def theirs() -> None:
        with torch.cuda.stream(torch_stream):
            torch.mm(ta, tb, out=tc)

    count = max(5, round(2e13 / (2 * n**3)))
    device_us(stream, ours, 3)
    device_us(stream, theirs, 3)
    mine, other = [], []
    for turn in range(ROUNDS):
        pair = ((ours, mine), (theirs, other))
        for call, kept in pair if turn % 2 else pair[::-1]:
            kept.append(device_us(stream, call, count))
    torch.cuda.synchronize()
    error = float(torch.linalg.norm(tc.float() - torch.as_tensor(out.astype(np.float32))))
    ratio = statistics.median(y / x for x, y in zip(mine, other, strict=True))
    return {
        "ratio": ratio, "ours_us": spread(mine), "torch_us": spread(other),
        "difference": error / float(torch.linalg.norm(tc.float())),
    }  # fmt: skip


def throughput(gpu: Any) -> list[dict]:
    rows = []
    with gpu.create_stream() as stream:
        for dtype in ("float16", "bfloat16"):
            found = against_torch(stream, 8192, dtype)
            rows.append(
                row(f"mm_out 8192³ {dtype}, whole GPU / torch.mm", "≥ 0.99 ×", found["ratio"], "×",
                    met=found["ratio"] >= 0.99, **found)
            )  # fmt: skip
    for sm_count in (96, 120):
        with gpu.carve({"part": sm_count}) as parts:
            stream = parts["part"].create_stream()
            for n in (2048, 4096):
                found = against_torch(stream, n, "float16")
                goal = 1.1 if sm_count == 96 else 1.3
                rows.append(
                    row(f"mm_out {n}³ float16 on {sm_count} SMs / torch.mm on the same stream",
                        f"≥ {goal} ×", found["ratio"], "×", met=found["ratio"] >= goal, **found)
                )  # fmt: skip
    return rows


def quickstart(gpu: Any) -> list[dict]:
    path = Path(__file__).parent.parent / "examples" / "quickstart.toml"
    start = time.perf_counter()
    result = run(path, gpu)
    seconds = time.perf_counter() - start
    table = {(one["setting"], one["workload"]): one for one in result.comparison.to_pylist()}
    free, carved = table["no partition", "small"], table["16 | rest", "small"]
    ratio = free["latency_p99_us"] / carved["latency_p99_us"]
    kept = table["16 | rest", "load"]["share_of_alone_on_whole_gpu"]
    depths = {
        name: gs.analysis.queue_depth(trace, of="load", at="small").minimum
        for name, trace in result.items()
    }
    detail = {
        "comparison": result.comparison.to_pylist(), "least_queued": depths, "seconds": seconds,
        "source": next(iter(result.values())).provenance.rpartition(": ")[2],
        "clocks": plain({name: trace.metadata.clocks for name, trace in result.items()}),
        "devices": plain({name: trace.metadata.devices for name, trace in result.items()}),
    }  # fmt: skip
    return [
        row("quickstart: p99 of the small GEMM, no partition / partition", "≥ 3 ×", ratio, "×",
            met=ratio >= 3 and min(depths.values()) >= 2, **detail),
        row("quickstart: the load's throughput kept, against alone on the whole GPU", "≥ 0.8",
            kept, "", met=kept >= 0.8),
    ]  # fmt: skip


def latency(gpu: Any, count: int = 500) -> list[dict]:
    """Latency of a small GEMM on 16 SMs, alone: bare and recorded, and on the simulated GPU."""

    def quantiles(device: Any, *, told: bool, record: bool) -> dict[str, float]:
        with device.carve({"part": 16}) as parts:
            stream = parts["part"].create_stream()
            target = "auto" if told else None
            handle = gs.Gemm(device, m=512, n=512, k=512, sm_count_target=target)
            times = []
            with gs.profile(device) if record else contextlib.nullcontext():
                for _ in range(count + 50):
                    before = clock(device)
                    handle.execute(stream=stream)
                    handle.wait()
                    times.append((clock(device) - before) / 1e3)
            handle.close()
        p50, p90, p99 = np.quantile(times[50:], [0.5, 0.9, 0.99]).tolist()
        return {"p50": p50, "p90": p90, "p99": p99}

    def clock(device: Any) -> int:
        return device.now_ns() if device.is_simulated else time.perf_counter_ns()

    simulated = gs.open_device("sim:h200", quiet=True)
    rows = []
    for told in (True, False):
        forecast = quantiles(simulated, told=told, record=False)
        for record in (False, True):
            found = quantiles(gpu, told=told, record=record)
            rows.append(row(
                f"512³ float16 alone on 16 SMs, {'' if told else 'not '}told, "
                f"{'recorded' if record else 'bare'}: launch to completion seen, p50",
                BESIDE, found["p50"], "µs", met=True, latency_us=found, simulated_us=forecast,
            ))  # fmt: skip
    return rows


def contract_figures(gpu: Any) -> list[dict]:
    guard = contracts.guard_cost(gpu)
    unbound, bound = guard["unbound"]["median"], guard["bound to CuPy"]["median"]
    threads = contracts.threads(gpu)
    pair = contracts.two_partitions(gpu)
    cycles = contracts.cycles(gpu)
    entries = contracts.guard_entries(gpu)
    lost, slope = cycles["device_bytes_lost"], cycles["host_bytes_per_cycle"]
    sound = not entries["wrong"] and not entries["selection_left"]
    return [
        row("CallerStreamGuard enter + exit, unbound", "≤ 0.5 µs", unbound, "µs",
            met=unbound <= 0.5, us=guard),
        row("CallerStreamGuard enter + exit, bound to CuPy", "≤ 1.2 µs", bound, "µs",
            met=bound <= 1.2),
        row("mm_out from 8 threads on 8 streams, launches a second / 8 threads of gemm_ex",
            "≥ 0.5 ×", threads["ratio"], "×", met=threads["ratio"] >= 0.5, rates=threads),
        row("two equal streams on 56 | 56 SMs, one after the other / together", "≥ 1.8 ×",
            pair["median"], "×", met=pair["median"] >= 1.8, gains=pair),
        row("10,000 cycles of carve → stream → guard → mm_out → close: device memory lost",
            "0 bytes", lost, "bytes", met=lost <= 0, cycles=cycles),
        row("the same: host memory a cycle over the last 5,000", "≤ 10 bytes", slope, "bytes",
            met=slope <= 10),
        row("10⁶ guard entries on 8 threads and 8 tasks: wrong selections", "0",
            entries["wrong"], "", met=sound, entries=entries),
    ]  # fmt: skip


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


BENCHMARKS = {
    "carving": carving,
    "host cost": host_cost,
    "throughput": throughput,
    "quickstart": quickstart,
    "contracts": contract_figures,
    "recording": lambda gpu: recording.recording_figures(gpu, row),
    "events": lambda gpu: recording.events_figures(gpu, row),
    "observer": lambda gpu: observer.observer_figures(gpu, row),
    "latency": latency,
    "shapes": lambda gpu: shapes.shape_figures(gpu, row),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200.json"))
    parser.add_argument("--only", choices=BENCHMARKS, action="append")
    parser.add_argument("--keep", type=Path, help="results whose other groups stay as they are")
    arguments = parser.parse_args()
    gpu = gs.open_device("cuda:0")
    today = dt.datetime.now(dt.UTC).date().isoformat()
    chosen = arguments.only or list(BENCHMARKS)
    rows, kept, stood = [], {}, {}
    if arguments.only and arguments.keep:
        before = json.loads(arguments.keep.read_text("utf-8"))
        kept = {"notes": before["notes"]} if "notes" in before else {}
        rows = [
            {"date": before["date"], **one} for one in before["rows"] if one["group"] not in chosen
        ]
        stood = {name: one for name, one in before.get("clocks", {}).items() if name not in chosen}
    failed = []
    for name in chosen:
        try:
            with clocks(gpu) as stood[name]:
                measured = list(BENCHMARKS[name](gpu))
            for one in measured:
                rows.append({"group": name, "date": today, **one})
                mark = "ok  " if one["met"] else "MISS"
                print(f"{mark} {one['what']}: {one['value']:.4g} {one['unit']} "
                      f"(goal {one['goal']})", flush=True)  # fmt: skip
        except Exception:  # noqa: BLE001 - what the others measured is not lost
            traceback.print_exc()
            failed.append(name)
    facts = {
        "date": today,
        "command": "python benchmarks/h200.py",
        "device": gpu.info.name,
        "sm_count": gpu.sm_count,
        "driver": gpu.info.driver,
        "cpu_count": os.cpu_count(),
        "versions": versions(),
        **kept,
        "clocks": stood,
        "rows": rows,
    }
    rows.sort(key=lambda one: list(BENCHMARKS).index(one["group"]))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if failed:
        sys.exit(f"failed, and incomplete in {arguments.out}: {', '.join(failed)}")


if __name__ == "__main__":
    main()
