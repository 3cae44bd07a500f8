"""A command that did less than was asked for says what is missing, and does not exit with 0."""

from __future__ import annotations

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope import cli
from gpuscope.cli.commands import experiments, judging, traces
from gpuscope.cli.experiments import write_run
from gpuscope.trace.folder import COMPARISON
from gpuscope.trace.store import save_trace

SPIN = {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 5}
ONE = {"name": "one", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"w": SPIN}}


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Call main() in a folder with an experiment; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.json").write_text(json.dumps({**ONE, "settings": {"first": {}, "second": {}}}))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuscope", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return call


def test_kinds_and_summaries_without_what_a_package_adds(command, monkeypatch, tmp_path):
    gpu = gs.open_device("sim:h200", quiet=True)
    save_trace(gs.run(ONE, gpu)["default"], tmp_path / "one.parquet")
    assert command("kinds")[0] == 0
    assert command("summary", "one.parquet")[0] == 0
    monkeypatch.setattr(experiments, "broken_kinds", lambda: ["kind: cannot be loaded"])
    monkeypatch.setattr(traces, "problems", lambda: ("analysis: cannot be loaded",))
    for words in (("kinds",), ("kinds", "--json"), ("summary", "one.parquet")):
        status, printed, said = command(*words)
        assert (status, "cannot be loaded" in said) == (1, True)
        assert printed, "what there is, all the same"


def test_a_prediction_of_settings_that_were_not_measured(command, tmp_path):
    run = gs.run(tmp_path / "one.json", gs.open_device("sim:h200", quiet=True))
    write_run(run, tmp_path / "measured")
    assert command("predict", "one.json", "--against", "measured")[0] == 0
    comparison = tmp_path / "measured" / COMPARISON
    facts = json.loads(comparison.read_text())
    comparison.write_text(json.dumps({**facts, "traces": facts["traces"][:1]}))
    status, _, said = command("predict", "one.json", "--against", "measured", "--force")
    assert status == 1
    assert "measured holds no measurement of 'second'" in said


def test_a_recording_of_nsight_that_could_not_be_imported(command, monkeypatch, tmp_path):
    def profile(_experiment, report, **_):
        report.touch()
        return SimpleNamespace(report=report, trace=None)

    monkeypatch.setattr(experiments.nsight, "profile", profile)
    status, printed, said = command("run", "one.json", "--nsys", "--out", "out")
    assert status == 1
    assert "nsys.nsys-rep" in printed
    assert "there is only the .nsys-rep" in said


def test_a_comparison_that_was_stopped(command, monkeypatch):
    @contextlib.contextmanager
    def bar(_name):
        def tell(_what, done, total):
            if done == total - 1:
                raise KeyboardInterrupt

        yield tell

    words = ("diff", "one.json", "one.json", "--setting", "first", "--rounds", "3")
    assert command(*words, "--device", "sim:h200")[0] == 0
    monkeypatch.setattr(judging, "_bar", bar)
    status, printed, _ = command(*words, "--device", "sim:h200")
    assert status == 3
    assert "stopped early" in printed
