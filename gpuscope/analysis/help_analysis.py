"""What would help: changes of a program, what its end would gain, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, cast

import numpy as np

from gpuscope._checks import SeveralOf, door
from gpuscope._text import percent
from gpuscope._types import Bools, Ints
from gpuscope.analysis.causes import find_causes
from gpuscope.analysis.help_cases import cases
from gpuscope.analysis.mechanisms import (
    MECHANISMS,
    Basis,
    HelpCase,
    Mechanism,
    cases_of_others,
    saved_ns,
)
from gpuscope.analysis.path_columns import ending, last_node
from gpuscope.analysis.result import Result, Row, about
from gpuscope.analysis.sm_schedule import SmSchedule
from gpuscope.analysis.standstill import ProgramView
from gpuscope.analysis.steps_analysis import steps
from gpuscope.trace.columns import once
from gpuscope.trace.joins import distinct
from gpuscope.trace.model import Trace

WORTH = 0.01
"""Share of the time from which on a gain is worth telling."""
_OFF_POLLED, _OFF_SCHEDULED, _OFF_CONTENDED = (0.0013, 0.00135), (0.0003, 0.0011), (0.04, 0.04)
"""By which share of the whole the truth is below and above a gain at most, of nine in ten
(``benchmarks/results/why.json``): where hosts on the path look now and then whether work is done;
and where kernels compete for SMs, of a simulated GPU and of others. All other gains are exact."""
_OFF_GAIN, _OFF_WHOLE = 0.1, 0.02
"""By which share of a gain, and of the whole, a run without the recorder may differ besides, as
hosts do from run to run: set on nine pairs of programs on H200s, which the project has not. No
simulated one does, but for gains at most: what a mend does besides is in no recording."""
_NEXT = 6
"""Changes behind the first, of which one may add most to it."""
_PASSES, _FEWEST, _EDGES = 16, 8, 20_000_000
"""Changes whose gain is counted, of those that touch the path those about most of it: as many as
that number of edges allows, but no fewer."""


@dataclass(frozen=True)
class Change:
    """A change, and how much sooner the end would come.

    Attributes
    ----------
    change
        What to change.
    about
        The kernel, line, range, streams or rank that it is about.
    gain_ns, low_ns, high_ns
        How much sooner, if nothing else changes, and between what bounds.
    most_ns
        What it takes of the critical path: what a mend that leaves nothing of it gains, and no
        other work out.
    basis
        ``"recording"``: it follows from the times and causes of this recording. ``"bound"``: no
        more than that, as the recording does not tell whether all of it can go.
    why
        What the figure rests on.
    code
        How to try it.
    fault
        What is slow, a clause; empty where :func:`idle_causes` says it better.
    times, took_ns, usual_ns
        How often that comes, how long it takes in all, and how long it would take then; ``None``:
        that is not known.
    """

    change: Annotated[str, "change"]
    about: Annotated[str, "about"]
    gain_ns: Annotated[int, "saves (ms)"]
    low_ns: Annotated[int, "from (ms)"]
    high_ns: Annotated[int, "to (ms)"]
    most_ns: Annotated[int, "on the path (ms)"]
    basis: Annotated[Basis, "basis"]
    why: Annotated[str, "why"]
    code: Annotated[str, "to try it"]
    fault: Annotated[str, "what is slow"] = ""
    times: Annotated[int, "times"] = 0
    took_ns: Annotated[int, "took (ms)"] = 0
    usual_ns: Annotated[int | None, "then (ms)"] = None

    @property
    def mechanism(self) -> Mechanism | None:
        """What it mends; ``None``: another package's."""
        return MECHANISMS.get(self.change)

    @property
    def is_mend(self) -> bool:
        """Whether it is what somebody can do (:class:`Mechanism`)."""
        return self.mechanism is None or self.mechanism.is_mend

    @property
    def told_ns(self) -> int:
        """What is told of its gain: of a bound all that may be."""
        return self.high_ns if self.basis == "bound" else self.gain_ns

    @property
    def expected_ns(self) -> float:
        """What is to be expected of its gain: of a bound half, or half of what may be besides."""
        half_ns = (self.gain_ns + self.high_ns) / 4
        return min(self.gain_ns, half_ns) if self.basis == "bound" else self.gain_ns

    @property
    def rank(self) -> float:
        """What it is to be told before, the greatest first."""
        return self.expected_ns * (self.mechanism.weight if self.mechanism else 1.0)


@dataclass(frozen=True)
class HelpResult(Result):
    """Changes; those without any gain are among them.

    By gain, of which bounds count less, and least what most programs would gain by.

    Attributes
    ----------
    span_ns
        How long the program took in which the gains would be.
    then
        The change that gains most after the first, and what it adds; ``None`` where none does.
    problems
        What is wrong with other packages that add changes.
    """

    span_ns: int
    changes: tuple[Change, ...]
    then: Change | None = None
    problems: tuple[str, ...] = ()
    entries = "changes"

    def readable(self) -> tuple[list[Row], str]:
        """Return the changes that gain something, or what gains most; the others in words."""
        least_ns = WORTH * self.span_ns
        gaining = [change for change in self.changes if change.gain_ns >= least_ns]
        worth = gaining or self.changes[:3]
        rows: list[Row] = [
            {
                "change": f"{change.change}: {change.about}",
                "saves (ms)": change.told_ns / 1e6,
                "share": percent(change.told_ns / self.span_ns),
                "on the path (ms)": change.most_ns / 1e6,
                "to try it": change.code,
                "basis": change.basis,
            }
            for change in worth
        ]
        gained = {change.change for change in worth}
        none = dict.fromkeys(
            change.change for change in self.changes if change.change not in gained
        )
        words = [f"less than {percent(WORTH)}: {', '.join(none)}"] if none else []
        return rows, "; ".join([*words, *self.problems])

    @property
    def definition(self) -> str:
        """What a gain is."""
        return (
            "saves: how much sooner the last work or call would end, all causes of this recording "
            "but the changed ones being the same"
        )


@door(trace=Trace, window_ns=(SeveralOf(int, 2), None))
def what_would_help(trace: Trace, window_ns: tuple[int, int] | None = None) -> HelpResult:
    """Rank changes of a program by how much sooner it would end.

    Each gain is the difference between two passes over the causes of the recording
    (:func:`critical_path`): one as it was, which gives every recorded time again, and one with the
    change.

    Parameters
    ----------
    window_ns
        Start and end, on the trace's clock, of the time that is judged, such as that of its steady
        steps; all of it if not given.

    Raises
    ------
    MissingEvidence
        The trace, or the window, holds no finished work and no call.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> slow, fast = (gs.workloads.spin_kernel(gpu, name) for name in ("slow", "fast"))
    >>> with gpu.create_stream() as one, gpu.create_stream() as two, gs.profile(gpu) as recording:
    ...     one.launch(slow, 2_000_000, grid=100, block=32)
    ...     two.launch(fast, 500_000, grid=20, block=32)
    >>> result = gs.analysis.what_would_help(recording.trace)
    >>> result.changes[0].change, result.changes[0].about, result.changes[0].gain_ns
    ('make the kernel twice as fast', 'slow', 1000000)
    """
    causes = find_causes(trace)
    low_ns, high_ns = window_ns or (int(causes.times[-1]), int(causes.times.max()))
    node = last_node(causes, high_ns)
    view = ProgramView(trace, causes, node, low_ns, high_ns)
    span_ns = int(causes.times[node]) - low_ns
    passes = _Passes(view, node)
    foreign, problems = cases_of_others(view)
    cases_of = {change: case for case, change in _changes(view, passes, foreign)}
    changes = _in_order(cases_of)
    then = _added(changes, cases_of, passes, span_ns)
    changes = tuple(
        _seen(change, cases_of[change], view) if change.gain_ns >= WORTH * span_ns else change
        for change in changes
    )
    return HelpResult(span_ns, changes, then, tuple(problems), **about(trace))


def _in_order(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return what gains most first, that with evidence of its own and a sure gain before others."""
    return tuple(
        sorted(
            changes,
            key=lambda change: (-change.rank, -change.high_ns),
        )
    )


class _Passes:
    """When a program would have ended."""

    def __init__(self, view: ProgramView, node: int) -> None:
        self.view = view
        causes = view.causes
        self.schedule = SmSchedule.of(causes)
        self.end_ns = int(causes.times[node])
        ends = causes.target[view.kept & (causes.times[causes.target] <= self.end_ns)]
        self._is_end = np.zeros(len(causes.times), bool)
        self._is_end[1:-1:2] = ending(causes)
        self._is_end &= np.isin(np.arange(len(self._is_end)), ends)
        self._scheduled_ns = self._scheduled(causes.lag, view.kept) if self.schedule else 0

    def _scheduled(self, lag: Ints, kept: Bools) -> int:
        schedule = cast("SmSchedule", self.schedule)
        return int(schedule.forward(lag, kept)[self._is_end].max())

    def gain_ns(self, *cases: HelpCase) -> int:
        """Return how much sooner the program would have ended with all of some changes."""
        view = self.view
        causes = self.view.causes
        first, *following = cases
        saved = saved_ns(first, view)
        remaining = view.kept & np.logical_not(first.gone)
        for case in following:
            also = saved_ns(case, view)
            saved = np.where(saved == 0, also, np.maximum(saved, also))
            remaining = remaining & np.logical_not(case.gone)
        lag = causes.lag - saved
        moved = [case.instead for case in cases if case.instead is not None]
        if self.schedule and all(case.basis == "recording" for case in cases) and not moved:
            lag = np.where(remaining, lag, 0)
            return max(0, self._scheduled_ns - self._scheduled(lag, remaining))
        instead = None
        if moved:
            edges, before = (np.concatenate(part) for part in zip(*moved, strict=True))
            instead = edges, before
        then_ns = causes.forward(lag, remaining, instead)
        return max(0, self.end_ns - int(then_ns[self._is_end].max()))


def _changes(
    view: ProgramView, passes: _Passes, foreign: Iterable[HelpCase]
) -> Iterator[tuple[HelpCase, Change]]:
    """Yield what each change would gain: of those that touch the path, those about most of it."""
    causes = view.causes
    count = 0
    looks = causes.of("host wait") & view.rows.having("kind", ("handle",))[view.row]
    polls = (looks & view.on_path).any()
    competes = (causes.of("SMs held", "priority", "copy engine") & view.kept).any()
    most = max(_FEWEST, min(_PASSES, _EDGES // len(view.kept)))
    path = np.flatnonzero(view.on_path)
    lasts_ns = view.lasts[path]
    promising = [(saved_ns(case, view, path), case) for case in (*cases(view), *foreign)]
    for saved, case in sorted(promising, key=_promise, reverse=True):
        gain_ns = 0
        low_ns = 0
        promise_ns = int(saved.sum())
        is_scheduled = passes.schedule is not None and case.basis == "recording"
        if promise_ns or is_scheduled:
            count += 1
            if count > most and case.instead is None:  # what only moves promises little
                continue
            gain_ns = passes.gain_ns(case)
        touched = saved > 0
        beside = np.broadcast_to(case.beside, view.on_path.shape)[path] & ~touched
        most_ns = max(gain_ns, promise_ns + int(lasts_ns[beside].sum()))
        high_ns = most_ns
        if len(view.trace.metadata.ranks) <= 1:  # in several, a mend is made in all of them
            whole_gain_ns = gain_ns
            if case.basis == "bound" and gain_ns and np.any(case.beside):
                whole_gain_ns = max(gain_ns, passes.gain_ns(case.with_beside()))
            high_ns = min(most_ns, int(whole_gain_ns * (1 + _OFF_GAIN)))
        touched_ns = int(lasts_ns[touched].sum())
        if case.basis == "recording":
            of_sms = _OFF_SCHEDULED if is_scheduled else _OFF_CONTENDED
            off = np.multiply(_OFF_POLLED, polls) + np.multiply(of_sms, competes)
            off_ns = np.rint(off * (passes.end_ns - view.low_ns)).astype(int).tolist()
            beside_ns = int(lasts_ns[beside].sum()) if case.instead is None else 0
            low_ns = max(0, gain_ns - off_ns[0])
            high_ns = gain_ns + max(off_ns[1], beside_ns)
            most_ns = max(high_ns, touched_ns)
        if high_ns and not view.rows.is_simulated:
            whole_ns = passes.end_ns - view.low_ns
            off_gain = _OFF_GAIN if case.basis == "recording" else 0
            low_ns = max(0, int(low_ns * (1 - off_gain) - _OFF_WHOLE * whole_ns))
            high_ns = min(whole_ns, int(high_ns * (1 + off_gain) + _OFF_WHOLE * whole_ns))
        why = f"{touched.sum():,} times on the critical path, {touched_ns / 1e6:,.4g} ms of it"
        bounds = gain_ns, low_ns, high_ns, most_ns
        words = case.change, case.about, *bounds, case.basis, why, case.code, case.fault
        yield case, Change(*words)


def _promise(saved_and_case: tuple[Ints, HelpCase]) -> float:
    """Return what comes first of what is tried: what saves much of the path, as it ranks then."""
    saved, case = saved_and_case
    return float(saved.sum()) * (case.mechanism.weight if case.mechanism else 1.0)


def _seen(change: Change, case: HelpCase, view: ProgramView) -> Change:
    """Say how often what a change mends comes, how long that takes in all, and would take then.

    Of several ranks that have it, the mean.
    """
    saved = saved_ns(case, view)
    edges = np.flatnonzero(saved > 0)
    rows = None if case.rows is None else distinct(case.rows)
    if rows is not None:
        edges = edges[np.isin(view.row[edges], rows) & ~view.is_host[edges]]
    elif is_order := not np.any(case.shorter):  # which takes no time, but on the path
        edges = edges[view.on_path[edges]]
    took_ns = int(view.lasts[edges].sum())
    left_ns = took_ns - int(saved[edges].sum()) if np.ndim(case.lag) else None
    if rows is not None:
        times = view.causes.times
        took_ns = int((times[2 * rows + 1] - times[2 * rows]).sum())
    else:
        rows = distinct(np.where(view.is_host[edges], view.coming[edges], view.row[edges]))
        took_ns = 0 if is_order else took_ns
    ranks = max(len(view.trace.metadata.ranks), 1)
    count = min(ranks, len(np.unique(view.rows.processes[rows]))) or 1
    left_ns = None if left_ns is None else left_ns // count
    counted = (case.times or len(rows)) // count
    return replace(change, times=counted, took_ns=took_ns // count, usual_ns=left_ns)


def _added(
    changes: Sequence[Change], cases_of: Mapping[Change, HelpCase], passes: _Passes, span_ns: int
) -> Change | None:
    """Return which of the next changes adds most to the first, with what it adds as its gain.

    What only takes an order away is none: with the first change, something else would be there.
    """
    if not changes or changes[0].gain_ns < WORTH * span_ns:
        return None
    first = cases_of[changes[0]]
    best = None
    following = [change for change in changes[1:] if change.is_mend or change.basis == "recording"]
    for change in following[:_NEXT]:
        added_ns = passes.gain_ns(first, cases_of[change]) - changes[0].gain_ns
        added_ns = min(added_ns, span_ns - changes[0].told_ns)
        if change.gain_ns and added_ns > max(WORTH * span_ns, best.gain_ns if best else 0):
            low_ns = min(change.low_ns, added_ns)
            high_ns = max(change.high_ns, added_ns)
            best = replace(change, gain_ns=added_ns, low_ns=low_ns, high_ns=high_ns)
    return best


@once
def help_in_steps(trace: Trace) -> HelpResult:
    """Rank changes by what the steady time of a program would gain."""
    return what_would_help(trace, steps(trace).steady_ns)
