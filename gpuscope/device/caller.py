"""The caller's stream: what whoever runs below should launch on.

Pure state: no device is touched, no GPU is needed, and no stream is owned. Two
separate things live here. The *caller stream* is a selection made with
:class:`CallerStreamGuard`; it belongs to one thread and one asyncio task. The
*current stream* is a per-thread, per-device registry that a launch sets while it runs.

Both live in one slot per process, kept beside the modules: it survives a reload of this
module, and a second copy of the package under another name reads and writes the same.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import types
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, NoReturn

from gpuscope.errors import StreamError

_get_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task
_get_ident = threading.get_ident

_SLOT = "_gpuscope_caller_stream_slot"


def _slot() -> Any:
    """Return the process's slot; the first copy of the package to come makes it."""
    slot = sys.modules.get(_SLOT)
    if slot is None:
        slot = types.ModuleType(_SLOT, "Where gpuscope keeps the caller stream of each thread.")
        slot.selected = ContextVar(_SLOT, default=None)  # type: ignore[attr-defined]
        slot.registry = threading.local()  # type: ignore[attr-defined]
        slot = sys.modules.setdefault(_SLOT, slot)
    return slot


# The guard that is innermost. Guards of another copy of the package are read by the names
# of their attributes, so these names are part of the slot: stream, thread, task.
_selected: ContextVar[Any] = _slot().selected
_registry: Any = _slot().registry
_get_selected = _selected.get
_set_selected = _selected.set
_reset_selected = _selected.reset


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
    guard = _get_selected()
    if guard is None or guard.thread != _get_ident():
        return None
    loop = _get_running_loop()
    if guard.task is not (None if loop is None else _current_task(loop)):
        return None
    return guard.stream


class CallerStreamGuard:
    """Select ``stream`` for everything that runs inside the ``with`` block.

    Parameters
    ----------
    stream
        A gpuscope stream, any object with ``__cuda_stream__``, or an integer handle.
    bind
        Also make it the current stream of CuPy and PyTorch, if they are imported already,
        and restore theirs on exit. They keep current streams per thread, so a bound guard
        may not span an ``await``.

    Raises
    ------
    TypeError
        ``stream`` is none of these; or the guard is copied or pickled.
    StreamError
        (a ``RuntimeError``) The guard is entered twice, left twice, left on another thread
        or in another task than it was entered, or left while CuPy or PyTorch have another
        current stream than it gave them. Nothing changes then.

    Notes
    -----
    The innermost guard wins and each exit restores exactly what was there before. The
    guard owns and destroys no stream and touches no device. Origin: contract A,
    the caller-stream guard of ExecuTorch #20158.
    """

    __slots__ = ("_bind", "_token", "_undo", "stream", "task", "thread")

    def __init__(self, stream: Any, *, bind: bool = False) -> None:
        if not hasattr(stream, "__cuda_stream__") and (
            not isinstance(stream, int) or isinstance(stream, bool)
        ):
            raise TypeError(
                f"CallerStreamGuard takes a gpuscope stream, an object with __cuda_stream__ or an "
                f"integer handle, not {type(stream).__name__}. Give it a stream made with "
                "create_stream(), or its handle."
            )
        self.stream = stream
        self._bind = bind
        self._token: Token[Any] | bool | None = None

    def __enter__(self) -> Any:
        if self._token is not None:
            raise StreamError("this CallerStreamGuard was entered already: make one guard per with")
        loop = _get_running_loop()
        self.thread = _get_ident()
        self.task = None if loop is None else _current_task(loop)
        if self._bind:
            self._undo = _bind_libraries(self.stream)
        self._token = _set_selected(self)
        return self.stream

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = _get_running_loop()
        if (
            _get_selected() is not self
            or self.thread != _get_ident()
            or self.task is not (None if loop is None else _current_task(loop))
        ):
            raise StreamError(
                "this CallerStreamGuard was left already or never entered"
                if not self._token
                else "a CallerStreamGuard must be left on the thread and in the task that entered "
                "it, innermost first: nothing was changed"
            )
        if self._bind and not all(intact() for intact, _ in self._undo):
            raise StreamError(
                "a bound CallerStreamGuard is left while CuPy or PyTorch have another current "
                "stream than it gave them: leave guards innermost first, and do not await inside "
                "a bound one. Nothing was changed"
            )
        try:
            _reset_selected(self._token)
        except ValueError:
            raise StreamError(
                "a CallerStreamGuard must be left in the context that entered it, not in a copy "
                "of it: nothing was changed"
            ) from None
        self._token = False
        if self._bind:
            for _, restore in self._undo:
                restore()

    def _refuse_copy(self, *_: object) -> NoReturn:
        raise TypeError(
            "a CallerStreamGuard cannot be copied or pickled: it belongs to one with block"
        )

    __copy__ = __deepcopy__ = __reduce__ = _refuse_copy
    __reduce_ex__ = _refuse_copy


# -- binding to libraries ------------------------------------------------------------------
def raw_handle(stream: Any) -> int:
    """Return the integer handle of anything that a guard accepts."""
    return stream if isinstance(stream, int) else int(stream.__cuda_stream__()[1])


_Undo = tuple[Callable[[], bool], Callable[[], None]]
"""Whether a library still has the stream it was given, and what gives it back its own."""


def _bind_libraries(stream: Any) -> list[_Undo]:
    """Make ``stream`` current for CuPy and PyTorch where they are imported."""
    handle = raw_handle(stream)
    return [undo for bind in (_bind_cupy, _bind_torch) if (undo := bind(stream, handle))]


def _bind_cupy(stream: Any, handle: int) -> _Undo | None:
    cupy_stream = getattr(getattr(sys.modules.get("cupy"), "cuda", None), "stream", None)
    if cupy_stream is None:
        return None
    get_current = cupy_stream.get_current_stream
    before = get_current()
    ours = getattr(stream, "cupy_stream", None)
    if ours is None:
        ours = cupy_stream.Stream.from_external(_Handle(handle))
        if hasattr(stream, "cupy_stream"):
            stream.cupy_stream = ours
    ours.use()
    return (lambda: get_current().ptr == handle), before.use


def _bind_torch(stream: Any, handle: int) -> _Undo | None:
    del stream
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available():
        return None
    before = cuda.current_stream()
    cuda.set_stream(cuda.ExternalStream(handle))
    return (lambda: cuda.current_stream().cuda_stream == handle), (lambda: cuda.set_stream(before))


class _Handle:
    """A raw handle as an object with ``__cuda_stream__``."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


# -- for native code -----------------------------------------------------------------------
CAPSULE_NAME = b"gpuscope.caller_stream.v1"
"""Name of the capsule that :func:`caller_stream_capsule` returns."""

_GETTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))


def _native_getter(out: Any) -> int:
    stream = get_caller_stream()
    if stream is None:
        return 0
    out[0] = raw_handle(stream)
    return 1


_native = _GETTER(_native_getter)


def caller_stream_capsule() -> Any:
    """Return a capsule with a C function that reads this process's caller stream.

    The function is ``int get(uint64_t *stream)``: it returns 1 and writes the
    ``cudaStream_t`` that the calling thread's innermost guard selected, or returns 0 and
    writes nothing where no guard is active. It takes the GIL: call it from a thread that
    may wait for it, not while holding a lock that a Python thread may want.

    Returns
    -------
    capsule
        Named ``gpuscope.caller_stream.v1``; unpack it with ``PyCapsule_GetPointer``. It
        lives as long as the process.
    """
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.cast(_native, ctypes.c_void_p), CAPSULE_NAME, None)


# -- the current stream of a thread --------------------------------------------------------
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


class running_on:  # noqa: N801 - used like a function
    """Make ``stream`` current for a call into a backend; restore or clear on every way out."""

    __slots__ = ("_before", "_key", "_stream")

    def __init__(self, device_key: str, stream: Any) -> None:
        self._key = device_key
        self._stream = stream

    def __enter__(self) -> None:
        self._before = peek_current_stream(self._key)
        set_current_stream(self._key, self._stream)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is None:
            clear_current_stream(self._key)
        else:
            set_current_stream(self._key, self._before)
