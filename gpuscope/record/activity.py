"""The source for devices that know when their work ran: the simulated GPU and the CPU."""

from __future__ import annotations

from collections import deque
from typing import Any

from gpuscope.device.api import Activity, Call
from gpuscope.device.device import Device
from gpuscope.record.rows import Rows, call_row, node_row, work_columns


class ActivitySource:
    """Joins what a device says it did with the calls that queued it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name = "simulated" if device.is_simulated else "host"
        self._calls: dict[int, Call] = {}
        self._done: deque[Activity] = deque()
        self._nodes: dict[int, int] = {}  # launch of a graph → nodes that are rows already
        self._partitions: dict[int, str] = {}  # names by context

    def before(self, call: Call) -> None:
        """Remember the call until its work is done."""
        self._calls[call.correlation] = call

    def after(self, call: Call) -> None:
        """Forget a call whose work is told by others; else nothing: it is remembered already."""
        if call.superseded:
            self._calls.pop(call.correlation, None)

    def activity(self, activity: Activity) -> None:
        """Take finished work; what was queued before the recording is not its own."""
        if activity.correlation in self._calls:
            self._done.append(activity)

    def drain(self, rows: Rows) -> None:
        """Turn finished work into rows; a graph's launch has one for each kernel and copy."""
        for _ in range(len(self._done)):  # the launching thread may append meanwhile
            activity = self._done.popleft()
            if activity.node is not None:
                if activity.kind in ("kernel", "memcpy"):
                    self._add_node(activity, rows)
                continue
            call = self._calls.pop(activity.correlation)
            if not self._nodes.pop(activity.correlation, 0):
                rows.spans.append(self._row(call, activity))

    def _row(self, call: Call, activity: Activity) -> dict[str, Any]:
        info = self._device.info
        return {
            **work_columns(call, info.index, info.uuid),
            # A call that waits for its own work returns later than it queued it.
            "queued_ns": min(call.end_ns or activity.queued_ns, activity.queued_ns),
            "start_ns": activity.start_ns,
            "end_ns": activity.end_ns,
            "source": self.name,
        }

    def _add_node(self, activity: Activity, rows: Rows) -> None:
        """Add the row of a graph's node, which ran where it was captured."""
        call = self._calls[activity.correlation]
        number = self._nodes.get(activity.correlation, 0)
        self._nodes[activity.correlation] = number + 1
        row = node_row(activity.correlation, number)
        if number:
            rows.edges.append((call_row(activity.correlation), row, "launch"))
        context = activity.context
        if context is not None and context not in self._partitions:
            self._partitions.update({one.context: one.name for one in self._device.partitions})
        rows.spans.append(
            {
                **self._row(call, activity),
                "id": row,
                "kind": activity.kind,
                "name": activity.name,
                "context": context,
                "green_context": context,
                "partition": self._partitions.get(context) if context is not None else None,
                "graph_node": activity.node,
            }
        )

    def close(self) -> dict[str, float]:
        """Return the calibration of a clock that is its own reference."""
        return {"offset_ns": 0.0, "residual_ns": 0.0, "drift_ns": 0.0}
