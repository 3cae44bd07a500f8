"""Where work ran: CUPTI's numbers of contexts and streams as our streams and partitions."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa

from gpuscope._types import Array, Ints, Untyped
from gpuscope.device import foreign
from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.device.foreign import NamedPartition
from gpuscope.device.handles import HasCudaStream, raw_handle
from gpuscope.device.owner import Owner
from gpuscope.device.stream import Stream
from gpuscope.device.views import PartitionView, StreamView
from gpuscope.errors import GpuscopeError
from gpuscope.record.cupti import layout
from gpuscope.record.cupti.tables import Column, Columns
from gpuscope.record.facts import info_facts, stream_facts
from gpuscope.record.rows import partition_name
from gpuscope.trace import arrow
from gpuscope.trace.arrow import NONE
from gpuscope.trace.facts import DeviceFacts, StreamFacts

FOREIGN_STREAM = 1_000_000_000
"""Streams that are none of ours are numbered from here, by context and CUPTI's number."""
_STREAMS = 1_000_000
_BLOCKING = 1
_NULL = 3
"""Of ``CUpti_ActivityStreamFlag``: ..._FLAG_DEFAULT, which waits for the null stream, and that."""
PER_THREAD_DEFAULT = 2
"""CUDA's handle of the per-thread default stream, another stream on each thread."""


@dataclass(eq=False)
class Known:
    """What is known of CUPTI's numbers; gives columns of work.

    Attributes
    ----------
    uuids
        Index of a device → its UUID.
    streams
        Stream of the trace → facts, for every stream that work ran on.
    green
        Number of each green context → its SMs, 0 where CUPTI has not told.
    stream_flags
        CUPTI's numbers of context and stream → its ``CUpti_ActivityStreamFlag``.
    learned
        How often something was learned.
    numbers
        CUPTI's numbers of context and stream → our stream; ``facts`` has these streams' facts.
    names
        Context → since when it is which partition, in order.
    partition_of_handle
        Handle of a stream → its partition.
    """

    uuids: dict[int, str | None] = field(default_factory=dict)
    streams: dict[int, StreamFacts] = field(default_factory=dict)
    green: dict[int, int] = field(default_factory=dict)
    stream_flags: dict[tuple[int, int], int] = field(default_factory=dict)
    learned: int = 0
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    facts: dict[int, StreamFacts] = field(default_factory=dict)
    names: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    partition_of_handle: dict[int, str | None] = field(default_factory=dict)

    def copy(self) -> Known:
        """Return what is known by now, for another process."""
        numbers, facts = self.numbers.copy(), self.facts.copy()
        # The facts of a stream that is being learned may not be there yet.
        numbers = {at: ours for at, ours in numbers.items() if ours in facts}
        names = {context: names.copy() for context, names in self.names.copy().items()}
        flags = self.stream_flags.copy()
        return Known(self.uuids, {}, self.green.copy(), flags, 0, numbers, facts, names)

    def update(self, other: Known) -> None:
        """Take what another has learned by now."""
        read = {name: vars(self)[name] | vars(other)[name] for name in ("green", "stream_flags")}
        vars(self).update({**vars(other), "streams": self.streams, **read})

    def take(self, records: dict[int, Columns]) -> None:
        """Learn what CUPTI's records of contexts and streams tell, by their kind."""
        if contexts := records.get(layout.CONTEXT):
            is_green = contexts["is_green"] != 0
            columns = (contexts[name][is_green].tolist() for name in ("context", "sm_count"))
            self.green |= dict(zip(*columns, strict=True))
        if streams := records.get(layout.STREAM):
            context, stream, flag = (
                streams[name].tolist() for name in ("context", "stream", "flag")
            )
            self.stream_flags |= dict(zip(zip(context, stream, strict=True), flag, strict=True))

    def partition_of(self, stream: object) -> str | None:
        """Return the partition of a stream that a guard selected."""
        if isinstance(stream, Stream):
            return partition_name(stream)
        try:
            return self.partition_of_handle.get(raw_handle(cast("HasCudaStream | int", stream)))
        except Exception:  # noqa: BLE001 - a foreign stream that is gone
            return None

    def columns(self, work: Columns, launched: Ints) -> dict[str, Column]:
        """Return device, stream, partition and green context of each piece of work.

        Parameters
        ----------
        launched
            When each was launched, Unix ns.
        """
        contexts = work["context"].astype(np.int64)
        codes, distinct = arrow.coded(contexts)
        devices, numbers = arrow.coded(work["device"])
        columns: dict[str, Column] = {
            "device_uuid": arrow.text_column(devices, map(self.uuid, numbers)),
            "stream": self.streams_of(work),
            "partition": self._partitions_at(codes, distinct, launched),
        }
        green = np.array([context in self.green for context in distinct], bool)[codes]
        if green.any():
            columns["green_context"] = arrow.nullable(contexts, ~green)
        return columns

    def uuid(self, index: int) -> str | None:
        """Return the UUID of a GPU, if it is known."""
        return self.uuids.get(index)

    def streams_of(self, work: Columns) -> Ints:
        """Return our number of each stream; one that is none of ours has CUPTI's, moved up."""
        both = work["context"].astype(np.int64) << 32 | work["stream"].astype(np.int64)
        codes, distinct = arrow.coded(both)
        numbers = []
        for packed in distinct:
            context, stream = packed >> 32, packed & 0xFFFFFFFF
            number = self.numbers.get((context, stream))
            if number is None:
                number = FOREIGN_STREAM + context * _STREAMS + stream
                names = self.names.get(context)
                sms = None if names else self.green.get(context)
                home = "context" if sms is None else "green context"
                size = f" ({sms} SMs)" if sms else ""
                flag = self.stream_flags.get((context, stream))
                self.streams[number] = StreamFacts(
                    name=f"stream {stream} of {home} {context}{size}",
                    partition=names[-1][1] if names else None,
                    legacy_default=flag == _NULL,
                    blocking=flag == _BLOCKING,
                )
            else:
                self.streams[number] = self.facts[number]
            numbers.append(number)
        return np.array(numbers, np.int64)[codes]

    def _partitions_at(self, codes: Array, contexts: list[int], launched: Ints) -> pa.Array:
        texts: list[str] = []
        text_codes = np.full(len(codes), NONE, np.int64)
        for number, context in enumerate(contexts):  # it may have been carved again
            names = self.names.get(context, [])
            of_number = codes == number
            begins = np.array([since for since, _ in names], np.int64)
            at = np.searchsorted(begins, launched[of_number], "right") - 1
            text_codes[of_number] = np.where(at >= 0, len(texts) + at, NONE)
            texts += [name for _, name in names]
        return arrow.text_column(text_codes, texts)


class PlaceNumbers(Known):
    """Learns CUPTI's numbers while streams and partitions are alive.

    Parameters
    ----------
    devices
        Open devices, whose partitions and streams have names; may be none.
    library
        Gives the numbers.

    Attributes
    ----------
    devices
        Key → what the driver says of a GPU that was not open when work of it was first read.
    partitions
        Name → the first partition of that name that was seen.
    contexts
        Name of a partition → CUPTI's number of its context.
    """

    def __init__(self, devices: tuple[Device, ...], library: Untyped) -> None:
        super().__init__()
        self._devices: list[Device] = []
        for device in devices:
            self.add(device)
        self._library = library
        self.devices: dict[str, DeviceFacts] = {}
        self.partitions: dict[str, PartitionView | NamedPartition] = {}
        self.contexts: dict[str, int] = {}
        self._learned_streams: set[tuple[str, int, int]] = set()
        self._learned_partitions: dict[int, PartitionView] = {}
        self._learned_names: dict[int, NamedPartition] = {}

    def add(self, device: Device) -> None:
        """Learn of a device too that was opened since."""
        self.uuids[device.info.index] = device.info.uuid
        self._devices.append(device)

    def uuid(self, index: int) -> str | None:
        """Ask the driver about a GPU that nobody opened through us, as of a recorded program."""
        if index not in self.uuids:
            self.uuids[index] = None
            with contextlib.suppress(GpuscopeError, OSError, AttributeError):
                facts = info_facts(self._library.device_info(index))
                self.devices[f"cuda:{index}"] = facts
                self.uuids[index] = facts.uuid
            self.learned += 1
        return self.uuids[index]

    # -- while it records -------------------------------------------------------------
    def meet(self, call: Call, stream: StreamView[object]) -> None:
        """Look at a stream of a call while it is alive."""
        if not stream.closed:
            thread = call.thread if stream.handle == PER_THREAD_DEFAULT else 0
            key = (call.device_key, stream.id, thread)
            if key not in self._learned_streams:
                self.learn(stream)
                self._learned_streams.add(key)

    def learn(self, stream: object) -> None:
        """Find CUPTI's numbers for a stream of ours, and for its partition's context."""
        if not isinstance(stream, Stream) or stream.closed or stream.device.info.kind != "cuda":
            return
        partition = stream.partition
        raw = partition.raw if partition is not None else None
        context = stream.device.backend.context_handle(raw)
        per_thread = stream.handle == PER_THREAD_DEFAULT
        handle = 0 if per_thread else stream.handle
        try:
            number = self._library.context_id(context)
            cupti_numbers = number, self._library.stream_id(context, handle, per_thread=per_thread)
            self.numbers[cupti_numbers] = stream.id
        except Exception:  # noqa: BLE001 - closed meanwhile: its work has CUPTI's numbers only
            return
        self.partition_of_handle[stream.handle] = partition_name(stream)
        self.facts[stream.id] = stream_facts(stream)
        self.learned += 1
        if partition is not None:
            self._learn_partition(partition)

    def _learn_partition(self, partition: PartitionView) -> None:
        if id(partition) in self._learned_partitions or partition.closed:
            return
        handle = cast("Owner", partition.device).backend.context_handle(partition.raw)
        number = self._library.context_id(handle)
        names = self.names.setdefault(number, [])
        names.append((time.time_ns() if names else 0, partition.name))
        self.green.setdefault(number, partition.sm_count)
        self.contexts[partition.name] = number
        self.partitions.setdefault(partition.name, partition)
        self.learned += 1
        self._learned_partitions[id(partition)] = partition  # held, so that its id stays its own

    def _learn_name(self, partition: NamedPartition) -> None:
        """Find CUPTI's number of a partition of another library that has a name."""
        try:
            number = self._library.context_id(partition.context)
        except Exception:  # noqa: BLE001 - its owner has closed it
            return
        self.names[number] = [(0, partition.name)]
        self.green.setdefault(number, partition.sm_count)
        self.contexts[partition.name] = number
        self.partitions[partition.name] = partition
        if partition.stream:
            self.partition_of_handle[partition.stream] = partition.name
        self.learned += 1

    def learn_all(self) -> None:
        """Look at what is alive: other libraries launch there without telling us."""
        for context, named in list(foreign.NAMED.items()):
            if self._learned_names.get(context) is not named:
                self._learned_names[context] = named
                self._learn_name(named)
        for device in self._devices:
            if device.info.kind != "cuda":
                continue
            for partition in device.partitions:
                self._learn_partition(partition)
            for stream in device.streams:
                key = (device.info.key, stream.id, 0)
                if key not in self._learned_streams and stream.handle != PER_THREAD_DEFAULT:
                    self.learn(stream)
                    self._learned_streams.add(key)
