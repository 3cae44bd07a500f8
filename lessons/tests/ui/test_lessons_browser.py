"""A learner's path through lessons in JupyterLab, by clicks and keys alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jupyter_lab import BUSY, IDLE
from lesson_answers import KEYS, SAME
from playing import cells

expect = pytest.importorskip("playwright.sync_api").expect

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "test-results"
COUNT = """index => window.jupyterapp.shell.currentWidget.content.widgets[index]
    .model.sharedModel.execution_count"""
RAN = f"([index, before]) => {{ const now = ({COUNT})(index); return now && now !== before; }}"
ACTIVE = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"

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

    def until_active(self, index: int) -> None:
        self.page.wait_for_function(f"index => ({ACTIVE})() === index", arg=index)

    def run(self, index: int) -> None:
        """Press Shift+Enter, and wait until this cell has run and the next one is selected."""
        is_code = self.cells[index]["cell_type"] == "code"
        before = self.page.evaluate(COUNT, index) if is_code else None
        self.page.keyboard.press("Shift+Enter")
        self.until_active(index + 1)
        if is_code:
            self.page.wait_for_function(RAN, arg=[index, before])
            self.page.wait_for_function(f"() => !({BUSY})()")
            self.page.wait_for_function(IDLE)

    def run_until(self, last: str) -> None:
        """Press Shift+Enter from the selected cell on, until this one has run."""
        while self.active() <= self.number[last] < len(self.cells):
            index = self.active()
            self.run(index)
            if index == self.number[last]:
                return
        pytest.fail(f"{last} is not ahead of cell {self.active()}")

    def form(self, which: str):
        return self.cell(which).locator("form.gpuscope-question")

    def answered(self, which: str) -> None:
        """Wait until the form is locked, and the next cell is selected."""
        self.form(which).locator("button[disabled]").wait_for()
        self.until_active(self.number[which] + 1)

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
        self.until_active(self.number[which])
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
        self.run(self.number[which])

    def is_told(self, which: str, begins: str, *words: str) -> None:
        """Wait for an outcome that begins like this and has all these words."""
        box = self.cell(which).locator(".gpuscope-outcome")
        expect(box).to_have_text(re.compile(f"^{re.escape(begins)}"), use_inner_text=True)
        for one in words:
            expect(box).to_contain_text(one, use_inner_text=True)

    def sees_a_timeline(self, which: str) -> None:
        # JupyterLab shows a Plotly figure's PNG until the pointer comes.
        self.cell(which).locator(".jp-RenderedPlotly img.plot-img").hover(force=True)
        title = self.cell(which).locator(".js-plotly-plot .gtitle")
        expect(title).to_contain_text("SIMULATED")


@pytest.fixture
def learner(lab_of_ours, browser_page, request):
    said: list[str] = []
    browser_page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    browser_page.on("pageerror", lambda error: said.append(f"error: {error}"))
    RESULTS.mkdir(exist_ok=True)
    yield Learner(browser_page, lab_of_ours, request.param)
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
    learner.is_told("show-same", "Not this time.", "behind a in stream s",
                    "Work in one stream runs in order")  # fmt: skip
    learner.sees_a_timeline("show-same")
    expect(learner.form("predict-same").get_by_role("status")).to_have_text("Not this time.")

    # By clicks, and right.
    learner.run_until("predict-two")
    learner.choose_by_mouse("predict-two", SAME)
    learner.answered("predict-two")
    learner.run_until("show-two")
    learner.is_told("show-two", "Right.")

    # Nothing chosen: told what to do, and nothing is committed.
    learner.run_until("predict-big")
    form = learner.form("predict-big")
    form.get_by_role("button").click()
    form.get_by_text("Choose one of the options first.").wait_for()
    learner.choose_by_keys("predict-big", *key.right["two_big"])
    learner.answered("predict-big")
    learner.run_until("show-big")
    learner.is_told("show-big", "Right.")

    # Run without a prediction: it says so, and is too late to be made up for.
    learner.run_until("show-copies")
    learner.is_told("show-copies", "You made no prediction.")
    expect(learner.form("predict-copies").get_by_role("button")).to_be_disabled()

    for name in ("legacy", "nonblocking"):
        learner.run_until(f"predict-{name}")
        between = {"legacy": "legacy_between_blocking", "nonblocking": "legacy_between_nonblocking"}
        learner.choose_by_mouse(f"predict-{name}", *key.right[between[name]])
        learner.answered(f"predict-{name}")
        learner.run_until(f"show-{name}")
        learner.is_told(f"show-{name}", "Right.")

    # An exercise: tried as it stands, a hint; then solved.
    learner.run_until("check-spread")
    learner.is_told("check-spread", "Not solved.", "Hint: In which stream is each of them")
    for task, check in (("task-spread", "check-spread"), ("task-late", "check-late")):
        learner.retype(task, key.solved[task])
        learner.run_until(check)
        learner.is_told(check, "Solved.")

    # A quiz: wrong, a hint, right.
    learner.run_until("quiz-library")
    learner.choose_by_mouse("quiz-library", "in any stream")
    learner.form("quiz-library").get_by_text("Hint: Which streams does").wait_for()
    learner.choose_by_keys("quiz-library", *key.right["library_in_legacy"])
    learner.form("quiz-library").get_by_text(
        "Right: in a stream that cudaStreamCreate made."
    ).wait_for()

    learner.run_until("results")
    found = learner.cell("results").locator("tbody tr")
    expect(found).to_have_count(13)
    rows = found.all_inner_texts()
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
    learner.is_told("show-plan", "Right.")

    learner.run_until("predict-odd")
    learner.choose_by_keys("predict-odd", "17 SMs")
    learner.answered("predict-odd")
    learner.run_until("show-odd")
    learner.is_told("show-odd", "Not this time.", "an error that names the nearest numbers")
    expect(learner.cell("run-odd")).to_contain_text("16 below and 20 above")

    learner.run_until("predict-slow")
    learner.type_number("predict-slow", "8.25")
    learner.answered("predict-slow")
    learner.run_until("show-slow")
    learner.is_told("show-slow", "Right.")
    learner.sees_a_timeline("show-slow")

    for name, asked in (("beside", "beside"), ("twice", "second_carving"), ("proof", "evidence")):
        learner.run_until(f"predict-{name}")
        learner.choose_by_keys(f"predict-{name}", *key.right[asked])
        learner.answered(f"predict-{name}")
        learner.run_until(f"show-{name}")
        learner.is_told(f"show-{name}", "Right.")

    for task, check in (("task-sizes", "check-sizes"), ("task-serve", "check-serve")):
        learner.run_until(task)
        learner.retype(task, key.solved[task])
        learner.run_until(check)
        learner.is_told(check, "Solved.")

    for quiz, asked in (("quiz-closed", "after_closing"), ("quiz-legacy", "partition_and_legacy")):
        learner.run_until(quiz)
        learner.choose_by_mouse(quiz, *key.right[asked])
        learner.form(quiz).get_by_text("Right: ").wait_for()

    learner.run_until("results")
    found = learner.cell("results").locator("tbody tr")
    found.first.wait_for()
    rows = found.all_inner_texts()
    assert sum("\tright\t" in row for row in rows) == 5
    assert sum("\tsolved\t" in row for row in rows) == 4


@pytest.mark.parametrize("size", [(1366, 768), (1920, 1080)])
@pytest.mark.parametrize("learner", ["03_events.ipynb"], indirect=True)
def test_nothing_stands_below_an_unanswered_form(learner, size):
    width, height = size
    learner.page.set_viewport_size({"width": width, "height": height})
    key = KEYS["03_events.ipynb"]

    def until_below(which, holds):
        """Wait until this JavaScript holds for the texts below a cell."""
        learner.page.wait_for_function(
            f"index => {{ const texts = ({VISIBLE_BELOW})(index); return {holds}; }}",
            arg=learner.number[which],
        )

    some, none = "texts.length > 0", "texts.length === 0"
    until_below("predict-missing", some)  # nothing was asked yet
    learner.run_until("run-missing")
    until_below("predict-missing", none)  # it is asked: neither texts nor what was printed
    learner.run_until("show-missing")
    until_below("predict-missing", some)  # it was run before the prediction

    # Two forms, one below the other: the first hides all but the second.
    learner.run_until("predict-who-waits")
    until_below("predict-mended", none)
    learner.form("predict-who-waits").get_by_role("button").wait_for()
    learner.type_number("predict-mended", "7")
    learner.answered("predict-mended")
    until_below("predict-who-waits", none)
    learner.choose_by_mouse("predict-who-waits", *key.right["who_waits"])
    learner.answered("predict-who-waits")
    until_below("predict-who-waits", some)

    # A quiz hides what follows until it is tried; an error is never hidden.
    learner.run_until("quiz-never")
    until_below("quiz-never", none)
    learner.retype("results", "1 / 0")
    until_below("quiz-never", "texts.join('').includes('ZeroDivisionError')")
    learner.type_number("quiz-never", "7")
    learner.form("quiz-never").get_by_text("Hint: ").wait_for()
    until_below("quiz-never", "texts.length > 2")
