"""Which kinds of edges a trace tells completely: kept by files, parts and merging."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

BEFORE = Path(__file__).resolve().parents[2] / "data" / "before"
SIMULATED = ("launch", "event wait", "graph", "legacy default stream", "SMs", "priority")


@pytest.fixture(scope="module")
def trace():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        for _ in range(3):
            stream.launch(kernel, 5_000, grid=1, block=32)
        stream.synchronize()
    gpu.close()
    return recording.trace


def test_a_simulated_recording_tells_all_but_what_polls_saw(trace):
    assert trace.metadata.edges == SIMULATED


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".sqlite"])
def test_files_keep_them(trace, tmp_path, suffix):
    path = tmp_path / f"trace{suffix}"
    gs.export(trace, path)
    assert gs.load_trace(path).metadata.edges == SIMULATED


def test_parts_keep_them(trace):
    assert trace.where(kind="kernel").metadata.edges == SIMULATED


def test_merged_ranks_tell_what_all_tell():
    columns = {"id": [1], "kind": ["kernel"], "name": ["k"], "start_ns": [1], "end_ns": [2],
               "source": ["cupti"]}  # fmt: skip

    def rank(number, edges):
        ranks = [{"rank": number, "world_size": 2, "process": 10 + number}]
        return Trace.from_columns(
            {**columns, "process": [10 + number]}, None,
            TraceMetadata(ranks=ranks, edges=edges, clock="one"),
        )  # fmt: skip

    merged = gs.merge([rank(0, ("launch", "host wait")), rank(1, ("event wait", "launch"))])
    assert merged.metadata.edges == ("launch",)


def test_traces_of_before_tell_none():
    for name in ("trace.parquet", "merged.parquet"):
        assert gs.load_trace(BEFORE / name).metadata.edges == ()
