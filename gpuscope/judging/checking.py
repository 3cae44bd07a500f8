"""``check``: whether an experiment, a program or a trace keeps its budget."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from gpuscope._checks import count, door
from gpuscope._text import clean, format_value
from gpuscope._types import Floats
from gpuscope.analysis.certainty import TAIL, interval, quantile_interval
from gpuscope.analysis.confinement_analysis import confinement
from gpuscope.analysis.hazards_analysis import hazards
from gpuscope.analysis.result import Result, Row, about_several
from gpuscope.comparing.effects import FEWEST, Effect
from gpuscope.comparing.rounds import effect_of
from gpuscope.device.device import Device
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.judging.baseline import Baseline, differing, save
from gpuscope.judging.budget import Budget, Limit
from gpuscope.judging.machine import Machine
from gpuscope.judging.measured import Seen
from gpuscope.judging.targets import Given
from gpuscope.judging.verdict import Judged
from gpuscope.trace.columns import is_open, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import GPU_WORK

_SPANS = 8
_PERCENTILES = {"_p50_": 0.5, "_p90_": 0.9, "_p99_": 0.99}


@dataclass(frozen=True)
class JudgedLimit:
    """Whether a limit holds.

    Attributes
    ----------
    value, low, high
        The number, and its interval; of a limit relative to a baseline the change as a share.
    reason
        Why it cannot be told, or what is to be known; may be empty.
    spans
        Ids of rows that show what is wrong.
    """

    setting: Annotated[str, "setting"]
    limit: Limit
    verdict: Annotated[Judged, "verdict"]
    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    spans: tuple[int, ...] = field(repr=False, default=())
    effect: Effect | None = field(repr=False, default=None)

    @property
    def told(self) -> str:
        """Whether it holds, in a sentence."""
        where = f" in “{clean(self.setting)}”" if self.setting not in ("", "default") else ""
        value = "" if self.value is None else f" is {_text(self.limit, self.value)}"
        if self.value is not None and self.low is not None and self.low != self.high:
            ends = [_text(self.limit, end) for end in (self.low, self.high or self.low)]
            value += f" ({ends[0]} to {ends[1]})"
        why = f": {self.reason}" if self.reason else ""
        return f"{self.limit.name}{where}{value}, is to be {self.limit.bound}{why}"


def counted_limits(number: int) -> str:
    """Return how many limits these are, in words."""
    return f"{number} limits" if number > 1 else "one limit"


def _text(limit: Limit, value: float) -> str:
    if limit.worse is not None:
        return f"{100 * value:+.3g} %"
    return limit.about.text(value) if limit.about else format_value(value)


@dataclass(frozen=True)
class CheckResult(Result):
    """Whether a budget is kept.

    Attributes
    ----------
    limits
        One entry a limit and setting, those that are violated first.
    unit, rounds
        What tells how sure numbers are, and how many there were.
    machine
        It was measured on.
    notes
        What is to be known.
    """

    limits: tuple[JudgedLimit, ...]
    unit: str
    rounds: int
    machine: Machine
    notes: tuple[str, ...] = ()
    traces: Mapping[str, Trace] = field(repr=False, default_factory=dict)

    @property
    def verdict(self) -> Judged:
        """``"violated"`` if any limit is; ``"holds"`` only if all do."""
        verdicts = {judged_limit.verdict for judged_limit in self.limits}
        if "violated" in verdicts:
            return "violated"
        return "cannot tell" if "cannot tell" in verdicts else "holds"

    def _rows(self) -> list[Row]:
        """One row per limit and setting."""
        rows: list[Row] = []
        for judged_limit in self.limits:
            limit = judged_limit.limit
            rows.append(
                {
                    "setting": judged_limit.setting,
                    "limit": limit.name,
                    "is to be": limit.bound,
                    "is": None if judged_limit.value is None else _text(limit, judged_limit.value),
                    "low": None if judged_limit.low is None else _text(limit, judged_limit.low),
                    "high": None if judged_limit.high is None else _text(limit, judged_limit.high),
                    "verdict": judged_limit.verdict,
                    "why": judged_limit.reason or None,
                }
            )
        return rows

    @property
    def headline(self) -> str:
        """The verdict in a sentence: how many limits hold, and which does not."""
        if not self.limits:
            return "A baseline was measured, and nothing compared with one."
        first = self.limits[0]
        if first.verdict == "holds":
            return f"Holds: {counted_limits(len(self.limits))}."
        same = sum(judged_limit.verdict == first.verdict for judged_limit in self.limits)
        what = "Violated" if first.verdict == "violated" else "Cannot tell"
        return f"{what}, {same} of {counted_limits(len(self.limits))}: {first.told}."

    @property
    def definition(self) -> str:
        """How it was measured."""
        several = "processes" if self.unit == "process" else f"{self.unit}s"
        sure = f"low to high: 95 %, by {self.rounds} {several}"
        return ". ".join(filter(None, [sure, *self.notes]))


@door("budget", "device", "rounds", "baseline", "save_baseline", "other_machine", "stop")
def check(
    target: Given,
    budget: Budget | str | Path,
    *,
    device: Device | str | None = None,
    rounds: int | None = None,
    baseline: str | Path | None = None,
    save_baseline: str | Path | None = None,
    other_machine: bool = False,
    stop: threading.Event | None = None,
) -> CheckResult:
    r"""Say whether an experiment, a program, a saved run or a trace keeps its budget.

    A limit holds where the number's whole interval of 95 % is inside it, and is violated where
    all of it is outside; else it cannot be told. A limit relative to a baseline is judged as
    :func:`gpuscope.compare` and :func:`gpuscope.diff` do, with the same interval.

    Parameters
    ----------
    target
        An experiment; a program's command line as a list; a run or the folder of one; a trace or
        its file.
    budget
        The limits, or their file.
    device
        For experiments.
    rounds
        Rounds, or processes where there is a baseline or the target is a program.
    baseline
        Instead of the budget's.
    save_baseline
        Write one there, of all limits that are relative; nothing is compared with one.
    other_machine
        Compare with a baseline of another machine all the same.
    stop
        An event that ends the run of an experiment early when set.

    Raises
    ------
    InvalidArgument
        The budget is none.
    GpuscopeError
        The baseline is of another machine, or a file cannot be read.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 100, "stream": "s", "repeats": 20}},
    ... }
    >>> budget = gs.judging.Budget.parse('[limits]\n"w.kernel_median_us" = "<= 90"')
    >>> gs.judging.check(one, budget, device=gpu).verdict
    'violated'
    """
    given_budget = budget if isinstance(budget, Budget) else Budget.read(budget)
    stored = None
    where = Path(baseline) if baseline is not None else given_budget.baseline
    if given_budget.is_relative and save_baseline is None:
        if where is None:
            raise InvalidArgument("some limits are relative to a baseline: give one")
        stored = Baseline.read(where)
    asked = None if rounds is None else count("rounds", rounds, least=FEWEST)
    needs_processes = stored is not None or save_baseline is not None
    limits = given_budget.limits
    seen = Seen.of(target, limits, device, asked, needs_processes, stop or threading.Event())
    notes: tuple[str, ...] = ()
    if stored is not None:
        notes = tuple(differing(seen.machine, stored, other_machine=other_machine))
    relative = sum(limit.worse is not None for limit in limits)
    judged_limits = [
        _judge(limit, setting, seen, stored, relative)
        for limit in limits
        for setting in seen.settings_of(limit)
        if limit.worse is None or stored is not None
    ]
    if save_baseline is not None:
        save(Path(save_baseline), seen, limits)
    order = ("violated", "cannot tell", "holds")
    judged_limits.sort(key=lambda judged_limit: order.index(judged_limit.verdict))
    traces = seen.traces
    return CheckResult(
        tuple(judged_limits),
        seen.unit,
        seen.rounds,
        seen.machine,
        notes,
        traces,
        **about_several(traces.values()),
    )


# -- judging ------------------------------------------------------------------------------
def _judge(
    limit: Limit, setting: str, seen: Seen, stored: Baseline | None, judged: int
) -> JudgedLimit:
    """Say whether a limit holds in a setting."""
    if limit.about is None:
        return _counted(limit, setting, seen)
    gave, number = seen.numbers.get(setting), (limit.workload, limit.column)
    if gave is None or number not in gave.whole:
        why = "it is not known of this trace"
        if "_p99_" in limit.column:
            why += ": a p99 needs 1,000 calls"
        elif limit.column in ("share_of_alone_on_whole_gpu", "gain"):
            why += ": alone_repeats = 0 measures nothing alone"
        return JudgedLimit(setting, limit, "cannot tell", None, reason=why)
    if limit.worse is not None and stored is not None:
        return _against(limit, setting, seen, stored, judged)
    value = gave.whole[number]
    low, high = _ends(limit, setting, seen, value, gave.samples[number])
    inside = [_is_inside(limit, end) for end in (low, high)]
    if low is None or high is None:
        why = f"{FEWEST} {'processes' if seen.unit == 'process' else 'rounds'} tell how sure it is"
        return JudgedLimit(setting, limit, "cannot tell", value, reason=why)
    verdict: Judged = "holds" if all(inside) else "cannot tell" if any(inside) else "violated"
    why = "the limit lies within its interval" if verdict == "cannot tell" else ""
    return JudgedLimit(setting, limit, verdict, value, low, high, why)


def _is_inside(limit: Limit, value: float | None) -> bool:
    if value is None:
        return False
    return value >= limit.value if limit.sign == ">=" else value <= limit.value


def _ends(
    limit: Limit, setting: str, seen: Seen, value: float, samples: Sequence[float] | Floats
) -> tuple[float | None, float | None]:
    """Return the interval of a number: by rounds or processes; of a percentile by its calls."""
    share = next((share for mark, share in _PERCENTILES.items() if mark in limit.column), None)
    if share is not None and limit.column.startswith("latency") and seen.unit != "process":
        ends = _of_calls(seen.traces[setting], limit.workload, share)
        if ends is not None:
            return ends
    if len(samples) >= FEWEST:
        low, high = interval([*samples], TAIL)
        middle = float(np.mean(samples))
        return value + low - middle, value + high - middle
    return None, None


def _of_calls(trace: Trace, workload: str, share: float) -> tuple[float, float] | None:
    calls = trace.where(kind="handle", category=workload)
    calls = calls.where(~is_open(calls))
    took_us = (calls.array("end_ns") - calls.array("start_ns")) / 1e3
    low, high = quantile_interval(took_us, share)
    return (low, high) if math.isfinite(high - low) else None


def _against(limit: Limit, setting: str, seen: Seen, stored: Baseline, judged: int) -> JudgedLimit:
    """Compare a number with a baseline's."""
    before, after = stored.measured(setting, limit), seen.measured(setting)
    if not before.whole:
        why = "the baseline does not have it: make it anew"
        return JudgedLimit(setting, limit, "cannot tell", None, reason=why)
    together = seen.judged(setting)
    change = effect_of(
        (limit.workload, limit.column),
        before,
        after,
        is_simulated=seen.is_simulated,
        judged=max(judged, min(together, stored.judged.get(setting, together))),
    )
    sign = -change.about.better or 1
    worse = sorted(sign * end for end in (change.low, change.high))
    allowed = limit.worse or 0.0
    if not math.isfinite(worse[1] - worse[0]):
        why = f"{FEWEST} rounds or processes of each tell how sure it is"
        if len(before.samples.get((limit.workload, limit.column), ())) < FEWEST:
            why += ", and the baseline has fewer: make it anew"
        return JudgedLimit(
            setting, limit, "cannot tell", sign * change.change, reason=why, effect=change
        )
    verdict: Judged = "holds"
    if worse[0] > allowed:
        verdict = "violated"
    elif worse[1] > allowed:
        verdict = "cannot tell"
    why = "the limit lies within its interval" if verdict == "cannot tell" else ""
    low, high = worse
    return JudgedLimit(setting, limit, verdict, sign * change.change, low, high, why, effect=change)


def _counted(limit: Limit, setting: str, seen: Seen) -> JudgedLimit:
    """Count what is to be seldom or never."""
    trace = seen.traces.get(setting)
    if trace is None:
        return JudgedLimit(setting, limit, "cannot tell", None, reason="there is no such setting")
    spans: tuple[int, ...] = ()
    try:
        if limit.column == "escapes":
            number, spans = _escapes(trace)
        elif limit.column == "hazards":
            searched = hazards(seen.searched.get(setting, trace))
            number = sum(fact.count for fact in searched.found)
            missing = searched.facts.undecided
            if missing and number <= limit.value:
                why = f"{missing:,} accesses are undecided"
                return JudgedLimit(setting, limit, "cannot tell", number, number, number, why)
        else:
            number, spans = _on_default_stream(trace)
    except MissingEvidence as error:
        return JudgedLimit(setting, limit, "cannot tell", None, reason=str(error))
    verdict: Judged = "holds" if number <= limit.value else "violated"
    if verdict == "holds" and trace.metadata.missing:
        why = f"rows are missing: {trace.metadata.missing}"
        return JudgedLimit(setting, limit, "cannot tell", number, number, number, why, spans)
    return JudgedLimit(setting, limit, verdict, number, number, number, "", spans)


def _escapes(trace: Trace) -> tuple[int, tuple[int, ...]]:
    """Return how many kernels escaped, and a few of them; none where nothing was carved."""
    if not trace.metadata.partitions:
        return 0, ()
    escapes = [escape for part in confinement(trace).partitions for escape in part.escapes]
    spans = [span for escape in escapes for span in escape.spans]
    return sum(escape.kernels for escape in escapes), tuple(spans[:_SPANS])


def _on_default_stream(trace: Trace) -> tuple[int, tuple[int, ...]]:
    """Return how much work ran on the legacy default stream, and a few of it."""
    legacy = [int(key) for key, facts in trace.metadata.streams.items() if facts.legacy_default]
    rows = rows_of(trace, *GPU_WORK)
    on = rows[np.isin(trace.array("stream", fill=-1)[rows], legacy)]
    return len(on), tuple(trace.array("id")[on[:_SPANS]].tolist())
