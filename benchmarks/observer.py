"""What guards, launches and recording cost the program they observe: used by h200.py.

    python benchmarks/observer.py child PART OUT     one measured process, for the parent

Hosts differ: a goal in µs is for a host where a bare torch.mm 64³ launch takes 7.7 µs, so what
was measured is also given as if this host took that long.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import live
import numpy as np
import recording

import gpuscope as gs

FAST_US = live.FAST_US
ROUNDS, CALLS = 9, 4000
TURNS, WAITS = 5, 1500
HERE = Path(__file__).resolve()
Call = Callable[[], object]


def call_us(call: Call, wait: Call, count: int = CALLS) -> float:
    """Return the host time of one call: the median of rounds."""
    times = []
    for _ in range(ROUNDS):
        wait()
        gc.disable()
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        times.append((time.perf_counter_ns() - start) / count / 1e3)
        gc.enable()
    wait()
    return statistics.median(times)


def gemm_call(handle: int, arrays: Any, scalars: Any) -> Call:
    """Return a bare cublasGemmEx of 64³ float16, through NVIDIA's bindings."""
    from nvmath.bindings import cublas

    out, a, b = (array.data.ptr for array in arrays)
    one = scalars.ctypes.data
    zero = one + scalars.itemsize
    half, single, default = 2, 68, -1

    def call() -> None:
        cublas.gemm_ex(handle, 0, 0, 64, 64, 64, one, b, half, 64, a, half, 64, zero, out, half,
                       64, single, default)  # fmt: skip

    return call


def launches() -> dict[str, float]:
    """Return µs of guards, ranges and products, alone and under a recording."""
    import cupy
    from nvmath.bindings import cublas

    gpu = gs.open_device("cuda:0", quiet=True)
    stream, wait = gpu.create_stream(), gpu.synchronize
    a, b = gpu.random((64, 64), "float16"), gpu.random((64, 64), "float16")
    out, scalars = gpu.empty((64, 64), "float16"), np.array([1, 0], np.float32)
    handle, workspace = cublas.create(), cupy.cuda.alloc(32 << 20)
    gemm, bare_gemm = gs.Gemm(gpu, m=64, n=64, k=64), gemm_call(handle, (out, a, b), scalars)

    def guard() -> None:
        with gs.CallerStreamGuard(stream):
            pass

    def bound() -> None:
        with gs.CallerStreamGuard(stream, bind=True):
            pass

    def annotate() -> None:
        with gs.annotate("step"):
            pass

    def bare() -> None:
        cublas.set_stream(handle, stream.handle)
        cublas.set_workspace(handle, workspace.ptr, 32 << 20)
        bare_gemm()

    def product() -> None:
        with gs.CallerStreamGuard(stream):
            gs.mm_out(out, a, b)

    def execute() -> None:
        with gs.CallerStreamGuard(stream):
            gemm.execute(a, b, out)

    found = {
        "guard": call_us(guard, wait),
        "annotate": call_us(annotate, wait),
        "bound to CuPy": call_us(bound, wait),  # before PyTorch is imported
    }
    loop, _ = recording.launches()
    found["torch.mm"] = statistics.median(loop(CALLS) for _ in range(ROUNDS))
    found["bound to CuPy and PyTorch"] = call_us(bound, wait)
    with gs.profile(gpu):
        found["annotate, recording"] = call_us(annotate, wait)
    calls = {"bare": bare, "mm_out": product, "execute": execute}
    turns: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(3):
        for name, call in calls.items():
            turns[name].append(call_us(call, wait))
    return found | {name: statistics.median(times) for name, times in turns.items()}


def of_threads(calls: list[Call], count: int = CALLS) -> float:
    """Return launches a second of one call a thread."""
    barrier = threading.Barrier(len(calls) + 1)

    def run(call: Call) -> None:
        call()
        barrier.wait()
        for _ in range(count):
            call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return len(calls) * count / (time.perf_counter() - start)


def threads() -> dict[str, float]:
    """Return launches a second of 8 threads: bare cublasGemmEx and mm_out, in turns."""
    import cupy
    from nvmath.bindings import cublas

    gpu = gs.open_device("cuda:0", quiet=True)
    a, b = gpu.random((64, 64), "float16"), gpu.random((64, 64), "float16")
    scalars = np.array([1, 0], np.float32)
    streams = [gpu.create_stream() for _ in range(8)]
    outs = [gpu.empty((64, 64), "float16") for _ in streams]
    workspaces = [cupy.cuda.alloc(4 << 20) for _ in streams]
    bare, ours = [], []
    for stream, out, workspace in zip(streams, outs, workspaces, strict=True):
        handle = cublas.create()
        cublas.set_stream(handle, stream.handle)
        cublas.set_workspace(handle, workspace.ptr, 4 << 20)
        bare.append(gemm_call(handle, (out, a, b), scalars))
        ours.append(lambda out=out, stream=stream: gs.mm_out(out, a, b, stream=stream))
    rates = []
    for _ in range(TURNS):
        rates.append((of_threads(bare), of_threads(ours)))
        gpu.synchronize()
    return {
        "bare": statistics.median(rate for rate, _ in rates),
        "mm_out": statistics.median(rate for _, rate in rates),
        "ratio": statistics.median(ours / bare for bare, ours in rates),
    }


def waits() -> dict[str, list[float]]:
    """Return p50 and p99, µs, of execute + wait of 512³ on 16 SMs and of torch.mm + synchronize.

    Bare, recorded, by events and live take turns; each figure is the median of the turns, of which
    the first does not count. Before all recordings, as many turns are bare.
    """
    live.Counted()
    _, torch = recording.launches()
    gpu = gs.open_device("cuda:0", quiet=True)
    timeline = gs.Timeline()
    parts = gpu.carve({"part": 16, "rest": "rest"})
    stream = parts["part"].create_stream()
    gemm = gs.Gemm(parts["part"], m=512, n=512, k=512)
    a, b, out = gemm.operands()
    ta, tb, tc = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(3))

    def ours() -> None:
        gemm.execute(a, b, out, stream=stream)
        gemm.wait()

    def theirs() -> None:
        torch.mm(ta, tb, out=tc)
        torch.cuda.synchronize()

    def latency(call: Call, count: int) -> list[float]:
        times = np.empty(count)
        for index in range(count):
            start = time.perf_counter_ns()
            call()
            times[index] = time.perf_counter_ns() - start
        return [float(value) for value in np.percentile(times, [50, 99]) / 1e3]

    found: dict[str, list[list[float]]] = {}

    def turn(mode: str, count: int = WAITS) -> None:
        for name, call in (("ours", ours), ("torch", theirs)):
            latency(call, 100)
            found.setdefault(f"{mode}, {name}", []).append(latency(call, count))

    for _ in range(TURNS + 1):
        turn("before")
    for _ in range(TURNS + 1):
        turn("bare")
        with gs.profile(gpu):
            turn("recorded", 10 * WAITS)  # as long as it is live
        with gs.profile(gpu, source="events"):
            turn("events")
        with gs.profile(gpu) as one, live.watched(timeline, one):
            time.sleep(0.5)  # the first readings are over
            turn("live", 10 * WAITS)  # some readings
    return {
        name: [statistics.median(column) for column in zip(*turns[1:], strict=True)]
        for name, turns in found.items()
    }


CHILDREN = {"launches": launches, "threads": threads, "waits": waits}


def child(part: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        done = subprocess.run(
            [sys.executable, str(HERE), "child", part, str(out)],
            capture_output=True, text=True, timeout=170, check=False,
        )  # fmt: skip
        if not out.exists():
            raise RuntimeError(f"observer {part}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads(out.read_text())


def observer_figures(_gpu: Any, row: recording.Row) -> list[dict]:
    """Return what observing costs."""
    us, eight, of = child("launches"), child("threads"), child("waits")
    scale = FAST_US / us["torch.mm"]
    by_mode = {mode: recording.child(mode) for mode in ("ids", "callback")}
    added_us = {
        mode: recording.quartiles([
            recorded - bare
            for recorded, bare in zip(found["recorded"], found["bare"], strict=True)
        ])
        for mode, found in by_mode.items()
    }  # fmt: skip

    def cost(what: str, value: float, goal: float) -> dict:
        scaled = value * scale
        return row(
            f"{what}, as on a host where a bare torch.mm 64³ launch takes {FAST_US} µs",
            f"≤ {goal} µs", scaled, "µs", met=scaled <= goal, measured_us=value,
            torch_mm_us=us["torch.mm"],
        )  # fmt: skip

    def times(what: str, value: float, goal: float, **detail: Any) -> dict:
        return row(what, f"≤ {goal} ×", value, "×", met=value <= goal, **detail)

    def ratio(mode: str, to: str, which: int) -> float:
        return of[f"{mode}, ours"][which] / of[f"{to}, ours"][which]

    added, beside = (of[f"recorded, {who}"][0] - of[f"bare, {who}"][0] for who in ("ours", "torch"))
    what = "execute + wait of 512³ on 16 SMs"
    return [
        cost(f"{what}: what recording with launch ids adds at p50, over what it adds to torch.mm + "
             "synchronize", added - beside, 1.0) | {"p50_and_p99_us": of},
        times("torch.mm + synchronize: p50, after recordings / before any",
              of["bare, torch"][0] / of["before, torch"][0], 1.1),
        times(f"{what}: p99, recorded / bare", ratio("recorded", "bare", 1), 1.5),
        times(f"{what}: p50, by events / bare", ratio("events", "bare", 0), 1.6),
        times(f"{what}: p50, live / recorded", ratio("live", "recorded", 0), 1.05),
        times(f"{what}: p99, live / recorded", ratio("live", "recorded", 1), 1.3),
        cost("guard, enter and exit", us["guard"], 0.3),
        cost("guard, enter and exit, bound to CuPy", us["bound to CuPy"], 0.8),
        cost("guard, enter and exit, bound to CuPy and PyTorch",
             us["bound to CuPy and PyTorch"], 4),
        cost("guard + Gemm.execute 64³ over bare gemm_ex with set_stream and set_workspace",
             us["execute"] - us["bare"], 1.5),
        cost("guard + mm_out 64³ over bare gemm_ex with set_stream and set_workspace",
             us["mm_out"] - us["bare"], 2.5),
        cost("annotate, enter and exit, not recording", us["annotate"], 0.25),
        cost("annotate, enter and exit, recording", us["annotate, recording"], 0.5),
        cost("recording torch.mm 64³ with launch ids, over a C callback that does nothing",
             added_us["ids"]["median"] - added_us["callback"]["median"], 0.3)
        | {"added_us": added_us},
        row("mm_out from 8 threads / bare gemm_ex from 8 threads", "≥ 0.8 ×", eight["ratio"], "×",
            met=eight["ratio"] >= 0.8, a_second=eight),
        *live.live_figures(_gpu, row),
    ]  # fmt: skip


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(CHILDREN[sys.argv[2]]()))
