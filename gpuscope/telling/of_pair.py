"""What two compared traces come to: one headline about the change, who pays, and how many calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpuscope.analysis.compare_analysis import Comparison, PartSum
from gpuscope.analysis.effects import FEWEST, Effect, leading
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.requests_analysis import slo_of
from gpuscope.analysis.settings import has_own_sms, home_of
from gpuscope.errors import MissingEvidence
from gpuscope.telling.described import limits_of
from gpuscope.telling.finding import Finding, Quantity, Shown, change_of, counts
from gpuscope.telling.of_setting import unit_of
from gpuscope.telling.of_waits import holding
from gpuscope.telling.rules import DOES, RULES, fill
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace

COSTS = ("change.pays", "change.may-pay", "change.gains", "change.costs")
"""Rules of what stands beside a headline that compares."""


def of_pair(result: Comparison) -> tuple[Finding, ...]:
    """Return what a comparison comes to: its headline, then what others pay or gain, then calls."""
    if result.bands is not None:
        return (*_of_forecast(result, result.bands),)
    if not result.seen:
        typical = [effect for effect in result.timed if not effect.is_tail]
        largest = max(typical or result.timed or result.differences, key=_least_told)
        return (_unchanged(result, largest), *_calls(result, largest))
    clearest = leading(result.seen)
    costs = [cost for effect in result.differences for cost in _cost(result, effect, clearest)]
    return (headline(result, clearest), *costs, *_calls(result, clearest))


def _least_told(effect: Effect) -> float:
    """Return by what the one of differences that are not seen is chosen that tells least."""
    if effect.pairs >= FEWEST:
        return effect.reach
    return abs(effect.change)


def headline_and_rest(findings: Sequence[Finding]) -> tuple[str, list[str]]:
    """Return the headline with what others pay in words, and then the other sentences."""
    first, *rest = findings
    costs = [finding.text for finding in rest if finding.rule in COSTS]
    sentences = [finding.text for finding in rest if finding.text not in costs]
    return " ".join([first.text, *costs]), sentences


def headline(result: Comparison, about: Effect) -> Finding:
    """Return what a difference that is seen comes to, and the cause that changed most."""
    workload, unit = about.workload, unit_of(about.about)
    subject = _subject(result, about) | {"change": _in_words(result, workload)}
    values = [
        Quantity("before", about.before, unit),
        Quantity("after", about.after, unit),
        change_of(about),
    ]
    spans: tuple[Shown, ...] = ()
    if pairs := result.pairs.get(workload):
        _, (first, second) = pairs.slow
        ids = int(pairs.first[first]), int(pairs.second[second])
        spans = tuple(Shown(name, span) for name, span in zip(result.names, ids, strict=True))
        # What held the SMs of a forecast is not in it.
        is_told = not any(trace.metadata.forecast for trace in result.traces)
        with contextlib.suppress(MissingEvidence):
            cause, more = (
                _cause(result.parts(workload), about, len(pairs.first)) if is_told else ("", ())
            )
            subject["cause"] = cause
            values += more
    if about.is_better:
        return Finding("change.better", "note", subject, tuple(values), spans)
    return Finding("change.worse", "warning", subject, tuple(values), spans)


def _of_forecast(
    result: Comparison, bands: Mapping[tuple[str, str], tuple[float, float]]
) -> Iterator[Finding]:
    """Yield what a forecast says of each number; of a check, whether the run lies in its band.

    What changes most clearly is first; of a check the p99.
    """
    is_check = not result.traces[1].metadata.forecast
    for about in sorted(
        result.differences,
        key=lambda effect: (is_check and effect.column != "latency_p99_us", -effect.clarity),
    ):
        unit, band = unit_of(about.about), bands.get((about.workload, about.column))
        numbers = (about.before, about.after) if is_check else (about.after, about.before)
        forecast = Quantity("forecast", numbers[0], unit, *(band or (None, None)))
        other, subject = Quantity("other", numbers[1], unit), _subject(result, about)
        if not is_check:
            yield Finding("forecast.number", "note", subject, (forecast, other))
        elif band is None:
            yield Finding("checked.unsure", "note", subject, (forecast, other))
        elif band[0] <= about.after <= band[1]:
            yield Finding("checked.inside", "note", subject, (forecast, other))
        else:
            yield Finding("checked.outside", "warning", subject, (forecast, other))


def _subject(result: Comparison, about: Effect) -> dict[str, str]:
    subject = {
        "workload": about.workload,
        "column": about.column,
        "quantity": "rate" if about.column in RATES else about.about.quantity,
        "setting": result.names[1],
        "base": result.names[0],
    }
    if about.column == "goodput_per_s":
        subject["slo"] = " and ".join(limits_of(slo_of(result.traces[1], about.workload)))
    return subject


def _cause(
    parts: tuple[PartSum, ...], about: Effect, calls: int
) -> tuple[str, tuple[Quantity, ...]]:
    """Return the part that changed most in the direction of a change, in words and numbers.

    ``calls`` is the number of pairs, of which the parts may be of some.
    """
    way = 1 if about.about.better * about.change < 0 else -1  # times grow where it is worse
    part = max(parts, key=lambda part: way * (part.second_ns - part.first_ns))
    grown_ns = (part.second_ns - part.first_ns) / part.calls
    if way * grown_ns <= 0:
        return "", ()
    values = (
        Quantity("cause_before", part.first_ns / part.calls, "ns"),
        Quantity("cause_after", part.second_ns / part.calls, "ns"),
    )
    degree = "more" if way > 0 else "less" if part.second_ns else "gone"
    names = {"each": _each(about), "by": str(Quantity("", abs(grown_ns), "ns"))}
    names |= holding(part.holders)
    if part.calls < calls:
        names |= {value.name: str(value) for value in counts(summed=part.calls, calls=calls)}
    names["does"] = fill(DOES[part.kind], names)
    return f"it {fill(RULES[f'part.{degree}'].text, names)}", values


def _unchanged(result: Comparison, about: Effect) -> Finding:
    """Return that two sides are equal, or that this cannot be told."""
    subject, unit = _subject(result, about), unit_of(about.about)
    values = [
        Quantity("before", about.before, unit),
        Quantity("after", about.after, unit),
        change_of(about),
        *counts(pairs=about.pairs),
    ]
    if about.is_capture:
        return Finding("change.captures", "note", subject, tuple(values))
    if about.pairs < FEWEST:
        rule = "change.unsure" if result.measured else "change.few"
        return Finding(rule, "note", subject, tuple(values))
    values += [Quantity("reach", about.reach, "%"), Quantity("within", about.within, "%")]
    if about.verdict == "equal":
        return Finding("change.equal", "note", subject, tuple(values))
    values += counts(needed=about.needed) if about.needed else ()
    if not result.is_by_rounds:
        subject["more"] = "three rounds of each"
    return Finding("change.open", "note", subject, tuple(values))


def _cost(result: Comparison, about: Effect, told: Effect) -> Iterator[Finding]:
    """Yield what a number is beside the one that is told: a rate won or lost, or what got worse.

    What others may lose is said also where noise hides it, with its interval.
    """
    if about is told:
        return
    cost = Quantity("cost", abs(about.change), "%")
    if about.column in RATES and about.workload not in result.pairs:
        subject = {"workload": about.workload}
        if about.is_seen:
            rule = "change.gains" if about.is_better else "change.pays"
            yield Finding(rule, "note", subject, (cost, change_of(about)))
        elif told.is_better and about.change < 0 and about.verdict != "equal":
            ends = change_of(about)
            bounds = (end for end in (ends.low, ends.high) if end is not None)
            span = " to ".join(str(Quantity("", end, "±%")) for end in bounds)
            between = {"between": span} if span else {}
            yield Finding("change.may-pay", "note", subject | between, (cost, ends))
    elif about.is_seen and told.is_better and not about.is_better:
        unit = unit_of(about.about)
        numbers = Quantity("before", about.before, unit), Quantity("after", about.after, unit)
        subject = _subject(result, about)
        yield Finding("change.costs", "note", subject, (*numbers, change_of(about)))


def _each(about: Effect) -> str:
    """Return what is timed."""
    return "call" if about.column.startswith("latency") else "request"


def _calls(result: Comparison, about: Effect) -> Iterator[Finding]:
    """Yield how many calls are faster, and how many slower."""
    workload = about.workload
    if pairs := result.pairs.get(workload):
        signs = np.sign(pairs.second_ns - pairs.first_ns)
        values = counts(
            calls=len(signs), faster=int((signs < 0).sum()), slower=int((signs > 0).sum())
        )
        values += counts(unpaired=pairs.unpaired) if pairs.unpaired else ()
        subject = {"workload": workload, "setting": result.names[1], "each": _each(about)}
        yield Finding("change.calls", "note", subject, values)


# -- what was changed ---------------------------------------------------------------------
def _in_words(result: Comparison, workload: str) -> str:
    """Say what was changed, as a headline begins; nothing where that is not known."""
    before, after = (home_of(trace, workload) for trace in result.traces)
    sizes = [
        trace.metadata.partition(home).sm_count
        for trace, home in zip(result.traces, (before, after), strict=True)
    ]
    if sizes[0] != sizes[1]:
        if after is None:
            return "On the whole GPU"
        is_own = before is None and has_own_sms(result.traces[1], workload)
        return f"On {sizes[1]} SMs{' of its own' * is_own}" if sizes[1] else f"In {after}"
    several = list(changes(*result.traces))
    return several[0].phrase if len(several) == 1 else f"In {result.names[1]}"


class Changed(NamedTuple):
    """A field of two descriptions that differs, its values as text."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        if not (self.before and self.after):
            return f"{self.path}: {'added' if self.after else 'removed'}"
        return f"{self.path}: {self.before} → {self.after}"

    @property
    def phrase(self) -> str:
        """How a sentence begins that is about it."""
        if not (self.before and self.after):
            return f"{'With' if self.after else 'Without'} {self.path}"
        return f"With {self.path} = {self.after}"


def changes(before: Trace, after: Trace) -> Iterator[Changed]:
    """Yield field by field what differs between what two traces ran, if both are of experiments."""
    described = _described(before), _described(after)
    if all(described):
        yield from _changed(*described, "")


def _described(trace: Trace) -> Description:
    """Return the experiment of a trace as its setting has it."""
    experiment = dict(trace.metadata.experiment or {})
    settings = _mapping(experiment.pop("settings", None))
    changed = _mapping(settings.get(trace.metadata.setting or ""))
    streams = {**_mapping(experiment.get("streams")), **_mapping(changed.get("streams"))}
    experiment |= {key: value for key, value in changed.items() if value is not None}
    return experiment | {"streams": streams} if experiment else {}


def _mapping(value: object) -> Description:
    """Return a part of a description, which may be anybody's."""
    return value if isinstance(value, Mapping) else {}


def _changed(before: object, now: object, path: str) -> Iterator[Changed]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            inside = f"{path}.{key}" if path else str(key)
            yield from _changed(before.get(key), now.get(key), inside)
    elif before is None and isinstance(now, Mapping):
        yield Changed(path, "", "added")
    elif now is None and isinstance(before, Mapping):
        yield Changed(path, "removed", "")
    elif before != now:
        yield Changed(path, _told(before, now), _told(now, before))


def _told(value: object, other: object) -> str:
    """Write a value; descriptions leave out some that say nothing, as a guard that is on."""
    if value is None and isinstance(other, bool):
        value = not other
    if isinstance(value, bool):
        return str(value).lower()
    if not value and isinstance(other, list):
        return "none"
    return "–" if value is None or isinstance(value, Mapping) else str(value)
