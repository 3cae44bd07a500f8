"""Columns as JSON text, by Arrow's kernels: row by row would take ten times as long."""

from __future__ import annotations

import json
from functools import cache
from json.encoder import encode_basestring as quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._types import Array

KINETO_NAMES = {"nbytes": "bytes"}
"""Column → Kineto's name of the argument; another is called as its column."""
TIMES = ("queued_ns", "submitted_ns")
"""Columns of times among the arguments."""
JSON = ("launch_config", "payload", "site")
"""Columns whose texts are JSON."""


def joined(*parts: pa.StringArray | str) -> pa.StringArray:
    """Return the parts of each row one after another."""
    return pc.binary_join_element_wise(*parts, "")


@cache
def _fractions() -> pa.StringArray:
    """Return thousandths as text; not when this is imported, as PyArrow imports pandas for it."""
    return pa.array([f".{number:03d}" for number in range(1000)])


def micros(ns: Array) -> tuple[pa.StringArray, pa.StringArray]:
    """Return ns as µs with three decimals: the text before the point, and the rest."""
    whole, rest = np.divmod(ns, 1000)
    return pa.array(whole).cast(pa.string()), _fractions().take(pa.array(rest))


def finite(values: pa.FloatingPointArray) -> pa.StringArray:
    """Return floats as JSON has them; null where it has none."""
    return pc.if_else(pc.is_finite(values), values.cast(pa.string()), "null")


def argument(name: str, values: pa.Array, base_ns: int) -> pa.StringArray:
    """Return ``"name":value`` of each row, null where there is none."""
    begin = f'"{KINETO_NAMES.get(name, name)}":'
    if pa.types.is_dictionary(values.type):
        texts = [_quoted(text, is_json=name in JSON) for text in values.dictionary.to_pylist()]
        lines = pa.array([None if text is None else begin + text for text in texts], pa.string())
        return lines.take(values.indices)
    if pa.types.is_floating(values.type):
        return joined(begin, finite(values))
    if name in TIMES:
        values = pc.subtract(values, base_ns)
    return joined(begin, values.cast(pa.string()))


def _quoted(text: str | None, *, is_json: bool) -> str | None:
    """Return a text for JSON; what is JSON already as it is, if it can stand on one line."""
    if text is None:
        return None
    if is_json:
        try:
            facts = json.loads(text, parse_constant=str)
            return json.dumps(facts, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
    return quote(text)


def bytes_of(lines: pa.StringArray) -> memoryview:
    """Return the texts of an array one after another, without a copy."""
    _, offsets, data = lines.buffers()
    bounds = np.frombuffer(offsets, np.int32)
    return memoryview(data)[bounds[lines.offset] : bounds[lines.offset + len(lines)]]
