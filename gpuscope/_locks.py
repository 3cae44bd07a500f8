"""Locks of open files and folders, for processes of one host."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from typing import IO


def lock(opened: int | IO[bytes]) -> bool:
    """Hold the lock of an open file or folder until it is closed; waits while another holds it.

    The kernel frees it, too, when a process dies. A file system without locks holds nobody up.

    Returns
    -------
    bool
        Whether it is held.
    """
    with suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_EX)
        return True
    return False


def try_lock(opened: int | IO[bytes]) -> bool:
    """Hold the lock of an open file or folder until it is closed, unless another holds it.

    Parameters
    ----------
    opened
        The file, or the descriptor of a folder.

    Returns
    -------
    bool
        Whether it is held.

    Raises
    ------
    OSError
        The file system has no locks.

    Examples
    --------
    >>> from gpuscope.extending import try_lock
    >>> with open("journal", "wb") as first, open("journal", "rb") as second:
    ...     try_lock(first), try_lock(second)
    (True, False)
    """
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
