"""Nsight Systems' SQLite exports, of whatever schema version: what is there is discovered.

nsys turns its reports into such exports.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from gpuscope import _nsys
from gpuscope._types import Array
from gpuscope.errors import ExportError, MissingDependency, TraceFormatError
from gpuscope.formats.chrome.own import check_version
from gpuscope.formats.database import Database, opened
from gpuscope.formats.limits import Limits, reading
from gpuscope.formats.nsight import ranges as nvtx
from gpuscope.formats.nsight import work as cuda
from gpuscope.formats.nsight.capture import OpenExport, SpanColumns
from gpuscope.formats.nsight.schema import EDGES, EVENT, KERNEL, METADATA, NVTX, REST, RUNTIME, SYNC
from gpuscope.formats.private import LEFT_OUT, scrub
from gpuscope.trace import arrow, schema, valid
from gpuscope.trace.arrow import NONE, Columns
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

_DESCRIPTIONS = ("ENUM_", "sqlite_", "StringIds")
"""Tables whose rows say what numbers mean: no records of their own."""
_NAMED_COLUMNS = 12
_LONGEST_NAME = 60
_TIMES = ("start_ns", "end_ns", "queued_ns", "submitted_ns")
_THEIRS = {NVTX: ("category", "color")}
"""Columns of Nsight's that are called as ours."""
_DERIVED = ("parent", "partition", "intended_partition", "queued_ns", "graph", "status")
"""What an importer works out, and a trace of ours says itself or not at all."""
_OF_CALLS = ("process", "thread")
_OF_WORK = ("kernel", "memcpy", "memset")
MAGIC = b"NVIDIA Tegra Profiler Report "
"""What a report begins with; the version that wrote it follows."""
_SECONDS = 600
_TOLD = 300


def read_sqlite(path: Path, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read an SQLite file that ``nsys export`` wrote, or that has its tables.

    Raises
    ------
    TraceFormatError
        It is damaged, holds more than ``limits``, or none of the tables that are read.
    """
    with reading(path.name, "Nsight Systems export"), opened(path, limits) as database:
        return _read(database, path.name, keep_private=keep_private)


def _read(database: Database, name: str, *, keep_private: bool) -> Trace:
    if not any(database.has(table, "start") for table in (*cuda.TABLES, RUNTIME, NVTX)):
        table_names = ", ".join(repr(table[:40]) for table in list(database.tables)[:5]) or "none"
        raise TraceFormatError(
            f"{name!r} is SQLite, but no export of Nsight Systems with CUDA or NVTX in it; its "
            f"tables: {table_names}. Record with nsys profile --trace=cuda,nvtx, and export with "
            "nsys export --type=sqlite"
        )
    own_metadata = _own_metadata(database)
    capture = OpenExport(database, own_metadata)
    ranges = nvtx.read(capture)
    calls = cuda.read_calls(capture, ranges)
    work = cuda.read_work(capture, calls)
    syncs = cuda.read_syncs(capture, calls)
    parts = [ranges, calls, syncs, *work]
    if own_metadata is not None:
        rest = _own_columns(capture, REST, None)  # of rows that Nsight has no table for
        tables = [_own_table(capture, part, own_metadata) for part in parts]
        tables.append(arrow.table(rest, len(next(iter(rest.values()), []))))
        spans = _joined(tables)
        return Trace(spans if keep_private else scrub(spans), _own_edges(database), own_metadata)
    spans = _joined([part.spans() for part in parts])
    waits = cuda.read_wait_edges(capture, work, syncs)
    edges = arrow.edges([*cuda.launch_edges(work), *waits])
    spans, edges, left = valid.sifted(spans, edges)
    capture.not_taken |= {f"{what} not taken": count for what, count in left.items()}
    if not keep_private:
        spans = scrub(spans)
    elif (host := capture.host_name()) is not None:
        spans = schema.with_column(spans, "host", arrow.constant(host, spans.num_rows))
    metadata = _metadata(capture, spans, keep_private=keep_private)
    kinds = ["launch"] * all((part.joins["call"] != NONE).all() for part in work)
    kinds += ["event wait"] * (SYNC in database and EVENT in database)
    return Trace(spans, edges, replace(metadata, edges=tuple(kinds)))


def _joined(tables: list[pa.Table]) -> pa.Table:
    return schema.concat([table for table in tables if table.num_rows], schema.SPAN_TYPES)


def _metadata(capture: OpenExport, spans: pa.Table, *, keep_private: bool) -> TraceMetadata:
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
    unasked = [name for name in database.tables if name not in database.asked]
    names = [name for name in unasked if not name.startswith(_DESCRIPTIONS)]
    rows = {f"rows of {name[:_LONGEST_NAME]} not taken": database.count(name) for name in names}
    return {what: count for what, count in rows.items() if count}


def _columns_left(database: Database) -> list[str]:
    """Return the columns that nobody asked for, of the tables that were read."""
    left = []
    for table in (*cuda.TABLES, RUNTIME, NVTX, SYNC):
        asked = database.asked.get(table, set())
        rest = [name for name in database.tables.get(table, ()) if name not in asked]
        if rest:
            more = " …" if len(rest) > _NAMED_COLUMNS else ""
            shown = ", ".join(name[:_LONGEST_NAME] for name in rest[:_NAMED_COLUMNS])
            left.append(f"{table} ({shown}{more})")
    return left


# -- reports -------------------------------------------------------------------------------
def read_report(path: Path, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read a report through ``nsys export``, which must be at least as new as what wrote it.

    Raises
    ------
    MissingDependency
        There is no nsys on PATH.
    TraceFormatError
        nsys cannot read it, or what it made holds more than ``limits``.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        with path.open("rb") as file:
            wrote = file.readline(120)[len(MAGIC) :].split(b"-")[0]
        shown = wrote.decode("ascii", "replace").replace("@", ".")[:20]
        raise MissingDependency(
            f"{path.name!r} is an Nsight Systems report (written by {shown}), which only nsys "
            "reads, and there is none on PATH: install Nsight Systems, that version or newer (the "
            "command line alone will do), or run where it is installed: nsys export --type=sqlite "
            f"{path.name}, and load the .sqlite file"
        )
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
        target = Path(folder) / f"{path.stem}.sqlite"
        try:
            _nsys.export_sqlite(path, target, Path(nsys), seconds=_SECONDS)
        except ExportError as error:
            raise TraceFormatError(str(error)) from error
        limits.check("file_bytes", f"bytes of {path.name!r} as SQLite", target.stat().st_size)
        return read_sqlite(target, limits, keep_private=keep_private)


# -- what gpuscope wrote: more than Nsight's tables hold is in it --------------------------
def _own_metadata(database: Database) -> TraceMetadata | None:
    """Return the metadata of a trace of ours, ``None`` for others' files.

    Raises
    ------
    TraceFormatError
        It says that gpuscope wrote it, but not with this schema.
    """
    if METADATA not in database:
        return None
    facts = database.mapping(METADATA, "name", "value")
    check_version(facts.get("schema_version"), str(schema.SCHEMA_VERSION))
    return TraceMetadata.from_json(str(facts.get("metadata")))


def _own_table(capture: OpenExport, part: SpanColumns, own_metadata: TraceMetadata) -> pa.Table:
    """Return the rows of one of Nsight's tables with the columns of ours beside them."""
    columns = {name: values for name, values in part.columns.items() if name not in _DERIVED}
    count = len(part.rows)
    kind = columns["kind"]
    if count and kind[0].as_py() in _OF_WORK:
        columns = {name: values for name, values in columns.items() if name not in _OF_CALLS}
    if "copy_kind" in columns:  # Nsight's column cannot be empty
        kinds = columns["copy_kind"]
        columns["copy_kind"] = pc.if_else(pc.equal(kinds.cast(pa.string()), "unknown"), None, kinds)
    ours = _own_columns(capture, part.table, part.at)
    device = ours.get("device", columns.get("device"))
    if device is not None and not pa.types.is_null(device.type):
        uuids = {facts.index: facts.uuid for facts in own_metadata.devices.values()}
        columns["device_uuid"] = arrow.worded(np.asarray(device.fill_null(NONE)), uuids.get)
    return arrow.table({**columns, "id": part.rows, **ours}, count)


def _own_edges(database: Database) -> pa.Table:
    """Return the edges."""
    rows = database.rows(EDGES, (*schema.EDGE_TYPES,))
    columns = {name: [row[at] for row in rows] for at, name in enumerate(schema.EDGE_TYPES)}
    return schema.table(columns, schema.EDGE_TYPES)


def _own_columns(capture: OpenExport, name: str, at: Array | None) -> Columns:
    """Return columns of a table that bear our names, of some rows or all."""
    theirs = _THEIRS.get(name, ())
    wanted = [column for column in capture.database.tables.get(name, ()) if column not in theirs]
    types = {column: schema.SPAN_TYPES[column] for column in wanted if column in schema.SPAN_TYPES}
    whole = [column for column, kind in types.items() if pa.types.is_integer(kind)]
    loose = [column for column in types if column not in whole]
    read: Columns = {}
    for column, values in capture.database.integers(name, whole).items():
        missing = values == NONE
        moved = capture.times(values) if column in _TIMES else values
        chosen = slice(None) if at is None else at
        read[column] = arrow.nullable(moved[chosen], missing[chosen])
    rows = capture.database.rows(name, loose)
    rows = rows if at is None else [rows[row] for row in np.asarray(at).tolist()]
    for position, column in enumerate(loose):
        is_number = pa.types.is_floating(types[column])
        values = pa.array(
            [row[position] for row in rows], pa.float64() if is_number else pa.string()
        )
        read[column] = values if is_number else values.dictionary_encode()
    return read
