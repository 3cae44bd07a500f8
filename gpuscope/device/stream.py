"""Streams: one way to queue work, and to order it, for every device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np

from gpuscope import _interrupts
from gpuscope._checks import count, given, require_kind
from gpuscope.device import caller
from gpuscope.device.accesses import of_copy, of_launch
from gpuscope.device.api import Kernel, NativeArray, launch_config
from gpuscope.device.arrays import require_array
from gpuscope.device.calls import CallFacts, HostFunction, HostRun
from gpuscope.device.event import Event, require_event
from gpuscope.device.graph import Graph, capture
from gpuscope.device.memory import is_pageable
from gpuscope.device.owner import Owner
from gpuscope.device.stream_life import StreamLife
from gpuscope.device.views import PartitionView, StreamView
from gpuscope.errors import InvalidOperand

_GRID, _BLOCK = 2**31 - 1, 1024


class Stream(StreamLife):
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
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream(name="s") as stream:
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    ...     stream.is_done
    ...     stream.synchronize()
    ...     stream.is_done
    False
    True
    """

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
            call = None
            if calls.observers:
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
            number = calls.next_correlation() if call is None else call.correlation
            try:
                self._backend.launch(raw, kernel, grid, block, args, number)
            finally:
                self.hold(*args)
                if call is not None:
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
        calls = self.device.calls
        facts: CallFacts = {"nbytes": int(source.nbytes)}
        facts["accesses"] = of_copy(source, destination) if calls.watchers else None
        with calls.observed("copy", "copy", self, _intended(self), **facts) as call:
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
        noting, run, calls = HostFunction(function), HostRun(), self.device.calls
        with calls.observed("host_call", noting.__name__, self, self, runs={0: run}) as call:
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
        event.graph, calls, call = self.graph, device.calls, None
        if calls.observers:
            call = calls.begin("record", "event.record", self, self, event=event)
        event.correlation = calls.next_correlation() if call is None else call.correlation
        try:
            self._backend.record(event.usable(), raw, event.correlation)
        finally:
            if call is not None:
                calls.end(call)
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
        graph, target = event.graph, event.usable()
        if device.calls.observers and graph is None:
            recorded = event if event.correlation is not None else None  # else it orders nothing
            with device.calls.observed("wait", "stream.wait", self, self, event=recorded):
                self._backend.wait(raw, target)
            return
        joined = graph if isinstance(graph, Graph) and graph.streams and not self.graph else None
        if joined is not None:  # a capture: nothing happens now
            self.join(joined)
        try:
            self._backend.wait(raw, target)
        except BaseException:
            if joined is not None:
                joined.streams.remove(self)
                self.leave()
            raise
        if self.graph is not None:
            self.graph.captured.wait(self._handle, event)


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


@contextlib.contextmanager
def holding_arrays(stream: Stream) -> Iterator[None]:
    """Hold the arrays that this thread makes meanwhile for what is then queued on ``stream``.

    For a stream that is not ours; on one of ours an array is held as soon as it is made.
    """
    of_thread = stream.device.registry.of_thread
    made: list[NativeArray] = []
    before, of_thread.made = of_thread.made, made
    try:
        yield
    finally:
        of_thread.made = before
        stream.hold(*made)


def _intended(stream: Stream) -> StreamView[object]:
    """Return what the caller meant when ``stream`` is launched on directly."""
    selected = caller.get_caller_stream()
    if selected is None:
        return stream
    return selected if isinstance(selected, Stream) else stream.device.wrap_stream(selected)
