"""SQLite in Nsight Systems' schema: readable by ``nsys stats``, made by gpuscope.

It is no Nsight report: ``nsys export`` and its windows do not take it. Times are ns from the
first span; ``TARGET_INFO_SESSION_START_TIME`` has the base. Kernels, copies and sets of memory,
API calls and synchronisations (as calls), ranges and marks stand in Nsight's tables, the rest
in ``GPUSCOPE_SPANS``.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.errors import ExportError
from gpuscope.formats.nsight import schema as nsys
from gpuscope.formats.nsight import values as nsys_values
from gpuscope.formats.nsight.schema import BITS, COPY_KINDS, MEMORY_KINDS
from gpuscope.formats.nsight.values import NOTHING
from gpuscope.formats.progress import Step, check_count
from gpuscope.trace import schema
from gpuscope.trace.columns import codes, launch_calls
from gpuscope.trace.model import Trace

_ROWS = 1 << 16
_SAFETY = ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE")
_PRAGMAS = (*_SAFETY, "page_size=32768", "cache_size=-65536")
"""For a file that nobody else sees until it is whole."""
_KINDS = {
    "kernel": nsys.KERNEL,
    "memcpy": nsys.MEMCPY,
    "memset": nsys.MEMSET,
    **dict.fromkeys(("api", "sync"), nsys.RUNTIME),
    **dict.fromkeys(("range", "mark"), nsys.NVTX),
}
_TIMES = ("start_ns", "end_ns", "queued_ns", "submitted_ns")
_DRIVER = re.compile("cu(?!da)[A-Z]")
"""How the names of the driver's calls begin."""


def write_sqlite(trace: Trace, path: Path, step: Step) -> None:
    """Write a trace as SQLite that ``nsys stats`` reads.

    Raises
    ------
    ExportError
        What stands in the file is not what the trace holds.
    """
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        expected = _fill(database, trace, step)
    address = f"{path.resolve().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        for table, count in expected.items():
            (written,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
            check_count(path, f"rows of {table}", count, written)


def _fill(database: sqlite3.Connection, trace: Trace, step: Step) -> dict[str, int]:
    """Write everything; returns table → number of its rows."""
    try:
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        database.execute("BEGIN")
        tables = _Tables(trace)
        for statement in nsys.statements(tables.extra):
            database.execute(statement)
        counts: dict[str, int] = {}
        for table, names, chunk, spans in tables.chunks():
            places = ", ".join("?" * len(names))
            quoted = ", ".join(f'"{name}"' for name in names)
            text = f"INSERT INTO {table} ({quoted}) VALUES ({places})"  # noqa: S608 - our names
            database.executemany(text, zip(*chunk, strict=True))
            counts[table] = counts.get(table, 0) + len(chunk[0])
            if spans:
                step(spans)
        database.execute("COMMIT")
    except sqlite3.Error as error:
        raise ExportError(
            f"SQLite could not write the trace ({error}): free some room, or choose another folder"
        ) from error
    return counts


class _Tables:
    """The rows of every table, as lists of Python's values."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.starts = trace.array("start_ns")
        self._codes: dict[str, tuple[Array, Array]] = {}
        self.base_ns = int(self.starts.min()) if len(trace) else 0
        self.ends = nsys_values.column(trace, "end_ns")
        self.calls = launch_calls(trace)
        self.ids = nsys_values.Ids(trace, self.calls)
        self.contexts = nsys_values.Contexts(trace)
        self.strings: dict[str, int] = {}
        code, names = codes(trace.spans.column("name"))
        numbers = [self.strings.setdefault(name or "", len(self.strings)) for name in names]
        self.name = np.array(numbers, np.int64)[code]
        self.driver = np.array([bool(_DRIVER.match(name or "")) for name in names], np.int64)[code]
        # Work is found by its call's number: Nsight knows no other link.
        correlation = self.column("correlation")
        called = np.where(self.calls >= 0, correlation[np.maximum(self.calls, 0)], NOTHING)
        self.correlation = np.where(called == NOTHING, correlation, called)
        self.extra = self._extra()

    def _extra(self) -> dict[str, list[str]]:
        """Return the columns of ours for each table: what Nsight's do not tell."""
        spans = self.trace.spans
        given = [name for name in schema.SPAN_TYPES if spans.column(name).null_count < len(spans)]
        columns = {table: list(names) for table, names in nsys.EXTRA.items()}
        derived = {"context": self.contexts.context, "correlation": self.correlation}
        other = [name for name, values in derived.items() if (self.column(name) != values).any()]
        for table in (nsys.KERNEL, nsys.MEMCPY, nsys.MEMSET):
            columns[table] += other
        if self.ids.shortened:
            for names in columns.values():
                names += ["end_thread"]
        extra = {table: [*filter(given.__contains__, names)] for table, names in columns.items()}
        return extra | {nsys.REST: given or [*schema.REQUIRED], nsys.EDGES: [*schema.EDGE_TYPES]}

    def ours(self, table: str, rows: Array) -> dict[str, nsys.Column]:
        """Return those columns as the trace has them; times from the base."""
        columns: dict[str, nsys.Column] = {}
        for name in self.extra[table]:
            kind = schema.SPAN_TYPES[name]
            if pa.types.is_dictionary(kind):
                code, values = self.codes(name)
                columns[name] = values[code[rows]].tolist()
            elif pa.types.is_floating(kind):
                columns[name] = self.trace.spans.column(name).take(pa.array(rows)).to_pylist()
            else:
                values = self.column(name, rows)
                if name in _TIMES:
                    values = np.where(values == NOTHING, NOTHING, values - self.base_ns)
                columns[name] = values
        return columns

    def codes(self, name: str) -> tuple[Array, Array]:
        """Return row → code and code → text."""
        if name not in self._codes:
            code, values = codes(self.trace.spans.column(name))
            self._codes[name] = code.astype(np.int32), np.array(values, object)
        return self._codes[name]

    def column(self, name: str, rows: Array | None = None) -> Array:
        """Return a column of numbers, of all rows or some; ``NOTHING`` is null."""
        return nsys_values.column(self.trace, name, rows)

    def number(self, name: str, known: tuple[str, ...], rows: Array) -> Array:
        """Return a column of texts as numbers into ``known``."""
        code, values = self.codes(name)
        numbers = {text: number for number, text in enumerate(known)}
        return np.array([numbers.get(value, NOTHING) for value in values], np.int64)[code[rows]]

    def times(self, rows: Array) -> dict[str, Array]:
        starts, ends = self.starts[rows] - self.base_ns, self.ends[rows]
        return {"start": starts, "end": np.where(ends == NOTHING, NOTHING, ends - self.base_ns)}

    # -- tables of spans --------------------------------------------------------------
    def chunks(self) -> Iterator[nsys.Chunk]:
        """Yield table, columns, their values for some rows, and how many spans these are."""
        trace = self.trace
        makers: dict[str, Callable[[Array], dict[str, nsys.Column]]] = {
            nsys.KERNEL: self._kernels,
            nsys.MEMCPY: self._copies,
            nsys.MEMSET: self._sets,
            nsys.RUNTIME: self._calls,
            nsys.NVTX: self._ranges,
            nsys.REST: lambda _: {},
        }
        tables = [*makers]
        code, kinds = codes(trace.spans.column("kind"))
        homes = [tables.index(_KINDS.get(kind, nsys.REST)) for kind in kinds]
        home = np.array(homes, np.int64)[code]
        # An event that a thread recorded was a call; one without is nobody's but ours.
        is_event = np.array([kind == "event" for kind in kinds])[code]
        home[is_event & (self.column("thread") != NOTHING)] = tables.index(nsys.RUNTIME)
        yield from nsys_values.names_of_ranges(trace, self.ids)
        for number, (table, make) in enumerate(makers.items()):
            rows = np.flatnonzero(home == number)
            rows = rows[np.argsort(self.starts[rows], kind="stable")]
            for low in range(0, len(rows), _ROWS):
                some = rows[low : low + _ROWS]
                columns = {**make(some), **self.ours(table, some)}
                lists = {name: nsys_values.listed(column) for name, column in columns.items()}
                filled = {name: values for name, values in lists.items() if values is not None}
                yield table, list(filled), [*filled.values()], len(some)
        yield from self._edges()
        latest = np.where(self.ends == NOTHING, self.starts, self.ends)
        last_ns = int(latest.max()) - self.base_ns if len(latest) else 0
        yield from nsys_values.facts(
            trace, self.ids, self.contexts, self.strings, self.base_ns, last_ns
        )

    def _edges(self) -> Iterator[nsys.Chunk]:
        edges = self.trace.edges
        for low in range(0, edges.num_rows, _ROWS):
            columns = edges.slice(low, _ROWS).columns
            lists = [column.to_numpy().tolist() for column in columns]
            yield nsys.EDGES, list(schema.EDGE_TYPES), lists, 0

    def _work(self, rows: Array) -> dict[str, nsys.Column]:
        return {
            **self.times(rows),
            "deviceId": self.contexts.device[rows],
            "contextId": self.contexts.context[rows],
            "greenContextId": self.contexts.green[rows],
            "streamId": self.column("stream", rows),
            "correlationId": self.correlation[rows],
            "globalPid": nsys.VM | self.ids.pid[rows] << BITS,
            "graphNodeId": self.column("graph_node", rows),
        }

    def _kernels(self, rows: Array) -> dict[str, nsys.Column]:
        code, configs = self.codes("launch_config")
        numbers = np.array([nsys_values.config(config) for config in configs], np.int64)[code[rows]]
        return {
            **self._work(rows),
            "demangledName": self.name[rows],
            "shortName": self.name[rows],
            **{name: numbers[:, axis] for axis, name in enumerate(nsys.CONFIG)},
        }

    def _copies(self, rows: Array) -> dict[str, nsys.Column]:
        copy = self.number("copy_kind", COPY_KINDS, rows)
        return {
            **self._work(rows),
            "bytes": self.column("nbytes", rows),
            "copyKind": np.where(copy == NOTHING, 0, copy),
            "srcKind": self.number("src_kind", MEMORY_KINDS, rows),
            "dstKind": self.number("dst_kind", MEMORY_KINDS, rows),
            "copyCount": np.ones(len(rows), np.int64),
        }

    def _sets(self, rows: Array) -> dict[str, nsys.Column]:
        return {
            **self._work(rows),
            "bytes": self.column("nbytes", rows),
            "memKind": self.number("dst_kind", MEMORY_KINDS, rows),
        }

    def _calls(self, rows: Array) -> dict[str, nsys.Column]:
        return {
            **self.times(rows),
            "eventClass": self.driver[rows],
            "globalTid": self.ids.thread(rows),
            "correlationId": self.column("correlation", rows),
            "nameId": self.name[rows],
            "returnValue": np.zeros(len(rows), np.int64),
        }

    # -- NVTX -------------------------------------------------------------------------
    def _ranges(self, rows: Array) -> dict[str, nsys.Column]:
        style, styles = self.codes("range_style")
        kind, kinds = self.codes("kind")
        startend, mark = (styles == "start/end")[style[rows]], (kinds == "mark")[kind[rows]]
        types = np.where(startend, nsys.START_END, nsys.PUSH_POP)
        category = self.codes("category")[0][rows].astype(np.int64)
        payload, payloads = self.codes("payload")
        values = [nsys_values.payload(text) for text in payloads.tolist()]
        return {
            **self.times(rows),
            "eventType": np.where(mark, nsys.MARK, types),
            "rangeId": np.where(startend & ~mark, self.column("id", rows), NOTHING),
            "category": np.where(category == 0, NOTHING, category),
            "color": self.column("color", rows),
            "globalTid": self.ids.thread(rows),
            "endGlobalTid": self.ids.end_thread(rows),
            "textId": self.name[rows],
            "domainId": self.codes("domain")[0][rows],
            **{
                name: [values[code][kind_index] for code in payload[rows].tolist()]
                for kind_index, name in enumerate(("int64Value", "doubleValue", "jsonText"))
                if any(value[kind_index] is not None for value in values)
            },
        }
