"""Two traces call by call: which calls pair, how far they differ, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, get_args

from gpuscope._checks import given
from gpuscope._types import Ints
from gpuscope.analysis.effects import Effect, Verdict, worst
from gpuscope.analysis.pairing import Both, Pairs, paired_calls, paired_requests
from gpuscope.analysis.part import PartKind
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.result import Result, Row, about_several, sentences
from gpuscope.analysis.rounds import MeasuredTrace, effects_of, measured
from gpuscope.analysis.trace_parts import parts_by_cause
from gpuscope.errors import MissingEvidence, NotFound
from gpuscope.trace.model import Trace

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
class Comparison(Result):
    """Two traces compared: the differences of their numbers, and their calls in pairs.

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
        What these were counted from (:func:`gpuscope.analysis.forecasts.with_bands`).
    measured
        What either trace gave, and its rounds.
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


_Kind = TypeVar("_Kind", bound=Comparison)
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
    both: Both, names: tuple[str, str], kind: type[_Kind], within: float | None = None
) -> _Kind:
    """Compare two traces; their names differ. The result is of a kind of :class:`Comparison`.

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
    return kind(
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
