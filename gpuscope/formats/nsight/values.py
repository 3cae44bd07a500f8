"""What Nsight's columns and the tables beside those of spans take from a trace."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from gpuscope._types import Array
from gpuscope.formats.nsight import schema as nsys
from gpuscope.formats.nsight.schema import BITS, CONFIG, ID
from gpuscope.formats.progress import version
from gpuscope.trace import schema
from gpuscope.trace.arrow import coded_array
from gpuscope.trace.columns import codes, combined, rows_of
from gpuscope.trace.facts import HazardFacts, StreamFacts
from gpuscope.trace.model import Trace

Row: TypeAlias = tuple[object, ...]
"""Values in the order of a table's columns."""
NOTHING = np.iinfo(np.int64).min
"""A value that is not there."""

_DEFAULT, _NON_BLOCKING, _NULL = 1, 2, 3
_WORK = ("kernel", "memcpy", "memset", "host function", "block")


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
        integers = [int(number) for number in numbers]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        integers = []
    good = len(integers) == len(CONFIG) and all(-1 << 63 <= number < 1 << 63 for number in integers)
    return integers if good else [NOTHING] * len(CONFIG)


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


def chunk(table: str, rows: Collection[Row], columns: str = "") -> Iterator[nsys.Chunk]:
    """Yield rows of a table as columns, if there are any.

    Parameters
    ----------
    columns
        Names of the values, where these are not all of the table's.
    """
    if rows:
        names = columns.split() or nsys.columns_of(table)
        yield table, names, [[*values] for values in zip(*rows, strict=True)], 0


def names_of_ranges(trace: Trace, ids: Ids) -> Iterator[nsys.Chunk]:
    """Yield the NVTX events that name domains and categories, by process.

    Their numbers are the columns' codes; 0, the default domain and no category, is null.
    """
    rows = rows_of(trace, "range", "mark")
    if not len(rows):
        return
    domain, domains = codes(trace.spans.column("domain"))
    category, categories = codes(trace.spans.column("category"))
    domain, category, pid = domain[rows], category[rows], ids.pid[rows]
    first = (combined(pid, domain)[0], combined(pid, domain, category)[0])
    named, categorised = (
        zip(domain[at].tolist(), category[at].tolist(), ids.thread(rows[at]).tolist(), strict=True)
        for at in first
    )
    events: list[Row] = [(0, nsys.DOMAIN, domains[at], at, None, by) for at, _, by in named if at]
    for home, number, thread in categorised:
        if number:
            events.append((0, nsys.CATEGORY, categories[number], home, number, thread))
    yield from chunk(nsys.NVTX, events, "start eventType text domainId category globalTid")


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
        processes = process[process != NOTHING]
        self._given = np.where(process == NOTHING, processes[0] if len(processes) else 1, process)
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
        fitting = [self._short.get(number, number) for number in values.tolist()]
        return np.array(fitting, np.int64)[code]

    def thread(self, rows: Array) -> Array:
        """Return the serialised thread of rows; thread 0 where it is unknown."""
        return self._whole(rows, np.where(self._thread == NOTHING, 0, self._thread)[rows])

    def end_thread(self, rows: Array) -> Array:
        """Return the serialised thread that ended ranges, where it is another one."""
        ended = self._end_thread[rows]
        other = (ended != NOTHING) & (ended != self._thread[rows])
        return np.where(other, self._whole(rows, np.where(other, ended, 0)), NOTHING)

    def _whole(self, rows: Array, thread: Array) -> Array:
        return np.asarray(nsys.VM | self.pid[rows] << BITS | thread)

    def processes(self) -> dict[int, str | None]:
        """Return the processes that rows name, with their names where these are known."""
        names = self._trace.metadata.process_names
        given = np.unique(self._given).tolist()
        return {self._short.get(pid, pid): names.get(str(pid)) for pid in given}

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
    free = iter(number for number in range(ID, 0, -1) if number not in given)
    return {number: next(free) for number in sorted(given) if not 0 <= number <= ID}


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
        is_known = (context != NOTHING) & (context != self.green)
        self.context = np.where(is_known, context, NOTHING)
        used = {*np.unique(self.green).tolist()}
        unused = next(number for number in itertools.count(1) if number not in used)
        for index in np.unique(self.device).tolist():
            on_device = self.device == index
            common = Counter(context[on_device & is_known].tolist()).most_common(1)
            self.context[on_device & ~is_known] = common[0][0] if common else unused

    def contexts(self, pid: Array) -> list[Row]:
        """Return the rows of ``TARGET_INFO_CUDA_CONTEXT_INFO``."""
        rows = rows_of(self._trace, *_WORK)
        parents: dict[tuple[int, int, int], int] = {}
        columns = (self.device, pid, self.context, self.green)
        for device, process, context, green in _distinct(*(values[rows] for values in columns)):
            parents.setdefault((process, device, context), 0)
            if green != NOTHING:
                parents[process, device, green] = context
        return [(0, 0, 1, *key, parent, int(parent != 0)) for key, parent in parents.items()]

    def streams(self, pid: Array) -> list[Row]:
        """Return the rows of ``TARGET_INFO_CUDA_STREAM``."""
        rows = rows_of(self._trace, *_WORK)
        columns = (self.device[rows], pid[rows], self.context[rows])
        lines: list[Row] = []
        for _, process, context, stream in _distinct(*columns, column(self._trace, "stream", rows)):
            if stream == NOTHING:
                continue
            facts = self._trace.metadata.stream(stream) or StreamFacts("")
            kind = _NULL if facts.legacy_default else _DEFAULT if facts.blocking else _NON_BLOCKING
            lines.append((stream, 0, 1, process, context, facts.priority or 0, kind))
        return lines


# -- tables beside those of spans ----------------------------------------------------------
def facts(
    trace: Trace, ids: Ids, contexts: Contexts, strings: dict[str, int], base_ns: int, last_ns: int
) -> Iterator[nsys.Chunk]:
    """Yield the rows of every table that is not of spans, the strings last."""
    metadata = trace.metadata
    moment = dt.datetime.fromtimestamp(base_ns // 10**9, dt.UTC).strftime("%FT%T")
    export = {"EXPORT_PRODUCT_NAME": "gpuscope", "EXPORT_PRODUCT_VERSION": version()}
    export["EXPORT_SCHEMA_VERSION"] = nsys.VERSION
    for part, number in zip(("MAJOR", "MINOR", "MICRO"), nsys.VERSION.split("."), strict=True):
        export[f"EXPORT_SCHEMA_VERSION_{part}"] = number
    ours = {"schema_version": str(schema.SCHEMA_VERSION), "metadata": metadata.to_json()}
    capture = {"CAPTURE_PRODUCT_NAME": "gpuscope"}
    if metadata.incomplete:
        ours["incomplete"] = capture["CAPTURE_INCOMPLETE"] = metadata.incomplete
    processes = ids.processes()
    gpus = [gpu for gpu in metadata.devices.values() if gpu.index is not None]
    described = [(nsys.VM, gpu.index, gpu.name, gpu.sm_count, gpu.uuid, gpu.index) for gpu in gpus]
    yield from chunk("TARGET_INFO_GPU", described, "vmId id name smCount uuid cuDevice")
    tables: dict[str, Collection[Row]] = {
        "TARGET_INFO_CUDA_DEVICE": [
            (gpu.index, gpu.index, pid) for gpu in gpus for pid in processes
        ],
        "TARGET_INFO_CUDA_CONTEXT_INFO": contexts.contexts(ids.pid),
        "TARGET_INFO_CUDA_STREAM": contexts.streams(ids.pid),
        "TARGET_INFO_SESSION_START_TIME": [(base_ns, moment, moment)],
        "ANALYSIS_DETAILS": [(nsys.VM, last_ns, 0, last_ns)],
        "ThreadNames": [
            (strings.setdefault(name, len(strings)), None, thread)
            for thread, name in ids.thread_names()
        ],
        "PROCESSES": [(nsys.VM | pid << BITS, pid, name) for pid, name in processes.items()],
        nsys.HAZARDS: [astuple(hazard) for hazard in (metadata.hazards or HazardFacts()).found],
        "META_DATA_EXPORT": export.items(),
        "EXPORT_META_DATA": export.items(),
        "META_DATA_CAPTURE": capture.items(),
        nsys.METADATA: ours.items(),
        "StringIds": [(number, text) for text, number in strings.items()],
    }
    for table, rows in tables.items():
        yield from chunk(table, rows)
