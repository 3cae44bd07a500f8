"""Rounds of two sides, beside each other: what each gave, and how its GPU stood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

from gpuscope.comparing.conditions import Conditions
from gpuscope.comparing.rounds import MeasuredTrace, Number, Values, windows_of
from gpuscope.trace.model import Trace


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
        every = [side.conditions.others for pair in self.pairs for side in pair]
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
