"""Results of a run: verdicts, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuscope import analysis
from gpuscope._columns import COMPARED, is_of_requests
from gpuscope.analyses import cards
from gpuscope.analysis.confinement_analysis import ConfinementResult
from gpuscope.analysis.result import Row
from gpuscope.errors import MissingEvidence
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
_SHOW = "title='Show this in the timeline'"


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
        One a workload: columns of :data:`gpuscope.analysis.settings.COLUMNS`, and those of
        :func:`_longest`.
    confinement
        Or why it cannot be judged.
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
    simulated: bool
    stopped: bool
    blocks: bool
    cards: tuple[tuple[str, tuple[Finding, ...]], ...] = ()

    @property
    def incomplete(self) -> str:
        """What of the trace is missing, and why; empty if nothing is."""
        return self.told.metadata.incomplete

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
            row | _longest(trace, row["workload"])
            for row in run.comparison.to_pylist()
            if row["setting"] == setting
        ),
        told=Trace.from_columns({}, metadata=trace.metadata),
        confinement=confinement,
        provenance=trace.provenance,
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


# -- cards --------------------------------------------------------------------------------
def verdicts(now: Summary, colors: Mapping[str, str]) -> str:
    """Return what a run comes to as cards, in HTML; ``colors`` are the partitions'."""
    if not now.rows:
        missing = f" {now.incomplete}." if now.incomplete else ""
        return html.note(f"No kernel was recorded.{missing}")
    timed = [row for row in now.rows if row["workload"] not in now.background]
    loads = [] if now.background else [Finding("no-load", "note")]
    gain = together(now.rows, is_carved=bool(now.told.metadata.partitions))
    cards = [
        _confined(now, colors),
        _card(now, "Hazards", of_hazards(now.told)),
        _card(now, "Requests", of_requests(now.rows), _meanings("ttft_p50_ms", "tbt_p50_ms")),
        _card(now, "Together", [gain], _meanings("overlap", "gain")),
        _card(
            now,
            "Latency",
            [*of_latencies(timed)] or [Finding("untimed", "note")],
            _meanings("latency_p50_us"),
        ),
        _card(now, "Load", [*loads, *of_loads(now.rows, now.background)]),
    ]
    return html.side_by_side([*cards, *(_card(now, *declared) for declared in now.cards)])


def _meanings(*keys: str) -> list[str]:
    """Return what columns say, for the details of a card."""
    return [f"{COMPARED[key].title}: {COMPARED[key].meaning}." for key in keys]


def _card(
    now: Summary,
    title: str,
    findings: Iterable[Finding],
    more: Sequence[str] = (),
    *,
    good: bool | None = None,
    wide: bool = False,
) -> str:
    """Return a card of findings, which says first what they lack; nothing without findings.

    Parameters
    ----------
    more
        Lines that open at a click.
    good
        Whether its edge says that all is well; it says where a finding is an error, too.
    """
    shown = [*findings]
    lines = [f"<b>{html.text(now.incomplete)}.</b>"] if now.incomplete else []
    for finding in shown:
        show = ""
        if finding.spans:
            span = finding.spans[0].span
            show = f" <button type='button' hidden data-span='{span}' {_SHOW}>show</button>"
        lines.append(f"{rich(finding)}{show}")
        lines += [html.text(finding.advice, 500)] if finding.advice else []
    if any(finding.severity == "error" for finding in shown):
        good = False
    return html.card(title, lines, good=good, more=more, wide=wide) if shown else ""


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
    result, missing = now.confinement, now.told.metadata.missing
    if isinstance(result, Finding):
        return _card(now, "Confinement", [result], wide=True)
    more = [
        html.swatch(colors.get(part.partition, "")) + rich(of_partition(part, missing))
        for part in result.partitions
    ]
    more += [f"<small>{html.text(note)}</small>" for note in result.notes]
    if now.simulated:
        more.append(f"<small>{rich(Finding('no-evidence', 'note'))}</small>")
    good = None if missing else True
    return _card(now, "Confinement", of_partitions(result, missing), more, good=good, wide=True)
