"""Trace formats. Each is declared once; export, load_trace, help and docs derive from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.formats.format import Format as Format
    from gpuscope.formats.limits import Limits as Limits
    from gpuscope.formats.progress import Step as Step
    from gpuscope.formats.registry import forget_plugins as forget_plugins
    from gpuscope.formats.registry import known_formats as known_formats
    from gpuscope.formats.registry import problems as problems
    from gpuscope.formats.registry import table as table

_HOMES = {
    "Format": "gpuscope.formats.format",
    "Step": "gpuscope.formats.progress",
    "Limits": "gpuscope.formats.limits",
    "forget_plugins": "gpuscope.formats.registry",
    "known_formats": "gpuscope.formats.registry",
    "problems": "gpuscope.formats.registry",
    "table": "gpuscope.formats.registry",
}
__all__ = [*_HOMES]  # noqa: PLE0604 - every key is a string
__getattr__, __dir__ = public(__name__, _HOMES)
