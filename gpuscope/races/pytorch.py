"""What PyTorch does, for who looks for hazards: work, order and memory, as it calls CUDA.

Operators come through a dispatch mode, with what they read and write; events, waits and the
allocator through PyTorch's own trace of its CUDA calls. Both tell handles of streams.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from gpuscope._types import Untyped
from gpuscope.device.accesses import Access, accesses_of_tensor
from gpuscope.device.captured import Captured
from gpuscope.races import operators, pytorch_host
from gpuscope.races.hazard_log import HazardLog, Streams
from gpuscope.races.hazard_notes import FreedMemory, HostAccess, HostWait, Queue, Wait, Work
from gpuscope.races.operators import Operator, TensorLike, Use
from gpuscope.races.outside import row_of_node
from gpuscope.races.wrapped import FAILED, wrapped

_Steps = list[Callable[[], object]]


class _OfThread(threading.local):
    """The order that a thread's operator makes while it runs; ``None`` outside."""

    steps: _Steps | None = None


class _Event:
    """Stands for an event."""

    captured: Captured | None = None
    """What its stream was captured into when it was recorded."""


class PyTorch:
    """Tells of PyTorch's work, order and memory.

    Parameters
    ----------
    torch
        The module.
    log
        Who is told.
    streams
        Tell which queue a stream is.
    """

    def __init__(self, torch: Untyped, log: HazardLog, streams: Streams) -> None:
        self._torch, self._log, self._streams = torch, log, streams
        self._lock = threading.RLock()
        self._of_thread = _OfThread()
        self._events: dict[int, _Event] = {}
        """Handle → what stands for the event, as another may get the handle."""
        self._sizes: dict[int, int] = {}
        """Address → bytes of the tensors' memory that was used."""
        self._homes: dict[int, Queue] = {}
        """Address → the queue in whose order memory is given out again."""
        self._kept_for: dict[int, set[Queue]] = {}
        """Address → queues given to ``record_stream``."""
        self._pinned: dict[int, Untyped] = {}
        """Address → memory of the host that copies use behind its back, held weakly."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Tell of what this thread calls, of backward passes, and of all threads' order."""
        with contextlib.ExitStack() as undo:
            self._torch._C._activate_gpu_trace()
            trace = importlib.import_module("torch.cuda._gpu_trace")
            steps = {
                "EventDeletion": self._event_deleted,
                "EventRecord": self._recorded,
                "EventWait": self._waited,
                "MemoryAllocation": self._allocated,
                "MemoryDeallocation": self._freed,
                "DeviceSynchronization": lambda: self._host_waits(device=self._current().device),
                "StreamSynchronization": lambda raw: self._host_waits(queue=self._queue(raw)),
                "EventSynchronization": self._event_synchronized,
            }
            for name, callback in steps.items():
                callbacks = getattr(trace, f"{name}Callbacks").callback_list
                undo.callback(_remove, callbacks, callback)  # first: an interrupt may come between
                callbacks.append(callback)
            cuda = self._torch.cuda
            for owner, name, after in (
                (cuda.CUDAGraph, "capture_begin", self._capture_began),
                (cuda.CUDAGraph, "capture_end", self._capture_ended),
                (cuda.CUDAGraph, "replay", self._replayed),
                (cuda.Event, "query", self._event_queried),
                (cuda.Stream, "query", self._stream_queried),
            ):
                undo.enter_context(wrapped(owner, name, after))
            undo.enter_context(pytorch_host.watching(self._torch, self._log, self._is_page_locked))
            undo.enter_context(operators.watching(self._torch, self._dispatch))
            yield

    # -- operators --------------------------------------------------------------------
    def _dispatch(
        self, function: Untyped, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        operator = operators.operator_of(function)
        if operator is None:
            if getattr(function, "__name__", "").startswith("record_stream"):
                self._keep_for(args[0], args[1])
            return function(*args, **kwargs)
        of_thread = self._of_thread
        outer, of_thread.steps = of_thread.steps, []
        start_ns = time.time_ns()
        steps = of_thread.steps
        try:
            result = function(*args, **kwargs)
        except BaseException:
            self._take(steps)
            raise
        finally:
            of_thread.steps = outer
        uses = operator.uses(args, kwargs, result)
        with self._lock:
            # What makes its result may wait to know the size; a copy waits for its end.
            first = operator.makes and not operator.copies
            if first:
                self._take(steps)
            at_once = operator.returns_at_once(args, kwargs)
            self._work(operator, uses, start_ns, at_once=at_once)
            if not first:
                self._take(steps)
        return result

    def _work(self, operator: Operator, uses: list[Use], start_ns: int, *, at_once: bool) -> None:
        """Tell what an operator did that ran in this thread's current stream."""
        indices = (operators.gpu_of(use.tensor) for use in uses)
        gpus = dict.fromkeys(gpu for gpu in indices if gpu is not None)
        copied = operator.copies and bool(gpus)
        on_gpu: list[Access] = []
        on_host: list[Access] = []
        seen, waits = operator.seen, False
        for use in uses if gpus or self._pinned else ():
            touched = accesses_of(use)
            if touched is None:
                seen = False
            elif operators.gpu_of(use.tensor) is not None:
                self._know(use.tensor)
                on_gpu += touched
            elif self._is_pinned(use.tensor, from_now_on=copied and at_once):
                (on_gpu if copied else on_host).extend(touched)
            else:  # into memory that is not pinned, a copy returns at its end
                waits |= copied and use.writes
        if not seen:
            self._log.note(operator.name)
        if on_host:
            self._log.note(HostAccess(operator.name, tuple(on_host)))
        if on_gpu:
            queue, *other_queues = map(self._current, gpus)
            for other in other_queues:  # a copy between GPUs, in order with both
                self._follow(queue, other)
            self._log.add_work(
                queue, operator.name, tuple(on_gpu), start_ns, is_copy=operator.copies
            )
            for other in other_queues:
                self._follow(other, queue)
            if waits:
                self._log.note(HostWait(queue=queue))

    def _know(self, tensor: TensorLike) -> int:
        """Remember how large a tensor's memory is; returns its address."""
        storage = tensor.untyped_storage()
        start: int = storage.data_ptr()
        self._sizes[start] = storage.nbytes()
        return start

    def _is_pinned(self, tensor: TensorLike, *, from_now_on: bool) -> bool:
        """Whether copies use a tensor's memory behind the host's back.

        PyTorch gives pinned memory out again only when the copies of who had it before have ended.
        """
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        weak_storage = self._pinned.get(start)
        if weak_storage is not None and weak_storage.expired():
            del self._pinned[start]
            self._log.note(FreedMemory(start, start + self._sizes.pop(start, 0)))
            weak_storage = None
        if weak_storage is None and from_now_on and operators.is_pinned(storage):
            weak = self._torch.multiprocessing.reductions.StorageWeakRef
            self._pinned[start] = weak_storage = weak(storage)
            self._know(tensor)
        return weak_storage is not None

    def _is_page_locked(self, tensor: TensorLike) -> bool:
        """Whether a tensor is memory of the host that copies can use behind its back."""
        with self._lock, contextlib.suppress(RuntimeError, NotImplementedError):
            return operators.gpu_of(tensor) is None and self._is_pinned(tensor, from_now_on=True)
        return False  # it stands for others

    def _keep_for(self, tensor: Untyped, stream: Untyped) -> None:
        made = self._torch.cuda.Stream(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
        queue = self._streams.queue(stream.device_index, made.cuda_stream)
        self._kept_for.setdefault(operators.storage_of(tensor), set()).add(queue)

    # -- order ------------------------------------------------------------------------
    def _current(self, gpu: int | None = None) -> Queue:
        """Return the queue of the current stream, of the current GPU or another."""
        gpu = self._torch._C._cuda_getDevice() if gpu is None else gpu
        return self._streams.queue(gpu, operators.current_stream(self._torch, gpu))

    def _queue(self, stream: int) -> Queue:
        return self._streams.queue(self._torch._C._cuda_getDevice(), stream)

    def _record(self, queue: Queue, event: _Event) -> None:
        event.captured = self._log.add_record(queue, event)

    def _wait(self, queue: Queue, event: _Event) -> None:
        captured = event.captured
        if captured is None:
            self._log.note(Wait(queue, event))
        elif captured.is_open:
            if self._log.capture_of(queue) is None:  # it joins
                self._log.captures[queue] = captured
            captured.wait(queue.handle, event)

    def _follow(self, queue: Queue, other: Queue) -> None:
        """Let a queue follow all that is in another."""
        event = _Event()
        self._record(other, event)
        self._wait(queue, event)

    def _note(self, step: Callable[[], object]) -> None:
        """Take a step of order now, or with the operator that makes it."""
        if self._of_thread.steps is not None:
            self._of_thread.steps.append(step)
        else:
            self._take([step])

    def _take(self, steps: _Steps) -> None:
        with self._lock:
            for step in steps:
                step()

    def _event_deleted(self, handle: int) -> None:
        self._note(partial(self._events.pop, handle, None))

    def _recorded(self, handle: int, stream: int) -> None:
        queue = self._queue(stream)

        def step() -> None:
            self._events[handle] = event = _Event()
            self._record(queue, event)

        self._note(step)

    def _waited(self, handle: int, stream: int) -> None:
        queue = self._queue(stream)
        self._note(lambda: self._wait(queue, self._events.get(handle) or _Event()))

    def _host_waits(self, queue: Queue | None = None, device: str = "") -> None:
        self._note(partial(self._log.note, HostWait(queue=queue, device=device)))

    def _event_synchronized(self, handle: int) -> None:
        self._note(lambda: self._log.note(HostWait(self._events.get(handle) or _Event())))

    def _event_queried(self, event: Untyped, is_done: object, _start_ns: int) -> None:
        if is_done is True:
            self._event_synchronized(event.cuda_event)

    def _stream_queried(self, stream: Untyped, is_done: object, _start_ns: int) -> None:
        if is_done is True:
            self._host_waits(self._streams.queue(stream.device_index, stream.cuda_stream))

    # -- memory -----------------------------------------------------------------------
    def _allocated(self, start: int) -> None:
        self._homes[start] = self._current()

    def _freed(self, start: int) -> None:
        # Without the lock: the collector frees tensors anywhere, perhaps inside PyTorch's own.
        home, kept_for = self._homes.pop(start, None), tuple(self._kept_for.pop(start, ()))
        queue = home or (kept_for[0] if kept_for else None)  # no home: made before
        nbytes = self._sizes.pop(start, 0)
        if nbytes and queue is not None:
            self._log.note(FreedMemory(start, start + nbytes, queue, kept_for))

    # -- graphs -----------------------------------------------------------------------
    def _capture_began(self, graph: Untyped, result: object, _start_ns: int) -> None:
        if result is not FAILED:
            with self._lock:
                self._log.graphs[graph] = self._log.captures[self._current()] = Captured()

    def _capture_ended(self, graph: Untyped, _result: object, _start_ns: int) -> None:
        with self._lock:
            captured, captures = self._log.graphs.get(graph), self._log.captures
            if captured is not None:
                captured.end()
                for queue in [queue for queue, its in captures.items() if its is captured]:
                    del captures[queue]

    def _replayed(self, graph: Untyped, result: object, start_ns: int) -> None:
        if result is FAILED:
            return
        with self._lock:
            captured, queue = self._log.graphs.get(graph), self._current()
            if captured is None or not captured.nodes:
                self._log.note("CUDAGraph")
            else:
                nodes = tuple(captured.nodes)
                row = self._log.outside.add(start_ns, time.time_ns())
                rows = tuple([row_of_node(row, node) for node in range(len(nodes))])
                self._log.note(Work(queue, "CUDAGraph", None, rows, graph=captured, nodes=nodes))


def _remove(callbacks: list[Untyped], callback: Untyped) -> None:
    if callback in callbacks:
        callbacks.remove(callback)


def accesses_of(use: Use) -> Sequence[Access] | None:
    """Return the bytes that a use touches; ``None`` where its tensor has no memory of its own."""
    tensor = use.tensor
    if 0 in tensor.shape:
        return ()
    with contextlib.suppress(RuntimeError, NotImplementedError):  # it stands for others
        if tensor.data_ptr():
            return accesses_of_tensor(tensor, reads=use.reads, writes=use.writes)
    return None
