"""What comes with gpuscope beside its code, and the two commands that use it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuscope import _shipped
from gpuscope.cli import experiments
from gpuscope.cli.commands import app
from gpuscope.errors import GpuscopeError

ROOT = Path(__file__).resolve().parents[3]


def test_lessons_examples_and_the_pages_they_link_to_are_shipped():
    shipped = {str(path.relative_to(ROOT)) for path in _shipped.files(ROOT)}
    for folder, pattern in (("notebooks", "*.ipynb"), ("examples", "*.*")):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(pattern)} <= shipped
    texts = [path.read_text("utf-8") for path in (ROOT / "notebooks").glob("*.ipynb")]
    linked = {link for text in texts for link in re.findall(r"\]\(\.\./([^)#]+)", text)}
    assert len(linked) > 10
    assert linked <= shipped


def test_lessons_are_copied_as_they_are(tmp_path):
    result = CliRunner().invoke(app, ["lessons", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    copied = {path.relative_to(tmp_path / "new"): path.read_bytes()
              for path in (tmp_path / "new").rglob("*") if path.is_file()}  # fmt: skip
    assert copied == {path.relative_to(ROOT): path.read_bytes() for path in _shipped.files(ROOT)}


def test_lessons_leave_a_folder_that_is_not_empty_as_it_is(tmp_path):
    (tmp_path / "mine.txt").touch()
    error = CliRunner().invoke(app, ["lessons", str(tmp_path)]).exception
    assert isinstance(error, GpuscopeError)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_quickstart_is_a_run_of_its_example(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(experiments, "run_command", lambda *given, **how: ran.append((given, how)))
    result = CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path), "--force"])
    assert result.exit_code == 0, result.output
    (((file, device, out), how),) = ran
    assert (file, device, out) == (ROOT / "examples" / "quickstart.toml", "auto", tmp_path)
    assert how == {"force": True, "every": False, "as_json": False}


def test_a_wheel_brings_the_files_within_the_package(monkeypatch, tmp_path):
    package = tmp_path / "gpuscope"
    monkeypatch.setattr(_shipped, "__file__", str(package / "_shipped.py"))
    with pytest.raises(GpuscopeError, match="missing beside"):
        _shipped.root()
    example = package / _shipped.FOLDER / "examples" / "quickstart.toml"
    example.parent.mkdir(parents=True)
    example.touch()
    assert _shipped.root() == package / _shipped.FOLDER
    assert _shipped.files(_shipped.root()) == [example]
