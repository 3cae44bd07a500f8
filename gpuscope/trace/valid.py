"""What a valid trace is, checked where one is made."""

from __future__ import annotations

from typing import TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from gpuscope.errors import TraceFormatError
from gpuscope.trace import schema
from gpuscope.trace.joins import distinct

_BELOW = {name: schema.LATEST_NS for name in schema.SPAN_TYPES if name.endswith("_ns")}
_BELOW["id"] = 1 << 62
"""Column → what its numbers are below: sums and differences of two fit into 64 bits."""


def is_short(number: object) -> TypeGuard[int]:
    """Whether it can be the index of a device or an SM, or a count of SMs."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 15


def check(spans: pa.Table, edges: pa.Table) -> None:
    """Check the rows of a trace.

    Columns and types are the schema's (or all null), required ones have no nulls, ids differ,
    no whole number is negative (null stands for what is unknown), times lie before
    ``schema.LATEST_NS``, and nothing ends before it begins. An edge may name a row that is not
    there: what was dropped has no row.

    Raises
    ------
    TraceFormatError
        Something is otherwise; says what.
    """
    _check_table("span", spans, schema.SPAN_TYPES, schema.REQUIRED)
    _check_table("edge", edges, schema.EDGE_TYPES, tuple(schema.EDGE_TYPES))
    backwards = count_backwards(spans)
    if backwards:
        raise TraceFormatError(
            f"{backwards:,} spans end before they begin: leave end_ns null where it is unknown"
        )
    ids = spans.column("id").to_numpy()
    if len(distinct(ids)) < len(ids):
        raise TraceFormatError("two spans have the same id: number them")


def out_of_range(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return row → whether a whole number is none that a trace may hold; null where it is null.

    ``None`` stands for no such row.
    """
    if not pa.types.is_integer(column.type):
        return None
    least, most = pc.min_max(column).as_py().values()
    below = _BELOW.get(name)
    if most is None or (least >= 0 and (below is None or most < below)):
        return None
    wrong = pc.less(column, 0)
    return wrong if below is None else pc.or_(wrong, pc.greater_equal(column, below))


def sifted(spans: pa.Table, edges: pa.Table) -> tuple[pa.Table, pa.Table, dict[str, int]]:
    """Return rows of others without what no valid trace holds, and what that was → how often.

    A span without a valid start goes, and the edges from and to it; a number that is none, and
    an end before the start, become null.
    """
    left: dict[str, int] = {}
    for name in schema.SPAN_TYPES:
        if name == "end_ns" and count_backwards(spans):
            backwards = pc.less(spans.column(name), spans.column("start_ns"))
            left["ends before their begin"] = pc.sum(backwards).as_py()
            spans = _without_values(spans, name, backwards)
        wrong = out_of_range(name, spans.column(name))
        if wrong is None:
            continue
        count = pc.sum(wrong).as_py()
        if name in schema.REQUIRED:
            left[f"spans with an impossible {name}"] = count
            spans = spans.filter(pc.invert(wrong))
            edges = between(edges, spans.column("id"))
        else:
            left[f"impossible values of {name}"] = count
            spans = _without_values(spans, name, wrong)
    return spans, edges, left


def _without_values(spans: pa.Table, name: str, wrong: pa.ChunkedArray) -> pa.Table:
    """Return the spans with nulls in a column where ``wrong``."""
    corrected = pc.if_else(wrong, pa.scalar(None, schema.SPAN_TYPES[name]), spans.column(name))
    return schema.with_column(spans, name, corrected)


def between(edges: pa.Table, ids: pa.ChunkedArray) -> pa.Table:
    """Return the edges that lead from one of these rows to another."""
    if not edges.num_rows:
        return edges
    begins, ends = (pc.is_in(edges.column(name), value_set=ids) for name in ("from", "to"))
    return edges.filter(pc.and_(begins, ends))


def count_backwards(spans: pa.Table) -> int:
    """Return how many spans end before they begin."""
    ends = spans.column("end_ns")
    if pa.types.is_null(ends.type) or not len(ends):
        return 0
    return int(pc.sum(pc.less(ends, spans.column("start_ns"))).as_py() or 0)


def _check_table(
    what: str, table: pa.Table, types: dict[str, pa.DataType], required: tuple[str, ...]
) -> None:
    if table.column_names != list(types):
        raise TraceFormatError(
            f"the {what} columns are not those of a trace: build it with Trace.from_columns()"
        )
    for name, kind in types.items():
        column = table.column(name)
        if not pa.types.is_null(column.type) and column.type != kind:
            raise TraceFormatError(f"{what} column {name} is of type {column.type}, not {kind}")
        if name in required and column.null_count:
            raise TraceFormatError(f"there are {what}s without {name}")
        wrong = out_of_range(name, column)
        if wrong is not None:
            value = column.filter(wrong)[0].as_py()
            raise TraceFormatError(
                f"{what} column {name} holds {value}, which no trace does: whole numbers are not "
                "negative, times are ns before the year 2112. Leave null what is unknown"
            )
