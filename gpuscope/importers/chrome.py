"""Chrome trace JSON: PyTorch's (Kineto), viztracer's, ours, and whatever else is one."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope.importers import chrome_events as raw
from gpuscope.importers import chrome_own
from gpuscope.importers.chrome_events import Event
from gpuscope.importers.limits import Limits, reading
from gpuscope.importers.private import scrub, without_paths
from gpuscope.trace import arrow, joins, schema
from gpuscope.trace.arrow import NONE, Array
from gpuscope.trace.model import Trace, TraceMetadata

_KINDS = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "cuda_runtime": "api",
    "cuda_driver": "api", "cuda_sync": "sync", "cuda_event": "event",
}  # fmt: skip
"""Kineto's categories → kinds; anything else that lasts is a range."""
_NAMES = ("kernel", "memcpy", "memset", "api", "sync", "event", "range", "mark")
_ON_GPU = ("kernel", "memcpy", "memset", "sync", "event")
_WORK = ("kernel", "memcpy", "memset")
_DERIVED = "gpu_user_annotation"
"""Kineto's projection of ranges: ours is made from the ranges, range_projection()."""
_LAUNCHES = ("ac2g", "async_cpu_to_gpu")
_ARGUMENTS = {
    "device": "device", "context": "context", "stream": "stream", "correlation": "correlation",
    "external_correlation": "External id", "graph": "graph id", "graph_node": "graph node id",
    "nbytes": "bytes",
}  # fmt: skip
"""Column → Kineto's name of the argument."""
_CONFIG = {"grid": "grid", "block": "block", "registers": "registers per thread",
           "shared_memory": "shared memory"}  # fmt: skip
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_UNIX_NS = 1_000_000_000_000_000_000
"""Times after 2001, if they count from 1970."""
_HINTS = ("process_labels", "process_sort_index", "thread_sort_index")
_MOST_NAMED = 200
_LONGEST_FACT = 80


def read_chrome(data: bytes, name: str, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read Chrome trace JSON.

    Raises
    ------
    TraceFormatError
        It is damaged, no Chrome trace, or holds more than ``limits``.
    """
    with reading(name, "Chrome trace"):
        events, top = raw.decode(data.removeprefix(b"\xef\xbb\xbf"), limits)
        own = chrome_own.metadata(top)
        if own is not None:
            return chrome_own.trace(events, top, own, keep_private=keep_private)
        return _Chrome(events, top, limits).trace(keep_private=keep_private)


class _Chrome:
    """The spans of a trace while they are put together.

    Attributes
    ----------
    left
        What was not taken → number.
    rows
        Events that are spans, in the file's order; other columns are parallel to it.
    """

    def __init__(self, events: list[Event], top: dict[str, msgspec.Raw], limits: Limits) -> None:
        self.events = events
        self.limits = limits
        self.left: Counter[str] = Counter()
        self.base_ns, self.time_base = 0, "relative"
        self.starts, timed = raw.nanoseconds([one.ts for one in events])
        lasts, lasting = raw.nanoseconds([one.dur for one in events])
        phase, phases = arrow.coded(pa.array([one.ph for one in events], pa.string()))
        self.phase, self.phases = phase, phases
        self.process, self.process_names = raw.numbers([one.pid for one in events])
        self.thread, self.thread_names = raw.numbers([one.tid for one in events])
        self.ends = np.where(lasting, self.starts + lasts, 0)
        self.open = ~lasting
        untimed = ~timed & ~self._of("M")
        if untimed.any():
            self.left["events without a readable time"] = int(untimed.sum())
        category, categories = arrow.coded(pa.array([one.cat or "" for one in events], pa.string()))
        self.category, self.categories = category.astype(np.int64), categories
        self._describe(top)
        self.rows = self._spans(timed)
        numbers = [_NAMES.index(_KINDS.get(one, "range")) for one in categories]
        kind = np.array(numbers or [0], np.int64)[self.category[self.rows]]
        self.kind = np.where(self._of(*_INSTANTS)[self.rows], _NAMES.index("mark"), kind)
        self.top = top

    def _of(self, *phases: str) -> Array:
        """Event → whether it has one of these phases."""
        return np.array([one in phases for one in (*self.phases, "")])[self.phase]

    def _is(self, *kinds: str) -> Array:
        """Span → whether it has one of these kinds."""
        return np.array([one in kinds for one in _NAMES])[self.kind]

    def _describe(self, top: dict[str, msgspec.Raw]) -> None:
        """Take the clock and the names of processes and threads."""
        base = _fact(top, "baseTimeNanoseconds")
        known = self.starts[~self._of("M")]
        if isinstance(base, int) and 0 < base < _UNIX_NS * 4:
            self.base_ns, self.time_base = base, "unix"
        elif len(known) and int(np.median(known)) > _UNIX_NS:
            self.time_base = "unix"
        names = {"process_name": (self.process, self.process_names),
                 "thread_name": (self.thread, self.thread_names)}  # fmt: skip
        for row in np.flatnonzero(self._of("M")).tolist():
            event = self.events[row]
            if event.name in names:
                ids, found = names[str(event.name)]
                given = msgspec.json.decode(event.args) if bytes(event.args) else {}
                name = given.get("name") if isinstance(given, dict) else None
                if name is not None and ids[row] != NONE:
                    found[int(ids[row])] = str(name)[:_LONGEST_FACT]
            elif event.name not in _HINTS:
                self.left[f"metadata events {str(event.name)[:40]!r}"] += 1

    def _spans(self, timed: Array) -> Array:
        """Pair begins and ends, count what is not taken, and return the events that are spans."""
        events = self.events
        derived = self.category == _position(self.categories, _DERIVED)
        stacked = np.flatnonzero(self._of("B", "E") & timed).tolist()
        crossing = np.flatnonzero(self._of("b", "e", "S", "F") & timed).tolist()
        for rows, begins, keys in (
            (stacked, "B", [(self.process[row], self.thread[row]) for row in stacked]),
            (crossing, "bS", [_identity(events[row], self.process[row]) for row in crossing]),
        ):
            found, lost = raw.pairs(events, rows, keys, begins, self.starts)
            for begin, end in found.items():
                self.ends[begin], self.open[begin] = self.starts[end], False
            if lost:
                self.left["ends of spans without a begin"] += lost
        instant = self._of(*_INSTANTS)
        self.ends = np.where(instant, self.starts, self.ends)
        self.open &= ~instant
        backwards = ~self.open & (self.ends < self.starts)
        if backwards.any():
            self.left["ends before their begin"] = int(backwards.sum())
            self.open |= backwards
        taken = (self._of("X", "B", "b", "S") | instant) & timed & ~derived
        used = taken | self._of("E", "e", "F", "M", "s", "t", "f", "C") | ~timed
        for number, count in Counter(self.phase[~used & ~derived].tolist()).items():
            self.left[f"events of phase {self.phases[number][:10]!r}"] += count
        if (derived & timed).any():
            self.left[f"events of category {_DERIVED}"] = int((derived & timed).sum())
        return np.flatnonzero(taken)

    # -- the trace -------------------------------------------------------------------------
    def trace(self, *, keep_private: bool) -> Trace:
        """Put the trace together."""
        rows = self.rows
        count = len(rows)
        ids = np.arange(1, count + 1, dtype=np.int64)
        on_gpu = self._is(*_ON_GPU)
        called = np.flatnonzero(on_gpu | self._is("api"))
        wanted = (*_ARGUMENTS.values(), *_CONFIG.values())
        given = raw.Arguments(wanted, as_written=("grid", "block"))
        told = given.read([self.events[row].args for row in rows[called].tolist()])
        for key, number in given.left.items():
            self.left[f"arguments {key[:40]!r} of GPU work and API calls"] = number
        columns = self._places(called, on_gpu, told)
        edges, columns = self._launches(columns, on_gpu, ids)
        names = raw.texts([self.events[row].name for row in rows.tolist()], "(unnamed)")
        ranges = self._is("range", "mark")
        where = np.where(ranges, self.category[rows], NONE)
        columns |= {
            "id": ids,
            "parent": self._parents(on_gpu, ids),
            "kind": arrow.text_column(self.kind, [*_NAMES]),
            "name": names,
            "start_ns": self.starts[rows] + self.base_ns,
            "end_ns": arrow.nullable(self.ends[rows] + self.base_ns, self.open[rows]),
            "category": arrow.text_column(where, [one or None for one in self.categories]),
            "range_style": arrow.text_column(
                np.where(self._is("range"), self._of("b", "S")[rows], NONE),
                ["push/pop", "start/end"],
            ),
            "payload": self._payloads(ranges),
            "source": arrow.constant("chrome", count),
            **_copies(names, self._is("memcpy")),
        }
        spans = arrow.table(columns, count)
        counters = self._counters(count + 1)
        spans = schema.concat([one for one in (spans, counters) if one.num_rows],
                              schema.SPAN_TYPES)  # fmt: skip
        if not keep_private:
            spans = scrub(spans)
        return Trace(spans, edges, self._metadata(spans, keep_private=keep_private))

    def _places(self, called: Array, on_gpu: Array, told: dict[str, list[Any]]) -> dict[str, Any]:
        """Return the columns that arguments tell, of all rows."""
        count = len(self.rows)
        columns: dict[str, Any] = {}
        for name, argument in _ARGUMENTS.items():
            values = raw.whole(told[argument])
            known = np.asarray(values.is_valid(), dtype=bool)
            numbers = np.full(count, NONE, np.int64)
            if known.any():
                numbers[called[known]] = np.asarray(values.drop_null())
            columns[name] = numbers
        in_graph = columns["graph"] > 0
        columns["graph"] = np.where(in_graph, columns["graph"], NONE)
        columns["graph_node"] = np.where(in_graph, columns["graph_node"], NONE)
        process, thread = self.process[self.rows], self.thread[self.rows]
        columns["device"] = np.where(on_gpu & (columns["device"] == NONE), process,
                                     columns["device"])  # fmt: skip
        small = (columns["device"] >= 0) & (columns["device"] < 1 << 15)
        columns["device"] = np.where(small, columns["device"], NONE)
        streams = np.where(on_gpu & (columns["stream"] == NONE), thread, columns["stream"])
        streams = np.where(on_gpu & (streams >= 0), streams, NONE)
        columns["stream"] = self._streams(columns["device"], streams)
        columns["launch_config"] = _launch_configs(count, called, told)
        self.devices = sorted(set(columns["device"][on_gpu].tolist()) - {NONE})
        return columns

    def _streams(self, device: Array, stream: Array) -> Array:
        """Return a number for each stream of each device; Kineto's repeat."""
        codes, distinct = arrow.coded_rows(device, stream)
        self.streams: dict[str, dict[str, Any]] = {}
        numbers = []
        for place, (index, number) in enumerate(distinct):
            if number == NONE:
                numbers.append(NONE)
                continue
            free = str(number) not in self.streams
            own = number if free else _FOREIGN + place
            name = f"stream {number}" if free else f"stream {number} of GPU {index}"
            self.streams[str(own)] = {
                "name": name, "partition": None, "priority": None, "device": f"cuda:{index}",
            }  # fmt: skip
            numbers.append(own)
        return np.array(numbers or [NONE], np.int64)[codes]

    def _launches(
        self, columns: dict[str, Any], on_gpu: Array, ids: Array
    ) -> tuple[Any, dict[str, Any]]:
        """Join GPU work to its calls, and return edges and finished columns."""
        rows = self.rows
        process, thread = self.process[rows], self.thread[rows]
        calls = np.flatnonzero(self._is("api") & (columns["correlation"] > 0))
        at = joins.match(columns["correlation"], columns["correlation"][calls])
        at = np.where(on_gpu & (columns["correlation"] > 0), at, NONE)
        call = np.where(at >= 0, calls[at], NONE) if len(calls) else at
        known = call >= 0
        process = np.where(on_gpu, np.where(known, process[call], NONE), process)
        thread = np.where(on_gpu, np.where(known, thread[call], NONE), thread)
        queued = np.where(known & ~self.open[rows[call]], self.ends[rows[call]], NONE)
        work = known & self._is(*_WORK)
        flows = self._flows(ids)
        launches = (ids[call[work]], ids[work], "launch")
        if len(launches[0]):
            flows = [one for one in flows if one[2] != "launch"]
        edges = _edges([launches, *flows])
        finished = {
            name: arrow.nullable(values, values == NONE) if isinstance(values, np.ndarray) else
            values for name, values in columns.items()
        }  # fmt: skip
        finished |= {
            "process": arrow.nullable(process, process == NONE),
            "thread": arrow.nullable(thread, thread == NONE),
            "queued_ns": arrow.nullable(queued + self.base_ns, ~work | (queued == NONE)),
        }
        return edges, finished

    def _flows(self, ids: Array) -> list[tuple[Array, Array, str]]:
        """Return the edges that arrows tell: (from, to, kind) by category."""
        rows = np.flatnonzero(self._of("s", "t", "f"))
        if not len(rows):
            return []
        events = self.events
        bound = self._bind(rows, ids)
        by_key: dict[Any, list[tuple[int, int, int]]] = {}
        for place, row in enumerate(rows.tolist()):
            key = _identity(events[row], NONE)
            order = "stf".index(events[row].ph)
            by_key.setdefault(key, []).append((int(self.starts[row]), order, place))
        found: dict[str, list[tuple[int, int]]] = {}
        for key, ends in by_key.items():
            ends.sort()
            category = key[0] or ""
            edge = "launch" if category in _LAUNCHES else category
            for (_, _, one), (_, order, other) in itertools.pairwise(ends):
                if order == 0 or bound[one] == NONE or bound[other] == NONE:
                    self.left["arrows that lead to no span"] += order != 0
                elif edge in schema.EDGE_KINDS:
                    found.setdefault(edge, []).append((int(bound[one]), int(bound[other])))
                else:
                    self.left[f"arrows of category {category[:40]!r}"] += 1
        return [
            (np.array([one for one, _ in ends]), np.array([other for _, other in ends]), edge)
            for edge, ends in found.items()
        ]

    def _bind(self, rows: Array, ids: Array) -> Array:
        """Return the id of the span that each end of an arrow is at, or NONE.

        A step or an end without ``bp: "e"`` is at the next span that begins on its thread.
        """
        spans = np.flatnonzero(self._of("X", "B")[self.rows])
        event = self.rows[spans]
        key = arrow.coded_rows(
            np.r_[self.process[event], self.process[rows]],
            np.r_[self.thread[event], self.thread[rows]],
        )[0].astype(np.int64)
        owner, wanted = key[: len(event)], key[len(event) :]
        starts = self.starts[event]
        ends = np.where(self.open[event], _NEVER, self.ends[event])
        around = joins.innermost(wanted, self.starts[rows], owner, starts, ends)
        follows = np.array([self.events[row].bp != "e" for row in rows.tolist()])
        follows &= ~self._of("s")[rows]
        order = np.lexsort((starts, owner))
        times = np.unique(np.r_[starts, self.starts[rows]], return_inverse=True)[1]
        scale = int(times.max(initial=0)) + 1
        sorted_keys = (owner * scale + times[: len(event)])[order]
        at = np.searchsorted(sorted_keys, wanted * scale + times[len(event) :])
        inside = np.minimum(at, max(len(order) - 1, 0))
        if len(order):
            after = np.where((at < len(order)) & (owner[order][inside] == wanted), order[inside],
                             NONE)  # fmt: skip
            around = np.where(follows & (after >= 0), after, around)
        return np.where(around >= 0, ids[spans[around]], NONE) if len(spans) else around

    def _parents(self, on_gpu: Array, ids: Array) -> Any:
        """Return the range around each range and call of a host thread."""
        rows = self.rows
        owner = arrow.coded_rows(self.process[rows], self.thread[rows])[0].astype(np.int64)
        nests = np.flatnonzero(self._is("range") & self._of("X", "B")[rows])
        ends = np.where(self.open[rows], _NEVER, self.ends[rows])
        starts = self.starts[rows]
        found = np.full(len(rows), NONE, np.int64)
        found[nests] = joins.enclosing(owner[nests], starts[nests], ends[nests])
        others = np.flatnonzero(~on_gpu & ~self._is("range"))
        found[others] = joins.innermost(
            owner[others], starts[others], owner[nests], starts[nests], ends[nests]
        )
        parents = np.where(found >= 0, ids[nests[found]], NONE) if len(nests) else found
        return arrow.nullable(parents, parents == NONE)

    def _payloads(self, ranges: Array) -> Any:
        """Return the arguments of ranges and marks as they are."""
        texts = [
            bytes(self.events[row].args).decode() if mine else ""
            for row, mine in zip(self.rows.tolist(), ranges.tolist(), strict=True)
        ]
        kept = [text if len(text) > 2 and text != "null" else None for text in texts]
        if all(text is None for text in kept):
            return pa.nulls(len(kept))
        return pa.array(kept, pa.string()).dictionary_encode()

    def _counters(self, first: int) -> Any:
        """Return samples of counters, one row for each number in an event."""
        found: list[tuple[int, str, float]] = []
        for row in np.flatnonzero(self._of("C")).tolist():
            event = self.events[row]
            values = msgspec.json.decode(event.args) if bytes(event.args) else {}
            for key, value in values.items() if isinstance(values, dict) else ():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    name = str(event.name)
                    found.append((row, name if len(values) == 1 else f"{name} {key}", float(value)))
                else:
                    self.left["counters without a number"] += 1
            self.limits.check("rows", "samples of counters", len(found))
        rows = np.array([row for row, _, _ in found], np.int64)
        count = len(rows)
        process = self.process[rows] if count else rows
        columns = {
            "id": np.arange(first, first + count, dtype=np.int64),
            "kind": arrow.constant("counter", count),
            "name": raw.texts([name for _, name, _ in found], "(unnamed)"),
            "start_ns": (self.starts[rows] if count else rows) + self.base_ns,
            "end_ns": (self.starts[rows] if count else rows) + self.base_ns,
            "process": arrow.nullable(process, process == NONE),
            "value": pa.array([value for _, _, value in found], pa.float64()),
            "source": arrow.constant("chrome", count),
        }
        return arrow.table(columns, count)

    def _metadata(self, spans: Any, *, keep_private: bool) -> TraceMetadata:
        plain = (lambda name: name) if keep_private else without_paths
        devices = {
            f"cuda:{index}": {"index": index, "name": f"GPU {index}"} for index in self.devices
        }
        for facts in _listed(_fact(self.top, "deviceProperties"), dict):
            index, name, count = (facts.get(key) for key in ("id", "name", "numSms"))
            if isinstance(index, int) and isinstance(name, str):
                devices[f"cuda:{index}"] = {
                    "index": index, "name": name[:_LONGEST_FACT],
                    **({"sm_count": count} if isinstance(count, int) else {}),
                }  # fmt: skip
        taken = ("baseTimeNanoseconds", "deviceProperties", "displayTimeUnit", "schemaVersion")
        for key in self.top:
            if key not in taken:
                self.left[f"{key[:40]!r} beside the events"] = 1
        named = self.left.most_common(_MOST_NAMED)
        rest = sum(self.left.values()) - sum(count for _, count in named)
        notes = ["imported from a Chrome trace"]
        if not keep_private:
            notes.append("host names and the folders of paths are left out")
        return TraceMetadata(
            time_base=self.time_base,
            devices=devices,
            process_names=_used(self.process_names, spans.column("process"), plain),
            thread_names=_used(self.thread_names, spans.column("thread"), plain),
            streams=self.streams,
            counts={
                "received": spans.num_rows,
                **{f"{what} not taken": count for what, count in named},
                **({"others not taken": rest} if rest else {}),
            },
            notes=tuple(notes),
        )


_INSTANTS = ("i", "I", "R", "n")
_FOREIGN = 1_000_000_000
_NEVER = np.iinfo(np.int64).max


def _position(values: list[Any], wanted: str) -> int:
    return values.index(wanted) if wanted in values else NONE


def _fact(top: dict[str, msgspec.Raw], name: str) -> Any:
    return msgspec.json.decode(top[name]) if name in top else None


def _listed(found: Any, kind: type) -> list[Any]:
    return [one for one in found if isinstance(one, kind)] if isinstance(found, list) else []


def _used(names: dict[int, str], column: Any, plain: Any) -> dict[str, str]:
    wanted = set(column.unique().to_pylist())
    return {str(number): plain(name) for number, name in names.items() if number in wanted}


def _identity(event: Event, process: Any) -> tuple[Any, ...]:
    """Return what the events of one async span or arrow share."""
    return event.cat, bytes(event.id), bytes(event.id2), process if bytes(event.id2) else NONE


def _edges(parts: list[tuple[Array, Array, str]]) -> Any:
    count = sum(len(source) for source, _, _ in parts)
    if not count:
        return schema.table({}, schema.EDGE_TYPES)
    codes = np.repeat(np.arange(len(parts)), [len(source) for source, _, _ in parts])
    return pa.table(
        {
            "from": pa.array(np.concatenate([source for source, _, _ in parts]).astype(np.int64)),
            "to": pa.array(np.concatenate([target for _, target, _ in parts]).astype(np.int64)),
            "kind": arrow.text_column(codes, [kind for _, _, kind in parts]),
        }
    )


def _launch_configs(count: int, called: Array, told: dict[str, list[Any]]) -> Any:
    """Return the launch configurations as JSON, each distinct one once."""
    known: dict[Any, int] = {}
    columns = [told[name] for name in _CONFIG.values()]
    # A value that cannot be a key is no number.
    codes = np.full(count, NONE, np.int64)
    codes[called] = [
        known.setdefault((bytes(grid), bytes(block), repr(registers), repr(shared)), len(known))
        if grid is not raw.ABSENT and block is not raw.ABSENT
        else NONE
        for grid, block, registers, shared in zip(*columns, strict=True)
    ]
    texts: list[str | None] = []
    for key in known:
        facts = zip(_CONFIG, key, strict=True)
        texts.append(_config({name: _readable(value) for name, value in facts}))
    return arrow.text_column(codes, texts)


def _readable(value: bytes | str) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return None


def _config(facts: dict[str, Any]) -> str | None:
    """Return a launch configuration as JSON, if it has the numbers of one."""
    sizes = [*_listed(facts["grid"], int), *_listed(facts["block"], int)]
    if len(sizes) != 6:
        return None
    told = {"grid": sizes[:3], "block": sizes[3:]}
    more = {name: facts[name] for name in ("registers", "shared_memory")}
    return json.dumps(told | {name: one for name, one in more.items() if isinstance(one, int)})


def _copies(names: Any, is_copy: Array) -> dict[str, Any]:
    """Return what the names of copies tell: direction and kinds of memory."""
    if not is_copy.any():
        return {}
    found = [_COPY.match(name or "") for name in names.dictionary.to_pylist()]
    codes = np.where(is_copy, np.asarray(names.indices.fill_null(NONE)), NONE).astype(np.int64)
    return {
        column: arrow.text_column(
            codes, [None if one is None else word(one.group(place)) for one in found]
        )
        for place, column, word in (
            (1, "copy_kind", str), (2, "src_kind", str.lower), (3, "dst_kind", str.lower),
        )
    }  # fmt: skip
