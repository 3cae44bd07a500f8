"""What a sweep costs besides its points, and up to how many workers that does not matter.

    python benchmarks/scale_out_queue.py [--tasks 3000] [--out FILE]

Measures with tasks of a point's size that do nothing: the CPU time of Dask's scheduler, in a
process of its own, and that of the asking process, for submitting a task, and for taking and saving
a result. Then simulates the queue with these times: the asking process submits the tasks, the
scheduler hands each worker its next one, the asking process takes the results; each does one thing
at a time. Efficiency is the time of all points over that of all workers. Not in it: starting
workers, the network, points that differ in length.
"""

from __future__ import annotations

import argparse
import datetime as dt
import heapq
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import distributed
import psutil
from msgspec import structs

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.experiments.experiment import Experiment
from gpuscope.search.point_table import PointTable
from gpuscope.search.points import MeasuredPoint, point_of
from gpuscope.search.scale_out import Team
from gpuscope.search.series import Plan

WORKERS = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)
POINT_S = (0.1, 1.0, 10.0)
EACH = 20
"""Points for each worker."""
ONE: dict[str, Any] = {
    "name": "one", "alone_repeats": 0, "partitions": {"a": 8}, "streams": {"s": {"partition": "a"}},
    "workloads": {
        "w": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "s", "repeats": 20},
    },
}  # fmt: skip


@dataclass
class Times:
    """CPU seconds for one task."""

    submit_s: float
    schedule_s: float
    take_s: float


def idle(_plan: Plan[MeasuredPoint], point: MeasuredPoint, _: Device) -> MeasuredPoint:
    """Do nothing, with the arguments and the result of a point."""
    return point


@contextmanager
def cluster(workers: int) -> Iterator[tuple[distributed.Client, psutil.Process]]:
    """Start a scheduler and workers, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "scheduler.json"))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        worker = ["dask_worker", "--nthreads", "1", "--no-nanny"]
        commands = [["dask_scheduler", "--port", "0"], *[worker] * workers]
        started = [
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{name}", *more, "--no-dashboard",
                 "--scheduler-file", file],
                env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for name, *more in commands
        ]  # fmt: skip
        try:
            with distributed.Client(scheduler_file=str(file), timeout=60) as client:
                client.wait_for_workers(workers)
                yield client, psutil.Process(started[0].pid)
        finally:
            for one in started:
                one.kill()
                one.wait()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure(tasks: int) -> Times:
    """Measure the times of one task."""
    gpu = gs.open_device("sim:h200", quiet=True)
    experiment = Experiment.from_dict(ONE)
    plan = Plan(experiment, "one", partial(point_of, 0, {"seed": 0}))
    point = plan.make(gs.run(experiment, gpu), gpu.info.uuid)
    with cluster(2) as (client, scheduler), tempfile.TemporaryDirectory() as folder:
        here = psutil.Process()
        team = Team(client.get_executor(), "sim:h200")
        job = importable(plan, point)
        list(team.results(dict.fromkeys(range(100), job), threading.Event()))  # imports
        before = cpu_s(scheduler), cpu_s(here)
        futures = [client.submit(job, None, key=f"only-submitted-{n}") for n in range(tasks)]
        distributed.wait(futures)
        submit_s = cpu_s(here) - before[1]
        del futures
        time.sleep(1)  # Dask forgets them
        before = cpu_s(scheduler), cpu_s(here)
        points = PointTable("point", experiment, {"seed": list(range(tasks))}, gpu.info, folder)
        jobs = dict.fromkeys(range(tasks), job)
        for number, made in team.results(jobs, threading.Event()):
            rows = [{**row, "seed": number} for row in made.rows]
            points.add(structs.replace(made, number=number, rows=rows))
        all_s = cpu_s(here) - before[1]
        schedule_s = cpu_s(scheduler) - before[0]
    submit_s = min(submit_s, all_s)
    return Times(submit_s / tasks, schedule_s / tasks, (all_s - submit_s) / tasks)


def importable(plan: Plan[MeasuredPoint], point: MeasuredPoint) -> Any:
    """Return a job that another process can import."""
    import scale_out_queue

    return partial(scale_out_queue.idle, plan, point)


def efficiency(workers: int, point_s: float, times: Times) -> float:
    """Simulate the queue; returns the time of all points over that of all workers."""
    points = EACH * workers
    free = [0.0] * workers  # when each worker asks for more
    scheduler_s = 0.0
    ended: list[float] = []
    for number in range(points):
        ready_s = (number + 1) * times.submit_s
        scheduler_s = max(scheduler_s, heapq.heappop(free), ready_s) + times.schedule_s
        heapq.heappush(free, scheduler_s + point_s)
        ended.append(scheduler_s + point_s)
    asking_s = points * times.submit_s
    for at_s in sorted(ended):
        asking_s = max(asking_s, at_s) + times.take_s
    return points * point_s / (workers * asking_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    times = measure(asked.tasks)
    table = {
        f"{point_s:g}": {str(n): round(efficiency(n, point_s, times), 3) for n in WORKERS}
        for point_s in POINT_S
    }
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": f"python benchmarks/scale_out_queue.py --tasks {asked.tasks}",
        "machine": platform.machine(), "tasks": asked.tasks,
        "load_before": round(load, 1), "cores": os.cpu_count(),
        "python": platform.python_version(), "dask": distributed.__version__,
        "us": {name: round(1e6 * one) for name, one in asdict(times).items()},
        "most_points_per_s": round(1 / max(times.schedule_s, times.submit_s + times.take_s)),
        "efficiency": table,
    }  # fmt: skip
    print(json.dumps(facts, indent=1))
    if asked.out is not None:
        asked.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
