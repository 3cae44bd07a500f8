"""Folders of a class."""

from __future__ import annotations

import pytest
from graded_books import book


@pytest.fixture
def folders(tmp_path):
    """Where to hand in, and the lessons."""
    book(tmp_path / "lessons" / "01_a_lesson.ipynb", "def double(x):\n    return None")
    (tmp_path / "handed_in").mkdir()
    return tmp_path / "handed_in", tmp_path / "lessons"
