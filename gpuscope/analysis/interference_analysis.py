"""Interference: how much longer a workload's kernels take while another one runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from gpuscope._checks import SeveralOf, door
from gpuscope.analysis.intervals import Intervals, ended_kernels, grouped, union
from gpuscope.analysis.result import Result, Row, row_of
from gpuscope.errors import InvalidArgument, NotFound
from gpuscope.trace.model import Trace
from gpuscope.trace.run import incomplete


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

    def _rows(self) -> list[Row]:
        """One row."""
        return [row_of(self)]

    @property
    def note(self) -> str:
        """Definition and provenance in one line."""
        return f"{definition(self.inside)}. {self.provenance}"


@dataclass(frozen=True)
class InterferenceResult(Result):
    """Interference of every ordered pair of workloads; ``result["a", "b"]`` is a given b.

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
        return [
            {
                "a": row["a"],
                "a on": self.partitions[cell.of],
                "given b": row["given b"],
                "b on": self.partitions[cell.given],
                **row,
            }
            for cell in self.cells
            for row in cell.rows()
        ]

    def readable(self) -> tuple[list[Row], str]:
        """Return a matrix: a row for each workload, a column for each that was busy meanwhile."""
        rows: list[Row] = []
        for of, place in self.partitions.items():
            mine = {cell.given: cell for cell in self.cells if cell.of == of}
            alone = next((cell.alone_ns for cell in mine.values()), None)
            row: Row = {"a": of, "on": place, "alone (µs)": None if alone is None else alone / 1e3}
            for given in self.partitions:
                value = mine[given].value if given in mine else None
                words = "–" if value is None else f"{100 * value:+.1f} %"
                row[f"given {given}"] = "" if given == of else words
            rows.append(row)
        whys = [
            f"{cell.of} given {cell.given}: {cell.reason}" for cell in self.cells if cell.reason
        ]
        return rows, "; ".join(whys)

    @property
    def note(self) -> str:
        """Definition and provenance in one line."""
        stopped = "stopped early. " if self.stopped else ""
        inside = self.cells[0].inside if self.cells else 1.0
        return f"{stopped}{definition(inside)}. {self.provenance}"


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
    rounds = [together] if isinstance(together, Trace) else list(together)
    solos = [alone] if isinstance(alone, Trace) else list(alone)
    met = [
        took[(covered > 0) & (covered >= inside * took)]
        for took, covered in (_met(trace, of, given) for trace in rounds)
    ]
    own = [_durations(_spans(trace, of)) for trace in solos]
    durations, alone_durations = _joined(met), _joined(own)
    median_ns = float(np.median(durations)) if len(durations) else None
    alone_ns = float(np.median(alone_durations)) if len(alone_durations) else None
    if not rounds or not solos:
        reason: str | None = "not measured"
    elif median_ns is None:
        reason = _why_none(rounds, of, given, inside)
    elif not alone_ns:
        reason = "no kernel of A was seen alone"
    else:
        reason = _elsewhere(rounds, solos, of)
    value, ratios = None, []
    if reason is None and median_ns and alone_ns:
        value = median_ns / alone_ns - 1
        ratios = [
            float(np.median(here) / np.median(there)) - 1
            for here, there in zip(met, own, strict=False)
            if len(here) and len(there) and np.median(there)
        ]
    missing = incomplete(_labelled(rounds, solos))
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
        provenance="; ".join(filter(None, [missing, *(one.origin for one in rounds[:1])])),
        is_simulated=any(trace.is_simulated for trace in rounds),
        incomplete=missing,
    )


def _labelled(rounds: Sequence[Trace], solos: Sequence[Trace]) -> dict[str, Trace]:
    """Label → trace, for people."""
    return {
        f"{what}, round {number}": trace
        for what, traces in (("together", rounds), ("alone", solos))
        for number, trace in enumerate(traces, 1)
    }


def _rows(trace: Trace, workload: str) -> Trace:
    """Finished kernels of a workload."""
    found = ended_kernels(trace)
    groups = grouped(found, "workload")
    return found.where(np.array([label == workload for label in groups.labels], bool)[groups.code])


def _spans(trace: Trace, workload: str) -> Intervals:
    """Start and end of each finished kernel of a workload."""
    found = _rows(trace, workload)
    return np.stack([found.array("start_ns"), found.array("end_ns")], axis=1)


def _durations(spans: Intervals) -> Intervals:
    return spans[:, 1] - spans[:, 0]


def _joined(parts: Sequence[Intervals]) -> Intervals:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _met(trace: Trace, of: str, given: str) -> tuple[Intervals, Intervals]:
    """Durations of the kernels of ``of``, and how much of each lies in busy(``given``)."""
    spans, other = _spans(trace, of), _spans(trace, given)
    busy = union(other[:, 0], other[:, 1])
    if not len(busy):
        return _durations(spans), np.zeros(len(spans), np.int64)
    covered = _busy_until(busy, spans[:, 1]) - _busy_until(busy, spans[:, 0])
    return _durations(spans), covered


def _busy_until(busy: Intervals, times: Intervals) -> Intervals:
    """How much of the busy time lies before each time."""
    before = np.r_[0, np.cumsum(_durations(busy))]
    index = np.searchsorted(busy[:, 0], times, "right") - 1
    last = np.minimum(times, busy[index, 1]) - busy[index, 0]
    return np.where(index >= 0, before[index] + last, 0)


def _why_none(together: Sequence[Trace], of: str, given: str, inside: float) -> str:
    """Say why no kernel of ``of`` counts."""
    for what, name in (("A", of), ("B", given)):
        if not any(len(_spans(trace, name)) for trace in together):
            return f"no finished kernel of {what} was seen with both running"
    took, covered = (
        _joined(parts) for parts in zip(*(_met(one, of, given) for one in together), strict=True)
    )
    others = [_spans(trace, given) for trace in together]
    longest_ns = _joined([_durations(union(one[:, 0], one[:, 1])) for one in others]).max()
    wholly = "wholly" if inside == 1 else f"to {inside:.0%}"
    share = float(np.median(covered / np.maximum(took, 1)))
    return (
        f"0 of {len(took):,} kernels {wholly} inside busy(B), the median one for {share:.1%} of its"
        f" time. A takes {np.median(took) / 1e3:.4g} µs, B is busy for {longest_ns / 1e3:.4g} µs "
        "at most without a gap: a lower inside= counts more of them"
    )


def _elsewhere(together: Sequence[Trace], alone: Sequence[Trace], of: str) -> str | None:
    """Say so if it ran on other partitions alone than together."""
    here, there = (
        {
            name or "the whole GPU"
            for trace in traces
            for name in _rows(trace, of).texts("partition")
        }
        for traces in (together, alone)
    )
    if here == there:
        return None
    return (
        f"not comparable: alone A ran on {', '.join(sorted(there))}, together on "
        f"{', '.join(sorted(here))}"
    )
