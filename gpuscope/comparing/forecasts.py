"""What a forecast says of each number: counted against a forecast of no change, with its band."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuscope._columns import COMPARED
from gpuscope._types import Floats
from gpuscope.analysis.settings import settings_table
from gpuscope.comparing.effects import judged_effect
from gpuscope.comparing.pair import CompareResult
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace

RECORDED, FORECAST, LOW, HIGH = "recorded", "forecast", "forecast, low", "forecast, high"
UNCHANGED = "forecast of no change"
_NAMES = (RECORDED, FORECAST, LOW, HIGH, UNCHANGED)


def forecasts_in(traces: object) -> tuple[Trace, ...]:
    """Return the traces of a run of :func:`gpuscope.what_if`, in that order; else nothing."""
    if not isinstance(traces, Mapping) or not traces.keys() >= {*_NAMES}:
        return ()
    return tuple(traces[name] for name in _NAMES)


def with_bands(result: CompareResult, forecasts: Sequence[Trace]) -> CompareResult:
    """Return a comparison with a forecast as what the forecast says: numbers, each with its band.

    A number of a forecast is what was recorded × the forecast / the forecast of no change, as far
    as all of these have it: what the model has wrong of both cancels. Its band is the same of the
    forecasts at the ends of their ranges, that of goodput a request wider. Of a prediction, which
    rests on no recording, it is what noise leaves of the measured number.

    Parameters
    ----------
    forecasts
        As :func:`forecasts_in` returns them; nothing of a prediction.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for trace in forecasts:
        for row in settings_table({"": trace}).to_pylist():
            for column in (key for key in COMPARED if isinstance(row[key], int | float)):
                values.setdefault((row["workload"], column), []).append(row[column])
    is_check = not result.traces[1].metadata.forecast
    differences, bands = [], {}
    for about in result.differences:
        effect, number = about, (about.workload, about.column)
        of = values.get(number, [])
        if len(of) == len(_NAMES) and of[-1] and of[1] and of[0]:
            recorded, *ends, unchanged = of
            counted = [recorded * end / unchanged for end in ends]
            bands[number] = min(counted), max(counted)
            if about.column == "goodput_per_s":
                edge = 1 / values[about.workload, "requests_n"][0]
                bands[number] = min(counted) * (1 - edge), max(counted) * (1 + edge)
            if is_check:
                was = about.before / counted[0]
                low, high = ((1 + end) * was - 1 for end in (about.low, about.high))
                effect = replace(about, before=counted[0], low=low, high=high)
            else:
                low, high = (end / recorded - 1 for end in bands[number])
                effect = replace(about, before=recorded, after=counted[0], low=low, high=high)
        elif not forecasts and math.isfinite(about.high - about.low) and about.low > -1:
            bands[number] = about.after / (1 + about.high), about.after / (1 + about.low)
        differences.append(judged_effect(effect))
    return replace(result, differences=tuple(differences), bands=bands, forecasts=(*forecasts,))


def times_us(forecasts: Sequence[Trace], workload: str) -> list[Floats]:
    """Return how long calls took as recorded, as forecast, and at the ends of its band; sorted.

    Quantile by quantile as numbers are counted; nothing where the traces have different calls.
    """
    every = []
    for trace in forecasts:
        calls = trace.where(kind="handle", category=workload)
        calls = calls.where(~is_open(calls))
        every.append(np.sort(calls.array("end_ns") - calls.array("start_ns")) / 1e3)
    if len({len(took_us) for took_us in every} | {0}) != 2:
        return []
    recorded, *ends, unchanged = every
    return [recorded, *(recorded * end / np.maximum(unchanged, 1e-3) for end in ends)]
