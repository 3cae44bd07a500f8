"""SQLite that gpuscope wrote in Nsight Systems' schema: more than its tables hold is in it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._types import Array
from gpuscope.importers.chrome_own import check_version, uuids
from gpuscope.importers.database import Database
from gpuscope.importers.nsys_capture import NVTX, Capture, Part
from gpuscope.trace import arrow, schema
from gpuscope.trace.arrow import NONE, Columns
from gpuscope.trace.metadata import TraceMetadata

_METADATA = "GPUSCOPE_METADATA"
_SPANS = "GPUSCOPE_SPANS"
_EDGES = "GPUSCOPE_EDGES"
_TIMES = ("start_ns", "end_ns", "queued_ns", "submitted_ns")
_THEIRS = {NVTX: ("category", "color")}
"""Columns of Nsight's that are called as ours."""
_DERIVED = ("parent", "partition", "intended_partition", "queued_ns", "graph", "status")
"""What an importer works out, and a trace of ours says itself or not at all."""
_OF_CALLS = ("process", "thread")
_OF_WORK = ("kernel", "memcpy", "memset")


def metadata(database: Database) -> TraceMetadata | None:
    """Return the metadata of a trace of ours, ``None`` for others' files.

    Raises
    ------
    TraceFormatError
        It says that gpuscope wrote it, but not with this schema.
    """
    if _METADATA not in database:
        return None
    facts = database.mapping(_METADATA, "name", "value")
    check_version(facts.get("schema_version"), str(schema.SCHEMA_VERSION))
    return TraceMetadata.from_json(str(facts.get("metadata")))


def table(capture: Capture, part: Part, own: TraceMetadata) -> pa.Table:
    """Return the rows of one of Nsight's tables with the columns of ours beside them."""
    columns = {name: one for name, one in part.columns.items() if name not in _DERIVED}
    count = len(part.rows)
    kind = columns["kind"]
    if count and kind[0].as_py() in _OF_WORK:
        columns = {name: one for name, one in columns.items() if name not in _OF_CALLS}
    if "copy_kind" in columns:  # Nsight's column cannot be empty
        kinds = columns["copy_kind"]
        columns["copy_kind"] = pc.if_else(pc.equal(kinds.cast(pa.string()), "unknown"), None, kinds)
    there = capture.database.tables.get(part.table, ())
    names = [
        name
        for name in there
        if name in schema.SPAN_TYPES and name not in _THEIRS.get(part.table, ())
    ]
    ours = _columns(capture, part.table, names, part.at)
    device = ours.get("device", columns.get("device"))
    if device is not None and not pa.types.is_null(device.type):
        columns["device_uuid"] = uuids(np.asarray(device.fill_null(NONE)), own)
    return arrow.table({**columns, "id": part.rows, **ours}, count)


def rest(capture: Capture) -> pa.Table:
    """Return the rows that Nsight has no table for."""
    names = [one for one in capture.database.tables.get(_SPANS, ()) if one in schema.SPAN_TYPES]
    columns = _columns(capture, _SPANS, names, None)
    return arrow.table(columns, len(next(iter(columns.values()), [])))


def edges(database: Database) -> pa.Table:
    """Return the edges."""
    ends = database.integers(_EDGES, ("from", "to"))
    kinds = [kind for (kind,) in database.rows(_EDGES, ("kind",))]
    return arrow.edges(ends["from"], ends["to"], pa.array(kinds, pa.string()).dictionary_encode())


def _columns(capture: Capture, name: str, wanted: list[str], at: Array | None) -> Columns:
    """Return columns of a table that bear our names, of some rows or all."""
    types = {one: schema.SPAN_TYPES[one] for one in wanted}
    whole = [one for one, kind in types.items() if pa.types.is_integer(kind)]
    loose = [one for one in wanted if one not in whole]
    found: Columns = {}
    for one, values in capture.database.integers(name, whole).items():
        missing = values == NONE
        moved = capture.times(values) if one in _TIMES else values
        chosen = slice(None) if at is None else at
        found[one] = arrow.nullable(moved[chosen], missing[chosen])
    rows = capture.database.rows(name, loose)
    lists = list(zip(*rows, strict=True)) or [() for _ in loose]
    for one, texts in zip(loose, lists, strict=True):
        kept = texts if at is None else [texts[row] for row in np.asarray(at).tolist()]
        column = pa.array(kept, pa.float64() if pa.types.is_floating(types[one]) else pa.string())
        text = column.type == pa.string()
        found[one] = column.dictionary_encode() if text else column
    return found
