"""``gpuscope record`` sees what other libraries do on a GPU, in every process of a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope as gs

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
