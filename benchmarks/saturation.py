"""Requests near saturation, measured twice on a GPU and simulated: times to first token, goodput.

    python benchmarks/saturation.py                on an H100; --profile and --out for others
    python benchmarks/saturation.py --simulate     the simulation, beside what was measured

A rate is ``LOADS`` times what the prefill serves at most: the reciprocal of its kernels' median at
a low rate, on the GPU that is measured. The host is calibrated before, by itself. Close is within
15 %, or within what two measurements differ by.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import facts  # beside this file
import latencies
import numpy as np

import gpuscope as gs

RESULTS = Path(__file__).parent / "results" / "saturation_h100.json"
LOADS = (0.9, 1.0, 1.1)
CLOSE = 0.15
COLUMNS = ("ttft_p50_ns", "ttft_p90_ns", "goodput_per_s")

Facts = dict[str, Any]


def experiment(rate_hz: float) -> Facts:
    """Return an experiment of requests whose prefill and decode have a partition each."""
    streams = {"prefill": {"partition": "prefill"}, "decode": {"partition": "decode"}}
    return {
        "name": "saturation", "seed": 1, "alone_repeats": 0, "rounds": 3,
        "partitions": {"prefill": "rest", "decode": 48}, "streams": streams,
        "workloads": {
            "prefill": {"kind": "gemm", "m": 4096, "n": 8192, "k": 8192, "stream": "prefill"},
            "decode": {"kind": "gemm", "m": 16, "n": 16384, "k": 16384, "stream": "decode"},
            "chat": {
                "kind": "requests", "prefill": "prefill", "decode": "decode", "repeats": 300,
                "arrival": "poisson", "rate_hz": rate_hz, "output_tokens": "geometric 16",
                "slo": {"ttft_ms": 12, "tbt_ms": 0.8},
            },
        },
    }  # fmt: skip


def capacity_hz(device: Any) -> float:
    """Return how many prefills a second are done one after the other, beside decoding."""
    trace = gs.run(experiment(300.0), device)["default"]
    prefills = trace.where(kind="kernel", partition="prefill")
    return 1e9 / float(np.median(prefills.array("end_ns") - prefills.array("start_ns")))


def figures(device: Any, rates_hz: list[float]) -> list[Facts]:
    """Return what requests met, one row a rate."""
    rows = []
    for rate_hz, load in zip(rates_hz, LOADS, strict=True):
        requests = gs.analysis.requests(gs.run(experiment(rate_hz), device)["default"])["chat"]
        rows.append({"load": load, **{name: getattr(requests, name) for name in COLUMNS}})
    return rows


def compared(measured: list[Facts], again: list[Facts], simulated: list[Facts]) -> list[Facts]:
    """Return measured, floor, simulated and error of each load and figure."""
    rows = []
    for first, second, model in zip(measured, again, simulated, strict=True):
        for name in COLUMNS:
            both = first[name], second[name]
            middle = sum(both) / 2
            rows.append({
                "load": first["load"], "what": name, "measured": middle,
                "floor": max(both) / min(both) - 1, "simulated": model[name],
                "error": model[name] / middle - 1,
            })  # fmt: skip
    return rows


def show(rows: list[Facts]) -> None:
    """Print a line a figure, and how many are close."""
    for row in rows:
        print(
            f"{row['load']:4} {row['what']:14} {row['measured']:12.1f} ±{100 * row['floor']:5.1f} %"
            f" {row['simulated']:12.1f} {100 * row['error']:+6.1f} %"
        )
    close = sum(abs(row["error"]) <= max(CLOSE, row["floor"]) for row in rows)
    print(f"{close} of {len(rows)} within {100 * CLOSE:.0f} % or the floor")


def main() -> None:
    arguments = latencies.options(__doc__, RESULTS, "h100").parse_args()
    if arguments.simulate:
        seen = json.loads(arguments.out.read_text("utf-8"))["seen"]
    else:
        host = latencies.calibrated_apart(arguments.device, arguments.profile)
        gpu = gs.open_device(arguments.device)
        rates_hz = [load * capacity_hz(gpu) for load in LOADS]
        seen = {
            "device": gpu.info.name, "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
            "profile": arguments.profile, "rates_hz": rates_hz, "host": host,
            "measured": figures(gpu, rates_hz), "again": figures(gpu, rates_hz),
        }  # fmt: skip
    with latencies.simulated(seen["profile"], seen["host"]) as gpu:
        simulated = figures(gpu, seen["rates_hz"])
    rows = compared(seen["measured"], seen["again"], simulated)
    show(rows)
    facts.write(arguments.out, "python benchmarks/saturation.py", seen["device"], rows, seen=seen)


if __name__ == "__main__":
    main()
