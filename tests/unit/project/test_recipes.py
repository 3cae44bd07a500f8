"""The recipes of docs/develop.md are complete: their code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import example_plugin
import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "develop.md").read_text("utf-8")
BLOCK = re.compile(r"^```(python|toml)\n(?:# ([\w./]+\.(?:py|toml))\n)?(.*?)^```", re.M | re.S)
RECIPES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL))
TITLES = {
    "Add a workload kind", "Add a trace format", "Add a source of timings", "Add an analysis",
    "Add a finding, and show it on the dashboard", "Add a widget", "Add an observer",
    "Add a command", "Add a change that might help",
}  # fmt: skip
EXPECTED = {
    "Add a workload kind": "[{'workload': 'w', 'kernels': 3}]",
    "Add a source of timings": "{'host time'}",
    "Add an analysis": "'kernel': 'scale'",
    "Add a finding, and show it on the dashboard": "3</b> kernels ran",
    "Add an observer": "3",
    "Add a change that might help": "['fewer elements']",
    "Add a command": "hello Ada",
}
"""Recipe → what its last block prints."""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package that the recipes make, with the paths that make it visible."""
    folder = tmp_path_factory.mktemp("recipes")
    for _, name, text in BLOCK.findall(PAGE):
        if name:
            path = folder / "package" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return example_plugin.make_visible(folder / "installed", folder / "package")


def test_there_is_a_recipe_for_each_thing_that_is_added():
    assert set(RECIPES) == TITLES


@pytest.mark.parametrize("title", RECIPES)
def test_the_recipe_runs(title, package, tmp_path):
    first = next(
        text for _, name, text in BLOCK.findall(RECIPES["Add a workload kind"]) if not name
    )
    second = next(
        text for _, name, text in BLOCK.findall(RECIPES["Add a trace format"]) if not name
    )
    programs = [text for _, name, text in BLOCK.findall(RECIPES[title]) if not name]
    assert programs
    program = "\n".join(dict.fromkeys([first, second, *programs]))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*package, str(ROOT)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert EXPECTED.get(title, "") in done.stdout
