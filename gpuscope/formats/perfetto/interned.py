"""What packets refer to by numbers: names, texts, queues, contexts, kernels, counters, tracks."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from msgspec.structs import asdict

from gpuscope._types import Bools, Ints, Untyped
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

CLEARED, NEEDED = 1, 2
"""Flags of a packet: interned data begin; are needed."""
IN_SEQUENCE = {"trusted_packet_sequence_id": 1, "sequence_flags": NEEDED}
"""What packets have that refer to interned data: a file has one sequence."""
KERNELS, ARGUMENT_NAMES = 1000, 1001
"""Extensions of InternedData that the package perfetto does not have: gpu_interned_data.proto."""
REALTIME = 1
"""Number of Unix time among Perfetto's clocks."""

_UNITS = {SM_CLOCK: ["MEGAHERTZ"], POWER: ["WATT"]}
_AT_ONCE = 1 << 20
"""Bytes of interned data of one packet, if no entry is longer."""


def field(number: int, value: bytes) -> bytes:
    """Return a field of bytes that the package perfetto does not have, by its number.

    It is merged in as an unknown field: less than declaring an extension, and a later version of
    the package, which may have the field, reads the same bytes as its own.
    """
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    """Return a whole number, not negative, as protocol buffers have it."""
    low, rest = number & 127, number >> 7
    return bytes((low | 128,)) + varint(rest) if rest else bytes((low,))


class Interned:
    """Numbers from 1 for what packets refer to, table by table, and the packets that tell them."""

    def __init__(self, protos: Untyped) -> None:
        self.protos = protos
        self.packets: list[Untyped] = []
        self._count: dict[str | int, int] = {}
        self._room = 0

    def add(self, table: str | int, entry: Untyped) -> int:
        """Give an entry its number; the table is a field of InternedData, or its extension."""
        entry.iid = self._count[table] = self._count.get(table, 0) + 1
        size = entry.ByteSize()
        if size > self._room:
            self._room = _AT_ONCE
            self.packets.append(self.protos.TracePacket(**IN_SEQUENCE))
        self._room -= size
        data = self.packets[-1].interned_data
        if isinstance(table, int):
            data.MergeFromString(field(table, entry.SerializeToString()))
        else:
            getattr(data, table).append(entry)
        return int(entry.iid)

    def names(self, table: str | int, values: Sequence[str | None], kind: Untyped) -> Ints:
        """Return the number of each name, 0 for ``None``; ``kind`` is their message's class."""
        numbers = (0 if name is None else self.add(table, kind(name=name)) for name in values)
        return np.array([*numbers], np.int64)


def about(trace: Trace, protos: Untyped, lost_edges: int) -> Iterator[Untyped]:
    """Yield packets about the trace as a whole; the first begins the sequence."""
    facts = trace.metadata
    first = protos.TracePacket(first_packet_on_sequence=True, **IN_SEQUENCE)
    first.sequence_flags = CLEARED
    if facts.time_base == "unix":
        first.trace_packet_defaults.timestamp_clock_id = REALTIME
    yield first
    if facts.time_base == "unix":
        begin = int(trace.array("start_ns").min()) if len(trace) else 0
        clocks = [{"clock_id": REALTIME, "timestamp": begin}]
        snapshot = {"primary_trace_clock": REALTIME, "clocks": clocks}
        yield protos.TracePacket(clock_snapshot=snapshot)
    texts = {"writer": f"gpuscope {version()}", "metadata": facts.to_json()}
    texts |= {"incomplete": facts.incomplete, "forecast": facts.forecast}
    attributes: list[dict[str, object]] = [
        {"key": f"gpuscope.{name}", "string_value": text} for name, text in texts.items() if text
    ]
    attributes.append({"key": "gpuscope.edges_left_out", "long_value": lost_edges})
    yield protos.TracePacket(trace_attributes={"attribute": attributes})
    devices = {gpu.index: gpu for gpu in facts.devices.values() if gpu.index is not None}
    if devices:
        gpus = [_gpu(devices.get(at)) for at in range(max(devices) + 1)]
        yield protos.TracePacket(gpu_info={"gpus": gpus})


def _gpu(facts: DeviceFacts | None) -> dict[str, object]:
    if facts is None:
        return {}
    digits = re.sub("[^0-9a-f]", "", (facts.uuid or "").lower())
    count = [] if facts.sm_count is None else [{"key": "SMs", "value": str(facts.sm_count)}]
    return {
        "name": f"GPU {facts.index}" + (f" {facts.name}" if facts.name else ""),
        "uuid": bytes.fromhex(digits) if len(digits) == 32 else None,
        "extra_info": count,
    }


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
    processes = np.unique(process[process != NONE])
    if len(processes) == 1:
        process[:] = processes[0]
    numbers = np.zeros(len(trace), np.int64)
    columns = [trace.array(name, fill=NONE) for name in ("device", "context", "green_context")]
    columns.append(codes(trace.spans.column("partition"))[0])
    code, distinct = arrow.coded_array(*(column[is_work] for column in (process, *columns)))
    made = []
    for pid, *_ in distinct.tolist():
        entry = protos.InternedGraphicsContext(api="CUDA", pid=pid if fits(pid) else None)
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
    for gpu in np.unique(device).tolist():
        entry = protos.InternedGpuCounterDescriptor(gpu_id=gpu)
        for code in np.unique(name[device == gpu]).tolist():
            entry.counter_descriptor.specs.add(
                counter_id=code,
                name=texts[code],
                value_direction="VALUE_DIRECTION_FORWARDS_LOOKING",  # a sample holds from then on
                numerator_units=_UNITS.get(texts[code]),
            )
        numbers[device == gpu] = interned.add("gpu_counter_descriptors", entry)
    return numbers


# -- tracks of threads, and what is on none --------------------------------------------------
class OtherTracks:
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
        self.packets: list[Untyped] = []

    def _add(self, parent: int = 0, name: str = "", **facts: object) -> int:
        self._count += 1
        described = self._protos.TrackDescriptor(
            uuid=self.base + self._count, parent_uuid=parent or None, name=name or None, **facts
        )
        self.packets.append(self._protos.TracePacket(track_descriptor=described))
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

    def hazards(self, ids: Ints, starts: Ints) -> Iterator[Untyped]:
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
            name = f"{fact.kind}: {fact.first_name} → {fact.second_name}"
            event = self._protos.TrackEvent(
                type="TYPE_INSTANT", track_uuid=track, name=name, categories=["hazard"]
            )
            for name, value in asdict(fact).items():
                if isinstance(value, int):
                    event.debug_annotations.add(name=name, int_value=value)
                elif value:
                    event.debug_annotations.add(name=name, string_value=value)
            yield self._protos.TracePacket(
                timestamp=int(starts[row]), track_event=event, **IN_SEQUENCE
            )
