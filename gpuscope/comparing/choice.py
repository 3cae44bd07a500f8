"""Which point of a sweep to take: what is best, what noise does not tell from it, what it costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscope._checks import door
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
from gpuscope.comparing.effects import Effect, change_of
from gpuscope.comparing.noise import repeats
from gpuscope.comparing.rounds import MeasuredTrace, effects_of
from gpuscope.comparing.tunings import fewest
from gpuscope.telling.finding import Finding, Quantity, counts
from gpuscope.telling.of_setting import unit_of


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
                value = row.get(column)
                if isinstance(value, int | float):
                    whole[workload, column] = value
                    samples[workload, column] = [value * share for share in shares]
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
    without_rounds = None
    for column in TOLD:
        for name in names:
            comparable = [
                option
                for option in options
                if name in option.rows and option.rows[name][column] is not None
            ]
            choice = PointChoice(name, column, (*comparable,), is_simulated)
            if len(comparable) > 1 and all(
                (name, column) in option.measured.samples for option in comparable
            ):
                return _decided(choice)
            if comparable:
                without_rounds = without_rounds or choice
    return without_rounds


def _decided(choice: PointChoice) -> PointChoice:
    """Choose among points whose rounds are known."""
    sign = COMPARED[choice.column].better

    def worth(option: Option) -> float:
        return float(sign * option.rows[choice.workload][choice.column])

    best = max(choice.options, key=worth)
    off = {id(option): choice.difference(best, option) for option in choice.options}
    ties = [o for o in choice.options if not off[id(o)].is_seen or off[id(o)].is_better]
    ties.sort(key=lambda option: (option.rows[choice.workload]["sms"] or math.inf, -worth(option)))
    reference = next((option for option in choice.options if not option.is_carved), None)
    decided = replace(choice, best=best, ties=(*ties,), reference=reference)
    return replace(decided, taken=next(filter(decided.is_told, ties), None))


# -- in words ------------------------------------------------------------------------------
@door(result=SweepResult, workload=(str, None))
def swept(result: SweepResult, workload: str | None = None) -> Iterator[Finding]:
    """Yield which point to take of each work; where there is no choice, the best and the worst.

    First how many points were not measured or cannot be run, if there are any.

    Parameters
    ----------
    workload
        Whose numbers decide; by default the first that is not in the background.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> from gpuscope.comparing.choice import swept
    >>> result = gs.search.sweep(one, {"workloads.w.duration_us": [10, 90]}, gpu)
    >>> [(finding.rule, finding.subject["best"]) for finding in swept(result)]
    [('swept', 'w.duration_us = 10')]
    """
    if result.unmeasured:
        values = counts(unmeasured=result.unmeasured)
        yield Finding("swept.unmeasured", "warning", {"reason": result.why_unmeasured}, values)
    if result.refused:
        values = counts(refused=result.refused)
        yield Finding("swept.refused", "warning", {"reason": result.why_refused}, values)
    every = choices(result, workload)
    for choice in every:
        if choice.taken is not None:
            yield from _take(choice, choice.taken)
        elif choice.best is not None:
            yield _untold(choice, choice.best, int(result.experiment.get("rounds") or 1))
    if every and not any(choice.best for choice in every):
        yield from _ends(every)


def _take(choice: PointChoice, taken: Option) -> Iterator[Finding]:
    """Yield which point to take, with what that gains and costs, then its equals."""
    column = COMPARED[choice.column]
    value, low, high = choice.value(taken)
    subject: dict[str, str | list[str]] = {
        "choice": taken.label,
        "workload": choice.workload,
        "column": choice.column,
        "objective": f"{choice.workload}'s {column.quantity}",
        "cost": "; ".join(_costs(choice, taken)),
    }
    values = [Quantity("mean", value, unit_of(column), low, high)]
    against, by = _against_reference(choice, taken)
    yield Finding("take", "note", {**subject, **against}, (*values, *by))
    if equals := [option.label for option in choice.ties if option is not taken]:
        subject = {"choice": taken.label, "equals": equals, "ties": fewest([choice.workload])}
        yield Finding("take.ties", "note", subject)


def _costs(choice: PointChoice, taken: Option) -> Iterator[str]:
    """Yield what a point costs others, and what is worse there than at the reference."""
    for name, share in choice.kept(taken).items():
        yield f"{name} keeps {Quantity('kept', share, '%')} of its rate alone"
    for effect in choice.lost(taken):
        was, now = (
            Quantity("", end, unit_of(effect.about)) for end in (effect.before, effect.after)
        )
        yield f"worse: {effect.workload}'s {effect.about.quantity} is {now} instead of {was}"


def _against_reference(
    choice: PointChoice, option: Option
) -> tuple[dict[str, str], list[Quantity]]:
    """Return the reference, and how far an option differs from it."""
    if choice.reference in (None, option) or not choice.value(choice.reference)[0]:
        return {}, []
    by = choice.difference(choice.reference, option)
    change = change_of(by)
    subject = {"reference": repr(choice.reference.label), "changes": str(change)}
    return subject, [change]


def _untold(choice: PointChoice, best: Option, rounds: int) -> Finding:
    """Return that noise hides what the best point gains, and what would tell it."""
    column = COMPARED[choice.column]
    value, low, high = choice.value(best)
    subject = {
        "workload": choice.workload,
        "column": choice.column,
        "objective": f"{choice.workload}'s {column.quantity}",
        "best": best.label,
    }
    against, by = _against_reference(choice, best)
    mean = Quantity("mean", value, unit_of(column), low, high)
    values = (mean, *by, *counts(rounds=4 * rounds))
    return Finding("take.none", "note", {**subject, **against}, values)


def _ends(every: Sequence[PointChoice]) -> Iterator[Finding]:
    """Yield where the number that is judged is best and worst, of the work of the first choice."""
    first, column = every[0], COMPARED[every[0].column]
    by_value = [
        (option.rows[first.workload][first.column], option)
        for choice in every
        if (choice.workload, choice.column) == (first.workload, first.column)
        for option in choice.options
    ]
    if len(by_value) < 2:
        return
    by_value.sort(key=lambda pair: -column.better * pair[0])
    subject = {"workload": first.workload, "quantity": column.quantity}
    subject |= {"best": by_value[0][1].label, "worst": by_value[-1][1].label}
    names = zip(("good", "bad"), (by_value[0], by_value[-1]), strict=True)
    values = (Quantity(name, value, unit_of(column)) for name, (value, _) in names)
    yield Finding("swept", "note", subject, tuple(values))
