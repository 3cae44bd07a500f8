"""Lesson 11: its checks tell what mends a race from what only hides it."""

from __future__ import annotations

import pytest
from race_answers import RIGHT, WRONG, changed, judged, parts


@pytest.fixture(scope="module")
def names():
    """What the lesson's parts are called."""
    with parts("sim:h200") as found:
        yield found


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_does_not_mend_a_race_is_not_solved_and_told_why(names, number):
    task, changes, why = WRONG[number]
    found = judged(names, task, changed(task, changes))
    assert found.result.verdict == "not solved", (task, changes)
    assert why in found.found, found.found
    assert found.hint


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_another_right_answer_is_solved(names, number):
    task, changes = RIGHT[number]
    found = judged(names, task, changed(task, changes))
    assert found.result.verdict == "solved", found.found
