"""The front page: ten questions, each with commands that exist and a picture of what they print."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "index.md").read_text("utf-8")


@pytest.fixture(scope="module")
def questions():
    spec = importlib.util.spec_from_file_location("answers", ROOT / "scripts" / "answers.py")
    module = importlib.util.module_from_spec(spec)
    before = [*sys.path]
    sys.modules["answers"] = module
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module.questions()


def test_there_are_ten_questions_each_with_its_picture(questions):
    assert len(questions) == 10
    assert all(question.title.endswith("?") for question in questions)
    pictures = {question.picture for question in questions}
    assert len(pictures) == 10
    assert pictures == {*(ROOT / "docs" / "images" / "answers").glob("*.svg")}


def test_a_picture_is_of_the_command_that_stands_above_it(questions):
    for question in questions:
        drawn = question.picture.read_text("utf-8").replace("&#160;", " ")
        words = question.commands[-1].split()[:2]
        assert " ".join(words) in drawn, question.title


def test_pictures_have_words_that_say_what_they_show():
    texts = re.findall(r"!\[(.*?)\]\(images/", PAGE)
    assert len(texts) == 11
    assert all(len(text) > 40 for text in texts)


def test_every_guide_is_in_one_place_of_the_contents():
    listed = re.findall(r"^(howto/\w+)$", PAGE, re.MULTILINE)
    guides = {f"howto/{page.stem}" for page in (ROOT / "docs" / "howto").glob("*.md")}
    assert sorted(listed) == sorted(guides)
