"""The source for devices that know when their work ran: the simulated GPU and the CPU."""

from __future__ import annotations

from collections import deque

from gpuscope.device.api import Activity, Call
from gpuscope.device.device import Device
from gpuscope.record.rows import Rows, work_columns


class ActivitySource:
    """Joins what a device says it did with the calls that queued it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name = "simulated" if device.is_simulated else "host"
        self._calls: dict[int, Call] = {}
        self._done: deque[Activity] = deque()

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
        """Turn finished work into rows."""
        info = self._device.info
        for _ in range(len(self._done)):  # the launching thread may append meanwhile
            activity = self._done.popleft()
            call = self._calls.pop(activity.correlation)
            rows.spans.append(
                {
                    **work_columns(call, info.index, info.uuid),
                    "start_ns": activity.start_ns,
                    "end_ns": activity.end_ns,
                    "source": self.name,
                }
            )

    def close(self) -> dict[str, float]:
        """Return the calibration of a clock that is its own reference."""
        return {"offset_ns": 0.0, "residual_ns": 0.0, "drift_ns": 0.0}
