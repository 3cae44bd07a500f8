"""Kernels, copies, API calls and waits of an export of Nsight Systems."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.formats.nsight.capture import API, KERNEL, Capture, Part
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
    columns = capture.shared("api", found)
    around = joins.innermost(
        found["globalTid"],
        columns["start_ns"],
        *(ranges.joins[one] for one in ("owner", "starts", "ends")),
    )
    columns |= {
        "parent": arrow.nullable(arrow.picked(ranges.joins["rows"], around)),
        "name": capture.texts(found["nameId"], "(unnamed call)"),
        **capture.thread_columns(found["globalTid"]),
        "status": arrow.worded(
            found["returnValue"], lambda code: f"returned {code}" if code not in {0, NONE} else None
        ),
    }
    keys = {
        "process": found["globalTid"] & _PROCESS,
        "correlation": found["correlationId"],
        "globalTid": found["globalTid"],
        "end": found["end"],
    }
    return Part(API, columns, capture.rows(len(around)), keys)


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
    process = found["globalPid"] & _PROCESS
    at = _call_of(calls, process, found["correlationId"])
    threads = arrow.picked(calls.joins["globalTid"], at)
    node = found["graphNodeId"]
    columns = {
        **capture.shared(kind, found),
        **capture.thread_columns(np.where(threads == NONE, found["globalPid"], threads)),
        "thread": capture.thread_columns(threads)["thread"],
        **capture.places(found),
        # CUPTI numbers a node below its graph, which has the upper 32 bits.
        "graph": arrow.nullable(node >> 32, node >> 32 <= 0),
        "graph_node": arrow.nullable(node, node == NONE if capture.own is not None else node <= 0),
        "queued_ns": capture.ends(arrow.picked(calls.joins["end"], at)),
        **describe(capture, found),
    }
    keys = {
        "call": arrow.picked(calls.rows, at),
        "process": process,
        "stream": capture.stream_numbers(found),
        "correlation": found["correlationId"],
        "start": found["start"],
    }
    return Part(table, columns, capture.rows(len(node)), keys)


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
        "name": arrow.text_column(codes, (f"{word} copy" for word in words)),
        "copy_kind": arrow.text_column(codes, words),
        "src_kind": _memory(capture, found["srcKind"]),
        "dst_kind": _memory(capture, found["dstKind"]),
        "nbytes": arrow.nullable(found["bytes"]),
    }


def _set(capture: Capture, found: _Columns) -> Columns:
    return {
        "name": arrow.constant("memset", len(found["start"])),
        "dst_kind": _memory(capture, found["memKind"]),
        "nbytes": arrow.nullable(found["bytes"]),
    }


def _memory(capture: Capture, values: Array) -> pa.DictionaryArray:
    kinds = capture.words("ENUM_CUDA_MEM_KIND", "CUDA_MEMOPR_MEMORY_KIND_", MEMORY_KINDS)
    return arrow.worded(
        values, lambda number: None if number == NONE else kinds.get(number, f"kind {number}")
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
    return {
        "name": arrow.worded(graph, "graph {}".format),
        "graph": arrow.nullable(graph),
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
    process = found["globalPid"] & _PROCESS
    threads = arrow.picked(
        calls.joins["globalTid"], _call_of(calls, process, found["correlationId"])
    )
    places = capture.places(found)
    words = capture.words("ENUM_CUPTI_SYNC_TYPE", "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_",
                          _SYNC_KINDS)  # fmt: skip
    columns = {
        **capture.shared("sync", found),
        "name": arrow.worded(found["syncType"], lambda number: words.get(number, f"sync {number}")),
        "process": capture.thread_columns(found["globalPid"])["process"],
        "thread": capture.thread_columns(threads)["thread"],
        **{name: places[name] for name in ("device", "device_uuid", "context", "stream")},
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
    return Part(SYNC, columns, capture.rows(len(process)), joined)


def launch_edges(work: list[Part]) -> list[tuple[Array, Array, str]]:
    """Return (call, work) for all work whose call is known."""
    return [
        (part.joins["call"][known], part.rows[known], "launch")
        for part in work
        for known in [part.joins["call"] != NONE]
    ]


def wait_edges(capture: Capture, work: list[Part], syncs: Part) -> list[tuple[Array, Array, str]]:
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
        return []

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
    return [(before_each, after_each, "event wait")]


_HOME = 32
"""Bits of a correlation id, below the number of a stream."""
