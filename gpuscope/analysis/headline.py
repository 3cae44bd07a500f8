"""The largest true difference between the settings of a run, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import numpy as np

from gpuscope._columns import COMPARED, is_of_requests
from gpuscope._types import Array
from gpuscope.analysis.latency_analysis import durations_ns
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import driven_by_requests, of_slowest_rank
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run

RATES = ("share_of_alone_on_whole_gpu", "calls_per_s", "tflop_per_s", "gb_per_s")
"""The columns that a workload without a latency is compared by: the first that is known."""
_NOISE = {"_p50_": 0.07, "_p99_": 0.23, "goodput": 0.1}
"""Part of a column's name → the share by which repeated measurements of it differ. Quantiles: by at
most 6.4 % (p50) and 22.2 % (p99), where one experiment was measured twice on an H200 within minutes
(docs/simulator.md, "Known differences from hardware")."""
_NOISE_OF_RATES = 0.06
"""The same of rates: the load of ``examples/quickstart.toml`` does 105 % of its rate alone on the
simulated GPU: alone it is measured afterwards, when the power cap has begun to slow the GPU."""
_size = attrgetter("size")
_Z = 1.96
"""Standard deviations on either side of an interval of 95 %."""
_FEWEST = 6
"""Calls from which on an interval of 95 % for their median exists: 2 × 0.5⁶ < 5 %."""


@dataclass(frozen=True)
class Change:
    """How far a number of one workload differs between two settings.

    Attributes
    ----------
    column
        Of a run's comparison.
    base, setting
        The setting that is compared with, and the other one.
    before, after
        The number in these.
    noise
        Share by which measurements of the same differ; infinite where so few calls tell nothing.
    """

    workload: str
    column: str
    base: str
    setting: str
    before: float
    after: float
    noise: float

    @property
    def size(self) -> float:
        """How far the numbers are apart: the logarithm of their ratio, without its sign."""
        if self.before == self.after:
            return 0.0
        return abs(math.log(self.after / self.before)) if self.before and self.after else math.inf

    @property
    def is_better(self) -> bool:
        """Whether the number is better in ``setting``: of times the smaller one is."""
        return COMPARED[self.column].better * (self.after - self.before) > 0

    @property
    def within_noise(self) -> bool:
        """Whether measurements of the same may differ as much."""
        return self.size <= math.log1p(self.noise)


@dataclass(frozen=True)
class Headline:
    """What a comparison of settings is about.

    Attributes
    ----------
    change
        The largest true difference; the largest of all where all are within noise.
    beside
        What else differs between the same two settings, noise included.
    best
        Where the number that tells which setting counts is for the worse there, its largest change
        for the better in another one.
    """

    change: Change
    beside: tuple[Change, ...] = ()
    best: Change | None = None


def changes(run: Run) -> list[Change]:
    """Return how each number that counts differs from its first setting that carves nothing.

    Of workloads that are timed the latency counts: p99 where every setting has one, else p50.
    Of requests the goodput counts, or without an SLO the times of their tokens; of other workloads
    that set their own rate, this. Of several ranks the slowest counts.
    """
    plans: Description = run.experiment.get("workloads") or {}
    by_workload: dict[str, dict[str, Row]] = {}
    for row in of_slowest_rank(run.comparison.to_pylist()):
        by_workload.setdefault(row["workload"], {})[row["setting"]] = row
    return [
        change
        for workload, rows in by_workload.items()
        for column in _columns(workload, [*rows.values()], plans)
        for change in _of_column(run, workload, column, rows)
    ]


def _columns(workload: str, rows: Sequence[Row], plans: Description) -> Sequence[str]:
    """Return the columns by which a workload is compared."""
    plan = plans.get(workload, {})
    driven = workload in driven_by_requests(plans)

    def known(column: str) -> bool:
        return all(row.get(column) is not None for row in rows)

    if is_of_requests(rows[0]):
        columns = ("goodput_per_s",)
        return columns if known(columns[0]) else ("ttft_p50_ms", "tbt_p50_ms")
    if any(row["latency_n"] for row in rows) and not (plan.get("background") or driven):
        return ("latency_p99_us" if known("latency_p99_us") else "latency_p50_us",)
    is_paced = driven or plan.get("rate_hz") is not None
    return [*filter(known, () if is_paced else RATES)][:1]


def _of_column(run: Run, workload: str, column: str, rows: dict[str, Row]) -> Iterator[Change]:
    values = {name: row[column] for name, row in rows.items() if row[column] is not None}
    plain = (name for name in values if not run[name].metadata.partitions)
    base = next(plain, next(iter(values), ""))
    if len(values) < 2:
        return
    spreads = {name: _spread(run[name], rows[name], column) for name in values}
    for setting, after in values.items():
        if setting != base:
            noise = noise_of(column, spreads[base], spreads[setting])
            yield Change(workload, column, base, setting, values[base], after, noise)


def noise_of(column: str, *spreads: float) -> float:
    """Return the share by which measurements of a column differ, given what each may be off."""
    least = next((share for part, share in _NOISE.items() if part in column), _NOISE_OF_RATES)
    return max(least, math.hypot(*spreads))


def _spread(trace: Trace, row: Row, column: str) -> float:
    """Return the half width of a latency's interval as a share of it; 0 of other columns."""
    if not column.startswith("latency_"):
        return 0.0
    return latency_spreads(trace, row["workload"]).get(column) or 0.0


def latency_spreads(trace: Trace, workload: str) -> dict[str, float]:
    """Return by which share of itself each quantile of a workload's latency may be off.

    Half the width of the interval of 95 % between two of the sorted times, which assumes nothing of
    how times are distributed (David and Nagaraja, *Order Statistics*, 2003, section 7.1).

    Returns
    -------
    dict
        Column of a comparison → share; infinite for fewer than six calls. Empty without rows.
    """
    groups, took_ns, _ = durations_ns(trace)
    if workload not in groups.labels:
        return {}
    sorted_ns = np.sort(took_ns[groups.rows(groups.labels.index(workload))])
    quantiles = {"latency_p50_us": 0.5, "latency_p99_us": 0.99}
    return {column: _half_width(sorted_ns, share) for column, share in quantiles.items()}


def _half_width(sorted_ns: Array, quantile: float) -> float:
    count = len(sorted_ns)
    if count < _FEWEST:
        return math.inf
    middle, reach = quantile * count, _Z * math.sqrt(count * quantile * (1 - quantile))
    low, high = np.clip([math.floor(middle - reach), math.ceil(middle + reach)], 0, count - 1)
    value = float(np.quantile(sorted_ns, quantile))
    return float(sorted_ns[high] - sorted_ns[low]) / 2 / value if value else 0.0


def headline(run: Run) -> Headline | None:
    """Return what a comparison is about; ``None`` where it compares nothing.

    The setting is the one with the largest true difference of a latency, a goodput or times of
    tokens; of several that differ for the better, and among themselves by no more than noise, the
    one in which the others lose least. Where no such number truly differs, rates tell. Between that
    setting and the one it is compared with, the largest true difference of all numbers counts.
    """
    every = changes(run)
    if not every:
        return None
    asked = [each for each in every if each.column not in RATES]
    true = _true(asked) or _true(every)
    if not true:
        change = max(asked or every, key=_size)
        return Headline(change, _beside(every, change))
    first = max(true, key=_size)
    if first.is_better and first.column not in RATES:
        equal = (each for each in true if _is_equal(each, first))
        first = max(equal, key=partial(_least_kept, every))
    change = max(_true(_between(every, first)), key=_size)
    number = (first.workload, first.column)
    better = (each for each in true if each.is_better and (each.workload, each.column) == number)
    best = None if first.is_better else max(better, key=_size, default=None)
    return Headline(change, _beside(every, change), best)


def _true(several: Iterable[Change]) -> list[Change]:
    return [each for each in several if not each.within_noise]


def _between(every: Iterable[Change], change: Change) -> list[Change]:
    """Return the changes between the same two settings."""
    pair = change.base, change.setting
    return [each for each in every if (each.base, each.setting) == pair]


def _beside(every: Iterable[Change], change: Change) -> tuple[Change, ...]:
    return tuple(each for each in _between(every, change) if each is not change)


def _is_equal(change: Change, other: Change) -> bool:
    """Whether noise does not tell two changes of one number apart."""
    of = attrgetter("workload", "column", "is_better")
    noise = math.log1p(max(change.noise, other.noise))
    return change is other or (of(change) == of(other) and abs(change.size - other.size) <= noise)


def _least_kept(every: Iterable[Change], change: Change) -> float:
    """Return the least factor by which a rate differs in the setting of a change."""
    rates = [each for each in _between(every, change) if each.column in RATES and each.before]
    return min((each.after / each.before for each in rates), default=1.0)
