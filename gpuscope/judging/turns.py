"""Measuring two sides in turns, ABBA; in one process after A has been measured against itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from gpuscope import _interrupts
from gpuscope.comparing.turns import Round, RoundPairs, Turns, differ, usual_spread
from gpuscope.errors import NothingRecorded
from gpuscope.judging.sides import Side

Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with what is measured, and how many rounds are done of how many."""


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

    of_a: RoundPairs = []
    pairs: RoundPairs = []
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
