"""What is worked out of a trace for SQL: parts of the time of rows, findings, and shares of SMs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from gpuscope.analyses.registry import findings_alone
from gpuscope.analysis.sm_shares import Shares, shares
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.errors import MissingEvidence
from gpuscope.trace.model import Trace

_TOLD = ("kernel", "memcpy", "memset", "graph", "host function", "handle", "sync")
_NUMBERS = ("start_ns", "end_ns", "duration_ns", "cause", "others")
_PARTS = {"id": pa.int64(), "part": pa.string(), **dict.fromkeys(_NUMBERS, pa.int64())}
_SHARES = {
    "device": pa.int16(),
    "start_ns": pa.int64(),
    "end_ns": pa.int64(),
    "partition": pa.string(),
    **dict.fromkeys(("granted", "ran", "busy_sms", "low", "high"), pa.float64()),
    "told": pa.bool_(),
}
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


def share_rows(trace: Trace) -> pa.Table:
    """Return a row for each partition that ran in a sample of counters: which SMs were its own."""
    tables = [_shares_of(of) for of in shares(trace)]
    return pa.concat_tables(tables) if tables else pa.schema(_SHARES).empty_table()


def _shares_of(of: Shares) -> pa.Table:
    sample, number = np.nonzero(of.ran > 0)
    busy = of.busy[sample, number]
    columns = {
        "device": np.full(len(sample), of.samples.device, np.int16),
        "start_ns": of.samples.starts[sample],
        "end_ns": of.samples.ends[sample],
        "partition": pa.array([of.partitions[at] for at in number.tolist()], pa.string()),
        "granted": pa.array(of.granted[number], mask=of.granted[number] <= 0),
        "ran": of.ran[sample, number],
        "busy_sms": pa.array(busy, mask=np.isnan(busy)),
        "low": of.low[sample, number],
        "high": of.high[sample, number],
        "told": of.is_told[sample, number],
    }
    return pa.table(columns, pa.schema(_SHARES))


def _table(rows: Iterable[Iterable[object]], types: dict[str, pa.DataType]) -> pa.Table:
    named = [dict(zip(types, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(named, pa.schema(types))
