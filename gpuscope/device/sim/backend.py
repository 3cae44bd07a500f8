"""The simulated device: a virtual host clock in front of the engine."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

import numpy as np

from gpuscope._fork import free_in_children
from gpuscope._types import Array, DType
from gpuscope.device.api import (
    Capabilities,
    DeviceInfo,
    GrantedPartition,
    Kernel,
    KernelCost,
    KernelModel,
    MatmulPlan,
    Memory,
    Places,
    Shape,
    StreamKind,
)
from gpuscope.device.calls import Activity
from gpuscope.device.carve import REMAINDER, CarvePlan, PlannedPartition, sm_count_to_tell
from gpuscope.device.dtypes import DTYPES
from gpuscope.device.graph import Graph
from gpuscope.device.memory import Pinned, Pool, Tag, by_address, no_host_memory, pinned_block
from gpuscope.device.sim.assumed import (
    GRAPH_LAUNCH_CALL_NS,
    HOST_FUNCTION_NS,
    PAGEABLE_BYTES_PER_US,
    PENDING_LAUNCHES,
    STAGED_AT_ONCE_BYTES,
)
from gpuscope.device.sim.capture import Capture, refusal
from gpuscope.device.sim.engine import (
    CopyOp,
    Effect,
    Engine,
    GraphOp,
    HostOp,
    KernelOp,
    Op,
    Record,
    SimEvent,
    SimGraph,
    SimStream,
    Wait,
)
from gpuscope.device.sim.memory import Buffer, SimArray, Version, Write, c_steps
from gpuscope.device.sim.profile import Profile
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, GpuscopeError, InvalidOperand, StreamError

_handles = itertools.count(0x1000, 0x10)  # no two simulated GPUs of a process share one
EPOCH_NS = 1_600_000_000_000_000_000
"""Where every virtual clock starts: fixed, so that a trace is the same byte for byte."""

Pace = Literal["none", "real"]
_MOST_WAVES = 1 << 21
"""Of a kernel: each takes the simulator some microseconds."""
_PACE_SLACK_NS = 2_000_000
_LEGACY, _PER_THREAD = 1, 2  # cudaStreamLegacy and cudaStreamPerThread; 0 is the legacy one too


class SimPartition(NamedTuple):
    """A partition: a bit mask of SMs, and the number of its context."""

    sms: int
    context: int


class SimBackend:
    """A GPU that exists in memory only.

    Parameters
    ----------
    profile
        Name of the GPU profile, or path of its file.
    pace
        ``"none"``: a wait ends at once. ``"real"``: the virtual clock never runs ahead of
        the wall clock, so that live views and Stop mean something.
    """

    def __init__(self, profile: str = "h200", *, pace: Pace = "none") -> None:
        self.profile = Profile.load(profile)
        self.layout = self.profile.layout
        self.array_type: type = SimArray
        self.home: object = self
        self._all_sms = (1 << self.layout.sm_count) - 1
        constants = self.profile.constants
        self._cost = constants
        self.engine = Engine(
            self._all_sms,
            launch_latency_ns=constants["launch_latency_ns"],
            kernel_gap_ns=constants["kernel_gap_ns"],
            bytes_per_us=constants["device_copy_bytes_per_us"],
        )
        self.engine.now_ns = self._host_ns = EPOCH_NS
        self._pace = pace
        self._started_wall_ns = time.monotonic_ns()
        self._lock = free_in_children(threading.RLock())
        self._contexts = itertools.count(2)
        self._streams: dict[int, SimStream] = {}
        self._threads = itertools.count(1)
        self._of_thread = threading.local()  # its number, and its default stream
        self._scratch: dict[tuple[int, int], list[Memory]] = {}
        self._reserved = 0
        self._defaults: weakref.WeakValueDictionary[int, SimStream] = weakref.WeakValueDictionary()
        self._captures: list[Capture] = []
        self._memory = Pool(self._take, self._give, self.mark, self._passed, self._wait_for_mark)
        self._pinned = Pool(self._take, self._give, self.mark, self._passed, self._wait_for_mark)
        self._free: dict[Any, list[Any]] = {}
        self._buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._taken_bytes = 0  # as if nothing had been freed since they were last counted
        self.info = DeviceInfo(
            key=f"sim:{self.profile.key}",
            kind="sim",
            index=0,
            name=f"{self.profile.device_name} (simulated)",
            uuid=f"SIM-{self.profile.key}",
            sm_count=self.layout.sm_count,
            compute_capability=self.profile.compute_capability,
            memory_bytes=self.profile.memory_bytes,
            driver=f"simulated from measurements with driver {self.profile.driver}",
            launch_latency_ns=constants["launch_latency_ns"],
            kernel_gap_ns=constants["kernel_gap_ns"],
        )
        self.capabilities = Capabilities(
            streams=True,
            partitions=True,
            partition_path="simulated",
            arbitrary_split=False,
            stream_ordered_memory=True,
            compile_source=False,
            graphs=True,
            reasons={
                "arbitrary_split": "the simulated driver splits as 12.4 to 13.0 do; 13.1 or newer "
                "would be required",
                "compile_source": "a simulated GPU runs no CUDA source: give the kernel a model",
            },
        )

    # -- clock ------------------------------------------------------------------------
    def now_ns(self) -> int:
        """Return the virtual host clock."""
        return self._host_ns

    def wait_until_ns(self, time_ns: int) -> None:
        """Let the virtual host sleep."""
        with self._lock:
            self._advance(max(self._host_ns, time_ns))

    def _advance(self, time_ns: int) -> None:
        # Who was interrupted while it waited for the engine has waited until then.
        now_ns = self.engine.now_ns
        time_ns = self._host_ns = time_ns if time_ns > now_ns else now_ns
        self.engine.run_until(time_ns)
        if self._pace == "real":
            ahead = (time_ns - EPOCH_NS) - (time.monotonic_ns() - self._started_wall_ns)
            if ahead > _PACE_SLACK_NS:
                time.sleep(ahead / 1e9)
            elif ahead < -_PACE_SLACK_NS:  # it idled: what comes now is paced again
                self._started_wall_ns -= ahead

    def _pay(self, cost: str) -> None:
        self._advance(self._host_ns + self._cost[cost])

    def _queue(self, op: Op, cost_ns: int) -> None:
        """Pay for a call and queue its work; a full queue holds the host until it has room."""
        stream, engine = op.stream, self.engine
        if stream is engine.legacy:
            self._require_no_blocking_capture()
        self._advance(self._host_ns + cost_ns)
        if stream.capture is not None:
            stream.capture.add(op)
            return
        if stream.depth >= PENDING_LAUNCHES:
            self._advance(max(self._host_ns, engine.run_until_room(stream, PENDING_LAUNCHES)))
        op.queued_ns = self._host_ns
        engine.submit(op)

    def _require_no_blocking_capture(self) -> None:
        for stream in self.engine.blocking:
            if stream.capture is not None:
                stream.capture.invalidate()
                raise refusal("the legacy default stream cannot be used", "StreamCaptureImplicit")

    def _require_no_capture(self, what: str) -> None:
        """Refuse a wait for the device on a thread that captures."""
        thread = self.process_and_thread()[1]
        refused = [one.refuse(what) for one in self._captures if one.is_on and one.thread == thread]
        if refused:
            raise refused[0]

    def _returned(self, done_ns: int) -> None:
        """Let the host return from a wait for something that was done at ``done_ns``."""
        visible = done_ns + self._cost["synchronize_return_ns"]
        self._advance(max(self._host_ns + self._cost["query_call_ns"], visible))

    def _wait_for(self, op: Op | None) -> None:
        """Let the host wait for work; what that raised, or what it follows did, is raised here."""
        self._returned(self.engine.run_until_done(op))
        if op is not None and op.failure is not None:
            first = op.failure.first()
            if first is not None:
                first.tell()

    def process_and_thread(self) -> tuple[int, int]:
        """Return logical ids: process 1, threads in order of their first call."""
        number: int | None = getattr(self._of_thread, "number", None)
        if number is None:
            number = self._of_thread.number = next(self._threads)
        return 1, number

    def health(self) -> dict[str, Any]:
        """Return nothing: a simulated GPU neither heats nor throttles."""
        return {}

    def set_activity_sink(self, sink: Callable[[Activity], None] | None) -> None:
        """Report finished work to ``sink``."""
        self.engine.sink = sink

    # -- partitions -------------------------------------------------------------------
    def check_plan(self, plan: CarvePlan) -> None:
        """Grant every plan that adds up: there is no driver to ask."""

    def _mask(self, parts: Sequence[int]) -> int:
        mask = 0
        width = self.layout.quantum_sm_count
        for part in parts:
            if part == REMAINDER:
                mask |= ((1 << self.layout.remainder_sm_count) - 1) << (self.layout.quanta * width)
            else:
                mask |= ((1 << width) - 1) << (part * width)
        return mask

    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[GrantedPartition]:
        """Make partitions; their SM ids are those of the virtual SMs."""
        with self._lock:
            made = []
            for partition in planned:
                self._pay("create_partition_call_ns")
                mask = self._mask(partition.parts)
                ids = tuple(sm for sm in range(self.layout.sm_count) if mask >> sm & 1)
                holding = len(ids)
                if REMAINDER in partition.parts:
                    holding -= self.layout.remainder_sm_count
                told = sm_count_to_tell(len(ids), holding)
                context = next(self._contexts)
                made.append(
                    GrantedPartition(SimPartition(mask, context), len(ids), ids, context, told)
                )
            return made

    def context_handle(self, partition: Any) -> int:
        """Return 0: no driver knows of contexts here."""
        del partition
        return 0

    def close_partition(self, raw: Any) -> None:
        """Do nothing: it is only a number."""

    # -- streams ----------------------------------------------------------------------
    def make_stream(
        self, partition: SimPartition | None, priority: int, *, blocking: bool = False
    ) -> tuple[SimStream, int]:
        """Make a stream on a partition's SMs, or on all."""
        with self._lock:
            self._pay("create_stream_call_ns")
            handle = next(_handles)
            sms, context = partition or (self._all_sms, None)
            stream = SimStream(handle, sms, priority, context=context, blocking=blocking)
            self._streams[handle] = stream
            if blocking:
                self.engine.blocking[stream] = None
            return stream, handle

    def borrow_stream(self, handle: int) -> SimStream:
        """Find a simulated stream by its handle, or by CUDA's numbers of the default ones."""
        if handle in (0, _LEGACY):
            return self.engine.legacy
        if handle == _PER_THREAD:
            return self.default_stream()[0]
        stream = self._streams.get(handle) or self._defaults.get(handle)
        if stream is None:
            raise StreamError(
                f"{handle:#x} is no stream of this simulated GPU: make one with create_stream()"
            )
        return stream

    def stream_kind(self, raw: SimStream) -> StreamKind:
        """Return it; each thread's default stream is one of its own here."""
        if raw is self.engine.legacy:
            return "legacy default"
        return "blocking" if raw.blocking else "non-blocking"

    def default_stream(self) -> tuple[SimStream, int]:
        """Return this thread's default stream, which the legacy one's barrier holds.

        It goes with the thread, or later with the last work in it.
        """
        with self._lock:
            stream: SimStream | None = getattr(self._of_thread, "stream", None)
            if stream is None:
                stream = SimStream(next(_handles), self._all_sms, 0, blocking=True)
                self._defaults[stream.handle] = stream
                self.engine.blocking[stream] = None
                self._of_thread.stream = stream
            return stream, stream.handle

    def close_stream(self, raw: SimStream, handle: int) -> None:
        """Forget a stream."""
        with self._lock:
            self.engine.blocking.pop(raw, None)
            self._streams.pop(handle, None)
            for key in [key for key in self._scratch if key[0] == handle]:
                self._reserved -= sum(memory.nbytes for memory in self._scratch.pop(key))

    def sync_stream(self, raw: SimStream) -> None:
        """Advance the virtual host to the end of the stream's work."""
        with self._lock:
            self._require_uncaptured(raw, "waiting for a stream failed")
            self._wait_for(raw.last)

    def stream_done(self, raw: SimStream) -> bool:
        """Whether the stream's work is done by now."""
        with self._lock:
            self._require_uncaptured(raw, "the stream cannot be asked")
            self._pay("query_call_ns")
            return not raw.depth

    def _require_uncaptured(self, stream: SimStream, what: str) -> None:
        if stream is self.engine.legacy:
            self._require_no_blocking_capture()
        if stream.capture is not None:
            raise stream.capture.refuse(what)

    def synchronize(self) -> None:
        """Advance the virtual host to the end of all work."""
        with self._lock:
            self._wait_for_all()
            for failure in self.engine.failures:
                failure.tell()

    def _wait_for_all(self) -> None:
        """Wait for all work; what some of it raised is left for who asks about that work."""
        self._require_no_capture("waiting for the device failed")
        self._returned(self.engine.run_all())
        streams = (*self._streams.values(), *self._defaults.values(), self.engine.legacy)
        stuck = [stream for stream in streams if stream.depth]
        if stuck:
            raise StreamError(
                f"{len(stuck)} streams wait for work that is not queued: they can never finish"
            )

    def wait_for_all(self, handles: Collection[int]) -> None:
        """Wait for all work: nothing escapes that here."""
        del handles
        self.synchronize()

    def close(self) -> None:
        """Do nothing: nothing is kept."""

    def current(self) -> AbstractContextManager[None]:
        """Do nothing: no library has a current simulated device."""
        return contextlib.nullcontext()

    # -- events -----------------------------------------------------------------------
    def make_event(self, *, timing: bool) -> SimEvent:  # noqa: ARG002 - free of cost here
        """Make an event."""
        return SimEvent()

    def record(self, event: SimEvent, stream: SimStream, correlation: int) -> None:
        """Queue an event's record, or note its place in a capture."""
        with self._lock:
            if stream.capture is not None:
                self._pay("event_record_call_ns")
                stream.capture.record(event, stream)
                return
            record = Record(stream, 0, correlation)
            self._queue(record, self._cost["event_record_call_ns"])
            event.record, event.captured = record, None

    def wait(self, stream: SimStream, event: SimEvent) -> None:
        """Queue a wait for the record that is the latest now; none is a no-op."""
        with self._lock:
            cost_ns = self._cost["stream_wait_call_ns"]
            if event.captured is not None:
                self._advance(self._host_ns + cost_ns)
                event.captured[0].join(stream, event)
            elif event.record is None:
                self._advance(self._host_ns + cost_ns)
            elif stream.capture is not None:
                raise stream.capture.isolate()
            else:
                record = event.record
                self._queue(Wait(stream, 0, record.correlation, record), cost_ns)

    def sync_event(self, event: SimEvent) -> None:
        """Advance the virtual host to the event's latest record."""
        with self._lock:
            self._require_not_captured(event, "waiting for an event failed")
            self._wait_for(event.record)

    def event_done(self, event: SimEvent) -> bool:
        """Whether the latest record is done by now."""
        with self._lock:
            self._require_not_captured(event, "the event cannot be asked")
            self._pay("query_call_ns")
            return event.record is None or event.record.done_ns is not None

    def _require_not_captured(self, event: SimEvent, what: str) -> None:
        if event.captured is not None:
            event.captured[0].invalidate()
            raise refusal(what, "CapturedEvent")

    def elapsed_ns(self, start: SimEvent, end: SimEvent) -> int:
        """Virtual ns between two records."""
        with self._lock:
            for event in (start, end):
                self._require_not_captured(event, "the time between two events cannot be read")
                if event.record is None or event.record.done_ns is None:
                    raise StreamError(
                        "elapsed_ns needs two events that are recorded and done: synchronize first"
                    )
            return _done_ns(end) - _done_ns(start)

    def close_event(self, raw: SimEvent) -> None:
        """Do nothing: memory is freed with the object."""

    # -- memory -----------------------------------------------------------------------
    def _take(self, need: tuple[int, DType] | int) -> Any:
        """Take a buffer of so many elements, or page-locked bytes: what was last given first."""
        free = self._free.get(need)
        if free:
            return free.pop()
        if isinstance(need, int):
            try:
                return np.empty(need, np.uint8)
            except (MemoryError, ValueError) as error:
                raise no_host_memory(need, error) from error
        with self._lock:
            buffer = Buffer(*need)
            self._require_room(buffer.nbytes)
            self._buffers.add(buffer)
        return buffer

    def _require_room(self, nbytes: int) -> None:
        """Raise unless the GPU has room for more; counts what is held only where it must."""
        most = self.profile.memory_bytes
        if self._taken_bytes + nbytes > most:
            for need in [need for need in self._free if not isinstance(need, int)]:
                del self._free[need]
            gc.collect()
            self._taken_bytes = sum(buffer.nbytes for buffer in self._buffers)
        if self._taken_bytes + nbytes > most:
            raise GpuscopeError(
                f"device memory cannot be taken: {nbytes} bytes are asked for, and "
                f"{most - self._taken_bytes} of the {most} bytes of {self.info.key} are free. "
                "Ask for less, or let go of arrays and wait for the work that uses them"
            )
        self._taken_bytes += nbytes

    def _give(self, memory: Any) -> None:
        if isinstance(memory, Buffer):
            memory.clear()
            self._free.setdefault((memory.size, memory.dtype), []).append(memory)
        else:
            self._free.setdefault(memory.size, []).append(memory)

    def mark(self, stream: SimStream) -> tuple[Op | None]:
        """Return what was queued last, if anything; takes no virtual time."""
        return (stream.last,)

    def _passed(self, mark: tuple[Op | None]) -> bool:
        return mark[0] is None or mark[0].done_ns is not None

    def _wait_for_mark(self, mark: tuple[Op | None]) -> None:
        with self._lock:
            self._returned(self.engine.run_until_done(mark[0]))

    def use(self, stream: Stream, values: Sequence[Any]) -> None:
        """Tag memory of ours; a stream that is not ours is marked now, as it may be gone later."""
        tag = stream.tag
        for value in values:
            block = value.block if isinstance(value, SimArray) else pinned_block(value)
            if block is None:
                continue
            if tag is None:
                tag = Tag(None, self.mark(stream.raw))
            if tag not in block.tags:
                block.use(tag)

    def empty(self, shape: Shape, dtype: DType) -> SimArray:
        """Return an array of unspecified values (they are zeros here)."""
        block = self._memory.take((math.prod(shape), dtype))
        return SimArray(self, block.raw, shape, c_steps(shape), block=block)

    def asarray(self, values: Array) -> SimArray:
        """Copy host values; the values are copied now."""
        kept = values.copy().reshape(-1)
        array = self.empty(values.shape, values.dtype)
        array.buffer.version = Version(lambda: kept)
        with self._lock:
            cost_ns = self.profile.transfer_ns("pageable_host_to_device", kept.nbytes)
            self._advance(self._host_ns + cost_ns)
        return array

    def fill_random(self, array: SimArray, seed: int) -> None:
        """Give the array a version that draws its values when read."""
        size, dtype, array = array.size, array.dtype, array.bare  # its buffer must not hold it

        def draw() -> Array:
            values = np.random.default_rng(seed).random(size, dtype=np.float32)
            return array.flat((values - np.float32(0.5)).astype(dtype))

        array.buffer.version = Version(draw)

    def assign(self, array: SimArray, value: Any) -> None:
        """Queue a kernel that writes ``value``, on the legacy default stream as CuPy does."""
        legacy = self.engine.legacy
        cost = self.profile.copy_cost(array.nbytes, legacy.sms.bit_count())
        if isinstance(value, SimArray):
            effect = Write(array, (value,), lambda values: values)
        else:
            kept = np.array(value)
            effect = Write(array, (), lambda: np.broadcast_to(kept, array.shape))
        with self._lock:
            self._queue_kernel(legacy, 0, "assign", effect, cost, self._cost["launch_call_ns"])

    def to_host(self, array: SimArray) -> Array:
        """Compute and return an array's values as of now."""
        with self._lock:
            cost_ns = self.profile.transfer_ns("pageable_device_to_host", array.nbytes)
            self._advance(self._host_ns + cost_ns)
            return array.view_of(array.buffer.version.value()).copy()

    def allocate(self, nbytes: int, stream: Stream | None) -> Memory:
        """Take bytes; memory given back on a stream is taken again by that stream first."""
        with self._lock:
            if stream is None:
                self._wait_for_all()
                kept = None
            else:
                kept = self._scratch.get((stream.handle, nbytes))
            if kept:
                return kept.pop()
            self._reserved += nbytes
        return Memory(self.empty((nbytes,), np.dtype(np.uint8)), None, nbytes)

    def free(self, memory: Memory, stream: Stream | None, *, idle: bool = False) -> None:
        """Give bytes back; without a stream the device finishes first."""
        with self._lock:
            if stream is None:
                if not idle:
                    self._wait_for_all()
                self._reserved -= memory.nbytes
            else:
                self._scratch.setdefault((stream.handle, memory.nbytes), []).append(memory)

    def reserved_bytes(self) -> int:
        """Return what is taken, or kept for its stream."""
        return self._reserved

    def begin_capture(self, stream: Stream) -> None:
        """Let what is queued on ``stream`` from now on become a graph."""
        with self._lock:
            raw: SimStream = stream.raw
            if raw is self.engine.legacy or raw.capture is not None:
                raise refusal("the stream cannot be captured", "StreamCaptureUnsupported")
            capture = Capture(raw, self.process_and_thread()[1])
            self._captures = [*(one for one in self._captures if one.is_on), capture]
            capture.begin()

    def end_capture(self, stream: Stream) -> SimGraph:
        """End it; returns the graph."""
        with self._lock:
            capture: Capture | None = stream.raw.capture
            if capture is None:
                raise refusal("the capture failed", "IllegalState")
            return capture.end(stream.raw)

    def launch_graph(self, graph: SimGraph, stream: SimStream, correlation: int) -> None:
        """Queue a graph: it follows its own launch before, wherever that was."""
        with self._lock:
            if stream.capture is not None:
                raise stream.capture.refuse("the graph cannot be launched")
            self._queue(GraphOp(stream, 0, correlation, graph), GRAPH_LAUNCH_CALL_NS)

    def graph_is_empty(self, graph: SimGraph) -> bool:
        """Whether nothing was captured."""
        return not graph.nodes

    def close_graph(self, graph: SimGraph) -> None:
        """Wait for its latest launch."""
        if graph.last is not None:
            self._wait_for_mark((graph.last,))

    def empty_pinned(self, shape: Shape, dtype: DType) -> Array:
        """Return host memory that counts as page-locked."""
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        block = self._pinned.take(nbytes)
        return Pinned(block, block.raw.ctypes.data, nbytes).array(shape, dtype)

    def copy(self, stream: SimStream, destination: Any, source: Any, correlation: int) -> None:
        """Queue a copy; the engine of its direction carries it, and the host one in host memory.

        Pageable memory is staged on the way, and the host waits as CUDA lets it: for small
        memory on its way up not at all, else until the copy is done.
        """
        to_device = isinstance(destination, SimArray)
        if not to_device and not isinstance(source, SimArray):
            self._copy_on_host(stream, destination, source, correlation)
            return
        if to_device and isinstance(source, SimArray):
            duration_ns = self.profile.transfer_ns("device_to_device", source.nbytes)
            # Small copies stay in the cache: alone, none takes longer than was measured.
            most = self._cost["device_copy_bytes_per_us"] * duration_ns // 1000
            effect: Effect = Write(destination, (source,), lambda values: values)
            self._queue_copy(
                stream, correlation, effect, "device", duration_ns, min(2 * source.nbytes, most)
            )
            return
        nbytes = int(source.nbytes)
        pinned = pinned_block(source if to_device else destination) is not None
        staged_at_once = to_device and nbytes <= STAGED_AT_ONCE_BYTES
        memory = "pinned" if pinned else "pageable"
        way = "host_to_device" if to_device else "device_to_host"
        duration_ns = self.profile.transfer_ns(f"{memory}_{way}", nbytes)
        if to_device:
            engine = "host to device"
            at_once = staged_at_once and not pinned and stream.capture is None
            effect = _upload(destination, np.array(source) if at_once else by_address(source))
        else:
            engine = "device to host"
            effect = _download(by_address(destination), source)
        op = self._queue_copy(stream, correlation, effect, engine, duration_ns, nbytes)
        if pinned or stream.capture is not None:
            return
        with self._lock:
            if staged_at_once:
                self._advance(self._host_ns + _duration_ns(nbytes, PAGEABLE_BYTES_PER_US))
            else:
                self._wait_for(op)

    def _copy_on_host(
        self, stream: SimStream, destination: Any, source: Any, correlation: int
    ) -> None:
        duration_ns = _duration_ns(source.nbytes, PAGEABLE_BYTES_PER_US)
        effect = _copied(by_address(destination), by_address(source))
        op = self._queue_copy(stream, correlation, effect, "host", duration_ns, 0)
        pinned = None not in (pinned_block(source), pinned_block(destination))
        if not pinned and stream.capture is None:
            with self._lock:
                self._wait_for(op)

    def _queue_copy(
        self,
        stream: SimStream,
        correlation: int,
        effect: Effect,
        engine: str,
        duration_ns: int,
        nbytes: int,
    ) -> Op:
        op = CopyOp(stream, 0, correlation, f"copy {engine}", effect, engine, duration_ns, nbytes)
        with self._lock:
            self._queue(op, self._cost["launch_call_ns"])
        return op

    def host_call(
        self,
        stream: SimStream,
        function: Callable[[], None],
        correlation: int,
        graph: Graph | None,
    ) -> None:
        """Queue a host function; it runs at its place in the stream's virtual time."""
        del graph
        name = getattr(function, "__name__", "host function")
        with self._lock:
            op = HostOp(stream, 0, correlation, name, function, HOST_FUNCTION_NS)
            self._queue(op, self._cost["launch_call_ns"])

    # -- kernels ----------------------------------------------------------------------
    def compile(self, source: str, name: str, model: KernelModel | None) -> Kernel:
        """Take the kernel's model; its source is not looked at."""
        del source
        if model is None:
            raise CapabilityError(
                f"kernel {name!r} cannot run here: {self.capabilities.reasons['compile_source']} "
                "(compile(…, model=KernelModel(…))), or open a CUDA device"
            )
        return Kernel(name, None, model)

    def launch(
        self,
        stream: SimStream,
        kernel: Kernel,
        grid: int,
        block: int,
        args: Sequence[Any],
        correlation: int,
    ) -> None:
        """Queue what the kernel's model says it does."""
        del block
        model = kernel.model
        if model is None:
            raise CapabilityError(f"kernel {kernel.name!r} has no model to simulate it by")
        for arg in args:
            if type(arg) is SimArray and arg.owner is not self:
                raise InvalidOperand(
                    f"an array given to kernel {kernel.name!r} is on another device: copy it to "
                    f"{self.info.key} first"
                )
        with self._lock:
            cost = model.cost(self.profile, grid, args, stream.sms.bit_count())
            target = model.writes(args)
            effect = None
            if target is not None and model.compute is not None:
                effect = Write(target, tuple(model.reads(args)), model.compute)
            self._queue_kernel(
                stream, correlation, kernel.name, effect, cost, self._cost["launch_call_ns"]
            )

    def _queue_kernel(
        self,
        stream: SimStream,
        correlation: int,
        name: str,
        effect: Effect | None,
        cost: KernelCost,
        call_ns: int,
    ) -> None:
        sm_count = stream.sms.bit_count()
        if cost.blocks > _MOST_WAVES * sm_count:
            raise InvalidOperand(
                f"kernel {name!r} has {cost.blocks:,} thread blocks, more than {_MOST_WAVES:,} for "
                f"each of its {sm_count} SMs, which would be simulated for minutes: give it less "
                "to do"
            )
        op = KernelOp(stream, 0, correlation, name, effect, cost.blocks, cost.block_ns, cost.nbytes)
        self._queue(op, call_ns)

    def matmul(
        self, stream: Stream, plan: MatmulPlan, operands: Any, sm_count: int, correlation: int
    ) -> None:
        """Queue a GEMM; its value is computed in float32 (float64 for float64) when read."""
        out, a, b = operands
        with self._lock:
            raw: SimStream = stream.raw
            call_ns = self._cost["gemm_call_ns"]
            sms = raw.sms.bit_count()
            if plan.k:
                cost = self.profile.gemm_cost(plan.m, plan.n, plan.k, plan.dtype, sms, sm_count)
            else:  # the sum of nothing: the result is cleared
                cost = KernelCost(1, self.profile.transfer_ns("memset", out.nbytes))
            effect = Write(out, (a, b), _PRODUCTS[plan.dtype])
            self._queue_kernel(raw, correlation, plan.name, effect, cost, call_ns)

    def home_of(self, array: SimArray) -> Any:
        """Return the backend that made an array."""
        return array.owner

    def adopt(self, value: Any, *, write: bool = False) -> Any:
        """Take a simulated array as it is."""
        del write
        return value if isinstance(value, SimArray) else None

    def follow(self, stream: SimStream, value: Any) -> None:
        """Do nothing: simulated arrays name no stream."""

    def place(self, out: SimArray, a: SimArray, b: SimArray) -> Places:
        """Return the backends that made the arrays, simulated addresses, and the arrays."""
        return (out.owner, a.owner, b.owner), (out.address, a.address, b.address), (out, a, b)

    def rearrange(self, stream: Stream, into: SimArray, array: SimArray, correlation: int) -> None:
        """Queue a copy into C order."""
        with self._lock:
            cost = self.profile.copy_cost(array.nbytes, stream.raw.sms.bit_count())
            effect = Write(into, (array,), lambda values: values)
            self._queue_kernel(stream.raw, correlation, "rearrange", effect, cost, 0)


def _done_ns(event: SimEvent) -> int:
    assert event.record is not None  # noqa: S101 - the caller checked
    assert event.record.done_ns is not None  # noqa: S101 - the caller checked
    return event.record.done_ns


def _duration_ns(nbytes: int, bytes_per_us: int) -> int:
    """Return how long bytes take at a rate, never less."""
    return -(-nbytes * 1000 // bytes_per_us)


def _product_in(work: str) -> Callable[..., Array]:
    """Return a matrix product that accumulates in one type; who writes it rounds it."""

    def product(left: Array, right: Array) -> Array:
        return np.asarray(left.astype(work) @ right.astype(work))

    return product


_PRODUCTS = {name: _product_in(dtype.accumulator) for name, dtype in DTYPES.items()}


def _upload(destination: SimArray, source: Array) -> Effect:
    """Return an effect that takes the host's values when the copy starts."""
    destination = destination.bare

    def start() -> Callable[[], None]:
        kept = np.array(source)
        return Write(destination, (), lambda: kept)()

    return start


def _copied(destination: Array, source: Array) -> Effect:
    """Return an effect that writes the host's values of when the copy started."""

    def start() -> Callable[[], None]:
        kept = np.array(source)

        def end() -> None:
            destination[...] = kept

        return end

    return start


def _download(destination: Array, source: SimArray) -> Effect:
    """Return an effect that gives the host the values of when the copy started."""
    source = source.bare

    def start() -> Callable[[], None]:
        version = source.buffer.version

        def end() -> None:
            destination[...] = source.view_of(version.value())

        return end

    return start
