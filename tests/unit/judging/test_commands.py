"""``gpuscope diff``, ``check`` and ``skill`` as they are called: exit codes, JSON, files."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib import resources

import msgspec
import pytest
import tomli_w
from judging_programs import ONE, PROGRAM, changed
from typer.testing import CliRunner

import gpuscope as gs
from gpuscope.cli.commands import app
from gpuscope.errors import GpuscopeError
from gpuscope.judging.verdict import LIMIT, Verdict
from gpuscope.trace.store import read_parquet


def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, GpuscopeError):
        raise done.exception
    return done.exit_code, done.stdout


def longer(duration_us):
    """Return the experiment with kernels beside which a launch is short."""
    load = {**ONE["workloads"]["load"], "duration_us": 200}
    experiment = changed(duration_us=duration_us)
    return {**experiment, "workloads": {**experiment["workloads"], "load": load}}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two experiments, a budget and a program, in the folder where we are."""
    monkeypatch.chdir(tmp_path)
    settings = {"shared": {}, "split": {"partitions": {"a": 16, "b": "rest"}, "streams": {
        "s": {"partition": "a"}, "t": {"partition": "b"}}}}  # fmt: skip
    for name, experiment in (
        ("before.json", longer(200)),
        ("after.json", longer(300)),
        ("run.json", {**ONE, "settings": settings}),
    ):
        (tmp_path / name).write_text(json.dumps(experiment), "utf-8")
    (tmp_path / "budget.toml").write_text(
        'escapes = 0\n[limits]\n"w.latency_p50_us" = "<= 300"\n', "utf-8"
    )
    (tmp_path / "program.toml").write_text('step_ms = "<= 0.3"\nidle_share = "<= 50 %"\n', "utf-8")
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    return tmp_path


def test_diff_exits_by_what_it_found(files):
    common = "--device", "sim:h200", "--rounds", "5"
    assert command("diff", "before.json", "before.json", *common)[0] == 0
    assert command("diff", "before.json", "after.json", *common)[0] == 1
    assert command("diff", "after.json", "before.json", *common)[0] == 0
    code, said = command("diff", "before.json", "after.json", *common, "--json")
    facts = json.loads(said)
    assert (code, facts["verdict"], facts["is_simulated"]) == (1, "slower", True)
    assert msgspec.convert(facts, Verdict).exit_code == code
    assert len(said.encode()) <= LIMIT + 1


def test_diff_of_traces_cannot_tell(files):
    trace = gs.run(ONE, "sim:h200")["default"]
    gs.export(trace, files / "a.parquet")
    code, said = command("diff", "a.parquet", "a.parquet", "--json")
    assert (code, json.loads(said)["verdict"]) == (3, "cannot tell")


def test_diff_writes_a_report_a_verdict_and_both_traces(files):
    words = "diff", "before.json", "after.json", "--device", "sim:h200", "--rounds", "3"
    _, said = command(*words, "--out", "out/diff")
    folder = files / "out" / "diff"
    assert sorted(path.name for path in folder.iterdir()) == [
        "a.parquet", "b.parquet", "diff.html", "verdict.json",
    ]  # fmt: skip
    assert "out/diff/diff.html" in said.replace("\n", "")
    facts = json.loads((folder / "verdict.json").read_text("utf-8"))
    for evidence, file in zip(facts["evidence"], ("a.parquet", "b.parquet"), strict=True):
        ids = set(read_parquet(folder / file).array("id").tolist())
        assert set(evidence["spans"]) <= ids
    with pytest.raises(GpuscopeError, match=r"--force"):
        command(*words, "--out", "out/diff")


def test_diff_prints_markdown(files):
    words = "before.json", "after.json", "--device", "sim:h200", "--rounds", "3"
    code, said = command("diff", *words, "--markdown")
    assert code == 1
    assert said.startswith("**gpuscope diff: slower.**")
    assert len([line for line in said.splitlines() if line.startswith("|---")]) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["diff"], "name A"),
        (["diff", "x.toml", "--a", "python y.py"], "name A"),
        (["check", "--budget", "budget.toml"], "name an experiment"),
        (["diff", "before.json", "after.json", "--json", "--markdown"], "give one"),
        (["check", "before.json", "--budget", "b", "--json", "--markdown"], "give one"),
        (["check", "before.json", "--program", "python y.py", "--budget", "b"], "name an"),
        (["diff", "before.json", *["--setting", "x"] * 3], "--setting is given once"),
    ],
)
def test_what_is_missing_is_said(files, words, told):
    with pytest.raises(GpuscopeError, match=told):
        command(*words)


def test_check_exits_by_what_it_found(files):
    common = "--device", "sim:h200", "--budget", "budget.toml"
    code, said = command("check", "before.json", *common, "--json")
    facts = json.loads(said)
    assert (code, facts["verdict"]["verdict"]) == (0, "holds")
    assert {each["what"] for each in facts["limits"]} == {"escapes", "w.latency_p50_us"}
    code, said = command("check", "after.json", *common)
    assert (code, "Violated, 1 of 2 limits: w.latency_p50_us" in said) == (1, True)
    (files / "budget.toml").write_text('[limits]\n"w.latency_p99_us" = "<= 1"', "utf-8")
    assert command("check", "before.json", *common)[0] == 3
    assert "| w.latency" in command("check", "before.json", *common, "--markdown")[1].replace(
        "\\", ""
    )


def test_a_saved_baseline_holds_for_the_same(files):
    (files / "budget.toml").write_text(
        '[baseline]\nfile = "base.json"\n"w.latency_p50_us" = "2 %"', "utf-8"
    )
    common = "--device", "sim:h200", "--budget", "budget.toml"
    assert command("check", "before.json", *common, "--save-baseline", "base.json")[0] == 0
    assert command("check", "before.json", *common)[0] == 0
    assert command("check", "after.json", *common)[0] == 1
    with pytest.raises(GpuscopeError, match=r"--force"):
        command("check", "before.json", *common, "--save-baseline", "base.json")


def test_errors_exit_with_two_in_a_process(files):
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope.cli", "diff", "gone.toml", "gone.toml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "gone.toml" in done.stderr) == (2, True)


# -- the skill ----------------------------------------------------------------------------
SKILL = resources.files("gpuscope.judging").joinpath("SKILL.md").read_text("utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", SKILL, re.DOTALL)
    for line in block.splitlines()
]


def test_the_skill_is_printed_and_says_when_it_is_for():
    code, said = command("skill")
    assert (code, said) == (0, SKILL)
    assert re.match(r"---\nname: gpuscope\ndescription: .{40,}\n---\n", SKILL)


def test_the_skill_names_every_verdict_and_field():
    for word in ("equal", "slower", "faster", "holds", "violated", "cannot tell", "found"):
        assert f"`{word}`" in SKILL
    written = set(re.findall(r"^\| (`[^|]*`) \|", SKILL, re.MULTILINE))
    told = {name for cell in written for name in re.findall(r"`(\w+)`", cell)}
    fields = set(Verdict.__struct_fields__) - {"schema", "command", "is_simulated", "clocks_mhz"}
    assert told == fields


def test_the_commands_of_the_skill_run(repository, monkeypatch):
    """In a repository with what they name, in few rounds; each prints verdicts of the schema."""
    monkeypatch.chdir(repository)
    settings = {"shared": {}, "split": {"partitions": {"a": 16, "b": "rest"}, "streams": {
        "s": {"partition": "a"}, "t": {"partition": "b"}}}}  # fmt: skip
    for name, experiment in (
        ("before.toml", ONE),
        ("after.toml", changed(duration_us=130)),
        ("run.toml", {**ONE, "settings": settings}),
    ):
        (repository / name).write_text(tomli_w.dumps(experiment), "utf-8")
    (repository / "budget.toml").write_text("escapes = 0\n", "utf-8")
    (repository / "program.toml").write_text('step_ms = "<= 9"\n', "utf-8")
    (repository / "train.py").write_text(
        PROGRAM.replace("int(sys.argv[1]) if len(sys.argv) > 1 else 0", "9_000 * len(sys.argv)"),
        "utf-8",
    )
    for words in (["add", "train.py"], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit",
                                        "-q", "-m", "train"]):  # fmt: skip
        subprocess.run(["git", *words], check=True)
    assert len(COMMANDS) >= 8
    codes = {}
    for line in COMMANDS:
        words = shlex.split(line)[1:]
        if words[0] == "diff" and "--rounds" not in words:
            words += ["--rounds", "3"]
        codes[line], said = command(*words)
        if "--json" not in line:
            continue
        facts = json.loads(said)
        several = [facts] if "schema" in facts else [facts["verdict"], *facts.get("limits", ())]
        for each in several:
            assert len(json.dumps(each)) <= LIMIT
        assert msgspec.convert(several[0], Verdict).exit_code == codes[line], line
    told = [code for line, code in codes.items() if "doctor" not in line]
    assert set(told) <= {0, 1, 3}, codes
