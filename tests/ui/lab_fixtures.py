"""A JupyterLab of its own and a browser, for tests marked `ui`."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_lab import Lab, open_browser, running_lab

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


@pytest.fixture
def browser_page() -> Iterator[object]:
    """A page of Chromium or Chrome, 1280 px wide."""
    pytest.importorskip("playwright.sync_api")
    with open_browser() as context:
        yield context.new_page()
