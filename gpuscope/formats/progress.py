"""What all writers share: progress, counting what was written, and who wrote it."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Callable
from pathlib import Path

from gpuscope.errors import Cancelled, ExportError

Step = Callable[[int], None]
"""Called after so many more rows; raises to stop."""


def steps(
    total: int, progress: Callable[[int, int], None] | None, cancel: threading.Event | None
) -> Step:
    """Return a step that reports rows done and in all, and stops once ``cancel`` is set."""
    done = 0

    def step(rows: int) -> None:
        nonlocal done
        done += rows
        if cancel is not None and cancel.is_set():
            raise Cancelled("the export was cancelled: no file was left, an older one is unchanged")
        if progress is not None:
            progress(done, total)

    return step


def check_count(path: Path, what: str, written: int, held: int) -> None:
    """Compare what a file holds with what was written.

    Raises
    ------
    ExportError
        They differ.
    """
    if held != written:
        raise ExportError(
            f"{path.name!r} holds {held:,} {what} where {written:,} were written: it was thrown "
            "away. Check the disk and export again"
        )


def version() -> str:
    """Return gpuscope's version, as installed."""
    try:
        return importlib.metadata.version("gpuscope")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"
