"""Tuned splits of prefill and decode against every split, and against SGLang's table.

Each pair is two decoders with random weights (``examples/decoder.py``), prefill in the background
and decode in the foreground. The objective is the rate of prefill while decode's median latency
meets an SLO: 1.5 times its latency alone on the whole GPU. For each pair:

- *tuned*: ``gs.tune`` over all splits, with at most five measurements of each;
- *grid*: every split measured five times, in turns; its best is the one with the best median;
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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gpuscope as gs

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "tune.json"
PAIRS: list[dict[str, dict[str, int]]] = [
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
VARY = {"partitions.prefill": "all"}
LATENCY = "decode.latency_p50_us"

Row = dict[str, Any]


class Bench:
    """Measures pairs of models on a device until the time is over."""

    def __init__(self, device: Any, *, simulate: bool, seconds: float, turns: int) -> None:
        self.device = device
        self.simulate = simulate
        self.turns = turns
        self.until = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until

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

    def experiment(self, pair: dict[str, dict[str, int]], alone_us: float, split: int) -> Row:
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

    def measure(self, pair: dict[str, dict[str, int]], alone_us: float, splits: Iterable[int],
                turns: int) -> dict[int, list[tuple[float, float]]]:  # fmt: skip
        """Return split → rate of prefill and latency of decode, turn by turn.

        The first turn is made whatever the time; once that is over, no other begins.
        """
        found: dict[int, list[tuple[float, float]]] = {split: [] for split in splits}
        for turn in range(turns):
            if turn and self.is_over:
                break
            for split in random.Random(turn).sample(list(found), len(found)):  # noqa: S311
                plan = {**self.experiment(pair, alone_us, split), "seed": turn}
                rows = gs.run(plan, self.device).comparison.to_pylist()
                by_name = {row["workload"]: row for row in rows}
                found[split].append(
                    (by_name["prefill"][rate()], by_name["decode"]["latency_p50_us"])
                )
        return found

    def tuned(self, pair: dict[str, dict[str, int]], alone_us: float, repeats: int) -> Any:
        """Tune a pair over all splits."""
        return gs.tune(
            self.experiment(pair, alone_us, 64), VARY, f"prefill.{rate()}",
            {LATENCY: f"<= {SLO * alone_us:.4f}"}, self.device, repeats=repeats,
        )  # fmt: skip

    def pair(self, pair: dict[str, dict[str, int]]) -> Row:
        """Tune a pair, and measure how good that is."""
        alone_us = self.alone_us(pair["decode"])
        limit_us = SLO * alone_us
        began = time.monotonic()
        result = self.tuned(pair, alone_us, TURNS)
        tuned_s = time.monotonic() - began
        chosen = choice(result)
        splits = [one.sizes["prefill"] for one in result.settings]
        grid = self.measure(pair, alone_us, splits, self.turns)
        medians = {
            split: tuple(statistics.median(values) for values in zip(*found, strict=True))
            for split, found in grid.items()
            if found
        }
        row: Row = {
            "pair": pair, "alone_us": alone_us, "slo_us": limit_us, "chosen": chosen,
            "equals": [one.sizes["prefill"] for one in result.equals],
            "outcome": result.outcome, "forecasts": result.forecasts,
            "tuned_runs": result.measurements, "tuned_s": tuned_s,
            "grid_runs": len(splits) * self.turns, "grid": grid,
            "verdicts": {one.sizes["prefill"]: one.verdict for one in result.settings},
            "forecast": {one.sizes["prefill"]: one.forecast for one in result.settings},
        }  # fmt: skip
        meeting = [split for split, (_, latency) in medians.items() if latency <= limit_us]
        if meeting and chosen is not None:
            best = max(meeting, key=lambda split: medians[split][0])
            again = self.measure(pair, alone_us, {best, chosen}, TURNS)
            rates = {
                split: statistics.median(found[0] for found in values)
                for split, values in again.items()
            }
            latencies = statistics.median(found[1] for found in again[chosen])
            row |= {"best": best, "again": again, "ratio": rates[chosen] / rates[best],
                    "chosen_latency_us": latencies}  # fmt: skip
        return row

    def table(self, pair: dict[str, dict[str, int]]) -> list[Row]:
        """Compare tuned splits with SGLang's at some decode batches, each at the same SLO."""
        rows = []
        for batch in BATCHES:
            if self.is_over:
                break
            at_batch = {**pair, "decode": {**pair["decode"], "batch": batch}}
            alone_us = self.alone_us(at_batch["decode"])
            chosen = choice(self.tuned(at_batch, alone_us, 3))
            default = [prefill for prefill, _, least in SGLANG if batch >= least][-1]
            if chosen is None:
                rows.append({"batch": batch, "default": default, "chosen": None})
                continue
            found = self.measure(at_batch, alone_us, {default, chosen}, TURNS)
            row: Row = {"batch": batch, "slo_us": SLO * alone_us}
            for name, split in (("default", default), ("chosen", chosen)):
                rates, latencies = zip(*found[split], strict=True)
                row |= {name: split, f"{name}_rate": statistics.median(rates),
                        f"{name}_us": statistics.median(latencies)}  # fmt: skip
            rows.append(row)
        return rows


def rate() -> str:
    """Return the column of prefill's rate."""
    return "calls_per_s"


def choice(result: Any) -> int | None:
    """Return the split that one takes: the best of what noise leaves, if anything meets the SLO."""
    order = ("best", "equal", "undecided")
    open_still = [one for one in result.settings if one.verdict in order and one.values]
    if not open_still:
        return None
    sign = 1 if result.objective.is_rate else -1
    best = min(
        open_still,
        key=lambda one: (order.index(one.verdict), -sign * one.mean(result.objective)),
    )
    return int(best.sizes["prefill"])


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print what was found; returns 1 if a pair is below its goal."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pair", type=int, action="append", choices=range(len(PAIRS)))
    parser.add_argument("--simulate", action="store_true", help="recordings, without a GPU")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then begin no more")
    parser.add_argument("--turns", type=int, default=TURNS, help="of the full grid")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    sys.path.insert(0, str(HERE.parent / "examples"))
    device = gs.open_device("sim:h200" if asked.simulate else asked.device, quiet=True)
    bench = Bench(device, simulate=asked.simulate, seconds=asked.seconds, turns=asked.turns)
    numbers = [0] if asked.simulate else asked.pair or range(len(PAIRS))
    kept = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    results: Row = {"pairs": {}, **kept}
    results |= {"date": dt.datetime.now(dt.UTC).date().isoformat(), "device": device.info.name,
                "driver": device.info.driver}  # fmt: skip
    for number in numbers:
        if bench.is_over:
            break
        results["pairs"][str(number)] = bench.pair(PAIRS[number])
        asked.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        if number == 0 and not asked.simulate:
            results["table"] = bench.table(PAIRS[0])
            asked.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    for number, row in results["pairs"].items():
        ratio = row.get("ratio")
        print(
            f"pair {number}: tuned {row['chosen']} (equals {row['equals']}), best "
            f"{row.get('best')}, ratio {ratio and round(ratio, 4)}, runs {row['tuned_runs']} of "
            f"{row['grid_runs']}, decode {row.get('chosen_latency_us')} us of "
            f"{row['slo_us']:.1f}, tuned in {row['tuned_s']:.0f} s; {row['forecasts']}"
        )
    for row in results.get("table", ()):
        print(row)
    rows = results["pairs"].values()
    return int(not all(
        row.get("ratio", 0) >= 0.97 and row["tuned_runs"] <= len(row["grid"]) * TURNS / 3
        for row in rows
    ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
