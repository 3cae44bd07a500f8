"""Public names that resolve at first use (PEP 562), so that importing a room loads none of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

from gpuscope._optional import needed_for


def public(
    room: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a room's ``__getattr__`` and ``__dir__``.

    Parameters
    ----------
    room
        Its ``__name__``.
    homes
        Name → module that has it; a module that is itself the name ends in it.
    """

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

    return resolve, names
