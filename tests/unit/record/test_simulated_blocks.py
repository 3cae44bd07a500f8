"""The simulator says which SMs the blocks of each kernel held, and when."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.errors import MissingEvidence


def recorded(detail, *, graph=False):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"small": 16, "load": "rest"}) as parts:
        s, t = parts["small"].create_stream(name="s"), parts["load"].create_stream(name="t")
        small = gs.Gemm(gpu, m=512, n=512, k=512, dtype="float16", name="small")
        load = gs.Gemm(gpu, m=4096, n=4096, k=4096, dtype="float16", name="load")
        if graph:
            out, a = gpu.empty((512, 512), "float16"), gpu.asarray(np.ones((512, 512), "float16"))
            with s.capture() as captured:
                gs.mm_out(out, a, a, stream=s)
                gs.mm_out(out, a, a, stream=s)
        with gs.profile(gpu, detail=detail) as recording:
            for _ in range(3):
                load.execute(stream=t)
                if graph:
                    captured.launch(stream=s)
                else:
                    small.execute(stream=s)
            gpu.synchronize()
        return recording.trace


@pytest.fixture(scope="module", params=[False, True], ids=["launched", "in a graph"])
def trace(request):
    return recorded("full", graph=request.param)


def test_each_kernel_has_the_blocks_that_held_its_sms_from_first_to_last(trace):
    rows = trace.spans.to_pylist()
    kernels = {row["id"]: row for row in rows if row["kind"] == "kernel"}
    blocks = [row for row in rows if row["kind"] == "block"]
    assert len({row["id"] for row in rows}) == len(rows)
    for number, kernel in kernels.items():
        mine = [row for row in blocks if row["parent"] == number]
        assert min(row["start_ns"] for row in mine) == kernel["start_ns"]
        assert max(row["end_ns"] for row in mine) == kernel["end_ns"]
        owned = set(trace.metadata.partition(kernel["partition"]).sm_ids)
        assert {row["sm"] for row in mine} <= owned
        assert {row["partition"] for row in mine} == {kernel["partition"]}
        assert {row["source"] for row in mine} == {"simulated"}


def test_an_sm_holds_one_block_at_a_time(trace):
    sm = trace.array("sm", fill=-1)
    start, end = trace.array("start_ns"), trace.array("end_ns", fill=-1)
    for one in set(sm[sm >= 0].tolist()):
        mine = np.flatnonzero(sm == one)
        mine = mine[np.argsort(start[mine])]
        assert (start[mine][1:] >= end[mine][:-1]).all()


def test_sms_can_be_drawn_and_confinement_is_told_by_them(trace):
    figure = gs.figures.sm_map(trace)
    assert {one.name.split()[0] for one in figure.data if one.name} == {"small", "load"}
    assert len(gs.figures.timeline(trace, sm=True).layout.images) == 1
    assert "blocks" in str(gs.analysis.confinement(trace))
    timeline = gs.Timeline(trace)
    assert timeline.bar.state["sms"] is False, "they can be shown below the tracks"
    timeline.close()


def test_without_that_detail_there_are_none_and_it_says_how():
    trace = recorded("launches")
    assert "block" not in trace.kind_counts()
    with pytest.raises(MissingEvidence, match="detail='full'"):
        gs.figures.sm_map(trace)
