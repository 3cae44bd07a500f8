"""The report of a single trace."""

from __future__ import annotations

from pathlib import Path

from gpuscope._checks import door
from gpuscope._text import counted, safe
from gpuscope.analyses import FIRST, findings, known_analyses
from gpuscope.analysis.critical_path_analysis import steady_path
from gpuscope.analysis.steps_analysis import Step, steps
from gpuscope.report import page
from gpuscope.telling.media import to_html
from gpuscope.timeline.canvas.file import MOST_SPANS, timeline_html
from gpuscope.timeline.path_lane import with_path
from gpuscope.trace.model import Trace


@door(
    trace=Trace,
    path=(str, Path),
    title=(str, None),
    note=(str, None),
    window_ns=(tuple, None),
    selected=(int, None),
)
def trace_report(
    trace: Trace,
    path: str | Path,
    *,
    title: str | None = None,
    note: str | None = None,
    window_ns: tuple[int, int] | None = None,
    selected: int | None = None,
) -> Path:
    """Write a trace as one HTML file that opens without a network, with a timeline that zooms.

    Parameters
    ----------
    path
        Where to; a file of that name is replaced, and stays as it was if writing fails.
    title
        Default: the trace's setting, else ``"gpuscope trace"``.
    note
        What to tell who opens it; stands above the timeline.
    window_ns
        What of the timeline is in view at first; by default of a program its steady time, of any
        other trace the whole.
    selected
        The ``id`` of the row that is selected at first; the page explains its time.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    MissingEvidence
        ``selected`` is no row of the timeline.
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    heading = title or trace.metadata.setting or "gpuscope trace"
    traces = {heading: trace}
    result = findings(trace)
    drawn, step, without = trace, list[str](), ""
    if result.is_of_program:
        known_steps, path_of = steps(trace), steady_path(trace)
        drawn = on_path = with_path(trace, path_of)
        window_ns = window_ns or known_steps.steady_ns
        step = _typical(on_path, known_steps.typical)
        if len(on_path) > MOST_SPANS:  # it would take the place of the trace's own
            drawn = trace
            without = (
                f"The timeline is without the critical path: its {len(path_of.parts):,} parts and "
                f"the {len(trace):,} spans are more than {MOST_SPANS:,}."
            )
    sections = [
        to_html(result.findings),
        *page.broken(),
        "<h2>Timeline</h2>",
        page.paragraph(note or ""),
        *([page.paragraph(without)] if without else []),
        timeline_html(drawn, window_ns=window_ns, selected=selected),
        *page.paired([page.section(analysis, traces) for analysis in FIRST]),
        *step,
        *(
            part
            for analysis in known_analyses()
            if analysis not in FIRST
            for part in page.section(analysis, traces)
        ),
        *page.ending(traces),
    ]
    about = f"{len(trace):,} spans: {counted(trace.kind_counts()) or 'none'}"
    return page.write(path, heading, traces, sections, about)


def _typical(trace: Trace, step: Step | None) -> list[str]:
    """Return a timeline of the step of median length, and little around it."""
    if step is None:
        return []
    low, high = step.start_ns, step.end_ns
    margin = (high - low) // 20
    starts, ends = trace.array("start_ns"), trace.array("end_ns", fill=0)
    shown = trace.where((starts < high + margin) & (ends > low - margin))
    title = f"<h2>One typical step: {safe(step.name)}</h2>"
    return [title, timeline_html(shown, window_ns=(low - margin, high + margin))]
