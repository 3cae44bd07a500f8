"""The lessons on a real GPU: the same text, the same answers, the same facts."""

from __future__ import annotations

import pytest
from lesson_answers import KEYS
from lessons import LESSONS, play

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ON_A_GPU = {"05_carving_sms.ipynb": {"evidence": ("resident",)}}
"""Answers that are right where something real was seen."""


@pytest.mark.parametrize("name", LESSONS)
def test_what_a_lesson_says_holds_on_a_gpu(name):
    key = KEYS[name]
    answers = {**key.right, **ON_A_GPU.get(name, {})}
    played = play(name, device="cuda:0", answers=answers, changed=key.solved)
    assert not played.names["gpu"].is_simulated
    wanted = {"prediction": "right", "exercise": "solved"}
    wrong = [one for one in played.results.values() if one.verdict != wanted[one.kind]]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("name", LESSONS)
def test_wrong_answers_are_told_so_on_a_gpu(name):
    key = KEYS[name]
    played = play(name, device="cuda:0", answers=key.wrong, changed=key.failed)
    wanted = {"prediction": "wrong", "exercise": "not solved"}
    passed = [one for one in played.results.values() if one.verdict != wanted[one.kind]]
    assert not passed, "\n".join(map(str, passed))
    outcomes = [value for value in played.values.values() if hasattr(value, "rule")]
    assert outcomes
    assert all("Not this time." in outcome.html() for outcome in outcomes)
