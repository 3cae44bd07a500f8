"""The report of a single trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuscope import analysis, figures
from gpuscope._text import safe
from gpuscope.analysis.result import Result
from gpuscope.errors import MissingEvidence
from gpuscope.figures.text import duration
from gpuscope.report import page, parts
from gpuscope.trace.model import Trace


def trace_report(trace: Trace, path: str | Path, *, title: str | None = None) -> Path:
    """Write a trace as one HTML file that opens without a network.

    Parameters
    ----------
    path
        Where to; a file of that name is replaced, and stays as it was if writing fails.
    title
        Default: the trace's setting, else ``"gpuscope trace"``.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    heading = title or trace.metadata.setting or "gpuscope trace"
    traces = {heading: trace}
    counts = ", ".join(f"{count:,} {kind}" for kind, count in trace.kind_counts().items())
    sections = [
        f"<h1>{safe(heading)}</h1>",
        page.paragraph(f"{len(trace):,} spans: {counts or 'none'}", "muted"),
        page.simulated_banner(traces),
        page.incomplete_banner(traces),
        "<h2>Partitions and streams</h2>",
        _result(lambda: analysis.summary(trace)),
        "<h2>Overlap of streams</h2>",
        _overlap(trace),
        *_timelines(trace),
        "<h2>Latency</h2>",
        _result(lambda: analysis.latency(trace)),
        *parts.latency_figures(traces, _handles(trace)),
        *parts.ending(traces),
    ]
    return page.write(path, heading, sections)


def _result(judge: Callable[[], Result]) -> str:
    try:
        found = judge()
    except MissingEvidence as error:
        return page.paragraph(str(error), "muted")
    return page.judged(found.rows(), found.incomplete)


def _overlap(trace: Trace) -> str:
    try:
        found = analysis.overlap(trace, by="stream")
    except MissingEvidence as error:
        return page.paragraph(str(error), "muted")
    rows: list[dict[str, Any]] = [
        {name: value for name, value in row.items() if name != "gain"} for row in found.rows()
    ]
    gain = "unknown: no solo times" if found.gain is None else page.number(found.gain)
    if not rows:
        told = f"There is only one stream. Gain: {gain}. {found.incomplete}"
        return page.paragraph(told, "muted")
    return page.paragraph(f"Gain: {gain}.") + page.judged(rows, found.incomplete)


def _handles(trace: Trace) -> list[str]:
    try:
        return [handle.name for handle in analysis.latency(trace).handles]
    except MissingEvidence:
        return []


def _timelines(trace: Trace) -> list[str]:
    (close,) = parts.close_windows_ns({"": trace}).values()
    whole = parts.first_window_ns(trace)
    drawn = figures.timeline(trace, window_ns=whole)
    seen = ["<h2>Timeline</h2>", page.figure(drawn, "timeline-whole")]
    if close != whole:
        title = f"Close up: {duration(close[1] - close[0])} from the middle"
        drawn = figures.timeline(trace, window_ns=close, title=title)
        seen.append(page.figure(drawn, "timeline-close"))
    return seen
