"""How GPUs stood while they were recorded: SM clock, power, and whether they were throttled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec.structs import replace

from gpuscope._text import format_value
from gpuscope.trace.facts import Facts, Number, Whole

SM_CLOCK, POWER, REASONS = "SM clock (MHz)", "power (W)", "clock event reasons"
"""Names of the counters that a recording has of a GPU; the reasons are NVML's bit mask of them."""
COUNTERS = (SM_CLOCK, POWER, REASONS)
_NVML = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)
"""What the bits of NVML's mask of clock event reasons say, from the lowest on."""
POWER_CAP = "power cap"
_THROTTLING = {
    "sw_power_cap": POWER_CAP,
    "hw_slowdown": "hardware slowdown",
    "sync_boost": "sync boost",
    "sw_thermal_slowdown": "temperature",
    "hw_thermal_slowdown": "temperature",
    "hw_power_brake_slowdown": "power brake",
    "board_limit": "board limit",
    "reliability": "voltage limit",
}
"""Reasons that throttle a GPU, in words; it is also below its highest clock where it idles, or was
set to another one."""


def mask_of(reasons: Iterable[str]) -> int:
    """Return NVML's bit mask of clock event reasons by their names."""
    return sum(1 << _NVML.index(reason) for reason in {*reasons} & {*_NVML})


def reasons_of(mask: int) -> tuple[str, ...]:
    """Return the names of the clock event reasons in NVML's bit mask."""
    return tuple(reason for bit, reason in enumerate(_NVML) if mask >> bit & 1)


def throttling(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return in words which clock event reasons throttle a GPU; none: it is not throttled."""
    return tuple(dict.fromkeys(_THROTTLING[reason] for reason in reasons if reason in _THROTTLING))


class GpuStateFacts(Facts, frozen=True):
    """How a GPU stood while a recording ran, such as that of a round.

    Attributes
    ----------
    device
        Its key.
    round
        Number of the recording, from 0, where a trace is of several, such as rounds.
    sm_clock_mhz, power_w
        Medians over the time.
    lowest_mhz, highest_mhz
        Of the SM clocks read.
    reasons
        NVML's names of the reasons for which a clock was not the highest, of all readings; the
        first is of what was before and does not count where there are others.
    readings
        How many there are.
    """

    device: str
    round: Whole = 0
    sm_clock_mhz: Number = None
    lowest_mhz: Number = None
    highest_mhz: Number = None
    power_w: Number = None
    reasons: tuple[str, ...] = ()
    readings: Whole = 0

    @property
    def throttled(self) -> tuple[str, ...]:
        """In words for what it was throttled; empty: it was not."""
        return throttling(self.reasons)


def rounds_throttled(states: Sequence[GpuStateFacts]) -> tuple[int, int]:
    """Return in how many recordings any GPU was throttled, and how many recordings there are."""
    slowed = {state.round for state in states if state.throttled}
    return len(slowed), len({state.round for state in states})


def throttled_rounds(states: Sequence[GpuStateFacts]) -> str:
    """Say for what GPUs were throttled, and in how many rounds; empty if in none."""
    slowed, rounds = rounds_throttled(states)
    words = ", ".join(dict.fromkeys(word for state in states for word in state.throttled))
    return f"{words}, in {slowed} of {rounds} rounds" if slowed and rounds > 1 else words


def typical(states: Sequence[GpuStateFacts]) -> tuple[float | None, float | None]:
    """Return the SM clock in MHz and the power in W at which GPUs ran: medians of their states."""
    clocks = [float(state.sm_clock_mhz) for state in states if state.sm_clock_mhz is not None]
    powers = [float(state.power_w) for state in states if state.power_w is not None]
    return median(clocks) if clocks else None, median(powers) if powers else None


def numbered(every: Sequence[Sequence[GpuStateFacts]]) -> tuple[GpuStateFacts, ...]:
    """Return the states of traces that follow each other, with their recordings numbered on."""
    states: list[GpuStateFacts] = []
    first = 0
    for part in every:
        states += [replace(state, round=first + state.round) for state in part]
        first += max((state.round for state in part), default=0) + 1
    return tuple(states)


def state_words(states: Sequence[GpuStateFacts]) -> str:
    """Say at which clocks GPUs ran, at which power, and whether throttled; empty if unknown."""
    clocks = sorted(float(state.sm_clock_mhz) for state in states if state.sm_clock_mhz)
    powers = sorted(float(state.power_w) for state in states if state.power_w)
    throttled = throttled_rounds(states)
    parts = [
        _range("SM clock", clocks, "MHz"),
        _range("", powers, "W"),
        f"throttled: {throttled}" if throttled else "",
    ]
    return ", ".join(filter(None, parts))


def _range(what: str, values: Sequence[float], unit: str) -> str:
    if not values:
        return ""
    low, high = (format_value(value, 4) for value in (values[0], values[-1]))
    number = low if low == high else f"{low} to {high}"
    return f"{what} {number} {unit}".strip()
