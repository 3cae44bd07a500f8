"""Latencies of twelve settings, measured on a GPU and simulated: written side by side.

    python benchmarks/latencies.py --out benchmarks/results/latencies.json
    python benchmarks/latencies.py --simulate     the simulation alone, beside what was measured

The first four settings are the quickstart's. The others differ in size, dtype, rate, partition and
load. Before them a process of its own measures what ``calibrate`` measures of the host, of power
and of the copy kernel (``calibrated``; what the shipped profile was fitted to is in
benchmarks/data/h200_host.json). After them the quickstart runs
again: two measurements of one setting differ, too. Simulated is ``sim:PROFILE``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import facts  # beside this file

import gpuscope as gs
from gpuscope.simulator.calibration import host
from gpuscope.simulator.models.gemm_model import ITEM_BYTES

QUICKSTART = Path(__file__).parent.parent / "examples" / "quickstart.toml"
RESULTS = Path(__file__).parent / "results" / "latencies.json"
QUANTILES = ("latency_p50_us", "latency_p90_us", "latency_p99_us")
KEPT = ("kernels", "kernel_median_us", *QUANTILES, "tflop_per_s", "overlap", "gain")

Facts = dict[str, Any]


def _gemm(m: int, n: int, k: int, dtype: str = "float16", **more: Any) -> Facts:
    return {"kind": "gemm", "m": m, "n": n, "k": k, "dtype": dtype, **more}


def _experiment(
    name: str, small: Facts, load: Facts, *settings: str | int, repeats: int = 1000
) -> Facts:
    """Return an experiment of ``small``, whose latency is measured, beside ``load``.

    Parameters
    ----------
    settings
        Each the SMs of the partition of ``small``, the load having the rest; or a name:
        ``"priority"``, where the first stream has a higher one, or else no partition.
    """
    streams = {"a": {"partition": "small"}, "b": {"partition": "load"}}
    made: dict[str, Facts] = {}
    for setting in settings:
        if isinstance(setting, int):
            partitions = {"small": setting, "load": "rest"}
            made[f"{setting} | rest"] = {"partitions": partitions, "streams": streams}
        else:
            made[setting] = {"streams": {"a": {"priority": -1}}} if setting == "priority" else {}
    return {
        "name": name, "seed": 3, "rounds": 3, "alone_repeats": 20, "streams": {"a": {}, "b": {}},
        "workloads": {
            "small": {**small, "stream": "a", "repeats": repeats, "max_queued": 1},
            "load": {**load, "stream": "b", "background": True},
        },
        "settings": made,
    }  # fmt: skip


EXPERIMENTS: dict[str, Path | Facts] = {
    "quickstart": QUICKSTART,
    "larger": _experiment(
        "larger",
        _gemm(1024, 1024, 1024, arrival="poisson", rate_hz=500),
        _gemm(8192, 8192, 8192, max_queued=3),
        "no partition", 48,
    ),
    "float32 beside copies": _experiment(
        "float32 beside copies",
        _gemm(1024, 1024, 1024, "float32"),
        {"kind": "copy", "nbytes": 1 << 28, "max_queued": 4},
        "priority", 24,
    ),
    "short": _experiment(
        "short",
        _gemm(256, 256, 256, arrival="fixed", rate_hz=2000),
        _gemm(2048, 2048, 2048, max_queued=8),
        "no partition", 8,
    ),
    "vector": _experiment(
        "vector",
        _gemm(1, 8192, 8192, arrival="poisson", rate_hz=500),
        _gemm(8192, 8192, 8192, max_queued=3),
        "no partition", 64,
    ),
}  # fmt: skip


def runs(device: Any, *names: str) -> dict[str, Any]:
    """Run every experiment, or those of these names; name → run."""
    return {name: gs.run(EXPERIMENTS[name], device) for name in names or EXPERIMENTS}


def calibrated(device: Any) -> Facts:
    """Return what ``calibrate`` measures of all but GEMMs and transfers."""
    source = "auto" if device.is_simulated else "cupti"
    constants = host.call_costs(device) | host.partition_costs(device)
    constants |= host.overheads(device, source)[0]
    samples = [host.launches(device)]
    drawn = {}
    for dtype in ITEM_BYTES:  # a host is slower for seconds: it is sampled over some time
        drawn |= host.power(device, source, [dtype])
        samples.append(host.launches(device))
    constants |= host.copy_rate(device, source)
    samples.append(host.launches(device))
    copies = host.copy_kernels(device, source)
    samples.append(host.launches(device))
    costs, jitter = host.experiment_costs(samples, constants)
    constants |= costs
    return {"constants": constants, "jitter": jitter, "power": drawn, "copy": copies}


def calibrated_apart(name: str) -> Facts:
    """Return the same from a process of its own, in which nothing recorded before."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "host.json"
        subprocess.run([sys.executable, __file__, "--calibrate", name, "--out", out], check=True)
        return json.loads(out.read_text("utf-8"))


def figures(made: dict[str, Any]) -> list[Facts]:
    """Return one row a setting and workload of what the experiments gave."""
    return [
        {"experiment": name, "setting": row["setting"], "workload": row["workload"]}
        | {column: row[column] for column in KEPT}
        for name, run in made.items()
        for row in run.comparison.to_pylist()
    ]


def compared(measured: list[Facts], simulated: list[Facts]) -> list[Facts]:
    """Return the quantiles of every setting, measured and simulated, and the error of each."""
    other = {(row["experiment"], row["setting"], row["workload"]): row for row in simulated}
    rows = []
    for row in measured:
        twin = other.get((row["experiment"], row["setting"], row["workload"]))
        if twin is None:
            continue
        rows += [
            {
                "experiment": row["experiment"], "setting": row["setting"], "what": name,
                "measured": row[name], "simulated": twin[name], "error": twin[name] / row[name] - 1,
            }
            for name in QUANTILES if row[name] is not None
        ]  # fmt: skip
    return rows


def show(rows: list[Facts]) -> None:
    """Print one line a setting."""
    for first in range(0, len(rows), len(QUANTILES)):
        some = rows[first : first + len(QUANTILES)]
        cells = "   ".join(
            f"{one['measured']:7.1f} {one['simulated']:7.1f} {100 * one['error']:+6.1f} %"
            for one in some
        )
        print(f"{some[0]['experiment']:22} {some[0]['setting']:22} {cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--profile", default="h200", help="the part after sim:")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--calibrate", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calibrate:
        part = calibrated(gs.open_device(arguments.calibrate, quiet=True))
        arguments.out.write_text(json.dumps(part), "utf-8")
        return
    if arguments.simulate:
        kept = json.loads(arguments.out.read_text("utf-8"))
        seen = {name: kept[name] for name in ("device", "measured_on", "calibrated", "measured",
                                              "again")}  # fmt: skip
    else:
        part = calibrated_apart(arguments.device)
        gpu = gs.open_device(arguments.device)
        seen = {
            "device": gpu.info.name, "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
            "calibrated": part, "measured": figures(runs(gpu)),
            "again": figures(runs(gpu, "quickstart")),
        }  # fmt: skip
        print("measured twice:")
        show(compared(seen["measured"], seen["again"]))
    simulated = figures(runs(gs.open_device(f"sim:{arguments.profile}", quiet=True)))
    rows = compared(seen["measured"], simulated)
    show(rows)
    print(f"within 20 %: {sum(abs(one['error']) <= 0.2 for one in rows)} of {len(rows)}")
    facts.write(
        arguments.out, "python benchmarks/latencies.py", seen["device"], rows,
        **seen, profile=arguments.profile, simulated=simulated,
    )  # fmt: skip


if __name__ == "__main__":
    main()
