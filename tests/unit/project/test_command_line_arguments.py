"""Every argument and option of every command, given what it cannot take: words and an exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import gpuscope as gs
from gpuscope import _shipped
from gpuscope.cli import FAILED, machine, recording, traces
from gpuscope.cli.commands import app
from gpuscope.errors import GpuscopeError
from gpuscope_lessons import Grade, grading, shipped

HOSTILE = {
    "NaN": "nan",
    "infinite": "inf",
    "greatest": "1e308",
    "least": "1e-308",
    "negative": "-1",
    "zero": "0",
    "4,300 digits": "9" * 4301,
    "control": "\x1b[31m",
    "markup": "[red]",
    "surrogate": "\udcff",
    "no text": "",
    "long": "x" * 5000,
    "long with a suffix": "x" * 5000 + ".json",
    "equals": "=",
    "assigned digits": "partitions.a=" + "9" * 4301,
    "comparison": "w.calls_per_s<=nan",
    "shard": "1/" + "9" * 4301,
    "processes": "processes:" + "9" * 4301,
    "address": "dask://",
    "folder": "folder",
    "missing": "missing/file",
    "file": "plan.json",
    "link to nothing": "dangling",
    "below a file": "plan.json/x",
    "NUL": "a\0b",
}

EXPERIMENT = {
    "name": "one", "alone_repeats": 0, "partitions": {"a": 8, "b": 8},
    "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
    "workloads": {
        "w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2},
        "v": {"kind": "spin", "duration_us": 10, "stream": "t", "repeats": 2},
    },
}  # fmt: skip
SIMULATED = {"--device": "sim:h200", "--force": None}
VARIED = {**SIMULATED, "--vary": "partitions.a=8"}
FEW = {"--repeats": "2", "--rounds": "1"}

COMMANDS: dict[str, tuple[list[str], dict[str, str | None]]] = {
    "run": (["plan.json"], SIMULATED),
    "quickstart": ([], SIMULATED),
    "predict": (["plan.json"], {"--force": None}),
    "kinds": ([], {}),
    "sweep": (["plan.json"], VARIED),
    "tune": (["plan.json"], {**VARIED, "--objective": "w.calls_per_s"}),
    "interference": (["plan.json"], {**SIMULATED, **FEW}),
    "diff": (["plan.json", "plan.json"], {**SIMULATED, "--rounds": "3"}),
    "check": (["plan.json"], {**SIMULATED, "--budget": "budget.toml"}),
    "skill": ([], {}),
    "view": (["trace.parquet"], {"--force": None}),
    "export": (["trace.parquet", "out.json"], {"--force": None}),
    "merge": (["trace.parquet"], {"--out": "merged.parquet", "--force": None}),
    "why": (["program.parquet"], {}),
    "summary": (["trace.parquet"], {}),
    "sql": (["trace.parquet", "FROM spans"], {}),
    "grade": (["handed_in"], {"--lessons": "lessons", "--force": None}),
    "lessons": (["folder"], {}),
    "assignment": (["given_out"], {"--lessons": "lessons"}),
    "calibrate": ([], {**SIMULATED, "--out": "gpu.json"}),
    "record": (["program.py"], {}),
    "devices": ([], {}),
    "doctor": ([], {}),
    "lab": (["folder"], {}),
}
"""Command → arguments and options that it takes."""


def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(app).commands)


def alone(name: str) -> typer.Typer:
    """Return a program with one command, which is made of its functions at each call."""
    one = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    one.registered_callback = app.registered_callback
    one.registered_commands = [each for each in app.registered_commands if each.name == name]
    return one


def words(arguments: list[str], options: dict[str, str | None]) -> list[str]:
    given = [word for pair in options.items() for word in pair if word is not None]
    return [*given, *arguments]


def lines(name: str, parameter: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield command lines with hostile values in a parameter's place."""
    arguments, options = COMMANDS[name]
    if parameter.param_type_name == "argument":
        own = [one.name for one in commands()[name].params if one.param_type_name == "argument"]
        place = own.index(parameter.name)
        for what, value in HOSTILE.items():
            yield what, words([*arguments[:place], value, *arguments[place + 1 :]], options)
        return
    option = max(parameter.opts, key=len)
    if parameter.is_flag:
        yield "given", words(arguments, {**options, option: None})
        return
    for what, value in HOSTILE.items():
        yield what, words(arguments, {**options, option: value})


@pytest.fixture(autouse=True)
def _somewhere(tmp_path, monkeypatch):
    """Work in a folder with an experiment, a trace, notebooks and a program; start no processes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(EXPERIMENT))
    (tmp_path / "program.py").touch()
    quickstart = tmp_path / "shipped" / "examples" / "quickstart.toml"
    quickstart.parent.mkdir(parents=True)
    quickstart.write_text(gs.experiments.Experiment.from_dict(EXPERIMENT).to_toml())
    for files in (_shipped, shipped):
        monkeypatch.setattr(files, "root", lambda: tmp_path / "shipped")
    (tmp_path / "budget.toml").write_text("escapes = 0")
    (tmp_path / "dangling").symlink_to("nowhere")
    for folder in ("folder", "handed_in", "lessons"):
        (tmp_path / folder).mkdir()
    notebook = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    for folder in ("handed_in", "lessons"):
        (tmp_path / folder / "one.ipynb").write_text(notebook)
    gpu = gs.open_device("sim:h200", quiet=True)
    gs.export(gs.run(EXPERIMENT, gpu)["default"], tmp_path / "trace.parquet")
    with gpu.create_stream() as stream, gs.profile(gpu) as profiled:
        stream.launch(gs.workloads.spin_kernel(gpu), 10_000, grid=1, block=32)
    gs.export(profiled.trace, tmp_path / "program.parquet")
    graded = grading.Graded([Grade("ada", "one.ipynb", "one.ipynb")])
    monkeypatch.setattr(grading, "grade_notebook", lambda *_args, **_keywords: graded)
    started = SimpleNamespace(wait=lambda *_: 0, poll=lambda: 0, pid=1, returncode=0)
    monkeypatch.setattr(recording, "_start", lambda *_: started)
    monkeypatch.setattr(machine.subprocess, "run", lambda *_args, **_keywords: started)
    monkeypatch.setattr(traces.webbrowser, "open", lambda _address: True)


def test_every_command_is_walked():
    assert COMMANDS.keys() == commands().keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_cannot_take(name):
    wrong = []
    program = alone(name)
    for parameter in commands()[name].params:
        for what, line in lines(name, parameter):
            result = CliRunner().invoke(program, [name, *line])
            where = f"{name} {parameter.name}={what}"
            error = result.exception
            if isinstance(error, GpuscopeError):
                if not 0 < len(str(error)) <= 2000:
                    wrong.append(f"{where}: an error of {len(str(error))} characters")
            elif error is not None and not isinstance(error, SystemExit):
                wrong.append(f"{where}: {type(error).__name__}: {str(error)[:90]}")
            if "\x1b" in result.output or "Traceback" in result.output:
                wrong.append(f"{where}: {result.output[:90]!r}")
    assert not wrong, f"{len(wrong)} raw errors:\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_the_walk_starts_from_is_taken(name):
    result = CliRunner().invoke(app, [name, *words(*COMMANDS[name])])
    refused = {"calibrate": "simulated", "merge": "rank"}
    if name in refused:
        assert isinstance(result.exception, GpuscopeError)
        assert refused[name] in str(result.exception)
    elif name != "doctor":
        expected = FAILED if name == "record" else 0  # no program is started here
        assert result.exit_code == expected, (result.output, result.exception)
