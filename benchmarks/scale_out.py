"""A sweep on four simulated workers of Dask, some of which are killed, against a serial one.

    python benchmarks/scale_out.py [--points 1000] [--workers 4] [--kills 10] [--out FILE]

Needs the extra `dask`. The workers are processes of this machine: on fewer free cores than
workers the gain is that of the cores. Fails if the tables differ.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import time
from pathlib import Path
from typing import Any

import distributed

import gpuscope as gs

ONE: dict[str, Any] = {
    "name": "one", "alone_repeats": 0, "partitions": {"a": 8}, "streams": {"s": {"partition": "a"}},
    "workloads": {
        "w": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "s", "repeats": 20},
    },
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    grid = {"seed": list(range(asked.points // 15 + 1)), "partitions.a": list(range(8, 121, 8))}
    grid["seed"] = grid["seed"][: max(1, asked.points // 15)]
    points = len(grid["seed"]) * 15
    chance, deaths = random.Random(0), set()  # noqa: S311
    while len(deaths) < asked.kills:
        deaths.add(chance.randrange(1, points))

    load = os.getloadavg()[0]
    start = time.perf_counter()
    serial = gs.runs.sweep(ONE, grid, "sim:h200")
    serial_s = time.perf_counter() - start

    with (
        distributed.LocalCluster(
            n_workers=asked.workers, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        cluster.get_client() as client,
    ):
        client.run(__import__, "gpuscope.runs.execution")  # as workers that have been started

        def kill(progress: Any) -> None:
            if progress.done in deaths:
                os.kill(
                    chance.choice([one.pid for one in cluster.workers.values() if one.pid]),
                    signal.SIGKILL,
                )

        start = time.perf_counter()
        found = gs.runs.sweep(ONE, grid, "sim:h200", executor=client.get_executor(), viewer=kill)
        workers_s = time.perf_counter() - start

    facts = {
        "points": points, "workers": asked.workers, "kills": asked.kills, "cores": os.cpu_count(),
        "load_before": round(load, 1), "serial_s": round(serial_s, 1),
        "workers_s": round(workers_s, 1), "gain": round(serial_s / workers_s, 2),
        "same_table": found.table.equals(serial.table), "python": platform.python_version(),
        "dask": distributed.__version__,
    }  # fmt: skip
    print(json.dumps(facts, indent=1))
    if asked.out is not None:
        asked.out.write_text(json.dumps(facts, indent=1) + "\n")
    if not facts["same_table"]:
        raise SystemExit("the tables differ")


if __name__ == "__main__":
    main()
