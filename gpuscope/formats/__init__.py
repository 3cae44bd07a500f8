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

__getattr__, __dir__, __all__ = public(__name__)
