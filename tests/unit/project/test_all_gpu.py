"""One command runs every benchmark that needs a GPU, and continues where it was interrupted."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from gpuscope.device.cuda import driver

ROOT = Path(__file__).parents[3]


@pytest.fixture
def all_gpu():
    spec = importlib.util.spec_from_file_location("all_gpu", ROOT / "benchmarks" / "all_gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_every_group_and_every_script_that_keeps_a_gpus_figures(all_gpu):
    tree = ast.parse((ROOT / "benchmarks" / "h200.py").read_text("utf-8"))
    (groups,) = [
        ast.literal_eval(ast.List(list(node.value.keys), ast.Load()))
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "BENCHMARKS"
    ]  # fmt: skip
    assert sorted(groups) == sorted(all_gpu.GROUPS)
    for script, *_ in (*all_gpu.BESIDE.values(), *all_gpu.ON_TWO.values()):
        assert (ROOT / "benchmarks" / script).exists()
    from_a_gpu = set()
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        facts = json.loads(path.read_text("utf-8"))
        if "NVIDIA H200" in facts.get("machine", facts.get("device", "")):
            from_a_gpu.add(path.stem)
    assert "traced" in from_a_gpu
    assert from_a_gpu <= {*all_gpu.BESIDE, *all_gpu.ON_TWO, "h200"}


def test_what_needs_two_gpus_runs_where_there_are_two(all_gpu, tmp_path, monkeypatch):
    ran: list[str] = []
    monkeypatch.setattr(
        all_gpu, "command", lambda name, _: ran.append(name) or [sys.executable, "-c", ""]
    )
    monkeypatch.setattr(sys, "argv", ["all_gpu.py", "--out", str(tmp_path), "--two"])
    for count, expected in ((1, []), (2, [*all_gpu.ON_TWO])):
        monkeypatch.setattr(driver, "gpus", lambda count=count: [None] * count)
        assert all_gpu.main() == 0
        assert ran == expected


def test_a_group_leaves_the_others_of_its_file_as_they_are(all_gpu, tmp_path):
    found = all_gpu.command("carving", tmp_path)
    assert found[2:] == ["--only", "carving", "--keep", str(tmp_path / "h200.json"), "--out",
                         str(tmp_path / "h200.json")]  # fmt: skip
    assert (tmp_path / "h200.json").read_text("utf-8") == (
        ROOT / "benchmarks" / "results" / "h200.json"
    ).read_text("utf-8")


def test_a_run_continues_with_what_failed_or_was_left(all_gpu, tmp_path, monkeypatch, capsys):
    ran, failing = tmp_path / "ran", {"remainder"}

    def command(name, out):
        assert out.is_absolute()
        script = f"open({str(ran)!r}, 'a').write({name + ' '!r}); exit({int(name in failing)})"
        return [sys.executable, "-c", script]

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["all_gpu.py", "--out", str(tmp_path), *arguments])
        status = all_gpu.main()
        names = ran.read_text("utf-8").split() if ran.exists() else []
        ran.unlink(missing_ok=True)
        return status, names

    monkeypatch.setattr(all_gpu, "command", command)
    three = ("--only", "findings", "--only", "remainder", "--only", "traced")
    assert run(*three) == (1, ["findings", "remainder", "traced"])
    log = json.loads((tmp_path / ".all_gpu.json").read_text("utf-8"))
    assert [log[name]["status"] for name in ("findings", "remainder")] == [0, 1]
    assert "remainder" in capsys.readouterr().out
    failing.clear()
    assert run(*three, "--resume") == (0, ["remainder"])
    assert run(*three) == (0, ["findings", "remainder", "traced"]), "all again"
    assert run(*three, "--seconds", "-1") == (1, []), "no time to begin one"
    assert "left" in capsys.readouterr().out
