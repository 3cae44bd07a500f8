"""Shifts between two sides' rounds: levels, power and the smallest shift, in noise of any shape."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from gpuscope.analysis.certainty import student_t
from gpuscope.comparing.shifts import serial_correlation, shift, smallest_shift


# -- exactness ----------------------------------------------------------------------------
def by_signs(values, tail):
    """Return the interval of all shifts that the signed-rank test does not reject, by brute force."""
    count = len(values)
    sums = [
        sum(rank for rank, on in zip(range(1, count + 1), signs, strict=True) if on)
        for signs in itertools.product((0, 1), repeat=count)
    ]
    rare = {w for w in set(sums) if sum(each <= w for each in sums) / len(sums) <= tail}
    walsh = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    kept = []
    for low, high in itertools.pairwise(walsh):  # all shifts between two of them are alike
        above = sum(mean >= high for mean in walsh)
        if above not in rare and len(walsh) - above not in rare:
            kept += [low, high]
    return min(kept), max(kept)


@pytest.mark.parametrize("count", [8, 11])
def test_of_pairs_it_holds_all_shifts_that_signed_ranks_do_not_reject(count):
    values = np.random.default_rng(count).normal(size=count)
    middle, low, high = shift(np.zeros(count), values, 0.025, are_pairs=True)
    assert (low, high) == pytest.approx(by_signs(values.tolist(), 0.025))
    assert low <= middle <= high


@pytest.mark.parametrize(("first", "second"), [(5, 5), (4, 9), (12, 7)])
def test_of_sides_apart_it_holds_all_shifts_that_rank_sums_do_not_reject(first, second):
    random = np.random.default_rng(first)
    before, after = random.normal(size=first), random.normal(1, 1, second)
    _, low, high = shift(before, after, 0.025, are_pairs=False)
    for end, way in ((low, 1), (high, -1)):
        for beside, is_held in ((way * 1e-9, True), (-way * 1e-9, False)):
            shifted = after - (end + beside)
            rejected = stats.mannwhitneyu(before, shifted, method="exact").pvalue <= 0.05
            assert rejected != is_held


@pytest.mark.parametrize("tail", [0.025, 0.0125, 0.001])
@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 200])
def test_quantiles_of_students_t_are_scipys(freedom, tail):
    assert student_t(freedom, tail) == pytest.approx(stats.t.isf(tail, freedom), rel=1e-6)


def test_of_few_it_is_the_interval_of_students_and_of_welchs_t():
    random = np.random.default_rng(1)
    before, after = random.normal(size=(2, 4))
    held = stats.ttest_rel(after, before).confidence_interval(0.95)
    _, low, high = shift(before, after, 0.025, are_pairs=True)
    assert (low, high) == pytest.approx((held.low, held.high), rel=1e-5)
    welch = stats.ttest_ind(after, before, equal_var=False)
    _, low, high = shift(before, after, 0.025, are_pairs=False)
    wide = stats.t.isf(0.025, math.floor(welch.df)) * (after.mean() - before.mean())
    assert high - low == pytest.approx(abs(2 * wide / welch.statistic), rel=1e-5)


def test_of_many_sums_of_ranks_are_normally_distributed():
    random = np.random.default_rng(2)
    before, after = random.normal(size=(2, 200))
    for are_pairs in (True, False):
        few, many = (shift(before[:n], after[:n], 0.025, are_pairs=are_pairs) for n in (60, 61))
        assert many.high - many.low == pytest.approx(few.high - few.low, rel=0.1)
        smallest = smallest_shift(before, after, 0.025, are_pairs=are_pairs)
        exact = (stats.norm.isf(0.025) + stats.norm.isf(0.2)) * math.sqrt(2 / 200)
        assert smallest == pytest.approx(exact, rel=0.15)


# -- noise --------------------------------------------------------------------------------
COMPARED = {
    "saved runs": (5, 2, False),
    "programs": (6, 1, True),
    "turns": (8, 2, True),
    "many turns": (20, 3, True),
}
"""Kind → rounds of a side, numbers that are judged together, whether they are pairs."""


def wild(random, size):
    return stats.norm.rvs(size=size, random_state=random) * np.where(
        random.random(size) < 0.1, 10, 1
    )


def slow(random, size):
    return random.normal(size=size) + 26 * (random.random(size) < 0.1)


def bimodal(random, size):
    return random.normal(size=size) + 3 * random.integers(0, 2, size)


SHAPES = {
    "normal": lambda random, size: stats.norm.rvs(size=size, random_state=random),
    "t": lambda random, size: stats.t.rvs(3, size=size, random_state=random),
    "lognormal": lambda random, size: stats.lognorm.rvs(1, size=size, random_state=random),
    "wild": wild,
    "slow": slow,
    "bimodal": bimodal,
}


def limit(trials):
    """Return the share that 5 % are in so many trials, with three standard errors."""
    return 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def alarms(kind, sides):
    """Return how often any of several numbers of equal sides is told apart."""
    _, judged, are_pairs = COMPARED[kind]
    found = [shift(*sides(), 0.025 / judged, are_pairs=are_pairs) for _ in range(judged)]
    return np.any([(low > 0) | (high < 0) for _, low, high in found], 0).mean()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", COMPARED)
def test_equal_sides_are_seldom_told_apart(kind, shape):
    rounds = COMPARED[kind][0]
    random = np.random.default_rng(5)
    trials = 3000
    told = alarms(kind, lambda: SHAPES[shape](random, (2, trials, rounds)))
    assert told <= limit(trials)


@pytest.mark.parametrize("kind", ["programs", "turns", "many turns"])
@pytest.mark.parametrize("drift", ["line", "wave", "walk"])
def test_sides_that_take_turns_are_seldom_told_apart_by_drift(kind, drift):
    rounds = COMPARED[kind][0]
    random = np.random.default_rng(6)
    trials, at = 3000, np.arange(2 * rounds)

    def sides():
        noise = random.normal(size=(trials, 2 * rounds))
        if drift == "line":
            noise += at
        elif drift == "wave":
            noise += 3 * np.sin(2 * np.pi * (at / 11 + random.random((trials, 1))))
        else:
            noise = noise.cumsum(-1)
        pairs = noise.reshape(trials, rounds, 2)
        turned = np.arange(rounds) % 2 == 1
        return (np.where(turned, pairs[..., 1 - side], pairs[..., side]) for side in (0, 1))

    assert alarms(kind, sides) <= limit(trials)


def test_three_times_the_noise_is_seen_in_saved_runs_of_five_rounds():
    random = np.random.default_rng(7)
    before, after = random.normal(size=(2, 2000, 5))
    _, low, _ = shift(before, after + 100 * math.log(1.03), 0.0125, are_pairs=False)
    assert (low > 0).mean() >= 0.8


@pytest.mark.parametrize("shape", ["normal", "wild", "slow", "bimodal"])
@pytest.mark.parametrize("kind", ["saved runs", "programs", "turns"])
def test_a_shift_of_the_smallest_size_is_seen_four_times_of_five(kind, shape):
    rounds, judged, are_pairs = COMPARED[kind]
    tail = 0.025 / judged
    random = np.random.default_rng(8)
    asked, again = 150, 20
    smallest = [
        smallest_shift(before, after, tail, are_pairs=are_pairs)
        for before, after in zip(*SHAPES[shape](random, (2, asked, rounds)), strict=True)
    ]
    shifts = np.repeat(smallest, again)
    sides = SHAPES[shape](random, (2, len(shifts), rounds))
    _, low, high = shift(*sides, tail, are_pairs=are_pairs)
    seen = ((low + shifts > 0).mean() + (high - shifts < 0).mean()) / 2
    error = 0.03  # of so few smallest shifts
    least, most = (0.75, 0.85) if shape == "normal" else (0.70, 0.90)
    assert least - error <= seen <= most + error


def test_what_has_no_noise_shows_any_shift():
    equal = np.ones(5)
    assert smallest_shift(equal, equal, 0.025, are_pairs=True) == 0
    assert smallest_shift(equal, equal, 0.025, are_pairs=False) == 0
    assert [float(end) for end in shift(equal, equal + 1, 0.025, are_pairs=False)] == [1, 1, 1]


def test_rounds_that_hang_together_are_told_from_chance():
    random = np.random.default_rng(9)
    walks = random.normal(size=(100, 2, 12)).cumsum(-1)
    told = [serial_correlation([*sides]) for sides in walks]
    assert sum(each is not None for each in told) >= 70
    assert min(each for each in told if each is not None) > 0.1
    chance = [serial_correlation([*sides]) for sides in random.normal(size=(300, 2, 5))]
    assert sum(each is not None for each in chance) / 300 <= limit(300)
    assert serial_correlation([np.ones(5), np.ones(5)]) is None
