"""Tables of Nsight Systems' SQLite export, schema 3.20.3, as far as traces fill them.

Columns, their order and the enumerations are those of a genuine export; what a trace cannot
know is null there. Tables whose names begin with ``GPUSCOPE`` are ours: Nsight Systems has none
for handles, thread blocks, counters and host functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from gpuscope._types import Array
from gpuscope.trace.facts import HazardFact
from gpuscope.trace.schema import EDGE_TYPES, SPAN_TYPES

Row: TypeAlias = Mapping[str, object]
"""Column → value."""
Column: TypeAlias = Array | list[object]
Chunk: TypeAlias = tuple[str, list[str], list[list[object]], int]
"""Table, columns, their values for some rows, and how many spans these are."""

VERSION = "3.20.3"
VM = 1 << 48

_WHERE = "deviceId contextId greenContextId streamId correlationId globalPid"
_CONFIG = "registersPerThread gridX gridY gridZ blockX blockY blockZ"

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
REST = "GPUSCOPE_SPANS"
EDGES = "GPUSCOPE_EDGES"
HAZARDS = "GPUSCOPE_HAZARDS"
METADATA = "GPUSCOPE_METADATA"

CATEGORY, MARK, PUSH_POP, START_END, DOMAIN = 33, 34, 59, 60, 75
"""``NVTX_EVENTS.eventType``."""

_TEXTS = {"name", "value", "text", "label", "jsonText", "binaryData", "uuid", "chipName",
          "busLocation", "utcTime", "localTime", "kind", "first_name", "second_name",
          "first_stream", "second_stream", "buffer", "mend", "status",
          "waits", "awaits", "where", "behind"}  # fmt: skip
_FLOATS = {"doubleValue", "floatValue"}

TABLES = {
    "StringIds": "id value",
    KERNEL: f"start end {_WHERE} demangledName shortName mangledName launchType cacheConfig "
    f"{_CONFIG} staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal "
    "gridId sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
    MEMCPY: f"start end {_WHERE} bytes copyKind deprecatedSrcId srcKind dstKind srcDeviceId "
    "srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress copyCount",
    MEMSET: f"start end {_WHERE} memsetValue bytes graphNodeId memKind",
    RUNTIME: "start end eventClass globalTid correlationId nameId returnValue callchainId",
    NVTX: "start end eventType rangeId category_ color text globalTid endGlobalTid textId domainId "
    "uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText "
    "binaryData",
    "TARGET_INFO_GPU": "vmId id name busLocation isDiscrete l2CacheSize totalMemory "
    "memoryBandwidth clockRate smCount pwGpuId uuid luid chipName cuDevice",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId hwId vmId processId deviceId contextId "
    "parentContextId isGreenContext",
    "TARGET_INFO_CUDA_STREAM": "streamId hwId vmId processId contextId priority flag",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "ThreadNames": "nameId priority globalTid",
    "PROCESSES": "globalPid pid name",
    "META_DATA_EXPORT": "name value",
    "META_DATA_CAPTURE": "name value",
    "EXPORT_META_DATA": "name value",
    HAZARDS: " ".join(HazardFact.__struct_fields__),
    METADATA: "name value",
}
"""Table → its columns."""

_SPELT = {"category_": "category", "memsetValue": "value"}
"""Two columns that are whole numbers where the same name means text in other tables."""

_ALL = (
    "id parent partition intended_partition channel "
    "external_correlation graph queued_ns submitted_ns flop_count status "
    "source start_uncertainty_ns end_uncertainty_ns process thread device"
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

ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": tuple(
        (f"CUDA_MEMCPY_KIND_{name}", label)
        for name, label in (
            ("UNKNOWN", "Unknown"), ("HTOD", "Host-to-Device"), ("DTOH", "Device-to-Host"),
            ("HTOA", "Host-to-Array"), ("ATOH", "Array-to-Host"), ("ATOA", "Array-to-Array"),
            ("ATOD", "Array-to-Device"), ("DTOA", "Device-to-Array"), ("DTOD", "Device-to-Device"),
            ("HTOH", "Host-to-Host"), ("PTOP", "Peer-to-Peer"),
            ("UVM_HTOD", "Unified Host-to-Device"), ("UVM_DTOH", "Unified Device-to-Host"),
            ("UVM_DTOD", "Unified Device-to-Device"),
        )
    ),
    "ENUM_CUDA_MEM_KIND": tuple(
        (f"CUDA_MEMOPR_MEMORY_KIND_{label.upper().replace(' ', '_')}", label)
        for label in ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static",
                      "Managed Static", "Unknown")
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
}  # fmt: skip
"""Table → (symbol, label) by number."""

EVENT_TYPES = {
    CATEGORY: "NvtxCategory", MARK: "NvtxMark", PUSH_POP: "NvtxPushPopRange",
    START_END: "NvtxStartEndRange", DOMAIN: "NvtxDomainCreate",
}  # fmt: skip


def statements(extra: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what makes the tables, with the enumerations filled.

    Parameters
    ----------
    extra
        Table → columns of ours, by the trace's names; a table that Nsight does not have is made
        of them alone.
    """
    made = []
    for table in (*TABLES, *(one for one in extra if one not in TABLES)):
        inside = []
        for name in TABLES.get(table, "").split():
            kind = "TEXT" if name in _TEXTS else "REAL" if name in _FLOATS else "INTEGER"
            key = " NOT NULL PRIMARY KEY" if (table, name) == ("StringIds", "id") else ""
            inside.append(f'"{_SPELT.get(name, name)}" {kind}{key}')
        for name in extra.get(table, ()):
            arrow = {**SPAN_TYPES, **EDGE_TYPES}[name]
            kind = "TEXT" if pa.types.is_dictionary(arrow) else "INTEGER"
            inside.append(f'"{name}" {"REAL" if pa.types.is_floating(arrow) else kind}')
        made.append(f"CREATE TABLE {table} ({', '.join(inside)})")
    enums = {name: dict(enumerate(pairs)) for name, pairs in ENUMS.items()}
    enums["ENUM_NSYS_EVENT_TYPE"] = {number: (one, one) for number, one in EVENT_TYPES.items()}
    for name, pairs in enums.items():
        made.append(f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
        rows = ", ".join(
            f"({number}, '{one}', '{label}')" for number, (one, label) in pairs.items()
        )
        made.append(f"INSERT INTO {name} VALUES {rows}")  # noqa: S608 - our own constants
    return made
