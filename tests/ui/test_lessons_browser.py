"""A learner's path through lessons in JupyterLab, by clicks and keys alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from jupyter_lab import IDLE
from lesson_answers import KEYS, SAME
from lessons import cells

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "test-results"
COUNT = """index => window.jupyterapp.shell.currentWidget.content.widgets[index]
    .model.sharedModel.execution_count"""
RAN = f"([index, before]) => {{ const now = ({COUNT})(index); return now && now !== before; }}"
ACTIVE = """() => [...document.querySelectorAll('.jp-Notebook .jp-Cell')]
    .findIndex(cell => cell.classList.contains('jp-mod-active'))"""

VISIBLE_BELOW = """index => [...document.querySelectorAll('.jp-Notebook .jp-Cell')].slice(index + 1)
    .flatMap(cell => [...cell.querySelectorAll('.jp-RenderedMarkdown, .jp-OutputArea-child')])
    .filter(node => !node.querySelector('.gpuscope-question'))
    .filter(node => node.checkVisibility({ visibilityProperty: true }))
    .map(node => node.innerText).filter(text => text)"""
"""Texts and results below a cell that a learner could read by scrolling."""

pytestmark = pytest.mark.ui


class Learner:
    """Somebody who reads, predicts, runs, and types."""

    def __init__(self, page, lab, name: str) -> None:
        self.page = page
        self.cells = cells(name)
        self.number = {cell["id"]: index for index, cell in enumerate(self.cells)}
        page.goto(lab.page(name))
        page.wait_for_function(IDLE)
        page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
        self.cell(0).click()

    def cell(self, which: int | str):
        index = self.number[which] if isinstance(which, str) else which
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def active(self) -> int:
        return self.page.evaluate(ACTIVE)

    def run_until(self, last: str) -> None:
        """Press Shift+Enter from the selected cell on, until this one has run."""
        while self.active() <= self.number[last] < len(self.cells):
            index = self.active()
            is_code = self.cells[index]["cell_type"] == "code"
            before = self.page.evaluate(COUNT, index) if is_code else None
            self.page.keyboard.press("Shift+Enter")
            if is_code:
                self.page.wait_for_function(RAN, arg=[index, before])
                self.page.wait_for_function(IDLE)
            if index == self.number[last]:
                return
        pytest.fail(f"{last} is not ahead of cell {self.active()}")

    def form(self, which: str):
        return self.cell(which).locator("form.gpuscope-question")

    def answered(self, which: str) -> None:
        """Wait until the form is locked, and the next cell is selected."""
        self.form(which).locator("button[disabled]").wait_for()
        assert self.active() == self.number[which] + 1

    def choose_by_mouse(self, which: str, option: str) -> None:
        form = self.form(which)
        form.get_by_label(option, exact=True).check()
        form.get_by_role("button").click()

    def choose_by_keys(self, which: str, option: str) -> None:
        """Tab into the form from the cell, arrows to the option, Enter."""
        form, page = self.form(which), self.page
        form.get_by_role("radio").first.focus()
        page.keyboard.press("Space")
        for _ in range(10):
            if form.get_by_label(option, exact=True).is_checked():
                break
            page.keyboard.press("ArrowDown")  # the form's key, not JupyterLab's
        assert self.active() == self.number[which]
        page.keyboard.press("Enter")

    def type_number(self, which: str, number: str) -> None:
        form = self.form(which)
        form.get_by_label("Your answer").click()
        self.page.keyboard.type(number)
        self.page.keyboard.press("Enter")

    def retype(self, which: str, source: str) -> None:
        self.cell(which).locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source.strip())
        self.page.keyboard.press("Shift+Enter")
        self.page.wait_for_function(IDLE)

    def outcome(self, which: str) -> str:
        box = self.cell(which).locator(".gpuscope-outcome")
        box.wait_for()
        return box.inner_text()

    def sees_a_timeline(self, which: str) -> None:
        # JupyterLab shows a Plotly figure's PNG until the pointer comes.
        self.cell(which).locator(".jp-RenderedPlotly img.plot-img").hover(force=True)
        title = self.cell(which).locator(".js-plotly-plot .gtitle")
        title.wait_for()
        assert "SIMULATED" in title.text_content()


@pytest.fixture
def learner(lab, browser_page, request):
    said: list[str] = []
    browser_page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    browser_page.on("pageerror", lambda error: said.append(f"error: {error}"))
    RESULTS.mkdir(exist_ok=True)
    yield Learner(browser_page, lab, request.param)
    browser_page.screenshot(path=RESULTS / f"{request.param[:2]}-lesson-last.png")
    errors = [line for line in said if line.startswith("error")]
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("learner", ["02_streams.ipynb"], indirect=True)
def test_lesson_2_by_clicks_and_keys(learner):
    key = KEYS["02_streams.ipynb"]
    # By keys, and wrong: told so, with the reason, on a timeline.
    learner.run_until("predict-same")
    learner.choose_by_keys("predict-same", SAME)
    learner.answered("predict-same")
    learner.form("predict-same").get_by_text(f"You predict: {SAME}").wait_for()
    learner.run_until("show-same")
    said = learner.outcome("show-same")
    assert said.startswith("Not this time.")
    assert "waited for a before it in stream s" in said
    assert "Work in one stream runs in order" in said
    learner.sees_a_timeline("show-same")
    assert learner.form("predict-same").get_by_role("status").inner_text() == "Not this time."

    # By clicks, and right.
    learner.run_until("predict-two")
    learner.choose_by_mouse("predict-two", SAME)
    learner.answered("predict-two")
    learner.run_until("show-two")
    assert learner.outcome("show-two").startswith("Right.")

    # Nothing chosen: told what to do, and nothing is committed.
    learner.run_until("predict-big")
    form = learner.form("predict-big")
    form.get_by_role("button").click()
    form.get_by_text("Choose one of the options first.").wait_for()
    learner.choose_by_keys("predict-big", *key.right["two_big"])
    learner.answered("predict-big")
    learner.run_until("show-big")
    assert learner.outcome("show-big").startswith("Right.")

    # Run without a prediction: it says so, and is too late to be made up for.
    learner.run_until("show-copies")
    assert learner.outcome("show-copies").startswith("You made no prediction.")
    assert learner.form("predict-copies").get_by_role("button").is_disabled()

    for name in ("legacy", "nonblocking"):
        learner.run_until(f"predict-{name}")
        between = {"legacy": "legacy_between_blocking", "nonblocking": "legacy_between_nonblocking"}
        learner.choose_by_mouse(f"predict-{name}", *key.right[between[name]])
        learner.answered(f"predict-{name}")
        learner.run_until(f"show-{name}")
        assert learner.outcome(f"show-{name}").startswith("Right.")

    # An exercise: tried as it stands, a hint; then solved.
    learner.run_until("check-spread")
    said = learner.outcome("check-spread")
    assert said.startswith("Not solved.")
    assert "Hint: In which stream is each of them" in said
    for task, check in (("task-spread", "check-spread"), ("task-late", "check-late")):
        learner.retype(task, key.solved[task])
        learner.run_until(check)
        assert learner.outcome(check).startswith("Solved.")

    # A quiz: wrong, a hint, right.
    learner.run_until("quiz-library")
    learner.choose_by_mouse("quiz-library", "in any stream")
    learner.form("quiz-library").get_by_text("Hint: Which streams does").wait_for()
    learner.choose_by_keys("quiz-library", "in a blocking stream")
    learner.form("quiz-library").get_by_text("Right: in a blocking stream.").wait_for()

    learner.run_until("results")
    rows = learner.cell("results").locator("tbody tr").all_inner_texts()
    assert len(rows) == 11
    for verdict, count in (("wrong", 1), ("right", 4), ("not predicted", 1), ("solved", 3)):
        assert sum(f"\t{verdict}\t" in row for row in rows) == count, rows


@pytest.mark.parametrize("learner", ["05_carving_sms.ipynb"], indirect=True)
def test_lesson_5_by_clicks_and_keys(learner):
    key = KEYS["05_carving_sms.ipynb"]
    learner.run_until("predict-plan")
    learner.type_number("predict-plan", "116")
    learner.answered("predict-plan")
    learner.form("predict-plan").get_by_text("You predict: 116 SMs").wait_for()
    learner.run_until("show-plan")
    assert learner.outcome("show-plan").startswith("Right.")

    learner.run_until("predict-odd")
    learner.choose_by_keys("predict-odd", "17 SMs")
    learner.answered("predict-odd")
    learner.run_until("show-odd")
    said = learner.outcome("show-odd")
    assert said.startswith("Not this time.")
    assert "an error that names the nearest numbers" in said
    assert "16 below and 20 above" in learner.cell("run-odd").inner_text()

    learner.run_until("predict-slow")
    learner.type_number("predict-slow", "8.25")
    learner.answered("predict-slow")
    learner.run_until("show-slow")
    assert learner.outcome("show-slow").startswith("Right.")
    learner.sees_a_timeline("show-slow")

    for name, asked in (("beside", "beside"), ("twice", "second_carving"), ("proof", "evidence")):
        learner.run_until(f"predict-{name}")
        learner.choose_by_keys(f"predict-{name}", *key.right[asked])
        learner.answered(f"predict-{name}")
        learner.run_until(f"show-{name}")
        assert learner.outcome(f"show-{name}").startswith("Right.")

    for task, check in (("task-sizes", "check-sizes"), ("task-serve", "check-serve")):
        learner.run_until(task)
        learner.retype(task, key.solved[task])
        learner.run_until(check)
        assert learner.outcome(check).startswith("Solved.")

    for quiz, asked in (("quiz-closed", "after_closing"), ("quiz-legacy", "partition_and_legacy")):
        learner.run_until(quiz)
        learner.choose_by_mouse(quiz, *key.right[asked])
        learner.form(quiz).get_by_text("Right: ").wait_for()

    learner.run_until("results")
    rows = learner.cell("results").locator("tbody tr").all_inner_texts()
    assert sum("\tright\t" in row for row in rows) == 5
    assert sum("\tsolved\t" in row for row in rows) == 4


@pytest.mark.parametrize("size", [(1366, 768), (1920, 1080)])
@pytest.mark.parametrize("learner", ["03_events.ipynb"], indirect=True)
def test_nothing_stands_below_an_unanswered_form(learner, size):
    width, height = size
    learner.page.set_viewport_size({"width": width, "height": height})
    key = KEYS["03_events.ipynb"]

    def below(which):
        return learner.page.evaluate(VISIBLE_BELOW, learner.number[which])

    assert below("predict-missing"), "nothing was asked yet"
    learner.run_until("run-missing")
    assert not below("predict-missing"), "it is asked: neither texts nor what was printed"
    learner.run_until("show-missing")
    assert below("predict-missing"), "it was run before the prediction"

    # Two forms, one below the other: the first hides all but the second.
    learner.run_until("predict-who-waits")
    assert not below("predict-mended")
    learner.form("predict-who-waits").get_by_role("button").wait_for()
    learner.type_number("predict-mended", "7")
    learner.answered("predict-mended")
    assert not below("predict-who-waits")
    learner.choose_by_mouse("predict-who-waits", *key.right["who_waits"])
    learner.answered("predict-who-waits")
    assert below("predict-who-waits")

    # A quiz hides what follows until it is tried; an error is never hidden.
    learner.run_until("quiz-never")
    assert not below("quiz-never")
    learner.retype("results", "1 / 0")
    assert "ZeroDivisionError" in "".join(below("quiz-never"))
    learner.type_number("quiz-never", "7")
    learner.form("quiz-never").get_by_text("Hint: ").wait_for()
    assert len(below("quiz-never")) > 2
