"""Lessons for everyone: axe finds nothing on any of their pages, as JupyterLab renders them."""

from __future__ import annotations

import pytest
from jupyter_lab import BUSY, IDLE, check_accessibility, open_in_tab
from playing import LESSONS

pytestmark = pytest.mark.ui

OURS = ".jp-Notebook :is(.jp-OutputArea, .jp-RenderedMarkdown)"
"""Texts and results. The rest of the page is JupyterLab's, whose editors have no names for axe."""


@pytest.mark.parametrize("name", LESSONS)
def test_axe_finds_nothing_on_a_lesson_that_has_run(lab_of_ours, lab_page, name):
    open_in_tab(lab_page, lab_of_ours, name)
    lab_page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    lab_page.wait_for_function(f"() => !({BUSY})()")
    lab_page.wait_for_function(IDLE)
    lab_page.locator(".gpuscope-results").wait_for()
    check_accessibility(lab_page, OURS)
