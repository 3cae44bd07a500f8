"""What all commands share: the app, the terminal, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpuscope.errors import GpuscopeError

FAILED, BAD_USAGE = 1, 2

app = typer.Typer(
    help="Carve a GPU's SMs, assign streams, launch, and see what overlapped.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
stdout = Console(soft_wrap=True)
stderr = Console(stderr=True, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def make_folder(folder: Path) -> None:
    """Make it, with what is above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GpuscopeError(
            f"cannot make the folder {folder.name!r}: {error.strerror}. Choose another with --out"
        ) from error
