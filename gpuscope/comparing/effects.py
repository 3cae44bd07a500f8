"""How far a number of two sides differs: an interval, and the smallest change to be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np

from gpuscope._columns import COMPARED, PROGRAM, Column
from gpuscope._types import Floats
from gpuscope.analysis.certainty import TAIL
from gpuscope.comparing.noise import least_of
from gpuscope.comparing.shifts import shift, smallest_shift
from gpuscope.telling.finding import Quantity

Verdict: TypeAlias = Literal["equal", "slower", "faster", "cannot tell"]
"""What is known of a number: of one of which more is better, ``"slower"`` is less."""
FEWEST = 3
"""Rounds of each side below which nothing is told."""
CLOSE = 0.05
"""The interval of equal numbers lies within this share, unless another is asked for."""
_MOST = 10_000
"""Pairs beyond which it is not worth saying how many would do."""


@dataclass(frozen=True)
class Effect:
    """How far a number of a workload differs between two sides, and how sure that is.

    Attributes
    ----------
    column
        Of a comparison of settings (:data:`gpuscope.analysis.settings.COLUMNS`).
    before, after
        The number of either, in the column's unit.
    low, high
        The interval of ``after / before − 1``, of all judged numbers together, of 95 % unless
        another was asked for; infinite where too little tells it.
    smallest
        The change that as many rounds, measured anew, would show four times of five; infinite if
        unknown.
    pairs
        Of rounds or parts of calls, one of each side.
    within
        The share within which numbers are equal.
    verdict
        ``"equal"``: the interval lies within that share. ``"cannot tell"``: it includes 0 and
        reaches further.
    needed
        Pairs of rounds after which it would be equal, if it is; ``None`` where noise and number of
        pairs do not say.
    is_capture
        Whether there is one capture of each side alone, which tells no noise.
    """

    workload: Annotated[str, "of"]
    column: str
    before: Annotated[float, "A"]
    after: Annotated[float, "B"]
    low: float = -math.inf
    high: float = math.inf
    smallest: float = math.inf
    pairs: int = 0
    within: float = CLOSE
    verdict: Verdict = "cannot tell"
    needed: int | None = None
    is_capture: bool = False

    @property
    def about(self) -> Column:
        """What the number is."""
        return (COMPARED | PROGRAM)[self.column]

    @property
    def change(self) -> float:
        """The change as a share of what was before; infinite from nothing to something."""
        if self.before == self.after:
            return 0.0
        return self.after / self.before - 1 if self.before else math.inf

    @property
    def is_better(self) -> bool:
        """Whether the number is better in the second."""
        return self.about.better * self.change > 0

    @property
    def clarity(self) -> float:
        """The end of its interval that is nearest to 0, as a logarithm without its sign."""
        nearest = max(self.low, min(0.0, self.high))
        return abs(math.log1p(nearest)) if nearest > -1 else math.inf

    @property
    def is_seen(self) -> bool:
        """Whether it is told from 0, and not equal."""
        return self.verdict in ("slower", "faster")

    @property
    def is_tail(self) -> bool:
        """Whether it is of the slowest calls, of which there are few: noise often hides it."""
        return "_p90_" in self.column or "_p99_" in self.column

    @property
    def reach(self) -> float:
        """The largest change, in either direction, that the interval holds."""
        return max(abs(self.low), abs(self.high))

    def of_whole(self, before: float, after: float) -> Effect:
        """Return it with the numbers of all rounds together, if their ratio is in the interval."""
        whole = replace(self, before=before, after=after)
        return whole if self.low <= whole.change <= self.high else self


def change_of(effect: Effect) -> Quantity:
    """Return by how much a number changed, with the ends of its interval that are known."""
    low, high = (end if math.isfinite(end) else None for end in (effect.low, effect.high))
    return Quantity("by", effect.change, "±%", low, high)


def leading(effects: Sequence[Effect]) -> Effect:
    """Return the one that a headline is about.

    Goodput, as somebody states the SLO that it counts; else the clearest, of a tail only where no
    other is known.
    """
    asked_for = [difference for difference in effects if difference.column == "goodput_per_s"]
    typical = [difference for difference in effects if not difference.is_tail]
    return max(asked_for or typical or effects, key=lambda difference: difference.clarity)


def effect(
    workload: str,
    column: str,
    before: Sequence[float] | Floats,
    after: Sequence[float] | Floats,
    control: Sequence[float] = (),
    *,
    judged: int = 1,
    within: float | None = None,
    are_pairs: bool = True,
    repeats: float = 0.0,
    tail: float = TAIL,
) -> Effect:
    """Compare a number of two sides by their rounds or processes.

    An interval of the logarithm of ``after / before`` (:func:`gpuscope.comparing.shifts.shift`),
    Bonferroni over the judged numbers, and wider by how far A differs from itself beyond noise.
    ``before`` and ``after`` of the result are the median round, moved either way so that their
    ratio is the estimate.

    Parameters
    ----------
    before, after
        Of each round, the number on either side.
    control
        The logarithms of the ratio of A to A in pairs of rounds.
    judged
        Numbers that are judged together.
    within
        The share within which numbers are equal: even if their difference is seen. Not given:
        :data:`CLOSE`, if none is seen.
    are_pairs
        Whether rounds at one place have something in common, as neighbours have. Rounds of two
        runs, or processes of two days, have not.
    repeats
        The share by which repeated measurements differ beyond what these rounds show
        (:func:`gpuscope.comparing.noise.repeats`): the interval is wider by so much on either side.
    tail
        The probability beyond either end of an interval, of all judged numbers together.
    """
    logs, least = _logs(before, after)
    fewest, tail = min(len(before), len(after)), tail / judged
    close = CLOSE if within is None else within
    if fewest < FEWEST:
        return _compared(workload, column, logs, least, _difference(logs), within=close)
    middle, low, high = shift(logs[0], logs[1], tail, are_pairs=are_pairs)
    smallest = smallest_shift(logs[0], logs[1], tail, are_pairs=are_pairs)
    bias = _bias(control, tail) + math.log1p(repeats)
    compared = replace(
        _compared(workload, column, logs, least, float(middle), within=close),
        low=math.expm1(low - bias),
        high=math.expm1(high + bias),
        smallest=math.expm1(smallest + bias),
    )
    result = judged_effect(compared, float(high - low) / 2 + bias, asked=within is not None)
    return replace(result, needed=None) if repeats else result


def _logs(
    before: Sequence[float] | Floats, after: Sequence[float] | Floats
) -> tuple[list[Floats], float]:
    """Return the logarithms of both sides, and what is the least that they are taken for."""
    least = least_of([*before, *after])
    return [np.log(np.maximum(np.asarray(side, float), least)) for side in (before, after)], least


def _difference(logs: Sequence[Floats]) -> float:
    """Return by how much the sides' means differ; of nothing by nothing."""
    return float(logs[1].mean() - logs[0].mean()) if len(logs[0]) and len(logs[1]) else 0.0


def _compared(
    workload: str,
    column: str,
    logs: Sequence[Floats],
    least: float,
    change: float,
    *,
    within: float,
) -> Effect:
    """Return a difference without its interval."""
    every = np.concatenate(logs)
    middle = float(np.median(every)) if len(every) else 0.0
    first, second = (_level(middle + sign * change / 2, least) for sign in (-1, 1))
    fewest = min(map(len, logs))
    return Effect(workload, column, first, second, pairs=fewest, within=within)


def _bias(control: Sequence[float], tail: float) -> float:
    """Return by how much A differs from itself at least: how far 0 is from its interval."""
    if len(control) < FEWEST:
        return 0.0
    ratios = np.asarray(control, float)
    _, low, high = shift(np.zeros_like(ratios), ratios, tail, are_pairs=True)
    return max(0.0, float(low), -float(high))


def control_of(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the logarithms of the ratios of pairs of rounds of A."""
    least = least_of([*first, *second])
    pairs = zip(first, second, strict=True)
    return [math.log(max(later, least) / max(earlier, least)) for earlier, later in pairs]


def judged_effect(compared: Effect, wide: float = math.inf, *, asked: bool = False) -> Effect:
    """Say what an interval comes to, and of one that tells nothing what it would take.

    Parameters
    ----------
    wide
        Half of the interval of the logarithm.
    asked
        Whether the share within which numbers are equal was asked for.
    """
    is_seen = not compared.low <= 0 <= compared.high
    if compared.reach <= compared.within and (asked or not is_seen):
        return replace(compared, verdict="equal")
    if is_seen:
        return replace(compared, verdict="faster" if compared.is_better else "slower")
    if math.isinf(wide):
        return replace(compared, verdict="cannot tell")
    narrower = wide / math.log1p(compared.within)  # than it is now, by this factor
    needed = math.ceil(compared.pairs * narrower**2)
    return replace(compared, needed=needed if compared.pairs < needed <= _MOST else None)


def _level(logarithm: float, least: float) -> float:
    """Return a level; 0 of what is too small for a logarithm."""
    level = math.exp(logarithm)
    return 0.0 if level <= least else level


def worst(effects: Sequence[Effect]) -> Verdict:
    """Return what several numbers come to: slower if any is; equal only if all are.

    Tails count where they are seen; that they cannot be told decides nothing if others can.
    """
    seen = [difference.verdict for difference in effects if difference.is_seen]
    typical = [difference.verdict for difference in effects if not difference.is_tail]
    verdicts = seen or typical or [difference.verdict for difference in effects]
    order: tuple[Verdict, ...] = ("slower", "faster", "cannot tell", "equal")
    return next((verdict for verdict in order if verdict in verdicts), "cannot tell")
