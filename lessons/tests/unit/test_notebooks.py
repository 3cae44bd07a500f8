"""The lessons: executed on the simulated GPU, answered right and wrong, and well made."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest
from lesson_answers import KEYS
from nbclient import NotebookClient
from patience import PATIENCE_S
from playing import COMPILES, LESSONS, NOTEBOOKS, asked_in, cells, hints, play

MOST_CELLS = 44
LONGEST = {
    "02_streams.ipynb": 51,
    "03_events.ipynb": 50,
    "06_latency_under_load.ipynb": 45,
    "08_graphs.ipynb": 55,
    "11_find_the_race.ipynb": 68,
    "14_a_small_server.ipynb": 48,
}
"""Cells of longer ones; lessons 11 and 14 are of eight programs each, in two sittings, and lessons
2, 3 and 8 have three cells for an exercise in C++ and three for one in PyTorch; lesson 2 explains
blocks and threads, too."""
PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
HIDDEN = {"predict", "outcome", "check", "fact"}
"""Tags of cells whose source is collapsed: it would tell too early."""


def test_there_are_fourteen_lessons_and_a_key_to_each():
    assert [name[:2] for name in LESSONS] == [f"{number:02}" for number in range(1, 15)]
    assert sorted(KEYS) == LESSONS


# -- executed, by nobody in particular ----------------------------------------------------


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_in_a_kernel_where_nobody_answers(name, tmp_path, monkeypatch):
    for place in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(place, str(tmp_path / place.lower()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PLOTLY_RENDERER", "plotly_mimetype")
    book = nbformat.read(NOTEBOOKS / name, as_version=4)
    NotebookClient(
        book,
        timeout=None,
        startup_timeout=PATIENCE_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    assert list(tmp_path.glob("*.csv")) == [], "a lesson writes no files by itself"
    outputs = {cell.id: cell.outputs for cell in book.cells if cell.cell_type == "code"}
    shown = [data for found in outputs.values() for one in found if (data := one.get("data"))]
    figures = [data[PLOTLY] for data in shown if PLOTLY in data]
    assert figures
    for figure in figures:
        title = figure["layout"]["title"]["text"]
        assert "SIMULATED" in title or "recorded" in title
    asked = asked_in(name)
    assert len([data for data in shown if WIDGET in data]) == len(
        [what for what in asked.values() if what != "check"]
    )
    results = outputs["results"][-1]["data"]["text/html"]
    assert results.count("<td>not predicted</td>") == list(asked.values()).count("predict")
    assert "<td>wrong</td>" not in results


# -- answered -----------------------------------------------------------------------------


def expected(asked, verdict):
    return "not available" if asked.endswith("_in_cuda") and not COMPILES else verdict


@pytest.mark.parametrize("name", LESSONS)
def test_who_knows_is_told_so(name):
    key = KEYS[name]
    results = play(name, answers=key.right, changed=key.solved).results
    verdicts = {one.name: one.verdict for one in results.values()}
    kinds = {one.name: one.kind for one in results.values()}
    wanted = {"prediction": "right", "exercise": "solved"}
    assert verdicts == {asked: expected(asked, wanted[kinds[asked]]) for asked in verdicts}
    assert set(verdicts) == set(asked_in(name))


@pytest.mark.parametrize("name", LESSONS)
def test_who_is_wrong_is_told_so_and_why_and_gets_hints(name):
    key = KEYS[name]
    played = play(name, answers=key.wrong, changed=key.failed)
    for result in played.results.values():
        wanted = {"prediction": "wrong", "exercise": "not solved"}[result.kind]
        assert result.verdict == expected(result.name, wanted), result
        assert result.attempts == (result.verdict != "not available"), result
    outcomes = [value for value in played.values.values() if hasattr(value, "explanation")]
    assert len(outcomes) == list(asked_in(name).values()).count("predict")
    for outcome in outcomes:
        assert outcome.rule, outcome.result
        assert "Not this time." in outcome.html()
        assert outcome.result.measured
    assert any(outcome.explanation is not None for outcome in outcomes)
    assert any(outcome.figure is not None for outcome in outcomes)
    for value in played.values.values():
        if hasattr(value, "hint"):
            assert value.found, value
            assert value.hint or value.result.verdict == "not available", value
    hints_do_not_give_the_answer_away(name, key, played.names["lesson"])


def hints_do_not_give_the_answer_away(name, key, lesson):
    for asked, what in asked_in(name).items():
        if what == "quiz":
            question = lesson.questions[asked]
            right = question.kind.show(question.kind.read(key.right[asked]))
            for _ in range(6):
                if right.lower() in question.said.lower():
                    break
                assert "Hint: " in question.said, asked
                question.give(*key.wrong[asked])
            assert f"The answer is {right}." in question.said, asked
    for check, given in hints(name).items():
        task = check.replace("check-", "task-")
        assert given[-1].startswith("A solution"), "hints end with one to compare with"
        before = next(one["source"] for one in cells(name) if one["id"] == task).splitlines()
        for line in {line.strip() for line in key.solved[task].splitlines()} - {
            line.strip() for line in before
        }:
            assert not line or not any(line in hint for hint in given[:-1]), (task, line)


@pytest.mark.parametrize("name", LESSONS)
def test_checks_and_quizzes_tell_their_rule(name):
    for cell in cells(name):
        for call in ast.walk(
            ast.parse(re.sub(r"(?m)^%.*", "", cell["source"]))
            if cell["cell_type"] == "code"
            else ast.Module([], [])
        ):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in (
                "lesson.check",
                "lesson.quiz",
            ):
                rules = [one.value for one in call.keywords if one.arg == "rule"]
                assert rules, cell["id"]


@pytest.mark.parametrize("name", LESSONS)
def test_a_check_needs_no_other_check(name):
    """Who leaves one out would get a ``NameError`` from the next."""
    book = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    checks = {
        cell["id"]: ast.parse(cell["source"])
        for cell in book
        if "lesson.check(" in cell["source"] or "lesson.quiz(" in cell["source"]
    }
    for one, tree in checks.items():
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - stored(tree)
        for other, elsewhere in checks.items():
            if other != one:
                assert not used & stored(elsewhere, ast.iter_child_nodes), (one, other)


def stored(tree, nodes=ast.walk):
    """Return what a cell gives a name: anywhere, or at its top."""
    names = {node.name for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Assign):
            found = ast.walk(node)
            names |= {
                one.id
                for one in found
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
    return names


# -- well made ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_committed_without_what_running_leaves(name):
    book = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(book)
    ids = [cell.id for cell in book.cells]
    assert len(set(ids)) == len(ids) <= LONGEST.get(name, MOST_CELLS)
    assert all(re.fullmatch(r"[a-z0-9-]+", one) for one in ids)
    for cell in book.cells:
        assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None)
    assert book.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("name", LESSONS)
def test_what_would_tell_too_early_is_collapsed(name):
    for cell in cells(name):
        tags = set(cell["metadata"].get("tags", ()))
        if tags & HIDDEN:
            assert cell["metadata"]["jupyter"]["source_hidden"] is True, cell["id"]
            assert tags & {"hide-input", "remove-cell"}, cell["id"]
        source = cell["source"]
        if cell["cell_type"] == "code" and re.search(
            r"lesson\.(reveal|quiz|check)|^assert", source
        ):
            assert tags & HIDDEN, cell["id"]


@pytest.mark.parametrize("name", LESSONS)
def test_each_prediction_comes_before_what_it_is_about(name):
    told = {}
    for index, cell in enumerate(cells(name)):
        for what, asked in re.findall(r"lesson\.(predict|reveal)\(\s*\"(\w+)\"", cell["source"]):
            assert (what, asked) not in told
            told[what, asked] = index
    predictions = [asked for what, asked in told if what == "predict"]
    assert len(predictions) >= 3
    for asked in predictions:
        assert told["predict", asked] < told["reveal", asked]


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_has_its_parts(name):
    texts = [cell["source"] for cell in cells(name) if cell["cell_type"] == "markdown"]
    number = int(name[:2])
    assert texts[0].startswith(f"# Lesson {number}: ")
    (minutes,) = re.findall(r"\*About (\d+) minutes", texts[0])
    assert 10 <= int(minutes) <= 80
    headings = [line for text in texts for line in text.splitlines() if line.startswith("## ")]
    assert headings[-2:] == ["## What you take with you", "## Read on"]
    assert "## Exercises" in headings or number == 10
    exercises = [what for what in asked_in(name).values() if what != "predict"]
    assert len(exercises) >= 3
    code = "".join(cell["source"] for cell in cells(name) if cell["cell_type"] == "code")
    assert "gs.open_device()" in code, "the same text on any device"
    assert f"lesson_{number:02}.csv" in code


@pytest.mark.parametrize("name", LESSONS)
def test_links_lead_somewhere(name):
    found = 0
    for cell in cells(name):
        if cell["cell_type"] == "markdown":
            for target in re.findall(r"\]\(([^)#]+)\)", cell["source"]):
                if not target.startswith("http"):
                    assert (NOTEBOOKS / target).exists(), f"{name} → {target}"
                    found += 1
    assert found >= 2


# -- the rules ----------------------------------------------------------------------------


def test_every_rule_names_a_lesson_and_an_exercise_that_are_there():
    page = (Path(NOTEBOOKS).parent / "docs" / "rules.md").read_text("utf-8")
    rows = re.findall(r"^\| ([A-Z]+\d+) \| (.+?) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert len(rows) > 40
    numbers = [number for number, *_ in rows]
    assert len(set(numbers)) == len(numbers)
    asked = {name[:2]: set(asked_in(name)) for name in LESSONS}
    for number, rule, section, met in rows:
        assert rule, number
        assert re.search(r"\d|API", section), number
        places = re.findall(r"\[lesson (\d+)\]\(\.\./notebooks/(\S+?)\): ((?:`\w+`(?:, )?)+)", met)
        assert places, f"{number} is met by nothing: {met!r}"
        for lesson, path, names in places:
            assert path in LESSONS
            assert int(path[:2]) == int(lesson)
            for one in re.findall(r"`(\w+)`", names):
                assert one in asked[path[:2]], f"{number}: lesson {lesson} does not ask {one}"


def test_every_lesson_meets_a_rule_or_says_of_what_it_is():
    page = (Path(NOTEBOOKS).parent / "docs" / "rules.md").read_text("utf-8")
    for name in LESSONS:
        assert name in page or name.startswith("10_")
