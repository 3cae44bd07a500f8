"""What ``profile(live=True)`` shows: importing this subscribes to the session's recordings."""

from __future__ import annotations

from IPython.display import display

from gpuscope import session
from gpuscope.widgets.timeline import Timeline


def open_timeline() -> Timeline:
    """Show a timeline that waits for a recording."""
    timeline = Timeline()
    display(timeline)  # type: ignore[no-untyped-call]
    return timeline


session.live_viewers.append(open_timeline)
