"""Results of a run: verdicts, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscope import analysis
from gpuscope._columns import is_of_requests
from gpuscope.analyses import cards
from gpuscope.analysis.confinement_analysis import ConfinementResult
from gpuscope.analysis.intervals import Busy, by_workload, ended_kernels, makespan_ns
from gpuscope.analysis.result import Row
from gpuscope.errors import MissingEvidence
from gpuscope.telling.finding import Finding
from gpuscope.telling.media import rich
from gpuscope.telling.of_setting import of_partition, of_requests
from gpuscope.telling.of_trace import confinement_verdict, of_hazards, of_partitions
from gpuscope.telling.verdict import verdict_of
from gpuscope.trace.metadata import Description
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.widgets import html
from gpuscope.widgets.answers import Judged, explained, shows

_NO_BLOCKS = (
    "No SM map: this run recorded no thread blocks. On a GPU those of the kinds traced gemm and "
    "traced copy are; on the simulated one, those of all where 'SM map' is ticked under ⋯."
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
        One a workload: columns of :data:`gpuscope.analysis.settings.COLUMNS`.
    judged
        The verdict, and what its pictures show.
    empty_trace
        Its trace without the rows.
    blocks
        Whether thread blocks were seen, so that there is a map of the SMs.
    cards
        Title and findings of what analyses declare for the dashboard.
    """

    setting: str
    experiment: Description
    rows: tuple[Row, ...]
    empty_trace: Trace
    judged: Judged
    provenance: str
    stopped: bool
    blocks: bool
    cards: tuple[tuple[str, tuple[Finding, ...]], ...] = ()

    @property
    def confinement(self) -> ConfinementResult | Finding:
        """Or why it cannot be judged."""
        return self.judged.confinement

    @property
    def incomplete(self) -> str:
        """What of the trace is missing, and why; empty if nothing is."""
        return self.empty_trace.metadata.incomplete

    @property
    def background(self) -> list[str]:
        """Workloads that ran in the background."""
        described = self.experiment["workloads"]
        return [name for name, facts in described.items() if facts["background"]]


def judge(trace: Trace, rows: Sequence[Row], so_far: tuple[int, int] | None = None) -> Judged:
    """Judge a setting from its trace and the rows of its comparison.

    Parameters
    ----------
    so_far
        How many of how many calls are done, while it runs.
    """
    confinement: ConfinementResult | Finding
    try:
        confinement = analysis.confinement(trace)
    except MissingEvidence:
        confinement = confinement_verdict(trace)
    kernels = ended_kernels(trace)
    starts, ends = kernels.array("start_ns"), kernels.array("end_ns")
    groups = by_workload(kernels)
    all_ns = max(makespan_ns(kernels, starts, ends), 1) if len(ends) else 1
    busy = Busy.of(groups, starts, ends).ns / all_ns
    return Judged(
        verdict_of(trace, rows, confinement, so_far),
        confinement,
        dict(zip(groups.labels, busy.tolist(), strict=True)),
        {row["workload"]: row["partition"] for row in rows},
        trace.metadata,
    )


def summarise(run: Run) -> Summary:
    """Judge the last setting of a run."""
    setting, trace = list(run.traces.items())[-1]
    rows = [row for row in run.comparison.to_pylist() if row["setting"] == setting]
    return Summary(
        setting=setting,
        experiment=run.experiment,
        rows=tuple(rows),
        empty_trace=Trace.from_columns({}, metadata=trace.metadata),
        judged=judge(trace, rows),
        provenance=trace.provenance,
        stopped=run.stopped,
        blocks="block" in trace.kind_counts(),
        cards=tuple(cards(trace)),
    )


def ended(now: Summary) -> str:
    """Say that a run is over, and what was recorded."""
    timed = (row for row in now.rows if row["workload"] not in now.background)
    calls = sum(row["latency_n"] or 0 for row in timed)
    if now.stopped:
        return f"Stopped early: {calls:,} timed calls were recorded and are kept."
    missing = f" {now.incomplete}." if now.incomplete else ""
    return f"Done: {calls:,} timed calls.{missing}"


# -- in full ------------------------------------------------------------------------------
def sections(now: Summary, colors: Mapping[str, str]) -> str:
    """Return what was found beyond the answers, in HTML; ``colors`` are the partitions'."""
    result, missing = now.confinement, now.empty_trace.metadata.missing
    confined = []
    if not isinstance(result, Finding):
        confined = [_line(finding) for finding in of_partitions(result, missing)]
        confined += [
            html.swatch(colors.get(part.partition, "")) + rich(of_partition(part, missing))
            for part in result.partitions
        ]
        confined += [html.text(note) for note in result.notes]
    declared = {"Hazards": of_hazards(now.empty_trace), "Requests": of_requests(now.rows)}
    parts = [
        html.section("Where work ran", confined),
        *(
            html.section(title, map(_line, findings))
            for title, findings in (*declared.items(), *now.cards)
        ),
    ]
    incomplete = f"<b>{html.text(now.incomplete)}.</b>" if now.incomplete else ""
    return incomplete + "".join(parts)


def _line(finding: Finding) -> str:
    """Return a finding with what to do about it, and a button that shows it in the timeline."""
    advice = f"<br>{html.text(finding.advice, 500)}" if finding.advice else ""
    return f"{explained(rich(finding))} {shows(finding)}{advice}"


def numbers(now: Summary) -> str:
    """Return the numbers of a run as HTML."""
    if not now.rows:
        return ""
    parts = [
        explained(
            html.workloads([row for row in now.rows if not is_of_requests(row)], now.background)
        ),
        "" if now.blocks else html.note(_NO_BLOCKS),
        html.note(now.provenance),
    ]
    look = "line-height:1.5;font-size:12px;overflow-x:auto"
    return f'<div class="gpuscope-results" style="{look}">{"".join(parts)}</div>'
