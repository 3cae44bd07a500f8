"""Traces on disk: one Parquet file with a schema version.

Its rows are the spans, so that whatever reads Parquet reads them. The metadata stands in the
file's key-value metadata as JSON, and in words what rows are missing; the edges there as a
Parquet file of their own, in base 64.
"""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from gpuscope._checks import door
from gpuscope._files import replacing
from gpuscope.errors import GpuscopeError, TraceFormatError
from gpuscope.trace import schema
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.trace.pages import survey

_VERSION = b"gpuscope.schema_version"
_METADATA = b"gpuscope.metadata"
_INCOMPLETE = b"gpuscope.incomplete"
_EDGES = b"gpuscope.edges"
_LAYOUT = "2"
_ROWS_LAYOUT = "1"
"""Edges followed the spans, as rows of their own in columns ``edge_from``, ``edge_to`` and
``edge_kind``; ``gpuscope.spans`` said how many spans there were."""
_SPANS = b"gpuscope.spans"
_EDGE_COLUMNS = {f"edge_{name}": kind for name, kind in schema.EDGE_TYPES.items()}
_ROW_BYTES = 200
_VALUES = 500_000
"""Numbers, texts and lists in a footer: of a row group, some 1,500."""
_METADATA_BYTES = 1 << 20
_FOOTER_BYTES = 8 << 20


@door(trace=Trace, path=(str, Path))
def save_trace(trace: Trace, path: str | Path) -> Path:
    """Write ``trace`` as Parquet. The file appears only when it is complete.

    Its rows are the spans, with the columns of :data:`gpuscope.trace.schema.SPAN_TYPES`. pandas,
    Polars and DuckDB read them with their standard readers, exact to the ns.

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
    >>> path = gs.export(recording.trace, "gemm.parquet")
    >>> gs.load_trace(path).kind_counts() == recording.trace.kind_counts()
    True
    """
    target = Path(path)
    spans = _unified(trace.spans, schema.SPAN_TYPES)
    facts = {
        _VERSION: _LAYOUT.encode(),
        _METADATA: trace.metadata.to_json().encode(),
        _INCOMPLETE: schema.encodable(trace.metadata.incomplete).encode(),
        b"pandas": json.dumps(_for_pandas(spans)).encode(),
    }
    if trace.edges.num_rows:
        packed = io.BytesIO()
        _write(_unified(trace.edges, schema.EDGE_TYPES), packed)
        facts[_EDGES] = base64.b64encode(packed.getbuffer())
    with replacing(target) as temporary:
        _write(spans.replace_schema_metadata(facts), temporary)
    return target


def _unified(table: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """Return a table whose texts have one dictionary each."""
    columns = {}
    for name, kind in types.items():
        column = table.column(name)
        null = pa.types.is_null(column.type)
        columns[name] = column if null else schema.one_dictionary(column.cast(kind))
    return pa.table(columns)


def _for_pandas(table: pa.Table) -> dict[str, object]:
    """Return what tells pandas to read whole numbers with nulls as such, not as doubles."""
    columns = []
    for field in table.schema:
        if pa.types.is_integer(field.type):
            name = str(field.type).replace("uint", "UInt").replace("int", "Int")
            nulls = table.column(field.name).null_count
            names = {"name": field.name, "field_name": field.name, "pandas_type": str(field.type)}
            numpy_type = name if nulls else str(field.type)
            columns.append({**names, "numpy_type": numpy_type, "metadata": None})
    return {"index_columns": [], "column_indexes": [], "columns": columns, "pandas_version": "2"}


def _write(table: pa.Table, to: BinaryIO | Path) -> None:
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    whole = [name for name, kind in types.items() if pa.types.is_integer(kind)]
    pq.write_table(
        table,
        to,
        compression="zstd",
        use_dictionary=[name for name, kind in types.items() if pa.types.is_dictionary(kind)],
        # Small and quick for numbers that mostly grow.
        column_encoding=dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        write_page_checksum=True,
    )


def read_parquet(
    path: str | Path, *, most_rows: int | None = None, most_bytes: int | None = None
) -> Trace:
    """Read a trace that :func:`save_trace` wrote.

    Parameters
    ----------
    most_rows
        How many rows it may have, spans and edges; any number without it.
    most_bytes
        How much it may unpack to; without it, as much as ``most_rows`` rows may.

    Raises
    ------
    TraceFormatError
        The file is truncated, is no trace, has another schema version, too many rows or too much
        in them.
    GpuscopeError
        The file cannot be read.
    """
    source = Path(path)
    if most_bytes is None and most_rows is not None:
        most_bytes = 2 * _ROW_BYTES * most_rows
    try:
        if source.is_dir():
            raise GpuscopeError(f"{source.name!r} is a folder: name a .parquet file in it")
        # Arrow's own file: one of Python's is let go by a thread of Arrow's, which aborts the
        # process where Python ends at that moment (https://github.com/apache/arrow/issues/34314).
        with pa.OSFile(os.fsencode(source)) as file:
            return _read(file, most_rows, most_bytes)
    except FileNotFoundError as error:
        raise GpuscopeError(f"there is no file {source.name!r}: check the path") from error
    except PermissionError as error:
        raise GpuscopeError(
            f"{source.name!r} cannot be read: {os.strerror(error.errno or 0)}. Get access, or name "
            "another file"
        ) from error
    except _NotOurs as error:
        raise TraceFormatError(f"{source.name!r} {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceFormatError(
            f"{source.name!r} is no readable trace: damaged, truncated, or not Parquet ({error}). "
            "Save it again, or name another file"
        ) from error


class _NotOurs(Exception):
    """Why a Parquet file is none of ours."""


def _read(file: pa.NativeFile, most_rows: int | None, most_bytes: int | None) -> Trace:
    wanted = frozenset({*schema.SPAN_TYPES, *_EDGE_COLUMNS})
    parquet, rows = _opened(file, wanted, most_rows, most_bytes)
    with parquet:
        facts = parquet.metadata.metadata or {}
        version = facts.get(_VERSION, b"").decode("ascii", "replace")
        if not version:
            raise _NotOurs("is Parquet but not a gpuscope trace: it names no schema version")
        if version not in (_LAYOUT, _ROWS_LAYOUT):
            raise _NotOurs(
                f"has schema version {version[:40]!r}, but this gpuscope reads version {_LAYOUT}: "
                "use the gpuscope that wrote it, or record again"
            )
        text = facts.get(_METADATA)
        if text is None or (version == _ROWS_LAYOUT and _SPANS not in facts):
            raise _lacking((_METADATA if text is None else _SPANS).decode())
        if most_bytes is not None and len(text) > max(_METADATA_BYTES, most_bytes // 20):
            raise _NotOurs(f"has {len(text):,} bytes of metadata, as no trace has")
        try:
            metadata = TraceMetadata.from_json(text.decode())
            count = rows
            if version == _ROWS_LAYOUT:
                count = int(facts[_SPANS])
                if not 0 <= count <= rows:
                    raise _NotOurs(f"says that {count:,} of its {rows:,} rows are spans")
                edges = _columns(parquet, schema.EDGE_TYPES, "edge_", first=count)
            else:
                edges = _edges(facts.get(_EDGES), most_rows, most_bytes)
            return Trace(_columns(parquet, schema.SPAN_TYPES, count=count), edges, metadata)
        except (pa.ArrowException, ValueError, TypeError, RecursionError) as error:
            raise _NotOurs(
                f"says that it is a gpuscope trace but does not hold one ({error})"
            ) from error


def _lacking(name: str) -> _NotOurs:
    return _NotOurs(
        f"says that it is a gpuscope trace but does not hold one (it lacks {name}, or has it twice)"
    )


def _opened(
    file: pa.NativeFile,
    columns: frozenset[str],
    most_rows: int | None,
    most_bytes: int | None,
) -> tuple[pq.ParquetFile, int]:
    """Open Parquet after its pages were looked at; returns how many rows it has, too."""
    room = most_bytes or 1 << 40
    surveyed = survey(file, columns, max(_VALUES, room // 2000), max(_FOOTER_BYTES, room // 4))
    if most_rows is not None and surveyed.rows > most_rows:
        raise _NotOurs(
            f"has {surveyed.rows:,} rows, where {most_rows:,} is the limit. If you trust "
            "the file, load_trace(path, limits=gpuscope.formats.Limits(rows=…)) reads more"
        )
    if most_bytes is not None and surveyed.nbytes > max(most_bytes, _METADATA_BYTES):
        raise _NotOurs(
            f"unpacks to {surveyed.nbytes:,} bytes, where {most_bytes:,} are the limit. If you "
            "trust the file, load_trace(path, limits=gpuscope.formats.Limits(text_bytes=…, "
            "rows=…)) reads more"
        )
    file.seek(0)
    texts = sorted(surveyed.texts & _TEXTS)
    # Not read_table(): given a folder, it joins whatever Parquet lies in it.
    try:
        parquet = pq.ParquetFile(file, page_checksum_verification=True, read_dictionary=texts)
    except KeyError:  # its row groups name a column that its schema does not have
        raise _NotOurs("is no readable trace: its footer contradicts itself") from None
    return parquet, surveyed.rows


_TYPES = {**schema.SPAN_TYPES, **_EDGE_COLUMNS, **schema.EDGE_TYPES}
_TEXTS = frozenset(name for name, kind in _TYPES.items() if pa.types.is_dictionary(kind))


def _edges(packed: bytes | None, most_rows: int | None, most_bytes: int | None) -> pa.Table:
    """Return the edges of a file."""
    if packed is None:
        return schema.table({}, schema.EDGE_TYPES)
    content = base64.b64decode(packed, validate=True)
    names = frozenset(schema.EDGE_TYPES)
    parquet, _ = _opened(pa.BufferReader(content), names, most_rows, most_bytes)
    with parquet:
        return _columns(parquet, schema.EDGE_TYPES)


def _columns(
    parquet: pq.ParquetFile,
    types: dict[str, pa.DataType],
    prefix: str = "",
    first: int = 0,
    count: int | None = None,
) -> pa.Table:
    """Read some rows of columns of the types that are wanted, each as one piece.

    A column that is all null is of no type; one that says so is not read.

    Raises
    ------
    pyarrow.ArrowInvalid
        Dictionaries do not have the places, or texts not the ends, that a column says.
    """
    written = parquet.schema_arrow
    columns = {}
    for name, kind in types.items():
        is_lacking = name in schema.LATER and not written.get_all_field_indices(name)
        if not is_lacking and len(written.get_all_field_indices(prefix + name)) != 1:
            raise _lacking(prefix + name)
        written_type = pa.null() if is_lacking else written.field(prefix + name).type
        if pa.types.is_nested(written_type):
            raise _NotOurs(f"holds {written_type} where {kind} is due, in column {prefix + name}")
        if pa.types.is_null(written_type):
            columns[name] = pa.nulls(parquet.metadata.num_rows).slice(first, count)
            continue
        column = parquet.read(columns=[prefix + name], use_threads=False).column(0).cast(kind)
        column.validate(full=True)
        column = column.slice(first, count)
        if column.null_count == len(column):
            columns[name] = pa.nulls(len(column))
        else:
            columns[name] = schema.one_dictionary(column).combine_chunks()
    return pa.table(columns)
