"""Traces on disk: one Parquet file with a schema version.

The spans' columns come first; edges follow as rows of their own in the columns
``edge_from``, ``edge_to`` and ``edge_kind``, whose ``id`` is null. The metadata stands in
the file's key-value metadata as JSON, and in words what rows are missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpuscope._files import replacing
from gpuscope.errors import GpuscopeError, TraceFormatError
from gpuscope.trace import schema
from gpuscope.trace.model import Trace, TraceMetadata

_VERSION = b"gpuscope.schema_version"
_METADATA = b"gpuscope.metadata"
_INCOMPLETE = b"gpuscope.incomplete"
_SPANS = b"gpuscope.spans"
_EDGE_COLUMNS = {f"edge_{name}": kind for name, kind in schema.EDGE_TYPES.items()}


def save_trace(trace: Trace, path: str | Path) -> Path:
    """Write ``trace`` as Parquet; the final name never holds half of a file.

    Raises
    ------
    GpuscopeError
        The file cannot be written (no such folder, no room).

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    >>> path = gs.save_trace(recording.trace, "gemm.parquet")
    >>> gs.load_trace(path).kind_counts() == recording.trace.kind_counts()
    True
    """
    target = Path(path)
    spans, edges = trace.spans, trace.edges
    columns: dict[str, Any] = {}
    for name, kind in {**schema.SPAN_TYPES, **_EDGE_COLUMNS}.items():
        is_edge = name in _EDGE_COLUMNS
        here, there = (edges, spans) if is_edge else (spans, edges)
        column = here.column(name.removeprefix("edge_") if is_edge else name)
        if pa.types.is_null(column.type):
            columns[name] = pa.nulls(len(column) + there.num_rows)
            continue
        own = column.cast(kind).chunks
        other = [pa.nulls(there.num_rows, type=kind)]
        whole = pa.chunked_array([*other, *own] if is_edge else [*own, *other], type=kind)
        columns[name] = whole.unify_dictionaries()
    table = pa.table(columns).replace_schema_metadata(
        {
            _VERSION: str(schema.SCHEMA_VERSION).encode(),
            _METADATA: trace.metadata.to_json().encode(),
            _INCOMPLETE: trace.metadata.incomplete.encode(),
            _SPANS: str(spans.num_rows).encode(),
        }
    )
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    with replacing(target) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            use_dictionary=[name for name, kind in types.items() if pa.types.is_dictionary(kind)],
            column_encoding={
                name: "DELTA_BINARY_PACKED"  # small and quick for numbers that mostly grow
                for name, kind in types.items()
                if pa.types.is_integer(kind)
            },
            write_statistics=False,
            write_page_checksum=True,
        )
    return target


def read_parquet(path: str | Path, *, most_rows: int | None = None) -> Trace:
    """Read a trace that :func:`save_trace` wrote.

    Parameters
    ----------
    most_rows
        How many rows it may have; any number without it.

    Raises
    ------
    TraceFormatError
        The file is truncated, is no trace, has another schema version or too many rows.
    GpuscopeError
        The file cannot be read.
    """
    source = Path(path)
    try:
        # Not read_table(): given a folder, it joins whatever Parquet lies in it.
        with source.open("rb"), pq.ParquetFile(source, page_checksum_verification=True) as file:
            _check(file, source, most_rows)
            table = file.read()
    except FileNotFoundError as error:
        raise GpuscopeError(f"there is no file {source.name!r}: check the path") from error
    except IsADirectoryError as error:
        raise GpuscopeError(f"{source.name!r} is a folder: name a .parquet file in it") from error
    except PermissionError as error:
        raise GpuscopeError(
            f"{source.name!r} cannot be read: {error.strerror}. Get access, or name another file"
        ) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceFormatError(
            f"{source.name!r} is no readable trace: truncated, or not Parquet ({error}). Save it "
            "again, or name another file"
        ) from error
    facts = table.schema.metadata or {}
    if _VERSION not in facts:
        raise TraceFormatError(
            f"{source.name!r} is Parquet but not a gpuscope trace: it names no schema version"
        )
    version = facts[_VERSION].decode("ascii", "replace")
    if version != str(schema.SCHEMA_VERSION):
        raise TraceFormatError(
            f"{source.name!r} has schema version {version}, but this gpuscope reads version "
            f"{schema.SCHEMA_VERSION}: use the gpuscope that wrote it, or record again"
        )
    wanted = {**schema.SPAN_TYPES, **_EDGE_COLUMNS}
    lacking = [name for name in wanted if len(table.schema.get_all_field_indices(name)) != 1]
    lacking += [name.decode() for name in (_SPANS, _METADATA) if name not in facts]
    if lacking:
        raise TraceFormatError(
            f"{source.name!r} says that it is a gpuscope trace but does not hold one (it lacks "
            f"{lacking[0]}, or has it twice)"
        )
    try:
        count = _span_count(facts[_SPANS], len(table))
        metadata = TraceMetadata.from_json(facts[_METADATA].decode())
        spans = _columns(table.slice(0, count), schema.SPAN_TYPES, "")
        edges = _columns(table.slice(count), schema.EDGE_TYPES, "edge_")
        empty = [name for name in schema.REQUIRED if spans.column(name).null_count]
    except (ValueError, TypeError, RecursionError, pa.ArrowException) as error:
        raise TraceFormatError(
            f"{source.name!r} says that it is a gpuscope trace but does not hold one ({error})"
        ) from error
    if empty:
        raise TraceFormatError(f"{source.name!r} has rows without {' and '.join(empty)}")
    return Trace(spans, edges, metadata)


_UNPACKED = 1000
"""Bytes that a byte of the file may stand for: dictionaries and runs shrink columns that much."""
_ROOM = 64 << 20


def _check(file: pq.ParquetFile, source: Path, most_rows: int | None) -> None:
    """Refuse what is no trace of ours, or would fill the memory, before anything is unpacked."""
    found, name = file.metadata, source.name
    # Columns of a row group are not asked for: of one that is not there, PyArrow ends the process.
    unpacked = sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
    packed = source.stat().st_size
    if most_rows is not None and found.num_rows > most_rows:
        raise TraceFormatError(
            f"{name!r} has {found.num_rows:,} rows, where {most_rows:,} is the limit. If you trust "
            "the file, load_trace(path, limits=gpuscope.Limits(rows=…)) reads more"
        )
    if unpacked > max(_ROOM, _UNPACKED * packed):
        raise TraceFormatError(f"{name!r} unpacks to far more than its size, as no trace does")


def _span_count(stated: bytes, rows: int) -> int:
    count = int(stated)
    if not 0 <= count <= rows:
        raise ValueError(f"{count} of its {rows} rows are spans")
    return count


def _columns(table: pa.Table, types: dict[str, Any], prefix: str) -> pa.Table:
    columns = {}
    for name, kind in types.items():
        column = table.column(prefix + name)
        if column.null_count == len(column):
            columns[name] = pa.nulls(len(column))
        else:
            columns[name] = column.cast(kind).combine_chunks()
    found = pa.table(columns)
    found.validate(full=True)  # places in dictionaries, ends of texts
    return found
