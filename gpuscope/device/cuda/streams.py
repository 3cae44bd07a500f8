"""Streams and events of a CUDA device, through cuda.core."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection

from gpuscope.device.cuda import captures
from gpuscope.device.cuda.context import CudaContext
from gpuscope.device.cuda.errors import check, translated
from gpuscope.device.raw import Mark, RawEvent, RawPartition, RawStream, StreamKind
from gpuscope.errors import GpuscopeError, StreamError

_NOT_READY = 600  # cudaErrorNotReady
_PER_THREAD = 2  # cudaStreamPerThread; 1 is cudaStreamLegacy, and so is 0


class CudaStreams(CudaContext):
    """Its streams and events."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._with_timing = self._core.EventOptions(timing_enabled=True)
        self._without_timing = self._core.EventOptions(timing_enabled=False)

    # -- streams ----------------------------------------------------------------------
    def make_stream(
        self, partition: RawPartition, priority: int, *, blocking: bool = False
    ) -> tuple[RawStream, int]:
        """Make a stream, in a green context if one is given."""
        options = self._core.StreamOptions(nonblocking=not blocking, priority=priority)
        with self._current(), translated("the driver refuses a stream"):
            home = self._device if partition is None else partition.context
            stream = home.create_stream(options=options)
        return stream, int(stream.handle)

    def borrow_stream(self, handle: int) -> RawStream:
        """Wrap somebody else's stream; it is never destroyed by us.

        Raises
        ------
        StreamError
            It is another GPU's.
        """
        stream = self._core.Stream.from_handle(handle)
        if handle > _PER_THREAD:  # the default streams are of whichever device is current
            with translated(f"{handle:#x} is no stream"):
                index = int(stream.device.device_id)
            if index != self._index:
                raise StreamError(
                    f"stream {handle:#x} belongs to cuda:{index}, not to cuda:{self._index}: "
                    "create one with this device's create_stream(), or put the operands on the "
                    "stream's device"
                )
        return stream

    def stream_kind(self, raw: RawStream) -> StreamKind:
        """Return a default stream's kind by its handle, another's by its flags."""
        handle = int(raw.handle)
        if handle in (0, 1):  # cudaStreamLegacy is 1
            return "legacy default"
        if handle == 2:  # cudaStreamPerThread
            return "per-thread default"
        with self._current(), translated("the stream cannot be asked"):
            return "non-blocking" if raw.is_nonblocking else "blocking"

    def default_stream(self) -> tuple[RawStream, int]:
        """Return the per-thread default stream.

        Raises
        ------
        StreamError
            A green context is current on this thread: CUDA refuses that stream then.
        """
        if self._is_current() and self._device.context.is_green:
            raise StreamError(
                "a green context is current on this thread, and CUDA has no per-thread default "
                "stream there: give stream=, enter a CallerStreamGuard, or make the primary "
                "context current again with cuda.core.Device().set_current()"
            )
        stream = self._core.PER_THREAD_DEFAULT_STREAM
        return stream, int(stream.handle)

    def sync_stream(self, raw: RawStream) -> None:
        """Wait on the host for a stream."""
        with self._current(), translated("waiting for a stream failed"):
            raw.sync()

    def stream_done(self, raw: RawStream) -> bool:
        """Whether a stream is idle."""
        with self._current(), translated("the stream cannot be asked"):
            status = self._runtime.streamQuery(int(raw.handle))
            if status not in (0, _NOT_READY):
                raise self._runtime.CUDARuntimeError(status)
            return bool(status == 0)

    def synchronize(self) -> None:
        """Wait on the host for the whole device, once no thread captures."""
        with captures.none_open("this call"):
            pass  # one may begin while this waits: a device may be waited for long
        with self._current(), translated("waiting for the device failed"):
            self._runtime.deviceSynchronize()

    def wait_for_all(self, handles: Collection[int]) -> None:
        """Wait for the device, then for streams and their green contexts by events.

        With driver 580 a wait for the device does not wait for a graph in a partition's stream,
        whoever launched it; an event with timing behind it does.
        """
        self.synchronize()
        driver = importlib.import_module("cuda.bindings.driver")
        with self._current(), translated("waiting for every stream failed"):
            event = self._device.create_event(self._with_timing)
            greens = {}
            for handle in handles:
                with contextlib.suppress(Exception):  # another library's, of another device or gone
                    if self._runtime.streamIsCapturing(handle):
                        continue
                    self._core.Stream.from_handle(handle).record(event)
                    event.sync()
                    status, green = driver.cuStreamGetGreenCtx(handle)
                    if int(status) == 0 and int(green):
                        greens[int(green)] = green
            for green in greens.values():
                with captures.none_open("the end of a recording"):
                    check(
                        driver.cuGreenCtxRecordEvent(green, int(event.handle)),
                        "record an event behind a green context",
                    )
                event.sync()
            event.close()

    # -- events -----------------------------------------------------------------------
    def make_event(self, *, timing: bool) -> RawEvent:
        """Make an event."""
        options = self._with_timing if timing else self._without_timing
        if self._is_current():
            return self._device.create_event(options)
        with self._current():
            return self._device.create_event(options)

    def record(self, event: RawEvent, stream: RawStream, correlation: int) -> None:
        """Record an event on a stream."""
        try:
            if self._is_current():
                stream.record(event)
                return
            with self._current():
                stream.record(event)
        except Exception as error:  # translated would cost every record
            raise GpuscopeError(f"an event cannot be recorded: {error}") from error

    def wait(self, stream: RawStream, event: RawEvent) -> None:
        """Make a stream wait for an event."""
        with self._current(), translated("a stream cannot wait for the event"):
            stream.wait(event)

    def sync_event(self, event: RawEvent) -> None:
        """Wait on the host for an event."""
        with translated("waiting for an event failed"):
            event.sync()

    def event_done(self, event: RawEvent) -> bool:
        """Whether an event's latest record is done."""
        with translated("the event cannot be asked"):
            return bool(event.is_done)

    def elapsed_ns(self, start: RawEvent, end: RawEvent) -> int:
        """Return ns between two events; CUDA gives a float of ms."""
        with translated("the time between two events cannot be read"):
            elapsed_ms: float = end - start
            return round(elapsed_ms * 1e6)

    def mark(self, stream: RawStream) -> Mark:
        """Record an event; refused on a stream that another library captures."""
        with self._current(), translated("a stream cannot be marked"):
            if self._runtime.streamIsCapturing(int(stream.handle)):
                raise StreamError("a stream that another library captures cannot be marked")
            mark = self.make_event(timing=False)
            self.record(mark, stream, 0)
            return mark

    def close_event(self, raw: RawEvent) -> None:
        """Destroy an event."""
        raw.close()
