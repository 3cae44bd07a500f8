"""Facts of devices, partitions, streams, clocks, ranks, collectives and hazards: typed, as JSON."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

import msgspec

from gpuscope.trace import schema

Number: TypeAlias = float | int | None
"""A measured number, whole or not as JSON had it; ``None`` where it is unknown."""
Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Time = Annotated[int, msgspec.Meta(ge=0, lt=schema.LATEST_NS)]
Short = Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]
"""An index of a device or an SM, or a count of SMs: as wide as the columns of these."""
_Priority = Annotated[int, msgspec.Meta(ge=-1 << 31, lt=1 << 31)]


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of the typed facts: JSON leaves out what is unknown, and unknown keys are not kept."""

    def to_json(self) -> str:
        """Write as JSON, such as the payload of a row."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, payload: str | None) -> Self | None:
        """Return what the payload of a row tells; ``None`` if it is of something else."""
        try:
            return msgspec.json.decode(payload or "", type=cls)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return None


class DeviceFacts(Facts, frozen=True):
    """A device as it was recorded.

    Attributes
    ----------
    index
        CUDA's index, by which rows name it.
    sm_count
        How many SMs it has.
    launch_latency_ns, kernel_gap_ns
        Constants of a simulated device.
    memory_bytes_per_us
        Rate of copies on it, counting reads and writes, as ``gpuscope calibrate`` measured GPUs of
        its name.
    """

    index: Short | None = None
    uuid: str | None = None
    name: str | None = None
    sm_count: Short | None = None
    driver: str | None = None
    launch_latency_ns: Time | None = None
    kernel_gap_ns: Time | None = None
    memory_bytes_per_us: Whole | None = None


class PartitionFacts(Facts, frozen=True):
    """A partition of a device's SMs.

    Attributes
    ----------
    asked
        The size that was asked for: a count, ``"rest"``…
    sm_count
        How many SMs were granted.
    sm_ids
        Those that the probe kernel saw.
    sm_count_target
        What cuBLAS was told.
    context
        The driver's handle of its green context, or the number that an importer read.
    shares_with
        Partitions on the same SMs.
    color
        ``#RRGGBB`` that pictures use; foreign text.
    process, parent_context
        Of a green context that another recorder named.
    device_key
        Its device, where the trace is of several.
    """

    asked: Short | str | None = None
    sm_count: Short | None = None
    sm_ids: tuple[Short, ...] = ()
    sm_count_target: Short | str | None = None
    context: Whole | None = None
    shares_with: tuple[str, ...] = ()
    color: str | None = None
    process: int | None = None
    parent_context: int | None = None
    device_key: str | None = None


class StreamFacts(Facts, frozen=True):
    """A stream.

    Attributes
    ----------
    device
        Key of its device.
    legacy_default, blocking
        Known to hold: such streams wait for each other.
    per_thread
        CUDA's per-thread default stream: another one on each thread.
    """

    name: str
    partition: str | None = None
    priority: _Priority | None = None
    device: str | None = None
    legacy_default: bool = False
    blocking: bool = False
    per_thread: bool = False


class SoloFacts(Facts, frozen=True):
    """What was measured of a workload that ran alone.

    Attributes
    ----------
    kernel_ns
        Median duration in the same setting; the mean where it launches different kernels.
    n
        Number of kernels.
    whole_gpu_kernel_ns, whole_gpu_tflop_per_s, whole_gpu_calls_per_s
        Alone on the unpartitioned GPU.
    """

    kernel_ns: Number = None
    n: Number = None
    whole_gpu_kernel_ns: Number = None
    whole_gpu_tflop_per_s: Number = None
    whole_gpu_calls_per_s: Number = None


class EnergyFacts(Facts, frozen=True):
    """The energy that a GPU drew in a round, whoever used it.

    Attributes
    ----------
    joules
        All of it, from the first launch to the end of the work.
    duration_ns
        How long that was.
    idle_w
        What the GPU drew at rest before the round: so much of ``joules`` a second.
    """

    joules: float
    duration_ns: Time
    idle_w: float

    @property
    def dynamic_joules(self) -> float:
        """What was drawn beyond the power at rest."""
        return self.joules - self.idle_w * self.duration_ns / 1e9


class ClockFacts(Facts, frozen=True):
    """How the times of a clock were put on the trace's time base.

    Attributes
    ----------
    residual_ns
        How far that can be off.
    drift_ns
        Disagreement at the end, over ``over_ns``.
    empty_bracket_ns, empty_kernel_bracket_ns
        The cost of a pair of events around nothing, and around an empty kernel.
    """

    offset_ns: Number = None
    residual_ns: Number = None
    drift_ns: Number = None
    over_ns: Number = None
    empty_bracket_ns: Number = None
    empty_kernel_bracket_ns: Number = None


class KeptFacts(Facts, frozen=True):
    """Which part of a recording is in the trace: what ended in its latest time.

    Attributes
    ----------
    keep_ns
        The length that was asked for.
    since_ns
        What ended before is not in the trace.
    rows_left_out, edges_left_out
        How many rows ended before, and how many edges led from or to one of these. A handle's
        call whose completion nobody looked for counts by its beginning.
    """

    keep_ns: Whole
    since_ns: Time
    rows_left_out: Whole = 0
    edges_left_out: Whole = 0


class RequestFacts(Facts, frozen=True):
    """When a request got its tokens: the payload of its range, which begins with its arrival.

    Attributes
    ----------
    tokens_ns
        From the arrival to when each token was seen.
    """

    tokens_ns: tuple[Time, ...]


CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


class CollectiveFacts(Facts, frozen=True):
    """Which collective one rank's call took part in: the payload of its handle's row.

    Attributes
    ----------
    sequence
        Its number among the collectives of the group: group and sequence name the same
        collective on all ranks.
    group
        Name of the communicator.
    world_size
        How many ranks the group has.
    nbytes
        The size as nccl-tests states it: bytes of one rank's buffer of an all-reduce, of the larger
        one, which all ranks' parts fill, of an all-gather and a reduce-scatter, and of what one
        rank sends in an all-to-all, its own part included.
    """

    kind: CollectiveKind
    sequence: Whole
    group: str = ""
    world_size: Whole = 1
    nbytes: Whole = 0

    @property
    def bus_bytes(self) -> float:
        """Bytes that cross each rank's link, as nccl-tests counts them.

        Of n ranks: 2(n − 1)/n of the size of an all-reduce, (n − 1)/n of the others'.
        """
        twice = 2 if self.kind == "all_reduce" else 1
        return twice * self.nbytes * (self.world_size - 1) / max(1, self.world_size)


class RankFacts(Facts, frozen=True):
    """A rank: one of the processes that compute together.

    Attributes
    ----------
    host
        Name of its machine, empty where it is unknown or left out.
    process
        The number by which rows name its process.
    device
        Key of the device that it computes on, where that is known.
    backend
        What carries its collectives: ``"nccl"``, ``"gloo"``…
    clock
        ``TraceMetadata.clock`` of its own recording, in a merged trace.
    offset_ns, drift_ns
        What was added to its times to put them on the clock of a merged trace: at the beginning of
        its rows, and how much more at their end.
    error_ns
        How far its times can be off against those of any other rank of a merged trace.
    evidence
        By what its clock was put beside the others'.
    """

    rank: Whole
    world_size: Whole = 1
    host: str = ""
    process: Whole | None = None
    device: str | None = None
    backend: str = ""
    clock: str = ""
    offset_ns: int = 0
    drift_ns: int = 0
    error_ns: Whole | None = None
    evidence: str = ""


HazardKind = Literal[
    "read after write",
    "write after read",
    "write after write",
    "reuse of freed memory",
    "use before a copy ended",
    "host access too early",
]


class HazardFact(Facts, frozen=True):
    """Two pieces of work that access common bytes, one of them to write, in no order.

    Attributes
    ----------
    first, second
        Rows of the two, in the order of their calls; ``None`` for what has none, as the host's.
    first_stream, second_stream
        Names of their streams; ``"host"``.
    address, nbytes
        Where the bytes begin that they have in common, and how many these are.
    buffer
        Its name, where one is known.
    count
        How many pairs there are of these names, streams, kind and missing order; the rest is of
        the first.
    waits, awaits
        The order that is missing: names of the stream that has to wait for all that is in another
        one by then. They launched the two, or, in a capture, were captured. ``"host"``; empty in
        traces of before it was told.
    where
        Where the wait belongs: in front of the second work, of the launch of the graph that has
        it, or of the host's access; or in front of it in the capture of the graph that has both.
    behind
        The first work, where the event has to be recorded right behind it, by the thread that
        launched it; empty where it can be recorded in front of the wait.
    mend
        The call that makes this order, as code.
    status
        What a run with the first delayed showed: ``"confirmed"``, ``"not reproduced"``, or
        ``"could not be tried: …"``; empty where none was made.
    """

    kind: HazardKind
    first: Whole | None = None
    second: Whole | None = None
    first_name: str = ""
    second_name: str = ""
    first_stream: str = ""
    second_stream: str = ""
    address: Whole = 0
    nbytes: Whole = 0
    buffer: str = ""
    count: Whole = 1
    waits: str = ""
    awaits: str = ""
    where: Literal["work", "graph", "host", "capture"] = "work"
    behind: str = ""
    mend: str = ""
    status: str = ""


class RecordingCost(Facts, frozen=True):
    """What recording a program cost its threads that make calls of CUDA's.

    Attributes
    ----------
    call_ns, call_within_ns
        What recording added to each call, and half the 95 % interval of that.
    share, within
        The same of the time of the thread that made most calls, from its first to its last.
    """

    call_ns: float
    call_within_ns: float
    share: float
    within: float


class SamplingFacts(Facts, frozen=True):
    """How stacks of Python's threads were sampled.

    Attributes
    ----------
    period_ns
        Between two looks at all threads, on average.
    looks, samples
        How often it was looked, and stacks of how many threads in all.
    torn
        Samples in which frames moved meanwhile.
    cut
        Samples in which frames are left out.
    unread
        Threads that were gone when they were read.
    late
        Looks that came more than a period late.
    lost
        Samples for which there was no room.
    """

    period_ns: int
    looks: int = 0
    samples: int = 0
    torn: int = 0
    cut: int = 0
    unread: int = 0
    late: int = 0
    lost: int = 0


class HazardFacts(Facts, frozen=True):
    """Which hazards a recording found, among how much.

    Attributes
    ----------
    accesses
        How many pieces of work were seen with what they read and write.
    unseen, unseen_names
        How many were not, and the names of a few.
    found
        The hazards, equal ones as one.
    left_out
        How many pairs are in none of them, since there were too many.
    undecided
        How many more have an order, or none, by a wait of another library's that nobody could
        follow.
    """

    accesses: Whole = 0
    unseen: Whole = 0
    unseen_names: tuple[str, ...] = ()
    found: tuple[HazardFact, ...] = ()
    left_out: Whole = 0
    undecided: Whole = 0
