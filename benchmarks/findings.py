"""What made the design differ: measured on a GPU, written to benchmarks/results/findings.json.

python benchmarks/findings.py [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cupy
from cuda.bindings import driver

import gpuscope as gs
from gpuscope.workloads import spin

CYCLES = 150
PATIENCE_S = 6
"""How long a wait may last that should take milliseconds."""
SPIN = cupy.RawKernel(spin.SOURCE, "spin_kernel")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    if int(result[0]) != 0:
        raise RuntimeError(result[0])
    return result[1:]


def green_context() -> None:
    """Make a green context of 16 SMs and destroy it, by bare driver calls."""
    device = driver.CUdevice(0)
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    (resource,) = checked(driver.cuDeviceGetDevResource(device, kind))
    groups, *_ = checked(driver.cuDevSmResourceSplitByCount(1, resource, 0, 16))
    (description,) = checked(driver.cuDevResourceGenerateDesc(groups, 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    (context,) = checked(driver.cuGreenCtxCreate(description, device, flags))
    checked(driver.cuGreenCtxDestroy(context))


def lost_memory() -> dict[str, float]:
    """Bytes that one cuGreenCtxCreate and cuGreenCtxDestroy lose."""
    for _ in range(20):
        green_context()
    free, host = cupy.cuda.runtime.memGetInfo()[0], resident_bytes()
    for _ in range(CYCLES):
        green_context()
    lost = free - cupy.cuda.runtime.memGetInfo()[0]
    return {"device_bytes": lost / CYCLES, "host_bytes": (resident_bytes() - host) / CYCLES}


def sm_count_targets(gpu: Any) -> dict[str, Any]:
    """4096³ float16 on 16 | rest: GPU µs (least of 20) by the SM count that cuBLAS is told."""
    with gpu.carve({"small": 16, "load": "rest"}) as parts:
        part = parts["load"]
        stream = part.create_stream()
        found: dict[str, Any] = {"sm_count": part.sm_count, "auto": part.sm_count_target}
        for told in (None, part.sm_count, part.sm_count_target):
            handle = gs.Gemm(gpu, m=4096, n=4096, k=4096, sm_count_target=told)
            handle.execute(stream=stream)
            times = []
            for _ in range(20):
                start = stream.record()
                handle.execute(stream=stream)
                end = stream.record()
                end.synchronize()
                times.append(end.elapsed_ns(since=start) / 1e3)
            found["not told" if told is None else f"told {told}"] = min(times)
            handle.close()
    return found


def missed_graph(gpu: Any) -> dict[str, float]:
    """Milliseconds that waits last for a graph of 20 ms, by bare calls in a partition's stream."""
    runtime = cupy.cuda.runtime
    with gpu.carve({"small": 16, "load": "rest"}) as parts:
        stream = parts["small"].create_stream()
        with cupy.cuda.Stream.from_external(stream) as bare:
            SPIN((1,), (1,), (1000,))
            bare.synchronize()
            bare.begin_capture()
            SPIN((1,), (1,), (20_000_000,))
            graph = bare.end_capture()
            found = {}
            for name, wait in (
                ("device", runtime.deviceSynchronize),
                ("stream", bare.synchronize),
            ):
                graph.launch(bare)
                start = time.perf_counter_ns()
                wait()
                found[name] = (time.perf_counter_ns() - start) / 1e6
                bare.synchronize()
    return found


def orphaned_lock(freed: str, thread: str) -> None:
    """Give pool memory back, let a thread end, wait for the device; print how long that took.

    Parameters
    ----------
    freed
        ``"legacy"`` or ``"own"``: in which stream the memory goes back.
    thread
        ``"waits"`` for the work in its per-thread default stream before it ends, or ``"goes"``.
    """
    SPIN((1,), (1,), (1000,))
    own, per_thread = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.ptds
    (pool,) = checked(driver.cuDeviceGetDefaultMemPool(driver.CUdevice(0)))
    (pointer,) = checked(driver.cuMemAllocFromPoolAsync(4096, pool, own.ptr))
    cupy.cuda.Device().synchronize()
    checked(driver.cuMemFreeAsync(pointer, own.ptr if freed == "own" else 1))

    def work() -> None:
        with per_thread:
            SPIN((1,), (1,), (2_000_000,))
        if thread == "waits":
            per_thread.synchronize()

    longest = 0.0
    for _ in range(6):
        one = threading.Thread(target=work)
        one.start()
        one.join()
        start = time.perf_counter_ns()
        cupy.cuda.Device().synchronize()
        longest = max(longest, (time.perf_counter_ns() - start) / 1e6)
    print(longest, flush=True)


def orphaned_locks() -> dict[str, float | None]:
    """Milliseconds that the wait lasts, at most of six; None: it had not returned in 6 s."""
    found: dict[str, float | None] = {}
    for freed in ("legacy", "own"):
        for thread in ("goes", "waits"):
            command = [sys.executable, __file__, "--orphaned-lock", freed, thread]
            case = f"freed in {freed}, thread {thread}"
            try:
                found[case] = float(subprocess.check_output(command, timeout=PATIENCE_S))
            except subprocess.TimeoutExpired:
                found[case] = None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orphaned-lock", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/findings.json"))
    arguments = parser.parse_args()
    if arguments.orphaned_lock:
        orphaned_lock(*arguments.orphaned_lock)
        return
    gpu = gs.open_device("cuda:0")
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": "python benchmarks/findings.py",
        "device": gpu.info.name,
        "driver": gpu.info.driver,
        "sm_count_targets_us": sm_count_targets(gpu),
        "lost_by_one_green_context": lost_memory(),
        "wait_for_a_graph_of_20_ms": missed_graph(gpu),
        "wait_for_the_device_ms": orphaned_locks(),
    }
    print(json.dumps(facts, indent=1))
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
