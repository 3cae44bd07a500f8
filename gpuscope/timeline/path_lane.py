"""The critical path as a lane of a timeline: a range for each of its parts."""

from __future__ import annotations

import pyarrow as pa

from gpuscope.analysis.critical_path_analysis import CriticalPathResult
from gpuscope.trace import schema
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import ON_PATH


def with_path(trace: Trace, path: CriticalPathResult) -> Trace:
    """Return a trace with the parts of a critical path as ranges, named by what each is.

    Only for pictures: they are no ranges of the program.
    """
    first = int(trace.array("id").max(initial=0)) + 1
    count = len(path.parts)
    columns: dict[str, schema.Values] = {
        "id": range(first, first + count),
        "kind": ["range"] * count,
        "name": [
            f"{part.kind}: {part.name or part.range or part.line or ''}".removesuffix(": ")
            for part in path.parts
        ],
        "start_ns": [part.start_ns for part in path.parts],
        "end_ns": [part.end_ns for part in path.parts],
        "category": [ON_PATH] * count,
        "source": ["host"] * count,
    }
    rows = schema.table(columns, schema.SPAN_TYPES)
    spans: pa.Table = schema.concat([trace.spans, rows], schema.SPAN_TYPES)
    return Trace(spans, trace.edges, trace.metadata)
