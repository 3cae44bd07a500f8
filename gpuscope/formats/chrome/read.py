"""Chrome trace JSON: PyTorch's (Kineto), viztracer's, Proton's, ours, and whatever else is one."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from gpuscope._types import Array
from gpuscope.formats.chrome import events as raw
from gpuscope.formats.chrome import own, proton
from gpuscope.formats.chrome.spans import KINDS, LONGEST_FACT, NEVER, WORK, Spans, fact, flows
from gpuscope.formats.chrome.waits import LOW, Edges, waited
from gpuscope.formats.limits import Limits, reading
from gpuscope.formats.private import LEFT_OUT, public_text, scrub
from gpuscope.trace import arrow, joins, schema, valid
from gpuscope.trace.arrow import NONE, Columns
from gpuscope.trace.facts import DeviceFacts, RankFacts, StreamFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

_ON_GPU = ("kernel", "memcpy", "memset", "sync", "event")
_MOST_NAMED = 200
_ARGUMENTS = {
    **{name: name for name in ("device", "context", "stream", "correlation")},
    "external_correlation": "External id",
    "graph": "graph id",
    "graph_node": "graph node id",
    "nbytes": "bytes",
}
"""Column → Kineto's name of the argument."""
_WAITS = {"of_key": "wait_on_stream", "of_number": "wait_on_cuda_event_record_corr_id"}
"""Column of a wait → Kineto's name of the argument."""
_CONFIG = {
    "grid": "grid",
    "block": "block",
    "registers": "registers per thread",
    "shared_memory": "shared memory",
}
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_FOREIGN = 1_000_000_000
"""A stream whose number another device has, too, is numbered from here."""
_WANTED = (*_ARGUMENTS.values(), *_WAITS.values(), *_CONFIG.values())
"""Names of the arguments that are read."""
_AT_ONCE = 4096
"""Launch configurations that are Python's at the same time."""
_T = TypeVar("_T")


def read_chrome(path: Path, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read Chrome trace JSON, gzipped or not.

    Raises
    ------
    TraceFormatError
        It is damaged, no Chrome trace, or holds more than ``limits``.
    """
    with reading(path.name, "JSON file"):
        data = raw.text_of(path, limits)
    with reading(path.name, "Chrome trace"):
        events, top = raw.decode(data.removeprefix(b"\xef\xbb\xbf"), limits)
        own_metadata = own.metadata(top)
        if own_metadata is not None:
            return own.trace(events, top, own_metadata, keep_private=keep_private)
        if proton.recognise(events):
            return proton.trace(events, top, limits, keep_private=keep_private)
        return _trace(Spans(events, top), top, limits, keep_private=keep_private)


def _trace(
    spans: Spans, top: dict[str, msgspec.Raw], limits: Limits, *, keep_private: bool
) -> Trace:
    """Put the trace together."""
    rows = spans.rows
    count = len(rows)
    ids = np.arange(1, count + 1, dtype=np.int64)
    on_gpu = spans.is_(*_ON_GPU)
    called = np.flatnonzero(on_gpu | spans.is_("api"))
    calling = [spans.events[row] for row in rows[called].tolist()]
    arguments, unread = raw.arguments(
        [event.args for event in calling], _WANTED, as_written=("grid", "block")
    )
    for event in calling:  # they are read
        event.args = raw.ABSENT
    for key, number in unread.items():
        spans.left[f"arguments {key[:40]!r} of GPU work and API calls"] = number
    columns, streams = _places(spans, called, on_gpu, arguments, limits)
    devices = sorted(set(columns["device"][on_gpu].tolist()) - {NONE})
    names = raw.texts([spans.events[row].name for row in rows.tolist()], "(unnamed)")
    waits = waited(spans, columns, names, ids)
    parts, columns = _launches(spans, columns, on_gpu, ids)
    edges = arrow.edges(parts + waits)
    ranges = spans.is_("range", "mark")
    where = np.where(ranges, spans.category[rows], NONE)
    styles = np.where(spans.is_("range"), spans.of("b", "S")[rows], NONE)
    columns |= {
        "id": ids,
        "parent": _parents(spans, on_gpu, ids),
        "kind": arrow.text_column(spans.kind, [*KINDS]),
        "name": names,
        "start_ns": spans.starts[rows] + spans.base_ns,
        "end_ns": arrow.nullable(spans.ends[rows] + spans.base_ns, spans.open[rows]),
        "category": arrow.text_column(where, [category or None for category in spans.categories]),
        "range_style": arrow.text_column(styles, ["push/pop", "start/end"]),
        "payload": _payloads(spans, ranges),
        "source": arrow.constant("chrome", count),
        **_copies(names, spans.is_("memcpy")),
    }
    tables = (arrow.table(columns, count), _counters(spans, count + 1, limits))
    table = schema.concat([table for table in tables if table.num_rows], schema.SPAN_TYPES)
    table, edges, left = valid.sifted(table, edges)
    spans.left.update(left)
    table = table if keep_private else scrub(table)
    metadata = _metadata(spans, top, table, devices, keep_private=keep_private)
    works = int(spans.is_(*WORK).sum())
    kinds = ["launch"] * (len(parts[0][0]) == works) + ["event wait"] * bool(
        spans.is_("sync").any()
    )
    return Trace(table, edges, replace(metadata, streams=streams, edges=tuple(kinds)))


def _launches(
    spans: Spans, columns: Columns, on_gpu: Array, ids: Array
) -> tuple[list[Edges], Columns]:
    """Join GPU work to its calls, and return edges and finished columns."""
    rows = spans.rows
    process, thread = spans.process[rows], spans.thread[rows]
    calls = np.flatnonzero(spans.is_("api") & (columns["correlation"] > 0))
    at = joins.match(columns["correlation"], columns["correlation"][calls])
    at = np.where(on_gpu & (columns["correlation"] > 0), at, NONE)
    call = arrow.picked(calls, at)
    has_call = call >= 0
    process = np.where(on_gpu, arrow.picked(process, call), process)
    thread = np.where(on_gpu, arrow.picked(thread, call), thread)
    queued = np.where(has_call & ~spans.open[rows[call]], spans.ends[rows[call]], NONE)
    work = has_call & spans.is_(*WORK)
    launches = (ids[call[work]], ids[work], "launch")
    arrows = [part for part in flows(spans, ids) if part[2] != "launch" or not len(launches[0])]
    columns |= {"process": process, "thread": thread}
    finished = {
        name: arrow.nullable(values) if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
    }
    queued_ns = arrow.nullable(queued + spans.base_ns, ~work | (queued == NONE))
    return [launches, *arrows], {**finished, "queued_ns": queued_ns}


def _parents(spans: Spans, on_gpu: Array, ids: Array) -> pa.Array:
    """Return the range around each range and call of a host thread."""
    rows = spans.rows
    owner = arrow.coded_rows(spans.process[rows], spans.thread[rows])[0].astype(np.int64)
    nests = np.flatnonzero(spans.is_("range") & spans.of("X", "B")[rows])
    ends = np.where(spans.open[rows], NEVER, spans.ends[rows])
    starts = spans.starts[rows]
    around = np.full(len(rows), NONE, np.int64)
    around[nests] = joins.enclosing(owner[nests], starts[nests], ends[nests])
    leaves = np.flatnonzero(~on_gpu & ~spans.is_("range"))
    around[leaves] = joins.innermost(
        owner[leaves], starts[leaves], owner[nests], starts[nests], ends[nests]
    )
    return arrow.nullable(arrow.picked(ids[nests], around))


def _payloads(spans: Spans, ranges: Array) -> pa.Array:
    """Return the arguments of ranges and marks as they are."""
    texts = [
        bytes(spans.events[row].args) if is_range else b""
        for row, is_range in zip(spans.rows.tolist(), ranges.tolist(), strict=True)
    ]
    payloads = [
        text if 2 < len(text) <= raw.LONGEST_TEXT and text != b"null" else None for text in texts
    ]
    too_long = sum(len(text) > raw.LONGEST_TEXT for text in texts)
    spans.left[f"arguments of more than {raw.LONGEST_TEXT:,} bytes"] = too_long
    if all(text is None for text in payloads):
        return pa.nulls(len(payloads))
    return pa.array(payloads, pa.binary()).cast(pa.string()).dictionary_encode()


def _counters(spans: Spans, first: int, limits: Limits) -> pa.Table:
    """Return samples of counters, one row for each number in an event."""
    counted: list[int] = []
    names: list[str] = []
    numbers: list[float] = []
    for row in np.flatnonzero(spans.of("C")).tolist():
        event = spans.events[row]
        values = raw.values(event.args)
        if not isinstance(values, dict):
            continue
        for key, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                counted.append(row)
                names.append(str(event.name) if len(values) == 1 else f"{event.name} {key}")
                numbers.append(float(value))
            else:
                spans.left["counters without a number"] += 1
        limits.check_rows("samples of counters", len(counted))
    rows, count = np.array(counted, np.int64), len(counted)
    times = spans.starts[rows] + spans.base_ns
    return arrow.table(
        {
            "id": np.arange(first, first + count, dtype=np.int64),
            "kind": arrow.constant("counter", count),
            "name": raw.texts(names, "(unnamed)"),
            "start_ns": times,
            "end_ns": times,
            "process": arrow.nullable(spans.process[rows]),
            "value": pa.array(numbers, pa.float64()),
            "source": arrow.constant("chrome", count),
        },
        count,
    )


def _metadata(
    spans: Spans,
    top: dict[str, msgspec.Raw],
    table: pa.Table,
    devices: list[int],
    *,
    keep_private: bool,
) -> TraceMetadata:
    plain = (lambda name: name) if keep_private else public_text
    device_facts = {f"cuda:{index}": DeviceFacts(index, name=f"GPU {index}") for index in devices}
    for facts in _listed(fact(top, "deviceProperties"), dict):
        index, name, count = (facts.get(key) for key in ("id", "name", "numSms"))
        if valid.is_short(index) and isinstance(name, str):
            device_facts[f"cuda:{index}"] = DeviceFacts(
                index, name=name[:LONGEST_FACT], sm_count=count if valid.is_short(count) else None
            )
    ranks = _ranks(fact(top, "distributedInfo"))
    taken = ["baseTimeNanoseconds", "deviceProperties", "displayTimeUnit", "schemaVersion"]
    taken += ["distributedInfo"] * len(ranks)
    for key in top:
        if key not in taken:
            spans.left[f"{key[:40]!r} beside the events"] = 1
    named = (+spans.left).most_common(_MOST_NAMED)
    rest = spans.left.total() - sum(count for _, count in named)
    notes = ["imported from a Chrome trace"]
    if not keep_private:
        notes.append(LEFT_OUT)
    return TraceMetadata(
        time_base=spans.time_base,
        devices=device_facts,
        ranks=ranks,
        process_names=_used(spans.process_names, table.column("process"), plain),
        thread_names=_used(spans.thread_names, table.column("thread"), plain),
        counts={
            "received": table.num_rows,
            **{f"{what} not taken": count for what, count in named},
            **({"others not taken": rest} if rest else {}),
        },
        notes=tuple(notes),
    )


def _ranks(distributed: object) -> tuple[RankFacts, ...]:
    """Return the rank that Kineto tells, if it does."""
    fields = distributed if isinstance(distributed, dict) else {}
    with contextlib.suppress(msgspec.ValidationError):
        names = ("rank", "world_size", "backend")
        return (
            msgspec.convert({name: fields[name] for name in names if name in fields}, RankFacts),
        )
    return ()


def _used(
    names: dict[int, str], column: pa.ChunkedArray, plain: Callable[[str], str]
) -> dict[str, str]:
    wanted = set(column.unique().to_pylist())
    return {str(number): plain(name) for number, name in names.items() if number in wanted}


# -- what the arguments of GPU work and API calls tell in Kineto's traces -------------------
def _places(
    spans: Spans, called: Array, on_gpu: Array, arguments: raw.Values, limits: Limits
) -> tuple[Columns, dict[str, StreamFacts]]:
    """Return the columns that arguments tell, of all spans, and what is known of streams.

    ``arguments`` is emptied on the way.
    """
    count = len(spans.rows)
    columns: Columns = {"launch_config": _launch_configs(count, called, arguments)}
    for name, argument in {**_ARGUMENTS, **_WAITS}.items():
        values = raw.whole(arguments.pop(argument))
        has_value = np.asarray(values.is_valid(), dtype=bool)
        numbers = np.full(count, NONE, np.int64)
        if has_value.any():
            numbers[called[has_value]] = np.asarray(values.drop_null())
        columns[name] = numbers
    in_graph = columns["graph"] > 0
    columns["graph"] = np.where(in_graph, columns["graph"], NONE)
    columns["graph_node"] = np.where(in_graph, columns["graph_node"], NONE)
    process, thread = spans.process[spans.rows], spans.thread[spans.rows]
    columns["device"] = np.where(on_gpu & (columns["device"] == NONE), process, columns["device"])
    small = (columns["device"] >= 0) & (columns["device"] < 1 << 15)
    columns["device"] = np.where(small, columns["device"], NONE)
    streams = np.where(on_gpu & (columns["stream"] == NONE), thread, columns["stream"])
    streams = np.where(on_gpu & (streams >= 0), streams, NONE)
    of_device = columns["device"] << 32
    columns["key"] = of_device | streams & LOW
    of_key = columns["of_key"]
    columns["of_key"] = np.where(of_key >= 0, of_device | of_key & LOW, NONE)
    columns["stream"], facts = _streams(columns["device"], streams, limits)
    return columns, facts


def _streams(device: Array, stream: Array, limits: Limits) -> tuple[Array, dict[str, StreamFacts]]:
    """Return a number for each stream of each device; Kineto's repeat."""
    codes, distinct = arrow.coded_array(device, stream)
    limits.check_places(len(distinct))
    facts: dict[str, StreamFacts] = {}
    numbers = []
    for code, (index, number) in enumerate(distinct.tolist()):
        if number == NONE:
            numbers.append(NONE)
            continue
        free = str(number) not in facts
        stream_number = number if free else _FOREIGN + code
        name = f"stream {number}" if free else f"stream {number} of GPU {index}"
        facts[str(stream_number)] = StreamFacts(name, device=f"cuda:{index}")
        numbers.append(stream_number)
    return np.array(numbers or [NONE], np.int64)[codes], facts


def _launch_configs(count: int, called: Array, arguments: raw.Values) -> pa.DictionaryArray:
    """Return the launch configurations as JSON, each distinct one once."""
    # As bytes until distinct: a tuple of each takes several times as much.
    keys = map(_key, *(arguments.pop(name) for name in _CONFIG.values()))
    parts = [pa.array([], pa.binary())]
    while some := list(itertools.islice(keys, _AT_ONCE)):
        parts.append(pa.array(some, pa.binary()))
    coded = pa.concat_arrays(parts).dictionary_encode()
    codes = np.full(count, NONE, np.int64)
    codes[called] = np.asarray(coded.indices.fill_null(NONE))
    return arrow.text_column(codes, (_config(key.as_py()) for key in coded.dictionary))


def _key(grid: msgspec.Raw, block: msgspec.Raw, registers: object, shared: object) -> bytes | None:
    """Return a configuration as a list in JSON, if it has its sizes."""
    if grid is raw.ABSENT or block is raw.ABSENT:
        return None
    more = (
        str(number).encode() if type(number) is int else b"null" for number in (registers, shared)
    )
    return b"[%b,%b,%b,%b]" % (bytes(grid), bytes(block), *more)


def _config(key: bytes) -> str | None:
    """Return a launch configuration as JSON, if it has the numbers of one."""
    try:
        facts = dict(zip(_CONFIG, msgspec.json.decode(key), strict=True))
    except msgspec.DecodeError:  # a number that is out of any range
        return None
    sizes = [*_listed(facts["grid"], int), *_listed(facts["block"], int)]
    if len(sizes) != 6:
        return None
    config = {"grid": sizes[:3], "block": sizes[3:]}
    more = {name: facts[name] for name in ("registers", "shared_memory")}
    return json.dumps(
        config | {name: value for name, value in more.items() if isinstance(value, int)}
    )


def _copies(names: pa.DictionaryArray, is_copy: Array) -> Columns:
    """Return what the names of copies tell: direction and kinds of memory."""
    if not is_copy.any():
        return {}
    matches = [_COPY.match(name or "") for name in names.dictionary.to_pylist()]
    codes = np.where(is_copy, np.asarray(names.indices.fill_null(NONE)), NONE).astype(np.int64)
    return {
        column: arrow.text_column(
            codes, [None if match is None else word(match.group(group)) for match in matches]
        )
        for group, column, word in (
            (1, "copy_kind", str),
            (2, "src_kind", str.lower),
            (3, "dst_kind", str.lower),
        )
    }


def _listed(value: object, kind: type[_T]) -> list[_T]:
    """Return the values of one type in what should be a list."""
    return [entry for entry in value if isinstance(entry, kind)] if isinstance(value, list) else []
