"""Public names that resolve at first use (PEP 562), so that importing a room loads none of it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable

from gpuscope._optional import needed_for


def public(room: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return a room's ``__getattr__``, ``__dir__`` and ``__all__``.

    Its names are those that it imports ``as`` themselves for type checkers.

    Parameters
    ----------
    room
        Its ``__name__``.

    Examples
    --------
    >>> import gpuscope.search
    >>> from gpuscope.extending import public
    >>> resolve, _, names = public("gpuscope.search")
    >>> "sweep" in names, resolve("sweep") is gpuscope.search.sweep
    (True, True)
    """
    homes = _homes(room)

    def resolve(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        with needed_for(f"{room}.{name}"):
            module = importlib.import_module(homes[name])
        value = module if homes[name] == f"{room}.{name}" else getattr(module, name)
        setattr(sys.modules[room], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *homes})

    return resolve, names, [*homes]


def _homes(room: str) -> dict[str, str]:
    """Return name → module that has it; a module that is itself the name ends in it."""
    spec = sys.modules[room].__spec__
    source = getattr(spec and spec.loader, "get_source", lambda _: "")(room)
    imports = re.findall(r"from (\S+) import \(?\s*((?!_)\w+) as \2\b", source)
    return {name: f"{room}.{name}" if home == room else home for home, name in imports}
