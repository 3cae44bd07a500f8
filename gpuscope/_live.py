"""Views of a recording that goes on. The package's root says which one is the usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuscope.record.recorder import Recording


class LiveView(Protocol):
    """Shows a recording while it goes on."""

    def watch(self, recording: Recording) -> None:
        """Show what there is of ``recording``, again and again; returns at once."""

    def finish(self) -> None:
        """Show the whole recording, which has ended, and read it no more."""


ViewMaker = Callable[[], LiveView]

usual: list[ViewMaker] = []
"""Makes the view of ``profile(live=True)``: one, which the package's root puts here, so that
``runs`` need not import ``widgets``."""
