"""The conditions of a round: clock, power and throttling of its GPU, and who else uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscope.trace.gpu_states import POWER_CAP, typical
from gpuscope.trace.model import Trace

_APART = 0.01
"""Share by which clocks of two rounds may differ, unless those of two rounds of A differ more."""


@dataclass(frozen=True)
class Conditions:
    """How a GPU stood in a round.

    Attributes
    ----------
    sm_clock_mhz, power_w
        Medians; ``None`` where NVML does not tell.
    slowed
        For what the clock was held down from outside: a power cap is reached by the work itself.
    others
        Processes that had a context on it beside the one that is measured.
    """

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    slowed: tuple[str, ...] = ()
    others: int = 0


def conditions_of(
    trace: Trace, processes: Sequence[Mapping[str, int]], *, is_here: bool = False
) -> Conditions:
    """Return how the GPUs of a round stood, as its recording tells.

    Parameters
    ----------
    processes
        Of each GPU, by UUID, as before the round or again behind it.
    is_here
        Whether one of these is this process.
    """
    states, uuid = trace.metadata.gpu_states, _uuid_of(trace)
    slowed = {reason for state in states for reason in state.throttled} - {POWER_CAP}
    most = max((count.get(uuid, 0) for count in processes), default=0)
    return Conditions(
        *typical(states),
        tuple(sorted(slowed)),
        max(0, most - is_here),
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


def _uuid_of(trace: Trace) -> str:
    """Return the UUID of the first device of a trace."""
    return next((facts.uuid for facts in trace.metadata.devices.values() if facts.uuid), "")
