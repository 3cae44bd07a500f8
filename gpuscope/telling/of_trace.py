"""Findings of a trace: what calls for action comes first, then whether work was confined."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from gpuscope._checks import door
from gpuscope.analysis.confinement_analysis import (
    ConfinementResult,
    PartitionConfinement,
    confinement,
)
from gpuscope.analysis.gaps_analysis import TrackGaps, gaps
from gpuscope.analysis.hazards_analysis import hazards
from gpuscope.analysis.queue_analysis import described_workloads, queue_depths
from gpuscope.analysis.result import about
from gpuscope.analysis.sms_analysis import idle_sms
from gpuscope.errors import MissingEvidence
from gpuscope.telling.finding import Finding, FindingsResult, Mend, Quantity, Shown, counts, urgency
from gpuscope.telling.rules import names_listed
from gpuscope.trace.facts import HazardFact
from gpuscope.trace.gpu_states import rounds_throttled, typical
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace

IDLE = 0.05
"""Idle share of the time of a background's partition that is a finding."""
IDLE_SMS = 0.1
"""Share of a kernel's SM time outside any scope that is a finding."""
_SLOWED = 0.01
"""Share of the clock of a GPU that is not throttled, by which one that is has to be slower."""
_NAMED = 3
"""Escapes of a partition, and hazards, that are findings of their own."""
_SPANS = 8
"""Spans that show one finding, at most."""


def ranked(trace: Trace, several: Iterable[Finding]) -> FindingsResult:
    """Return findings of a trace, the most urgent first."""
    return FindingsResult(tuple(sorted(several, key=urgency)), **about(trace))


def by_setting(results: Mapping[str, FindingsResult]) -> list[tuple[str, Finding]]:
    """Return the findings of several settings, the most urgent first, each once.

    Each with the settings that have it as text, which is empty where all have. That nothing was
    carved is left out where another setting carves, and that a workload waits for SMs where it does
    not in another setting: how they compare is told elsewhere.
    """
    settings: dict[str, list[str]] = {}
    findings_by_text: dict[str, Finding] = {}
    is_carved = any(
        finding.rule != "confined.uncarved"
        for result in results.values()
        for finding in result.confinement
    )
    waiting = [
        {finding.names["workload"] for finding in result.findings if finding.rule == "waits"}
        for result in results.values()
    ]
    always_waits = set.intersection(*waiting) if waiting else set()
    for setting, result in results.items():
        for finding in result.findings:
            if is_carved and finding.rule == "confined.uncarved":
                continue
            if finding.rule == "waits" and finding.names["workload"] not in always_waits:
                continue
            settings.setdefault(finding.text, []).append(f"“{setting}”")
            findings_by_text.setdefault(finding.text, finding)
    ordered = sorted(findings_by_text.items(), key=lambda item: urgency(item[1]))
    return [
        (
            names_listed("setting", settings[text]) if len(settings[text]) < len(results) else "",
            finding,
        )
        for text, finding in ordered
    ]


@door(trace=Trace)
def confinement_verdict(trace: Trace) -> Finding:
    """Return whether work stayed on the SMs that it was given: the longest escape, or why none.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> norm = gs.workloads.spin_kernel(gpu, "norm")
    >>> with gpu.carve({"decode": 16}) as parts, gpu.create_stream() as other:
    ...     guard = gs.CallerStreamGuard(parts["decode"].create_stream())
    ...     with gs.profile(gpu) as recording, guard:
    ...         other.launch(norm, 90_000, grid=16, block=32)
    >>> gs.telling.confinement_verdict(recording.trace).rule
    'escape.outside'
    """
    return next(iter(of_confinement(trace)))


def shown(trace: Trace, ids: Iterable[int]) -> tuple[Shown, ...]:
    """Return the first few spans of a trace that show a finding."""
    label = trace.metadata.setting or ""
    return tuple(Shown(label, span) for span in itertools.islice(ids, _SPANS))


# -- confinement ---------------------------------------------------------------------------
def of_confinement(trace: Trace) -> Iterator[Finding]:
    """Find escapes, or why there are none."""
    try:
        result = confinement(trace)
    except MissingEvidence as error:
        columns = ("partition", "intended_partition")
        in_rows = any(trace.spans.column(name).null_count < len(trace) for name in columns)
        if trace.metadata.partitions or in_rows:
            yield Finding("confined.unknown", "note", {"reason": str(error)})
        elif not trace.kind_counts().get("kernel"):
            yield Finding("confined.no-kernel", "note")
        else:
            yield Finding("confined.uncarved", "note")
        return
    missing = trace.metadata.missing
    if not missing and (whole_graphs := trace.kind_counts().get("graph")):
        missing = f"{whole_graphs:,} launches of graphs were recorded as a whole"
    yield from of_partitions(result, missing, trace.metadata.setting or "")


def of_partitions(result: ConfinementResult, missing: str, trace: str = "") -> Iterator[Finding]:
    """Find escapes in what :func:`gpuscope.analysis.confinement` gave, or that there are none.

    Parameters
    ----------
    missing
        What the trace lacks.
    trace
        What the trace is called.
    """
    if any(part.escapes for part in result.partitions):
        for part in result.partitions:
            yield from of_escapes(part, trace=trace)
        return
    worked = [part.partition for part in result.partitions if part.evidence]
    idle = [part.partition for part in result.partitions if not (part.evidence or part.unfinished)]
    unfinished = sum(part.unfinished for part in result.partitions)
    kinds = dict.fromkeys(piece.kind for part in result.partitions for piece in part.evidence)
    subject = {"partitions": worked, "unused": idle, "evidence": [*kinds], "missing": missing}
    values = counts(unfinished=unfinished) if unfinished else ()
    yield Finding("confined.open" if missing else "confined", "note", subject, values)


def of_escapes(
    part: PartitionConfinement, evidence: str = "", *, trace: str = ""
) -> Iterator[Finding]:
    """Find the escapes from a partition, the longest first, or those by one kind of evidence."""
    escapes = [escape for escape in part.escapes if evidence in ("", escape.evidence)]
    for escape in escapes[:_NAMED]:
        yield Finding(
            f"escape.{escape.to}",
            "error",
            {"kernel": escape.kernel, "partition": part.partition, "where": escape.where},
            (
                *counts(kernels=escape.kernels, given=escape.given),
                Quantity("time", escape.time_ns, "ns"),
                Quantity("share", escape.time_ns / part.time_ns, "%"),
            ),
            tuple(Shown(trace, span) for span in escape.spans),
            None
            if escape.to == "sms"
            else Mend(f"with CallerStreamGuard({part.partition}_stream): …  # {escape.kernel}"),
        )
    if len(escapes) > _NAMED:
        more = counts(more=len(escapes) - _NAMED)
        yield Finding("escape.more", "error", {"partition": part.partition}, more)


# -- hazards and missing rows ----------------------------------------------------------------
def of_hazards(trace: Trace) -> Iterator[Finding]:
    """Find the hazards, or that there is none, where any were looked for."""
    facts = trace.metadata.hazards
    if facts is None:
        return
    several = hazards(trace).found
    if not several:
        undecided = counts(undecided=facts.undecided) if facts.undecided else ()
        values = counts(accesses=facts.accesses, unseen=facts.unseen)
        yield Finding("ordered", "note", {}, (*values, *undecided))
    for fact in several[:_NAMED]:
        yield _hazard(trace, fact)
    if len(several) > _NAMED:
        count = sum(fact.count for fact in several) + facts.left_out
        values = counts(more=len(several) - _NAMED, hazards=count)
        yield Finding("hazard.more", "error", {}, values)


def _hazard(trace: Trace, fact: HazardFact) -> Finding:
    return Finding(
        f"hazard.{fact.kind.replace(' ', '-')}",
        "error",
        {
            "status": fact.status,
            "first": f"{fact.first_name} on {fact.first_stream}",
            "second": f"{fact.second_name} on {fact.second_stream}",
        },
        counts(bytes=fact.nbytes, **({"times": fact.count} if fact.count > 1 else {})),
        shown(trace, (row for row in (fact.first, fact.second) if row is not None)),
        Mend(fact.mend) if fact.mend else None,
    )


def of_missing_rows(trace: Trace) -> Iterator[Finding]:
    """Find that rows are missing."""
    if trace.metadata.missing:
        yield Finding("incomplete", "warning", {"missing": trace.metadata.missing})


def of_clocks(trace: Trace) -> Iterator[Finding]:
    """Find that GPUs were throttled and slower for it, in how many rounds and at which clock."""
    states = trace.metadata.gpu_states
    slowed, rounds = rounds_throttled(states)
    if not slowed:
        return
    words = dict.fromkeys(word for state in states for word in state.throttled)
    clock_mhz, _ = typical([state for state in states if state.throttled])
    free_mhz, _ = typical([state for state in states if not state.throttled])
    if clock_mhz and free_mhz and clock_mhz > (1 - _SLOWED) * free_mhz:
        return
    values = counts(slowed=slowed, rounds=rounds) if rounds > 1 else ()
    if clock_mhz is not None:
        values += (Quantity("clock", clock_mhz, "MHz"),)
    yield Finding("throttled", "note", {"why": [*words]}, values)


# -- queues and gaps -------------------------------------------------------------------------
def of_unloaded_calls(trace: Trace) -> Iterator[Finding]:
    """Find calls that were timed while nothing of a background was queued."""
    described, background = described_workloads(trace)
    for pair in queue_depths(trace).pairs if background else ():
        calls = trace.where(kind="handle", category=pair.at).array("id").tolist()
        idle = [call for call, depth in zip(calls, pair.depths, strict=True) if depth <= 0]
        if idle:
            queued = described[pair.of].get("max_queued", 1)
            yield Finding(
                "dry-queue.calls",
                "warning",
                {"workload": pair.at, "load": pair.of},
                counts(idle=len(idle), calls=len(calls), queued=queued),
                shown(trace, idle),
                _more_queued(pair.of, queued),
            )


def _more_queued(load: str, queued: int) -> Mend:
    return Mend(f"workloads.{load}.max_queued = {2 * queued}", "experiment")


def of_idle_tracks(trace: Trace) -> Iterator[Finding]:
    """Find partitions whose background should keep them busy all the time, and does not."""
    described, background = described_workloads(trace)
    if not background:
        return  # calls that are waited for, or arrive at given times
    try:
        tracks = gaps(trace, by="partition").tracks
    except MissingEvidence:
        return
    loads: dict[str, list[str]] = {}
    for name in background:
        kernels = trace.where(kind="kernel", category=name)
        for partition in kernels.spans.column("partition").unique().to_pylist():
            loads.setdefault(partition or "whole GPU", []).append(name)
    for track in tracks:
        if track.name in loads and track.longest and 1 - track.busy_fraction >= IDLE:
            yield _of_track(trace, track, described, loads[track.name])


def _of_track(
    trace: Trace, track: TrackGaps, described: dict[str, Description], loads: list[str]
) -> Finding:
    longest = track.longest[0]
    subject: dict[str, str | list[str]] = {"track": track.name, "load": loads}
    if longest.before == longest.after:
        subject["both"] = longest.after
    else:
        subject |= {"before": longest.before, "after": longest.after}
    values: tuple[Quantity, ...] = (
        Quantity("idle", 1 - track.busy_fraction, "%"),
        Quantity("gaps", track.number),
        Quantity("longest", longest.length_ns, "ns"),
    )
    spans = shown(trace, longest.spans)
    if track.unlaunched_ns is not None and track.unlaunched_ns >= track.total_ns / 2:
        queued = described[loads[0]].get("max_queued", 1)
        values += counts(queued=queued)
        mend = _more_queued(loads[0], queued)
        return Finding("dry-queue.load", "warning", subject, values, spans, mend)
    is_known = track.unlaunched_ns is not None and 2 * track.launched_ns >= track.total_ns
    rule = "gap.launched" if is_known else "gap"
    mend = Mend(f"telling.explain(trace, {longest.spans[1]})", "analysis")
    return Finding(rule, "warning", subject, values, spans, mend)


# -- inside kernels --------------------------------------------------------------------------
def of_idle_sms(trace: Trace) -> Iterator[Finding]:
    """Find kernels that were looked into and left SMs idle."""
    try:
        kernels = idle_sms(trace).kernels
    except MissingEvidence:
        return
    for kernel in kernels[:_NAMED]:
        if kernel.in_scopes is None or 1 - kernel.in_scopes < IDLE_SMS:
            continue
        yield Finding(
            "sms.at-once" if kernel.at_once else "sms",
            "warning",
            {
                "kernel": kernel.kernel,
                **({"partition": kernel.partition} if kernel.partition else {}),
            },
            (
                Quantity("idle", 1 - kernel.in_scopes, "%"),
                Quantity("unheld", 1 - kernel.held, "%"),
                Quantity("between", kernel.held - kernel.in_scopes, "%"),
                *counts(sms=kernel.sms, **({"empty": kernel.empty} if kernel.empty else {})),
            ),
            shown(trace, kernel.spans),
        )
