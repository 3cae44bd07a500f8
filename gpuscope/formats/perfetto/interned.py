"""What packets refer to by numbers: names, texts, queues, contexts, kernels, counters, tracks."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from msgspec.structs import asdict

from gpuscope._types import Bools, Ints, Untyped
from gpuscope.formats.perfetto import wire
from gpuscope.formats.progress import version
from gpuscope.formats.tracks import fits, names, partition_name, rank_of
from gpuscope.trace import arrow
from gpuscope.trace.arrow import NONE
from gpuscope.trace.columns import codes, launch_calls
from gpuscope.trace.facts import DeviceFacts, HazardFacts
from gpuscope.trace.gpu_states import POWER, SM_CLOCK
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import Group, TrackKey

SEQUENCE = 1
"""The one sequence of packets of a file."""
CLEARED, NEEDED = 1, 2
"""Flags of a packet: interned data begin; are needed."""
KERNELS, ARGUMENT_NAMES = 1000, 1001
"""Extensions of InternedData that the package perfetto does not have: gpu_interned_data.proto."""
REALTIME = 1
"""Number of Unix time among Perfetto's clocks."""

_UNITS = {SM_CLOCK: "MEGAHERTZ", POWER: "WATT"}
_AT_ONCE = 1 << 20
"""Bytes of interned data of one packet, if no entry is longer."""


class Interned:
    """Numbers from 1 for what packets refer to, table by table, and the packets that tell them."""

    def __init__(self, protos: Untyped) -> None:
        self.protos = protos
        self._count: dict[str | int, int] = {}
        self._entries: list[bytes] = []

    def add(self, table: str | int, entry: Untyped) -> int:
        """Give an entry its number; the table is a field of InternedData, or its extension."""
        entry.iid = self._count[table] = self._count.get(table, 0) + 1
        kind = self.protos.InternedData
        begin = wire.extension(table) if isinstance(table, int) else wire.key(kind, table)
        self._entries.append(wire.field(begin, entry.SerializeToString()))
        return int(entry.iid)

    def texts(self, table: str, values: Sequence[str | None], kind: Untyped) -> Ints:
        """Return the number of each text, 0 for ``None``; ``kind`` is their message's class."""
        is_string = kind is self.protos.InternedString
        return np.array(
            [
                0 if text is None
                else self.add(table, kind(str=text.encode()) if is_string else kind(name=text))
                for text in values
            ],
            np.int64,
        )  # fmt: skip

    def packets(self) -> Iterator[bytes]:
        """Yield packets that tell all entries."""
        data, kind = bytearray(), self.protos.TracePacket
        begin = wire.key(kind, "interned_data")
        sequence = packet_end(kind, NEEDED)
        for entry in self._entries:
            if data and len(data) + len(entry) > _AT_ONCE:
                yield wire.field(begin, bytes(data)) + sequence
                data.clear()
            data += entry
        yield wire.field(begin, bytes(data)) + sequence


def packet_end(kind: Untyped, flags: int) -> bytes:
    """Return what all packets of the sequence have."""
    number = wire.key(kind, "trusted_packet_sequence_id") + wire.varint(SEQUENCE)
    return number + wire.key(kind, "sequence_flags") + wire.varint(flags)


def about(trace: Trace, protos: Untyped, lost_edges: int) -> Iterator[bytes]:
    """Yield packets about the trace as a whole; the first begins the sequence."""
    facts = trace.metadata
    first = protos.TracePacket(first_packet_on_sequence=True)
    first.trusted_packet_sequence_id, first.sequence_flags = SEQUENCE, CLEARED
    if facts.time_base == "unix":
        first.trace_packet_defaults.timestamp_clock_id = REALTIME
    yield first.SerializeToString()
    if facts.time_base == "unix":
        begin = int(trace.array("start_ns").min()) if len(trace) else 0
        clocks = protos.ClockSnapshot(primary_trace_clock=REALTIME)
        clocks.clocks.add(clock_id=REALTIME, timestamp=begin)
        yield protos.TracePacket(clock_snapshot=clocks).SerializeToString()
    attributes = protos.TraceAttributes()
    texts = {"writer": f"gpuscope {version()}", "metadata": facts.to_json()}
    texts |= {"incomplete": facts.incomplete, "forecast": facts.forecast}
    for name, text in texts.items():
        if text:
            attributes.attribute.add(key=f"gpuscope.{name}", string_value=text)
    attributes.attribute.add(key="gpuscope.edges_left_out", long_value=lost_edges)
    yield protos.TracePacket(trace_attributes=attributes).SerializeToString()
    devices = {gpu.index: gpu for gpu in facts.devices.values() if gpu.index is not None}
    if devices:
        gpus = [_gpu(devices.get(at), protos) for at in range(max(devices) + 1)]
        info = protos.GpuInfo(gpus=gpus)
        yield protos.TracePacket(gpu_info=info).SerializeToString()


def _gpu(facts: DeviceFacts | None, protos: Untyped) -> Untyped:
    gpu = protos.GpuInfo.Gpu()
    if facts is None:
        return gpu
    gpu.name = f"GPU {facts.index}" + (f" {facts.name}" if facts.name else "")
    digits = re.sub("[^0-9a-f]", "", (facts.uuid or "").lower())
    if len(digits) == 32:
        gpu.uuid = bytes.fromhex(digits)
    if facts.sm_count is not None:
        gpu.extra_info.add(key="SMs", value=str(facts.sm_count))
    return gpu


# -- queues, contexts, counters of GPUs ------------------------------------------------------
def queue(track: TrackKey, lane: int, trace: Trace, interned: Interned) -> int:
    """Return the number of a hardware queue: the rows of a stream in a partition that nest."""
    rank = rank_of(track, trace)
    parts = [f"rank {rank.rank}"] if rank is not None else []
    if track.partition is not None:
        parts.append(partition_name(track.partition, trace))
    parts.append(trace.stream_name(track.stream))
    name = " · ".join(parts) + (f" ({lane + 1})" if lane else "")
    described = " · ".join(names(track, trace))
    entry = interned.protos.InternedGpuRenderStageSpecification(name=name, description=described)
    return interned.add("gpu_specifications", entry)


def contexts(trace: Trace, is_work: Bools, interned: Interned) -> Ints:
    """Return row → number of its context, 0 for what is no work of a GPU.

    There is one of each partition, context and green context of a process.
    """
    protos = interned.protos
    process = trace.array("process", fill=NONE).astype(np.int64)
    calls = launch_calls(trace)
    process = np.where(process == NONE, arrow.picked(process, calls), process)
    known = np.unique(process[process != NONE])
    if len(known) == 1:
        process[:] = known[0]
    numbers = np.zeros(len(trace), np.int64)
    columns = [trace.array(name, fill=NONE) for name in ("device", "context", "green_context")]
    columns.append(codes(trace.spans.column("partition"))[0])
    code, distinct = arrow.coded_array(*(column[is_work] for column in (process, *columns)))
    made = []
    for pid, *_ in distinct.tolist():
        entry = protos.InternedGraphicsContext(api=protos.InternedGraphicsContext.CUDA)
        if fits(pid):
            entry.pid = pid
        made.append(interned.add("graphics_contexts", entry))
    numbers[is_work] = np.array(made, np.int64)[code]
    return numbers


def counters(device: Ints, name: Ints, texts: Sequence[str], interned: Interned) -> Ints:
    """Return the number of the counters' description of each sample: one a GPU.

    Parameters
    ----------
    device, name
        Sample → its GPU; code of its counter's name, which is its number there.
    """
    protos, numbers = interned.protos, np.zeros(len(device), np.int64)
    described = protos.GpuCounterDescriptor
    for gpu in np.unique(device).tolist():
        entry = protos.InternedGpuCounterDescriptor(gpu_id=gpu)
        for code in np.unique(name[device == gpu]).tolist():
            text = texts[code]
            spec = entry.counter_descriptor.specs.add(counter_id=code, name=text)
            # A sample holds from its time on.
            spec.value_direction = described.GpuCounterSpec.VALUE_DIRECTION_FORWARDS_LOOKING
            if text in _UNITS:
                spec.numerator_units.append(described.MeasureUnit.Value(_UNITS[text]))
        numbers[device == gpu] = interned.add("gpu_counter_descriptors", entry)
    return numbers


# -- tracks of threads, and what is on none --------------------------------------------------
class Tracks:
    """Tracks of what is no stream of a GPU: threads, handles, SMs, counters, hazards."""

    def __init__(self, trace: Trace, protos: Untyped) -> None:
        self._trace, self._protos = trace, protos
        ranks = trace.metadata.ranks
        # Numbers of tracks and arrows differ between the files of an archive.
        self.base = (ranks[0].rank + 1 if len(ranks) == 1 else 0) << 32
        self._count = 0
        self._owners: dict[tuple[bool, Hashable], int] = {}
        self._rows: dict[TrackKey, int] = {}
        self._threads: set[tuple[int, int]] = set()
        self.packets: list[bytes] = []

    def _add(self, parent: int = 0, name: str = "", **facts: object) -> int:
        self._count += 1
        described = self._protos.TrackDescriptor(uuid=self.base + self._count, **facts)
        if parent:
            described.parent_uuid = parent
        if name:
            described.name = name
        self.packets.append(
            self._protos.TracePacket(track_descriptor=described).SerializeToString()
        )
        return self.base + self._count

    def _owner(self, track: TrackKey) -> int:
        """Return the track of a process, rank or GPU."""
        trace = self._trace
        is_host = not track.is_device or rank_of(track, trace) is not None
        name = names(track, trace)[0]
        identity = (is_host, track.process if is_host else name)
        if identity in self._owners:
            return self._owners[identity]
        if is_host and fits(track.process):
            process = self._protos.ProcessDescriptor(pid=track.process, process_name=name)
            facts = trace.metadata
            process.process_labels.extend(filter(None, [facts.forecast, facts.incomplete]))
            number = self._add(process=process)
        else:
            number = self._add(name=name)
        self._owners[identity] = number
        return number

    def of(self, track: TrackKey, lane: int) -> int:
        """Return the number of a track's lane; lane 0 comes before its others."""
        name = names(track, self._trace)[1]
        if lane and track in self._rows:
            return self._add(self._rows[track], name)
        owner = self._owner(track)
        pid, tid = track.process, track.thread
        is_row = track.group == Group.THREAD and not lane
        if is_row and fits(pid) and fits(tid) and (pid, tid) not in self._threads:
            self._threads.add((pid, tid))
            thread = self._protos.ThreadDescriptor(pid=pid, tid=tid, thread_name=name)
            self._rows[track] = self._add(owner, thread=thread)
        else:
            self._rows[track] = self._add(owner, name)
        return self._rows[track]

    def counter(self, track: TrackKey, name: str) -> int:
        """Return the number of a counter's track."""
        return self._add(self._owner(track), name, counter=self._protos.CounterDescriptor())

    def hazards(self, ids: Ints, starts: Ints) -> Iterator[bytes]:
        """Yield an instant of each hazard where its second work begins, or else its first.

        Parameters
        ----------
        ids, starts
            Row → its id, and when it begins.
        """
        hazards, track = (self._trace.metadata.hazards or HazardFacts()).found, 0
        works = [fact.first if fact.second is None else fact.second for fact in hazards]
        rows = match(np.array([NONE if work is None else work for work in works], np.int64), ids)
        for fact, row in zip(hazards, rows.tolist(), strict=True):
            if row == NONE:
                continue
            track = track or self._add(name="hazards")
            event = self._protos.TrackEvent(type="TYPE_INSTANT", track_uuid=track)
            event.name = f"{fact.kind}: {fact.first_name} → {fact.second_name}"
            event.categories.append("hazard")
            for name, value in asdict(fact).items():
                if isinstance(value, int):
                    event.debug_annotations.add(name=name, int_value=value)
                elif value:
                    event.debug_annotations.add(name=name, string_value=value)
            packet = self._protos.TracePacket(timestamp=int(starts[row]), track_event=event)
            packet.trusted_packet_sequence_id, packet.sequence_flags = SEQUENCE, NEEDED
            yield packet.SerializeToString()
