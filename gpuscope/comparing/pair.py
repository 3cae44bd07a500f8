"""Two traces compared: how far each number differs, how sure that is, and what it comes to."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np

from gpuscope._checks import given
from gpuscope._types import Ints
from gpuscope.analysis.part import PartKind
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.requests_analysis import slo_of
from gpuscope.analysis.result import Result, Row, about_several, sentences
from gpuscope.analysis.settings import has_own_sms, home_of
from gpuscope.analysis.trace_parts import parts_by_cause
from gpuscope.comparing.changes import changes
from gpuscope.comparing.effects import FEWEST, Effect, Verdict, change_of, leading, worst
from gpuscope.comparing.pairing import Both, Pairs, paired_calls, paired_requests
from gpuscope.comparing.rounds import MeasuredTrace, effects_of, measured
from gpuscope.errors import MissingEvidence, NotFound
from gpuscope.telling.described import limits_of
from gpuscope.telling.finding import Finding, Quantity, Shown, counts
from gpuscope.telling.of_setting import unit_of
from gpuscope.telling.of_waits import holding
from gpuscope.telling.rules import DOES, RULES, fill
from gpuscope.trace.model import Trace

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_PARTS = 10_000  # pairs whose parts are summed: of more, evenly many are left out


class PartSum(NamedTuple):
    """The time that the calls of all pairs spent in parts of one kind, ns in either trace.

    Attributes
    ----------
    calls
        The pairs whose parts were summed.
    holder
        The workload that most of it, in the trace with more of it, waited for; empty if none.
    holders
        All of them, that one first; one that is not known is empty.
    """

    kind: PartKind
    calls: int
    first_ns: int
    second_ns: int
    holder: str
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompareResult(Result):
    """What :func:`gpuscope.compare` found: differences with their noise, and what they come to.

    Attributes
    ----------
    names
        What to call the traces.
    differences
        How far each number differs.
    pairs
        Workload → its calls or requests in pairs, where it is timed.
    bands
        Where one is a forecast: workload and column → the ends of its band.
    forecasts
        What these were counted from (:func:`gpuscope.comparing.forecasts.with_bands`).
    measured
        What either trace gave, and its rounds.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 100, "stream": "s", "repeats": 20}},
    ... }
    >>> trace = gs.run(one, gpu)["default"]
    >>> print(gs.compare(trace, trace).headline)
    Cannot tell: w's p50 changes by 0 % (-6.54 % to +7 %); three rounds of each would tell more.
    """

    names: tuple[str, str]
    traces: Both = field(repr=False)
    differences: tuple[Effect, ...]
    pairs: Mapping[str, Pairs] = field(repr=False)
    bands: Mapping[tuple[str, str], tuple[float, float]] | None = field(default=None, repr=False)
    forecasts: tuple[Trace, ...] = field(default=(), repr=False)
    measured: tuple[MeasuredTrace, MeasuredTrace] | None = field(default=None, repr=False)

    @property
    def verdict(self) -> Verdict:
        """``"slower"`` if any number is; ``"equal"`` only if all are."""
        return worst(self.differences)

    @property
    def is_by_rounds(self) -> bool:
        """Whether rounds of both tell how sure it is, and not parts of their calls."""
        return all(effect.unit == "round" for effect in self.measured or ())

    def _rows(self) -> list[Row]:
        """One row per number."""
        first, second = self.names
        rows = []
        for effect in self.differences:
            row: Row = {"of": effect.workload, "what": effect.about.heading}
            row |= {first: effect.before, second: effect.after}
            ends = {"change (%)": effect.change, "low (%)": effect.low, "high (%)": effect.high}
            ends["smallest seen (%)"] = effect.smallest
            percentages = {
                name: 100 * end if math.isfinite(end) else None for name, end in ends.items()
            }
            rows.append(row | percentages | {"verdict": effect.verdict})
        return rows

    @property
    def definition(self) -> str:
        """How calls pair, what the intervals are, and how a forecast counts."""
        unpaired = sum(pairs.unpaired for pairs in self.pairs.values())
        return sentences(
            "a forecast is recorded × forecast / forecast of no change" if self.forecasts else "",
            "calls pair by rank, round and index",
            f"low to high: 95 % of all numbers together, {_BY_ROUNDS}"
            if self.is_by_rounds
            else f"low to high: 95 % of all numbers together, {_BY_PARTS}",
            f"{unpaired:,} calls without another are left out" if unpaired else "",
        )

    @property
    def timed(self) -> list[Effect]:
        """The differences of what is timed: latencies, and of requests their goodput if known."""
        judged = {
            effect.workload for effect in self.differences if effect.column == "goodput_per_s"
        }
        return [
            effect
            for effect in self.differences
            if effect.workload in self.pairs
            and (effect.column == "goodput_per_s" or effect.workload not in judged)
        ]

    @property
    def seen(self) -> list[Effect]:
        """The differences beyond noise that tell most: of what is timed, or else all."""
        timed = [effect for effect in self.timed if effect.is_seen]
        return timed or [effect for effect in self.differences if effect.is_seen]

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The headline, then what others pay or gain, and how many calls are faster.

        Of a forecast, for each number, whether the run lies in its band.
        """
        return of_pair(self)

    @cached_property
    def changes(self) -> tuple[str, ...]:
        """What was changed between the two, field by field, in words."""
        return tuple(map(str, changes(*self.traces)))

    @property
    def headline(self) -> str:
        """What was found, and what others pay for it."""
        return headline_and_rest(self.findings)[0]

    def figure(self) -> go.Figure:
        """Draw the call at the p99 in both, curves and differences: ``figures.compared``."""
        from gpuscope.figures import compared  # noqa: PLC0415 - only who draws

        return compared(self)

    def __str__(self) -> str:
        _, rest = headline_and_rest(self.findings)
        return "\n".join([self.headline, *rest, "", super().__str__()])

    def parts(self, workload: str) -> tuple[PartSum, ...]:
        """Return what the time of a workload's paired calls consists of, by kind.

        Raises
        ------
        MissingEvidence, NotFound
            A trace lacks what the time of its calls consists of; no calls of this workload pair.
        """
        if (pairs := self.pairs.get(workload)) is None:
            raise NotFound(f"no calls of {given(workload)} in pairs; there are {[*self.pairs]}")
        step = -(-len(pairs.first) // _MOST_PARTS)
        ids = pairs.first[::step], pairs.second[::step]
        sums = [*map(_sums, self.traces, ids)]
        present, calls = {kind for side in sums for kind, _ in side}, len(pairs.first[::step])
        ordered = (kind for kind in get_args(PartKind) if kind in present)
        return tuple(_part_sum(kind, calls, *sums) for kind in ordered)


_Sums = Mapping[tuple[PartKind, str], int]
"""Kind of part, and the workload that was waited for → ns."""


def _sums(trace: Trace, ids: Ints) -> _Sums:
    sums: dict[tuple[PartKind, str], int] = {}
    for span in ids.tolist():
        for part, holder in parts_by_cause(trace, span):
            sums[part.kind, holder] = sums.get((part.kind, holder), 0) + part.duration_ns
    return sums


def _part_sum(kind: PartKind, calls: int, first: _Sums, second: _Sums) -> PartSum:
    both = [{who: ns for (of, who), ns in side.items() if of == kind} for side in (first, second)]
    totals = [sum(side.values()) for side in both]
    more = both[totals[1] > totals[0]]
    holders = tuple(sorted(more, key=more.__getitem__, reverse=True))
    return PartSum(kind, calls, totals[0], totals[1], next(iter(holders), ""), holders)


_BY_ROUNDS = "by rounds: by ranks or, of few, by Student's t"
_BY_PARTS = (
    "by parts of the calls, and wider by how much repeated measurements differ, which three rounds "
    "would tell"
)


# -- differences --------------------------------------------------------------------------
def compared_traces(
    both: Both, names: tuple[str, str], within: float | None = None
) -> CompareResult:
    """Compare two traces; their names differ.

    Raises
    ------
    MissingEvidence
        No workload is in both.
    """
    gave = measured(both[0]), measured(both[1])
    is_simulated = both[0].is_simulated and both[1].is_simulated
    effects = effects_of(*gave, is_simulated=is_simulated, within=within)
    if not effects:
        raise MissingEvidence(
            f"{names[0]!r} and {names[1]!r} have no workload in common of which a latency or a "
            "rate is known: compare two runs of one experiment"
        )
    return CompareResult(
        names,
        both,
        tuple(effects),
        paired_of(both, effects),
        measured=gave,
        **about_several(both),
    )


def paired_of(both: Both, effects: Sequence[Effect]) -> dict[str, Pairs]:
    """Return the calls and requests of each workload that is timed, in pairs."""
    timed = {effect.workload for effect in effects if effect.column not in RATES}
    pairs = {**paired_calls(both), **paired_requests(both)}
    return {name: paired for name, paired in pairs.items() if name in timed}


# -- in words ------------------------------------------------------------------------------
COSTS = ("change.pays", "change.may-pay", "change.gains", "change.costs")
"""Rules of what stands beside a headline that compares."""


def of_pair(result: CompareResult) -> tuple[Finding, ...]:
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


def headline(result: CompareResult, about: Effect) -> Finding:
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
    result: CompareResult, bands: Mapping[tuple[str, str], tuple[float, float]]
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


def _subject(result: CompareResult, about: Effect) -> dict[str, str]:
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


def _unchanged(result: CompareResult, about: Effect) -> Finding:
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


def _cost(result: CompareResult, about: Effect, told: Effect) -> Iterator[Finding]:
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


def _calls(result: CompareResult, about: Effect) -> Iterator[Finding]:
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


def _in_words(result: CompareResult, workload: str) -> str:
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
