"""Results of a run: verdicts, the numbers behind them, and what several runs won."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpuscope import analysis
from gpuscope._columns import COMPARED, is_of_requests
from gpuscope.analyses import cards
from gpuscope.analysis.confinement_analysis import ConfinementResult
from gpuscope.analysis.headline import latency_spreads
from gpuscope.analysis.result import Row
from gpuscope.errors import MissingEvidence
from gpuscope.telling.comparison import outcome
from gpuscope.telling.finding import Finding
from gpuscope.telling.media import rich
from gpuscope.telling.of_setting import (
    of_latencies,
    of_loads,
    of_partition,
    of_requests,
    together,
)
from gpuscope.telling.of_trace import confinement_verdict, of_hazards, of_partitions
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.widgets import html

CLOSE_UP_NS = 3_000_000
"""What of a run is in view when it has ended: its end, close enough to tell kernels apart."""
_NO_BLOCKS = (
    "No SM map: this run recorded no thread blocks. On a GPU those of the kinds traced gemm and "
    "traced copy are; on the simulated one, those of all where 'SM map' is ticked above."
)


@dataclass(frozen=True)
class Summary:
    """What is kept of a run to judge it, and to compare the next one with it.

    Attributes
    ----------
    setting
        The name of what is judged: the sizes of the partitions.
    experiment
        The experiment that was run.
    rows
        One a workload: columns of :data:`gpuscope.analysis.settings.COLUMNS`, those of
        :func:`_longest`, and ``spreads``, as of :func:`latency_spreads`.
    confinement
        Or why it cannot be judged.
    incomplete
        What of the trace is missing, and why; empty if nothing is.
    told
        Its trace without the rows.
    blocks
        Whether thread blocks were seen, so that there is a map of the SMs.
    cards
        Title and findings of the cards that analyses declare.
    """

    setting: str
    experiment: Description
    rows: tuple[Row, ...]
    told: Trace
    confinement: ConfinementResult | Finding
    provenance: str
    incomplete: str
    simulated: bool
    stopped: bool
    blocks: bool
    cards: tuple[tuple[str, tuple[Finding, ...]], ...] = ()

    @property
    def background(self) -> list[str]:
        """Workloads that ran in the background."""
        described = self.experiment["workloads"]
        return [name for name, facts in described.items() if facts["background"]]


def summarise(run: Run) -> Summary:
    """Judge the last setting of a run."""
    setting, trace = list(run.traces.items())[-1]
    confinement: ConfinementResult | Finding
    try:
        confinement = analysis.confinement(trace)
    except MissingEvidence:
        confinement = confinement_verdict(trace)
    return Summary(
        setting=setting,
        experiment=run.experiment,
        rows=tuple(
            row
            | _longest(trace, row["workload"])
            | {"spreads": latency_spreads(trace, row["workload"])}
            for row in run.comparison.to_pylist()
            if row["setting"] == setting
        ),
        told=Trace.from_columns({}, metadata=trace.metadata),
        confinement=confinement,
        provenance=trace.provenance,
        incomplete=trace.metadata.incomplete,
        simulated=trace.is_simulated,
        stopped=run.stopped,
        blocks="block" in trace.kind_counts(),
        cards=tuple(cards(trace)),
    )


def _longest(trace: Trace, workload: str) -> Row:
    """Return how long a workload's longest call took, and its id; nothing where it has none."""
    calls = trace.where(kind="handle", category=workload)
    took = calls.array("end_ns", fill=0) - calls.array("start_ns")
    if took.max(initial=0) <= 0:
        return {}
    longest = int(took.argmax())
    return {"longest_ns": int(took[longest]), "longest": int(calls.array("id")[longest])}


def ended(now: Summary) -> str:
    """Say that a run is over, and what was recorded."""
    timed = (row for row in now.rows if row["workload"] not in now.background)
    calls = sum(row["latency_n"] or 0 for row in timed)
    if now.stopped:
        return f"Stopped early: {calls:,} timed calls were recorded and are kept."
    missing = f" {now.incomplete}." if now.incomplete else ""
    return f"Done: {calls:,} timed calls.{missing}"


def close_up(trace: Trace, summary: Summary) -> tuple[int, int] | None:
    """Return the end of a trace, up to the last kernel of a timed workload; or nothing."""
    kernels = trace.where(kind="kernel")
    queued = set(summary.background)
    timed = [workload for workload in set(kernels.texts("category")) if workload not in queued]
    ends = (kernels.where(category=tuple(timed)) if timed else kernels).array("end_ns", fill=0)
    if not len(ends):
        return None
    end = int(ends.max())
    return max(end - CLOSE_UP_NS, int(kernels.array("start_ns").min())), end


# -- verdicts -----------------------------------------------------------------------------
def verdicts(now: Summary, colors: Mapping[str, str]) -> str:
    """Return what a run comes to as cards, in HTML; ``colors`` are the partitions'."""
    if not now.rows:
        missing = f" {now.incomplete}." if now.incomplete else ""
        return html.note(f"No kernel was recorded.{missing}")
    declared = [card(now, title, findings) for title, findings in now.cards]
    return html.side_by_side([*(verdict(now, colors) for verdict in VERDICTS), *declared])


def card(
    now: Summary,
    title: str,
    findings: Iterable[Finding],
    *,
    good: bool | None = None,
    more: Sequence[str] = (),
    wide: bool = False,
) -> str:
    """Return a card of findings, which says first what they lack; ``more`` opens at a click."""
    lines = [f"<b>{html.text(now.incomplete)}.</b>"] if now.incomplete else []
    for finding in findings:
        show = f" {_button(finding.spans[0].span)}" if finding.spans else ""
        lines.append(f"{rich(finding)}{show}")
        lines += [html.text(finding.advice, 500)] if finding.advice else []
    return html.card(title, lines, good=good, more=more, wide=wide)


def _button(span: int) -> str:
    """Return a button that shows a span in the timeline."""
    return (
        f"<button type='button' hidden data-span='{span}' title='Show this in the timeline'>show"
        "</button>"
    )


def numbers(now: Summary) -> str:
    """Return the numbers of a run as HTML."""
    if not now.rows:
        return ""
    parts = [
        html.workloads([row for row in now.rows if not is_of_requests(row)], now.background),
        "" if now.blocks else html.note(_NO_BLOCKS),
        html.note(now.provenance),
    ]
    return f'<div class="gpuscope-results" style="line-height:1.5">{"".join(parts)}</div>'


def _confined(now: Summary, colors: Mapping[str, str]) -> str:
    result = now.confinement
    if isinstance(result, Finding):
        return card(now, "Confinement", [result], wide=True)
    missing = now.told.metadata.missing
    findings = list(of_partitions(result, missing))
    more = [
        html.swatch(colors.get(part.partition, "")) + rich(of_partition(part, missing))
        for part in result.partitions
    ]
    more += [f"<small>{html.text(note)}</small>" for note in result.notes]
    has_escaped = any(finding.is_problem for finding in findings)
    if now.simulated:
        more.append(f"<small>{rich(Finding('no-evidence', 'note'))}</small>")
    title = "ESCAPED" if has_escaped else "no escape was recorded" if missing else "confined"
    good = None if missing and not has_escaped else not has_escaped
    return card(now, f"Confinement: {title}", findings, good=good, more=more, wide=True)


def _hazards(now: Summary, _colors: Mapping[str, str]) -> str:
    """Show hazards; nothing where none was looked for."""
    findings = list(of_hazards(now.told))
    is_problem = any(finding.is_problem for finding in findings)
    return card(now, "Hazards", findings, good=False if is_problem else None) if findings else ""


def _together(now: Summary, _colors: Mapping[str, str]) -> str:
    is_carved = bool(now.told.metadata.partitions)
    glossary = [
        f"{COMPARED[key].title.title()}: {COMPARED[key].meaning}." for key in ("overlap", "gain")
    ]
    return card(now, "Together", [together(now.rows, is_carved=is_carved)], more=glossary)


def _latency(now: Summary, _colors: Mapping[str, str]) -> str:
    timed = [row for row in now.rows if row["workload"] not in now.background]
    findings = list(of_latencies(timed)) or [Finding("untimed", "note")]
    return card(now, "Latency", findings, more=[f"{COMPARED['latency_p50_us'].meaning}."])


def _load(now: Summary, _colors: Mapping[str, str]) -> str:
    findings = [] if now.background else [Finding("no-load", "note")]
    return card(now, "Load", [*findings, *of_loads(now.rows, now.background)])


def _requests(now: Summary, _colors: Mapping[str, str]) -> str:
    """Judge requests; nothing where there are none."""
    findings = list(of_requests(now.rows))
    keys = ("ttft_p50_ms", "tbt_p50_ms")
    glossary = [f"{COMPARED[key].title[:-4]}: {COMPARED[key].meaning}." for key in keys]
    return card(now, "Requests", findings, more=glossary) if findings else ""


Verdict = Callable[[Summary, Mapping[str, str]], str]
"""Judges a run: its summary and the partitions' colours → a card."""
VERDICTS: list[Verdict] = [_confined, _hazards, _requests, _together, _latency, _load]
"""What the dashboard shows of a run, in this order."""


def won(runs: Mapping[str, Summary]) -> str:
    """Say as HTML what the best of some runs won; nothing where they ran different workloads.

    Parameters
    ----------
    runs
        What to call each → its summary.
    """
    first, *others = runs.values()
    workloads = first.experiment["workloads"]
    if not others or any(run.experiment["workloads"] != workloads for run in others):
        return ""
    rows = [{**row, "setting": label} for label, run in runs.items() for row in run.rows]
    traces = {label: run.told for label, run in runs.items()}
    return html.note(outcome(Run(traces, pa.Table.from_pylist(rows), first.experiment)))
