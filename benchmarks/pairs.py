"""Two workloads at a time, as the simulator forecasts them and as an H200 ran them.

    python benchmarks/pairs.py [--measure cuda:0 --out FILE]

Used by cpu.py; the measured starts and ends are in benchmarks/data/pairs.json and, of the thirteen
splits that this lacks, measured later, in pairs_thirteen.json. --measure runs these on a GPU.

A makespan is from the first kernel's start to the last one's end. In each measured run one
thread launched all kernels of b, then all of a; after its very first launch it was held up, by
the recorder's first buffer most likely. The simulated host launches in the same order and
sleeps as long, by the median over the *other* pairs' solo runs. No constant of the simulator
comes from pairs, so nothing else has to be left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import functools
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.simulator.calibration.memory import fit_copy
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.simulator.profiles.schema import CopyTimes

DATA = Path(__file__).resolve().parent / "data" / "pairs.json"
THIRTEEN = DATA.with_name("pairs_thirteen.json")
GEMMS = {
    "gemm4096": (4096, 4096, 4096, "float16"),
    "gemm8192": (8192, 8192, 8192, "float16"),
    "sgemm2048": (2048, 2048, 2048, "float32"),
    "small512": (512, 512, 512, "float16"),
    "gemv": (1, 16384, 16384, "float16"),
}
COPY_BYTES = 2**30
"""Of ``copy1g``: 2²⁸ float32."""
COPY = r"""
extern "C" __global__ void copy1g(const float* from, float* to, long long n) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
       i += (long long)gridDim.x * blockDim.x) to[i] = from[i];
}
"""
"""As CuPy compiles an element-wise kernel, an element a thread."""
COPY_THREADS = 128
WORKLOADS = (
    ("gemm4096", 6, "gemm4096", 6),
    ("small512", 40, "gemm8192", 2),
    ("sgemm2048", 4, "gemm4096", 6),
    ("copy1g", 3, "copy1g", 3),
    ("gemm4096", 6, "copy1g", 4),
    ("gemv", 20, "gemm8192", 2),
)
"""a, its kernels, b, its kernels."""
SPLITS = ((8, 124), (32, 100), (64, 68), (96, 36), None)

HELD_UP_NS = 20_000
"""A gap longer than this between the first two kernels of a run is the host's."""

Row = dict[str, Any]
Times = dict[str, np.ndarray[Any, Any]]
"""Workload, a or b → start and end of each of its kernels in ns."""


def copy_model(pairs: list[Row]) -> KernelModel:
    """Model the copy kernel of the pairs, which launches more blocks than the simulator's own.

    Its times are those that it took alone.
    """
    profile = GpuProfile.load("h200")
    rows = [
        {
            "mb": COPY_BYTES >> 20,
            "sms": profile.layout.sm_count if row["shared"] else row[name]["sms"],
            "us": median_us(row["alone"][name]),
        }
        for row in pairs
        for name in "ab"
        if row[name]["workload"] == "copy1g"
    ]
    kernel = CopyTimes.model_validate(fit_copy(rows)[0])
    own = dataclasses.replace(profile, file=profile.file.model_copy(update={"copy_kernel": kernel}))

    def cost(_profile: Any, grid: int, _args: Any, sms: int) -> KernelCost:
        moved = 2 * COPY_BYTES
        return dataclasses.replace(
            own.copy_cost(COPY_BYTES, sms), nbytes=moved, cold_nbytes=moved, launched=grid
        )

    return KernelModel(cost)


def median_us(times: list[list[int]]) -> float:
    return statistics.median(end - start for start, end in times) / 1000


def launcher(gpu: Any, name: str, copy: KernelModel | None) -> Callable[[Any], Any]:
    """Return what launches a workload on a stream; operands that nobody reads cost nothing."""
    if name == "copy1g":
        kernel = gpu.compile(COPY, name, model=copy)
        count = COPY_BYTES // 4
        arrays = [gpu.empty(count, "float32") for _ in range(2)]
        grid = count // COPY_THREADS
        return lambda stream: stream.launch(kernel, *arrays, count, grid=grid, block=COPY_THREADS)
    m, n, k, dtype = GEMMS[name]
    handle = gs.Gemm(gpu, m=m, n=n, k=k, dtype=dtype, sm_count_target=None, max_in_flight=64)
    operands = [gpu.empty((m, n), dtype)]
    for shape in ((k, n), (m, k)):
        operands.insert(
            0, gpu.empty(shape, dtype) if gpu.is_simulated else filled(gpu, shape, dtype)
        )
    return lambda stream: handle.execute(*operands, stream=stream)


@functools.cache
def filled(gpu: Any, shape: tuple[int, int], dtype: str) -> Any:
    """Random operands: products of zeros draw less power, and so run at a higher clock."""
    values = np.random.default_rng(0).standard_normal(shape, "float32")
    return gpu.asarray(values.astype(dtype))


def simulate(row: Row, held_up_ns: int, copy: KernelModel, which: str = "ba") -> Times:
    """Run a pair, or one of it, simulated: the host is held up after its first launch."""
    gpu = gs.open_device("sim:h200", quiet=True)
    hold_up = lambda: gpu.backend.wait_until_ns(gpu.now_ns() + held_up_ns)  # noqa: E731
    return run(gpu, row, which, copy, hold_up)


def run(
    gpu: Any,
    row: Row,
    which: str,
    copy: KernelModel | None = None,
    after_first: Callable[[], object] = lambda: None,
) -> Times:
    """Run a pair, or one of it, and return the times of its kernels.

    Parameters
    ----------
    which
        What is launched, in this order.
    copy
        The copy kernel's model, for a simulated GPU.
    after_first
        Called after the very first launch.
    """
    homes = dict.fromkeys("ab", gpu)
    with contextlib.ExitStack() as opened:
        if not row["shared"]:
            homes = opened.enter_context(gpu.carve({name: row[name]["sms"] for name in "ab"}))
        streams = {
            name: opened.enter_context(homes[name].create_stream(name=name)) for name in which
        }
        launchers = {name: launcher(gpu, row[name]["workload"], copy) for name in which}
        with gs.profile(gpu) as recording:
            for name, stream in streams.items():
                for number in range(row[name]["count"]):
                    launchers[name](stream)
                    if name == which[0] and number == 0:
                        after_first()
            gpu.synchronize()
        kernels = recording.trace.where(kind="kernel")
        of_stream = {name: kernels.where(stream=stream.id) for name, stream in streams.items()}
    return {
        name: np.stack([found.array("start_ns"), found.array("end_ns")], axis=1)
        for name, found in of_stream.items()
    }


def measure(gpu: Any) -> list[Row]:
    """Run the pairs that DATA lacks on a GPU.

    Of three runs of each, behind one that loads its kernels, the one with the median makespan is
    kept: now and then a host is held up.
    """
    measured_before = {identity(row) for row in json.loads(DATA.read_text("utf-8"))["pairs"]}
    rows = []
    for (a, a_count, b, b_count), split in itertools.product(WORKLOADS, SPLITS):
        a_sms, b_sms = split or (gpu.sm_count, gpu.sm_count)
        row = {
            "shared": split is None,
            "a": {"workload": a, "sms": a_sms, "count": a_count},
            "b": {"workload": b, "sms": b_sms, "count": b_count},
        }
        if identity(row) in measured_before:
            continue
        run(gpu, row, "ba")
        together = sorted((run(gpu, row, "ba") for _ in range(3)), key=makespan_ns)[1]
        alone = {name: run(gpu, row, name)[name] for name in "ab"}
        rows.append({**row, "alone": listed(alone), "together": listed(together)})
    return rows


def identity(row: Row) -> tuple[str, str, int | None]:
    """What tells a pair from the others: its workloads, and the SMs of the first."""
    return row["a"]["workload"], row["b"]["workload"], None if row["shared"] else row["a"]["sms"]


def listed(times: Times) -> dict[str, list[list[int]]]:
    """Times from the first start on, as JSON holds them."""
    first = min(int(of_one[:, 0].min()) for of_one in times.values())
    return {name: (of_one - first).tolist() for name, of_one in times.items()}


def makespan_ns(times: Times) -> int:
    every = np.concatenate(list(times.values()))
    return int(every[:, 1].max() - every[:, 0].min())


def measured(row: Row, key: str) -> Times:
    return {name: np.array(times) for name, times in row[key].items()}


def held_up(rows: list[Row]) -> int:
    """How long the host was held up after the first launch: median over runs that show it, or 0."""
    seen = []
    for row in rows:
        for times in measured(row, "alone").values():
            (start, end), (following, _) = times[:2]
            if following - end > HELD_UP_NS:
                seen.append(int(following - start))
    return round(statistics.median(seen)) if seen else 0


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


def pair_figures(data: Path = DATA) -> Row:
    """Makespans of every pair, simulated and measured, and how kernels slowed each other."""
    pairs = json.loads(data.read_text("utf-8"))["pairs"]
    rows, copy = [], copy_model(pairs)
    for row in pairs:
        held_up_ns = held_up([other for other in pairs if other is not row])
        together = simulate(row, held_up_ns, copy)
        alone = {name: simulate(row, held_up_ns, copy, name)[name] for name in "ab"}
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


def thirteen_figures() -> Row:
    """The same of the splits that were measured later."""
    found = pair_figures(THIRTEEN)
    found["thirteen"] = found.pop("pairs")
    return {**found, "what": "the same of the splits that were measured later"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", metavar="DEVICE", help="run all pairs on this GPU")
    parser.add_argument("--out", type=Path, help="where to write what was measured")
    asked = parser.parse_args()
    if asked.measure:
        gpu = gs.open_device(asked.measure, quiet=True)
        rows = measure(gpu)
        if asked.out:
            today = dt.datetime.now(dt.UTC).date()
            keep(rows, f"{gpu.info.name}, {gpu.info.driver}, {today}", asked.out)
        print(f"{len(rows)} pairs on {gpu.info.name}")
        return
    for figures, name in ((pair_figures, "pairs"), (thirteen_figures, "thirteen")):
        found = figures()
        for pair in found[name]:
            split = "not partitioned" if pair["sms"] is None else "{} | {}".format(*pair["sms"])
            print(f"{pair['a']:16} {pair['b']:14} {split:16} {pair['error']:+7.1%}")
        print(f"median {found['median']:.1%}, worst {found['worst']:.1%}\n")


def keep(rows: list[Row], machine: str, target: Path) -> None:
    """Write measured pairs, one a line."""
    about = (
        f"kernels' start and end in ns by CUPTI, one {machine}; cuBLAS not told the SM count; "
        "shared: both on unpartitioned streams"
    )
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    target.write_text(f'{{"about": {json.dumps(about)},\n"pairs": [\n{lines}\n]}}\n', "utf-8")


if __name__ == "__main__":
    main()
