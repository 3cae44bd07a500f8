"""What would help: changes of a program, what its end would gain, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from gpuscope._checks import SeveralOf, door
from gpuscope._text import percent
from gpuscope.analysis.causes import find_causes
from gpuscope.analysis.help_cases import TWICE, Basis, cases
from gpuscope.analysis.help_view import View
from gpuscope.analysis.path_columns import ending, last_node
from gpuscope.analysis.ranks_analysis import ranks
from gpuscope.analysis.result import Result, Row, about
from gpuscope.analysis.sm_schedule import SmSchedule
from gpuscope.analysis.steps_analysis import steps
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import once
from gpuscope.trace.model import Trace

WORTH = 0.01
"""Share of the time from which on a gain is worth telling."""
_OFF_POLLED, _OFF_SCHEDULED, _OFF_CONTENDED = (0.0013, 0.00135), (0.0003, 0.0011), (0.04, 0.04)
"""By which share of the whole the truth is below and above a gain at most, of nine in ten
(``benchmarks/results/why.json``): where hosts on the path look now and then whether work is done;
and where kernels compete for SMs, of a simulated GPU and of others. All other gains are exact."""
_KEEP_UP = "let the rank keep up"
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

    @property
    def is_mend(self) -> bool:
        """Whether its gain is that of a mend: not the most that one could have, and no what-if."""
        return self.basis == "recording" and self.change != TWICE


@dataclass(frozen=True)
class HelpResult(Result):
    """Changes; those without any gain are among them.

    First the mends whose gain the recording tells, then what gains at most so much, each by gain.

    Attributes
    ----------
    span_ns
        How long the program took in which the gains would be.
    """

    span_ns: int
    changes: tuple[Change, ...]
    entries = "changes"
    weight = "saves (ms)"

    def readable(self) -> tuple[list[Row], str]:
        """Return the changes that gain something, or what gains most; the others in words."""
        least_ns = WORTH * self.span_ns
        gaining = [change for change in self.changes if change.gain_ns >= least_ns]
        worth = gaining or self.changes[:3]
        rows: list[Row] = [
            {
                "change": f"{change.change}: {change.about}",
                "saves (ms)": change.gain_ns / 1e6,
                "share": percent(change.gain_ns / self.span_ns),
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
        return rows, f"less than {percent(WORTH)}: {', '.join(none)}" if none else ""

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
    ...     one.launch(slow, 2_000_000, grid=1, block=32)
    ...     two.launch(fast, 500_000, grid=1, block=32)
    >>> result = gs.analysis.what_would_help(recording.trace)
    >>> [(change.about, change.gain_ns) for change in result.changes[:2]]
    [('slow', 1000000), ('fast', 0)]
    """
    causes = find_causes(trace)
    low_ns, high_ns = window_ns or (int(causes.times[-1]), int(causes.times.max()))
    node = last_node(causes, high_ns)
    view = View(trace, causes, node, low_ns, high_ns)
    span_ns = int(causes.times[node]) - low_ns
    return HelpResult(span_ns, _in_order(_changes(view, node), span_ns), **about(trace))


def _in_order(changes: Iterable[Change], span_ns: int) -> tuple[Change, ...]:
    """Return mends whose gain is worth telling first, then what gains at most so much."""
    least_ns = WORTH * span_ns
    return tuple(
        sorted(
            changes,
            key=lambda change: (
                not (change.is_mend and change.low_ns >= least_ns),
                -change.gain_ns,
                -change.high_ns,
            ),
        )
    )


def _changes(view: View, node: int) -> Iterator[Change]:
    """Yield what each change would gain: of those that touch the path, those about most of it."""
    causes, passes, schedule = view.causes, 0, SmSchedule.of(view.causes)
    is_end = np.zeros(len(causes.times), bool)
    is_end[1:-1:2] = ending(causes)
    ends = causes.target[view.kept & (causes.times[causes.target] <= causes.times[node])]
    is_end &= np.isin(np.arange(len(is_end)), ends)
    looks = causes.of("host wait") & view.rows.having("kind", ("handle",))[view.row]
    polls = (looks & view.on_path).any()
    competes = (causes.of("SMs held", "priority", "copy engine") & view.kept).any()
    end_ns = int(causes.times[node])
    scheduled_ns = schedule.forward(causes.lag, view.kept)[is_end].max() if schedule else 0
    most = max(_FEWEST, min(_PASSES, _EDGES // len(view.kept)))
    promising = [(int(case.saved_ns(view)[view.on_path].sum()), case) for case in cases(view)]
    for promise_ns, case in sorted(promising, key=lambda promise: -promise[0]):
        gain_ns, low_ns, saved_ns = 0, 0, case.saved_ns(view)
        is_scheduled = schedule is not None and case.basis == "recording"
        if promise_ns or is_scheduled:
            passes += 1
            if passes > most:
                continue
            remaining = view.kept & np.logical_not(case.gone)
            lag = np.where(remaining, causes.lag - saved_ns, 0)
            if schedule is not None and is_scheduled:
                gain_ns = int(scheduled_ns - schedule.forward(lag, remaining)[is_end].max())
            else:
                gain_ns = int(end_ns - causes.forward(lag, remaining)[is_end].max())
        gain_ns = max(0, gain_ns)
        more = view.on_path & (saved_ns == 0) & case.beside
        high_ns = most_ns = max(gain_ns, promise_ns + int(view.lasts[more].sum()))
        on_path = (saved_ns > 0) & view.on_path
        if case.basis == "recording":
            of_sms = _OFF_SCHEDULED if is_scheduled else _OFF_CONTENDED
            off = np.multiply(_OFF_POLLED, polls) + np.multiply(of_sms, competes)
            off_ns = np.rint(off * (end_ns - view.low_ns)).astype(int).tolist()
            low_ns, high_ns = max(0, gain_ns - off_ns[0]), gain_ns + off_ns[1]
            most_ns = max(high_ns, int(view.lasts[on_path].sum()))
        part_ms = view.lasts[on_path].sum() / 1e6
        why = f"{on_path.sum():,} times on the critical path, {part_ms:,.4g} ms of it"
        yield Change(
            case.change, case.about, gain_ns, low_ns, high_ns, most_ns, case.basis, why, case.code
        )


@once
def help_in_steps(trace: Trace) -> HelpResult:
    """Rank changes by what the steady time of a program would gain; of ranks, that none is late."""
    result = what_would_help(trace, steps(trace).steady_ns)
    try:
        late = ranks(trace).straggler
    except MissingEvidence:
        return result
    waited_ns = late.held_up_ns // (len(trace.metadata.ranks) - 1)
    why = f"came last to {late.last} collectives: others waited {waited_ns / 1e6:,.4g} ms each"
    bounds = waited_ns, 0, waited_ns, waited_ns
    about = f"rank {late.rank}" + f", {late.line}" * bool(late.line)
    keep_up = Change(_KEEP_UP, about, *bounds, "bound", why, "gs.analysis.ranks(trace)")
    changes = [keep_up, *(change for change in result.changes if change.change != _KEEP_UP)]
    return replace(result, changes=_in_order(changes, result.span_ns))
