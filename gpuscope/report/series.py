"""The reports of what several runs say together: a sweep, interference, and a tuning."""

from __future__ import annotations

import json
from pathlib import Path

from gpuscope import figures
from gpuscope._checks import door
from gpuscope.analysis.interference_analysis import InterferenceResult
from gpuscope.analysis.settings import SweepResult
from gpuscope.comparing.choice import swept
from gpuscope.comparing.tunings import Tuning, tuned_words
from gpuscope.errors import MissingEvidence
from gpuscope.report import page
from gpuscope.telling.described import describe_workload
from gpuscope.telling.media import to_html, unbroken
from gpuscope.telling.of_interference import interfered


@door(result=SweepResult, path=(str, Path))
def sweep_report(result: SweepResult, path: str | Path) -> Path:
    """Write a sweep as one HTML file: which point to take, what each gives, and the table.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    experiment = result.experiment
    described = experiment.get("workloads") or {}
    try:
        drawn = page.figure(figures.swept(result), "swept")
    except MissingEvidence as error:
        drawn = page.paragraph(str(error), "muted")
    varied = "; ".join(
        f"{name} = {', '.join(map(str, values))}" for name, values in result.parameters.items()
    )
    sections = [
        *page.banners_of(result, "Not every point is here."),
        to_html([*swept(result)]),
        page.terms({name: describe_workload(facts) for name, facts in described.items()}),
        drawn,
        "<h2>All points</h2>",
        page.result(result),
        page.paragraph(result.provenance, "muted"),
    ]
    return page.write(path, f"{experiment.get('name')}, varied", {}, sections, varied)


@door(result=InterferenceResult, path=(str, Path))
def interference_report(result: InterferenceResult, path: str | Path) -> Path:
    """Write interference as one HTML file: the picture, and the table.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    sections = [
        *page.banners_of(result, "Not every pair is here."),
        to_html([interfered(result)]),
        page.figure(figures.interference(result), "interference"),
        page.result(result),
        page.paragraph(result.note, "muted"),
    ]
    return page.write(path, "Interference", {}, sections)


@door(result=Tuning, path=(str, Path))
def tune_report(result: Tuning, path: str | Path) -> Path:
    """Write a tuning as one HTML file: what won, what was paid, how sure, and what was run.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    experiment, device, words = result.experiment, result.device, tuned_words(result)
    described = experiment.get("workloads") or {}
    sections = [
        *page.banners_of(result, "It is not decided."),
        f'<p class="headline">{unbroken(words.take or words.outcome)}</p>',
        page.paragraph(words.left) if words.left else "",
        page.paragraph(words.outcome) if words.take else "",
        page.figure(figures.tuning(result), "tuning"),
        "<h2>All settings</h2>",
        page.result(result),
        "<h2>What was run</h2>",
        page.terms({name: describe_workload(facts) for name, facts in described.items()}),
        page.terms(
            {
                "GPU": f"{device['name']}, {device['sm_count']} SMs ({device['uuid']})",
                "driver": str(device["driver"]),
                "versions": ", ".join(f"{name} {text}" for name, text in result.versions.items()),
                "measurements": words.method,
                "forecasts": "; ".join(filter(None, (result.forecasts, words.errors))),
                "command": result.command,
                "experiment": json.dumps(experiment),
            }
        ),
        page.paragraph(result.provenance, "muted"),
    ]
    title = f"{experiment.get('name')}, tuned"
    about = ", ".join(map(str, (result.objective, *result.slo)))
    return page.write(path, title, {}, sections, about)
