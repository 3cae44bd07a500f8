"""The CUDA device: cuda.core for streams, events and kernels, CuPy for arrays."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from gpuscope._optional import require
from gpuscope._types import Array, DType
from gpuscope.device.api import (
    DeviceInfo,
    GrantedPartition,
    Health,
    Kernel,
    KernelModel,
    Mark,
    MatmulPlan,
    Memory,
    NativeArray,
    Operands,
    Places,
    RawEvent,
    RawGraph,
    RawPartition,
    RawStream,
    Shape,
    StreamKind,
)
from gpuscope.device.calls import Activity
from gpuscope.device.carve import CarvePlan, PlannedPartition, SmLayout
from gpuscope.device.cuda import captures
from gpuscope.device.cuda import driver as versions
from gpuscope.device.graph import Graph
from gpuscope.device.memory import Pinned, Pool, Tag
from gpuscope.device.stream import Stream
from gpuscope.errors import (
    CapabilityError,
    DeviceUnavailable,
    GpuscopeError,
    InvalidOperand,
    StreamError,
)

_SPIN_NS = 200_000
_NOT_READY = 600  # cudaErrorNotReady
_PER_THREAD = 2  # cudaStreamPerThread; 1 is cudaStreamLegacy, and so is 0


def _load(index: int) -> tuple[int, Any, Any]:
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
            + ", ".join(f"cuda:{one}" for one in range(count))
        )
    return version, cupy, core


class CudaBackend:
    """One CUDA device.

    Parameters
    ----------
    index
        CUDA ordinal.
    """

    def __init__(self, index: int) -> None:
        version, self._cupy, self._core = _load(index)
        from gpuscope.device.cuda import arrays, blas, partition, probe  # noqa: PLC0415

        self._arrays = arrays
        self._probe_type = probe.SmProbe
        self._probe: Any = None
        self.array_type: type = self._cupy.ndarray
        self.home: object = index
        self._index = index
        self._runtime = self._cupy.cuda.runtime
        self._get_device = self._runtime.getDevice
        self._ready = threading.local()
        self._device = self._core.Device(index)
        self._with_timing = self._core.EventOptions(timing_enabled=True)
        self._without_timing = self._core.EventOptions(timing_enabled=False)
        self._kernels: dict[tuple[str, str], Any] = {}
        self._memory = Pool(
            self._allocate, lambda _: None, self.mark, self.event_done, lambda mark: mark.sync()
        )
        self._pinned = Pool(
            self._cupy.cuda.alloc_pinned_memory, lambda _: None, self.mark, self.event_done,
            lambda mark: mark.sync(),
        )  # fmt: skip
        self._device_pool = self._cupy.cuda.MemoryPool()
        self._blas = blas.Blas(self._take, self.mark, lambda: bool(self._device.context.is_green))
        self._scratch_pool: Any = None
        self._own: Any = None
        self._once = threading.Lock()
        self._plain_bytes = 0
        with self._current():
            pools = bool(self._device.properties.memory_pools_supported)
            self.capabilities = versions.capabilities(version, pools)
            properties = self._runtime.getDeviceProperties(index)
            sm_count = int(properties["multiProcessorCount"])
            self._splitter: Any = None
            self._contexts: Any = None
            if self.capabilities.partitions:
                resource = self._device.resources.sm
                self._splitter = (
                    partition.HeterogeneousSplit(self._core, resource)
                    if self.capabilities.arbitrary_split
                    else partition.ComposedQuanta(self._core, resource)
                )
                self._contexts = partition.GreenContexts(self._core, self._device, self._splitter)
        self.layout: SmLayout = (
            self._splitter.layout if self._splitter else SmLayout(sm_count, 1, 0)
        )
        release = versions.driver_release()
        driver = f"{release}, " if release else ""
        self.info = DeviceInfo(
            key=f"cuda:{index}",
            kind="cuda",
            index=index,
            name=properties["name"].decode(),
            uuid=self._device.uuid,
            sm_count=sm_count,
            compute_capability=(int(properties["major"]), int(properties["minor"])),
            memory_bytes=int(properties["totalGlobalMem"]),
            driver=f"driver {driver}CUDA {versions.version_text(version)}",
        )

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device current; the one that was current before is restored."""
        before = int(self._runtime.getDevice())
        if before == self._index and getattr(self._ready, "done", False):
            yield
            return
        self._device.set_current()
        self._ready.done = True
        try:
            yield
        finally:
            if before != self._index:
                self._core.Device(before).set_current()

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make the device current for whatever library runs inside, then restore."""
        return self._current()

    def _is_current(self) -> bool:
        """Whether this thread can call the device as it stands; the common case."""
        try:
            return bool(self._ready.done and self._get_device() == self._index)
        except AttributeError:
            return False

    # -- clock ------------------------------------------------------------------------
    def now_ns(self) -> int:
        """Return Unix ns."""
        return time.time_ns()

    def wait_until_ns(self, time_ns: int) -> None:
        """Sleep until shortly before, then spin."""
        while (left := time_ns - time.time_ns()) > 0:
            if left > _SPIN_NS:
                time.sleep((left - _SPIN_NS) / 1e9)

    def process_and_thread(self) -> tuple[int, int]:
        """Return the system's ids."""
        return os.getpid(), threading.get_native_id()

    def health(self) -> Health:
        """Return clocks in MHz, power in W and throttle reasons, as NVML tells them."""
        found: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # NVML may be absent or forbidden: then unknown
            system = self._device.to_system_device()
            found["sm_clock_mhz"] = int(system.get_clock("sm").get_current_mhz())
            found["memory_clock_mhz"] = int(system.get_clock("memory").get_current_mhz())
            reasons = system.current_clock_event_reasons
            found["throttle_reasons"] = [str(reason) for reason in reasons]
        with contextlib.suppress(Exception):
            nvml = importlib.import_module("cuda.bindings.nvml")
            handle = nvml.device_get_handle_by_index_v2(self._index)
            found["power_w"] = nvml.device_get_power_usage(handle) / 1000
        return found

    def set_activity_sink(self, sink: Callable[[Activity], None] | None) -> None:
        """Ignore it: a GPU does not say by itself when its work ran."""

    # -- partitions -------------------------------------------------------------------
    def check_plan(self, plan: CarvePlan) -> None:
        """Ask the driver, where it can be asked without making anything."""
        self._splitter.check(plan)

    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[GrantedPartition]:
        """Make green contexts and find their SM ids with a probe kernel."""
        with self._current():
            if self._probe is None:
                self._probe = self._probe_type(self._device)
            granted: list[GrantedPartition] = self._contexts.make(planned, self._probe)
            return granted

    def context_handle(self, partition: RawPartition) -> int:
        """Return the ``CUcontext`` of a partition's green context, or of the device."""
        with self._current():
            home = self._device.context if partition is None else partition.context
            return int(home.handle)

    def close_partition(self, raw: RawPartition) -> None:
        """Give a green context back."""
        with self._current():
            self._contexts.close(raw)

    def close(self) -> None:
        """Destroy what is kept for the next use."""
        if self._contexts is not None:
            with self._current():
                self._contexts.clear()

    # -- streams ----------------------------------------------------------------------
    def make_stream(
        self, partition: RawPartition, priority: int, *, blocking: bool = False
    ) -> tuple[RawStream, int]:
        """Make a stream, in a green context if one is given."""
        options = self._core.StreamOptions(nonblocking=not blocking, priority=priority)
        with self._current(), _translated("the driver refuses a stream"):
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
            with _translated(f"{handle:#x} is no stream"):
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
        with self._current(), _translated("the stream cannot be asked"):
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

    def close_stream(self, raw: RawStream, handle: int) -> None:
        """Destroy a stream, and free the workspace of its GEMMs."""
        self._blas.forget_stream(handle)
        raw.close()

    def sync_stream(self, raw: RawStream) -> None:
        """Wait on the host for a stream."""
        with self._current(), _translated("waiting for a stream failed"):
            raw.sync()

    def stream_done(self, raw: RawStream) -> bool:
        """Whether a stream is idle."""
        with self._current(), _translated("the stream cannot be asked"):
            status = self._runtime.streamQuery(int(raw.handle))
            if status not in (0, _NOT_READY):
                raise self._runtime.CUDARuntimeError(status)
            return bool(status == 0)

    def synchronize(self) -> None:
        """Wait on the host for the whole device, once no thread captures."""
        with captures.none_open("this call"):
            pass  # one may begin while this waits: a device may be waited for long
        with self._current(), _translated("waiting for the device failed"):
            self._runtime.deviceSynchronize()

    def wait_for_all(self, handles: Collection[int]) -> None:
        """Wait for the device, then for streams and their green contexts by events.

        With driver 580 a wait for the device does not wait for a graph in a partition's stream,
        whoever launched it; an event with timing behind it does.
        """
        self.synchronize()
        driver = importlib.import_module("cuda.bindings.driver")
        with self._current(), _translated("waiting for every stream failed"):
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
                    _check(
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
        del correlation
        try:
            if self._is_current():
                stream.record(event)
                return
            with self._current():
                stream.record(event)
        except Exception as error:  # _translated would cost every record
            raise GpuscopeError(f"an event cannot be recorded: {error}") from error

    def wait(self, stream: RawStream, event: RawEvent) -> None:
        """Make a stream wait for an event."""
        with self._current(), _translated("a stream cannot wait for the event"):
            stream.wait(event)

    def sync_event(self, event: RawEvent) -> None:
        """Wait on the host for an event."""
        with _translated("waiting for an event failed"):
            event.sync()

    def event_done(self, event: RawEvent) -> bool:
        """Whether an event's latest record is done."""
        with _translated("the event cannot be asked"):
            return bool(event.is_done)

    def elapsed_ns(self, start: RawEvent, end: RawEvent) -> int:
        """Return ns between two events; CUDA gives a float of ms."""
        with _translated("the time between two events cannot be read"):
            elapsed_ms: float = end - start
            return round(elapsed_ms * 1e6)

    def close_event(self, raw: RawEvent) -> None:
        """Destroy an event."""
        raw.close()

    # -- memory -----------------------------------------------------------------------
    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Let CuPy work in a stream of our own, and wait for that stream alone.

        The legacy default stream, CuPy's unless another is current, would wait for every blocking
        stream, the per-thread ones among them, and cannot be waited for during a capture.
        """
        with self._current(), versions.relaxed_capture():
            own = self._own_stream()
            try:
                with self._cupy.cuda.Stream.from_external(own):
                    yield
            finally:
                own.sync()

    def _take(self, nbytes: int) -> Any:
        """Take device memory that no queued work uses, also while a stream is captured."""
        with versions.relaxed_capture():
            return self._arrays.DeviceMemory(self._memory.take(nbytes), nbytes, self._index)

    def _allocate(self, nbytes: int) -> Any:
        """Take memory of a pool of our own: what CuPy's has taken back may still be in use."""
        with self._cupy.cuda.Stream.null:  # its arena, whatever stream is current for CuPy
            try:
                return self._device_pool.malloc(nbytes)
            except MemoryError:
                self._cupy.get_default_memory_pool().free_all_blocks()
                return self._device_pool.malloc(nbytes)

    def mark(self, stream: RawStream) -> Mark:
        """Record an event; refused on a stream that another library captures."""
        with self._current(), _translated("a stream cannot be marked"):
            if self._runtime.streamIsCapturing(int(stream.handle)):
                raise StreamError("a stream that another library captures cannot be marked")
            mark = self.make_event(timing=False)
            self.record(mark, stream, 0)
            return mark

    def use(self, stream: Stream, values: Sequence[object]) -> None:
        """Tag memory of ours; a stream that is not ours is marked now, as it may be gone later."""
        tag = stream.tag
        block_of = self._arrays.block_of
        for value in values:
            block = block_of(value)
            if block is None:
                continue
            if tag is None:
                tag = self._tag_of_borrowed(stream)
            if tag not in block.tags:
                block.use(tag)

    def _tag_of_borrowed(self, stream: Stream) -> Tag:
        try:
            return Tag(None, self.mark(stream.raw))
        except GpuscopeError:  # captured: nobody tells when that graph is gone, so it is for good
            tag = Tag(stream.raw)
            tag.capturing = True
            return tag

    def empty(self, shape: Shape, dtype: DType) -> NativeArray:
        """Return an uninitialised CuPy array."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self._current(), _translated("device memory cannot be taken"):
            if not nbytes:
                return self._cupy.empty(shape, dtype)
            return self._take(nbytes).array(shape, dtype)

    def empty_pinned(self, shape: Shape, dtype: DType) -> Array:
        """Return page-locked host memory from CuPy's pool."""
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        with (
            self._current(),
            versions.relaxed_capture(),
            _translated("page-locked host memory cannot be taken"),
        ):
            block = self._pinned.take(nbytes)
            return Pinned(block, block.raw.ptr, nbytes).array(shape, dtype)

    def asarray(self, values: Array) -> NativeArray:
        """Copy host values; done when it returns."""
        with self._current(), _translated("the values cannot be copied"):
            array = self.empty(values.shape, values.dtype)
            with self._apart():
                array.set(values)
            return array

    def fill_random(self, array: NativeArray, seed: int) -> None:
        """Fill with uniform values in [-0.5, 0.5)."""
        with self._apart():
            generator = self._cupy.random.default_rng(seed)
            values = generator.random(array.shape, dtype=np.float32)
            values -= np.float32(0.5)
            array[...] = values.astype(array.dtype)

    def to_host(self, array: NativeArray) -> Array:
        """Copy an array's values to the host."""
        with self._apart():
            found: Array = self._cupy.asnumpy(array)
            return found

    def allocate(self, nbytes: int, stream: Stream | None) -> Memory:
        """Take scratch from a pool of our own, in stream order; untagged memory is plain."""
        with (
            self._current(),
            versions.relaxed_capture(),
            _translated(f"{nbytes} bytes of scratch cannot be taken"),
        ):
            if stream is None or not self.capabilities.stream_ordered_memory:
                self._runtime.deviceSynchronize()
                raw: Any = self._cupy.cuda.alloc(nbytes)
                pointer = raw.ptr
                self._plain_bytes += nbytes
            else:
                raw = self._pool().allocate(nbytes, stream=stream.raw)
                pointer = int(raw.handle)
            memory = self._cupy.cuda.UnownedMemory(pointer, nbytes, raw, self._index)
            bytes_at = self._cupy.cuda.MemoryPointer(memory, 0)
            array = self._cupy.ndarray((nbytes,), self._cupy.uint8, memptr=bytes_at)
            return Memory(array, raw, nbytes)

    def free(self, memory: Memory, stream: Stream | None, *, idle: bool = False) -> None:
        """Give scratch back, in stream order; plain memory after the device has finished."""
        with (
            self._current(),
            versions.relaxed_capture(),
            _translated("scratch cannot be given back"),
        ):
            plain = isinstance(memory.raw, self._cupy.cuda.MemoryPointer)
            if not idle and (plain or stream is None):
                self._runtime.deviceSynchronize()
            if plain:
                self._plain_bytes -= memory.nbytes
                return
            memory.raw.close(self._own_stream() if stream is None else stream.raw)

    def _own_stream(self) -> Any:
        """Return a stream of our own: nobody's barrier, and nobody waits for it but us.

        Memory goes back in it that no stream is waiting for. Not in a default stream: with driver
        580 a wait for the device never returned, once memory had gone back there and a thread had
        ended before the work in its own was done.
        """
        with self._once:
            if self._own is None:
                self._own = self.make_stream(None, 0)[0]
            return self._own

    def reserved_bytes(self) -> int:
        """Return what the pool holds, and plain scratch."""
        pool = self._scratch_pool
        held = int(pool.attributes.reserved_mem_current) if pool is not None else 0
        return held + self._plain_bytes

    def _pool(self) -> Any:
        with self._once:
            if self._scratch_pool is None:
                self._scratch_pool = scratch_pool(self._core, self._device)
            return self._scratch_pool

    def begin_capture(self, stream: Stream) -> None:
        """Begin to capture a stream, in the mode that watches this thread only.

        So what other threads do in the meantime spoils nothing, and what this one does that
        could, such as an allocation of another library, is refused. What we know to be harmless
        runs relaxed.
        """
        thread_local = 1  # cudaStreamCaptureModeThreadLocal
        with self._current(), _translated("the stream cannot be captured"):
            with versions.relaxed_capture():
                self._blas.prepare()
            captures.begin(stream.handle)
            try:
                self._runtime.streamBeginCapture(stream.handle, thread_local)
            except BaseException:
                captures.end(stream.handle)
                raise

    def end_capture(self, stream: Stream) -> RawGraph:
        """End it, and instantiate the graph, with an event for behind its launches."""
        with self._current(), _translated("the capture failed"):
            try:
                graph = self._runtime.streamEndCapture(stream.handle)
            finally:
                captures.end(stream.handle)
            try:
                with versions.relaxed_capture():  # the capture of another stream may go on
                    behind = self._device.create_event(self._with_timing)
                    return self._runtime.graphInstantiate(graph), behind
            finally:
                self._runtime.graphDestroy(graph)

    def launch_graph(self, graph: RawGraph, stream: RawStream, correlation: int) -> None:
        """Queue a graph, and an event behind it.

        With driver 580 a wait for the device does not wait for a graph in a partition's stream
        until other work follows it there; an event without timing is not enough.
        """
        del correlation
        with self._current(), _translated("the graph cannot be launched"):
            self._runtime.graphLaunch(graph[0], int(stream.handle))
            stream.record(graph[1])

    def graph_is_empty(self, graph: RawGraph) -> bool:
        """Return false: an executable graph cannot be asked."""
        del graph
        return False

    def close_graph(self, graph: RawGraph) -> None:
        """Wait for its latest launch, which follows all others, and destroy it."""
        executable, behind = graph
        with self._current(), _translated("the graph cannot be destroyed"):
            try:
                behind.sync()
            finally:
                self._runtime.graphExecDestroy(executable)
                behind.close()

    def copy(
        self, stream: RawStream, destination: NativeArray, source: NativeArray, correlation: int
    ) -> None:
        """Queue a copy between device arrays, or from or to C-contiguous NumPy arrays."""
        del correlation
        pointers = []
        for array in (destination, source):
            ours = self._arrays.adopt(array)
            if ours is not None and ours is not array:
                self.follow(stream, array)
            if ours is not None and not ours.flags.c_contiguous:
                raise InvalidOperand("copy takes C-contiguous arrays: copy the whole array instead")
            pointers.append(
                ours.data.ptr if ours is not None else self._arrays.host_array(array).ctypes.data
            )
        by_address = 4  # cudaMemcpyDefault: the driver tells the direction from the addresses
        with self._current(), _translated("the driver refuses a copy"):
            self._runtime.memcpyAsync(*pointers, source.nbytes, by_address, int(stream.handle))

    def host_call(
        self, stream: RawStream, function: Callable[[], None], correlation: int, graph: Graph | None
    ) -> None:
        """Queue a host function; a graph keeps it, since CUDA keeps its address only."""
        del correlation
        with self._current(), _translated("the driver refuses a host function"):
            handle = int(stream.handle)
            if not self._runtime.streamIsCapturing(handle):
                self._runtime.launchHostFunc(handle, lambda _: function(), 0)
                return
            if graph is None:
                raise StreamError(
                    "the stream is being captured, but not by Stream.capture(): nobody would keep "
                    "the host function for the graph, so capture with that"
                )
            called = versions.HOST_FUNCTION(lambda _: function())
            graph.functions.append(called)
            if status := versions.launch_host_function(handle, called):
                reason = importlib.import_module("cuda.bindings.driver").CUresult(status).name
                raise StreamError(f"the driver refuses a host function ({reason})")

    # -- kernels ----------------------------------------------------------------------
    def compile(self, source: str, name: str, model: KernelModel | None) -> Kernel:
        """Compile CUDA C++ for this device; the same source is compiled once."""
        kernel = self._kernels.get((source, name))
        if kernel is None:
            with self._current(), _translated(f"kernel {name!r} does not compile"):
                options = self._core.ProgramOptions(arch=f"sm_{self._device.arch}")
                module = self._core.Program(source, "c++", options).compile("cubin")
                kernel = self._kernels[source, name] = module.get_kernel(name)
        return Kernel(name, kernel, model)

    def launch(
        self,
        stream: RawStream,
        kernel: Kernel,
        grid: int,
        block: int,
        args: Sequence[object],
        correlation: int,
    ) -> None:
        """Launch a kernel; arrays become pointers, Python ints 64-bit integers."""
        del correlation
        if kernel.raw is None:
            raise CapabilityError(f"kernel {kernel.name!r} was made for a simulated device")
        ndarray = self._cupy.ndarray
        if any(isinstance(arg, ndarray) and arg.data.device_id != self._index for arg in args):
            raise InvalidOperand(
                f"an array given to kernel {kernel.name!r} is on another device: copy it to "
                f"{self.info.key} first"
            )
        passed = [arg.data.ptr if isinstance(arg, ndarray) else arg for arg in args]
        config = self._core.LaunchConfig(grid=grid, block=block)
        with self._current(), _translated(f"the driver refuses to launch {kernel.name!r}"):
            self._core.launch(stream, config, kernel.raw, *passed)

    def matmul(
        self, stream: Stream, plan: MatmulPlan, operands: Operands, sm_count: int, correlation: int
    ) -> None:
        """Queue a GEMM through cuBLAS; ``operands`` are the addresses of out, a and b."""
        del correlation
        if not plan.bytes_out:
            return
        if self._is_current():
            self._blas.matmul(stream, plan, operands, sm_count)
            return
        with self._current():
            self._blas.matmul(stream, plan, operands, sm_count)

    def home_of(self, array: NativeArray) -> object:
        """Return the ordinal of an array's device."""
        return array.data.device_id

    def adopt(self, value: object, *, write: bool = False) -> NativeArray | None:
        """View a device array of any library as CuPy's."""
        return self._arrays.adopt(value, write=write)

    def follow(self, stream: RawStream, value: object) -> None:
        """Let ``stream`` wait for the stream that a CUDA array interface names.

        By an event, so that the host does not wait; 1 is the legacy default stream, 2 the
        per-thread one.
        """
        handle = self._arrays.stream_of(value)
        if handle is None or handle == int(stream.handle):
            return
        with (
            self._current(),
            _translated("the stream that an array names cannot be followed"),
        ):
            stream.wait(self._core.Stream.from_handle(handle))

    def place(self, out: NativeArray, a: NativeArray, b: NativeArray) -> Places:
        """Return the arrays' device ordinals and addresses, all that cuBLAS takes of them."""
        memory_out, memory_a, memory_b = out.data, a.data, b.data
        at = (memory_out.ptr, memory_a.ptr, memory_b.ptr)
        return (memory_out.device_id, memory_a.device_id, memory_b.device_id), at, at

    def rearrange(
        self, stream: Stream, into: NativeArray, array: NativeArray, correlation: int
    ) -> None:
        """Queue CuPy's copy kernel."""
        del correlation
        with self._current(), self._cupy.cuda.Stream.from_external(stream.raw):
            into[...] = array


def scratch_pool(core: Any, device: Any) -> Any:
    """Make a stream-ordered pool that never couples streams behind the caller's back.

    CUDA's own pools reuse memory opportunistically and insert dependencies between
    streams; this one follows the dependencies that events make, and nothing else, and
    gives no memory back to the system.
    """
    driver = importlib.import_module("cuda.bindings.driver")
    attribute = driver.CUmemPool_attribute
    pool = core.DeviceMemoryResource(device, core.DeviceMemoryResourceOptions())
    for name, value in (
        (attribute.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1),
        (attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0),
        (attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0),
    ):
        _check(driver.cuMemPoolSetAttribute(pool.handle, name, value), "set up a memory pool")
    most = driver.cuuint64_t(2**64 - 1)
    name = attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    _check(driver.cuMemPoolSetAttribute(pool.handle, name, most), "set up a memory pool")
    return pool


def _check(result: tuple[Any, ...], what: str) -> None:
    status = result[0]
    if int(status) != 0:
        raise GpuscopeError(f"the driver refuses to {what} ({status.name})")


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn an error of a CUDA library into one of ours that says what failed."""
    try:
        yield
    except GpuscopeError:
        raise
    except Exception as error:
        raise GpuscopeError(f"{what}: {error}") from error
