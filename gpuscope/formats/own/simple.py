"""Files that a library does the work of: Parquet, CSV, and a report as HTML."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from gpuscope.errors import ExportError
from gpuscope.formats.limits import Limits, reading
from gpuscope.formats.progress import Step, check_count
from gpuscope.trace import schema
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.trace.store import read_parquet, save_trace

_ROWS = 1 << 16


def write_parquet(trace: Trace, path: Path, step: Step) -> None:
    """Write a trace as Parquet, whole.

    Raises
    ------
    ExportError
        What stands in the file is not what the trace holds.
    """
    save_trace(trace, path)
    check_count(path, "rows", len(trace), pq.read_metadata(path).num_rows)
    step(len(trace))


def read_own(path: Path, limits: Limits, *, keep_private: bool = False) -> Trace:
    """Read a trace that :func:`gpuscope.export` or :func:`gpuscope.trace.save_trace` wrote.

    Raises
    ------
    TraceFormatError
        It is damaged, no trace of ours, or holds more than ``limits``.
    """
    del keep_private  # ours is read as it is
    with reading(path.name, "gpuscope trace"):
        return read_parquet(path, most_rows=limits.rows_in_room, most_bytes=2 * limits.room)


def write_csv(trace: Trace, path: Path, step: Step) -> None:
    """Write the spans as CSV (RFC 4180, UTF-8), all texts in quotes.

    Raises
    ------
    ExportError
        The file does not hold as many rows as the trace.
    """
    is_text, kinds = pa.types.is_dictionary, schema.SPAN_TYPES.items()
    plain = pa.schema([(name, pa.string() if is_text(kind) else kind) for name, kind in kinds])
    with pa_csv.CSVWriter(path, plain) as writer:
        for low in range(0, len(trace), _ROWS):
            rows = trace.spans.select(plain.names).slice(low, _ROWS)
            writer.write_table(rows.cast(plain))
            step(len(rows))
    ids = pa_csv.open_csv(
        path,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(include_columns=["id"]),
    )
    check_count(path, "rows", len(trace), sum(map(len, ids)))


def write_html(trace: Trace | Run, path: Path, step: Step) -> None:
    """Write the report of a trace or a run.

    Raises
    ------
    ExportError
        The file is not whole.
    """
    from gpuscope.report import html_report, trace_report  # noqa: PLC0415 - loads Plotly

    if isinstance(trace, Run):
        html_report(trace, path)
    else:
        trace_report(trace, path)
    with path.open("rb") as file:
        file.seek(-16, 2)
        if not file.read().endswith(b"</html>\n"):
            raise ExportError(f"{path.name!r} is cut off: check the disk and export again")
    step(len(trace) if isinstance(trace, Trace) else sum(map(len, trace.values())))
