"""The captures that are open in this process: a wait for the whole device would spoil them all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from gpuscope._fork import free_in_children
from gpuscope.errors import StreamError

_changed = free_in_children(threading.Condition())
_open: dict[int, threading.Thread] = {}
"""By the handle of the stream, the thread that captures it."""


def begin(handle: int) -> None:
    """Note that this thread captures a stream."""
    with _changed:
        _open[handle] = threading.current_thread()


def end(handle: int) -> None:
    """Note that a stream is not captured any more."""
    with _changed:
        _open.pop(handle, None)
        _changed.notify_all()


@contextlib.contextmanager
def none_open(what: str) -> Iterator[None]:
    """Wait until no thread captures, and let none begin inside the block.

    The driver refuses some calls while a stream of the context is captured, and spoils the
    capture, whichever thread began it and in whatever mode: ``cuCtxSynchronize`` (seen with
    driver 580), which ``cublasDestroy`` calls, and ``cuGreenCtxRecordEvent`` (as documented).

    Raises
    ------
    StreamError
        This thread captures, and would wait for itself.
    """
    with _changed:
        if threading.current_thread() in _open.values():
            raise StreamError(
                f"{what} waits for the whole device, which would spoil the capture that is open on "
                "this thread (cudaErrorStreamCaptureUnsupported): leave the capture first"
            )
        _changed.wait_for(lambda: not _open)
        yield
