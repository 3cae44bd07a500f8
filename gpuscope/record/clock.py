"""Putting a device's event times on the recording's clock."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpuscope._types import Ints
from gpuscope.device.device import Device
from gpuscope.device.event import Event
from gpuscope.errors import GpuscopeError

REANCHOR_NS = 2_000_000_000
"""CUDA gives the time between events as a float of ms: 2 s keeps it good to 0.12 µs."""
SOON_NS = 10_000_000
_TRIES = 8

WATCH_EVERY_S = 3.0
"""How often a running recording compares its clocks."""
STEP_NS = 1_000_000
SLEW_PPM = 500
"""A system clock is disciplined by at most this rate (adjtimex); what moves faster by more
than STEP_NS was set."""


@dataclass(frozen=True)
class Sample:
    """One reading of two clocks at the same time.

    Attributes
    ----------
    unix_ns
        Middle of the host bracket.
    offset_ns
        The other clock's reading minus ``unix_ns``.
    half_ns
        Half the bracket: how far the middle can be off.
    """

    unix_ns: int
    offset_ns: int
    half_ns: int


def read_together(read: Callable[[], int], tries: int = 32) -> Sample:
    """Read a clock between two readings of the host's; keeps the tightest of ``tries``."""

    def sample() -> Sample:
        before = time.time_ns()
        seen = read()
        after = time.time_ns()
        half = (after - before) // 2
        return Sample(before + half, seen - before - half, half)

    return min((sample() for _ in range(tries)), key=lambda sample: sample.half_ns)


_FLOOR_NS = 64
"""No reading is surer than this: the H200's timer ticks every 32 ns."""


@dataclass(frozen=True)
class _Line:
    """offset(t) = offset + drift · (t − first), from the surest samples."""

    first: int
    offset: int
    beyond: float
    drift: float
    bound_ns: float

    def at(self, unix_ns: int) -> float:
        return self.offset + self.beyond + self.drift * (unix_ns - self.first)


class ClockFit:
    """Offset and drift of a clock against Unix time, from samples.

    A line through the samples by least squares. Those whose bracket is ten times the
    tightest's do not count. Samples that lie together tell no drift: two clocks of a machine
    stay together to 500 ppm, and less than a bracket of that cannot be seen.

    Attributes
    ----------
    samples
        In order.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Take one more sample."""
        self.samples.append(sample)

    def _line(self) -> _Line:
        if not self.samples:
            return _Line(0, 0, 0.0, 0.0, 0.0)
        tightest = min(max(sample.half_ns, _FLOOR_NS) for sample in self.samples)
        sure = [sample for sample in self.samples if sample.half_ns <= 10 * tightest]
        first, offset = sure[0].unix_ns, sure[0].offset_ns  # floats hold what is left of them
        times = np.array([sample.unix_ns - first for sample in sure], float)
        beyond = np.array([sample.offset_ns - offset for sample in sure], float)
        halves = np.array([sample.half_ns for sample in sure], float)
        limit = SLEW_PPM / 1e6
        if np.ptp(times) * limit < max(halves.max(), _FLOOR_NS):
            return _Line(first, offset, float(np.median(beyond)), 0.0, float(halves.max()))
        apart = times - times.mean()
        drift = float(np.clip(apart @ beyond / (apart @ apart), -limit, limit))
        ends = np.array([sample.unix_ns - first for sample in (self.samples[0], self.samples[-1])])
        # How each sample's error moves the line at both ends of the samples.
        weights = 1 / len(times) + np.outer(ends - times.mean(), apart) / (apart @ apart)
        bound = float((np.abs(weights) @ halves).max())
        return _Line(first, offset, float(beyond.mean() - drift * times.mean()), drift, bound)

    def to_unix(self, readings: Ints) -> Ints:
        """Put readings of the clock on Unix time, ns."""
        line = self._line()
        since = readings.astype(np.int64) - (line.first + line.offset)
        ahead = (line.beyond + line.drift * since) / (1 + line.drift)
        return np.asarray(line.first + since - np.rint(ahead).astype(np.int64))

    @property
    def residual_ns(self) -> float:
        """How far the line can be off among the samples: by their brackets, or beside them."""
        line, samples = self._line(), self.samples
        beside = (
            abs(sample.offset_ns - line.at(sample.unix_ns)) - sample.half_ns for sample in samples
        )
        return float(max([line.bound_ns, *beside]))

    def facts(self) -> dict[str, float]:
        """Return offset, drift over the samples' span and residual, for the metadata."""
        if not self.samples:
            return dict.fromkeys(("offset_ns", "drift_ns", "over_ns", "residual_ns"), 0.0)
        line = self._line()
        begin, end = self.samples[0].unix_ns, self.samples[-1].unix_ns
        over_ns = float(end - begin)
        drift = {"drift_ns": line.drift * over_ns, "over_ns": over_ns}
        return {"offset_ns": line.at(begin), **drift, "residual_ns": self.residual_ns}


def steps(readings: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Find where the system's clock was set: pairs of (Unix ns after, jump in ns).

    Parameters
    ----------
    readings
        Pairs of Unix time and a clock that nobody sets (``time.monotonic_ns``), in order.
    """
    jumps = []
    for (unix, steady), (next_unix, next_steady) in itertools.pairwise(readings):
        passed = next_steady - steady
        jump = next_unix - unix - passed
        if abs(jump) > STEP_NS + passed * SLEW_PPM // 1_000_000:
            jumps.append((next_unix, jump))
    return jumps


def step_notes(readings: list[tuple[int, int]]) -> list[str]:
    """Return a note on each time that the system's clock was set; takes what :func:`steps` does."""
    return [
        f"the system's clock was set by {jump / 1e6:+.3f} ms by Unix time {unix / 1e9:.3f} s: "
        "times before and after are not comparable"
        for unix, jump in steps(readings)
    ]


class ClockWatch:
    """Compares clocks at the start, every few seconds and at the end, on a thread of its own.

    Parameters
    ----------
    clocks
        Name → what reads it in ns.
    """

    def __init__(self, clocks: dict[str, Callable[[], int]]) -> None:
        self._clocks = clocks
        self.fits = {name: ClockFit() for name in clocks}
        self._readings: list[tuple[int, int]] = []
        self._over = threading.Event()
        self.look()
        self._thread = threading.Thread(target=self._watch, name="gpuscope clocks", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Compare the clocks now."""
        self._readings.append((time.time_ns(), time.monotonic_ns()))
        for name, read in self._clocks.items():
            self.fits[name].add(read_together(read))

    def _watch(self) -> None:
        while not self._over.wait(WATCH_EVERY_S):
            self.look()

    def close(self) -> list[str]:
        """Compare once more and end; returns notes on steps of the system's clock."""
        self._over.set()
        self._thread.join()
        self.look()
        return step_notes(self._readings)


REACHED_NS = 2_000
"""From the return of a call that records an event on an idle stream until the GPU reaches it, by
CUPTI's times of kernels beside such events on an H200: 1.6 to 2.3 µs."""


class EventClock:
    """Converts event times of one device into host-clock ns.

    Times of a device are those of its own clock since the first anchor, an event recorded on an
    idle stream. Each anchor tells how that clock stands to the host's, by when the call that
    recorded it returned; a line through them converts (an H200's clock gained 14 µs a second).

    Attributes
    ----------
    stale_ns
        From when on it needs another anchor.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._raw, self._handle = device.backend.make_stream(None, 0)
        self._fit = ClockFit()
        event, sample = self._anchor()
        self._anchors = [(event, sample.unix_ns)]
        """Events, and when by the device's clock it reached them."""
        self._fit.add(sample)
        self._latest: tuple[Event, Sample] | None = None
        """An anchor that was not waited for."""
        self.stale_ns = sample.unix_ns + REANCHOR_NS
        self._look_ns = sample.unix_ns + SOON_NS

    @property
    def residual_ns(self) -> float:
        """How far converted times can be off."""
        return self._fit.residual_ns

    def _anchor(self) -> tuple[Event, Sample]:
        """Return the surest of a few anchors, when the device has reached them."""
        return min((self._reach() for _ in range(_TRIES)), key=lambda anchor: anchor[1].half_ns)

    def _reach(self) -> tuple[Event, Sample]:
        event, sample = self._record()
        self._device.backend.sync_event(event.raw)
        return event, sample

    def _record(self) -> tuple[Event, Sample]:
        """Record an event; returns when by the host's clock it is reached, and how sure that is."""
        event, backend = Event(self._device), self._device.backend
        before = backend.now_ns()
        backend.record(event.raw, self._raw, 0)
        returned = backend.now_ns()
        return event, Sample(returned + REACHED_NS, 0, returned - before + REACHED_NS)

    def keep_fresh(self, now_ns: int) -> None:
        """Record another anchor if the latest one is old, and read that; waits for nothing."""
        if now_ns < self.stale_ns:
            return
        self.stale_ns = now_ns + REANCHOR_NS
        if self._latest is not None:
            with contextlib.suppress(GpuscopeError):  # the device has not reached it
                self._take(*self._latest)
        self._latest = self._record()

    def look(self) -> None:
        """Read an anchor now."""
        self._take(*self._anchor())

    def look_again(self) -> None:
        """Read one if the time since the last is as long as the clock has run, or long."""
        now_ns = self._device.backend.now_ns()
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + min(REANCHOR_NS, now_ns - self._anchors[0][1])
            self.look()

    def _take(self, event: Event, sample: Sample) -> None:
        last, last_ns = self._anchors[-1]
        device_ns = last_ns + self._device.backend.elapsed_ns(last.raw, event.raw)
        self._fit.add(replace(sample, offset_ns=device_ns - sample.unix_ns))
        self._anchors.append((event, device_ns))

    def device_ns(self, event: Event, near_ns: int) -> int:
        """Return when ``event`` was reached; ``near_ns`` picks the nearest anchor before it."""
        anchor, anchor_ns = self._anchors[-1]
        if anchor_ns > near_ns:
            before = (anchor for anchor in reversed(self._anchors) if anchor[1] <= near_ns)
            anchor, anchor_ns = next(before, self._anchors[0])
        return anchor_ns + self._device.backend.elapsed_ns(anchor.raw, event.raw)

    def to_unix(self, device_ns: Ints) -> Ints:
        """Put times of the device on the host's clock."""
        return self._fit.to_unix(device_ns)

    def close(self) -> dict[str, float]:
        """Release the stream and return offset, drift and residual for the metadata."""
        self._device.backend.close_stream(self._raw, self._handle)
        return {**self._fit.facts(), "offset_ns": float(self._anchors[0][1])}
