"""Rounds of two sides, beside each other: what each gave, and how its GPU stood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

from gpuscope.comparing.rounds import MeasuredTrace, Number, Values, windows_of
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
    other_processes
        Processes that had a context on it beside the one that is measured.
    """

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    slowed: tuple[str, ...] = ()
    other_processes: int = 0


@dataclass(frozen=True)
class Round:
    """What one round, or one process, gave."""

    values: Values
    trace: Trace = field(repr=False)
    conditions: Conditions = field(default_factory=Conditions)


RoundPairs: TypeAlias = list[tuple[Round, Round]]


@dataclass(frozen=True)
class Turns:
    """What was measured.

    Attributes
    ----------
    unit
        What a round is: ``"round"``, ``"process"``, or ``"saved round"``.
    pairs
        A round of A beside one of B.
    control
        Rounds of A beside others of A, in turns as well.
    measured
        The pairs with those that were left out.
    left_out
        Of pairs whose conditions differed: in what.
    are_pairs
        Whether the rounds of a pair have something in common: they are neighbours or, where they
        are simulated, draw the same.
    stopped
        Whether it ended early.
    """

    unit: str
    pairs: RoundPairs = field(repr=False)
    control: RoundPairs = field(repr=False)
    measured: RoundPairs = field(repr=False)
    left_out: tuple[str, ...] = ()
    are_pairs: bool = True
    stopped: bool = False

    def clocks_mhz(self) -> tuple[float | None, float | None]:
        """Return the median SM clock of either side."""
        sides = []
        for at in (0, 1):
            clocks = [pair[at].conditions.sm_clock_mhz for pair in self.pairs]
            readings = [clock for clock in clocks if clock is not None]
            sides.append(median(readings) if readings else None)
        return sides[0], sides[1]

    @property
    def others(self) -> int:
        """How many other processes had a context on the GPU, at most."""
        every = [side.conditions.other_processes for pair in self.pairs for side in pair]
        return max(every, default=0)


def numbers(pairs: Sequence[tuple[Round, Round]]) -> list[Number]:
    """Return the workloads and columns that all rounds have."""
    if not pairs:
        return []
    first = pairs[0][0].values
    return [key for key in first if all(key in side.values for pair in pairs for side in pair)]


def rounds_of(trace: Trace, gave: MeasuredTrace) -> list[Round]:
    """Return the rounds of a trace, of which it is known what they gave."""
    return [
        Round({number: float(samples[at]) for number, samples in gave.samples.items()}, part)
        for at, part in enumerate(windows_of(trace))
    ]


# -- conditions ---------------------------------------------------------------------------
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
