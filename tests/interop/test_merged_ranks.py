"""Other tools read the ranks of a merged trace: a folder of files, or processes in one file."""

from __future__ import annotations

import gzip
import json
import threading

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.analysis import intervals
from gpuscope.errors import Cancelled, ExportError
from gpuscope.trace import Trace
from gpuscope.trace.facts import RankFacts
from gpuscope.trace.metadata import TraceMetadata

COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def rank_of(rank: int) -> Trace:
    """Return steps of a rank: a GEMM, and an all-reduce on another stream that overlaps it."""
    chance = np.random.default_rng(rank)
    rows: dict[str, list[object]] = {
        name: []
        for name in ("kind", "name", "start_ns", "end_ns", "process", "thread", "device", "stream",
                     "correlation", "source")
    }  # fmt: skip
    for step in range(6):
        at = 1_000_000 * step + 1_000
        late = int(chance.integers(0, 200_000))
        correlation = [2 * step + 1, 2 * step + 2]
        for values in (
            ("range", f"step {step}", at, at + 900_000, 40, 41, None, None, None, "nvtx"),
            ("api", "cudaLaunchKernel", at, at + 5_000, 40, 41, None, None, correlation[0], "cupti"),
            ("api", "cudaLaunchKernel", at + 6_000, at + 9_000, 40, 41, None, None,
             correlation[1], "cupti"),
            ("kernel", "gemm", at + 10_000, at + 310_000 + late, None, None, 0, 7,
             correlation[0], "cupti"),
            ("kernel", COLLECTIVE, at + 200_000 + late, at + 500_000, None, None, 0, 8,
             correlation[1], "cupti"),
        ):  # fmt: skip
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
    count = len(rows["kind"])
    uuids = [None if device is None else f"GPU-{rank}" for device in rows["device"]]
    facts = TraceMetadata(
        clock="boot", ranks=(RankFacts(rank, 2, process=40, device="cuda:0", backend="nccl"),),
        clocks={"cupti": {"residual_ns": 900}}, streams={"7": {"name": "s"}, "8": {"name": "comm"}},
        devices={"cuda:0": {"index": 0, "uuid": f"GPU-{rank}", "name": "GPU", "sm_count": 132}},
        process_names={"40": "python"},
    )  # fmt: skip
    return Trace.from_columns(
        {"id": list(range(1, count + 1)), "device_uuid": uuids, **rows}, None, facts
    )


@pytest.fixture(scope="module")
def merged():
    return gs.merge([rank_of(0), rank_of(1)])


def busy_us(trace: Trace, *names: str) -> float:
    part = trace.where(kind="kernel", name=names)
    return np.diff(intervals.union(part.array("start_ns"), part.array("end_ns"))).sum() / 1e3


def test_holistic_trace_analysis_opens_the_folder_unaided(merged, tmp_path, hta):
    found = hta(gs.export(merged, tmp_path / "ranks"))
    assert found["ranks"] == [0, 1]
    for rank in merged.metadata.ranks:
        own = merged.where(process=rank.process)
        computing, joint = busy_us(own, "gemm"), busy_us(own, COLLECTIVE)
        both = computing + joint - busy_us(own, "gemm", COLLECTIVE)
        share = found["overlap_pctg"][str(rank.rank)]
        assert share == pytest.approx(100 * both / joint, abs=0.01)
        assert share > 10
        seen = found["temporal"][str(rank.rank)]
        assert seen["compute_time(us)"] == pytest.approx(computing)
        assert seen["non_compute_time(us)"] == pytest.approx(joint - both)


def test_each_file_says_its_rank_as_kineto_does(merged, tmp_path):
    gs.export(merged, tmp_path / "ranks")
    for rank in (0, 1):
        with gzip.open(tmp_path / "ranks" / f"rank-{rank}.json.gz") as file:
            found = json.load(file)
        assert found["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 2}


def test_a_folder_of_ranks_is_written_whole_or_not_at_all(merged, tmp_path):
    folder = tmp_path / "ranks"
    gs.export(merged, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    cancel = threading.Event()

    def progress(rows: int, _total: int) -> None:
        if rows >= len(merged) // 2:
            cancel.set()

    with pytest.raises(Cancelled):
        gs.export(merged, folder, progress=progress, cancel=cancel)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_of_more_ranks_is_left_alone(merged, tmp_path):
    (tmp_path / "rank-2.json.gz").write_bytes(b"")
    with pytest.raises(ExportError, match=r"holds rank-2.json.gz of another trace"):
        gs.export(merged, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-2.json.gz"]


def test_perfetto_shows_ranks_as_processes(merged, tmp_path, perfetto):
    slices, flows = perfetto(
        gs.export(merged, tmp_path / "merged.json"),
        "select p.name, t.name, count(*) from slice s join thread_track k on s.track_id = k.id "
        "join thread t using (utid) join process p using (upid) group by 1, 2",
        "select a.name, b.name from flow f join slice a on f.slice_out = a.id "
        "join slice b on f.slice_in = b.id",
    )
    counts = {(owner, row): count for owner, row, count in slices}
    for rank in (0, 1):
        streams = {row: count for (owner, row), count in counts.items()
                   if owner == f"rank {rank}" and row.startswith("GPU")}  # fmt: skip
        assert streams == {f"GPU {rank} GPU · s": 6, f"GPU {rank} GPU · comm": 6}
    assert {owner for owner, _ in counts} == {"rank 0", "rank 1"}
    assert flows == [[COLLECTIVE, COLLECTIVE]] * 6


def test_a_folder_comes_back_as_it_was(merged, tmp_path):
    gs.export(merged, tmp_path / "ranks", keep_private=True)
    files = sorted((tmp_path / "ranks").iterdir())
    again = gs.merge([gs.load_trace(file, keep_private=True) for file in files])
    keys = ("start_ns", "end_ns", "name", "process", "thread", "device")
    one, other = (trace.spans.select(keys).to_pylist() for trace in (merged, again))
    order = [key for key in keys if key not in ("thread", "device")]
    one.sort(key=lambda row: [str(row[key]) for key in order])
    other.sort(key=lambda row: [str(row[key]) for key in order])
    assert one == other
    assert again.edges.to_pydict()["kind"] == merged.edges.to_pydict()["kind"]
    assert [(rank.rank, rank.world_size, rank.backend, rank.error_ns)
            for rank in again.metadata.ranks] == [(0, 2, "nccl", 1800), (1, 2, "nccl", 1800)]  # fmt: skip


def test_one_file_comes_back_as_it_was(merged, tmp_path):
    back = gs.load_trace(gs.export(merged, tmp_path / "merged.json"))
    one, other = (trace.spans.sort_by("id").to_pylist() for trace in (merged, back))
    assert one == other
    assert back.metadata.ranks == merged.metadata.ranks


def test_a_file_of_kineto_tells_its_rank(tmp_path):
    events = [{"ph": "X", "cat": "kernel", "name": COLLECTIVE, "ts": (0, 13, 47)[n], "dur": 5, "pid": 0,
               "tid": 7, "args": {"stream": 7, "device": 0}} for n in range(3)]  # fmt: skip
    traces = []
    for rank in (0, 1):
        path = tmp_path / f"{rank}.json"
        path.write_text(json.dumps({
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2, "pg_count": 1},
            "traceEvents": events,
        }))  # fmt: skip
        traces.append(gs.load_trace(path))
    assert traces[1].metadata.ranks == (RankFacts(1, 2, backend="nccl"),)
    merged = gs.merge(traces)
    assert merged.edges.num_rows == 3
    path.write_text(json.dumps({"distributedInfo": {"rank": "x"}, "traceEvents": events}))
    assert gs.load_trace(path).metadata.ranks == ()
