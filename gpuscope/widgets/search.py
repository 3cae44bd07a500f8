"""The matches of a search, and stepping through them."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Array
from gpuscope.widgets.state import TimelineState
from gpuscope.widgets.window import Window


class Search:
    """A search text, its matches, and the current one.

    Attributes
    ----------
    text
        What names are searched for; empty: nothing.
    rows
        The rows that match, by start.
    at
        Position in ``rows``; −1 before the first step.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.rows: Array = np.zeros(0, np.int64)
        self.at = -1

    def look(self, state: TimelineState) -> None:
        """Update the matches: rows may have been added."""
        here = self.rows[self.at] if self.at >= 0 else None
        self.rows = state.named(self.text)
        self.at = -1 if here is None else int(np.flatnonzero(self.rows == here)[0])

    def go(self, step: int, state: TimelineState, window: Window) -> int | None:
        """Return the row that is ``step`` further; at first, the one that is next in the view."""
        if not len(self.rows):
            return None
        if self.at < 0:
            starts = state.tracks.start_ns[self.rows]
            self.at = int(np.searchsorted(starts, window[0])) - (step < 0)
        else:
            self.at += step
        self.at %= len(self.rows)
        return int(self.rows[self.at])
