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


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=named)
def test_the_commands_of_a_page_exist(page):
    shell = re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    for line in "".join(shell).splitlines():
        words = line.partition("#")[0].split()
        at = next((place for place, word in enumerate(words) if word.endswith("gpuscope")), None)
        if at is None or at + 1 == len(words) or words[at - 1] == "venv":
            continue
        said = CliRunner().invoke(app, [words[at + 1], "--help"], env={"COLUMNS": "200"})
        assert said.exit_code == 0, line
        for word in words[at:]:
            assert not word.startswith("--") or word in said.output, f"{word} of: {line}"


def test_links_in_the_docs_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{named(page)} → {target}"
