"""Latencies of settings, measured twice on a GPU and simulated: written side by side.

    python benchmarks/latencies.py --out benchmarks/results/latencies.json
    python benchmarks/latencies.py --simulate     the simulation, beside what was measured

The first four settings are the quickstart's. The others differ in size, dtype, rate, partition and
load; nothing was fitted to those of ``HELD_OUT``. Before, between and after the two measurements a
process of its own calibrates the host alone (``calibrate_host``), since a host changes within
minutes; simulated is the GPU of ``--profile`` behind each of these hosts, and means of both are
compared. Two measurements of one setting differ, too: that is the floor, stated for each quantile.
A quantile counts as close within 20 %, or within its floor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import facts  # beside this file

import gpuscope as gs
from gpuscope.simulator import calibrate_host
from gpuscope.simulator.profiles.profile import GpuProfile

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
    "rows beside a product": _experiment(
        "rows beside a product",
        {"kind": "softmax", "rows": 4096, "columns": 2048},
        _gemm(4096, 4096, 4096, max_queued=3),
        40,
    ),
    "flat product beside copies": _experiment(
        "flat product beside copies",
        _gemm(2048, 2048, 512),
        {"kind": "copy", "nbytes": 1 << 28, "max_queued": 3},
        "no partition", 40,
    ),
    "copy beside rows": _experiment(
        "copy beside rows",
        {"kind": "copy", "nbytes": 24 << 20},
        {"kind": "softmax", "rows": 32768, "columns": 2048, "max_queued": 3},
        "no partition", 24,
    ),
    "vector beside float32": _experiment(
        "vector beside float32",
        _gemm(1, 6144, 6144),
        _gemm(4096, 4096, 4096, "float32", max_queued=3),
        56,
    ),
    "float64 beside a vector": _experiment(
        "float64 beside a vector",
        _gemm(512, 512, 1024, "float64", arrival="poisson", rate_hz=1500),
        _gemm(1, 16384, 16384, max_queued=4),
        88,
    ),
}  # fmt: skip
HELD_OUT = [*EXPERIMENTS][-5:]


def runs(device: Any, *names: str) -> dict[str, Any]:
    """Run every experiment, or those of these names; name → run."""
    return {name: gs.run(EXPERIMENTS[name], device) for name in names or EXPERIMENTS}


def calibrated_apart(name: str, profile: str) -> Facts:
    """Calibrate the host in a process of its own, in which nothing recorded before."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "host.json")
        command = [sys.executable, __file__, "--calibrate", name, "--profile", profile]
        subprocess.run([*command, "--out", out], check=True)
        host = json.loads(out.read_text("utf-8"))
    return {name: host[name] for name in ("constants", "jitter")}


@contextlib.contextmanager
def simulated(profile: str, host: Facts) -> Iterator[Any]:
    """Open the simulated GPU of a profile behind a host that was calibrated apart."""
    file = GpuProfile.load(profile).file.model_dump(mode="json", by_alias=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "host.json")
        path.write_text(json.dumps(file | host), "utf-8")
        yield gs.open_device(f"sim:{path}", quiet=True)


def simulated_behind(hosts: list[Facts], profile: str) -> list[list[Facts]]:
    """Return the figures of every experiment on a simulated GPU, behind each of its hosts."""
    several = []
    for host in hosts:
        with simulated(profile, host) as gpu:
            several.append(figures(runs(gpu)))
    return several


def means(several: list[list[Facts]]) -> list[Facts]:
    """Return the means of figures over hosts."""
    return [
        rows[0] | {name: mean_of([row[name] for row in rows]) for name in KEPT}
        for rows in zip(*several, strict=True)
    ]


def mean_of(values: list[float | None]) -> float | None:
    """Return the mean of what is known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def figures(made: dict[str, Any]) -> list[Facts]:
    """Return one row a setting and workload of what the experiments gave."""
    return [
        {"experiment": name, "setting": row["setting"], "workload": row["workload"]}
        | {column: row[column] for column in KEPT}
        for name, run in made.items()
        for row in run.comparison.to_pylist()
    ]


def compared(measured: list[Facts], again: list[Facts], simulated: list[Facts]) -> list[Facts]:
    """Return the quantiles of every setting: measured, the floor, simulated, and the error."""

    def keyed(rows: list[Facts]) -> dict[tuple[str, ...], Facts]:
        return {(row["experiment"], row["setting"], row["workload"]): row for row in rows}

    others, twins, rows = keyed(again), keyed(simulated), []
    for key, row in keyed(measured).items():
        for name in QUANTILES:
            if row[name] is None or key not in twins:
                continue
            both = [row[name], others.get(key, row)[name]]
            middle = sum(both) / 2
            rows.append(
                {
                    "experiment": key[0], "setting": key[1], "what": name, "measured": middle,
                    "floor": max(both) / min(both) - 1, "simulated": twins[key][name],
                    "error": twins[key][name] / middle - 1, "held_out": key[0] in HELD_OUT,
                }
            )  # fmt: skip
    return rows


def is_close(row: Facts) -> bool:
    """Whether a forecast is as close as it can be told."""
    return abs(row["error"]) <= max(0.2, row["floor"])


def close(rows: list[Facts]) -> list[int]:
    """Return how many of the known experiments' quantiles are close, and of those held out."""
    return [sum(is_close(row) for row in rows if row["held_out"] == held) for held in (False, True)]


def show(rows: list[Facts]) -> None:
    """Print one line a setting, and how many are close."""
    for first in range(0, len(rows), len(QUANTILES)):
        some = rows[first : first + len(QUANTILES)]
        cells = "   ".join(
            f"{row['measured']:7.1f} ±{100 * row['floor']:3.0f} % {row['simulated']:7.1f} "
            f"{100 * row['error']:+6.1f} %{' ' if is_close(row) else '*'}"
            for row in some
        )
        print(f"{some[0]['experiment']:26} {some[0]['setting']:16} {cells}")
    for name, held, number in zip(
        ("known experiments", "held out"), (False, True), close(rows), strict=True
    ):
        count = sum(row["held_out"] == held for row in rows)
        print(f"{name}: {number} of {count} within 20 % or the floor")


def options(description: str | None, out: Path, profile: str) -> argparse.ArgumentParser:
    """Return what such benchmarks ask for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--profile", default=profile, help="the part after sim: of this card")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    return parser


def main() -> None:
    parser = options(__doc__, RESULTS, "h200")
    parser.add_argument("--calibrate", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calibrate:
        calibrate_host(arguments.calibrate, arguments.out, profile=arguments.profile)
        return
    if not arguments.simulate:
        hosts = [calibrated_apart(arguments.device, arguments.profile)]
        gpu = gs.open_device(arguments.device)
        made: Facts = {
            "device": gpu.info.name, "measured_on": time.strftime("%Y-%m-%d", time.gmtime()),
            "hosts": hosts,
        }  # fmt: skip
        for name in ("measured", "again"):
            made[name] = figures(runs(gpu))
            hosts.append(calibrated_apart(arguments.device, arguments.profile))
            arguments.out.write_text(json.dumps(made), "utf-8")
        return
    kept = json.loads(arguments.out.read_text("utf-8"))
    seen = {name: kept[name] for name in ("device", "measured_on", "measured", "again")}
    seen["hosts"] = kept.get("hosts", [{}])  # that of the profile, where none was calibrated
    if "calibrated" in kept:  # elsewhere, before hosts were calibrated beside
        seen["calibrated"] = kept["calibrated"]
    by_host = simulated_behind(seen["hosts"], arguments.profile)
    forecast = means(by_host)
    rows, *by_one = (
        compared(seen["measured"], seen["again"], some) for some in (forecast, *by_host)
    )
    show(rows)
    facts.write(
        arguments.out, "python benchmarks/latencies.py", seen["device"], rows,
        **seen, profile=arguments.profile, simulated=forecast,
        close_behind_each=[close(some) for some in by_one],
    )  # fmt: skip


if __name__ == "__main__":
    main()
