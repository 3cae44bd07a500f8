"""Results of a run: verdicts, the numbers behind them, and what several runs won."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpuscope import analysis
from gpuscope._columns import is_of_requests
from gpuscope._text import format_value
from gpuscope.analysis import findings_analysis
from gpuscope.analysis.confinement_analysis import ConfinementResult, PartitionConfinement
from gpuscope.analysis.headline import latency_spreads
from gpuscope.analysis.outcome_analysis import WON
from gpuscope.errors import GpuscopeError
from gpuscope.timeline.text import duration
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.widgets import html

CLOSE_UP_NS = 3_000_000
"""What of a run is in view when it has ended: its end, close enough to tell kernels apart."""
_NO_BLOCKS = (
    "No SM map: this run recorded no thread blocks. On a GPU those of the kinds traced gemm and "
    "traced copy are; on the simulated one, those of all where 'SM map' is ticked above."
)
_NAMED = 3
_UNITS = {"calls_per_s": "calls/s", "tflop_per_s": "TFLOP/s", "gb_per_s": "GB/s"}


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
        Or ``None``, and ``unconfined`` says why.
    incomplete
        What of the trace is missing, and why; empty if nothing is.
    told
        Its trace without the rows.
    blocks
        Whether thread blocks were seen, so that there is a map of the SMs.
    """

    setting: str
    experiment: html.Row
    rows: tuple[html.Row, ...]
    told: Trace
    confinement: ConfinementResult | None
    unconfined: str
    provenance: str
    incomplete: str
    simulated: bool
    stopped: bool
    blocks: bool

    @property
    def background(self) -> list[str]:
        """Workloads that ran in the background."""
        described = self.experiment["workloads"]
        return [name for name, facts in described.items() if facts["background"]]


def summarise(run: Run) -> Summary:
    """Judge the last setting of a run."""
    setting, trace = list(run.traces.items())[-1]
    confinement, why = None, "Nothing was carved, so there is no partition to stay in."
    if trace.metadata.partitions:
        try:
            confinement = analysis.confinement(trace)
        except GpuscopeError as error:
            why = f"Confinement cannot be judged: {error}"
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
        unconfined=why,
        provenance=trace.provenance,
        incomplete=trace.metadata.incomplete,
        simulated=trace.is_simulated,
        stopped=run.stopped,
        blocks="block" in trace.kind_counts(),
    )


def _longest(trace: Trace, workload: str) -> html.Row:
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
    """Return what a run says in words, as HTML; ``colors`` are the partitions'."""
    if not now.rows:
        missing = f" {now.incomplete}." if now.incomplete else ""
        return html.note(f"No kernel was recorded.{missing}")
    return html.side_by_side([verdict(now, colors) for verdict in VERDICTS])


def card(
    now: Summary,
    title: str,
    lines: list[str],
    *,
    good: bool | None = None,
    more: Sequence[str] = (),
    wide: bool = False,
) -> str:
    """Return a card that says first what its lines lack; ``more`` opens at a click."""
    if now.incomplete:
        lines = [f"<b>{html.text(now.incomplete)}.</b>", *lines]
    return html.card(title, lines, good=good, more=more, wide=wide)


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
    if result is None:
        return card(now, "Confinement", [html.text(now.unconfined)], wide=True)
    found = findings_analysis.verdict_on(result)
    more = [
        _of_partition(partition, colors.get(partition.partition, ""), whole=not now.incomplete)
        for partition in result.partitions
    ]
    more += [f"<small>{html.text(note)}</small>" for note in result.notes]
    if now.simulated:
        why = "" if found.is_problem else "The simulated GPU confines by construction: t"
        more.append(
            f"<small>{why or 'T'}his shows what to look for, and is no evidence about a "
            "GPU.</small>"
        )
    words = found.text.removeprefix("ESCAPED: ").removeprefix("Confined: ")
    lines = [html.text(f"{words[0].upper()}{words[1:]}", 500)]
    lines += [html.text(found.advice, 500)] if found.advice else []
    if now.incomplete and not found.is_problem:
        return card(now, "Confinement: no escape was recorded", lines, more=more, wide=True)
    title = f"Confinement: {'ESCAPED' if found.is_problem else 'confined'}"
    return card(now, title, lines, good=not found.is_problem, more=more, wide=True)


def _of_partition(partition: PartitionConfinement, color: str, *, whole: bool) -> str:
    name = html.swatch(color) + f"<b>{html.text(partition.partition, 40)}</b>"
    if partition.fraction is None:
        return f"{name}: no work was given to it."
    evidence = " and ".join(
        f"{part.kind} ({part.observations:,} {part.judged_by})" for part in partition.evidence
    )
    within = f"its {partition.sm_count} SMs" if partition.sm_count is not None else "it"
    work = f"{partition.kernels:,} kernels, {duration(partition.time_ns)}"
    if not partition.escapes:
        what = "✓ {}: all of its work" if whole else "{}: what was recorded of its work"
        said = f"{what.format(name)} ({work}) ran inside {within}."
    else:
        share = f"{1 - partition.fraction:.1%} of the time of its work"
        said = f"✗ {name}: {share} ({work}) ran elsewhere: "
        said += "; ".join(html.text(one.told, 160) for one in partition.escapes[:_NAMED])
        more = len(partition.escapes) - _NAMED
        said += f"; and {more} more." if more > 0 else "."
    said += f" <small>Evidence: {html.text(evidence)}.</small>"
    return said + "".join(f" <small>{html.text(note)}.</small>" for note in partition.notes)


def _hazards(now: Summary, _colors: Mapping[str, str]) -> str:
    """Tell of hazards; nothing where none was looked for."""
    found = list(findings_analysis.of_hazards(now.told))
    if not found:
        return ""
    lines = [html.text(f"{analysis.hazards(now.told).verdict}.")]
    more = [html.text(f"{one.text} {one.advice}", 500) for one in found if one.is_problem]
    return card(now, "Hazards", lines, good=False if more else None, more=more)


def _together(now: Summary, _colors: Mapping[str, str]) -> str:
    facts = now.rows[0]
    overlap, tight, gain = facts["overlap"], facts["overlap_tight"], facts["gain"]
    if overlap is None:
        return card(now, "Together", ["Fewer than two workloads ran on the GPU."])
    lines, more = [f"Overlap <b>{format_value(overlap)}</b>"], [
        "Overlap: the part of the shorter busy time in which both ran"
        + (f"; at least {format_value(tight)}." if tight is not None else ".")
    ]  # fmt: skip
    if gain is None:
        lines.append("Gain: unknown, since no workload was timed alone.")
    else:
        won = f"running together won {'no ' * (gain < WON)}throughput"
        if gain < WON and not now.told.metadata.partitions:
            won += "; a partition can still win latency"
        lines[0] += f" · Gain <b>{format_value(gain)}</b>"
        lines.append(f"{won[0].upper()}{won[1:]}.")
        more.append("Gain: time alone over time together.")
    return card(now, "Together", lines, more=more)


def _latency(now: Summary, _colors: Mapping[str, str]) -> str:
    lines, few = [], False
    for row in now.rows:
        if row["workload"] in now.background or not row["latency_n"]:
            continue
        marks = [
            f"{mark} <b>{duration(row[f'latency_{mark}_us'] * 1e3)}</b>"
            for mark in ("p50", "p90", "p99")
            if row[f"latency_{mark}_us"] is not None
        ]
        few = few or row["latency_p99_us"] is None
        if "longest" in row:
            marks.append(
                f"longest <b>{duration(row['longest_ns'])}</b> <button type='button' hidden "
                f"data-span='{row['longest']}' title='Show this call in the timeline'>show</button>"
            )
        name = html.text(row["workload"], 40)
        lines.append(f"{name}: {', '.join(marks)} (n = {row['latency_n']:,})")
    if not lines:
        lines.append("No timed call was recorded.")
    if few:
        lines.append("No p99: it needs 1,000 calls, so raise Repeats.")
    return card(now, "Latency", lines, more=["From execute() until its completion was seen."])


def _throughput(now: Summary, _colors: Mapping[str, str]) -> str:
    lines = [] if now.background else ["Nothing ran in the background."]
    for row in now.rows:
        share = row["share_of_alone_on_whole_gpu"]
        if row["workload"] not in now.background and (now.background or share is None):
            continue
        said = f"{html.text(row['workload'], 40)}: <b>{row['kernels']:,}</b> kernels"
        for column, unit in _UNITS.items():
            if row[column] is not None:
                said += f", <b>{format_value(row[column])} {unit}</b>"
        if share is not None:
            said += f", {share:.1%} of its rate alone on the whole GPU"
        lines.append(f"{said}.")
    return card(now, "Load", lines)


def _requests(now: Summary, _colors: Mapping[str, str]) -> str:
    """Judge requests; nothing where there are none."""
    lines = []
    for row in filter(is_of_requests, now.rows):
        rate, goodput = row["requests_per_s"], row["goodput_per_s"]
        said = f"{html.text(row['workload'], 40)}: <b>{format_value(rate)}</b> requests/s"
        if goodput is not None:
            said += f", goodput <b>{format_value(goodput)}</b> ({goodput / rate:.0%} meet the SLO)"
        lines.append(f"{said}.")
        for what in ("ttft", "tbt"):
            marks = [
                f"{mark} <b>{duration(row[f'{what}_{mark}_ms'] * 1e6)}</b>"
                for mark in ("p50", "p90", "p99")
                if row[f"{what}_{mark}_ms"] is not None
            ]
            count = row["requests_n" if what == "ttft" else "tbt_n"]
            lines.append(f"{what.upper()} {', '.join(marks) or '–'} (n = {count:,})")
    more = ["TTFT: arrival to first token. TBT: between successive tokens of a request."]
    return card(now, "Requests", lines, more=more) if lines else ""


Verdict = Callable[[Summary, Mapping[str, str]], str]
"""Judges a run: its summary and the partitions' colours → a card."""
VERDICTS: list[Verdict] = [_confined, _hazards, _requests, _together, _latency, _throughput]
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
    told = {label: run.told for label, run in runs.items()}
    return html.note(analysis.outcome(Run(told, pa.Table.from_pylist(rows), first.experiment)))
