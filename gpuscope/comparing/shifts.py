"""By how much one side's rounds are shifted against the other's, and what shift they would show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from gpuscope._types import Floats
from gpuscope.analysis.certainty import student_t

POWER = 0.8
"""How often the smallest shift that could have been seen would be."""
_FEWEST = 2
"""Rank sums that are left out at least: with one alone, the extremes are the interval, which one
wild round moves as far as that of Student's t, and which is wider in normal noise."""
_EXACT = 60
"""Rounds of a side beyond which sums of ranks count as normally distributed."""
_DRAWS, _VALUES, _MOST = 500, 2_000_000, 100
"""Times that rounds are drawn anew at most, values that are ordered then, about, and rounds of a
side that are drawn at most."""
_SHUFFLES, _CHANCE = 1000, 0.05
"""Orders of rounds that are tried, and the share of them that may resemble as much by chance."""


class Shift(NamedTuple):
    """Estimates of a shift, and the ends of their intervals; one of each row of rounds."""

    middle: Floats
    low: Floats
    high: Floats


def shift(before: Floats, after: Floats, tail: float, *, are_pairs: bool) -> Shift:
    """Return by how much ``after`` is shifted, with an interval that leaves out ``tail`` an end.

    Of pairs by the signed ranks of their differences, else by rank sums: the estimates of
    J. L. Hodges and E. L. Lehmann (Annals of Mathematical Statistics 34 (1963), 598) and the
    intervals of F. Wilcoxon's tests (M. Hollander, D. A. Wolfe and E. Chicken, *Nonparametric
    Statistical Methods*, 2014, sections 3.3 and 4.3). They hold for independent noise of any
    shape, and a few wild rounds do not widen them. Where ranks could leave out only the extremes,
    by Student's t of the differences or, of sides apart, by B. L. Welch's (Biometrika 34 (1947),
    28), its degrees of freedom rounded down.

    Parameters
    ----------
    before, after
        Rounds along the last axis: two of each at least and, of pairs, as many.
    are_pairs
        Whether rounds at one place have something in common.
    """
    if are_pairs:
        return _of_pairs(after - before, tail)
    return _of_groups(before, after, tail)


def smallest_shift(before: Floats, after: Floats, tail: float, *, are_pairs: bool) -> float:
    """Return the smallest shift that as many rounds, measured anew, show four times of five.

    What a round differs by from its side's mean is drawn anew (of a pair, with either sign), and
    judged by :func:`shift` as the rounds were, from a seed that is always the same. How large the
    noise is, is known from as few rounds: each draw is scaled by √(f / χ²) of their f degrees of
    freedom, which is exact for normal noise. Of more than 100 rounds so many are drawn, and the
    shift becomes smaller with the root of their number.
    """
    random = np.random.default_rng(0)
    counts = len(before), len(after)
    drawn = min(counts[0], _MOST), min(counts[1], _MOST)
    draws = min(_VALUES // (drawn[0] * drawn[1]), _DRAWS)
    if are_pairs:
        freedom = counts[0] - 1
        differences = random.choice(_residuals(after - before), (draws, drawn[0]))
        differences *= random.choice((-1.0, 1.0), differences.shape)
        _, low, high = _of_pairs(differences, tail)
    else:
        freedom = counts[0] + counts[1] - 2
        residuals = np.concatenate([_residuals(before), _residuals(after)])
        sides = [random.choice(residuals, (draws, count)) for count in drawn]
        _, low, high = _of_groups(sides[0], sides[1], tail)
    scales = np.sqrt(freedom / random.chisquare(freedom, draws))
    hidden = np.concatenate([-low * scales, high * scales])  # shifts below are not told from 0
    fewer = (1 / counts[0] + 1 / counts[1]) / (1 / drawn[0] + 1 / drawn[1])
    return max(0.0, float(np.quantile(hidden, POWER)) * math.sqrt(fewer))


def serial_correlation(sides: Sequence[Floats], judged: int = 1) -> float | None:
    """Return by how much neighbouring rounds correlate; ``None`` where that may be chance.

    The mean of the sides' lag-1 autocorrelations, against those of the same rounds in random
    orders, of which at most 5 % over ``judged`` numbers may reach it (a permutation test, which
    holds for noise of any shape); from a seed that is always the same.
    """
    random = np.random.default_rng(0)
    correlation, by_chance = 0.0, np.zeros(_SHUFFLES)
    for rounds in sides:
        residuals = rounds - rounds.mean()
        square = float(residuals @ residuals)
        if not square:
            return None
        orders = random.permuted(np.tile(residuals, (_SHUFFLES, 1)), axis=1)
        correlation += float(residuals[1:] @ residuals[:-1]) / square
        by_chance += (orders[:, 1:] * orders[:, :-1]).sum(1) / square
    reached = (1 + int((by_chance >= correlation).sum())) / (1 + _SHUFFLES)
    return correlation / len(sides) if reached <= _CHANCE / judged else None


def _residuals(rounds: Floats) -> Floats:
    """Return what rounds differ by from their mean, as far as they do from the true one."""
    count = rounds.shape[-1]
    residuals: Floats = (rounds - rounds.mean()) * math.sqrt(count / (count - 1))
    return residuals


# -- of pairs -----------------------------------------------------------------------------
def _of_pairs(differences: Floats, tail: float) -> Shift:
    count = differences.shape[-1]
    pairs = count * (count + 1)
    if count <= _EXACT:
        left_out = _left_out(_signed_rank_sums(count), tail)
    else:
        left_out = _left_out_of_many(pairs / 4, pairs * (2 * count + 1) / 24, tail)
    if left_out < _FEWEST:
        error = differences.std(-1, ddof=1) / math.sqrt(count)
        return _around(differences.mean(-1), student_t(count - 1, tail) * error)
    first, second = np.triu_indices(count)
    return _by_ranks((differences[..., first] + differences[..., second]) / 2, left_out)


@cache
def _signed_rank_sums(count: int) -> Floats:
    """Return the share of choices of ranks 1 to ``count`` that have each sum."""
    shares = np.ones(1)
    for rank in range(1, count + 1):
        longer = np.zeros(len(shares) + rank)
        longer[: len(shares)] += shares / 2
        longer[rank:] += shares / 2
        shares = longer
    return shares


# -- of sides apart -----------------------------------------------------------------------
def _of_groups(before: Floats, after: Floats, tail: float) -> Shift:
    counts = before.shape[-1], after.shape[-1]
    pairs = counts[0] * counts[1]
    if max(counts) <= _EXACT:
        left_out = _left_out(_rank_sums(*counts), tail)
    else:
        left_out = _left_out_of_many(pairs / 2, pairs * (sum(counts) + 1) / 12, tail)
    if left_out < _FEWEST:
        return _by_welch(before, after, tail)
    differences = after[..., :, None] - before[..., None, :]
    return _by_ranks(differences.reshape(*differences.shape[:-2], -1), left_out)


def _by_welch(before: Floats, after: Floats, tail: float) -> Shift:
    counts = before.shape[-1], after.shape[-1]
    first, second = (
        rounds.var(-1, ddof=1) / count
        for rounds, count in zip((before, after), counts, strict=True)
    )
    most = counts[0] + counts[1] - 2
    quantiles = np.array([student_t(freedom, tail) for freedom in range(1, most + 1)])
    parts = first**2 / (counts[0] - 1) + second**2 / (counts[1] - 1)
    has_noise = parts > 0
    freedom = np.where(has_noise, (first + second) ** 2 / np.where(has_noise, parts, 1.0), most)
    at = np.clip(np.floor(freedom).astype(int), 1, most) - 1
    return _around(after.mean(-1) - before.mean(-1), quantiles[at] * np.sqrt(first + second))


@cache
def _rank_sums(first: int, second: int) -> Floats:
    """Return the share of all orders of two groups in which so many of their pairs are reversed.

    The counts are coefficients of a Gaussian binomial (H. B. Mann and D. R. Whitney, Annals of
    Mathematical Statistics 18 (1947), 50): of ∏ (1 − qˢ⁺ⁱ) / (1 − qⁱ), i from 1 to ``first``.
    """
    shares = np.zeros(first * second + 1)
    shares[0] = 1.0
    for number in range(1, first + 1):
        together = second + number
        shares[together:] -= shares[:-together].copy()
        for start in range(number):
            shares[start::number] = np.cumsum(shares[start::number])
        shares *= number / together
    return shares


# -- of both ------------------------------------------------------------------------------
def _left_out(shares: Floats, tail: float) -> int:
    """Return how many of the least sums are as rare together as ``tail``."""
    return int(np.searchsorted(np.cumsum(shares), tail, "right"))


def _left_out_of_many(mean: float, variance: float, tail: float) -> int:
    """Return the same of sums that are about normally distributed."""
    return max(0, math.floor(mean + NormalDist().inv_cdf(tail) * math.sqrt(variance)))


def _by_ranks(values: Floats, left_out: int) -> Shift:
    ordered = np.sort(values, -1)
    return Shift(np.median(ordered, -1), ordered[..., left_out - 1], ordered[..., -left_out])


def _around(middle: Floats, wide: Floats) -> Shift:
    return Shift(middle, middle - wide, middle + wide)
