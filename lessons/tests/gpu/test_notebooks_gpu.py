"""The lessons on a real GPU: the same text, the same answers, the same facts."""

from __future__ import annotations

import pytest
from lesson_answers import KEYS
from lesson_programs import RIGHT, WRONG
from playing import LESSONS, judge, play, prepared, program

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

MEASURED = {"05_carving_sms.ipynb": {"evidence": ("resident",)}}
"""Answers that are right where something real was seen."""

SIMULATED = ("14_a_small_server.ipynb",)
"""All of it runs on the simulated GPU, as it says."""

ALONE = pytest.mark.gpu_alone("lessons are judged by what ran together, and how long")
PLAYED = [pytest.param(name, marks=() if name in SIMULATED else ALONE) for name in LESSONS]


def available(played):
    """Return the results of what can be tried: exercises in C++ need nvcc, others PyTorch."""
    return [one for one in played.results.values() if one.verdict != "not available"]


@pytest.mark.parametrize("name", PLAYED)
def test_what_a_lesson_says_holds_on_a_gpu(name):
    key = KEYS[name]
    answers = {**key.right, **MEASURED.get(name, {})}
    played = play(name, device="cuda:0", answers=answers, changed=key.solved)
    assert played.names["gpu"].is_simulated == (name in SIMULATED)
    wanted = {"prediction": "right", "exercise": "solved"}
    wrong = [one for one in available(played) if one.verdict != wanted[one.kind]]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("name", PLAYED)
def test_wrong_answers_are_told_so_on_a_gpu(name):
    key = KEYS[name]
    played = play(name, device="cuda:0", answers=key.wrong, changed=key.failed)
    wanted = {"prediction": "wrong", "exercise": "not solved"}
    passed = [one for one in available(played) if one.verdict != wanted[one.kind]]
    assert not passed, "\n".join(map(str, passed))
    outcomes = [value for value in played.values.values() if hasattr(value, "explanation")]
    assert outcomes
    assert all("Not this time." in outcome.html() for outcome in outcomes)


@pytest.mark.parametrize("name", [name for name in PLAYED if name.values[0][:2] in WRONG])
def test_programs_are_judged_on_a_gpu_as_on_the_simulated_one(name):
    mistaken = []
    with prepared("cuda:0") as prepare:
        names = prepare(name)
        for answers, is_right in ((RIGHT, True), (WRONG, False)):
            for exercise, several in answers[name[:2]].items():
                if exercise in ("cuda", "pytorch"):  # they have tests of their own
                    continue
                for why, *changes in several:
                    names["lesson"].patience_s = 100.0 if is_right else 1.0
                    feedback = judge(name, names, exercise, program(name, exercise, changes))
                    if (feedback.result.verdict == "solved") is not is_right:
                        mistaken.append((exercise, why, feedback.found))
    # A loop that reads memory does end on a GPU; that it races is found there as well.
    assert not mistaken, "\n".join(map(str, mistaken))
