"""The instructor's build: solutions and held cells are taken out, and judge what is handed in."""

from __future__ import annotations

import json
import re

import pytest
from graded_books import RIGHT, book, cell, graded
from lesson_answers import KEYS
from playing import LESSONS, NOTEBOOKS, solutions
from typer.testing import CliRunner

from gpuscope.cli.commands import app
from gpuscope.errors import GpuscopeError, NotFound
from gpuscope_lessons.assignment import give_out
from gpuscope_lessons.grading import grade


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


@pytest.fixture(scope="module")
def given_out(tmp_path_factory):
    """The folder of the lessons as learners get them."""
    out = tmp_path_factory.mktemp("class") / "out"
    give_out(NOTEBOOKS, out)
    return out


@pytest.mark.parametrize("name", LESSONS)
def test_links_and_headings_of_what_is_given_out_lead_somewhere(name, given_out):
    before, after = sources(NOTEBOOKS / name), sources(given_out / name)
    linked = [text for text in after.values() if text.startswith(("#", "-", "*")) or "](" in text]
    for text in linked:
        for target in re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`]*`", "", text)):
            assert target.startswith("http") or (given_out / target).exists(), target
    folded = {name for name, text in before.items() if "<details>" in text}
    assert folded
    for one in folded:
        announced = after[one].partition("### What the simulator")[0].strip().splitlines()
        assert "Not given out" in announced[-1], "what announces folds leads to this"
    assert "](" in "".join(after.values()), "links to other lessons stay"


def test_links_in_code_and_to_what_is_given_out_stay(folders, tmp_path):
    text = (
        "See [two](02_two.ipynb#b), [web](https://example.org), [top](#a), `f[0](x)`, "
        "[a page](../docs/a.md#b) and ![a picture](a.png).\n\n```python\nf[0](y)\n```"
    )
    markdown = {"id": "text", "cell_type": "markdown", "source": text, "metadata": {}}
    for name in ("01_one.ipynb", "02_two.ipynb"):
        book(folders[1] / name, before=[markdown])
    give_out(folders[1], tmp_path / "out")
    assert sources(tmp_path / "out" / "01_one.ipynb")["text"] == (
        "See [two](02_two.ipynb#b), [web](https://example.org), [top](#a), `f[0](x)`, "
        "a page (`../docs/a.md#b`) and a picture (`a.png`).\n\n```python\nf[0](y)\n```"
    )


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
