"""Two workloads at a time, as the simulator forecasts them and as an H200 ran them.

Used by cpu.py; the measured starts and ends are in benchmarks/data/pairs.json.

    python benchmarks/pairs.py [--device cuda:0] [--profile PATH] [--out FILE]   the same on a GPU
    python benchmarks/pairs.py --simulate [--out FILE]   the simulation, beside what was measured

A makespan is from the first kernel's start to the last one's end. In each measured run one
thread launched all kernels of b, then all of a; after its very first launch it was held up, by
the recorder's first buffer most likely. The simulated host launches in the same order and
sleeps as long, by the median over the *other* pairs' solo runs. No constant of the simulator
comes from pairs, so nothing else has to be left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facts  # beside this file
import numpy as np

import gpuscope as gs
from gpuscope.device.api import KernelModel
from gpuscope.simulator.calibration.memory import fit_copy
from gpuscope.simulator.profiles.profile import Profile
from gpuscope.simulator.profiles.schema import CopyTimes

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "pairs.json"
RESULTS = HERE / "results" / "pairs_h100.json"
TURNS = 5
GEMMS = {
    "gemm4096": (4096, 4096, 4096, "float16"),
    "gemm8192": (8192, 8192, 8192, "float16"),
    "sgemm2048": (2048, 2048, 2048, "float32"),
    "small512": (512, 512, 512, "float16"),
    "gemv": (1, 16384, 16384, "float16"),
}
COPY_BYTES = 2**30
"""Of ``copy1g``: 2²⁸ float32."""

HELD_UP_NS = 20_000
"""A gap longer than this between the first two kernels of a run is the host's."""

Row = dict[str, Any]
Times = dict[str, np.ndarray[Any, Any]]
"""Workload, a or b → start and end of each of its kernels in ns."""


@functools.cache
def of_copies() -> Profile:
    """Return a profile with the copy kernel of the pairs, CuPy's, which is slower than ours."""
    profile = Profile.load("h200")
    rows = json.loads((DATA.parent / "h200.json").read_text("utf-8"))["copy"]
    kernel = CopyTimes.model_validate(fit_copy(rows)[0])
    file = profile.file.model_copy(update={"copy_kernel": kernel})
    return dataclasses.replace(profile, file=file)


def launcher(gpu: gs.device.Device, name: str, *, of_data: bool) -> Callable[[Any], object]:
    """Return what launches a workload on a stream; operands that nobody reads cost nothing.

    Parameters
    ----------
    of_data
        Whether copies are those of the data of the H200, not gpuscope's.
    """
    if name == "copy1g" and of_data:
        model = KernelModel(lambda _p, _g, _a, sms: of_copies().copy_cost(COPY_BYTES, sms))
        kernel = gpu.compile("", name, model=model)
        return lambda stream: stream.launch(kernel, grid=1, block=1)
    if name == "copy1g":
        copy = gs.workloads.Copy(gpu, nbytes=COPY_BYTES, max_in_flight=4)
        return lambda stream: copy.execute(stream=stream)
    m, n, k, dtype = GEMMS[name]
    handle = gs.Gemm(gpu, m=m, n=n, k=k, dtype=dtype, sm_count_target=None, max_in_flight=64)
    operands = [gpu.empty(shape, dtype) for shape in ((m, k), (k, n), (m, n))]
    return lambda stream: handle.execute(*operands, stream=stream)


def launched(
    gpu: gs.device.Device, row: Row, which: str, held_up_ns: int = 0, *, of_data: bool = False
) -> Times:
    """Run a pair, or one of it; but for the data's, each was launched once before."""
    with gpu.carve({name: row[name]["sms"] for name in "ab"}) as parts:
        homes = {name: gpu if row["shared"] else parts[name] for name in "ab"}
        streams = {name: homes[name].create_stream() for name in which}
        launchers = {name: launcher(gpu, row[name]["workload"], of_data=of_data) for name in which}
        if not of_data:
            for name, stream in streams.items():
                launchers[name](stream)
            gpu.synchronize()
        with gpu.create_stream() as other, gs.profile(gpu) as recording:
            if not of_data:  # the recorder's first buffer is not the pair's
                launchers[which[0]](other)
            gpu.synchronize()
            for name, stream in streams.items():
                for number in range(row[name]["count"]):
                    launchers[name](stream)
                    if held_up_ns and name == which[0] and number == 0:
                        gpu.backend.wait_until_ns(gpu.now_ns() + held_up_ns)
            gpu.synchronize()
        kernels = recording.trace.where(kind="kernel")
        found = {}
        for name, stream in streams.items():
            mine = kernels.where(stream=stream.id)
            found[name] = np.stack([mine.array("start_ns"), mine.array("end_ns")], axis=1)
            stream.close()
    return found


def simulate(row: Row, held_up_ns: int, which: str = "ba") -> Times:
    """Run a pair of the data, or one of it, on the simulated H200."""
    gpu = gs.open_device("sim:h200", quiet=True)
    return launched(gpu, row, which, held_up_ns, of_data=True)


def makespan_ns(times: Times) -> int:
    every = np.concatenate(list(times.values()))
    return int(every[:, 1].max() - every[:, 0].min())


def measured(row: Row, key: str) -> Times:
    return {name: np.array(times) for name, times in row[key].items()}


def held_up(rows: list[Row]) -> int:
    """How long the host was held up after the first launch: median over runs that show it."""
    seen = []
    for row in rows:
        for times in measured(row, "alone").values():
            (start, end), (following, _) = times[:2]
            if following - end > HELD_UP_NS:
                seen.append(int(following - start))
    return round(statistics.median(seen))


def longest(times: np.ndarray[Any, Any]) -> float:
    return float((times[:, 1] - times[:, 0]).max())


def typical(times: np.ndarray[Any, Any]) -> float:
    return float(np.median(times[:, 1] - times[:, 0]))


def slowest(alone: Times, together: Times) -> dict[str, float]:
    """The longest kernel of each beside the other, against the median alone."""
    return {name: longest(together[name]) / typical(alone[name]) for name in together}


def pair_figures() -> Row:
    """Makespans of every pair, simulated and measured, and how kernels slowed each other."""
    pairs = json.loads(DATA.read_text("utf-8"))["pairs"]
    rows = []
    for row in pairs:
        held_up_ns = held_up([other for other in pairs if other is not row])
        together = simulate(row, held_up_ns)
        alone = {name: simulate(row, held_up_ns, name)[name] for name in "ab"}
        rows.append(figure(row, makespan_ns(together), makespan_ns(measured(row, "together"))) | {
            "held_up_us": held_up_ns / 1e3,
            "slowest": slowest(alone, together),
            "measured_slowest": slowest(measured(row, "alone"), measured(row, "together")),
        })  # fmt: skip
    return summed_up(rows)


def figure(row: Row, seen_ns: float, real_ns: float) -> Row:
    """What a pair is, and its makespan, simulated and measured."""
    return {
        **{name: f"{row[name]['count']} × {row[name]['workload']}" for name in "ab"},
        "sms": None if row["shared"] else [row["a"]["sms"], row["b"]["sms"]],
        "simulated_us": seen_ns / 1e3, "measured_us": real_ns / 1e3, "error": seen_ns / real_ns - 1,
    }  # fmt: skip


def summed_up(rows: list[Row]) -> Row:
    """Put pairs together."""
    errors = [abs(row["error"]) for row in rows]
    return {
        "what": "makespan of two concurrent workloads, simulated against measured",
        "median": statistics.median(errors), "worst": max(errors), "pairs": rows,
    }  # fmt: skip


def on_gpu(gpu: gs.device.Device, rows: list[Row]) -> list[Row]:
    """Run pairs on a GPU, again and again in turns, and each of it alone; times in ns."""
    found: list[Row] = [
        {name: row[name] for name in ("shared", "a", "b")} | {"makespans_ns": [], "slowest_ns": []}
        for row in rows
    ]
    for turn in range(TURNS):
        for row in found:
            together = launched(gpu, row, "ba")
            row["makespans_ns"].append(makespan_ns(together))
            row["slowest_ns"].append({name: int(longest(together[name])) for name in "ab"})
            if not turn:
                alone = {name: launched(gpu, row, name)[name] for name in "ab"}
                row["alone_ns"] = {name: float(typical(alone[name])) for name in "ab"}
    return found


def of_gpu(measured_rows: list[Row], profile: str) -> Row:
    """Makespans of pairs that a GPU ran, simulated and measured, as :func:`pair_figures`."""
    rows = []
    for row in measured_rows:
        gpu = gs.open_device(f"sim:{profile}", quiet=True)
        together = launched(gpu, row, "ba")
        alone = {name: launched(gpu, row, name)[name] for name in "ab"}
        real, seen = statistics.median(row["makespans_ns"]), makespan_ns(together)
        rows.append(figure(row, seen, real) | {
            "floor": max(row["makespans_ns"]) / min(row["makespans_ns"]) - 1,
            "slowest": slowest(alone, together),
            "measured_slowest": {
                name: statistics.median(each[name] for each in row["slowest_ns"])
                / row["alone_ns"][name]
                for name in "ab"
            },
        })  # fmt: skip
    return summed_up(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--profile", default="h100", help="the part after sim: of this card")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--simulate", action="store_true")
    asked = parser.parse_args()
    if asked.simulate:
        seen = json.loads(asked.out.read_text("utf-8"))["seen"]
    else:
        gpu = gs.open_device(asked.device)
        rows = json.loads(DATA.read_text("utf-8"))["pairs"]
        seen = {"device": gpu.info.name, "profile": asked.profile, "measured": on_gpu(gpu, rows)}
    found = of_gpu(seen["measured"], asked.profile if asked.simulate else seen["profile"])
    for row in found["pairs"]:
        print(f"{row['a']:16} {row['b']:16} {row['sms']!s:10} {row['measured_us'] / 1e3:7.2f} ms "
              f"±{100 * row['floor']:4.1f} % {100 * row['error']:+6.1f} %")  # fmt: skip
    print(f"median {100 * found['median']:.1f} %, worst {100 * found['worst']:.1f} %")
    facts.write(asked.out, "python benchmarks/pairs.py", seen["device"], [found], seen=seen)


if __name__ == "__main__":
    main()
