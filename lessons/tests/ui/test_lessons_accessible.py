"""Lessons for everyone: axe finds nothing on any of their pages, as JupyterLab renders them."""

from __future__ import annotations

import pytest
from jupyter_lab import BUSY, IDLE, check_accessibility
from playing import LESSONS

pytestmark = pytest.mark.ui

OURS = ".jp-Notebook :is(.jp-OutputArea, .jp-RenderedMarkdown)"
"""Texts and results. The rest of the page is JupyterLab's, whose editors have no names for axe."""


@pytest.mark.parametrize("name", LESSONS)
def test_axe_finds_nothing_on_a_lesson_that_has_run(lab_of_ours, browser_page, name):
    browser_page.goto(lab_of_ours.page(name))
    browser_page.wait_for_function(IDLE)
    browser_page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    browser_page.wait_for_function(f"() => !({BUSY})()")
    browser_page.wait_for_function(IDLE)
    browser_page.locator(".gpuscope-results").wait_for()
    check_accessibility(browser_page, OURS)
