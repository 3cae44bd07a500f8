"""Docs that follow from other files agree with them; the code and commands in pages run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuscope.cli.app import app

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_up_to_date():
    script = ROOT / "scripts" / "docs_pages.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_readme_example_runs(tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert (tmp_path / "timeline.html").stat().st_size > 1_000_000
    assert (tmp_path / "run.parquet").exists()


PAGES = sorted((ROOT / "docs").rglob("*.md"))
PROGRAMS = [
    page for page in PAGES
    if "```python" in page.read_text("utf-8")
    and page.name not in ("native.md", "recording.md")  # excerpts, which need C or PyTorch
]  # fmt: skip


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PROGRAMS, ids=named)
def test_the_code_of_a_page_runs(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def commands(page: Path) -> list[list[str]]:
    """Return the gpuscope commands of a page's shell blocks, from the subcommand on."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
        for line in block.splitlines():
            words = line.partition("#")[0].split()
            for place, word in enumerate(words[:-1]):
                if word.rpartition("/")[2] == "gpuscope" and words[place - 1] != "venv":
                    found.append(words[place + 1 :])
    return found


@pytest.mark.parametrize(
    "page", [one for one in (ROOT / "README.md", *PAGES) if commands(one)], ids=named
)
def test_the_commands_of_a_page_exist(page):
    for subcommand, *rest in commands(page):
        said = CliRunner().invoke(app, [subcommand, "--help"], env={"COLUMNS": "200"})
        assert said.exit_code == 0, subcommand
        for word in rest:
            assert not word.startswith("--") or word in said.output, f"{word} of {subcommand}"


def test_links_in_the_docs_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{named(page)} → {target}"
