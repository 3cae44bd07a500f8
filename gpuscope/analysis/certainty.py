"""How sure the number that tells most of a workload is: its 95 % interval, from one trace."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gpuscope._types import Array, Ints
from gpuscope.analysis.intervals import by_workload, ended_kernels
from gpuscope.analysis.noise import TAIL, batch_means, quantile_interval, share_interval, student_t
from gpuscope.analysis.requests_analysis import Served
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace

TOLD = ("goodput_per_s", "latency_p50_us", "bus_gb_per_s", "calls_per_s")
"""The column that tells most: the first of these that a workload has. What a typical call takes: a
tail is of few calls, and noise often hides it (:func:`gpuscope.analysis.effects.leading`)."""
FORMER = ("goodput_per_s", "latency_p99_us", *TOLD[1:])
"""The same of rows that do not say which column it is."""


def ends_of(trace: Trace, workload: str) -> Ints:
    """Return when the kernels of a workload ended; of one without any, its calls."""
    of = ended_kernels(trace)
    if workload not in by_workload(of).labels:
        calls = trace.where(kind="handle")
        of = calls.where(~is_open(calls))
    return of.array("end_ns")[by_workload(of).of_label(workload)]


def rate_spread(trace: Trace, ends_ns: Ints) -> tuple[float, int]:
    """Return the standard error of a rate as a share of it, and its degrees of freedom.

    By batch means: what is left of the correlation of successive calls in batches of a twentieth
    is small (A. M. Law, *Simulation Modeling and Analysis*, 2015, section 9.5.3). Infinite where
    fewer than two batches tell it.
    """
    windows = np.array([low for low, _ in trace.metadata.windows_ns], np.int64)
    means = batch_means(ends_ns, windows)
    if len(means) < 2 or not means.mean():
        return math.inf, 1
    return float(means.std(ddof=1) / math.sqrt(len(means)) / means.mean()), len(means) - 1


def certainty(
    trace: Trace, row: Mapping[str, float | None], took_ns: Array, ends_ns: Ints
) -> dict[str, float | str | None]:
    """Return the ends of the interval of what tells most of a workload, as shares of it; and which.

    Parameters
    ----------
    row
        Of a comparison of settings.
    took_ns, ends_ns
        How long its calls took, where these are told, and when its kernels or calls ended.
    """
    column = next((key for key in TOLD if row.get(key) is not None), "")
    low, high, value = -math.inf, math.inf, row.get(column) or 0.0
    if column.startswith("latency"):
        low, high = quantile_interval(took_ns / 1e3, 0.5)
    elif column:
        spread, freedom = rate_spread(trace, ends_ns)
        wide = math.exp(student_t(freedom, TAIL) * spread) if spread < math.inf else math.inf
        low, high = value / wide, value * wide
    return _shares(column, low, high, value)


def certainty_of(served: Served) -> dict[str, float | str | None]:
    """Return the same of the goodput of requests, if it is known."""
    if served.met is None:
        return _shares("", 0, 0, 0)
    return _shares("goodput_per_s", *share_interval(served.n, served.met), served.met)


def _shares(column: str, low: float, high: float, value: float) -> dict[str, float | str | None]:
    ends = {"low": low, "high": high}
    is_known = value > 0 and math.isfinite(high - low)
    shares = {name: end / value - 1 if is_known else None for name, end in ends.items()}
    return {**shares, "interval_of": column or None}
