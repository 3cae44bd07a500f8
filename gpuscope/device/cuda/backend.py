"""The CUDA device: cuda.core for streams, events and kernels, CuPy for arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from gpuscope.device.api import Kernel, KernelModel
from gpuscope.device.cuda import captures
from gpuscope.device.cuda import driver as versions
from gpuscope.device.cuda.allocation import CudaMemory
from gpuscope.device.cuda.driver import CudaObject
from gpuscope.device.cuda.errors import translated
from gpuscope.device.graph import Graph
from gpuscope.device.raw import MatmulPlan, NativeArray, Operands, Places, RawGraph, RawStream
from gpuscope.device.stream import Stream
from gpuscope.errors import CapabilityError, InvalidOperand, StreamError


class CudaBackend(CudaMemory):
    """One CUDA device.

    Parameters
    ----------
    index
        CUDA ordinal.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._kernels: dict[tuple[str, str], CudaObject] = {}
        self._blas = self._blas_type(
            self._take, self.mark, lambda: bool(self._device.context.is_green)
        )

    def close_stream(self, raw: RawStream, handle: int) -> None:
        """Destroy a stream, and free the workspace of its GEMMs."""
        self._blas.forget_stream(handle)
        raw.close()

    # -- graphs -----------------------------------------------------------------------
    def begin_capture(self, stream: Stream) -> None:
        """Begin to capture a stream, in the mode that watches this thread only.

        So what other threads do in the meantime spoils nothing, and what this one does that
        could, such as an allocation of another library, is refused. What we know to be harmless
        runs relaxed.
        """
        thread_local = 1  # cudaStreamCaptureModeThreadLocal
        with self._current(), translated("the stream cannot be captured"):
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
        with self._current(), translated("the capture failed"):
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
        with self._current(), translated("the graph cannot be launched"):
            self._runtime.graphLaunch(graph[0], int(stream.handle))
            stream.record(graph[1])

    def graph_is_empty(self, graph: RawGraph) -> bool:
        """Return false: an executable graph cannot be asked."""
        return False

    def close_graph(self, graph: RawGraph) -> None:
        """Wait for its latest launch, which follows all others, and destroy it."""
        executable, behind = graph
        with self._current(), translated("the graph cannot be destroyed"):
            try:
                behind.sync()
            finally:
                self._runtime.graphExecDestroy(executable)
                behind.close()

    # -- copies and host functions ------------------------------------------------------
    def copy(
        self, stream: RawStream, destination: NativeArray, source: NativeArray, correlation: int
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
        with self._current(), translated("the driver refuses a copy"):
            self._runtime.memcpyAsync(*pointers, source.nbytes, by_address, int(stream.handle))

    def host_call(
        self, stream: RawStream, function: Callable[[], None], correlation: int, graph: Graph | None
    ) -> None:
        """Queue a host function; a graph keeps it, since CUDA keeps its address only."""
        with self._current(), translated("the driver refuses a host function"):
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
            with self._current(), translated(f"kernel {name!r} does not compile"):
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
        with self._current(), translated(f"the driver refuses to launch {kernel.name!r}"):
            self._core.launch(stream, config, kernel.raw, *passed)

    def matmul(
        self, stream: Stream, plan: MatmulPlan, operands: Operands, sm_count: int, correlation: int
    ) -> None:
        """Queue a GEMM through cuBLAS; ``operands`` are the addresses of out, a and b."""
        if not plan.bytes_out:
            return
        if self._is_current():
            self._blas.matmul(stream, plan, operands, sm_count)
            return
        with self._current():
            self._blas.matmul(stream, plan, operands, sm_count)

    # -- arrays of any library ----------------------------------------------------------
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
            translated("the stream that an array names cannot be followed"),
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
        with self._current(), self._cupy.cuda.Stream.from_external(stream.raw):
            into[...] = array
