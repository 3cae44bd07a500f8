"""The source for devices that know when their work ran: the simulated GPU and the CPU."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable

from gpuscope.device.api import Activity
from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.record.counter_rows import ModelledCounters
from gpuscope.record.rows import (
    Edge,
    Row,
    Rows,
    block_row,
    call_row,
    keep,
    move,
    node_row,
    together,
    work_columns,
    work_row,
)
from gpuscope.record.source import Calibration, DeviceSource

_KINDS = {"kernel": "kernel", "memcpy": "memcpy", "host": "host function"}
_OF_BLOCK = "name process device device_uuid partition intended_partition stream category source"
"""Columns of a block's row that are its kernel's."""
_LATE = 1 << 15
"""Where only the latest rows are kept, of so many graphs' launches it is known which node ended
last."""
_COPY_KINDS = {"host to device": "HtoD", "device to host": "DtoH", "device": "DtoD", "host": "HtoH"}


class ActivitySource(DeviceSource):
    """Joins what a device says it did with the calls that queued it."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.name = "simulated" if device.is_simulated else "host"
        if device.is_simulated:  # which tells of host functions, too
            self.timed_kinds |= {"host_call"}
            self.edges += ("SMs", "priority")
        self._calls: dict[int, Call] = {}
        self._first: int | None = None  # number of the first call that was seen
        self._raised: set[int] = set()
        self._done: deque[tuple[Call, Activity]] = deque()
        self._taken: list[tuple[Call, Activity]] = []
        self._ended: list[int] = []  # calls all of whose work is rows
        self._blocks: dict[int, int] = {}  # how many blocks of a call are rows
        self._partitions: dict[int, str] = {}  # names by context
        self._last: dict[int, int] = {}
        self._forgets = False
        """Row of a graph's first node → row of the node that ended last, once all are done."""
        self._behind: list[Edge] = []
        """Edges from graphs whose last node is not known."""
        self.counters: ModelledCounters | None = None
        """Gets what was done, where counters were asked for."""

    def before(self, call: Call) -> None:
        """Remember the call until its work is done, and the partitions of a graph's nodes."""
        if self._first is None:
            self._first = call.correlation
        if call.graph is not None:  # they may be closed when rows are made
            self._partitions.update({part.context: part.name for part in self._device.partitions})
        self._calls[call.correlation] = call

    def after(self, call: Call) -> None:
        """Forget a call whose work is told by others; else it is remembered already."""
        if call.superseded:
            self._calls.pop(call.correlation, None)
        elif sys.exc_info()[1] is not None:  # it failed: perhaps nothing was queued
            self._raised.add(call.correlation)

    def activity(self, activity: Activity) -> None:
        """Take finished work; what was queued before the recording is not its own."""
        number = activity.correlation
        call = self._calls.get(number)
        if call is not None:
            if activity.kind == "graph" and activity.node is None and activity.after:
                self._last[work_row(number)] = node_row(number, activity.after[0])
            self._done.append((call, activity))

    @property
    def unfinished(self) -> list[Call]:
        """The calls that returned and whose work was not told of."""
        finished = {*self._raised, *self._ended}
        calls = [call for number, call in self._calls.copy().items() if number not in finished]
        return [call for call in calls if call.end_ns is not None]

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that :meth:`drain` does next."""
        self.settle()
        move(self._done, self._taken)
        undo = keep(self, "_taken", "_ended", "_blocks", "_behind")
        return undo if self.counters is None else together(undo, self.counters.keep())

    def settle(self) -> None:
        """Forget the calls whose rows were handed out."""
        while self._ended:
            self._calls.pop(self._ended[-1], None)
            self._ended.pop()
        if self._forgets:
            for first in list(self._last)[:-_LATE]:
                del self._last[first]

    def drain(self, rows: Rows) -> None:
        """Turn finished work into rows; a graph's launch has one for each of its nodes."""
        taken, self._taken = self._taken, []
        for call, activity in taken:
            rows.cut()
            if activity.node is None:
                self._ended.append(activity.correlation)
                if activity.kind == "graph":  # of which all nodes are rows already
                    self._blocks.pop(activity.correlation, None)
                    continue
            if self.counters is not None:
                self.counters.add(activity)
            self._add(call, activity, rows)
        behind, self._behind = self._behind, []
        for first, row, kind in behind:
            if first in self._last or rows.over:
                rows.edges.append((self._last.get(first, first), row, kind))
            else:
                self._behind.append((first, row, kind))
        self._forgets = bool(rows.since_ns)
        if self.counters is not None:
            self._count(self.counters, rows)

    def _count(self, counters: ModelledCounters, rows: Rows) -> None:
        """Add rows of counters until the first call whose work is not done."""
        counters.forget(rows.since_ns)
        finished = {*self._raised, *self._ended}
        begun = [
            call.start_ns for number, call in self._calls.copy().items() if number not in finished
        ]
        until_ns = None if rows.over else min([rows.open_since_ns, *begun])
        batch = counters.rows(self._device.info, until_ns)
        if batch is not None:
            rows.freeze()
            rows.batches.append(batch)

    def hold_edges(self, edges: list[Edge], _rows: Rows, /) -> None:
        """Keep edges from graphs' launches until these are done."""
        self._behind += edges

    def _add(self, call: Call, activity: Activity, rows: Rows) -> None:
        """Add the row of finished work, and what it tells of order."""
        columns = self._row(call, activity)
        row = node_row(activity.correlation, activity.node or 0)
        if activity.node is not None:
            columns.update({"id": row, **self._node_columns(activity)})
            if activity.node:
                rows.edges.append((call_row(activity.correlation), row, "launch"))
            for before in activity.after:
                rows.edges.append((node_row(activity.correlation, before), row, "graph"))
        if activity.awaited and (call.end_ns or activity.end_ns) >= activity.end_ns:
            rows.edges.append((row, call_row(activity.correlation), "host wait"))
        for release in activity.released_by:
            if self._first is not None and release.correlation >= self._first:
                before = node_row(release.correlation, release.node or 0)
                kind = "priority" if release.by_priority else "SMs"
                rows.edges.append((before, row, kind))
        rows.spans.append(columns)
        if self.detail == "full" and call.blocks is None:
            self._add_blocks(columns, activity, rows)

    def _add_blocks(self, columns: Row, activity: Activity, rows: Rows) -> None:
        """Add a row for each time that blocks of a kernel held an SM."""
        shared = {name: columns.get(name) for name in _OF_BLOCK.split()}
        shared |= {"parent": columns["id"], "kind": "block"}
        correlation = activity.correlation
        count = self._blocks.pop(correlation, 0)
        for sms, start_ns, end_ns in activity.sm_occupancy:
            for sm in range(sms.bit_length()):
                if sms >> sm & 1:
                    row = {**shared, "id": block_row(correlation, count), "sm": sm}
                    rows.spans.append({**row, "start_ns": start_ns, "end_ns": end_ns})
                    count += 1
        if activity.node is not None:  # others of its launch go on from here
            self._blocks[correlation] = count

    def _row(self, call: Call, activity: Activity) -> Row:
        columns: Row = {
            **work_columns(call, self._device.info),
            # A call that waits for its own work returns later than it queued it.
            "queued_ns": min(call.end_ns or activity.queued_ns, activity.queued_ns),
            "start_ns": activity.start_ns,
            "end_ns": activity.end_ns,
            "source": self.name,
        }
        if activity.launch_config is not None:
            columns["launch_config"] = activity.launch_config or None
        if activity.engine is not None:
            columns["copy_kind"] = _COPY_KINDS[activity.engine]
        if activity.memory is not None:
            columns["src_kind"], columns["dst_kind"] = activity.memory
        return columns

    def _node_columns(self, activity: Activity) -> Row:
        """Return what a graph's node has of its own: it ran where it was captured."""
        context = activity.context
        moved = activity.nbytes if activity.engine is not None else None
        return {
            "kind": _KINDS[activity.kind],
            "name": activity.name,
            "context": context,
            "green_context": context,
            "partition": self._partitions.get(context) if context is not None else None,
            "graph_node": activity.node,
            # A copy on the device reads its bytes and writes them.
            "nbytes": moved // 2 if moved is not None and activity.engine == "device" else moved,
        }

    def close(self) -> dict[str, Calibration]:
        """Return the calibration of a clock that is its own reference."""
        return {self._device.info.key: {"offset_ns": 0.0, "residual_ns": 0.0, "drift_ns": 0.0}}
