"""Everything about a trace that is not a row: typed, checked once, where it is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypedDict, get_type_hints

import msgspec

from gpuscope._text import clean
from gpuscope.errors import TraceFormatError
from gpuscope.trace import schema
from gpuscope.trace.facts import (
    ClockFacts,
    DeviceFacts,
    EnergyFacts,
    HazardFacts,
    KeptFacts,
    PartitionFacts,
    RankFacts,
    RecordingCost,
    SamplingFacts,
    SoloFacts,
    StreamFacts,
    Time,
)
from gpuscope.trace.gpu_states import GpuStateFacts

TimeBase = Literal["unix", "virtual", "relative"]
Description: TypeAlias = Mapping[str, Any]
"""An experiment's description as JSON holds it."""
NO_THREAD = 0
"""Stands for a thread where there is none, as of a request: the system gives none this number."""
_NO_LOSS = ("received", "in_shared_tasks")
"""Counts that are of nothing missing."""
_REASONS = 300
"""Characters of what is said to be missing, and why."""
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
    gpu_states
        :class:`GpuStateFacts` of each GPU and time of recording, where the driver told of them.
    kept
        :class:`KeptFacts` where only the latest rows were kept.
    ranks
        :class:`RankFacts` of each rank whose rows are here: one of a recording, all of a merged
        trace; none where the processes have no ranks.
    edges
        The kinds of edges that are all told, of the work and calls whose rows are here. What is of
        another kind may be missing.
    solo
        Workload → :class:`SoloFacts`.
    energy
        :class:`EnergyFacts` of each round, if they were measured of all.
    clocks
        Clock → :class:`ClockFacts`. ``"cupti"``: CUPTI's clock, against Unix time. A device key:
        the clock of its events. ``"globaltimer cuda:0"``: the GPU's timer that thread blocks
        read, against CUPTI's time if there is CUPTI.
    experiment
        The experiment, if the trace is of a run.
    hazards
        :class:`HazardFacts` where hazards were looked for.
    recording_cost
        :class:`RecordingCost` where the process measured it.
    sampling
        :class:`SamplingFacts` where stacks of Python's threads were sampled.
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
    windows_ns: tuple[tuple[Time, Time], ...] = ()
    gpu_states: tuple[GpuStateFacts, ...] = ()
    kept: KeptFacts | None = None
    ranks: tuple[RankFacts, ...] = ()
    edges: tuple[str, ...] = ()
    solo: Mapping[str, SoloFacts] = {}
    energy: tuple[EnergyFacts, ...] = ()
    clocks: Mapping[str, ClockFacts] = {}
    hazards: HazardFacts | None = None
    recording_cost: RecordingCost | None = None
    sampling: SamplingFacts | None = None
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
        matching = (facts for facts in self.devices.values() if facts.index == index)
        return next(matching, _UNKNOWN_DEVICE)

    def partition(self, name: str | None) -> PartitionFacts:
        """Return the facts of a partition; of one that is not here, all unknown.

        Where merged ranks have one of this name each, those of the first rank's.
        """
        facts = self.partitions.get(name or "")
        if facts is None and self.ranks:
            facts = self.partitions.get(f"{name} · rank {self.ranks[0].rank}")
        return facts or _UNKNOWN_PARTITION

    def rank(self, process: int | None) -> RankFacts | None:
        """Return the rank that a process is, if it is one."""
        ranks = () if process is None else self.ranks
        return next((rank for rank in ranks if rank.process == process), None)

    def stream(self, number: int | None) -> StreamFacts | None:
        """Return the facts of a stream, if it is here."""
        return self.streams.get(str(number))

    @property
    def left_out(self) -> str:
        """How many rows ended before the latest time that was kept; empty if none did."""
        facts = self.kept
        if facts is None or not facts.rows_left_out:
            return ""
        return f"the last {facts.keep_ns / 1e9:g} s only, {facts.rows_left_out:,} rows left out"

    @property
    def incomplete(self) -> str:
        """How many rows are missing and why, from ``"incomplete: "`` on; empty if none is."""
        return f"incomplete: {self.missing}" if self.missing else ""

    @property
    def missing(self) -> str:
        """How many rows are missing and why; empty if none is."""
        if self.complete:
            return ""
        losses = {name: count for name, count in self.counts.items() if name not in _NO_LOSS}
        missing = [f"{n:,} {name.replace('_', ' ')}" for name, n in losses.items() if n > 0]
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
_TYPES: dict[str, Any] = get_type_hints(TraceMetadata, include_extras=True)
_TYPES["experiment"] = _Experiment | None


def _encodable(plain: Any) -> Any:
    """Return what JSON can write and UTF-8 can hold: lone surrogates are replaced.

    Infinity and what is no number are unknown.
    """
    text = json.dumps(plain).encode()
    readable = schema.readable(text)
    if readable == text and b"Infinity" not in text and b"NaN" not in text:
        return plain
    return json.loads(readable, parse_constant=lambda _: None)


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
    fields = {name: value for name, value in facts.items() if value is not None}
    if "granted" in fields:  # a former name
        fields.setdefault("sm_count", fields["granted"])
    return fields
