"""Reads clocks, power and throttling of the GPUs of a recording while it runs, from a thread."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gpuscope._threads import start
from gpuscope.device.cuda import health
from gpuscope.device.cuda.health import Health
from gpuscope.record.rows import Rows, keep, move, reading_row
from gpuscope.trace.gpu_states import POWER, REASONS, SM_CLOCK, GpuStateFacts, mask_of

EVERY_S = 0.1
"""Between readings: NVML averages power over longer, and a reading takes some 4 µs of a GPU."""
_PATIENCE_S = 1.0
_LOOK_AGAIN = 10
"""Readings between two looks for GPUs that a program has begun to use."""
Gpus: TypeAlias = Mapping[int, str]
"""CUDA's index of a GPU → its UUID."""


class _Reading(NamedTuple):
    """What was read at ``end_ns``; ``start_ns`` is when the one before was."""

    device: int
    uuid: str
    start_ns: int
    end_ns: int
    health: Health


@dataclass
class _Seen:
    """What all readings of a GPU come to: for how long, in ns, each value held."""

    clocks: Counter[int] = field(default_factory=Counter)
    powers: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    readings: int = 0

    def add(self, reading: _Reading) -> None:
        state, lasted_ns = reading.health, reading.end_ns - reading.start_ns
        self.readings += 1
        self.reasons.update(dict.fromkeys(state.get("throttle_reasons", ()), lasted_ns))
        if "sm_clock_mhz" in state:
            self.clocks[state["sm_clock_mhz"]] += lasted_ns + 1
        if "power_w" in state:
            self.powers[round(state["power_w"])] += lasted_ns + 1

    def facts(self, device: int) -> GpuStateFacts:
        clocks, reasons = self.clocks.copy(), self.reasons.copy()  # the thread adds to them
        active_reasons = (
            reason for reason, lasted_ns in reasons.items() if lasted_ns or self.readings == 1
        )
        return GpuStateFacts(
            device=f"cuda:{device}",
            sm_clock_mhz=_median(clocks),
            lowest_mhz=min(clocks, default=None),
            highest_mhz=max(clocks, default=None),
            power_w=_median(self.powers.copy()),
            reasons=tuple(sorted(active_reasons)),
            readings=self.readings,
        )


def _median(lasted_ns: Mapping[int, int]) -> int | None:
    """Return the value that was not exceeded for half of the time."""
    left_ns = sum(lasted_ns.values()) / 2
    for value in sorted(lasted_ns):
        left_ns -= lasted_ns[value]
        if left_ns <= 0:
            return value
    return None


class ClockSampler:
    """Reads GPUs when it starts, ten times a second, and when it is closed.

    A reading stands for the time since the one before; the first for an instant. Where NVML tells
    nothing, nothing is recorded.

    Parameters
    ----------
    opened
        Returns the GPUs of the recording that are open; where there are none, those are read on
        which this process has a context.
    clock
        Reads the recording's clock, ns.
    seen
        Gets the GPUs that are read, each time.
    """

    def __init__(
        self,
        opened: Callable[[], Gpus],
        clock: Callable[[], int],
        seen: Callable[[Gpus], None] | None = None,
    ) -> None:
        self._opened, self._clock, self._seen_by = opened, clock, seen
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpuscope clocks", daemon=True)
        self._in_use: Gpus = {}
        self._last_ns: dict[int, int] = {}
        self._seen: dict[int, _Seen] = {}
        self._new: deque[_Reading] = deque()
        self._taken: list[_Reading] = []
        self._count = 0

    def start(self) -> None:
        """Begin to read; where no thread can start, nothing is read."""
        start(self._thread)

    def close(self) -> None:
        """Read once more, and end; a driver that does not answer is not waited for."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_S)

    def _loop(self) -> None:
        number = 0
        while True:
            is_last = self._over.is_set()
            if not (gpus := self._opened()):
                if not self._in_use or number % _LOOK_AGAIN == 0:
                    self._in_use = health.gpus_in_use()
                gpus = self._in_use
            if self._seen_by is not None and not is_last:
                self._seen_by(gpus)
            for device, uuid in gpus.items():
                self._read(device, uuid)
            if is_last or (gpus and not self._seen):  # nobody tells
                return
            number += 1
            self._over.wait(EVERY_S)

    def _read(self, device: int, uuid: str) -> None:
        if state := health.clocks_of(uuid):
            now_ns = self._clock()
            since_ns = min(self._last_ns.get(device, now_ns), now_ns)  # a clock may be set
            reading = _Reading(device, uuid, since_ns, now_ns, state)
            self._last_ns[device] = now_ns
            self._seen.setdefault(device, _Seen()).add(reading)
            self._new.append(reading)

    def facts(self) -> tuple[GpuStateFacts, ...]:
        """Return how the GPUs stood by now."""
        return tuple(seen.facts(device) for device, seen in sorted(self._seen.copy().items()))

    def begin_reading(self) -> Callable[[], None]:
        """Take in what was read; returns what undoes all that draining it does next."""
        move(self._new, self._taken)
        return keep(self, "_taken", "_count")

    def drain(self, rows: Rows) -> None:
        """Add a row for each value read."""
        taken, self._taken = self._taken, []
        for reading in taken:
            rows.cut()
            for name, value in _values(reading.health):
                rows.spans.append(
                    {
                        "id": reading_row(self._count),
                        "kind": "counter",
                        "name": name,
                        "start_ns": reading.start_ns,
                        "end_ns": reading.end_ns,
                        "device": reading.device,
                        "device_uuid": reading.uuid,
                        "value": value,
                        "source": "nvml",
                    }
                )
                self._count += 1


def _values(state: Health) -> Iterable[tuple[str, float]]:
    if "sm_clock_mhz" in state:
        yield SM_CLOCK, float(state["sm_clock_mhz"])
    if "power_w" in state:
        yield POWER, state["power_w"]
    if "throttle_reasons" in state:
        yield REASONS, float(mask_of(state["throttle_reasons"]))
