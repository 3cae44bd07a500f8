"""The conditions of a round: clock, power and throttling of its GPU, and who else uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import TypeAlias

from gpuscope.device.raw import Health
from gpuscope.trace.model import Trace

Read: TypeAlias = Callable[[], Mapping[str, Health]]
"""Returns what is known of each GPU, by UUID."""
_EVERY_S = 0.02
_APART = 0.01
"""Share by which clocks of two rounds may differ, unless those of two rounds of A differ more."""
_SLOWED = ("thermal", "hw_slowdown", "power_brake", "sync_boost")
"""In names of reasons: what slows a GPU from outside. A power cap is reached by the work itself."""


@dataclass(frozen=True)
class Conditions:
    """How a GPU stood in a round.

    Attributes
    ----------
    sm_clock_mhz, power_w
        Medians of the readings; ``None`` where NVML does not tell.
    slowed
        Reasons for which the clock was held down from outside.
    others
        Processes that had a context on it beside the one that is measured.
    readings
        How many readings these are.
    """

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    slowed: tuple[str, ...] = ()
    others: int = 0
    readings: int = 0


class Watch:
    """Reads GPUs while the ``with`` block runs, from a thread."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="gpuscope watch", daemon=True)
        self._seen: list[Mapping[str, Health]] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self._seen.append(self._read())
            if self._over.wait(_EVERY_S):
                return

    def of(self, uuid: str | None, *, is_here: bool = False) -> Conditions:
        """Return how a GPU stood; of the only one where there is no other.

        Parameters
        ----------
        is_here
            Whether this process has a context on it. Else what is measured has begun after the
            first reading.
        """
        known = [
            seen[uuid or ""] if uuid in seen else next(iter(seen.values()))
            for seen in self._seen
            if seen and (uuid in seen or len(seen) == 1)
        ]
        clocks = [health["sm_clock_mhz"] for health in known if "sm_clock_mhz" in health]
        powers = [health["power_w"] for health in known if "power_w" in health]
        reasons = {reason for health in known for reason in health.get("throttle_reasons", ())}
        processes = [health.get("processes", 0) for health in known] or [0]
        slowed = sorted(
            reason for reason in reasons if any(word in reason.lower() for word in _SLOWED)
        )
        return Conditions(
            median(clocks) if clocks else None,
            median(powers) if powers else None,
            tuple(slowed),
            max(0, *processes) - 1 if is_here and any(processes) else processes[0],
            len(known),
        )


def usual_spread(control: Sequence[tuple[Conditions, Conditions]]) -> float:
    """Return by which share clocks may differ: as far as they did between rounds of A."""
    apart = [_clocks_apart(*pair) for pair in control]
    return max([_APART, *apart])


def differ(first: Conditions, second: Conditions, spread: float) -> str:
    """Say in what the conditions of two rounds differ; nothing if they are alike."""
    if first.slowed != second.slowed:
        reasons = sorted({*first.slowed} ^ {*second.slowed})
        return f"the clock was held down ({', '.join(reasons)})"
    if _clocks_apart(first, second) > spread:
        return f"clocks of {first.sm_clock_mhz:.0f} and {second.sm_clock_mhz:.0f} MHz"
    return ""


def _clocks_apart(first: Conditions, second: Conditions) -> float:
    if first.sm_clock_mhz is None or second.sm_clock_mhz is None:
        return 0.0
    apart_mhz = abs(first.sm_clock_mhz - second.sm_clock_mhz)
    return apart_mhz / max(first.sm_clock_mhz, second.sm_clock_mhz, 1.0)


def read_gpus() -> Mapping[str, Health]:
    """Return what is known of each GPU of this machine."""
    from gpuscope.device.cuda.health import health_of_all  # noqa: PLC0415 - only with a GPU

    return health_of_all()


def uuid_of(trace: Trace) -> str | None:
    """Return the UUID of the first device of a trace."""
    return next((facts.uuid for facts in trace.metadata.devices.values() if facts.uuid), None)
