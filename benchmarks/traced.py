"""Kernels with block records: their rate, and what recording costs; measured on a GPU.

Written to benchmarks/results/traced.json.

python benchmarks/traced.py [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.spin import Spin
from gpuscope.workloads.traced import TracedCopy, TracedGemm

PAIRS = 21
HOLD_NS_A_LAUNCH = 250_000


class Keeper:
    """An observer that keeps the launches, as a recorder does."""

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def call_begins(self, call: Any) -> None:
        if call.kind == "launch":
            self.launches.append(call)

    def call_ends(self, call: Any) -> None:
        pass

    def activity(self, activity: Any) -> None:
        pass


def batch_us(stream: Any, hold: Any, handle: Any, launches: int) -> float:
    """GPU µs a launch by two events; all are queued before the first one may start."""
    handle.execute(stream=stream)  # whatever it makes at first use is there now
    handle.wait()
    hold.execute(stream=stream)
    start = stream.record()
    for _ in range(launches):
        handle.execute(stream=stream)
    end = stream.record()
    if start.is_done:
        raise RuntimeError("the GPU was not held for long enough: this measured the host")
    end.synchronize()
    return end.elapsed_ns(since=start) / 1e3 / launches


def cost(gpu: Any, stream: Any, handle: Any, launches: int) -> dict[str, Any]:
    """Alternate recording on and off; the first of a pair takes turns."""
    hold = Spin(gpu, duration_ns=HOLD_NS_A_LAUNCH * launches)
    keeper = Keeper()

    def timed(*, on: bool) -> float:
        if not on:
            return batch_us(stream, hold, handle, launches)
        keeper.launches.clear()
        gpu.calls.observe(keeper)
        try:
            return batch_us(stream, hold, handle, launches)
        finally:
            gpu.calls.unobserve(keeper)

    for on in (False, True, False, True):
        timed(on=on)
    times: dict[bool, list[float]] = {False: [], True: []}
    again = []
    for pair in range(PAIRS):
        for on in (True, False) if pair % 2 else (False, True):
            times[on].append(timed(on=on))
        again.append(timed(on=False))
    ratios = sorted(on / off for on, off in zip(times[True], times[False], strict=True))
    same = sorted(one / off for one, off in zip(again, times[False], strict=True))
    hold.close()
    return {
        "off_us": statistics.median(times[False]),
        "on_us": statistics.median(times[True]),
        "on_over_off": {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]},
        "off_over_off": {"median": statistics.median(same), "min": same[0], "max": same[-1]},
        "pairs": PAIRS,
        "launches_a_batch": launches,
    }


def products(gpu: Any, stream: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for size, launches in ((512, 40), (4095, 4), (4096, 10)):
        with TracedGemm(gpu, m=size, n=size, k=size) as handle:
            found[f"{size}³"] = one = cost(gpu, stream, handle, launches)
            one["tflop_per_s"] = handle.flop_count / one["off_us"] / 1e6
        with gs.Gemm(gpu, m=size, n=size, k=size) as library:
            hold = Spin(gpu, duration_ns=HOLD_NS_A_LAUNCH * launches)
            times = [batch_us(stream, hold, library, launches) for _ in range(7)]
            one["gemm_tflop_per_s"] = library.flop_count / statistics.median(times) / 1e6
            hold.close()
    return found


def copies(gpu: Any, stream: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mebibytes, launches in ((1, 40), (16, 40), (256, 20)):
        with TracedCopy(gpu, nbytes=mebibytes << 20) as handle:
            found[f"{mebibytes} MiB"] = one = cost(gpu, stream, handle, launches)
            one["tb_per_s"] = 2 * handle.nbytes / one["off_us"] / 1e6
    return found


def timer(gpu: Any, stream: Any) -> dict[str, Any]:
    """The step of %globaltimer, and how long the shortest block takes by it, ns."""
    keeper = Keeper()
    with TracedGemm(gpu, m=1, n=1, k=1) as small, TracedCopy(gpu, nbytes=64 << 20) as copy:
        gpu.calls.observe(keeper)
        for _ in range(100):
            small.execute(stream=stream)
            copy.execute(stream=stream)
        gpu.calls.unobserve(keeper)
        stream.synchronize()
        records = [gpu.to_host(call.blocks).astype(np.int64) for call in keeper.launches]
    times = np.unique(np.concatenate([one[:, :2].ravel() for one in records]))
    shortest = [int(one[0, 1] - one[0, 0]) for one in records[::2]]
    return {
        "step_ns": int(np.gcd.reduce(np.diff(times))),
        "least_difference_ns": int(np.diff(times).min()),
        "block_of_1x1x1_ns": {"min": min(shortest), "median": statistics.median(shortest)},
    }


def host(gpu: Any, stream: Any, calls: int = 200) -> dict[str, float]:
    """Host µs of execute(): the median of 15 loops, a plain Copy beside a traced one."""
    keeper = Keeper()

    def each_us(handle: Any) -> float:
        handle.execute(stream=stream)
        times = []
        for _ in range(15):
            keeper.launches.clear()
            stream.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                handle.execute(stream=stream)
            times.append((time.perf_counter() - start) / calls * 1e6)
        return statistics.median(times)

    found = {}
    with Copy(gpu, nbytes=4096) as plain, TracedCopy(gpu, nbytes=4096) as traced:
        for name, handle in (("copy", plain), ("traced copy", traced)):
            found[f"{name}, unobserved"] = each_us(handle)
            gpu.calls.observe(keeper)
            found[f"{name}, observed"] = each_us(handle)
            gpu.calls.unobserve(keeper)
    return found


def measure(gpu: Any) -> dict[str, Any]:
    with gpu.create_stream(name="traced") as stream:
        return {
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "command": "python benchmarks/traced.py",
            "device": gpu.info.name,
            "driver": gpu.info.driver,
            "timer": timer(gpu, stream),
            "gemm": products(gpu, stream),
            "copy": copies(gpu, stream),
            "execute_us": host(gpu, stream),
        }


def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/traced.json"))
    arguments = parser.parse_args()
    facts = measure(gs.open_device("cuda:0"))
    print(json.dumps(facts, indent=1, ensure_ascii=False))
    arguments.out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return facts


if __name__ == "__main__":
    main()
