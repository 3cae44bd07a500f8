"""Lessons use what gpuscope promises to every package, and what they were called before still works."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from graded_books import OPEN, book, graded
from playing import NOTEBOOKS

import gpuscope as gs
import gpuscope_lessons

ROOT = NOTEBOOKS.parent
PACKAGE = Path(gpuscope_lessons.__file__).parent
SCRIPTS = str(ROOT / "scripts")


@pytest.fixture(scope="module")
def promised():
    """The names under gpuscope that the reference lists."""
    sys.path.insert(0, SCRIPTS)
    try:
        names = importlib.import_module("stable").names()
    finally:
        sys.path.remove(SCRIPTS)
    return {f"gpuscope.{name}" for name in names}


def used(source: str) -> set[str]:
    """Return the names of gpuscope that a file imports, or takes from what it imports.

    A room that is imported counts by what is taken from it.
    """
    tree = ast.parse(source)
    rooms: dict[str, str] = {}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gpuscope":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if node.module == "gpuscope" and alias.name in ROOMS:
                    rooms[alias.asname or alias.name] = name
                else:
                    names.add(name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "gpuscope":
                    rooms[alias.asname or alias.name] = alias.name
    taken = {
        f"{rooms[node.value.id]}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in rooms
    }
    return names | taken


ROOMS = {path.parent.name for path in Path(gs.__file__).parent.glob("*/__init__.py")}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_lessons_use_what_the_reference_lists(promised, path):
    assert used(path.read_text("utf-8")) - promised == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from gpuscope import _files", {"gpuscope._files"}),
        ("from gpuscope.device.calls import Call as C", {"gpuscope.device.calls.Call"}),
        ("from gpuscope import figures\nfigures.timeline(1)", {"gpuscope.figures.timeline"}),
        ("import gpuscope as gs\ngs.tune(1)", {"gpuscope.tune"}),
        ("from gpuscope_lessons import lesson\nimport numpy", set()),
    ],
)
def test_a_use_is_found_however_it_is_spelled(source, names):
    assert used(source) == names


FORMER = [
    "Attempt", "CAUSES", "Case", "Choice", "CudaProgram", "Feedback", "GivenOut", "Grade", "Grades", "Interval",
    "Lesson", "Limits", "Mark", "Marks", "Order", "Outcome", "Points", "Question", "Result", "Value", "case",
    "give_out", "grade", "label", "observe", "pytorch", "recording_of",
]  # fmt: skip
MOVED = {
    "Step": gs.workloads.Step, "address": gs.device.address, "find": gs.telling.find,
    "spin_kernel": gs.workloads.spin_kernel,
}  # fmt: skip


@pytest.mark.parametrize("name", [*FORMER, *MOVED])
def test_a_former_name_still_works_and_warns_where_it_is_used(name):
    with pytest.warns(
        DeprecationWarning, match=rf"gpuscope\.learn\.{name} has moved: use"
    ) as warned:
        value = getattr(gs.learn, name)
    assert value is (MOVED.get(name) or getattr(gpuscope_lessons, name))
    assert [one.filename for one in warned] == [__file__]


def test_a_name_is_imported_from_where_it_was():
    with pytest.warns(DeprecationWarning, match="use gpuscope_lessons.Lesson"):
        from gpuscope.learn import Lesson
    assert Lesson is gpuscope_lessons.Lesson
    with pytest.raises(ImportError, match="nothing"):
        from gpuscope.learn import nothing  # noqa: F401


def test_importing_the_room_warns_of_nothing_and_loads_no_lessons():
    program = "import sys, gpuscope.learn; print('gpuscope_lessons' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_what_was_handed_in_of_a_lesson_of_before_is_graded(folders, monkeypatch):
    handed_in, lessons = folders
    before = OPEN.replace("import gpuscope_lessons as learn\n", "").replace(" learn.", " gs.learn.")
    assert "gs.learn.Lesson" in before
    monkeypatch.setattr("graded_books.OPEN", before)
    book(lessons / "01_a_lesson.ipynb", "def double(x):\n    return None")
    book(handed_in / "ada.ipynb")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert graded(folders)["ada"].verdict == "solved"
