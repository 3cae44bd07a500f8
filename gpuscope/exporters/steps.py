"""Progress of an export, and its way to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuscope.errors import Cancelled

Step = Callable[[int], None]
"""Told after so many more rows; raises to stop."""


def silent(rows: int) -> None:
    """Tell nobody."""
    del rows


def steps(
    total: int, progress: Callable[[int, int], None] | None, cancel: threading.Event | None
) -> Step:
    """Return a step that tells rows done and in all, and stops once ``cancel`` is set."""
    done = 0

    def step(rows: int) -> None:
        nonlocal done
        done += rows
        if cancel is not None and cancel.is_set():
            raise Cancelled("the export was cancelled: no file was left, an older one is unchanged")
        if progress is not None:
            progress(done, total)

    return step
