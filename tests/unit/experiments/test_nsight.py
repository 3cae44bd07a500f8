"""Experiments under nsys and ncu: found, called with the right options, explained where not."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope import _nsys
from gpuscope.experiments import nsight
from gpuscope.experiments.execution import perform
from gpuscope.trace import Trace

EXPERIMENT = {
    "name": "a run / of mine", "alone_repeats": 2, "rounds": 2, "streams": {"s": {}},
    "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 4}},
    "settings": {"one": {}, "two": {"partitions": {"p": 16}, "streams": {"s": {"partition": "p"}}}},
}  # fmt: skip

FAKE = """#!{python}
# Stands for nsys and ncu: runs the program, and writes down how it was called.
import json, os, pathlib, subprocess, sys
arguments = sys.argv[1:]
folder = pathlib.Path({folder!r})
options = dict(one.lstrip("-").partition("=")[::2] for one in arguments if one.startswith("--"))
if arguments[0] == "export":
    pathlib.Path(options["output"]).write_bytes((folder / "export").read_bytes())
    sys.exit(0)
at = arguments.index({python!r})
(folder / "pid").write_text(str(os.getpid()))
status = subprocess.run(arguments[at:]).returncode
told = {{"options": arguments[:at], "environment": sorted(os.environ), "status": status}}
(folder / "called.json").write_text(json.dumps(told))
output = options.get("output") or options["export"]
end = {suffix!r}
if end:
    pathlib.Path(output + end).write_text("report")
sys.exit(status)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Return a function that puts a tool on PATH that makes files with this suffix."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(tool="nsys", suffix=".nsys-rep"):
        path = folder / tool
        text = FAKE.format(python=sys.executable, folder=str(folder), suffix=suffix)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder))
        return path

    make.called = lambda: json.loads((folder / "called.json").read_text())
    make.folder = folder
    return make


def a_trace(monkeypatch, taken):
    """Let what nsys exports be a trace of ours."""
    trace = Trace.from_columns(
        {"id": [1], "kind": ["kernel"], "name": ["k"], "start_ns": [1], "end_ns": [2],
         "source": ["nsys"]}
    )  # fmt: skip

    def load(path):
        taken.append(Path(path).read_bytes())
        return trace

    monkeypatch.setattr(nsight, "load_trace", load)
    return trace


def test_a_run_under_nsys(tmp_path, fake, monkeypatch):
    command, taken = fake(), []
    (fake.folder / "export").write_bytes(b"tables")
    trace = a_trace(monkeypatch, taken)
    secrets = ("GPUSCOPE_TEST_TOKEN", "NVIDIA_API_KEY", "TORCH_HUB_TOKEN", "PYTHON_INDEX_PASSWORD",
               "PYTHONPATH_TOKEN", "CUDA_TOKEN", "LD_SECRET", "NSYS_KEY", "PATH_TOKEN")  # fmt: skip
    for name in secrets:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4")
    found = gs.experiments.nsight.profile(EXPERIMENT, tmp_path / "run.nsys-rep", device="sim:h200")
    assert found.report.read_text() == "report"
    assert found.trace is trace
    assert taken == [b"tables"]
    assert found.command[0] == str(command)
    told = fake.called()
    assert told["options"][:5] == [
        "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
        "--cuda-graph-trace=graph",
    ]  # fmt: skip
    assert told["status"] == 0
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in told["environment"]
    assert not set(secrets) & set(told["environment"])  # nsys would keep them in its report
    left = {one.name for one in tmp_path.iterdir()}
    assert left == {"bin", "run.nsys-rep"}


def test_options(tmp_path, fake, monkeypatch):
    fake()
    (fake.folder / "export").write_bytes(b"")
    a_trace(monkeypatch, [])
    monkeypatch.setenv("GPUSCOPE_TEST_TOKEN", "hunter2")
    monkeypatch.chdir(tmp_path)
    found = nsight.profile(EXPERIMENT, device="sim:h200", graph_nodes=True, keep_private=True)
    assert found.report == Path("a-run-of-mine.nsys-rep")
    told = fake.called()
    assert "--cuda-graph-trace=node" in told["options"]
    assert "GPUSCOPE_TEST_TOKEN" in told["environment"]
    with pytest.raises(gs.errors.ExportError, match=r"ends in \.nsys-rep"):
        nsight.profile(EXPERIMENT, "run.qdrep", device="sim:h200")


def test_a_run_under_ncu(tmp_path, fake):
    fake("ncu", ".ncu-rep")
    found = nsight.profile(
        EXPERIMENT, tmp_path / "run.ncu-rep", tool="ncu", device="sim:h200", launches=7
    )
    assert found.trace is None
    assert found.report.read_text() == "report"
    assert fake.called()["options"][:3] == ["--clock-control=none", "--nvtx", "--launch-count=7"]


def test_a_report_that_cannot_be_imported_is_still_handed_back(tmp_path, fake, monkeypatch):
    fake()  # its export has no file to copy: it fails
    with pytest.warns(UserWarning, match="could not be imported: nsys could not export"):
        found = nsight.profile(EXPERIMENT, tmp_path / "run.nsys-rep", device="sim:h200")
    assert found.trace is None
    assert found.report.exists()


def test_a_failing_experiment_says_why(tmp_path, fake):
    fake()
    with pytest.raises(
        gs.errors.GpuscopeError, match=r"failed under nsys \(status 1\): .*none-such"
    ):
        nsight.profile(EXPERIMENT, tmp_path / "run.nsys-rep", device="sim:none-such")
    with pytest.raises(gs.errors.InvalidExperiment, match="missing"):
        nsight.profile({"name": "x"}, tmp_path / "run.nsys-rep")
    with pytest.raises(gs.errors.GpuscopeError, match="Choose a folder"):
        nsight.profile(EXPERIMENT, tmp_path / "none" / "run.nsys-rep")
    assert {one.name for one in tmp_path.iterdir()} == {"bin"}


def test_a_report_that_was_not_made(tmp_path, fake, monkeypatch):
    fake(suffix="")
    with pytest.raises(gs.errors.GpuscopeError, match="nsys made no report"):
        nsight.profile(EXPERIMENT, tmp_path / "run.nsys-rep", device="sim:h200")
    # Its importer lacks a library: all that is left is nsys's own intermediate file.
    fake(suffix=".qdstrm")
    monkeypatch.setattr(_nsys, "missing_libraries", lambda nsys: ["libdw.so.1 (libdw1)"])
    with pytest.raises(gs.errors.MissingDependency, match=r"its importer needs libdw\.so\.1"):
        nsight.profile(EXPERIMENT, tmp_path / "run.nsys-rep", device="sim:h200")
    assert {one.name for one in tmp_path.iterdir()} == {"bin"}


def test_cancel_ends_all_of_it(tmp_path, fake):
    fake()
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(gs.errors.Cancelled):
        nsight.profile(
            EXPERIMENT | {"rounds": 1000}, tmp_path / "run.nsys-rep", device="sim:h200",
            cancel=cancel,
        )  # fmt: skip
    assert {one.name for one in tmp_path.iterdir()} == {"bin"}
    started = fake.folder / "pid"
    if started.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(started.read_text()), 0)


# -- where the tools are ------------------------------------------------------------------------
def executable(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_finding_nsys(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    compute = f"{tmp_path}/nsight-compute/*/host/target-*/nsys"
    monkeypatch.setattr(_nsys, "_PLACES", {"nsys": (compute, "{cuda}/bin/nsys")})
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    with pytest.raises(gs.errors.MissingDependency, match="neither on PATH nor in CUDA's toolkit"):
        _nsys.find("nsys")
    in_cuda = executable(tmp_path / "cuda" / "bin" / "nsys")
    assert _nsys.find("nsys") == in_cuda
    for version in ("2024.9.0", "2025.10.1", "2025.3.1"):
        executable(tmp_path / "nsight-compute" / version / "host" / "target-linux-x64" / "nsys")
    newest = _nsys.find("nsys")
    assert newest.parts[-4] == "2025.10.1"
    monkeypatch.setenv("PATH", str(executable(tmp_path / "bin" / "nsys").parent))
    assert _nsys.find("nsys") == tmp_path / "bin" / "nsys"
    assert _nsys.find("nsys", in_cuda) == in_cuda
    with pytest.raises(gs.errors.MissingDependency, match="no program that can be run"):
        _nsys.find("nsys", tmp_path / "nothing")


def test_the_root_of_an_nsys(tmp_path):
    target = executable(tmp_path / "nsight" / "target-linux-x64" / "nsys")
    link = tmp_path / "bin" / "nsys"
    link.parent.mkdir()
    link.symlink_to(target)
    assert _nsys.root(link) == tmp_path / "nsight"


def test_libraries_that_the_importer_lacks(tmp_path, monkeypatch):
    nsys = executable(tmp_path / "nsight" / "target-linux-x64" / "nsys")
    executable(tmp_path / "nsight" / "host-linux-x64" / "QdstrmImporter")
    said = (
        "\tlibdw.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibq.so => not found\n"
    )
    monkeypatch.setattr(
        _nsys.subprocess, "run",
        lambda command, **_: subprocess.CompletedProcess(command, 0, stdout=said),
    )  # fmt: skip
    assert _nsys.missing_libraries(nsys) == ["libdw.so.1 (Debian's package libdw1)", "libq.so"]


# -- what runs inside ---------------------------------------------------------------------------
def test_perform_does_the_work_and_records_nothing():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording:
        assert perform(EXPERIMENT, gpu) is None
    trace = recording.trace
    ranges = [row for row in trace.spans.to_pylist() if row["kind"] == "range"]
    names = [row["name"] for row in ranges]
    assert names.count("one") == names.count("two") == 2
    assert names.count("round 0") == names.count("round 1") == 2
    # 4 calls in each of two settings, warm-up of 3 in each round, and nothing alone
    assert trace.kind_counts()["kernel"] == 2 * 4 + 2 * 2 * 3
