"""Streams and events: one life cycle for every device."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpuscope._checks import count, given
from gpuscope.device import caller
from gpuscope.device.api import Kernel, StreamKind
from gpuscope.device.graph import Graph, after_capture, capturing
from gpuscope.device.memory import Tag
from gpuscope.device.unique import Unique
from gpuscope.errors import ClosedError, GpuscopeError, InvalidOperand, StreamError

if TYPE_CHECKING:
    from gpuscope.device.device import Device
    from gpuscope.device.partition import Partition


class Event(Unique):
    """A point in a stream's work that others can wait for and time.

    Recording an event queues a marker behind the work already on a stream; the event is
    *done* when that work is. A wait made now refers to the latest record made before it;
    recording again later changes nothing for waits already queued. Waiting for an event
    that was never recorded does nothing.

    Notes
    -----
    Timing is on unless asked off. CUDA gives the time between two events as a float of
    milliseconds, good to about 0.5 µs and worse over long spans.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.learn.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gpu.create_stream() as other:
    ...     start = stream.record()
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    ...     end = stream.record()
    ...     other.wait(end)
    >>> end.is_done, end.elapsed_ns(since=start) >= 50_000
    (True, True)
    """

    __slots__ = (
        "__weakref__", "_backend", "_closed", "_device", "correlation", "graph", "raw", "timing",
    )  # fmt: skip

    def __init__(self, device: Device, *, timing: bool = True) -> None:
        self._closed = True
        self._device = device
        self._backend = device.backend
        self.timing = timing
        self.raw = self._backend.make_event(timing=timing)
        self.correlation: int | None = None
        """Number of the call that recorded it last, or ``None``."""
        self.graph: Graph | None = None
        """The graph that its latest record became part of."""
        self._closed = False

    def _usable(self) -> Any:
        if self._closed:
            raise ClosedError("this event is closed: create a new one, or record before closing")
        return self.raw

    @property
    def device(self) -> Device:
        """The device it was made on."""
        return self._device

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def is_done(self) -> bool:
        """Whether its latest record is done; true if it was never recorded."""
        return self._backend.event_done(self._usable())

    def record(self, stream: Stream) -> None:
        """Record on ``stream``, behind what is queued there."""
        if not isinstance(stream, Stream):
            raise StreamError(
                f"stream is {given(stream)}: an event is recorded on a stream of the event's "
                "device, made with create_stream() or wrap_stream()"
            )
        stream.record(self)

    def synchronize(self) -> None:
        """Wait on the host until the latest record is done."""
        raw = self._usable()
        device = self._device
        if not device.observers:
            self._backend.sync_event(raw)
            return
        call = device.begin_call("sync", "event.synchronize", None, None, event=self)
        try:
            self._backend.sync_event(raw)
        finally:
            device.end_call(call)

    def elapsed_ns(self, *, since: Event) -> int:
        """Nanoseconds from the record of ``since`` to the record of this event.

        Both must be done and have timing. Resolution: about 0.5 µs on a GPU (the driver's
        float of milliseconds), 1 ns on a simulated one.

        Raises
        ------
        StreamError
            One was made with ``timing=False``, or belongs to another device.
        """
        self._device.require_event(since, "since")
        if not (self.timing and since.timing):
            raise StreamError("elapsed_ns needs two events made with timing=True")
        return self._backend.elapsed_ns(since._usable(), self._usable())

    def close(self) -> None:
        """Destroy it; again does nothing. Never raises, also when the device is gone."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(Exception):
                self._backend.close_event(self.raw)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not (self._closed or _is_finalizing()):
            self.close()

    def __repr__(self) -> str:
        return f"Event({'closed' if self._closed else f'device={self._device.info.key!r}'})"


class Stream(Unique):
    """A queue of work that runs in order; made by a device or a partition.

    ``with`` is the documented way to hold one: leaving waits for its work and destroys
    it, also on an exception.

    Attributes
    ----------
    name
        For people and timelines.
    partition
        The partition it was made in, or ``None``.
    priority
        CUDA's: lower runs first; 0 is the default.
    id
        Number in traces.

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
        device: Device,
        raw: Any,
        handle: int,
        *,
        name: str | None,
        partition: Partition | None = None,
        priority: int = 0,
        owned: bool = True,
    ) -> None:
        self.device = device
        self.raw = raw
        self.partition = partition
        self.priority = priority
        self._kind: StreamKind | None = None
        self.id = device.next_stream_id()
        self.name = name if name is not None else f"stream {self.id}"
        self._handle = handle
        self._owned = owned
        self._closed = False
        self._over = False  # closed, and nothing of closing is left to do
        self._backend = device.backend
        self.tag = Tag(raw) if owned else None
        """What memory that is used here remembers of it; ``None`` if it is somebody else's."""
        self.cupy_stream: Any = None
        """Where a bound guard keeps CuPy's object for this stream."""
        self.capturing = False
        """Whether what is queued now becomes a graph."""
        self.graph: Graph | None = None
        """The graph that it is being captured into."""
        self.registry: dict[Hashable, Any] | None = None
        """The current streams of a thread, if they made this one and own it."""
        self.sm_count_target = partition.sm_count_target if partition is not None else 0
        """SMs that libraries should tune for; 0 means the whole GPU."""

    # -- life -------------------------------------------------------------------------
    @property
    def handle(self) -> int:
        """The raw ``cudaStream_t`` as an integer."""
        if self._closed:
            raise self._closed_error()
        return self._handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def kind(self) -> StreamKind:
        """How it stands to the legacy default stream; one that cannot be asked any more: not."""
        if self._kind is None:
            self._kind = "non-blocking"
            if not self._closed:
                with contextlib.suppress(GpuscopeError):  # somebody else's may be gone
                    self._kind = self._backend.stream_kind(self.raw)
        return self._kind

    @property
    def blocking(self) -> bool:
        """Whether it stands in the legacy default stream's barrier."""
        return self.kind in ("blocking", "per-thread default")

    def _closed_error(self) -> ClosedError:
        return ClosedError(
            f"stream {self.name!r} is closed: work on it would go elsewhere, so nothing was "
            "queued. Create a new stream, or close later"
        )

    def require_open(self) -> None:
        """Raise :class:`ClosedError` if it was closed."""
        if self._closed:
            raise self._closed_error()

    def _usable(self) -> Any:
        self.require_open()
        return self.raw

    def close(self) -> None:
        """Wait for its work, then destroy it; again does nothing.

        A stream made from somebody else's handle is only forgotten. While this thread captures
        another stream, waiting and destroying are put off until the capture has ended.

        Raises
        ------
        StreamError
            It is being captured itself, or a workload's call that runs on this thread has
            borrowed it; nothing is changed.
        GpuscopeError
            Its work failed, or the device is gone. It is closed all the same: destroying
            it raises nothing.
        """
        if self._over:
            return
        require_not_borrowed([self])
        if self.capturing:
            raise StreamError(
                f"stream {self.name!r} is being captured: leave the capture before it is closed"
            )
        # Of threads that close it at once the first does; it may go on where it was interrupted.
        thread = threading.get_ident()
        if vars(self).setdefault("_closer", thread) != thread:
            return
        self._closed = True
        self.cupy_stream = None
        self.device.forget_stream(self)
        if self.partition is not None:
            self.partition.release(self)
        if self.registry is not None and self.registry.get(self.device.identity) is self:
            self.registry.pop(self.device.identity, None)
        if self._owned:
            after_capture(self._destroy)
        else:
            self._over = True

    def _destroy(self) -> None:
        if self._over:
            return
        mark = None
        try:
            self._backend.sync_stream(self.raw)
        except BaseException:
            with contextlib.suppress(Exception):
                mark = self._backend.mark(self.raw)
            raise
        finally:
            if self.tag is not None:
                self.tag.close(mark)
            with contextlib.suppress(Exception):  # the device may be gone: nothing is left to do
                self._backend.close_stream(self.raw, self._handle)
            self._over = True

    def __enter__(self) -> Stream:
        self._usable()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_over", True) or not self._owned or _is_finalizing():
            return  # at the interpreter's end what is left goes with the process
        was_closed = self._closed
        with contextlib.suppress(Exception):  # a destructor has nobody to tell
            self.close()
        if self.registry is None and not was_closed:
            warnings.warn(
                f"stream {self.name!r} was never closed: hold it in a with block, or call close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        where = f", partition={self.partition.name!r}" if self.partition else ""
        state = ", closed" if self._closed else ""
        return f"Stream({self.name!r}, device={self.device.info.key!r}{where}{state})"

    # -- work -------------------------------------------------------------------------
    def launch(
        self,
        kernel: Kernel,
        *args: Any,
        grid: int,
        block: int,
        flop_count: int | None = None,
        nbytes: int | None = None,
        blocks: Any = None,
    ) -> None:
        """Launch ``kernel`` with ``grid`` blocks of ``block`` threads.

        Arrays of the device and NumPy scalars are passed as they are. The thread's
        current stream is this one for the length of the call.

        Parameters
        ----------
        flop_count, nbytes
            Floating-point operations, and bytes read and written, for traces.
        blocks
            The array among ``args`` that the kernel writes its block records to, for
            observers: see :class:`~gpuscope.device.api.Call`.

        Raises
        ------
        ClosedError
            The stream is closed.
        InvalidOperand
            ``kernel`` is no kernel of this kind of device, ``grid`` or ``block`` no count that
            CUDA takes, or an array is on another device.
        """
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
        key = device.identity
        # Restored without a call into Python, at whose beginning an interrupt may strike.
        currents = caller.current_streams()
        previous = currents.get(key)
        try:
            currents[key] = self
            if not device.observers:
                try:
                    self._backend.launch(raw, kernel, grid, block, args, device.next_correlation())
                finally:
                    self.hold(*args)
                return
            call = device.begin_call(
                "launch", kernel.name, self, device.intended_stream(self),
                flop_count=flop_count, nbytes=nbytes, blocks=blocks,
                launch_config=f'{{"grid":[{grid},1,1],"block":[{block},1,1]}}',
            )  # fmt: skip
            try:
                self._backend.launch(raw, kernel, grid, block, args, call.correlation)
            finally:
                self.hold(*args)
                device.end_call(call)
        finally:
            if previous is None:
                currents.pop(key, None)
            else:
                currents[key] = previous

    def copy(self, destination: Any, source: Any) -> None:
        """Queue a copy of ``source`` over ``destination``: same shape, dtype and device.

        Either side may be a NumPy array in host memory; then the call may wait.

        Raises
        ------
        InvalidOperand
            One is no array, or on another device; shapes or dtypes differ; or the destination
            cannot be written.
        """
        raw = self._usable()
        self.device.require_array(destination, "destination", write=True)
        self.device.require_array(source, "source")
        if tuple(destination.shape) != tuple(source.shape) or destination.dtype != source.dtype:
            raise InvalidOperand(
                f"copy needs one shape and dtype, but found {source.shape} {source.dtype} → "
                f"{destination.shape} {destination.dtype}"
            )
        call = self.device.begin_call(
            "copy", "copy", self, self.device.intended_stream(self), nbytes=int(source.nbytes)
        )
        try:
            self._backend.copy(raw, destination, source, call.correlation)
        finally:
            self.hold(destination, source)
            self.device.end_call(call)

    def hold(self, *arrays: Any) -> None:
        """Keep the memory of gpuscope's arrays until the work queued here is done.

        They may then be dropped at once. gpuscope's own launches, copies and products do this by
        themselves; call it after work that another library queued here. On a stream that is being
        captured, the graph holds whatever is given. Other libraries' arrays are theirs to keep.
        """
        if self.graph is not None:
            self.graph.hold(*arrays)
        else:
            self._backend.use(self, arrays)

    def host_call(self, function: Callable[[], None]) -> None:
        """Queue ``function`` to run on the host when the work before it is done.

        It must not call CUDA. Captured, it runs at each launch of the graph. What it raises
        holds up nothing: on a simulated device the first call that waits for it, or for work
        behind it, raises that; on a GPU it goes to :func:`sys.unraisablehook`, since CUDA calls
        the function on a thread of its own.
        """
        raw = self._usable()
        if not callable(function):
            raise InvalidOperand(f"function is {given(function)}: one without arguments is needed")
        name = str(getattr(function, "__name__", "host function"))
        call = self.device.begin_call("host_call", name, self, self)
        try:
            self._backend.host_call(raw, function, call.correlation, self.graph)
        finally:
            self.device.end_call(call)

    @contextlib.contextmanager
    def capture(self, *, name: str | None = None) -> Iterator[Graph]:
        """Let what is queued in the ``with`` block become a graph instead of running.

        A stream that waits for an event recorded here joins in, until the block ends; this
        stream must wait for an event of it in turn.

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
        self.require_open()
        self.device.capabilities.require("graphs", feature="capturing a stream")
        if self.capturing:
            raise StreamError(f"stream {self.name!r} is being captured already: end that first")
        graph = Graph(self, name)
        with capturing():
            refused = False
            try:
                self._join(graph)
                try:
                    self._backend.begin_capture(self)
                except GpuscopeError:
                    refused = True
                    raise
                yield graph
                graph.raw = self._backend.end_capture(self)
                graph.is_empty = self._backend.graph_is_empty(graph.raw)
            except BaseException:
                if graph.raw is None and not refused:
                    # The block's own error is the one to tell.
                    with contextlib.suppress(GpuscopeError):
                        graph.raw = self._backend.end_capture(self)
                graph.close()
                raise
            finally:
                for stream in graph.streams:
                    stream._leave()
                graph.streams.clear()

    def _join(self, graph: Graph) -> None:
        """Become part of a capture; said before the backend begins it."""
        if self.tag is not None:
            self.tag.capturing = True
        graph.streams.append(self)
        self.capturing = True
        self.graph = graph

    def _leave(self) -> None:
        self.capturing = False
        self.graph = None
        if self.tag is not None:
            self.tag.capturing = False

    # -- order ------------------------------------------------------------------------
    def record(self, event: Event | None = None, *, timing: bool = True) -> Event:
        """Record ``event``, or a new one, behind what is queued; returns it."""
        raw = self._usable()
        device = self.device
        if event is None:
            event = Event(device, timing=timing)
        elif type(event) is not Event or event.device is not device:
            device.require_event(event, "event")
        event.graph = self.graph
        if not device.observers:
            event.correlation = device.next_correlation()
            self._backend.record(event._usable(), raw, event.correlation)
            return event
        call = device.begin_call("record", "event.record", self, self, event=event)
        event.correlation = call.correlation
        try:
            self._backend.record(event._usable(), raw, call.correlation)
        finally:
            device.end_call(call)
        return event

    def wait(self, event: Event) -> None:
        """Make what is queued from now on wait for the latest record of ``event``.

        Raises
        ------
        StreamError
            It is no event, or the two devices know nothing of each other: GPUs may wait for
            each other's events, simulated ones cannot.
        """
        raw = self._usable()
        device = self.device
        if type(event) is not Event or event.device is not device:
            device.require_event(event, "event", across=True)
        graph = event.graph
        if graph is not None and graph.streams and self.graph is None:
            target = event._usable()
            self._join(graph)
            try:
                self._backend.wait(raw, target)
            except BaseException:
                graph.streams.remove(self)
                self._leave()
                raise
            return
        if not device.observers or graph is not None:  # joining a graph, nothing happens now
            self._backend.wait(raw, event._usable())
            return
        recorded = event if event.correlation is not None else None  # else it orders nothing
        call = device.begin_call("wait", "stream.wait", self, self, event=recorded)
        try:
            self._backend.wait(raw, event._usable())
        finally:
            device.end_call(call)

    def synchronize(self) -> None:
        """Wait on the host until everything queued here is done."""
        raw = self._usable()
        device = self.device
        if not device.observers:
            self._backend.sync_stream(raw)
            return
        call = device.begin_call("sync", "stream.synchronize", self, self)
        try:
            self._backend.sync_stream(raw)
        finally:
            device.end_call(call)

    @property
    def is_done(self) -> bool:
        """Whether everything queued here is done."""
        return self._backend.stream_done(self._usable())


_GRID, _BLOCK = 2**31 - 1, 1024


def require_not_borrowed(streams: Collection[Stream]) -> None:
    """Refuse to close streams of which a workload's call on this thread has borrowed one."""
    from gpuscope.device.scratch import open_contexts  # noqa: PLC0415 - it needs this module

    for context in open_contexts():
        if context.stream in streams:
            raise StreamError(
                f"stream {context.stream.name!r} is borrowed by a workload's call that runs on "
                "this thread, and cannot be closed inside it: close it when execute() has "
                "returned. Nothing was changed"
            )


def close_all(items: Sequence[Any]) -> None:
    """Close every item, also when one fails; then raise the first error."""
    first: BaseException | None = None
    for item in items:
        try:
            item.close()
        except BaseException as error:  # noqa: BLE001 - the others must still be closed
            first = first or error
    if first is not None:
        raise first
