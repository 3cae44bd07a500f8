"""The verdict on one setting, while it runs and when it is done: one headline, three answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuscope._columns import is_of_requests
from gpuscope.analysis.calls_analysis import Calls, calls_of
from gpuscope.analysis.confinement_analysis import ConfinementResult, PartitionConfinement
from gpuscope.analysis.counters_analysis import partition_use
from gpuscope.analysis.escapes import Escape
from gpuscope.analysis.part import PartKind, lasted_ns
from gpuscope.analysis.queue_analysis import described_workloads
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import has_own_sms
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.errors import MissingEvidence
from gpuscope.telling.explanation import in_words
from gpuscope.telling.finding import Finding, Mend, Quantity, Shown, counts
from gpuscope.telling.of_setting import of_requests, quantities, together
from gpuscope.telling.of_waits import holding
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace

P99_CALLS = 1_000
"""From so many calls on a p99 is one."""
_LEAST_OVERLAP = 0.005
_LARGEST: dict[PartKind, str] = {
    **dict.fromkeys(("launch call", "on the way", "not looking", "host"), "host"),
    "running": "kernel",
}
"""Kind of part → what most of a p99 is said to be; of all others waiting."""


@dataclass(frozen=True)
class RunVerdict:
    """What a run of one setting came to, or comes to so far.

    Attributes
    ----------
    headline
        What counts most: an escape, a wait, or that there was none.
    notes
        What belongs beside it. A mend of the experiment is in the first that has one.
    overlapped, waited, stayed
        The answers: did they overlap, what waited, did it stay on its SMs.
    won
        What running together won, where that is known.
    calls
        What the calls of the headline's workload consist of, where any was timed.
    """

    headline: Finding
    notes: tuple[Finding, ...]
    overlapped: Finding
    waited: Finding
    stayed: Finding
    won: Finding | None
    calls: Calls | None = None


def verdict_of(
    trace: Trace,
    rows: Sequence[Row],
    confinement: ConfinementResult | Finding,
    so_far: tuple[int, int] | None = None,
) -> RunVerdict:
    """Judge one setting.

    Parameters
    ----------
    rows
        Of its comparison.
    confinement
        Or why it cannot be judged.
    so_far
        How many of how many calls are done, while it runs: numbers are provisional then.
    """
    _, background = described_workloads(trace)
    timed = [row for row in rows if row["latency_n"] and row["workload"] not in background]
    taken = filter(None, (calls_of(trace, row["workload"]) for row in timed))
    calls = max(taken, key=lambda calls: calls.waited / calls.judged, default=None)
    won = together(rows, is_carved=bool(trace.metadata.partitions))
    escaped = _escaped(trace, confinement)
    marks = _marks(timed, calls, is_provisional=so_far is not None)
    headline = (
        escaped
        or next(of_requests(rows), None)
        or _waited(trace, calls, marks)
        or (won if rows else _stayed(confinement, trace.metadata.missing))
    )
    notes = [*_notes(trace, rows, background, calls, escaped)]
    if so_far is not None:
        done = max(so_far[0], calls.n if calls else 0)  # some ended since that was counted
        headline = _provisional(headline, done, so_far[1], marks)
        is_few = calls is not None and calls.n < P99_CALLS
        notes = [Finding("provisional", "note", {}, counts(calls=P99_CALLS))] * is_few
        notes.append(Finding("live", "note"))
    if trace.metadata.missing:
        missing = {"missing": trace.metadata.missing}
        notes.insert(0, Finding("incomplete", "warning", missing))
    stayed = _counted(trace, _stayed(confinement, trace.metadata.missing))
    answers = _overlapped(won), _answer(calls, timed), stayed, _gained(won)
    return RunVerdict(headline, tuple(notes), *answers, calls)


# -- the headline --------------------------------------------------------------------------
def _escaped(trace: Trace, confinement: ConfinementResult | Finding) -> Finding | None:
    """Return what escaped from the partition that lost most: of which workload, and where most."""
    if isinstance(confinement, Finding):
        return None
    part = max(confinement.partitions, key=lambda part: part.escaped_ns, default=None)
    if part is None or not part.escapes:
        return None
    first = part.escapes[0]
    workload = _workload(trace, first)
    subject = {"workload": workload, "where": first.where, "partition": part.partition}
    number = sum(
        escape.kernels
        for escape in part.escapes
        if (escape.to, escape.where) == (first.to, first.where)
        and _workload(trace, escape) == workload
    )
    given = _given(trace, part, workload) or first.given
    values = counts(sms=part.sm_count) if part.sm_count else ()
    values += counts(all=number) if number == given else counts(n=number, given=given)
    return Finding(f"verdict.escape-{first.to}", "error", subject, values)


def _given(trace: Trace, part: PartitionConfinement, workload: str) -> int:
    """Return how many finished kernels of a workload were given to a partition."""
    kernels = trace.where(kind="kernel", category=workload, intended_partition=part.partition)
    return len(kernels) - int(is_open(kernels).sum())


def _workload(trace: Trace, escape: Escape) -> str:
    rows = trace_parts(trace).rows
    named = (rows.text("category", rows.position(span)) for span in escape.spans)
    return next(filter(None, named), escape.kernel)


def _marks(timed: Sequence[Row], calls: Calls | None, *, is_provisional: bool) -> list[Quantity]:
    """Return the quantile that is told of calls: p99, or of few calls p50."""
    if calls is None:
        return []
    if is_provisional:
        return [Quantity("p99", lasted_ns(calls.slow), "ns")]
    row = next(row for row in timed if row["workload"] == calls.workload)
    several = quantities(row, p99="latency_p99_us", p50="latency_p50_us")
    return [*several[:1]]


def _waited(trace: Trace, calls: Calls | None, marks: Sequence[Quantity]) -> Finding | None:
    if calls is None:
        return None
    subject, values = {"workload": calls.workload}, [*marks, *_of_calls(calls)]
    if calls.waited:
        subject |= holding(calls.holders)
        mean_wait = Quantity("each", calls.waited_ns / calls.judged, "ns")
        return Finding("verdict.waits", "note", subject, (mean_wait, *values))
    groups = Counter[str]()
    parts = calls.typical if any(mark.name == "p50" for mark in marks) else calls.slow
    for part in parts:
        groups[_LARGEST.get(part.kind, "waiting")] += part.duration_ns
    ((subject["largest"], took_ns),) = groups.most_common(1)
    values.append(Quantity("part", took_ns / max(1, lasted_ns(parts)), "%"))
    rule = "apart" if has_own_sms(trace, calls.workload) else "shared"
    return Finding(f"verdict.{rule}", "note", subject, tuple(values))


def _of_calls(calls: Calls) -> tuple[Quantity, ...]:
    """Return how many of how many calls were taken apart, if not all."""
    return counts(judged=calls.judged, n=calls.n) if calls.judged < calls.n else ()


def _provisional(headline: Finding, done: int, total: int, marks: Sequence[Quantity]) -> Finding:
    name, subject = headline.rule.removeprefix("verdict."), headline.subject
    if name == headline.rule:
        name, subject = "other", {"clause": headline.clause}
    name = name.partition("-")[0]
    values = {value.name: value for value in (*counts(done=done, total=total), *marks)}
    values |= {value.name: value for value in headline.values}
    return replace(headline, rule=f"so-far.{name}", subject=subject, values=tuple(values.values()))


# -- what belongs beside it ------------------------------------------------------------------
def _notes(
    trace: Trace,
    rows: Sequence[Row],
    background: Sequence[str],
    calls: Calls | None,
    escaped: Finding | None,
) -> Iterator[Finding]:
    if escaped:
        workloads, _ = described_workloads(trace)
        workload = escaped.names["workload"]
        is_outside = escaped.rule == "verdict.escape-outside"
        if is_outside and workloads.get(workload, {}).get("guard") is False:
            mend = Mend(f"workloads.{_toml_key(workload)}.guard = true", "experiment")
            yield Finding("unguarded", "error", {"workload": workload}, mend=mend)
        elif escaped.rule != "verdict.escape-sms":  # whose stream was the right one
            yield Finding("misplaced", "error", escaped.subject)
    elif calls and not any(map(is_of_requests, rows)):
        all_ns = sum(calls.slowest_ns.values())
        most = Counter(calls.slowest_ns).most_common(2)
        share = Quantity("share", sum(took_ns for _, took_ns in most) / all_ns, "%")
        kinds = " or ".join(in_words(kind) for kind, _ in most)
        of = counts(slowest=calls.slowest, n=calls.n)
        yield Finding("tail", "note", {"kinds": kinds}, (share, *of))
    for row in rows:
        if row["workload"] in background and row[RATES[0]] is not None:
            values = quantities(row, share=RATES[0])
            yield Finding("load.share", "note", {"workload": row["workload"]}, values)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


# -- the answers -----------------------------------------------------------------------------
def _overlapped(won: Finding) -> Finding:
    overlap = next((value for value in won.values if value.name == "overlap"), None)
    if overlap is None:
        return won
    share = replace(overlap, unit="%")
    rule = "answer.overlap" if share.value >= _LEAST_OVERLAP else "answer.no-overlap"
    return Finding(rule, "note", {}, (share,))


def _gained(won: Finding) -> Finding | None:
    gain = tuple(value for value in won.values if value.name == "gain")
    rule = "gain.won" if won.rule == "together.won" else "gain.lost"
    return Finding(rule, "note", {}, gain) if gain else None


def _answer(calls: Calls | None, timed: Sequence[Row]) -> Finding:
    if calls is None:
        return Finding("answer.untold" if timed else "untimed", "note")
    values = counts(waited=calls.waited, judged=calls.judged)
    values += counts(n=calls.n) if calls.judged < calls.n else ()
    shown = (Shown("", calls.slow_span),)
    return Finding("answer.waited", "note", {"workload": calls.workload}, values, shown)


def _stayed(confinement: ConfinementResult | Finding, missing: str) -> Finding:
    if isinstance(confinement, Finding):
        return confinement
    astray = [part for part in confinement.partitions if part.escapes]
    astray = sorted(astray, key=lambda part: -part.escaped_ns)[:1]
    parts = astray or confinement.partitions
    given = sum(part.kernels for part in parts)
    evidence = dict.fromkeys(piece.kind for part in parts for piece in part.evidence)
    values = counts(inside=given - sum(part.strays for part in parts), given=given)
    unfinished = sum(part.unfinished for part in parts)
    values += counts(unfinished=unfinished) if unfinished else ()
    subject: dict[str, str | list[str]] = {
        "evidence": [*evidence],
        "partition": astray[0].partition if astray else "",
        "recorded": "recorded" if missing else "",
    }
    if astray:
        return Finding("answer.strayed", "error", subject, values)
    return Finding("answer.stayed", "note", subject, values)


def _counted(trace: Trace, stayed: Finding) -> Finding:
    """Add to the answer that work stayed what counters say of the partition with least room."""
    if stayed.rule != "answer.stayed" or trace.is_simulated:
        return stayed  # a model that is its own evidence is none
    try:
        partitions = partition_use(trace).partitions
    except MissingEvidence:
        return stayed
    alone = [
        (use.alone_most / use.granted, use.alone_most, use.granted, str(use.partition))
        for use in partitions
        if use.partition is not None and use.granted and use.alone_most is not None
    ]
    if not alone:
        return stayed
    _, most, sms, partition = max(alone)
    return replace(
        stayed,
        subject={**stayed.subject, "counted": partition},
        values=(*stayed.values, Quantity("most", most), *counts(sms=sms)),
    )
