"""How true sampled counters are, what sampling costs, and whether it comes and goes cleanly.

    python benchmarks/counters.py [--only levels|shares|bytes|edges|cost|long|starts] [--starts N]
                                  [--out FILE]

Kernels of known grids, one block an SM, tell how many SMs are busy; copies and a kernel of known
traffic tell the bytes; kernel records tell the edges. *shares* also leaves launch configurations
out, so that only grants and levels bound what each of three partitions used; grids are the truth.
Parts that are not run again keep their rows in FILE. Needs a CUDA GPU and CuPy.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import resource
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from facts import BESIDE, clocks, command, row, spread, write

import gpuscope as gs
from gpuscope.analysis.sm_shares import shares
from gpuscope.record.counters import EVERY_NS, READY_S, CounterProcess
from gpuscope.trace import schema
from gpuscope.trace.counters import BUSY, READ, WRITTEN, samples_of
from gpuscope.trace.model import Trace

GRIDS = (1, 8, 16, 32, 64, 84, 132)
CARVINGS = ({"a": 16, "b": 32, "c": "rest"}, {"a": 8, "b": "rest"}, {"a": 64, "b": "rest"})
MARGIN_NS = 1000
GIB = 1 << 30
RECORDINGS = 5
AROUND_NS = 30_000


def blocks_of(trace: Trace) -> np.ndarray:
    """Return how many thread blocks each kernel of a trace has."""
    texts = trace.where(kind="kernel").texts("launch_config")
    return np.array([json.loads(text)["grid"][0] for text in texts])


def truth(trace: Trace) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a trace's samples, the SMs that grids keep busy in each, and whether those are sure.

    Sure are samples throughout which the same kernels ran.
    """
    (samples,) = samples_of(trace)
    kernels = trace.where(kind="kernel")
    starts, ends, blocks = kernels.array("start_ns"), kernels.array("end_ns"), blocks_of(trace)
    busy = np.zeros(len(samples))
    is_sure = np.ones(len(samples), bool)
    for start, end, count in zip(starts.tolist(), ends.tolist(), blocks.tolist(), strict=True):
        inside = (samples.starts >= start + MARGIN_NS) & (samples.ends <= end - MARGIN_NS)
        apart = (samples.ends < start - MARGIN_NS) | (samples.starts > end + MARGIN_NS)
        busy[inside] += count
        is_sure &= inside | apart
    return samples, busy, is_sure & (busy > 0)


def near(trace: Trace) -> tuple[int, float, float]:
    """Return how many samples are sure, in which share the SMs are right, and the worst error."""
    samples, busy, is_sure = truth(trace)
    error = np.abs(samples.values[BUSY] - busy)[is_sure]
    return len(error), float((error <= 0.5).mean()), float(error.max())


def levels(gpu: Any) -> Iterator[dict]:
    """Known grids on the whole GPU, on one partition, and on several at once."""
    kernel = gs.workloads.spin_kernel(gpu)
    for carving in CARVINGS:
        with gpu.carve(carving) as parts:
            streams = {name: parts[name].create_stream() for name in carving}
            grants = {name: parts[name].sm_count for name in carving}
            for stream in streams.values():
                stream.launch(kernel, 1000, grid=1, block=32)
            gpu.synchronize()
            with gs.profile(gpu, counters="50 us", stacks=False) as recording:
                for name, stream in streams.items():
                    for grid in GRIDS:
                        if grid <= grants[name]:
                            stream.launch(kernel, 2_000_000, grid=grid, block=32)
                            stream.synchronize()
                for _ in range(4):
                    for name, stream in streams.items():
                        stream.launch(kernel, 3_000_000, grid=grants[name], block=32)
                    gpu.synchronize()
            count, share, worst = near(recording.trace)
            words = ", ".join(f"{size}" for size in grants.values())
            yield row(f"busy SMs within 0.5 of the grids', partitions of {words}", "≥ 99 %",
                      100 * share, "%", met=share >= 0.99, samples=count, worst=worst)  # fmt: skip
    with gpu.create_stream() as stream, gs.profile(gpu, counters="50 us") as recording:
        for grid in GRIDS:
            stream.launch(kernel, 2_000_000, grid=grid, block=32)
            stream.synchronize()
    count, share, worst = near(recording.trace)
    yield row("busy SMs within 0.5 of the grids', the whole GPU", "≥ 99 %", 100 * share, "%",
              met=share >= 0.99, samples=count, worst=worst)  # fmt: skip


def of_shares(gpu: Any) -> Iterator[dict]:
    """Three partitions at once, whose grids are the truth of what each uses."""
    kernels = {name: gs.workloads.spin_kernel(gpu, f"spin_{name}") for name in "abc"}
    with gpu.carve(CARVINGS[0]) as parts:
        streams = {name: parts[name].create_stream() for name in "abc"}
        plans = [
            {"a": (16, 1.1), "b": (32, 1.7), "c": (84, 0.9)},
            {"a": (10, 1.3), "b": (20, 0.9), "c": (50, 1.7)},
            {"a": (16, 2.1), "b": (9, 1.2), "c": (70, 1.5)},
            {"a": (3, 1.0), "b": (31, 1.9), "c": (84, 1.4)},
        ]
        for plan in plans:
            grids = {name: grid for name, (grid, _) in plan.items()}
            with gs.profile(gpu, counters="50 us", stacks=False) as recording:
                for name, (grid, ms) in plan.items():  # alone: the level of each
                    streams[name].launch(kernels[name], round(ms * 1e6), grid=grid, block=32)
                    gpu.synchronize()
                for number in range(12):
                    for name, (grid, ms) in plan.items():
                        ns = round(ms * 1e6 * (1 + 0.13 * (number % 4)))
                        streams[name].launch(kernels[name], ns, grid=grid, block=32)
                    if number % 3 == 2:
                        gpu.synchronize()
            for what, trace in (
                ("with launch configurations", recording.trace),
                ("without", without(recording.trace, "launch_config")),
            ):
                (divided,) = shares(trace)
                together = (divided.ran >= 0.999).sum(axis=1) >= 2
                right, inside, count = 0, 0, 0
                for number, name in enumerate(divided.partitions):
                    rows = together & (divided.ran[:, number] >= 0.999)
                    busy, grid = divided.busy[rows, number], grids[str(name)]
                    right += int((np.abs(busy - grid) <= 0.05 * grid).sum())
                    slack = 0.05
                    low, high = divided.low[rows, number], divided.high[rows, number]
                    inside += int(((low - slack <= grid) & (grid <= high + slack)).sum())
                    count += int(rows.sum())
                grid_words = ", ".join(map(str, grids.values()))
                for of, part in (("busy SMs within 5 % of", right), ("bounds hold", inside)):
                    yield row(f"{of} the grids {grid_words} on 16, 32, 84 at once, {what}",
                              "≥ 90 %", 100 * part / max(count, 1), "%",
                              met=part >= 0.9 * count, samples=count)  # fmt: skip


def without(trace: Trace, column: str) -> Trace:
    import pyarrow as pa

    spans = schema.with_column(trace.spans, column, pa.nulls(len(trace)))
    return Trace(spans, trace.edges, trace.metadata)


def of_bytes(gpu: Any) -> Iterator[dict]:
    """Copies, a memset and a kernel of known traffic, on a partition and on the whole GPU."""
    source, target = (cp.zeros(GIB // 4, cp.float32) for _ in range(2))
    double = cp.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x + 1", "double_it")
    double(source, target)
    work: dict[str, tuple[Callable[[], Any], float, float]] = {
        "8 copies of 1 GiB": (lambda: cp.copyto(target, source), 8, 8),
        "8 doublings of 1 GiB": (lambda: double(source, target), 8, 8),
        "8 memsets of 1 GiB": (lambda: target.data.memset(0, target.nbytes), 0, 8),
    }
    cp.cuda.Device(0).synchronize()
    for where in ({"a": 32, "b": "rest"}, {}):
        with gpu.carve(where) if where else gpu.create_stream() as made:
            stream = made["a"].create_stream() if where else made
            for name, (run, read, written) in work.items():
                external = cp.cuda.Stream.from_external(stream)
                with gs.profile(gpu, counters="100 us", stacks=False) as recording:
                    time.sleep(0.002)
                    with external:
                        for _ in range(8):
                            run()
                    external.synchronize()
                    time.sleep(0.002)
                (samples,) = samples_of(recording.trace)
                for quantity, gib in ((READ, read), (WRITTEN, written)):
                    moved = float(np.nansum(samples.values[quantity] * samples.lengths)) / GIB
                    if gib:
                        error = abs(moved / gib - 1)
                        on = "32 SMs" if where else "the whole GPU"
                        yield row(f"{name} on {on}: {quantity.split(' (')[0]}, against {gib:g} GiB",
                                  "within 2 %", 100 * error, "%", met=error <= 0.02,
                                  gib=moved)  # fmt: skip


def edges(gpu: Any) -> Iterator[dict]:
    """Edges of kernels by samples of 10 µs against their records.

    An edge that is not amid samples is not measured: how many that are is told, too.
    """
    kernel = gs.workloads.spin_kernel(gpu)
    errors: dict[str, list[float]] = {"starts": [], "ends": []}
    edge_count = 0
    for _ in range(RECORDINGS):
        with gpu.create_stream() as stream, gs.profile(gpu, counters="10 us") as recording:
            for number in range(40):
                stream.launch(kernel, 300_000 + 7_000 * number, grid=gpu.info.sm_count, block=32)
                stream.synchronize()
                time.sleep(0.0005)
        kernels = recording.trace.where(kind="kernel")
        edge_count += 2 * len(kernels)
        for name, column in (("starts", "start_ns"), ("ends", "end_ns")):
            errors[name] += edge_errors(recording.trace, kernels.array(column), name, gpu)
    for name, of_edges in errors.items():
        worst = max(map(abs, of_edges))
        yield row(f"{name} of {len(of_edges)} kernels by samples of 10 µs, the worst", "≤ 2 µs",
                  worst, "µs", met=worst <= 2, errors=spread(of_edges))  # fmt: skip
    measured = sum(map(len, errors.values()))
    yield row(f"edges amid samples of 10 µs, in {RECORDINGS} recordings of 40 kernels each", BESIDE,
              100 * measured / edge_count, "%", met=True)  # fmt: skip


def edge_errors(trace: Trace, times: Any, name: str, gpu: Any) -> list[float]:
    """Return by how many µs the edges by samples are later than by records."""
    found = samples_of(trace)
    if not found:
        return []
    samples = found[0]
    sms_ns = samples.values[BUSY] / gpu.info.sm_count * samples.lengths
    errors = []
    for time_ns in times.tolist():
        first = int(np.searchsorted(samples.ends, time_ns - AROUND_NS))
        behind = int(np.searchsorted(samples.starts, time_ns + AROUND_NS))
        starts, ends = samples.starts[first:behind], samples.ends[first:behind]
        is_covered = len(starts) > 0 and starts[0] <= time_ns - AROUND_NS / 2
        is_covered = is_covered and ends[-1] >= time_ns + AROUND_NS / 2
        if not is_covered or (starts[1:] > ends[:-1] + 100).any():
            continue
        busy_ns = float(sms_ns[first:behind].sum())
        by_samples = ends[-1] - busy_ns if name == "starts" else starts[0] + busy_ns
        errors.append(float(by_samples - time_ns) / 1e3)
    return errors


def sampler_of(gpu: Any, every_ns: int = EVERY_NS) -> CounterProcess:
    process = CounterProcess(gpu.info.index, gpu.info.uuid, every_ns)
    process.wait(time.monotonic() + READY_S)
    if process.refusal:
        raise SystemExit(f"no counters: {process.refusal}")
    return process


def cost(gpu: Any, turns: int = 8, seconds: float = 0.5) -> Iterator[dict]:
    """A loop of products and a loop of launches, sampled and not, in turns."""
    product = gs.Gemm(gpu, m=4096, n=4096, k=4096, dtype="float16")
    kernel = gpu.compile('extern "C" __global__ void nothing() {}', "nothing")
    with gpu.create_stream() as stream:

        def products() -> None:
            product.execute(stream=stream)

        def launches() -> None:
            for _ in range(200):
                stream.launch(kernel, grid=1, block=32)
            stream.synchronize()

        def rate(run: Callable[[], None]) -> float:
            count, start = 0, time.perf_counter()
            while time.perf_counter() < start + seconds:
                run()
                count += 1
            stream.synchronize()
            return count / (time.perf_counter() - start)

        for name, run in (("products of 4096³", products), ("launches", launches)):
            rate(run)
            lost, again, clock = [], [], {}
            for _ in range(turns):
                rates: dict[bool, list[float]] = {False: [], True: []}
                with clocks(gpu) as off:
                    rates[False].append(rate(run))
                process = sampler_of(gpu)
                with clocks(gpu) as on:
                    rates[True].append(rate(run))
                process.end()
                rates[False].append(rate(run))
                lost.append(100 * (1 - rates[True][0] / statistics.mean(rates[False])))
                again.append(100 * (1 - rates[False][1] / rates[False][0]))
                clock = {"off": off.get("sm_clock_mhz"), "on": on.get("sm_clock_mhz")}
            typical = statistics.median(lost)
            yield row(f"{name}: lost by sampling every 100 µs", "≤ 2 %", typical, "%",
                      met=typical <= 2, turns=spread(lost), again=spread(again),
                      sm_clock_mhz=clock)  # fmt: skip


def long(gpu: Any) -> Iterator[dict]:
    """Samples while products run: losses, and what the sampler takes of a core."""
    yield from lasting(gpu, 60.0, EVERY_NS, "0 ms")
    yield from lasting(gpu, 10.0, 50_000, BESIDE)
    yield from lasting(gpu, 10.0, 20_000, BESIDE)


def lasting(gpu: Any, seconds: float, every_ns: int, goal: str) -> Iterator[dict]:
    """Sample for a while; what is judged of the default is beside for shorter samples."""
    product = gs.Gemm(gpu, m=2048, n=2048, k=2048, dtype="float16")
    before, free = resource.getrusage(resource.RUSAGE_CHILDREN), cp.cuda.runtime.memGetInfo()[0]
    process = sampler_of(gpu, every_ns)
    taken = free - cp.cuda.runtime.memGetInfo()[0]
    start, parts = time.monotonic(), []
    with gpu.create_stream() as stream:
        while time.monotonic() < start + seconds:
            for _ in range(200):
                product.execute(stream=stream)
            stream.synchronize()
            parts.append(process.new())
    process.end()
    took = time.monotonic() - start
    parts.append(process.new())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    samples = np.concatenate(parts)
    is_lost = np.isnan(samples["sms"])
    lost_ms = float((samples["end_ns"] - samples["start_ns"])[is_lost].sum()) / 1e6
    share = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / took
    is_judged, often = goal != BESIDE, f"every {every_ns / 1e3:g} µs"
    yield row(f"samples lost in {seconds:g} s, {often}", goal, lost_ms, "ms",
              met=lost_ms == 0 or not is_judged, samples=int((~is_lost).sum()),
              gaps=int(is_lost.sum()))  # fmt: skip
    yield row(f"GPU memory that the sampler takes, {often}", BESIDE, taken / 2**20, "MiB", met=True)
    yield row(f"what the sampler takes of a core, {often}", "≤ 0.7" if is_judged else BESIDE,
              share, "cores", met=share <= 0.7 or not is_judged)  # fmt: skip


def starts(gpu: Any, count: int) -> Iterator[dict]:
    """Start and stop again and again, a quarter as often by killing it."""
    took, bad, left = [], 0, 0
    for number in range(count + count // 4):
        is_kill = number >= count
        begin = time.perf_counter()
        process = sampler_of(gpu)
        time.sleep(0.003)
        pid = process._process.pid
        if is_kill:
            os.kill(pid, signal.SIGKILL)
        process.end()
        took.append(time.perf_counter() - begin)
        samples = process.new()
        bad += not is_kill and (bool(process.refusal) or len(samples) == 0)
        left += Path(f"/proc/{pid}").exists()
    yield row(f"{count} starts and stops, of them without samples", "0", bad, "starts",
              met=bad == 0)  # fmt: skip
    yield row(f"processes left behind these and {count // 4} kills", "0", left, "processes",
              met=left == 0)  # fmt: skip
    yield row("a start and stop", BESIDE, statistics.median(took), "s", met=True,
              times=spread(took))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parts: dict[str, Callable[[Any], Iterator[dict]]] = {
        "levels": levels, "shares": of_shares, "bytes": of_bytes, "edges": edges, "cost": cost,
        "long": long,
    }  # fmt: skip
    parser.add_argument("--only", choices=(*parts, "starts"), action="append")
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/counters.json"))
    asked = parser.parse_args()
    gpu = gs.open_device("cuda:0", quiet=True)
    rows = json.loads(asked.out.read_text("utf-8"))["rows"] if asked.out.exists() else []
    run = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "command": command()}
    parts["starts"] = lambda of: starts(of, asked.starts)
    for part in asked.only or parts:
        new = []
        try:
            for each in parts[part](gpu):
                mark = "ok" if each["met"] else "NO"
                print(f"{mark} {each['value']:10.3f} {each['unit']:9} {each['what']}", flush=True)
                new.append({**each, "part": part, **run})
        except (gs.errors.GpuscopeError, ValueError) as error:
            print(f"NO {part}: {error}", flush=True)
        rows = [each for each in rows if each["part"] != part] + new
        write(asked.out, run["command"], gpu.info.name, rows, driver=gpu.info.driver)


if __name__ == "__main__":
    main()
