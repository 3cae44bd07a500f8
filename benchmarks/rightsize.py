"""The fewest SMs that ``gs.tune`` names against the full grid's, for five pairs of models.

A pair is a model that has to answer in time beside one that is launched without end, on two
partitions of every split of 16. The limit is on the first one's median latency, as a multiple of
that alone on the whole GPU. For each pair:

- *tuned*: ``gs.tune(…, "fewest SMs", …)`` with its defaults;
- *grid*: every split measured in turns; its answer is the smallest that surely meets the limit, as
  ``tune`` judges it. What meets it by its mean only is noted, too.

The goal is an answer within one quantum (8 SMs) of the grid's, from fewer measurements.

    python benchmarks/rightsize.py [--pair N ...] [--turns N] [--device NAME] [--out FILE]
    python benchmarks/rightsize.py --joules [--device NAME] [--out FILE]

On ``sim:h200`` models are recordings of ``data/models.json``, on a GPU PyTorch decoders of about
these sizes (``examples/decoder.py``). With --joules, the same settings are measured five times in
turns instead, after once that does not count, each in three rounds: their energy a call is to
repeat within 3 %. Calls
are queued, so that the GPU waits for no host: what it draws at rest meanwhile is as long as that.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from facts import row, spread, write
from what_if import DATA, FEW, WHOLE, trace_of

import gpuscope as gs
from gpuscope.analysis.certainty import interval

HERE = Path(__file__).resolve().parent
QUANTUM = 8
TURNS = 3
AGAIN, ROUNDS = 5, 3
QUEUED = 4
RUN_S = 0.15
SPLITS = [*range(8, 113, 8), 124]
"""Every split but 120 | 12: cuBLAS launches clusters, which the remainder of 12 SMs holds none
of."""
LATENCY = "fast.latency_p50_us"
PAIRS = [
    ("decode 4096 b16", "prefill 4096", 1.25),
    ("decode 2048 b64", "prefill 2048", 1.5),
    ("decode 2048 b64", "prefill 4096", 2.0),
    ("decode 4096 b16", "mixed 4096", 1.5),
    ("conv 128", "prefill 2048", 3.0),
]
"""Who has to answer, who is beside it, and the limit over the latency alone."""
ON_GPU = {
    "decode 4096 b16": ("decode", {"hidden": 4096, "batch": 16}),
    "decode 2048 b64": ("decode", {"hidden": 2048, "batch": 64, "layers": 2}),
    "conv 128": ("prefill", {"hidden": 2048, "tokens": 512}),
    "prefill 4096": ("prefill", {"hidden": 4096, "tokens": 2048}),
    "prefill 2048": ("prefill", {"hidden": 2048, "tokens": 2048}),
    "mixed 4096": ("prefill", {"hidden": 4096, "tokens": 512}),
}
"""What stands for a recorded model on a GPU."""

Row = dict[str, Any]


class Models:
    """Describes workloads and experiments of models on a device.

    Attributes
    ----------
    folder
        Where the recordings of models are, for a simulated GPU.
    """

    def __init__(self, device: Any, folder: Path) -> None:
        self.device, self.folder = device, folder
        self.recorded = json.loads(DATA.read_text("utf-8"))["models"]

    def workload(self, name: str) -> Row:
        """Describe a model as a workload."""
        if not self.device.is_simulated:
            kind, args = ON_GPU[name]
            return {"kind": f"python:decoder:{kind}", "args": args}
        paths = {sms: self.folder / f"{name} {sms}.parquet" for sms in (WHOLE, FEW)}
        for sms, path in paths.items():
            if not path.exists():
                gs.export(trace_of(self.recorded[name], sms), path)
        return {
            "kind": "trace", "path": str(paths[WHOLE]), "second": str(paths[FEW]), "graph": True,
        }  # fmt: skip

    def alone(self, name: str, queued: int = 1, **facts: object) -> Row:
        """Describe a model alone on the whole GPU."""
        fast = {**self.workload(name), "stream": "s", "repeats": 60, "max_queued": queued}
        return {
            "name": "alone", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"fast": fast},
            **facts,
        }  # fmt: skip

    def pair(
        self, fast: str, load: str, calls: int, split: int, queued: int = 1, **facts: object
    ) -> Row:
        """Describe two models on two partitions."""
        return {
            "name": "pair", "alone_repeats": 0, "partitions": {"fast": split, "load": "rest"},
            "streams": {name: {"partition": name} for name in ("fast", "load")},
            "workloads": {
                "fast": {**self.workload(fast), "stream": "fast", "repeats": calls,
                         "max_queued": queued},
                "load": {**self.workload(load), "stream": "load", "background": True,
                         "max_queued": 2},
            },
            **facts,
        }  # fmt: skip

    def row(self, experiment: Row, seed: int = 0) -> Row:
        """Run an experiment, and return what it says of the model that has to answer."""
        rows = gs.run({**experiment, "seed": seed}, self.device).comparison.to_pylist()
        return next(row for row in rows if row["workload"] == "fast")


def right_size(models: Models, number: int, turns: int) -> Row:
    """Tune a pair, measure its full grid, and compare the answers."""
    fast, load, times = PAIRS[number]
    alone_us = models.row(models.alone(fast))["latency_p50_us"]
    limit_us = times * alone_us
    calls = 40 if models.device.is_simulated else max(30, round(RUN_S * 1e6 / limit_us))
    began_s = time.monotonic()
    result = gs.tune(
        models.pair(fast, load, calls, 64), {"partitions.fast": SPLITS}, "fewest SMs",
        {LATENCY: f"<= {limit_us:.6g}"}, models.device,
    )  # fmt: skip
    tuned_s = time.monotonic() - began_s
    grid: dict[int, list[float]] = {split: [] for split in SPLITS}
    for turn in range(turns):
        for split in random.Random(turn).sample(SPLITS, len(SPLITS)):  # noqa: S311
            measured = models.row(models.pair(fast, load, calls, split), 1000 + turn)
            grid[split].append(measured["latency_p50_us"])
    sure = [split for split, us in grid.items() if interval(us, 0.025)[1] <= limit_us]
    likely = [split for split, us in grid.items() if statistics.mean(us) <= limit_us]
    answer = None if result.choice is None else result.choice.sizes["fast"]
    truth = min(sure, default=None)
    off = (
        0 if answer == truth
        else None if answer is None or truth is None
        else (answer - truth) / QUANTUM
    )  # fmt: skip
    return row(
        f"fewest SMs of {fast} beside {load}, tuned over the full grid", "within 1 quantum", off,
        "quanta", met=off is not None and abs(off) <= 1,
        tuned_sms=answer, grid_sms=truth, grid_likely_sms=min(likely, default=None),
        decided=result.is_decided, limit_us=limit_us, alone_us=alone_us,
        tuned_measurements=result.measurements, grid_measurements=sum(map(len, grid.values())),
        tuned_s=round(tuned_s, 1), outcome=result.outcome, left=result.words.left,
        forecasts=result.forecasts, grid_us=grid,
        verdicts={setting.sizes["fast"]: setting.verdict for setting in result.settings},
    )  # fmt: skip


def joules(models: Models) -> list[Row]:
    """Measure settings again and again in turns, and return how far their energy a call varies."""
    fast, load, _ = PAIRS[0]
    settings = {
        f"{fast} alone on the whole GPU": models.alone(fast, QUEUED, energy=True, rounds=ROUNDS),
        f"{fast} on 64 SMs beside {load}": models.pair(
            fast, load, 60, 64, QUEUED, energy=True, rounds=ROUNDS
        ),
    }
    seen: dict[str, list[Row]] = {name: [] for name in settings}
    for turn in range(AGAIN + 1):
        for name, experiment in settings.items():
            measured = models.row(experiment, turn)
            if turn:
                seen[name].append(measured)
    rows = []
    for name, several in seen.items():
        drawn = [each["joules_per_call"] for each in several]
        apart = (max(drawn) - min(drawn)) / statistics.median(drawn)
        rows.append(
            row(f"energy a call of {name}, {AGAIN} times", "within 3 %", round(100 * apart, 3), "%",
                met=apart <= 0.03, joules_per_call=spread(drawn),
                dynamic_joules_per_call=spread(
                    [each["dynamic_joules_per_call"] for each in several]
                ),
                idle_w=spread([each["idle_w"] for each in several]))
        )  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Measure, writing what was found as it comes; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pair", type=int, action="append", choices=range(len(PAIRS)))
    parser.add_argument("--joules", action="store_true")
    parser.add_argument("--turns", type=int, default=TURNS, help="of the full grid; at least 2")
    parser.add_argument("--device", default="sim:h200")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then begin no pair")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "rightsize_simulated.json")
    asked = parser.parse_args(arguments)
    sys.path.insert(0, str(HERE.parent / "examples"))
    device = gs.open_device(asked.device, quiet=True)
    until_s = time.monotonic() + asked.seconds
    rows: list[Row] = []

    def add(found: Row) -> None:
        rows.append(found)
        command = f"python benchmarks/rightsize.py --device {asked.device}"
        more = " --joules" if asked.joules else ""
        name = device.info.key if device.is_simulated else device.info.name
        write(asked.out, command + more, f"{name}, driver {device.info.driver}", rows)
        told = {name: value for name, value in found.items() if not isinstance(value, dict)}
        print(json.dumps(told), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        models = Models(device, Path(folder))
        if asked.joules:
            for found in joules(models):
                add(found)
        for number in () if asked.joules else asked.pair or range(len(PAIRS)):
            if time.monotonic() < until_s:
                add(right_size(models, number, asked.turns))
    return int(not all(found["met"] for found in rows))


if __name__ == "__main__":
    sys.exit(main())
