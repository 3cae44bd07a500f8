"""The columns of a trace: names, Arrow types, units."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Values: TypeAlias = Sequence[object]
"""The values of a column: whole numbers, numbers or texts, or ``None``."""

SCHEMA_VERSION = 1
"""Grows when a reader of the version before could misread a file."""

_TEXT = pa.dictionary(pa.int32(), pa.string())

SPAN_TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "parent": pa.int64(),
    "kind": _TEXT,
    "name": _TEXT,
    "start_ns": pa.int64(),
    "end_ns": pa.int64(),
    "start_uncertainty_ns": pa.int64(),
    "end_uncertainty_ns": pa.int64(),
    "host": _TEXT,
    "process": pa.int64(),
    "thread": pa.int64(),
    "end_thread": pa.int64(),
    "device": pa.int16(),
    "device_uuid": _TEXT,
    "context": pa.int64(),
    "green_context": pa.int64(),
    "partition": _TEXT,
    "intended_partition": _TEXT,
    "stream": pa.int64(),
    "channel": pa.int64(),
    "correlation": pa.int64(),
    "external_correlation": pa.int64(),
    "graph": pa.int64(),
    "graph_node": pa.int64(),
    "queued_ns": pa.int64(),
    "submitted_ns": pa.int64(),
    "sm": pa.int16(),
    "nbytes": pa.int64(),
    "copy_kind": _TEXT,
    "src_kind": _TEXT,
    "dst_kind": _TEXT,
    "flop_count": pa.int64(),
    "launch_config": _TEXT,
    "site": _TEXT,
    "domain": _TEXT,
    "category": _TEXT,
    "color": pa.uint32(),
    "range_style": _TEXT,
    "payload": _TEXT,
    "value": pa.float64(),
    "status": _TEXT,
    "source": _TEXT,
}
"""Column → type of a span. Times are ns on the trace's time base; ``end_ns`` is null
while a span is open. The uncertainties are one-sided: the true start lies in
[start, start + start_uncertainty], the true end in [end − end_uncertainty, end].
``queued_ns`` is when the call that launched the work returned: short work may be done by then; of
a simulated device, when the call had queued it, and returned somewhat later.
``color`` is ARGB. ``launch_config``, ``payload`` and ``site`` are
JSON texts. ``site``: file, line and function of the lines of Python that made the call, or the call
that launched the work, innermost first; those of installed packages are left out. Of a stack it has
all such lines, ``payload`` also those of packages; ``value`` is how many samples told it,
``status`` what the thread did; ``category`` says that frames moved meanwhile, or some are left
out. True boundaries of a stack lie between two samples, those told half-way, so to both sides: it
has no uncertainties."""

LATER = ("site",)
"""Columns that traces written before they came do not have."""

REQUIRED = ("id", "kind", "name", "start_ns", "source")
"""Columns without nulls."""

LATEST_NS = 1000 << 52
"""Times are before it, in the year 2112 of Unix time: as µs a double holds them whole."""

KINDS = (
    "kernel", "memcpy", "memset", "sync", "api", "range", "mark", "event", "block", "scope",
    "counter", "handle", "host function", "graph", "stack",
)  # fmt: skip
"""``host function``: one that a stream called, from its beginning to its end; only simulated
devices tell. ``scope``: a part of a thread block, as one of its warps went through it. ``graph``:
a graph's launch that a foreign recorder took as a whole, from the start of its first work to the
end of its last. ``stack``: that of a thread of Python's, for as long as samples told the same."""
HOLDS_LOCK, WAITS_FOR_LOCK = "holds Python's lock", "waits for Python's lock"
NO_PYTHON = "no Python"
"""The name of a stack of a thread that runs none."""
COLLECTION = "garbage collection"
"""The name of a wait for Python's collector."""
RUNS, WITHOUT_LOCK = "runs without Python's lock", "is without Python's lock"
IN_CALL = "in system call "
"""What a thread did whose stack was sampled, in the column ``status``: behind the last the name or
number of the call; the one before where the system does not say whether it runs."""
GPU_WORK = ("kernel", "memcpy", "memset", "graph")
"""The kinds that keep a GPU busy; a graph's launch recorded as a whole stands for its work."""
CALLS = ("api", "sync", "event")
"""Kinds of rows that are calls of a thread."""
SAMPLED = ("counter", "stack")
"""The kinds that last as long as the recording, whatever the program did."""
_COPIES = "HtoD DtoH HtoA AtoH AtoA AtoD DtoA DtoD HtoH PtoP"
COPY_KINDS = ("unknown", *_COPIES.split())
"""Directions of copies as CUPTI numbers them, from 0."""
_MEMORIES = "unknown pageable pinned device array managed device_static managed_static"
MEMORY_KINDS = tuple(kind.replace("_", " ") for kind in _MEMORIES.split())
"""Kinds of memory as CUPTI numbers them, from 0."""
_WAITS = ("event synchronize", "stream wait event", "stream synchronize", "context synchronize")
SYNC_KINDS = ("unknown", *_WAITS)
"""Synchronisations as CUPTI numbers them, from 0."""
SOURCES = (
    "cupti", "events", "nvtx", "blocks", "simulated", "host", "nvml", "nsys", "chrome", "proton",
)  # fmt: skip

EDGE_TYPES: dict[str, pa.DataType] = {"from": pa.int64(), "to": pa.int64(), "kind": _TEXT}
"""An edge leads from the span that must come first to the one that follows from it."""

EDGE_KINDS = (
    "launch", "event wait", "host wait", "graph", "range", "legacy default stream", "SMs",
    "priority", "collective", "thread start", "hand-over",
)  # fmt: skip
"""``launch``: a call to the work that it queued. ``event wait``: the last work before the record of
an event to the first behind a wait for it. ``host wait``: work to the call that waited for it, that
saw it done, or that copied and returned when it was. ``graph``: a node of a graph's launch to one
that follows it, or the last launch of a graph to its next. ``legacy default stream``: by its
barrier. ``SMs``: from the kernel that released the SMs that one got which waited for them;
``priority`` where only its stream's priority had let it go first. Only simulated devices tell of
these two. ``collective``: from the rank that began a collective last to the others, which waited
for it. ``thread start``: what a thread did last before it started another to the first that this
did. ``hand-over``: the call that put something into a queue, or set an event, to the one that
waited for it."""


def table(columns: Mapping[str, Values], types: dict[str, pa.DataType]) -> pa.Table:
    """Build a table of ``types``; a column that is absent or all null costs nothing."""
    length = len(next(iter(columns.values()))) if columns else 0
    arrays = []
    for name, kind in types.items():
        values = columns.get(name)
        if values is None or all(value is None for value in values):
            arrays.append(pa.nulls(length))
        else:
            arrays.append(_texts(values) if kind is _TEXT else pa.array(values, type=kind))
    return pa.table(dict(zip(types, arrays, strict=True)))


def with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return a table with another column of a name; one that is all null costs nothing."""
    if column.null_count == len(column):
        column = pa.nulls(len(column))
    return table.set_column(table.schema.get_field_index(name), name, column)


def changed(
    table: pa.Table, name: str, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> pa.Table:
    """Return the table with a column changed, unless that is all null."""
    column = table.column(name)
    return table if pa.types.is_null(column.type) else with_column(table, name, change(column))


def added(table: pa.Table, number: int, *names: str) -> pa.Table:
    """Return the table with a number added to columns."""
    for name in names if number else ():
        table = changed(table, name, lambda column: pc.add(column, number))
    return table


def encodable(text: str) -> str:
    """Replace what UTF-8 cannot hold: a lone surrogate in a foreign name is not worth a trace."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_ESCAPES = re.compile(
    rb"""\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"""
    rb"""|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"""
)
"""Of JSON: an escaped backslash, a pair of surrogates or, as group 1, a lone one."""


def readable(text: bytes) -> bytes:
    """Return JSON whose escaped lone surrogates are replaced, as in :func:`encodable`."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    return _ESCAPES.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], text)


def _texts(values: Values) -> pa.Array:
    try:
        return pa.array(values, pa.string()).dictionary_encode()
    except UnicodeEncodeError:
        encoded = [None if value is None else encodable(str(value)) for value in values]
        return pa.array(encoded, pa.string()).dictionary_encode()


def concat(tables: list[pa.Table], types: dict[str, pa.DataType]) -> pa.Table:
    """Concatenate tables of one schema, whichever columns are null in each."""
    if not tables:
        return table({}, types)
    columns = {}
    for name, kind in types.items():
        chunks = [part.column(name) for part in tables]
        if all(pa.types.is_null(chunk.type) for chunk in chunks):
            columns[name] = pa.nulls(sum(len(chunk) for chunk in chunks))
            continue
        typed = [chunk.cast(kind) if pa.types.is_null(chunk.type) else chunk for chunk in chunks]
        joined = pa.chunked_array([piece for chunk in typed for piece in chunk.chunks], type=kind)
        columns[name] = one_dictionary(joined).combine_chunks()
    return pa.table(columns)


def one_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give all chunks of a column of texts one dictionary; other columns stay as they are.

    Arrow looks up what lies under a null as well (``TransposeInts`` in Arrow 26), wherever that
    points, so that a −1 there can end the process: nulls become those of number 0.
    """
    if column.num_chunks < 2 or not pa.types.is_dictionary(column.type):
        return column
    chunks = [_defined(chunk) for chunk in column.chunks]
    return pa.chunked_array(chunks, column.type).unify_dictionaries()


def _defined(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the same texts, whose nulls have a number of the dictionary."""
    if not chunk.null_count:
        return chunk
    numbers = np.asarray(chunk.indices.fill_null(0))
    indices = pa.array(numbers, chunk.indices.type, mask=np.asarray(chunk.indices.is_null()))
    dictionary = chunk.dictionary
    if not len(dictionary):
        dictionary = pa.array([""], dictionary.type)
    return pa.DictionaryArray.from_arrays(indices, dictionary)
