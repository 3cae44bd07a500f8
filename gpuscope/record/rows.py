"""Rows on their way into a trace: plain dicts, then immutable batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from gpuscope.device.api import Call
from gpuscope.trace import schema

# A call's rows are numbered from its correlation, so that nothing has to be remembered.
_KINDS_OF_ROW = 4


_Number = TypeVar("_Number", int, np.ndarray[Any, Any])


def call_row(correlation: _Number) -> _Number:
    """Id of the row of a host call or handle."""
    return correlation * _KINDS_OF_ROW


def work_row(correlation: _Number) -> _Number:
    """Id of the row of the work that a call queued."""
    return correlation * _KINDS_OF_ROW + 1


def outside_row(number: _Number) -> _Number:
    """Id of the n-th row of what CUPTI saw that is none of our calls."""
    return number * _KINDS_OF_ROW + 2


def range_row(number: _Number) -> _Number:
    """Id of the row of a recording's n-th range."""
    return number * _KINDS_OF_ROW + 3


_BLOCKS = 1 << 48
_NODES = 1 << 52


def block_row(correlations: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> Any:
    """Ids of the rows of the n-th thread blocks of launches: apart from all others."""
    return _BLOCKS + (correlations << 22) + numbers


def node_row(correlation: int, number: int) -> int:
    """Id of the row of the n-th node of a graph's launch; the first has the launch's."""
    return _NODES + (correlation << 22) + number if number else work_row(correlation)


@dataclass
class Rows:
    """Rows and edges being collected."""

    spans: list[dict[str, Any]] = field(default_factory=list)
    edges: list[tuple[int, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Batch:
    """Immutable rows: the trace is the concatenation of its recording's batches.

    Attributes
    ----------
    spans, edges
        Tables with the columns of :mod:`gpuscope.trace.schema`.
    """

    spans: pa.Table
    edges: pa.Table


def freeze(rows: Rows) -> Batch:
    """Turn collected rows into a batch."""
    columns: dict[str, list[Any]] = {name: [] for name in schema.SPAN_TYPES}
    for row in rows.spans:
        for name, column in columns.items():
            column.append(row.get(name))
    edges: dict[str, list[Any]] = {"from": [], "to": [], "kind": []}
    for source, target, kind in rows.edges:
        edges["from"].append(source)
        edges["to"].append(target)
        edges["kind"].append(kind)
    return Batch(schema.table(columns, schema.SPAN_TYPES), schema.table(edges, schema.EDGE_TYPES))


_WORK_KINDS = {"launch": "kernel", "host_call": "host function"}


def work_columns(call: Call, device_index: int, device_uuid: str) -> dict[str, Any]:
    """Columns of a kernel, copy or host function that do not depend on who timed it."""
    stream, intended = call.stream, call.intended
    home = call.graph if call.graph is not None else stream
    partition = home.partition if home is not None else None
    meant = intended.partition if intended is not None else None
    return {
        "id": work_row(call.correlation),
        "kind": _WORK_KINDS.get(call.kind, "memcpy"),
        "name": call.name,
        "device": device_index,
        "device_uuid": device_uuid,
        "context": partition.context if partition is not None else None,
        "green_context": partition.context if partition is not None else None,
        "partition": partition.name if partition is not None else None,
        "intended_partition": meant.name if meant is not None else None,
        "stream": stream.id if stream is not None else None,
        "correlation": call.correlation,
        "graph": call.graph.id if call.graph is not None else None,
        "queued_ns": call.end_ns,
        "nbytes": call.nbytes,
        "flop_count": call.flop_count,
        "launch_config": call.launch_config,
        "category": call.workload,
    }
