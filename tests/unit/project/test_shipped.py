"""What comes with gpuscope beside its code, and the command that uses it."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from gpuscope import _shipped
from gpuscope.cli import experiments
from gpuscope.cli.commands import app

ROOT = Path(__file__).resolve().parents[3]


def test_examples_are_shipped():
    assert _shipped.files(ROOT) == sorted((ROOT / "examples").glob("*.*"))


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
    assert _shipped.root() == tmp_path
    example = package / _shipped.FOLDER / "examples" / "quickstart.toml"
    example.parent.mkdir(parents=True)
    example.touch()
    assert _shipped.root() == package / _shipped.FOLDER
    assert _shipped.files(_shipped.root()) == [example]
