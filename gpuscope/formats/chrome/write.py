"""Chrome trace JSON: Perfetto, chrome://tracing, HolisticTraceAnalysis.

One event a line, sorted by time. ``ts`` and ``dur`` are µs with three decimals, so that ns are
kept; ``ts`` counts from ``baseTimeNanoseconds``, since a double holds Unix µs to 0.25 µs only.
Work of GPUs has the categories and arguments that Kineto writes (``kernel``, ``gpu_memcpy``,
``stream``, ``correlation``), everything else its kind and our names of columns; the stream that a
call named is its ``target_stream``. Times among the arguments are ns on the same base. A GPU's
partition is a process, a stream a thread. A hazard is an instant where its second work begins, and
an arrow between the two; these instants come first.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring as quote
from pathlib import Path
from typing import IO, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import asdict

from gpuscope._types import Array
from gpuscope.formats.chrome import json_text as text
from gpuscope.formats.progress import Step, check_count, version
from gpuscope.formats.tracks import OPEN, fits, layout, names, nested, rank_of, times
from gpuscope.trace import schema
from gpuscope.trace.columns import codes, combined
from gpuscope.trace.facts import HazardFact, HazardFacts, HazardKind
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import Group, TrackKey

CATEGORIES = {
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "api": "cuda_runtime",
    "range": "user_annotation",
}
"""Kind → Kineto's category; another kind is its own category."""
HAZARD = "hazard"
"""Category of what tells of hazards, beside the metadata."""
FLOWS = {"launch": "ac2g", **dict.fromkeys(get_args(HazardKind), HAZARD)}
"""Kind of an edge → Kineto's category of the arrow; another kind is its own category."""

_TOLD = ("kind", "name", "start_ns", "end_ns", "host", "device_uuid")
"""Columns that an event tells without arguments, and what the metadata knows."""
_NUMBERED = {"process": 0, "thread": 1}
"""Columns that the process's and thread's numbers tell, where they are the system's."""
_ROWS = 1 << 15
_BYTES = 1 << 28
_COMPRESSION = 4
_MARK = b'\n{"ph":"'


def write_chrome(trace: Trace, path: Path, step: Step) -> None:
    """Write a trace as Chrome trace JSON, compressed where the name ends in ``.gz``.

    Raises
    ------
    ExportError
        What stands in the file is not what the trace holds.
    """
    events = _Events(trace)
    with _opened(path, "wb") as file:
        file.write(events.head().encode())
        for lines, rows in events.chunks():
            file.write(lines)
            step(rows)
        file.write(b"\n]}\n")
    with _opened(path, "rb") as file:
        check_count(path, "events", events.count, _count(file))


@contextlib.contextmanager
def _opened(path: Path, mode: str) -> Iterator[IO[bytes]]:
    with path.open(mode) as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        # Neither name nor time: the same trace gives the same bytes.
        with gzip.GzipFile("", mode, _COMPRESSION, file, mtime=0) as packed:
            yield packed  # type: ignore[misc]


def _count(file: IO[bytes]) -> int:
    """Count the events: a line break in a name is escaped, so each begins a line."""
    count, before = 0, b""
    while block := file.read(1 << 20):
        text = before + block
        count += text.count(_MARK)
        before = text[-len(_MARK) + 1 :]
    return count if before.endswith(b"]}\n") else -1


class _Events:
    """The lines of a trace: spans in order of time, each followed by the ends of its arrows."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.hazards = (trace.metadata.hazards or HazardFacts()).found
        self.all_edges = _with_hazards(trace, self.hazards)
        spans = trace.spans
        self.base_ns = int(trace.array("start_ns").min()) if len(trace) else 0
        self.starts, self.ends = times(trace, self.base_ns)
        unknown = self.ends == OPEN
        kind, kinds = codes(spans.column("kind"))
        instant = np.isin(kind, [kinds.index(name) for name in ("mark", "event") if name in kinds])
        self.counter, lacks = self._counters(kind, kinds)
        phase = np.where(unknown, np.where(instant | lacks, ord("i"), ord("B")), ord("X"))
        self.phase = np.where(self.counter, ord("C"), phase)
        tracks, track = layout(trace).of(trace)
        slices = np.where(np.isin(self.phase, [ord("i"), ord("C")]), self.starts, self.ends)
        self.on_device = np.array([track_key.is_device for track_key in tracks], bool)[track]
        edges = self._edges()
        bound = np.zeros(len(trace), bool)
        bound[np.concatenate(edges[1:])] = True
        self.order, lane = nested(track, self.starts, slices, bound)
        first, self.place = combined(track, lane)
        self.metadata = _Names(trace, [(tracks[track[row]], int(lane[row])) for row in first])
        numbers = [self.metadata.ids[code] for code in range(len(first))]
        self.numbers = np.array(numbers, np.int64).reshape(-1, 2)
        self.kind = kind
        # A category tells the kinds that it is known for; another is told by its own name.
        self.other_kinds = pa.array(
            [None if name in (None, *schema.KINDS) else f'"kind":{quote(name)}' for name in kinds],
            pa.string(),
        )
        self._heads(kind, kinds)
        self.name_code, texts = codes(spans.column("name"))
        self.names = pa.array([quote(text or "") for text in texts])
        longest = pc.max(pc.binary_length(self.names)).as_py() or 1
        self.rows_at_once = max(1, min(_ROWS, _BYTES // longest))
        self._flows(*edges)
        self.metadata.lines += self._hazards()
        self.count = len(trace) + 2 * self.edges + len(self.metadata.lines)

    def _counters(self, kind: Array, kinds: Sequence[object]) -> tuple[Array, Array]:
        """Return which rows are samples of a counter, and which of one without a number.

        JSON has no word for those that are not finite: they become instants.
        """
        if "counter" not in kinds:
            return (np.zeros(len(kind), bool),) * 2
        counter = kind == kinds.index("counter")
        value = self.trace.spans.column("value").cast(pa.float64()).fill_null(np.nan)
        self.values = value.combine_chunks()
        finite = np.isfinite(np.asarray(self.values))
        return counter & finite, counter & ~finite

    def _heads(self, kind: Array, kinds: Sequence[object]) -> None:
        """Write what the events of one kind, phase and place begin with."""
        first, self.head_code = combined(kind, self.phase, self.place)
        lines = []
        for row in first.tolist():
            pid, tid = self.metadata.ids[self.place[row]]
            category = CATEGORIES.get(kinds[kind[row]], str(kinds[kind[row]]))
            phase = chr(self.phase[row])
            scope = ',"s":"t"' if phase == "i" else ""
            lines.append(
                f',\n{{"ph":"{phase}","cat":{quote(category)},"pid":{pid},'
                f'"tid":{tid}{scope},"name":'
            )
        self.heads = pa.array(lines, pa.string())

    def _edges(self) -> tuple[Array, Array, Array]:
        """Return the edges that can be arrows, and the rows they lead from and to.

        An edge to a row that is not there, or that is a counter's, is left out and counted.
        """
        ends, ids = (self.all_edges.column(name) for name in ("from", "to")), self.trace.array("id")
        source, target = (match(np.asarray(column, np.int64), ids) for column in ends)
        is_drawn = (source >= 0) & (target >= 0)
        is_drawn[is_drawn] = ~self.counter[source[is_drawn]] & ~self.counter[target[is_drawn]]
        edge = np.flatnonzero(is_drawn)
        self.lost_edges = len(is_drawn) - len(edge)
        self.edges = len(edge)
        return edge, source[edge], target[edge]

    def _flows(self, edge: Array, source: Array, target: Array) -> None:
        """Place the ends of the arrows where their slices begin.

        Perfetto knows no way back in time: an arrow begins at the row that began first, and its
        arguments say where it leads from and to.
        """
        trace = self.trace
        rank = np.empty(len(trace), np.int64)
        rank[self.order] = np.arange(len(trace))
        source, target = rank[source], rank[target]
        code, kinds = codes(self.all_edges.column("kind"))
        ends = np.r_[np.minimum(source, target), np.maximum(source, target)]
        order = np.argsort(ends, kind="stable")
        self.flow_rank = ends[order]
        self.flow_edge = np.r_[edge, edge][order]
        self.flow_ends = (np.arange(2 * len(edge)) >= len(edge))[order]
        row = self.order[self.flow_rank]
        first, self.flow_code = combined(
            code[self.flow_edge], self.flow_ends.astype(np.int64), self.place[row]
        )
        lines = []
        for index in first.tolist():
            pid, tid = self.metadata.ids[self.place[row[index]]]
            name = str(kinds[code[self.flow_edge[index]]])
            end = '"f","bp":"e"' if self.flow_ends[index] else '"s"'
            lines.append(
                f',\n{{"ph":{end},"cat":{quote(FLOWS.get(name, name))},"name":{quote(name)},'
                f'"pid":{pid},"tid":{tid},"ts":'
            )
        self.flow_heads = pa.array(lines, pa.string())

    def _hazards(self) -> Iterator[str]:
        """Yield an instant of each hazard whose second work, or else its first, has a row."""
        rows = {number: row for row, number in enumerate(self.trace.array("id").tolist())}
        for fact in self.hazards:
            row = rows.get(fact.first if fact.second is None else fact.second)
            if row is None:
                continue
            pid, tid = self.metadata.ids[self.place[row]]
            name = f"{fact.kind}: {fact.first_name} → {fact.second_name}"
            at = {"s": "t", "cat": HAZARD, "ts": int(self.starts[row]) / 1000}
            yield _event("i", name, pid, tid, asdict(fact), **at)

    def head(self) -> str:
        """Return the beginning of the file, with the names of processes and threads."""
        facts = json.loads(self.trace.metadata.to_json())
        devices = [
            {"id": device.index or 0, "name": device.name, "numSms": device.sm_count}
            for device in self.trace.metadata.devices.values()
        ]
        other = {"writer": f"gpuscope {version()}", "schema_version": schema.SCHEMA_VERSION}
        other |= {"edges_left_out": self.lost_edges, "metadata": facts}
        if missing := self.trace.metadata.incomplete:
            other["incomplete"] = missing
        top = {"schemaVersion": 1, "displayTimeUnit": "ns", "baseTimeNanoseconds": self.base_ns}
        top |= {"deviceProperties": devices, "otherData": other}
        ranks = self.trace.metadata.ranks
        if len(ranks) == 1:  # as Kineto writes it; HolisticTraceAnalysis looks for the rank here
            fields = ("backend", "rank", "world_size")
            top["distributedInfo"] = {name: getattr(ranks[0], name) for name in fields}
        lines = ",\n".join(self.metadata.lines)
        return f'{json.dumps(top)[:-1]},\n"traceEvents":[\n{lines}'

    def chunks(self) -> Iterator[tuple[memoryview, int]]:
        """Yield the lines of some rows as bytes, and how many rows."""
        for low in range(0, len(self.order), self.rows_at_once):
            rows = self.order[low : low + self.rows_at_once]
            lines = self._lines(rows)
            first, last = np.searchsorted(self.flow_rank, [low, low + len(rows)])
            if last > first:
                which = slice(first, last)
                order = np.r_[2 * np.arange(low, low + len(rows)), 2 * self.flow_rank[which] + 1]
                both = pa.concat_arrays([lines, self._arrows(which)])
                lines = both.take(pa.array(np.argsort(order, kind="stable")))
            yield text.bytes_of(lines), len(rows)

    def _lines(self, rows: Array) -> pa.StringArray:
        ends = self.ends[rows]
        has_end = self.phase[rows] == ord("X")
        duration = np.where(has_end, ends - self.starts[rows], 0)
        lasts = pc.if_else(pa.array(has_end), text.joined(',"dur":', *text.micros(duration)), "")
        return text.joined(
            self.heads.take(pa.array(self.head_code[rows])),
            self.names.take(pa.array(self.name_code[rows])),
            ',"ts":',
            *text.micros(self.starts[rows]),
            lasts,
            ',"args":{',
            self._arguments(rows),
            "}}",
        )

    def _arguments(self, rows: Array) -> pa.StringArray:
        """Return the other columns' values as the inside of a JSON object."""
        spans = self.trace.spans
        index = pa.array(rows)
        pieces = [self.other_kinds.take(pa.array(self.kind[rows]))]
        for name in schema.SPAN_TYPES:
            column = spans.column(name)
            if name in _TOLD or pa.types.is_null(column.type):
                continue
            values = column.take(index).combine_chunks()
            if name == "stream":
                # HolisticTraceAnalysis takes every event with a `stream` for the GPU's: the
                # stream that a call named has another name.
                ran = pa.array(self.on_device[rows])
                called = pc.if_else(ran, None, values)
                pieces.append(text.argument("target_stream", called, self.base_ns))
                values = pc.if_else(ran, values, None)
            if name in _NUMBERED:
                numbers = self.numbers[self.place[rows], _NUMBERED[name]]
                track_number = pa.array(np.where(self.on_device[rows], -1, numbers))
                values = pc.if_else(pc.equal(values, track_number), None, values)
            if values.null_count < len(values):
                pieces.append(text.argument(name, values, self.base_ns))
        counter = self.counter[rows]
        if not counter.any():
            return pc.binary_join_element_wise(*pieces, ",", null_handling="skip")
        ends = pa.array(self.ends[rows], mask=~counter | (self.ends[rows] == OPEN))
        pieces.append(text.argument("end_ns", ends, 0))
        inside = pc.binary_join_element_wise(*pieces, ",", null_handling="skip")
        # Each number among the arguments would be a curve: the columns stand beside them.
        value = text.joined('"value":', text.finite(self.values.take(index)))
        counted = text.joined(value, '},"columns":{', inside)
        return pc.if_else(pa.array(counter), counted, inside)

    def _arrows(self, which: slice) -> pa.StringArray:
        edge = pa.array(self.flow_edge[which])
        ends = (self.all_edges.column(name).take(edge) for name in ("from", "to"))
        source, target = (ids.combine_chunks().cast(pa.string()) for ids in ends)
        arguments = text.joined(',"args":{"from":', source, ',"to":', target, "}")
        return text.joined(
            self.flow_heads.take(pa.array(self.flow_code[which])),
            *text.micros(self.starts[self.order[self.flow_rank[which]]]),
            ',"id":',
            edge.cast(pa.string()),
            pc.if_else(pa.array(self.flow_ends[which]), "", arguments),
            "}",
        )


def _with_hazards(trace: Trace, hazards: Sequence[HazardFact]) -> pa.Table:
    """Return a trace's edges, and one of each hazard between rows, of the hazard's kind."""
    pairs = [hazard for hazard in hazards if hazard.first is not None and hazard.second is not None]
    added: dict[str, list[object]] = {
        "from": [hazard.first for hazard in pairs],
        "to": [hazard.second for hazard in pairs],
        "kind": [hazard.kind for hazard in pairs],
    }
    return schema.concat([trace.edges, schema.table(added, schema.EDGE_TYPES)], schema.EDGE_TYPES)


# -- processes and threads -----------------------------------------------------------------
class _Names:
    """Numbers of processes and threads for tracks, and the events that name them."""

    def __init__(self, trace: Trace, places: list[tuple[TrackKey, int]]) -> None:
        used = {n for track, _ in places for n in (track.process, track.thread, track.stream)}
        free = (number for number in itertools.count(1) if number not in used)
        self.lines: list[str] = []
        self.ids: dict[int, tuple[int, int]] = {}
        processes: dict[tuple[bool, Hashable], int] = {}
        taken: set[tuple[int, int]] = set()
        labels = "; ".join(filter(None, [trace.metadata.forecast, trace.metadata.incomplete]))
        # Lane 0 before the others: it gets the number that people know.
        by_lane = sorted(range(len(places)), key=lambda number: places[number][1])
        for number in by_lane:
            track, lane = places[number]
            owner, row = names(track, trace)
            is_host = not track.is_device or rank_of(track, trace) is not None
            key = (not is_host, track.process if is_host else owner)
            if key not in processes:
                pid = track.process if is_host else None
                processes[key] = pid if fits(pid) else next(free)
                self._tell("process_name", processes[key], 0, name=owner)
                if labels:
                    self._tell("process_labels", processes[key], 0, labels=labels)
                position = len(processes) + 1000 * (not is_host)
                self._tell("process_sort_index", processes[key], 0, sort_index=position)
            pid = processes[key]
            tid = {Group.STREAM: track.stream, Group.THREAD: track.thread}.get(track.group)
            if lane or not fits(tid) or (pid, tid) in taken:
                tid = next(free)
            taken.add((pid, tid))
            self.ids[number] = (pid, tid)
            self._tell("thread_name", pid, tid, name=f"{row} ({lane + 1})" if lane else row)
        if not places:
            self._tell("process_name", next(free), 0, name="nothing was recorded")

    def _tell(self, what: str, pid: int, tid: int, **facts: str | int) -> None:
        self.lines.append(_event("M", what, pid, tid, facts))


def _event(
    phase: str, name: str, pid: int, tid: int, args: Mapping[str, object], **more: object
) -> str:
    event = {"ph": phase, "name": name, "pid": pid, "tid": tid, "args": args, **more}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)
