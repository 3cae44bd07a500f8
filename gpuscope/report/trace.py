"""The reports of a single trace, and of a prediction beside a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuscope import analysis, figures
from gpuscope._checks import MappingOf, door
from gpuscope._text import counted
from gpuscope.analyses import findings, known_analyses
from gpuscope.report import page
from gpuscope.telling.media import to_html
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.text import duration
from gpuscope.timeline.timeline_figure import of_scene
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace.model import Trace

_SPANS = 2000
"""Spans drawn one by one in a timeline."""


@door(trace=Trace, path=(str, Path), title=(str, None))
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
    sections = [
        to_html(findings(trace).findings),
        *page.broken(),
        *_timelines(trace),
        *(part for known in known_analyses() for part in page.section(known, traces)),
        *page.ending(traces),
    ]
    about = f"{len(trace):,} spans: {counted(trace.kind_counts()) or 'none'}"
    return page.write(path, heading, traces, sections, about)


def _timelines(trace: Trace) -> list[str]:
    (close,) = page.close_windows_ns({"": trace}).values()
    whole = page.first_window_ns(trace)
    tracks = Tracks.of(trace)  # once for both
    seen = ["<h2>Timeline</h2>"]
    for window, name, title in (
        (whole, "timeline-whole", "Timeline"),
        (close, "timeline-close", f"Close up: {duration(close[1] - close[0])} from the middle"),
    ):
        if name == "timeline-whole" or close != whole:
            scene = Scene.of(tracks, window, max_spans=_SPANS)
            seen.append(page.figure(of_scene(scene, trace, title), name, {"": trace}))
    return seen


@door(predicted=MappingOf(Trace), measured=MappingOf(Trace), path=(str, Path))
def prediction_report(
    predicted: Mapping[str, Trace], measured: Mapping[str, Trace], path: str | Path
) -> Path:
    """Write a prediction beside a measurement as one HTML file that opens without a network.

    Raises
    ------
    MissingEvidence
        They do not match.
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    result = analysis.prediction(predicted, measured)
    traces = {f"{name}, predicted": trace for name, trace in predicted.items()}
    traces |= {f"{name}, measured": trace for name, trace in measured.items()}
    sections = [
        page.figure(figures.prediction(predicted, measured), "compare"),
        "<h2>Times</h2>",
        page.result(result),
        page.paragraph(result.note, "muted"),
        "<h2>Provenance</h2>",
        page.provenance(traces),
    ]
    return page.write(path, "Predicted and measured", traces, sections)
