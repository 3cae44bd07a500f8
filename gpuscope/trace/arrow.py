"""Arrow columns of spans from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gpuscope.trace import schema

Array = np.ndarray[Any, Any]

NONE = -1
"""A row without a value."""


def text_column(codes: Array, texts: list[str | None]) -> Any:
    """Return a dictionary column from numbers into ``texts``; NONE and ``None`` are null."""
    index = np.array(
        [NONE if text is None else number for number, text in enumerate(texts)] or [NONE], np.int64
    )
    codes = np.where(codes >= 0, index[np.maximum(codes, 0)], NONE) if len(codes) else codes
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32), mask=codes < 0),
        pa.array([schema.encodable(text or "") for text in texts], pa.string()),
    )


def texts(values: Sequence[str | None]) -> Any:
    """Return a dictionary column of texts that repeat: each distinct one is copied once."""
    known: dict[str | None, int] = {}
    codes = np.array([known.setdefault(value, len(known)) for value in values], np.int64)
    return text_column(codes, [*known])


def constant(text: str, count: int) -> Any:
    """Return a dictionary column of one text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def coded(values: Any) -> tuple[Array, list[Any]]:
    """Return numbers and the distinct values they stand for, in order of appearance."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def coded_rows(*columns: Array) -> tuple[Array, list[tuple[int, ...]]]:
    """Return numbers of the distinct rows of integer columns, and these rows, as :func:`coded`."""
    flat = np.stack([np.asarray(column, np.int64) for column in columns], axis=1)
    packed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(8 * len(columns)), len(flat), [None, pa.py_buffer(flat)]
    )
    codes, distinct = coded(packed)
    return codes, [tuple(np.frombuffer(raw, np.int64).tolist()) for raw in distinct]


def nullable(values: Array, missing: Array) -> Any:
    """Return an int64 column with nulls where ``missing``; all null costs nothing."""
    if missing.all():
        return pa.nulls(len(values))
    return pa.array(values.astype(np.int64, copy=False), mask=missing if missing.any() else None)


def table(columns: Mapping[str, Any], count: int) -> Any:
    """Return a table of spans; columns that are not given are null."""
    arrays = []
    for name, kind in schema.SPAN_TYPES.items():
        values = columns.get(name)
        if values is None:
            arrays.append(pa.nulls(count))
        elif isinstance(values, np.ndarray):
            arrays.append(pa.array(values.astype(kind.to_pandas_dtype(), copy=False)))
        elif pa.types.is_null(values.type) or values.type == kind:
            arrays.append(values)
        else:
            arrays.append(values.cast(kind))
    return pa.table(dict(zip(schema.SPAN_TYPES, arrays, strict=True)))
