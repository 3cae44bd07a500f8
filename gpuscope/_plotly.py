"""Imported before Plotly, which would load what it only needs to know to be there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """A module that is loaded when something of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)  # asked of any module while it is imported
        return getattr(importlib.import_module(self.__name__), name)


def _import_renderers() -> None:
    """Import Plotly's renderers without nbformat, of which show() alone needs the version.

    It brings jsonschema, whose checks of formats (rfc3987-syntax) build a parser at import:
    seconds before a first figure.
    """
    name, user = "nbformat", "plotly.io._renderers"
    if {name, user} & set(sys.modules) or importlib.util.find_spec(name) is None:
        return
    sys.modules[name] = _Deferred(name)
    try:
        importlib.import_module(user)
    finally:
        del sys.modules[name]


_import_renderers()
