"""Which point of a sweep to take: what is best, what noise does not tell from it, what it costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuscope._columns import COMPARED, heading
from gpuscope._text import format_value
from gpuscope.analysis.certainty import TOLD
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import (
    SweepResult,
    background_of,
    driven_by_requests,
    of_slowest_rank,
)
from gpuscope.comparing.effects import Effect
from gpuscope.comparing.noise import repeats
from gpuscope.comparing.rounds import MeasuredTrace, effects_of


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

    @property
    def measured(self) -> MeasuredTrace:
        """What its workloads gave, and their rounds."""
        whole, samples = {}, {}
        for workload, row in self.rows.items():
            for column, shares in row["samples"] or ():
                if row[column] is not None:
                    whole[workload, column] = row[column]
                    samples[workload, column] = [row[column] * share for share in shares]
        return MeasuredTrace(whole, samples, next(iter(self.rows.values()))["unit"])


@dataclass(frozen=True)
class PointChoice:
    """What to choose from, all of it with the same work.

    Attributes
    ----------
    workload, column
        What is judged: the first of :data:`~gpuscope.analysis.certainty.TOLD` that the first
        workload has which is not in the background.
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
        if low is None or high is None or row["interval_of"] != self.column:
            return value, -math.inf, math.inf
        return value, value * (1 + low) / by, value * (1 + high) * by

    def differences(self, first: Option, second: Option) -> list[Effect]:
        """Return how far two differ in each number, as :func:`gpuscope.compare` does."""
        return effects_of(first.measured, second.measured, is_simulated=self.is_simulated)

    def difference(self, first: Option, second: Option) -> Effect:
        """Return how far two differ in the number that is judged."""
        number = self.workload, self.column
        return effects_of(
            first.measured, second.measured, is_simulated=self.is_simulated, wanted=(number,)
        )[0]

    def _is_judged(self, effect: Effect) -> bool:
        return (effect.workload, effect.column) == (self.workload, self.column)

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
        """Return what is worse than at the reference, beyond noise.

        Numbers of the workload, and those of others of which the rate alone is not known.
        """
        if self.reference is None or option is self.reference:
            return []
        has_rate_alone = self.kept(option)
        return [
            effect
            for effect in self.differences(self.reference, option)
            if effect.is_seen and not effect.is_better and not self._is_judged(effect)
            if effect.workload not in has_rate_alone
        ]


def choices(result: SweepResult, workload: str | None = None) -> list[PointChoice]:
    """Return what a sweep lets one choose from: a choice for each work that was varied.

    Parameters
    ----------
    workload
        Whose numbers decide; by default the first that is not in the background.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    samples = result.points.select(["unit", "samples"]).to_pylist()
    for row in map(dict.__or__, result.rows(), samples):
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
    for column in TOLD:
        for name in names:
            comparable = [
                option
                for option in options
                if name in option.rows and option.rows[name][column] is not None
            ]
            if comparable:
                return _decided(PointChoice(name, column, (*comparable,), is_simulated))
    return None


def _decided(choice: PointChoice) -> PointChoice:
    sign = COMPARED[choice.column].better
    number = choice.workload, choice.column
    is_known = all(number in option.measured.samples for option in choice.options)
    if len(choice.options) < 2 or not is_known:
        return choice

    def worth(option: Option) -> float:
        return float(sign * option.rows[choice.workload][choice.column])

    best = max(choice.options, key=worth)
    off = {id(option): choice.difference(best, option) for option in choice.options}
    ties = [o for o in choice.options if not off[id(o)].is_seen or off[id(o)].is_better]
    ties.sort(key=lambda option: (option.rows[choice.workload]["sms"] or math.inf, -worth(option)))
    reference = next((option for option in choice.options if not option.is_carved), None)
    decided = replace(choice, best=best, ties=(*ties,), reference=reference)
    return replace(decided, taken=next(filter(decided.is_told, ties), None))
