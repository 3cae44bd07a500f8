"""Victims beside aggressors, measured on a GPU and simulated: kernel medians and latencies.

    python benchmarks/contention.py --out benchmarks/results/contention_h100.json
    python benchmarks/contention.py --simulate     the simulation, beside what was measured
    python benchmarks/contention.py --given        the same beside data/contention_h100.json
    python benchmarks/contention.py --host         what calls cost on the host of that file
    python benchmarks/contention.py --blocks       when the thread blocks of a copy end, on a GPU

Each victim is called 150 times, each call waited for, while an aggressor keeps three calls queued:
on two streams without partitions, and on partitions of 16, 40 and 88 SMs with the aggressor on the
rest; and alone on each of these. What ``calibrate`` measures and fits is marked: the others judge
the model. What launches cost on the measured host is fitted to the marked ones, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import facts  # beside this file
import latencies
import numpy as np

import gpuscope as gs
from gpuscope.simulator.calibration import contention
from gpuscope.simulator.engine.jitter import Jitter
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.workloads.traced import TracedCopy

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "contention_h100.json"
GIVEN = HERE / "data" / "contention_h100.json"
BLOCKS = HERE / "results" / "copy_blocks.json"
SIZES = (16, 40, 88)
FREE = "free"
ALONE = "nothing"
COLUMNS = (
    "kernels", "kernel_median_us", "latency_p50_us", "latency_p90_us", "latency_p99_us",
    "calls_per_s",
)  # fmt: skip
CLOSE = 0.2
SHARES = (0, 0.1, 0.25, 0.5, 1)
LONG_NS, SHORT_NS = 15_000, 8_000
"""Kernels whose call has surely returned before they end, and that surely end before."""

Facts = dict[str, Any]


def _gemm(m: int, n: int, k: int, dtype: str = "float16") -> Facts:
    return {"kind": "gemm", "m": m, "n": n, "k": k, "dtype": dtype}


def _softmax(mib: int, columns: int = 4096) -> Facts:
    return {"kind": "softmax", "rows": (mib << 18) // columns, "columns": columns}


def _copy(mib: int) -> Facts:
    return {"kind": "copy", "nbytes": mib << 20}


VICTIMS: dict[str, Facts] = {
    "softmax 8M": _softmax(8),
    "softmax 128M": _softmax(128),
    "copy 8M": _copy(8),
    "copy 128M": _copy(128),
    "gemv 32M": _gemm(1, 4096, 4096),
    "gemm 512": _gemm(512, 512, 512),
    "gemm 2048": _gemm(2048, 2048, 2048),
    "sgemm 1024": _gemm(1024, 1024, 1024, "float32"),
    "softmax 32M 1024": _softmax(32, 1024),
    "softmax 2M 256": _softmax(2, 256),
    "copy 1M": _copy(1),
    "copy 24M": _copy(24),
    "gemv 128M": _gemm(1, 8192, 8192),
    "skinny 16x4096": _gemm(16, 4096, 4096),
    "gemm 2048x512": _gemm(2048, 2048, 512),
    "dgemm 1024": _gemm(1024, 1024, 1024, "float64"),
}
AGGRESSORS: dict[str, Facts] = {
    "gemm 4096": _gemm(4096, 4096, 4096),
    "copy 256M": _copy(256),
    "softmax 256M": _softmax(256),
    "gemv 512M": _gemm(1, 16384, 16384),
    "sgemm 2048": _gemm(2048, 2048, 2048, "float32"),
    "copy 16M": _copy(16),
}


def experiment(victim: Facts, aggressor: Facts | None) -> Facts:
    """Return one victim beside an aggressor, or alone, without partitions and on each size."""
    calls = {**victim, "stream": "v", "repeats": 150, "max_queued": 1}
    workloads = {"victim": calls}
    streams: dict[str, Facts] = {"v": {}}
    homes = {"v": {"partition": "v"}}
    if aggressor is not None:
        workloads["aggressor"] = {
            **aggressor, "stream": "a", "background": True, "max_queued": 3,
        }  # fmt: skip
        streams["a"], homes["a"] = {}, {"partition": "a"}
    settings: dict[str, Facts] = {FREE: {}}
    for size in SIZES:
        sizes: dict[str, int | str] = {"v": size}
        if aggressor is not None:
            sizes["a"] = "rest"
        settings[str(size)] = {"partitions": sizes, "streams": homes}
    return {
        "name": "contention", "seed": 3, "rounds": 1, "alone_repeats": 0, "streams": streams,
        "workloads": workloads, "settings": settings,
    }  # fmt: skip


def rows_of(device: Any, victim: str, aggressor: str) -> list[Facts]:
    """Run one pair; return a row a setting and workload."""
    beside = None if aggressor == ALONE else AGGRESSORS[aggressor]
    run = gs.run(experiment({**VICTIMS, **AGGRESSORS}[victim], beside), device)
    return [
        {"victim": victim, "aggressor": aggressor, "setting": row["setting"]}
        | {"workload": row["workload"][0]}
        | {column: row[column] for column in COLUMNS}
        for row in run.comparison.to_pylist()
    ]


def pairs() -> Iterator[tuple[str, str]]:
    """Yield who is measured beside whom: each alone first."""
    for victim in [*VICTIMS, *AGGRESSORS]:
        yield victim, ALONE
    for aggressor in AGGRESSORS:
        for victim in VICTIMS:
            yield victim, aggressor


def key_of(row: Facts) -> tuple[str, ...]:
    """Return what a row is of."""
    return row["victim"], row["aggressor"], row["setting"], row["workload"]


def is_fitted(row: Facts) -> bool:
    """Whether ``calibrate`` measures and fits such a case; alone, such a victim."""
    victim, aggressor = VICTIMS.get(row["victim"]), row["aggressor"]
    is_beside = aggressor == ALONE or AGGRESSORS[aggressor] in contention.BESIDE
    return victim in contention.WATCHED and is_beside


def errors(measured: list[Facts], simulated: list[Facts]) -> list[Facts]:
    """Return each victim's error: of its p50, and of its kernels' median.

    Not of the latter where the library splits a product into two kernels, which are not modelled:
    a median over two kinds of kernels is neither's.
    """
    twins = {key_of(row): row for row in simulated}
    compared = []
    for row in measured:
        twin = twins.get(key_of(row))
        if twin is None or row["workload"] != "v" or row["aggressor"] == ALONE:
            continue
        alike = ("kernel_median_us",) if row["kernels"] == twin["kernels"] else ()
        compared.append(
            {"victim": row["victim"], "aggressor": row["aggressor"], "setting": row["setting"]}
            | {"fitted": is_fitted(row)}
            | {
                name: {"measured": row[name], "simulated": twin[name]}
                | {"error": twin[name] / row[name] - 1}
                for name in (*alike, "latency_p50_us")
            }
        )
    return compared


def tells_of_host(
    row: Facts, kinds: Collection[str] = ("gemm", "sgemm", "copy", "softmax")
) -> bool:
    """Whether what launches cost is fitted to such a case's latency: see :func:`host`."""
    return row["setting"] != FREE and row["victim"].split()[0] in kinds


def host(rows: list[Facts], profile: GpuProfile) -> dict[str, int]:
    """Return what calls cost on a host, in ns, from latencies of kernels on partitions.

    Of a long kernel the latency is the call, the launch, the kernel and the return from the wait;
    of one that is over before its call returns it is the call, an event's record and a query. What
    a profile's host takes longer for launches so long after another is taken off.
    """
    jitter = [(speed.since_us, speed.quantiles) for speed in profile.file.jitter]
    speed, constants, costs = Jitter(jitter, noise=False), profile.constants, {}

    def as_at_once(ns: float, row: Facts) -> float:
        speed.draw(1e6 / row["calls_per_s"])
        return ns / speed(1_000_000) * 1_000_000

    around = constants["launch_latency_ns"] + constants["synchronize_return_ns"]
    for name, kinds in (("gemm", ("gemm", "sgemm")), ("launch", ("copy", "softmax"))):
        some = [
            (row["latency_p50_us"] * 1e3, row["kernel_median_us"] * 1e3, row) for row in rows
            if row["workload"] == "v" and tells_of_host(row, kinds)
        ]  # fmt: skip
        call = statistics.median(
            as_at_once(p50 - took - around, row) for p50, took, row in some if took > LONG_NS
        )
        short = [(as_at_once(p50, row), took) for p50, took, row in some if took < SHORT_NS]
        whole, took = map(statistics.median, zip(*short, strict=True))
        known = call + constants["event_record_call_ns"] + constants["query_call_ns"]
        back = max(whole - known, constants["launch_latency_ns"] + took)  # what is seen of it
        costs |= {f"{name}_call_ns": round(call), f"{name}_return_ns": round(back)}
    return costs


def blocks(device: Any) -> list[Facts]:
    """Return when the thread blocks of a copy end, of the kernel's time."""
    rows = []
    for sms in (64, device.sm_count):
        with contextlib.ExitStack() as stack:
            whole = sms == device.sm_count
            owner = device if whole else stack.enter_context(device.carve([sms]))[0]
            stream = stack.enter_context(owner.create_stream())
            copy = stack.enter_context(TracedCopy(device, nbytes=1 << 28))
            copy.execute(stream=stream)
            stream.synchronize()
            recording = stack.enter_context(gs.profile(device))
            for _ in range(5):
                copy.execute(stream=stream)
                stream.synchronize()
        traced = recording.trace.where(kind="block")
        order = np.argsort(traced.array("start_ns"), kind="stable")
        starts, ends = (traced.array(name)[order].reshape(5, -1) for name in ("start_ns", "end_ns"))
        began = starts.min(axis=1, keepdims=True)
        shares = (ends - began) / (ends.max(axis=1, keepdims=True) - began)
        quantiles = {
            str(q): round(float(np.quantile(shares, q)), 3) for q in (0, 0.1, 0.25, 0.5, 1)
        }
        rows.append({"sms": sms, "end_of_blocks": quantiles})
    return rows


def show(rows: list[Facts], *, every: bool) -> None:
    """Print a line a case, and how many are close."""
    if every:
        for row in rows:
            cells = "   ".join(
                f"{row[name]['measured']:8.1f} {row[name]['simulated']:8.1f} "
                f"{100 * row[name]['error']:+6.1f} %"
                if name in row
                else f"{'two kernels':>26}"
                for name in ("kernel_median_us", "latency_p50_us")
            )
            print(f"{row['victim']:18}{row['aggressor']:14}{row['setting']:5}{cells}")
    for fitted in (True, False):
        some = [row for row in rows if row["fitted"] == fitted]
        split = [row for row in some if row["setting"] != FREE and "kernel_median_us" in row]
        for what, name, cases in (
            ("p50", "latency_p50_us", some),
            (
                "p50 that the host is not fitted to",
                "latency_p50_us",
                [row for row in some if not (fitted and tells_of_host(row))],
            ),
            ("kernel median on partitions", "kernel_median_us", split),
        ):
            if cases:
                off = [abs(row[name]["error"]) for row in cases]
                close = sum(error <= CLOSE for error in off)
                print(
                    f"{'fitted' if fitted else 'held out'}: {what} within 20 %: {close} of "
                    f"{len(off)}, median {statistics.median(off):.1%}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--profile", default="h100", help="the part after sim:")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--every", action="store_true", help="print each case")
    parser.add_argument("--budget-s", type=float, default=400.0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--given", action="store_true")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--blocks", action="store_true")
    arguments = parser.parse_args()
    if arguments.blocks:
        gpu = gs.open_device(arguments.device)
        rows = blocks(gpu)
        print(rows)
        out = BLOCKS if arguments.out == RESULTS else arguments.out
        facts.write(out, "python benchmarks/contention.py --blocks", gpu.info.name, rows)
        return
    if arguments.given or arguments.host:
        given = json.loads(GIVEN.read_text("utf-8"))["rows"]
        profile = GpuProfile.load(arguments.profile)
        if arguments.host:
            print(host(given, profile))
            return
        simulator = gs.open_device(f"sim:{arguments.profile}", quiet=True)
        asked = dict.fromkeys((row["victim"], row["aggressor"]) for row in given)
        show(
            errors(given, [row for pair in asked for row in rows_of(simulator, *pair)]),
            every=arguments.every,
        )
        return
    if arguments.simulate:
        seen = json.loads(arguments.out.read_text("utf-8"))["seen"]
    else:
        gpu = gs.open_device(arguments.device)
        seen = {"device": gpu.info.name, "on": time.strftime("%Y-%m-%d", time.gmtime()), "rows": []}
        until = time.monotonic() + arguments.budget_s
        for victim, aggressor in pairs():
            if time.monotonic() > until:
                print("the time is over: the other pairs are left out")
                break
            seen["rows"] += rows_of(gpu, victim, aggressor)
            arguments.out.write_text(json.dumps({"seen": seen}), "utf-8")
        return
    asked = dict.fromkeys((row["victim"], row["aggressor"]) for row in seen["rows"])
    profile = GpuProfile.load(arguments.profile)
    costs = host([row for row in seen["rows"] if is_fitted(row)], profile)
    with latencies.simulated(arguments.profile, {"constants": profile.constants | costs}) as gpu:
        simulated = [row for pair in asked for row in rows_of(gpu, *pair)]
    rows = errors(seen["rows"], simulated)
    show(rows, every=arguments.every)
    facts.write(
        arguments.out, "python benchmarks/contention.py", seen["device"], rows,
        seen=seen, profile=arguments.profile, host=costs, simulated=simulated,
    )  # fmt: skip


if __name__ == "__main__":
    main()
