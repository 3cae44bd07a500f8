"""What a device is and can do, and its kernels: frozen records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from gpuscope._types import Array, DType
from gpuscope.device.carve import SmLayout
from gpuscope.device.ranks import Joint
from gpuscope.errors import CapabilityError

Shape = tuple[int, ...]
KernelArgs: TypeAlias = Sequence[Any]
"""What a kernel is launched with: arrays, NumPy scalars and numbers."""


class NativeArray(Protocol):
    """An array of any library, as far as everything asks of it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""

    @property
    def dtype(self) -> DType:
        """Type of its elements."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""


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
        Constants of a simulated device: the time from a launch call to the kernel's earliest
        start, and from the end of a kernel's predecessor to its start.
    memory_bytes_per_us
        Rate of copies on a simulated device, counting reads and writes.

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
    memory_bytes_per_us: int | None = None


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a device and its driver, with the reason for each that is missing.

    Attributes
    ----------
    streams
        Streams order work; false on a device where stream operations are no-ops.
    partitions
        SMs can be carved.
    partition_path
        How: ``"composed quanta"`` (drivers 12.4 to 13.0, and newer ones that refuse the other
        way), ``"heterogeneous split"`` (13.1 and newer), ``"simulated"``, or ``None``.
    arbitrary_split
        Counts that are not a multiple of the quantum can be granted.
    stream_ordered_memory
        Memory can be allocated and freed in stream order.
    compile_source
        CUDA C++ source can be compiled and run.
    graphs
        Streams can be captured into graphs.
    reasons
        Capability → the requirement and what was found, for each that is false.

    Examples
    --------
    >>> import gpuscope as gs
    >>> can = gs.open_device("cpu", quiet=True).capabilities
    >>> can.partitions, can.reasons["partitions"]  # doctest: +ELLIPSIS
    (False, 'a CPU has no SMs: ...')
    """

    streams: bool = False
    partitions: bool = False
    partition_path: str | None = None
    arbitrary_split: bool = False
    stream_ordered_memory: bool = False
    compile_source: bool = False
    graphs: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    def require(self, name: str, *, feature: str) -> None:
        """Raise :class:`CapabilityError` unless the capability ``name`` is there."""
        if not getattr(self, name):
            reason = self.reasons.get(name, "this device does not have it")
            raise CapabilityError(f"{feature} is not possible here: {reason}")


@dataclass(frozen=True)
class KernelCost:
    """The simulated GPU's model of a kernel: blocks, each on an SM or on a share of one.

    Attributes
    ----------
    blocks
        How many blocks.
    block_ns
        Duration of each block, or of each of its tiles, in ns without competition for memory
        bandwidth.
    nbytes
        Bytes that all blocks read from and write to device memory, alone.
    tiles
        Of a persistent kernel: pieces of work that its blocks loop over. Each block does one of
        its own; the others go to whichever block is free, so that some blocks end earlier than
        others. 0: each block does one.
    traffic
        Bytes that all blocks move beside ``nbytes``, which keep cache and memory busy.
    exposure
        By how much of its duration on an idle memory a block's grows for each multiple of the
        memory's latency. At least what ``nbytes`` take of the bandwidth.
    idle
        Its duration on an idle memory, of ``block_ns``; 0 if that follows from ``nbytes``.
    cold_nbytes
        Bytes like ``nbytes`` where others have replaced what it left in the cache.
    cold
        How many times longer accesses take there, beside 1.
    early
        By which share of ``block_ns`` the first blocks end before the last: memory that all SMs
        overload serves some of them sooner.
    power
        What it draws of what the GPU may draw for long, beside what an idle GPU draws.
    gap_ns
        From the end of what it follows in its stream to its earliest start; that of the profile
        if not given.
    share
        Of an SM, what one block holds: other blocks, of this kernel and of others, run beside
        it in the rest. Counted in eighths, rounded up.
    computing
        Of an SM's arithmetic units, what one block keeps busy alone. Blocks that run on one SM
        slow each other by as much as they would keep more busy than there are.
    launched
        Thread blocks that the GPU launches one by one, where ``blocks`` stands for more than one
        each: it launches so many in a time, of all kernels together.
    """

    blocks: int
    block_ns: int
    nbytes: int = 0
    tiles: int = 0
    traffic: int = 0
    exposure: float = 0.0
    idle: float = 0.0
    cold_nbytes: int = 0
    cold: float = 0.0
    early: float = 0.0
    power: float = 0.0
    gap_ns: int | None = None
    share: float = 1.0
    computing: float = 0.0
    launched: int = 0

    @property
    def busy_ns(self) -> int:
        """How long all of its blocks take together, alone."""
        return max(self.blocks, self.tiles) * self.block_ns

    def alone_ns(self, sm_count: int) -> int:
        """Return how long the kernel takes on so many SMs, alone."""
        at_once = min(self.blocks, sm_count * math.floor(1 / self.share))
        rounds = -(-max(self.blocks, self.tiles) // at_once)
        return rounds * self.block_ns


class CostModel(Protocol):
    """A simulated GPU as models of kernels ask it: its layout, and what work costs on it."""

    @property
    def layout(self) -> SmLayout:
        """The parts into which its SMs are split."""

    @property
    def constants(self) -> Mapping[str, int]:
        """Host costs and overheads by name: ns where that ends in ``_ns``."""

    def copy_cost(self, nbytes: int, sm_count: int) -> KernelCost:
        """Return the cost of an element-wise copy kernel."""

    def gemm_cost(self, m: int, n: int, k: int, dtype: str, sm_count: int, told: int) -> KernelCost:
        """Return the cost of a product by a library that was told an SM count; 0 for none."""

    def softmax_cost(self, rows: int, columns: int, sm_count: int) -> KernelCost:
        """Return the cost of a softmax over the rows of a float32 matrix."""

    def collective_cost(
        self, kind: str, bus_bytes: float, world_size: int, sm_count: int
    ) -> KernelCost:
        """Return the cost of one rank's kernel of a collective."""


@dataclass(frozen=True)
class KernelModel:
    """A model of a kernel, for devices that cannot run its source.

    Attributes
    ----------
    cost
        ``cost(profile, grid, args, sm_count)`` → :class:`KernelCost`. The profile, a
        :class:`CostModel`, is that of the simulated GPU: it has the costs of copies and GEMMs.
    reads, writes
        ``reads(args)`` → the arrays that it reads; ``writes(args)`` → the array that it
        overwrites, or ``None``.
    compute
        Values of the arrays read → new value of the array written, as many elements as that has:
        else reading it raises InvalidOperand. Of a collective: number of a rank, and the values
        that each rank read → new value there, in C order.
    joint
        ``joint(args)`` → what a launch of a collective has in common with that on other ranks. It
        reads one array and overwrites the whole of another, or that one.
    launch_config
        As in traces, where it is another one than grid and block say; empty: not known.

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

    cost: Callable[[CostModel, int, KernelArgs, int], KernelCost]
    reads: Callable[[KernelArgs], Sequence[NativeArray]] = field(default=lambda _args: ())
    writes: Callable[[KernelArgs], NativeArray | None] = field(default=lambda _args: None)
    compute: Callable[..., Array] | None = None
    joint: Callable[[KernelArgs], Joint] | None = None
    launch_config: str | None = None


def launch_config(grid: int, block: int) -> str:
    """Return a launch configuration as traces hold it."""
    return f'{{"grid":[{grid},1,1],"block":[{block},1,1]}}'


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: launch it with :meth:`Stream.launch`."""

    name: str
    raw: object
    model: KernelModel | None
    pointers: tuple[bool | None, ...] = ()
    """Of each parameter in its source, whether it points to ``const``; ``None``: no pointer."""
    holds_sms: bool = False
    """Whether each block takes all of the shared memory of its SM, so that none fits beside it."""


class Release(NamedTuple):
    """A kernel that released SMs which another got that waited for them.

    Attributes
    ----------
    correlation, node
        Which kernel, as :class:`Activity` has them.
    by_priority
        Whether it was ready later than the one that waited, and only its stream's priority
        let it go first.
    """

    correlation: int
    node: int | None
    by_priority: bool


@dataclass(frozen=True, slots=True)
class Activity:
    """Work that a device knows it did: only simulated devices report these themselves.

    Attributes
    ----------
    correlation
        Of the host call that queued it.
    queued_ns, start_ns, end_ns
        When it was queued, started and ended, on the device's clock.
    waited_for
        Correlations of the event records that held it back.
    node
        Which node of a launched graph it is; ``None`` for what is none.
    context
        Number of the partition's context that it ran in; ``None`` for the whole GPU's.
    after
        Nodes of the same launch that it followed; of a graph's launch, its node that ended last.
    released_by
        Of a kernel that waited for SMs: who released those that its first blocks got.
    sm_occupancy
        Of a kernel: bit masks of SMs, and from when to when its blocks held these, each once.
    engine
        Of a copy: the copy engine that carried it.
    nbytes
        Of a copy: the bytes that it moved in device memory; of a kernel: those of its cost.
    launch_config
        Of a kernel, as in traces; empty: not known; ``None``: as its call says.
    memory
        Of a copy: the kinds of memory, as in traces, that it read and wrote.
    awaited
        Whether the host waited for it in the call that queued it.
    """

    kind: str
    name: str
    correlation: int
    queued_ns: int
    start_ns: int
    end_ns: int
    waited_for: tuple[int, ...] = ()
    node: int | None = None
    context: int | None = None
    after: tuple[int, ...] = ()
    released_by: tuple[Release, ...] = ()
    sm_occupancy: tuple[tuple[int, int, int], ...] = ()
    engine: str | None = None
    nbytes: int | None = None
    launch_config: str | None = None
    memory: tuple[str, str] | None = None
    awaited: bool = False
