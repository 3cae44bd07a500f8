"""Sweeps on workers against serial ones: whose workers are killed, and how much faster.

    python benchmarks/scale_out.py [--workers dask:4] [--kills 10] [--points 1005]
        [--long-points 16] [--rounds 5] [--out FILE]

The first sweep has very short points; some workers are killed meanwhile. It fails if the table is
not the serial one. The second has points as long as those of an experiment, on workers that have
started; serial and parallel rounds take turns, and the best of each counts. --workers is `dask:N`,
which needs the extra `dask`, or `processes:N`. On fewer free cores than workers the gain is that of
the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpuscope as gs
from gpuscope.experiments.pool import Processes

SHORT, LONG = 20, 1000
"""Calls of a point's workload."""
DEVICE = "sim:h200"


def experiment(repeats: int) -> dict[str, Any]:
    """Return one GEMM on a partition, called so often."""
    gemm = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "s", "repeats": repeats}
    return {
        "name": "one", "alone_repeats": 0, "partitions": {"a": 8},
        "streams": {"s": {"partition": "a"}}, "workloads": {"w": gemm},
    }  # fmt: skip


@contextmanager
def workers(spec: str) -> Iterator[tuple[Executor, Any]]:
    """Yield an executor, and what gives the ids of its processes."""
    kind, _, number = spec.partition(":")
    if kind == "processes":
        with Processes(int(number), attempts=3) as own:
            yield own, lambda: [one.pid for one in own._all or () if one.poll() is None]
        return
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=int(number), threads_per_worker=1, dashboard_address=None
        ) as cluster,
        cluster.get_client() as client,
    ):
        yield (
            client.get_executor(),
            lambda: [one.pid for one in cluster.workers.values() if one.pid],
        )


def timed(repeats: int, grid: dict[str, list[int]], **how: Any) -> tuple[float, Any]:
    """Sweep; returns the seconds, and the table."""
    start = time.perf_counter()
    found = gs.search.sweep(experiment(repeats), grid, DEVICE, **how)
    return time.perf_counter() - start, found.table


def killed(asked: argparse.Namespace) -> dict[str, Any]:
    """Sweep short points while workers are killed."""
    sizes = list(range(8, 121, 8))
    grid = {"seed": list(range(-(-asked.points // len(sizes)))), "partitions.a": sizes}
    points = len(grid["seed"]) * len(sizes)
    chance = random.Random(0)  # noqa: S311
    deaths = set(chance.sample(range(1, points), asked.kills))
    serial_s, serial = timed(SHORT, grid)
    with workers(asked.workers) as (executor, pids):

        def kill(progress: Any) -> None:
            if progress.done in deaths:
                os.kill(chance.choice(pids()), signal.SIGKILL)

        workers_s, found = timed(SHORT, grid, executor=executor, viewer=kill)
    return {
        "points": points, "kills": asked.kills, "serial_s": round(serial_s, 1),
        "workers_s": round(workers_s, 1), "same_table": found.equals(serial),
    }  # fmt: skip


def throughput(asked: argparse.Namespace) -> dict[str, Any]:
    """Sweep long points, by turns serial and on workers that have started."""
    grid = {"seed": list(range(asked.long_points))}
    serial, on_workers, same = [], [], []
    with workers(asked.workers) as (executor, _):
        timed(LONG, grid, executor=executor)
        for _ in range(asked.rounds):
            took_s, expected = timed(LONG, grid)
            serial.append(took_s)
            took_s, found = timed(LONG, grid, executor=executor)
            on_workers.append(took_s)
            same.append(found.equals(expected))
    return {
        "points": asked.long_points, "point_s": round(min(serial) / asked.long_points, 3),
        "serial_s": [round(one, 2) for one in serial],
        "workers_s": [round(one, 2) for one in on_workers],
        "gain": round(min(serial) / min(on_workers), 2), "same_table": all(same),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", default="dask:4")
    parser.add_argument("--points", type=int, default=1005)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--long-points", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("killed", "throughput"))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    facts: dict[str, Any] = {
        "workers": asked.workers, "cores": os.cpu_count(), "load_before": round(load, 1),
        "python": platform.python_version(),
    }  # fmt: skip
    if asked.only != "throughput":
        facts["killed"] = killed(asked)
    if asked.only != "killed":
        facts["throughput"] = throughput(asked)
    facts["load_after"] = round(os.getloadavg()[0], 1)
    print(json.dumps(facts, indent=1))
    if asked.out is not None:
        asked.out.write_text(json.dumps(facts, indent=1) + "\n")
    if not all(facts[part]["same_table"] for part in ("killed", "throughput") if part in facts):
        raise SystemExit("the tables differ")


if __name__ == "__main__":
    main()
