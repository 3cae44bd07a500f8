"""A stream's life: whether it can be used, waiting for its work, and its end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable

from gpuscope import _interrupts
from gpuscope.device.event import EventQueue
from gpuscope.device.graph import Graph, when_allowed
from gpuscope.device.handles import AnyStream
from gpuscope.device.memory import Tag
from gpuscope.device.owner import Owner
from gpuscope.device.registry import require_not_borrowed
from gpuscope.device.unique import Closing, warn_unclosed
from gpuscope.device.views import PartitionView, StreamKind
from gpuscope.errors import ClosedError, GpuscopeError, StreamError


class StreamLife(Closing, EventQueue):
    """What a stream is, without what is queued on it."""

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
            when_allowed(self.device, self._destroy)

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

    def synchronize(self) -> None:
        """Wait on the host until everything queued here is done."""
        raw, calls = self._usable(), self.device.calls
        call = calls.begin("sync", "stream.synchronize", self, self) if calls.observers else None
        try:
            self._backend.sync_stream(raw)
        finally:
            if call is not None:
                calls.end(call)
        if _interrupts.pending:
            _interrupts.deliver()

    @property
    def is_done(self) -> bool:
        """Whether everything queued here is done; what it raised is raised here, once it is."""
        raw, done = self._usable(), True
        try:
            done = self._backend.stream_done(raw)
        finally:
            if done and self.device.calls.watchers:
                self.device.calls.tell("seen", "stream.is_done", self)
        return done

    @property
    def queue_number(self) -> int:
        """Its handle, also once it is closed; 0 for CUDA's legacy default stream."""
        return 0 if self.kind == "legacy default" else self._handle
