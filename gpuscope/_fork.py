"""What a forked child finds: locks that are free.

A child has only the thread that forked. A lock that another thread of its parent held at that
moment would stay held for ever, and so what is there to refuse would hang instead.
"""

from __future__ import annotations

import os
import weakref
from typing import TypeVar

_Lock = TypeVar("_Lock")
_locks: weakref.WeakSet[object] = weakref.WeakSet()


def free_in_children(lock: _Lock) -> _Lock:
    """Return a lock of :mod:`threading`, which a forked child then finds free."""
    _locks.add(lock)
    return lock


def _free() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
