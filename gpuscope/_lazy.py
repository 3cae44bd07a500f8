"""Public names that resolve at first use (PEP 562), so that importing a room loads none of it.

What a room offers is what the ``if TYPE_CHECKING:`` of its ``__init__`` imports under its own name
(``from a import b as b``): one table, for type checkers and at run time.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, cast

from gpuscope._optional import needed_for

if TYPE_CHECKING:
    from importlib.abc import InspectLoader


@cache
def homes(room: str) -> Mapping[str, str]:
    """Return the names that a room offers → the modules that have them.

    A module that is itself the name ends in it.
    """
    import ast  # noqa: PLC0415 - importing a room needs none of it

    spec = sys.modules[room].__spec__
    loader = cast("InspectLoader", spec.loader if spec is not None else None)
    return {
        alias.name: room + "." + alias.name if line.module == room else line.module or ""
        for block in ast.parse(loader.get_source(room) or "").body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
        if alias.asname == alias.name
    }


def public(
    room: str, homes: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return a room's ``__getattr__``, ``__dir__`` and ``__all__``.

    Parameters
    ----------
    room
        Its ``__name__``.
    homes
        Name → module that has it; a module that is itself the name ends in it. If not given, what
        the room imports ``as`` itself for type checkers.
    """
    homes = _homes(room) if homes is None else homes

    def resolve(name: str) -> object:
        known = others or homes(room)
        if name == "__all__" and others is None:
            return [*known]
        if name not in known:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        home = known[name]
        with needed_for(f"{room}.{name}"):
            module = importlib.import_module(home)
        value = module if home == f"{room}.{name}" else getattr(module, name)
        setattr(sys.modules[room], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *(others or homes(room))})

    return resolve, names, [*homes]


def _homes(room: str) -> dict[str, str]:
    """Return name → module of what a room imports as itself for type checkers."""
    spec = sys.modules[room].__spec__
    source = getattr(spec and spec.loader, "get_source", lambda _: "")(room)
    imports = re.findall(r"from (\S+) import \(?\s*((?!_)\w+) as \2\b", source)
    return {name: f"{room}.{name}" if home == room else home for home, name in imports}
