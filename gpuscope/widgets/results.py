"""Results of a run: verdicts, the numbers behind them, changes since the run before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpuscope import analysis
from gpuscope._text import format_value
from gpuscope.analysis.confinement_analysis import ConfinementResult, PartitionConfinement
from gpuscope.errors import GpuscopeError
from gpuscope.figures.text import duration
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.widgets import html

WON = 1.2
"""A gain from here on is throughput won by running together."""
CLOSE_UP_NS = 3_000_000
"""What of a run is in view when it has ended: its end, close enough to tell kernels apart."""
_SAME = 0.02
"""Changes by less than this share are no news."""
_NONE = 0.0005
_NO_BLOCKS = (
    "No SM map: no thread block said on which SM it ran. On a GPU those of the kinds traced gemm "
    "and traced copy do."
)
_NAMED = 3
_MEASURES = {
    "latency_p50_us": ("latency p50", "µs", -1),
    "latency_p99_us": ("latency p99", "µs", -1),
    "kernel_median_us": ("median kernel time", "µs", -1),
    "tflop_per_s": ("throughput", "TFLOP/s", 1),
}
"""Column of a comparison → what it is, its unit, and whether more is better."""


@dataclass(frozen=True)
class Summary:
    """What is kept of a run to judge it, and to compare the next one with it.

    Attributes
    ----------
    experiment
        The experiment that was run.
    rows
        One a workload: columns of :data:`gpuscope.analysis.settings.COLUMNS`.
    confinement
        Or ``None``, and ``unconfined`` says why.
    incomplete
        What of the trace is missing, and why; empty if nothing is.
    blocks
        Whether thread blocks were seen, so that there is a map of the SMs.
    """

    experiment: html.Row
    rows: tuple[html.Row, ...]
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
        experiment=run.experiment,
        rows=tuple(row for row in run.comparison.to_pylist() if row["setting"] == setting),
        confinement=confinement,
        unconfined=why,
        provenance=trace.provenance,
        incomplete=trace.metadata.incomplete,
        simulated=trace.is_simulated,
        stopped=run.stopped,
        blocks="block" in trace.kind_counts(),
    )


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


def card(now: Summary, title: str, lines: list[str], *, good: bool | None = None) -> str:
    """Return a card that says first what its lines lack."""
    if now.incomplete:
        lines = [f"<b>{html.text(now.incomplete)}.</b>", *lines]
    return html.card(title, lines, good=good)


def numbers(now: Summary, before: Summary | None) -> str:
    """Return the numbers of a run, and what changed since ``before``, as HTML."""
    if not now.rows:
        return ""
    parts = [
        html.workloads(now.rows, now.background),
        _differences(now, before) if before is not None else "",
        "" if now.blocks else html.note(_NO_BLOCKS),
        html.note(now.provenance),
    ]
    return f'<div class="gpuscope-results" style="line-height:1.5">{"".join(parts)}</div>'


def _confined(now: Summary, colors: Mapping[str, str]) -> str:
    result = now.confinement
    if result is None:
        return card(now, "Confinement", [html.text(now.unconfined)])
    lines = [
        _of_partition(partition, colors.get(partition.partition, ""), whole=not now.incomplete)
        for partition in result.partitions
    ]
    lines += [f"<small>{html.text(note)}</small>" for note in result.notes]
    escaped = any(partition.escapes for partition in result.partitions)
    if now.simulated:
        why = "" if escaped else "The simulated GPU confines by construction: t"
        lines.append(
            f"<small>{why or 'T'}his shows what to look for, and is no evidence about a "
            "GPU.</small>"
        )
    if now.incomplete and not escaped:
        return card(now, "Confinement: no escape was recorded", lines)
    verdict = "ESCAPED" if escaped else "confined"
    return card(now, f"Confinement: {verdict}", lines, good=not escaped)


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
        said += "; ".join(
            f"{html.text(escape.kernel, 60)} ×{escape.kernels:,} → {html.text(escape.where, 60)}, "
            f"{duration(escape.time_ns)}"
            for escape in partition.escapes[:_NAMED]
        )
        more = len(partition.escapes) - _NAMED
        said += f", and {more} more." if more > 0 else "."
    said += f" <small>Evidence: {html.text(evidence)}.</small>"
    return said + "".join(f" <small>{html.text(note)}.</small>" for note in partition.notes)


def _together(now: Summary, _colors: Mapping[str, str]) -> str:
    facts = now.rows[0]
    overlap, tight, gain = facts["overlap"], facts["overlap_tight"], facts["gain"]
    lines = []
    if overlap is None:
        lines.append("Only one workload ran.")
    else:
        least = f" (at least <b>{format_value(tight)}</b>)" if tight is not None else ""
        lines.append(
            f"Overlap <b>{format_value(overlap)}</b>{least}: the part of the shorter busy time "
            "in which both ran."
        )
    if gain is None:
        lines.append("Gain: unknown, since no workload was timed alone.")
    else:
        won = "running together won throughput" if gain >= WON else (
            "running together won no throughput; a partition can still win latency"
        )  # fmt: skip
        lines.append(f"Gain <b>{format_value(gain)}</b>: time alone over time together; {won}.")
    return card(now, "Together", lines)


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
        name = html.text(row["workload"], 40)
        lines.append(f"{name}: {', '.join(marks)} (n = {row['latency_n']:,})")
    if not lines:
        lines.append("No timed call was recorded.")
    lines.append("<small>From execute() until its completion was seen.</small>")
    if few:
        lines.append("<small>No p99: it needs 1,000 calls, so raise Repeats.</small>")
    return card(now, "Latency", lines)


def _throughput(now: Summary, _colors: Mapping[str, str]) -> str:
    lines = []
    for row in now.rows:
        if row["workload"] not in now.background:
            continue
        said = f"{html.text(row['workload'], 40)}: <b>{row['kernels']:,}</b> kernels"
        if row["tflop_per_s"] is not None:
            said += f", <b>{format_value(row['tflop_per_s'])} TFLOP/s</b>"
        share = row["share_of_alone_on_whole_gpu"]
        if share is not None:
            said += f", {share:.1%} of its rate alone on the whole GPU"
        lines.append(f"{said}.")
    return card(now, "Load", lines or ["Nothing ran in the background."])


Verdict = Callable[[Summary, Mapping[str, str]], str]
"""Judges a run: its summary and the partitions' colours → a card."""
VERDICTS: list[Verdict] = [_confined, _together, _latency, _throughput]
"""What the dashboard shows of a run, in this order."""


# -- since the last run -------------------------------------------------------------------
def _differences(now: Summary, before: Summary) -> str:
    """Return what was changed since the last run, and what that did."""
    changed = list(_changes(before.experiment, now.experiment))
    words = "; ".join(changed[:8]) + (f"; and {len(changed) - 8} more" if len(changed) > 8 else "")
    lines = [f"Changed: {html.text(words)}." if changed else "The same experiment again."]
    if before.provenance != now.provenance:
        lines.append(f"Before: {html.text(before.provenance)}.")
    if before.stopped or now.stopped:
        lines.append("One of the two was stopped early.")
    columns = [("of", "left"), ("what", "left"), ("before", "right"), ("now", "right")]
    columns.append(("change", "right"))
    return (
        '<div class="gpuscope-differences"><b>Since the run before</b><br>'
        f"{'<br>'.join(lines)}{html.table(columns, _moved(now, before))}</div>"
    )


def _changes(before: object, now: object, path: str = "") -> Iterator[str]:
    """Say field by field what differs between two descriptions."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            if path or key != "settings":  # their names are made of the partitions
                inside = f"{path}.{key}" if path else str(key)
                yield from _changes(before.get(key), now.get(key), inside)
    elif before != now:
        yield f"{path}: {_told(before, now)} → {_told(now, before)}"


def _told(value: object, other: object) -> str:
    """Write a value; descriptions leave out some that say nothing, as a guard that is on."""
    if value is None and isinstance(other, bool):
        value = not other
    if isinstance(value, bool):
        return str(value).lower()
    if not value and isinstance(other, list):
        return "none"
    return "–" if value is None or isinstance(value, Mapping) else str(value)


def _moved(now: Summary, before: Summary) -> Iterator[tuple[str, str, str, str, str]]:
    """Say of each number what it was, what it is, and how much that is."""
    pairs: list[tuple[str, str, float | None, float | None, int]] = []
    former = {row["workload"]: row for row in before.rows}
    queued = {*now.background, *before.background}
    for row in now.rows:
        of = row["workload"]
        for column, (what, unit, better) in _MEASURES.items():
            if of in former and not (of in queued and column.startswith("latency")):
                pairs.append((of, f"{what} ({unit})", former[of][column], row[column], better))
    if before.rows:
        first, last = before.rows[0], now.rows[0]
        pairs += [("all", name, first[name], last[name], 0) for name in ("overlap", "gain")]
    if now.confinement is not None and before.confinement is not None:
        kept = {part.partition: part.fraction for part in before.confinement.partitions}
        pairs += [
            (part.partition, "confinement", kept.get(part.partition), part.fraction, 1)
            for part in now.confinement.partitions
        ]
    for of, what, was_value, is_value, better in pairs:
        if was_value is None or is_value is None:
            continue
        share = (is_value - was_value) / was_value if was_value else None
        yield (
            html.text(of, 40), html.text(what), format_value(float(was_value)),
            format_value(float(is_value)), _judged(share, better),
        )  # fmt: skip


def _judged(share: float | None, better: int) -> str:
    if share is None:
        return "–"
    if abs(share) < _NONE:
        return "the same"
    if abs(share) < _SAME:
        return f"{share:+.1%}"
    word = "" if not better else " better" if share * better > 0 else " worse"
    return f"{share:+.1%}{word}"
