"""What teachers get: ten questions to each lesson, and notes that name what the lessons ask."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
from playing import LESSONS, NOTEBOOKS, asked_in, cells

ROOT = NOTEBOOKS.parent
TESTS = ROOT / "lessons" / "tests"
QUESTIONS = tomllib.loads((TESTS / "questions.toml").read_text("utf-8"))
NOTES = re.split(
    r"(?m)^## Lesson (\d+): ", (ROOT / "docs" / "howto" / "teach_lessons.md").read_text("utf-8")
)
NOTES = {int(number): text for number, text in zip(NOTES[1::2], NOTES[2::2], strict=True)}


def test_every_lesson_has_questions_and_notes():
    assert sorted(QUESTIONS) == [name[:2] for name in LESSONS]
    assert sorted(NOTES) == [int(name[:2]) for name in LESSONS]


@pytest.mark.parametrize("name", LESSONS)
def test_ten_questions_are_answered_from_cells_of_their_lesson(name):
    there = {cell["id"]: cell["source"] for cell in cells(name)}
    asked = QUESTIONS[name[:2]]
    assert len({one["question"] for one in asked}) == len(asked) == 10
    for one in asked:
        assert one["answer"], one
        assert one["cells"], one
        assert set(one["cells"]) <= set(there), one
        assert not any(one["question"] in text for text in there.values()), "it is held back"


def minutes(name):
    """Return what a lesson states at its top: the only place of this number."""
    return int(re.findall(r"\*About (\d+) minutes", cells(name)[0]["source"])[0])


def test_courses_are_planned_with_the_minutes_of_the_lessons():
    plans = (ROOT / "docs" / "howto" / "teach.md").read_text("utf-8").partition("## Plans")[2]
    planned = re.findall(r"(?<!of )(?<!lesson )\b(\d+) \((\d+)\)", plans.partition("\n\n[")[0])
    assert {int(number) for number, _ in planned} == {int(name[:2]) for name in LESSONS}
    stated = {int(name[:2]): minutes(name) for name in LESSONS}
    assert all(int(planned_min) == stated[int(number)] for number, planned_min in planned)


@pytest.mark.parametrize("name", LESSONS)
def test_notes_plan_the_minutes_and_name_every_question(name):
    notes = NOTES[int(name[:2])]
    plan, _, wrong = notes.partition("| they think |")
    assert sum(map(int, re.findall(r"^\| (\d+) \|", plan, re.MULTILINE))) == minutes(name)
    asked = set(asked_in(name))
    assert asked <= set(re.findall(r"`(\w+)`", plan)), "each is in some part of the plan"
    seen = [row.split(" | ")[1] for row in wrong.splitlines() if row.count(" | ") == 2]
    assert len(seen) >= 4, "what learners get wrong"
    assert sum(bool(asked & set(re.findall(r"`(\w+)`", one))) for one in seen) >= 3


def test_twenty_questions_need_several_cells_and_are_held_back():
    asked = tomllib.loads((TESTS / "transfer.toml").read_text("utf-8"))["transfer"]
    texts = {f"{name[:2]} {cell['id']}": cell["source"] for name in LESSONS for cell in cells(name)}
    assert len({one["question"] for one in asked}) == len(asked) == 20
    for one in asked:
        assert len(set(one["cells"])) >= 2, one
        assert set(one["cells"]) <= set(texts), one
        for said in (one["question"], one["answer"]):
            assert not any(said in text for text in texts.values()), one


def test_questions_are_printed_with_and_without_answers():
    def printed(*arguments):
        script = str(ROOT / "scripts" / "questions.py")
        return subprocess.run(
            [sys.executable, script, *arguments], capture_output=True, text=True, check=True
        ).stdout

    first = QUESTIONS["02"][2]
    assert f"3. {first['question']}" in printed("2")
    assert first["answer"] not in printed("2")
    assert f"**{first['answer']}** (02_streams.ipynb: " in printed("2", "--answers")
    assert printed("transfer", "--answers").count("**") == 2 * 20
