"""What comes with the lessons beside their code, and the command that copies it."""

from __future__ import annotations

import re

import pytest
from playing import NOTEBOOKS
from typer.testing import CliRunner

from gpuscope.cli.commands import app
from gpuscope.errors import GpuscopeError
from gpuscope_lessons import shipped

ROOT = NOTEBOOKS.parent


def test_lessons_examples_and_the_pages_they_link_to_are_shipped():
    names = {str(path.relative_to(ROOT)) for path in shipped.files(ROOT)}
    for folder, pattern in (("notebooks", "*.ipynb"), ("examples", "*.*")):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(pattern)} <= names
    texts = [path.read_text("utf-8") for path in NOTEBOOKS.glob("*.ipynb")]
    linked = {link for text in texts for link in re.findall(r"\]\(\.\./([^)#]+)", text)}
    assert len(linked) > 10
    assert linked <= names


def test_lessons_are_copied_as_they_are(tmp_path):
    result = CliRunner().invoke(app, ["lessons", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    copied = {path.relative_to(tmp_path / "new"): path.read_bytes()
              for path in (tmp_path / "new").rglob("*") if path.is_file()}  # fmt: skip
    assert copied == {path.relative_to(ROOT): path.read_bytes() for path in shipped.files(ROOT)}


def test_lessons_leave_a_folder_that_is_not_empty_as_it_is(tmp_path):
    (tmp_path / "mine.txt").touch()
    error = CliRunner().invoke(app, ["lessons", str(tmp_path)]).exception
    assert isinstance(error, GpuscopeError)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_disk_that_is_full_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    error = CliRunner().invoke(app, ["lessons", str(tmp_path / "new")]).exception
    assert isinstance(error, GpuscopeError)
    assert "No space left" in str(error)


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_wheel_brings_the_files_within_the_package(monkeypatch, tmp_path, is_packed):
    package = tmp_path / "lessons" / "gpuscope_lessons"
    packed = package / shipped.FOLDER
    if is_packed:
        packed.mkdir(parents=True)
    monkeypatch.setattr(shipped, "__file__", str(package / "shipped.py"))
    assert shipped.root() == (packed if is_packed else tmp_path)
