"""Tuned splits of prefill and decode against every split, and against SGLang's table.

Each pair is two decoders with random weights (``examples/decoder.py``), prefill in the background
and decode in the foreground. The objective is the rate of prefill while decode's median latency
meets an SLO: 1.5 times its latency alone on the whole GPU. For each pair:

- *tuned*: ``gs.tune`` over all splits, with at most five measurements of each;
- *grid*: every split measured five times, in turns; its best is the one with the best median
  of those that meet the SLO, judged as ``tune`` does;
- *again*: the tuned split and the grid's best, five times each in turns, after they were chosen;
- *table* (the first pair): for some decode batches, a tuned split against SGLang's default one.

    python benchmarks/tune.py [--pair N ...] [--seconds S] [--out FILE]
    python benchmarks/tune.py --simulate

With --simulate, recordings of such models run on the simulated GPU: one pair, no table.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gpuscope as gs
from gpuscope.analysis.certainty import interval
from gpuscope.comparing.effects import FEWEST

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "tune.json"
PAIRS = [
    {"prefill": {"hidden": 4096, "tokens": 2048}, "decode": {"hidden": 4096, "batch": 16}},
    {
        "prefill": {"hidden": 2048, "tokens": 4096, "layers": 2},
        "decode": {"hidden": 2048, "batch": 32, "layers": 2},
    },
    {"prefill": {"hidden": 4096, "tokens": 1024}, "decode": {"hidden": 8192, "batch": 8}},
]
RECORDED = {"prefill": "prefill_h200", "decode": "decode_h200"}
SGLANG = [[112, 20, 1], [104, 28, 5], [96, 36, 10], [80, 52, 15], [64, 68, 20], [56, 76, 25]]
"""Its default for an H200: ``[prefill_sm, decode_sm, decode_bs_threshold]``."""
BATCHES = (1, 10, 25)
SLO = 1.5
TURNS = 5
RUN_S = 0.2
VARY = {"partitions.prefill": [*range(8, 113, 8), 124]}
"""Every split of 15 quanta but 120 | 12: cuBLAS launches clusters, which the remainder of 12 SMs
holds none of, so that PyTorch fails there. 124 | 8 has the remainder at the other side."""
LATENCY = "decode.latency_p50_us"

RATE = "calls_per_s"

Row = dict[str, Any]
Sizes = dict[str, dict[str, int]]
Runs = dict[int, list[tuple[float, float]]]
"""Split → rate of prefill and latency of decode, turn by turn."""


class Bench:
    """Measures pairs of models on a device until the time is over, and saves as it goes.

    Attributes
    ----------
    results
        What was found so far, as it stands in the file.
    """

    def __init__(self, device: Any, asked: argparse.Namespace) -> None:
        self.device = device
        self.simulate = asked.simulate
        self.turns = asked.turns
        self.until = time.monotonic() + asked.seconds
        self.path = asked.out
        kept = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        self.results: Row = {
            "date": dt.datetime.now(dt.UTC).date().isoformat(), "device": device.info.name,
            "driver": device.info.driver, "pairs": {}, "table": [],
            **{name: kept[name] for name in ("pairs", "table") if name in kept},
        }  # fmt: skip

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until

    def save(self) -> None:
        self.path.write_text(json.dumps(self.results, indent=1) + "\n", "utf-8")

    def workload(self, name: str, sizes: dict[str, int]) -> Row:
        """Describe a model."""
        if self.simulate:
            path = RECORDED[name]
            return {"kind": "trace", "path": path, "second": f"{path}_24", "graph": True}
        return {"kind": f"python:decoder:{name}", "args": dict(sizes)}

    def alone_us(self, sizes: dict[str, int]) -> float:
        """Return decode's median latency alone on the whole GPU."""
        decode = {**self.workload("decode", sizes), "stream": "s", "repeats": 100}
        alone = {
            "name": "alone", "alone_repeats": 0, "streams": {"s": {}},
            "workloads": {"decode": decode},
        }  # fmt: skip
        (row,) = gs.run(alone, self.device).comparison.to_pylist()
        return float(row["latency_p50_us"])

    def experiment(self, pair: Sizes, alone_us: float, split: int) -> Row:
        """Describe a pair: each run takes about RUN_S."""
        calls = 40 if self.simulate else max(50, min(2000, round(RUN_S * 1e6 / alone_us / SLO)))
        return {
            "name": "pair", "alone_repeats": 0,
            "partitions": {"prefill": split, "decode": "rest"},
            "streams": {name: {"partition": name} for name in pair},
            "workloads": {
                "prefill": {**self.workload("prefill", pair["prefill"]), "stream": "prefill",
                            "background": True, "max_queued": 2},
                "decode": {**self.workload("decode", pair["decode"]), "stream": "decode",
                           "repeats": calls},
            },
        }  # fmt: skip

    def turn(self, pair: Sizes, alone_us: float, number: int, found: Runs) -> None:
        """Run each split once, and note the rate of prefill and the latency of decode."""
        for split in random.Random(number).sample(list(found), len(found)):  # noqa: S311
            plan = {**self.experiment(pair, alone_us, split), "seed": number}
            try:
                rows = gs.run(plan, self.device).comparison.to_pylist()
            except RuntimeError as error:  # PyTorch's: what fails is no split to choose
                self.results.setdefault("failed", {})[str(split)] = str(error)[:200]
                del found[split]
                continue
            by_name = {row["workload"]: row for row in rows}
            found[split].append((by_name["prefill"][RATE], by_name["decode"]["latency_p50_us"]))

    def tuned(self, pair: Sizes, alone_us: float, repeats: int) -> Any:
        """Tune a pair over all splits."""
        return gs.tune(
            self.experiment(pair, alone_us, 64), VARY, f"prefill.{RATE}",
            {LATENCY: f"<= {SLO * alone_us:.4f}"}, self.device, repeats=repeats,
        )  # fmt: skip

    def pair(self, number: int) -> None:
        """Tune a pair, and measure how good that is."""
        pair = PAIRS[number]
        row: Row = {"pair": pair}
        self.results["pairs"][str(number)] = row
        alone_us = self.alone_us(pair["decode"])
        began = time.monotonic()
        result = self.tuned(pair, alone_us, TURNS)
        chosen = choice(result)
        grid: Runs = {one.sizes["prefill"]: [] for one in result.settings}
        row |= {
            "alone_us": alone_us, "slo_us": SLO * alone_us, "chosen": chosen,
            "equals": [one.sizes["prefill"] for one in result.equals],
            "outcome": result.outcome, "forecasts": result.forecasts,
            "tuned_runs": result.measurements, "tuned_s": time.monotonic() - began,
            "settings": [
                {"prefill": one.sizes["prefill"], "verdict": one.verdict,
                 "forecast": one.forecast, "values": one.values}
                for one in result.settings
            ],
            "grid": grid,
        }  # fmt: skip
        self.save()
        for turn in range(self.turns):
            if turn and self.is_over:
                break
            self.turn(pair, alone_us, turn, grid)
            row["grid_turns"] = turn + 1
            self.save()
        middle = {split: medians(runs) for split, runs in grid.items() if runs}
        meeting = [split for split in middle if meets(grid[split], SLO * alone_us)]
        if meeting and chosen is not None:
            best = max(meeting, key=lambda split: middle[split][0])
            again: Runs = {best: [], chosen: []}
            for turn in range(TURNS):
                self.turn(pair, alone_us, 100 + turn, again)
            row |= {
                "best": best, "again": again,
                "ratio": medians(again[chosen])[0] / medians(again[best])[0],
                "chosen_us": medians(again[chosen])[1], "best_us": medians(again[best])[1],
            }  # fmt: skip
        self.save()

    def table(self) -> None:
        """Compare tuned splits with SGLang's at some decode batches, each at the same SLO."""
        for batch in BATCHES:
            if self.is_over:
                break
            pair = {**PAIRS[0], "decode": {**PAIRS[0]["decode"], "batch": batch}}
            alone_us = self.alone_us(pair["decode"])
            result = self.tuned(pair, alone_us, 3)
            chosen = choice(result)
            default = [prefill for prefill, _, least in SGLANG if batch >= least][-1]
            row: Row = {"batch": batch, "slo_us": SLO * alone_us, "outcome": result.outcome}
            splits = {"default": default} | ({} if chosen is None else {"tuned": chosen})
            found: Runs = {split: [] for split in splits.values()}
            for turn in range(TURNS):
                self.turn(pair, alone_us, 100 + turn, found)
            for name, split in splits.items():
                row[name] = split
                row[f"{name}_rate"], row[f"{name}_us"] = medians(found[split])
            self.results["table"].append(row)
            self.save()


def meets(runs: list[tuple[float, float]], limit_us: float) -> bool:
    """Whether decode surely meets its limit, as tune() judges it; few runs by their median."""
    latencies = [latency for _, latency in runs]
    if len(runs) < FEWEST:
        return medians(runs)[1] <= limit_us
    return interval(latencies, 0.025)[1] <= limit_us


def medians(runs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the median rate and the median latency of some runs."""
    rates, latencies = zip(*runs, strict=True)
    return statistics.median(rates), statistics.median(latencies)


def choice(result: Any) -> int | None:
    """Return the split that one takes, if anything meets the SLO."""
    return None if result.choice is None else int(result.choice.sizes["prefill"])


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print what was found; returns 1 if a pair is below its goal."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pair", type=int, action="append", choices=range(len(PAIRS)))
    parser.add_argument(
        "--table", action="store_true", help="SGLang's table, alone if no pair is named"
    )
    parser.add_argument("--simulate", action="store_true", help="recordings, without a GPU")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then begin no more")
    parser.add_argument("--turns", type=int, default=TURNS, help="of the full grid")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    sys.path.insert(0, str(HERE.parent / "examples"))
    device = gs.open_device("sim:h200" if asked.simulate else asked.device, quiet=True)
    bench = Bench(device, asked)
    every = [] if asked.table else range(len(PAIRS))
    numbers = [0] if asked.simulate else asked.pair or every
    for number in numbers:
        if not bench.is_over:
            bench.pair(number)
    if asked.table or not (asked.simulate or asked.pair):
        bench.table()
    rows = bench.results["pairs"]
    for number, row in rows.items():
        ratio = row.get("ratio")
        print(
            f"pair {number}: tuned {row.get('chosen')} (equals {row.get('equals')}), best "
            f"{row.get('best')} of {row.get('grid_turns')} turns, "
            f"ratio {ratio and round(ratio, 4)}, "
            f"{row.get('tuned_runs')} runs in {row.get('tuned_s', 0):.0f} s, decode "
            f"{row.get('chosen_us')} us of {row.get('slo_us')} us; {row.get('forecasts')}; "
            f"{row.get('outcome')}"
        )
    for row in bench.results["table"]:
        print(row)
    return int(
        not all(
            row.get("ratio", 0) >= 0.97 and row["tuned_runs"] <= len(row["grid"]) * TURNS / 3
            for row in rows.values()
        )
    )


if __name__ == "__main__":
    sys.exit(main())
