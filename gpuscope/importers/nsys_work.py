"""Kernels, copies, API calls and waits of an export of Nsight Systems."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.importers.nsys_capture import API, KERNEL, Capture, Part
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE, Columns

COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
SET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_PLACE = ("deviceId", "contextId", "greenContextId", "streamId", "globalPid")
_SHARED = ("start", "end", "correlationId", "graphNodeId", *_PLACE)
_NAMES = ("demangledName", "shortName", "mangledName")
_CONFIG = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread",
           "staticSharedMemory", "dynamicSharedMemory")  # fmt: skip
COPY_KINDS = ("unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH",
               "PtoP", "UVM HtoD", "UVM DtoH", "UVM DtoD")  # fmt: skip
MEMORY_KINDS = ("pageable", "pinned", "device", "array", "managed", "device static",
                 "managed static", "unknown")  # fmt: skip
_SYNC_KINDS = ("unknown", "event synchronize", "stream wait event", "stream synchronize",
               "context synchronize")  # fmt: skip
_WAIT = 2
_PROCESS = ~0xFFFFFF

_Columns = dict[str, Array]


# -- calls ---------------------------------------------------------------------------------
def read_calls(capture: Capture, ranges: Part) -> Part:
    """Return the API calls; each knows the innermost push/pop range of its thread."""
    wanted = ("start", "end", "globalTid", "correlationId", "nameId", "returnValue")
    found = capture.database.integers(API, wanted)
    count = len(found["start"])
    starts = capture.times(found["start"])
    around = joins.innermost(
        found["globalTid"], starts, *(ranges.joins[one] for one in ("owner", "starts", "ends"))
    )
    known = ranges.joins["rows"]
    parents = np.where(around >= 0, known[around], NONE) if len(known) else around
    returned, codes = arrow.coded(found["returnValue"])
    columns = {
        "parent": arrow.nullable(parents, parents == NONE),
        "kind": arrow.constant("api", count),
        "name": capture.texts(found["nameId"], "(unnamed call)"),
        "start_ns": starts,
        "end_ns": capture.ends(found["end"]),
        **capture.thread_columns(found["globalTid"]),
        "correlation": arrow.nullable(found["correlationId"], found["correlationId"] == NONE),
        "status": arrow.text_column(
            returned, [f"returned {code}" if code not in {0, NONE} else None for code in codes]
        ),
        "source": arrow.constant("nsys", count),
    }
    return Part(
        API,
        columns,
        capture.rows(count),
        {
            "process": found["globalTid"] & _PROCESS,
            "correlation": found["correlationId"],
            "globalTid": found["globalTid"],
            "end": found["end"],
        },
    )


def _call_of(calls: Part, process: Array, correlation: Array) -> Array:
    """Return the position of the API call of each row, by process and correlation id."""
    both = np.r_[calls.joins["process"], process]
    code = arrow.coded(both)[0].astype(np.int64) << 32
    number = np.r_[calls.joins["correlation"], correlation] & 0xFFFFFFFF
    count = len(calls.rows)
    found = joins.match((code | number)[count:], (code | number)[:count])
    return np.where(correlation > 0, found, NONE)


# -- work ----------------------------------------------------------------------------------
def read_work(capture: Capture, calls: Part) -> list[Part]:
    """Return kernels, copies, memsets, and launches of graphs that were taken as a whole."""
    return [
        _work(capture, calls, table, *how)
        for table, how in TABLES.items()
        if capture.database.has(table, "start", "end")
    ]


def _work(
    capture: Capture,
    calls: Part,
    table: str,
    kind: str,
    extra: tuple[str, ...],
    describe: Callable[[Capture, _Columns], Columns],
) -> Part:
    named = (_name_column(capture),) if table == KERNEL else ()
    found = capture.database.integers(table, (*_SHARED, *named, *extra))
    count = len(found["start"])
    process = found["globalPid"] & _PROCESS
    at = _call_of(calls, process, found["correlationId"])
    ids, ends, threads = (
        np.where(at >= 0, values[at], NONE) if len(values) else np.full(count, NONE, np.int64)
        for values in (calls.rows, calls.joins["end"], calls.joins["globalTid"])
    )
    node = found["graphNodeId"]
    unknown = threads == NONE
    processes = np.where(unknown, found["globalPid"], threads)
    columns = {
        "kind": arrow.constant(kind, count),
        "start_ns": capture.times(found["start"]),
        "end_ns": capture.ends(found["end"]),
        **capture.thread_columns(processes),
        "thread": capture.thread_columns(threads)["thread"],
        **capture.places(found),
        "correlation": arrow.nullable(found["correlationId"], found["correlationId"] == NONE),
        # CUPTI numbers a node below its graph, which has the upper 32 bits.
        "graph": arrow.nullable(node >> 32, node >> 32 <= 0),
        "graph_node": arrow.nullable(node, node == NONE if capture.own is not None else node <= 0),
        "queued_ns": capture.ends(ends),
        "source": arrow.constant("nsys", count),
        **describe(capture, found),
    }
    return Part(
        table,
        columns,
        capture.rows(count),
        {
            "call": ids,
            "process": process,
            "stream": capture.stream_numbers(found),
            "correlation": found["correlationId"],
            "start": found["start"],
        },
    )


def _name_column(capture: Capture) -> str:
    """Return the column of kernels' names; not every report has the first."""
    there = capture.database.tables.get(KERNEL, ())
    return next((one for one in _NAMES if one in there), _NAMES[0])


def _kernel(capture: Capture, found: _Columns) -> Columns:
    return {
        "name": capture.texts(found[_name_column(capture)], "(unnamed kernel)"),
        "launch_config": _launch_config(*(found[one] for one in _CONFIG)),
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
    shared = [one for one in values[7:] if one != NONE]
    if shared:
        facts["shared_memory"] = sum(shared)
    return json.dumps(facts)


def _copy(capture: Capture, found: _Columns) -> Columns:
    kinds = capture.words("ENUM_CUDA_MEMCPY_OPER", "CUDA_MEMCPY_KIND_", COPY_KINDS)
    codes, numbers = arrow.coded(found["copyKind"])
    words = [kinds.get(number, f"kind {number}") for number in numbers]
    return {
        "name": arrow.text_column(codes, [f"{word} copy" for word in words]),
        "copy_kind": arrow.text_column(codes, [*words]),
        "src_kind": _memory(capture, found["srcKind"]),
        "dst_kind": _memory(capture, found["dstKind"]),
        "nbytes": arrow.nullable(found["bytes"], found["bytes"] == NONE),
    }


def _set(capture: Capture, found: _Columns) -> Columns:
    return {
        "name": arrow.constant("memset", len(found["start"])),
        "dst_kind": _memory(capture, found["memKind"]),
        "nbytes": arrow.nullable(found["bytes"], found["bytes"] == NONE),
    }


def _memory(capture: Capture, values: Array) -> pa.DictionaryArray:
    kinds = capture.words("ENUM_CUDA_MEM_KIND", "CUDA_MEMOPR_MEMORY_KIND_", MEMORY_KINDS)
    codes, numbers = arrow.coded(values)
    return arrow.text_column(
        codes, [None if one == NONE else kinds.get(one, f"kind {one}") for one in numbers]
    )


def _graph(capture: Capture, found: _Columns) -> Columns:
    graph = np.where(found["graphExecId"] != NONE, found["graphExecId"], found["graphId"])
    count = len(graph)
    if count:
        capture.complete = False
        capture.notes.append(
            f"{count:,} launches of graphs were recorded as a whole (kind graph): their kernels "
            "are in no overlap, concurrency or confinement. Record with nsys profile "
            "--cuda-graph-trace=node to see them"
        )
    codes, numbers = arrow.coded(graph)
    return {
        "name": arrow.text_column(codes, [f"graph {number}" for number in numbers]),
        "graph": arrow.nullable(graph, graph == NONE),
    }


TABLES = {
    KERNEL: ("kernel", _CONFIG, _kernel),
    COPY: ("memcpy", ("bytes", "copyKind", "srcKind", "dstKind"), _copy),
    SET: ("memset", ("bytes", "memKind"), _set),
    GRAPH: ("graph", ("graphId", "graphExecId"), _graph),
}
"""Table → kind of its rows, columns beside those that all have, and what these say."""


# -- waits ---------------------------------------------------------------------------------
def read_syncs(capture: Capture, calls: Part) -> Part:
    """Return synchronisations, on the thread of their API call."""
    wanted = ("start", "end", "correlationId", "syncType", "eventId", "eventSyncId", *_PLACE)
    found = capture.database.integers(SYNC, wanted)
    count = len(found["start"])
    process = found["globalPid"] & _PROCESS
    at = _call_of(calls, process, found["correlationId"])
    threads = np.full(count, NONE, np.int64)
    if len(calls.rows):
        threads = np.where(at >= 0, calls.joins["globalTid"][at], NONE)
    places = capture.places(found)
    codes, kinds = arrow.coded(found["syncType"])
    words = capture.words("ENUM_CUPTI_SYNC_TYPE", "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_",
                          _SYNC_KINDS)  # fmt: skip
    columns = {
        "kind": arrow.constant("sync", count),
        "name": arrow.text_column(codes, [words.get(one, f"sync {one}") for one in kinds]),
        "start_ns": capture.times(found["start"]),
        "end_ns": capture.ends(found["end"]),
        "process": capture.thread_columns(found["globalPid"])["process"],
        "thread": capture.thread_columns(threads)["thread"],
        **{name: places[name] for name in ("device", "device_uuid", "context", "stream")},
        "correlation": arrow.nullable(found["correlationId"], found["correlationId"] == NONE),
        "source": arrow.constant("nsys", count),
    }
    is_wait = found["syncType"] == _WAIT
    keys = {
        "process": process,
        "stream": capture.stream_numbers(found),
        "correlation": found["correlationId"],
        "event": found["eventId"],
        "moment": found["eventSyncId"],
    }
    joined = {name: one[is_wait] for name, one in keys.items()}
    return Part(SYNC, columns, capture.rows(count), joined)


def launch_edges(work: list[Part]) -> tuple[Array, Array]:
    """Return (call, work) for all work whose call is known."""
    pairs = [(part.joins["call"], part.rows) for part in work]
    source, target = (
        np.concatenate([np.zeros(0, np.int64), *(pair[side] for pair in pairs)]) for side in (0, 1)
    )
    return source[source != NONE], target[source != NONE]


def wait_edges(capture: Capture, work: list[Part], syncs: Part) -> tuple[Array, Array]:
    """Return (work, work): what an event was recorded after, and what first waited for it.

    CUPTI numbers API calls in their order, and each moment at which an event was recorded.
    """
    wanted = ("correlationId", "eventId", "eventSyncId", *_PLACE)
    recorded = capture.database.integers(EVENT, wanted)
    waits = syncs.joins
    count = len(recorded["eventId"])
    moments = arrow.coded_rows(
        np.r_[recorded["globalPid"] & _PROCESS, waits["process"]],
        np.r_[recorded["eventId"], waits["event"]],
        np.r_[recorded["eventSyncId"], waits["moment"]],
    )[0]
    record = joins.match(moments[count:], moments[:count])
    wait = np.flatnonzero(record >= 0)
    record = record[wait]
    rows = np.concatenate([np.zeros(0, np.int64), *(part.rows for part in work)])
    if not len(wait) or not len(rows):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def joined(name: str, of_records: Array) -> list[Array]:
        parts = [part.joins[name] for part in work]
        return [np.concatenate(parts), of_records[record], waits[name][wait]]

    places = [
        joined("process", recorded["globalPid"] & _PROCESS),
        joined("stream", capture.stream_numbers(recorded)),
    ]
    home = arrow.coded_rows(*(np.concatenate(one) for one in places))[0].astype(np.int64)
    number = np.concatenate(joined("correlation", recorded["correlationId"]))
    key = home << _HOME | number & ((1 << _HOME) - 1)
    order = np.lexsort((np.concatenate([part.joins["start"] for part in work]), key[: len(rows)]))
    done = key[: len(rows)][order]
    recording, waiting = np.split(key[len(rows) :], 2)
    before = np.asarray(np.searchsorted(done, recording)) - 1
    after = np.minimum(np.searchsorted(done, waiting, "right"), len(done) - 1)
    good = (before >= 0) & (done[before] >> _HOME == recording >> _HOME)
    good &= (done[after] > waiting) & (done[after] >> _HOME == waiting >> _HOME)
    pairs = np.stack([rows[order][before[good]], rows[order][after[good]]])
    before_each, after_each = np.unique(pairs, axis=1)
    return before_each, after_each


_HOME = 32
"""Bits of a correlation id, below the number of a stream."""
