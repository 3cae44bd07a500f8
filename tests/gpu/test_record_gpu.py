"""``gpuscope record`` sees what other libraries do on a GPU, in every process of a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.record.cupti.journal import JournalReader

pytestmark = pytest.mark.gpu
ROOT = Path(gs.__file__).parents[1]
RECORD = (sys.executable, "-m", "gpuscope.cli", "record", "--out", "out")
TORCH = """
import torch

def work(count):
    x = torch.ones(256, 256, device="cuda")
    with torch.cuda.nvtx.range("step"):
        for _ in range(count):
            x = x.sin()
    return x

if __name__ == "__main__":
    work(5)
    torch.cuda._sleep(100_000_000)  # still runs when the program ends
"""
LONG = """
import time
from alone import work

work(50)  # CUDA starts, which takes longer than all the rest
end = time.monotonic() + 0.3
while time.monotonic() < end:
    work(50)
"""
PARENT = """
import multiprocessing, os
from alone import work

if __name__ == "__main__":
    if os.environ.get("RANK") is None:
        started = [
            multiprocessing.get_context(how).Process(target=work, args=(count,), name=how)
            for how, count in (("fork", 6), ("spawn", 7))
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        print([process.exitcode for process in started])
    work(8)
"""
JOURNALED = """
import os, shutil, signal, sys, time
from alone import work
from gpuscope.experiments import processes

for count in (20, 20, 20):
    work(count)
(recorder,) = processes._recorders
(journal,) = recorder._journals.values()
before = -1
with recorder._lock:
    while journal._end != before:  # CUPTI may hand over more
        before = journal._end
        time.sleep(0.3)
        recorder._cuda.advance()
    shutil.copy(journal.path, "copy.journal")
print("copied", flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""
CHAIN = """
import os, sys
from alone import work

left = int(sys.argv[1])
work(left)
if left > 4:
    os.execv(sys.executable, [sys.executable, "chain.py", str(left - 1)])
"""
OWN = """
import cupy, signal, os
import gpuscope as gs

x = cupy.ones((256, 256), "float32")
x += 1
gpu = gs.open_device("cuda:0", quiet=True)
parts = gpu.carve({"small": 16, "rest": "rest"})
stream = parts["small"].create_stream(name="s")
gemm = gs.Gemm(gpu, m=256, n=256, k=256)
with gs.profile() as recording:
    for _ in range(3):
        gemm.execute(stream=stream)
        gemm.wait()
print(recording.trace.kind_counts()["kernel"] >= 3, recording.trace.metadata.complete, flush=True)
os.kill(os.getpid(), signal.SIGINT)
"""


def record(folder, *command):
    """Run a program under a recording; returns its status, its output and name → trace."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*RECORD, *command], cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=False,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    sys.stderr.write(done.stderr)
    found = sorted((folder / "out").glob("*.parquet"))
    traces = {path.name.rpartition("-")[0]: gs.load_trace(path) for path in found}
    return done.returncode, done.stdout, traces


def inside(trace):
    """Return how many kernels were launched inside the range."""
    (step,) = (row for row in rows(trace, "range") if row["name"] == "step")
    return sum(
        step["start_ns"] <= row["queued_ns"] <= step["end_ns"] for row in rows(trace, "kernel")
    )


def rows(trace, kind):
    return trace.where(kind=kind).spans.to_pylist()


def test_a_program_of_torch_leaves_a_complete_trace_and_a_report(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "alone.py").write_text(TORCH)
    status, _, traces = record(tmp_path, "alone.py")
    (trace,) = traces.values()
    assert status == 0
    assert inside(trace) == 5
    assert trace.metadata.complete, trace.metadata.notes
    sleeping = max(rows(trace, "kernel"), key=lambda row: row["start_ns"])
    assert sleeping["end_ns"] - sleeping["start_ns"] > 10_000_000
    launched = {edge["to"] for edge in trace.edges.to_pylist() if edge["kind"] == "launch"}
    assert {row["id"] for row in rows(trace, "kernel")} <= launched
    assert next((tmp_path / "out").glob("*.html")).stat().st_size > 100_000


def test_the_last_line_says_what_recording_cost(tmp_path, capsys):
    pytest.importorskip("torch")
    for name, text in {"alone.py": TORCH, "long.py": LONG}.items():
        (tmp_path / name).write_text(text)
    status, _, traces = record(tmp_path, "--no-report", "long.py")
    (trace,) = traces.values()
    assert status == 0
    assert trace.metadata.complete, trace.metadata.notes
    cost = trace.metadata.recording_cost
    assert 0 < cost.call_ns < 50_000
    assert 0 < cost.share < 0.9
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("gpuscope: recording cost ")
    assert "gpuscope_canary" not in trace.texts("name")


def test_children_leave_their_own_whether_forked_or_spawned(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "alone.py").write_text(TORCH)
    (tmp_path / "parent.py").write_text(PARENT)
    status, said, traces = record(tmp_path, "--no-report", "parent.py")
    assert (status, said) == (0, "[0, 0]\n")
    counts = {name: inside(trace) for name, trace in traces.items()}
    assert counts == {"parent": 8, "fork": 6, "spawn": 7}
    for trace in traces.values():
        assert trace.metadata.complete, trace.metadata.notes


def test_torchrun_s_workers_are_named_by_their_ranks(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "alone.py").write_text(TORCH)
    (tmp_path / "parent.py").write_text(PARENT)
    command = ("--no-report", "-m", "torch.distributed.run", "--nproc-per-node", "2", "parent.py")
    status, _, traces = record(tmp_path, *command)
    assert status == 0
    assert {name: inside(trace) for name, trace in traces.items()} == {
        "parent-rank0": 8, "parent-rank1": 8,
    }  # fmt: skip


def test_gpuscope_s_own_device_joins_and_ctrl_c_keeps_the_trace(tmp_path):
    pytest.importorskip("cupy")
    (tmp_path / "own.py").write_text(OWN)
    status, said, traces = record(tmp_path, "--no-report", "own.py")
    assert (status, said) == (-signal.SIGINT, "True True\n")
    (trace,) = traces.values()
    assert trace.metadata.complete, trace.metadata.notes
    own = trace.where(kind="kernel", intended_partition="small")
    assert len(own) >= 3
    assert set(own.texts("partition")) == {"small"}
    assert len(trace.where(kind="kernel")) > len(own)  # CuPy's


def test_another_process_makes_the_rows_that_the_program_itself_makes(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "alone.py").write_text(
        TORCH.replace("    return x", "    torch.cuda.synchronize()")
    )
    (tmp_path / "journaled.py").write_text(JOURNALED)
    status, said, traces = record(tmp_path, "--no-report", "journaled.py", "ends")
    assert (status, said) == (0, "copied\n")
    near = traces["journaled"]
    far = JournalReader(tmp_path / "copy.journal").read(over=True)
    assert near.metadata.complete, near.metadata.notes
    columns = [
        "kind",
        "name",
        "start_ns",
        "end_ns",
        "device",
        "device_uuid",
        "context",
        "stream",
        "thread",
        "correlation",
        "launch_config",
        "queued_ns",
        "nbytes",
    ]
    for kind in ("kernel", "memcpy", "memset", "range"):
        parts = (trace.where(kind=kind) for trace in (far, near))
        there, wanted = (sorted(part.spans.select(columns).to_pylist(), key=repr) for part in parts)
        assert there == wanted, kind
    assert len(far.where(kind="kernel")) >= 60
    assert len(far.where(kind="range")) == 3


def test_what_a_program_did_that_is_killed_is_there(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "alone.py").write_text(
        TORCH.replace("    return x", "    torch.cuda.synchronize()")
    )
    (tmp_path / "journaled.py").write_text(JOURNALED)
    status, said, traces = record(tmp_path, "--no-report", "journaled.py", "killed")
    assert (status, said) == (-signal.SIGKILL, "copied\n")
    trace = traces["journaled"]
    assert "killed or crashed" in trace.metadata.incomplete
    assert len(trace.where(kind="range")) == 3
    assert len([name for name in trace.where(kind="kernel").texts("name") if "sin" in name]) == 60


def test_each_image_of_an_exec_chain_leaves_its_trace(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "alone.py").write_text(TORCH)
    (tmp_path / "chain.py").write_text(CHAIN)
    status, _, _ = record(tmp_path, "--no-report", "chain.py", "6")
    assert status == 0
    traces = [gs.load_trace(path) for path in (tmp_path / "out").glob("*.parquet")]
    assert sorted(inside(trace) for trace in traces) == [4, 5, 6]
    for trace in traces:
        assert trace.metadata.complete, trace.metadata.notes
