"""Random programs: each pair that races is reported, and no other; the missing order mends it.

`hazard_programs` says how the simulated GPU tells which pairs race. `benchmarks/hazards.py`
judges many more.
"""

import pytest
from hazard_programs import judge, what_mends_leave


@pytest.mark.no_cover
@pytest.mark.parametrize("first", [*range(0, 200, 10), 2_006_480])
def test_random_programs_are_judged_as_the_engine_runs_them(first):
    for seed in range(first, first + 10):
        verdict = judge(seed)
        assert verdict.is_right, verdict


@pytest.mark.no_cover
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_the_missing_order_leaves_no_race(first):
    for seed in range(first, first + 10):
        _, left = what_mends_leave(seed, alone=2)
        assert not left, (seed, left)
