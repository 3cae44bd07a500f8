"""Rounds of two sides in turns, ABBA; in one process after A has been measured against itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

from gpuscope import _interrupts
from gpuscope.errors import NothingRecorded
from gpuscope.judging.conditions import differ, usual_spread
from gpuscope.judging.sides import Round, Side

Pairs: TypeAlias = list[tuple[Round, Round]]
Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with what is measured, and how many rounds are done of how many."""


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
    pairs: Pairs = field(repr=False)
    control: Pairs = field(repr=False)
    measured: Pairs = field(repr=False)
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


def in_turns(
    first: Side,
    second: Side,
    rounds: int,
    control: int,
    progress: Tell,
    stop: threading.Event,
) -> Turns:
    """Measure A against A, then A and B in blocks ABBA.

    Parameters
    ----------
    rounds, control
        Pairs of rounds.
    stop
        Ends it early; what was measured counts.

    Raises
    ------
    NothingRecorded
        It was stopped before the first pair.
    """
    total = 2 * (rounds + control)
    done = 0

    def pair(left: Side, right: Side, number: int, what: str) -> tuple[Round, Round]:
        nonlocal done
        rounds = []
        for side in (left, right) if number % 2 == 0 else (right, left):
            _interrupts.deliver()
            progress(f"{what}, {side.name}", done, total)
            rounds.append(side.measure(number))
            done += 1
        return (rounds[0], rounds[1]) if number % 2 == 0 else (rounds[1], rounds[0])

    of_a: Pairs = []
    pairs: Pairs = []
    with _until_interrupted(stop):
        for number in range(control):
            if stop.is_set():
                break
            of_a.append(pair(first, first, number, "A against A"))
        for number in range(rounds):
            if stop.is_set():
                break
            pairs.append(pair(first, second, number, "A against B"))
    if not pairs:
        raise NothingRecorded("it was stopped before anything was compared: run it again")
    alone = [of_first for of_first, _ in pairs]
    alike = of_a or [*zip(alone[::2], alone[1::2], strict=False)]
    spread = usual_spread([(left.conditions, right.conditions) for left, right in alike])
    apart = [differ(left.conditions, right.conditions, spread) for left, right in pairs]
    comparable = [both for both, why in zip(pairs, apart, strict=True) if not why]
    unit = "process" if first.is_process else "round"
    left_out = tuple(filter(None, apart))
    return Turns(unit, comparable, of_a, pairs, left_out, stopped=len(pairs) < rounds)


@contextlib.contextmanager
def _until_interrupted(stop: threading.Event) -> Iterator[None]:
    """Take Ctrl-C for a stop."""
    try:
        yield
    except KeyboardInterrupt:
        stop.set()


def numbers(pairs: Sequence[tuple[Round, Round]]) -> list[tuple[str, str]]:
    """Return the workloads and columns that all rounds have."""
    if not pairs:
        return []
    first = pairs[0][0].values
    return [key for key in first if all(key in side.values for pair in pairs for side in pair)]
