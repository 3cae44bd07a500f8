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
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, NamedTuple

from gpuscope._checks import given
from gpuscope._fork import free_in_children
from gpuscope.device.unique import Unique
from gpuscope.errors import StreamError

_get_running_loop = asyncio._get_running_loop
_current_task = asyncio.current_task

_SLOT = "_gpuscope_caller_stream_slot"


class _OfThread(threading.local):
    """The innermost guard of a thread outside any task.

    Attributes
    ----------
    every
        Thread id → what this thread keeps here, for who asks about all threads. A thread that
        ended inside a guard is forgotten when somebody asks.
    """

    guard: Any = None
    every: dict[int, dict[str, Any]] = {}  # noqa: RUF012 - one for all threads is meant

    def __init__(self) -> None:
        self.every[threading.get_native_id()] = self.__dict__


def _slot() -> Any:
    """Return the process's slot; the first copy of the package to come makes it."""
    slot = sys.modules.get(_SLOT)
    if slot is None:
        slot = types.ModuleType(_SLOT, "Where gpuscope keeps the caller stream of each thread.")
        slot.of_thread = _OfThread()  # type: ignore[attr-defined]
        slot.streams = threading.local()  # type: ignore[attr-defined]
        slot.of_task = ContextVar(_SLOT, default=None)  # type: ignore[attr-defined]
        slot.never, slot.left = object(), object()  # type: ignore[attr-defined]
        slot = sys.modules.setdefault(_SLOT, slot)
    return slot


# Guards of another copy of the package are read by the names of their attributes, so these
# names are part of the slot: stream, task, _before, _bound. What a guard holds when it was
# never entered, or was left, is kept there too: guards made before a reload live on after it.
_of_thread: Any = _slot().of_thread
_current: Any = _slot().streams
_of_task: ContextVar[Any] = _slot().of_task
_NEVER, _LEFT = _slot().never, _slot().left


watchers: tuple[Any, ...] = ()
"""Who is told of guards: ``entered(guard)``, ``left(guard, stream selected again)``."""
_watching = free_in_children(threading.Lock())


def watch(watcher: Any) -> None:
    """Tell ``watcher`` of guards from now on."""
    global watchers  # noqa: PLW0603 - a tuple, so that guards read it without the lock
    with _watching:
        watchers = (*watchers, watcher)


def unwatch(watcher: Any) -> None:
    """Tell ``watcher`` no more."""
    global watchers  # noqa: PLW0603 - as above
    with _watching:
        watchers = tuple(other for other in watchers if other is not watcher)


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
    a context copied into a task carries the selection, but it names its owner.

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
    loop = _get_running_loop()
    task = None if loop is None else _current_task(loop)
    if task is None:
        guard = _of_thread.guard
        return None if guard is None else guard.stream
    guard = _of_task.get()
    return guard.stream if guard is not None and guard.task is task else None


def innermost_guard() -> Any:
    """Return the guard that :func:`get_caller_stream` reads, or ``None``."""
    task = _running_task()
    if task is None:
        return _of_thread.guard
    guard = _of_task.get()
    return guard if guard is not None and guard.task is task else None


def guards_of_threads() -> dict[int, Any]:
    """Return the innermost guard entered outside any task of each thread that has one."""
    known = set(_of_thread.every)  # first: a thread that begins now is in neither, or alive
    for gone in known - {thread.native_id for thread in threading.enumerate()}:
        _of_thread.every.pop(gone, None)
    kept = ((thread, values.get("guard")) for thread, values in list(_of_thread.every.items()))
    return {thread: guard for thread, guard in kept if guard is not None}


def thread_has_guard() -> bool:
    """Whether a guard of this thread was entered outside any task."""
    return _of_thread.guard is not None


_accepted: set[type] = {int}
"""Types whose instances can be selected, as far as they have been seen."""


def _check_stream(stream: Any) -> None:
    kind = type(stream)
    if hasattr(kind, "__cuda_stream__"):
        _accepted.add(kind)
    elif not hasattr(stream, "__cuda_stream__") and (
        not isinstance(stream, int) or isinstance(stream, bool)
    ):
        raise TypeError(
            f"CallerStreamGuard takes a gpuscope stream, an object with __cuda_stream__ or an "
            f"integer handle, not {kind.__name__}. Give it a stream made with create_stream(), or "
            "its handle."
        )


class CallerStreamGuard(Unique):
    """Select ``stream`` for everything that runs inside the ``with`` block.

    Parameters
    ----------
    stream
        A gpuscope stream, any object with ``__cuda_stream__``, or an integer handle.
    bind
        Also make it the current stream of CuPy and PyTorch, if they are imported already,
        and restore theirs on exit. They keep current streams per thread, so a bound guard
        may not span an ``await``. A simulated stream is none of theirs and leaves them as
        they are. CuPy keeps a current stream for each device: a stream of another device
        than its current one is refused; PyTorch's current device becomes the stream's.

    Raises
    ------
    TypeError
        ``stream`` is none of these; or the guard is copied or pickled.
    StreamError
        (a ``RuntimeError``) The guard is entered twice, left twice, left on another thread
        or in another task than it was entered, or left while CuPy or PyTorch have another
        current stream than it gave them; or it cannot be bound. Nothing changes then. A bound
        guard is left while one entered later is still active: it selects no more, and CuPy
        and PyTorch get their streams back when the next guard inside it is left.

    Notes
    -----
    The innermost guard wins and each exit restores exactly what was there before. A guard
    left while one entered later is still active, as by a generator that is closed early, is
    taken out: it selects no more, and the innermost still wins. The
    guard owns and destroys no stream and touches no device. Origin: contract A,
    the caller-stream guard of ExecuTorch #20158.

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

    __slots__ = ("_before", "_bound", "_token", "_unused", "stream", "task")

    def __init__(self, stream: Any, *, bind: bool = False) -> None:
        if type(stream) not in _accepted:
            _check_stream(stream)
        self.stream = stream
        self._before: Any = _NEVER
        self._bound: Any = bind
        self._unused = True

    def __enter__(self) -> Any:
        try:
            del self._unused  # of threads that enter at once, one succeeds
        except AttributeError:
            raise StreamError(
                "this CallerStreamGuard was entered already: make one guard per with"
            ) from None
        if self._bound:
            try:
                self._bound = _bind_libraries(self.stream)
            except BaseException:
                self._unused = True
                raise
        loop = _get_running_loop()
        if loop is not None and (task := _current_task(loop)) is not None:
            return self._enter_in_task(task)
        self._before = _of_thread.guard
        _of_thread.guard = self
        if watchers:
            self._tell_entered()
        return self.stream

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if _of_thread.guard is not self or _get_running_loop() is not None:
            self._exit_with_care()
        elif self._bound:
            bound = self._bound
            _check_bound(bound)
            _of_thread.guard = self._before
            self._before = _LEFT
            if watchers:
                self._tell_left()
            _unbind(bound)
        else:
            _of_thread.guard = self._before
            self._before = _LEFT
            if watchers:
                self._tell_left()

    def _tell_entered(self) -> None:
        for watcher in watchers:
            watcher.entered(self)

    def _tell_left(self) -> None:
        for watcher in watchers:
            watcher.left(self, get_caller_stream())

    def _enter_in_task(self, task: Any) -> Any:
        self.task = task
        self._before = _of_task.get()
        self._token = _of_task.set(self)
        if watchers:
            self._tell_entered()
        return self.stream

    def _exit_with_care(self) -> None:
        """Leave in a task, in a callback of a loop or out of order; or refuse."""
        task = _running_task()
        innermost = _of_thread.guard if task is None else _of_task.get()
        inside = None
        if innermost is not self:
            inside = innermost
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
            _check_bound(self._bound)
        if task is not None:
            self._restore_in_task(innermost)
        elif inside is None:
            _of_thread.guard = self._before
        if inside is not None:
            inside._before = self._before
        self._before = _LEFT
        if watchers:
            self._tell_left()
        if not self._bound:
            return
        if inside is None:
            _unbind(self._bound)
        else:
            inside._bound = _handed_over(self._bound, inside._bound)
            raise StreamError(
                "a bound CallerStreamGuard is left while one entered later is still active: it "
                "selects no more, but CuPy and PyTorch get their streams back when that one is "
                "left. Leave guards innermost first"
            )

    def _restore_in_task(self, innermost: Any) -> None:
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


def checked_handle(stream: Any) -> int:
    """Return the integer handle of what a call was given as its stream.

    Raises
    ------
    StreamError
        It is none of what a guard accepts, or its handle is none that CUDA has.
    """
    if isinstance(stream, bool) or not (
        isinstance(stream, int) or hasattr(stream, "__cuda_stream__")
    ):
        raise StreamError(
            f"stream is {given(stream)}: give a stream made with create_stream(), an object "
            "with __cuda_stream__ or an integer handle"
        )
    try:
        handle = raw_handle(stream)
    except StreamError:
        raise
    except Exception as error:
        raise StreamError(
            f"{type(stream).__name__} has a __cuda_stream__ that gives no handle "
            f"({type(error).__name__}: {error}): give a stream made with create_stream()"
        ) from error
    if not 0 <= handle < 1 << 64:
        raise StreamError(
            f"stream is {given(handle)}, which is no handle: those are addresses of 64 bits"
        )
    return handle


# -- binding to libraries ------------------------------------------------------------------
def raw_handle(stream: Any) -> int:
    """Return the integer handle of anything that a guard accepts."""
    return stream if isinstance(stream, int) else int(stream.__cuda_stream__()[1])


class _Bound(NamedTuple):
    """A library that was given a stream: how to ask it, what it was given, and its own back."""

    library: str
    current: Callable[[], Any]
    given: Any
    restore: Callable[[], Any]


def _bind_libraries(stream: Any) -> list[_Bound]:
    """Make ``stream`` current for CuPy and PyTorch where they are imported."""
    modules = sys.modules
    bound: list[_Bound] = []
    if "cupy" in modules and (one := _bind_cupy(stream, modules["cupy"])) is not None:
        bound.append(one)
    if "torch" in modules:
        try:
            other = _bind_torch(stream, modules["torch"])
        except BaseException:
            _unbind(bound)
            raise
        if other is not None:
            bound.append(other)
    return bound


def _check_bound(bound: list[_Bound]) -> None:
    for one in bound:
        now = one.current()
        if now is not one.given and now != one.given:
            raise StreamError(
                "a bound CallerStreamGuard is left while CuPy or PyTorch have another current "
                "stream than it gave them: leave guards innermost first, and do not await inside "
                "a bound one. Nothing was changed"
            )


def _unbind(bound: list[_Bound]) -> None:
    """Restore what the libraries had, the second also if the first refuses."""
    if bound:
        try:
            bound[0].restore()
        finally:
            _unbind(bound[1:])


def _handed_over(left: list[_Bound], inside: list[_Bound] | Literal[False]) -> list[_Bound]:
    """Return what the guard inside one that was left restores from now on, in its place."""
    bound = {one.library: one for one in left}
    for one in inside or ():
        had = bound.get(one.library, one)
        bound[one.library] = one._replace(restore=had.restore)
    return list(bound.values())


def _cuda_index(stream: Any) -> int | None:
    """Ordinal of one of our streams' device: -1 if that is no GPU, None for a foreign stream."""
    info = getattr(getattr(stream, "device", None), "info", None)
    if info is None:
        return None
    return int(info.index) if info.kind == "cuda" else -1


def _bind_cupy(stream: Any, cupy: Any) -> _Bound | None:
    try:
        module = cupy.cuda.stream
    except AttributeError:  # it is being imported right now
        return None
    current = module.get_current_stream
    before = current()
    ours = getattr(stream, "cupy_stream", None)
    if ours is None:
        index = _cuda_index(stream)
        if index == -1:
            return None
        ours = module.Stream.from_external(_Handle(raw_handle(stream)))
        if index is not None:  # a stream of ours: made once
            ours.device_id = index
            stream.cupy_stream = ours
    try:
        ours.use()
    except RuntimeError as error:
        raise StreamError(
            f"CuPy cannot make the stream current ({error}): make the stream's device current "
            "first, as in `with cupy.cuda.Device(…)`. Nothing was changed"
        ) from error
    return _Bound("CuPy", current, ours, before.use)


def _bind_torch(stream: Any, torch: Any) -> _Bound | None:
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available():
        return None
    index = _cuda_index(stream)
    if index == -1:
        return None
    before = cuda.current_stream()
    replaced = before if index is None else cuda.current_stream(index)
    ours = cuda.ExternalStream(raw_handle(stream), device=index)
    cuda.set_stream(ours)  # makes the stream's device current, too
    handle = ours.cuda_stream

    def restore() -> None:
        if replaced is not before:
            cuda.set_stream(replaced)
        cuda.set_stream(before)

    return _Bound("PyTorch", lambda: cuda.current_stream().cuda_stream, handle, restore)


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
    try:
        handle = raw_handle(stream)
    except Exception:  # noqa: BLE001 - C has no exceptions: the caller is told by the value
        return -1
    out[0] = handle
    return 1


def caller_stream_capsule() -> Any:
    """Return a capsule with a C function that reads this process's caller stream.

    The function is ``int get(uint64_t *stream)``. It returns 1 and writes the
    ``cudaStream_t`` that the calling thread's innermost guard selected; 0, and writes
    nothing, where no guard is active; −1, and writes nothing, where the selected stream has
    no handle to give, such as a closed one: then launch nothing. It takes the GIL: call it
    from a thread that may wait for it, not while holding a lock that a Python thread may
    want, and not when the interpreter is shutting down. `docs/native.md` has an example.

    Returns
    -------
    capsule
        Named ``gpuscope.caller_stream.v1``; unpack it with ``PyCapsule_GetPointer``. The
        function lives as long as the process, also when this module is reloaded.
    """
    native = vars(_slot()).setdefault("native", _GETTER(_native_getter))  # never freed
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.cast(native, ctypes.c_void_p), CAPSULE_NAME, None)


# -- the current stream of a thread --------------------------------------------------------
def current_streams() -> dict[Hashable, Any]:
    """Return this thread's current streams by their device's ``identity``: the registry itself."""
    try:
        streams: dict[Hashable, Any] = _current.streams
    except AttributeError:
        streams = _current.streams = {}
    return streams


def get_current_stream(device: Any) -> Any:
    """Return this thread's current stream on a device; creates and registers one if absent.

    Parameters
    ----------
    device
        The device itself: it makes the stream.

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
        stream = streams[key] = device.create_stream(name=name)
        stream.current_of = streams
    return stream


def peek_current_stream(device_key: Hashable) -> Any:
    """Return this thread's current stream on a device, or ``None``; never creates one.

    Parameters
    ----------
    device_key
        The device's ``identity``.
    """
    return current_streams().get(device_key)


def set_current_stream(device_key: Hashable, stream: Any) -> None:
    """Make ``stream`` this thread's current stream on a device."""
    current_streams()[device_key] = stream


def clear_current_stream(device_key: Hashable) -> None:
    """Forget this thread's current stream on a device, if there is one."""
    current_streams().pop(device_key, None)
