"""The calls of workloads that run on a thread: each has borrowed a stream."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscope.device.scratch import WorkloadContext


class _OfThread(threading.local):
    """The contexts that are open on a thread, outermost first.

    Entering and leaving are one store each: who saved ``open`` before can leave by another.
    """

    def __init__(self) -> None:
        self.open: tuple[WorkloadContext, ...] = ()


of_thread = _OfThread()


def open_contexts() -> tuple[WorkloadContext, ...]:
    """Return the contexts that are open on this thread, outermost first."""
    return of_thread.open
