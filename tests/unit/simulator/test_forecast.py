"""The benchmarks that judge the simulator's times, and what they find of the profile."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.simulator.profiles.profile import GpuProfile

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import pairs  # noqa: E402
import shapes  # noqa: E402

H200 = GpuProfile.load("h200")
KEPT = json.loads(shapes.KEPT.read_text("utf-8"))
PAIRS = json.loads(pairs.DATA.read_text("utf-8"))["pairs"]


# -- fresh shapes ------------------------------------------------------------------------


def test_fresh_shapes_are_none_of_the_fit_and_are_those_that_were_measured():
    drawn = shapes.draw(shapes.FRESH, shapes.SEED)
    assert len(set(drawn)) == shapes.FRESH
    assert not set(drawn) & set(shapes.fitted())
    for dtype in shapes.DTYPES:
        seen = [tuple(row["shape"]) for row in KEPT["fresh"] if row["dtype"] == dtype]
        assert seen == drawn


def test_fresh_shapes_are_like_those_of_the_fit():
    drawn = np.array(shapes.draw(200, 7))
    assert drawn.min() >= 16
    assert drawn.max() <= 8184
    multiples = np.mean((drawn % 64 == 0).all(axis=1))
    assert 0.5 <= multiples <= 0.6
    assert np.mean((drawn % 2 == 1).any(axis=1)) == 0.2


@pytest.mark.parametrize("told", [False, True])
def test_the_profile_is_as_good_on_fresh_shapes_as_is_owed(told):
    for dtype, one in shapes.errors(KEPT["fresh"], H200, told=told).items():
        assert shapes.good(one), (dtype, one)


def test_what_was_measured_again_agrees_with_the_fit():
    found = shapes.reproduced(KEPT["again"])
    assert found["ratio"] == pytest.approx(1, abs=0.01)
    assert found["same_kernels"] > 0.95


def test_the_effect_of_being_told_below_2048_is_met():
    squares = shapes.forecast()["squares"]
    assert {one["n"] for one in squares} == {512, 1024}
    for one in squares:
        assert one["simulated_told_us"] == pytest.approx(one["told_us"], rel=0.1)


def test_telling_float32_turns_the_splitting_of_small_products_off():
    rows = [row for row in KEPT["again"] if row["dtype"] == "float32"
            and row["shape"] in ([64, 64, 64], [40, 264, 88])]  # fmt: skip
    assert len(rows) == 2
    for row in rows:
        assert len(next(iter(row["told_kernels"].values()))) == 1
        for sms, us in row["told_us"].items():
            found = shapes.predicted_us(H200, row, int(sms), int(sms))
            assert found == pytest.approx(us, rel=0.15)


def test_measuring_finds_the_simulator_s_own_times():
    gpu = gs.open_device("sim:h200", quiet=True)
    drawn = [(512, 512, 512), (31, 41, 25)]
    rows = shapes.measure(gpu, drawn, "float16")
    assert [tuple(row["shape"]) for row in rows] == drawn
    for told in (False, True):
        assert shapes.errors(rows, H200, told=told)["all"]["p90"] < 1e-3
    assert list(rows[0]["us"]) == [str(count) for count in shapes.SM_COUNTS]
    assert "132" not in rows[0]["told_us"]


# -- pairs -------------------------------------------------------------------------------


def test_every_pair_s_makespan_is_as_good_as_is_owed():
    found = pairs.pair_figures()
    assert len(found["pairs"]) == 17
    assert found["median"] <= 0.1
    assert found["worst"] <= 0.3


def test_a_pair_is_predicted_without_its_own_runs(tmp_path):
    def held_up(rows):
        path = tmp_path / "pairs.json"
        path.write_text(json.dumps({"pairs": rows}), "utf-8")
        return [one["held_up_us"] for one in pairs.pair_figures(path)["pairs"]]

    some = [row for row in PAIRS if row["a"]["workload"] == "small512"]
    before = held_up(some)
    late = json.loads(json.dumps(some[0]))
    for times in late["alone"].values():
        times[1:] = [[start + 10**7, end + 10**7] for start, end in times[1:]]
    after = held_up([late, *some[1:]])
    assert after[0] == before[0]
    assert after[1] > before[1]


def test_a_simulated_pair_runs_every_kernel_on_its_own_sms():
    row = next(row for row in PAIRS if row["a"]["workload"] == "gemm4096" and not row["shared"])
    times = pairs.simulate(row, 300_000, pairs.copy_model(PAIRS))
    for name in "ab":
        assert len(times[name]) == row[name]["count"]
    first = min(found[0, 0] for found in times.values())
    assert times["a"][0, 0] - first > 300_000  # b went first, then the host was held up
    assert pairs.makespan_ns(times) < sum(pairs.makespan_ns({name: times[name]}) for name in "ab")
