"""Limits of this process that stand in the way of writing files."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

_RAISED = resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE


@contextlib.contextmanager
def raised_limits() -> Iterator[None]:
    """Take as many descriptors and as long files as the system grants this process at most.

    The program of this process may have used up, or lowered, those that it has.
    """
    before = {which: resource.getrlimit(which) for which in _RAISED}
    try:
        for which, (_, most) in before.items():
            with contextlib.suppress(OSError, ValueError):  # macOS states more than it grants
                resource.setrlimit(which, (most, most))
        yield
    finally:
        for which, limits in before.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(which, limits)
