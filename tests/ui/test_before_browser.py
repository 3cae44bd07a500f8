"""A notebook that was saved with a former commit shows what it held where its kernel is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from jupyter_lab import IDLE

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.ui

BEFORE = Path(__file__).resolve().parents[1] / "data" / "before" / "notebook.ipynb"


def test_a_saved_notebook_shows_its_timeline_and_its_dashboard(lab, browser_page):
    shutil.copyfile(BEFORE, lab.folder / "before.ipynb")
    page, errors = browser_page, []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(lab.page("before.ipynb"))
    page.wait_for_function(IDLE)
    pictures = page.locator(".jp-OutputArea-output img")
    expect(pictures).to_have_count(2)  # of the timeline, and in what the dashboard left
    for picture in pictures.all():
        expect(picture).to_be_visible()
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 840
    saved = page.locator(".gpuscope-saved")
    expect(saved).to_be_visible()
    expect(saved).to_contain_text("SIMULATED, not measured")
    expect(saved).to_contain_text("TFLOP/s")
    assert not errors
