"""Perfetto's protobuf: work of GPUs as render stages, all else as track events; times in ns.

A stream of a partition is a hardware queue, a partition of a process a context. A render stage has
its row's id, the kernel and the launch configuration; ``event_wait_ids`` are the rows that edges
lead from, if they are render stages too. What a track event submitted, or waited for, is its
``gpu_correlation``; an edge between two track events is a flow. Names are interned.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._types import Bools, Ints
from gpuscope.formats.nsight.values import NOTHING, config
from gpuscope.formats.perfetto import wire
from gpuscope.formats.perfetto.interned import (
    ARGUMENT_NAMES,
    KERNELS,
    NEEDED,
    Interned,
    Tracks,
    about,
    packet_end,
)
from gpuscope.formats.perfetto.plan import COUNTER, GPU_COUNTER, INSTANT, SLICE, STAGE, Plan
from gpuscope.formats.perfetto.wire import Pieces, extension, field, joined, key, message
from gpuscope.formats.progress import Step, check_count
from gpuscope.formats.tracks import OPEN
from gpuscope.trace import arrow, schema
from gpuscope.trace.columns import codes
from gpuscope.trace.model import Trace

CORRELATION = 3000
"""Extension of TrackEvent that the package perfetto does not have: gpu_track_event.proto."""
SUBMITTED, WAITED = 1, 2
"""Its fields: the render stages that a track event submitted, and those that it waited for."""
WAIT_KINDS = "event_wait_kinds"
"""Argument of a render stage: the kinds of its edges, in the order of ``event_wait_ids``."""

_SHARED = ("kind", "name", "start_ns", "end_ns", "host", "device_uuid")
_OF_STAGES = (*_SHARED, "device")
_OF_EVENTS = (*_SHARED, "process", "thread")
"""Columns that an event tells without arguments, and what the metadata knows."""
_LAUNCH = ("registers_per_thread", "shared_mem_static", "shared_mem_dynamic")
"""Perfetto's names of the last numbers of a launch configuration."""
_ROWS = 1 << 15
_BYTES = 1 << 28


def write_perfetto(trace: Trace, path: Path, step: Step) -> None:
    """Write a trace as Perfetto's protobuf.

    Raises
    ------
    ExportError
        What stands in the file is not what the trace holds.
    MissingDependency
        The package perfetto is absent.
    """
    packets = _Packets(trace)
    with path.open("wb") as file:
        for packet in packets.head:
            file.write(field(packets.begin, packet))
        for lines, rows in packets.chunks():
            file.write(lines)
            step(rows)
    check_count(path, "packets", packets.count, wire.count_packets(path))


class _Packets:
    """The packets of a trace: what is referred to, then rows and ends of slices by time."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.protos = protos = wire.protos()
        self.begin = key(protos.Trace, "packet")
        self.time = key(protos.TracePacket, "timestamp")
        self.sequence = packet_end(protos.TracePacket, NEEDED)
        self.interned, tracks = Interned(protos), Tracks(trace, protos)
        self.plan = Plan(trace, self.interned, tracks)
        self.ids = trace.array("id")
        self.device = trace.array("device", fill=arrow.NONE)
        self._names()
        self._launches()
        self._texts()
        hazards = [*tracks.hazards(self.ids, self.plan.starts)]  # which may add their track
        self.head = [
            *about(trace, protos, self.plan.lost_edges),
            *self.interned.packets(),
            *tracks.packets,
            *hazards,
        ]
        self.count = len(self.head) + len(self.plan.event)

    def _names(self) -> None:
        """Intern names, stages, categories, and the names of kernels as kernels."""
        plan, spans, protos = self.plan, self.trace.spans, self.protos
        self.name = np.zeros(len(plan.what), np.int64)
        # Perfetto reads an entry as one kind of message: none is for stages and track events.
        for rows in (np.flatnonzero(plan.what == what) for what in (STAGE, SLICE, INSTANT)):
            used, code = np.unique(plan.name[rows], return_inverse=True)
            names = [plan.texts[at] for at in used.tolist()]
            self.name[rows] = self.interned.texts("event_names", names, protos.EventName)[code]
        kind, kinds = codes(spans.column("kind"))
        categories = self.interned.texts("event_categories", kinds, protos.EventCategory)
        self.category = categories[kind]
        direction, directions = codes(spans.column("copy_kind"))
        code, distinct = arrow.coded_array(kind, direction)
        stage = protos.InternedGpuRenderStageSpecification
        numbers = []
        for kind_code, copy_code in distinct.tolist():
            name = " ".join(filter(None, (kinds[kind_code], directions[copy_code])))
            computes = kinds[kind_code] in ("kernel", "graph")
            entry = stage(name=name, category=stage.COMPUTE if computes else stage.OTHER)
            numbers.append(self.interned.add("gpu_specifications", entry))
        self.stage = np.array(numbers, np.int64)[code]
        is_kernel = np.array([name == "kernel" for name in kinds])[kind] & (plan.what == STAGE)
        kernels = np.zeros(len(plan.texts), np.int64)
        for at in np.unique(plan.name[is_kernel]).tolist():
            text = plan.texts[at]
            entry = protos.InternedComputeKernel(name=text)
            if not text.startswith("_Z"):
                entry.demangled_name = text
            kernels[at] = self.interned.add(KERNELS, entry)
        self.kernel = np.where(is_kernel, kernels[plan.name], 0)

    def _launches(self) -> None:
        """Encode each launch configuration once."""
        event = self.protos.GpuRenderStageEvent
        names = [
            self.interned.add(ARGUMENT_NAMES, self.protos.InternedComputeArgName(name=name))
            for name in _LAUNCH
        ]
        self.launch, texts = codes(self.trace.spans.column("launch_config"))
        encoded: list[bytes | None] = []
        for text in texts:
            numbers = config(text)
            launch = event.ComputeKernelLaunch()
            if all(0 <= number < 1 << 32 for number in numbers[:6]):
                launch.grid_size.x, launch.grid_size.y, launch.grid_size.z = numbers[:3]
                block = launch.workgroup_size
                block.x, block.y, block.z = numbers[3:6]
            for iid, number in zip(names, numbers[6:], strict=True):
                if number != NOTHING:
                    launch.args.add(name_iid=iid, int_value=number)
            line = launch.SerializeToString()
            encoded.append(field(key(event, "launch"), line) if line else None)
        self.launches = pa.array(encoded, pa.binary())

    def _texts(self) -> None:
        """Intern the names of arguments and the texts among them; encode each text once."""
        spans, protos = self.trace.spans, self.protos
        self.columns = [
            name for name in schema.SPAN_TYPES if not pa.types.is_null(spans.column(name).type)
        ]
        annotation, event = protos.DebugAnnotation, protos.GpuRenderStageEvent
        self.annotations = key(protos.TrackEvent, "debug_annotations")
        self.extras = key(event, "extra_data")
        numbers = self.interned.texts(
            "debug_annotation_names", self.columns, protos.DebugAnnotationName
        )
        self.begins = {
            name: (
                key(annotation, "name_iid") + wire.varint(number),
                field(key(event.ExtraData, "name"), name.encode()),
            )
            for name, number in zip(self.columns, numbers.tolist(), strict=True)
        }
        text_key, value_key = key(annotation, "string_value_iid"), key(event.ExtraData, "value")
        self.tables: dict[str, tuple[Ints, Pieces, Pieces]] = {}
        most = 1  # bytes of a row's texts
        for name in self.columns:
            if name in _SHARED or not pa.types.is_dictionary(spans.column(name).type):
                continue
            code, texts = codes(spans.column(name))
            table = "debug_annotation_string_values"
            iids = self.interned.texts(table, texts, protos.InternedString).tolist()
            noted, extra = self.begins[name]
            annotated: list[bytes | None] = [None]
            extras: list[bytes | None] = [None]
            longest = 0
            for iid, text in zip(iids[1:], texts[1:], strict=True):
                annotated.append(field(self.annotations, noted + text_key + wire.varint(iid)))
                line = field(value_key, text.encode())
                extras.append(field(self.extras, extra + line))
                longest = max(longest, len(line))
            most += longest
            lines = (pa.array(each, pa.binary()) for each in (annotated, extras))
            self.tables[name] = (code, *lines)
        self.rows_at_once = max(1, min(_ROWS, _BYTES // most))

    # -- rows ---------------------------------------------------------------------------------
    def chunks(self) -> Iterator[tuple[memoryview, int]]:
        """Yield the packets of some rows and ends as bytes, and how many rows began."""
        plan = self.plan
        makers = {
            STAGE: self._stages,
            SLICE: self._slices,
            INSTANT: self._instants,
            GPU_COUNTER: self._gpu_samples,
            COUNTER: self._samples,
        }
        for low in range(0, len(plan.event), self.rows_at_once):
            rows = plan.event[low : low + self.rows_at_once]
            is_end = plan.is_end[low : low + self.rows_at_once]
            at, bodies = [], []
            for what, make in makers.items():
                chosen = np.flatnonzero((plan.what[rows] == what) & ~is_end)
                if len(chosen):
                    at.append(chosen)
                    bodies.append(make(rows[chosen]))
            closing = np.flatnonzero(is_end)
            if len(closing):
                at.append(closing)
                bodies.append(self._track_event("TYPE_SLICE_END", plan.track[rows[closing]]))
            order = np.argsort(np.concatenate(at))
            body = pa.concat_arrays(bodies).take(pa.array(order))
            moments = np.where(is_end, plan.ends[rows], plan.starts[rows])
            parts = (self.time, wire.varints(moments), self.sequence, body)
            yield wire.bytes_of(message(self.begin, *parts)), int((~is_end).sum())

    def _stages(self, rows: Ints) -> Pieces:
        """Return render stages."""
        plan, event = self.plan, self.protos.GpuRenderStageEvent
        known = plan.ends[rows] != OPEN

        def number(name: str, values: Ints, has: Bools | None = None) -> Pieces:
            return wire.part(key(event, name), wire.varints(values, has))

        device, kernel = self.device[rows], self.kernel[rows]
        return message(
            key(self.protos.TracePacket, "gpu_render_stage_event"),
            joined(
                number("event_id", self.ids[rows]),
                number("duration", np.where(known, plan.ends[rows] - plan.starts[rows], 0), known),
                number("gpu_id", device, device >= 0),
                number("hw_queue_iid", plan.track[rows]),
                number("stage_iid", self.stage[rows]),
                number("context", plan.context[rows]),
                number("name_iid", self.name[rows]),
                plan.waits.fields(key(event, "event_wait_ids"), rows),
                number("kernel_iid", kernel, kernel > 0),
                self.launches.take(pa.array(self.launch[rows])),
                *self._arguments(rows, of_stages=True),
                self._wait_kinds(rows),
            ),
        )

    def _wait_kinds(self, rows: Ints) -> Pieces:
        """Return what kinds of edges lead to render stages, null where none does."""
        code, offsets, has = self.plan.wait_kinds.of(rows)
        kinds = pa.array(self.plan.edge_kinds, pa.string()).take(pa.array(code))
        texts = pc.binary_join(pa.ListArray.from_arrays(offsets, kinds), ", ")
        extra = self.protos.GpuRenderStageEvent.ExtraData
        name = field(key(extra, "name"), WAIT_KINDS.encode())
        line = message(self.extras, name, message(key(extra, "value"), texts.cast(pa.binary())))
        return pc.if_else(pa.array(has), line, None)

    def _slices(self, rows: Ints) -> Pieces:
        return self._named("TYPE_SLICE_BEGIN", rows)

    def _instants(self, rows: Ints) -> Pieces:
        return self._named("TYPE_INSTANT", rows)

    def _named(self, kind: str, rows: Ints) -> Pieces:
        """Return track events with a name, arguments and arrows."""
        plan, event = self.plan, self.protos.TrackEvent
        begins, ends = plan.flows
        links = joined(
            plan.submitted.fields(extension(SUBMITTED, wire.VARINT), rows),
            plan.waited.fields(extension(WAITED, wire.VARINT), rows),
        )
        linked = pc.if_else(pc.greater(pc.binary_length(links), 0), links, None)
        return self._track_event(
            kind,
            plan.track[rows],
            wire.part(key(event, "category_iids"), wire.varints(self.category[rows])),
            wire.part(key(event, "name_iid"), wire.varints(self.name[rows])),
            *self._arguments(rows, of_stages=False),
            begins.fields(key(event, "flow_ids"), rows, wire.FIXED64),
            ends.fields(key(event, "terminating_flow_ids"), rows, wire.FIXED64),
            message(extension(CORRELATION), linked),
        )

    def _samples(self, rows: Ints) -> Pieces:
        """Return samples of counters that are no GPU's."""
        begin = key(self.protos.TrackEvent, "double_counter_value")
        value = wire.part(begin, wire.fixed(self.plan.values[rows]))
        return self._track_event("TYPE_COUNTER", self.plan.counter[rows], value)

    def _gpu_samples(self, rows: Ints) -> Pieces:
        """Return samples of a GPU's counters."""
        plan, event = self.plan, self.protos.GpuCounterEvent
        return message(
            key(self.protos.TracePacket, "gpu_counter_event"),
            key(event, "counter_descriptor_iid"),
            wire.varints(plan.counter[rows]),
            message(
                key(event, "counters"),
                key(event.GpuCounter, "counter_id"),
                wire.varints(plan.name[rows]),
                key(event.GpuCounter, "double_value"),
                wire.fixed(plan.values[rows]),
            ),
        )

    def _track_event(self, kind: str, track: Ints, *parts: Pieces) -> Pieces:
        event = self.protos.TrackEvent
        begin = key(event, "type") + wire.varint(event.Type.Value(kind)) + key(event, "track_uuid")
        inside = joined(begin, wire.varints(track), *parts)
        return message(key(self.protos.TracePacket, "track_event"), inside)

    def _arguments(self, rows: Ints, *, of_stages: bool) -> Iterator[Pieces]:
        """Yield the other columns' values, null where a row has none."""
        annotation, extra = self.protos.DebugAnnotation, self.protos.GpuRenderStageEvent.ExtraData
        index = pa.array(rows)
        for name in self.columns:
            if name in (_OF_STAGES if of_stages else _OF_EVENTS):
                continue
            if name in self.tables:
                code, *lines = self.tables[name]
                yield lines[of_stages].take(pa.array(code[rows]))
                continue
            values = self.trace.spans.column(name).take(index).combine_chunks()
            if values.null_count == len(values):
                continue
            noted, begin = self.begins[name]
            if of_stages:
                texts = values.cast(pa.string()).cast(pa.binary())
                yield message(self.extras, begin, message(key(extra, "value"), texts))
                continue
            known = np.asarray(values.is_valid())
            numbers = np.asarray(values.fill_null(0))
            is_float = pa.types.is_floating(values.type)
            begin = noted + key(annotation, "double_value" if is_float else "uint_value")
            encoded = wire.fixed(numbers, known) if is_float else wire.varints(numbers, known)
            yield message(self.annotations, begin, encoded)
