"""The reports of what several runs say together: a sweep, and interference."""

from __future__ import annotations

from pathlib import Path

from gpuscope import figures
from gpuscope.analysis.interference_analysis import InterferenceResult
from gpuscope.analysis.outcome_analysis import background_of, describe_workload
from gpuscope.analysis.settings import SweepResult
from gpuscope.errors import MissingEvidence
from gpuscope.report import page


def sweep_report(result: SweepResult, path: str | Path) -> Path:
    """Write a sweep as one HTML file: latency against throughput, and the table.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    experiment = result.experiment
    described = experiment.get("workloads") or {}
    background = background_of(experiment)
    drawn = []
    for fast in described:
        for big in background:
            if fast in background:
                continue
            try:
                figure = figures.tradeoff(result, latency=fast, throughput=big)
            except MissingEvidence as error:
                drawn.append(page.paragraph(str(error), "muted"))
            else:
                drawn.append(page.figure(figure, f"tradeoff-{len(drawn)}"))
    varied = "; ".join(
        f"{name} = {', '.join(map(str, values))}" for name, values in result.parameters.items()
    )
    sections = [
        _simulated(result.provenance),
        page.banner("Stopped early.", "Not every point is here.") if result.stopped else "",
        page.terms({name: describe_workload(facts) for name, facts in described.items()}),
        *drawn,
        "<h2>All points</h2>",
        page.result(result),
        page.paragraph(result.provenance, "muted"),
    ]
    return page.write(path, f"{experiment.get('name')}, varied", {}, sections, varied)


def interference_report(result: InterferenceResult, path: str | Path) -> Path:
    """Write interference as one HTML file: the matrix, and the table.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    sections = [
        _simulated(result.provenance),
        page.banner("Stopped early.", "Not every pair is here.") if result.stopped else "",
        page.figure(figures.interference(result), "interference"),
        page.result(result),
        page.paragraph(result.note, "muted"),
    ]
    return page.write(path, "Interference", {}, sections)


def _simulated(provenance: str) -> str:
    return page.simulated_note() if "SIMULATED" in provenance else ""
