"""How long GEMMs of shapes that the fit never saw really take, and what telling cuBLAS does.

Used by h200.py, which measures on a GPU and keeps the times in benchmarks/results/shapes.json,
and by cpu.py, which judges the profile by them without one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from facts import BESIDE

import gpuscope as gs
from gpuscope.simulator.calibration import errors as errors_of_fits
from gpuscope.simulator.calibration.kernels import kernel_of
from gpuscope.simulator.models.gemm_model import ITEM_BYTES, alignment
from gpuscope.simulator.profiles.profile import GpuProfile

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results" / "shapes.json"
FITTED = HERE / "data" / "h200.json"

SEED = 20261121
FRESH = 60
AGAIN = 60
"""Shapes of the fit that are measured a second time, so that a difference of method shows."""

SMALL = [
    (512, 512, 512), (768, 768, 768), (640, 384, 1152), (512, 512, 4096), (512, 4096, 512),
    (4096, 512, 512), (1024, 2048, 512), (256, 1024, 1024), (1024, 1024, 1024),
    (1536, 1536, 1536), (2048, 2048, 2048), (4096, 4096, 512), (2048, 8192, 1024),
]  # fmt: skip
"""Shapes for the effect of being told, as they are in use."""

DTYPES = ("float16", "bfloat16", "float32", "float64")
SM_COUNTS = (8, 16, 32, 64, 96, 120, 132)
REPEATS = 5
_PREFIX = re.compile(r"^(void )?(cutlass::Kernel2<)?")
LONGEST_US = 50_000
SEVERAL_UP_TO_US = 5_000

Shape = tuple[int, int, int]
Row = dict[str, Any]


def fitted() -> list[Shape]:
    rows = json.loads(FITTED.read_text("utf-8"))["gemm"]
    return sorted({tuple(row["shape"]) for row in rows})


def draw(count: int, seed: int) -> list[Shape]:
    """Shapes as those of the fit but none of them: sides of 16 to 8184, by octave alike.

    Of ten shapes five have sides of multiples of 64, three of 8, and two an odd side.
    """
    rng, known = np.random.default_rng(seed), set(fitted())
    found: list[Shape] = []
    while len(found) < count:
        step = (64, 64, 64, 64, 64, 8, 8, 8, 1, 1)[len(found) % 10]
        low, high = max(16, step), 8184 // step * step
        sides = np.exp(rng.uniform(np.log(16), np.log(8184), 3))
        m, n, k = np.clip(np.round(sides / step) * step, low, high).astype(int).tolist()
        if (step > 1 or m % 2 or n % 2 or k % 2) and (m, n, k) not in known:
            known.add((m, n, k))
            found.append((m, n, k))
    return found


def again() -> list[Shape]:
    """Some shapes of the fit, the same at every call."""
    shapes = fitted()
    chosen = np.random.default_rng(SEED).permutation(len(shapes))[:AGAIN]
    return [shapes[index] for index in sorted(chosen.tolist())]


def width(row: Row) -> int:
    """Bytes to which the rows of all operands are aligned."""
    m, n, k = row["shape"]
    return alignment(m, n, k, row["dtype"])


def predicted_us(profile: GpuProfile, row: Row, sms: int, told: int) -> float:
    m, n, k = row["shape"]
    cost = profile.gemm_cost(m, n, k, row["dtype"], sms, told)
    return cost.alone_ns(sms) / 1e3


# -- measuring ------------------------------------------------------------------------------


def measure(gpu: Any, shapes: list[Shape], dtype: str) -> list[Row]:
    """Measure shapes on every SM count, the library not told of it and told.

    Returns
    -------
    list of dict
        Of each shape ``us`` and ``told_us``: SM count → median µs, from the first kernel's
        start to the last one's end; ``kernels`` and ``told_kernels``: SM count → name, blocks
        and threads of each, where they differ from those of the count before.
    """
    profile = GpuProfile.load("h200")
    with contextlib.ExitStack() as stack:
        streams = {}
        for count in SM_COUNTS:
            owner = gpu
            if count < gpu.sm_count:
                parts = stack.enter_context(gpu.carve({f"{count} SMs": count}, allow_shared=True))
                owner = parts[0]
            streams[count] = stack.enter_context(owner.create_stream())
        calls: dict[str, int] = {}
        with gs.profile(gpu) as recording:
            for number, shape in enumerate(shapes):
                calls |= _launched(gpu, profile, (number, shape, dtype), streams)
    rows: list[Row] = [
        {"dtype": dtype, "shape": list(shape), "us": {}, "kernels": {}, "told_us": {},
         "told_kernels": {}}
        for shape in shapes
    ]  # fmt: skip
    for name, (us, kernels) in _times(recording.trace, calls).items():
        number, kind, sms = name.split(" ")
        row = rows[int(number)]
        row[f"{kind}us"][sms] = us
        before = list(row[f"{kind}kernels"].values())[-1:]
        if before != [kernels]:
            row[f"{kind}kernels"][sms] = kernels
    return rows


def _launched(
    gpu: Any, profile: GpuProfile, what: tuple[int, Shape, str], streams: dict[int, Any]
) -> dict[str, int]:
    """Launch one shape in every way; says how often each."""
    number, shape, dtype = what
    m, n, k = shape
    a, b = gpu.random((m, k), dtype), gpu.random((k, n), dtype, seed=1)
    out = gpu.empty((m, n), dtype)
    calls: dict[str, int] = {}
    for sms, stream in streams.items():
        expected_us = predicted_us(profile, {"shape": shape, "dtype": dtype}, sms, 0)
        if expected_us > LONGEST_US:
            continue
        for kind in ("", "told_") if sms < gpu.sm_count else ("",):
            name = f"{number} {kind} {sms}"
            calls[name] = 1 + (REPEATS if expected_us < SEVERAL_UP_TO_US else 2)
            handle = gs.Gemm(
                gpu, m=m, n=n, k=k, dtype=dtype, name=name,
                max_in_flight=calls[name], sm_count_target=sms if kind else None,
            )  # fmt: skip
            for _ in range(calls[name]):
                handle.execute(a, b, out, stream=stream)
            handle.wait()
            handle.close()
    return calls


def _times(trace: Any, calls: dict[str, int]) -> dict[str, tuple[float, list[Any]]]:
    """Median µs of the calls of each name, but for the first, and the kernels they ran.

    A call's time is from its first kernel's start to its last one's end, as in the fit.
    """
    kernels = trace.where(kind="kernel")
    starts, ends = kernels.array("start_ns"), kernels.array("end_ns")
    named = [kernels.texts(column) for column in ("category", "name", "launch_config")]
    ran: dict[str, list[int]] = {}
    for at in np.argsort(starts).tolist():
        ran.setdefault(named[0][at] or "", []).append(at)
    found = {}
    for name, count in calls.items():
        each, left = divmod(len(ran[name]), count)
        if left:
            raise RuntimeError(f"{name}: {len(ran[name])} kernels of {count} calls")
        first, last = ran[name][::each], ran[name][each - 1 :: each]
        us = statistics.median((ends[last] - starts[first])[1:].tolist()) / 1e3
        again = [_kernel(named[1][at] or "", named[2][at]) for at in ran[name][-each:]]
        found[name] = round(us, 3), again
    return found


def _kernel(name: str, config: str | None) -> list[Any]:
    """Shorten a kernel's name to what tells kernels apart; its blocks and threads a block."""
    found = json.loads(config or '{"grid":[0],"block":[0]}')
    return [_PREFIX.sub("", name)[:64], int(np.prod(found["grid"])), int(np.prod(found["block"]))]


def keep(target: Path, facts: Row, parts: dict[str, list[Row]]) -> None:
    """Write measurements, one row a line."""
    lines = [f'"facts":{json.dumps(facts)}']
    for name, rows in parts.items():
        inside = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        lines.append(f'"{name}":[\n{inside}\n]')
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


# -- judging --------------------------------------------------------------------------------


def errors(rows: list[Row], profile: GpuProfile, *, told: bool = False) -> errors_of_fits.Table:
    """Errors of predicted times by dtype and of all, beside those of the rule of thumb."""
    ours: errors_of_fits.Errors = {}
    theirs: errors_of_fits.Errors = {}
    whole = str(max(SM_COUNTS))
    for row in rows:
        for sms, us in row["told_us" if told else "us"].items():
            count = int(sms)
            guess_us = predicted_us(profile, row, count, count if told else 0)
            by_share_us = row["us"][whole] * int(whole) / count
            ours.setdefault(row["dtype"], []).append(abs(guess_us / us - 1))
            theirs.setdefault(row["dtype"], []).append(abs(by_share_us / us - 1))
    return errors_of_fits.table(ours, theirs)


def reproduced(rows: list[Row]) -> Row:
    """How measurements of the fit's shapes compare with those of the fit."""
    before = {
        (row["dtype"], *row["shape"]): row for row in json.loads(FITTED.read_text("utf-8"))["gemm"]
    }
    ratios, same = [], []
    for row in rows:
        old = before.get((row["dtype"], *row["shape"]))
        if old is None:
            continue
        ratios += [us / old["us"][sms] for sms, us in row["us"].items() if sms in old["us"]]
        now = {**row, "kernels": next(iter(row["kernels"].values()))}
        same.append(kernel_of(now) == kernel_of(old))
    off = [abs(ratio - 1) for ratio in ratios]
    return {
        "rows": len(ratios), "ratio": statistics.median(ratios),
        "median": float(np.median(off)), "p90": float(np.quantile(off, 0.9)),
        "same_kernels": statistics.mean(same),
    }  # fmt: skip


def good(one: dict[str, float]) -> bool:
    """Whether errors are what is owed."""
    return one["median"] <= min(0.12, one["share_median"] / 2) and one["p90"] <= 0.4


def judged(measured: Row, row: Callable[..., Row]) -> list[Row]:
    """Rows of a benchmark's results: the profile that ships, judged by what was measured."""
    profile = GpuProfile.load("h200")
    rows = []
    for told in (False, True):
        for dtype, one in errors(measured["fresh"], profile, told=told).items():
            what = f"simulated times of {FRESH} fresh shapes, {'' if told else 'not '}told, {dtype}"
            goal = "≤ 12 %, and at most half that of whole-GPU rate × SM share; p90 ≤ 40 %"
            rows.append(
                row(f"{what}: median error", goal, 100 * one["median"], "%", met=good(one),
                    error=one)
            )  # fmt: skip
    once_more = reproduced(measured["again"])
    rows.append(
        row("shapes of the fit measured again: median time / that in the fit", BESIDE,
            once_more["ratio"], "×", met=True, again=once_more)
    )  # fmt: skip
    return rows


def shape_figures(gpu: Any, row: Callable[..., Row]) -> list[Row]:
    """Measure fresh shapes and the effect of being told; keep the times, judge the profile."""
    parts = {"fresh": draw(FRESH, SEED), "again": sorted({*again(), *SMALL})}
    measured = {
        name: [one for dtype in DTYPES for one in measure(gpu, shapes, dtype)]
        for name, shapes in parts.items()
    }
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(), "device": gpu.info.name,
        "driver": gpu.info.driver, "seed": SEED, "source": "kernel durations by CUPTI",
    }  # fmt: skip
    keep(KEPT, facts, measured)
    return judged(measured, row)


def forecast() -> Row:
    """Judge the profile that ships by what was measured and kept."""
    kept = json.loads(KEPT.read_text("utf-8"))
    profile = GpuProfile.load("h200")
    every = kept["fresh"] + kept["again"]
    unaligned = [row for row in every if ITEM_BYTES[row["dtype"]] == 2 and width(row) < 16]
    squares = [
        row for row in kept["again"]
        if row["dtype"] == "float16" and row["shape"] in ([512] * 3, [1024] * 3)
    ]  # fmt: skip
    ratios = np.array([
        predicted_us(profile, row, int(sms), 0) / us
        for row in kept["fresh"] for sms, us in row["us"].items()
    ])  # fmt: skip
    off = np.maximum(ratios, 1 / ratios)
    return {
        "what": f"simulated times of {FRESH} fresh shapes",
        "facts": kept["facts"],
        "fresh": errors(kept["fresh"], profile),
        "fresh_told": errors(kept["fresh"], profile, told=True),
        "again_told": errors(kept["again"], profile, told=True),
        "reproduced": reproduced(kept["again"]),
        "off_by_half": float(np.mean(off > 1.5)),
        "off_by_two": float(np.mean(off > 2)),
        "unaligned": errors(unaligned, profile)["all"],
        "squares": [
            {
                "n": row["shape"][0], "sms": int(sms), "us": us, "told_us": row["told_us"][sms],
                "simulated_us": predicted_us(profile, row, int(sms), 0),
                "simulated_told_us": predicted_us(profile, row, int(sms), int(sms)),
            }
            for row in squares for sms, us in row["us"].items() if sms in row["told_us"]
        ],
    }  # fmt: skip
