"""What telling cuBLAS an SM count does on partitions that hold the driver's remainder of SMs.

    python benchmarks/remainder.py [--out benchmarks/results/remainder.json]

Each product runs on partitions with and without the remainder, cuBLAS told of each of several SM
counts and not told; the counts take turns, so that clocks and heat meet them alike.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from facts import write

import gpuscope as gs

SQUARES = {"float16": (1024, 2048, 4096, 8192), "float32": (2048,), "float64": (2048,)}
MIXED = (12, 20, 28, 36, 44, 60, 76, 92, 108, 116, 124)
PURE = (16, 24, 32, 64, 96, 120)
ROUNDS = 9
NOT_TOLD = 0


def told_counts(part: Any, remainder: int) -> list[int]:
    """SM counts to tell: what was granted, what holds clusters, and some between."""
    granted = part.sm_count
    counts = {granted, part.sm_count_target, granted - remainder, granted - 4, granted - 8}
    return [NOT_TOLD, *sorted(count for count in counts if count > 0)]


def measure(gpu: Any, sm_count: int) -> list[dict[str, Any]]:
    """Time every product on one partition: median µs of its kernels, by told SM count."""
    remainder = gpu.sm_count % 8 + (8 if gpu.sm_count % 8 else 0)
    rows = []
    with gpu.carve([sm_count], allow_shared=True) as parts:
        part = parts[0]
        with part.create_stream() as stream:
            handles = {}
            for dtype, sides in SQUARES.items():
                for side in sides:
                    for told in told_counts(part, remainder):
                        name = f"{dtype} {side} {told}"
                        handles[name] = gs.Gemm(
                            gpu, m=side, n=side, k=side, dtype=dtype, name=name,
                            sm_count_target=told or None,
                        )  # fmt: skip
            operands = {}
            for name, handle in handles.items():
                dtype, side, told = name.split()
                operands.setdefault((dtype, side), handle.operands())
                try:
                    handle.execute(*operands[dtype, side], stream=stream)
                except gs.errors.GpuscopeError as error:
                    rows.append({"sm_count": sm_count, "auto": part.sm_count_target,
                                 "dtype": dtype, "side": int(side), "told": int(told),
                                 "refused": str(error)})  # fmt: skip
            stream.synchronize()
            refused = {f"{row['dtype']} {row['side']} {row['told']}" for row in rows}
            handles = {name: handles[name] for name in handles if name not in refused}
            with gs.profile(gpu) as recording:
                for _ in range(ROUNDS):
                    for name, handle in handles.items():
                        dtype, side, _ = name.split()
                        handle.execute(*operands[dtype, side], stream=stream)
                    stream.synchronize()
            trace = recording.trace.where(kind="kernel")
            for name in handles:
                mine = trace.where(category=name)
                ours = mine.spans.column("external_correlation")
                numbers = mine.array("correlation") if ours.null_count else ours.to_numpy()
                call, first = np.unique(numbers, return_inverse=True)
                start = np.full(len(call), np.iinfo(np.int64).max)
                end = np.zeros(len(call), np.int64)
                np.minimum.at(start, first, mine.array("start_ns"))
                np.maximum.at(end, first, mine.array("end_ns"))
                dtype, side, told = name.split()
                configs = mine.spans.column("launch_config").to_pylist()
                rows.append({
                    "sm_count": sm_count, "auto": part.sm_count_target, "dtype": dtype,
                    "side": int(side), "told": int(told), "calls": len(call),
                    "us": float(np.median(end - start)) / 1e3,
                    "kernels": sorted(set(mine.spans.column("name").to_pylist())),
                    "launch_configs": sorted({str(config) for config in configs}),
                })  # fmt: skip
            for handle in handles.values():
                handle.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/remainder.json"))
    parser.add_argument("--device", default=None)
    args = parser.parse_args()
    gpu = gs.open_device(args.device, quiet=True) if args.device else gs.open_device(quiet=True)
    counts = sorted(count for count in (*MIXED, *PURE) if count < gpu.sm_count)
    rows = [row for count in counts for row in measure(gpu, count)]
    write(args.out, "python benchmarks/remainder.py", gpu.info.name, rows,
          driver=gpu.info.driver)  # fmt: skip
    for dtype, sides in SQUARES.items():
        for side in sides:
            print(f"{dtype} {side}: µs by told SM count (0: not told)")
            for count in counts:
                mine = [r for r in rows if (r["sm_count"], r["dtype"], r["side"]) ==
                        (count, dtype, side)]  # fmt: skip
                texts = [
                    f"{r['told']}{'*' if r['told'] == r['auto'] else ''}: "
                    + (f"{r['us']:.1f}" if "us" in r else "refused")
                    for r in mine
                ]
                print(f"  {count:3d} SMs  " + "   ".join(texts))


if __name__ == "__main__":
    main()
