"""The page that reports are written on, and what all reports share."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, TypeAlias

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from gpuscope._files import write_text
from gpuscope._tables import html_table
from gpuscope._text import counted, safe
from gpuscope.analyses import Analysis, problems
from gpuscope.analyses.declared import AnalysisFailed
from gpuscope.analysis.interference_analysis import InterferenceResult
from gpuscope.analysis.result import Result
from gpuscope.analysis.settings import SweepResult
from gpuscope.comparing.tunings import Tuning
from gpuscope.errors import GpuscopeError, MissingEvidence
from gpuscope.telling.media import unbroken
from gpuscope.timeline import style
from gpuscope.timeline.canvas import file
from gpuscope.timeline.text import provenance_lines, uncertainty
from gpuscope.trace.gpu_states import state_words
from gpuscope.trace.model import Trace
from gpuscope.trace.run import incomplete

_HERE = Path(__file__).parent
_DEFINITIONS = (_HERE / "definitions.html").read_text("utf-8")
"""What the words of a report mean."""
_PAGE = Template((_HERE / "page.html").read_text("utf-8"))
"""What surrounds the sections. Its policy lets the browser do nothing that needs a network."""

_DARK = {**style.DARK, "rgba(27,31,36,": "rgba(230,234,238,"}
"""A neutral colour, as a figure's text has it → what it is on a dark page."""
Row: TypeAlias = Mapping[str, Any]
"""A row of a table: texts, numbers or ``None`` by column."""


def paragraph(text: str, css: str = "") -> str:
    """Return a paragraph; ``text`` is plain."""
    return f'<p class="{css}">{unbroken(text)}</p>' if css else f"<p>{unbroken(text)}</p>"


def table(rows: Sequence[Row], *, limit: int = 120) -> str:
    """Return rows as a table; a cell longer than ``limit`` characters loses its middle."""
    if not rows:
        return paragraph("Nothing to show.", "muted")
    return f'<div class="scroll" tabindex="0">{html_table(rows, limit=limit)}</div>'


def terms(facts: Mapping[str, str]) -> str:
    """Return what things are, each on a line; all of it is plain text."""
    inside = "".join(f"<dt>{safe(name)}</dt><dd>{safe(what)}</dd>" for name, what in facts.items())
    return f'<dl class="facts">{inside}</dl>' if facts else ""


def packed(text: str) -> str:
    """Return text as the page's script unpacks it: compressed, in letters and digits."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@functools.cache
def _plotly() -> str:
    return packed(get_plotlyjs())


def figure(drawn: go.Figure, identifier: str, traces: Mapping[str, Trace] | None = None) -> str:
    """Return a figure as HTML; the page brings Plotly along.

    Parameters
    ----------
    traces
        What it was drawn from: the page says once where times come from, so the figure need not,
        unless rows are missing.
    """
    title = drawn.layout.title
    if traces and title.subtitle.text and not incomplete(traces):
        page_lines = set(provenance_lines(traces))
        lines = title.subtitle.text.split("<br>")
        remaining = [line for line in lines if line not in page_lines]
        title.subtitle.text = "<br>".join(remaining)
        less = 18 * (len(lines) - len(remaining))
        drawn.update_layout(
            height=drawn.layout.height - less, margin_t=drawn.layout.margin.t - less
        )
    return (
        f'<div class="figure"><div id="{identifier}" style="height:{drawn.layout.height}px" '
        f'data-figure="{packed(drawn.to_json())}"></div></div>'
    )


def banner(warning: str, text: str) -> str:
    """Return a warning that nobody overlooks, and more about it; both are plain."""
    inside = f"<p><strong>{safe(warning)}</strong> {safe(text)}</p>"
    return f'<div class="banner" role="note">{inside}</div>'


def banners(traces: Mapping[str, Trace]) -> list[str]:
    """Return warnings of what is simulated, and of which rows are missing."""
    simulated = [name for name, trace in traces.items() if trace.is_simulated]
    warnings = []
    if simulated:
        which = "" if len(simulated) == len(traces) else f" ({', '.join(simulated)})"
        forecasts = dict.fromkeys(traces[name].metadata.forecast for name in simulated)
        warnings.append(simulated_note(which, "; ".join(filter(None, forecasts))))
    if missing := incomplete(traces):
        warnings.append(banner(f"{missing}.", "What is below was worked out from the rest."))
    return warnings


def banners_of(result: SweepResult | InterferenceResult | Tuning, missing: str) -> list[str]:
    """Return warnings of a result that is simulated, and of one that was stopped early."""
    simulated = [simulated_note()] if result.is_simulated else []
    return simulated + ([banner("Stopped early.", missing)] if result.stopped else [])


def simulated_note(which: str = "", forecast: str = "") -> str:
    """Return a warning that times were computed by a model."""
    return banner(
        f"{'FORECAST' if forecast else 'SIMULATED'}, not measured{which}.",
        f"{forecast}{'. ' if forecast else ''}A model of a GPU computed every device time"
        f"{' of it' if forecast else ' below'}: measure before you rely on it.",
    )


def result(found: Result) -> str:
    """Return a result as a table, and what it lacks; of many rows as many as can be read."""
    rows, left_out = found.readable()
    return judged(rows, found.incomplete) + (paragraph(left_out, "muted") if left_out else "")


def section(known: Analysis, traces: Mapping[str, Trace]) -> list[str]:
    """Show what an analysis says of each trace; nothing where it has nothing to say."""
    rows: list[Row] = []
    notes: list[str] = []
    for label, trace in traces.items():
        result, several = known.ask(trace), len(traces) > 1
        if isinstance(result, str):
            notes += [f"{label}: {result}" if several else result] if result else []
            continue
        readable, left_out = result.readable()
        rows += [{"setting": label, **row} if several else row for row in readable]
        prefix = f"{label}: " if several else ""
        notes += [f"{prefix}{note}" for note in (result.definition, left_out) if note]
    if not rows and not notes:
        return []
    table = [judged(filled(rows), incomplete(traces)), *figures_of(known, traces)] if rows else []
    remarks = [paragraph(note, "muted") for note in dict.fromkeys(notes)]
    return [f"<h2>{safe(known.title)}</h2>", *table, *remarks]


def paired(sections: Sequence[Sequence[str]]) -> list[str]:
    """Return sections beside each other, two a line where there is room."""
    shown = [f"<section>{''.join(parts)}</section>" for parts in sections if parts]
    return ['<div class="pairs">', *shown, "</div>"] if shown else []


def figures_of(known: Analysis, traces: Mapping[str, Trace]) -> list[str]:
    """Return the figures of an analysis, and why others are not there."""
    if known.figures is None:
        return []
    try:
        with known.naming():
            return drawn(known.figures(traces), known.name, traces)
    except (AnalysisFailed, MissingEvidence) as error:
        return [paragraph(str(error), "muted")]


def drawn(
    figures: Iterable[go.Figure | str], name: str, traces: Mapping[str, Trace] | None = None
) -> list[str]:
    """Return figures as HTML, and the plain text between them; ``name`` numbers them."""
    return [
        paragraph(part, "muted")
        if isinstance(part, str)
        else figure(part, f"{name}-{number}", traces)
        for number, part in enumerate(figures)
    ]


def filled(rows: Sequence[Row]) -> list[Row]:
    """Leave out columns that say nothing in any row."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if any(row.get(name) is not None for row in rows)]
    return [{name: row.get(name) for name in columns} for row in rows]


def broken() -> list[str]:
    """Return which plugins' analyses cannot be used, and why."""
    return [paragraph(problem, "warn") for problem in problems()]


def judged(rows: Sequence[Row], missing: str) -> str:
    """Return rows as a table, below the sentence that says what they lack; all plain text."""
    shown = [{name: value for name, value in row.items() if name != "incomplete"} for row in rows]
    return (paragraph(missing, "warn") if missing else "") + table(shown)


def provenance(traces: Mapping[str, Trace]) -> str:
    """Return where the times come from; what differs between settings, setting by setting."""
    names_of: dict[tuple[str, str], list[str]] = {}
    for name, trace in traces.items():
        facts = trace.metadata
        lines = {
            "seen": trace.origin,
            "incomplete": facts.missing,
            "times": uncertainty(trace),
            "driver": facts.driver or "",
            "records": counted(facts.counts),
            "clocks": state_words(facts.gpu_states),
            "versions": ", ".join(f"{name} {text}" for name, text in facts.versions.items()),
            "notes": "; ".join(facts.notes),
        }
        for pair in lines.items():
            names_of.setdefault(pair, []).append(name)
    lines_of: dict[str, list[str]] = {}
    for (what, line), names in names_of.items():
        if line:
            of_all = len(names) == len(traces)
            lines_of.setdefault(what, []).append(line if of_all else f"{', '.join(names)}: {line}")
    rows = [{"What": what, "Found": "; ".join(lines)} for what, lines in lines_of.items()]
    return table(rows, limit=2000)


def write(
    path: str | Path, title: str, traces: Mapping[str, Trace], parts: Sequence[str], about: str = ""
) -> Path:
    """Write a page; the final name never holds half of one.

    Parameters
    ----------
    traces
        Name → trace; the page begins with what is simulated or incomplete of them.
    about
        A line below the title.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    target = Path(path)
    if not target.name:
        raise GpuscopeError(
            f"cannot write a report to {str(path)!r}: name a file, such as run.html"
        )
    head = [f"<h1>{safe(title)}</h1>", paragraph(about, "muted") if about else ""]
    body = "\n".join(filter(None, [*head, *banners(traces), *parts]))
    page = _PAGE.substitute(
        title=safe(title),
        plotly=_plotly(),
        dark=json.dumps(_DARK),
        body=body,
        style=file.STYLE,
        script=f"<script>\n{file.SCRIPT}</script>",
    )
    return write_text(target, page)


def ending(traces: Mapping[str, Trace]) -> list[str]:
    """Return the definitions and where the times come from."""
    return [
        _DEFINITIONS,
        "<h2>Where the times come from</h2>",
        provenance(traces),
    ]
