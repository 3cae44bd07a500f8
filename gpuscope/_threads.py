"""Threads where there may be none: Python in a browser starts none and has no native ids."""

from __future__ import annotations

import threading
from contextlib import suppress

try:
    from threading import get_native_id as thread_number
except ImportError:
    from threading import get_ident as thread_number

__all__ = ["number_of", "start", "thread_number"]


def number_of(thread: threading.Thread) -> int | None:
    """Return what :func:`thread_number` returns in ``thread``; ``None`` before it starts."""
    number: int | None = getattr(thread, "native_id", thread.ident)
    return number


def start(thread: threading.Thread) -> bool:
    """Start a new thread; return whether it started. If not, its ``ident`` stays ``None``."""
    with suppress(RuntimeError):
        thread.start()
    return thread.ident is not None
