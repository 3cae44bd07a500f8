"""The reports of a run, its settings compared, and of a prediction beside what was measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuscope._checks import MappingOf, door
from gpuscope._columns import COMPARED, TOGETHER, is_of_requests, readable
from gpuscope._text import safe
from gpuscope.analyses import findings_by_setting, known_analyses
from gpuscope.analyses.builtin import latencies_of
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import background_of, driven_by_requests, of_slowest_rank
from gpuscope.comparing.compare import check, compare
from gpuscope.comparing.forecasts import RECORDED, forecasts_in
from gpuscope.comparing.of_run import compared, sentence, variants
from gpuscope.comparing.pair import CompareResult
from gpuscope.comparing.split import SplitResult
from gpuscope.report import page
from gpuscope.telling.described import describe_settings, describe_workload
from gpuscope.telling.finding import Finding
from gpuscope.telling.media import to_html, unbroken
from gpuscope.telling.of_setting import together
from gpuscope.telling.rules import names_listed
from gpuscope.timeline import style
from gpuscope.timeline.canvas.file import timeline_html
from gpuscope.timeline.tracks import is_by_stream
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run, incomplete

_WIDEST = 60
"""Per cent of its cell that the longest bar takes; its number stands beside it."""
_ABOVE = 2
"""Findings, if they are problems, that stand above the picture; the others stand below it."""
_IN_THE_TABLE = ("streams", "overlap", "gaps", "latency", "requests")
"""Analyses of which the comparison of the settings has the numbers."""
_TOO_GOOD = (
    "Simulated latencies have the host costs and the tail of the machine that the profile was "
    "measured on; another host's differ, and one host's from hour to hour. How far off, with "
    "figures: docs/simulator.md."
)


@door(run=Run, path=(str, Path), title=(str, None))
def html_report(run: Run, path: str | Path, *, title: str | None = None) -> Path:
    """Write a run as one HTML file that opens without a network.

    Parameters
    ----------
    path
        Where to; a file of that name is replaced, and stays as it was if writing fails.
    title
        Default: the experiment's name.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    every: list[Row] = run.comparison.to_pylist()
    rows, served = (
        [row for row in every if is_of_requests(row) == of_requests]
        for of_requests in (False, True)
    )
    background = background_of(run.experiment)
    timed = dict.fromkeys(row["workload"] for row in rows if row["latency_n"])
    foreground = [name for name in timed if name not in background]
    missing = incomplete(run.traces)
    ranked = findings_by_setting(run.traces)
    first = sum(finding.is_problem for _, finding in ranked[:_ABOVE])
    described: Row = run.experiment.get("workloads") or {}
    driven = driven_by_requests(described)
    several = compared(run)
    lines = {
        name: describe_workload(facts, driven=name in driven) for name, facts in described.items()
    }
    sections = [
        page.banner(
            "Stopped early.",
            "What was recorded until then is below; the settings may "
            "have different numbers of calls.",
        )
        if run.stopped
        else "",
        f'<p class="headline">{unbroken(sentence(several))}</p>',
        to_html(ranked[:first]),
        *page.broken(),
        page.terms(lines),
        *_picture(run, several[0], rows, served, background, foreground),
        to_html(ranked[first:]),
        to_html([*variants(run)]),
    ]
    if any(trace.is_simulated for trace in run.traces.values()):
        sections.append(page.paragraph(_TOO_GOOD, "muted"))
    sections += [*_pair(run, several[0]), *_timelines(run)]
    if served:
        sections += ["<h2>Requests</h2>", page.judged(readable(served, full=True), missing)]
    if foreground:
        figures_of_handles = latencies_of(run.traces, foreground)
        sections += ["<h2>Latency</h2>", *page.drawn(figures_of_handles, "latency", run.traces)]
    sections += [
        "<h2>All numbers</h2>",
        page.judged(readable(rows, full=True, without=TOGETHER), missing),
        *_together(run, rows),
    ]
    for analysis in known_analyses():
        if analysis.name not in _IN_THE_TABLE:
            sections += page.section(analysis, run.traces)
    heading = title or str(run.experiment.get("name") or "gpuscope run")
    count = len(run.traces)
    about = "one setting" if count == 1 else f"{count} settings compared"
    return page.write(path, heading, run.traces, [*sections, *page.ending(run.traces)], about)


# -- the picture --------------------------------------------------------------------------
def _picture(
    run: Run,
    first: Finding,
    rows: list[Row],
    served: list[Row],
    background: list[str],
    foreground: list[str],
) -> list[str]:
    """Draw what each setting is, the latency that it gives, and what the background keeps.

    The latency is that of the page's first sentence. Of requests, their goodput and the times of
    their tokens instead.

    As a table of bars in the page's own colours: it needs no script, and is there at once.
    """
    partitions = style.partition_colours(run.traces.values(), ())
    colours: dict[str | None, str] = {None: style.WHOLE_GPU_COLOUR}
    # One for all ranks, whose partitions of a name have one colour.
    colours |= {style.without_rank(name): colour for name, colour in partitions.items()}
    columns = [
        (row["workload"], key)
        for row in served[:1]
        for key in ("goodput_per_s", "ttft_p50_ms", "tbt_p50_ms")
    ]
    slowest = of_slowest_rank(rows)
    for name in [] if served else foreground[:1]:
        times = [row for row in slowest if row["workload"] == name and row["latency_n"]]
        mark = "p99" if all(row["latency_p99_us"] is not None for row in times) else "p50"
        column = str(first.subject.get("column"))
        is_told = first.subject.get("workload") == name and column.startswith("latency_")
        columns.append((name, column if is_told else f"latency_{mark}_us"))
    columns += [(name, RATES[0]) for name in background]
    titles, bars = ["Setting"], list[dict[str, str]]()
    for workload, key in columns:
        bars_of = _bars([*slowest, *served], workload, key, colours)
        if bars_of and len(bars) < 3:
            longer = "longer" if COMPARED[key].better > 0 else "shorter"
            titles.append(f"{workload}: {COMPARED[key].title} ({longer} is better)")
            bars.append(bars_of)
    head = "".join(f"<th>{safe(title)}</th>" for title in titles)
    body = ""
    for setting, words in describe_settings(run).items():
        body += f"<tr><td><b>{safe(setting, 60)}</b><small>{safe(words)}</small></td>"
        cells = (bars_of.get(setting, "–") for bars_of in bars)
        body += "".join(f'<td><div class="bar">{bar}</div></td>' for bar in cells) + "</tr>"
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return [f'<div class="picture"><table>{inside}</table></div>', _legend(colours, run)]


def _bars(
    rows: Sequence[Row], workload: str, key: str, colours: dict[str | None, str]
) -> dict[str, str]:
    """Return setting → the bar of a number of a workload, where it has one."""
    measured = [row for row in rows if row["workload"] == workload and row[key] is not None]
    longest = max((row[key] for row in measured), default=0) or 1
    bars = {}
    for row in measured:
        colour = colours.get(row["partition"], style.WHOLE_GPU_COLOUR)
        if is_of_requests(row):
            colour = "var(--muted)"  # they run on two partitions
        size = f"width:{_WIDEST * row[key] / longest:.1f}%;background:{colour}"
        text = COMPARED[key].text(row[key])
        if key == "goodput_per_s":
            text += f" of {row['requests_per_s']:,.0f}"
        bars[row["setting"]] = f'<i style="{size}"></i><b>{safe(text)}</b>'
    return bars


def _legend(colours: dict[str | None, str], run: Run) -> str:
    """Say what colours mean in the bars, latencies and timelines of the page."""
    names = {f"partition {name}" if name else "whole GPU": of for name, of in colours.items()}
    swatches = "".join(
        f'<span class="key"><span class="swatch" style="background:{colour}"></span>'
        f"{safe(name, 40)}</span> "
        for name, colour in names.items()
    )
    text = f"In bars, latencies and timelines, a colour is where work ran:{swatches}"
    by_stream = [f"“{safe(name, 60)}”" for name, trace in run.items() if is_by_stream(trace)]
    if by_stream:
        of = f" of {names_listed('setting', by_stream)}" if len(by_stream) < len(run.traces) else ""
        text += f"<br>In the timeline{'s' * (len(by_stream) > 1)}{of}, it is the stream."
    return f'<p class="muted">{text}</p>'


# -- the evidence -------------------------------------------------------------------------
def _together(run: Run, rows: list[Row]) -> list[str]:
    """Show what running together gave in each setting."""
    settings = [dict(row) for row in {row["setting"]: row for row in rows}.values()]
    table = [{name: row[name] for name in ("setting", *TOGETHER)} for row in settings]
    is_carved = any(run[row["setting"]].metadata.partitions for row in settings)
    note = page.paragraph(together(settings, is_carved=is_carved).text, "muted")
    parts = [page.table(readable(table, full=True)), note]
    return parts if table else []


def _pair(run: Run, first: Finding) -> list[str]:
    """Show the two settings that the headline is about, or a forecast, call by call."""
    if forecasts_in(run):
        result = compare(run[RECORDED], run)
    elif "base" in first.subject:
        base, setting = str(first.subject["base"]), str(first.subject["setting"])
        result = compare(run[base], run[setting], names=(base, setting))
    else:
        return []
    drawn = page.figure(result.figure(), "compared", run.traces)
    return ["<h2>Call by call</h2>", drawn, page.result(result)]


@door(predicted=MappingOf(Trace), measured=MappingOf(Trace), path=(str, Path))
def prediction_report(
    predicted: Mapping[str, Trace], measured: Mapping[str, Trace], path: str | Path
) -> Path:
    """Write a prediction beside a measurement as one HTML file that opens without a network.

    Raises
    ------
    MissingEvidence
        They have no setting in common, or are of different experiments.
    GpuscopeError
        The file cannot be written (no such folder, no room).
    """
    return checked_report(check(predicted, measured), path)


def checked_report(checked: Mapping[str, CompareResult], path: str | Path) -> Path:
    """Write the same of a prediction that was checked already, setting by setting."""
    sections: list[str] = []
    traces: dict[str, Trace] = {}
    for number, (name, result) in enumerate(checked.items()):
        sides = zip(result.names, result.traces, strict=True)
        traces |= {f"{name}, {side}": trace for side, trace in sides}
        drawn = page.figure(result.figure(), f"compare-{number}")
        sections += [f"<h2>{safe(name, 60)}</h2>", drawn, page.result(result)]
        sections.append(page.paragraph(result.definition, "muted"))
    return page.write(path, "Predicted and measured", traces, [*sections, *page.ending(traces)])


def compared_report(
    result: CompareResult, splits: Sequence[SplitResult], verdict: str, caution: str, path: Path
) -> Path:
    """Write two sides that took turns: what differs, how sure that is, and why."""
    sections = [
        f'<p class="headline">{unbroken(verdict)}</p>',
        page.paragraph(caution, "warn") if caution else "",
        page.figure(result.figure(), "diff"),
        "<h2>Numbers</h2>",
        page.result(result),
        page.paragraph(result.definition, "muted"),
    ]
    for split in splits:
        sections += [f"<h2>Why: {safe(split.unit, 60)}</h2>", page.result(split)]
        sections.append(page.paragraph(split.definition, "muted"))
    traces = dict(zip(result.names, result.traces, strict=True))
    return page.write(path, "Two compared", traces, [*sections, *page.ending(traces)])


def _timelines(run: Run) -> list[str]:
    heads = [f"<h3>{safe(name, 60)}</h3>" if len(run.traces) > 1 else "" for name in run.traces]
    drawn = map(timeline_html, run.traces.values())
    return ["<h2>Timelines</h2>", *itertools.chain(*zip(heads, drawn, strict=True))]
