"""Races: which pieces of work share bytes, and whether anything orders them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.races.watching import Misbehaved as Misbehaved
    from gpuscope.races.watching import Watched as Watched
    from gpuscope.races.watching import watch as watch
    from gpuscope.record.observers import Happened as Happened

__getattr__, __dir__, __all__ = public(__name__)
