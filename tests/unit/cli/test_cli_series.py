"""``gpuscope sweep`` and ``interference``: what they print, keep, and do after Ctrl-C."""

from __future__ import annotations

import contextlib
import csv
import json
import sys

import pytest
from kept_points import kept_points

import gpuscope as gs
from gpuscope import cli
from gpuscope.cli import series
from gpuscope.comparing.choice import swept
from gpuscope.search import scale_out

EXPERIMENT = {
    "name": "trial",
    "alone_repeats": 2,
    "rounds": 1,
    "streams": {"s": {}, "l": {}},
    "workloads": {
        "small": {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": "s", "repeats": 5},
        "load": {
            "kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "l", "background": True,
            "max_queued": 4,
        },
    },
    "settings": {
        "shared": {},
        "carved": {
            "partitions": {"a": 16, "b": "rest"},
            "streams": {"s": {"partition": "a"}, "l": {"partition": "b"}},
        },
    },
}  # fmt: skip


@pytest.fixture
def command(monkeypatch, capsys):
    """Call main() with arguments; returns exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return call


@pytest.fixture
def trial(tmp_path):
    path = tmp_path / "trial.json"
    path.write_text(json.dumps(EXPERIMENT))
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def interrupt_after(monkeypatch, calls):
    """Press Ctrl-C when so many timed calls are done."""

    @contextlib.contextmanager
    def bar(_name):
        def view(progress):
            if progress.done >= calls:
                raise KeyboardInterrupt

        yield view

    monkeypatch.setattr(series, "run_bar", bar)


def test_the_version_is_told(command):
    assert command("--version") == (0, f"gpuscope {gs.__version__}\n", "")


# -- sweep --------------------------------------------------------------------------------
def test_a_sweep_keeps_its_points_its_table_and_its_report(command, trial, tmp_path):
    out = tmp_path / "out"
    code, printed, _ = command(
        "sweep", trial, "--vary", "partitions.a=8,16", "--device", "sim:h200", "--out", out
    )
    assert code == 0
    assert kept_points(out) == [0, 1]
    assert {*names(out)} == {"points.jsonl", "sweep.csv", "sweep.html"}
    assert f"wrote {out / 'sweep.html'}\n" in printed
    with (out / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["partitions.a"] for row in rows] == [*[""] * 2, "8", "8", "16", "16"]
    page = (out / "sweep.html").read_text("utf-8")
    assert 'id="swept"' in page
    assert "SIMULATED, not measured." in page
    result = gs.search.load_sweep(out)
    assert len(result.table) == 6
    findings = [*swept(result)]
    assert findings
    for finding in findings:
        assert f'<li class="{finding.family} ' in page


def test_a_sweep_as_json(command, trial, tmp_path):
    code, printed, _ = command(
        "sweep", trial, "--vary", "partitions.a=8", "--vary", 'workloads.load.dtype=["float32"]',
        "--device", "sim:h200", "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    facts = json.loads(printed)
    assert code == 0
    assert facts["stopped"] is False
    assert {row["workloads.load.dtype"] for row in facts["rows"]} == {"float32"}


def test_a_sweep_with_a_reference_says_so(command, trial, tmp_path):
    code, printed, _ = command(
        "sweep", trial, "--vary", "partitions.a=8", "--device", "sim:h200", "--out", tmp_path,
        "--reference", "gemm", "--workers", "processes:1",
    )  # fmt: skip
    assert code == 0
    said = " ".join(printed.split())
    assert "a reference on each GPU: 1.000 on SIM-h200 (n = 2" in said
    with (tmp_path / "sweep.csv").open() as file:
        assert {row["speed"] for row in csv.DictReader(file)} == {"1"}


def test_after_ctrl_c_a_sweep_goes_on_where_it_was_stopped(command, trial, tmp_path, monkeypatch):
    out = tmp_path / "out"
    varied = ("sweep", trial, "--vary", "partitions.a=8,16,24", "--device", "sim:h200")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 13)
        code, printed, _ = command(*varied, "--out", out)
    assert code == 1
    assert "Points that were not measured, or not to their end: 2" in printed
    kept = kept_points(out)
    assert 0 in kept
    assert 2 not in kept
    assert "sweep.csv" in names(out)
    assert "Stopped early." in (out / "sweep.html").read_text("utf-8")
    before = (out / "points.jsonl").read_bytes()
    code, printed, _ = command(*varied, "--out", out)
    assert code == 0
    assert "stopped early" not in printed
    assert (out / "points.jsonl").read_bytes().startswith(before)
    assert sorted(kept_points(out)) == [0, 1, 2]


def test_shards_on_workers_make_the_table_of_one_command(command, trial, tmp_path):
    varied = ("sweep", trial, "--vary", "partitions.a=8,16", "--device", "sim:h200")
    assert command(*varied, "--out", tmp_path / "one")[0] == 0
    for shard in ("1/2", "2/2"):
        more = ("--shard", shard, "--workers", "processes:1")
        code, printed, _ = command(*varied, "--out", tmp_path / "two", *more)
        assert code == 0
        assert "stopped early" not in printed
    tables = [(tmp_path / name / "sweep.csv").read_text("utf-8") for name in ("one", "two")]
    assert tables[0] == tables[1]


def test_a_sweep_whose_workers_die_says_how_much_is_missing_and_fails(
    command, tmp_path, monkeypatch
):
    """Its workload lies in the folder that the command is started in, and in no path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scale_out, "_ATTEMPTS", 1)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "deadly.py").write_text(
        "import os\nimport gpuscope as gs\n"
        "def die(device, seed=0):\n"
        "    if seed == 2:\n        os._exit(9)\n"
        "    return gs.Gemm(device, m=8, n=8, k=8)\n"
    )
    work = {"kind": "python:deadly:die", "args": {"seed": 1}, "stream": "s", "repeats": 2}
    one = {"name": "one", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"w": work}}
    (tmp_path / "one.json").write_text(json.dumps(one))
    varied = ("sweep", "one.json", "--vary", "workloads.w.args.seed=[1,2]", "--out", "out")
    status, printed, _ = command(*varied, "--device", "sim:h200", "--workers", "processes:1")
    assert status == 1
    assert "not to their end: 1; of the first: its worker was lost" in " ".join(printed.split())
    assert kept_points(tmp_path / "out") == [0]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("--workers", "4", "'processes:N'"), ("--shard", "3/2", "shard is '3/2'")],
)
def test_workers_and_shards_that_are_none(command, trial, tmp_path, option, value, words):
    varied = ("sweep", trial, "--vary", "partitions.a=8", "--device", "sim:h200")
    code, _, said = command(*varied, "--out", tmp_path / "out", option, value)
    assert code == 2
    assert words in said


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("partitions.a", "give a path and its values, as partitions.small=8,16"),
        ("=8", "give a path and its values"),
        ("partitions.a=[8", "that is no list"),
        ("partitions.c=8", "no setting carves a partition 'c'"),
        ("workloads.small.m=x", "workloads.small.m: should be a whole number"),
    ],
)
def test_a_sweep_says_what_is_wrong_with_what_it_varies(command, trial, tmp_path, vary, words):
    out = tmp_path / "out"
    code, _, said = command("sweep", trial, "--vary", vary, "--device", "sim:h200", "--out", out)
    assert code == 2
    assert words in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8,16", [8, 16]), ("0.5,1e3", [0.5, 1000.0]), ("float16,bfloat16", ["float16", "bfloat16"]),
        ("true,rest", [True, "rest"]), ("25%,null", ["25%", "null"]), ('["a,b", 3]', ["a,b", 3]),
    ],
)  # fmt: skip
def test_values_are_numbers_flags_or_texts(text, values):
    assert series.varied(f"a.b={text}") == ("a.b", values)


# -- tune ---------------------------------------------------------------------------------
TUNE = ("--vary", "partitions.a=8,64", "--objective", "load.tflop_per_s", "--device", "sim:h200")


def test_a_tuning_keeps_its_measurements_its_report_and_the_code(command, trial, tmp_path):
    out = tmp_path / "out"
    code, printed, _ = command("tune", trial, *TUNE, "--repeats", 3, "--out", out)
    assert code == 0
    written = {*names(out)}
    facts = json.loads((out / "tune.json").read_text("utf-8"))
    code_files = (
        {"carve.py", "carve.cpp"} if facts["recommended"] not in (None, "shared") else set()
    )
    assert written == {"points.jsonl", "tune.html", "tune.json"} | code_files
    assert facts["take"] in " ".join(printed.split())
    assert "SIMULATED" in printed
    assert "SIMULATED, not measured." in (out / "tune.html").read_text("utf-8")
    before = (out / "points.jsonl").read_bytes()
    code, printed, _ = command("tune", trial, *TUNE, "--repeats", 3, "--out", out, "--json")
    assert code == 0
    assert json.loads(printed)["outcome"] == facts["outcome"]
    assert (out / "points.jsonl").read_bytes() == before


def test_after_ctrl_c_a_tuning_keeps_what_was_measured(command, trial, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 13)  # of forecasts
        code, printed, _ = command("tune", trial, *TUNE, "--out", out)
    assert code == 1
    assert "stopped early: this is what was measured until then" in printed
    assert 0 in kept_points(out, "forecast")
    code, printed, _ = command("tune", trial, *TUNE, "--repeats", 3, "--out", out)
    assert code == 0
    assert "stopped early" not in printed


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--slo", "small.latency_p50_us"), "give a column and a limit"),
        (("--slo", "small.latency_p50_us>=3"), "less is better"),
        (("--slo", "other.latency_p50_us<=3"), "the workloads are 'small', 'load'"),
        (("--repeats", 2), "at least 3"),
    ],
)
def test_a_tuning_says_what_is_wrong(command, trial, tmp_path, more, words):
    code, _, said = command("tune", trial, *TUNE, *more, "--out", tmp_path / "out")
    assert code in (1, 2)
    assert words in said.replace("\n", " ")
    assert not (tmp_path / "out").exists()


# -- interference -------------------------------------------------------------------------
def test_interference_is_measured_on_the_partitions_of_a_setting(command, trial, tmp_path):
    out = tmp_path / "out"
    code, printed, _ = command(
        "interference", trial, "--repeats", 3, "--rounds", 1, "--device", "sim:h200", "--out", out
    )
    assert code == 0
    assert names(out) == ["interference.html", "interference.json"]
    assert "given load" in printed
    assert "a (16 SMs)" in printed
    assert "b (116 SMs)" in printed
    rows = json.loads((out / "interference.json").read_text("utf-8"))
    assert [(row["a"], row["given b"]) for row in rows] == [("small", "load"), ("load", "small")]
    page = (out / "interference.html").read_text("utf-8")
    assert 'id="interference"' in page
    assert '<li class="interferes ' in page


def test_a_setting_without_partitions_may_be_named(command, trial, tmp_path):
    code, printed, _ = command(
        "interference", trial, "--setting", "shared", "--repeats", 3, "--rounds", 1,
        "--device", "sim:h200", "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0
    assert "whole GPU" in printed
    code, _, said = command("interference", trial, "--setting", "other", "--device", "sim:h200")
    assert code == 2
    assert "--setting 'other': there are: 'shared', 'carved'" in said


def test_a_workload_on_no_partition_is_refused(command, tmp_path):
    settings = {"half": {"partitions": {"a": 16}, "streams": {"s": {"partition": "a"}}}}
    path = tmp_path / "half.json"
    path.write_text(json.dumps({**EXPERIMENT, "settings": settings}))
    code, _, said = command("interference", path, "--device", "sim:h200", "--out", tmp_path / "out")
    assert code == 2
    assert "in setting 'half' 'load' run on no partition" in said


def test_interference_of_some_pairs_forecasts_the_others(command, tmp_path):
    names = "pqrs"
    file, out = tmp_path / "four.json", tmp_path / "out"
    plan = {
        "name": "four",
        "partitions": dict.fromkeys(names, 16),
        "streams": {name: {"partition": name} for name in names},
        "workloads": {name: {"kind": "copy", "nbytes": 2**26, "stream": name} for name in names},
    }
    file.write_text(json.dumps(plan))
    options = ("--repeats", 5, "--rounds", 1, "--inside", 0.1, "--device", "sim:h200", "--out", out)
    code, _, said = command("interference", file, *options, "--pairs", 3)
    assert code == 2
    assert "pairs is 3; a whole number from 4 to 6 is needed" in said
    code, printed, _ = command("interference", file, *options, "--pairs", 4)
    assert code == 0
    assert " ≈ +" in printed
    rows = json.loads((out / "interference.json").read_text("utf-8"))
    assert sum(row["interference"] is not None for row in rows) == 8
    assert sum(row["forecast"] is not None for row in rows) == 4
    assert "forecast (4 of 12) from the 8" in (out / "interference.html").read_text("utf-8")


def test_after_ctrl_c_interference_keeps_what_was_measured(command, trial, tmp_path, monkeypatch):
    interrupt_after(monkeypatch, 4)
    out = tmp_path / "out"
    code, printed, _ = command(
        "interference", trial, "--repeats", 3, "--rounds", 2, "--device", "sim:h200", "--out", out,
        "--json",
    )  # fmt: skip
    assert code == 1
    facts = json.loads(printed)
    assert facts["stopped"] is True
    assert any(row["interference"] is None for row in facts["rows"])
    assert "Stopped early." in (out / "interference.html").read_text("utf-8")


# -- what is there ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "lying"),
    [
        (("sweep", "--vary", "partitions.a=8"), "sweep.csv"),
        (("tune", "--vary", "partitions.a=8,16", "--objective", "load.calls_per_s"), "tune.json"),
        (("interference", "--repeats", 3, "--rounds", 1), "interference.json"),
    ],
)
def test_nothing_that_is_there_is_replaced_unless_told(command, trial, tmp_path, arguments, lying):
    verb, *options = arguments
    out = tmp_path / "out"
    out.mkdir()
    (out / lying).write_text("mine")
    given = (verb, trial, *options, "--device", "sim:h200", "--out", out)
    code, _, said = command(*given)
    assert code == 2
    assert f"{lying!r} is there already" in said
    assert (names(out), (out / lying).read_text()) == ([lying], "mine")
    assert command(*given, "--force")[0] == 0
    assert (out / lying).read_text() != "mine"
    goes_on = verb != "interference"
    assert command(*given)[0] == (0 if goes_on else 2)


@pytest.mark.parametrize(
    ("verb", "options", "missing"),
    [
        ("sweep", (), "--vary partitions.small=8,16"),
        ("tune", (), "--vary partitions.small=8,16"),
        ("tune", ("--vary", "partitions.a=8"), "decode.calls_per_s"),
    ],
)
def test_what_is_missing_is_said_with_an_example(command, trial, verb, options, missing):
    code, _, said = command(verb, trial, *options)
    assert code == cli.BAD_USAGE
    assert missing in said
