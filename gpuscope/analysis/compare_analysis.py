"""Two traces call by call: which calls pair, how far they differ, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, Self, TypeVar, get_args

import numpy as np

from gpuscope._checks import given
from gpuscope._columns import COMPARED, PROGRAM, Column, is_of_requests
from gpuscope._types import Array, Ints
from gpuscope.analysis.certainty import ends_of, rate_spread
from gpuscope.analysis.noise import TAIL, Statistic, bootstrap, repeats, student_t
from gpuscope.analysis.pairing import Both, Pairs, paired, paired_calls, rows_of_requests
from gpuscope.analysis.part import PartKind
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.requests_analysis import Request, slo_of
from gpuscope.analysis.requests_analysis import by_workload as requests_of
from gpuscope.analysis.result import P99_NEEDS, Result, Row, about_several, sentences
from gpuscope.analysis.settings import driven_by_requests, settings_table
from gpuscope.analysis.trace_parts import parts_by_cause
from gpuscope.errors import MissingEvidence, NotFound
from gpuscope.trace.model import Trace

_MARKS = {0.5: "p50", 0.9: "p90", 0.99: "p99"}
_MOST_PARTS = 10_000  # pairs whose parts are summed: of more, evenly many are left out


@dataclass(frozen=True)
class Difference:
    """How far a number of a workload differs between two traces.

    Attributes
    ----------
    column
        Of a comparison of settings (:data:`gpuscope.analysis.settings.COLUMNS`).
    before, after
        The number in either, in the column's unit.
    low, high
        The interval of 95 % of ``after / before − 1``, widened by how much repeated measurements
        differ (:func:`gpuscope.analysis.noise.repeats`); infinite where too few calls tell it.
    """

    workload: Annotated[str, "of"]
    column: str
    before: Annotated[float, "A"]
    after: Annotated[float, "B"]
    low: float = -math.inf
    high: float = math.inf

    def widened(self, by: float) -> Self:
        """Return it with an interval that is wider by a factor on either side."""
        return replace(self, low=(1 + self.low) / by - 1, high=(1 + self.high) * by - 1)

    @property
    def about(self) -> Column:
        """What the number is."""
        return (COMPARED | PROGRAM)[self.column]

    @property
    def change(self) -> float:
        """The change as a share of what was before; infinite from nothing to something."""
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1 if self.before else math.inf

    @property
    def is_seen(self) -> bool:
        """Whether its interval leaves out 0."""
        return not self.low <= 0 <= self.high

    @property
    def is_better(self) -> bool:
        """Whether the number is better in the second trace."""
        return self.about.better * self.change > 0

    @property
    def clarity(self) -> float:
        """The end of its interval that is nearest to 0, as a logarithm without its sign."""
        nearest = max(self.low, min(0.0, self.high))
        return abs(math.log1p(nearest)) if nearest > -1 else math.inf


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
    pairs
        Workload → its calls or requests in pairs, where it is timed.
    bands
        Where one is a forecast: workload and column → the ends of its band.
    forecasts
        What these were counted from (:func:`gpuscope.analysis.forecasts.with_bands`).
    """

    names: tuple[str, str]
    traces: Both = field(repr=False)
    differences: tuple[Difference, ...]
    pairs: Mapping[str, Pairs] = field(repr=False)
    bands: Mapping[tuple[str, str], tuple[float, float]] | None = field(default=None, repr=False)
    forecasts: tuple[Trace, ...] = field(default=(), repr=False)

    def _rows(self) -> list[Row]:
        """One row per number."""
        first, second = self.names
        rows = []
        for each in self.differences:
            row: Row = {"of": each.workload, "what": each.about.heading}
            row |= {first: each.before, second: each.after}
            ends = {"change (%)": each.change, "low (%)": each.low, "high (%)": each.high}
            known = {name: 100 * end if math.isfinite(end) else None for name, end in ends.items()}
            rows.append(row | known)
        return rows

    @property
    def definition(self) -> str:
        """How calls pair, what the intervals are, and how a forecast counts."""
        unpaired = sum(pairs.unpaired for pairs in self.pairs.values())
        return sentences(
            "a forecast is recorded × forecast / forecast of no change" if self.forecasts else "",
            "calls pair by rank, round and index; low to high: 95 % interval, by paired bootstrap "
            "of times, by batch means of rates, widened by how much repeated measurements differ",
            f"{unpaired:,} calls without another are left out" if unpaired else "",
        )

    @property
    def timed(self) -> list[Difference]:
        """The differences of what is timed: latencies, and of requests their goodput if known."""
        judged = {each.workload for each in self.differences if each.column == "goodput_per_s"}
        return [
            each
            for each in self.differences
            if each.workload in self.pairs
            and (each.column == "goodput_per_s" or each.workload not in judged)
        ]

    @property
    def seen(self) -> list[Difference]:
        """The differences beyond noise that tell most: of what is timed, or else all."""
        timed = [each for each in self.timed if each.is_seen]
        return timed or [each for each in self.differences if each.is_seen]

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
        present, calls = {kind for each in sums for kind, _ in each}, len(pairs.first[::step])
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
    totals = [sum(each.values()) for each in both]
    more = both[totals[1] > totals[0]]
    holders = tuple(sorted(more, key=more.__getitem__, reverse=True))
    return PartSum(kind, calls, totals[0], totals[1], next(iter(holders), ""), holders)


# -- differences --------------------------------------------------------------------------
def rate_interval(both: Both, workload: str) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the ratio of a workload's rates over that ratio."""
    spreads = [rate_spread(trace, ends_of(trace, workload)) for trace in both]
    spread = math.hypot(*(each for each, _ in spreads))
    if math.isinf(spread):
        return -math.inf, math.inf
    wide = math.exp(student_t(sum(freedom for _, freedom in spreads), TAIL) * spread)
    return 1 / wide, wide


def compared_traces(both: Both, names: tuple[str, str], kind: type[_Kind]) -> _Kind:
    """Compare two traces; their names differ. The result is of a kind of :class:`Comparison`.

    Raises
    ------
    MissingEvidence
        No workload is in both.
    """
    tables = [settings_table({"": trace}).to_pylist() for trace in both]
    rows = [{row["workload"]: row for row in table} for table in tables]
    plans = [(trace.metadata.experiment or {}).get("workloads", {}) for trace in both]
    driven = driven_by_requests(plans[0]) | driven_by_requests(plans[1])
    pairs = {
        name: calls
        for name, calls in paired_calls(both).items()
        if name not in driven and all((row.get(name) or {}).get("latency_n") for row in rows)
    }
    served = [requests_of(trace) for trace in both]
    differences: list[Difference] = []
    for workload in (name for name in rows[0] if name in rows[1]):
        first, second = rows[0][workload], rows[1][workload]
        if is_of_requests(first) and is_of_requests(second):
            of = served[0][workload], served[1][workload]
            requests = paired(*map(rows_of_requests, both, of))
            if not len(requests.first):
                continue
            pairs[workload] = requests
            differences += _of_requests(both, workload, of, pairs[workload], (first, second))
        elif workload in pairs:
            differences += _of_latencies(workload, pairs[workload])
        is_paced = any(plan.get(workload, {}).get("rate_hz") is not None for plan in plans)
        if not is_paced and workload not in driven and workload not in pairs:
            differences += _of_rate(both, workload, first, second)
    is_simulated = both[0].is_simulated and both[1].is_simulated
    differences = [each.widened(1 + repeats(each.column, is_simulated)) for each in differences]
    if not differences:
        raise MissingEvidence(
            f"{names[0]!r} and {names[1]!r} have no workload in common of which a latency or a "
            "rate is known: compare two runs of one experiment"
        )
    return kind(
        names,
        both,
        tuple(differences),
        pairs,
        **about_several(both),
    )


def _of_latencies(workload: str, pairs: Pairs) -> Iterator[Difference]:
    count = len(pairs.first)
    shares = [share for share in _MARKS if share < 0.99 or count >= P99_NEEDS]
    times = [each / 1e3 for each in (pairs.first_ns, pairs.second_ns)]
    values = [np.quantile(each, shares).tolist() for each in times]
    of = [lambda drawn, each=each: np.quantile(each[drawn], shares) for each in times]
    low, high = bootstrap(count, *of)
    for at, share in enumerate(shares):
        numbers, column = (values[0][at], values[1][at]), f"latency_{_MARKS[share]}_us"
        yield Difference(workload, column, *numbers, float(low[at]), float(high[at]))


def _of_requests(
    both: Both,
    workload: str,
    served: tuple[Sequence[Request], Sequence[Request]],
    pairs: Pairs,
    rows: tuple[Row, Row],
) -> Iterator[Difference]:
    """Yield goodput and times of tokens; how many meet the SLO is drawn with the requests."""
    sides = zip(both, served, (pairs.first, pairs.second), strict=True)
    of = [_serving(trace, workload, requests, ids) for trace, requests, ids in sides]
    ends = bootstrap(len(pairs.first), *of)
    for at, column in enumerate(("goodput_per_s", "ttft_p50_ms", "tbt_p50_ms")):
        before, after = rows[0][column], rows[1][column]
        if before is not None and after is not None:
            pace = rows[1]["requests_per_s"] / rows[0]["requests_per_s"] if at == 0 else 1.0
            low, high = ((1 + float(end[at])) * pace - 1 for end in ends)
            yield Difference(workload, column, before, after, low, high)


def _serving(trace: Trace, workload: str, requests: Sequence[Request], ids: Ints) -> Statistic:
    """Return what some requests come to: their share that meets the SLO, TTFT p50, TBT p50."""
    by_id, slo = {request.span: request for request in requests}, slo_of(trace, workload)
    every = [by_id[span] for span in ids.tolist()]
    met = np.array([request.met(slo) for request in every])
    first_ns = np.array([request.tokens_ns[0] for request in every])
    between = [np.diff(request.tokens_ns) for request in every]

    def come_to(drawn: Ints) -> Array:
        gaps = np.concatenate([between[at] for at in drawn.tolist()])
        tbt = np.median(gaps) if len(gaps) else np.nan
        return np.array([met[drawn].mean(), np.median(first_ns[drawn]), tbt])

    return come_to


def _of_rate(both: Both, workload: str, first: Row, second: Row) -> Iterator[Difference]:
    for column in RATES[1:]:  # the first that is known
        if first[column] and second[column]:
            ratio = second[column] / first[column]
            low, high = (ratio * end - 1 for end in rate_interval(both, workload))
            yield Difference(workload, column, first[column], second[column], low, high)
            return
