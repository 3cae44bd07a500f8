"""The interface that every device implements, and the frozen records that cross it.

:class:`Backend` is the seam: CUDA, the simulator and the CPU implement it. Device, Stream and
Partition hold, once for all, the rules of who may use what and when.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from gpuscope._types import Array, DType
from gpuscope.device.carve import CarvePlan, PlannedPartition, SmLayout
from gpuscope.device.raw import (
    GrantedPartition,
    Health,
    KernelArgs,
    Mark,
    MatmulPlan,
    Memory,
    NativeArray,
    Operands,
    Places,
    RawEvent,
    RawGraph,
    RawKernel,
    RawPartition,
    RawStream,
    Shape,
    StreamKind,
)
from gpuscope.errors import CapabilityError

if TYPE_CHECKING:
    from gpuscope.device.calls import Activity
    from gpuscope.device.graph import Graph
    from gpuscope.device.sim.profile import Profile
    from gpuscope.device.stream import Stream


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is.

    Attributes
    ----------
    key
        Name in ``open_device``: ``"cuda:0"`` or ``"sim:h200"``.
    index
        CUDA ordinal; 0 on a simulated device.
    sm_count
        Streaming multiprocessors.
    compute_capability
        ``(9, 0)`` on Hopper.
    driver
        Driver and CUDA version in words.
    launch_latency_ns, kernel_gap_ns
        On a simulated device, where they are constants: from a launch until it has reached the
        GPU, and from the end of what a kernel follows until it can start.

    Examples
    --------
    >>> import gpuscope as gs
    >>> info = gs.open_device("sim:h200", quiet=True).info
    >>> info.key, info.sm_count, info.compute_capability
    ('sim:h200', 132, (9, 0))
    """

    key: str
    kind: Literal["cuda", "sim", "cpu"]
    index: int
    name: str
    uuid: str
    sm_count: int
    compute_capability: tuple[int, int]
    memory_bytes: int
    driver: str
    launch_latency_ns: int | None = None
    kernel_gap_ns: int | None = None


@dataclass(frozen=True)
class Capabilities:
    """What this device and driver can do, and why not where they cannot.

    Attributes
    ----------
    streams
        Streams order work; false on a device where every stream operation does nothing.
    partitions
        SMs can be carved.
    partition_path
        How: ``"composed quanta"`` (drivers 12.4 to 13.0), ``"heterogeneous split"``
        (13.1 and newer), ``"simulated"``, or ``None``.
    arbitrary_split
        Counts that are not a set of equal quanta.
    stream_ordered_memory
        Allocation tagged by stream.
    compile_source
        CUDA C++ source can be compiled and run.
    graphs
        Streams can be captured into graphs.
    reasons
        Capability → what it requires and what was found, for each that is false.

    Examples
    --------
    >>> import gpuscope as gs
    >>> can = gs.open_device("cpu", quiet=True).capabilities
    >>> can.partitions, can.reasons["partitions"]  # doctest: +ELLIPSIS
    (False, 'a CPU has no SMs: ...')
    """

    streams: bool
    partitions: bool
    partition_path: str | None
    arbitrary_split: bool
    stream_ordered_memory: bool
    compile_source: bool
    graphs: bool
    reasons: Mapping[str, str] = field(default_factory=dict)

    def require(self, name: str, *, feature: str) -> None:
        """Raise :class:`CapabilityError` unless the capability ``name`` is there."""
        if not getattr(self, name):
            reason = self.reasons.get(name, "this device does not have it")
            raise CapabilityError(f"{feature} is not possible here: {reason}")


@dataclass(frozen=True)
class KernelCost:
    """Equal blocks that each hold one SM: the simulated GPU's view of a kernel.

    Attributes
    ----------
    blocks
        How many blocks.
    block_ns
        How long each takes, in ns, when nothing else asks for memory bandwidth.
    nbytes
        What all of them read from and write to device memory. Kernels that ask for more
        bandwidth together than there is slow each other down.
    """

    blocks: int
    block_ns: int
    nbytes: int = 0


@dataclass(frozen=True)
class KernelModel:
    """How a kernel behaves on a device that cannot run its source.

    Attributes
    ----------
    cost
        ``cost(profile, grid, args, sm_count)`` → :class:`KernelCost`; the profile is the
        simulated GPU's, which knows the cost of copies and GEMMs.
    reads, writes
        ``reads(args)`` → the arrays it reads; ``writes(args)`` → the one it overwrites,
        or ``None``.
    compute
        Values of the arrays read → new value of the one written.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> from gpuscope.device.api import KernelCost, KernelModel
    >>> model = KernelModel(lambda profile, grid, args, sm_count: KernelCost(grid, block_ns=5_000))
    >>> source = 'extern "C" __global__ void nap() { __nanosleep(5000); }'
    >>> kernel = gpu.compile(source, "nap", model=model)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     stream.launch(kernel, grid=1, block=32)
    >>> gs.analysis.summary(recording.trace).streams[0].busy_ns >= 5_000
    True
    """

    cost: Callable[[Profile, int, KernelArgs, int], KernelCost]
    reads: Callable[[KernelArgs], Sequence[NativeArray]] = field(default=lambda _args: ())
    writes: Callable[[KernelArgs], NativeArray | None] = field(default=lambda _args: None)
    compute: Callable[..., Array] | None = None


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: launch it with :meth:`Stream.launch`."""

    name: str
    raw: RawKernel
    model: KernelModel | None


class Backend(Protocol):
    """What a device must be able to do. Raw handles are the backend's own business.

    Methods with a body are those of a device without a driver, streams, partitions or graphs.
    """

    info: DeviceInfo
    capabilities: Capabilities
    layout: SmLayout
    array_type: type
    """Type of the arrays it makes."""
    home: object
    """Where its arrays are: what :meth:`home_of` returns of each."""

    def now_ns(self) -> int:
        """Return the host clock: Unix ns, or the virtual time of a simulated device."""

    def wait_until_ns(self, time_ns: int) -> None:
        """Let the host wait until its clock shows ``time_ns``."""

    def process_and_thread(self) -> tuple[int, int]:
        """Return the ids of this process and thread: the system's, or logical ones."""

    def health(self) -> Health:
        """Return clocks, power and throttle reasons as they stand, where they can be told."""
        return {}

    def set_activity_sink(self, sink: Callable[[Activity], None] | None) -> None:
        """Report finished work to ``sink``, on devices that know it themselves."""

    def check_plan(self, plan: CarvePlan) -> None:
        """Ask the driver whether it would grant ``plan``; creates nothing."""
        self.capabilities.require("partitions", feature="carving")

    def make_partitions(self, planned: Sequence[PlannedPartition]) -> list[GrantedPartition]:
        """Make partitions and find their SM ids; rolls back if any fails."""
        self.capabilities.require("partitions", feature="carving")
        return []

    def close_partition(self, raw: RawPartition) -> None:
        """Destroy a partition whose streams are closed."""
        return

    def context_handle(self, partition: RawPartition) -> int:
        """Return the driver's handle of a partition's context, for ``None`` of the device's.

        0 where there is no driver.
        """
        return 0

    def make_stream(
        self, partition: RawPartition, priority: int, *, blocking: bool = False
    ) -> tuple[RawStream, int]:
        """Make a stream; returns it and its integer handle.

        A ``blocking`` one, which no partition has, knows the legacy default stream's barrier.
        """
        return None, 0

    def borrow_stream(self, handle: int) -> RawStream:
        """Wrap a stream that somebody else owns."""

    def stream_kind(self, raw: RawStream) -> StreamKind:
        """Return how a stream stands to the legacy default stream."""
        return "non-blocking"

    def default_stream(self) -> tuple[RawStream, int]:
        """Return the per-thread default stream."""
        return None, 0

    def close_stream(self, raw: RawStream, handle: int) -> None:
        """Destroy an idle stream."""
        return

    def sync_stream(self, raw: RawStream) -> None:
        """Wait on the host until everything queued on a stream is done."""
        return

    def stream_done(self, raw: RawStream) -> bool:
        """Whether everything queued on a stream is done."""
        return True

    def make_event(self, *, timing: bool) -> RawEvent:
        """Make an event."""

    def record(self, event: RawEvent, stream: RawStream, correlation: int) -> None:
        """Record an event on a stream."""

    def wait(self, stream: RawStream, event: RawEvent) -> None:
        """Make a stream wait for an event's latest record."""
        return

    def sync_event(self, event: RawEvent) -> None:
        """Wait on the host for an event."""
        return

    def event_done(self, event: RawEvent) -> bool:
        """Whether an event's latest record is done."""
        return True

    def elapsed_ns(self, start: RawEvent, end: RawEvent) -> int:
        """Nanoseconds between two recorded events."""

    def close_event(self, raw: RawEvent) -> None:
        """Destroy an event."""
        return

    def empty(self, shape: Shape, dtype: DType) -> NativeArray:
        """Return an uninitialised array on the device."""

    def empty_pinned(self, shape: Shape, dtype: DType) -> Array:
        """Return an uninitialised array in page-locked host memory."""

    def asarray(self, values: Array) -> NativeArray:
        """Copy host values to the device and wait for it."""

    def to_host(self, array: NativeArray) -> Array:
        """Return an array's values; the device must be idle with respect to it."""

    def home_of(self, array: NativeArray) -> object:
        """Return which device holds an array of this kind of device."""

    def allocate(self, nbytes: int, stream: Stream | None) -> Memory:
        """Take scratch memory, nbytes > 0: in the order of ``stream``, or, for ``None``, now.

        Memory that no stream is named for is handed out after the device has finished
        everything.
        """

    def free(self, memory: Memory, stream: Stream | None, *, idle: bool = False) -> None:
        """Free memory in stream order; without a stream wait first, unless nothing uses it."""

    def use(self, stream: Stream, values: Sequence[object]) -> None:
        """Keep the memory of this backend's arrays among ``values`` for what is queued now.

        It is given out again when the work on ``stream`` is done, also if nobody holds them.
        """
        return

    def mark(self, stream: RawStream) -> Mark:
        """Return a mark behind what is queued on a stream, for its memory's pool."""

    def reserved_bytes(self) -> int:
        """Return how much device memory scratch holds, given back or not."""

    def begin_capture(self, stream: Stream) -> None:
        """Let what is queued on ``stream`` from now on become a graph instead of running."""
        self.capabilities.require("graphs", feature="capturing a stream")

    def end_capture(self, stream: Stream) -> RawGraph:
        """End it and return the graph, ready to launch."""
        self.capabilities.require("graphs", feature="capturing a stream")

    def launch_graph(self, graph: RawGraph, stream: RawStream, correlation: int) -> None:
        """Queue all of a graph's work."""
        self.capabilities.require("graphs", feature="launching a graph")

    def graph_is_empty(self, graph: RawGraph) -> bool:
        """Whether a graph is known to have no work."""
        return False

    def close_graph(self, graph: RawGraph) -> None:
        """Wait for a graph's latest launch, then destroy it."""
        return

    def fill_random(self, array: NativeArray, seed: int) -> None:
        """Fill an array with uniform values in [-0.5, 0.5) and wait for it."""

    def copy(
        self, stream: RawStream, destination: NativeArray, source: NativeArray, correlation: int
    ) -> None:
        """Queue a copy between arrays of one size, on the device or from or to host memory."""

    def host_call(
        self, stream: RawStream, function: Callable[[], None], correlation: int, graph: Graph | None
    ) -> None:
        """Queue a host function on a stream, or in the graph that it is captured into."""

    def compile(self, source: str, name: str, model: KernelModel | None) -> Kernel:
        """Compile CUDA C++ source, or take its model."""

    def launch(
        self,
        stream: RawStream,
        kernel: Kernel,
        grid: int,
        block: int,
        args: KernelArgs,
        correlation: int,
    ) -> None:
        """Launch a kernel."""

    def matmul(
        self, stream: Stream, plan: MatmulPlan, operands: Operands, sm_count: int, correlation: int
    ) -> None:
        """Queue a planned GEMM on placed operands, tuned for ``sm_count`` SMs (0: not told)."""

    def adopt(self, value: object, *, write: bool = False) -> NativeArray | None:
        """Return ``value`` as an array of this kind of device, without a copy, or ``None``.

        What is returned has ``shape``, ``dtype``, ``ndim`` and ``strides``. To ``write``, it
        must not be read-only.
        """

    def follow(self, stream: RawStream, value: object) -> None:
        """Let ``stream`` wait for the stream that an array of another library names, if any."""
        return

    def place(self, out: NativeArray, a: NativeArray, b: NativeArray) -> Places:
        """Say where adopted arrays are, and what :meth:`matmul` takes of them."""

    def rearrange(
        self, stream: Stream, into: NativeArray, array: NativeArray, correlation: int
    ) -> None:
        """Queue a copy of an array into one in C order."""

    def synchronize(self) -> None:
        """Wait on the host for the whole device."""

    def wait_for_all(self, handles: Collection[int]) -> None:
        """Wait for the whole device, and for each of these streams by an event of its own.

        A driver's wait for the device may miss work in a partition: see `docs/design.md`. So the
        contexts of the partitions that the streams lie in are waited for, too.
        """
        self.synchronize()

    def close(self) -> None:
        """Release what is kept for the next use."""
        return

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make the device current for libraries that ask which one is; restored on leaving."""
        return contextlib.nullcontext()
