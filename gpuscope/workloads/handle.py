"""Reusable handles: prepared once, executed on whatever stream the caller chose."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import cast

from gpuscope import _interrupts
from gpuscope._checks import count, given, require_kind
from gpuscope.device.api import NativeArray
from gpuscope.device.caller import get_caller_stream
from gpuscope.device.calls import Call, CallFacts
from gpuscope.device.device import Device, device_for
from gpuscope.device.event import Event, take_event
from gpuscope.device.graph import Graph, when_allowed
from gpuscope.device.handles import AnyStream
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.device.unique import Closing, close_all
from gpuscope.errors import ClosedError, InvalidOperand, StreamError
from gpuscope.workloads.context import NOTHING, CallWork, Completion, Context, Passed, of_thread
from gpuscope.workloads.in_flight import InFlight

__all__ = ["Completion", "Handle"]

_log = logging.getLogger("gpuscope")
_CLOSING_FAILED = "waiting for handle %r failed while it was closed"


class Handle(InFlight, Closing):
    """Base of reusable workloads.

    Parameters
    ----------
    owner
        The device to run on, or a partition, which closes the handle when it is closed.
    name
        For people, timelines and analyses.
    max_in_flight
        How many calls may overlap. Each has a context with its own operands, staging memory,
        event and graph. A call waits, on its stream, for the previous call in the same context.

    Raises
    ------
    InvalidOperand
        ``max_in_flight`` is not a positive whole number.
    ClosedError
        The partition is closed.

    Notes
    -----
    A handle owns no stream. ``execute(stream=…)`` uses the explicit stream, else the caller
    stream, else the thread's current stream. It records a completion event after the work and
    returns at once. Without any of these streams it runs on the per-thread default stream and
    waits; it also waits if an operand is in host memory. A handle can be used again without
    waiting: on the same stream, stream order suffices; another stream waits for the completion
    event. A lock serialises ``execute()``.

    If a call fails after it queued work, it drains its stream before it raises, and the handle
    remains usable.

    On a stream under capture, a call becomes part of the graph. It records no completion; the
    code that launches the graph orders it.

    A subclass queues its work in ``_launch(stream, operands)``. It may check operands in
    ``_prepare(context, operands)``, which also decides what the call returns.

    Origin: contract B, Torch-TensorRT #4314.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gs.Gemm(gpu, m=4096, n=4096, k=4096) as handle, gpu.create_stream() as stream:
    ...     _ = handle.execute(stream=stream)
    ...     handle.completion.is_done
    ...     handle.wait()
    ...     handle.completion.is_done
    False
    True
    """

    _context_type: type[Context] = Context

    def __init__(self, owner: Device | Partition, *, name: str, max_in_flight: int = 1) -> None:
        max_in_flight = count(
            "max_in_flight", max_in_flight, least=1, most=1024, error=InvalidOperand
        )
        require_kind("name", name, str)
        if not isinstance(owner, Device | Partition):
            raise InvalidOperand(
                f"owner is {given(owner)}; a device or a partition is needed, which the handle is "
                "made for"
            )
        if isinstance(owner, Partition):
            owner.require_open()
        super().__init__(
            device_for(owner), name, [self._context_type() for _ in range(max_in_flight)]
        )
        self.stated: CallFacts = {}  # what a call amounts to
        self._replays = False
        self._closed = False
        self._partition = owner if isinstance(owner, Partition) else None
        if self._partition is not None:
            self._partition.adopt(self)

    # -- one call ---------------------------------------------------------------------
    def execute(self, *, stream: AnyStream = None) -> object:
        """Queue one call; subclasses may take operands."""
        return self._execute(stream)

    def _prepare(self, context: Context, operands: Passed) -> CallWork:
        """Check operands and say what the call does; queues nothing. Subclasses refine it."""
        del context
        return CallWork(operands, keep=() if operands is None else (cast("NativeArray", operands),))

    def _launch(self, stream: Stream, operands: Passed) -> None:
        """Queue the work on ``stream``; subclasses say how."""
        raise NotImplementedError

    def _facts(self) -> CallFacts:
        """Return what the next call amounts to."""
        return self.stated

    def _check_capture(self, context: Context, operands: Passed) -> None:
        """Refuse what a stream that is being captured cannot take, before it is asked to."""

    def _remember(self, context: Context, given: Passed, work: CallWork, stream: Stream) -> None:
        """Cache what a call has checked, so that an identical call skips the checks."""

    def _execute(self, stream: AnyStream, operands: Passed = None) -> object:
        device = self.device
        completion = None
        self._refuse_inside("calls its own handle")
        with self._lock, self._inside_call():
            if self._closed:
                raise ClosedError(f"handle {self.name!r} is closed: make a new one")
            if self._replays and stream is None and get_caller_stream() is not None:
                raise StreamError(
                    f"handle {self.name!r} replays a graph, which keeps the SMs that it was "
                    "captured on, whatever a CallerStreamGuard selects: call drop_graph() first, "
                    "or leave the guard and name a stream with execute(stream=…). Nothing was "
                    "launched"
                )
            chosen, selected = device.choose_stream(stream)
            context = self._latest.next
            if chosen.capturing:
                self._check_capture(context, operands)
                work = self._prepare(context, operands)
                for value in work.follows:
                    device.backend.follow(chosen.raw, value)
                self._launch(chosen, work.operands)
                return work.result
            work = self._prepare(context, operands)
            if self._replays:
                device.capabilities.require("graphs", feature=f"a graph of {self.name!r}")
            if device.calls.observers:
                call = device.calls.begin("handle", self.name, chosen, chosen, **self._facts())
                before = device.calls.enter_handle(call)
                try:
                    self._queue(context, work, chosen, call)
                finally:
                    device.calls.enter_handle(before)
            else:
                self._queue(context, work, chosen, None)
            self._latest = context
            if not selected or work.uploads or work.downloads:
                completion = context.hand_out()
            elif not self._replays and context.completion is None and chosen.owned:
                self._remember(context, operands, work, chosen)
        if completion is not None:
            self._finish(context, completion, work, chosen)
        return work.result

    def _finish(
        self, context: Context, completion: Completion, work: CallWork, stream: Stream
    ) -> None:
        """Wait for a call that returns when it is done."""
        try:
            completion.wait()
        except BaseException as error:
            self._drain(stream, error)
            raise
        finally:
            with self._lock:
                if context.completion is completion:
                    context.in_flight = 0
        for wanted, values, _ in work.downloads:
            if wanted is not values:
                wanted[...] = values

    def _queue(self, context: Context, work: CallWork, stream: Stream, call: Call | None) -> None:
        """Queue one call behind what it must follow, and its completion event behind it."""
        device = self.device
        thread = of_thread.token
        context.ready = NOTHING
        if context.in_flight:
            if work.uploads or work.downloads:
                self._wait_before_overwriting(context)
            elif not context.follows_in_order(stream, thread):
                context.let_follow(stream)
        event = context.event if context.completion is None else None
        if event is None:
            event = take_event(device)
        try:
            for value in work.follows:
                device.backend.follow(stream.raw, value)
            for array, values in work.uploads:
                stream.copy(array, values)
            replayed = self._replays and self._replay(context, work, stream)
            if not replayed:
                self._launch(stream, work.operands)
            for _, values, array in work.downloads:
                stream.copy(values, array)
            if call is None:
                device.backend.record(event.raw, stream.raw, 0)
            else:
                stream.record(event)
            if self._replays and not replayed:
                self._capture(context, work, stream)
        except BaseException as error:
            self._fail(context, event, stream, error)
            raise
        number = device.calls.next_correlation() if call is None else call.correlation
        context.queued(number, event, call)
        context.stream, context.thread = stream, thread

    def _wait_before_overwriting(self, context: Context) -> None:
        """Wait on the host for a context's call; its mark clears even if that fails."""
        completion = context.hand_out()
        context.in_flight = 0
        context.completion = context.event = None
        if completion is not None:
            completion.wait()

    def _fail(self, context: Context, event: Event, stream: Stream, error: BaseException) -> None:
        """Leave a context as if idle: the call that failed is drained, its event not trusted."""
        context.ready = NOTHING
        if context.event is event:
            context.event = None
        try:
            self._drain(stream, error)
        finally:
            context.in_flight = 0

    def _drain(self, stream: Stream, error: BaseException) -> None:
        """Wait for a stream, or where that fails for the device: nothing may run on behind."""
        backend = self.device.backend
        try:
            backend.sync_stream(stream.raw)
            self.device.calls.tell("seen", "drain", stream)
        except Exception:  # noqa: BLE001 - the stream may be gone: the device knows its work
            try:
                backend.synchronize()
            except Exception as failure:  # noqa: BLE001 - the first error is the one to tell
                error.add_note(f"Waiting for what was queued failed too: {failure}")

    # -- graphs -----------------------------------------------------------------------
    def use_graph(self) -> None:
        """Capture the work at the next call, and replay it from then on.

        The next call runs the work as usual, then captures it. A call with other operands or in
        another partition captures again. Pass streams with ``execute(stream=…)``: a guard's
        selection is refused.
        """
        self._refuse_inside("changes its own handle")
        with self._lock:
            self._replays = True
            for context in self._contexts:
                context.ready = NOTHING

    def drop_graph(self) -> None:
        """Wait for calls in flight, and launch without a graph from then on."""
        self._refuse_inside("changes its own handle")
        try:
            self.wait()
        finally:
            with self._lock:
                self._replays = False
                graphs = self._take_graphs()
            close_all(graphs)

    def _take_graphs(self) -> list[Graph]:
        graphs = [context.graph for context in self._contexts if context.graph is not None]
        for context in self._contexts:
            context.graph, context.graph_arrays = None, ()
        return graphs

    def _replay(self, context: Context, work: CallWork, stream: Stream) -> bool:
        """Launch a context's graph if it does this work in this place."""
        graph = context.graph
        if (
            graph is None
            or graph.closed
            or graph.partition is not stream.partition
            or [*map(id, context.graph_arrays)] != [*map(id, work.keep)]
        ):
            return False
        graph.launch(stream=stream)
        return True

    def _capture(self, context: Context, work: CallWork, stream: Stream) -> None:
        former, context.graph = context.graph, None
        if former is not None:
            former.close()
        with stream.capture(name=self.name) as graph:
            self._launch(stream, work.operands)
        context.graph, context.graph_arrays = graph, work.keep

    # -- life -------------------------------------------------------------------------
    def close(self) -> None:
        """Wait for calls in flight. Idempotent. Failures are logged, not raised.

        While this thread captures a stream, this is deferred until the capture has ended.

        Raises
        ------
        StreamError
            A call of this handle closes it, or an observer of one.
        """
        self._refuse_inside("closes its own handle")
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for context in self._contexts:
                context.ready = NOTHING
        if self._partition is not None:
            self._partition.release(self)
        when_allowed(self.device, self._finish_closing)

    def _finish_closing(self) -> None:
        with self._lock:
            graphs = self._take_graphs()
        try:
            for act in (self.wait, *(graph.close for graph in graphs)):
                try:
                    act()
                except Exception:  # noqa: BLE001 - who closes cannot help it
                    _log.exception(_CLOSING_FAILED, self.name)
        finally:
            with self._lock:  # who asks for a completion meanwhile gets no event that went back
                for context in self._contexts:
                    context.forget()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_closed", True) or _is_finalizing():
            return  # at the interpreter's end the devices were closed, and their work waited for
        with _interrupts.no_interrupt():
            when_allowed(self.device, self._finish_collected)

    def _finish_collected(self) -> None:
        for context in self._contexts:
            event, in_flight = context.event, context.in_flight
            context.in_flight = 0
            if not in_flight or event is None:
                continue
            try:  # by the backend: an observer may be what the collector interrupted
                self.device.backend.sync_event(event.raw)
            except Exception:  # noqa: BLE001 - a destructor has nobody to tell
                context.event = None
                _log.exception(_CLOSING_FAILED, self.name)
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, device={self.device.info.key!r})"
