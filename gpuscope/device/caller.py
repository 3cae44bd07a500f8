"""The caller's stream: what whoever runs below should launch on.

Pure state: no device is touched, no GPU is needed, and no stream is owned. Two
separate things live here. The *caller stream* is a selection made with
:class:`CallerStreamGuard`; it belongs to one thread and one asyncio task. The
*current stream* is a per-thread, per-device registry that a launch sets while it runs.

Both live in one slot per process, kept beside the modules: it survives a reload of this
module, and a second copy of the package under another name reads and writes the same. A second
interpreter in the process has modules, and so a slot, of its own.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Hashable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gpuscope._compiled import fastpath as _fastpath
from gpuscope._fork import free_in_children
from gpuscope._threads import number_of, thread_number
from gpuscope.device import handles
from gpuscope.device.handles import AnyStream
from gpuscope.device.unique import Unique
from gpuscope.errors import StreamError

if TYPE_CHECKING:  # which loads NumPy
    from gpuscope.device.owner import Owner

_get_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task


Task: TypeAlias = "asyncio.Task[object]"
_SLOT = "_gpuscope_caller_stream_slot"


class _OfThread(threading.local):
    """The innermost guard of a thread outside any task.

    Attributes
    ----------
    every
        Thread id → what this thread keeps here, for who asks about all threads. A thread that
        ended inside a guard is forgotten when somebody asks.
    """

    guard: CallerStreamGuard | None = None
    every: dict[int, dict[str, CallerStreamGuard | None]] = {}  # noqa: RUF012 - one for all threads is meant

    def __init__(self) -> None:
        self.every[thread_number()] = self.__dict__


def process_slot() -> types.ModuleType:
    """Return the process's slot; the first copy of the package to come makes it."""
    slot = sys.modules.get(_SLOT)
    if slot is None:
        slot = types.ModuleType(_SLOT, "Where gpuscope keeps the caller stream of each thread.")
        slot.of_thread = _OfThread()  # type: ignore[attr-defined]
        slot.streams = threading.local()  # type: ignore[attr-defined]
        slot.of_task = ContextVar(_SLOT, default=None)  # type: ignore[attr-defined]
        slot.never, slot.left = object(), object()  # type: ignore[attr-defined]
        slot.accepted = {int}  # type: ignore[attr-defined]
        slot.watchers = ()  # type: ignore[attr-defined]
        slot.watching = free_in_children(threading.Lock())  # type: ignore[attr-defined]
        slot = sys.modules.setdefault(_SLOT, slot)
    return slot


# Guards of another copy of the package are read by the names of their attributes, so these
# names are part of the slot: stream, task, _before, _bound. What a guard holds when it was
# never entered, or was left, is kept there too: guards made before a reload live on after it.
_slot = process_slot()
_of_thread: _OfThread = _slot.of_thread
_current = _slot.streams
_of_task: ContextVar[CallerStreamGuard | None] = _slot.of_task
_NEVER, _LEFT = _slot.never, _slot.left
_accepted: set[type] = _slot.accepted
"""Types whose instances can be selected, as far as they have been seen."""


class GuardWatcher(Protocol):
    """Who is told of guards."""

    def entered(self, guard: CallerStreamGuard) -> None:
        """Take note that a guard was entered."""

    def left(self, guard: CallerStreamGuard, selected: AnyStream) -> None:
        """Take note that a guard was left, and of the stream that is selected again."""


def watchers() -> tuple[GuardWatcher, ...]:
    """Return who is told of guards."""
    current: tuple[GuardWatcher, ...] = _slot.watchers
    return current


def watch(watcher: GuardWatcher) -> None:
    """Tell ``watcher`` of guards from now on."""
    with _slot.watching:
        vars(_slot)["watchers"] = (*_slot.watchers, watcher)


def unwatch(watcher: GuardWatcher) -> None:
    """Tell ``watcher`` no more."""
    with _slot.watching:
        remaining = (other for other in _slot.watchers if other is not watcher)
        vars(_slot)["watchers"] = tuple(remaining)


def _running_task() -> Task | None:
    loop = _get_running_loop()
    return None if loop is None else _current_task(loop)


def get_caller_stream() -> AnyStream:
    """Return the stream that the innermost guard of this thread and task selected.

    Returns
    -------
    object or None
        The same object that was given to :class:`CallerStreamGuard`, or ``None`` if no guard is
        active. Handle 0 (the null stream) is a selection: compare with ``None``, never test
        truthiness.

    Notes
    -----
    Child threads and tasks start with ``None``, even inside a guard. A context copied into a task
    carries the selection, but the selection applies only to its owner.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream() as stream, gs.CallerStreamGuard(stream):
    ...     gs.get_caller_stream() is stream
    True
    >>> gs.get_caller_stream() is None
    True
    """
    guard = _of_thread.guard if _get_running_loop() is None else innermost_guard()
    return None if guard is None else guard.stream


def innermost_guard() -> CallerStreamGuard | None:
    """Return the guard that :func:`get_caller_stream` reads, or ``None``."""
    task = _running_task()
    if task is None:
        return _of_thread.guard
    guard = _of_task.get()
    return guard if guard is not None and guard.task is task else None


def guards_of_threads() -> dict[int, CallerStreamGuard]:
    """Return the innermost guard entered outside any task of each thread that has one."""
    threads = set(_of_thread.every)  # first: a thread that begins now is in neither, or alive
    for gone in threads - set(map(number_of, threading.enumerate())):
        _of_thread.every.pop(gone, None)
    guards = ((thread, values.get("guard")) for thread, values in list(_of_thread.every.items()))
    return {thread: guard for thread, guard in guards if guard is not None}


def thread_has_guard() -> bool:
    """Whether a guard of this thread was entered outside any task."""
    return _of_thread.guard is not None


class _PythonGuard:
    """What ``Guard`` of ``_guards.c`` does, where that is not compiled."""

    __slots__ = ("_before", "_bound", "_token", "_unused", "stream", "task")

    def __init__(self, stream: AnyStream, *, bind: bool = False) -> None:
        if type(stream) not in _accepted:
            CallerStreamGuard._check(stream)
        self.stream = stream
        self._before: CallerStreamGuard | None = _NEVER
        self._bound: Any = bind  # asked for, or what was bound
        self._unused = True


_Base = _PythonGuard
if not TYPE_CHECKING and _fastpath is not None:
    _fastpath.serve_guards(_slot, _get_running_loop, handles.bind, handles.BoundLibrary)
    _Base = _fastpath.Guard


class CallerStreamGuard(_Base, Unique):
    """Select ``stream`` for everything that runs inside the ``with`` block.

    Parameters
    ----------
    stream
        A gpuscope stream, any object with ``__cuda_stream__``, or an integer handle.
    bind
        Also make it the current stream of CuPy and PyTorch, if they are already imported, and
        restore theirs on exit. They keep current streams per thread, so a bound guard must not
        span an ``await``. Simulated streams cannot be bound and leave both libraries unchanged.
        CuPy keeps a current stream per device, so a stream of a device other than CuPy's current
        one is refused. PyTorch's current device becomes the stream's.

    Raises
    ------
    TypeError
        ``stream`` is of another type, or the guard is copied or pickled.
    StreamError
        (a ``RuntimeError``) The guard is entered twice, left twice, left on a thread or in a task
        other than the one that entered it, or left after somebody changed the current stream of
        CuPy or PyTorch; or it cannot be bound. In these cases nothing changes. Also raised if a
        bound guard is left while a guard entered later is still active: it then ends its
        selection, and CuPy and PyTorch get their streams back when the next guard inside it is
        left.

    Notes
    -----
    The innermost guard wins, and each exit restores the previous selection. A guard left while
    one entered later is still active, as by a generator that is closed early, is removed: it ends
    its selection, and the innermost guard still wins. A guard owns no stream, destroys none and
    touches no device. Origin: contract A, the caller-stream guard of ExecuTorch #20158.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> a = gpu.random((64, 64))
    >>> with gpu.create_stream(name="mine") as stream, gs.profile(gpu) as recording:
    ...     with gs.CallerStreamGuard(stream):
    ...         _ = gs.mm_out(gpu.empty((64, 64)), a, a)
    >>> [row.stream for row in gs.analysis.summary(recording.trace).streams]
    ['mine']
    """

    __slots__ = ()

    @staticmethod
    def _check(stream: object) -> None:
        kind = type(stream)
        if hasattr(kind, "__cuda_stream__"):
            _accepted.add(kind)
        elif not hasattr(stream, "__cuda_stream__") and (
            not isinstance(stream, int) or isinstance(stream, bool)
        ):
            raise TypeError(
                f"CallerStreamGuard takes a gpuscope stream, an object with __cuda_stream__ or an "
                f"integer handle, not {kind.__name__}. Give it a stream made with create_stream(), "
                "or its handle."
            )

    def _enter(self) -> AnyStream:
        try:
            del self._unused  # of threads that enter at once, one succeeds
        except AttributeError:
            raise StreamError(
                "this CallerStreamGuard was entered already: make one guard per with"
            ) from None
        if self._bound:
            try:
                self._bound = handles.bind(self.stream)
            except BaseException:
                self._unused = True
                raise
        loop = _get_running_loop()
        if loop is None or (task := _current_task(loop)) is None:
            self._before, _of_thread.guard = _of_thread.guard, self
        else:
            self.task: Task | None = task
            self._before, self._token = _of_task.get(), _of_task.set(self)
        if _slot.watchers:
            self._tell_entered()
        return self.stream

    def _exit(self, *_: object) -> None:
        if _of_thread.guard is not self or _get_running_loop() is not None:
            self._exit_with_care()
            return
        if bound := self._bound:
            handles.check_bound(bound)
        _of_thread.guard, self._before = self._before, _LEFT
        if _slot.watchers:
            self._tell_left()
        if bound:
            handles.unbind(bound)

    if _fastpath is None:
        __enter__, __exit__ = _enter, _exit

    def _tell_entered(self) -> None:
        for watcher in _slot.watchers:
            watcher.entered(self)

    def _tell_left(self) -> None:
        for watcher in _slot.watchers:
            watcher.left(self, get_caller_stream())

    def _exit_with_care(self) -> None:
        """Leave a bound one, or in a task, in a callback of a loop or out of order; or refuse."""
        task = _running_task()
        innermost = _of_thread.guard if task is None else _of_task.get()
        inside = None if innermost is self else innermost
        while inside is not None and getattr(inside, "_before", None) is not self:
            inside = getattr(inside, "_before", None)
        is_here = innermost is self or inside is not None
        if not is_here or (task is not None and self.task is not task):
            raise StreamError(
                "this CallerStreamGuard was left already or never entered"
                if self._before in (_NEVER, _LEFT)
                else "a CallerStreamGuard must be left on the thread and in the task that entered "
                "it: nothing was changed"
            )
        if self._bound and inside is None:
            handles.check_bound(self._bound)
        if task is not None:
            self._restore_in_task(innermost)
        elif inside is None:
            _of_thread.guard = self._before
        if inside is not None:
            inside._before = self._before
        self._before = _LEFT
        if _slot.watchers:
            self._tell_left()
        if not self._bound:
            return
        if inside is None:
            handles.unbind(self._bound)
        else:
            inside._bound = handles.hand_over(self._bound, inside._bound)
            raise StreamError(
                "a bound CallerStreamGuard is left while one entered later is still active: it "
                "selects no more, but CuPy and PyTorch get their streams back when that one is "
                "left. Leave guards innermost first"
            )

    def _restore_in_task(self, innermost: CallerStreamGuard | None) -> None:
        """Select in this task what was there before; or keep ``innermost``, if that is another."""
        try:
            _of_task.reset(self._token)
        except ValueError:
            raise StreamError(
                "a CallerStreamGuard must be left in the context that entered it, not in a "
                "copy of it: nothing was changed"
            ) from None
        now = self._before if innermost is self else innermost
        if _of_task.get() is not now:
            _of_task.set(now)
        self.task = None  # contexts copied inside it hold on to it: it selects no more


# -- the current stream of a thread --------------------------------------------------------
def current_streams() -> dict[Hashable, AnyStream]:
    """Return this thread's current streams by their device's ``identity``: the registry itself."""
    try:
        streams: dict[Hashable, AnyStream] = _current.streams
    except AttributeError:
        streams = _current.streams = {}
    return streams


def get_current_stream(device: Owner) -> AnyStream:
    """Return this thread's current stream on a device; creates and registers one if absent.

    Parameters
    ----------
    device
        It makes the stream.

    Returns
    -------
    Stream or object
        One that was created here stays registered until it is closed, cleared or replaced,
        or the thread ends; the registry is its only owner, so it needs no closing.
    """
    streams = current_streams()
    key = device.identity
    stream = streams.get(key)
    if stream is None or getattr(stream, "device", device) is not device:
        name = f"current of {threading.current_thread().name}"
        streams[key] = made = device.create_stream(name=name)
        made.current_of = streams
        return made
    return stream


def peek_current_stream(device_key: Hashable) -> AnyStream:
    """Return this thread's current stream by a device's ``identity``, or ``None``; creates none."""
    return current_streams().get(device_key)


def set_current_stream(device_key: Hashable, stream: AnyStream) -> None:
    """Make ``stream`` this thread's current stream on a device."""
    current_streams()[device_key] = stream


def clear_current_stream(device_key: Hashable) -> None:
    """Forget this thread's current stream on a device, if there is one."""
    current_streams().pop(device_key, None)
