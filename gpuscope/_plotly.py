"""Plotly, imported without the libraries that it only asks for: imported before Plotly is."""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

from gpuscope._optional import is_installed


class _Deferred(ModuleType):
    """A module that is loaded when something of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)  # asked of any module while it is imported
        return getattr(importlib.import_module(self.__name__), name)


def _import_without(user: str, *names: str) -> None:
    """Import a module without others that it imports: one, or one inside the other."""
    if {user, *names} & set(sys.modules) or not is_installed(names[0]):
        return
    deferred = [_Deferred(name) for name in names]
    for around, inside in pairwise(deferred):
        setattr(around, inside.__name__.rpartition(".")[2], inside)
    sys.modules.update(zip(names, deferred, strict=True))
    try:
        importlib.import_module(user)
    finally:
        for name in names:
            del sys.modules[name]


# Looks at data frames, which no figure of ours is given.
_import_without("_plotly_utils.basevalidators", "narwhals", "narwhals.stable", "narwhals.stable.v1")
# Of which show() alone needs the version. It brings jsonschema, whose checks of formats
# (rfc3987-syntax) build a parser at import: seconds before a first figure.
_import_without("plotly.io._renderers", "nbformat")
