"""What a tuning comes to: which setting to take, what it costs, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuscope._checks import door
from gpuscope._text import clean, format_value
from gpuscope.comparing.effects import change_of
from gpuscope.comparing.race import CLOSE
from gpuscope.comparing.tunings import TunedSetting, Tuning
from gpuscope.telling.finding import Finding, Quantity, counts

_NAMED = 4
"""Settings that an open tuning names."""


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
