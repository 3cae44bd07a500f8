"""Sampled stacks in speedscope itself: threads, names, and how long each function was seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made_stacks import SEEN, built

import gpuscope as gs

pytestmark = pytest.mark.ui
SITE = Path(__file__).resolve().parents[2] / ".cache/readers/speedscope/dist/release/index.html"
ROW = re.compile(r"([\d.]+)(ns|µs|ms|s) \([^)]*\)\s+([\d.]+)(ns|µs|ms|s) \([^)]*\)\s+([^\n]+)")


def times(page):
    """Return function → total and own time as the table of the sandwich view shows them, ns."""
    rows = ROW.findall(page.inner_text("body"))
    assert all(unit == own == "ns" for _, unit, _, own, _ in rows)
    return {name.strip(): (float(total), float(own)) for total, _, own, _, name in rows}


def test_speedscope_shows_the_functions_of_each_thread(browser_page, tmp_path):
    if not SITE.exists():
        pytest.skip("npm could not get speedscope: scripts/readers.sh says why")
    page = browser_page
    page.goto(SITE.as_uri())
    path = gs.export(built(SEEN), tmp_path / "run.speedscope.json")
    page.locator("input[type=file]").set_input_files(path)
    page.get_by_text("thread 12 (1/2)").wait_for()
    page.keyboard.press("3")
    page.get_by_text("Symbol Name").wait_for()
    assert times(page) == {"read": (400, 400), "main": (400, 0)}
    page.keyboard.press("n")
    page.get_by_text("main; thread (2/2)").wait_for()
    assert times(page) == {"step": (200, 200), "main": (300, 100), "no Python": (100, 100)}
