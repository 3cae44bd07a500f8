"""How long copies and memsets of every size take, by direction and kind of host memory.

python benchmarks/transfers.py [--out benchmarks/results/transfers.json]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from facts import write

import gpuscope as gs

SIZES = [4, *(1 << power for power in range(10, 29))]
ROUNDS = 11


def ways(gpu: Any, nbytes: int) -> dict[str, tuple[Any, Any]]:
    """Destination and source of each way to copy."""
    near, far = gpu.empty(nbytes, "uint8"), gpu.empty(nbytes, "uint8")
    pinned, pageable = gpu.empty_pinned(nbytes, "uint8"), np.ones(nbytes, np.uint8)
    pinned[...] = 1
    return {
        "pinned up": (near, pinned), "pinned down": (pinned, near), "inside": (far, near),
        "pageable up": (near, pageable), "pageable down": (pageable, near),
    }  # fmt: skip


def measure(gpu: Any, stream: Any) -> list[dict[str, Any]]:
    rows = []
    for nbytes in SIZES:
        operands = ways(gpu, nbytes)
        for way, pair in operands.items():
            stream.copy(*pair)
            stream.synchronize()
            call_us = []
            with gs.profile(gpu, source="cupti") as recording:
                for _ in range(ROUNDS):
                    start = time.perf_counter_ns()
                    stream.copy(*pair)
                    call_us.append((time.perf_counter_ns() - start) / 1e3)
                    stream.synchronize()
            rows.append(row(recording.trace.where(kind="memcpy"), way, nbytes, call_us))
        near = operands["inside"][0]
        with gs.profile(gpu, source="cupti") as recording:
            for _ in range(ROUNDS):
                cupy.cuda.runtime.memsetAsync(near.data.ptr, 0, nbytes, stream.handle)
                stream.synchronize()
        rows.append(row(recording.trace.where(kind="memset"), "memset", nbytes, []))
    return rows


def row(trace: Any, way: str, nbytes: int, call_us: list[float]) -> dict[str, Any]:
    """Median µs of one copy on the GPU, of the call, and the pieces that CUPTI saw of it."""
    times = trace.array("end_ns") - trace.array("start_ns")
    found: dict[str, Any] = {"way": way, "nbytes": nbytes, "rows": len(times) / ROUNDS}
    if len(times):
        found |= {"us": float(np.sum(times)) / ROUNDS / 1e3, "least_us": float(times.min()) / 1e3,
                  "median_us": float(np.median(times)) / 1e3}  # fmt: skip
    if call_us:
        found["call_us"] = float(np.median(call_us))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/transfers.json"))
    args = parser.parse_args()
    gpu = gs.open_device("cuda", quiet=True)
    with gpu.create_stream() as stream:
        rows = measure(gpu, stream)
    write(args.out, "python benchmarks/transfers.py", gpu.info.name, rows, driver=gpu.info.driver)
    names = list(dict.fromkeys(found["way"] for found in rows))
    print("median µs on the GPU (µs of the call)")
    print(f"{'bytes':>10}" + "".join(f"{name:>22}" for name in names))
    for nbytes in SIZES:
        texts = []
        for name in names:
            (mine,) = (r for r in rows if (r["way"], r["nbytes"]) == (name, nbytes))
            call = f" ({mine['call_us']:.1f})" if "call_us" in mine else ""
            texts.append(f"{mine.get('median_us', float('nan')):.2f}{call}")
        print(f"{nbytes:>10}" + "".join(f"{text:>22}" for text in texts))


if __name__ == "__main__":
    main()
