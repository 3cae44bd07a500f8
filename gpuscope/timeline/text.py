"""Text in figures: escaping of foreign names, formatting of quantities."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

import numpy as np

from gpuscope import _text
from gpuscope.analysis.result import Result
from gpuscope.trace.model import Trace

clean = _text.clean
duration = _text.duration
LINE_CHARACTERS = 90
"""Characters that fit on a line under a title in a figure 720 px wide."""
_INCOMPLETE = " (incomplete)"


def escape(text: object, limit: int | None = None) -> str:
    """Return foreign text for Plotly, which reads a subset of HTML, and TeX between dollars."""
    plain = clean(text, limit)
    return (
        plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")
    )


def axis_unit(length_ns: int) -> tuple[str, float]:
    """Return the unit of a time axis of that length, and how many ns it has."""
    return ("µs", 1e3) if length_ns < 10_000_000 else ("ms", 1e6)


def uncertainty(trace: Trace) -> str:
    """Say in words how far off the times of a trace may be."""
    causes = []
    for column, what in (
        ("start_uncertainty_ns", "true starts up to {} later"),
        ("end_uncertainty_ns", "true ends up to {} earlier"),
    ):
        values = trace.array(column, fill=-1)
        positive_ns = values[values > 0]
        if len(positive_ns):
            median = what.format(duration(float(np.median(positive_ns))))
            causes.append(f"{median} (median; at worst {duration(int(positive_ns.max()))})")
    residuals = [
        abs(float(facts.residual_ns))
        for facts in trace.metadata.clocks.values()
        if facts.residual_ns
    ]
    if residuals:
        causes.append(f"clock alignment within {duration(max(residuals))}")
    errors = [rank.error_ns or 0 for rank in trace.metadata.ranks]
    if any(errors):
        causes.append(f"clocks of ranks within {duration(max(errors))} of each other")
    if causes:
        return "uncertainty: " + ", ".join(causes)
    return "exact on the simulated clock" if trace.is_simulated else "uncertainty: not stated"


def provenance_lines(traces: Mapping[str, Trace]) -> list[str]:
    """Return one line of provenance for Plotly, or one a setting where they differ.

    Traces without rows and without devices say nothing: there was nothing to measure.
    """
    if not any(len(trace) or trace.metadata.devices for trace in traces.values()):
        return []
    lines = {
        setting: f"{trace.provenance}; {uncertainty(trace)}" for setting, trace in traces.items()
    }
    if len(set(lines.values())) == 1:
        return provenance_of(next(iter(lines.values())))
    return [
        part
        for setting, line in lines.items()
        for part in provenance_of(f"{clean(setting, 40)}: {line}")
    ]


def provenance_of(line: str) -> list[str]:
    """Return a line of provenance as lines for Plotly."""
    return [
        part.replace("SIMULATED, not measured,", "<b>SIMULATED, not measured,</b>").replace(
            "incomplete:", "<b>incomplete:</b>"
        )
        for part in notes_of(line.replace("SIMULATED on", "SIMULATED, not measured, on"))
    ]


def stated(source: Result | Mapping[str, Trace]) -> tuple[str, list[str]]:
    """Return what a title adds where something is simulated or incomplete, and the provenance."""
    if not isinstance(source, Result):
        return title_suffix(source.values()), provenance_lines(source)
    simulated = " (SIMULATED)" if source.is_simulated else ""
    suffix = simulated + (_INCOMPLETE if source.incomplete else "")
    return suffix, provenance_of(source.provenance)


def notes_of(*notes: str) -> list[str]:
    """Break plain text into lines for Plotly, so that a figure does not cut them off."""
    return [
        escape(line)
        for note in notes
        for line in textwrap.wrap(clean(note), LINE_CHARACTERS, break_on_hyphens=False)
    ]


def title_suffix(traces: Iterable[Trace]) -> str:
    """Return what a title adds when something in its picture was simulated or is incomplete."""
    drawn = list(traces)
    simulated = [trace.is_simulated for trace in drawn]
    suffix = "" if all(trace.metadata.complete for trace in drawn) else _INCOMPLETE
    if not any(simulated):
        return suffix
    word = "FORECAST" if all(trace.metadata.forecast for trace in drawn) else "SIMULATED"
    return (f" ({word})" if all(simulated) else f" (partly {word})") + suffix
