"""The events source: bracketing events around every launch, where nothing better is there.

Two events on the launch's own stream bound the work from outside, so they overstate it.
What they do not know is stated, one-sided: the work began at ``start`` or up to
``start_uncertainty`` later, and ended at ``end`` or up to ``end_uncertainty`` earlier.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

from gpuscope.device.api import Call
from gpuscope.device.device import Device
from gpuscope.device.stream import Event
from gpuscope.record.clock import EventClock
from gpuscope.record.rows import Rows, work_columns

_TRIES = 31
_EMPTY_SOURCE = 'extern "C" __global__ void gpuscope_empty() {}'


@dataclass
class _Bracket:
    call: Call
    before: Event
    after: Event | None = None


@dataclass(frozen=True)
class BracketCost:
    """What two events around nothing, and around an empty kernel, read on this device, ns."""

    empty_ns: int
    kernel_ns: int


class EventSource:
    """Times launches and copies of one device by events around them."""

    name = "events"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._clock = EventClock(device)
        self._spare: list[Event] = []
        self._open: dict[int, _Bracket] = {}
        self._waiting: deque[_Bracket] = deque()
        self._shortest_ns: dict[Any, int] = {}
        self.cost = self._measure()

    def _take(self) -> Event:
        return self._spare.pop() if self._spare else Event(self._device)

    def _measure(self) -> BracketCost:
        """Measure the empty bracket and the bracket of an empty kernel on an idle stream."""
        backend = self._device.backend
        raw, handle = backend.make_stream(None, 0)
        kernel = backend.compile(_EMPTY_SOURCE, "gpuscope_empty", None)
        before, after = self._take(), self._take()
        readings: dict[bool, list[int]] = {False: [], True: []}
        for attempt in range(2 * _TRIES):
            with_kernel = bool(attempt % 2)
            backend.record(before.raw, raw, 0)
            if with_kernel:
                backend.launch(raw, kernel, 1, 1, (), 0)
            backend.record(after.raw, raw, 0)
            backend.sync_event(after.raw)
            readings[with_kernel].append(backend.elapsed_ns(before.raw, after.raw))
        backend.close_stream(raw, handle)
        self._spare += [before, after]
        empty = round(statistics.median(readings[False]))
        return BracketCost(empty, max(empty, round(statistics.median(readings[True]))))

    def before(self, call: Call) -> None:
        """Record the opening event on the call's stream."""
        assert call.stream is not None  # noqa: S101 - launches and copies have one
        bracket = _Bracket(call, self._take())
        self._device.backend.record(bracket.before.raw, call.stream.raw, 0)
        self._open[call.correlation] = bracket

    def after(self, call: Call) -> None:
        """Record the closing event."""
        assert call.stream is not None  # noqa: S101 - launches and copies have one
        bracket = self._open.pop(call.correlation)
        if call.superseded:
            self._spare.append(bracket.before)
            return
        bracket.after = self._take()
        self._device.backend.record(bracket.after.raw, call.stream.raw, 0)
        self._waiting.append(bracket)
        self._clock.keep_fresh(call.end_ns or 0)

    def drain(self, rows: Rows) -> None:
        """Turn the brackets that are done into rows."""
        backend = self._device.backend
        info = self._device.info
        still: list[_Bracket] = []
        for _ in range(len(self._waiting)):  # the launching thread may append meanwhile
            bracket = self._waiting.popleft()
            assert bracket.after is not None  # noqa: S101 - set before it was queued
            if not backend.event_done(bracket.after.raw):
                still.append(bracket)
                continue
            call = bracket.call
            opened = self._clock.unix_ns(bracket.before, call.start_ns)
            length = backend.elapsed_ns(bracket.before.raw, bracket.after.raw)
            self._spare += [bracket.before, bracket.after]
            rows.spans.append(
                {
                    **work_columns(call, info.index, info.uuid),
                    **self._bounds(call, opened, length),
                    "source": self.name,
                }
            )
        self._waiting.extendleft(reversed(still))

    def _bounds(self, call: Call, opened: int, length: int) -> dict[str, int]:
        """Start, end and their one-sided uncertainties.

        The opening event's own cost (the empty bracket) cannot be the work's. The end is
        late by at most what an empty kernel adds to an empty bracket. The start can be late
        by what the bracket holds beyond the shortest run of this kernel seen so far: on an
        idle stream that is launch latency, under contention it is waiting for SMs.
        """
        start = opened + min(self.cost.empty_ns, length)
        end = opened + length
        place = call.stream.sm_count_target if call.stream is not None else 0
        key = (call.name, call.nbytes, place)
        own = max(0, length - self.cost.kernel_ns)
        shortest = min(self._shortest_ns.get(key, own), own)
        self._shortest_ns[key] = shortest
        return {
            "start_ns": start,
            "end_ns": end,
            "start_uncertainty_ns": max(0, end - shortest - start),
            "end_uncertainty_ns": min(self.cost.kernel_ns - self.cost.empty_ns, end - start),
        }

    def close(self) -> dict[str, float]:
        """Destroy the events; returns the clock's calibration and the bracket's cost."""
        facts = self._clock.close()
        for event in self._spare:
            event.close()
        self._spare.clear()
        return {
            **facts,
            "empty_bracket_ns": float(self.cost.empty_ns),
            "empty_kernel_bracket_ns": float(self.cost.kernel_ns),
        }
