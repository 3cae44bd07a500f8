"""What all commands share: the app, the terminal, exit codes."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

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
