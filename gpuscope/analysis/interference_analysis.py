"""Interference: how much longer a workload's kernels take while another one runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpuscope._checks import SeveralOf, door
from gpuscope._types import Bools
from gpuscope.analysis.intervals import Intervals, ended_kernels, grouped, union
from gpuscope.analysis.result import Result, Row, sentences
from gpuscope.errors import InvalidArgument, NotFound
from gpuscope.trace.model import Trace
from gpuscope.trace.run import incomplete

FORECAST_CONFIDENCE = 0.8
"""Share of forecasts whose interval is to hold the value."""


@dataclass(frozen=True)
class Interference(Result):
    """How much longer kernels of ``of`` take while ``given`` is busy.

    Attributes
    ----------
    value
        Median duration of the kernels of ``of`` that lie wholly inside busy(``given``), over
        all rounds, / their median duration alone on the same partition − 1: 0.1 is 10 % longer.
        ``None`` where it cannot be told.
    low, high
        Least and greatest value of a round.
    n, alone_n
        Kernels inside busy(``given``), and alone.
    median_ns, alone_ns
        Their median durations.
    inside
        Share of its duration for which a kernel must lie inside busy(``given``) to count; 1 means
        wholly.
    reason
        Why there is no value; A stands for ``of`` and B for ``given``.
    forecast, forecast_low, forecast_high
        Where the pair was left out, what ``value`` is forecast to be from other pairs, and the
        ends of its 80 % interval. A cell never has both a value and a forecast.
    """

    of: Annotated[str, "a"]
    given: Annotated[str, "given b"]
    value: Annotated[float | None, "interference"]
    low: Annotated[float | None, "least of a round"]
    high: Annotated[float | None, "greatest of a round"]
    n: Annotated[int, "n"]
    median_ns: Annotated[float | None, "median (µs)"]
    alone_ns: Annotated[float | None, "alone (µs)"]
    alone_n: Annotated[int, "n alone"]
    inside: float
    reason: Annotated[str | None, "why not"]
    forecast: Annotated[float | None, "forecast"] = None
    forecast_low: Annotated[float | None, "forecast low"] = None
    forecast_high: Annotated[float | None, "forecast high"] = None

    @property
    def definition(self) -> str:
        """What interference is."""
        return definition(self.inside)


@dataclass(frozen=True)
class InterferenceResult(Result):
    """Interference of every ordered pair of workloads; ``result["a", "b"]`` is a given b.

    It is ``None`` where it was not measured; ``result.cell("a", "b").forecast`` may have it then.

    Attributes
    ----------
    cells
        One per ordered pair.
    partitions
        Workload → the partition it ran on, with its SM count, for display.
    stopped
        Whether the measurement was stopped early; pairs not measured have no value.
    """

    cells: tuple[Interference, ...]
    partitions: Mapping[str, str]
    stopped: bool

    def __getitem__(self, names: tuple[str, str]) -> float | None:
        return self.cell(*names).value

    @door(of=str, given=str)
    def cell(self, of: str, given: str) -> Interference:
        """Return the interference of one pair with its spread, n and reason.

        Raises
        ------
        NotFound
            There is no such pair.
        """
        for cell in self.cells:
            if (cell.of, cell.given) == (of, given):
                return cell
        raise NotFound(
            f"no pair {(of, given)}; there are {[(cell.of, cell.given) for cell in self.cells]}"
        )

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, in order."""
        return tuple(self.partitions)

    def _rows(self) -> list[Row]:
        """One row per ordered pair."""
        rows = []
        for cell in self.cells:
            a, b = self.partitions[cell.of], self.partitions[cell.given]
            names = {"a": cell.of, "a on": a, "given b": cell.given, "b on": b}
            rows += [{**names, **row} for row in cell.rows()]
        return rows

    def readable(self) -> tuple[list[Row], str]:
        """Return a matrix: a row for each workload, a column for each that was busy meanwhile."""
        rows: list[Row] = []
        for of, partition in self.partitions.items():
            cells = {cell.given: cell for cell in self.cells if cell.of == of}
            alone = next((cell.alone_ns for cell in cells.values()), None)
            alone_us = None if alone is None else alone / 1e3
            row: Row = {"a": of, "on": partition, "alone (µs)": alone_us}
            for given in self.partitions:
                words = _words(cells[given]) if given in cells else "–"
                row[f"given {given}"] = "" if given == of else words
            rows.append(row)
        whys = [
            f"{cell.of} given {cell.given}: {cell.reason}"
            for cell in self.cells
            if cell.reason and cell.forecast is None
        ]
        return rows, "; ".join(whys)

    @property
    def definition(self) -> str:
        """What interference is, what is forecast, and whether the measurement was stopped."""
        inside = self.cells[0].inside if self.cells else 1.0
        stopped = "stopped early" if self.stopped else ""
        return sentences(stopped, definition(inside), self.forecasts)

    @property
    def forecasts(self) -> str:
        """How many cells are forecast, and how; empty if none is."""
        forecast = sum(cell.forecast is not None for cell in self.cells)
        if not forecast:
            return ""
        measured = sum(cell.value is not None for cell in self.cells)
        return (
            f"≈: not measured, but forecast ({forecast} of {len(self.cells)}) from the {measured} "
            "measured, as sensitivity(A) × pressure(B); in parentheses the "
            f"{FORECAST_CONFIDENCE:.0%} interval by leave-one-pair-out errors"
        )


def _words(cell: Interference) -> str:
    if cell.value is not None:
        return f"{100 * cell.value:+.1f} %"
    if cell.forecast is None or cell.forecast_low is None or cell.forecast_high is None:
        return "–"
    numbers = (cell.forecast, cell.forecast_low, cell.forecast_high)
    value, low, high = (round(100 * number) for number in numbers)
    return f"≈ {value:+} % ({low} to {high})"


def definition(inside: float = 1.0) -> str:
    """Say in one line what interference is."""
    where = "wholly" if inside == 1 else f"to at least {inside:.0%}"
    return (
        f"interference(A | B) = median duration of A's kernels that lie {where} inside busy(B) / "
        "median alone on the same partition − 1; spread: least and greatest of the rounds"
    )


@door(
    together=(Trace, SeveralOf(Trace)),
    alone=(Trace, SeveralOf(Trace)),
    of=str,
    given=str,
    inside=float,
)
def interference(
    together: Trace | Sequence[Trace],
    alone: Trace | Sequence[Trace],
    *,
    of: str,
    given: str,
    inside: float = 1.0,
) -> Interference:
    """Compute how much longer kernels of one workload take while another one is busy.

    Interference is the median duration of the kernels of ``of`` that lie wholly inside
    busy(``given``), divided by their median duration alone on the same partition, minus 1.
    busy(``given``) is the union of the kernel spans of ``given``. Waiting for SMs counts only as
    far as the source of the kernel times counts it as running.

    Parameters
    ----------
    together
        A trace in which both ran, or one trace per round.
    alone
        A trace in which ``of`` ran alone on the same partition, or one per round, in the order of
        ``together``.
    of, given
        Names of workloads, or of kernels that belong to none.
    inside
        Share of its duration, in (0, 1], for which a kernel must lie inside busy(``given``). Use
        a value below 1 if kernels are longer than the busy times of ``given`` without a gap.

    Returns
    -------
    Interference
        If no kernel qualifies, it has a reason instead of a value.

    Raises
    ------
    ValueError
        ``inside`` is not in (0, 1], or the two names are the same.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> together, alone = (Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["a", "b"], "stream": [7, 8],
    ...     "start_ns": [20, 0], "end_ns": [end, 100], "source": ["cupti", "cupti"],
    ... }) for end in (80, 60))
    >>> gs.analysis.interference(together, alone.where(name="a"), of="a", given="b").value
    0.5
    """
    if not 0 < inside <= 1:
        raise InvalidArgument(f"inside is a share in (0, 1], not {inside}")
    if of == given:
        raise InvalidArgument(f"interference is of one workload given another, not of {of!r} twice")
    traces, alone_traces = (
        [several] if isinstance(several, Trace) else list(several) for several in (together, alone)
    )
    rounds = [_round(trace, of, given) for trace in traces]
    solos = [_round(trace, of, given) for trace in alone_traces]
    met = [turn.took[turn.counts(inside)] for turn in rounds]
    durations = _joined(met)
    alone_durations = _joined([solo.took for solo in solos])
    median_ns = float(np.median(durations)) if len(durations) else None
    alone_ns = float(np.median(alone_durations)) if len(alone_durations) else None
    if not rounds or not solos:
        reason: str | None = "not measured"
    elif median_ns is None:
        reason = _why_none(rounds, inside)
    elif not alone_ns:
        reason = "no kernel of A was seen alone"
    else:
        reason = _elsewhere(rounds, solos)
    value, ratios = None, []
    if reason is None and median_ns and alone_ns:
        value = median_ns / alone_ns - 1
        ratios = [
            float(np.median(took) / np.median(solo.took)) - 1
            for took, solo in zip(met, solos, strict=False)
            if len(took) and len(solo.took) and np.median(solo.took)
        ]
    labels = {f"together, round {number}": trace for number, trace in enumerate(traces, 1)}
    labels |= {f"alone, round {number}": trace for number, trace in enumerate(alone_traces, 1)}
    missing = incomplete(labels)
    return Interference(
        of=of,
        given=given,
        value=value,
        low=min(ratios, default=None),
        high=max(ratios, default=None),
        n=len(durations),
        alone_n=len(alone_durations),
        median_ns=median_ns,
        alone_ns=alone_ns,
        inside=inside,
        reason=reason,
        provenance="; ".join(filter(None, [missing, *(trace.origin for trace in traces[:1])])),
        is_simulated=any(trace.is_simulated for trace in traces),
        incomplete=missing,
    )


@dataclass(frozen=True)
class _Round:
    """The finished kernels of A in one trace.

    Attributes
    ----------
    took, covered
        How long each took, and how much of that lies in busy(B), ns.
    busy
        The union of the spans of B's kernels.
    partitions
        Where they ran.
    """

    took: Intervals
    covered: Intervals
    busy: Intervals
    partitions: frozenset[str]

    def counts(self, inside: float) -> Bools:
        """Kernel → whether enough of it lies in busy(B)."""
        return (self.covered > 0) & (self.covered >= inside * self.took)


def _round(trace: Trace, of: str, given: str) -> _Round:
    finished = ended_kernels(trace)
    groups = grouped(finished, "workload")
    kernels, given_kernels = (
        finished.where(np.array([label == name for label in groups.labels], bool)[groups.code])
        for name in (of, given)
    )
    starts, ends = kernels.array("start_ns"), kernels.array("end_ns")
    busy = union(given_kernels.array("start_ns"), given_kernels.array("end_ns"))
    covered = np.zeros(len(starts), np.int64)
    if len(busy):
        covered = _busy_until(busy, ends) - _busy_until(busy, starts)
    partitions = frozenset(name or "the whole GPU" for name in kernels.texts("partition"))
    return _Round(ends - starts, covered, busy, partitions)


def _joined(parts: Sequence[Intervals]) -> Intervals:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _busy_until(busy: Intervals, times: Intervals) -> Intervals:
    """How much of the busy time lies before each time."""
    before = np.r_[0, np.cumsum(busy[:, 1] - busy[:, 0])]
    index = np.searchsorted(busy[:, 0], times, "right") - 1
    last = np.minimum(times, busy[index, 1]) - busy[index, 0]
    return np.where(index >= 0, before[index] + last, 0)


def _why_none(rounds: Sequence[_Round], inside: float) -> str:
    """Say why no kernel of A counts."""
    took, covered = (
        _joined([getattr(turn, name) for turn in rounds]) for name in ("took", "covered")
    )
    busy = np.concatenate([turn.busy for turn in rounds])
    for what, seen in (("A", took), ("B", busy)):
        if not len(seen):
            return f"no finished kernel of {what} was seen with both running"
    longest_ns = (busy[:, 1] - busy[:, 0]).max()
    wholly = "wholly" if inside == 1 else f"to {inside:.0%}"
    share = float(np.median(covered / np.maximum(took, 1)))
    return (
        f"0 of {len(took):,} kernels {wholly} inside busy(B), the median one for {share:.1%} of its"
        f" time. A takes {np.median(took) / 1e3:.4g} µs, B is busy for {longest_ns / 1e3:.4g} µs "
        "at most without a gap: a lower inside= counts more of them"
    )


def _elsewhere(rounds: Sequence[_Round], solos: Sequence[_Round]) -> str | None:
    """Say so if A ran on other partitions alone than together."""
    together, alone = (
        sorted(frozenset().union(*(turn.partitions for turn in several)))
        for several in (rounds, solos)
    )
    if together == alone:
        return None
    return f"not comparable: alone A ran on {', '.join(alone)}, together on {', '.join(together)}"
