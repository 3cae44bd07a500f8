"""A page of the site for browsers says what it could not load."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.ui

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("lite", ROOT / "scripts" / "lite.py")
lite = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lite)

THERE, AWAY = "https://there.example/pyodide.mjs", "https://away.example/pyodide-lock.json"


@pytest.fixture
def opened(tmp_path, browser_page):
    def load(urls):
        page = tmp_path / "lab" / "index.html"
        page.parent.mkdir(exist_ok=True)
        page.write_text("<html><body>JupyterLite</body></html>", "utf-8")
        lite.say_what_is_unreached(tmp_path, urls)
        browser_page.route("https://site.example/**", lambda to: to.fulfill(path=page))
        browser_page.route(THERE, lambda to: to.fulfill(body=""))
        browser_page.route(AWAY, lambda to: to.abort())
        browser_page.goto("https://site.example/lab/index.html", wait_until="networkidle")
        return browser_page.get_by_role("alert")

    return load


def test_what_is_out_of_reach_is_named(opened):
    alert = opened([THERE, AWAY])
    alert.wait_for()
    assert AWAY in alert.inner_text()
    assert THERE not in alert.inner_text()


@pytest.mark.parametrize("urls", [[THERE], []])
def test_where_all_is_there_nothing_is_said(opened, urls):
    assert opened(urls).count() == 0
