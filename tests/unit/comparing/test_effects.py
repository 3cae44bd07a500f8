"""How far two sides differ: intervals that hold what is true, and verdicts that follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuscope.comparing.effects import FEWEST, Effect, control_of, effect, leading, worst


@pytest.mark.parametrize("noise", ["normal", "heavy"])
@pytest.mark.parametrize("pairs", [4, 8, 20])
def test_intervals_hold_the_change_as_often_as_they_say(noise, pairs):
    random = np.random.default_rng(7)
    held, runs = 0, 100
    for _ in range(runs):
        size = (2, pairs)
        wild = random.normal(size=size) if noise == "normal" else random.standard_t(2, size=size)
        before, after = 100 * np.exp(0.02 * wild)
        found = effect("w", "latency_p50_us", before, 1.03 * after, [])
        held += found.low <= 0.03 <= found.high
    assert held / runs >= 0.9


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


def test_noise_of_a_beside_a_does_not_hide_what_is_seen():
    before, after = [100.0] * 8, [101.0] * 8
    alone = effect("w", "latency_p50_us", before, after, [])
    noisy = [-0.04, 0.05, -0.03, 0.04, -0.05, 0.03, 0.02, -0.02]
    assert alone.verdict == "slower"
    assert effect("w", "latency_p50_us", before, after, noisy) == alone
    assert effect("w", "latency_p50_us", before, after, [0.5, 0.5]) == alone  # too few to tell


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


@pytest.mark.parametrize("rounds", [(3, 3), (5, 5), (5, 9)])
def test_sides_that_did_not_take_turns_are_compared_as_groups(rounds):
    random = np.random.default_rng(11)
    held, wide = 0, []
    for _ in range(150):
        before, after = (100 * np.exp(random.normal(0, 0.03, count)) for count in rounds)
        found = effect("w", "latency_p50_us", before, 1.1 * after, are_pairs=False)
        held += found.low <= 0.1 <= found.high
        wide.append(found.high - found.low)
        assert found.pairs == min(rounds)
    assert held / 150 >= 0.91
    assert np.median(wide) < 0.25
    few = effect("w", "latency_p50_us", [1.0, 1.0], [2.0, 2.0, 2.0], are_pairs=False)
    assert (few.verdict, math.isinf(few.high)) == ("cannot tell", True)


def test_ten_times_the_noise_is_seen_in_five_rounds():
    random = np.random.default_rng(12)
    seen = 0
    for _ in range(50):
        before, after = 100 * np.exp(random.normal(0, 0.01, (2, 5)))
        seen += effect(
            "w", "latency_p50_us", before, 1.1 * after, judged=2, are_pairs=False
        ).is_seen
    assert seen == 50


def test_a_headline_is_about_goodput_else_of_a_typical_call_else_the_clearest():
    def seen(column, low):
        return Effect("w", column, 1.0, 2.0, low=low, high=2.0, verdict="slower")

    numbers = [
        seen("goodput_per_s", 0.1), seen("latency_p50_us", 0.2),
        seen("ttft_p50_ms", 0.15), seen("latency_p99_us", 0.5),
    ]  # fmt: skip
    assert leading(numbers).column == "goodput_per_s"
    assert leading(numbers[1:]).column == "latency_p50_us"
    assert leading(numbers[3:]).column == "latency_p99_us"


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
