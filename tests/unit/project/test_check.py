"""`make check` selects the unit tests of the rooms that changed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check", ROOT / "scripts" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("gpuscope/trace/model.py", "tests/unit/trace"),
        ("gpuscope/record/cupti/source.py", "tests/unit/record"),
        ("gpuscope/errors.py", "tests/unit"),
        ("pyproject.toml", "tests/unit"),
        ("conftest.py", "lessons/tests/unit"),
        ("lessons/gpuscope_lessons/attempt.py", "lessons/tests/unit"),
        ("notebooks/01_launch_and_wait.ipynb", "lessons/tests/unit"),
        ("tests/fake_cupti.py", "tests/unit"),
        ("tests/unit/figures/test_figures.py", "tests/unit/figures"),
        ("tests/unit/project/test_docs.py", "tests/unit/project/test_docs.py"),
        ("docs/howto/ci.md", "tests/unit/project/test_docs.py"),
        ("README.md", "tests/unit/project/test_docs.py"),
        ("examples/quickstart.toml", "tests/unit/experiments"),
    ],
)
def test_a_change_selects_its_rooms_tests(check, path, tests):
    assert tests in check.selected([path])


def test_a_change_that_all_share_selects_every_unit_test_once(check):
    every = ["lessons/tests/unit", "tests/unit"]
    assert check.selected(["gpuscope/errors.py", "gpuscope/trace/model.py"]) == every


def test_other_suites_and_licences_select_none(check):
    assert check.selected(["tests/gpu/test_cupti.py", "LICENSE"]) == []


def test_what_is_selected_exists(check):
    rooms = [path.name for path in (ROOT / "gpuscope").iterdir() if (path / "__init__.py").exists()]
    for room in rooms:
        assert f"tests/unit/{room}" in check.selected([f"gpuscope/{room}/module.py"])
