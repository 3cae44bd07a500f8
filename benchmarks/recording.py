"""What recording costs and how true it is: used by h200.py and recorders.py.

python benchmarks/recording.py child MODE     one measured process, for the parent
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from facts import spread

CHUNK, CHUNKS = 6000, 20
"""Launches between two changes, and changes: 120,000 recorded launches, alternating with
as many bare ones."""
LOOPS, LAUNCHES, TURNS = 5, 20_000, 3
"""Of the comparison of recorders (recorders.py): loops of a process, launches of a loop, turns."""
HERE = Path(__file__).resolve()
Row = Callable[..., dict]


# -- children: a process each, as only one client of CUPTI can be in one --------------------
def launches() -> tuple[Callable[[int], float], Any]:
    """Return what launches torch.mm 64³ n times and tells µs a launch."""
    import torch

    a, b = (torch.randn(64, 64, device="cuda") for _ in range(2))
    out = torch.empty(64, 64, device="cuda")

    def loop(count: int) -> float:
        mm = torch.mm
        torch.cuda.synchronize()
        gc.disable()
        start = time.perf_counter_ns()
        for _ in range(count):
            mm(a, b, out=out)
        elapsed = time.perf_counter_ns() - start
        torch.cuda.synchronize()
        gc.enable()
        return elapsed / count / 1e3

    loop(2000)
    return loop, torch


@contextlib.contextmanager
def c_callback() -> Iterator[None]:
    """Have CUPTI call a C function that does nothing around each launch: the least it can cost."""
    from gpuscope._libcupti import library_path
    from gpuscope.record.cupti import library as api

    library = api.Library()
    cupti = ctypes.CDLL(str(library_path()))
    nothing = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p)
    subscription = ctypes.c_void_p()
    if cupti.cuptiSubscribe(ctypes.byref(subscription), nothing, None):
        raise RuntimeError("CUPTI takes no subscriber")
    try:
        for domain in (api.RUNTIME_API, api.DRIVER_API):
            for number in range(1, 1200):
                name = library.callback_name(domain, number)
                if api.role_of(name) in (api.LAUNCH, api.BLOCKING):
                    cupti.cuptiEnableCallback(1, subscription, domain, number)
        yield
    finally:
        cupti.cuptiUnsubscribe(subscription)


@contextlib.contextmanager
def recorder(mode: str, torch: Any) -> Iterator[None]:
    ids: dict[str, Any] = {"kernels": False, "ids": True, "sites": True, "runtime": "runtime"}
    if mode in ids:
        import gpuscope as gs

        options = {"launch_ids": ids[mode], "stacks": mode == "sites"}
        with gs.profile(gs.open_device("cuda:0", quiet=True), **options):
            yield
    elif mode == "callback":
        with c_callback():
            yield
    elif mode == "torch.profiler":
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA], acc_events=True):
            yield
    elif mode == "Proton":
        import triton.profiler as proton

        proton.start(str(Path(tempfile.mkdtemp()) / "proton"), backend="cupti")
        yield
        torch.cuda.synchronize()
        proton.finalize()
    else:
        yield


def child_recorded(mode: str) -> dict:
    """Record all loops of a process; whatever begins or ends the recording is not timed."""
    loop, torch = launches()
    with recorder(mode, torch):
        loop(100)
        return {"us": min(loop(LAUNCHES) for _ in range(LOOPS))}


def child_overhead(mode: str) -> dict:
    """Alternate between launches that are recorded and launches that are not."""
    loop, torch = launches()
    with recorder(mode, torch):
        loop(100)
    bare, recorded = [], []
    for _ in range(CHUNKS):
        bare.append(loop(CHUNK))
        with recorder(mode, torch):
            recorded.append(loop(CHUNK))
    return {"bare": bare, "recorded": recorded}


def child_program(mode: str) -> dict:
    """Run one program of many kernels; under us, say what was seen of each."""
    _, torch = launches()
    half = torch.float16
    inputs = [torch.randn(n, n, device="cuda", dtype=half) for n in (256, 512, 1024, 2048)]
    long = torch.randn(1 << 24, device="cuda")
    for x in inputs:
        torch.mm(x, x)
    (long * 2).sum()
    torch.cuda.synchronize()

    def work() -> None:
        for _ in range(400):
            for x in inputs:
                torch.mm(x, x)
            (long * 2).sum()
        torch.cuda.synchronize()

    work()
    seen: dict[str, Any] = {}
    if mode == "ours":
        import gpuscope as gs

        gpu = gs.open_device("cuda:0", quiet=True)
        with gs.profile(gpu) as recording:
            work()
        kernels = recording.trace.where(kind="kernel")
        seen = summary(kernels.texts("name"), kernels.array("end_ns") - kernels.array("start_ns"))
    else:
        torch.cuda.profiler.start()
        work()
        torch.cuda.profiler.stop()
    return {"seen": seen}


def summary(names: list[Any], durations: Any) -> dict[str, Any]:
    found: dict[str, list[int]] = {}
    for name, duration in zip(names, np.asarray(durations).tolist(), strict=True):
        found.setdefault(name, []).append(duration)
    return {
        name: {"count": len(each), "median_ns": statistics.median(each)}
        for name, each in found.items()
    }


def child(mode: str, prefix: tuple[str, ...] = ()) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        env = {name: value for name, value in os.environ.items() if "NVTX_INJECTION" not in name}
        done = subprocess.run(
            [*prefix, sys.executable, str(HERE), "child", mode, str(out)],
            capture_output=True, text=True, timeout=170, env=env, check=False,
        )  # fmt: skip
        if not out.exists():
            raise RuntimeError(f"{mode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads(out.read_text())


# -- figures -------------------------------------------------------------------------------
def quartiles(values: list[float]) -> dict[str, float]:
    low, high = np.quantile(values, [0.25, 0.75])
    return {"min": float(low), "median": statistics.median(values), "max": float(high)}


def decoding(gpu: Any, row: Row) -> list[dict]:
    import gpuscope as gs
    from gpuscope.record.cupti import layout
    from gpuscope.record.cupti.collector import get_collector

    loop, _ = launches()
    taken: list[Any] = []
    find = layout.find_records

    def keep(raw: Any, sizes: Any) -> Any:
        taken.append(raw)
        return find(raw, sizes)

    layout.find_records = keep
    try:
        manager = gs.profile(gpu, launch_ids=False)
        recording = manager.__enter__()
        loop(1_000_000)
        start = time.perf_counter()
        manager.__exit__(None, None, None)
        stopping = time.perf_counter() - start
    finally:
        layout.find_records = find
    trace = recording.trace
    kernels = trace.kind_counts()["kernel"]
    sizes = layout.record_sizes(get_collector().library.version)
    start = time.perf_counter()
    records = 0
    for raw in taken:
        read = layout.read_records(raw, find(raw, sizes))
        records += sum(len(next(iter(one.values()))) for one in read.values())
    alone = time.perf_counter() - start
    nbytes = trace.spans.nbytes + trace.edges.nbytes
    taken.clear()
    manager = gs.profile(gpu)
    recording = manager.__enter__()
    loop(500_000)
    start = time.perf_counter()
    manager.__exit__(None, None, None)
    with_ids = time.perf_counter() - start
    both = recording.trace
    return [
        row("decoding alone: records → columns", "≥ 5 M/s", records / alone / 1e6, "M/s",
            met=records / alone >= 5e6, records=records),
        row("stop → finished Trace, 10⁶ kernels", "≥ 1.5 M/s", kernels / stopping / 1e6, "M/s",
            met=kernels / stopping >= 1.5e6),
        row("the same with launch ids, 500,000 kernels and as many calls", "≥ 1.5 M/s",
            len(both) / with_ids / 1e6, "M/s", met=len(both) / with_ids >= 1.5e6),
        row("a trace of 10⁶ kernels: bytes a row", "≤ 160", nbytes / len(trace), "B",
            met=nbytes / len(trace) <= 160,
            with_launch_ids=(both.spans.nbytes + both.edges.nbytes) / len(both)),
        row("kernels of 10⁶ lost", "0", 1_000_000 - kernels, "", met=kernels == 1_000_000
            and trace.metadata.complete and both.kind_counts()["kernel"] == 500_000),
    ]  # fmt: skip


def annotating(gpu: Any, row: Row) -> list[dict]:
    import gpuscope as gs

    def cost() -> float:
        start = time.perf_counter_ns()
        for _ in range(20_000):
            with gs.annotate("step"):
                pass
        return (time.perf_counter_ns() - start) / 20_000 / 1e3

    idle, recording = [], []
    cost()
    for _ in range(9):
        idle.append(cost())
        with gs.profile(gpu):
            recording.append(cost())
    return [
        row("annotate, enter and exit, while recording", "≤ 1.2 µs", statistics.median(recording),
            "µs", met=statistics.median(recording) <= 1.2, spread=quartiles(recording)),
        row("annotate, enter and exit, not recording", "≤ 0.4 µs", statistics.median(idle), "µs",
            met=statistics.median(idle) <= 0.4, spread=quartiles(idle)),
    ]  # fmt: skip


def clocks(gpu: Any, row: Row) -> list[dict]:
    """Record 10 s with a traced copy now and then: its blocks must lie in its kernel."""
    import gpuscope as gs
    from gpuscope.workloads.traced import TracedCopy

    copy = TracedCopy(gpu, nbytes=1 << 20)
    copy.execute()
    copy.wait()
    with gs.profile(gpu) as recording:
        until = time.time() + 10
        while time.time() < until:
            copy.execute()
            copy.wait()
            time.sleep(0.1)
    trace = recording.trace
    facts = msgspec.to_builtins(trace.metadata.clocks)
    blocks, kernels = trace.where(kind="block"), trace.where(kind="kernel")
    starts = dict(zip(kernels.array("id").tolist(), kernels.array("start_ns"), strict=True))
    ends = dict(zip(kernels.array("id").tolist(), kernels.array("end_ns"), strict=True))
    parents = blocks.array("parent")
    early, late = [], []
    for kernel in np.unique(parents).tolist():
        mine = parents == kernel
        early.append(int(starts[kernel] - blocks.array("start_ns")[mine].min()))
        late.append(int(blocks.array("end_ns")[mine].max() - ends[kernel]))
    outside = max(0, *early, *late)
    unix = facts["cupti"]["residual_ns"] / 1e3
    return [
        row("clock residual over 10 s: CUPTI to Unix time", "≤ 5 µs", unix, "µs", met=unix <= 5,
            facts=facts["cupti"]),
        row("clock residual over 10 s between sources: how far thread blocks lie outside their "
            "kernel's CUPTI record", "≤ 1 µs", outside / 1e3, "µs", met=outside <= 1000,
            kernels=len(early), facts={k: v for k, v in facts.items() if "globaltimer" in k}),
    ]  # fmt: skip


def confinement(gpu: Any, row: Row) -> list[dict]:
    import gpuscope as gs
    from gpuscope.workloads.traced import TracedGemm

    counts = {"64": 500, "32": 250, "16": 125, "8": 63, "rest": 94}
    sizes = {"64": 64, "32": 32, "16": 16, "8": 8, "rest": "rest"}
    with gpu.carve(sizes) as parts:
        gemm = TracedGemm(gpu, m=4096, n=4096, k=4096)
        streams = {name: parts[name].create_stream(name=name) for name in sizes}
        handles = {name: TracedGemm(gpu, m=4096, n=4096, k=4096) for name in sizes}
        for name, handle in handles.items():
            handle.execute(stream=streams[name])
            handle.wait()
        with gs.profile(gpu) as recording:
            for name, handle in handles.items():
                for _ in range(counts[name]):
                    handle.execute(stream=streams[name])
        result = gs.analysis.confinement(recording.trace)
        for handle in (gemm, *handles.values()):
            handle.close()
    blocks = recording.trace.kind_counts()["block"]
    fractions = {one["partition"]: one for one in result.rows()}
    values = [part.fraction for part in result.partitions if part.fraction is not None]
    return [row(
        "confinement of the traced GEMM on {64, 32, 16, 8, rest}: least fraction, resident",
        "1.0 of ≥ 10⁶ blocks", min(values), "", met=min(values) == 1 and blocks >= 10**6,
        blocks=blocks, rows={name: str(facts) for name, facts in fractions.items()},
    )]  # fmt: skip


def mixed_pairs(gpu: Any) -> dict[str, Any]:
    """Time 2,000 kernels of mixed sizes by events, and by CUPTI beside them."""
    import gpuscope as gs
    from gpuscope.record.cupti import layout, tables
    from gpuscope.record.cupti.collector import get_collector
    from gpuscope.trace.joins import match
    from gpuscope.workloads.copy import Copy
    from gpuscope.workloads.spin import Spin

    rng = np.random.default_rng(1)
    works: list[Any] = [
        gs.Gemm(gpu, m=n, n=n, k=n, dtype="float16") for n in (64, 128, 256, 512, 1024, 2048)
    ]
    works += [Copy(gpu, nbytes=1 << p) for p in (12, 16, 20, 24, 27)]
    works += [Spin(gpu, duration_ns=n) for n in (2000, 20_000, 200_000)]
    taken: list[Any] = []
    collector = get_collector()
    with gpu.create_stream() as one, gpu.create_stream() as two:
        for work in works:
            for stream in (one, two):
                work.execute(stream=stream)
                work.wait()
        with gs.profile(gpu, source="events") as events:
            gpu.synchronize()
            collector.begin(1, lambda _, raw: taken.append(raw), apis="launches", limit=2 << 30)
            noted = collector.notes_launches
            for number in range(2000):
                work = works[int(rng.integers(len(works)))]
                work.execute(stream=(one, two)[int(rng.integers(2))])
                if rng.random() < 0.3:
                    work.wait()
                if number % 50 == 0:
                    gpu.synchronize()
            gpu.synchronize()
            collector.collect(forced=True)
            collector.end(1, taken_over=False)
    kernels, apis = [], []
    for raw in taken:
        read = layout.read_records(raw, layout.find_records(raw, collector.sizes))
        kernels += [read[layout.KERNEL]] if layout.KERNEL in read else []
        apis.append(tables.apis_of(read, noted=noted))
    exact = tables.join_columns(kernels)
    api = tables.join_columns([part for part in apis if part is not None])
    launched_by = match(exact["correlation"], api["correlation"])
    middle = (api["start"] + api["end"])[launched_by].astype(np.int64) // 2
    stated = events.trace.where(kind="kernel")
    calls = events.trace.where(kind="api")
    number_of = calls.array("correlation")[np.argsort(calls.array("start_ns"))]
    call = number_of[np.searchsorted(np.sort(calls.array("start_ns")), middle, "right") - 1]
    first = {n: int(exact["start"][call == n].min()) for n in np.unique(call).tolist()}
    last = {n: int(exact["end"][call == n].max()) for n in np.unique(call).tolist()}
    numbers = stated.array("correlation").tolist()
    return {
        "true_start": np.array([first[n] for n in numbers]),
        "true_end": np.array([last[n] for n in numbers]),
        "start": stated.array("start_ns"), "end": stated.array("end_ns"),
        "late": stated.array("start_uncertainty_ns"), "early": stated.array("end_uncertainty_ns"),
    }  # fmt: skip


def child_events() -> dict[str, float]:
    """Judge one recording by events, in a process of its own."""
    import gpuscope as gs

    found = mixed_pairs(gs.open_device("cuda:0", quiet=True))
    starts_in = (found["true_start"] >= found["start"]) & (
        found["true_start"] <= found["start"] + found["late"]
    )
    ends_in = (found["true_end"] <= found["end"]) & (
        found["true_end"] >= found["end"] - found["early"]
    )
    error = np.abs((found["true_start"] - found["start"]) + (found["end"] - found["true_end"]))
    stated, actual = (float(np.median(ns)) for ns in (found["late"] + found["early"], error))
    return {
        "kernels": len(starts_in), "hold": float((starts_in & ends_in).mean()),
        "starts_hold": float(starts_in.mean()), "ends_hold": float(ends_in.mean()),
        "stated_ns": stated, "error_ns": actual, "ratio": stated / actual,
    }  # fmt: skip


def events_figures(_gpu: Any, row: Row) -> list[dict]:
    """Return how true recordings by events are, each of its own process."""
    turns = [child("events") for _ in range(TURNS)]
    held = [turn["hold"] * 100 for turn in turns]
    ratios = [turn["ratio"] for turn in turns]
    return [
        row(f"kernels timed by events whose stated bounds hold CUPTI's start and end: least of "
            f"{TURNS} recordings", "≥ 98 %", min(held), "%", met=min(held) >= 98,
            spread=spread(held), turns=turns),
        row("median stated uncertainty / median actual error of events: greatest of "
            f"{TURNS} recordings", "≤ 2 ×", max(ratios), "×", met=max(ratios) <= 2,
            spread=spread(ratios)),
    ]  # fmt: skip


def recording_figures(gpu: Any, row: Row) -> Iterator[dict]:
    """Return how fast and how true recordings are, each when it is there."""
    yield from decoding(gpu, row)
    yield from annotating(gpu, row)
    yield from clocks(gpu, row)
    yield from confinement(gpu, row)


if __name__ == "__main__":
    what, out = sys.argv[2], Path(sys.argv[3])
    program = what.split()
    if what == "events":
        said = child_events()
    else:
        children = {"program": child_program, "recorded": child_recorded}
        run = children.get(program[0])
        said = run(what.partition(" ")[2]) if run else child_overhead(what)
    out.write_text(json.dumps(said))
