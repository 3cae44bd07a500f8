"""What Nsight's columns and the tables beside those of spans take from a trace."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec.structs import asdict

from gpuscope._types import Array
from gpuscope.formats.nsight import schema as nsys
from gpuscope.formats.progress import version
from gpuscope.trace import schema
from gpuscope.trace.arrow import coded_array
from gpuscope.trace.columns import codes, combined, rows_of
from gpuscope.trace.facts import HazardFacts, StreamFacts
from gpuscope.trace.model import Trace

NOTHING = np.iinfo(np.int64).min
"""A value that is not there."""

_BITS = 24
_DEFAULT, _NON_BLOCKING, _NULL = 1, 2, 3
_WORK = ("kernel", "memcpy", "memset", "host function", "block")
CONFIG = (
    *(f"grid{axis}" for axis in "XYZ"), *(f"block{axis}" for axis in "XYZ"), "registersPerThread",
    "staticSharedMemory", "dynamicSharedMemory",
)  # fmt: skip


def config(text: str | None) -> list[int]:
    """Return the numbers of a launch configuration in the order of ``CONFIG``.

    A trace knows the shared memory as one sum: it stands as dynamic.
    """
    try:
        facts = json.loads(text or "{}")
        numbers = [*facts.get("grid", [NOTHING] * 3), *facts.get("block", [NOTHING] * 3)]
        static = facts.get("static_shared_memory", NOTHING)
        shared = facts.get("dynamic_shared_memory", facts.get("shared_memory", NOTHING))
        numbers += [facts.get("registers", NOTHING), static, shared]
        found = [int(one) for one in numbers]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        found = []
    good = len(found) == len(CONFIG) and all(-1 << 63 <= one < 1 << 63 for one in found)
    return found if good else [NOTHING] * len(CONFIG)


def payload(text: str | None) -> tuple[int | None, float | None, str | None]:
    """Return a payload as whole number, as number, or as text."""
    if text is None:
        return None, None, None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None, None, text
    if isinstance(value, int) and not isinstance(value, bool) and -1 << 63 <= value < 1 << 63:
        return value, None, None
    return (None, value, None) if isinstance(value, float) else (None, None, text)


def listed(column: nsys.Column) -> list[object] | None:
    """Return a column as Python's numbers, null as ``None``; ``None`` for one that is all null."""
    if isinstance(column, list):
        return column
    missing = column == NOTHING
    if missing.all():
        return None
    values = column.astype(object)
    values[missing] = None
    return list(values.tolist())


def chunks(table: str, lines: Sequence[nsys.Row]) -> Iterator[nsys.Chunk]:
    """Turn rows into columns."""
    if lines:
        names = list(dict.fromkeys(name for line in lines for name in line))
        yield table, names, [[line.get(name) for line in lines] for name in names], 0


def names_of_ranges(trace: Trace, ids: Ids) -> list[nsys.Row]:
    """Return the NVTX events that name domains and categories, by process.

    Their numbers are the columns' codes; 0, the default domain and no category, is null.
    """
    rows = rows_of(trace, "range", "mark")
    if not len(rows):
        return []
    domain, domains = codes(trace.spans.column("domain"))
    category, categories = codes(trace.spans.column("category"))
    pid = ids.pid[rows]
    thread = ids.thread(rows).tolist()
    named = combined(pid, domain[rows])[0].tolist()
    told = combined(pid, domain[rows], category[rows])[0].tolist()

    def event(one: int, kind: int, text: str, **facts: int) -> nsys.Row:
        number = int(domain[rows[one]])
        return {"start": 0, "eventType": kind, "text": text, "domainId": number,
                "globalTid": thread[one], **facts}  # fmt: skip

    return [
        *(event(one, nsys.DOMAIN, domains[domain[rows[one]]])
          for one in named if domain[rows[one]]),
        *(event(one, nsys.CATEGORY, categories[number], category=number)
          for one in told if (number := int(category[rows[one]]))),
    ]  # fmt: skip


# -- processes, threads, contexts ----------------------------------------------------------
def column(trace: Trace, name: str, rows: Array | None = None) -> Array:
    """Return a column of whole numbers, of all rows or some; ``NOTHING`` is null."""
    values = trace.spans.column(name)
    if rows is not None:
        values = values.take(pa.array(rows))
    return np.asarray(values.cast(pa.int64()).fill_null(NOTHING).combine_chunks())


def _distinct(*columns: Array) -> list[list[int]]:
    """Return the distinct rows of columns of whole numbers, sorted."""
    return sorted(coded_array(*columns)[1].tolist())


class Ids:
    """Processes and threads in 24 bits each.

    Parameters
    ----------
    calls
        Row → position of the call that launched it, or −1.

    Attributes
    ----------
    pid
        Row → process; of work, its launch call's; else the first one that is named.
    shortened
        Whether a number had more bits and got another.
    """

    def __init__(self, trace: Trace, calls: Array) -> None:
        self._trace = trace
        process = column(trace, "process")
        called = np.where(calls >= 0, process[np.maximum(calls, 0)], NOTHING)
        process = np.where(process == NOTHING, called, process)
        known = process[process != NOTHING]
        self._given = np.where(process == NOTHING, known[0] if len(known) else 1, process)
        threads = [column(trace, name) for name in ("thread", "end_thread")]
        self._short = _shortened(np.concatenate([self._given, *threads]))
        self.shortened = bool(self._short)
        self.pid = self._fit(self._given)
        self._thread, self._end_thread = map(self._fit, threads)

    def _fit(self, numbers: Array) -> Array:
        """Replace numbers of more than 24 bits."""
        if not self._short:
            return numbers
        values, code = np.unique(numbers, return_inverse=True)
        return np.array([self._short.get(one, one) for one in values.tolist()], np.int64)[code]

    def thread(self, rows: Array) -> Array:
        """Return the serialised thread of rows; thread 0 where it is unknown."""
        return self._whole(rows, np.where(self._thread == NOTHING, 0, self._thread)[rows])

    def end_thread(self, rows: Array) -> Array:
        """Return the serialised thread that ended ranges, where it is another one."""
        ended = self._end_thread[rows]
        other = (ended != NOTHING) & (ended != self._thread[rows])
        return np.where(other, self._whole(rows, np.where(other, ended, 0)), NOTHING)

    def _whole(self, rows: Array, thread: Array) -> Array:
        return np.asarray(nsys.VM | self.pid[rows] << _BITS | thread)

    def processes(self) -> dict[int, str | None]:
        """Return the processes that rows name, with their names where these are known."""
        names = self._trace.metadata.process_names
        return {
            self._short.get(one, one): names.get(str(one))
            for one in np.unique(self._given).tolist()
        }

    def thread_names(self) -> list[tuple[int, str]]:
        """Return serialised threads with their names."""
        names = self._trace.metadata.thread_names
        rows = np.flatnonzero(self._thread != NOTHING)
        threads = _distinct(
            self._given[rows], column(self._trace, "thread", rows), self.thread(rows)
        )
        return [(whole, name) for _, given, whole in threads if (name := names.get(str(given)))]


def _shortened(numbers: Array) -> dict[int, int]:
    """Return number → a free one of 24 bits, for those that have more."""
    given = set(np.unique(numbers).tolist()) - {NOTHING}
    free = iter(number for number in range((1 << _BITS) - 1, 0, -1) if number not in given)
    return {one: next(free) for one in sorted(given) if not 0 <= one < 1 << _BITS}


class Contexts:
    """Contexts as Nsight has them: a green context has a parent.

    A trace may give work in a partition the green context's number alone; its parent is then
    the device's context that other work ran in, else a number that is free.

    Attributes
    ----------
    device, context, green
        Row → its device, its (parent) context, its green context or ``NOTHING``.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        device = column(trace, "device")
        self.device = np.where(device == NOTHING, 0, device)
        self.green = column(trace, "green_context")
        context = column(trace, "context")
        told = (context != NOTHING) & (context != self.green)
        self.context = np.where(told, context, NOTHING)
        used = {*np.unique(self.green).tolist()}
        unused = next(number for number in itertools.count(1) if number not in used)
        for one in np.unique(self.device).tolist():
            mine = self.device == one
            common = Counter(context[mine & told].tolist()).most_common(1)
            self.context[mine & ~told] = common[0][0] if common else unused

    def contexts(self, pid: Array) -> list[nsys.Row]:
        """Return the rows of ``TARGET_INFO_CUDA_CONTEXT_INFO``."""
        rows = rows_of(self._trace, *_WORK)
        found: dict[tuple[int, int, int], int] = {}
        columns = (self.device, pid, self.context, self.green)
        for device, process, context, green in _distinct(*(values[rows] for values in columns)):
            found.setdefault((process, device, context), 0)
            if green != NOTHING:
                found[process, device, green] = context
        return [
            {"nullStreamId": 0, "hwId": 0, "vmId": 1, "processId": process, "deviceId": device,
             "contextId": context, "parentContextId": parent, "isGreenContext": int(parent != 0)}
            for (process, device, context), parent in found.items()
        ]  # fmt: skip

    def streams(self, pid: Array) -> list[nsys.Row]:
        """Return the rows of ``TARGET_INFO_CUDA_STREAM``."""
        rows = rows_of(self._trace, *_WORK)
        columns = (self.device[rows], pid[rows], self.context[rows])
        lines: list[nsys.Row] = []
        for _, process, context, stream in _distinct(*columns, column(self._trace, "stream", rows)):
            if stream == NOTHING:
                continue
            facts = self._trace.metadata.stream(stream) or StreamFacts("")
            kind = _NULL if facts.legacy_default else _DEFAULT if facts.blocking else _NON_BLOCKING
            lines.append(
                {"streamId": stream, "hwId": 0, "vmId": 1, "processId": process,
                 "contextId": context, "priority": facts.priority or 0, "flag": kind}
            )  # fmt: skip
        return lines


# -- tables beside those of spans ----------------------------------------------------------
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
            {"vmId": nsys.VM, "id": one.index, "name": one.name, "smCount": one.sm_count,
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
            {"globalVid": nsys.VM, "duration": last_ns, "startTime": 0, "stopTime": last_ns}
        ],
        "ThreadNames": threads,
        "PROCESSES": [
            {"globalPid": nsys.VM | pid << 24, "pid": pid, "name": name}
            for pid, name in processes.items()
        ],
        nsys.HAZARDS: [asdict(one) for one in (known.hazards or HazardFacts()).found],
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
