"""What is worked out of a trace for SQL: the parts of the time of its rows, and its findings."""

from __future__ import annotations

import pyarrow as pa

from gpuscope.analyses.registry import findings
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.model import Trace

_TOLD = ("kernel", "memcpy", "memset", "graph", "host function", "handle", "sync")
_PARTS = pa.schema(
    {
        "id": pa.int64(), "part": pa.string(), "start_ns": pa.int64(), "end_ns": pa.int64(),
        "duration_ns": pa.int64(), "cause": pa.int64(), "others": pa.int64(),
    }
)  # fmt: skip
_FINDINGS = pa.schema(
    {
        "rule": pa.string(), "family": pa.string(), "severity": pa.string(), "text": pa.string(),
        "advice": pa.string(), "span": pa.int64(),
    }
)  # fmt: skip


def part_rows(trace: Trace) -> pa.Table:
    """Return a row for each part of the time of work, handles' calls and host waits.

    What nothing tells of has none.
    """
    known, rows = trace_parts(trace), list[dict[str, object]]()
    for row in known.rows.having("kind", _TOLD).nonzero()[0].tolist():
        try:
            parts = known.parts(row)
        except MissingEvidence:
            continue
        span = int(known.rows.ids[row])
        rows += [
            {
                "id": span, "part": part.kind, "start_ns": part.start_ns, "end_ns": part.end_ns,
                "duration_ns": part.duration_ns, "cause": part.span, "others": part.others,
            }
            for part in parts
        ]  # fmt: skip
    return pa.Table.from_pylist(rows, _PARTS)


def finding_rows(trace: Trace) -> pa.Table:
    """Return a row for each finding: the most urgent first, each with the first row it shows."""
    rows = [
        {
            "rule": finding.rule, "family": finding.family, "severity": finding.severity,
            "text": finding.text, "advice": finding.advice or None,
            "span": next((shown.span for shown in finding.spans), None),
        }
        for finding in findings(trace).findings
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, _FINDINGS)
