"""Benchmarks of the stream contracts on a real GPU; `benchmarks/h200.py` runs them."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublas

import gpuscope as gs

THREADS = 8

_BOUND = """
import json, time, cupy, gpuscope as gs
gpu = gs.open_device("cuda:0", quiet=True)
stream = gpu.create_stream()
def best(**kwargs):
    times = []
    for _ in range(15):
        start = time.perf_counter_ns()
        for _ in range(20_000):
            with gs.CallerStreamGuard(stream, **kwargs):
                pass
        times.append((time.perf_counter_ns() - start) / 20_000 / 1e3)
    times.sort()
    return {"min": times[0], "median": times[7], "max": times[-1]}
print(json.dumps({"unbound": best(), "bound to CuPy": best(bind=True)}))
stream.close()
"""


def guard_cost(_: Any) -> dict[str, Any]:
    """Enter and leave a guard, µs; in a process of its own in which only CuPy is imported."""
    done = subprocess.run([sys.executable, "-c", _BOUND], capture_output=True, text=True,
                          check=True)  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _threads_per_second(work: Any, settle: Any, count: int) -> float:
    ready, go = threading.Barrier(THREADS + 1), threading.Barrier(THREADS + 1)

    def one(index: int) -> None:
        step = work(index)
        for _ in range(50):
            step()
        ready.wait()
        go.wait()
        for _ in range(count):
            step()

    threads = [threading.Thread(target=one, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    settle()
    start = time.perf_counter()
    go.wait()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    settle()
    return THREADS * count / elapsed


def threads(gpu: Any, count: int = 3000) -> dict[str, Any]:
    """Launches a second from 8 threads on 8 streams: mm_out, and bare gemm_ex calls."""
    streams = [gpu.create_stream() for _ in range(THREADS)]
    arrays = [[gpu.random((64, 64), "float16", seed=i) for i in range(3)] for _ in streams]
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    kept: list[Any] = []

    def ours(index: int) -> Any:
        a, b, out = arrays[index]
        stream = streams[index]
        return lambda: gs.mm_out(out, a, b, stream=stream)

    def bare(index: int) -> Any:
        handle = cublas.create()
        workspace = cupy.cuda.alloc(32 << 20)
        kept.append((handle, workspace))
        cublas.set_stream(handle, streams[index].handle)
        cublas.set_workspace(handle, workspace.ptr, 32 << 20)
        a, b, out = (array.data.ptr for array in arrays[index])
        unit, nothing = one.ctypes.data, zero.ctypes.data
        return lambda: cublas.gemm_ex(
            handle, 0, 0, 64, 64, 64, unit, b, 2, 64, a, 2, 64, nothing, out, 2, 64, 68, -1
        )

    mine, other = [], []
    for _ in range(7):
        mine.append(_threads_per_second(ours, gpu.synchronize, count))
        other.append(_threads_per_second(bare, gpu.synchronize, count))
    for handle, _ in kept:
        cublas.destroy(handle)
    for stream in streams:
        stream.close()
    ratio = statistics.median(x / y for x, y in zip(mine, other, strict=True))
    return {"ratio": ratio, "mm_out": statistics.median(mine), "gemm_ex": statistics.median(other)}


def two_partitions(gpu: Any, repeats: int = 40) -> dict[str, Any]:
    """One after the other over together: equal work on 56 | 56 SMs, each in its partition.

    64 | 64 would take 16 quanta of 8; this GPU has 15 and a remainder of 12.
    """
    with gpu.carve({"a": 56, "b": 56}) as parts:
        one, two = (part.create_stream() for part in parts.values())
        handles = [gs.Gemm(gpu, m=2048, n=2048, k=2048, seed=seed) for seed in (1, 2)]

        def spend(together: bool) -> float:  # noqa: FBT001 - two ways of one measurement
            gpu.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                handles[0].execute(stream=one)
                if together:
                    handles[1].execute(stream=two)
            gpu.synchronize()
            if not together:
                for _ in range(repeats):
                    handles[1].execute(stream=two)
                gpu.synchronize()
            return time.perf_counter() - start

        spend(together=True)
        gains = [spend(together=False) / spend(together=True) for _ in range(15)]
        for handle in handles:
            handle.close()
    return {"min": min(gains), "median": statistics.median(gains), "max": max(gains)}


def cycles(gpu: Any, count: int = 10_000) -> dict[str, Any]:
    """Carve, stream, guard, mm_out, close, again and again: memory must come back."""
    a, b, out = gpu.random((64, 64)), gpu.random((64, 64)), gpu.empty((64, 64))

    def cycle() -> None:
        with gpu.carve({"one": 16}) as parts:
            stream = parts["one"].create_stream()
            with gs.CallerStreamGuard(stream):
                gs.mm_out(out, a, b)

    def resident_bytes() -> int:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - read ten thousand times
            return int(file.read().split()[1]) * resource.getpagesize()

    for _ in range(200):
        cycle()
    gc.collect()
    free_before, _ = cupy.cuda.runtime.memGetInfo()
    start = time.perf_counter()
    samples = []
    for number in range(count):
        cycle()
        if number >= count // 2 and number % 50 == 0:
            samples.append((number, resident_bytes()))
    seconds = time.perf_counter() - start
    gc.collect()
    free_after, _ = cupy.cuda.runtime.memGetInfo()
    numbers, sizes = np.array(samples, float).T
    slope = float(np.polyfit(numbers, sizes, 1)[0])
    return {
        "cycles": count, "seconds": seconds, "device_bytes_lost": int(free_before - free_after),
        "host_bytes_per_cycle": slope,
    }  # fmt: skip


def guard_entries(_: Any, each: int = 62_500) -> dict[str, Any]:
    """10⁶ guards on 8 threads and 8 tasks: each sees its own selection and no other."""
    wrong: list[Any] = []

    def enter(mine: int) -> None:
        with gs.CallerStreamGuard(mine):
            if gs.get_caller_stream() != mine:
                wrong.append(mine)

    def in_thread(index: int) -> None:
        for number in range(each):
            enter(index * each + number)

    async def in_task(index: int) -> None:
        for number in range(each):
            mine = (THREADS + index) * each + number
            with gs.CallerStreamGuard(mine):
                if number % 100 == 0:
                    await asyncio.sleep(0)
                if gs.get_caller_stream() != mine:
                    wrong.append(mine)

    async def tasks() -> None:
        await asyncio.gather(*(in_task(index) for index in range(THREADS)))

    in_thread(0)
    asyncio.run(tasks())
    gc.collect()
    objects = len(gc.get_objects())
    start = time.perf_counter()
    threads_ = [threading.Thread(target=in_thread, args=(index,)) for index in range(THREADS)]
    threads_.append(threading.Thread(target=lambda: asyncio.run(tasks())))
    for thread in threads_:
        thread.start()
    for thread in threads_:
        thread.join()
    seconds = time.perf_counter() - start
    gc.collect()
    return {
        "entries": 2 * THREADS * each, "seconds": seconds, "wrong": len(wrong),
        "objects_left": len(gc.get_objects()) - objects,
        "selection_left": gs.get_caller_stream() is not None,
    }  # fmt: skip
