"""The tests that need a GPU: two passes, and marks of those that need it for themselves."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted(
    [
        path
        for folder in ("tests/gpu", "tests/contract", "lessons/tests/gpu")
        for path in (ROOT / folder).glob("*.py")
    ]
)
MEASURING = {
    "calibrate", "clocks_of", "confirm", "critical_path", "diff", "energy", "idle_causes", "judge", "judged",
    "overlap", "play", "processes_by_uuid", "queue_depth", "try_delay",
}  # fmt: skip
"""Whatever calls these measures what others on the GPU change."""
ALONE = "gpu_alone"


@pytest.fixture(scope="module")
def gpu_tests():
    spec = importlib.util.spec_from_file_location("gpu_tests", ROOT / "scripts" / "gpu_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (3, 1), (8, 4), (16, 6), (128, 6)])
def test_workers_follow_the_cores_up_to_what_a_gpu_takes(gpu_tests, cores, count):
    assert gpu_tests.workers(cores) == count


@pytest.mark.parametrize(
    ("statuses", "status"),
    [((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 0), 1), ((0, 1), 1), ((5, 3), 3), ((2, 5), 2)],
)  # fmt: skip
def test_no_pass_that_failed_is_forgotten(gpu_tests, statuses, status):
    assert gpu_tests.status(statuses) == status


@pytest.mark.parametrize(
    ("given", "status", "ran"),
    [
        ([], 1, {"shared", "alone", "failing"}),
        (["-m", "gpu_alone"], 0, {"alone"}),
        (["-k", "nothing"], 5, set()),
    ],
)  # fmt: skip
def test_each_test_runs_in_its_pass(gpu_tests, monkeypatch, tmp_path, given, status, ran):
    (tmp_path / "test_three.py").write_text(
        "import os, pathlib, pytest\n"
        "WORKER = os.environ.get('PYTEST_XDIST_WORKER', 'none')\n"
        "def note(name, is_alone):\n"
        "    assert (WORKER == 'none') == is_alone\n"
        "    pathlib.Path(name).touch()\n"
        "@pytest.mark.gpu\n"
        "def test_shared(): note('shared', False)\n"
        "@pytest.mark.gpu\n"
        "@pytest.mark.gpu_alone('why')\n"
        "def test_alone(): note('alone', True)\n"
        "@pytest.mark.gpu\n"
        "def test_failing(): note('failing', False); assert False\n"
        "def test_without_a_gpu(): note('other', False)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu: a\n  gpu_alone: b\n")
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)  # those of the worker that runs this test
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu_tests.py", "--workers", "2", *given, "test_three.py"])
    assert gpu_tests.main() == status
    assert {path.name for path in tmp_path.iterdir() if not path.suffix} - {
        "__pycache__",
        ".pytest_cache",
    } == ran


def test_make_calls_it_with_what_was_given():
    said = subprocess.run(
        ["make", "--no-print-directory", "-n", "test-gpu", "WORKERS=3", "ARGS=-k race"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert said.splitlines()[-1].endswith("python scripts/gpu_tests.py --workers 3 -k race")


# -- who needs the GPU for itself --------------------------------------------------------------
def names_in(node: ast.AST) -> set[str]:
    """Return all names, attributes and parameters in a piece of code."""
    return {
        name
        for part in ast.walk(node)
        for name in (
            getattr(part, "id", None),
            getattr(part, "attr", None),
            getattr(part, "arg", None),
        )
        if isinstance(name, str)
    }


def reached(names: set[str], parts: dict[str, set[str]]) -> set[str]:
    """Return names, and those in the module's own functions and values of these names."""
    found, left = set(names), [*names]
    while left:
        new = parts.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def unmarked(source: str) -> list[str]:
    """Return the tests of a module that measure and do not say that they need the GPU for themselves."""
    body = ast.parse(source).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    parts = {node.name: names_in(node) for node in functions}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            parts[node.targets[0].id] = names_in(node.value)
    if ALONE in parts.get("pytestmark", ()):
        return []
    return [
        node.name
        for node in functions
        if node.name.startswith("test_")
        and reached(parts[node.name], parts) & MEASURING
        and not any(ALONE in reached(names_in(decorator), parts) for decorator in node.decorator_list)
    ]  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_measures_has_the_gpu_for_itself(path):
    assert unmarked(path.read_text("utf-8")) == []


def test_a_test_that_measures_through_a_fixture_is_found():
    source = (
        "import gpuscope as gs\n"
        "def found(gpu):\n    return gs.diff(gpu)\n"
        "def test_shared(gpu):\n    pass\n"
        "def test_measuring(found):\n    pass\n"
    )
    assert unmarked(source) == ["test_measuring"]
    assert unmarked(source.replace("def test_m", "@pytest.mark.gpu_alone('why')\ndef test_m")) == []
    assert unmarked(f"pytestmark = pytest.mark.gpu_alone('why')\n{source}") == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_mark_says_why(path):
    tree = ast.parse(path.read_text("utf-8"))
    marks = [
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == ALONE
    ]
    whys = {
        id(node.func): [ast.literal_eval(argument) for argument in node.args]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        if node.func in marks
    }
    assert all(len(whys.get(id(mark), [])) == 1 and whys[id(mark)][0] for mark in marks)
