"""``view``, ``export``, ``merge``, ``why`` and ``summary``: trace files, whoever made them."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from gpuscope import telling
from gpuscope._files import check_new
from gpuscope._text import counted
from gpuscope.analyses import FIRST, findings, known_analyses, problems, sql
from gpuscope.analysis.result import Result
from gpuscope.cli import FAILED
from gpuscope.cli import app as terminal
from gpuscope.cli.app import All, Force, Json, app
from gpuscope.cli.screen import Screen
from gpuscope.errors import GpuscopeError, InvalidArgument, MissingEvidence
from gpuscope.formats.reading import load_trace
from gpuscope.formats.registry import of_suffix, suffixes
from gpuscope.formats.writing import export
from gpuscope.judging.told import of_findings
from gpuscope.report import trace_report
from gpuscope.trace.folder import trace_names
from gpuscope.trace.merging import merge
from gpuscope.trace.model import Trace

_ROWS = 10_000
"""Of a query's answer that are worked out for one screen."""
_SECTIONS = 4
"""Of a program's first page, on one screen."""
_File = Annotated[
    Path,
    typer.Argument(help=f"A trace: {suffixes('read')}; the content says which."),
]
_Write = Annotated[bool, typer.Option("--write", help="Let the query read and write files.")]


@app.command("view")
def view_command(
    file: _File,
    out: Annotated[
        Path | None, typer.Option(help="Write the report there instead of opening it.")
    ] = None,
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Open the report of a trace in the browser, or write it.

    Examples: gpuscope view out/trace-shared.parquet

    gpuscope view report.nsys-rep --out report.html
    """
    if out is not None:
        check_new(out, replace=force)
    trace = load_trace(file)
    if out is not None:
        terminal.say(f"wrote {trace_report(trace, out)}")
        return
    folder = Path(tempfile.mkdtemp(prefix="gpuscope-"))  # it must outlive this command
    path = trace_report(trace, folder / f"{file.stem}.html")
    terminal.say(f"wrote {path}")
    if not webbrowser.open(path.as_uri()):
        terminal.complain("no browser could be opened here: open that file in one")
        raise typer.Exit(FAILED)


@app.command("export")
def export_command(
    file: _File,
    path: Annotated[
        Path,
        typer.Argument(
            help=f"The file to write: {suffixes('write')}; without a suffix, of several ranks, a "
            "folder with a file for each."
        ),
    ],
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Write a trace for another tool; the suffix says which.

    Examples: gpuscope export out/trace-shared.parquet shared.json

    gpuscope export pytorch_trace.json.gz trace.sqlite
    """
    _check_target(path, replace=force)
    trace = load_trace(file)
    with Progress(console=terminal.stderr, transient=True) as bar:
        task = bar.add_task("writing", total=None)
        export(
            trace, path, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    terminal.say(f"wrote {path}")


@app.command("merge")
def merge_command(
    files: Annotated[
        list[Path], typer.Argument(help="The traces, one a rank, or a folder that holds them.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help=f"The file to write: {suffixes('write')}; or a folder, no suffix."
        ),
    ],
    force: Force = False,  # noqa: FBT002 - typer's form of a flag
) -> None:
    """Join the traces of several ranks on one clock, and say how sure that is.

    Examples: gpuscope merge out/train -o train.parquet

    gpuscope merge rank0.parquet rank1.parquet -o ranks
    """
    _check_target(out, replace=force)
    merged = merge([_loaded(file) for path in files for file in _traces_of(path)])
    written = export(merged, out)
    ranks = [
        {
            "rank": rank.rank,
            "device": rank.device or "–",
            "offset": f"{rank.offset_ns / 1e3:+,.1f} µs",
            "error": f"± {(rank.error_ns or 0) / 1e3:,.1f} µs",
            "by": rank.evidence,
        }
        for rank in merged.metadata.ranks
    ]
    terminal.show_table("ranks", ranks)
    terminal.say(_spans(merged))
    terminal.say(f"wrote {written}")


def _check_target(path: Path, *, replace: bool) -> None:
    """Refuse a file, or a folder for ranks, that holds what would be replaced."""
    targets = [path]
    if not path.suffix:
        with contextlib.suppress(OSError, ValueError):  # which writing says better
            targets = sorted(path.glob("rank-*.json.gz"))
    check_new(*targets, replace=replace)


def _loaded(file: Path) -> Trace:
    try:
        return load_trace(file)
    except GpuscopeError as error:  # which names no folder: of several files that may be any
        raise type(error)(f"{file}: {error}") from error


def _traces_of(path: Path) -> list[Path]:
    """Return a file, or the traces in a folder.

    Raises
    ------
    InvalidArgument
        It is the folder of a run with several settings.
    """
    try:
        files = sorted(path.iterdir())
    except (OSError, ValueError):  # it is a file or, as reading it says, nothing
        return [path]
    if len(of_run := trace_names(path)) > 1:
        raise InvalidArgument(
            f"{path} holds the settings of a run, which are no ranks: name a trace of each rank, "
            f"such as {path / of_run[0]}"
        )
    if of_run:
        return [path / of_run[0]]
    return [
        file
        for file in files
        if (known := of_suffix(file.name)) is not None and known.read is not None
    ]


@app.command("sql")
def sql_command(
    file: _File,
    query: Annotated[
        str, typer.Argument(help="Of spans, edges, launches, waits, parts, findings; times in ns.")
    ],
    write: _Write = False,  # noqa: FBT002 - typer's form of a flag
    every: All = False,  # noqa: FBT002 - as above
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Answer a question to a trace in SQL, by DuckDB.

    Examples: gpuscope sql run.parquet "SELECT name, sum(duration_ns) FROM launches GROUP BY name"

    gpuscope sql run.parquet "DESCRIBE waits"
    """
    trace = load_trace(file)
    if as_json:
        terminal.say_json(sql.plain(sql.rows(sql.query(trace, query, write=write))))
        return
    most = None if every else _ROWS + 1  # one more tells that there are more
    rows = sql.rows(sql.query(trace, query, write=write, most=most))
    shown = rows if every else rows[:_ROWS]
    how_many = counted({"rows": len(shown)})
    if len(shown) < len(rows):
        how_many = f"more than {how_many}"
    screen = Screen(every=every)
    screen.table("rows", shown)
    screen.show(f"{how_many}; {trace.provenance}")


@app.command("why")
def why_command(
    file: _File,
    every: All = False,  # noqa: FBT002 - typer's form of a flag
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Say why a recorded program is slow: what the GPU waited for, and what would help.

    Example: gpuscope why out/train/train-1234.parquet
    """
    trace = load_trace(file)
    result = findings(trace)
    verdict = [each for each in result.findings if each.is_problem or each.family == "program"]
    if not result.sections:
        raise MissingEvidence(
            "the trace holds no GPU work of a program: of an experiment, gpuscope summary says "
            "what was found"
        )
    if as_json:
        sections = {title: page.rows() for title, page in result.sections}
        judged = of_findings(result, verdict, f"gpuscope why {shlex.quote(str(file))}")
        facts = list(map(telling.to_json, verdict))
        terminal.say_json({"verdict": judged.to_json(), "findings": facts, **sections})
        return
    screen = Screen(every=every)
    screen.findings(("", finding) for finding in verdict)
    first = {known.title for known in FIRST[:_SECTIONS]}
    for title, page in result.sections:
        if every or title in first:
            screen.result(title, page)
        else:
            screen.detail(title, title)
    screen.show(f"{trace.origin}; {_spans(trace)}")


@app.command("summary")
def summary_command(
    file: _File,
    every: All = False,  # noqa: FBT002 - typer's form of a flag
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Say what is in a trace: what to act on, then what each analysis finds.

    Example: gpuscope summary out/trace-shared.parquet --all
    """
    trace = load_trace(file)
    to_act_on = findings(trace).findings
    asked = {known.name: known.ask(trace) for known in known_analyses()}
    answers = {name: answer for name, answer in asked.items() if answer}
    broken = problems()
    for problem in broken:
        terminal.complain(problem)
    if as_json:
        facts: dict[str, object] = {
            "spans": len(trace),
            "kinds": trace.kind_counts(),
            "provenance": trace.provenance,
            "findings": [telling.to_json(finding) for finding in to_act_on],
            **{
                name: answer if isinstance(answer, str) else answer.rows()
                for name, answer in answers.items()
            },
        }
        terminal.say_json(facts)
    else:
        _show_summary(trace, to_act_on, answers, every=every)
    if broken:
        raise typer.Exit(FAILED)


def _show_summary(
    trace: Trace,
    to_act_on: Sequence[telling.Finding],
    answers: Mapping[str, str | Result],
    *,
    every: bool,
) -> None:
    screen = Screen(every=every)
    screen.findings(("", finding) for finding in to_act_on)
    page = {known.name for known in FIRST} & answers.keys()
    if page and not every:
        screen.note("gpuscope why says what the GPU waited for, and what would help")
    for name, answer in answers.items():
        if name in page and not every:
            continue
        if isinstance(answer, str):
            screen.note(f"{name}: {answer}")
        else:
            screen.result(name, answer)
    screen.note(trace.metadata.left_out)
    screen.show(f"{trace.origin}; {_spans(trace)}")


def _spans(trace: Trace) -> str:
    return f"{len(trace):,} spans: {counted(trace.kind_counts()) or 'none'}"
