"""docs/contracts.md and the test tree are in step, both ways."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "contracts.md").read_text("utf-8")
PREFIXES = {"A": "guard", "B": "handle", "C": "scratch", "D": "streams", "E": "mm_out"}
COUNTS = {"A": 14, "B": 11, "C": 8, "D": 12, "E": 7}
RULES = [(letter, number) for letter, count in COUNTS.items() for number in range(1, count + 1)]
ORIGINS = {"A": "ExecuTorch #20158", "B": "Torch-TensorRT #4314", "C": "ONNX Runtime #29244",
           "D": "Quadrants #407", "E": "ExecuTorch #19360"}  # fmt: skip
NUMBERED = re.compile(rf"test_({'|'.join(PREFIXES.values())})_(\d\d)_\w+")


@cache
def in_the_tree() -> set[str]:
    """Names of all numbered test functions."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if NUMBERED.search(text) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= {node.name} if NUMBERED.fullmatch(node.name) else set()
    return found


def on_the_page() -> set[str]:
    return {match[0] for match in NUMBERED.finditer(PAGE)}


@pytest.mark.parametrize(("letter", "number"), RULES, ids=str)
def test_every_rule_is_on_the_page_with_a_test_that_exists(letter, number):
    (row,) = re.findall(rf"^\| {letter}{number} \| (.+) \| (.*) \| (\d+) \|$", PAGE, re.MULTILINE)
    statement, where, count = row
    assert len(statement) > 20
    mine = {name for name in in_the_tree() if name.startswith(
        f"test_{PREFIXES[letter]}_{number:02}_")}  # fmt: skip
    assert mine, f"no test for {letter}{number}"
    assert mine <= on_the_page()
    assert int(count) == len(mine)
    assert set(where.split(", ")) <= {"none", "sim", "cpu", "GPU"}


def test_every_numbered_test_is_on_the_page():
    assert in_the_tree() - on_the_page() == set()


def test_every_test_on_the_page_exists():
    assert on_the_page() - in_the_tree() == set()


def test_numbers_are_those_of_rules():
    known = {(PREFIXES[letter], number) for letter, number in RULES}
    found = {(match[1], int(match[2])) for match in map(NUMBERED.fullmatch, in_the_tree()) if match}
    assert found <= known


@pytest.mark.parametrize("letter", COUNTS)
def test_origins_are_named(letter):
    (section,) = re.findall(rf"^## {letter}\. .*\n\n(.*)$", PAGE, re.MULTILINE)
    assert ORIGINS[letter] in section


def test_files_on_the_page_exist():
    for file in set(re.findall(r"\]\(\.\./(tests/[\w/.]+)\)", PAGE)):
        assert (ROOT / file).exists()


def test_the_page_is_up_to_date():
    script = ROOT / "scripts" / "contracts_page.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
