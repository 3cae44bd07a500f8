"""What Nsight's tables say beside spans: devices, contexts, streams, threads, who wrote them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from gpuscope.exporters import nsys_schema as nsys
from gpuscope.exporters.about import version
from gpuscope.exporters.numbers import Contexts, Ids
from gpuscope.trace import schema
from gpuscope.trace.model import Trace

_VM = 1 << 48


def facts(
    trace: Trace, ids: Ids, contexts: Contexts, strings: dict[str, int], base_ns: int, last_ns: int
) -> dict[str, Sequence[nsys.Row]]:
    """Return the rows of every table that is not of spans, the strings last."""
    known = trace.metadata
    moment = dt.datetime.fromtimestamp(base_ns // 10**9, dt.UTC).strftime("%FT%T")
    major, minor, micro = nsys.VERSION.split(".")
    export = {
        "EXPORT_PRODUCT_NAME": "gpuscope",
        "EXPORT_PRODUCT_VERSION": version(),
        "EXPORT_SCHEMA_VERSION": nsys.VERSION,
        "EXPORT_SCHEMA_VERSION_MAJOR": major,
        "EXPORT_SCHEMA_VERSION_MINOR": minor,
        "EXPORT_SCHEMA_VERSION_MICRO": micro,
    }
    ours = {"schema_version": str(schema.SCHEMA_VERSION), "metadata": known.to_json()}
    capture = {"CAPTURE_PRODUCT_NAME": "gpuscope"}
    if known.incomplete:
        ours["incomplete"] = capture["CAPTURE_INCOMPLETE"] = known.incomplete
    processes = ids.processes()
    devices = [one for one in known.devices.values() if one.index is not None]
    threads = [
        {"nameId": strings.setdefault(name, len(strings)), "globalTid": thread}
        for thread, name in ids.thread_names()
    ]
    return {
        "TARGET_INFO_GPU": [
            {"vmId": _VM, "id": one.index, "name": one.name, "smCount": one.sm_count,
             "uuid": one.uuid, "cuDevice": one.index}
            for one in devices
        ],
        "TARGET_INFO_CUDA_DEVICE": [
            {"gpuId": one.index, "cudaId": one.index, "pid": pid}
            for one in devices for pid in processes
        ],
        "TARGET_INFO_CUDA_CONTEXT_INFO": contexts.contexts(ids.pid),
        "TARGET_INFO_CUDA_STREAM": contexts.streams(ids.pid),
        "TARGET_INFO_SESSION_START_TIME": [
            {"utcEpochNs": base_ns, "utcTime": moment, "localTime": moment}
        ],
        "ANALYSIS_DETAILS": [
            {"globalVid": _VM, "duration": last_ns, "startTime": 0, "stopTime": last_ns}
        ],
        "ThreadNames": threads,
        "PROCESSES": [
            {"globalPid": _VM | pid << 24, "pid": pid, "name": name}
            for pid, name in processes.items()
        ],
        **{
            table: [{"name": name, "value": value} for name, value in lines.items()]
            for table, lines in {
                "META_DATA_EXPORT": export, "EXPORT_META_DATA": export,
                "META_DATA_CAPTURE": capture,
                nsys.METADATA: ours,
            }.items()
        },
        "StringIds": [{"id": number, "value": text} for text, number in strings.items()],
    }  # fmt: skip
