"""Chrome trace JSON: PyTorch's (Kineto), viztracer's, ours, and whatever else is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from gpuscope._types import Array
from gpuscope.importers import chrome_events as raw
from gpuscope.importers import chrome_flows, chrome_gpu, chrome_own
from gpuscope.importers.chrome_file import text_of
from gpuscope.importers.chrome_spans import KINDS, LONGEST_FACT, NEVER, Spans, fact
from gpuscope.importers.limits import Limits, reading
from gpuscope.importers.private import LEFT_OUT, public_text, scrub
from gpuscope.trace import arrow, joins, schema, valid
from gpuscope.trace.arrow import NONE, Columns
from gpuscope.trace.metadata import DeviceFacts, TraceMetadata
from gpuscope.trace.model import Trace

_ON_GPU = ("kernel", "memcpy", "memset", "sync", "event")
_WORK = ("kernel", "memcpy", "memset")
_MOST_NAMED = 200


def read_chrome(path: Path, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read Chrome trace JSON, gzipped or not.

    Raises
    ------
    TraceFormatError
        It is damaged, no Chrome trace, or holds more than ``limits``.
    """
    with reading(path.name, "JSON file"):
        data = text_of(path, limits)
    with reading(path.name, "Chrome trace"):
        events, top = raw.decode(data.removeprefix(b"\xef\xbb\xbf"), limits)
        own = chrome_own.metadata(top)
        if own is not None:
            return chrome_own.trace(events, top, own, keep_private=keep_private)
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
    given = raw.Arguments(chrome_gpu.WANTED, as_written=chrome_gpu.AS_WRITTEN)
    told = given.read([spans.events[row].args for row in rows[called].tolist()])
    for row in rows[called].tolist():  # they are read
        spans.events[row].args = raw.ABSENT
    for key, number in given.left.items():
        spans.left[f"arguments {key[:40]!r} of GPU work and API calls"] = number
    columns, streams = chrome_gpu.places(spans, called, on_gpu, told, limits)
    devices = sorted(set(columns["device"][on_gpu].tolist()) - {NONE})
    edges, columns = _launches(spans, columns, on_gpu, ids)
    names = raw.texts([spans.events[row].name for row in rows.tolist()], "(unnamed)")
    ranges = spans.is_("range", "mark")
    where = np.where(ranges, spans.category[rows], NONE)
    columns |= {
        "id": ids,
        "parent": _parents(spans, on_gpu, ids),
        "kind": arrow.text_column(spans.kind, [*KINDS]),
        "name": names,
        "start_ns": spans.starts[rows] + spans.base_ns,
        "end_ns": arrow.nullable(spans.ends[rows] + spans.base_ns, spans.open[rows]),
        "category": arrow.text_column(where, [one or None for one in spans.categories]),
        "range_style": arrow.text_column(
            np.where(spans.is_("range"), spans.of("b", "S")[rows], NONE),
            ["push/pop", "start/end"],
        ),
        "payload": _payloads(spans, ranges),
        "source": arrow.constant("chrome", count),
        **chrome_gpu.copies(names, spans.is_("memcpy")),
    }
    tables = (arrow.table(columns, count), _counters(spans, count + 1, limits))
    table = schema.concat([one for one in tables if one.num_rows], schema.SPAN_TYPES)
    table, edges, left = valid.sifted(table, edges)
    spans.left.update(left)
    table = table if keep_private else scrub(table)
    metadata = _metadata(spans, top, table, devices, keep_private=keep_private)
    return Trace(table, edges, replace(metadata, streams=streams))


def _launches(
    spans: Spans, columns: Columns, on_gpu: Array, ids: Array
) -> tuple[pa.Table, Columns]:
    """Join GPU work to its calls, and return edges and finished columns."""
    rows = spans.rows
    process, thread = spans.process[rows], spans.thread[rows]
    calls = np.flatnonzero(spans.is_("api") & (columns["correlation"] > 0))
    at = joins.match(columns["correlation"], columns["correlation"][calls])
    at = np.where(on_gpu & (columns["correlation"] > 0), at, NONE)
    call = np.where(at >= 0, calls[at], NONE) if len(calls) else at
    known = call >= 0
    process = np.where(on_gpu, np.where(known, process[call], NONE), process)
    thread = np.where(on_gpu, np.where(known, thread[call], NONE), thread)
    queued = np.where(known & ~spans.open[rows[call]], spans.ends[rows[call]], NONE)
    work = known & spans.is_(*_WORK)
    flows = chrome_flows.flows(spans, ids)
    launches = (ids[call[work]], ids[work], "launch")
    if len(launches[0]):
        flows = [one for one in flows if one[2] != "launch"]
    edges = chrome_flows.edges([launches, *flows])
    finished = {
        name: arrow.nullable(values, values == NONE) if isinstance(values, np.ndarray) else
        values for name, values in columns.items()
    }  # fmt: skip
    finished |= {
        "process": arrow.nullable(process, process == NONE),
        "thread": arrow.nullable(thread, thread == NONE),
        "queued_ns": arrow.nullable(queued + spans.base_ns, ~work | (queued == NONE)),
    }
    return edges, finished


def _parents(spans: Spans, on_gpu: Array, ids: Array) -> pa.Array:
    """Return the range around each range and call of a host thread."""
    rows = spans.rows
    owner = arrow.coded_rows(spans.process[rows], spans.thread[rows])[0].astype(np.int64)
    nests = np.flatnonzero(spans.is_("range") & spans.of("X", "B")[rows])
    ends = np.where(spans.open[rows], NEVER, spans.ends[rows])
    starts = spans.starts[rows]
    found = np.full(len(rows), NONE, np.int64)
    found[nests] = joins.enclosing(owner[nests], starts[nests], ends[nests])
    others = np.flatnonzero(~on_gpu & ~spans.is_("range"))
    found[others] = joins.innermost(
        owner[others], starts[others], owner[nests], starts[nests], ends[nests]
    )
    parents = np.where(found >= 0, ids[nests[found]], NONE) if len(nests) else found
    return arrow.nullable(parents, parents == NONE)


def _payloads(spans: Spans, ranges: Array) -> pa.Array:
    """Return the arguments of ranges and marks as they are."""
    texts = [
        bytes(spans.events[row].args) if mine else b""
        for row, mine in zip(spans.rows.tolist(), ranges.tolist(), strict=True)
    ]
    kept = [text if 2 < len(text) <= raw.LONGEST_TEXT and text != b"null" else None
            for text in texts]  # fmt: skip
    long = sum(len(text) > raw.LONGEST_TEXT for text in texts)
    if long:
        spans.left[f"arguments of more than {raw.LONGEST_TEXT:,} bytes"] = long
    if all(text is None for text in kept):
        return pa.nulls(len(kept))
    return pa.array(kept, pa.binary()).cast(pa.string()).dictionary_encode()


def _counters(spans: Spans, first: int, limits: Limits) -> pa.Table:
    """Return samples of counters, one row for each number in an event."""
    found: list[tuple[int, str, float]] = []
    for row in np.flatnonzero(spans.of("C")).tolist():
        event = spans.events[row]
        values = raw.values(event.args)
        if not isinstance(values, dict):
            continue
        for key, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                name = str(event.name)
                found.append((row, name if len(values) == 1 else f"{name} {key}", float(value)))
            else:
                spans.left["counters without a number"] += 1
        limits.check_rows("samples of counters", len(found))
    rows = np.array([row for row, _, _ in found], np.int64)
    count = len(rows)
    process = spans.process[rows] if count else rows
    columns = {
        "id": np.arange(first, first + count, dtype=np.int64),
        "kind": arrow.constant("counter", count),
        "name": raw.texts([name for _, name, _ in found], "(unnamed)"),
        "start_ns": (spans.starts[rows] if count else rows) + spans.base_ns,
        "end_ns": (spans.starts[rows] if count else rows) + spans.base_ns,
        "process": arrow.nullable(process, process == NONE),
        "value": pa.array([value for _, _, value in found], pa.float64()),
        "source": arrow.constant("chrome", count),
    }
    return arrow.table(columns, count)


def _metadata(
    spans: Spans,
    top: dict[str, msgspec.Raw],
    table: pa.Table,
    devices: list[int],
    *,
    keep_private: bool,
) -> TraceMetadata:
    plain = (lambda name: name) if keep_private else public_text
    known = {f"cuda:{index}": DeviceFacts(index, name=f"GPU {index}") for index in devices}
    for facts in chrome_gpu.listed(fact(top, "deviceProperties"), dict):
        index, name, count = (facts.get(key) for key in ("id", "name", "numSms"))
        if valid.is_short(index) and isinstance(name, str):
            known[f"cuda:{index}"] = DeviceFacts(
                index, name=name[:LONGEST_FACT], sm_count=count if valid.is_short(count) else None
            )
    taken = ("baseTimeNanoseconds", "deviceProperties", "displayTimeUnit", "schemaVersion")
    for key in top:
        if key not in taken:
            spans.left[f"{key[:40]!r} beside the events"] = 1
    named = spans.left.most_common(_MOST_NAMED)
    rest = sum(spans.left.values()) - sum(count for _, count in named)
    notes = ["imported from a Chrome trace"]
    if not keep_private:
        notes.append(LEFT_OUT)
    return TraceMetadata(
        time_base=spans.time_base,
        devices=known,
        process_names=_used(spans.process_names, table.column("process"), plain),
        thread_names=_used(spans.thread_names, table.column("thread"), plain),
        counts={
            "received": table.num_rows,
            **{f"{what} not taken": count for what, count in named},
            **({"others not taken": rest} if rest else {}),
        },
        notes=tuple(notes),
    )


def _used(
    names: dict[int, str], column: pa.ChunkedArray, plain: Callable[[str], str]
) -> dict[str, str]:
    wanted = set(column.unique().to_pylist())
    return {str(number): plain(name) for number, name in names.items() if number in wanted}
