"""Streams: one life cycle, and one way to queue work, for every device.

Long because a stream's life, its work and its order share what decides whether it can be used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

import numpy as np

from gpuscope import _interrupts
from gpuscope._checks import count, given, require_kind
from gpuscope.device import caller
from gpuscope.device.accesses import of_copy, of_launch
from gpuscope.device.api import Kernel, NativeArray, launch_config
from gpuscope.device.arrays import require_array
from gpuscope.device.calls import HostFunction, HostRun
from gpuscope.device.event import Event, EventQueue, require_event
from gpuscope.device.graph import Graph, after_capture, capture
from gpuscope.device.handles import AnyStream
from gpuscope.device.memory import Tag, is_pageable
from gpuscope.device.owner import Owner
from gpuscope.device.registry import require_not_borrowed
from gpuscope.device.unique import Closing, warn_unclosed
from gpuscope.device.views import PartitionView, StreamKind, StreamView
from gpuscope.errors import ClosedError, GpuscopeError, InvalidOperand, StreamError


class Stream(Closing, EventQueue):
    """A queue of work that runs in order, created by a device or a partition.

    Use it in a ``with`` statement: leaving the block waits for the stream's work and destroys the
    stream, also after an exception.

    Attributes
    ----------
    name
        For people and timelines.
    partition
        The partition it belongs to, or ``None``.
    priority
        CUDA's: lower runs first; 0 is the default.
    id
        Number in traces.
    owned
        Whether closing destroys it; false for a stream that wraps a foreign handle.
    closed
        Whether it was closed.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.learn.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream:
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    ...     stream.is_done
    ...     stream.synchronize()
    ...     stream.is_done
    False
    True
    """

    def __init__(
        self,
        device: Owner,
        raw: object,
        handle: int,
        *,
        name: str | None,
        partition: PartitionView | None = None,
        priority: int = 0,
        owned: bool = True,
    ) -> None:
        self.device = device
        self.raw = raw
        self.partition = partition
        self.priority = priority
        self._kind: StreamKind | None = None
        self.id = device.registry.next_stream_id()
        self.name = name if name is not None else f"stream {self.id}"
        self._handle = handle
        self.owned = owned
        self._backend = device.backend
        self.tag = Tag(raw) if owned else None
        """What memory that is used here remembers of it; ``None`` if it is somebody else's."""
        self.cupy_stream: object = None
        self.torch_stream: object = None
        """Where a bound guard keeps what CuPy and PyTorch know this stream by."""
        self.lane: object = None
        """By what the backend launches products on it, once it has."""
        self.capturing = False
        """Whether what is queued now becomes a graph."""
        self.graph: Graph | None = None
        """The graph that it is being captured into."""
        self.current_of: dict[Hashable, AnyStream] | None = None
        """The current streams of a thread, if this is one of them and they own it."""
        self.sm_count_target = partition.sm_count_target if partition is not None else 0
        """SMs that libraries should tune for; 0 means the whole GPU."""
        self.closed = False  # last: a destructor closes nothing that is not complete

    # -- life -------------------------------------------------------------------------
    def take_number(self, number: int) -> None:
        """Take the number in traces of the stream whose place it takes; before it is used."""
        self.id = number

    @property
    def handle(self) -> int:
        """The raw ``cudaStream_t`` as an integer."""
        self.require_open()
        return self._handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)

    @property
    def kind(self) -> StreamKind:
        """How it stands to the legacy default stream; one that cannot be asked: not at all."""
        if self._kind is None:
            try:
                self._kind = "non-blocking" if self.closed else self._backend.stream_kind(self.raw)
            except GpuscopeError:  # somebody else's, which is gone
                self._kind = "non-blocking"
        return self._kind or "non-blocking"  # for as long as it is captured

    @property
    def blocking(self) -> bool:
        """Whether it stands in the legacy default stream's barrier."""
        return self.kind in ("blocking", "per-thread default")

    def require_open(self) -> None:
        """Raise :class:`ClosedError` if it was closed."""
        if self.closed:
            raise ClosedError(
                f"stream {self.name!r} is closed: work on it would go elsewhere, so nothing was "
                "queued. Create a new stream, or close later"
            )

    def _usable(self) -> object:
        self.require_open()
        return self.raw

    def close(self) -> None:
        """Wait for the stream's work, then destroy the stream. Idempotent.

        A stream that wraps a foreign handle is released but not destroyed. While this thread
        captures another stream, waiting and destruction are deferred until the capture has ended.

        Raises
        ------
        StreamError
            It is being captured, or a workload's call on this thread uses it. Nothing is changed.
        GpuscopeError
            Its work failed, or the device is lost. The stream is closed nevertheless; its
            destruction raises nothing.
        """
        if self.closed:
            return
        require_not_borrowed([self])
        if self.capturing:
            raise StreamError(
                f"stream {self.name!r} is being captured: leave the capture before it is closed"
            )
        with self.device.registry.lock:
            if self.closed:  # of threads that close it at once the first does
                return
            self.closed = True
        self.cupy_stream = self.torch_stream = self.lane = None
        self.device.registry.forget_stream(self, self._handle)
        if self.partition is not None:
            self.partition.release(self)
        if self.current_of is not None and self.current_of.get(self.device.identity) is self:
            self.current_of.pop(self.device.identity, None)
        if self.owned:
            after_capture(self._destroy)

    def _destroy(self) -> None:
        mark = None
        try:
            self._backend.sync_stream(self.raw)
            self.device.calls.tell("seen", "stream.close", self)
        except BaseException:
            with contextlib.suppress(Exception):
                mark = self._backend.mark(self.raw)
            raise
        finally:
            if self.tag is not None:
                self.tag.close(mark)
            with contextlib.suppress(Exception):  # the device may be gone: nothing is left to do
                self._backend.close_stream(self.raw, self._handle)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "closed", True) or not self.owned or _is_finalizing():
            return  # at the interpreter's end what is left goes with the process
        with _interrupts.no_interrupt(), contextlib.suppress(Exception):  # there is nobody to tell
            self.close()
        if self.current_of is None:
            warn_unclosed(self, f"stream {self.name!r} was never closed: hold it")

    def __repr__(self) -> str:
        where = f", partition={self.partition.name!r}" if self.partition else ""
        state = ", closed" if self.closed else ""
        return f"Stream({self.name!r}, device={self.device.info.key!r}{where}{state})"

    # -- work -------------------------------------------------------------------------
    def launch(
        self,
        kernel: Kernel,
        *args: object,
        grid: int,
        block: int,
        flop_count: int | None = None,
        nbytes: int | None = None,
        blocks: NativeArray | None = None,
    ) -> None:
        """Launch ``kernel`` with ``grid`` blocks of ``block`` threads.

        Arrays of the device, those in page-locked memory and NumPy scalars are passed unchanged.
        During the call, this stream is the thread's current stream.

        Parameters
        ----------
        flop_count, nbytes
            Floating-point operations, and bytes read and written, for traces.
        blocks
            The array among ``args`` to which the kernel writes its block records, for observers:
            see :class:`~gpuscope.device.api.Call`.

        Raises
        ------
        ClosedError
            The stream is closed.
        InvalidOperand
            ``kernel`` is not a kernel of this kind of device, ``grid`` or ``block`` is not a
            valid count, or an array is on another device.
        """
        if _interrupts.pending:
            _interrupts.deliver()
        raw = self._usable()
        device = self.device
        if not isinstance(kernel, Kernel):
            raise InvalidOperand(
                f"kernel is {given(kernel)}: one made with the device's compile() is needed"
            )
        if (
            type(grid) is not int
            or type(block) is not int
            or not (0 < grid <= _GRID and 0 < block <= _BLOCK)
        ):
            grid = count("grid", grid, least=1, most=_GRID, error=InvalidOperand)
            block = count("block", block, least=1, most=_BLOCK, error=InvalidOperand)
        key, calls = device.identity, device.calls
        currents = caller.current_streams()
        previous = currents.get(key)
        try:
            currents[key] = self
            if not calls.observers:
                try:
                    self._backend.launch(raw, kernel, grid, block, args, calls.next_correlation())
                finally:
                    self.hold(*args)
                return
            call = calls.begin(
                "launch",
                kernel.name,
                self,
                _intended(self),
                flop_count=flop_count,
                nbytes=nbytes,
                blocks=blocks,
                accesses=of_launch(kernel, args) if calls.watchers else None,
                launch_config=launch_config(grid, block),
            )
            try:
                self._backend.launch(raw, kernel, grid, block, args, call.correlation)
            finally:
                self.hold(*args)
                calls.end(call)
        finally:
            if previous is None:
                currents.pop(key, None)
            else:
                currents[key] = previous

    def copy(self, destination: NativeArray, source: NativeArray) -> None:
        """Queue a copy of ``source`` to ``destination``, of equal shape, dtype and device.

        Either may be a NumPy array in host memory; the call may then wait.

        Raises
        ------
        InvalidOperand
            One of them is not an array or is on another device; shapes or dtypes differ; or the
            destination is read-only.
        """
        raw = self._usable()
        require_array(self.device, destination, "destination", write=True)
        require_array(self.device, source, "source")
        if tuple(destination.shape) != tuple(source.shape) or destination.dtype != source.dtype:
            raise InvalidOperand(
                f"copy needs one shape and dtype, but found {source.shape} {source.dtype} → "
                f"{destination.shape} {destination.dtype}"
            )
        nbytes, calls = int(source.nbytes), self.device.calls
        accesses = of_copy(source, destination) if calls.watchers else None
        with calls.observed(
            "copy", "copy", self, _intended(self), nbytes=nbytes, accesses=accesses
        ) as call:
            try:
                self._backend.copy(raw, destination, source, call.correlation)
            finally:
                self.hold(destination, source)
        to_host = isinstance(destination, np.ndarray)
        if to_host and (is_pageable(source) or is_pageable(destination)) and not self.capturing:
            calls.tell("seen", "copy", self)

    def hold(self, *arrays: object) -> None:
        """Keep the memory of gpuscope's arrays until the work queued in this stream is done.

        The arrays may then be dropped at once. gpuscope's launches, copies and products do this
        themselves; call it after work that another library queued in this stream. Under capture,
        the graph holds all arrays given. Otherwise, arrays of other libraries are not kept.
        """
        if self.graph is not None:
            self.graph.hold(*arrays)
        else:
            self._backend.use(self, arrays)

    def host_call(self, function: Callable[[], None]) -> None:
        """Queue ``function`` to run on the host once earlier work in the stream is done.

        It must not call CUDA. If captured, it runs at each launch of the graph. An exception does
        not stop the stream. On a simulated device, the first call that waits for the function, or
        for later work, raises it. On a GPU it goes to :func:`sys.unraisablehook`, because CUDA
        calls the function on its own thread.
        """
        raw = self._usable()
        if not callable(function):
            raise InvalidOperand(f"function is {given(function)}: one without arguments is needed")
        name = str(getattr(function, "__name__", "host function"))
        calls = self.device.calls
        if not calls.watchers:
            with calls.observed("host_call", name, self, self) as call:
                self._backend.host_call(raw, function, call.correlation, self.graph)
            return
        noting, run = HostFunction(function), HostRun()
        with calls.observed("host_call", name, self, self, runs={0: run}) as call:
            if self.graph is None:
                noting.runs.append(run)
            else:
                self.graph.functions[len(self.graph.captured.nodes) - 1] = noting
            try:
                self._backend.host_call(raw, noting, call.correlation, self.graph)
            except BaseException:
                noting.give_up(run)
                raise

    def capture(self, *, name: str | None = None) -> AbstractContextManager[Graph]:
        """Capture the work queued in the ``with`` block into a graph instead of running it.

        A stream that waits for an event recorded in this stream joins the capture until the block
        ends. This stream must then wait for an event of the joined stream.

        Yields
        ------
        Graph
            Launch it after the block; its work keeps this stream's partition.

        Raises
        ------
        CapabilityError
            The device has no graphs.
        StreamError
            The stream is being captured already.
        GpuscopeError
            Something in the block cannot be captured; nothing is left behind.
        """
        return capture(self, name)

    def join(self, graph: Graph) -> None:
        """Become part of a capture; said before the backend begins it."""
        if self.tag is not None:
            self.tag.note_capture(capturing=True)
        graph.streams.append(self)
        self.capturing = True
        self.graph = graph

    def leave(self) -> None:
        """Be no part of a capture any more."""
        self.capturing = False
        self.graph = None
        if self.tag is not None:
            self.tag.note_capture(capturing=False)

    # -- order ------------------------------------------------------------------------
    def record(self, event: Event | None = None, *, timing: bool = True) -> Event:
        """Record ``event``, or a new one, after the queued work, and return it."""
        if _interrupts.pending:
            _interrupts.deliver()
        raw = self._usable()
        device = self.device
        if event is None:
            event = Event(device, timing=timing)
        elif type(event) is not Event or event.device is not device:
            require_event(device, event, "event")
        event.graph = self.graph
        if not device.calls.observers:
            event.correlation = device.calls.next_correlation()
            self._backend.record(event.usable(), raw, event.correlation)
            return event
        call = device.calls.begin("record", "event.record", self, self, event=event)
        event.correlation = call.correlation
        try:
            self._backend.record(event.usable(), raw, call.correlation)
        finally:
            device.calls.end(call)
        return event

    def wait(self, event: Event) -> None:
        """Make work queued from now on wait for the latest record of ``event``.

        Raises
        ------
        StreamError
            It is not an event, or it is of another device. GPUs may wait for each other's events,
            simulated devices cannot.
        """
        raw = self._usable()
        device = self.device
        if type(event) is not Event or event.device is not device:
            require_event(device, event, "event", across=True)
        graph = event.graph
        if isinstance(graph, Graph) and graph.streams and self.graph is None:
            target = event.usable()
            self.join(graph)
            try:
                self._backend.wait(raw, target)
            except BaseException:
                graph.streams.remove(self)
                self.leave()
                raise
            graph.captured.wait(self._handle, event)
            return
        if not device.calls.observers or graph is not None:  # joining a graph, nothing happens now
            self._backend.wait(raw, event.usable())
            if self.graph is not None:
                self.graph.captured.wait(self._handle, event)
            return
        recorded = event if event.correlation is not None else None  # else it orders nothing
        with device.calls.observed("wait", "stream.wait", self, self, event=recorded):
            self._backend.wait(raw, event.usable())

    def synchronize(self) -> None:
        """Wait on the host until everything queued here is done."""
        raw, calls = self._usable(), self.device.calls
        if not calls.observers:  # the common case, quickly
            self._backend.sync_stream(raw)
            return
        call = calls.begin("sync", "stream.synchronize", self, self)
        try:
            self._backend.sync_stream(raw)
        finally:
            calls.end(call)
        if _interrupts.pending:
            _interrupts.deliver()

    @property
    def is_done(self) -> bool:
        """Whether everything queued here is done."""
        done = self._backend.stream_done(self._usable())
        if done and self.device.calls.watchers:
            self.device.calls.tell("seen", "stream.is_done", self)
        return done

    @property
    def queue_number(self) -> int:
        """Its handle, also once it is closed; 0 for CUDA's legacy default stream."""
        return 0 if self.kind == "legacy default" else self._handle


_GRID, _BLOCK = 2**31 - 1, 1024


def make_stream(
    device: Owner,
    partition: PartitionView | None,
    *,
    name: str | None,
    priority: int,
    blocking: bool = False,
) -> Stream:
    """Make a stream of a device, in ``partition`` if one is given."""
    require_kind("name", name, str, None)
    require_kind("blocking", blocking, bool)
    priority = count("priority", priority, least=-(2**31), most=2**31 - 1)
    home = partition.raw if partition else None
    raw, handle = device.backend.make_stream(home, priority, blocking=blocking)
    stream = Stream(device, raw, handle, name=name, partition=partition, priority=priority)
    device.registry.add_stream(stream, handle)
    return stream


def _intended(stream: Stream) -> StreamView[object]:
    """Return what the caller meant when ``stream`` is launched on directly."""
    selected = caller.get_caller_stream()
    if selected is None:
        return stream
    return selected if isinstance(selected, Stream) else stream.device.wrap_stream(selected)
