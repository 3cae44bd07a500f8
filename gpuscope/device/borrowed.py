"""The calls of workloads that run on a thread: each has borrowed a stream."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from gpuscope.errors import StreamError

if TYPE_CHECKING:
    from gpuscope.device.scratch import WorkloadContext
    from gpuscope.device.stream import Stream


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


def require_not_borrowed(streams: Collection[Stream]) -> None:
    """Refuse to close streams of which a workload's call on this thread has borrowed one."""
    for context in open_contexts():
        if context.stream in streams:
            raise StreamError(
                f"stream {context.stream.name!r} is borrowed by a workload's call that runs on "
                "this thread, and cannot be closed inside it: close it when execute() has "
                "returned. Nothing was changed"
            )
