"""How sure a number of one trace is: intervals of means, quantiles, shares and rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import NormalDist

import numpy as np

from gpuscope._types import Array, Floats, Ints
from gpuscope.analysis.intervals import by_workload, ended_kernels
from gpuscope.analysis.requests_analysis import Served
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace

TAIL = 0.025
"""What an interval of 95 % leaves out at each end."""
_BATCHES = 20
"""In which the rate of a trace is measured, about."""
TOLD = ("goodput_per_s", "latency_p50_us", "bus_gb_per_s", "calls_per_s")
"""The column that tells most: the first of these that a workload has. What a typical call takes: a
tail is of few calls, and noise often hides it (gpuscope.comparing)."""


@cache
def student_t(freedom: int, tail: float) -> float:
    """Return what a t-distributed variable exceeds with probability ``tail``."""
    # With t = √freedom · tan θ, the density is in proportion to cos(θ)^(freedom − 1).
    angles = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.r_[0, np.cumsum((density[1:] + density[:-1]) / 2)]
    angle = float(np.interp(1 - 2 * tail, mass / mass[-1], angles))
    return math.sqrt(freedom) * math.tan(angle)


def interval(values: Sequence[float], tail: float) -> tuple[float, float]:
    """Return the t-interval of a mean that leaves out ``tail`` at each end; two values at least."""
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    wide = student_t(len(values) - 1, tail) * error if error else 0.0
    return mean - wide, mean + wide


def quantile_interval(values: Array, share: float) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a quantile; infinite where too few values tell it.

    By order statistics (H. A. David and H. N. Nagaraja, *Order Statistics*, 2003, section 7.1).
    """
    count, ordered = len(values), np.sort(values)
    wide = NormalDist().inv_cdf(1 - TAIL) * math.sqrt(count * share * (1 - share))
    low, high = math.floor(count * share - wide), math.ceil(count * share + wide)
    return (
        float(ordered[low - 1]) if low >= 1 else -math.inf,
        float(ordered[high - 1]) if high <= count else math.inf,
    )


def share_interval(count: int, share: float) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a share of so many (E. B. Wilson, 1927)."""
    sigmas = NormalDist().inv_cdf(1 - TAIL) ** 2 / count
    wide = math.sqrt(sigmas * (share * (1 - share) + sigmas / 4))
    low, high = ((share + sigmas / 2 + end) / (1 + sigmas) for end in (-wide, wide))
    return low, high


def batch_means(ends_ns: Ints, windows: Ints) -> Floats:
    """Return the mean time from one end to the next in batches; none is of two rounds."""
    turns = np.searchsorted(windows, ends_ns, "right")
    per_turn = max(1, _BATCHES // len(np.unique(turns)))
    means = []
    for turn in np.unique(turns):
        gaps = np.diff(np.sort(ends_ns[turns == turn]))
        number = min(per_turn, len(gaps) // 2)
        means += [float(batch.mean()) for batch in np.array_split(gaps, number)] if number else []
    return np.array(means)


# -- of a trace ----------------------------------------------------------------------------
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
