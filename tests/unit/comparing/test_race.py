"""Races of settings: what is told apart, what is not, whom to measure next, and when to stop."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.analysis.certainty import interval, student_t
from gpuscope.comparing.noise import Levels
from gpuscope.comparing.race import Goal, Race

RATE = Goal("w", "tflop_per_s")
TIME = Goal("w", "latency_p50_us", 100.0)


def race(values, slo=(), repeats=5, confidence=0.95, costs=None):
    """Make a race of rates; with an SLO, of pairs of rate and time. All cost the same SMs."""
    goals = (RATE, *slo)
    samples = {
        number: {
            turn: dict(zip([goal.name for goal in goals], np.atleast_1d(one), strict=True))
            for turn, one in enumerate(mine)
        }
        for number, mine in values.items()
    }
    return Race(samples, RATE, slo, confidence, repeats, costs or dict.fromkeys(values, 8))


def ended(found):
    """Return the verdicts once no more is measured."""
    return found.verdicts(is_over=True)


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


def test_differences_are_those_within_turns_though_not_all_were_in_all():
    drift = {0: 0.0, 1: 0.3, 2: -0.2, 3: 0.1}
    levels = {0: 1.0, 1: 0.9, 2: 0.5}
    turns = {0: (0, 1, 3), 1: (1, 2), 2: (2, 3)}
    samples = {n: {t: math.exp(levels[n] + drift[t]) for t in turns[n]} for n in turns}
    found = Levels(samples, by_turn=True)
    assert found.difference(0, 2).value == pytest.approx(0.5)
    assert found.difference(0, 2).error == pytest.approx(0, abs=1e-9)
    apart = Levels({0: {0: 1.0, 1: 1.1}, 1: {2: 2.0, 3: 2.2}}, by_turn=True)
    assert math.isinf(apart.difference(0, 1).error), "no turn joins them"


def test_one_measurement_is_as_sure_as_the_noise_of_all():
    noise = [0.01, -0.01, 0.01, -0.01, 0.0]
    samples = {0: dict(enumerate(np.exp(noise))), 1: {0: math.exp(0.2)}}
    found = Levels(samples, by_turn=False).level(1)
    assert found.error == pytest.approx(np.std(noise, ddof=1))
    assert found.freedom == 4
    assert math.isinf(Levels({0: {0: 1.0}, 1: {0: 2.0}}, by_turn=False).level(0).error)


def test_the_noise_of_one_setting_counts_more_for_itself():
    samples = {
        0: dict(enumerate(np.exp([0.1, -0.1, 0.1, -0.1, 0.1, -0.1]))),
        1: dict(enumerate(np.exp([0.01, -0.01, 0.01, -0.01, 0.01, -0.01]))),
    }
    noisy, calm = (Levels(samples, by_turn=False).level(n).error for n in (0, 1))
    assert 0.01 / math.sqrt(6) < calm < noisy < 0.12 / math.sqrt(6)


def test_what_noise_tells_apart_has_a_winner():
    assert ended(race({0: [100, 101, 99], 1: [50, 51, 49], 2: [70, 70.5, 69]})) == {
        0: "best", 1: "worse", 2: "worse",
    }  # fmt: skip


def test_what_it_does_not_has_none_however_the_means_lie():
    rng = np.random.default_rng(1)
    values = {number: 100 + mean + 10 * rng.standard_normal(5) for number, mean in ((0, 3), (1, 0))}
    assert ended(race(values)) == {0: "equal", 1: "equal"}


def test_how_far_behind_a_setting_is_at_most_is_known_of_those_that_surely_meet_the_slo():
    shared = np.array([0, 0.3, -0.2, 0.1])  # noise of a turn, which all settings share
    own = np.array([0.01, -0.01, 0.01, -0.01])
    found = race({0: 100 * np.exp(shared), 1: 99 * np.exp(shared + own)})
    apart = found._gain(0, 1)
    assert apart.value == pytest.approx(math.log(100 / 99))
    assert apart.freedom == 3
    assert apart.error == pytest.approx(np.std(own, ddof=1) / 2)
    least, most = apart.bounds(found.tail)
    assert found.behind(1, [0, 1]) == pytest.approx(found.mean(1, RATE) * math.expm1(most))
    assert found.behind(0, [0, 1]) == pytest.approx(found.mean(0, RATE) * math.expm1(-least))
    few = race({0: [100] * 3, 1: [99] * 3, 2: [100, 130]})
    assert few.behind(0, [0, 1, 2]) is None, "two turns of the third say nothing"
    assert few.behind(0, [1]) is None, "it is out"
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
        inside = [n for n, verdict in ended(found).items() if verdict in ("best", "equal")]
        bounds = {n: found.behind(n, inside) for n in inside}
        taken = min(bounds, key=bounds.get)
        wrong += max(truth) - truth[taken] > bounds[taken]
    assert wrong <= 200 * 0.05


def test_drift_that_meets_all_alike_hides_nothing():
    drift = np.array([0, 10, -20, 30, 5])
    apart = race({0: 100 + drift, 1: 98 + drift + [0.1, -0.1, 0, 0.1, 0]})
    assert ended(apart) == {0: "best", 1: "worse"}


def test_of_times_the_smaller_one_wins():
    goal = Goal("w", "latency_p50_us")
    samples = {n: {t: {goal.name: at + t / 10} for t in range(4)} for n, at in enumerate((9, 5, 7))}
    found = Race(samples, goal, (), 0.95, 5, dict.fromkeys(samples, 8))
    assert ended(found) == {0: "worse", 1: "best", 2: "worse"}


def test_who_misses_the_slo_neither_wins_nor_puts_others_out():
    found = race(
        {0: [(200, 150), (201, 151), (199, 149)], 1: [(90, 50), (91, 51), (90, 50)]}, (TIME,)
    )
    assert ended(found) == {0: "misses SLO", 1: "best"}


def test_a_rate_of_nothing_misses_its_limit():
    goodput = Goal("w", "goodput_per_s", 0.5)
    some = {0: [(100, 140), (100, 141), (100, 139)], 1: [(120, 0), (120, 0), (120, 0)]}
    assert ended(race(some, (goodput,))) == {0: "best", 1: "misses SLO"}
    some.pop(0)
    assert ended(race(some, (goodput,))) == {1: "misses SLO"}


def test_who_may_miss_the_limit_is_not_the_best():
    values = {0: [(100, 99), (101, 112), (99, 87)], 1: [(100.1, 50), (101.1, 51), (99.1, 50)]}
    told = ended(race(values, (TIME,), costs={0: 8, 1: 8}))
    assert told[1] == "best"
    assert told[0] == "no better"


def test_whether_the_slo_is_met_may_be_open():
    found = race({0: [(200, 99), (201, 105), (199, 97)], 1: [(90, 5), (91, 5), (90, 5)]}, (TIME,))
    assert ended(found) == {0: "undecided", 1: "equal"}
    assert 0 in found.turn([], 3)


def test_who_is_out_is_measured_no_more():
    assert race({1: [10], 3: [9]}).turn([0, 2], 3) == [1, 0, 2, 3]
    settled = race({1: [10, 10.1, 10], 0: [5, 5.1, 5], 2: [6, 6.1, 6]})
    assert settled.turn([], 3) == []
    assert settled.turn([3], 3) == [1, 3], "who is beside the best is compared with it"


@pytest.mark.parametrize("repeats", [3, 5, 7])
def test_no_setting_is_measured_more_often_than_allowed(repeats):
    rng = np.random.default_rng(repeats)
    samples: dict[int, dict[int, dict[str, float]]] = {0: {}}
    fresh, turn = [1, 2, 3, 4, 5, 6], 0
    samples[0][0] = {RATE.name: 100.0}
    while chosen := Race(samples, RATE, (), 0.95, repeats, dict.fromkeys(range(7), 8)).turn(
        [number for number in fresh if number not in samples][:2], 3
    ):
        turn += 1
        for number in chosen:
            value = 100 + number / 10 + 5 * rng.standard_normal()
            samples.setdefault(number, {})[turn] = {RATE.name: value}
        assert max(map(len, samples.values())) <= repeats
    assert set(samples) == set(range(7))
    assert [len(samples[number]) for number in samples].count(repeats) >= 2


def test_who_is_far_beyond_the_limit_is_left_after_one_measurement():
    near = [(100, 130), (100, 131), (100, 129)]
    found = race({0: near, 1: [(120, 260)], 2: [(130, 300)]}, (TIME,))
    assert found.turn([], 3) == []
    assert ended(found) == dict.fromkeys(range(3), "misses SLO")
    first = race({0: near[:1], 1: [(120, 260)], 2: [(130, 300)]}, (TIME,))
    assert first.turn([], 3) == [0], "before the noise is known the nearest one alone is measured"


def test_it_ends_when_each_was_measured_as_often_as_allowed():
    noisy = {0: [100, 90, 110, 95, 105], 1: [101, 92, 104, 99, 106]}
    assert race(noisy).turn([], 3) == []
    assert set(race(noisy, repeats=6).turn([], 3)) == {0, 1}


def test_who_differs_by_less_than_matters_is_measured_no_longer():
    near = {0: [100, 101, 99.0], 1: [100.1, 101.1, 99.1]}
    assert race(near, repeats=9).turn([], 3) == []
    assert ended(race(near, repeats=9)) == {0: "equal", 1: "equal"}


def test_of_equals_the_one_with_the_fewest_sms_leads():
    near = {0: [100, 101, 99.0], 1: [100.3, 101.3, 99.3], 2: [104, 105, 103.0]}
    assert race(near, costs={0: 8, 1: 16, 2: 24}).ranked() == [2, 1, 0]
    near.pop(2)
    assert race(near, costs={0: 8, 1: 16}).ranked() == [0, 1]
    assert race(near, costs={0: 16, 1: 8}).ranked() == [1, 0]


def test_what_is_compared_with_the_best_is_measured_often_enough():
    sure = {0: [100, 101, 99], 1: [50, 50.4]}
    assert race(sure).turn([], 3) == []
    assert set(race(sure).turn([], 3, reference=[1])) == {0, 1}


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
            found = Race(samples, RATE, (), 0.9, 6, dict.fromkeys(range(4), 8))
            if ended(found)[0] == "worse":
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


def test_fewest_sms_is_what_surely_meets_the_limit_though_more_sms_may_miss_it():
    goal = Goal.parse("fewest SMs", ["w"])
    times = {8: (150, 151, 149), 16: (80, 81, 79), 24: (120, 121, 119), 32: (50, 51, 49)}

    def verdicts(of):
        samples = {
            sms: {turn: {TIME.name: us, goal.name: sms} for turn, us in enumerate(took_us)}
            for sms, took_us in of.items()
        }
        costs = {sms: sms for sms in of}
        return ended(Race(samples, goal, (TIME,), 0.95, 5, costs))

    expected = {8: "misses SLO", 16: "best", 24: "misses SLO", 32: "worse"}
    assert verdicts(times) == expected
    doubtful = verdicts({**times, 16: (90, 120, 89)})
    assert doubtful[16] == "undecided", "it may be enough, and has fewer SMs than what surely is"
