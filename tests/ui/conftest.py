"""A JupyterLab of its own and a browser, for tests marked `ui`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_lab import Lab, open_browser, running_lab

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """JupyterLab with a copy of our notebooks."""
    notebooks = tmp_path / "notebooks"
    shutil.copytree(ROOT / "notebooks", notebooks, ignore=shutil.ignore_patterns(".*"))
    with running_lab(tmp_path, notebooks) as running:
        yield running


@pytest.fixture
def browser_page() -> Iterator[object]:
    """A page of Chromium or Chrome, 1280 px wide."""
    pytest.importorskip("playwright.sync_api")
    with open_browser() as context:
        yield context.new_page()
