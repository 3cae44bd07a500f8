"""The page of figures that need no GPU, from benchmarks/results; docs_pages.py writes it."""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]
Row = tuple[str, str, str, bool | None]
"""What, goal, measured, whether it is met (None where nothing is owed)."""

FORMATS = {
    "import nsight": "Nsight Systems' SQLite",
    "import chrome": "Chrome JSON",
    "import kineto": "PyTorch's Chrome JSON",
    "import kineto_all": "PyTorch's Chrome JSON, longer",
    "export json": "Chrome JSON",
    "export sqlite": "SQLite for `nsys stats`",
    "export pftrace": "Perfetto's protobuf",
    "export parquet": "Parquet",
}
INTRODUCTION = """# Figures measured without a GPU

Generated from `benchmarks/results` by `make docs`; do not edit. `make bench` measures them anew.
The simulator's accuracy is on [its page](simulator.md), figures of a GPU are
[here](h200.md)."""


def figures_page(
    cpu: Facts,
    timeline: Facts,
    scale: Facts,
    browser: Facts,
    grading: Facts,
    files: list[Facts],
    noise: Facts,
) -> str:
    """Return the page."""
    parts = [
        INTRODUCTION,
        _section("The simulator", cpu, _simulator(cpu["rows"])),
        _section("An index of a trace, and a frame of a timeline", timeline, _timeline(timeline)),
        _section("Analyses and reports of a large trace", scale, _scale(scale)),
        _section("A timeline in JupyterLab", browser, _browser(browser)),
        _section("A class that is graded", grading, _grading(grading)),
        *(_section(title, facts, _files(facts)) for title, facts in zip(
            ("Reading 10⁶ spans", "Writing 10⁶ spans"), files, strict=True)),
        _noise(noise),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _section(title: str, facts: Facts, rows: list[Row]) -> str:
    marks = {True: "yes", False: "**no**", None: "–"}
    where = f"{facts['command']}`, {facts['machine']}, Python {facts['python']}."
    lines = [
        f"## {title}",
        "",
        f"{facts['date']}, `{where}{_disturbed(facts)}",
        "",
        "| what | goal | measured | met |",
        "| --- | --- | --- | --- |",
        *(f"| {what} | {goal} | {value} | {marks[met]} |" for what, goal, value, met in rows),
    ]
    return "\n".join(lines)


def _noise(facts: Facts) -> str:
    """Return how `diff` judges simulated rounds: a table for each kind of comparison."""
    lines = [
        "## Verdicts of `diff` on simulated noise",
        "",
        f"{facts['date']}, `{facts['command']}`, {facts['machine']}, Python {facts['python']}. The",
        "noise is scaled to 1 %. *False alarms*: equal sides that are told apart, of numbers that",
        "do not depend on each other; at most 5 % but for the simulation's own error. *+3 %*: such",
        "a change is seen in one of the numbers. *Four of five*: a change of the size that is said",
        "to be seen four times of five is, in rounds that are drawn anew; 75 to 85 % of normal",
        "noise and 70 to 90 % of other are sought, each ± two standard errors of the simulation.",
        "What misses that is bold: with two tight modes, five rounds a side show nothing before",
        "the modes are apart, and then all.",
        "Of the drifts below, sides that take turns are to be told apart as seldom; of saved runs",
        "and of neighbours that correlate nothing is promised: *said* is how often a comparison",
        "says that neighbours hang together.",
    ]
    by_kind: dict[str, dict[str, dict[str, Facts]]] = {}
    for row in facts["rows"]:
        kind, noise, measure = row["what"].split(": ")
        by_kind.setdefault(kind, {}).setdefault(noise, {})[measure] = row
    for kind, noises in by_kind.items():
        lines += ["", f"| {kind} | false alarms | +3 % | four of five | said |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for noise, measures in noises.items():
            cells = []
            for row in measures.values():
                digits = 1 if row["what"].endswith("false alarms") else 0
                text = f"{row['value']:.{digits}f} %"
                cells.append(text if row["met"] else f"**{text}**")
            lines.append(f"| {noise} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _disturbed(facts: Facts) -> str:
    """Say how fast the machine was, where others on it make figures vary."""
    if "loop_ms" not in facts:
        return ""
    before, after = facts["loop_ms"]
    return (
        f" The machine is shared: a loop of 3·10⁶ steps in Python took {before:.0f} ms before and "
        f"{after:.0f} ms after."
    )


def _at_most(what: str, value: float, goal: float, unit: str, beside: str = "") -> Row:
    return what, f"≤ {goal:g} {unit}", f"{value:.3g} {unit}{beside}", value <= goal


def _simulator(rows: list[Facts]) -> list[Row]:
    by_what = {row["what"]: row for row in rows}
    launches = by_what["100000 simulated launches on 4 streams in 3 partitions"]
    quickstart = by_what["quickstart on the simulated H200"]
    growth = by_what["10⁶ against 10⁴ simulated launches, time of each"]["ratio"]
    return [
        _at_most("10⁵ launches on 4 streams in 3 partitions", launches["seconds"], 2, "s"),
        _at_most("memory of a launch", by_what["memory of a pending simulated launch"]["bytes"],
                 600, "bytes"),
        ("time of a launch, of 10⁶ / of 10⁴", "1 ± 0.2 ×", f"{growth:.3g} ×",
         abs(growth - 1) <= 0.2),
        ("`import gpuscope`", "–", f"{1e3 * by_what['import gpuscope']['seconds']:.3g} ms", None),
        (f"the quickstart, {quickstart['rows']:,} rows", "–",
         f"{quickstart['seconds']:.3g} s", None),
    ]  # fmt: skip


def _timeline(facts: Facts) -> list[Row]:
    million, nested, ten, growing, frames, static = facts["rows"]
    found: list[Row] = []
    for row, shape in ((million, ""), (nested, ", nested")):
        queries = f" (median {row['query']['p50_ms']:.3g} ms)"
        found += [
            _at_most(f"index of 10⁶ spans{shape}", row["seconds"], 0.5, "s"),
            _at_most("its memory / that of the spans' start, end and track",
                     row["of_the_spans_own_memory"], 1.5, "×"),
            _at_most("query of any window, p99", row["query"]["p99_ms"], 20, "ms", queries),
        ]  # fmt: skip
    return [
        *found,
        ("index of 10⁷ spans; query, p99", "–",
         f"{ten['seconds']:.3g} s; {ten['query']['p99_ms']:.3g} ms", None),
        ("20,000 spans more in an index of up to 10⁶", "–",
         f"{growing['extend']['p50_ms']:.3g} ms", None),
        _at_most(f"{frames['what'].replace('1e+06', '10⁶')}: bytes, at most",
                 frames["bytes"]["max"] / 1e3, 250, "kB",
                 f" (median {frames['bytes']['median'] / 1e3:.3g} kB)"),
        ("`figures.timeline` of 10⁶ spans; its PNG", "–",
         f"{static['seconds']:.3g} s; {static['png_seconds']:.3g} s", None),
    ]  # fmt: skip


def _scale(facts: Facts) -> list[Row]:
    counted = [row for row in facts["rows"] if row["in_sum"]]
    others = [row for row in facts["rows"] if not row["in_sum"]]
    trace = f"{facts['spans']:,} spans, {facts['streams']:,} streams, {facts['names']:,} names"
    return [
        _at_most(f"overlap, gain, summary and report of {trace}", facts["cpu_seconds"],
                 20, "s", f" ({facts['seconds']:.3g} s on the clock)"),
        _at_most("peak memory of the process until then", facts["peak_mb"] / 1e3, 2, "GB"),
        *((f"of these: {row['what']}", "–", f"{row['cpu_seconds']:.3g} s", None)
          for row in counted),
        *((row["what"], "–", f"{row['cpu_seconds']:.3g} s", None) for row in others),
    ]  # fmt: skip


def _browser(facts: Facts) -> list[Row]:
    found: list[Row] = []
    for row in facts["rows"]:
        value = f"{row['value']:.3g} {row['unit']}"
        if "spread" in row and row["unit"] == "ms":
            value += f" ({row['spread']['min']:.0f} to {row['spread']['max']:,.0f})"
        if "before" in row:
            value += f"; before {row['before']:.3g} {row['unit']}"
        found.append((row["what"], row["goal"], value, None if row["goal"] == "–" else row["met"]))
    return found


def _grading(facts: Facts) -> list[Row]:
    return [
        (row["what"], row["goal"] if owed else "–", f"{row['value']:.3g} {row['unit']}".rstrip(),
         row["met"] if owed else None)
        for row in facts["rows"]
        for owed in (row["goal"] != "(beside it)",)
    ]  # fmt: skip


def _files(facts: Facts) -> list[Row]:
    found: list[Row] = []
    for row in facts["rows"]:
        what = f"{FORMATS[row['what']]}, {row['spans']:,} spans, {row['file_mb']:.0f} MB"
        if row["goal_s"] is None:
            found.append((what, "–", f"{row['seconds']:.3g} s", None))
        else:
            found.append(_at_most(what, row["seconds"], row["goal_s"], "s"))
        if "hta" in row:
            beside = row["hta"]
            found.append((f"the same file by HolisticTraceAnalysis, {beside['rows']:,} rows", "–",
                          f"{beside['seconds']:.3g} s", None))  # fmt: skip
        if "peak_over_trace" in row:
            found.append(_at_most("peak memory / the trace's", row["peak_over_trace"],
                                  row["memory_goal"], "×"))  # fmt: skip
    return found
