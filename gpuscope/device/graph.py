"""Graphs: work captured on a stream once, launched again and again."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from gpuscope import _interrupts
from gpuscope._fork import free_in_children
from gpuscope.device.api import Activity
from gpuscope.device.calls import Call, Execution, HostFunction, HostRun, Noted
from gpuscope.device.captured import Captured
from gpuscope.device.handles import AnyStream
from gpuscope.device.owner import Owner
from gpuscope.device.unique import Closable, Closing
from gpuscope.device.views import StreamView
from gpuscope.errors import ClosedError, GpuscopeError, StreamError

_log = logging.getLogger("gpuscope")
_ids = itertools.count(1)


class _Open:
    """How many captures that began on a thread are open, and what is put off meanwhile."""

    def __init__(self) -> None:
        self.captures = 0
        self.later: deque[tuple[Owner, Callable[[], object]]] = deque()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open = _Open()


_thread = _Thread()


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Put off, on this thread, what waits for the GPU or frees: it would spoil the capture.

    Another thread may end it, as where a program forgot to.
    """
    begun = _thread.open
    begun.captures += 1
    try:
        yield
    finally:
        begun.captures -= 1
        _catch_up(begun)


def _catch_up(begun: _Open) -> None:
    while begun.later and not (begun.captures or begun.later[0][0].backend.is_inside()):
        try:
            begun.later.popleft()[1]()
        except Exception:  # noqa: BLE001 - as in a destructor, there is nobody to tell
            _log.exception("what was put off failed")


def when_allowed(device: Owner, act: Callable[[], object]) -> None:
    """Call ``act``, which waits or frees: now, or when no capture is open on this thread.

    What the collector runs inside a call of the device waits for the next that comes outside.
    """
    begun = _thread.open
    if begun.captures or device.backend.is_inside():
        begun.later.append((device, act))
    else:
        _catch_up(begun)
        act()


class Capturable(StreamView[object], Protocol):
    """A stream that can be captured."""

    @property
    def device(self) -> Owner:
        """Its device."""

    def join(self, graph: Graph) -> None:
        """Become part of a capture."""

    def leave(self) -> None:
        """Be no part of a capture any more."""


class _Capture:
    """Watches a device's calls while a graph is captured, which is told of those in it.

    So each call says what it reads and writes; what others do meanwhile is passed over.
    """

    def call_begins(self, call: Call) -> None:
        """Pass over a call."""

    def call_ends(self, call: Call) -> None:
        """Pass over its end."""

    def activity(self, activity: Activity) -> None:
        """Pass over what a device did."""

    def execution_begins(self, execution: Execution) -> None:
        """Pass over a launch."""

    def execution_seen(self, execution: Execution) -> None:
        """Pass over its end."""

    def take_note(self, note: Noted) -> None:
        """Pass over a note."""


class Graph(Closing):
    """The work queued in a stream during a capture, made by :meth:`Stream.capture`.

    Its work keeps the SMs of the stream in which it was captured, whichever stream launches it.

    Attributes
    ----------
    id
        Number in traces; traces that CUPTI recorded have CUDA's number instead.
    partition
        The partition in which its work runs, or ``None`` for the whole GPU. Work of a stream that
        joined the capture keeps the partition of that stream.
    closed
        Whether it was closed.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream:
    ...     with stream.capture(name="two") as graph:
    ...         stream.launch(kernel, 5_000, grid=1, block=32)
    ...         stream.launch(kernel, 5_000, grid=1, block=32)
    ...     with graph, gs.profile(gpu) as recording:
    ...         graph.launch(stream=stream)
    >>> recording.trace.kind_counts()["kernel"]
    2
    """

    def __init__(self, stream: Capturable, name: str | None) -> None:
        self.id = next(_ids)
        self.name = name if name is not None else f"graph {self.id}"
        self.device = stream.device
        self.partition = stream.partition
        self.raw: object | None = None
        self.is_empty = False
        """Whether it is known to have no work."""
        self.streams: list[Capturable] = []
        """The streams that are being captured into it."""
        self.workspaces: dict[int, object] = {}
        """What its products compute in, by the handle of the stream they were captured on."""
        self.captured = Captured()
        self.functions: dict[int, HostFunction] = {}
        """Its host functions, by node."""
        self._lock = free_in_children(threading.Lock())
        self.closed = False
        self._held: list[tuple[object, ...]] = []
        self._kept: list[Closable] = []
        if self.partition is not None:
            self.partition.adopt(self)

    def launch(self, *, stream: AnyStream = None) -> None:
        """Queue the graph's work. If no stream is selected, wait for it.

        Parameters
        ----------
        stream
            As for every launch: explicit, else the caller stream, else the thread's current
            stream, else the per-thread default.

        Raises
        ------
        ClosedError
            The graph is closed, or its capture failed.
        GpuscopeError
            The stream is under capture: in this way, CUDA cannot make a graph part of another.
        """
        device = self.device
        self._require_captured()
        chosen, selected = device.choose_stream(stream)
        runs = {node: HostRun() for node in self.functions}
        observed = device.calls.observed("launch", self.name, chosen, chosen, graph=self, runs=runs)
        # Its launches follow each other, and so do the events behind them.
        with observed as call, self._lock:
            self._require_captured()
            for node, run in runs.items():
                self.functions[node].runs.append(run)
            try:
                device.backend.launch_graph(self.raw, chosen.raw, call.correlation)
            except BaseException:
                for node, run in runs.items():
                    self.functions[node].give_up(run)
                raise
        if not selected:
            chosen.synchronize()

    def _require_captured(self) -> None:
        if self.closed or self.raw is None:
            raise ClosedError(
                f"{self.name!r} is closed or was never captured to its end: capture it again"
            )

    def keep(self, item: Closable) -> None:
        """Close ``item``, which its work uses, when it is closed itself."""
        self._kept.append(item)

    def hold(self, *values: object) -> None:
        """Hold what its work uses, arrays above all, until it is closed."""
        self._held.append(values)

    def close(self) -> None:
        """Wait for its launches, then destroy it. Idempotent.

        While this thread captures a stream, this is deferred until the capture has ended.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
        if self.partition is not None:
            self.partition.release(self)
        when_allowed(self.device, self._destroy)

    def _destroy(self) -> None:
        try:
            if self.raw is not None:
                self.device.backend.close_graph(self.raw)
                self.device.calls.tell("seen", "graph.close", graph=self)
                self.raw = None
        finally:
            self.workspaces.clear()
            self._held.clear()
            while self._kept:
                self._kept.pop().close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with _interrupts.no_interrupt(), contextlib.suppress(GpuscopeError):
                self.close()  # the device may be gone: there is nobody to tell

    def __repr__(self) -> str:
        where = f", partition={self.partition.name!r}" if self.partition is not None else ""
        return f"Graph({self.name!r}, device={self.device.info.key!r}{where})"


@contextlib.contextmanager
def capture(stream: Capturable, name: str | None) -> Iterator[Graph]:
    """Let what is queued on ``stream`` become a graph: see :meth:`Stream.capture`."""
    stream.require_open()
    stream.device.capabilities.require("graphs", feature="capturing a stream")
    if stream.capturing:
        raise StreamError(f"stream {stream.name!r} is being captured already: end that first")
    backend, graph = stream.device.backend, Graph(stream, name)
    calls, watcher = stream.device.calls, _Capture()
    with capturing():
        refused = False
        try:
            calls.observe(watcher)
            stream.join(graph)
            try:
                backend.begin_capture(stream)
            except GpuscopeError:
                refused = True
                raise
            yield graph
            graph.raw = backend.end_capture(stream)
            graph.is_empty = backend.graph_is_empty(graph.raw)
        except BaseException:
            if graph.raw is None and not refused:
                # The block's own error is the one to tell.
                with contextlib.suppress(GpuscopeError):
                    graph.raw = backend.end_capture(stream)
            graph.close()
            raise
        finally:
            calls.unobserve(watcher)
            graph.captured.end()
            for joined in graph.streams:
                joined.leave()
            graph.streams.clear()
