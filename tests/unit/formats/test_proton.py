"""Traces of Proton: scopes inside kernels, on the SMs of their thread blocks."""

from __future__ import annotations

import json
from pathlib import Path

import proton_files as proton
import pytest

import gpuscope as gs
from gpuscope.errors import TraceFormatError
from gpuscope.formats import Limits

DATA = Path(__file__).resolve().parents[2] / "data/proton"


def rows(trace, **equal):
    return trace.where(**equal).spans.to_pylist()


# -- the blocks of Triton's own tests ----------------------------------------------------------
def test_scopes_of_tritons_single_block():
    trace = gs.load_trace(DATA / "single_block.chrome_trace")
    assert trace.kind_counts() == {"kernel": 1, "block": 1, "scope": 2}
    (block,), scopes = rows(trace, kind="block"), rows(trace, kind="scope")
    assert (block["name"], block["sm"], block["payload"]) == ("kernel1", 120, '{"block": 1}')
    assert [
        (row["name"], row["start_ns"], row["end_ns"], row["sm"], row["parent"]) for row in scopes
    ] == [("s1", 0, 40, 120, block["id"]), ("scope_7", 100, 140, 120, block["id"])]
    assert scopes[0]["payload"] == '{"block": 1, "warp": 2}'
    assert [row["value"] for row in scopes] == [40, 40]  # cycles


def test_scopes_of_tritons_blocks_with_several_warps():
    trace = gs.load_trace(DATA / "multi_block_multi_warp.chrome_trace")
    assert trace.kind_counts() == {"kernel": 1, "block": 2, "scope": 24}
    by_block = {row["id"]: row["sm"] for row in rows(trace, kind="block")}
    scopes = rows(trace, kind="scope")
    assert sorted(by_block.values()) == [120, 121]
    assert all(by_block[row["parent"]] == row["sm"] for row in scopes)
    assert [(row["name"], row["start_ns"], row["end_ns"]) for row in scopes[:4]] == [
        ("s1", 0, 40), ("s2", 20, 60), ("s3", 50, 78), ("s4", 61, 88),
    ]  # fmt: skip


def test_kernels_of_tritons_two_launches():
    trace = gs.load_trace(DATA / "multi_kernel.chrome_trace")
    assert [
        (row["name"], row["start_ns"], row["end_ns"]) for row in rows(trace, kind="kernel")
    ] == [("kernel1", 0, 400_000), ("kernel2", 10_000_000, 10_400_000)]
    assert trace.kind_counts()["block"] == 3


# -- what versions tell ------------------------------------------------------------------------
def test_times_are_the_gpus_where_the_file_tells_them(tmp_path):
    launch = proton.persistent()
    path = proton.written(tmp_path / "p.chrome_trace", [launch], version="3.9")
    trace = gs.load_trace(path)
    (kernel,) = rows(trace, kind="kernel")
    assert kernel["start_ns"] == proton.BEGAN_NS
    assert [(row["start_ns"], row["end_ns"]) for row in rows(trace, kind="block")] == [
        (block.init_ns, block.final_ns) for block in launch[1]
    ]
    # At the clock at which the cycles of the longest scope fit: 2 GHz, within a step of the timer.
    tiles = rows(trace, kind="scope", name="tile")
    for row in tiles:
        assert row["end_ns"] - row["start_ns"] == pytest.approx(1000, rel=0.02)
        assert row["value"] == 2000
    assert trace.metadata.counts["bars of the host's scopes not taken"] == 1


def test_cycles_are_ns_where_no_end_is_told(tmp_path):
    trace = gs.load_trace(proton.written(tmp_path / "p.json", [proton.persistent()]))
    assert {row["end_ns"] - row["start_ns"] for row in rows(trace, name="tile")} == {2000}
    assert min(row["start_ns"] for row in rows(trace)) == 0


def test_a_scope_that_covers_little_of_a_block_does_not_tell_its_clock(tmp_path):
    block = proton.Block(3, 0, 1000, 9000, [(0, "short", 50, 90)])
    trace = gs.load_trace(proton.written(tmp_path / "p.json", [("k", [block])], version="3.9"))
    (scope,) = rows(trace, kind="scope")
    assert (scope["start_ns"], scope["end_ns"]) == (1000, 1040)  # at the 1 GHz of the writer


@pytest.mark.parametrize("version", ["3.6", "3.9"])
def test_launches_of_one_kernel_are_told_apart(tmp_path, version):
    launches = [proton.persistent(sms=[2], at_ns=at) for at in (0, 10_000, 20_000)]
    launches.append(proton.persistent(sms=[2, 5], at_ns=30_000))
    launches.append(proton.persistent("other", sms=[7], at_ns=40_000))
    trace = gs.load_trace(proton.written(tmp_path / "p.json", launches, version=version))
    kernels = rows(trace, kind="kernel")
    first = kernels[0]["start_ns"]
    assert [(row["name"], row["start_ns"] - first) for row in kernels] == [
        *(("persistent", at) for at in (0, 10_000, 20_000, 30_000)), ("other", 40_000),
    ]  # fmt: skip
    children = {row["id"]: 0 for row in kernels}
    for row in rows(trace, kind="block"):
        children[row["parent"]] += 1
    assert [*children.values()] == [1, 1, 1, 2, 1]


def test_events_between_warps_belong_to_their_block(tmp_path):
    scopes = [(0, "s", 100, 900), (1, "s", 120, 800)]
    links = [((0, 200), (0, 300), "copy"), ((0, 250), (1, 500), "handed")]
    blocks = [proton.Block(1, n, 1000 * n, 1000 * n + 950, scopes, links=links) for n in (0, 1)]
    trace = gs.load_trace(proton.written(tmp_path / "p.json", [("k", blocks)], version="3.9"))
    assert trace.kind_counts() == {"kernel": 1, "block": 2, "scope": 10}
    handed = rows(trace, name="handed")
    assert [row["end_ns"] - row["start_ns"] for row in handed] == [0] * 4
    assert len({row["parent"] for row in handed}) == 2


def test_folders_in_names_are_left_out(tmp_path):
    launch = ("k", [proton.Block(0, 0, 0, 9, [(0, "/home/ada/kernel.py:3", 0, 5)])])
    path = proton.written(tmp_path / "p.json", [launch])
    assert rows(gs.load_trace(path), kind="scope")[0]["name"] == "kernel.py:3"
    kept = gs.load_trace(path, keep_private=True)
    assert rows(kept, kind="scope")[0]["name"] == "/home/ada/kernel.py:3"


def test_older_files_stay_chrome_traces(tmp_path):
    # Of Tritons older than 3.6 each block begins at its kernel's 0: nothing tells when it ran.
    event = {"name": "s", "cat": "k", "ph": "X", "tid": "warp 0 (line 0)", "ts": 0.0, "dur": 0.04,
             "pid": "k Core120 CTA1 [measure in clock cycle (assume 1GHz)]"}  # fmt: skip
    path = tmp_path / "old.chrome_trace"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": [event]}))
    assert gs.load_trace(path).kind_counts() == {"range": 1}


# -- hostile files -----------------------------------------------------------------------------
BAD = {
    "negative times": {"ts": -5.0},
    "no times": {"ts": None},
    "endless": {"dur": 1e30},
    "a scope that ends before it begins": {"dur": -1},
    "an SM beyond any": {"pid": "k Core99999999 CTA1"},
    "times of the clock beyond any": {"args": {"Init Time (ns)": 1 << 62}},
    "a clock of nothing": {"args": {"Frequency (MHz)": 0}},
    "texts as times": {"args": {"Init Time (ns)": "soon", "Post Final Time (ns)": [1]}},
    "arguments that are none": {"args": 5},
    "a name that is none": {"name": None},
}


@pytest.mark.parametrize("what", BAD)
def test_strange_values_make_no_invalid_trace(tmp_path, what):
    document = proton.chrome_trace([proton.persistent(tiles=2)], version="3.9")
    document["traceEvents"].insert(2, {**document["traceEvents"][1], **BAD[what]})
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document))
    trace = gs.load_trace(path)
    assert trace.kind_counts()["scope"] >= 8
    gs.export(trace, tmp_path / "again.parquet")


def test_a_file_without_a_usable_scope_is_an_empty_trace(tmp_path):
    document = proton.chrome_trace([("k", [proton.Block(0, 0, 0, 9, [(0, "s", 0, 5)])])])
    document["traceEvents"][0]["ts"] = None
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document))
    assert len(gs.load_trace(path)) == 0


def test_limits_count_kernels_and_blocks(tmp_path):
    path = proton.written(tmp_path / "p.json", [proton.persistent()])
    with pytest.raises(TraceFormatError, match="limit"):
        gs.load_trace(path, limits=Limits(rows=8))


# -- exports -----------------------------------------------------------------------------------
def test_chrome_and_parquet_keep_it(tmp_path):
    trace = gs.load_trace(proton.written(tmp_path / "p.json", [proton.persistent()], version="3.9"))
    columns = ["id", "parent", "kind", "name", "start_ns", "end_ns", "sm", "payload", "value"]
    whole = trace.spans.select(columns).to_pylist()
    for suffix in ("parquet", "json"):
        again = gs.load_trace(gs.export(trace, tmp_path / f"again.{suffix}")).spans
        assert again.sort_by("id").select(columns).to_pylist() == whole
