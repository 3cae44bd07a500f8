"""What all commands share: the app, the terminal, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterable, Iterator
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gpuscope._text import clean, clean_lines, format_value

app = typer.Typer(
    help="Carve a GPU's SMs, assign streams, launch, and see what overlapped.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


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
    """Print one line."""
    _stdout.print(clean(line))


def complain(text: str) -> None:
    """Print lines to where errors go."""
    stderr.print(text)


def say_written(paths: Iterable[object]) -> None:
    """Print which files were written."""
    for path in paths:
        say(f"wrote {path}")


def show_table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    unbroken: Container[str] = (),
) -> None:
    """Print a table of plain text, each cell on one line.

    Parameters
    ----------
    unbroken
        Columns whose cells are not folded.
    """
    table = Table(title=title)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in unbroken)
    for row in rows:
        table.add_row(*(Text(clean(format_value(cell))) for cell in row))
    _stdout.print(table)


def progress_bar(time_column: ProgressColumn) -> Progress:
    """Return a bar that goes when it is done; descriptions are foreign text: no markup."""
    description = TextColumn("{task.description}", markup=False)
    return Progress(description, BarColumn(), time_column, console=stderr, transient=True)


def show_check(text: str, todo: str, *, ok: bool) -> None:
    """Print what was checked and, unless it is all right, what to do."""
    _stdout.print(Text("ok " if ok else "no ", style="green" if ok else "red"), clean(text))
    if not ok:
        _stdout.print(f"     → {clean(todo)}")


def say_json(facts: object) -> None:
    """Print JSON for programs: ASCII without control characters."""
    sys.stdout.write(json.dumps(facts, indent=1).replace("\x7f", "\\u007f") + "\n")


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
