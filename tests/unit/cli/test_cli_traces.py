"""The commands for a trace file, whoever wrote it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from escaping import escaped

import gpuscope as gs
import gpuscope.cli.commands
from gpuscope import cli
from gpuscope.errors import InvalidArgument
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run


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


@pytest.fixture(scope="module")
def trace():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        handle = gs.Gemm(gpu, m=64, n=64, k=64, name="[red]g<b>")
        for _ in range(3):
            handle.execute(stream=stream)
            handle.wait()
    return recording.trace


@pytest.fixture
def file(trace, tmp_path):
    return gs.export(trace, tmp_path / "in.parquet")


def test_view_writes_the_report(command, file, tmp_path):
    out = tmp_path / "report.html"
    code, printed, _ = command("view", file, "--out", out)
    assert code == 0
    assert f"wrote {out}" in printed
    assert out.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("there", [True, False])
def test_view_opens_the_report_in_the_browser(command, file, monkeypatch, there):
    opened = []
    monkeypatch.setattr(
        cli.traces.webbrowser, "open", lambda address: opened.append(address) or there
    )
    code, printed, said = command("view", file)
    assert len(opened) == 1
    assert opened[0].startswith("file://")
    assert opened[0].endswith("/in.html")
    assert "wrote" in printed
    assert code == (0 if there else 1)
    assert ("no browser could be opened" in said) is not there


@pytest.mark.parametrize("name", ["out.json", "out.json.gz", "out.sqlite", "out.parquet"])
def test_export_writes_what_the_suffix_says_and_load_trace_reads_it(
    command, file, trace, tmp_path, name
):
    code, printed, _ = command("export", file, tmp_path / name)
    assert code == 0
    assert f"wrote {tmp_path / name}" in printed
    again = gs.load_trace(tmp_path / name)
    assert again.kind_counts()["kernel"] == trace.kind_counts()["kernel"] == 3


def test_export_refuses_a_suffix_that_is_no_format(command, file, tmp_path):
    code, _, said = command("export", file, tmp_path / "out.docx")
    assert code == 2
    assert ".docx" in said
    assert not (tmp_path / "out.docx").exists()


def test_summary_shows_streams_overlap_and_latency(command, file):
    code, printed, _ = command("summary", file, "--all")
    assert code == 0
    assert "3 kernel" in " ".join(printed.split())
    assert "[red]g<b>" in printed, "a name is no markup"


def test_summary_begins_with_what_to_act_on(command, tmp_path):
    path = gs.export(escaped(), tmp_path / "a.parquet")
    code, printed, _ = command("summary", path)
    assert code == 0
    assert (
        printed.index("ESCAPED: ")
        < printed.index("→ norm was launched")
        < printed.index("── Did the work stay")
        < printed.index("── What the GPU waited for")
    )
    _, printed, _ = command("summary", path, "--json")
    first, *_ = json.loads(printed)["findings"]
    assert (first["rule"], first["severity"]) == ("escape.outside", "error")
    assert first["subject"]["kernel"] == "norm"
    assert first["text"].startswith("ESCAPED: ")
    assert first["advice"]
    assert command("view", path, "--out", tmp_path / "a.html")[0] == 0
    assert "ESCAPED: " in (tmp_path / "a.html").read_text("utf-8")


@pytest.mark.parametrize("options", [(), ("--all",), ("--json",)], ids=str)
def test_summary_is_another_name_of_why(command, file, options):
    assert command("summary", file, *options) == command("why", file, *options)


def test_of_a_shared_gpu_it_is_said_first_who_held_the_sms_that_calls_waited_for(command, tmp_path):
    spin = {"kind": "spin", "duration_us": 20}
    experiment = {
        "name": "shared", "alone_repeats": 0, "streams": {"s": {}, "l": {}},
        "workloads": {
            "small": {**spin, "blocks": 8, "stream": "s", "repeats": 50, "max_queued": 1},
            "load": {**spin, "blocks": 10_000, "stream": "l", "background": True},
        },
    }  # fmt: skip
    (trace,) = gs.run(experiment, gs.open_device("sim:h200", quiet=True)).values()
    path = gs.export(trace, tmp_path / "shared.parquet")
    code, printed, _ = command("why", path, "--json")
    facts = json.loads(printed)
    waits, carved = facts["findings"]
    assert (code, waits["rule"], carved["rule"]) == (0, "waits", "confined.uncarved")
    assert waits["subject"] == {"workload": "small", "holder": "load"}
    assert facts["verdict"]["verdict"] == "found"
    assert facts["verdict"]["what"] == "waits"
    assert facts["verdict"]["evidence"][0]["spans"]
    (row,) = (row for row in facts["latency"] if row["handle"] == "small")
    assert row["n"] == 50
    _, printed, _ = command("why", path)
    assert printed.startswith("small waits ")


def test_summary_as_json(command, file):
    code, printed, _ = command("summary", file, "--json")
    facts = json.loads(printed)
    assert code == 0
    assert facts["kinds"]["kernel"] == 3
    assert facts["streams"][0]["stream"] == "s"
    assert facts["latency"][0]["n"] == 3


def test_what_cannot_be_judged_says_why(command, tmp_path):
    path = gs.export(Trace.from_columns({}), tmp_path / "empty.parquet")
    code, printed, _ = command("summary", path)
    assert code == 0
    assert "0 spans: none" in printed
    assert "Partitions and streams: " in printed


def test_a_file_that_is_no_trace_is_refused(command, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    for arguments in (("view", path), ("summary", path), ("export", path, tmp_path / "a.json")):
        code, _, said = command(*arguments)
        assert code == 2
        assert said.startswith("gpuscope: ")


def test_run_under_nsys_writes_its_report_and_ours(command, trace, tmp_path, monkeypatch):
    asked = []

    def profile(experiment, report, *, device):
        asked.append((experiment.name, device))
        report.write_bytes(b"nsys")
        return cli.experiments.nsight.Profile(report, trace, ("nsys",))

    monkeypatch.setattr(cli.experiments.nsight, "profile", profile)
    path = tmp_path / "one.json"
    path.write_text(json.dumps({
        "name": "one", "streams": {"s": {}},
        "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s"}},
    }))  # fmt: skip
    out = tmp_path / "out"
    code, printed, _ = command("run", path, "--nsys", "--out", out)
    assert code == 0
    assert asked == [("one", "cuda:0")]
    assert sorted(one.name for one in out.iterdir()) == [
        "nsys.html", "nsys.nsys-rep", "nsys.parquet",
    ]  # fmt: skip
    assert "wrote" in printed
    code, _, said = command("run", path, "--nsys", "--out", out)
    assert code == 2
    assert "'nsys.nsys-rep' is there already" in said
    assert len(asked) == 1, "told before anything is run"
    code, printed, _ = command("run", path, "--nsys", "--out", out, "--json", "--force")
    assert json.loads(printed)["spans"] == len(trace)


def test_lab_starts_jupyterlab_with_this_python(command, monkeypatch, tmp_path):
    started = []

    class Done:
        returncode = 3

    def run(words, check):
        started.append(words)
        return Done

    monkeypatch.setattr(cli.machine.subprocess, "run", run)
    code, _, _ = command("lab", tmp_path)
    assert code == 3
    assert started[0][:5] == [sys.executable, "-P", "-m", "jupyterlab", str(tmp_path)]
    code, _, said = command("lab", tmp_path / "gone")
    assert code == 2
    assert "there is no 'gone'" in said


def test_every_command_has_an_example(command):
    code, printed, _ = command("--help")
    assert code == 0
    for name in ("run", "view", "export", "summary", "devices", "doctor", "calibrate", "lab"):
        assert name in printed
        assert "xample" in command(name, "--help")[1], name


def test_merge_names_the_file_of_a_folder_that_is_no_trace(command, trace, tmp_path):
    gs.export(trace, tmp_path / "trace-default.parquet")
    (tmp_path / "other.json").write_text('{"experiment": {}}')
    code, _, said = command("merge", tmp_path, "-o", tmp_path / "merged.parquet")
    assert code == 2
    assert f"{tmp_path / 'other.json'}: the JSON is no Chrome trace" in said


def test_merge_says_in_which_folder_a_file_is_missing(command, trace, tmp_path):
    (tmp_path / "rank0").mkdir()
    gs.export(trace, tmp_path / "rank0" / "trace.parquet")
    files = [tmp_path / f"rank{rank}" / "trace.parquet" for rank in (0, 1)]
    code, _, said = command("merge", *files, "-o", tmp_path / "merged.parquet")
    assert code == 2
    assert str(files[1]) in said
    assert str(files[0]) not in said


def test_merge_takes_of_a_run_s_folder_its_trace_and_of_several_says_which(
    command, trace, tmp_path
):
    trace = trace.with_metadata(clock="of this machine")
    run = Run({"a": trace, "b": trace}, pa.table({}), {})
    for name, traces in (("rank0", ["a"]), ("rank1", ["a"]), ("several", ["a", "b"])):
        (tmp_path / name).mkdir()
        files = [f"trace-{setting}.parquet" for setting in traces]
        for file in files:
            gs.export(trace, tmp_path / name / file)
        (tmp_path / name / "comparison.json").write_text(json.dumps({"traces": files}))
    merged = tmp_path / "merged.parquet"
    code, _, said = command("merge", tmp_path / "rank0", tmp_path / "rank1", "-o", merged)
    assert code == 0, said
    assert gs.load_trace(merged).kind_counts()["kernel"] == 6
    code, _, said = command("merge", tmp_path / "several", "-o", tmp_path / "m.parquet")
    assert code == 2
    assert str(tmp_path / "several" / "trace-a.parquet") in said
    for wrong, advice in ((run, "one trace of each rank"), (str(tmp_path), "load_trace")):
        with pytest.raises(InvalidArgument, match=advice):
            gs.merge(wrong)


def test_what_is_written_replaces_nothing_unless_told(command, file, tmp_path):
    ranks = gs.experiments.predict({
        "name": "ranks", "devices": ["sim:h200", "sim:h200"], "alone_repeats": 0,
        "streams": {"s": {}}, "workloads": {
            "w": {"kind": "all_reduce", "nbytes": 64, "stream": "s", "repeats": 2},
        },
    })  # fmt: skip
    several = gs.export(ranks["default"], tmp_path / "ranks.parquet")
    folder, html = tmp_path / "ranks", tmp_path / "report.html"
    inputs = [gs.export(ranks["default"], tmp_path / "in") / f"rank-{n}.json.gz" for n in (0, 1)]
    for arguments in (
        ("view", file, "--out", html),
        ("export", file, tmp_path / "out.json"),
        ("export", file, file),
        ("export", several, folder),
        ("merge", *inputs, "-o", tmp_path / "merged.parquet"),
        ("merge", *inputs, "-o", inputs[0]),
    ):
        target = Path(arguments[-1])
        if not target.exists():
            assert command(*arguments)[0] == 0
        files = [target] if target.is_file() else sorted(target.iterdir())
        before = [path.read_bytes() for path in files]
        code, _, said = command(*arguments)
        assert code == 2, arguments
        assert f"{files[0].name!r} is there already" in said
        assert [path.read_bytes() for path in files] == before
        assert command(*arguments, "--force")[0] == 0


# -- folders -------------------------------------------------------------------------------
SMALL = {
    "name": "small", "rounds": 1, "alone_repeats": 0, "streams": {"s": {}},
    "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 3}},
    "settings": {"first": {}, "second": {}},
}  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--all"]], ids=["one screen", "all"])
def test_the_first_page_of_a_run_is_what_the_run_printed(command, tmp_path, options):
    experiment, out = tmp_path / "small.json", tmp_path / "out"
    experiment.write_text(json.dumps(SMALL))
    arguments = experiment, "--device", "sim:h200", "--out", out
    code, printed, _ = command("run", *arguments, *options)
    seen_code, seen, _ = command("why", out, *options)
    assert (seen_code, code) == (0, 0)
    assert seen.splitlines() == printed.splitlines()[: len(seen.splitlines())]
    as_json = json.loads(command("why", out, "--json")[1])
    assert as_json["comparison"] == json.loads((out / "comparison.json").read_text())["comparison"]
    stopped = json.loads((out / "comparison.json").read_text()) | {"stopped": True}
    (out / "comparison.json").write_text(json.dumps(stopped))
    assert command("why", out)[0] == cli.FAILED


def test_the_first_page_of_a_folder_of_ranks_is_that_of_all(command, trace, tmp_path):
    merged = tmp_path / "merged.parquet"
    (tmp_path / "train").mkdir()
    for rank in (0, 1):
        of_rank = trace.with_metadata(
            clock="of this machine", ranks=[{"rank": rank, "world_size": 2}]
        )
        gs.export(of_rank, tmp_path / "train" / f"train-rank{rank}.parquet")
    assert command("merge", tmp_path / "train", "-o", merged)[0] == 0
    page = command("why", merged)
    assert page[0] == 0
    assert command("why", tmp_path / "train") == page


def test_the_first_page_of_a_program_s_folder_is_that_of_its_one_trace(command, file, tmp_path):
    page = command("why", file)
    assert page[0] == 0
    assert command("why", file.parent) == page
    other = file.with_name("other.parquet")
    other.write_bytes(file.read_bytes())
    code, _, complaint = command("why", file.parent)
    assert (code, "'in.parquet'" in complaint) == (2, True)
    (tmp_path / "empty").mkdir()
    code, _, complaint = command("why", tmp_path / "empty")
    assert (code, "no run and no .parquet" in complaint) == (2, True)
