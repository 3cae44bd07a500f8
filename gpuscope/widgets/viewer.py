"""What ``profile(live=True)`` shows."""

from __future__ import annotations

import secrets

from gpuscope.record.recorder import Recording
from gpuscope.widgets.saved import display
from gpuscope.widgets.timeline import Timeline


class ShownTimeline:
    """A timeline where the cell's output is."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._place = display(self.timeline, f"gpuscope-{secrets.token_hex(8)}")

    def watch(self, recording: Recording) -> None:
        """Show what there is of ``recording``, again and again; returns at once."""
        self.timeline.watch(recording)

    def finish(self) -> None:
        """Show the whole recording, which has ended, and read it no more."""
        self.timeline.finish()
        if self._place is not None and not self.timeline.is_seen:
            self._place.update(self.timeline)  # what is kept shows the end, not the beginning
