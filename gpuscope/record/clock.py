"""Putting a device's event times on the recording's clock."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.device.device import Device
from gpuscope.device.stream import Event

REANCHOR_NS = 2_000_000_000
"""CUDA gives the time between events as a float of ms: 2 s keeps it good to 0.12 µs."""
_TRIES = 8


@dataclass(frozen=True)
class Anchor:
    """An event whose time on the host clock is known.

    Attributes
    ----------
    unix_ns
        When the device reached it.
    """

    event: Event
    unix_ns: int


class EventClock:
    """Converts event times of one device into host-clock ns.

    The first anchor is placed in the middle of the tightest of a few host brackets around
    a recorded event; half that bracket is the residual. Later anchors are chained to it by
    the device's own clock, so that nothing jumps while a recording runs.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._raw, self._handle = device.backend.make_stream(None, 0)
        self.residual_ns = 0
        event, middle, self.residual_ns = self._bracket()
        self._anchors = [Anchor(event, middle)]
        self._first_offset_ns = middle

    def _bracket(self) -> tuple[Event, int, int]:
        """Record an event and return it, the middle of its host bracket, and half of that."""
        backend = self._device.backend
        best: tuple[Event, int, int] | None = None
        for _ in range(_TRIES):
            event = Event(self._device)
            before = backend.now_ns()
            backend.record(event.raw, self._raw, 0)
            backend.sync_event(event.raw)
            after = backend.now_ns()
            half = (after - before) // 2
            if best is None or half < best[2]:
                best = (event, before + half, half)
        assert best is not None  # noqa: S101 - the loop ran
        return best

    def keep_fresh(self, now_ns: int) -> None:
        """Add an anchor if the latest one is old."""
        last = self._anchors[-1]
        if now_ns - last.unix_ns < REANCHOR_NS:
            return
        backend = self._device.backend
        event = Event(self._device)
        backend.record(event.raw, self._raw, 0)
        backend.sync_event(event.raw)
        elapsed = backend.elapsed_ns(last.event.raw, event.raw)
        self._anchors.append(Anchor(event, last.unix_ns + elapsed))

    def unix_ns(self, event: Event, near_ns: int) -> int:
        """Return when ``event`` was reached; ``near_ns`` picks the nearest anchor before it."""
        anchor = self._anchors[0]
        for candidate in reversed(self._anchors):
            if candidate.unix_ns <= near_ns:
                anchor = candidate
                break
        return anchor.unix_ns + self._device.backend.elapsed_ns(anchor.event.raw, event.raw)

    def close(self) -> dict[str, float]:
        """Release the stream and return offset, drift and residual for the metadata."""
        event, middle, half = self._bracket()
        seen = self.unix_ns(event, middle)
        span = middle - self._first_offset_ns
        self._device.backend.close_stream(self._raw, self._handle)
        return {
            "offset_ns": float(self._first_offset_ns),
            "residual_ns": float(max(self.residual_ns, half)),
            "drift_ns": float(middle - seen),
            "over_ns": float(span),
        }
