"""What is worked out of a trace for SQL: the parts of the time of its rows, and its findings."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from gpuscope.analyses.registry import findings_alone
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.model import Trace

_TOLD = ("kernel", "memcpy", "memset", "graph", "host function", "handle", "sync")
_NUMBERS = ("start_ns", "end_ns", "duration_ns", "cause", "others")
_PARTS = {"id": pa.int64(), "part": pa.string(), **dict.fromkeys(_NUMBERS, pa.int64())}
_TEXTS = ("rule", "family", "severity", "text", "advice")
_FINDINGS = {**dict.fromkeys(_TEXTS, pa.string()), "span": pa.int64()}


def part_rows(trace: Trace) -> pa.Table:
    """Return a row for each part of the time of work, handles' calls and host waits.

    What nothing tells of has none.
    """
    breakdown, rows = trace_parts(trace), list[tuple[object, ...]]()
    for row in breakdown.rows.having("kind", _TOLD).nonzero()[0].tolist():
        try:
            parts = breakdown.parts(row)
        except MissingEvidence:
            continue
        span = int(breakdown.rows.ids[row])
        for part in parts:
            times = part.start_ns, part.end_ns, part.duration_ns
            rows.append((span, part.kind, *times, part.span, part.others))
    return _table(rows, _PARTS)


def finding_rows(trace: Trace) -> pa.Table:
    """Return a row for each finding: the most urgent first, each with the first row it shows."""
    rows = [
        (
            *(finding.rule, finding.family, finding.severity, finding.text),
            finding.advice or None,
            next((shown.span for shown in finding.spans), None),
        )
        for finding in findings_alone(trace).findings
    ]
    return _table(rows, _FINDINGS)


def _table(rows: Iterable[Iterable[object]], types: dict[str, pa.DataType]) -> pa.Table:
    named = [dict(zip(types, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(named, pa.schema(types))
