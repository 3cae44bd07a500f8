"""Everything about a trace that is not a row: typed, checked once, where it is made.

Long because every fact of a trace is declared here, each with what it means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, get_type_hints

import msgspec

from gpuscope._text import clean
from gpuscope.errors import TraceFormatError
from gpuscope.trace import schema

TimeBase = Literal["unix", "virtual", "relative"]
Number: TypeAlias = float | int | None
"""A measured number, whole or not as JSON had it; ``None`` where it is unknown."""
Description: TypeAlias = Mapping[str, Any]
"""An experiment's description as JSON holds it."""
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Time = Annotated[int, msgspec.Meta(ge=0, lt=schema.LATEST_NS)]
_Short = Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]
"""An index of a device or an SM, or a count of SMs: as wide as the columns of these."""
_Priority = Annotated[int, msgspec.Meta(ge=-1 << 31, lt=1 << 31)]
NO_THREAD = 0
"""Stands for a thread where there is none, as of a request: the system gives none this number."""
_NO_LOSS = ("received", "in_shared_tasks")
"""Counts that are of nothing missing."""
_REASONS = 300
"""Characters of what is said to be missing, and why."""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of the typed facts: JSON leaves out what is unknown, and unknown keys are not kept."""


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
    sm_clock_mhz, memory_clock_mhz, power_w, throttle_reasons
        As they stood when the recording ended, where the driver tells.
    """

    index: _Short | None = None
    uuid: str | None = None
    name: str | None = None
    sm_count: _Short | None = None
    driver: str | None = None
    launch_latency_ns: _Time | None = None
    kernel_gap_ns: _Time | None = None
    sm_clock_mhz: Number = None
    memory_clock_mhz: Number = None
    power_w: Number = None
    throttle_reasons: tuple[str, ...] = ()


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

    asked: _Short | str | None = None
    sm_count: _Short | None = None
    sm_ids: tuple[_Short, ...] = ()
    sm_count_target: _Short | str | None = None
    context: _Whole | None = None
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

    keep_ns: _Whole
    since_ns: _Time
    rows_left_out: _Whole = 0
    edges_left_out: _Whole = 0


class RequestFacts(Facts, frozen=True):
    """When a request got its tokens: the payload of its range, which begins with its arrival.

    Attributes
    ----------
    tokens_ns
        From the arrival to when each token was seen.
    """

    tokens_ns: tuple[_Time, ...]

    def to_json(self) -> str:
        """Write as the payload of a row."""
        return msgspec.json.encode(self).decode()


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
    sequence: _Whole
    group: str = ""
    world_size: _Whole = 1
    nbytes: _Whole = 0

    @property
    def bus_bytes(self) -> float:
        """Bytes that cross each rank's link, as nccl-tests counts them.

        Of n ranks: 2(n − 1)/n of the size of an all-reduce, (n − 1)/n of the others'.
        """
        twice = 2 if self.kind == "all_reduce" else 1
        return twice * self.nbytes * (self.world_size - 1) / max(1, self.world_size)

    def to_json(self) -> str:
        """Write as the payload of a row."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, payload: str | None) -> CollectiveFacts | None:
        """Return what a payload tells of a collective; ``None`` if it is of something else."""
        try:
            return msgspec.json.decode(payload or "", type=cls)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return None


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

    rank: _Whole
    world_size: _Whole = 1
    host: str = ""
    process: _Whole | None = None
    device: str | None = None
    backend: str = ""
    clock: str = ""
    offset_ns: int = 0
    drift_ns: int = 0
    error_ns: _Whole | None = None
    evidence: str = ""


HazardKind = Literal[
    "read after write", "write after read", "write after write", "reuse of freed memory",
    "use before a copy ended", "host access too early",
]  # fmt: skip


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
    first: _Whole | None = None
    second: _Whole | None = None
    first_name: str = ""
    second_name: str = ""
    first_stream: str = ""
    second_stream: str = ""
    address: _Whole = 0
    nbytes: _Whole = 0
    buffer: str = ""
    count: _Whole = 1
    waits: str = ""
    awaits: str = ""
    where: Literal["work", "graph", "host", "capture"] = "work"
    behind: str = ""
    mend: str = ""
    status: str = ""


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

    accesses: _Whole = 0
    unseen: _Whole = 0
    unseen_names: tuple[str, ...] = ()
    found: tuple[HazardFact, ...] = ()
    left_out: _Whole = 0
    undecided: _Whole = 0


_UNKNOWN_DEVICE, _UNKNOWN_PARTITION = DeviceFacts(), PartitionFacts()


class TraceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a trace. Immutable and validated when created.

    Facts may be given as instances of their classes or as decoded JSON.

    Attributes
    ----------
    time_base
        ``"unix"`` (ns since 1970), ``"virtual"`` (a simulated clock) or ``"relative"``.
    clock
        What names the clock of the times, a text that is the same for all that it timed: for Unix
        time, what names this run of the machine's system. Empty where that is unknown.
    simulated
        Whether any row was simulated.
    forecast
        What :func:`what_if` forecast it from, its end and the end's band; empty if nothing did.
    devices
        Key (``"cuda:0"``) → :class:`DeviceFacts`.
    partitions
        Name → :class:`PartitionFacts`.
    streams
        Stream id as text → :class:`StreamFacts`.
    windows_ns
        ``(start, end)`` pairs of the times of recording, as far as their rows are kept.
    kept
        :class:`KeptFacts` where only the latest rows were kept.
    ranks
        :class:`RankFacts` of each rank whose rows are here: one of a recording, all of a merged
        trace; none where the processes have no ranks.
    solo
        Workload → :class:`SoloFacts`.
    clocks
        Clock → :class:`ClockFacts`. ``"cupti"``: CUPTI's clock, against Unix time. A device key:
        the clock of its events. ``"globaltimer cuda:0"``: the GPU's timer that thread blocks
        read, against CUPTI's time if there is CUPTI.
    experiment
        The experiment, if the trace is of a run.
    hazards
        :class:`HazardFacts` where hazards were looked for.
    counts
        Counts from the sources: received, dropped, unmatched (gpuscope's launches without a
        record), unread_bytes, and in_shared_tasks (launches of other libraries under a guard of
        an asyncio task during which other tasks may have run, or whose records came when what a
        guard had selected was forgotten; they have no intended partition).
    complete
        Whether the trace is known to hold everything that was launched, or, where only the
        latest rows were kept, what of it ended since ``kept.since_ns``. If not, the notes say
        why.

    Raises
    ------
    TraceFormatError
        A value has a wrong type or is not valid in a trace.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gs.profile(gpu) as recording:
    ...     pass
    >>> metadata = recording.trace.metadata
    >>> metadata.time_base, metadata.simulated, metadata.devices["sim:h200"].sm_count
    ('virtual', True, 132)
    """

    time_base: TimeBase = "unix"
    clock: str = ""
    simulated: bool = False
    forecast: str = ""
    devices: Mapping[str, DeviceFacts] = {}
    driver: str | None = None
    process_names: Mapping[str, str] = {}
    thread_names: Mapping[str, str] = {}
    partitions: Mapping[str, PartitionFacts] = {}
    streams: Mapping[str, StreamFacts] = {}
    windows_ns: tuple[tuple[_Time, _Time], ...] = ()
    kept: KeptFacts | None = None
    ranks: tuple[RankFacts, ...] = ()
    solo: Mapping[str, SoloFacts] = {}
    clocks: Mapping[str, ClockFacts] = {}
    hazards: HazardFacts | None = None
    device_max_connections: str | None = None
    versions: Mapping[str, str] = {}
    experiment: Description | None = None
    setting: str | None = None
    counts: Mapping[str, int] = {}
    complete: bool = True
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plain = _encodable(msgspec.to_builtins(self, str_keys=True))
        for name, kind in _TYPES.items():
            value = _converted(name, plain[name], kind)
            # What describes an experiment is kept whole: more is written than is read.
            msgspec.structs.force_setattr(
                self, name, plain[name] if name == "experiment" else value
            )
        wrong = next((key for key in self.streams if not key.isdecimal()), None)
        if wrong is not None:
            raise TraceFormatError(f"metadata: no stream has the number {wrong[:40]!r}")

    def device(self, index: int | None) -> DeviceFacts:
        """Return the facts of a device by its index; of one that is not here, all unknown."""
        return next((facts for facts in self.devices.values() if facts.index == index),
                    _UNKNOWN_DEVICE)  # fmt: skip

    def partition(self, name: str | None) -> PartitionFacts:
        """Return the facts of a partition; of one that is not here, all unknown.

        Where merged ranks have one of this name each, those of the first rank's.
        """
        found = self.partitions.get(name or "")
        if found is None and self.ranks:
            found = self.partitions.get(f"{name} · rank {self.ranks[0].rank}")
        return _UNKNOWN_PARTITION if found is None else found

    def rank(self, process: int | None) -> RankFacts | None:
        """Return the rank that a process is, if it is one."""
        there = () if process is None else self.ranks
        return next((rank for rank in there if rank.process == process), None)

    def stream(self, number: int | None) -> StreamFacts | None:
        """Return the facts of a stream, if it is here."""
        return self.streams.get(str(number))

    @property
    def left_out(self) -> str:
        """How many rows ended before the latest time that was kept; empty if none did."""
        kept = self.kept
        if kept is None or not kept.rows_left_out:
            return ""
        return f"the last {kept.keep_ns / 1e9:g} s only, {kept.rows_left_out:,} rows left out"

    @property
    def incomplete(self) -> str:
        """How many rows are missing and why, from ``"incomplete: "`` on; empty if none is."""
        return f"incomplete: {self.missing}" if self.missing else ""

    @property
    def missing(self) -> str:
        """How many rows are missing and why; empty if none is."""
        if self.complete:
            return ""
        missing = [
            f"{count:,} {name.replace('_', ' ')}"
            for name, count in self.counts.items()
            if count > 0 and name not in _NO_LOSS
        ]
        reasons = "; ".join([", ".join(missing), *self.notes] if missing else self.notes)
        return clean(reasons or "nothing says how much is missing", _REASONS)

    def to_json(self) -> str:
        """Write as JSON, everything in its order; what is unknown is left out of the facts."""
        return json.dumps(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, text: str) -> TraceMetadata:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            It is no JSON.
        TraceFormatError
            A key is unknown, or a value has another type than is read.
        """
        return cls.from_facts(json.loads(schema.readable(text.encode("utf-8", "replace"))))

    @classmethod
    def from_facts(cls, facts: object) -> TraceMetadata:
        """Return the metadata from what JSON gave, as :meth:`from_json`."""
        if not isinstance(facts, dict):
            raise TraceFormatError(f"metadata: expected an object, got {type(facts).__name__}")
        unknown = next((name for name in facts if name not in cls.__struct_fields__), None)
        if unknown is not None:
            raise TraceFormatError(clean(f"metadata: unknown field {unknown!r}", 200))
        return cls(**facts)


class _Experiment(TypedDict, total=False):
    """What is read of an experiment's description."""

    workloads: dict[str, dict[str, Any]]


_FACTS = ("devices", "partitions", "streams", "solo", "clocks")
"""Fields of which each value is a :class:`Facts`."""
_TYPES: dict[str, Any] = {
    **get_type_hints(TraceMetadata, include_extras=True), "experiment": _Experiment | None,
}  # fmt: skip


def _encodable(plain: Any) -> Any:
    """Return what JSON can write and UTF-8 can hold: lone surrogates are replaced.

    Infinity and what is no number are unknown.
    """
    text = json.dumps(plain).encode()
    kept = schema.readable(text)
    if kept == text and b"Infinity" not in text and b"NaN" not in text:
        return plain
    return json.loads(kept, parse_constant=lambda _: None)


def _converted(name: str, value: Any, kind: Any) -> object:
    if name in _FACTS and isinstance(value, dict):
        value = {key: _known(facts) for key, facts in value.items()}
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:  # it quotes the file
        raise TraceFormatError(clean(f"metadata: {name}: {error}")) from None


def _known(facts: Any) -> Any:
    """Return what is known of one thing: null is unknown, as what is absent."""
    if not isinstance(facts, dict):
        return facts
    known = {name: value for name, value in facts.items() if value is not None}
    if "granted" in known:  # a former name
        known.setdefault("sm_count", known["granted"])
    return known
