"""The quickstart notebook and its dashboard, driven in JupyterLab by a real browser."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "test-results"
IMAGE = ROOT / "docs" / "images" / "dashboard.png"
NOTEBOOK = "00_quickstart.ipynb"
DASHBOARD = ".jp-OutputArea-output .gpuscope-dashboard"
PLOT = f"{DASHBOARD} .js-plotly-plot"

IDLE = """() => {
    const kernel = window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.status === 'idle';
}"""
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
# The outlines of the bars that are painted, once they differ from those before and the status
# line from what it said before: [outlines, status].
PAINTED = f"""([bars, said]) => {{
    const now = [...document.querySelectorAll('{PLOT} .barlayer .point path')]
        .map(bar => bar.getAttribute('d')).join(' ');
    const says = document.querySelector('.gpuscope-status').innerText;
    return now !== '' && now !== bars && says !== said && [now, says];
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


def button(page, name: str, *, enabled: bool = True):
    state = ":not([disabled])" if enabled else "[disabled]"
    return page.locator(f".jupyter-button{state}", has_text=re.compile(f"{name}$"))


def open_and_run_all(page, lab) -> None:
    page.goto(lab.page(NOTEBOOK))
    page.wait_for_function(IDLE, timeout=40_000)
    page.evaluate(RUN_ALL)
    button(page, "Run").wait_for(timeout=40_000)
    page.locator(PLOT).wait_for()
    page.wait_for_function(IDLE)
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    button(page, "Run").scroll_into_view_if_needed()


def carve(page, shot) -> None:
    """A count that the GPU cannot give is refused in place; another one is planned."""
    partitions = page.get_by_label("Partitions")
    partitions.fill("small: 17, load: rest")
    error = page.locator(".gpuscope-error")
    error.wait_for()
    assert "16 below and 20 above" in error.inner_text()
    button(page, "Run", enabled=False).wait_for()
    shot("invalid")
    partitions.fill("small: 24, load: rest")
    page.locator(".gpuscope-plan").filter(has_text="24 granted").wait_for()
    assert page.get_by_label("Stream in").first.input_value() == "small (24 SMs)"


def run_and_watch(page, shot) -> None:
    """The timeline is painted, and painted anew, while the run goes on."""
    button(page, "Run").hover()
    button(page, "Run").click()
    button(page, "Stop").wait_for()
    first = page.wait_for_function(PAINTED, arg=["", ""]).json_value()
    later = page.wait_for_function(PAINTED, arg=first).json_value()
    shot("running")
    for _, said in (first, later):
        assert said.startswith("Running"), f"nothing was painted during the run, but at {said!r}"


def judge(page) -> None:
    """Latency, overlap and gain are there, and say that they are simulated."""
    results = page.locator(".gpuscope-results")
    results.wait_for(timeout=40_000)
    assert page.get_by_text("Done: 2,000 timed calls.").is_visible()
    cells = results.locator("tbody tr").first.locator("td").all_inner_texts()
    assert cells[:4] == ["small", "small", "2000", "2000"]
    assert all(float(cell) > 0 for cell in cells[4:7]), f"p50, p90, p99 are {cells[4:7]}"
    assert all(word in results.inner_text() for word in ("overlap", "gain", "SIMULATED"))
    page.locator(f"{PLOT} .gtitle", has_text="SIMULATED").wait_for()
    painted = page.locator(f"{PLOT} .main-svg").first.bounding_box()
    around = page.locator(DASHBOARD).bounding_box()
    assert painted["width"] > 0.95 * around["width"], "the figure does not fill its place"


@pytest.mark.timeout(150)
def test_carve_run_watch_and_judge(lab, browser_page, console, shot):
    page = browser_page
    page.set_default_timeout(20_000)
    open_and_run_all(page, lab)
    assert page.get_by_text("SIMULATED, not measured").first.is_visible()
    shot("ready")
    carve(page, shot)
    run_and_watch(page, shot)
    judge(page)

    page.set_viewport_size({"width": 1280, "height": 1400})  # the dashboard fits
    page.locator(DASHBOARD).scroll_into_view_if_needed()
    shot("done")
    picture = RESULTS / "dashboard.png"
    page.locator(DASHBOARD).screenshot(path=picture)
    if os.environ.get("GPUSCOPE_UPDATE_IMAGES") == "1":
        IMAGE.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, IMAGE)

    errors = [line for line in console if line.startswith("error")]
    assert not errors, "\n".join(errors)
