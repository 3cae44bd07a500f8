"""ShownTimeline: what ``profile(live=True)`` shows."""

from __future__ import annotations

from gpuscope.widgets.saved import display
from gpuscope.widgets.timeline import Timeline


class ShownTimeline(Timeline):
    """A timeline where the cell's output is."""

    def __init__(self) -> None:
        super().__init__()
        display(self)

    def finish(self) -> None:
        """Show the whole recording, which has ended, and read it no more."""
        super().finish()
        self.keep()
