"""Races of settings: what is told apart, what is not, whom to measure next, and when to stop."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.analysis.race import Goal, Race, interval, student_t

RATE = Goal("w", "tflop_per_s")
TIME = Goal("w", "latency_p50_us", 100.0)


def race(values, slo=(), repeats=5, confidence=0.95):
    """Make a race of rates; with an SLO, of pairs of rate and time."""
    goals = (RATE, *slo)
    samples = {
        number: {
            turn: dict(zip([goal.name for goal in goals], np.atleast_1d(one), strict=True))
            for turn, one in enumerate(mine)
        }
        for number, mine in values.items()
    }
    return Race(samples, RATE, slo, confidence, repeats)


@pytest.mark.parametrize(
    ("freedom", "tail", "value"),
    [
        (1, 0.025, 12.706),
        (2, 0.025, 4.303),
        (4, 0.05, 2.132),
        (9, 0.005, 3.250),
        (2, 0.001, 22.327),
    ],
)
def test_quantiles_of_t_are_those_of_the_tables(freedom, tail, value):
    assert student_t(freedom, tail) == pytest.approx(value, rel=2e-3)


def test_an_interval_is_that_of_a_textbook():
    assert interval([1.0, 2.0, 3.0], 0.025) == pytest.approx((2 - 2.484, 2 + 2.484), abs=2e-3)
    assert interval([2.0, 2.0, 2.0], 0.025) == (2.0, 2.0)


def test_what_noise_tells_apart_has_a_winner():
    assert race({0: [100, 101, 99], 1: [50, 51, 49], 2: [70, 70.5, 69]}).verdicts() == {
        0: "best", 1: "worse", 2: "worse",
    }  # fmt: skip


def test_what_it_does_not_has_none_however_the_means_lie():
    rng = np.random.default_rng(1)
    values = {number: 100 + mean + 10 * rng.standard_normal(5) for number, mean in ((0, 3), (1, 0))}
    assert race(values).verdicts() == {0: "equal", 1: "equal"}


def test_how_far_behind_a_setting_is_at_most_is_known_of_those_that_surely_meet_the_slo():
    shared = np.array([0, 30, -20, 10])  # noise of a turn, which all settings share
    found = race({0: 100 + shared, 1: 99 + shared + [1, -1, 1, -1], 2: [100, 130]})
    assert found.behind(0, [0, 1]) == pytest.approx(interval([-2, 0, -2, 0], found.tail)[1])
    assert found.behind(1, [0, 1]) == pytest.approx(interval([2, 0, 2, 0], found.tail)[1])
    assert found.behind(0, [0, 1, 2]) is None, "two turns of the third say nothing"
    assert found.behind(0, [1]) is None, "it is out"
    assert race({0: [100] * 3}).behind(0, [0]) == 0
    slow = race({0: [(100, 90), (100, 130), (100, 90)]}, slo=(TIME,))
    assert slow.behind(0, [0]) is None, "it may miss the limit"


@pytest.mark.parametrize(("shared", "own"), [(10, 1), (10, 4), (0, 10)])
def test_what_is_taken_is_no_further_behind_than_stated(shared, own):
    rng, truth, wrong = np.random.default_rng(5), (138.6, 140, 139.3, 137.2), 0
    for _ in range(200):
        turns = rng.normal(0, shared, 7)
        found = race({n: mean + turns + rng.normal(0, own, 7) for n, mean in enumerate(truth)},
                     repeats=7)  # fmt: skip
        inside = [n for n, verdict in found.verdicts().items() if verdict in ("best", "equal")]
        bounds = {n: found.behind(n, inside) for n in inside}
        taken = min(bounds, key=bounds.get)
        wrong += max(truth) - truth[taken] > bounds[taken]
    assert wrong <= 200 * 0.05


def test_drift_that_meets_all_alike_hides_nothing():
    drift = np.array([0, 10, -20, 30, 5])
    apart = race({0: 100 + drift, 1: 98 + drift + [0.1, -0.1, 0, 0.1, 0]})
    assert apart.verdicts() == {0: "best", 1: "worse"}


def test_of_times_the_smaller_one_wins():
    goal = Goal("w", "latency_p50_us")
    samples = {n: {t: {goal.name: at + t / 10} for t in range(4)} for n, at in enumerate((9, 5, 7))}
    assert Race(samples, goal, (), 0.95, 5).verdicts() == {0: "worse", 1: "best", 2: "worse"}


def test_who_misses_the_slo_neither_wins_nor_puts_others_out():
    found = race(
        {0: [(200, 150), (201, 151), (199, 149)], 1: [(90, 50), (91, 51), (90, 50)]}, (TIME,)
    )
    assert found.verdicts() == {0: "misses SLO", 1: "best"}
    assert found.front((TIME,)) == {0, 1}


def test_whether_the_slo_is_met_may_be_open():
    found = race({0: [(200, 99), (201, 105), (199, 97)], 1: [(90, 5), (91, 5), (90, 5)]}, (TIME,))
    assert found.verdicts() == {0: "undecided", 1: "equal"}
    assert 0 in found.turn({}, 3)


def test_those_beside_the_leader_are_measured_and_who_is_out_no_more():
    neighbours = {0: [1], 1: [0, 2], 2: [1, 3], 3: [2]}
    assert race({1: [10], 3: [9]}).turn(neighbours, 3) == [1, 0, 2, 3]
    settled = race({1: [10, 10.1, 10], 0: [5, 5.1, 5], 2: [6, 6.1, 6]})
    assert settled.turn(neighbours, 3) == []
    assert race({1: [10, 10.1, 10], 3: [5, 5.1, 5]}).turn(neighbours, 3) == [1, 0, 2]


def test_while_nothing_meets_the_slo_it_is_looked_for_in_all_directions():
    neighbours = {2: [1, 3], 4: [3, 5]}
    assert set(race({2: [(9, 120)], 4: [(9, 130)]}, (TIME,)).turn(neighbours, 3)) == {1, 2, 3, 4, 5}


def test_it_ends_when_each_was_measured_as_often_as_allowed():
    noisy = {0: [100, 90, 110, 95, 105], 1: [101, 92, 104, 99, 106]}
    assert race(noisy).turn({}, 3) == []
    assert race(noisy, repeats=6).turn({}, 3) == [1, 0]


def test_who_differs_by_less_than_matters_is_measured_no_longer():
    assert race({0: [100, 101, 99.0], 1: [100.1, 101.1, 99.1]}, repeats=9).turn({}, 3) == []


def test_a_wrong_winner_is_as_rare_as_promised():
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(300):
        means = np.array([100, 99.5, 99, 97])
        samples: dict[int, dict[int, dict[str, float]]] = {number: {} for number in range(4)}
        for turn in range(6):
            for number in range(4):
                value = means[number] + 1.5 * rng.standard_normal()
                samples[number][turn] = {RATE.name: float(value)}
            verdicts = Race(samples, RATE, (), 0.9, 6).verdicts()
            if verdicts[0] == "worse":
                wrong += 1
                break
    assert wrong <= 30


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("tflop_per_s", None), ("other.tflop_per_s", None), ("w.kernels", None), ("w.", None),
        (3, None), ("w.latency_p50_us", ">= 3"), ("w.latency_p50_us", "3"),
        ("w.tflop_per_s", "<= 3"), ("w.latency_p50_us", 3), ("w.latency_p50_us", "<= 1..2"),
    ],
)  # fmt: skip
def test_what_cannot_be_sought_is_refused(text, limit):
    with pytest.raises(gs.errors.InvalidArgument, match=r"objective|slo"):
        Goal.parse(text, ["w"], limit)


def test_goals_are_read_as_they_are_written():
    assert str(Goal.parse("a.b.latency_p99_us", ["a.b"], "<= 1e2")) == "a.b.latency_p99_us <= 100"
    assert str(Goal.parse("w.tflop_per_s", ["w"])) == "greatest w.tflop_per_s"
    assert math.isclose(TIME.margin(90), 0.1)
