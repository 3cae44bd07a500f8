"""How far two sides differ: intervals that hold what is true, and verdicts that follow from them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gpuscope.analysis.effects import FEWEST, apart, control_of, effect, worst
from gpuscope.analysis.noise import rank_interval


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


@pytest.mark.parametrize("count", [6, 8, 11])
def test_the_rank_interval_holds_all_shifts_that_the_test_does_not_reject(count):
    values = np.random.default_rng(count).normal(size=count).tolist()
    middle, low, high = rank_interval(values, 0.025)
    assert (low, high) == pytest.approx(by_signs(values, 0.025))
    assert low <= middle <= high


def test_so_few_values_have_no_rank_interval():
    assert rank_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.025) is None  # 2 ** -5 is more
    assert rank_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.025) == (3.5, 1.0, 6.0)


@pytest.mark.parametrize("noise", ["normal", "heavy"])
@pytest.mark.parametrize("pairs", [4, 8, 20])
def test_intervals_hold_the_change_as_often_as_they_say(noise, pairs):
    random = np.random.default_rng(7)
    held, runs = 0, 400
    for _ in range(runs):
        size = (2, pairs)
        wild = random.normal(size=size) if noise == "normal" else random.standard_t(2, size=size)
        before, after = 100 * np.exp(0.02 * wild)
        found = effect("w", "latency_p50_us", before, 1.03 * after, [])
        held += found.low <= 0.03 <= found.high
    assert held / runs >= 0.93


def test_a_wild_round_does_not_hide_a_change():
    before = [100.0] * 12
    after = [102.0 + 0.01 * at for at in range(11)] + [300.0]
    found = effect("w", "latency_p50_us", before, after, [])
    assert (found.verdict, round(found.change, 3)) == ("slower", 0.021)
    assert 0.019 < found.low < found.change < found.high < 0.03


def test_equal_rounds_are_equal():
    found = effect("w", "latency_p50_us", [5.0] * 4, [5.0] * 4, [0.0])
    assert (found.verdict, found.low, found.high, found.smallest) == ("equal", 0, 0, 0)


def test_more_of_a_rate_is_faster():
    found = effect("w", "calls_per_s", [100.0] * 8, [110.0] * 8, [])
    assert (found.verdict, found.is_better) == ("faster", True)
    assert effect("w", "latency_p50_us", [100.0] * 8, [110.0] * 8, []).verdict == "slower"


def test_few_pairs_tell_nothing():
    found = effect("w", "latency_p50_us", [1.0] * (FEWEST - 1), [9.0] * (FEWEST - 1), [])
    assert (found.verdict, found.low, found.high) == ("cannot tell", -math.inf, math.inf)


def test_noise_that_hides_a_change_says_what_it_would_take():
    random = np.random.default_rng(3)
    before, after = 100 * np.exp(random.normal(0, 0.2, (2, 12)))
    found = effect("w", "latency_p50_us", before, after, [])
    assert found.verdict == "cannot tell"
    assert found.needed > 12
    more = 100 * np.exp(random.normal(0, 0.2, (2, found.needed)))
    assert effect("w", "latency_p50_us", *more, []).reach < 2 * found.within


def test_the_interval_is_no_narrower_than_of_a_against_a():
    before, after = [100.0] * 8, [101.0] * 8
    assert effect("w", "latency_p50_us", before, after, []).verdict == "slower"
    noisy = [-0.04, 0.05, -0.03, 0.04, -0.05, 0.03, 0.02, -0.02]
    found = effect("w", "latency_p50_us", before, after, noisy)
    assert not found.is_seen
    assert found.smallest > found.reach > 0.01


def test_what_a_differs_from_itself_by_widens_the_interval():
    before, after = [100.0] * 8, [101.0] * 8
    found = effect("w", "latency_p50_us", before, after, [0.02] * 8)
    assert found.low == pytest.approx(math.expm1(math.log(1.01) - 0.02))
    assert found.verdict == "equal"


def test_a_share_within_which_numbers_are_equal_counts_also_where_a_difference_is_seen():
    before, after = [100.0] * 8, [101.0] * 8
    assert effect("w", "latency_p50_us", before, after, []).verdict == "slower"
    assert effect("w", "latency_p50_us", before, after, [], within=0.02).verdict == "equal"
    assert effect("w", "latency_p50_us", before, after, [], within=0.005).verdict == "slower"


def test_numbers_that_are_judged_together_have_wider_intervals():
    random = np.random.default_rng(5)
    before, after = 100 * np.exp(random.normal(0, 0.02, (2, 20)))
    one, ten = (
        effect("w", "latency_p50_us", before, after, [], judged=judged) for judged in (1, 10)
    )
    assert ten.low < one.low < one.high < ten.high


def test_nothing_and_nothing_is_equal():
    assert effect("w", "goodput_per_s", [0.0] * 6, [0.0] * 6, []).change == 0
    lost = effect("w", "goodput_per_s", [10.0] * 6, [0.0] * 6, [])
    assert (lost.after, lost.verdict) == (0.0, "slower")


def test_processes_that_did_not_take_turns_are_compared_by_their_means():
    random = np.random.default_rng(11)
    held = 0
    for _ in range(300):
        before, after = 100 * np.exp(random.normal(0, 0.03, (2, 5)))
        found = apart("w", "latency_p50_us", before, 1.1 * after)
        held += found.low <= 0.1 <= found.high
    assert held / 300 >= 0.94
    exact = apart("w", "latency_p50_us", [100.0], [103.0], is_exact=True)
    assert (exact.low, exact.high) == pytest.approx((0.03, 0.03))
    assert math.isinf(apart("w", "latency_p50_us", [1.0], [2.0]).high)


def test_several_numbers_come_to_the_worst():
    steady, wild = [100.0] * 8, [60.0, 150.0, 90.0, 130.0, 70.0, 110.0, 100.0, 120.0]
    equal = effect("w", "latency_p50_us", steady, steady, [])
    slower = effect("w", "latency_p50_us", steady, [110.0] * 8, [])
    faster = effect("v", "calls_per_s", steady, [110.0] * 8, [])
    unknown = effect("w", "latency_p50_us", steady, wild, [])
    tail = effect("w", "latency_p99_us", steady, wild, [])
    assert (unknown.verdict, tail.verdict, tail.is_tail) == ("cannot tell", "cannot tell", True)
    assert worst([equal, faster, slower, unknown]) == "slower"
    assert worst([equal, faster]) == "faster"
    assert worst([equal, unknown]) == "cannot tell"
    assert worst([equal, tail]) == "equal"
    assert worst([equal, effect("w", "latency_p99_us", steady, [150.0] * 8, [])]) == "slower"
    assert worst([tail]) == "cannot tell"
    assert worst([]) == "cannot tell"


def test_ratios_of_a_to_itself_are_logarithms():
    assert control_of([1.0, 2.0], [2.0, 1.0]) == pytest.approx([math.log(2), -math.log(2)])
