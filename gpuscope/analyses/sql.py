"""Questions to a trace in SQL, which DuckDB answers: its tables and views."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._optional import require
from gpuscope._text import clean_lines
from gpuscope._types import Untyped
from gpuscope.analyses.views import finding_rows, part_rows
from gpuscope.errors import InvalidArgument
from gpuscope.trace import schema
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named

MADE = {"findings": finding_rows, "parts": part_rows}
"""Name → what makes a table of a trace, where a query names it."""
VIEWS = {
    "launches": """
        SELECT work.id, work.kind, work.name, work.category AS workload, work.device,
            work.stream_name AS stream, work.partition, call.id AS call, call.name AS call_name,
            call.thread, call.start_ns AS called_ns,
            coalesce(work.queued_ns, call.end_ns) AS queued_ns, work.start_ns, work.end_ns,
            work.duration_ns, work.start_ns - coalesce(work.queued_ns, call.end_ns) AS waited_ns,
            work.launch_config, coalesce(work.site, call.site) AS site
        FROM spans AS work
        LEFT JOIN edges ON edges.to = work.id AND edges.kind = 'launch'
        LEFT JOIN spans AS call ON call.id = edges.from
        WHERE work.kind IN ('kernel', 'memcpy', 'memset', 'graph', 'host function')""",
    "waits": """
        SELECT edges.kind, waiting.id, waiting.kind AS what, waiting.name,
            waiting.stream_name AS stream, other.id AS for_id, other.kind AS for_what,
            other.name AS for_name, other.stream_name AS for_stream, waiting.start_ns,
            waiting.end_ns, other.end_ns AS for_end_ns
        FROM edges
        JOIN spans AS waiting ON waiting.id = edges.to
        JOIN spans AS other ON other.id = edges.from
        WHERE edges.kind NOT IN ('launch', 'range')""",
}
"""Name → its query, of ``spans`` and ``edges``."""


def query(trace: Trace, text: str) -> Untyped:
    """Run a query on a trace; see :meth:`gpuscope.trace.Trace.sql`."""
    duckdb = require("duckdb", feature="Trace.sql()")
    connection = duckdb.connect()
    connection.register("spans", _spans(trace))
    connection.register("edges", _typed(trace.edges, schema.EDGE_TYPES))
    for name, view in VIEWS.items():
        connection.execute(f"CREATE VIEW {name} AS {view}")
    left = dict(MADE)
    while True:
        try:
            answer = connection.sql(text)
        except duckdb.Error as error:
            missing = re.match(r"Catalog Error: Table with name (\w+) does not", str(error))
            name = missing[1] if missing else ""
            if name not in left:
                raise InvalidArgument(
                    f"DuckDB refuses the query: {clean_lines(str(error))}\nThere are the tables "
                    f"{', '.join(['spans', 'edges', *VIEWS, *MADE])}; DESCRIBE spans lists the "
                    "columns of one"
                ) from error
            connection.register(name, left.pop(name)(trace))
            continue
        if answer is None:
            raise InvalidArgument("the query is empty: SELECT, FROM or DESCRIBE a table")
        return answer


def _spans(trace: Trace) -> pa.Table:
    """Return the spans with types, names of streams and durations."""
    spans = _typed(trace.spans, schema.SPAN_TYPES)
    numbers = spans.column("stream").combine_chunks().dictionary_encode()
    shown = named(trace)
    names = [shown.stream_name(number) for number in numbers.dictionary.to_pylist()]
    streams = pa.DictionaryArray.from_arrays(numbers.indices, pa.array(names, pa.string()))
    spans = spans.append_column("stream_name", streams)
    ends, starts = spans.column("end_ns"), spans.column("start_ns")
    return spans.append_column("duration_ns", pc.subtract(ends, starts))


def _typed(table: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """Return a table whose columns have their types, also where all values are null."""
    return table.select(list(types)).cast(pa.schema(types))
