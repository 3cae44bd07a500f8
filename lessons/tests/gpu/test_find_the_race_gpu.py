"""The checks of lesson 11 on a real GPU: the same answers are right, and the same are wrong."""

from __future__ import annotations

import pytest
from race_answers import RIGHT, WRONG, changed, judged, parts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.gpu_alone("exercises are judged by what ran together, and how long"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def names():
    with parts("cuda:0") as found:
        assert not found["gpu"].is_simulated
        yield found


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_does_not_mend_a_race_is_not_solved_on_a_gpu(names, number):
    task, changes, why = WRONG[number]
    found = judged(names, task, changed(task, changes))
    assert found.result.verdict == "not solved", (task, changes)
    assert why in found.found, found.found


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_another_right_answer_is_solved_on_a_gpu(names, number):
    task, changes = RIGHT[number]
    found = judged(names, task, changed(task, changes))
    assert found.result.verdict == "solved", found.found
