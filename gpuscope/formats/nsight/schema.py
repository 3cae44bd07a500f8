"""Tables of Nsight Systems' SQLite export, schema 3.20.3, as far as traces fill them.

Columns, their order and the enumerations are those of a genuine export; what a trace cannot
know is null there. Tables whose names begin with ``GPUSCOPE`` are ours: Nsight Systems has none
for handles, thread blocks, counters and host functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, get_args, get_type_hints

import pyarrow as pa

from gpuscope._types import Array
from gpuscope.trace import schema
from gpuscope.trace.facts import HazardFact

Column: TypeAlias = Array | list[object]
Chunk: TypeAlias = tuple[str, list[str], list[list[object]], int]
"""Table, columns, their values for some rows, and how many spans these are."""

VERSION = "3.20.3"
VM = 1 << 48
BITS = 24
"""Of a process's and of a thread's number, in a ``globalTid`` one above the other."""
ID = (1 << BITS) - 1
"""Mask of such a number."""

_WHERE = "deviceId contextId greenContextId streamId correlationId globalPid"
CONFIG = (
    *(f"{size}{axis}" for size in ("grid", "block") for axis in "XYZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
"""Columns of a launch configuration."""

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NVTX = "NVTX_EVENTS"
REST = "GPUSCOPE_SPANS"
EDGES = "GPUSCOPE_EDGES"
HAZARDS = "GPUSCOPE_HAZARDS"
METADATA = "GPUSCOPE_METADATA"

CATEGORY, MARK, PUSH_POP, START_END, DOMAIN, DOMAIN_END = 33, 34, 59, 60, 75, 76
"""``NVTX_EVENTS.eventType``."""

TABLES = {
    "StringIds": "id value:TEXT",
    KERNEL: f"start end {_WHERE} demangledName shortName mangledName launchType cacheConfig "
    f"{CONFIG[6]} {' '.join((*CONFIG[:6], *CONFIG[7:]))} localMemoryPerThread localMemoryTotal "
    "gridId sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
    MEMCPY: f"start end {_WHERE} bytes copyKind deprecatedSrcId srcKind dstKind srcDeviceId "
    "srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress copyCount",
    MEMSET: f"start end {_WHERE} value bytes graphNodeId memKind",
    RUNTIME: "start end eventClass globalTid correlationId nameId returnValue callchainId",
    NVTX: "start end eventType rangeId category color text:TEXT globalTid endGlobalTid textId "
    "domainId uint64Value int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL "
    "jsonTextId jsonText:TEXT binaryData:TEXT",
    "TARGET_INFO_GPU": "vmId id name:TEXT busLocation:TEXT isDiscrete l2CacheSize totalMemory "
    "memoryBandwidth clockRate smCount pwGpuId uuid:TEXT luid chipName:TEXT cuDevice",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId hwId vmId processId deviceId contextId "
    "parentContextId isGreenContext",
    "TARGET_INFO_CUDA_STREAM": "streamId hwId vmId processId contextId priority flag",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "ThreadNames": "nameId priority globalTid",
    "PROCESSES": "globalPid pid name:TEXT",
    "META_DATA_EXPORT": "name:TEXT value:TEXT",
    "META_DATA_CAPTURE": "name:TEXT value:TEXT",
    "EXPORT_META_DATA": "name:TEXT value:TEXT",
    HAZARDS: " ".join(
        name if int in (kind, *get_args(kind)) else f"{name}:TEXT"
        for name, kind in get_type_hints(HazardFact).items()
    ),
    METADATA: "name:TEXT value:TEXT",
}
"""Table → its columns, with the types of those that are no whole numbers."""


def columns_of(table: str) -> list[str]:
    """Return the names of a table's columns."""
    return [column.partition(":")[0] for column in TABLES[table].split()]


_ALL = (
    "id parent partition intended_partition channel "
    "external_correlation graph queued_ns submitted_ns flop_count status "
    "source start_uncertainty_ns end_uncertainty_ns process thread device site"
)
_WORK = f"{_ALL} category"
EXTRA = {
    KERNEL: f"{_WORK} nbytes".split(),
    MEMCPY: f"{_WORK} name".split(),
    MEMSET: f"{_WORK} name".split(),
    RUNTIME: f"{_ALL} kind nbytes context green_context stream category".split(),
    NVTX: f"{_ALL} correlation stream".split(),
}
"""Table → columns of ours that Nsight's do not tell, there where some row has a value."""

COPY_KINDS = (*schema.COPY_KINDS, "UVM HtoD", "UVM DtoH", "UVM DtoD")
COPY_SYMBOL = "CUDA_MEMCPY_KIND_"
MEMORY_KINDS = (*schema.MEMORY_KINDS[1:], "unknown")
MEMORY_SYMBOL = "CUDA_MEMOPR_MEMORY_KIND_"


def _symbols(prefix: str, kinds: Sequence[str]) -> list[str]:
    return [prefix + kind.upper().replace(" ", "_") for kind in kinds]


def _copy_label(kind: str) -> str:
    ends = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
    unified = "Unified " if kind.startswith("UVM") else ""
    return "Unknown" if kind == "unknown" else f"{unified}{ends[kind[-4]]}-to-{ends[kind[-1]]}"


ENUMS: dict[str, Sequence[tuple[str, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": list(
        zip(_symbols(COPY_SYMBOL, COPY_KINDS), map(_copy_label, COPY_KINDS), strict=True)
    ),
    "ENUM_CUDA_MEM_KIND": list(
        zip(_symbols(MEMORY_SYMBOL, MEMORY_KINDS), map(str.title, MEMORY_KINDS), strict=True)
    ),
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": (
        ("CUDA_KERNEL_LAUNCH_TYPE_UNKNOWN", "Unknown"),
        ("CUDA_KERNEL_LAUNCH_TYPE_REGULAR", "Regular"),
    ),
    "ENUM_CUPTI_STREAM_TYPE": (
        ("CUPTI_ACTIVITY_STREAM_CREATE_FLAG_UNKNOWN", "Unknown stream type"),
        ("CUPTI_ACTIVITY_STREAM_CREATE_FLAG_DEFAULT", "Default stream"),
        ("CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING", "Non-blocking stream"),
        ("CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL", "Null stream"),
    ),
    "ENUM_NSYS_EVENT_CLASS": (
        ("TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        ("TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
    ),
}
"""Table → (symbol, label) by number."""

EVENT_TYPES = {
    CATEGORY: "NvtxCategory",
    MARK: "NvtxMark",
    PUSH_POP: "NvtxPushPopRange",
    START_END: "NvtxStartEndRange",
    DOMAIN: "NvtxDomainCreate",
}


def statements(extra: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what makes the tables, with the enumerations filled.

    Parameters
    ----------
    extra
        Table → columns of ours, by the trace's names; a table that Nsight does not have is made
        of them alone.
    """
    made = []
    for table in (*TABLES, *(name for name in extra if name not in TABLES)):
        inside = []
        for column in TABLES.get(table, "").split():
            name, _, kind = column.partition(":")
            key = " NOT NULL PRIMARY KEY" if (table, name) == ("StringIds", "id") else ""
            inside.append(f'"{name}" {kind or "INTEGER"}{key}')
        for name in extra.get(table, ()):
            arrow = {**schema.SPAN_TYPES, **schema.EDGE_TYPES}[name]
            kind = "TEXT" if pa.types.is_dictionary(arrow) else "INTEGER"
            inside.append(f'"{name}" {"REAL" if pa.types.is_floating(arrow) else kind}')
        made.append(f"CREATE TABLE {table} ({', '.join(inside)})")
    enums = {name: dict(enumerate(pairs)) for name, pairs in ENUMS.items()}
    enums["ENUM_NSYS_EVENT_TYPE"] = {number: (name, name) for number, name in EVENT_TYPES.items()}
    for name, pairs in enums.items():
        made.append(f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
        rows = ", ".join(
            f"({number}, '{word}', '{label}')" for number, (word, label) in pairs.items()
        )
        made.append(f"INSERT INTO {name} VALUES {rows}")  # noqa: S608 - our own constants
    return made
