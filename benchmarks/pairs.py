"""Two workloads at a time, as the simulator forecasts them and as an H200 ran them.

Used by cpu.py; the measured starts and ends are in benchmarks/data/pairs.json.

A makespan is from the first kernel's start to the last one's end. In each measured run one
thread launched all kernels of b, then all of a; after its very first launch it was held up, by
the recorder's first buffer most likely. The simulated host launches in the same order and
sleeps as long, by the median over the *other* pairs' solo runs. No constant of the simulator
comes from pairs, so nothing else has to be left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.device.api import KernelModel
from gpuscope.simulator.calibration.memory import fit_copy
from gpuscope.simulator.profiles.profile import Profile
from gpuscope.simulator.profiles.schema import CopyTimes

DATA = Path(__file__).resolve().parent / "data" / "pairs.json"
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


def launcher(gpu: Any, name: str) -> Callable[[Any], Any]:
    """Return what launches a workload on a stream; operands that nobody reads cost nothing."""
    if name == "copy1g":
        model = KernelModel(lambda _p, _g, _a, sms: of_copies().copy_cost(COPY_BYTES, sms))
        kernel = gpu.compile("", name, model=model)
        return lambda stream: stream.launch(kernel, grid=1, block=1)
    m, n, k, dtype = GEMMS[name]
    handle = gs.Gemm(gpu, m=m, n=n, k=k, dtype=dtype, sm_count_target=None, max_in_flight=64)
    operands = [gpu.empty(shape, dtype) for shape in ((m, k), (k, n), (m, n))]
    return lambda stream: handle.execute(*operands, stream=stream)


def simulate(row: Row, held_up_ns: int, which: str = "ba") -> Times:
    """Run a pair, or one of it, on the simulated GPU."""
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({name: row[name]["sms"] for name in "ab"}) as parts:
        homes = {name: gpu if row["shared"] else parts[name] for name in "ab"}
        streams = {name: homes[name].create_stream() for name in which}
        launchers = {name: launcher(gpu, row[name]["workload"]) for name in which}
        with gs.profile(gpu) as recording:
            for name, stream in streams.items():
                for number in range(row[name]["count"]):
                    launchers[name](stream)
                    if name == which[0] and number == 0:
                        gpu.backend.wait_until_ns(gpu.now_ns() + held_up_ns)
            gpu.synchronize()
        kernels = recording.trace.where(kind="kernel")
        found = {}
        for name, stream in streams.items():
            mine = kernels.where(stream=stream.id)
            found[name] = np.stack([mine.array("start_ns"), mine.array("end_ns")], axis=1)
            stream.close()
    return found


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


def durations(times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(times[:, 1] - times[:, 0])


def slowest(alone: Times, together: Times) -> dict[str, float]:
    """The longest kernel of each beside the other, against the median alone."""
    return {
        name: float(durations(together[name]).max() / np.median(durations(alone[name])))
        for name in together
    }


def apart(alone: Times) -> float:
    """How much longer one kernel of a workload alone took than another, at most."""
    return max(float(durations(each).max() / durations(each).min()) - 1 for each in alone.values())


def pair_figures() -> Row:
    """Makespans of every pair, simulated and measured, and how kernels slowed each other."""
    pairs = json.loads(DATA.read_text("utf-8"))["pairs"]
    rows = []
    for row in pairs:
        held_up_ns = held_up([other for other in pairs if other is not row])
        together = simulate(row, held_up_ns)
        alone = {name: simulate(row, held_up_ns, name)[name] for name in "ab"}
        real = makespan_ns(measured(row, "together"))
        seen = makespan_ns(together)
        rows.append({
            **{name: f"{row[name]['count']} × {row[name]['workload']}" for name in "ab"},
            "sms": None if row["shared"] else [row["a"]["sms"], row["b"]["sms"]],
            "held_up_us": held_up_ns / 1e3, "simulated_us": seen / 1e3, "measured_us": real / 1e3,
            "error": seen / real - 1,
            "slowest": slowest(alone, together),
            "measured_slowest": slowest(measured(row, "alone"), measured(row, "together")),
            "alone_apart": apart(measured(row, "alone")),
        })  # fmt: skip
    errors = [abs(each["error"]) for each in rows]
    return {
        "what": "makespan of two concurrent workloads, simulated against measured",
        "median": statistics.median(errors), "worst": max(errors), "pairs": rows,
    }  # fmt: skip
