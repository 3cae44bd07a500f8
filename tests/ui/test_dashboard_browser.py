"""The dashboard in JupyterLab, Jupyter Notebook and HTML, driven by a real browser."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import nbformat
import pyarrow.parquet as pq
import pytest
from escaping import escaped
from jupyter_lab import BUSY, IDLE, ask, check_accessibility, eventually, running_lab, walk

import gpuscope as gs
from gpuscope._columns import MEANINGS
from gpuscope.experiments.experiment import Experiment

expect = pytest.importorskip("playwright.sync_api").expect

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "test-results"
IMAGES = ROOT / "docs" / "images"
NOTEBOOK = "dashboard.ipynb"
DASHBOARD = ".jp-OutputArea-output .gpuscope-dashboard"
PLOT = f"{DASHBOARD} .js-plotly-plot"
BOX = "what => document.querySelector(what).getBoundingClientRect().toJSON()"
HEADLINE = f"{DASHBOARD} .gs-headline"
CELLS = [
    "import gpuscope as gs\n(dashboard := gs.Dashboard('sim:h200'))",
    "import pathlib\n\nwhile not pathlib.Path('enough').exists():  # busy until then\n    pass",
]

RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
# The bars that are painted, one by one or on the canvas, once they differ from those before and the
# status line from what it said before: [bars, status, whether a cell runs].
PAINTED = f"""([bars, said]) => {{
    const now = [...document.querySelectorAll('{PLOT} .barlayer .point path')]
        .map(bar => bar.getAttribute('d')).join(' ')
        + (document.querySelector('{DASHBOARD} .gpuscope-tiles')?.toDataURL() ?? '');
    const says = document.querySelector('.gpuscope-status').innerText;
    return now !== '' && now !== bars && says !== said && [now, says, ({BUSY})()];
}}"""
# A theme's colours have faded in, and the kernel has painted the plot in them.
PAINTED_IN = f"""theme => {{
    const tick = document.querySelector('{PLOT} .xtick text');
    if (!tick) return false;
    const sum = getComputedStyle(tick).fill.match(/[0-9.]+/g).slice(0, 3)
        .reduce((all, one) => all + Number(one), 0);
    return (theme === 'dark') === (sum > 384)
        && document.getAnimations().every(one => one.playState !== 'running');
}}"""

pytestmark = pytest.mark.ui


@pytest.fixture
def console(browser_page):
    """What the page logs, type first; exceptions that nobody caught count as errors."""
    said: list[str] = []
    browser_page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    browser_page.on("pageerror", lambda error: said.append(f"error: {error}"))
    return said


@pytest.fixture
def shot(browser_page):
    """Save screenshots to test-results/, the last one also when the test fails."""
    RESULTS.mkdir(exist_ok=True)
    yield lambda name: browser_page.screenshot(path=RESULTS / f"dashboard-{name}.png")
    browser_page.screenshot(path=RESULTS / "dashboard-last.png")


def write_notebook(folder: Path, cells: list[str]) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / NOTEBOOK)


def errors(console: list[str]) -> list[str]:
    return [line for line in console if line.startswith("error")]


def command(page, name: str, **arguments) -> None:
    page.evaluate(
        "([name, arguments]) => { window.jupyterapp.commands.execute(name, arguments); }",
        [name, arguments],
    )


def button(page, name: str):
    return page.locator(DASHBOARD).get_by_role("button", name=name, exact=True)


def row(page, table: str, name: str):
    """The fields of one row of a table, by its legend; the row is unfolded where it is not."""
    fields = page.get_by_role("group", name=f"{table} {name}", exact=True, include_hidden=True)
    fields.wait_for(state="attached")
    if not fields.is_visible():
        fields.locator("xpath=..").locator("summary").click()
    fields.wait_for()
    return fields


def unfold(page, menu: str) -> None:
    """Open a menu of the bar, where it is not."""
    summary = page.locator(f"{DASHBOARD} .gs-more > summary").filter(has_text=menu)
    if summary.locator("xpath=..").get_attribute("open") is None:
        summary.click()


def open_notebook(page, lab) -> None:
    page.goto(lab.page(NOTEBOOK))
    page.wait_for_function(IDLE)


def run_first_cell(page) -> None:
    command(page, "notebook:run-cell-and-select-next")
    button(page, "Run").wait_for()
    page.locator(PLOT).wait_for()
    page.wait_for_function(IDLE)


def handle(page):
    return page.locator(".gpuscope-carver").get_by_role("slider").first


def said_by(slider) -> str:
    return slider.get_attribute("aria-valuetext")


def until_said(page, words: str) -> None:
    page.wait_for_function(
        "words => document.querySelector('.gpuscope-carver [role=slider]')"
        ".getAttribute('aria-valuetext').startsWith(words)",
        arg=words,
    )


def carve_by_dragging(page, shot) -> None:
    """The boundary follows the pointer, says asked and granted, and snaps when let go."""
    slider, strip = handle(page), page.locator(".gs-cells").bounding_box()
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    slider.hover()
    page.mouse.down()
    for count in range(16, 44, 3):
        page.mouse.move(strip["x"] + strip["width"] * count / 132, y)
    page.get_by_text("small: 43 asked, 44 granted").wait_for()
    shot("dragging")
    page.mouse.up()
    until_said(page, "small 44 SMs, load 88 SMs")
    page.get_by_text("44 granted", exact=True).wait_for()
    expect(page.get_by_text("Not applied yet.")).to_be_visible()
    button(page, "Apply").click()
    page.get_by_text("Applied.", exact=True).wait_for()


def carve_by_keyboard(page) -> None:
    slider = handle(page)
    slider.focus()
    for key, count in (("ArrowLeft", 36), ("ArrowUp", 44), ("Home", 8), ("ArrowRight", 16)):
        page.keyboard.press(key)
        until_said(page, f"small {count} SMs")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "slider"
    button(page, "Apply").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Applied.", exact=True).wait_for()


def refuse_in_place(page, shot) -> None:
    """What is no count is said beside it, and nothing can be applied or run."""
    count = page.get_by_label("SMs", exact=True).first
    count.fill("many")
    page.keyboard.press("Tab")
    page.get_by_text("or 'rest', but found 'many'").wait_for()
    shot("invalid")
    expect(button(page, "Apply")).to_be_disabled()
    expect(button(page, "Run")).to_be_disabled()
    count.fill("17")
    page.keyboard.press("Enter")
    page.get_by_text("17 asked, 16 granted").wait_for()  # a warning beside the field
    count.fill("16")
    page.keyboard.press("Enter")
    page.get_by_text("17 asked, 16 granted").wait_for(state="hidden")
    page.get_by_text("16 granted", exact=True).wait_for()


def assign(page) -> None:
    """Streams go to partitions, workloads to streams, in any order and under any name."""
    stream = row(page, "stream", "small")
    stream.get_by_label("Stream", exact=True).fill("decode")
    page.keyboard.press("Tab")
    stream = row(page, "stream", "decode")
    stream.get_by_label("Runs in").select_option(label="whole GPU")
    stream.get_by_label("Blocking").wait_for()
    stream.get_by_label("Runs in").select_option(label="small")
    stream.get_by_label("Priority").select_option(label="-1")
    workload = row(page, "workload", "small")
    expect(workload.get_by_label("Stream").locator("option:checked")).to_have_text("decode")
    workload.get_by_label("m", exact=True).fill("0")
    page.keyboard.press("Tab")
    workload.get_by_text("should be greater than 0, but found 0").wait_for()
    expect(button(page, "Run")).to_be_disabled()
    workload.get_by_label("m", exact=True).fill("512")
    page.keyboard.press("Tab")
    workload.get_by_text("should be greater than 0").wait_for(state="hidden")


def repeat(page, count: int) -> None:
    row(page, "workload", "small").get_by_label("Repeats").fill(str(count))
    page.keyboard.press("Tab")


def until_over(page, words: str, number: int) -> None:
    """Wait until a run says that it is over, is kept, and another can begin.

    Its number tells it from the run before, which may have said the same. A short run may be over
    before anybody looks whether it is on.
    """
    page.get_by_role("button", name=re.compile(f"Run {number}: ")).wait_for()
    page.get_by_text(words).wait_for()
    expect(button(page, "Run")).to_be_enabled()


def run_beside_a_busy_cell(page, lab, shot) -> None:
    """The timeline is painted, and painted anew, while a cell keeps the kernel busy."""
    repeat(page, 1_000_000)
    button(page, "Run").click()
    page.get_by_text("Running:").wait_for()
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    command(page, "notebook:run-cell")
    page.wait_for_function(BUSY)
    seen = ["", "", False]
    for _ in range(3):
        seen = page.wait_for_function(PAINTED, arg=seen[:2]).json_value()
        assert seen[1].startswith("Running"), f"nothing was painted in the run, but at {seen[1]!r}"
        assert seen[2], "the cell was over"
    expect(page.locator(".gs-left")).to_have_text(re.compile(r"^about \d+ min left$"))
    shot("running")
    (lab.folder / "enough").touch()
    page.wait_for_function(f"() => !({BUSY})()")
    button(page, "Stop").click()
    until_over(page, "Stopped early:", 1)


def judge(page) -> None:
    """Confinement, latency, overlap and gain are there, and say that they are simulated."""
    repeat(page, 2000)
    button(page, "Run").click()
    until_over(page, "Done: 2,000 timed calls.", 2)
    expect(page.locator(HEADLINE)).to_contain_text("Kept apart: small never waited for SMs")
    said = page.locator(f"{DASHBOARD} .gs-answers").inner_text()
    for words in ("overlap", "Gain", "0 of 2,000 calls waited for SMs", "p99", "Yes: all",
                  "simulated: by construction"):  # fmt: skip
        assert words in said, words
    words = page.locator(f"{DASHBOARD} .gs-answers abbr").all()
    titles = {word.inner_text().lower(): word.get_attribute("title") for word in words}
    assert titles == {word: MEANINGS[word] for word in ("overlap", "gain")}
    head = page.locator(f"{DASHBOARD} .gpuscope-results abbr")
    assert [one.get_attribute("title") for one in head.all()] == [MEANINGS["of alone"]]
    numbers = page.locator(f"{DASHBOARD} .gpuscope-results table").first
    headings = numbers.locator("th").all_inner_texts()
    cells = numbers.locator("tbody tr").first.locator("td").all_inner_texts()
    small = dict(zip(headings, cells, strict=True))
    assert (small["workload"], small["runs on"]) == ("small", "small")
    assert small["kernels"] == small["calls timed"] == "2,000"
    assert all(float(small[f"latency {mark} (µs)"]) > 0 for mark in ("p50", "p90", "p99"))
    eventually(partial(fills_its_place, page))


def fills_its_place(page) -> None:
    painted = page.locator(f"{PLOT} .main-svg").first.bounding_box()
    around = page.locator(f"{DASHBOARD} .gpuscope-watch").bounding_box()
    assert 0.95 < painted["width"] / around["width"] <= 1, "the figure does not fill its place"


def explore(page) -> None:
    """The timeline is zoomed, panned and searched, and a span says what it is."""
    status = page.locator(f"{DASHBOARD} .gpuscope-timeline-bar .status")

    def after(act) -> str:
        before = status.inner_text()
        act()
        page.wait_for_function(
            f"before => document.querySelector('{DASHBOARD} .gpuscope-timeline-bar .status')"
            ".innerText !== before", arg=before,
        )  # fmt: skip
        return status.inner_text()

    def in_view(said: str) -> int:
        return int(re.search(r"([\d,]+) spans in view", said).group(1).replace(",", ""))

    ask(page, "dashboard.timeline.wait()")  # until it shows everything
    whole = in_view(status.inner_text())
    timeline = page.locator(f"{DASHBOARD} .gpuscope-timeline")
    closer = in_view(after(timeline.get_by_role("button", name="Zoom in").click))
    assert 0 < closer < whole
    page.locator(PLOT).focus()
    after(lambda: page.keyboard.press("a"))  # back in time
    page.keyboard.press("f")
    expect(status).to_contain_text(re.compile(rf"(^|\D){whole:,} spans in view"))
    page.keyboard.press("/")
    page.keyboard.type("gemm_float16_512")
    page.keyboard.press("Enter")
    details = page.get_by_role("region", name="Details of the selected span")
    details.get_by_text("gemm_float16_512x512x512").first.wait_for()
    expect(status).to_contain_text("selected: gemm_float16_512")
    page.keyboard.press("Escape")
    # The load's kernels are in the middle, one after the other: the bars are on a canvas.
    after(timeline.get_by_role("button", name="Zoom in").click)
    area = page.locator(f"{PLOT} .nsewdrag").first.bounding_box()
    x, y = area["x"] + area["width"] / 2, area["y"] + 0.54 * area["height"]
    page.mouse.move(x, y)
    page.mouse.click(x, y)
    details.get_by_text("gemm_float16_4096x4096x4096").first.wait_for()
    details.get_by_role("button", name="Close the details").click()
    details.wait_for(state="hidden")


def escape_and_stop(page) -> None:
    """Without its guard the work escapes; a run that is stopped keeps what it has."""
    row(page, "workload", "small").get_by_label("Guard").select_option(label="off: it escapes")
    repeat(page, 1_000_000)
    button(page, "Run").click()
    page.get_by_text(re.compile("Running: [1-9]")).wait_for()  # a call was timed
    button(page, "Stop").click()
    until_over(page, "Stopped early:", 3)
    page.get_by_text("ESCAPED: ").first.wait_for()
    expect(page.locator(HEADLINE)).to_contain_text("ran on the whole GPU, not on its 16 SMs")
    said = page.locator(".gpuscope-differences").first.inner_text()
    assert "workloads.small.guard: true → false" in said
    assert "B: ESCAPED" in said


def take_away(page, tmp_path) -> None:
    """TOML goes out and comes in; code is copied."""
    unfold(page, "⋯")
    with page.expect_download() as waited:
        button(page, "Save as TOML").click()
    saved = tmp_path / waited.value.suggested_filename
    waited.value.save_as(saved)
    assert saved.name == "dashboard.toml"
    experiment = Experiment.from_file(saved)
    assert experiment.partitions == {"small": 16, "load": "rest"}
    assert not experiment.workloads["small"].guard
    assert experiment.streams["decode"].priority == -1
    saved.write_text(saved.read_text().replace("guard = false\n", "").replace("1000000", "300"))
    with page.expect_file_chooser() as chosen:
        page.get_by_text("Open TOML").click()
    chosen.value.set_files(saved)
    page.get_by_text("Opened dashboard.").wait_for()
    expect(row(page, "workload", "small").get_by_label("Repeats")).to_have_value("300")
    for kind, words in (("gpuscope", "gs.run("), ("C++", "cuGreenCtxStreamCreate")):
        button(page, kind).click()
        page.get_by_text("Copied.", exact=True).wait_for()
        page.wait_for_function(
            "words => document.querySelector('.gs-code textarea').value.includes(words)", arg=words
        )
        page.wait_for_function(
            "words => navigator.clipboard.readText().then(text => text.includes(words))", arg=words
        )
    page.locator(".gs-code").get_by_role("button", name="Close").click()


def photograph(page, theme: str) -> None:
    """Take a picture of the dashboard, and put it into the docs where that is asked for."""
    page.set_viewport_size({"width": 1440, "height": 900})
    choose_theme(page, theme)
    page.wait_for_function(PAINTED_IN, arg=theme)
    picture = RESULTS / f"dashboard-{theme}.png"
    board = page.locator(DASHBOARD)
    board.evaluate("it => it.scrollIntoView({ block: 'start' })")
    page.screenshot(path=picture, clip={**board.bounding_box(), "height": 560})
    if os.environ.get("GPUSCOPE_UPDATE_IMAGES") == "1":
        IMAGES.mkdir(parents=True, exist_ok=True)
        name = "dashboard.png" if theme == "light" else f"dashboard-{theme}.png"
        shutil.copyfile(picture, IMAGES / name)


def choose_theme(page, theme: str) -> None:
    command(page, "apputils:change-theme", theme=f"JupyterLab {theme.capitalize()}")
    page.wait_for_function(
        f"() => document.body.dataset.jpThemeLight === '{str(theme == 'light').lower()}'"
    )


def check_in_both_themes(page) -> None:
    for theme in ("dark", "light"):
        choose_theme(page, theme)
        check_accessibility(page, DASHBOARD)


def restart_and_reopen(page, lab, console, shot) -> None:
    """Without its kernel, the notebook shows what was there last; run again, it lives."""
    command(page, "docmanager:save")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    repeat(page, 1_000_000)
    button(page, "Run").click()
    page.get_by_text("Running:").wait_for()  # a run that is on goes with its kernel
    page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    page.wait_for_function(IDLE)
    button(page, "Stop").click()
    page.get_by_text("The kernel of this widget is gone: run its cell again.").wait_for()
    assert not errors(console), "\n".join(errors(console))
    gone = "widget model not found"
    with page.expect_console_message(lambda said: gone in said.text):
        open_notebook(page, lab)
    saved = page.locator(".gpuscope-saved")
    saved.get_by_text("ESCAPED: ").first.wait_for()
    expect(saved).to_contain_text("SIMULATED, not measured")
    page.get_by_text(gone).wait_for(state="hidden")
    shot("reopened")
    assert not page.get_by_text("model not found").is_visible()
    # JupyterLab logs that a widget has no kernel; nothing else may be wrong.
    other = [line for line in errors(console) if gone not in line]
    assert not other, "\n".join(other)
    del console[:]
    run_first_cell(page)
    page.locator(".gpuscope-saved").wait_for(state="hidden")
    expect(row(page, "workload", "small").get_by_label("Guard")).to_be_visible()


def test_carve_assign_run_watch_judge_take_away_and_reopen(
    lab, browser_page, console, shot, tmp_path
):
    page = browser_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.set_viewport_size({"width": 1440, "height": 1300})
    write_notebook(lab.folder, CELLS)
    open_notebook(page, lab)
    command(page, "application:toggle-left-area")
    run_first_cell(page)
    chip = page.locator(f"{DASHBOARD} .gs-chip")
    expect(chip).to_contain_text("SIMULATED")
    assert "every time comes from a model" in chip.get_attribute("title")
    page.locator(".gpuscope-saved").wait_for(state="attached")
    expect(page.locator(".gpuscope-saved")).to_be_hidden()
    shot("ready")
    carve_by_dragging(page, shot)
    carve_by_keyboard(page)
    refuse_in_place(page, shot)
    assign(page)
    run_beside_a_busy_cell(page, lab, shot)
    judge(page)
    for theme in ("dark", "light"):
        photograph(page, theme)
        check_accessibility(page, DASHBOARD)
    explore(page)
    escape_and_stop(page)
    take_away(page, tmp_path)
    restart_and_reopen(page, lab, console, shot)
    assert not errors(console), "\n".join(errors(console))


def settle(page, lab) -> None:
    """A dashboard in a notebook of one cell, without the side bar; the focus is on its top."""
    write_notebook(lab.folder, CELLS[:1])
    open_notebook(page, lab)
    command(page, "application:toggle-left-area")
    run_first_cell(page)


def focus(page) -> str:
    """What has the focus: its words, or the label of the field."""
    return page.evaluate(
        "() => { const it = document.activeElement;"
        " return it.getAttribute('aria-label') || it.labels?.[0]?.innerText || it.innerText; }"
    )


def seen_without_scrolling(page, state: str) -> dict[str, float]:
    """Verdict, plot and answers are in view as the notebook stands; returns the box of Run."""
    view = page.locator(".jp-WindowedPanel-outer").first
    assert view.evaluate("it => it.scrollTop") == 0
    around = view.bounding_box()
    for what in (".gs-verdict", ".js-plotly-plot", ".gs-answers"):
        box = page.evaluate(BOX, f"{DASHBOARD} {what}")  # at once: a verdict may be replaced
        assert box["y"] >= around["y"], f"{what} begins above what is seen {state}"
        below = box["y"] + box["height"] - around["y"] - around["height"]
        assert below <= 0, f"{what} ends {below:.0f} px below what is seen {state}"
        assert box["x"] + box["width"] <= around["x"] + around["width"], f"{what} {state}"
    headline = page.locator(HEADLINE)
    assert headline.evaluate("it => it.scrollHeight <= it.clientHeight"), f"it is cut {state}"
    return page.locator(f"{DASHBOARD} .gpuscope-bar .gs-primary").bounding_box()


def test_the_result_comes_first_in_every_state_and_theme(lab, browser_page, console, shot):
    page = browser_page
    page.set_viewport_size({"width": 1280, "height": 720})
    write_notebook(lab.folder, CELLS[:1])
    open_notebook(page, lab)
    run_first_cell(page)
    assert page.locator("#jp-left-stack").is_visible(), "the file browser is closed"
    boxes = []

    def look(state: str) -> None:
        for theme in ("light", "dark"):
            choose_theme(page, theme)
            for folded in (False, True):
                eventually(partial(fills_its_place, page))
                where = f"{state} {theme}{' folded' * folded}"
                boxes.append(seen_without_scrolling(page, where))
                shot(where.replace(" ", "-"))
                page.locator(f"{DASHBOARD} .gpuscope-bar .gs-primary").focus()
                page.keyboard.press("e")
                expect(button(page, "Editor")).to_have_attribute(
                    "aria-expanded", str(folded).lower()
                )

    expect(page.locator(HEADLINE)).to_have_text("Nothing has run yet: press Run (about 6 s).")
    look("before")
    repeat(page, 1_000_000)
    button(page, "Run").click()
    page.locator(HEADLINE).filter(has_text="So far, ").wait_for()
    look("running")
    button(page, "Stop").click()
    until_over(page, "Stopped early:", 1)
    look("done")
    page.get_by_role("combobox", name="Start from").select_option(label="escape: a guard left out")
    page.get_by_text("Started from").wait_for()
    repeat(page, 1_000)
    button(page, "Run").click()
    until_over(page, "Done: 1,000 timed calls.", 2)
    look("escaped")
    assert all(box == boxes[0] for box in boxes), "Run moved"
    button(page, "Turn Guard on and run again").click()  # the mend is applied, and runs
    until_over(page, "Done: 1,000 timed calls.", 3)
    expect(page.locator(HEADLINE)).to_contain_text("Kept apart")
    expect(row(page, "workload", "small").get_by_label("Guard")).to_have_value("true")
    assert not errors(console), "\n".join(errors(console))


def test_keys_run_it_inside_jupyterlab(lab, browser_page, console, shot):
    page = browser_page
    settle(page, lab)
    button(page, "Editor").focus()
    page.keyboard.press("Tab")
    assert focus(page).startswith("Run")
    reached = walk(page, DASHBOARD)
    assert {"Editor", "Zoom in", "Search names of spans"} <= {*reached}
    assert [one for one in reached if one.startswith("Run")]
    repeat(page, 1_000_000)
    repeats = row(page, "workload", "small").get_by_label("Repeats")
    repeats.focus()
    page.keyboard.press("Control+Enter")
    page.get_by_text("Running:").wait_for()
    assert focus(page) == "Repeats", "a run took the focus away"
    page.keyboard.press("Escape")
    until_over(page, "Stopped early:", 1)
    assert focus(page) == "Repeats"
    repeats.fill("1200")
    page.keyboard.press("Control+Enter")  # what is being typed counts
    until_over(page, "Done: 1,200 timed calls.", 2)
    button(page, "Run").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name=re.compile("Run 3: ")).wait_for()
    until_over(page, "Done: 1,200 timed calls.", 3)
    assert focus(page).startswith("Run")
    page.get_by_text("Workloads", exact=True).click()  # beside all controls: the keys still work
    page.keyboard.press("Control+Enter")
    until_over(page, "Done: 1,200 timed calls.", 4)
    assert page.locator(".jp-InputPrompt").first.inner_text() == "[1]:", "the cell was run again"
    summary = page.get_by_role("group", name="workload small", exact=True)
    summary.locator("xpath=..").locator("summary").focus()
    for _ in range(2):  # folding
        page.keyboard.press("Enter")
        assert focus(page).startswith("small")
    page.keyboard.press("Enter")
    button(page, "Add stream").click()  # a new row is open, and where a person goes on
    page.get_by_role("group", name="stream stream 3", exact=True).wait_for()
    page.wait_for_function("() => document.activeElement.value === 'stream 3'")
    button(page, "Remove stream stream 3").press("Enter")
    page.get_by_role("group", name="stream stream 3", exact=True).wait_for(state="detached")
    assert focus(page).startswith("load"), "the focus is lost with the row that had it"
    handle(page).focus()
    page.get_by_role("combobox", name="Start from").select_option(label="escape: a guard left out")
    page.get_by_text("Started from").wait_for()
    page.keyboard.press("Control+Enter")  # the boundary that had the focus is another one now
    until_over(page, "Done:", 5)
    repeats = row(page, "workload", "small").get_by_label("Repeats")
    repeats.fill("12")
    repeats.press("e")  # typed, and folds nothing
    expect(button(page, "Editor")).to_have_attribute("aria-expanded", "true")
    assert not errors(console), "\n".join(errors(console))


def run_with_counters(page) -> None:
    """Apply 32 SMs and run, with a lane below each partition."""
    unfold(page, "⋯")
    page.get_by_label("Counters").check()
    button(page, "Apply and run").click()
    until_over(page, "Done: 1,000 timed calls.", 1)
    expect(page.get_by_text("Applied.", exact=True)).to_be_visible()
    lanes = page.locator(f"{PLOT} .ytick text").filter(has_text="SMs busy of ")
    expect(lanes).to_have_text(["SMs busy of 32, by model", "SMs busy of 100, by model"])
    page.get_by_label("Counters").uncheck()


def test_what_is_asked_is_warned_of_runs_are_compared_and_files_written(
    lab, browser_page, console, shot
):
    page = browser_page
    settle(page, lab)
    repeat(page, 1000)
    # "200" is not granted: said beside the field, and not run before a person saw it.
    count = page.get_by_label("SMs", exact=True).first
    count.fill("200")
    page.keyboard.press("Control+Enter")
    page.get_by_text("200 asked, 124 granted").wait_for()
    page.get_by_text("not applied: it would grant small 124, load 8").wait_for()
    shot("warning")
    count.fill("32")
    page.keyboard.press("Enter")
    page.get_by_text("32 granted", exact=True).wait_for()
    run_with_counters(page)
    button(page, "Run 1: small 32 | load rest").click()
    for number, preset in (
        (2, "small beside load, priority instead"),
        (3, "escape: a guard left out"),
    ):
        page.get_by_role("combobox", name="Start from").select_option(label=preset)
        page.get_by_text(f"Started from “{preset}”.").wait_for()
        repeat(page, 1000)
        button(page, "Run").click()
        page.get_by_role("button", name=re.compile(f"Run {number}: ")).wait_for()
        page.get_by_role("button", name=re.compile(f"Run {number}: ")).click()
        page.get_by_role("button", name=re.compile(f"📌 Run {number}: ")).wait_for()
    runs = ["Run 1: small 32 | load rest", "Run 2: no partition", "Run 3: small 16 | load rest"]
    pinned = page.get_by_role("button", pressed=True).filter(has_text="Run ")
    expect(pinned).to_have_text([f"📌 {name}" for name in runs])
    start = page.get_by_role("combobox", name="Start from")
    expect(start.locator("option:checked")).to_have_text(f"edited: {preset}")
    # Run 3 can be pinned before it is shown: then the table has it before run 2 at first.
    sections = page.locator(f"{DASHBOARD} .gpuscope-differences > details")
    expect(sections).to_have_count(2)
    expect(sections.nth(0)).to_contain_text(f"A: {runs[0]}; B: {runs[2]}.")
    expect(sections.nth(1)).to_contain_text(f"A: {runs[1]}; B: {runs[2]}.")
    check_in_both_themes(page)
    shot("compared")
    for name, suffix in (("Trace", "parquet"), ("Report", "html"), ("Perfetto", "json.gz"),
                         ("nsys stats", "sqlite")):  # fmt: skip
        unfold(page, "Save")
        button(page, name).click()
        page.get_by_text(f"dashboard-run-3.{suffix}").wait_for()
        assert focus(page) == name
    saved = lab.folder / "dashboard-run-3"
    trace = gs.load_trace(saved.with_suffix(".parquet"))
    assert pq.read_table(saved.with_suffix(".parquet")).num_rows == len(trace)
    events = json.loads(gzip.decompress(saved.with_suffix(".json.gz").read_bytes()))
    kernels = trace.kind_counts()["kernel"]
    assert sum(one.get("cat") == "kernel" for one in events["traceEvents"]) == kernels
    with contextlib.closing(sqlite3.connect(saved.with_suffix(".sqlite"))) as database:
        (count,) = database.execute("select count(*) from CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    assert count == kernels
    assert not errors(console), "\n".join(errors(console))
    page.goto(saved.with_suffix(".html").as_uri())
    page.get_by_text("ESCAPED").first.wait_for()


def test_it_works_in_jupyter_notebook(browser_page, console, shot, tmp_path):
    pytest.importorskip("notebook", reason="needs Jupyter Notebook 7")
    page = browser_page
    folder = tmp_path / "notebooks"
    folder.mkdir()
    write_notebook(folder, CELLS[:1])
    with running_lab(tmp_path, folder, app="notebook") as notebook:
        open_notebook(page, notebook)
        run_first_cell(page)
        # Jupyter Notebook 7.6 logs an error of its own whenever it opens a notebook.
        console[:] = [line for line in console if "reading 'schema'" not in line]
        row(page, "workload", "small").get_by_label("Repeats").fill("200")
        page.keyboard.press("Tab")
        handle(page).focus()
        page.keyboard.press("ArrowRight")
        until_said(page, "small 24 SMs")
        button(page, "Apply and run").click()
        until_over(page, "Done: 200 timed calls.", 1)
        page.get_by_text("ran inside its 24 SMs").first.wait_for()
        repeat(page, 1_000_000)
        page.keyboard.press("Control+Enter")
        page.get_by_text("Running:").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("Stopped early:").wait_for()
        unfold(page, "Save")
        button(page, "Trace").click()
        page.get_by_text("dashboard-run-2.parquet").wait_for()
        assert gs.load_trace(folder / "dashboard-run-2.parquet").kind_counts()["kernel"] > 0
        assert not errors(console), "\n".join(errors(console))


def test_a_reopened_notebook_shows_the_last_picture_of_a_timeline(lab, browser_page):
    page = browser_page
    live = (
        "import gpuscope as gs\ngpu = gs.open_device('sim:h200', quiet=True)\n"
        "gemm = gs.Gemm(gpu, m=64, n=64, k=64)\n"
        "with gpu.create_stream(name='s') as s, gs.profile(gpu, live=True) as recording:\n"
        "    gemm.execute(stream=s)\n    gemm.wait()"
    )
    write_notebook(lab.folder, [live, "gs.Timeline(recording.trace)"])
    open_notebook(page, lab)
    page.evaluate(RUN_ALL)
    plots = page.locator(".jp-OutputArea-output .gpuscope-timeline")
    expect(plots).to_have_count(2)
    pictures = page.locator(".gpuscope-picture img")
    expect(pictures).to_have_count(2)
    for picture in pictures.all():
        expect(picture).to_be_hidden()  # the widget is there
    page.wait_for_function(IDLE)
    command(page, "docmanager:save")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    page.wait_for_function(IDLE)
    open_notebook(page, lab)
    for picture in pictures.all():
        expect(picture).to_be_visible()
    expect(page.get_by_text("model not found").first).to_be_hidden()
    sizes = [len(picture.get_attribute("src")) for picture in pictures.all()]
    assert min(sizes) > 0.8 * max(sizes), "the live one's is of its beginning"


def open_as_html(page, folder, cells):
    """Execute a notebook, convert it to HTML, and open that without a network."""
    write_notebook(folder, cells)
    subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", NOTEBOOK],
        cwd=folder, check=True, capture_output=True,
        env={**os.environ, "IPYTHONDIR": str(folder), "JUPYTER_CONFIG_DIR": str(folder)},
    )  # fmt: skip
    page.route(re.compile("^https?:"), lambda route: route.abort())
    page.goto((folder / NOTEBOOK).with_suffix(".html").as_uri())


def test_a_timeline_is_a_picture_in_html_without_a_network(browser_page, tmp_path):
    gs.trace.save_trace(escaped(), tmp_path / "a.parquet")
    shown = f"import gpuscope as gs\ngs.Timeline(gs.load_trace({str(tmp_path / 'a.parquet')!r}))"
    open_as_html(browser_page, tmp_path, [shown])
    widget = browser_page.locator(".jupyter-widgets")
    expect(widget).to_have_count(1)
    picture = browser_page.locator(".gpuscope-picture")
    expect(picture.locator("img")).to_be_visible()
    # As ipywidgets does where there is a network.
    widget.evaluate("(node) => node.append(document.createElement('div'))")
    expect(picture).to_be_hidden()


def test_it_is_shown_in_html_without_a_kernel_or_a_network(browser_page, tmp_path):
    page = browser_page
    open_as_html(page, tmp_path, [CELLS[0], "dashboard.start()\ndashboard.wait()"])
    saved = page.locator(".gpuscope-saved")
    saved.get_by_text("Confined: all work").first.wait_for()
    for words in ("SIMULATED, not measured", "p99", "TFLOP/s", "overlap"):
        assert words in saved.inner_text()
