"""``view``, ``export``, ``merge``, ``sql`` and ``why``: trace files, whoever made them."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from gpuscope import _foreign, telling
from gpuscope._files import check_new
from gpuscope._text import counted
from gpuscope.analyses import FIRST, Analysis, findings, known_analyses, problems, sql
from gpuscope.analysis.result import Result
from gpuscope.analysis.settings import settings_table
from gpuscope.cli import FAILED
from gpuscope.cli import app as terminal
from gpuscope.cli.app import All, Force, Json, app
from gpuscope.cli.experiments import tell_run
from gpuscope.cli.screen import Screen
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.formats.reading import load_trace
from gpuscope.formats.registry import of_suffix, suffixes
from gpuscope.formats.writing import export
from gpuscope.judging.told import of_findings
from gpuscope.report import trace_report
from gpuscope.telling.finding import FindingsResult
from gpuscope.trace.folder import COMPARISON, is_folder, load_run, trace_names
from gpuscope.trace.merging import are_ranks, merge
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run

_ROWS = 10_000
"""Of a query's answer that are worked out for one screen."""
_SECTIONS = 4
"""Of a program's first page, as tables on one screen."""
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
    *,
    code: Annotated[
        bool,
        typer.Option(
            "--code/--no-code", help="Keep names of functions and files of the program's code."
        ),
    ] = True,
    force: Force = False,
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
            trace,
            path,
            keep_code=code,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
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
        if (trace_format := of_suffix(file.name)) is not None and trace_format.read is not None
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


@app.command("summary", help="The same as why. Example: gpuscope summary out/trace-shared.parquet")
@app.command("why")
def why_command(
    file: Annotated[
        Path,
        typer.Argument(
            help=f"A trace: {suffixes('read')}; the content says which. Or the folder of a run, or "
            "of a recorded program, whose ranks are put on one clock."
        ),
    ],
    every: All = False,  # noqa: FBT002 - typer's form of a flag
    as_json: Json = False,  # noqa: FBT002 - as above
) -> None:
    """Say what a trace is about: what to act on and why it is slow, then the numbers.

    Of a recorded program these are what the GPU waited for, and what would help; of any other trace
    what each analysis finds; of a run how its settings compare. Where a package's analysis cannot
    be loaded, this exits with 1.

    Examples: gpuscope why out/train/train-1234.parquet

    gpuscope why out/trace-shared.parquet --all

    gpuscope why out/quickstart
    """
    if is_folder(file):
        if trace_names(file):
            tell_run(_saved_run(file), [], None, every=every, as_json=as_json)
            return
        trace = _trace_in(file)
    else:
        trace = load_trace(file)
    result = findings(trace)
    broken = problems()
    for problem in broken:
        terminal.complain(problem)
    if as_json:
        again = f"gpuscope why {shlex.quote(str(file))}"
        facts: dict[str, object] = {
            "verdict": of_findings(result, again).to_json(),
            "spans": len(trace),
            "kinds": trace.kind_counts(),
            "provenance": trace.provenance,
            "findings": [telling.to_json(finding) for finding in result.findings],
            **{
                analysis.name: answer if isinstance(answer, str) else answer.rows()
                for analysis, answer in _answers(trace).items()
            },
        }
        terminal.say_json(facts)
    else:
        _show_page(trace, result, every=every)
    if broken:
        raise typer.Exit(FAILED)


def _saved_run(folder: Path) -> Run:
    """Return the run that was written to a folder."""
    traces = load_run(folder)
    first = next(iter(traces.values())).metadata
    facts = _foreign.load(folder / COMPARISON)
    return Run(
        traces,
        settings_table(traces),
        first.experiment or {"name": folder.name},
        stopped=isinstance(facts, dict) and facts.get("stopped") is True,
    )


def _trace_in(folder: Path) -> Trace:
    """Return the one trace in the folder of a recorded program, or its ranks' as one."""
    files = sorted(folder.glob("*.parquet"))
    if len(files) == 1:
        return load_trace(files[0])
    if not files:
        raise GpuscopeError(
            f"there is no run and no .parquet file in {str(folder)!r}: name the --out folder of a "
            "gpuscope run or record, or a trace"
        )
    if are_ranks(traces := [_loaded(file) for file in files]):
        return merge(traces)
    raise GpuscopeError(
        f"{len(files)} traces are in {str(folder)!r}, not one of each rank: name one of them, such "
        f"as {files[0].name!r}"
    )


def _answers(trace: Trace) -> dict[Analysis, Result | str]:
    """Return what each analysis finds, or why it cannot tell where that is to be said."""
    asked = {analysis: analysis.ask(trace) for analysis in known_analyses()}
    return {analysis: answer for analysis, answer in asked.items() if answer}


def _show_page(trace: Trace, result: FindingsResult, *, every: bool) -> None:
    screen = Screen(every=every)
    screen.findings(("", finding) for finding in result.findings)
    if result.is_of_program and not every:
        later = {section.title for section in FIRST[_SECTIONS:]}
        for title, page in result.sections:
            if title in later:
                screen.detail(title, title)
            else:
                screen.result(title, page)
        screen.detail("other analyses", "other analyses")
    else:
        for analysis, answer in _answers(trace).items():
            if isinstance(answer, str):
                screen.note(f"{analysis.title}: {answer}")
            else:
                screen.result(analysis.title, answer)
    screen.note(trace.metadata.left_out)
    screen.show(f"{trace.origin}; {_spans(trace)}")


def _spans(trace: Trace) -> str:
    return f"{len(trace):,} spans: {counted(trace.kind_counts()) or 'none'}"
