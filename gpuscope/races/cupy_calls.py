"""What CuPy does, for who looks for hazards: its kernels' arrays, and the order that it makes.

Element-wise kernels, universal functions among them, ask their arguments whether one of them takes
the call: ``__cupy_override_elementwise_kernel__``. Of others the call itself is replaced.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain

from gpuscope._types import Untyped
from gpuscope.device.accesses import Operand, accesses_of, of_arrays, of_pointers, pointers_of
from gpuscope.device.calls import of_thread
from gpuscope.races.hazard_log import HazardLog, Streams
from gpuscope.races.hazard_notes import FreedMemory, HostWait, Queue, Wait
from gpuscope.races.wrapped import Args, Instead, Kwargs, replaced

_PROTOCOL = "__cupy_override_elementwise_kernel__"
_REDUCTIONS = [
    "sum",
    "prod",
    "max",
    "min",
    "all",
    "any",
    "argmax",
    "argmin",
    "mean",
    "var",
    "std",
    "ptp",
    "cumsum",
    "cumprod",
]
"""Methods of an array that read it and write nothing but their result."""
_Uses = Callable[[object], tuple[Operand, ...] | None]
"""What a call reads and writes, by its result; ``None``: not seen."""
_pointers_of = cache(pointers_of)


class _OfThread(threading.local):
    inside = False
    """Whether a call that is told of is on: what it calls in turn is part of it."""


class CuPy:
    """Tells of CuPy's work and order.

    Parameters
    ----------
    cupy
        The module.
    log
        Who is told.
    streams
        Tell which queue a stream is.
    """

    def __init__(self, cupy: Untyped, log: HazardLog, streams: Streams) -> None:
        self._cupy, self._log, self._streams = cupy, log, streams
        self._of_thread = _OfThread()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Tell of what all threads call."""
        cupy, cuda = self._cupy, self._cupy.cuda
        (stream,) = (owner for owner in cuda.Stream.__mro__ if "synchronize" in vars(owner))
        calls = [
            (cupy.ReductionKernel, "__call__", self._reduction),
            (cupy.RawKernel, "__call__", self._raw),
            *[(cupy.ndarray, name, self._method) for name in _REDUCTIONS],
            (cupy.ndarray, "get", self._fetched),
            (stream, "record", _then(lambda on, _, event: self._record(on, event))),
            (stream, "wait_event", _then(lambda on, event, _: self._wait(on, event))),
            (stream, "synchronize", _then(lambda on, *_: self._host_waits(queue=self._queue(on)))),
            (cuda.Event, "record", _then(lambda event, on, _: self._record(on, event))),
            (cuda.Event, "synchronize", _then(lambda event, *_: self._host_waits(event))),
            (cuda.Device, "synchronize", _then(self._device_synchronized)),
        ]
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._watching_memory())
            undo.enter_context(self._overriding())
            for owner, name, instead in calls:
                undo.enter_context(replaced(owner, name, instead))
            yield

    @contextlib.contextmanager
    def _overriding(self) -> Iterator[None]:
        """Let arrays take the calls of element-wise kernels, and pass them on."""
        watch, owner = self, self._cupy.ndarray
        before: Untyped = vars(owner).get(_PROTOCOL)  # of another recording
        is_on = True

        class Override:
            def __get__(self, array: object, owner: object) -> object:
                if is_on and not watch._is_told():
                    return watch._elementwise
                if before is None:
                    raise AttributeError(_PROTOCOL)
                return before.__get__(array, owner)

        override = Override()
        try:
            setattr(owner, _PROTOCOL, override)
            yield
        finally:
            is_on = False
            if vars(owner).get(_PROTOCOL) is override:
                if before is None:
                    delattr(owner, _PROTOCOL)
                else:
                    setattr(owner, _PROTOCOL, before)

    @contextlib.contextmanager
    def _watching_memory(self) -> Iterator[None]:
        """Tell of memory that this thread gives back to CuPy's pool.

        It gives a piece out again to the stream that it was given to first, in that one's order.
        """
        cupy, log, homes = self._cupy, self._log, dict[int, Queue]()
        is_on = True

        def made(_hook: object, *, mem_size: int, mem_ptr: int, **_: int) -> None:
            if is_on:  # what was there before is over: the driver waited when it took it back
                log.note(FreedMemory(mem_ptr, mem_ptr + mem_size))

        def given(_hook: object, *, device_id: int, mem_ptr: int, **_: int) -> None:
            if is_on:
                homes[mem_ptr] = self._streams.queue(
                    device_id, int(cupy.cuda.get_current_stream().ptr)
                )

        def freed(_hook: object, *, mem_ptr: int, mem_size: int, **_: int) -> None:
            home = homes.pop(mem_ptr, None)
            if is_on and home is not None:
                log.note(FreedMemory(mem_ptr, mem_ptr + mem_size, home))

        methods = {
            "name": f"gpuscope {id(homes)}",
            "alloc_postprocess": made,
            "malloc_postprocess": given,
            "free_preprocess": freed,
        }
        hook = type("_Watching", (cupy.cuda.MemoryHook,), methods)()
        try:
            hook.__enter__()
            yield
        finally:
            is_on = False
            with contextlib.suppress(KeyError):  # hooks are of a thread: that of another one stays
                hook.__exit__()

    def _is_told(self) -> bool:
        """Whether what this thread calls now is part of a call that is told of."""
        return self._of_thread.inside or of_thread.calls_for_us

    # -- kernels ----------------------------------------------------------------------
    def _elementwise(self, kernel: Untyped, *args: object, **kwargs: object) -> object:
        return self._reduction(type(kernel).__call__, kernel, args, kwargs)

    def _reduction(self, method: Untyped, kernel: Untyped, args: Args, kwargs: Kwargs) -> object:
        """Call a kernel with parameters for input and output."""

        def uses(result: object) -> tuple[Operand, ...]:
            out = kwargs.get("out")
            given = (*args[kernel.nin :], *(out if isinstance(out, tuple) else (out,)))
            reads = self._arrays(args[: kernel.nin], kwargs.get("where"))
            return of_arrays(reads, self._arrays(given) or self._arrays(result))

        call = partial(method, kernel, *args, **kwargs)
        return self._run(call, kernel.name, uses, kwargs.get("stream"))

    def _method(self, method: Untyped, array: Untyped, args: Args, kwargs: Kwargs) -> object:
        call, name = partial(method, array, *args, **kwargs), f"cupy_{method.__name__}"
        return self._run(call, name, lambda result: of_arrays([array], self._arrays(result)))

    def _raw(self, method: Untyped, kernel: Untyped, args: Args, kwargs: Kwargs) -> object:
        given = args[2] if len(args) > 2 else kwargs.get("args", ())
        values: Args = tuple(given) if isinstance(given, list | tuple) else ()

        def uses(_result: object) -> tuple[Operand, ...] | None:
            pointers = _pointers_of(kernel.code or "", kernel.name)
            if any(hasattr(value, "ptr") for value in values):  # memory without a size
                return None
            return of_pointers(values, pointers[: len(values)])

        call = partial(method, kernel, *args, **kwargs)
        return self._run(call, kernel.name, uses, kwargs.get("stream"))

    def _arrays(self, *values: object) -> list[object]:
        flat = chain.from_iterable(value if type(value) is tuple else (value,) for value in values)
        return [value for value in flat if isinstance(value, self._cupy.ndarray)]

    def _run(
        self, call: Callable[[], object], name: str, uses: _Uses, stream: object = None
    ) -> object:
        """Make a call, and tell of it unless it is part of another."""
        of_thread = self._of_thread
        if self._is_told():
            return call()
        start_ns = time.time_ns()
        of_thread.inside = True
        try:
            result = call()
        finally:
            of_thread.inside = False
        operands = uses(result)
        if operands is None:
            return result  # CUPTI tells of it: it counts as unseen
        accesses = accesses_of(operands)
        if accesses:
            library: Untyped = stream or self._cupy.cuda.get_current_stream()
            queue = self._queue(library)
            if _is_capturing(library) and self._log.capture_of(queue) is None:
                self._log.note(name)  # into a graph of CuPy's, of which nobody knows
            else:
                self._log.add_work(queue, name, accesses, start_ns)
        return result

    # -- order ------------------------------------------------------------------------
    def _gpu(self) -> int:
        return int(self._cupy.cuda.runtime.getDevice())

    def _queue(self, stream: Untyped) -> Queue:
        return self._streams.queue(self._gpu(), int(stream.ptr))

    def _device_synchronized(self, gpu: Untyped, *_: object) -> None:
        self._log.note(HostWait(device=f"cuda:{gpu.id}"))

    def _host_waits(self, event: object = None, queue: Queue | None = None) -> None:
        self._log.note(HostWait(event, queue))

    def _record(self, stream: Untyped, event: Untyped) -> None:
        if stream is None:  # CUPTI tells which one it was
            return
        queue = self._queue(stream)
        if self._log.capture_of(queue) is not None or not _is_capturing(stream):
            self._log.add_record(queue, event)

    def _wait(self, stream: Untyped, event: Untyped) -> None:
        queue = self._queue(stream)
        self._log.may_join(queue, event)
        joined = self._log.capture_of(queue)
        if joined is not None:
            joined.wait(queue.handle, event)
        elif not _is_capturing(stream):
            self._log.note(Wait(queue, event))

    def _fetched(self, method: Untyped, array: Untyped, args: Args, kwargs: Kwargs) -> object:
        stream = args[0] if args else kwargs.get("stream")
        call = partial(method, array, *args, **kwargs)
        result = self._run(call, "get", lambda _: of_arrays([array], []), stream)
        blocks = args[3] if len(args) > 3 else kwargs.get("blocking", True)
        if blocks and not of_thread.calls_for_us:
            self._host_waits(queue=self._queue(stream or self._cupy.cuda.get_current_stream()))
        return result


def _then(tell: Callable[[Untyped, Untyped, Untyped], None]) -> Instead:
    """Return what calls a method and tells of its object, its one argument and its result."""

    def instead(method: Untyped, this: Untyped, args: Args, kwargs: Kwargs) -> object:
        result = method(this, *args, **kwargs)
        tell(this, next(iter((*args, *kwargs.values())), None), result)
        return result

    return instead


def _is_capturing(stream: Untyped) -> bool:
    """Whether a stream is captured: one may not ask the legacy default stream."""
    return bool(stream.ptr and stream.is_capturing())
