"""The report of a run: its settings compared, with what the comparison rests on."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from gpuscope import figures
from gpuscope._checks import door
from gpuscope._columns import TOGETHER, is_of_requests, readable
from gpuscope._text import safe
from gpuscope.analyses import findings_by_setting, known_analyses
from gpuscope.analyses.builtin import latencies_of
from gpuscope.analysis.headline import changes
from gpuscope.analysis.settings import background_of, driven_by_requests, of_slowest_rank
from gpuscope.report import page
from gpuscope.report.page import Row
from gpuscope.telling.comparison import compared, sentence
from gpuscope.telling.described import describe_settings, describe_workload
from gpuscope.telling.media import to_html, unbroken
from gpuscope.telling.of_setting import together
from gpuscope.timeline import style
from gpuscope.timeline.text import duration
from gpuscope.trace.run import Run, incomplete

Bars: TypeAlias = dict[str, tuple[Row, float]]
"""Setting → its row, and the length of its bar."""
_SPANS = 2000
"""Spans drawn of one setting's window."""
_WIDEST = 60
"""Per cent of its cell that the longest bar takes; its number stands beside it."""
_ABOVE = 2
"""Findings, if they are problems, that stand above the picture; the others stand below it."""
_IN_THE_TABLE = ("streams", "overlap", "gaps", "latency", "requests")
"""Analyses of which the comparison of the settings has the numbers."""


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
    heading = title or str(run.experiment.get("name") or "gpuscope run")
    background, foreground = _workloads(run, rows)
    missing = incomplete(run.traces)
    ranked = findings_by_setting(run.traces)
    first = sum(finding.is_problem for _, finding in ranked[:_ABOVE])
    described: Row = run.experiment.get("workloads") or {}
    driven = driven_by_requests(described)
    sections = [
        _stopped(run),
        f'<p class="headline">{unbroken(sentence(compared(run)))}</p>',
        to_html(ranked[:first]),
        *page.broken(),
        page.terms(
            {
                name: describe_workload(facts, driven=name in driven)
                for name, facts in described.items()
            }
        ),
        *_picture(run, rows, served, background, foreground),
        to_html(ranked[first:]),
        *(page.paragraph(line) for line in _variants(run, rows, foreground)),
        *_too_good(run),
        *_timelines(run),
    ]
    if served:
        sections += ["<h2>Requests</h2>", page.judged(readable(served, full=True), missing)]
    if foreground:
        figures_of_handles = latencies_of(run.traces, foreground)
        sections += ["<h2>Latency</h2>", *page.drawn(figures_of_handles, "latency", run.traces)]
    sections += [
        "<h2>All numbers</h2>",
        page.judged(readable(rows, full=True, without=TOGETHER), missing),
        *_together(run, rows),
        *(
            part
            for known in known_analyses()
            if known.name not in _IN_THE_TABLE
            for part in page.section(known, run.traces)
        ),
        *page.ending(run.traces),
    ]
    count = len(run.traces)
    about = "one setting" if count == 1 else f"{count} settings compared"
    return page.write(path, heading, run.traces, sections, about)


def _too_good(run: Run) -> list[str]:
    """Say in which way simulated figures are off, next to them."""
    if not any(trace.is_simulated for trace in run.traces.values()):
        return []
    return [
        page.paragraph(
            "Simulated latencies have the host costs and the tail of the machine that the profile "
            "was measured on; another host's differ, and one host's from hour to hour. How far "
            "off, with figures: docs/simulator.md.",
            "muted",
        )
    ]


def _workloads(run: Run, rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return the background workloads and those whose latency counts."""
    background = background_of(run.experiment)
    timed = dict.fromkeys(row["workload"] for row in rows if row["latency_n"])
    return background, [name for name in timed if name not in background]


def _stopped(run: Run) -> str:
    if not run.stopped:
        return ""
    return page.banner(
        "Stopped early.",
        "What was recorded until then is below; the settings may have different numbers of calls.",
    )


# -- the picture --------------------------------------------------------------------------
def _picture(
    run: Run, rows: list[Row], served: list[Row], background: list[str], foreground: list[str]
) -> list[str]:
    """Draw what each setting is, the latency that it gives, and what the background keeps.

    Of requests, their goodput and the times of their tokens instead.

    As a table of bars in the page's own colours: it needs no script, and is there at once.
    """
    colours: dict[str | None, str] = {None: style.WHOLE_GPU_COLOUR}
    colours.update(
        {  # one for all ranks, whose partitions of a name have one colour
            style.without_rank(name): colour
            for name, colour in style.partition_colours(run.traces.values(), ()).items()
        }
    )
    columns = _of_requests(served)
    rows = of_slowest_rank(rows)
    for name in [] if served else foreground[:1]:
        of_workload = [row for row in rows if row["workload"] == name and row["latency_n"]]
        mark = "p99" if all(row["latency_p99_us"] is not None for row in of_workload) else "p50"
        values = {row["setting"]: (row, row[f"latency_{mark}_us"]) for row in of_workload}
        texts = {at: duration(us * 1e3) for at, (_, us) in values.items()}
        columns.append((f"{mark} latency of {name} (shorter is better)", values, texts))
    for name in background[: max(0, 3 - len(columns))]:
        of_workload = [row for row in rows if row["workload"] == name]
        values = {row["setting"]: (row, row["share_of_alone_on_whole_gpu"]) for row in of_workload}
        values = {at: pair for at, pair in values.items() if pair[1] is not None}
        texts = {at: page.number(share, is_share=True) for at, (_, share) in values.items()}
        if values:
            columns.append((f"{name} keeps of its rate alone", values, texts))
    head = "".join(
        f"<th>{safe(words)}</th>" for words in ("Setting", *(column[0] for column in columns))
    )
    body = ""
    for setting, words in describe_settings(run).items():
        cells = f"<td><b>{safe(setting, 60)}</b><small>{safe(words)}</small></td>"
        for _, values, texts in columns:
            longest = max((value for _, value in values.values()), default=0) or 1
            row, value = values.get(setting, ({}, None))
            bar = "–"
            if value is not None:
                colour = "var(--muted)"  # requests run on two partitions
                if not is_of_requests(row):
                    colour = colours.get(row["partition"], style.WHOLE_GPU_COLOUR)
                size = f"width:{_WIDEST * value / longest:.1f}%;background:{colour}"
                bar = f'<i style="{size}"></i><b>{safe(texts[setting])}</b>'
            cells += f'<td><div class="bar">{bar}</div></td>'
        body += f"<tr>{cells}</tr>"
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return [f'<div class="picture"><table>{inside}</table></div>', _legend(colours)]


def _of_requests(served: list[Row]) -> list[tuple[str, Bars, dict[str, str]]]:
    """Return the columns of the picture for the first workload of requests."""
    rows = [row for row in served if row["workload"] == served[0]["workload"]]
    columns = []
    for column, title, ns in (
        ("goodput_per_s", "goodput of {}, requests/s (longer is better)", 0),
        ("ttft_p50_ms", "p50 time to first token of {} (shorter is better)", 1e6),
        ("tbt_p50_ms", "p50 time between tokens of {} (shorter is better)", 1e6),
    ):
        values = {row["setting"]: (row, row[column]) for row in rows if row[column] is not None}
        texts = {
            at: duration(value * ns)
            if ns
            else f"{page.number(value)} of {page.number(row['requests_per_s'])}"
            for at, (row, value) in values.items()
        }
        if values:
            columns.append((title.format(rows[0]["workload"]), values, texts))
    return columns


def _legend(colours: dict[str | None, str]) -> str:
    """Say what colours mean, here and in all figures of the page."""
    names = {f"partition {name}" if name else "whole GPU": of for name, of in colours.items()}
    swatches = "".join(
        f'<span class="key"><span class="swatch" style="background:{colour}"></span>'
        f"{safe(name, 40)}</span> "
        for name, colour in names.items()
    )
    return f'<p class="muted">A colour is where work ran, on all of this page:{swatches}</p>'


# -- what single changes did --------------------------------------------------------------
def _variants(run: Run, rows: list[Row], foreground: list[str]) -> list[str]:
    """Say what stream priority and the SM-count target did, by settings that differ in one."""
    described: Row = run.experiment.get("settings") or {}
    plain = {name: _plainly(facts) for name, facts in described.items() if name in run.traces}
    lines = []
    for setting, other in itertools.permutations(plain, 2):
        (bare, priority, target), (bare_2, priority_2, target_2) = plain[setting], plain[other]
        if bare != bare_2:
            continue
        if target == target_2 and not priority and priority_2:
            lines += [
                line
                for name in foreground
                if (line := _of_priority(run, rows, name, setting, other))
            ]
        if priority == priority_2 and target != "off" and target_2 == "off":
            lines += _of_target(rows, setting, other)
    return lines


def _plainly(facts: Row) -> tuple[object, dict[str, int], object]:
    """Split a setting into what is carved and used, its streams' priorities, and the target."""
    streams = {name: dict(spec) for name, spec in (facts.get("streams") or {}).items()}
    priorities = {
        name: priority for name, spec in streams.items() if (priority := spec.pop("priority", 0))
    }
    used = {name: spec for name, spec in streams.items() if any(spec.values())}
    return (facts.get("partitions") or {}, used), priorities, facts.get("sm_count_target")


def _of_priority(run: Run, rows: list[Row], workload: str, plain: str, raised: str) -> str | None:
    both = {name: run[name] for name in (plain, raised)}
    compared = [row for row in rows if row["workload"] == workload and row["setting"] in both]
    compared.sort(key=lambda row: bool(row["setting"] == raised))  # compared with the first
    for change in changes(Run(both, pa.Table.from_pylist(compared), run.experiment)):
        helped = "helps" if change.is_better else "harms"
        if change.within_noise:
            helped = f"does not help: beside noise of {100 * change.noise:.0f} %"
        where = "Simulated, stream" if run.traces[raised].is_simulated else "Stream"
        return (
            f"{where} priority alone {helped}: the {change.column[8:11]} latency of {workload} is "
            f"{duration(change.after * 1e3)} in “{raised}”, and {duration(change.before * 1e3)} in "
            f"“{plain}”. Priority chooses among blocks that wait; it takes no SM from those that "
            "run."
        )
    return None


def _of_target(rows: list[Row], targeted: str, untargeted: str) -> list[str]:
    rates = {(row["setting"], row["workload"]): row["tflop_per_s"] for row in rows}
    return [
        f"Where cuBLAS is told how many SMs the partition has, {workload} does "
        f"{page.number(rates[targeted, workload])} TFLOP/s (“{targeted}”), where not, "
        f"{page.number(rate)} (“{untargeted}”)."
        for (setting, workload), rate in rates.items()
        if setting == untargeted and rate and rates.get((targeted, workload))
    ]


# -- the evidence -------------------------------------------------------------------------
def _together(run: Run, rows: list[Row]) -> list[str]:
    """Show what running together gave in each setting."""
    settings = [dict(row) for row in {row["setting"]: row for row in rows}.values()]
    table = [{name: row[name] for name in ("setting", *TOGETHER)} for row in settings]
    is_carved = any(run[row["setting"]].metadata.partitions for row in settings)
    note = page.paragraph(together(settings, is_carved=is_carved).text, "muted")
    parts = [page.table(readable(table, full=True)), note]
    return parts if table else []


def _timelines(run: Run) -> list[str]:
    if not run.traces:
        return []
    close = page.close_windows_ns(run.traces)
    whole = {name: page.first_window_ns(trace) for name, trace in run.traces.items()}
    length = max(high - low for low, high in close.values())
    drawn = figures.timelines(
        run.traces, windows_ns=close, title=f"Close up: {duration(length)} from the middle"
    )
    seen = ["<h2>Timelines</h2>", page.figure(drawn, "timelines-close", run.traces)]
    if whole != close:
        drawn = figures.timelines(
            run.traces,
            windows_ns=whole,
            title="The first recording window",
            max_spans=_SPANS * len(run.traces),
        )
        seen.append(page.figure(drawn, "timelines-whole", run.traces))
    return seen
