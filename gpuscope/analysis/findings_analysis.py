"""Findings: what a trace says that calls for action comes first, then whether work was confined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from gpuscope._text import duration
from gpuscope.analysis import escapes
from gpuscope.analysis.confinement_analysis import (
    ConfinementResult,
    PartitionConfinement,
    confinement,
)
from gpuscope.analysis.gaps_analysis import TrackGaps, gaps
from gpuscope.analysis.hazards_analysis import hazards
from gpuscope.analysis.queue_analysis import described_workloads, queue_depths
from gpuscope.analysis.result import Result, about
from gpuscope.errors import MissingEvidence
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace

Kind = Literal["escape", "hazard", "incomplete", "queue", "gap", "confinement", "order"]
"""Kinds of findings, the most urgent first."""
IDLE = 0.05
"""Idle share of the time of a background's partition, or of a device, that is told."""
_NAMED = 3
_EVIDENCE = {
    "resident": "by the SM of every thread block",
    "allocated": "by the green context of every kernel",
    "simulated": "simulated: confined by construction, which is no evidence about a GPU",
}


@dataclass(frozen=True)
class Finding:
    """One sentence about a trace, in plain text; names in it may come from anywhere.

    Attributes
    ----------
    kind
        ``"escape"``: work ran outside its partition. ``"hazard"``: work shares bytes, and nothing
        orders it. ``"incomplete"``: rows are missing.
        ``"queue"``: the GPU waited for launches. ``"gap"``: it stood still though work had been
        launched. ``"confinement"``: no escape, or none that can be judged. ``"order"``: none was
        found of the hazards that were looked for.
    advice
        What to do about it; may be empty.

    Examples
    --------
    >>> import gpuscope as gs
    >>> first = gs.analysis.findings(gs.learn.case("A").trace).findings[0]
    >>> first.is_problem, first.text.partition(" ")[0]
    (True, 'ESCAPED:')
    """

    kind: Annotated[Kind, "what"]
    text: Annotated[str, "found"]
    advice: Annotated[str, "what to do"] = ""

    @property
    def is_problem(self) -> bool:
        """Whether something is to be done."""
        return self.kind not in ("confinement", "order")


_KINDS = get_args(Kind)
_NOT_CARVED = Finding("confinement", "Nothing was carved, so there is no partition to stay in.")


@dataclass(frozen=True)
class FindingsResult(Result):
    """Findings, the most urgent first; one of them is the verdict on confinement."""

    findings: tuple[Finding, ...]
    entries = "findings"

    @property
    def confinement(self) -> Finding:
        """The verdict on confinement."""
        return next(one for one in self.findings if one.kind in ("escape", "confinement"))


def ranked(trace: Trace, found: Iterable[Finding]) -> FindingsResult:
    """Return findings of a trace, the most urgent first."""
    urgent = sorted(found, key=lambda finding: _KINDS.index(finding.kind))
    return FindingsResult(tuple(urgent), **about(trace))


def by_setting(found: Mapping[str, FindingsResult]) -> list[tuple[str, Finding]]:
    """Return the findings of several settings, the most urgent first, each once.

    That nothing was carved is left out where another setting carves.
    """
    settings: dict[Finding, list[str]] = {}
    for setting, result in found.items():
        for finding in result.findings:
            settings.setdefault(finding, []).append(setting)
    if len({finding for finding in settings if finding.kind in ("escape", "confinement")}) > 1:
        settings.pop(_NOT_CARVED, None)
    urgent = sorted(settings, key=lambda finding: _KINDS.index(finding.kind))
    return [
        (
            _listed([f"“{name}”" for name in settings[finding]])
            if len(settings[finding]) < len(found)
            else "",
            finding,
        )
        for finding in urgent
    ]


def confinement_verdict(trace: Trace) -> Finding:
    """Say in one sentence whether work stayed on the SMs that it was given.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.analysis.confinement_verdict(gs.learn.case("A").trace).text.partition(":")[0]
    'ESCAPED'
    """
    try:
        result = confinement(trace)
    except MissingEvidence as error:
        if trace.metadata.partitions:
            return Finding("confinement", f"Confinement cannot be judged: {error}.")
        if not trace.kind_counts().get("kernel"):
            return Finding(
                "confinement", "No kernel was recorded, so there is no confinement to judge."
            )
        return _NOT_CARVED
    return verdict_on(result)


def verdict_on(result: ConfinementResult) -> Finding:
    """Say in one sentence what :func:`gpuscope.analysis.confinement` found."""
    escaped = [part for part in result.partitions if part.escapes]
    if escaped:
        text = "; ".join(_escaped(part) for part in escaped)
        missing = f" {result.incomplete}." if result.incomplete else ""
        return Finding("escape", f"ESCAPED: {text}.{missing}", _advice(escaped[0]))
    worked = [part for part in result.partitions if part.evidence]
    names = _listed([part.partition for part in worked])
    idle = [part.partition for part in result.partitions if not part.evidence]
    kinds = dict.fromkeys(one.kind for part in worked for one in part.evidence)
    why = "; ".join(_EVIDENCE[kind] for kind in kinds)
    unused = f" Nothing was given to {_listed(idle)}." if idle else ""
    if result.incomplete:
        text = f"No escape was recorded from {names}; {result.incomplete}."
        return Finding("confinement", text + unused)
    text = f"Confined: all work given to {names} ran inside ({why})."
    return Finding("confinement", text + unused)


def _escaped(part: PartitionConfinement) -> str:
    share = part.escaped_ns / part.time_ns
    what = ", ".join(one.told for one in part.escapes[:_NAMED])
    more = len(part.escapes) - _NAMED
    what += f", and {more} more" if more > 0 else ""
    of = f"of the time of the work given to {part.partition}"
    return f"{100 * share:.3g} % {of} ran elsewhere: {what}"


def _advice(part: PartitionConfinement) -> str:
    """Say what to do about the longest escape."""
    first = part.escapes[0]
    if first.where.startswith(escapes.SMS_OF):
        return (
            f"Thread blocks of {first.kernel} were seen on SMs that {part.partition} does not "
            "have: figures.sm_map shows when. Carve again, and record once more."
        )
    where = first.where.partition(" (")[0]
    at = where if where == escapes.OUTSIDE else f"on a stream of {where}"
    return (
        f"{first.kernel} was launched {at}: give it a stream of {part.partition}. A library takes "
        "the one that get_caller_stream() returns as an argument, or as its current stream."
    )


def of_hazards(trace: Trace) -> Iterator[Finding]:
    """Tell of the hazards, or that there is none, where any were looked for."""
    if trace.metadata.hazards is None:
        return
    result = hazards(trace)
    if not result.found:
        yield Finding("order", f"Hazards: {result.verdict}.")
    for fact in result.found[:_NAMED]:
        first, second = (
            f"{name} on {stream}"
            for name, stream in (
                (fact.first_name, fact.first_stream),
                (fact.second_name, fact.second_stream),
            )
        )
        times = f", {fact.count:,} times" if fact.count > 1 else ""
        status = f" ({fact.status})" if fact.status else ""
        text = f"HAZARD{status}, {fact.kind}: nothing orders {second} after {first}{times}."
        yield Finding("hazard", text, f"Missing: {fact.mend}" if fact.mend else "")
    more = len(result.found) - _NAMED
    if more > 0:
        yield Finding("hazard", f"{more} more kinds of hazards: {result.verdict}.")


def of_missing_rows(trace: Trace) -> Iterator[Finding]:
    """Tell of rows that are missing."""
    if trace.metadata.incomplete:
        text = trace.metadata.incomplete.removeprefix("incomplete: ")
        yield Finding(
            "incomplete", f"Rows are missing: {text}.", "Read all else with that in mind."
        )


def of_unloaded_calls(trace: Trace) -> Iterator[Finding]:
    """Find calls that were timed while nothing of a background was queued."""
    described, background = described_workloads(trace)
    if not background:
        return
    for pair in queue_depths(trace).pairs:
        if pair.unloaded:
            text = (
                f"{pair.unloaded:,} of {len(pair.depths):,} calls of {pair.at} were timed while "
                f"nothing of {pair.of} was queued or running."
            )
            yield Finding("queue", text, _raise(described, [pair.of]))


def of_idle_tracks(trace: Trace) -> Iterator[Finding]:
    """Find what should be busy all the time, and is not."""
    described, background = described_workloads(trace)
    if described and not background:
        return  # calls that are waited for, or arrive at given times
    try:
        tracks = gaps(trace, by="partition" if described else "device").tracks
    except MissingEvidence:
        return
    on: dict[str, list[str]] = {}
    for name in background:
        kernels = trace.where(kind="kernel", category=name)
        for partition in kernels.spans.column("partition").unique().to_pylist():
            on.setdefault(partition or "whole GPU", []).append(name)
    for track in tracks:
        is_idle = track.longest and 1 - track.busy_fraction >= IDLE
        if not is_idle or (described and track.name not in on):
            continue
        yield _of_track(track, described, on.get(track.name, []))


def _of_track(track: TrackGaps, described: dict[str, Description], names: list[str]) -> Finding:
    who = f"The GPU ({track.name})"
    if names:
        who = f"{_listed(names)} ({track.name})"
    share = f"{100 * (1 - track.busy_fraction):.0f} % of the time from its first work to its last"
    longest = track.longest[0]
    between = f"{duration(longest.length_ns)}, between {longest.before} and {longest.after}"
    if longest.before == longest.after:
        between = f"{duration(longest.length_ns)}, between two of {longest.after}"
    if track.unlaunched_ns is not None and track.unlaunched_ns >= track.total_ns / 2:
        text = (
            f"{who} waited for launches: idle for {share} ({track.number:,} gaps; the longest "
            f"{between}), mostly since the host had not launched the next work yet."
        )
        advice = _raise(described, names) if names else (
            "Launch ahead and wait less often, record the launches as a graph, or launch larger "
            "kernels."
        )  # fmt: skip
        return Finding("queue", text, advice)
    known = "" if track.unlaunched_ns is None else ", mostly with the next work launched already"
    text = f"{who} stood still for {share} ({track.number:,} gaps; the longest {between}){known}."
    advice = f"Click {longest.after} in the timeline, or ask analysis.explain, what it waited for."
    return Finding("gap", text, advice)


def _raise(described: dict[str, Description], names: list[str]) -> str:
    queued = ", ".join(f"{name} has {described[name].get('max_queued', 1)}" for name in names)
    return f"Raise max_queued ({queued}), or make the kernels longer."


def _listed(names: list[str]) -> str:
    """List names as a sentence does."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
