"""The app with every command: those of the core, then those that are registered."""

from __future__ import annotations

from collections.abc import Callable

import typer
from rich.markup import escape

from gpuscope._optional import require
from gpuscope._plugins import Plugins
from gpuscope.cli import experiments, judging, machine, recording, series, traces
from gpuscope.cli.app import app
from gpuscope.errors import MissingDependency

__all__ = ["app", "experiments", "judging", "machine", "recording", "series", "traces"]

Command = Callable[..., object]
"""A function whose parameters typer reads."""
_CORE = frozenset(command.name for command in app.registered_commands)


COMMANDS: Plugins[Command] = Plugins("gpuscope.commands", "command")
LESSONS = "assignment", "grade", "lessons"
"""What the lessons, a package of their own, declare: without it, these say how to install it."""


def _register(name: str) -> None:
    """Add a registered command; where it cannot be used, one that says why."""
    try:
        function = COMMANDS.find(name)
        if function is None:
            require("gpuscope_lessons", feature=f"the command {name!r}")
    except MissingDependency as error:
        refusal = error

        def refuse(_context: typer.Context) -> None:
            raise refusal

        anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        why = escape(f"Cannot be used: {error}")
        app.command(name, help=why, context_settings=anything)(refuse)
        return
    if function is not None:
        app.command(name)(function)


for _name in dict.fromkeys((*COMMANDS.names(), *LESSONS)):
    if _name not in _CORE:
        _register(_name)
