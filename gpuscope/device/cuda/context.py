"""A CUDA device as a context: opened, made current, carved; its streams and events."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Collection, Iterator, Sequence

from gpuscope import _interrupts
from gpuscope._optional import require
from gpuscope._types import Untyped
from gpuscope.device.carve import CarvePlan, PlannedPartition, SmLayout
from gpuscope.device.cuda import captures
from gpuscope.device.cuda import driver as versions
from gpuscope.device.cuda.driver import check, translated
from gpuscope.device.cuda.health import ENERGY_STEP_NS, energy_j_of
from gpuscope.device.raw import Backend, GrantedPartition
from gpuscope.device.views import StreamKind
from gpuscope.errors import DeviceUnavailable, GpuscopeError, StreamError

_SPIN_NS = 200_000
_DOZE_S = 2e-5
_NOT_READY = 600  # cudaErrorNotReady
_PER_THREAD = 2  # cudaStreamPerThread; 1 is cudaStreamLegacy, and so is 0


def _load(index: int) -> tuple[int, Untyped, Untyped]:
    """Check driver and packages in the order in which their absence is best explained."""
    version = versions.driver_version()
    cupy = versions.import_cupy()
    core = require("cuda.core", package="cuda-core", feature="a CUDA device")
    versions.check_driver(version, int(cupy.cuda.runtime.runtimeGetVersion()))
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceUnavailable(f"CUDA finds no usable GPU ({error})") from error
    if index >= count:
        raise DeviceUnavailable(
            f"there is no device cuda:{index}; there are {count}: "
            + ", ".join(f"cuda:{ordinal}" for ordinal in range(count))
        )
    return version, cupy, core


class CudaContext(Backend[Untyped, Untyped, Untyped]):
    """One CUDA device: its context, clock, partitions, streams and events.

    Parameters
    ----------
    index
        CUDA ordinal.
    """

    energy_step_ns = ENERGY_STEP_NS
    now_ns = staticmethod(time.time_ns)  # no call of Python's, which recording would pay for

    def __init__(self, index: int) -> None:
        version, self._cupy, self._core = _load(index)
        from gpuscope.device.cuda import arrays, partition, probe  # noqa: PLC0415

        self._arrays = arrays
        self._probe_type = probe.SmProbe
        self._probe: Untyped = None
        self.array_type: type = self._cupy.ndarray
        self.home: object = index
        self._index = index
        self._runtime = self._cupy.cuda.runtime
        self._get_device = self._runtime.getDevice
        self._recorded = versions.recording(self._core)
        self._ready = threading.local()
        self._device = self._core.Device(index)
        self._with_timing = self._core.EventOptions(timing_enabled=True)
        self._without_timing = self._core.EventOptions(timing_enabled=False)
        with self.current():
            pools = bool(self._device.properties.memory_pools_supported)
            self.capabilities = versions.capabilities(version, pools)
            self.info = versions.info_of(index)
            self._splitter: Untyped = None
            self._contexts: Untyped = None
            if self.capabilities.partitions:
                sms = self._device.resources.sm
                self._splitter, self.capabilities = partition.splitter_of(
                    self._core, sms, self.capabilities
                )
            if self._splitter is not None:
                self._contexts = partition.GreenContexts(self._core, self._device, self._splitter)
        self.layout: SmLayout = SmLayout(self.info.sm_count, 1, 0)
        if self._splitter is not None:
            self.layout = self._splitter.layout

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the device current; the one that was current before is restored."""
        if self._is_current():
            yield
            return
        before = int(self._get_device())
        self._device.set_current()
        self._ready.done = True
        try:
            yield
        finally:
            if before != self._index:
                self._core.Device(before).set_current()

    def _is_current(self) -> bool:
        """Whether this thread can call the device as it stands; the common case."""
        return getattr(self._ready, "done", False) and bool(self._get_device() == self._index)

    def at_home(self) -> contextlib.AbstractContextManager[None]:
        """As :meth:`current`, sooner where it is current already."""
        return contextlib.nullcontext() if self._is_current() else self.current()

    # -- clock ------------------------------------------------------------------------
    def wait_until_ns(self, time_ns: int) -> None:
        """Sleep until shortly before, then spin, and let other threads run meanwhile."""
        while (left := time_ns - time.time_ns()) > 0:
            if left > _SPIN_NS:
                _interrupts.sleep((left - _SPIN_NS) / 1e9)
            else:
                time.sleep(_DOZE_S if left > _SPIN_NS // 2 else 0)

    def energy_j(self) -> float | None:
        """Return the energy that NVML's counter tells."""
        return energy_j_of(self.info.uuid or "")

    # -- partitions -------------------------------------------------------------------
    def check_plan(self, plan: CarvePlan) -> None:
        """Ask the driver, without making anything."""
        self._splitter.check(plan)

    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[GrantedPartition]:
        """Make green contexts and find their SM ids with a probe kernel."""
        with self.current():
            if self._probe is None:
                self._probe = self._probe_type(self._device)
            granted: list[GrantedPartition] = self._contexts.make(planned, self._probe)
            return granted

    def context_handle(self, partition: Untyped) -> int:
        """Return the ``CUcontext`` of a partition's green context, or of the device."""
        with self.current():
            home = self._device.context if partition is None else partition.context
            return int(home.handle)

    def close_partition(self, raw: Untyped) -> None:
        """Give a green context back."""
        with self.current():
            self._contexts.close(raw)

    def close(self) -> None:
        """Destroy what is kept for the next use."""
        if self._contexts is not None:
            with self.current():
                self._contexts.clear()

    # -- streams ----------------------------------------------------------------------
    def make_stream(
        self, partition: Untyped, priority: int, *, blocking: bool = False
    ) -> tuple[Untyped, int]:
        """Make a stream, in a green context if one is given."""
        options = self._core.StreamOptions(nonblocking=not blocking, priority=priority)
        with self.current(), translated("the driver refuses a stream"):
            home = self._device if partition is None else partition.context
            stream = home.create_stream(options=options)
        return stream, int(stream.handle)

    def borrow_stream(self, handle: int) -> Untyped:
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

    def stream_kind(self, raw: Untyped) -> StreamKind | None:
        """Return a default stream's kind by its handle, another's by its flags.

        ``None`` while it is captured: the driver refuses to tell then, and spoils the capture.
        """
        handle = int(raw.handle)
        if handle in (0, 1):  # cudaStreamLegacy is 1
            return "legacy default"
        if handle == _PER_THREAD:
            return "per-thread default"
        driver = importlib.import_module("cuda.bindings.driver")
        with self.current(), translated("the stream cannot be asked"):
            status, capture = driver.cuStreamIsCapturing(handle)
            if int(status) == 0 and int(capture) != 0:
                return None
            return "non-blocking" if raw.is_nonblocking else "blocking"

    def default_stream(self) -> tuple[Untyped, int]:
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

    def sync_stream(self, raw: Untyped) -> None:
        """Wait on the host for a stream."""
        with self.current(), translated("waiting for a stream failed"):
            raw.sync()

    def stream_done(self, raw: Untyped) -> bool:
        """Whether a stream is idle."""
        with self.current(), translated("the stream cannot be asked"):
            status = self._runtime.streamQuery(int(raw.handle))
            if status not in (0, _NOT_READY):
                raise self._runtime.CUDARuntimeError(status)
            return bool(status == 0)

    def synchronize(self) -> None:
        """Wait on the host for the whole device, once no thread captures."""
        with captures.none_open("this call"):
            pass  # one may begin while this waits: a device may be waited for long
        with self.current(), translated("waiting for the device failed"):
            self._runtime.deviceSynchronize()

    def wait_for_all(self, handles: Collection[int]) -> None:
        """Wait for the device, then for streams and their green contexts by events.

        With driver 580 a wait for the device does not wait for a graph in a partition's stream,
        whoever launched it; an event with timing behind it does.
        """
        self.synchronize()
        driver = importlib.import_module("cuda.bindings.driver")
        with self.current(), translated("waiting for every stream failed"):
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
                    recorded = driver.cuGreenCtxRecordEvent(green, int(event.handle))
                check(recorded, "record an event behind a green context")
                event.sync()
            event.close()

    # -- events -----------------------------------------------------------------------
    def make_event(self, *, timing: bool) -> Untyped:
        """Make an event."""
        with self.at_home():
            return self._device.create_event(self._with_timing if timing else self._without_timing)

    def record(self, event: Untyped, stream: Untyped, correlation: int) -> None:
        """Record an event on a stream."""
        if self._recorded(event, stream):
            return
        try:
            with self.at_home():
                stream.record(event)
        except Exception as error:  # translated would cost every record
            raise GpuscopeError(f"an event cannot be recorded: {error}") from error

    def wait(self, stream: Untyped, event: Untyped) -> None:
        """Make a stream wait for an event."""
        with self.current(), translated("a stream cannot wait for the event"):
            stream.wait(event)

    def sync_event(self, event: Untyped) -> None:
        """Wait on the host for an event."""
        with translated("waiting for an event failed"):
            event.sync()

    def among_captures(self) -> contextlib.AbstractContextManager[None]:
        """Let this thread ask and wait for events in the block, whoever captures a stream."""
        return versions.relaxed_capture()

    def event_done(self, event: Untyped) -> bool:
        """Whether an event's latest record is done."""
        with translated("the event cannot be asked"):
            return bool(event.is_done)

    def elapsed_ns(self, start: Untyped, end: Untyped) -> int:
        """Return ns between two events; CUDA gives a float of ms."""
        try:  # translated would cost every launch that is recorded by events
            elapsed_ms: float = end - start
            return round(elapsed_ms * 1e6)
        except Exception as error:
            raise GpuscopeError(f"the time between two events cannot be read: {error}") from error

    def mark(self, stream: Untyped) -> Untyped:
        """Record an event; refused on a stream that another library captures."""
        with self.current(), translated("a stream cannot be marked"):
            if self._runtime.streamIsCapturing(int(stream.handle)):
                raise StreamError("a stream that another library captures cannot be marked")
            mark = self.make_event(timing=False)
            self.record(mark, stream, 0)
            return mark

    def close_event(self, raw: Untyped) -> None:
        """Destroy an event."""
        raw.close()
