"""Arrow columns of spans from arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from gpuscope._types import Array, Ints
from gpuscope.trace import schema

Columns: TypeAlias = dict[str, pa.Array]
"""Name of a column of spans → its values, as pyarrow or NumPy has them."""
NONE = -1
"""A row without a value."""
_AT_ONCE = 4096
"""Texts that are Python's at the same time."""


def text_column(codes: Array, texts: Iterable[str | None]) -> pa.Array:
    """Return a dictionary column from numbers into ``texts``; NONE and ``None`` are null."""
    distinct = _gathered(texts).dictionary_encode()
    numbers = np.append(np.asarray(distinct.indices.fill_null(NONE)), NONE)  # the last is NONE's
    codes = numbers[codes].astype(np.int32)
    is_of_none = len(distinct) > 0 == len(distinct.dictionary)
    dictionary = pa.array([""]) if is_of_none else distinct.dictionary
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), dictionary)


def _gathered(texts: Iterable[str | None]) -> pa.Array:
    """Return texts as an array; of what is made one by one, few are Python's at a time."""
    remaining = iter(texts)
    parts = [pa.array([], pa.string())]
    while some := list(itertools.islice(remaining, _AT_ONCE)):
        encodable = [None if text is None else schema.encodable(text) for text in some]
        parts.append(pa.array(encodable, pa.string()))
    return pa.concat_arrays(parts)


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return a dictionary column of texts that repeat: each distinct one is copied once."""
    code_of_text: dict[str | None, int] = {}
    codes = np.array(
        [code_of_text.setdefault(value, len(code_of_text)) for value in values], np.int64
    )
    return text_column(codes, [*code_of_text])


def constant(text: str, count: int) -> pa.Array:
    """Return a dictionary column of one text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def coded(values: pa.Array | Array) -> tuple[Ints, list[Any]]:
    """Return numbers and the distinct values they stand for, in order of appearance."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def worded(values: Array, word: Callable[[Any], str | None]) -> pa.Array:
    """Return a dictionary column of what ``word`` says of each distinct value."""
    codes, distinct = coded(values)
    return text_column(codes, map(word, distinct))


def coded_rows(*columns: Array) -> tuple[Array, list[tuple[int, ...]]]:
    """Return numbers of the distinct rows of integer columns, and these rows, as :func:`coded`."""
    codes, distinct = coded_array(*columns)
    return codes, list(zip(*distinct.T.tolist(), strict=True))


def coded_array(*columns: Array) -> tuple[Array, Array]:
    """Return what :func:`coded_rows` does, the distinct rows as an array."""
    return distinct_rows(np.stack([np.asarray(column, np.int64) for column in columns], axis=1))


def distinct_rows(table: Array) -> tuple[Array, Array]:
    """Return numbers of the distinct rows of an array, and these rows in order of appearance."""
    flat = np.ascontiguousarray(table)
    packed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(flat.shape[1] * flat.itemsize), len(flat), [None, pa.py_buffer(flat)]
    )
    encoded = packed.dictionary_encode()
    rows = np.frombuffer(encoded.dictionary.buffers()[1], flat.dtype)
    count, width = len(encoded.dictionary), flat.shape[1]
    distinct = rows[: count * width].reshape(count, width)
    return encoded.indices.to_numpy(zero_copy_only=False), distinct


def edges(parts: Sequence[tuple[Array, Array, str]]) -> pa.Table:
    """Return a table of edges from (from, to, kind)."""
    sources, targets, kinds = zip(*parts, strict=True) if parts else ((), (), ())
    distinct = list(dict.fromkeys(kinds))
    codes = np.repeat([distinct.index(kind) for kind in kinds], [len(part) for part in sources])
    if not len(codes):
        return schema.table({}, schema.EDGE_TYPES)
    ends = {"from": np.concatenate(sources), "to": np.concatenate(targets)}
    return pa.table({**ends, "kind": text_column(codes, distinct)})


def picked(values: Array, at: Array) -> Array:
    """Return the values at some positions, NONE where the position is NONE."""
    return np.append(values, NONE)[at]  # the last is NONE's


def nullable(values: Array, missing: Array | None = None) -> pa.Array:
    """Return an int64 column with nulls where ``missing`` or, without it, where there is NONE.

    A column that is all null costs nothing.
    """
    missing = values == NONE if missing is None else missing
    if missing.all():
        return pa.nulls(len(values))
    return pa.array(values.astype(np.int64, copy=False), mask=missing if missing.any() else None)


def table(columns: Mapping[str, pa.Array | Array], count: int) -> pa.Table:
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
