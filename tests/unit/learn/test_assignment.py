"""The instructor's build: solutions and held cells are taken out, and judge what is handed in."""

from __future__ import annotations

import json

import pytest
from graded_books import RIGHT, book, cell, graded
from lesson_answers import KEYS
from lessons import LESSONS, NOTEBOOKS, solutions
from typer.testing import CliRunner

from gpuscope.cli.commands import app
from gpuscope.errors import GpuscopeError, NotFound
from gpuscope.learn.assignment import give_out
from gpuscope.learn.grading import grade


def sources(path):
    return {one["id"]: "".join(one["source"]) for one in json.loads(path.read_text())["cells"]}


def test_no_solution_of_our_lessons_is_given_out(tmp_path):
    given = give_out(NOTEBOOKS, tmp_path / "out")
    assert {path.name for path in given.notebooks} >= set(LESSONS)
    assert given.solutions >= sum(len(solutions(name)) for name in LESSONS) - 1
    for name in LESSONS:
        before, after = sources(NOTEBOOKS / name), sources(tmp_path / "out" / name)
        assert list(after) == list(before)
        text = "\n".join(after.values())
        assert "A solution to compare with" not in text
        assert "<details>" not in text
        for task in (one for one in before if one.startswith("task-")):
            assert after[task] == before[task]


def test_what_is_made_of_the_copies_is_graded_by_the_lessons(tmp_path):
    name = "08_graphs.ipynb"
    give_out(NOTEBOOKS, tmp_path / "out")
    notebook = json.loads((tmp_path / "out" / name).read_text())
    solved = {**solutions(name), **KEYS[name].solved}
    for one in notebook["cells"]:
        one["source"] = solved.get(one["id"], one["source"])
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / name).write_text(json.dumps(notebook))
    exercises = [each for each in grade(tmp_path / "ada", NOTEBOOKS).grades if each.kind == "exercise"]  # fmt: skip
    assert len(exercises) == 5
    assert {each.verdict for each in exercises} == {"solved"}


def test_held_cells_are_taken_out_and_judge(folders, tmp_path):
    held = cell("held", 'lesson.check("held", "No tricks.", lambda _: double(5) == 10)', "held")
    book(folders[1] / "01_a_lesson.ipynb", "def double(x): ...", after=[held])
    given = give_out(folders[1], tmp_path / "out")
    assert given.held == 1
    assert "held" not in sources(tmp_path / "out" / "01_a_lesson.ipynb")
    copy = (tmp_path / "out" / "01_a_lesson.ipynb").read_text()
    notebook = json.loads(copy)
    cells = {one["id"]: one for one in notebook["cells"]}
    cells["task"]["source"] = RIGHT
    (folders[0] / "ada.ipynb").write_text(json.dumps(notebook))
    assert graded(folders, "held")["ada"].verdict == "solved"
    cells["task"]["source"] = "def double(x):\n    return 8"
    (folders[0] / "ada.ipynb").write_text(json.dumps(notebook))
    assert graded(folders)["ada"].verdict == "solved"
    assert graded(folders, "held")["ada"].verdict == "not solved"


def test_outputs_are_left_out(folders, tmp_path):
    book(folders[1] / "01_a_lesson.ipynb", outputs=[{"data": {"text/plain": "secret"}}])
    give_out(folders[1], tmp_path / "out")
    assert "secret" not in (tmp_path / "out" / "01_a_lesson.ipynb").read_text()


def test_nothing_is_overwritten(folders, tmp_path):
    told = CliRunner().invoke(app, ["assignment", str(tmp_path / "o"), "--lessons", str(folders[1])])  # fmt: skip
    assert told.exit_code == 0, told.output
    with pytest.raises(GpuscopeError, match="'o' is there already and not empty"):
        give_out(folders[1], tmp_path / "o")
    with pytest.raises(NotFound, match="no lessons in 'o2'"):
        give_out(tmp_path / "o2", tmp_path / "o3")
