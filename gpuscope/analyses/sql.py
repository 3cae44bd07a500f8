"""Questions to a trace in SQL, which DuckDB answers: its tables and views."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

import pyarrow as pa
import pyarrow.compute as pc

from gpuscope import _threads
from gpuscope._optional import require
from gpuscope._types import Untyped
from gpuscope.analyses.views import finding_rows, part_rows, share_rows
from gpuscope.analysis.result import Row
from gpuscope.errors import InvalidArgument
from gpuscope.trace import schema
from gpuscope.trace.counters import BUSY, MOVED, READ, TENSOR, WRITTEN
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named

MADE = {"findings": finding_rows, "parts": part_rows, "shares": share_rows}
"""Name → what makes a table of a trace, where a query names it."""
_QUANTITIES = {
    BUSY: "busy_sms",
    TENSOR: "tensor_sms",
    READ: "read_gb_per_s",
    WRITTEN: "written_gb_per_s",
    MOVED: "moved_gb_per_s",
}


def _of_samples() -> str:
    """Return the query of samples, a column for each quantity."""
    names = ", ".join(f"'{name}'" for name in _QUANTITIES)
    columns = [
        f"max(value) FILTER (name = '{name}') AS {column}" for name, column in _QUANTITIES.items()
    ]
    return f"""
        SELECT device, start_ns, end_ns, {", ".join(columns)}
        FROM spans
        WHERE kind = 'counter' AND name IN ({names})
        GROUP BY device, start_ns, end_ns
        ORDER BY device, start_ns"""  # noqa: S608 - of our own names


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
    "samples": _of_samples(),
}
"""Name → its query, of ``spans`` and ``edges``."""


MOST_MEMORY = "4GB"
"""Of a query and its answer: DuckDB would take 80 % of the machine's."""
_OWN = {
    "memory_limit": MOST_MEMORY,
    "temp_directory": "",  # else what finds no room is written to the current folder
    "python_enable_replacements": False,  # else names in a query are our variables, too
}
_NO_FILES = """
    SET enable_external_access = false;
    SET allow_persistent_secrets = false;
    SET lock_configuration = true"""
_BETWEEN_S = 0.1
_ANSWER = "_gpuscope.answer"
"""In a schema of its own, so that SHOW TABLES leaves it out."""
_REFUSED_FILES = re.compile(
    "disabled (by|through) configuration|configuration has been locked", re.IGNORECASE
)
"""In DuckDB's words for what :data:`_NO_FILES` refuses."""


def query(trace: Trace, text: str, *, write: bool = False, most: int | None = None) -> Untyped:
    """Run a query on a trace, once; see :meth:`gpuscope.trace.Trace.sql`.

    Parameters
    ----------
    most
        How many rows of the answer are worked out, if not all.
    """
    duckdb = require("duckdb", feature="Trace.sql()")
    connection = duckdb.connect(config=_OWN)
    tables = {"spans": _spans(trace), "edges": _typed(trace.edges, schema.EDGE_TYPES)}
    # Wherever its name stands, in a text, too, which a function may take for a table's.
    tables |= {name: make(trace) for name, make in MADE.items() if _names(text, name)}
    for name, table in tables.items():
        connection.from_arrow(table).create_view(name)
    for name, view in VIEWS.items():
        connection.execute(f"CREATE VIEW {name} AS {view}")
    connection.execute("CREATE SCHEMA _gpuscope")
    if not write:
        connection.execute(_NO_FILES)

    def answer() -> Untyped:
        """Run the statements, and keep the rows of the last, whose columns DuckDB tells apart."""
        last = connection.sql(text)
        if last is None:
            raise InvalidArgument("the query is empty: SELECT, FROM or DESCRIBE a table")
        (last if most is None else last.limit(most)).create(_ANSWER)
        return connection.table(_ANSWER)

    try:
        return _interruptibly(answer, connection.interrupt)
    except (duckdb.Error, UnicodeEncodeError) as error:
        out_of_memory = isinstance(error, duckdb.OutOfMemoryException)
        raise _refusal(str(error), out_of_memory=out_of_memory) from error


def _names(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text, re.IGNORECASE) is not None


def _refusal(why: str, *, out_of_memory: bool) -> InvalidArgument:
    """Return the error for what DuckDB says of a query."""
    if out_of_memory:
        return InvalidArgument(
            f"the query and its answer take more than {MOST_MEMORY} of memory: aggregate, or LIMIT"
        )
    if _REFUSED_FILES.search(why):
        return InvalidArgument(
            f"DuckDB refuses the query: {why}\nA query reads and writes no files and changes no "
            "settings of DuckDB unless allowed: gpuscope sql --write, trace.sql(…, write=True)"
        )
    return InvalidArgument(
        f"DuckDB refuses the query: {why}\nThere are the tables "
        f"{', '.join(['spans', 'edges', *VIEWS, *MADE])}; DESCRIBE spans lists the columns of one"
    )


def _interruptibly(run: Callable[[], Untyped], interrupt: Callable[[], None]) -> Untyped:
    """Return what a function returns, which Ctrl-C does not end by itself.

    DuckDB does not look for signals: it runs in a thread, while this one waits for them.
    """
    answer: Future[Untyped] = Future()

    def fulfil() -> None:
        try:
            answer.set_result(run())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
            answer.set_exception(error)

    if not _threads.start(threading.Thread(target=fulfil, daemon=True)):
        fulfil()
    try:
        return answer.result()
    finally:
        while not answer.done():  # once might be before the query begins
            interrupt()
            wait([answer], timeout=_BETWEEN_S)


def rows(answer: Untyped) -> list[Row]:
    """Return the rows of an answer as dicts.

    Raises
    ------
    InvalidArgument
        Python has nothing for a value.
    """
    try:
        dicts: list[Row] = answer.to_dicts()
    except (OverflowError, ValueError) as error:  # an interval of 100 million years
        raise InvalidArgument(
            f"Python has nothing for a value of the answer ({error}): cast it to VARCHAR"
        ) from error
    return dicts


def plain(value: object) -> object:
    """Return a value of an answer as JSON can hold it.

    NaN and infinities are null; dates, decimals and other types that JSON lacks are texts.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return str(value)


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
