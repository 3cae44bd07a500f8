"""The spans as CSV: a line a span, times as whole ns, nothing where a value is unknown."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from gpuscope.exporters.progress import Step, check_count, silent
from gpuscope.trace import schema
from gpuscope.trace.model import Trace

_ROWS = 1 << 16


def write(trace: Trace, path: Path, step: Step = silent) -> None:
    """Write the spans as CSV (RFC 4180, UTF-8), all texts in quotes.

    Raises
    ------
    ExportError
        The file does not hold as many rows as the trace.
    """
    kinds = {name: pa.string() if pa.types.is_dictionary(kind) else kind
             for name, kind in schema.SPAN_TYPES.items()}  # fmt: skip
    plain = pa.schema(kinds)
    with pa_csv.CSVWriter(path, plain) as writer:
        for low in range(0, len(trace), _ROWS):
            rows = trace.spans.select(list(kinds)).slice(low, _ROWS)
            writer.write_table(rows.cast(plain))
            step(len(rows))
    ids = pa_csv.open_csv(
        path,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(include_columns=["id"]),
    )
    check_count(path, "rows", len(trace), sum(map(len, ids)))
