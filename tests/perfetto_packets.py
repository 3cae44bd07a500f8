"""Perfetto's traces as its own protos decode them, by the rules of its reader."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from gpuscope.formats.perfetto import interned, write

CLEARED, NEEDED = 1, 2
TABLES = ("event_names", "event_categories", "debug_annotation_names", "gpu_specifications",
          "graphics_contexts", "gpu_counter_descriptors", "debug_annotation_string_values")  # fmt: skip


@dataclass
class Decoded:
    """What a file says: by id, as far as rows have one."""

    stages: dict = field(default_factory=dict)
    slices: dict = field(default_factory=dict)
    instants: dict = field(default_factory=dict)
    samples: list = field(default_factory=list)
    waits: list = field(default_factory=list)
    submitted: list = field(default_factory=list)
    waited: list = field(default_factory=list)
    flows: dict = field(default_factory=lambda: defaultdict(lambda: [None, None]))
    tracks: dict = field(default_factory=dict)
    attributes: dict = field(default_factory=dict)
    hazards: list = field(default_factory=list)
    gpus: list = field(default_factory=list)


def unknown(message, number):
    """Return the fields of a number that the package's protos lack."""
    return [one.data for one in UnknownFieldSet(message) if one.field_number == number]


def decoded(data):
    """Decode a file."""
    reader = _Reader()
    for packet in protos.Trace.FromString(data).packet:
        reader.take(packet)
    assert not any(reader.open_slices.values()) or reader.never_closed()
    return reader.result


class _Reader:
    def __init__(self):
        self.result = Decoded()
        self.interned = {table: {} for table in (*TABLES, "kernels", "argument_names")}
        self.clock = None
        self.cleared = False
        self.open_slices = defaultdict(list)
        self.latest = -1
        self.readers = {}

    def never_closed(self):
        return all(
            self.result.slices[number][1] is None
            for numbers in self.open_slices.values() for number in numbers
        )  # fmt: skip

    def take(self, packet):
        if packet.sequence_flags & CLEARED:
            assert packet.first_packet_on_sequence
            self.cleared = True
            self.clock = packet.trace_packet_defaults.timestamp_clock_id
        if packet.sequence_flags & NEEDED:
            assert self.cleared
            assert packet.trusted_packet_sequence_id
        kind = packet.WhichOneof("data")
        if packet.HasField("interned_data"):
            self.intern(packet.interned_data)
        elif kind == "clock_snapshot":
            clocks = packet.clock_snapshot.clocks
            assert [one.clock_id for one in clocks] == [packet.clock_snapshot.primary_trace_clock]
            assert packet.clock_snapshot.primary_trace_clock == self.clock
        elif kind == "track_descriptor":
            described = packet.track_descriptor
            assert described.uuid not in self.result.tracks
            assert not described.parent_uuid or described.parent_uuid in self.result.tracks
            self.result.tracks[described.uuid] = described
        elif kind == "trace_attributes":
            for one in packet.trace_attributes.attribute:
                self.result.attributes[one.key] = getattr(one, one.WhichOneof("value"))
        elif kind == "gpu_info":
            self.result.gpus = [*packet.gpu_info.gpus]
        elif packet.HasField("timestamp"):
            assert packet.sequence_flags & NEEDED
            getattr(self, f"take_{kind}")(packet.timestamp, getattr(packet, kind))
        else:
            assert packet.first_packet_on_sequence, packet

    def intern(self, data):
        for table in TABLES:
            for entry in getattr(data, table):
                assert entry.iid not in self.interned[table]
                self.interned[table][entry.iid] = entry
        for table, number, kind in (
            ("kernels", interned.KERNELS, protos.InternedComputeKernel),
            ("argument_names", interned.ARGUMENT_NAMES, protos.InternedComputeArgName),
        ):
            for line in unknown(data, number):
                entry = kind.FromString(line)
                self.interned[table][entry.iid] = entry

    def in_order(self, at):
        assert at >= self.latest
        self.latest = at

    def take_gpu_render_stage_event(self, at, event):
        self.in_order(at)
        found = {one.name: one.value for one in event.extra_data}
        kernel = self.interned["kernels"][event.kernel_iid] if event.kernel_iid else None
        launch = None
        if event.HasField("launch"):
            grid, block = event.launch.grid_size, event.launch.workgroup_size
            names = self.interned["argument_names"]
            launch = {names[one.name_iid].name: one.int_value for one in event.launch.args}
            launch |= {"grid": [grid.x, grid.y, grid.z], "block": [block.x, block.y, block.z]}
        assert event.event_id not in self.result.stages
        self.result.stages[event.event_id] = {
            "start": at,
            "end": at + event.duration if event.HasField("duration") else None,
            "name": self.event_name(event),
            "stage": self.interned["gpu_specifications"][event.stage_iid],
            "queue": self.interned["gpu_specifications"][event.hw_queue_iid],
            "context": (event.context, self.interned["graphics_contexts"][event.context]),
            "gpu": event.gpu_id if event.HasField("gpu_id") else None,
            "kernel": kernel,
            "launch": launch,
            "extra": found,
        }
        self.result.waits += [(one, event.event_id) for one in event.event_wait_ids]
        if event.event_wait_ids:
            kinds = found[write.WAIT_KINDS].split(", ")
            assert len(kinds) == len(event.event_wait_ids)

    def take_gpu_counter_event(self, at, event):
        self.in_order(at)
        described = self.interned["gpu_counter_descriptors"][event.counter_descriptor_iid]
        specs = {one.counter_id: one for one in described.counter_descriptor.specs}
        for one in event.counters:
            spec = specs[one.counter_id]
            units = [
                protos.GpuCounterDescriptor.MeasureUnit.Name(unit) for unit in spec.numerator_units
            ]
            self.result.samples.append((at, one.double_value, spec.name, described.gpu_id, units))

    def take_track_event(self, at, event):
        track = self.result.tracks[event.track_uuid]
        kind = protos.TrackEvent.Type.Name(event.type)
        if kind == "TYPE_INSTANT" and event.name:
            notes = {
                one.name: getattr(one, one.WhichOneof("value")) for one in event.debug_annotations
            }
            self.result.hazards.append((at, event.name, notes, track.name))
            return
        self.in_order(at)
        if kind == "TYPE_COUNTER":
            self.result.samples.append((at, event.double_counter_value, track.name, None, []))
            return
        if kind == "TYPE_SLICE_END":
            number = self.open_slices[event.track_uuid].pop()
            assert self.result.slices[number][1] is None
            self.result.slices[number][1] = at
            return
        notes = {self.interned["debug_annotation_names"][one.name_iid].name: self.note(one)
                 for one in event.debug_annotations}  # fmt: skip
        name = self.event_name(event)
        (category,) = (self.interned["event_categories"][iid].name for iid in event.category_iids)
        number = notes["id"]
        if kind == "TYPE_SLICE_BEGIN":
            self.result.slices[number] = [at, None, name, category, event.track_uuid, notes]
            self.open_slices[event.track_uuid].append(number)
        else:
            assert kind == "TYPE_INSTANT"
            self.result.instants[number] = [at, name, category, event.track_uuid, notes]
        for flow in event.flow_ids:
            assert self.result.flows[flow][0] is None
            self.result.flows[flow][0] = number
        for flow in event.terminating_flow_ids:
            assert self.result.flows[flow][1] is None
            self.result.flows[flow][1] = number
        for line in unknown(event, write.CORRELATION):
            for field_number, value in varint_fields(line):
                edges = (
                    self.result.submitted if field_number == write.SUBMITTED else self.result.waited
                )
                edges.append((number, value))

    def event_name(self, event):
        """Return a name; Perfetto refuses an entry that is read as two kinds of messages."""
        kind = self.readers.setdefault(event.name_iid, type(event))
        assert kind is type(event)
        return self.interned["event_names"][event.name_iid].name

    def note(self, one):
        kind = one.WhichOneof("value")
        if kind == "string_value_iid":
            return self.interned["debug_annotation_string_values"][
                one.string_value_iid
            ].str.decode()
        value = getattr(one, kind)
        return None if isinstance(value, float) and math.isnan(value) else value


def varint_fields(line):
    """Yield number and value of the fields of a message that has varints alone."""
    numbers, value, shift = [], 0, 0
    for byte in line:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    for begin, number in zip(numbers[::2], numbers[1::2], strict=True):
        assert begin & 7 == 0
        yield begin >> 3, number
