"""What an export of Nsight Systems says of its capture: clock, devices, contexts, names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from gpuscope._types import Array
from gpuscope.errors import TraceFormatError
from gpuscope.formats.database import Database, Value
from gpuscope.formats.nsight.schema import BITS, ID
from gpuscope.formats.private import public_text
from gpuscope.trace import arrow, schema, valid
from gpuscope.trace.arrow import NONE, Columns
from gpuscope.trace.facts import DeviceFacts, PartitionFacts, StreamFacts
from gpuscope.trace.metadata import TimeBase, TraceMetadata

_FOREIGN = 1_000_000_000
"""A stream whose number another process, device or context has, too, is numbered from here."""
_PRODUCT = "EXPORT_PRODUCT_VERSION"
_SCHEMA = "EXPORT_SCHEMA_VERSION"
_LONGEST_FACT = 80


@dataclass
class SpanColumns:
    """Columns of spans, all of one length, beside what joins need of them.

    Attributes
    ----------
    rows
        Ids.
    at
        Positions in the table that they come from; ``None`` for all of it.
    """

    table: str
    columns: Columns
    rows: Array
    joins: Mapping[str, Array] = field(default_factory=dict)
    at: Array | None = None

    def spans(self) -> pa.Table:
        """Return them as a table of spans."""
        return arrow.table({"id": self.rows, **self.columns}, len(self.rows))


class OpenExport:
    """An open export, and what is known of its capture.

    Parameters
    ----------
    own_metadata
        The metadata where gpuscope wrote the file: its numbers of streams hold as they are.

    Attributes
    ----------
    not_taken
        What → number, for the trace's counts.
    notes
        What is to be known about the trace.
    partitions, streams
        As in the trace's metadata; they grow while rows are read.
    """

    def __init__(self, database: Database, own_metadata: TraceMetadata | None = None) -> None:
        self.database = database
        self.own_metadata, self.is_own = own_metadata, own_metadata is not None
        self.not_taken: dict[str, int] = {}
        self.notes: list[str] = []
        self.complete = True
        self.partitions: dict[str, PartitionFacts] = {}
        self.streams: dict[str, StreamFacts] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._next_row = 1
        self.base_ns, self.time_base = self._clock()

    # -- time and rows ---------------------------------------------------------------------
    def _clock(self) -> tuple[int, TimeBase]:
        """Return what to add to times, and what they then count from."""
        starts = self.database.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
        epoch = starts["utcEpochNs"]
        if self._facts.get("EXPORT_PARAM_TIME_NORMALIZE") == "true":
            return 0, "unix"  # nsys export has added it already
        if not len(epoch) or not 0 < epoch[0] < schema.LATEST_NS:
            return 0, "relative"
        return int(epoch[0]), "unix"

    def times(self, values: Array) -> Array:
        """Return times on the trace's clock.

        Raises
        ------
        TraceFormatError
            One is out of any range.
        """
        if len(values) and (values.max() >= schema.LATEST_NS or values.min() <= -schema.LATEST_NS):
            raise TraceFormatError("a time lies more than a century away from the capture")
        return values + self.base_ns

    def ends(self, values: Array) -> pa.Array:
        """Return ends on the trace's clock, null where a span is open."""
        return arrow.nullable(self.times(values), values == NONE)

    def rows(self, count: int) -> Array:
        """Return ids for so many more rows."""
        first, self._next_row = self._next_row, self._next_row + count
        return np.arange(first, first + count, dtype=np.int64)

    def shared(self, kind: str, table: Mapping[str, Array]) -> Columns:
        """Return what calls, work and waits tell alike."""
        count = len(table["start"])
        return {
            "kind": arrow.constant(kind, count),
            "start_ns": self.times(table["start"]),
            "end_ns": self.ends(table["end"]),
            "correlation": arrow.nullable(table["correlationId"]),
            "source": arrow.constant("nsys", count),
        }

    # -- texts -----------------------------------------------------------------------------
    @cached_property
    def strings(self) -> Mapping[Value, Value]:
        """Number → text."""
        return self.database.mapping("StringIds", "id", "value")

    def string(self, number: int) -> str | None:
        """Return a text by its number."""
        text = self.strings.get(number)
        return text if isinstance(text, str) else None

    def texts(self, numbers: Array, absent: str | None) -> pa.DictionaryArray:
        """Return a text column from numbers into the strings."""

        def text_of(number: int) -> str | None:
            text = self.string(number)
            return text if text or (text == "" and self.is_own) else absent

        return arrow.worded(numbers, text_of)  # only ours may be empty

    @cached_property
    def _facts(self) -> Mapping[Value, Value]:
        """What the exporter says of itself; the table was renamed along the way."""
        return {
            **self.database.mapping("EXPORT_META_DATA", "name", "value"),
            **self.database.mapping("META_DATA_EXPORT", "name", "value"),
        }

    @cached_property
    def _system(self) -> Mapping[Value, Value]:
        return self.database.mapping("TARGET_INFO_SYSTEM_ENV", "name", "value")

    def versions(self) -> dict[str, str]:
        """Return who wrote the file."""
        versions = {"nsys": self._facts.get(_PRODUCT), "nsys schema": self._facts.get(_SCHEMA)}
        return {name: str(value)[:_LONGEST_FACT] for name, value in versions.items() if value}

    def version_note(self) -> str:
        """Return the versions in words."""
        versions = ", ".join(f"{name} {value}" for name, value in self.versions().items())
        return f" ({versions})" if versions else ""

    def driver(self) -> str | None:
        """Return the driver's version."""
        version = self._system.get("NvDriverVersion")
        return str(version)[:_LONGEST_FACT] if version else None

    def host_name(self) -> str | None:
        """Return the name of the machine, where the file tells."""
        host = self._system.get("Hostname") or self._facts.get("EXPORT_HOST")
        return str(host)[:_LONGEST_FACT] if host else None

    # -- processes and threads -------------------------------------------------------------
    def thread_columns(self, global_tids: Array) -> Columns:
        """Return process and thread of each row."""
        none, process = global_tids == NONE, global_tids >> BITS & ID
        thread = arrow.nullable(global_tids & ID, none)
        return {"process": arrow.nullable(process, none), "thread": thread}

    def process_names(self, spans: pa.Table, *, keep_private: bool) -> dict[str, str]:
        """Return the names of the processes that have rows: what else ran is nobody's business."""
        wanted = _distinct(spans.column("process"))
        return {
            str(pid): _plain(name, keep_private=keep_private)
            for pid, name in self.database.rows("PROCESSES", ("pid", "name"))
            if pid in wanted and isinstance(name, str)
        }

    def thread_names(self, spans: pa.Table, *, keep_private: bool) -> dict[str, str]:
        """Return the names of the threads that have rows, the one of the highest priority."""
        wanted = _distinct(spans.column("thread"))
        named = self.database.integers("ThreadNames", ("nameId", "priority", "globalTid"))
        names: dict[str, str] = {}
        for at in np.argsort(named["priority"], kind="stable").tolist():
            thread = int(named["globalTid"][at]) & ID
            name = self.string(int(named["nameId"][at]))
            if thread in wanted and name:
                names[str(thread)] = _plain(name, keep_private=keep_private)
        return names

    # -- devices, contexts, streams --------------------------------------------------------
    @cached_property
    def _gpus(self) -> dict[int, DeviceFacts]:
        """CUDA's index → what the file says of the GPU."""
        columns = ("id", "name", "uuid", "smCount")
        gpus = {
            number: DeviceFacts(
                name=_short_text(name),
                uuid=_short_text(uuid),
                sm_count=count if valid.is_short(count) else None,
            )
            for number, name, uuid, count in self.database.rows("TARGET_INFO_GPU", columns)
        }
        if self.own_metadata is not None:
            gpus = {facts.index: facts for facts in self.own_metadata.devices.values()}
        cuda_devices = self.database.rows("TARGET_INFO_CUDA_DEVICE", ("cudaId", "gpuId"))
        if cuda_devices:
            gpus = {cuda: gpus.get(gpu, DeviceFacts()) for cuda, gpu in cuda_devices}
        return {
            index: replace(facts, index=index, name=facts.name or f"GPU {index}")
            for index, facts in gpus.items()
            if valid.is_short(index)
        }

    def devices(self) -> dict[str, DeviceFacts]:
        """Return the devices as a trace's metadata has them."""
        return {f"cuda:{index}": facts for index, facts in sorted(self._gpus.items())}

    def stream_numbers(self, table: dict[str, Array]) -> Array:
        """Return the trace's number of each row's stream, or NONE."""
        if self.is_own:
            return table["streamId"]
        keys = ("globalPid", "deviceId", "contextId", "streamId")
        codes, distinct = arrow.coded_array(*(table[key] for key in keys))
        self._check_places(len(distinct))
        numbers = [self._stream(tuple(key.tolist())) for key in distinct]
        return np.array(numbers or [NONE], np.int64)[codes]

    def _check_places(self, more: int) -> None:
        self.database.limits.check_places(max(len(self.streams) + len(self.partitions), more))

    def places(self, table: dict[str, Array]) -> Columns:
        """Return device, context, green context, partition and stream of each row."""
        device, context, green = table["deviceId"], table["contextId"], table["greenContextId"]
        homes, where = arrow.coded_array(table["globalPid"], green)
        self._check_places(len(where))
        names = [self._partition(*row.tolist()) for row in where]
        uuids = {index: facts.uuid for index, facts in self._gpus.items()}
        numbers = self.stream_numbers(table)
        self._check_places(0)
        for number, home in map(np.ndarray.tolist, arrow.coded_array(numbers, homes)[1]):
            if names[home] is not None and str(number) in self.streams:
                facts = self.streams[str(number)]
                self.streams[str(number)] = replace(facts, partition=names[home])
        return {
            "device": arrow.nullable(device),
            "device_uuid": arrow.worded(device, uuids.get),
            "context": arrow.nullable(context),
            "green_context": arrow.nullable(green, green <= 0),
            "partition": arrow.text_column(homes, names),
            "stream": arrow.nullable(numbers),
        }

    @cached_property
    def _contexts(self) -> dict[tuple[Value, Value], Value]:
        """Process and context → parent context."""
        columns = ("processId", "contextId", "parentContextId")
        contexts = self.database.rows("TARGET_INFO_CUDA_CONTEXT_INFO", columns)
        return {(pid, context): parent for pid, context, parent in contexts}

    def _partition(self, global_pid: int, green: int) -> str | None:
        if green <= 0:
            return None
        pid = global_pid >> BITS & ID
        name = f"green context {green}"
        owner = self.partitions.get(name)
        if owner is not None and owner.process != pid:
            name = f"{name} of process {pid}"
        parent = self._contexts.get((pid, green))
        if name not in self.partitions:
            parent_context = parent if isinstance(parent, int) else None
            self.partitions[name] = PartitionFacts(
                context=green, process=pid, parent_context=parent_context
            )
        return name

    @cached_property
    def _stream_facts(self) -> dict[tuple[Value, Value], tuple[Value, Value]]:
        """Process and stream → priority and kind."""
        columns = ("processId", "streamId", "priority", "flag")
        streams = self.database.rows("TARGET_INFO_CUDA_STREAM", columns)
        return {(pid, stream): (priority, flag) for pid, stream, priority, flag in streams}

    def _stream(self, key: tuple[int, ...]) -> int:
        """Return the trace's number of a stream, which nsys numbers by process and context."""
        global_pid, device, context, stream = key
        if stream < 0:
            return NONE
        if key in self._numbers:
            return self._numbers[key]
        number = stream
        if str(number) in self.streams:
            number = _FOREIGN + len(self._numbers)
        self._numbers[key] = number
        pid = global_pid >> BITS & ID
        priority, flag = self._stream_facts.get((pid, stream), (None, None))
        home = "" if number == stream else f" of context {context} of process {pid}"
        self.streams[str(number)] = StreamFacts(
            name=f"stream {stream}{home}",
            priority=_signed(priority),
            device=f"cuda:{device}",
            legacy_default=flag == _NULL_STREAM,
            blocking=flag == _BLOCKING,
        )
        return number

    # -- enumerations ----------------------------------------------------------------------
    def words(self, table: str, prefix: str, usual: tuple[str, ...]) -> dict[int, str]:
        """Return number → word, as the file explains its numbers, else as ``usual`` has them."""
        ours = {word.lower(): word for word in usual}
        words = dict(enumerate(usual))
        for number, name in self.database.rows(table, ("id", "name")):
            if isinstance(name, str) and isinstance(number, int):
                word = name.removeprefix(prefix).lower().replace("_", " ")[:_LONGEST_FACT]
                words[number] = ours.get(word, word)
        return words


_BLOCKING, _NULL_STREAM = 1, 3


def _signed(number: object) -> int | None:
    """Return a priority, which is written as 32 bits without a sign; ``None`` if it is none."""
    if not isinstance(number, int) or not -1 << 31 <= number < 1 << 32:
        return None
    return number - (1 << 32) if number >= 1 << 31 else number


def _short_text(value: object) -> str | None:
    return value[:_LONGEST_FACT] if isinstance(value, str) else None


def _distinct(column: pa.ChunkedArray) -> set[int]:
    return set(column.unique().to_pylist())


def _plain(name: str, *, keep_private: bool) -> str:
    return (name if keep_private else public_text(name))[:_LONGEST_FACT]
