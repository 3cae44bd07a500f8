"""Columns of a trace as codes: row → code and code → value, as a trace may have 10⁶ rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._types import Array, Bools, Ints
from gpuscope.trace import schema
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace

_Result = TypeVar("_Result")
_FEW = 1 << 20
"""Combinations that are counted one by one: to sort 10⁶ rows takes ten times as long."""


def once(function: Callable[[Trace], _Result]) -> Callable[[Trace], _Result]:
    """Make a function of a trace remember its result for as long as the trace lives."""
    results: WeakKeyDictionary[Trace, _Result] = WeakKeyDictionary()

    @wraps(function)
    def remembered(trace: Trace) -> _Result:
        if trace not in results:
            results[trace] = function(trace)
        return results[trace]

    return remembered


def rows_of(trace: Trace, *kinds: str) -> Ints:
    """Return the positions of the rows of these kinds."""
    code, names = narrow_codes(trace.spans.column("kind"))
    return np.flatnonzero(np.array([name in kinds for name in names])[code])


def is_open(trace: Trace) -> Bools:
    """Return row → whether its end is unknown."""
    return np.asarray(trace.spans.column("end_ns").is_null(), dtype=bool)


ORDERING = ("event wait", "graph", "legacy default stream")
"""Kinds of edges from what had to end to what waited for it, besides the order of a stream."""


def linked_rows(edges: pa.Table, ids: Ints, *kinds: str) -> tuple[Ints, Ints]:
    """Return the rows that edges of some kinds lead from and to, of those whose rows are there.

    Parameters
    ----------
    ids
        Row → its id.
    """
    code, edge_kinds = codes(edges.column("kind"))
    chosen = np.flatnonzero(np.array([kind in kinds for kind in edge_kinds], bool)[code])
    source, target = (
        match(np.asarray(edges.column(name), np.int64)[chosen], ids) for name in ("from", "to")
    )
    is_present = (source >= 0) & (target >= 0)
    return source[is_present], target[is_present]


def launch_calls(trace: Trace) -> Ints:
    """Row → position of the host call that launched it, −1 where none is known.

    Of several calls that the edges name for one row, the last to begin: the innermost.
    """
    call, work = linked_rows(trace.edges, trace.array("id"), "launch")
    if not len(work):
        return np.broadcast_to(np.int64(-1), len(trace))
    calls = np.full(len(trace), -1, np.int64)
    order = np.argsort(trace.array("start_ns")[call], kind="stable")
    calls[work[order]] = call[order]  # of equal targets the last assignment stays
    return calls


def codes(column: pa.ChunkedArray) -> tuple[Ints, list[Any]]:
    """Return row → code and code → value of a column; code 0 is null."""
    indices, values = narrow_codes(column)
    return indices.astype(np.int64), values


def narrow_codes(column: pa.ChunkedArray) -> tuple[Array, list[Any]]:
    """Return the same with codes of 32 bits, which take half the memory and time."""
    is_coded = pa.types.is_dictionary(column.type)
    if not is_coded and column.null_count == len(column):
        return np.zeros(len(column), np.int32), [None]
    whole = schema.one_dictionary(column).combine_chunks()
    coded = whole if is_coded else pc.dictionary_encode(whole)
    nullable = coded.indices.cast(pa.int32())
    indices = np.asarray(nullable.fill_null(-1) if nullable.null_count else nullable) + np.int32(1)
    values = [None, *coded.dictionary.to_pylist()]
    # A writer may have put a text into its dictionary twice.
    if len(distinct := dict.fromkeys(values)) < len(values):
        number = {value: code for code, value in enumerate(distinct)}
        merged = np.array([number[value] for value in values], np.int32)
        indices = merged[indices]
        values = list(distinct)
    return indices, values


def outside(intended: tuple[Ints, list[Any]], partition: tuple[Ints, list[Any]]) -> Bools:
    """Return row → whether it ran outside the partition intended for it; both as :func:`codes`."""
    number = {name: code for code, name in enumerate(partition[1])}
    home = np.array([number.get(name, -1) for name in intended[1]])[intended[0]]
    escaped: Bools = (intended[0] > 0) & (home != partition[0])
    return escaped


def chosen(mask: Bools) -> Ints | slice:
    """Return what picks the rows that a mask is true of; all rows without copying them."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def combined(*parts: Ints) -> tuple[Ints, Ints]:
    """Return where each combination of codes comes first, and row → number of its combination."""
    code = np.zeros(len(parts[0]), np.int64)
    count = 1
    for part in parts:
        width = int(part.max(initial=0)) + 1
        if width == 1:
            continue
        if count * width > _FEW:
            count, code = _dense(code, count)
        if count > 1:
            code *= width
        code += part
        count *= width
    count, code = _dense(code, count)
    first = np.empty(count, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return first, code


def _dense(code: Ints, count: int) -> tuple[int, Ints]:
    """Return codes below ``count`` without gaps, in the same order, and how many there are."""
    if count > min(_FEW, 64 * len(code)):
        used, code = np.unique(code, return_inverse=True)
        return len(used), code
    is_used = np.bincount(code, minlength=count) > 0
    if is_used.all():
        return count, code
    return int(is_used.sum()), (np.cumsum(is_used) - 1)[code]
