"""What made the design differ: measured on a GPU, written to benchmarks/results/findings.json.

python benchmarks/findings.py [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
from pathlib import Path
from typing import Any

import cupy
from cuda.bindings import driver

import gpuscope as gs

CYCLES = 150


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/findings.json"))
    arguments = parser.parse_args()
    gpu = gs.open_device("cuda:0")
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": "python benchmarks/findings.py",
        "device": gpu.info.name,
        "driver": gpu.info.driver,
        "sm_count_targets_us": sm_count_targets(gpu),
        "lost_by_one_green_context": lost_memory(),
    }
    print(json.dumps(facts, indent=1))
    arguments.out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
