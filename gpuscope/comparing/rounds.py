"""What a trace gave, its rounds or, of too few rounds, parts of its calls; two of them compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gpuscope._types import Array, Floats, Ints
from gpuscope.analysis.certainty import batch_means, ends_of
from gpuscope.analysis.idle_analysis import idle_causes
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.requests_analysis import ServedRequest, slo_of
from gpuscope.analysis.requests_analysis import by_workload as requests_of
from gpuscope.analysis.result import P99_NEEDS
from gpuscope.analysis.settings import (
    background_of,
    driven_by_requests,
    of_slowest_rank,
    settings_table,
)
from gpuscope.analysis.steps_analysis import steps
from gpuscope.comparing.effects import FEWEST, Effect, effect
from gpuscope.comparing.noise import repeats
from gpuscope.comparing.split_sides import of_program
from gpuscope.trace.columns import is_open, once
from gpuscope.trace.model import Trace

Number: TypeAlias = tuple[str, str]
"""Workload and column."""
Values: TypeAlias = Mapping[Number, float]
"""What a trace, or a round of it, gave."""
PROGRAM = "the program"
"""What stands for a workload where a program is measured."""
_TIMED = {"latency_p50_us": 0.5, "latency_p90_us": 0.9, "latency_p99_us": 0.99}
_SERVED = ("goodput_per_s", "ttft_p50_ms", "ttft_p90_ms", "tbt_p50_ms")
_PARTS, _FEWEST_CALLS = 20, 6
"""Parts of calls at most, and calls of which no part tells anything."""


class MeasuredTrace(NamedTuple):
    """What a trace gave.

    Attributes
    ----------
    whole
        Its numbers.
    samples
        Number → what each round gave or, where there are fewer than three, each part of its calls.
    unit
        What a sample is of: ``"round"``, ``"process"`` or ``"part"`` of the calls.
    """

    whole: Values
    samples: Mapping[Number, Sequence[float] | Floats]
    unit: str


@once
def measured(trace: Trace) -> MeasuredTrace:
    """Return what a trace gave, and its rounds."""
    whole = values_of(trace)
    rounds = windows_of(trace)
    if len(rounds) < FEWEST:
        return MeasuredTrace(whole, _parts_of(trace, whole), "part")
    values = [values_of(round_trace) for round_trace in rounds]
    numbers = [number for number in whole if all(number in of_round for of_round in values)]
    return MeasuredTrace(
        whole, {key: [of_round[key] for of_round in values] for key in numbers}, "round"
    )


def values_of(trace: Trace) -> dict[Number, float]:
    """Return what the workloads of an experiment's trace gave: of each what tells most.

    Latencies of what is timed (a p99 of 1,000 calls), goodput and token times of requests, and
    the first known rate of what is neither.
    """
    plans = (trace.metadata.experiment or {}).get("workloads", {})
    driven = driven_by_requests(plans)
    background = background_of(trace.metadata.experiment or {})
    values = {}
    for row in of_slowest_rank(settings_table({"": trace}).to_pylist()):
        workload = row["workload"]
        columns: tuple[str, ...] = ()
        if row["requests_n"]:
            columns = _SERVED
        elif row["latency_n"] and workload not in background and workload not in driven:
            columns = (*_TIMED,)[: 3 if row["latency_n"] >= P99_NEEDS else 2]
        elif plans.get(workload, {}).get("rate_hz") is None and workload not in driven:
            columns = next(((name,) for name in RATES[1:] if row[name]), ())
        for column in columns:
            if row[column] is not None:
                values[workload, column] = float(row[column])
    return values


def values_of_program(trace: Trace) -> dict[Number, float]:
    """Return the mean time of a program's step, its steady time, and the share of idle time."""
    idle, program_steps, whole = idle_causes(trace), steps(trace), of_program(trace)
    span_ns = max(idle.window_ns[1] - idle.window_ns[0], 1) * idle.devices
    values = {(PROGRAM, "step_ms"): whole.ns / 1e6} if program_steps.steady else {}
    values[PROGRAM, "steady_ms"] = whole.ns * whole.units / 1e6
    return {**values, (PROGRAM, "idle_share"): idle.idle_ns / span_ns}


def windows_of(trace: Trace) -> list[Trace]:
    """Return the rounds of a trace: its recording windows."""
    starts = trace.array("start_ns")
    parts = []
    for number, (low, high) in enumerate(trace.metadata.windows_ns):
        part = trace.where((starts >= low) & (starts < high))
        if len(part):
            states = [state for state in trace.metadata.gpu_states if state.round == number]
            parts.append(part.with_metadata(windows_ns=((low, high),), gpu_states=states))
    return parts


# -- two of them --------------------------------------------------------------------------
def effects_of(
    first: MeasuredTrace,
    second: MeasuredTrace,
    *,
    is_simulated: bool,
    within: float | None = None,
    wanted: Sequence[Number] | None = None,
) -> list[Effect]:
    """Compare what two traces gave, number by number: how far they differ, and how sure that is.

    By their rounds (:func:`gpuscope.comparing.effects.effect`): those of simulated traces in pairs,
    as rounds of one number draw the same. Where either has fewer than three, by parts of calls,
    and the interval is wider by how much repeated measurements differ, which one recording does
    not tell. ``before`` and ``after`` are the traces' numbers, where their ratio is within the
    interval. Of all numbers together, also where not all are ``wanted``.
    """
    keys = [number for number in first.whole if number in second.whole]
    judged = sum(number in first.samples and number in second.samples for number in keys)
    return [
        effect_of(
            number, first, second, is_simulated=is_simulated, judged=max(judged, 1), within=within
        )
        for number in (keys if wanted is None else wanted)
    ]


def effect_of(
    number: Number,
    first: MeasuredTrace,
    second: MeasuredTrace,
    *,
    is_simulated: bool,
    judged: int,
    within: float | None = None,
) -> Effect:
    """Compare one number of two traces, of so many that are judged together."""
    workload, column = number
    before, after = first.samples.get(number, ()), second.samples.get(number, ())
    are_parts = "part" in (first.unit, second.unit)
    are_pairs = is_simulated
    if are_parts:  # which drew and started alike
        are_pairs = len(before) == len(after) and column not in RATES
    elif is_simulated:
        fewest = min(len(before), len(after))
        before, after = before[:fewest], after[:fewest]
    compared = effect(
        workload,
        column,
        before,
        after,
        judged=judged,
        within=within,
        are_pairs=are_pairs,
        repeats=repeats(column, is_simulated) if are_parts else 0.0,
    )
    return compared.of_whole(first.whole[number], second.whole[number])


# -- parts of calls -----------------------------------------------------------------------
_OfCalls: TypeAlias = Callable[[Ints], float]
"""Places of calls → a number of these."""


def _parts_of(trace: Trace, whole: Values) -> dict[Number, Floats]:
    """Return what successive parts of a trace's calls contribute to its numbers."""
    served = requests_of(trace)
    calls = trace.where(kind="handle")
    calls = calls.where(~is_open(calls))
    samples = {}
    for number, value in whole.items():
        workload, column = number
        if column in RATES:
            samples[number] = _rates(trace, workload, value)
        elif workload in served:
            count = len(served[workload])
            samples[number] = _contributions(count, _of_requests(trace, *number, served[workload]))
        else:
            of = calls.where(category=workload)
            order = np.lexsort((of.array("start_ns"), of.array("process", fill=-1)))
            took_us = ((of.array("end_ns") - of.array("start_ns")) / 1e3)[order]
            samples[number] = _contributions(len(took_us), _quantile(took_us, _TIMED[column]))
    return {number: parts for number, parts in samples.items() if len(parts)}


def _contributions(count: int, number: _OfCalls) -> Floats:
    """Return the pseudo-values of a number, of parts of calls one after another.

    The number to the power of how many parts there are, over that of all other parts to the power
    of one less (J. W. Tukey's jackknife of the logarithm, deleting a part at a time: B. Efron and
    R. J. Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 11).
    """
    if count < _FEWEST_CALLS:
        return np.zeros(0)
    places = np.arange(count)
    parts = min(count, _PARTS)
    part = places * parts // count
    whole = number(places)
    leave_one_out = np.array([number(places[part != omitted]) for omitted in range(parts)])
    if not np.isfinite(leave_one_out).all():  # a part has all values that there are
        return np.zeros(0)
    if not whole > 0:
        return np.full(parts, whole)
    logarithms = np.log(np.maximum(leave_one_out / whole, 0.01))
    contributions: Floats = whole * np.exp(-(parts - 1) * logarithms)
    return contributions


def _quantile(took: Array, share: float) -> _OfCalls:
    return lambda places: float(np.quantile(took[places], share))


def _of_requests(
    trace: Trace, workload: str, column: str, requests: Sequence[ServedRequest]
) -> _OfCalls:
    """Return what some requests come to; of goodput the share that meets the SLO.

    Not a number, where they have no two tokens for a time between tokens.
    """
    if column == "goodput_per_s":
        slo = slo_of(trace, workload)
        met = np.array([request.met(slo) for request in requests])
        return lambda places: float(met[places].mean())
    share = 0.9 if "_p90_" in column else 0.5
    if column.startswith("ttft"):
        first_ms = np.array([request.tokens_ns[0] for request in requests]) / 1e6
        return _quantile(first_ms, share)
    gaps_ms = [np.diff(request.tokens_ns) / 1e6 for request in requests]

    def of_gaps(places: Ints) -> float:
        gaps = np.concatenate([gaps_ms[position] for position in places.tolist()])
        return float(np.quantile(gaps, share)) if len(gaps) else np.nan

    return of_gaps


def _rates(trace: Trace, workload: str, rate: float) -> Floats:
    """Return the rate in batches of kernels or calls."""
    windows = np.array([low for low, _ in trace.metadata.windows_ns], np.int64)
    means = batch_means(ends_of(trace, workload), windows)
    if len(means) < FEWEST or not means.all():
        return np.zeros(0)
    rates: Floats = rate * means.mean() / means
    return rates
