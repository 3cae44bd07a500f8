"""How long all-reduces take on partitions of several sizes, alone and beside GEMMs, on two GPUs.

    python benchmarks/all_reduce.py [--devices cuda:0,cuda:1] [--repeats 100] [--out FILE]
    python benchmarks/all_reduce.py --devices sim:h200,sim:h200

A row for each size of the message, number of SMs, and alone or beside 4096³ float16 GEMMs on the
rest: time (the least over the ranks), skew, bus bandwidth, and what the GEMMs keep of their rate
alone on the whole GPU. ``--devices`` of simulated GPUs writes all_reduce_simulated.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from facts import write

import gpuscope as gs

SMS = (8, 16, 24, 32, 48, 64)
SIZES = ("1 MiB", "8 MiB", "32 MiB", "128 MiB")
WHOLE = "whole GPU"
RESULTS = Path("benchmarks/results")


def plan(devices: Sequence[str], size: str, *, beside: bool, repeats: int) -> dict[str, Any]:
    """Return the experiment of one size: a setting for each number of SMs, and the whole GPU."""
    streams = {"comm": {"partition": "comm"}, "gemm": {"partition": "rest"}}
    whole = {"comm": {"partition": None}, "gemm": {"partition": None}}
    workloads: dict[str, Any] = {
        "reduce": {
            "kind": "all_reduce", "nbytes": size, "dtype": "bfloat16", "stream": "comm",
            "repeats": repeats,
        },
        "gemm": {
            "kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "gemm",
            "background": True, "max_queued": 4,
        },
    }  # fmt: skip
    if not beside:
        del workloads["gemm"]
    return {
        "name": f"all-reduce of {size}", "devices": list(devices),
        "alone_repeats": 20 if beside else 0, "streams": streams, "workloads": workloads,
        "settings": {
            **{str(sms): {"partitions": {"comm": sms, "rest": "rest"}} for sms in SMS},
            WHOLE: {"partitions": {}, "streams": whole},
        },
        "partitions": {"comm": 32, "rest": "rest"},
    }  # fmt: skip


def rows_of(run: gs.experiments.Run, size: str, *, beside: bool) -> list[dict[str, Any]]:
    """Return a row for each setting of a run."""
    rows = []
    for setting, trace in run.items():
        one = gs.analysis.collectives(trace)["reduce"]
        gemms = [
            row
            for row in run.comparison.to_pylist()
            if row["setting"] == setting and row["workload"] == "gemm"
        ]
        slowest = min(gemms, key=lambda row: row["share_of_alone_on_whole_gpu"], default=None)
        rows.append(
            {
                "size": size, "bytes": one.nbytes, "sms": setting, "beside_gemm": beside,
                "n": one.n, "time_us": round(one.time_ns / 1e3, 1),
                "skew_us": round(one.skew_ns / 1e3, 1),
                "bus_gb_per_s": round(one.bus_gb_per_s or 0, 1),
                "gemm_keeps": slowest and round(slowest["share_of_alone_on_whole_gpu"], 3),
                "gemm_us": slowest and round(slowest["kernel_median_us"], 1),
                "gemms_per_s": slowest and round(slowest["calls_per_s"], 1),
                "error_ns": max(rank.error_ns or 0 for rank in trace.metadata.ranks),
                "incomplete": trace.metadata.incomplete,
            }
        )  # fmt: skip
    return rows


def missing(devices: Sequence[str]) -> str:
    """Return what is not here of these devices; empty if all are."""
    for name in devices:
        if name.startswith("cuda"):
            try:
                gs.open_device(name, quiet=True)
            except gs.errors.GpuscopeError as error:
                return f"{name}: {str(error).splitlines()[0]}"
    return ""


def main() -> int:
    """Measure all sizes, print a table, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="cuda:0,cuda:1", help="one a rank, two or more")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    devices = asked.devices.split(",")
    simulated = any(name.startswith("sim:") for name in devices)
    if len(devices) < 2 or (gone := missing(devices)):
        sys.stderr.write(
            f"an all-reduce needs two GPUs: {gone if len(devices) > 1 else 'one was named'}. On "
            "simulated ones: --devices sim:h200,sim:h200\n"
        )
        return 1
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        for beside in (False, True):
            run = gs.run(plan(devices, size, beside=beside, repeats=asked.repeats))
            rows += rows_of(run, size, beside=beside)
            print(f"{size}, {'beside GEMMs' if beside else 'alone'}: {len(rows)} rows", flush=True)
    out = asked.out or RESULTS / f"all_reduce{'_simulated' * simulated}.json"
    first = next(iter(run.values()))
    device = next(iter(first.metadata.devices.values()))
    repeats = f" --repeats {asked.repeats}" * (asked.repeats != parser.get_default("repeats"))
    command = f"python benchmarks/all_reduce.py --devices {asked.devices}{repeats}"
    machine = f"{len(devices)} × {devices[0] if simulated else device.name}"
    versions = dict(first.metadata.versions)
    write(out, command, machine, rows, simulated=simulated, versions=versions)
    titles = f"{'size':>8} {'SMs':>9} {'GEMM':>5} {'µs':>9} {'skew':>7} {'bus GB/s':>9}"
    print(f"{titles} {'keeps':>6} {'GEMM µs':>8}")
    for row in rows:
        kept = f"{row['gemm_keeps']:.1%} {row['gemm_us']:8.1f}" if row["gemm_keeps"] else ""
        print(
            f"{row['size']:>8} {row['sms']:>9} {'yes' if row['beside_gemm'] else 'no':>5} "
            f"{row['time_us']:9.1f} {row['skew_us']:7.1f} {row['bus_gb_per_s']:9.1f} {kept:>6}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
