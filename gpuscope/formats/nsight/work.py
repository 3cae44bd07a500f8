"""Kernels, copies, API calls and waits of an export of Nsight Systems."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.formats.nsight import schema as nsys
from gpuscope.formats.nsight.capture import OpenExport, SpanColumns
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE, Columns
from gpuscope.trace.schema import SYNC_KINDS
from gpuscope.trace.waits import STREAM_SYNC, by_kind, by_stream, wait_edges

_PLACE = ("deviceId", "contextId", "greenContextId", "streamId", "globalPid")
_SHARED = ("start", "end", "correlationId", "graphNodeId", *_PLACE)
_NAMES = ("demangledName", "shortName", "mangledName")
_PROCESS = ~nsys.ID

_Columns = dict[str, Array]


# -- calls ---------------------------------------------------------------------------------
def read_calls(capture: OpenExport, ranges: SpanColumns) -> SpanColumns:
    """Return the API calls; each knows the innermost push/pop range of its thread."""
    wanted = ("start", "end", "globalTid", "correlationId", "nameId", "returnValue")
    table = capture.database.integers(nsys.RUNTIME, wanted)
    columns = capture.shared("api", table)
    range_columns = (ranges.joins[name] for name in ("owner", "starts", "ends"))
    around = joins.innermost(table["globalTid"], columns["start_ns"], *range_columns)
    columns |= {
        "parent": arrow.nullable(arrow.picked(ranges.joins["rows"], around)),
        "name": capture.texts(table["nameId"], "(unnamed call)"),
        **capture.thread_columns(table["globalTid"]),
        "status": arrow.worded(
            table["returnValue"], lambda code: f"returned {code}" if code not in {0, NONE} else None
        ),
    }
    keys = {"globalTid": table["globalTid"], "end": table["end"]}
    keys |= {"process": table["globalTid"] & _PROCESS, "correlation": table["correlationId"]}
    return SpanColumns(nsys.RUNTIME, columns, capture.rows(len(around)), keys)


def _call_of(calls: SpanColumns, process: Array, correlation: Array) -> Array:
    """Return the position of the API call of each row, by process and correlation id."""
    both = np.r_[calls.joins["process"], process]
    code = arrow.coded(both)[0].astype(np.int64) << 32
    number = np.r_[calls.joins["correlation"], correlation] & 0xFFFFFFFF
    count = len(calls.rows)
    positions = joins.match((code | number)[count:], (code | number)[:count])
    return np.where(correlation > 0, positions, NONE)


# -- work ----------------------------------------------------------------------------------
def read_work(capture: OpenExport, calls: SpanColumns) -> list[SpanColumns]:
    """Return kernels, copies, memsets, and launches of graphs that were taken as a whole."""
    present = [table for table in TABLES if capture.database.has(table, "start", "end")]
    return [_work(capture, calls, table, *TABLES[table]) for table in present]


def _work(
    capture: OpenExport,
    calls: SpanColumns,
    table: str,
    kind: str,
    extra: tuple[str, ...],
    describe: Callable[[OpenExport, _Columns], Columns],
) -> SpanColumns:
    named = (_name_column(capture),) if table == nsys.KERNEL else ()
    values = capture.database.integers(table, (*_SHARED, *named, *extra))
    process = values["globalPid"] & _PROCESS
    at = _call_of(calls, process, values["correlationId"])
    threads = arrow.picked(calls.joins["globalTid"], at)
    node = values["graphNodeId"]
    columns = {
        **capture.shared(kind, values),
        **capture.thread_columns(np.where(threads == NONE, values["globalPid"], threads)),
        "thread": capture.thread_columns(threads)["thread"],
        **capture.places(values),
        # CUPTI numbers a node below its graph, which has the upper 32 bits.
        "graph": arrow.nullable(node >> 32, node >> 32 <= 0),
        "graph_node": arrow.nullable(node, node == NONE if capture.is_own else node <= 0),
        "queued_ns": capture.ends(arrow.picked(calls.joins["end"], at)),
        **describe(capture, values),
    }
    keys = {
        "call": arrow.picked(calls.rows, at),
        **_place(capture, values),
        "start": values["start"],
        "end": values["end"],
    }
    return SpanColumns(table, columns, capture.rows(len(node)), keys)


def _name_column(capture: OpenExport) -> str:
    """Return the column of kernels' names; not every report has the first."""
    columns = capture.database.tables.get(nsys.KERNEL, ())
    return next((column for column in _NAMES if column in columns), _NAMES[0])


def _kernel(capture: OpenExport, table: _Columns) -> Columns:
    return {
        "name": capture.texts(table[_name_column(capture)], "(unnamed kernel)"),
        "launch_config": _launch_config(*(table[name] for name in nsys.CONFIG)),
    }


def _launch_config(*columns: Array) -> pa.DictionaryArray:
    """Return the launch configurations as JSON, each distinct one once."""
    codes, distinct = arrow.coded_array(*columns)
    return arrow.text_column(codes, (_config(row.tolist()) for row in distinct))


def _config(values: list[int]) -> str | None:
    if NONE in values[:6]:
        return None
    facts: dict[str, int | list[int]] = {"grid": values[:3], "block": values[3:6]}
    if values[6] != NONE:
        facts["registers"] = values[6]
    shared = [nbytes for nbytes in values[7:] if nbytes != NONE]
    if shared:
        facts["shared_memory"] = sum(shared)
    return json.dumps(facts)


def _copy(capture: OpenExport, table: _Columns) -> Columns:
    kinds = capture.words("ENUM_CUDA_MEMCPY_OPER", nsys.COPY_SYMBOL, nsys.COPY_KINDS)
    codes, numbers = arrow.coded(table["copyKind"])
    words = [kinds.get(number, f"kind {number}") for number in numbers]
    return {
        "name": arrow.text_column(codes, (f"{word} copy" for word in words)),
        "copy_kind": arrow.text_column(codes, words),
        "src_kind": _memory(capture, table["srcKind"]),
        "dst_kind": _memory(capture, table["dstKind"]),
        "nbytes": arrow.nullable(table["bytes"]),
    }


def _set(capture: OpenExport, table: _Columns) -> Columns:
    return {
        "name": arrow.constant("memset", len(table["start"])),
        "dst_kind": _memory(capture, table["memKind"]),
        "nbytes": arrow.nullable(table["bytes"]),
    }


def _memory(capture: OpenExport, values: Array) -> pa.DictionaryArray:
    kinds = capture.words("ENUM_CUDA_MEM_KIND", nsys.MEMORY_SYMBOL, nsys.MEMORY_KINDS)
    return arrow.worded(
        values, lambda number: None if number == NONE else kinds.get(number, f"kind {number}")
    )


def _graph(capture: OpenExport, table: _Columns) -> Columns:
    graph = np.where(table["graphExecId"] != NONE, table["graphExecId"], table["graphId"])
    count = len(graph)
    if count:
        capture.complete = False
        capture.notes.append(
            f"{count:,} launches of graphs were recorded as a whole (kind graph): their kernels "
            "are in no overlap, concurrency or confinement. Record with nsys profile "
            "--cuda-graph-trace=node to see them"
        )
    return {"name": arrow.worded(graph, "graph {}".format), "graph": arrow.nullable(graph)}


TABLES = {
    nsys.KERNEL: ("kernel", nsys.CONFIG, _kernel),
    nsys.MEMCPY: ("memcpy", ("bytes", "copyKind", "srcKind", "dstKind"), _copy),
    nsys.MEMSET: ("memset", ("bytes", "memKind"), _set),
    nsys.GRAPH: ("graph", ("graphId", "graphExecId"), _graph),
}
"""Table → kind of its rows, columns beside those that all have, and what these say."""


# -- waits ---------------------------------------------------------------------------------
def read_syncs(capture: OpenExport, calls: SpanColumns) -> SpanColumns:
    """Return synchronisations, on the thread of their API call."""
    wanted = ("start", "end", "correlationId", "syncType", "eventId", "eventSyncId", *_PLACE)
    table = capture.database.integers(nsys.SYNC, wanted)
    process = table["globalPid"] & _PROCESS
    at = _call_of(calls, process, table["correlationId"])
    threads = arrow.picked(calls.joins["globalTid"], at)
    places = capture.places(table)
    prefix = "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_"
    words = capture.words("ENUM_CUPTI_SYNC_TYPE", prefix, SYNC_KINDS)
    columns = {
        **capture.shared("sync", table),
        "name": arrow.worded(table["syncType"], lambda number: words.get(number, f"sync {number}")),
        "process": capture.thread_columns(table["globalPid"])["process"],
        "thread": capture.thread_columns(threads)["thread"],
        **{name: places[name] for name in ("device", "device_uuid", "context", "stream")},
    }
    keys = {
        **_place(capture, table),
        "event": table["eventId"],
        "moment": table["eventSyncId"],
        "what": table["syncType"],
    }
    return SpanColumns(nsys.SYNC, columns, capture.rows(len(process)), keys)


def _place(capture: OpenExport, table: _Columns) -> _Columns:
    """Return what tells a stream and a call from others."""
    return {
        "process": table["globalPid"] & _PROCESS,
        "context": table["contextId"],
        "stream": capture.stream_numbers(table),
        "correlation": table["correlationId"],
    }


def launch_edges(work: list[SpanColumns]) -> list[tuple[Array, Array, str]]:
    """Return (call, work) for all work whose call is known."""
    edges = []
    for part in work:
        has_call = part.joins["call"] != NONE
        edges.append((part.joins["call"][has_call], part.rows[has_call], "launch"))
    return edges


def read_wait_edges(
    capture: OpenExport, work: list[SpanColumns], syncs: SpanColumns
) -> list[tuple[Array, Array, str]]:
    """Return edges to what waited for events, streams and contexts.

    CUPTI numbers API calls in their order, and each moment at which an event was recorded.
    """
    wanted = ("correlationId", "eventId", "eventSyncId", *_PLACE)
    recorded = capture.database.integers(nsys.EVENT, wanted)
    waits, events = syncs.joins, _place(capture, recorded)
    count = len(recorded["eventId"])
    moments = arrow.coded_rows(
        np.r_[events["process"], waits["process"]],
        np.r_[recorded["eventId"], waits["event"]],
        np.r_[recorded["eventSyncId"], waits["moment"]],
    )[0]
    record = joins.match(moments[count:], moments[:count])
    parts = [waits, events, *(part.joins for part in work)]
    process, context, stream, number = (
        np.concatenate([part[name] for part in parts])
        for name in ("process", "context", "stream", "correlation")
    )
    number &= _LOW
    key = arrow.coded_rows(process, context)[0].astype(np.int64) << 32 | stream & _LOW
    launch = arrow.coded_rows(process)[0].astype(np.int64) << 32 | number
    of_waits, of_events, of_work = np.split(np.arange(len(key)), np.cumsum([len(record), count]))
    empty = [np.zeros(0, np.int64)]
    rows = np.concatenate([*empty, *(part.rows for part in work)])
    table = {"first": rows, "last": rows, "device": rows * 0, "launch": launch[of_work]}
    for name in ("start", "end"):
        table[name] = np.concatenate([*empty, *(part.joins[name] for part in work)])
    table |= {"key": key[of_work], "number": number[of_work]}
    at = np.where(waits["what"] == STREAM_SYNC, of_waits, arrow.picked(of_events, record))
    of = {"of_key": arrow.picked(key, at), "of_number": arrow.picked(number, at)}
    of |= {"key": key[of_waits], "number": number[of_waits], "what": waits["what"]}
    of |= {"row": syncs.rows, "is_done": np.zeros(len(record), np.int64)}
    wait, source, target = wait_edges(by_stream(table), of)
    return by_kind(waits["what"][wait], source, target)


_LOW = (1 << 32) - 1
"""Bits of a correlation id, and of a stream's number."""
