"""Nsight Systems' SQLite exports, of whatever schema version: what is there is discovered."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from gpuscope.errors import TraceFormatError
from gpuscope.importers import chrome_flows, nsys_own, nsys_ranges, nsys_work
from gpuscope.importers.database import Database, opened
from gpuscope.importers.limits import Limits, reading
from gpuscope.importers.nsys_capture import API, KERNEL, NVTX, Capture
from gpuscope.importers.private import LEFT_OUT, scrub
from gpuscope.trace import arrow, schema, valid
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

_DESCRIPTIONS = ("ENUM_", "sqlite_", "StringIds")
"""Tables whose rows say what numbers mean: no records of their own."""
_NAMED_COLUMNS = 12
_LONGEST_NAME = 60


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is SQLite."""
    return head.startswith(b"SQLite format 3\0")


def read_nsys(path: Path, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read an SQLite file that ``nsys export`` wrote, or that has its tables.

    Raises
    ------
    TraceFormatError
        It is damaged, holds more than ``limits``, or none of the tables that are read.
    """
    with reading(path.name, "Nsight Systems export"), opened(path, limits) as database:
        return _read(database, path.name, keep_private=keep_private)


def _read(database: Database, name: str, *, keep_private: bool) -> Trace:
    if not any(database.has(table, "start") for table in (*nsys_work.TABLES, API, NVTX)):
        there = ", ".join(repr(table[:40]) for table in list(database.tables)[:5]) or "none"
        raise TraceFormatError(
            f"{name!r} is SQLite, but no export of Nsight Systems with CUDA or NVTX in it; its "
            f"tables: {there}. Record with nsys profile --trace=cuda,nvtx, and export with nsys "
            "export --type=sqlite"
        )
    own = nsys_own.metadata(database)
    capture = Capture(database, own)
    ranges = nsys_ranges.read(capture, own=own is not None)
    calls = nsys_work.read_calls(capture, ranges)
    work = nsys_work.read_work(capture, calls)
    syncs = nsys_work.read_syncs(capture, calls)
    parts = [ranges, calls, syncs, *work]
    if own is not None:
        tables = [*(nsys_own.table(capture, part, own) for part in parts), nsys_own.rest(capture)]
        spans = _joined(tables)
        return Trace(spans if keep_private else scrub(spans), nsys_own.edges(database), own)
    spans = _joined([part.spans() for part in parts])
    edges = chrome_flows.edges(
        [
            (*nsys_work.launch_edges(work), "launch"),
            (*nsys_work.wait_edges(capture, work, syncs), "event wait"),
        ]
    )
    spans, edges, left = valid.sifted(spans, edges)
    capture.not_taken |= {f"{what} not taken": count for what, count in left.items()}
    spans = _with_host(spans, capture) if keep_private else scrub(spans)
    return Trace(spans, edges, _metadata(capture, spans, keep_private=keep_private))


def _joined(tables: list[pa.Table]) -> pa.Table:
    return schema.concat([one for one in tables if one.num_rows], schema.SPAN_TYPES)


def _with_host(spans: pa.Table, capture: Capture) -> pa.Table:
    host = capture.host_name()
    if host is None:
        return spans
    column = arrow.constant(host, spans.num_rows)
    return spans.set_column(spans.schema.get_field_index("host"), "host", column)


def _metadata(capture: Capture, spans: pa.Table, *, keep_private: bool) -> TraceMetadata:
    metadata = TraceMetadata(
        time_base=capture.time_base,
        devices=capture.devices(),
        driver=capture.driver(),
        process_names=capture.process_names(spans, keep_private=keep_private),
        thread_names=capture.thread_names(spans, keep_private=keep_private),
        partitions=capture.partitions,
        streams=capture.streams,
        versions=capture.versions(),
        complete=KERNEL in capture.database and capture.complete,
    )
    # Now all has been asked for.
    counts = {"received": spans.num_rows, **capture.not_taken, **_tables_left(capture.database)}
    notes = [f"imported from Nsight Systems' tables{capture.version_note()}", *capture.notes]
    if not keep_private:
        notes.append(f"environment, user and {LEFT_OUT}")
    columns = _columns_left(capture.database)
    if columns:
        notes.append(f"columns not taken: {', '.join(columns)}")
    return replace(metadata, counts=counts, notes=tuple(notes))


def _tables_left(database: Database) -> dict[str, int]:
    """Return how many rows nobody asked for, by table."""
    names = [
        name
        for name in database.tables
        if name not in database.asked and not name.startswith(_DESCRIPTIONS)
    ]
    rows = {f"rows of {name[:_LONGEST_NAME]} not taken": database.count(name) for name in names}
    return {what: count for what, count in rows.items() if count}


def _columns_left(database: Database) -> list[str]:
    """Return the columns that nobody asked for, of the tables that were read."""
    told = []
    for table in (*nsys_work.TABLES, API, NVTX, nsys_work.SYNC):
        asked = database.asked.get(table, set())
        rest = [name for name in database.tables.get(table, ()) if name not in asked]
        if rest:
            more = " …" if len(rest) > _NAMED_COLUMNS else ""
            shown = ", ".join(name[:_LONGEST_NAME] for name in rest[:_NAMED_COLUMNS])
            told.append(f"{table} ({shown}{more})")
    return told
