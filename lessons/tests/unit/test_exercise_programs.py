"""Exercises: wrong programs are not solved and told why, different right ones are."""

from __future__ import annotations

import functools

import pytest
from lesson_fakes import FAKES, UNUSUAL
from lesson_programs import RIGHT, WRONG, Answers
from lesson_strangers import ACCEPTED, REFUSED
from playing import COMPILES, LESSONS, cells, hints, judge, prepared, program, solutions

NAMES = {name[:2]: name for name in LESSONS}
NEEDS_COMPILER = pytest.mark.skipif(not COMPILES, reason="no C++ compiler")
LEAST = 10
"""Wrong programs of a lesson, and more."""
LEAST_FAKES, LEAST_UNUSUAL = 120, 60


def every(answers: Answers) -> list[object]:
    return [
        pytest.param(
            number,
            exercise,
            changes,
            id=f"{number}-{exercise}-{why}",
            marks=[NEEDS_COMPILER] if exercise == "cuda" else [],
        )
        for number, exercises in answers.items()
        for exercise, several in exercises.items()
        for why, *changes in several
    ]


@pytest.fixture(scope="module")
def lessons():
    """Return a function: number → the names of a lesson that has run, up to its end."""
    with prepared() as prepare:
        yield functools.cache(lambda number: prepare(NAMES[number]))


@pytest.mark.parametrize(
    ("number", "exercise", "changes"), [*every(WRONG), *every(FAKES), *every(ACCEPTED)]
)
def test_a_wrong_program_is_not_solved_and_told_why(lessons, number, exercise, changes):
    names = lessons(number)
    names["lesson"].patience_s = 1.0  # none of them ends later, but for those that never end
    source = program(NAMES[number], exercise, changes)
    found = judge(NAMES[number], names, exercise, source)
    assert found.result.verdict != "solved", source
    assert found.found
    assert "NameError" not in found.found, "that is the test's mistake"
    assert bool(found.rule) == found.hint.startswith("A solution"), "it is told with the last hint"


@pytest.mark.parametrize(
    ("number", "exercise", "changes"), [*every(RIGHT), *every(UNUSUAL), *every(REFUSED)]
)
def test_another_right_program_is_solved(lessons, number, exercise, changes):
    names = lessons(number)
    names["lesson"].patience_s = 100.0
    found = judge(NAMES[number], names, exercise, program(NAMES[number], exercise, changes))
    assert found.result.verdict == "solved", found.found
    assert "each of 3 sets" in found.found


@pytest.mark.parametrize("number", sorted(WRONG))
def test_as_it_stands_an_exercise_is_not_solved(lessons, number):
    for cell in cells(NAMES[number]):
        if cell["id"].startswith("task-") and (COMPILES or cell["id"] != "task-cuda"):
            exercise = cell["id"].removeprefix("task-")
            found = judge(NAMES[number], lessons(number), exercise, cell["source"])
            assert found.result.verdict != "solved", exercise


def test_every_exercise_has_wrong_programs():
    for number, exercises in WRONG.items():
        assert {f"task-{one}" for one in exercises} == set(solutions(NAMES[number]))
        assert sum(map(len, exercises.values())) >= LEAST
        assert {f"check-{one}" for one in RIGHT[number]} == set(hints(NAMES[number]))


def test_there_are_fakes_and_unusual_programs_for_lessons():
    fakes, unusual = (  # those of lesson 14 are among its right and wrong programs
        {number: sum(map(len, answers[number].values())) for number in NAMES if number != "14"}
        for answers in (FAKES, UNUSUAL)
    )
    assert sum(fakes.values()) >= LEAST_FAKES
    assert sum(unusual.values()) >= LEAST_UNUSUAL
    assert min(fakes.values()) >= 5
    assert all(unusual.values())
