"""How far two sides that took turns differ: an interval, and the smallest change to be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np

from gpuscope._types import Floats
from gpuscope.analysis.compare_analysis import Difference
from gpuscope.analysis.noise import TAIL, interval, least_of, rank_interval, student_t

Verdict: TypeAlias = Literal["equal", "slower", "faster", "cannot tell"]
"""What is known of a number: of one of which more is better, ``"slower"`` is less."""
FEWEST = 3
"""Pairs below which nothing is told."""
CLOSE = 0.05
"""The interval of equal numbers lies within this share, unless another is asked for."""
POWER = 0.8
"""How often the smallest change that could have been seen would have been."""
_MOST = 10_000
"""Pairs beyond which it is not worth saying how many would do."""


@dataclass(frozen=True)
class Effect(Difference):
    """How far a number differs between two sides, each measured in rounds that took turns.

    Attributes
    ----------
    low, high
        The interval of 95 % of ``after / before − 1``, of all judged numbers together.
    smallest
        The smallest change that would have been seen four times of five; infinite if unknown.
    pairs
        Of neighbouring rounds, one of each side.
    within
        The share within which numbers are equal.
    verdict
        ``"equal"``: the interval lies within that share. ``"cannot tell"``: it includes 0 and
        reaches further.
    needed
        Pairs after which it would be equal, if it is; ``None`` where noise and number of pairs do
        not say.
    is_capture
        Whether there is one capture of each side alone, which tells no noise.
    """

    smallest: float = math.inf
    pairs: int = 0
    within: float = CLOSE
    verdict: Verdict = "cannot tell"
    needed: int | None = None
    is_capture: bool = False

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


def effect(
    workload: str,
    column: str,
    before: Sequence[float],
    after: Sequence[float],
    control: Sequence[float],
    *,
    judged: int = 1,
    within: float | None = None,
) -> Effect:
    """Compare a number of two sides by neighbouring rounds.

    An interval of the logarithms of ``after / before`` by signed ranks
    (:func:`gpuscope.analysis.noise.rank_interval`; of few pairs by Student's t), Bonferroni over
    the judged numbers. It is no narrower than that of as many pairs of A and A, and wider by how
    far A differs from itself beyond noise. ``before`` and ``after`` are the medians of the rounds,
    moved so that their ratio is that of the pairs.

    Parameters
    ----------
    before, after
        Of each pair of rounds, the number on either side.
    control
        The logarithms of the ratio of A to A in pairs of rounds.
    judged
        Numbers that are judged together.
    within
        The share within which numbers are equal: even if their difference is seen. Not given:
        :data:`CLOSE`, if none is seen.
    """
    least = least_of([*before, *after])
    logs = [np.log(np.maximum(np.asarray(each, float), least)) for each in (before, after)]
    changes, pairs = logs[1] - logs[0], len(before)
    close = CLOSE if within is None else within
    middle = float(np.median(logs)) if pairs else 0.0
    tail = TAIL / judged
    change, wide = _middle(changes, tail)
    first, second = (_level(middle + sign * change / 2, least) for sign in (-1, 1))
    compared = Effect(workload, column, first, second, pairs=pairs, within=close)
    if pairs < FEWEST:
        return compared
    bias, noise = _middle(control, tail)
    if math.isfinite(noise):
        wide = max(wide, noise * math.sqrt(len(control) / pairs))
        wide += max(0.0, abs(bias) - noise)  # A differs from itself by more than noise
    smallest = wide * (1 + NormalDist().inv_cdf(POWER) / NormalDist().inv_cdf(1 - tail))
    ends = math.expm1(change - wide), math.expm1(change + wide)
    compared = replace(compared, low=ends[0], high=ends[1], smallest=math.expm1(smallest))
    return _judged(compared, wide, asked=within is not None)


def apart(
    workload: str,
    column: str,
    before: Sequence[float],
    after: Sequence[float],
    *,
    judged: int = 1,
    is_exact: bool = False,
) -> Effect:
    """Compare a number of two sides that did not take turns: each value is a process's.

    A t-interval of the difference of the mean logarithms with the larger of both deviations and
    the degrees of freedom of the side that has fewer. Exact values are told by one of each.
    """
    least = least_of([*before, *after])
    logs = [np.log(np.maximum(np.asarray(each, float), least)) for each in (before, after)]
    first, second = (_level(float(each.mean()), least) for each in logs)
    fewest = min(len(before), len(after))
    compared = Effect(workload, column, first, second, pairs=fewest)
    change = float(logs[1].mean() - logs[0].mean()) if fewest else 0.0
    if is_exact and fewest:
        return replace(compared, low=math.expm1(change), high=math.expm1(change), smallest=0.0)
    if fewest < FEWEST:
        return compared
    deviation = max(map(_deviation, logs))
    error = deviation * math.sqrt(1 / len(before) + 1 / len(after))
    wide, chance = (student_t(fewest - 1, tail) * error for tail in (TAIL / judged, 1 - POWER))
    ends = math.expm1(change - wide), math.expm1(change + wide), math.expm1(wide + chance)
    return replace(compared, low=ends[0], high=ends[1], smallest=ends[2])


def control_of(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the logarithms of the ratios of pairs of rounds of A."""
    least = least_of([*first, *second])
    pairs = zip(first, second, strict=True)
    return [math.log(max(later, least) / max(earlier, least)) for earlier, later in pairs]


def _judged(compared: Effect, wide: float, *, asked: bool) -> Effect:
    """Say what an interval comes to, and of one that tells nothing what it would take."""
    is_seen = not compared.low <= 0 <= compared.high
    if compared.reach <= compared.within and (asked or not is_seen):
        return replace(compared, verdict="equal")
    if is_seen:
        return replace(compared, verdict="faster" if compared.is_better else "slower")
    narrower = wide / math.log1p(compared.within)  # than it is now, by this factor
    needed = math.ceil(compared.pairs * narrower**2)
    return replace(compared, needed=needed if compared.pairs < needed <= _MOST else None)


def _middle(values: Sequence[float] | Floats, tail: float) -> tuple[float, float]:
    """Return the middle of values, and half of its interval; infinite of fewer than two."""
    if len(values) < 2:
        return (float(values[0]) if len(values) else 0.0), math.inf
    if (ranked := rank_interval([*values], tail)) is not None:
        middle, low, high = ranked
        return middle, (high - low) / 2
    low, high = interval([*values], tail)
    return float(np.mean(values)), (high - low) / 2


def _level(logarithm: float, least: float) -> float:
    """Return a level; 0 of what is too small for a logarithm."""
    level = math.exp(logarithm)
    return 0.0 if level <= least else level


def _deviation(values: Sequence[float] | Floats) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def worst(effects: Sequence[Effect]) -> Verdict:
    """Return what several numbers come to: slower if any is; equal only if all are.

    Tails count where they are seen; that they cannot be told decides nothing if others can.
    """
    seen = [each.verdict for each in effects if each.is_seen]
    typical = [each.verdict for each in effects if not each.is_tail]
    verdicts = seen or typical or [each.verdict for each in effects]
    order: tuple[Verdict, ...] = ("slower", "faster", "cannot tell", "equal")
    return next((verdict for verdict in order if verdict in verdicts), "cannot tell")
