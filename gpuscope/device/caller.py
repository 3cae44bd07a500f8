"""The caller's stream: what whoever runs below should launch on.

Pure state: no device is touched, no GPU is needed, and no stream is owned. Two
separate things live here. The *caller stream* is a selection made with
:class:`CallerStreamGuard`; it belongs to one thread and one asyncio task. The
*current stream* is a per-thread, per-device registry that a launch sets while it runs.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, NoReturn

from gpuscope.errors import StreamError

_get_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task
_get_ident = threading.get_ident


class _Selection:
    """What one guard selected, and the thread and task that it selected it for."""

    __slots__ = ("stream", "task", "thread")

    def __init__(self, stream: Any, thread: int, task: Any) -> None:
        self.stream = stream
        self.thread = thread
        self.task = task


_selected: ContextVar[_Selection | None] = ContextVar("gpuscope_caller_stream", default=None)


def _running_task() -> Any:
    loop = _get_running_loop()
    return None if loop is None else _current_task(loop)


def get_caller_stream() -> Any:
    """Return the stream that the innermost guard of this thread and task selected.

    Returns
    -------
    object or None
        The very object given to :class:`CallerStreamGuard`, or ``None`` where no guard
        is active. Handle 0 (the null stream) is a selection: compare with ``None``,
        never test truthiness.

    Notes
    -----
    Child threads and tasks start with ``None``, also those made inside a guard:
    a context copied into them carries the selection, but it names its owner.
    """
    selection = _selected.get()
    if selection is None or selection.thread != _get_ident():
        return None
    if selection.task is not _running_task():
        return None
    return selection.stream


class CallerStreamGuard:
    """Select ``stream`` for everything that runs inside the ``with`` block.

    Parameters
    ----------
    stream
        A gpuscope stream, any object with ``__cuda_stream__``, or an integer handle.

    Raises
    ------
    TypeError
        ``stream`` is none of these; or the guard is copied or pickled.
    StreamError
        (a ``RuntimeError``) The guard is entered twice, left twice, or left on another
        thread or in another task than it was entered. Nothing changes then.

    Notes
    -----
    The innermost guard wins and each exit restores exactly what was there before. The
    guard owns and destroys no stream and touches no device. Origin: contract A,
    the caller-stream guard of ExecuTorch #20158.
    """

    __slots__ = ("_previous", "_selection", "_stream", "_token")

    def __init__(self, stream: Any) -> None:
        if not hasattr(stream, "__cuda_stream__") and (
            not isinstance(stream, int) or isinstance(stream, bool)
        ):
            raise TypeError(
                f"CallerStreamGuard takes a gpuscope stream, an object with __cuda_stream__ or an "
                f"integer handle, not {type(stream).__name__}. Give it a stream made with "
                "create_stream(), or its handle."
            )
        self._stream = stream
        self._selection: _Selection | None = None
        self._token: Token[_Selection | None] | None = None

    def __enter__(self) -> Any:
        if self._selection is not None:
            raise StreamError("this CallerStreamGuard was entered already: make one guard per with")
        loop = _get_running_loop()
        selection = _Selection(
            self._stream, _get_ident(), None if loop is None else _current_task(loop)
        )
        self._selection = selection
        self._token = _selected.set(selection)
        return self._stream

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        token = self._token
        if token is None:
            raise StreamError("this CallerStreamGuard was left already, or never entered")
        selection = self._selection
        if (
            selection is None
            or _selected.get() is not selection
            or selection.thread != _get_ident()
            or selection.task is not _running_task()
        ):
            raise StreamError(
                "a CallerStreamGuard must be left on the thread and in the task that entered it, "
                "innermost first: nothing was changed"
            )
        try:
            _selected.reset(token)
        except ValueError as error:  # a copied context, run on the same thread
            raise StreamError(
                "a CallerStreamGuard must be left in the context that entered it: nothing was "
                "changed"
            ) from error
        self._token = None

    def _refuse_copy(self, *_: object) -> NoReturn:
        raise TypeError(
            "a CallerStreamGuard cannot be copied or pickled: it belongs to one with block"
        )

    __copy__ = __deepcopy__ = __reduce__ = _refuse_copy
    __reduce_ex__ = _refuse_copy


_registry = threading.local()


def _streams_of_this_thread() -> dict[str, Any]:
    try:
        streams: dict[str, Any] = _registry.streams
    except AttributeError:
        streams = _registry.streams = {}
    return streams


def peek_current_stream(device_key: str) -> Any:
    """Return this thread's current stream on a device, or ``None``; never creates one."""
    return _streams_of_this_thread().get(device_key)


def set_current_stream(device_key: str, stream: Any) -> None:
    """Make ``stream`` this thread's current stream on a device."""
    _streams_of_this_thread()[device_key] = stream


def clear_current_stream(device_key: str) -> None:
    """Forget this thread's current stream on a device, if there is one."""
    _streams_of_this_thread().pop(device_key, None)
