"""Rows on their way into a trace: plain dicts, then immutable batches."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from gpuscope._sites import site_text
from gpuscope._types import Bools, Ints
from gpuscope.device.api import DeviceInfo
from gpuscope.device.calls import Call
from gpuscope.device.views import GraphView, StreamView
from gpuscope.trace import schema

Row: TypeAlias = "dict[str, int | float | str | None]"
"""A span on its way into a trace: column → value."""
Edge: TypeAlias = "tuple[int, int, str]"
"""From which row to which, and the kind."""

# A call's rows are numbered from its correlation, so that nothing has to be remembered.
_KINDS_OF_ROW = 4


_Number = TypeVar("_Number", int, Ints)


def call_row(correlation: _Number) -> _Number:
    """Id of the row of a host call or handle."""
    return correlation * _KINDS_OF_ROW


def work_row(correlation: _Number) -> _Number:
    """Id of the row of the work that a call queued."""
    return correlation * _KINDS_OF_ROW + 1


def is_call_row(row: Row) -> bool:
    """Whether it is of a call of ours, by its number."""
    return isinstance(number := row["id"], int) and number % _KINDS_OF_ROW == 0


def is_own_work(rows: Ints) -> Bools:
    """Row → whether it is of work that a call of ours queued."""
    is_own: Bools = rows % _KINDS_OF_ROW == work_row(0)
    return is_own


def outside_row(number: _Number) -> _Number:
    """Id of the n-th row of what CUPTI saw that is none of our calls."""
    return number * _KINDS_OF_ROW + 2


def range_row(number: _Number) -> _Number:
    """Id of the row of a recording's n-th range."""
    return number * _KINDS_OF_ROW + 3


def noted_row(number: _Number) -> _Number:
    """Id of the row of a recording's n-th range that no thread was in: CUPTI does not see it."""
    return range_row(_NOTED + number)


def reading_row(number: _Number) -> _Number:
    """Id of the row of a recording's n-th reading of a GPU's clock, power or throttling."""
    return range_row(_READINGS + number)


def counter_row(number: _Number) -> _Number:
    """Id of the row of a recording's n-th value of a hardware counter."""
    return range_row(_COUNTERS + number)


def stack_row(number: _Number) -> _Number:
    """Id of the row of a recording's n-th run of sampled stacks."""
    return range_row(_STACKS + number)


_NOTED = 1 << 44
_READINGS = 1 << 45
_COUNTERS = 3 << 44
_STACKS = 1 << 46
_BLOCKS = 1 << 48
_NODES = 1 << 52


def block_row(correlations: _Number, numbers: _Number) -> _Number:
    """Ids of the rows of the n-th thread blocks of launches: apart from all others."""
    return _BLOCKS + (correlations << 22) + numbers


def node_row(correlation: int, number: int) -> int:
    """Id of the row of the n-th node of a graph's launch; the first has the launch's."""
    return _NODES + (correlation << 22) + number if number else work_row(correlation)


def node_of(row: int) -> tuple[int, int]:
    """Correlation of a launch and number of its node, of a row as :func:`node_row` gives it."""
    return divmod(row - _NODES, 1 << 22) if row >= _NODES else (row // _KINDS_OF_ROW, 0)


_Item = TypeVar("_Item")


def move(queue: deque[_Item], taken: deque[_Item] | list[_Item], most: int = sys.maxsize) -> None:
    """Move what is in a queue, or so many of it, to its reader's, while others append.

    Not a line of Python runs between taking and keeping, so nothing can come between.
    """
    taken.extend(islice(iter(queue.popleft, None), min(most, len(queue))))


def keep(owner: object, *names: str) -> Callable[[], None]:
    """Return what gives these attributes the values back that they have now.

    Lists, sets and dicts come back with what is in them now.
    """
    values = {name: copy.copy(getattr(owner, name)) for name in names}
    return lambda: vars(owner).update(values)


def together(*undo: Callable[[], None]) -> Callable[[], None]:
    """Return what does all of these."""

    def undo_all() -> None:
        for step in undo:
            step()

    return undo_all


@dataclass(frozen=True)
class Batch:
    """Immutable rows: the trace is the concatenation of its recording's batches.

    Attributes
    ----------
    spans, edges
        Tables with the columns of :mod:`gpuscope.trace.schema`.
    number
        Its place among all batches of its recording, from 0, also of those dropped since.
    """

    spans: pa.Table
    edges: pa.Table = field(default_factory=lambda: schema.table({}, schema.EDGE_TYPES))
    number: int = -1

    @cached_property
    def last_ns(self) -> int:
        """When its last row ended; one without an end counts from its start."""
        ends = (self.spans.column(name).cast(pa.int64()) for name in ("end_ns", "start_ns"))
        return pc.max(pc.coalesce(*ends)).as_py() or 0


GRACE_NS = 10_000_000_000
"""So much longer than it is kept a row waits for what completes it."""
ROWS_AT_ONCE = 1 << 14
"""Rows are many times smaller in a batch than before: so few wait to become one."""


@dataclass
class Rows:
    """What one reading collects: rows and edges, and the batches that they became.

    Attributes
    ----------
    over
        The recording has ended: also what is not complete becomes rows.
    open_since_ns
        Launches of ours that began since then may not have returned.
    own_since_ns
        Calls of ours of any kind that began since then may have no row yet.
    since_ns
        What ended before is left out; 0 where everything is kept.
    ending
        A thread, and since when what it waits for is the recording's own.
    """

    spans: list[Row] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    at_once: int = ROWS_AT_ONCE
    over: bool = False
    open_since_ns: int = 0
    own_since_ns: int = schema.LATEST_NS
    since_ns: int = 0
    ending: tuple[int, int] | None = None

    @property
    def wait_since_ns(self) -> int:
        """Since when a row must have ended to wait for what completes it."""
        return max(0, self.since_ns - GRACE_NS)

    def cut(self) -> None:
        """Make a batch of the rows if there are enough."""
        if len(self.spans) >= self.at_once:
            self.freeze()

    def freeze(self) -> None:
        """Make a batch of what there is."""
        if self.spans or self.edges:
            self.batches.append(freeze(self.spans, self.edges))
            self.spans, self.edges = [], []

    @property
    def count(self) -> int:
        """How many rows there are, in batches or not."""
        frozen: int = sum(batch.spans.num_rows for batch in self.batches)
        return len(self.spans) + frozen


def freeze(spans: list[Row], edges: list[Edge]) -> Batch:
    """Turn rows and edges into a batch."""
    used_names: set[str] = set().union(*spans)
    names = [name for name in schema.SPAN_TYPES if name in used_names]
    columns = {name: [row.get(name) for row in spans] for name in names}
    ends = [[edge[column] for edge in edges] for column in range(3)]
    return Batch(
        schema.table(columns, schema.SPAN_TYPES),
        schema.table(dict(zip(schema.EDGE_TYPES, ends, strict=True)), schema.EDGE_TYPES),
    )


def partition_name(home: StreamView[object] | GraphView | None) -> str | None:
    """Return the name of the partition that a stream or a graph belongs to."""
    partition = home.partition if home is not None else None
    return partition.name if partition is not None else None


def of_call(call: Call, device: DeviceInfo) -> Row:
    """Columns that a call's row and the row of its work have in common."""
    return {
        "name": call.name,
        "device": device.index,
        "device_uuid": device.uuid,
        "partition": partition_name(call.stream),
        "intended_partition": partition_name(call.intended),
        "stream": call.stream.id if call.stream is not None else None,
        "site": site_text(call.site) or None,
    }


_WORK_KINDS = {"launch": "kernel", "host_call": "host function"}


def work_columns(call: Call, device: DeviceInfo) -> Row:
    """Columns of a kernel, copy or host function that do not depend on who timed it."""
    home = call.graph if call.graph is not None else call.stream
    partition = home.partition if home is not None else None
    context = partition.context if partition is not None else None
    return {
        **of_call(call, device),
        "id": work_row(call.correlation),
        "kind": _WORK_KINDS.get(call.kind, "memcpy"),
        "context": context,
        "green_context": context,
        "partition": partition_name(home),
        "correlation": call.correlation,
        "graph": call.graph.id if call.graph is not None else None,
        "queued_ns": call.end_ns,
        "nbytes": call.nbytes,
        "flop_count": call.flop_count,
        "launch_config": call.launch_config,
        "category": call.workload,
    }
