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
from gpuscope.formats.nsight.capture import NVTX, Capture, Part
from gpuscope.trace import arrow, joins
from gpuscope.trace.arrow import NONE

# NvtxtXyz are the same, imported from text.
_CATEGORY, _MARK, _PUSH_POP, _START_END = (33, 64), (34, 65), (59, 70), (60, 71)
_DOMAIN, _DOMAIN_END = 75, 76
_NUMBERS = ("start", "end", "eventType", "category", "color", "globalTid", "endGlobalTid",
            "textId", "domainId", "jsonTextId")  # fmt: skip
_VALUES = ("uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue")
_OPAQUE = 0xFF000000
_PROCESS = ~0xFFFFFF
_OPEN = np.iinfo(np.int64).max
_Loose: TypeAlias = dict[str, list[Value] | None]
"""Column → its values; ``None`` where the file lacks it."""


def read(capture: Capture) -> Part:
    """Return ranges and marks, with their domains, categories, colours and payloads."""
    own = capture.own is not None  # our marks may have an end, and our names may be empty
    found = capture.database.integers(NVTX, _NUMBERS)
    loose = _loose(capture, len(found["start"]))
    kind = found["eventType"]
    names = _texts(capture, found["textId"], loose["text"])
    domains = _names(found, names, [_DOMAIN], ("domainId",))
    categories = _names(found, names, _CATEGORY, ("domainId", "category"))
    taken = np.isin(kind, (*_MARK, *_PUSH_POP, *_START_END))
    described = np.isin(kind, (_DOMAIN, _DOMAIN_END, *_CATEGORY))
    for number, count in zip(
        *np.unique(kind[~taken & ~described], return_counts=True), strict=True
    ):
        capture.not_taken[f"rows of {NVTX} of type {number} not taken"] = int(count)
    rest = np.flatnonzero(taken)
    payload = _payloads(capture, found, loose, rest)
    found = {name: values[rest] for name, values in found.items()}
    kind = found["eventType"]
    is_mark = np.isin(kind, _MARK)
    style = np.where(is_mark, NONE, np.isin(kind, _START_END).astype(np.int64))
    starts = capture.times(found["start"])
    ends = found["end"] if own else np.where(is_mark, found["start"], found["end"])
    same = (found["endGlobalTid"] == NONE) | (found["endGlobalTid"] == found["globalTid"])
    rows = capture.rows(len(rest))
    nesting = np.flatnonzero(np.isin(kind, _PUSH_POP))
    nesting_ends = np.where(ends == NONE, _OPEN, capture.times(ends))
    joined = {
        "owner": found["globalTid"][nesting],
        "starts": starts[nesting],
        "ends": nesting_ends[nesting],
        "rows": rows[nesting],
    }
    around = joins.innermost(
        found["globalTid"], starts, joined["owner"], joined["starts"], joined["ends"]
    )
    around[nesting] = joins.enclosing(joined["owner"], joined["starts"], joined["ends"])
    color = found["color"]
    columns = {
        "parent": arrow.nullable(arrow.picked(joined["rows"], around)),
        "kind": arrow.text_column(is_mark.astype(np.int64), ["range", "mark"]),
        "name": arrow.texts([_named(names[row], own=own) for row in rest.tolist()]),
        "start_ns": starts,
        "end_ns": capture.ends(ends),
        **capture.thread_columns(found["globalTid"]),
        "end_thread": arrow.nullable(found["endGlobalTid"] & 0xFFFFFF, same),
        "domain": _column(found, domains, ("domainId",), "domain {}"),
        "category": _column(found, categories, ("domainId", "category"), "category {}"),
        "color": pa.array(_argb(color), mask=color <= 0),
        "range_style": arrow.text_column(style, ["push/pop", "start/end"]),
        "payload": payload,
        "source": arrow.constant("nsys", len(rest)),
    }  # fmt: skip
    return Part(NVTX, columns, rows, joined, at=rest)


def _named(name: str | None, *, own: bool) -> str:
    return "(no message)" if name is None or not (name or own) else name


def _argb(color: Array) -> Array:
    low = color & 0xFFFFFFFF
    return np.where(low >> 24, low, low | _OPAQUE).astype(np.uint32)


def _loose(capture: Capture, count: int) -> _Loose:
    """Return the columns that are no plain integers; ``None`` for what is not there."""
    names = ("text", "jsonText", "binaryData", *_VALUES)
    there = capture.database.filled(NVTX, names)
    columns = zip(*capture.database.rows(NVTX, there), strict=True)
    found = dict(zip(there, map(list, columns), strict=False))
    # A damaged table may have other rows the second time.
    return {name: found.get(name) if len(found.get(name, ())) == count else None for name in names}


def _texts(capture: Capture, numbers: Array, texts: list[Value] | None) -> list[str | None]:
    """Return each row's text: written in it, else by its number."""
    by_number = [capture.string(one) if one != NONE else None for one in numbers.tolist()]
    if texts is None:
        return by_number
    return [
        text if isinstance(text, str) else other
        for text, other in zip(texts, by_number, strict=True)
    ]


def _names(
    found: dict[str, Array], names: list[str | None], types: Sequence[int], keys: tuple[str, ...]
) -> dict[tuple[int, ...], str]:
    """Return (process, key…) → name, of the rows that give names."""
    rows = np.flatnonzero(np.isin(found["eventType"], types)).tolist()
    return {
        (int(found["globalTid"][row]) & _PROCESS, *(int(found[key][row]) for key in keys)): name
        for row in rows
        if (name := names[row])
    }


def _column(
    found: dict[str, Array], names: dict[tuple[int, ...], str], keys: tuple[str, ...], absent: str
) -> pa.Array:
    """Return a column of names by process and key; number 0 of the last key is the default's."""
    codes, distinct = arrow.coded_rows(found["globalTid"] & _PROCESS, *(found[key] for key in keys))
    texts = [names.get(one, absent.format(one[-1]) if one[-1] > 0 else None) for one in distinct]
    return arrow.text_column(codes, texts)


def _payloads(capture: Capture, found: dict[str, Array], loose: _Loose, rows: Array) -> pa.Array:
    """Return the payloads as JSON, the extended one before a number."""
    wanted = rows.tolist()
    numbers = found["jsonTextId"]
    texts: list[str | None] = [None] * len(wanted)
    for name in (*_VALUES, "binaryData", "jsonText"):
        values = loose[name]
        if values is not None:
            for place, row in enumerate(wanted):
                if values[row] is not None:
                    texts[place] = _json(name, values[row])
    for place in np.flatnonzero(numbers[rows] != NONE).tolist():
        texts[place] = capture.string(int(numbers[wanted[place]])) or texts[place]
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
