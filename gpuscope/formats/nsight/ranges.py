"""NVTX ranges and marks of an export of Nsight Systems."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.formats.database import Value
from gpuscope.formats.nsight import schema as nsys
from gpuscope.formats.nsight.capture import OpenExport, SpanColumns
from gpuscope.formats.nsight.schema import DOMAIN, DOMAIN_END, ID, NVTX
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE

# NvtxtXyz are the same, imported from text.
_CATEGORY, _MARK = (nsys.CATEGORY, 64), (nsys.MARK, 65)
_PUSH_POP, _START_END = (nsys.PUSH_POP, 70), (nsys.START_END, 71)
_NUMBERS = """
    start end eventType category color globalTid endGlobalTid textId domainId jsonTextId
"""
_VALUES = ("uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue")
_OPAQUE = 0xFF000000
_PROCESS = ~ID
_OPEN = np.iinfo(np.int64).max
_Loose: TypeAlias = dict[str, list[Value] | None]
"""Column → its values; ``None`` where the file lacks it."""


def read(capture: OpenExport) -> SpanColumns:
    """Return ranges and marks, with their domains, categories, colours and payloads."""
    is_own = capture.is_own  # our marks may have an end, and our names may be empty
    events = capture.database.integers(NVTX, _NUMBERS.split())
    loose = _loose(capture, len(events["start"]))
    kind = events["eventType"]
    names = _texts(capture, events["textId"], loose["text"])
    domains = _names(events, names, [DOMAIN], ("domainId",))
    categories = _names(events, names, _CATEGORY, ("domainId", "category"))
    taken = np.isin(kind, (*_MARK, *_PUSH_POP, *_START_END))
    described = np.isin(kind, (DOMAIN, DOMAIN_END, *_CATEGORY))
    other_types = np.unique(kind[~taken & ~described], return_counts=True)
    for number, count in zip(*other_types, strict=True):
        capture.not_taken[f"rows of {NVTX} of type {number} not taken"] = int(count)
    rest = np.flatnonzero(taken)
    payload = _payloads(capture, events, loose, rest)
    events = {name: values[rest] for name, values in events.items()}
    kind = events["eventType"]
    is_mark = np.isin(kind, _MARK)
    style = np.where(is_mark, NONE, np.isin(kind, _START_END).astype(np.int64))
    starts = capture.times(events["start"])
    ends = events["end"] if is_own else np.where(is_mark, events["start"], events["end"])
    same = (events["endGlobalTid"] == NONE) | (events["endGlobalTid"] == events["globalTid"])
    rows = capture.rows(len(rest))
    nesting = np.flatnonzero(np.isin(kind, _PUSH_POP))
    nesting_ends = np.where(ends == NONE, _OPEN, capture.times(ends))
    nested_ranges = events["globalTid"][nesting], starts[nesting], nesting_ends[nesting]
    around = joins.innermost(events["globalTid"], starts, *nested_ranges)
    around[nesting] = joins.enclosing(*nested_ranges)
    joined = dict(
        zip(("owner", "starts", "ends", "rows"), (*nested_ranges, rows[nesting]), strict=True)
    )
    color, low = events["color"], events["color"] & 0xFFFFFFFF
    argb = np.where(low >> 24, low, low | _OPAQUE)
    columns = {
        "parent": arrow.nullable(arrow.picked(joined["rows"], around)),
        "kind": arrow.text_column(is_mark.astype(np.int64), ["range", "mark"]),
        "name": arrow.texts([_named(names[row], is_own=is_own) for row in rest.tolist()]),
        "start_ns": starts,
        "end_ns": capture.ends(ends),
        **capture.thread_columns(events["globalTid"]),
        "end_thread": arrow.nullable(events["endGlobalTid"] & ID, same),
        "domain": _column(events, domains, ("domainId",), "domain {}"),
        "category": _column(events, categories, ("domainId", "category"), "category {}"),
        "color": pa.array(argb.astype(np.uint32), mask=color <= 0),
        "range_style": arrow.text_column(style, ["push/pop", "start/end"]),
        "payload": payload,
        "source": arrow.constant("nsys", len(rest)),
    }
    return SpanColumns(NVTX, columns, rows, joined, at=rest)


def _named(name: str | None, *, is_own: bool) -> str:
    return "(no message)" if name is None or not (name or is_own) else name


def _loose(capture: OpenExport, count: int) -> _Loose:
    """Return the columns that are no plain integers; ``None`` for what is not there."""
    names = ("text", "jsonText", "binaryData", *_VALUES)
    filled = capture.database.filled(NVTX, names)
    columns = zip(*capture.database.rows(NVTX, filled), strict=True)
    values = dict(zip(filled, map(list, columns), strict=False))
    # A damaged table may have other rows the second time.
    whole = {name: column for name, column in values.items() if len(column) == count}
    return {name: whole.get(name) for name in names}


def _texts(capture: OpenExport, numbers: Array, texts: list[Value] | None) -> list[str | None]:
    """Return each row's text: written in it, else by its number."""
    by_number = [capture.string(number) if number != NONE else None for number in numbers.tolist()]
    if texts is None:
        return by_number
    both = zip(texts, by_number, strict=True)
    return [text if isinstance(text, str) else other for text, other in both]


def _names(
    events: dict[str, Array], names: list[str | None], types: Sequence[int], keys: tuple[str, ...]
) -> dict[tuple[int, ...], str]:
    """Return (process, key…) → name, of the rows that give names."""
    rows = np.flatnonzero(np.isin(events["eventType"], types)).tolist()
    return {
        (int(events["globalTid"][row]) & _PROCESS, *(int(events[key][row]) for key in keys)): name
        for row in rows
        if (name := names[row])
    }


def _column(
    events: dict[str, Array], names: dict[tuple[int, ...], str], keys: tuple[str, ...], absent: str
) -> pa.Array:
    """Return a column of names by process and key; number 0 of the last key is the default's."""
    codes, distinct = arrow.coded_rows(
        events["globalTid"] & _PROCESS, *(events[key] for key in keys)
    )
    texts = [names.get(key, absent.format(key[-1]) if key[-1] > 0 else None) for key in distinct]
    return arrow.text_column(codes, texts)


def _payloads(
    capture: OpenExport, events: dict[str, Array], loose: _Loose, rows: Array
) -> pa.Array:
    """Return the payloads as JSON, the extended one before a number."""
    wanted = rows.tolist()
    numbers = events["jsonTextId"]
    texts: list[str | None] = [None] * len(wanted)
    for name in (*_VALUES, "binaryData", "jsonText"):
        values = loose[name]
        if values is not None:
            for index, row in enumerate(wanted):
                if values[row] is not None:
                    texts[index] = _json(name, values[row])
    for index in np.flatnonzero(numbers[rows] != NONE).tolist():
        texts[index] = capture.string(int(numbers[wanted[index]])) or texts[index]
    if all(text is None for text in texts):
        return pa.nulls(len(wanted))
    return arrow.texts(texts)


def _json(name: str, value: Value) -> str:
    if isinstance(value, bytes):
        return json.dumps({"base64": base64.b64encode(value).decode()})
    if name == "jsonText" and isinstance(value, str):
        return value
    if name == "uint64Value" and isinstance(value, int):
        value &= 0xFFFFFFFFFFFFFFFF  # SQLite knows no unsigned integers
    return json.dumps(value)
