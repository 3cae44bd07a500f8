"""Perfetto's protobuf: work of GPUs as render stages, all else as track events; times in ns.

A stream of a partition is a hardware queue, a partition of a process a context. A render stage has
its row's id, the kernel and the launch configuration; ``event_wait_ids`` are the rows that edges
lead from, if they are render stages too. What a track event submitted, or waited for, is its
``gpu_correlation``; an edge between two track events is a flow. Names are interned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._optional import require
from gpuscope._types import Ints, Untyped
from gpuscope.formats.nsight.values import NOTHING, config
from gpuscope.formats.perfetto.interned import (
    ARGUMENT_NAMES,
    IN_SEQUENCE,
    KERNELS,
    Interned,
    OtherTracks,
    about,
    field,
    varint,
)
from gpuscope.formats.perfetto.plan import COUNTER, GPU_COUNTER, INSTANT, SLICE, STAGE, TracePlan
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
"""Columns that any event tells without arguments, and what the metadata knows."""
_LAUNCH = ("registers_per_thread", "shared_mem_static", "shared_mem_dynamic")
"""Perfetto's names of the last numbers of a launch configuration."""
_ROWS = 1 << 13
_BYTES = 1 << 26
"""Rows and ends of a block; bytes of its texts, which stand in memory several times."""
_END = -1
"""What the end of a slice becomes."""
_TYPES = {SLICE: "TYPE_SLICE_BEGIN", INSTANT: "TYPE_INSTANT", COUNTER: "TYPE_COUNTER",
          _END: "TYPE_SLICE_END"}  # fmt: skip
_STAGE, _EVENT = "gpu_render_stage_event", "track_event"
"""Fields of a packet, of which it has one."""


def write_perfetto(trace: Trace, path: Path, step: Step) -> None:
    """Write a trace as Perfetto's protobuf.

    Raises
    ------
    ExportError
        The file is not as long as what was written.
    MissingDependency
        The package perfetto is absent.
    """
    with path.open("wb") as file:
        size = write_packets(trace, file, step)
    check_count(path, "bytes", size, path.stat().st_size)


def write_packets(trace: Trace, file: IO[bytes], step: Step) -> int:
    """Write a trace to an open file; return its bytes."""
    size = 0
    for block, rows in _Packets(trace).blocks():
        size += file.write(block.SerializeToString())
        step(rows)
    return size


class _Packets:
    """The packets of a trace: what is referred to, then rows and ends of slices by time."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        module = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
        self.protos = protos = require(module, feature="a Perfetto trace")
        self.interned, tracks = Interned(protos), OtherTracks(trace, protos)
        self.plan = TracePlan(trace, self.interned, tracks)
        self.ids = trace.array("id")
        self.device = trace.array("device", fill=arrow.NONE)
        self._names()
        self._launches()
        self._texts()
        hazards = [*tracks.hazards(self.ids, self.plan.starts)]  # which may add their track
        self.head = [
            *about(trace, protos, self.plan.lost_edges),
            *self.interned.packets,
            *tracks.packets,
            *hazards,
        ]

    def _names(self) -> None:
        """Intern names, stages, categories, and the names of kernels as kernels."""
        plan, spans, protos = self.plan, self.trace.spans, self.protos
        self.name = np.zeros(len(plan.what), np.int64)
        # Perfetto reads an entry as one kind of message: none is for stages and track events.
        for rows in (np.flatnonzero(plan.what == what) for what in (STAGE, SLICE, INSTANT)):
            used, code = np.unique(plan.name[rows], return_inverse=True)
            names = [plan.texts[at] for at in used.tolist()]
            self.name[rows] = self.interned.names("event_names", names, protos.EventName)[code]
        self.kind, kinds = codes(spans.column("kind"))
        categories = self.interned.names("event_categories", kinds, protos.EventCategory)
        lists = [[iid] for iid in categories.tolist()]
        self.categories = _encoded(*self._part(_EVENT), "category_iids", lists)
        direction, directions = codes(spans.column("copy_kind"))
        code, distinct = arrow.coded_array(self.kind, direction)
        stage = protos.InternedGpuRenderStageSpecification
        numbers = []
        for kind_code, copy_code in distinct.tolist():
            name = " ".join(filter(None, (kinds[kind_code], directions[copy_code])))
            computes = kinds[kind_code] in ("kernel", "graph")
            entry = stage(name=name, category=stage.COMPUTE if computes else stage.OTHER)
            numbers.append(self.interned.add("gpu_specifications", entry))
        self.stage = np.array(numbers, np.int64)[code]
        is_kernel = np.array([name == "kernel" for name in kinds])[self.kind]
        is_kernel &= plan.what == STAGE
        kernels = np.zeros(len(plan.texts), np.int64)
        for at in np.unique(plan.name[is_kernel]).tolist():
            text = plan.texts[at]
            plain = None if text.startswith("_Z") else text
            entry = protos.InternedComputeKernel(name=text, demangled_name=plain)
            kernels[at] = self.interned.add(KERNELS, entry)
        self.kernel = np.where(is_kernel, kernels[plan.name], arrow.NONE)

    def _launches(self) -> None:
        """Encode each launch configuration once."""
        kind = self.protos.InternedComputeArgName
        names = self.interned.names(ARGUMENT_NAMES, _LAUNCH, kind).tolist()
        self.launch, texts = codes(self.trace.spans.column("launch_config"))
        self.launches: list[bytes] = []
        for text in texts:
            numbers = config(text)
            packet, event = self._part(_STAGE)
            launch = event.launch
            grid, block = launch.grid_size, launch.workgroup_size
            if all(0 <= number < 1 << 32 for number in numbers[:6]):
                grid.x, grid.y, grid.z, block.x, block.y, block.z = numbers[:6]
            for iid, number in zip(names, numbers[6:], strict=True):
                if number != NOTHING:
                    launch.args.add(name_iid=iid, int_value=number)
            self.launches.append(packet.SerializeToString())

    def _texts(self) -> None:
        """Intern the names of arguments and the texts among them."""
        spans, protos = self.trace.spans, self.protos
        names = [
            name for name in schema.SPAN_TYPES if not pa.types.is_null(spans.column(name).type)
        ]
        iids = self.interned.names("debug_annotation_names", names, protos.DebugAnnotationName)
        self.columns = dict(zip(names, iids.tolist(), strict=True))
        self.texts: dict[str, pa.ChunkedArray] = {}
        most = 1  # bytes of a row's texts
        for name in names:
            if name in _SHARED or not pa.types.is_dictionary(spans.column(name).type):
                continue
            code, texts = codes(spans.column(name))
            numbers = [arrow.NONE]
            for text in texts[1:]:
                entry = protos.InternedString(str=text.encode())
                numbers.append(self.interned.add("debug_annotation_string_values", entry))
            self.texts[name] = _column(np.array(numbers)[code])
            most += max(len((text or "").encode()) for text in texts)
        self.rows_at_once = max(1, min(_ROWS, _BYTES // most))

    # -- rows ---------------------------------------------------------------------------------
    def blocks(self) -> Iterator[tuple[Untyped, int]]:
        """Yield parts of the trace, and how many rows begin in each."""
        yield from ((self.protos.Trace(packet=[packet]), 0) for packet in self.head)
        plan = self.plan
        for low in range(0, len(plan.event), self.rows_at_once):
            rows = plan.event[low : low + self.rows_at_once]
            is_end = plan.is_end[low : low + self.rows_at_once]
            becomes = np.where(is_end, _END, plan.what[rows])
            lines = np.empty(len(rows), object)
            for what in np.unique(becomes).tolist():
                chosen = np.flatnonzero(becomes == what)
                fields = self._fields(what, rows[chosen])
                lines[chosen] = [*map(b"".join, zip(*fields, strict=True))]
            block = self.protos.Trace()
            moments = np.where(is_end, plan.ends[rows], plan.starts[rows])
            for line, moment in zip(lines.tolist(), moments.tolist(), strict=True):
                block.packet.add(timestamp=moment, **IN_SEQUENCE).MergeFromString(line)
            yield block, int((~is_end).sum())

    def _fields(self, what: int, rows: Ints) -> Iterator[list[bytes]]:
        """Yield row → fields of the packet of what it becomes, encoded, one or more at a time."""
        if what in (STAGE, GPU_COUNTER):
            yield from (self._stages if what == STAGE else self._gpu_samples)(rows)
            return
        packet, event = self._part(_EVENT)
        event.type = self.protos.TrackEvent.Type.Value(_TYPES[what])
        yield _each(packet, event, "track_uuid", _column(self.plan.track[rows]))
        if what == COUNTER:
            values = self.plan.values[rows].tolist()
            yield _encoded(*self._part(_EVENT), "double_counter_value", values)
        elif what != _END:
            yield from self._named(rows)

    def _stages(self, rows: Ints) -> Iterator[list[bytes]]:
        plan, index = self.plan, pa.array(rows)
        ends = plan.ends[rows]
        for name, numbers in (
            ("event_id", self.ids[rows]),
            ("duration", np.where(ends == OPEN, arrow.NONE, ends - plan.starts[rows])),
            ("gpu_id", self.device[rows]),
            ("hw_queue_iid", plan.track[rows]),
            ("stage_iid", self.stage[rows]),
            ("context", plan.context[rows]),
            ("name_iid", self.name[rows]),
            ("kernel_iid", self.kernel[rows]),
        ):
            yield _each(*self._part(_STAGE), name, _column(numbers))
        yield [self.launches[code] for code in self.launch[rows].tolist()]
        for name in self.columns:
            if name not in (*_SHARED, "device"):
                texts = self.trace.spans.column(name).take(index).cast(pa.string())
                yield _each(*self._part(_STAGE, "extra_data", name=name), "value", texts)
        yield _encoded(*self._part(_STAGE), "event_wait_ids", plan.waits.take(index).to_pylist())
        kinds = pc.binary_join(plan.wait_kinds.take(index), ", ").to_pylist()
        yield _encoded(*self._part(_STAGE, "extra_data", name=WAIT_KINDS), "value", kinds)

    def _named(self, rows: Ints) -> Iterator[list[bytes]]:
        """Yield what track events with a name have: arguments and arrows."""
        plan, index = self.plan, pa.array(rows)
        yield [self.categories[code] for code in self.kind[rows].tolist()]
        yield _each(*self._part(_EVENT), "name_iid", _column(self.name[rows]))
        for name, iid in self.columns.items():
            if name in (*_SHARED, "process", "thread"):
                continue
            is_text = name in self.texts
            values = (self.texts[name] if is_text else self.trace.spans.column(name)).take(index)
            note = self._part(_EVENT, "debug_annotations", name_iid=iid)
            if pa.types.is_floating(values.type):
                yield _encoded(*note, "double_value", values.to_pylist())  # −0 is not 0
            else:
                yield _each(*note, "string_value_iid" if is_text else "uint_value", values)
        for name, flows in zip(("flow_ids", "terminating_flow_ids"), plan.flows, strict=True):
            yield _encoded(*self._part(_EVENT), name, flows.take(index).to_pylist())
        number, lines = self.protos.TracePacket.TRACK_EVENT_FIELD_NUMBER, []
        works = (links.take(index).to_pylist() for links in (plan.submitted, plan.waited))
        for submitted, waited in zip(*works, strict=True):
            ids = [varint(SUBMITTED << 3) + varint(work) for work in submitted or ()]
            ids += [varint(WAITED << 3) + varint(work) for work in waited or ()]
            lines.append(field(number, field(CORRELATION, b"".join(ids))) if ids else b"")
        yield lines

    def _gpu_samples(self, rows: Ints) -> Iterator[list[bytes]]:
        plan, lines = self.plan, []
        packet, counter = self._part("gpu_counter_event", "counters")
        columns = (column[rows].tolist() for column in (plan.track, plan.name, plan.values))
        for described, name, value in zip(*columns, strict=True):
            packet.gpu_counter_event.counter_descriptor_iid = described
            counter.counter_id, counter.double_value = name, value
            lines.append(packet.SerializeToString())
        yield lines

    def _part(self, kind: str, entries: str = "", **fields: object) -> tuple[Untyped, Untyped]:
        """Return a packet, and its event of a kind, or the one entry of the event's list."""
        packet = self.protos.TracePacket()
        event = getattr(packet, kind)
        return packet, getattr(event, entries).add(**fields) if entries else event


def _column(values: Ints) -> pa.ChunkedArray:
    return pa.chunked_array([arrow.nullable(values)])


def _each(packet: Untyped, part: Untyped, name: str, values: pa.ChunkedArray) -> list[bytes]:
    """Return what :func:`_encoded` does, by encoding each value once."""
    code, distinct = codes(values)
    lines = _encoded(packet, part, name, distinct)
    return [lines[at] for at in code.tolist()]


def _encoded(packet: Untyped, part: Untyped, name: str, values: Iterable[Untyped]) -> list[bytes]:
    """Return a packet encoded with each value in a field of its part; empty bytes for ``None``."""
    lines = []
    for value in values:
        if isinstance(value, list):
            getattr(part, name)[:] = value
        elif value is not None:
            setattr(part, name, value)
        lines.append(b"" if value is None else packet.SerializeToString())
    return lines
