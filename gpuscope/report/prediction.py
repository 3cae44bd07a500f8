"""The report of a prediction beside a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuscope import analysis, figures
from gpuscope.report import page
from gpuscope.trace.model import Trace


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
    title = "Predicted and measured"
    sections = [
        f"<h1>{title}</h1>",
        page.simulated_banner(traces),
        page.incomplete_banner(traces),
        page.figure(figures.prediction(predicted, measured), "compare"),
        "<h2>Times</h2>",
        page.judged(result.rows(), result.incomplete, shares=("error",)),
        page.paragraph(result.note, "muted"),
        "<h2>Provenance</h2>",
        page.provenance(traces),
    ]
    return page.write(path, title, sections)
