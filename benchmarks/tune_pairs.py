"""Whether ``gs.tune`` names the true best of random pairs of workloads, on simulated GPUs.

Pairs are drawn with a fixed seed: a foreground (a GEMM or a copy, back to back or with
Poisson arrivals) beside a background that is launched without end. The grid is
every split of the GPU and the GPU without partitions. In four of five, the objective is the rate
of the background and the foreground's p50 or p90 has a limit, 0.8 to 6 times the latency alone.
The others have no limit. Pairs are drawn until fifty have a setting that meets the limit; those
that have none are tuned, too, and counted apart. For each pair:

- *truth*: every setting measured in turns, ``FIRST`` times, and ``TURNS`` times where it may be the
  best. The best is the one with the best mean of the objective of those whose mean latency is
  within the limit;
- *tuned*: ``gs.tune`` with other seeds and, unless told, its defaults. In every second pair the
  device has the profile of an H100 and the forecasts are those of an H200, so that forecasts are
  wrong.

What was named, decided before the fifty were tuned:

- *right*: it is decided, and the setting to take (the best or, of equals, the one with the fewest
  SMs for the foreground) meets the limit in truth, and no setting that does is better by more than
  1 %, below which ``tune`` calls settings equal; where nothing meets the limit in truth, that this
  is said;
- *tie*: noise does not tell several apart, as the outcome says; one that is right is among them,
  and the one to take is behind it by no more than the outcome states;
- *open*: the outcome says that it is not decided;
- *wrong*: anything else.

Goals: of fifty at least 40 right, at most 1 wrong, and no setting measured more often than
``repeats``.

    python benchmarks/tune_pairs.py [--pairs N] [--jobs N] [--seed N] [--repeats N]
                                    [--truth FILE] [--out FILE]

With --truth, measured truths are kept in a file and used again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gpuscope as gs
from gpuscope.comparing.race import Goal
from gpuscope.simulator.forecast import stand_ins

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "tune_pairs.json"
SEED = 32
PAIRS = 50
REPEATS = 7
"""What `tune` takes if it is not told."""
FIRST, TURNS = 4, 16
CALLS = 100
CLOSE = 0.01
NEAR = 0.2
"""Share by which a setting may be off a limit, or behind, so that TURNS runs of it are made."""
VARY = {"partitions.fast": "all"}
RATE = "load.calls_per_s"

Row = dict[str, Any]
Truth = dict[str, dict[str, tuple[float, float, int]]]
"""Setting → column → mean, its standard error, runs."""


def gemm(m: int, n: int, k: int) -> Row:
    return {"kind": "gemm", "m": m, "n": n, "k": k}


def drawn(number: int, seed: int) -> Row:
    """Draw a pair: its workloads, what is sought, and the limit over the latency alone."""
    draw = random.Random(f"{seed} {number}")  # noqa: S311
    size = draw.choice
    fast = size(
        [
            gemm(size([128, 256, 512, 1024, 2048]), size([256, 512, 1024, 2048]),
                 size([512, 1024, 2048, 4096])),
            gemm(size([1024, 2048, 3072]), size([1024, 2048]), size([1024, 2048])),
            {"kind": "copy", "nbytes": size([1, 4, 16, 64]) << 20},
        ]
    )  # fmt: skip
    load = size(
        [
            gemm(size([2048, 4096]), size([2048, 4096]), size([2048, 4096])),
            gemm(size([2048, 4096, 8192]), size([1024, 2048]), size([1024, 2048])),
            {"kind": "copy", "nbytes": size([64, 128, 256]) << 20},
        ]
    )
    column = size(["latency_p50_us", "latency_p90_us"])
    has_limit = number % 5 != 4
    return {
        "fast": fast,
        "load": load,
        "profile": "h100" if number % 2 else "h200",
        "load_share": size([None, None, 0.3]),
        "objective": RATE if has_limit else size([RATE, "fast.latency_p50_us"]),
        "limit": column if has_limit else None,
        "times_alone": round(0.8 * (6 / 0.8) ** draw.random(), 3) if has_limit else None,
    }


def experiment(pair: Row, rate_hz: float | None) -> Row:
    """Describe a pair, on partitions and without."""
    arrival = {} if rate_hz is None else {"arrival": "poisson", "rate_hz": rate_hz}
    return {
        "name": "pair", "alone_repeats": 0,
        "streams": {"f": {}, "l": {}},
        "workloads": {
            "fast": {**pair["fast"], "stream": "f", "repeats": CALLS, **arrival},
            "load": {**pair["load"], "stream": "l", "background": True, "max_queued": 3},
        },
        "settings": {
            "shared": {},
            "split": {
                "partitions": {"fast": 64, "load": "rest"},
                "streams": {"f": {"partition": "fast"}, "l": {"partition": "load"}},
            },
        },
    }  # fmt: skip


def measured(plan: Row, device: Any, seed: int) -> dict[str, Row]:
    """Run a plan once; each seed draws other noise and arrivals."""
    rows = gs.run({**plan, "seed": seed}, device).comparison.to_pylist()
    return {row["workload"]: row for row in rows}


def prepared(pair: Row, device: Any) -> tuple[Row, Row]:
    """Return the experiment of a pair, and its limits."""
    alone = experiment(pair, None)
    alone["settings"] = {"shared": {}}
    del alone["workloads"]["load"], alone["streams"]["l"]
    row = measured(alone, device, 0)["fast"]
    share = pair["load_share"]
    plan = experiment(pair, share and share * 1e6 / row["latency_p50_us"])
    if pair["limit"] is None:
        return plan, {}
    return plan, {f"fast.{pair['limit']}": f"<= {pair['times_alone'] * row[pair['limit']]:.4g}"}


def truth_of(plan: Row, objective: Goal, slo: list[Goal], device: Any) -> Truth:
    """Return of each setting the mean of each column, its standard error and the number of runs."""
    settings: Row = {"shared": {"shared": {}}}
    for size in range(8, 128, 8):
        split = {**plan["settings"]["split"], "partitions": {"fast": size, "load": "rest"}}
        settings[f"fast = {size}"] = {"split": split}
    values: dict[str, dict[str, list[float]]] = {
        label: {goal.name: [] for goal in (objective, *slo)} for label in settings
    }
    near = [*settings]
    for turn in range(TURNS):
        if turn == FIRST:
            near = [label for label in settings if is_near(values, label, objective, slo)]
        for label in near:
            rows = measured({**plan, "settings": settings[label]}, device, 1000 + turn)
            for goal in (objective, *slo):
                values[label][goal.name].append(rows[goal.workload][goal.column])
    return {
        label: {
            name: (
                statistics.mean(every), statistics.stdev(every) / len(every) ** 0.5, len(every)
            )
            for name, every in columns.items()
        }
        for label, columns in values.items()
    }  # fmt: skip


def is_near(
    values: dict[str, dict[str, list[float]]], label: str, objective: Goal, slo: list[Goal]
) -> bool:
    """Whether more runs of a setting may change which one is the best."""
    means = {
        name: {goal: statistics.mean(every) for goal, every in columns.items()}
        for name, columns in values.items()
    }
    off = [goal.margin(means[label][goal.name]) for goal in slo]
    surely_meeting = [
        row[objective.name]
        for row in means.values()
        if all(goal.margin(row[goal.name]) > NEAR for goal in slo)
    ]
    best = (max if objective.is_rate else min)(surely_meeting, default=None)
    is_behind = (
        best is not None and objective.gain(best, means[label][objective.name]) > NEAR * best
    )
    return not is_behind and all(share > -NEAR for share in off)


def judged(result: Any, truth: Truth) -> tuple[str, list[str]]:
    """Return whether what was named is right, and which settings would have been."""
    objective = result.objective
    meeting = {
        label: row[objective.name][0]
        for label, row in truth.items()
        if all(goal.margin(row[goal.name][0]) >= 0 for goal in result.slo)
    }
    best = (max if objective.is_rate else min)(meeting.values(), default=0.0)
    right = [
        label for label, value in meeting.items() if objective.gain(best, value) <= CLOSE * best
    ]
    choice = result.choice
    if not result.is_decided:
        return "open", right
    if choice is None:
        return "wrong" if meeting else "right", right
    if choice.label in right:
        return "right", right
    equals = {one.label for one in result.equals}
    if len(equals) > 1 and equals & {*right} and choice.label in meeting:
        behind = objective.gain(best, meeting[choice.label])
        return "tie" if behind <= (choice.behind or 0.0) else "wrong", right
    return "wrong", right


def as_real(device: Any) -> bool:
    """Let forecasts be by ``gpu_profile``, as for a real GPU."""
    return device.is_simulated


def tuned(task: tuple[int, Truth | None, int, int]) -> tuple[Row, Truth]:
    """Measure the truth of a pair, if it is not known, and tune it."""
    number, truth, seed, repeats = task
    pair = drawn(number, seed)
    device = gs.open_device(f"sim:{pair['profile']}", quiet=True)
    plan, limits = prepared(pair, device)
    if truth is None:
        objective = Goal.parse(pair["objective"], plan["workloads"])
        slo = [Goal.parse(name, plan["workloads"], limit) for name, limit in limits.items()]
        truth = truth_of(plan, objective, slo, device)
    stand_ins.is_real = as_real
    began = time.monotonic()
    result = gs.tune(plan, VARY, pair["objective"], limits, device, repeats=repeats)
    verdict, right = judged(result, truth)
    times = [len(one.values.get(result.objective.name, ())) for one in result.settings]
    row = {
        "pair": number, **pair, "slo": limits, "verdict": verdict, "true best": right,
        "decided": result.is_decided, "choice": result.choice and result.choice.label,
        "equals": [one.label for one in result.equals], "outcome": result.outcome,
        "measurements": sum(times), "settings": sum(map(bool, times)), "most": max(times),
        "repeats": result.repeats, "tune_s": round(time.monotonic() - began, 2),
    }  # fmt: skip
    return row, truth


def summary_of(found: list[Row]) -> Row:
    """Count what was named, where a setting meets the limit and where none does."""
    summary: Row = {}
    for kind, meets in (("with a best", True), ("nothing meets the limit", False)):
        rows = [row for row in found if bool(row["true best"]) == meets]
        verdicts = Counter(row["verdict"] for row in rows)
        runs = [row["measurements"] for row in rows]
        summary[kind] = {
            "pairs": len(rows),
            **{verdict: verdicts[verdict] for verdict in ("right", "tie", "open", "wrong")},
            "measurements, median": statistics.median(runs or [0]),
            "measurements, most": max(runs, default=0),
        }
    summary["measurements of one setting, most"] = max(row["most"] for row in found)
    return summary


def main(arguments: list[str] | None = None) -> int:
    """Tune all pairs, and print what was named; returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="as `tune` takes them")
    parser.add_argument("--truth", type=Path, help="keep measured truths in this file")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    truths = json.loads(asked.truth.read_text()) if asked.truth and asked.truth.exists() else {}
    found: list[Row] = []
    tasks = [(n, truths.get(str(n)), asked.seed, asked.repeats) for n in range(2 * asked.pairs)]
    with get_context("spawn").Pool(asked.jobs) as pool:
        for row, truth in pool.imap(tuned, tasks):
            found.append(row)
            truths[str(row["pair"])] = truth
            if asked.truth:
                asked.truth.write_text(json.dumps(truths) + "\n")
            summary = summary_of(found)
            kept = {
                "seed": asked.seed,
                "repeats": asked.repeats,
                "summary": summary,
                "found": found,
            }
            asked.out.write_text(json.dumps(kept, indent=1) + "\n")
            told = row["choice"] if row["decided"] else "-"
            print(
                f"{row['pair']:2} {row['verdict']:5} takes {told!s:11} true "
                f"{', '.join(row['true best'])[:40]:40} {row['measurements']:3} runs of "
                f"{row['settings']:2}",
                flush=True,
            )
            if summary["with a best"]["pairs"] == asked.pairs:
                break
    for key, value in summary.items():
        print(f"{key}: {value}")
    with_a_best = summary["with a best"]
    wrong = with_a_best["wrong"] + summary["nothing meets the limit"]["wrong"]
    repeated = any(row["most"] > row["repeats"] for row in found)
    return int(with_a_best["right"] < 0.8 * with_a_best["pairs"] or wrong > 1 or repeated)


if __name__ == "__main__":
    sys.exit(main())
