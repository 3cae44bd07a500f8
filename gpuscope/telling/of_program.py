"""Why a program is slow, in three findings: what is slow, what mends it, and what then helps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gpuscope._checks import door
from gpuscope.analysis.critical_path_analysis import CriticalPathResult, greatest, steady_path
from gpuscope.analysis.help_analysis import WORTH, Change, HelpResult, help_in_steps
from gpuscope.analysis.help_cases import KEEP_UP, TWICE
from gpuscope.analysis.idle_analysis import IdleResult, gaps_of_gpus, idle_causes
from gpuscope.analysis.queue_analysis import described_workloads
from gpuscope.analysis.ranks_analysis import ranks
from gpuscope.analysis.samples_analysis import Stretches, compiled_ns, functions_in
from gpuscope.analysis.steps_analysis import StepsResult, steps
from gpuscope.errors import MissingEvidence
from gpuscope.telling.finding import Finding, Quantity, Severity, Shown, counts
from gpuscope.trace.collectives import is_nccl
from gpuscope.trace.columns import launch_calls
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name
from gpuscope.trace.schema import GPU_WORK, NO_PYTHON

HELD_UP = 0.05
"""Share of the time that ranks wait for one from which on that is told before all else."""
WORTH_A_MEND = 0.03
"""Share of the time from which on an expected gain is worth a mend; else that is told instead."""
IDLE = 0.1
"""Share of the time in which nothing ran from which on it is told first."""
_LONG = 0.25
"""Warm-up that is so long, as a share of the time that is judged, is told by what most of it went
into, if that is so much of it."""
_MUCH_LONGER = 10
"""How many times as long as what is repeated code is compiled for that is told before all else."""
_TOLD = 0.05
"""Warm-up that is so long, as a share of the time that is judged, is told."""
_SPANS, _NOT_WORTH_IT = 8, 3
_SIZE = re.compile(r" \d+×\d+")
"""Of the tiles of a matrix product, in the name of its kernel."""
_COMPUTES = tuple(kind for kind in GPU_WORK if kind != "memcpy")
"""Kinds of work but copies, beside which a GPU may do nothing."""


@door(trace=Trace)
def of_program(trace: Trace) -> Iterator[Finding]:
    """Find why a program is slow; nothing in the trace of an experiment, which says what it wants.

    The time that counts is the steady one: start-up and warm-up do not.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     for _ in range(20):
    ...         stream.launch(kernel, 100_000, grid=1, block=32)
    >>> [finding.rule for finding in gs.findings(recording.trace).findings][:2]
    ['program.slow', 'program.may-help']
    """
    if described_workloads(trace)[0]:
        return
    try:
        idle = idle_causes(trace)
    except MissingEvidence:
        return
    found_steps = steps(trace)
    begin_ns, end_ns = found_steps.steady_ns
    span_ns = max(end_ns - begin_ns, 1)
    warm_up: tuple[Quantity, ...] = ()
    if found_steps.warm_up_ns >= _TOLD * span_ns:
        warm_up = (Quantity("warm_up", found_steps.warm_up_ns, "ns"),)
    findings = [*_of_compilation(trace, begin_ns, span_ns)]
    share = idle.idle_ns / (span_ns * idle.devices)
    helps = help_in_steps(trace)
    first = next(iter(helps.changes), None)
    if first is not None:
        is_worth_it = first.expected_ns >= WORTH_A_MEND * span_ns and first.change != TWICE
        first = first if is_worth_it else None
    if first is not None and first.change == KEEP_UP:
        findings += _of_stragglers(trace, span_ns)
    names_the_cause = bool(findings)
    is_small = first is not None and max(share, first.high_ns / span_ns) < IDLE
    if first is not None and first.fault and not names_the_cause and not is_small:
        findings.append(_of_fault(first, share, span_ns, warm_up))
    elif not findings and first is None:
        least = Quantity("least", WORTH_A_MEND, "%")
        faster = next((change.about for change in helps.changes if change.change == TWICE), "")
        findings.append(Finding("program.limit", "note", {"kernel": faster}, (least,)))
    is_said = any(finding.severity == "warning" for finding in findings)
    findings += _of_one_rank(trace, first.expected_ns if first is not None else 0)
    yield from findings
    if share >= IDLE:
        label = trace.metadata.setting or ""
        finding = _of_idle(idle, share, span_ns, label, "note" if is_said else "warning")
        yield finding if is_said else replace(finding, values=(*finding.values, *warm_up))
    else:
        begins, ends, _, _ = gaps_of_gpus(trace, begin_ns, end_ns, _COMPUTES)
        kernels = 1 - int((ends - begins).sum()) / (span_ns * idle.devices)
        yield _of_path(steady_path(trace), 1 - share, kernels, "warning" if is_small else "note")
    if first is not None:
        yield _of_change(first, span_ns)
        if helps.then is not None:
            yield _of_next(helps.then, span_ns)
    if not names_the_cause:
        yield from _of_no_help(helps, span_ns)
    yield from _of_warm_up(trace, found_steps, span_ns)


def _of_warm_up(trace: Trace, found: StepsResult, span_ns: int) -> Iterator[Finding]:
    """Name what most of a long warm-up went into, where stacks were sampled."""
    calls = launch_calls(trace)
    calls = calls[calls >= 0]
    if found.warm_up_ns < _LONG * span_ns or not len(calls):
        return
    threads, launches = np.unique(trace.array("thread", fill=-1)[calls], return_counts=True)
    end_ns = found.steady_ns[0]
    whole = (threads[launches.argmax()], end_ns - found.warm_up_ns, end_ns, 0)
    (functions,) = functions_in(trace, Stretches(*(np.array([part]) for part in whole)), 1)
    named = [function for function in functions if function.function != NO_PYTHON]
    if named and named[0].share >= _LONG:
        most = named[0]
        yield Finding(
            "program.warm-up",
            "note",
            {"function": str(most)},
            (
                Quantity("warm_up", found.warm_up_ns, "ns"),
                Quantity("time", span_ns, "ns"),
                Quantity("share", most.share, "%"),
                *counts(samples=round(most.samples)),
            ),
        )


def _of_compilation(trace: Trace, begin_ns: int, span_ns: int) -> Iterator[Finding]:
    """Say that code was compiled for much longer before the steady time than that takes."""
    before_ns = compiled_ns(trace, begin_ns)
    if before_ns >= _MUCH_LONGER * span_ns:
        values = Quantity("compiled", before_ns, "ns"), Quantity("time", span_ns, "ns")
        yield Finding("program.compiles", "warning", {}, values)


def _of_no_help(helps: HelpResult, span_ns: int) -> Iterator[Finding]:
    """Name some changes that gain nothing worth telling."""
    most_ns: dict[str, int] = {}
    for change in filter(None, (*helps.changes, helps.then)):
        most_ns[change.change] = max(change.gain_ns, most_ns.get(change.change, 0))
    names = [name for name, gain_ns in most_ns.items() if gain_ns < WORTH * span_ns]
    if names:
        yield Finding("program.no-help", "note", {"changes": names[:_NOT_WORTH_IT]})


def _of_fault(change: Change, idle: float, span_ns: int, warm_up: tuple[Quantity, ...]) -> Finding:
    values = *counts(times=change.times), *warm_up
    if idle >= IDLE:
        values += Quantity("idle", idle, "%"), Quantity("time", span_ns, "ns")
    else:
        values += (Quantity("whole", span_ns, "ns"),)
    if change.took_ns:
        values += (Quantity("each", change.took_ns / change.times, "ns"),)
        values += (Quantity("took", change.took_ns, "ns"),)
        if change.took_ns <= span_ns:  # of several threads or ranks
            values += (Quantity("share", change.took_ns / span_ns, "%"),)
    if change.usual_ns:
        values += (Quantity("usual", change.usual_ns / change.times, "ns"),)
    subject = {"fault": change.fault, "colon": ";" if idle >= IDLE else ":"}
    return Finding("program.slow", "warning", subject, values)


def _of_idle(
    idle: IdleResult, idle_share: float, span_ns: int, label: str, severity: Severity
) -> Finding:
    most = idle.causes[0]
    subject = {"cause": most.cause, "thread": most.thread or ""}
    subject |= {"range": most.range or "", "line": most.line or ""}
    busiest = most.busiest
    if busiest is not None:
        who = busiest.thread if busiest.thread != most.thread else ""
        subject |= {"function": str(busiest), "state": busiest.state, "who": who or ""}
    values: tuple[Quantity, ...] = (
        Quantity("idle", idle_share, "%"),
        Quantity("time", span_ns, "ns"),
        *(counts(gpus=idle.devices) if idle.devices > 1 else ()),
        Quantity("of_it", most.idle_ns / idle.idle_ns, "%"),
        *counts(gaps=most.gaps),
    )
    if busiest is not None:
        share = samples = 0.0
        for function in most.functions:
            if function.where == busiest.where:
                share += function.share
                samples += function.samples
        values += (Quantity("seen", share, "%"),)
        values += counts(samples=round(samples))
    spans = tuple(Shown(label, span) for span in most.spans[:_SPANS])
    return Finding("program.idle", severity, subject, values, spans)


def _of_path(path: CriticalPathResult, busy: float, kernels: float, severity: Severity) -> Finding:
    whole_ns = max(path.end_ns - path.start_ns, 1)
    values: tuple[Quantity, ...] = (Quantity("busy", busy, "%"),)
    if busy - kernels >= IDLE:
        values += (Quantity("kernels", kernels, "%"),)
    subject = {}
    times_ns = {name: ns for name, ns in path.by("kernel").items() if name is not None}
    kinds_ns: Counter[str] = Counter()
    for name, ns in times_ns.items():
        kinds_ns[_SIZE.sub("", kernel_name(name))] += ns
    if kinds_ns:
        ((kind, took_ns),) = kinds_ns.most_common(1)
        name = next(name for name in times_ns if _SIZE.sub("", kernel_name(name)) == kind)
        line = greatest(path, "line", "kernel", name) or ""
        subject = {"kernel": kind, "line": line if kinds_ns[kind] == times_ns[name] else ""}
        values += (Quantity("share", took_ns / whole_ns, "%"),)
    return Finding("program.busy", severity, subject, values)


def _of_one_rank(trace: Trace, expected_ns: float) -> Iterator[Finding]:
    """Say that collectives of one rank alone tell nothing of whom they waited for.

    A warning, where they take more than what is expected of the best change.
    """
    ranks = trace.metadata.ranks
    if len(ranks) != 1 or ranks[0].world_size == 1:
        return
    path = steady_path(trace)
    times_ns = path.by("kernel")
    of_nccl = is_nccl([*times_ns])
    took_ns = sum(ns for ns, is_of_it in zip(times_ns.values(), of_nccl, strict=True) if is_of_it)
    share = took_ns / max(path.end_ns - path.start_ns, 1)
    if share >= IDLE:
        of_all = {"rank": str(ranks[0].rank), "ranks": str(ranks[0].world_size)}
        severity: Severity = "warning" if took_ns > expected_ns else "note"
        yield Finding("program.one-rank", severity, of_all, (Quantity("share", share, "%"),))


def _of_stragglers(trace: Trace, span_ns: int) -> Iterator[Finding]:
    """Find the rank that the others waited for, if there are several."""
    try:
        straggler = ranks(trace).straggler
    except MissingEvidence:
        return
    values = (
        *counts(rank=straggler.rank, last=straggler.last),
        Quantity("waited", straggler.held_up_ns, "ns"),
        Quantity("share", straggler.held_up_ns / span_ns, "%"),
    )
    if straggler.held_up_ns >= HELD_UP * span_ns:
        yield Finding("program.straggler", "warning", {"line": straggler.line}, values)


def _of_change(change: Change, span_ns: int) -> Finding:
    subject = {"change": change.change, "about": change.about, "basis": change.basis}
    subject["how"] = change.code
    if change.basis == "bound":
        most = Quantity("most", change.high_ns, "ns")
        share = Quantity("share", change.high_ns / span_ns, "%")
        return Finding("program.may-help", "warning", subject, (most, share))
    mean, low, high = (ns / span_ns for ns in (change.gain_ns, change.low_ns, change.high_ns))
    share = Quantity("share", mean, "%", *((low, high) if high - low >= WORTH else ()))
    gain = Quantity("gain", change.gain_ns, "ns")
    return Finding("program.help", "warning", subject, (gain, share))


def _of_next(change: Change, span_ns: int) -> Finding:
    subject = {"change": change.change, "about": change.about, "basis": change.basis}
    subject["bound"] = "at most" if change.basis == "bound" else ""
    share = Quantity("share", change.gain_ns / span_ns, "%")
    return Finding("program.then", "note", subject, (Quantity("gain", change.gain_ns, "ns"), share))
