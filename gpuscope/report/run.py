"""The report of a run: its settings compared, with what the comparison rests on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from gpuscope import analysis, figures
from gpuscope.errors import MissingEvidence
from gpuscope.figures.text import duration
from gpuscope.report import page
from gpuscope.report.page import Row
from gpuscope.trace.run import Run, incomplete

_HEADINGS = {
    "setting": "Setting",
    "workload": "Workload",
    "partition": "Partition",
    "kernels": "Kernels",
    "kernel_median_us": "Median kernel time (µs)",
    "latency_n": "Calls timed, n",
    "latency_p50_us": "Latency p50 (µs)",
    "latency_p90_us": "Latency p90 (µs)",
    "latency_p99_us": "Latency p99 (µs)",
    "tflop_per_s": "TFLOP/s",
    "share_of_alone_on_whole_gpu": "Share of alone on the whole GPU",
    "overlap": "Overlap",
    "overlap_tight": "Overlap, tight",
    "gain": "Gain",
}
_SPANS = 2000
"""Spans drawn of one setting's window."""
_WON = 1.2
"""A gain from here on is throughput won by running together."""
_HELPS = 0.9
"""A latency below this share of another is called better."""
_SHARES = ("Share of alone on the whole GPU",)


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
    rows: list[Row] = run.comparison.to_pylist()
    heading = title or str(run.experiment.get("name") or "gpuscope run")
    background, foreground = _workloads(run, rows)
    count = len(run.traces)
    missing = incomplete(run.traces)
    sections = [
        _stopped(run),
        "<h2>In short</h2>",
        *_in_short(run, rows, foreground),
        *_too_good(run),
        "<h2>The settings compared</h2>",
        page.judged(_told([_headed(row) for row in rows]), missing, _SHARES),
        *_cost(rows, background, missing),
        *_confined(run, missing),
        *_queue(run, background, foreground, missing),
        *_timelines(run),
    ]
    if foreground:
        sections += ["<h2>Latency</h2>", *page.latency_figures(run.traces, foreground)]
    sections += page.ending(run.traces)
    about = f"{count} setting{'' if count == 1 else 's'} compared: {', '.join(run.traces)}"
    return page.write(path, heading, run.traces, sections, about)


def _too_good(run: Run) -> list[str]:
    """Say in which way simulated figures are off, next to them."""
    if not any(trace.is_simulated for trace in run.traces.values()):
        return []
    return [
        page.paragraph(
            "Simulated latencies have no tail, since nothing jitters, and leave out what recording "
            "costs the host. So a partition seems to shorten p99 by a larger factor than it does "
            "on a GPU; part of that difference is not explained. Without a partition overlap is "
            "simulated too small, and a median may be too long. How far off, with figures: "
            "docs/simulator.md.",
            "muted",
        )
    ]


def _workloads(run: Run, rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return the background workloads and those whose latency counts."""
    described: Row = run.experiment.get("workloads") or {}
    background = [name for name, facts in described.items() if facts.get("background")]
    timed = dict.fromkeys(row["workload"] for row in rows if row["latency_n"])
    return background, [name for name in timed if name not in background]


def _stopped(run: Run) -> str:
    if not run.stopped:
        return ""
    return page.banner(
        "Stopped early.",
        "What was recorded until then is below; the settings may have different numbers of calls.",
    )


def _headed(row: Row) -> Row:
    return {
        name: row[column] if column != "partition" else row[column] or "whole GPU"
        for column, name in _HEADINGS.items()
    }


def _told(rows: Sequence[Row]) -> list[Row]:
    """Leave out columns that say nothing in any row."""
    told = {name for row in rows for name, value in row.items() if value is not None}
    return [{name: value for name, value in row.items() if name in told} for row in rows]


def _in_short(run: Run, rows: list[Row], foreground: list[str]) -> list[str]:
    said = [page.paragraph(line) for name in foreground if (line := _ratio(rows, name))]
    said += [page.paragraph(line) for line in _variants(run, rows, foreground)]
    cards = []
    for setting in run.traces:
        mine = [row for row in rows if row["setting"] == setting]
        facts: dict[str, str] = {}
        for row in mine:
            if row["workload"] in foreground and row["latency_n"]:
                facts |= _latency_facts(row, only=len(foreground) == 1)
        if mine:
            facts["Overlap"] = page.number(mine[0]["overlap"])
            if mine[0]["overlap_tight"] is not None:
                facts["Overlap"] = f"{page.number(mine[0]['overlap_tight'])} to {facts['Overlap']}"
            gain = mine[0]["gain"]
            facts["Gain"] = "unknown: no solo times" if gain is None else page.number(gain)
            if mine[0]["incomplete"]:
                facts["All of it"] = mine[0]["incomplete"]
        else:
            facts["Kernels"] = "none finished"
        cards.append(page.card(setting, facts))
    return [*said, f'<div class="cards">{"".join(cards)}</div>']


def _latency_facts(row: Row, *, only: bool) -> dict[str, str]:
    name = "Latency" if only else f"Latency of {row['workload']}"
    facts = {
        f"{name}, {mark}": duration(row[f"latency_{mark}_us"] * 1e3)
        if row[f"latency_{mark}_us"] is not None
        else "– (needs 1,000 calls)"
        for mark in ("p50", "p90", "p99")
    }
    return {**facts, f"{name}, calls": f"n = {row['latency_n']:,}"}


def _ratio(rows: list[Row], workload: str) -> str | None:
    """Say which setting has the lowest latency, with the highest percentile that all have."""
    mine = [row for row in rows if row["workload"] == workload and row["latency_n"]]
    marks = [m for m in ("p99", "p50") if all(row[f"latency_{m}_us"] is not None for row in mine)]
    if len(mine) < 2 or not marks:
        return None
    column = f"latency_{marks[0]}_us"
    low, high = min(mine, key=lambda row: row[column]), max(mine, key=lambda row: row[column])
    if not low[column]:
        return None
    return (
        f"The {marks[0]} latency of {workload} is lowest in “{low['setting']}” with "
        f"{duration(low[column] * 1e3)} and highest in “{high['setting']}” with "
        f"{duration(high[column] * 1e3)}: {high[column] / low[column]:.3g} times as long."
    )


def _variants(run: Run, rows: list[Row], foreground: list[str]) -> list[str]:
    """Say what stream priority and the SM-count target did, by settings that differ in one."""
    described: Row = run.experiment.get("settings") or {}
    plain = {name: _plainly(facts) for name, facts in described.items() if name in run.traces}
    lines = []
    for setting, other in itertools.permutations(plain, 2):
        (bare, priority, told), (bare_2, priority_2, told_2) = plain[setting], plain[other]
        if bare != bare_2:
            continue
        if told == told_2 and not priority and priority_2:
            lines += [
                line
                for name in foreground
                if (line := _of_priority(run, rows, name, setting, other))
            ]
        if priority == priority_2 and told != "off" and told_2 == "off":
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
    seen = {row["setting"]: row for row in rows if row["workload"] == workload}
    if plain not in seen or raised not in seen:
        return None
    for mark in ("p99", "p50"):
        before, after = (seen[name][f"latency_{mark}_us"] for name in (plain, raised))
        if before and after:
            helped = "helps" if after < _HELPS * before else "does not help"
            where = "Simulated, stream" if run.traces[raised].is_simulated else "Stream"
            return (
                f"{where} priority alone {helped}: the {mark} latency of {workload} is "
                f"{duration(after * 1e3)} in “{raised}”, and {duration(before * 1e3)} in “{plain}”."
                " Priority chooses among blocks that wait; it takes no SM from those that run."
            )
    return None


def _of_target(rows: list[Row], told: str, untold: str) -> list[str]:
    rates = {(row["setting"], row["workload"]): row["tflop_per_s"] for row in rows}
    return [
        f"Where cuBLAS is told how many SMs the partition has, {workload} does "
        f"{page.number(rates[told, workload])} TFLOP/s (“{told}”), where not, {page.number(rate)} "
        f"(“{untold}”)."
        for (setting, workload), rate in rates.items()
        if setting == untold and rate and rates.get((told, workload))
    ]


def _cost(rows: list[Row], background: list[str], missing: str) -> list[str]:
    lines = []
    for row in rows:
        if row["workload"] not in background:
            continue
        rate, share = row["tflop_per_s"], row["share_of_alone_on_whole_gpu"]
        done = f"{row['kernels']:,} kernels"
        if rate is not None:
            done = f"{page.number(rate)} TFLOP/s"
        alone = "its rate alone on the whole GPU was not measured"
        if share is not None:
            alone = f"{page.number(share, is_share=True)} of its rate alone on the whole GPU"
        lines.append(f"In “{row['setting']}”, {row['workload']} did {done}: {alone}.")
    if not lines:
        return []
    if all(row["gain"] is not None and row["gain"] < _WON for row in rows):
        lines.append(
            "A gain near 1 says that running together won no throughput; what a partition can win "
            "is latency."
        )
    return [
        "<h2>What it costs</h2>",
        page.warning(missing),
        *(page.paragraph(line) for line in lines),
    ]


def _queue(run: Run, background: list[str], foreground: list[str], missing: str) -> list[str]:
    """Show that the GPU was under load whenever a latency was measured."""
    rows, absent = [], []
    for setting, trace in run.traces.items():
        for of in background:
            for at in foreground:
                try:
                    seen = analysis.queue_depth(trace, of=of, at=at)
                except MissingEvidence as error:
                    absent.append(f"{setting}: {error}")
                    continue
                (row,) = seen.rows()
                idle = sum(depth <= 0 for depth in seen.depths)
                rows.append(
                    {
                        "Setting": setting,
                        "Kernels of": row["kernels of"],
                        "Queued at each call of": row["queued at each call of"],
                        "Calls, n": row["n"],
                        "Least": row["least"],
                        "Median": row["median"],
                        "Calls with nothing queued": idle,
                    }
                )
    if not rows and not absent:
        return []
    said = "Whenever a latency was measured, the background had work queued or running."
    if any(row["Calls with nothing queued"] for row in rows):
        said = (
            "NOT every latency was measured under load: at some calls nothing of the background "
            "was queued. Raise its max_queued."
        )
    return [
        "<h2>Was the GPU under load?</h2>",
        page.paragraph(said) if rows else "",
        page.judged(rows, missing) if rows else "",
        *(page.paragraph(line, "muted") for line in absent),
    ]


def _confined(run: Run, missing: str) -> list[str]:
    """Show whether work stayed on the SMs that it was given, with the evidence."""
    rows, notes = [], []
    for setting, trace in run.traces.items():
        if not trace.metadata.partitions:
            continue
        try:
            seen = analysis.confinement(trace)
        except MissingEvidence as error:
            notes.append(f"{setting}: {error}")
            continue
        rows += [{"setting": setting, "incomplete": None, **row} for row in seen.rows()]
    if not rows and not notes:
        return []
    return [
        "<h2>Did the work stay where it was put?</h2>",
        page.judged(_told(rows), missing) if rows else "",
        *(page.paragraph(line, "muted") for line in notes),
    ]


def _timelines(run: Run) -> list[str]:
    if not run.traces:
        return []
    close = page.close_windows_ns(run.traces)
    whole = {name: page.first_window_ns(trace) for name, trace in run.traces.items()}
    length = max(high - low for low, high in close.values())
    seen = [
        "<h2>Timelines</h2>",
        page.figure(
            figures.timelines(
                run.traces, windows_ns=close, title=f"Close up: {duration(length)} from the middle"
            ),
            "timelines-close",
        ),
    ]
    if whole != close:
        drawn = figures.timelines(
            run.traces,
            windows_ns=whole,
            title="The first recording window",
            max_spans=_SPANS * len(run.traces),
        )
        seen.append(page.figure(drawn, "timelines-whole"))
    return seen
