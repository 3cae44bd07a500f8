"""A prediction, an exercise and a quiz by keys alone: no key but those that a learner has."""

from __future__ import annotations

import pytest
from jupyter_lab import IDLE
from lesson_answers import KEYS, SAME
from playing import cells
from test_lessons_browser import Learner

pytestmark = pytest.mark.ui

LESSON = "02_streams.ipynb"
IN_FORM = "() => Boolean(document.activeElement?.matches('form.gpuscope-question input'))"
MOST_TABS = 20


class ByKeys(Learner):
    """A learner without a pointer."""

    def __init__(self, page, lab, name: str) -> None:
        self.page, self.cells = page, cells(name)
        self.number = {cell["id"]: index for index, cell in enumerate(self.cells)}
        page.goto(lab.page(name))
        page.wait_for_function(IDLE)

    def answer(self, which: str, option: str) -> None:
        """Go back into the form by Shift+Tab from the cell below it, arrows, Enter."""
        assert self.active() == self.number[which] + 1, "where running it leads"
        for _ in range(MOST_TABS):
            self.page.keyboard.press("Shift+Tab")
            if self.page.evaluate(IN_FORM):
                break
        assert self.page.evaluate(IN_FORM), "Shift+Tab does not lead into the form"
        self.page.keyboard.press("Space")
        for _ in range(MOST_TABS):
            if self.form(which).get_by_label(option, exact=True).is_checked():
                break
            self.page.keyboard.press("ArrowDown")
        self.page.keyboard.press("Enter")

    def retype(self, which: str, source: str) -> None:
        assert self.active() == self.number[which]
        self.page.keyboard.press("Enter")
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source.strip())
        self.page.keyboard.press("Escape")


def test_a_prediction_an_exercise_and_a_quiz_by_keys_alone(lab_of_ours, browser_page):
    key, learner = KEYS[LESSON], ByKeys(browser_page, lab_of_ours, LESSON)
    learner.run_until("predict-same")
    learner.answer("predict-same", SAME)
    learner.answered("predict-same")
    learner.run_until("show-same")
    learner.is_told("show-same", "Not this time.", "Work in one stream runs in order")

    learner.run_until("exercises")
    learner.retype("task-spread", key.solved["task-spread"])
    learner.run_until("check-spread")
    learner.is_told("check-spread", "Solved.")

    learner.run_until("quiz-library")
    learner.answer("quiz-library", *key.right["library_in_legacy"])
    learner.form("quiz-library").get_by_text("Right: ").wait_for()
