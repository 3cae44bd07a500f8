"""What all commands share: the app, the terminal, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from gpuscope import __version__
from gpuscope._tables import Rows, table_lines
from gpuscope._text import clean, clean_lines
from gpuscope.device.device import Device
from gpuscope.device.select import open_device
from gpuscope.experiments.runner import Progress as RunProgress
from gpuscope.experiments.runner import Viewer

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's form of a flag
    if wanted:
        sys.stdout.write(f"gpuscope {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Carve a GPU's SMs, assign streams, launch, and see what overlapped."""
    del version


class _Terminal(Console):
    """A terminal on which text is text: what it shows may come from anywhere."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, markup=False, highlight=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render as Rich does, and take out what would control the terminal."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(clean_lines(part.text), part.style)


_stdout, stderr = _Terminal(), _Terminal(stderr=True)


def say(line: object) -> None:
    """Print one ``line``, whatever text it is.

    Examples
    --------
    >>> from gpuscope.cli.app import say
    >>> say("hello")
    hello
    """
    _stdout.print(clean(line))


def say_lines(lines: Sequence[str], style: str = "") -> None:
    """Print lines of plain text, if there are any."""
    if lines:
        _stdout.print(Text("\n".join(lines), style=style))


def complain(text: str) -> None:
    """Print lines to where errors go; where that is full or nobody reads it, nowhere."""
    try:
        stderr.print(text)
    except (OSError, SystemExit):  # what Rich makes of a pipe that is closed
        with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.__stderr__.fileno() if sys.__stderr__ else 2)


def show_table(title: str, rows: Rows) -> None:
    """Print a table of plain text, with all its columns."""
    say_lines(table_lines(list(rows[0]), rows, title=title, every=True)[0])


def say_result(result: object) -> None:
    """Print a ``result`` as ``print`` shows it: a table, and what it rests on.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.cli.app import say_result
    >>> say_result(gs.analysis.Result())
    no rows
    """
    _stdout.print(clean_lines(result))


@contextlib.contextmanager
def run_bar(name: str) -> Iterator[Viewer]:
    """Show the progress of a run, or of several, as their viewer."""
    with progress_bar(TimeRemainingColumn()) as bar:
        task = bar.add_task(name)

        def view(progress: RunProgress) -> None:
            bar.update(
                task,
                total=progress.total,
                completed=progress.done,
                description=f"{progress.setting}, round {progress.round + 1}, {progress.phase}",
            )

        yield view


def progress_bar(time_column: ProgressColumn) -> Progress:
    """Return a bar that goes when it is done; descriptions are foreign text: no markup."""
    description = TextColumn("{task.description}", markup=False)
    return Progress(description, BarColumn(), time_column, console=stderr, transient=True)


def show_check(text: str, todo: str, *, ok: bool) -> None:
    """Print what was checked and, unless it is all right, what to do."""
    _stdout.print(Text("ok " if ok else "no ", style="green" if ok else "red"), clean(text))
    if not ok:
        _stdout.print(f"     → {clean(todo)}")


def json_text(facts: object, indent: int | None = 1) -> str:
    """Return JSON for programs: ASCII without control characters."""
    return json.dumps(facts, indent=indent).replace("\x7f", "\\u007f") + "\n"


def say_json(facts: object, indent: int | None = 1) -> None:
    """Print ``facts`` as JSON for programs, with this ``indent``.

    Examples
    --------
    >>> from gpuscope.cli.app import say_json
    >>> say_json({"a": 1}, indent=None)
    {"a": 1}
    """
    sys.stdout.write(json_text(facts, indent))


def say_text(text: str) -> None:
    """Print text of ours for a file, such as Markdown: as long as its lines are."""
    sys.stdout.write(clean_lines(text) + "\n")


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
All = Annotated[bool, typer.Option("--all", help="Print all that there is, not one screen of it.")]


def open_target(spec: str, *, as_json: bool) -> Device:
    """Open a device and say which; of one that was named as simulated only the screen does."""
    return open_device(spec, quiet=as_json or spec.startswith("sim:"))
