"""A JupyterLab of its own and a browser, for tests marked `ui`."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_lab import VIEWPORT, Lab, leave_tab, open_browser, open_context, running_lab

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Run JupyterLab for all tests of this process."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "root").mkdir()
    with running_lab(folder, folder / "root") as running:
        yield running


@pytest.fixture
def lab(server: Lab) -> Iterator[Lab]:
    """JupyterLab with a folder for this test, empty; its kernels end with the test."""
    yield server.subfolder(secrets.token_hex(4))
    server.end_kernels()


@pytest.fixture
def lab_of_ours(lab: Lab) -> Lab:
    """JupyterLab with a copy of our notebooks."""
    hidden = shutil.ignore_patterns(".*")
    shutil.copytree(ROOT / "notebooks", lab.folder, ignore=hidden, dirs_exist_ok=True)
    return lab


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Chromium or Chrome, for all tests of this process."""
    pytest.importorskip("playwright.sync_api")
    with open_browser() as running:
        yield running


@pytest.fixture
def browser_page(browser: object) -> Iterator[object]:
    """A page that shares nothing with others, 1280 px wide."""
    with open_context(browser) as context:
        yield context.new_page()


@pytest.fixture(scope="session")
def loaded_lab(browser: object, server: Lab) -> Iterator[Any]:
    """A page with JupyterLab: to load that takes longer than most tests."""
    with open_context(browser) as context:
        page = context.new_page()
        page.goto(f"{server.url}/lab?token={server.token}")
        page.wait_for_function("() => window.jupyterapp?.shell?.isAttached")
        page.evaluate("() => window.jupyterapp.restored.then(() => true)")
        yield page


@pytest.fixture
def lab_page(loaded_lab: Any, lab: Lab) -> Iterator[Any]:
    """A page with JupyterLab, in which :func:`open_in_tab` opens notebooks of ``lab``.

    What a test does to the page itself stays: one that patches or routes takes ``browser_page``.
    """
    loaded_lab.set_viewport_size(VIEWPORT)
    loaded_lab.mouse.move(0, 0)
    yield loaded_lab
    leave_tab(loaded_lab)  # before its kernels end
