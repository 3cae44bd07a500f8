"""A tuning: every setting with its verdict, which to take, what it costs, how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gpuscope._checks import door
from gpuscope._text import clean, format_value
from gpuscope.analysis.certainty import interval
from gpuscope.analysis.result import Result, Row, named
from gpuscope.comparing.effects import Effect, change_of, effect
from gpuscope.comparing.race import CLOSE, Goal, Standing, Values
from gpuscope.telling.finding import Finding, Quantity, counts
from gpuscope.trace.metadata import Description

_NAMED = 4
"""Settings that an open tuning names."""


@dataclass(frozen=True)
class TunedSetting:
    """One setting of a tuning.

    Attributes
    ----------
    point, setting
        Path → value, and the experiment's setting.
    sizes
        Partition → SMs that it gets.
    values
        ``workload.column`` → what each measurement gave.
    forecast
        ``workload.column`` → what was forecast.
    bounds
        ``workload.column`` → least and greatest value: of a limit's column that was measured, with
        the confidence of the verdict; of a setting that was not measured, by its forecast,
        corrected by what was measured in the grid around it.
    sms
        SMs of the workloads of the SLO or, without one, of the objective: fewest win among equals.
    behind
        By how much of the objective others that noise does not tell from it are better at most,
        with the confidence of all comparisons. ``None``: that is not known, or it may miss the SLO.
    error
        Why it cannot run.
    """

    label: str
    point: Mapping[str, Any]
    setting: str
    sizes: Mapping[str, int]
    values: Mapping[str, tuple[float, ...]]
    forecast: Values
    verdict: Standing
    behind: float | None = None
    sms: int = 0
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    error: str = ""

    @door(goal=Goal)
    def mean(self, goal: Goal) -> float | None:
        """Return the mean of what was measured."""
        values = self.values.get(goal.name, ())
        return float(np.mean(values)) if values else None


@dataclass(frozen=True)
class Tuning(Result):
    """Which setting of an experiment is best, and how sure that is.

    Attributes
    ----------
    settings
        All of the grid, each with its measurements, its forecast and a verdict.
    objective, slo
        What was sought, and what had to hold.
    costs
        The columns that an improvement is paid with: those of the SLO, or else the rates of the
        other workloads; both where the fewest SMs are sought; of energy what of it is beyond the
        idle power, too.
    confidence
        Of the verdicts together, and of each interval.
    reference
        Label of the setting that the others are compared with: as the experiment describes it.
    repeats
        Measurements of one setting, at most.
    forecasts
        How forecasts were made, or why there are none.
    device
        What was measured: ``name``, ``uuid``, ``sm_count``, ``driver``.
    stopped
        Whether it was stopped before it was decided.
    """

    settings: tuple[TunedSetting, ...]
    objective: Goal
    slo: tuple[Goal, ...]
    costs: tuple[Goal, ...]
    confidence: float
    repeats: int
    experiment: Description
    parameters: Mapping[str, Sequence[Any]]
    device: Mapping[str, Any]
    versions: Mapping[str, str]
    forecasts: str
    stopped: bool
    reference: str | None = None

    @property
    def best(self) -> TunedSetting | None:
        """The winner; ``None`` if noise does not tell it from others, or nothing meets the SLO."""
        return next((tuned for tuned in self.settings if tuned.verdict == "best"), None)

    @property
    def equals(self) -> tuple[TunedSetting, ...]:
        """The settings of which any will do: noise does not tell them apart."""
        return tuple(tuned for tuned in self.settings if tuned.verdict in ("best", "equal"))

    @property
    def choice(self) -> TunedSetting | None:
        """Which to take: the best or, of equals, that with the fewest SMs for the SLO's workload.

        While it is not decided, the one that is least behind at most. ``None`` if nothing surely
        meets the SLO, or too little was measured.
        """
        if self.is_decided:
            sign = -1 if self.objective.is_rate else 1
            return min(
                self.equals,
                key=lambda tuned: (tuned.sms, sign * (tuned.mean(self.objective) or 0.0)),
                default=None,
            )
        sure = (tuned for tuned in self.settings if tuned.behind is not None)
        return min(sure, key=lambda tuned: tuned.behind or 0.0, default=None)

    @property
    def recommended(self) -> TunedSetting | None:
        """The choice, unless noise does not tell it from the reference; SMs have no noise."""
        choice = self.choice
        if choice is None or self.reference in (None, choice.label) or self.objective.is_of_sms:
            return choice
        was = self[self.reference] if self.reference else choice
        return None if was.verdict in ("equal", "undecided") else choice

    @property
    def is_decided(self) -> bool:
        """Whether more measurements would change nothing: each setting is in, or ruled out."""
        return not any(tuned.verdict in ("undecided", "not measured") for tuned in self.settings)

    @property
    def is_hopeless(self) -> bool:
        """Whether no setting is likely to meet the SLO."""
        is_measured = any(tuned.values for tuned in self.settings)
        return is_measured and self.is_decided and not self.equals

    @property
    def nearest(self) -> TunedSetting | None:
        """Where nothing meets the SLO, the measured setting that misses it by the least share."""
        if not self.is_hopeless:
            return None
        return min((tuned for tuned in self.settings if tuned.values), key=self._off)

    def _off(self, setting: TunedSetting) -> float:
        means = {goal: setting.mean(goal) for goal in self.slo}
        return max(-goal.margin(mean) for goal, mean in means.items() if mean is not None)

    @property
    def reachable(self) -> dict[str, str]:
        """Where nothing meets the SLO, ``workload.column`` → the limit that ``nearest`` meets."""
        if self.nearest is None:
            return {}
        limits = {}
        for goal in self.slo:
            low, high = self.nearest.bounds[goal.name]
            edge = low if goal.is_rate else high
            scale = 10.0 ** (2 - math.floor(math.log10(edge)))  # three digits
            limit = (math.floor if goal.is_rate else math.ceil)(edge * scale) / scale
            limits[goal.name] = f"{goal.sign} {limit:g}"
        return limits

    @property
    def measurements(self) -> int:
        """How many there were."""
        return sum(len(tuned.values.get(self.objective.name, ())) for tuned in self.settings)

    def __getitem__(self, label: str) -> TunedSetting:
        return named(self.settings, label, "setting", "label")

    @door(setting=TunedSetting)
    def interval(self, setting: TunedSetting) -> tuple[float, float] | None:
        """Return the t-interval of a setting's objective; ``None`` below two measurements.

        SMs have none: they are no measurement.
        """
        if self.objective.is_of_sms:
            return None
        values = setting.values.get(self.objective.name, ())
        return interval(values, (1 - self.confidence) / 2) if len(values) > 1 else None

    def _rows(self) -> list[Row]:
        """One row per setting of the grid."""
        return [
            {
                "setting": tuned.label,
                **{f"SMs of {name}": count for name, count in tuned.sizes.items()},
                "n": len(tuned.values.get(self.objective.name, ())),
                self.objective.name: tuned.sms or None
                if self.objective.is_of_sms
                else tuned.mean(self.objective),
                **dict(zip(("from", "to"), self.interval(tuned) or (None, None), strict=True)),
                **{goal.name: tuned.mean(goal) for goal in self.costs},
                **{
                    f"forecast {goal.name}": tuned.forecast.get(goal.name)
                    for goal in (self.objective, *self.slo)
                    if not goal.is_of_sms
                },
                "verdict": tuned.verdict,
                "error": tuned.error or None,
            }
            for tuned in self.settings
        ]

    def readable(self) -> tuple[list[Row], str]:
        """Return few columns, none of them empty, with the interval as ±."""
        rows, left_out = self._most(self._rows())
        objective, slo = self.objective.name, [goal.name for goal in self.slo]
        for row in rows:
            likely = self[row["setting"]].bounds if not row["n"] else {}
            row[objective] = format_value(row[objective])
            if row["from"] is not None:
                row[objective] += f" ± {(row['to'] - row['from']) / 2:.2g}"
            for name, (low, high) in likely.items():
                row[name] = f"likely {format_value(low)} to {format_value(high)}"
        forecasts = [f"forecast {name}" for name in (objective, *slo)]
        costs = [goal.name for goal in self.costs]
        every = ("setting", "verdict", objective, *costs, "n", *forecasts, "error")
        shown = [name for name in every if any(row.get(name) not in (None, "") for row in rows)]
        return [{name: row[name] for name in shown} for row in rows], left_out

    @door(setting=TunedSetting)
    def effects(self, setting: TunedSetting) -> dict[str, Effect]:
        """Return ``workload.column`` → how far it differs from the reference, by measurement.

        Numbers are means, where their ratio is within the interval.
        """
        if self.reference is None or setting.label == self.reference:
            return {}
        was = self[self.reference]
        means = {
            goal: (before, after)
            for goal in dict.fromkeys((self.objective, *self.costs))
            if (before := was.mean(goal)) and (after := setting.mean(goal)) is not None
        }
        effects = {}
        for goal, (before, after) in means.items():
            if goal.is_of_sms:
                change = after / before - 1
                effects[goal.name] = Effect("", goal.column, before, after, change, change)
                continue
            values = was.values[goal.name], setting.values[goal.name]
            by_round = effect(
                goal.workload,
                goal.column,
                *values,
                judged=len(means),
                are_pairs=False,
                tail=(1 - self.confidence) / 2,
            )
            effects[goal.name] = by_round.of_whole(before, after)
        return effects

    @door(setting=TunedSetting)
    def free_sms(self, setting: TunedSetting) -> int:
        """Return the SMs of which a setting leaves room for one more partition; 0 if it has none.

        A partition that is ``"rest"`` takes all that the driver does not split off, the remainder
        included; less than a quantum is no partition.
        """
        free = int(self.device["sm_count"]) - sum(setting.sizes.values())
        return free if setting.sizes and free >= self.device["quantum"] else 0

    @property
    def command(self) -> str:
        """The call that gives this again; ``experiment`` is the description."""
        values = {path: list(values) for path, values in self.parameters.items()}
        slo = {goal.name: str(goal).removeprefix(f"{goal.name} ") for goal in self.slo}
        return (
            f"gs.tune(experiment, {values!r}, {self.objective.asked!r}, {slo!r}, "
            f"repeats={self.repeats}, confidence={self.confidence})"
        )


# -- in words ------------------------------------------------------------------------------
class TunedWords(NamedTuple):
    """A tuning in words; each is empty where nothing is known.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.telling.TunedWords("Take a = 8", "", "best: a = 8", "in turns", "").joined
    'Take a = 8. best: a = 8. in turns'
    """

    take: str
    left: str
    outcome: str
    method: str
    errors: str

    @property
    def joined(self) -> str:
        """All but the errors of forecasts."""
        return ". ".join(filter(None, self[:4]))


def tuned_words(result: Tuning) -> TunedWords:
    """Return a tuning in words."""
    errors = "; ".join(finding.clause for finding in forecast_errors(result))
    take, rest = (
        "".join(finding.clause for finding in findings)
        for findings in (recommended(result), left(result))
    )
    return TunedWords(
        *map(clean, (take, rest, tuned(result).clause, measured(result).clause, errors))
    )


@door(result=Tuning)
def tuned(result: Tuning) -> Finding:
    """Return which setting is best, or why none is.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "partitions": {"a": 8},
    ...     "streams": {"s": {"partition": "a"}},
    ...     "workloads": {"w": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "s",
    ...                         "repeats": 3}},
    ... }
    >>> result = gs.tune(one, {"partitions.a": [8, 64, 120]}, "w.tflop_per_s", device=gpu)
    >>> gs.telling.tuned(result).rule
    'tuned.best'
    """
    verdicts = [setting.verdict for setting in result.settings]
    sought = ", ".join(map(str, (result.objective, *result.slo)))
    out = sum(verdict in ("worse", "no better", "misses SLO") for verdict in verdicts)
    subject: dict[str, str | list[str]] = {"sought": sought}
    values = [Quantity("confidence", result.confidence, "%"), Quantity("out", out)]
    if unlikely := verdicts.count("unlikely"):
        values.append(Quantity("unlikely", unlikely))
    if result.best is not None:
        subject["settings"] = [_with_mean(result, result.best)]
        return Finding("tuned.best", "note", subject, tuple(values))
    if len(result.equals) > 1 and result.is_decided:
        subject |= {"settings": [_with_mean(result, setting) for setting in result.equals]}
        return _taken(result, Finding("tuned.equal", "note", subject, tuple(values)))
    if not any(setting.values for setting in result.settings):
        return Finding("tuned.nothing", "warning", subject)
    if result.nearest is not None:
        subject["nearest"] = result.nearest.label
        subject["missed"] = [
            f"{goal.name} is {format_value(result.nearest.mean(goal))}, and "
            f"{result.reachable[goal.name]} can be met"
            for goal in result.slo
        ]
        return Finding("tuned.hopeless", "warning", subject, tuple(values))
    likely = [setting for setting in result.settings if setting.verdict in ("equal", "undecided")]
    names = [_with_doubt(result, setting) for setting in likely[:_NAMED]]
    subject["settings"] = names or ["settings that were not measured"]
    counts = {"more": len(likely) - _NAMED, "unseen": verdicts.count("not measured")}
    values += [Quantity(name, count) for name, count in counts.items() if count > 0]
    return _taken(result, Finding("tuned.open", "warning", subject, tuple(values)))


def _with_mean(result: Tuning, setting: TunedSetting) -> str:
    mean, bounds = setting.mean(result.objective), result.interval(setting) or (None, None)
    unit = "SMs" if result.objective.is_of_sms else ""
    with_mean = "" if mean is None else f" with {Quantity('mean', mean, unit, *bounds)}"
    return f"{setting.label}{with_mean}"


def _with_doubt(result: Tuning, setting: TunedSetting) -> str:
    """Add the limits of which noise does not tell whether it meets them."""
    doubts = []
    for goal in result.slo:
        mean, bounds = setting.mean(goal), setting.bounds.get(goal.name)
        if mean is not None and bounds is not None:
            margins = [*map(goal.margin, bounds)]
            if min(margins) < 0 <= max(margins):
                doubts.append(f"{goal.name} is {Quantity('mean', mean, '', *bounds)}")
    doubt = f", where {' and '.join(doubts)}" if doubts else ""
    return f"{_with_mean(result, setting)}{doubt}"


def _taken(result: Tuning, finding: Finding) -> Finding:
    """Add which setting to take where none is the best, and what that costs at most."""
    choice = result.choice
    mean = None if choice is None else choice.mean(result.objective)
    if choice is None or choice.behind is None or not mean:
        return finding
    behind = (Quantity("behind", choice.behind), Quantity("share", choice.behind / mean, "%"))
    subject = {**finding.subject, "choice": choice.label}
    subject |= {"ties": ties(result)} if result.is_decided else {}
    return Finding(finding.rule, finding.severity, subject, (*finding.values, *behind))


def ties(result: Tuning) -> str:
    """Say which of equals is taken."""
    return fewest(_decisive(result))


def _decisive(result: Tuning) -> list[str]:
    """Return the workloads whose SMs count."""
    return [*dict.fromkeys(goal.workload for goal in result.slo or (result.objective,))]


def fewest(workloads: Iterable[str]) -> str:
    """Say by whose SMs one of equals is taken."""
    return f"of equals, the fewest SMs for {' and '.join(map(repr, dict.fromkeys(workloads)))}"


def recommended(result: Tuning) -> Iterator[Finding]:
    """Yield which setting to take, and what that gains and costs; if it is known."""
    choice = result.choice
    mean = None if choice is None else choice.mean(result.objective)
    if choice is None or mean is None:
        return
    low, high = result.interval(choice) or (None, None)
    changes = [
        replace(change_of(effect), name=name) for name, effect in result.effects(choice).items()
    ]
    subject: dict[str, str | list[str]] = {
        "choice": choice.label,
        "objective": result.objective.name,
        "changes": ", ".join(f"{quantity.name} {quantity}" for quantity in changes),
    }
    if changes:
        subject["reference"] = repr(result.reference)
    values = (Quantity("mean", mean, "", low, high), *changes)
    if result.recommended is None:
        yield Finding("take.hidden", "note", subject, values)
        return
    yield Finding("take", "note", subject, values)


def left(result: Tuning) -> Iterator[Finding]:
    """Yield how many SMs the setting to take leaves for others; if it has partitions."""
    choice = result.recommended
    if choice is None or not choice.sizes:
        return
    free = result.free_sms(choice)
    other_sms = sum(choice.sizes.values()) - choice.sms
    if not free and other_sms <= 0:
        return
    decisive = _decisive(result)
    parts = {"in no partition": free, "in other partitions": other_sms}
    goal_words = [
        f"{goal.name} is {format_value(mean)}"
        for goal in result.costs
        if goal.workload not in decisive and (mean := choice.mean(goal)) is not None
    ]
    subject = {
        "choice": choice.label,
        "workloads": " and ".join(map(repr, decisive)),
        "where": " and ".join(f"{count} {where}" for where, count in parts.items() if count > 0),
    }
    share = (free + other_sms) / result.device["sm_count"]
    values = (*counts(left=free + other_sms, free=free), Quantity("share", share, "%"))
    kept_facts = {"kept": ", ".join(goal_words)} if goal_words else {}
    yield Finding("tuned.left", "note", {**subject, **kept_facts}, values)


def measured(result: Tuning) -> Finding:
    """Return how a tuning was measured and judged."""
    values = (
        *counts(
            measurements=result.measurements,
            measured=sum(bool(setting.values) for setting in result.settings),
            settings=len(result.settings),
            repeats=result.repeats,
        ),
        Quantity("confidence", result.confidence, "%"),
        Quantity("close", CLOSE, "%"),
    )
    return Finding("tuned.method", "note", {"ties": ties(result)}, values)


def forecast_errors(result: Tuning) -> Iterator[Finding]:
    """Yield by how much forecasts were off where it was measured, for each goal."""
    for goal in dict.fromkeys((result.objective, *result.slo)):
        pairs = [
            (setting.mean(goal), setting.forecast.get(goal.name)) for setting in result.settings
        ]
        off = [mean / forecast - 1 for mean, forecast in pairs if mean and forecast]
        if off:
            error = Quantity("error", float(np.median(off)), "±%", min(off), max(off))
            yield Finding("forecast-error", "note", {"goal": goal.name}, (error,))
