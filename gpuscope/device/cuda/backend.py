"""The CUDA device: its memory, graphs, copies, kernels and arrays, over its context.

cuda.core launches kernels and makes scratch; arrays are CuPy's, in pools of our own.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from gpuscope._types import Array, DType, Untyped
from gpuscope.device.api import Kernel, KernelModel, Shape
from gpuscope.device.calls import calling_for_us
from gpuscope.device.cuda import captures
from gpuscope.device.cuda import driver as versions
from gpuscope.device.cuda.context import CudaContext
from gpuscope.device.cuda.driver import all_shared_memory, translated
from gpuscope.device.matmul import MatmulPlan
from gpuscope.device.memory import Pinned, Pool, Tag
from gpuscope.device.pinned import PinnedArray
from gpuscope.device.raw import Memory, Places
from gpuscope.device.views import EventView, GraphView, StreamView
from gpuscope.errors import CapabilityError, GpuscopeError, InvalidOperand, StreamError


class CudaBackend(CudaContext):
    """One CUDA device.

    Parameters
    ----------
    index
        CUDA ordinal.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        by_events = (lambda _: None, self.mark, self.event_done, lambda mark: mark.sync())
        self._memory: Pool[int, Untyped, Untyped, Untyped] = Pool(self._allocate, *by_events)
        self._pinned: Pool[int, Untyped, Untyped, Untyped] = Pool(
            self._cupy.cuda.alloc_pinned_memory, *by_events
        )
        self._device_pool = self._cupy.cuda.MemoryPool()
        self._scratch_pool: Untyped = None
        self._own: Untyped = None
        self._once = threading.RLock()  # memory that is given back meanwhile asks for it, too
        self._plain_bytes = 0
        self._kernels: dict[tuple[str, str], Untyped] = {}
        self._opened_blas: Untyped = None

    @cached_property
    def _blas(self) -> Untyped:
        """What multiplies; opened at first use, as its library takes long to import."""
        with self._once:
            if self._opened_blas is None:
                from gpuscope.device.cuda.blas import Blas  # noqa: PLC0415 - as said

                self._opened_blas = Blas(
                    self._index, self._take, self.mark, lambda: bool(self._device.context.is_green)
                )
            return self._opened_blas

    def close_stream(self, raw: Untyped, handle: int) -> None:
        """Destroy a stream, and free the workspace of its GEMMs."""
        if self._opened_blas is not None:
            self._opened_blas.forget_stream(handle)
        raw.close()

    # -- memory -----------------------------------------------------------------------
    @contextlib.contextmanager
    def _relaxed(self, what: str) -> Iterator[None]:
        """Let calls that disturb no capture through; ``what`` names the failure."""
        with self.current(), versions.relaxed_capture(), translated(what):
            yield

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Let CuPy work in a stream of our own, and wait for that stream alone.

        The legacy default stream, CuPy's unless another is current, would wait for every blocking
        stream, the per-thread ones among them, and cannot be waited for during a capture.
        """
        with self.current(), versions.relaxed_capture(), calling_for_us():
            apart = self._own_stream()
            try:
                with self._cupy.cuda.Stream.from_external(apart):
                    yield
            finally:
                apart.sync()

    def _take(self, nbytes: int) -> Untyped:
        """Take device memory that no queued work uses, also while a stream is captured."""
        with versions.relaxed_capture():
            return self._arrays.DeviceMemory(self._memory.take(nbytes), nbytes, self._index)

    def _allocate(self, nbytes: int) -> Untyped:
        """Take memory of a pool of our own: what CuPy's has taken back may still be in use."""
        with self._cupy.cuda.Stream.null:  # its arena, whatever stream is current for CuPy
            try:
                return self._device_pool.malloc(nbytes)
            except MemoryError:
                self._cupy.get_default_memory_pool().free_all_blocks()
                return self._device_pool.malloc(nbytes)

    def use(self, stream: StreamView[Untyped], values: Sequence[object]) -> None:
        """Tag memory of ours; a stream that is not ours is marked now, as it may be gone later."""
        tag = stream.tag
        block_of = self._arrays.block_of
        for value in values:
            if (block := block_of(value)) is None:
                continue
            if tag is None:
                tag = self._tag_of_borrowed(stream)
            if tag not in block.tags:
                block.use(tag)

    def _tag_of_borrowed(self, stream: StreamView[Untyped]) -> Tag:
        try:
            return Tag(None, self.mark(stream.raw))
        except GpuscopeError:  # captured: nobody tells when that graph is gone, so it is for good
            tag = Tag(stream.raw)
            tag.note_capture(capturing=True)
            return tag

    def empty(self, shape: Shape, dtype: DType) -> Untyped:
        """Return an uninitialised CuPy array."""
        nbytes = math.prod(shape) * dtype.itemsize
        with self.current(), translated("device memory cannot be taken"):
            if not nbytes:
                return self._cupy.empty(shape, dtype)
            return self._take(nbytes).array(shape, dtype)

    def empty_pinned(self, shape: Shape, dtype: DType) -> Array:
        """Return page-locked host memory from CuPy's pool."""
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        with self._relaxed("page-locked host memory cannot be taken"):
            block = self._pinned.take(nbytes)
            return Pinned(block, block.raw.ptr, nbytes).array(shape, dtype)

    def asarray(self, values: Array) -> Untyped:
        """Copy host values; done when it returns."""
        with self.current(), translated("the values cannot be copied"):
            array = self.empty(values.shape, values.dtype)
            with self._apart():
                array.set(values)
            return array

    def fill_random(self, array: Untyped, seed: int) -> None:
        """Fill with uniform values in [-0.5, 0.5)."""
        with self._apart():
            generator = self._cupy.random.default_rng(seed)
            values = generator.random(array.shape, dtype=np.float32)
            values -= np.float32(0.5)
            array[...] = values.astype(array.dtype)

    def to_host(self, array: Untyped) -> Array:
        """Copy an array's values to the host."""
        with self._apart():
            values: Array = self._cupy.asnumpy(array)
            return values

    def allocate(self, nbytes: int, stream: StreamView[Untyped] | None) -> Memory:
        """Take scratch from a pool of our own, in stream order; untagged memory is plain."""
        with self._relaxed(f"{nbytes} bytes of scratch cannot be taken"):
            if stream is None or not self.capabilities.stream_ordered_memory:
                self._runtime.deviceSynchronize()
                raw: Untyped = self._cupy.cuda.alloc(nbytes)
                pointer = raw.ptr
                self._plain_bytes += nbytes
            else:
                raw = self._pool().allocate(nbytes, stream=stream.raw)
                pointer = int(raw.handle)
            memory = self._cupy.cuda.UnownedMemory(pointer, nbytes, raw, self._index)
            bytes_at = self._cupy.cuda.MemoryPointer(memory, 0)
            array = self._cupy.ndarray((nbytes,), self._cupy.uint8, memptr=bytes_at)
            return Memory(array, raw, nbytes)

    def free(
        self, memory: Memory, stream: StreamView[Untyped] | None, *, idle: bool = False
    ) -> None:
        """Give scratch back, in stream order; plain memory after the device has finished."""
        with self._relaxed("scratch cannot be given back"):
            raw: Untyped = memory.raw
            plain = isinstance(raw, self._cupy.cuda.MemoryPointer)
            if not idle and (plain or stream is None):
                self._runtime.deviceSynchronize()
            if plain:
                self._plain_bytes -= memory.nbytes
                return
            raw.close(self._own_stream() if stream is None else stream.raw)

    def _own_stream(self) -> Untyped:
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
        pool_bytes = int(pool.attributes.reserved_mem_current) if pool is not None else 0
        return pool_bytes + self._plain_bytes

    def _pool(self) -> Untyped:
        with self._once:
            if self._scratch_pool is None:
                self._scratch_pool = versions.scratch_pool(self._core, self._device)
            return self._scratch_pool

    # -- graphs -----------------------------------------------------------------------
    def begin_capture(self, stream: StreamView[Untyped]) -> None:
        """Begin to capture a stream, in the mode that watches this thread only.

        So what other threads do in the meantime spoils nothing, and what this one does that
        could, such as an allocation of another library, is refused. What we know to be harmless
        runs relaxed.
        """
        thread_local = 1  # cudaStreamCaptureModeThreadLocal
        with self.current(), translated("the stream cannot be captured"):
            with versions.relaxed_capture():
                self._blas.prepare()
            captures.begin(stream.handle)
            try:
                self._runtime.streamBeginCapture(stream.handle, thread_local)
            except BaseException:
                captures.end(stream.handle)
                raise

    def end_capture(self, stream: StreamView[Untyped]) -> Untyped:
        """End it, and instantiate the graph, with an event for behind its launches."""
        with self.current(), translated("the capture failed"):
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

    def launch_graph(self, graph: Untyped, stream: Untyped, correlation: int) -> None:
        """Queue a graph, and an event behind it.

        With driver 580 a wait for the device does not wait for a graph in a partition's stream
        until other work follows it there; an event without timing is not enough.
        """
        with self.current(), translated("the graph cannot be launched"):
            self._runtime.graphLaunch(graph[0], int(stream.handle))
            stream.record(graph[1])

    def close_graph(self, graph: Untyped) -> None:
        """Wait for its latest launch, which follows all others, and destroy it."""
        executable, behind = graph
        with self.current(), translated("the graph cannot be destroyed"):
            try:
                behind.sync()
            finally:
                self._runtime.graphExecDestroy(executable)
                behind.close()

    # -- copies and host functions ------------------------------------------------------
    def copy(
        self, stream: Untyped, destination: Untyped, source: Untyped, correlation: int
    ) -> None:
        """Queue a copy between device arrays, or from or to C-contiguous NumPy arrays."""
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
        with self.current(), translated("the driver refuses a copy"):
            self._runtime.memcpyAsync(*pointers, source.nbytes, by_address, int(stream.handle))

    def host_call(
        self,
        stream: Untyped,
        function: Callable[[], None],
        correlation: int,
        graph: GraphView | None,
    ) -> None:
        """Queue a host function; a graph keeps it, since CUDA keeps its address only."""
        with self.current(), translated("the driver refuses a host function"):
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
            graph.hold(called)
            versions.launch_host_function(handle, called)

    # -- kernels ----------------------------------------------------------------------
    def compile(self, source: str, name: str, model: KernelModel | None) -> Kernel:
        """Compile CUDA C++ for this device; the same source is compiled once."""
        kernel = self._kernels.get((source, name))
        if kernel is None:
            with self.current(), translated(f"kernel {name!r} does not compile"):
                options = self._core.ProgramOptions(arch=f"sm_{self._device.arch}")
                module = self._core.Program(source, "c++", options).compile("cubin")
                kernel = self._kernels[source, name] = module.get_kernel(name)
        return Kernel(name, kernel, model)

    def launch(
        self,
        stream: Untyped,
        kernel: Kernel,
        grid: int,
        block: int,
        args: Sequence[object],
        correlation: int,
    ) -> None:
        """Launch a kernel; arrays become pointers, page-locked ones too, ints 64-bit integers."""
        if kernel.raw is None:
            raise CapabilityError(f"kernel {kernel.name!r} was made for a simulated device")
        passed: list[object] = []
        for arg in args:
            if not isinstance(arg, self._cupy.ndarray):
                passed.append(arg.ctypes.data if isinstance(arg, PinnedArray) else arg)
            elif arg.data.device_id == self._index:
                passed.append(arg.data.ptr)
            else:
                raise InvalidOperand(
                    f"an array given to kernel {kernel.name!r} is on another device: copy it to "
                    f"{self.info.key} first"
                )
        with self.current(), translated(f"the driver refuses to launch {kernel.name!r}"):
            nbytes = all_shared_memory(kernel.raw, self._device) if kernel.holds_sms else 0
            config = self._core.LaunchConfig(grid=grid, block=block, shmem_size=nbytes)
            self._core.launch(stream, config, kernel.raw, *passed)

    def matmul(
        self,
        stream: StreamView[Untyped],
        plan: MatmulPlan,
        operands: object,
        sm_count: int,
        correlation: int,
        event: EventView[Untyped] | None = None,
    ) -> None:
        """Queue a GEMM through cuBLAS; ``operands`` are the addresses of out, a and b."""
        handle = 0
        if event is not None:
            handle = event.handle = event.handle or int(event.raw.handle)
        addresses: Untyped = operands
        done = self._blas.queued(stream, plan, addresses, sm_count, handle) if plan.bytes_out else 1
        if not done:
            with self.at_home():
                self._blas.matmul(stream, plan, addresses, sm_count)
        if event is not None and done < 2:
            self.record(event.raw, stream.raw, 0)

    def expect(self, plan: MatmulPlan, out: Untyped, a: Untyped, b: Untyped) -> None:
        """Let what is compiled launch products of operands like these."""
        self._blas.expect(plan, out, a, b)

    # -- arrays of any library ----------------------------------------------------------
    def home_of(self, array: Untyped) -> object:
        """Return the ordinal of an array's device."""
        return array.data.device_id

    def adopt(self, value: object, *, write: bool = False) -> Untyped | None:
        """View a device array of any library as CuPy's."""
        return self._arrays.adopt(value, write=write)

    def follow(self, stream: Untyped, value: object) -> None:
        """Let ``stream`` wait for the stream that a CUDA array interface names.

        By an event, so that the host does not wait; 1 is the legacy default stream, 2 the
        per-thread one.
        """
        handle = self._arrays.stream_of(value)
        if handle is None or handle == int(stream.handle):
            return
        with self.current(), translated("the stream that an array names cannot be followed"):
            stream.wait(self._core.Stream.from_handle(handle))

    def place(self, out: Untyped, a: Untyped, b: Untyped) -> Places:
        """Return the arrays' device ordinals and addresses, all that cuBLAS takes of them."""
        memory_out, memory_a, memory_b = out.data, a.data, b.data
        at = (memory_out.ptr, memory_a.ptr, memory_b.ptr)
        return (memory_out.device_id, memory_a.device_id, memory_b.device_id), at, at

    def rearrange(
        self, stream: StreamView[Untyped], into: Untyped, array: Untyped, correlation: int
    ) -> None:
        """Queue CuPy's copy kernel."""
        with self.current(), calling_for_us(), self._cupy.cuda.Stream.from_external(stream.raw):
            into[...] = array
