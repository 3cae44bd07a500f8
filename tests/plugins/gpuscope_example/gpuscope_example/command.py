"""A command: ``gpuscope greet``."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuscope.cli.app import say


def greet(name: Annotated[str, typer.Argument(help="Whom.")]) -> None:
    """Greet somebody."""
    say(f"hello {name}")
