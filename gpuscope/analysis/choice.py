"""Which point of a sweep to take: what is best, what noise does not tell from it, what it costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuscope._columns import COMPARED, heading
from gpuscope._text import format_value
from gpuscope.analysis.certainty import FORMER, TOLD
from gpuscope.analysis.effects import Effect, judged_effect
from gpuscope.analysis.noise import repeats
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import (
    SweepResult,
    background_of,
    driven_by_requests,
    of_slowest_rank,
)


@dataclass(frozen=True)
class Option:
    """One setting at one point of a sweep.

    Attributes
    ----------
    label
        What it is called: by its values; where none was varied, by its setting.
    values
        Of what was varied of it, and the setting where these do not tell it from others.
    rows
        Workload → its row, of several ranks that of the slowest.
    """

    label: str
    values: tuple[object, ...]
    rows: Mapping[str, Row]

    @property
    def is_carved(self) -> bool:
        """Whether a workload runs on a partition."""
        return any(row["partition"] is not None for row in self.rows.values())


@dataclass(frozen=True)
class PointChoice:
    """What to choose from, all of it with the same work.

    Attributes
    ----------
    workload, column
        What is judged: what the rows' intervals are of, of the first workload that is not in the
        background; the first of :data:`~gpuscope.analysis.certainty.TOLD` where they differ.
    taken
        The best or, of several that noise does not tell from it, that with the fewest SMs for the
        workload, of those that noise tells from the reference. ``None`` where there is no choice,
        noise hides what it gains, or it is not known how sure numbers are.
    best
        The one whose number is best, if it is known how sure numbers are.
    ties
        That, and those that noise does not tell from it.
    reference
        Where nothing is carved, if there is that.
    """

    workload: str
    column: str
    options: tuple[Option, ...]
    is_simulated: bool
    taken: Option | None = None
    best: Option | None = None
    ties: tuple[Option, ...] = ()
    reference: Option | None = None

    def value(self, option: Option) -> tuple[float, float, float]:
        """Return the number of an option, and the ends of its interval.

        The interval is widened by how much repeated measurements differ.
        """
        row = option.rows[self.workload]
        by = 1 + repeats(self.column, self.is_simulated)
        value, low, high = (row[name] for name in (self.column, "low", "high"))
        if low is None or high is None:
            return value, -math.inf, math.inf
        return value, value * (1 + low) / by, value * (1 + high) * by

    def difference(self, first: Option, second: Option) -> Effect:
        """Return how far two differ: from the intervals of both, which are independent.

        Of logarithms, by the method of variance estimates recovery (G. Y. Zou and A. Donner,
        Statistics in Medicine 27 (2008), 1693).
        """
        rows = [option.rows[self.workload] for option in (first, second)]
        before, after = (row[self.column] for row in rows)
        effect = Effect(self.workload, self.column, before, after)
        if bool(before) != bool(after):  # to or from nothing
            change = math.inf if after else -1.0
            return judged_effect(replace(effect, low=change, high=change))
        if not before or None in (row[end] for row in rows for end in ("low", "high")):
            return effect
        ends = [[math.log1p(max(row[end], -0.999)) for end in ("low", "high")] for row in rows]
        low, high = math.hypot(ends[1][0], ends[0][1]), math.hypot(ends[1][1], ends[0][0])
        by = 1 + repeats(self.column, self.is_simulated)
        ratio = after / before
        ends_of_change = ratio * math.exp(-low) / by - 1, ratio * math.exp(high) * by - 1
        return judged_effect(replace(effect, low=ends_of_change[0], high=ends_of_change[1]))

    def is_told(self, option: Option) -> bool:
        """Whether noise tells an option from the reference or, without one, some from the best."""
        if self.reference is None:
            return len(self.ties) < len(self.options)
        if option is self.reference:
            return self.ties == (option,)
        gain = self.difference(self.reference, option)
        return gain.is_seen and gain.is_better

    def kept(self, option: Option) -> dict[str, float]:
        """Return other workload → the share that it keeps of its rate alone, if that is known."""
        rows = {name: row for name, row in option.rows.items() if name != self.workload}
        return {name: row[RATES[0]] for name, row in rows.items() if row[RATES[0]] is not None}

    def lost(self, option: Option) -> list[Effect]:
        """Return what is worse than at the reference, by more than repeated measurements differ.

        Times of the workload, and rates of others of which that alone is not known.
        """
        if self.reference in (None, option):
            return []
        lost = []
        for name, row in option.rows.items():
            was = self.reference.rows.get(name, {}) if self.reference else {}
            columns = _TIMES if name == self.workload else RATES[1:2] * (row[RATES[0]] is None)
            for column in columns:
                if column != self.column and was.get(column) and row.get(column):
                    change = Effect(name, column, was[column], row[column])
                    by = 1 + repeats(column, self.is_simulated)
                    is_beyond = abs(math.log1p(change.change)) > math.log(by)
                    lost += [change] if is_beyond and not change.is_better else []
        return lost


_TIMES = (
    *("latency_p50_us", "latency_p90_us", "latency_p99_us"),
    *("ttft_p50_ms", "ttft_p90_ms", "tbt_p50_ms"),
)


def choices(result: SweepResult, workload: str | None = None) -> list[PointChoice]:
    """Return what a sweep lets one choose from: a choice for each work that was varied.

    Parameters
    ----------
    workload
        Whose numbers decide; by default the first that is not in the background.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in result.rows():
        if row["error"] is None:
            key = (*(row[path] for path in result.parameters), row["setting"])
            groups.setdefault(key, []).append(row)
    cases: dict[tuple[object, ...], list[Option]] = {}
    alike = Counter(key[:-1] for key in groups)
    for (*values, setting), rows in groups.items():
        point = dict(zip(result.parameters, values, strict=True))
        case = tuple(value for path, value in point.items() if path.startswith("workloads."))
        defined = {path: value for path, value in point.items() if value is not None}
        words = [f"{heading(path)} = {format_value(value)}" for path, value in defined.items()]
        more = [str(setting)] * (len(defined) < len(point) or alike[(*values,)] > 1)
        by_workload = {str(row["workload"]): row for row in of_slowest_rank(rows)}
        option = Option(", ".join(words + more), (*defined.values(), *more), by_workload)
        cases.setdefault(case, []).append(option)
    described = result.experiment.get("workloads") or {}
    out = {*background_of(result.experiment), *driven_by_requests(described)}
    names = [name for name in described if name not in out] or [*described]
    names = names if workload is None else [workload]
    chosen = (_choice(options, names, result.is_simulated) for options in cases.values())
    return [choice for choice in chosen if choice is not None]


def _choice(options: list[Option], names: list[str], is_simulated: bool) -> PointChoice | None:  # noqa: FBT001
    for column in dict.fromkeys([*TOLD, *FORMER]):
        for name in names:
            comparable = [
                option for option in options if _told(option.rows.get(name, {})) == column
            ]
            if comparable:
                return _decided(PointChoice(name, column, (*comparable,), is_simulated))
    return None


def _told(row: Row) -> str:
    """Return what the interval of a row is of."""
    interval_of = row.get("interval_of")
    return interval_of or next((key for key in FORMER if row.get(key) is not None), "")


def _decided(choice: PointChoice) -> PointChoice:
    sign = COMPARED[choice.column].better
    rows = {id(option): option.rows[choice.workload] for option in choice.options}
    if len(rows) < 2 or any(row[choice.column] and row["low"] is None for row in rows.values()):
        return choice

    def worth(option: Option) -> float:
        return float(sign * rows[id(option)][choice.column])

    best = max(choice.options, key=worth)
    off = {id(option): choice.difference(best, option) for option in choice.options}
    ties = [o for o in choice.options if not off[id(o)].is_seen or off[id(o)].is_better]
    ties.sort(key=lambda option: (rows[id(option)]["sms"] or math.inf, -worth(option)))
    reference = next((option for option in choice.options if not option.is_carved), None)
    decided = replace(choice, best=best, ties=(*ties,), reference=reference)
    return replace(decided, taken=next(filter(decided.is_told, ties), None))
