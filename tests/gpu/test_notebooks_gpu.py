"""The lessons on a real GPU: the same text, the same answers, the same facts."""

from __future__ import annotations

import pytest
from lesson_answers import KEYS
from lessons import LESSONS, play

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

RIGHT = {
    "05_carving_sms.ipynb": {"evidence": ("resident",)},
    "06_latency_under_load.ipynb": {"product": ("at least 20 % longer",)},
}
WRONG = {"06_latency_under_load.ipynb": {"product": ("less than 20 % longer",)}}
"""Answers that are right, and wrong, where something real was seen."""


@pytest.mark.parametrize("name", LESSONS)
def test_what_a_lesson_says_holds_on_a_gpu(name):
    key = KEYS[name]
    answers = {**key.right, **RIGHT.get(name, {})}
    played = play(name, device="cuda:0", answers=answers, changed=key.solved)
    assert not played.names["gpu"].is_simulated
    wanted = {"prediction": "right", "exercise": "solved"}
    wrong = [one for one in played.results.values() if one.verdict != wanted[one.kind]]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("name", LESSONS)
def test_wrong_answers_are_told_so_on_a_gpu(name):
    key = KEYS[name]
    answers = {**key.wrong, **WRONG.get(name, {})}
    played = play(name, device="cuda:0", answers=answers, changed=key.failed)
    wanted = {"prediction": "wrong", "exercise": "not solved"}
    passed = [one for one in played.results.values() if one.verdict != wanted[one.kind]]
    assert not passed, "\n".join(map(str, passed))
    outcomes = [value for value in played.values.values() if hasattr(value, "explanation")]
    assert outcomes
    assert all("Not this time." in outcome.html() for outcome in outcomes)
