"""Ranks beside each other, by traces whose straggler is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.errors import MissingEvidence
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

STEP_NS = 1_000_000
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def of_rank(rank, count, late_ns):
    """Return a rank's trace: each step a call, a kernel and an all-reduce that ends on all."""
    rows, edges = [], {"from": [], "to": [], "kind": []}

    def row(kind, name, start_ns, end_ns, **more):
        rows.append(
            {"id": len(rows), "kind": kind, "name": name, "start_ns": start_ns, "end_ns": end_ns,
             "process": 100 + rank, "source": "cupti", **more}
        )  # fmt: skip

    for number in range(count):
        begin_ns = number * STEP_NS
        site = json.dumps([["train.py", 7, "prepare"]])
        row("range", "step", begin_ns, begin_ns + 900_000, thread=rank + 1, source="nvtx")
        call_ns = begin_ns + 100_000 + late_ns
        row(
            "api",
            "launch",
            call_ns,
            call_ns + 5_000,
            thread=rank + 1,
            site=site,
            correlation=number,
        )
        on_gpu = {"device": rank, "stream": 7}
        for kernel in (len(rows), len(rows) + 1):
            edges["from"].append(len(rows) - 1)
            edges["to"].append(kernel)
            edges["kind"].append("launch")
        row("kernel", "gemm", call_ns + 10_000, call_ns + 110_000, **on_gpu)
        row("kernel", KERNEL, call_ns + 110_000, begin_ns + 800_000, **on_gpu)
    names = dict.fromkeys(name for row in rows for name in row)
    return Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names}, edges,
        TraceMetadata(
            clock="one", ranks=({"rank": rank, "world_size": 2, "process": 100 + rank},),
            devices={f"cuda:{rank}": {"index": rank, "sm_count": 132, "uuid": f"GPU-{rank}"}},
        ),
    )  # fmt: skip


def test_the_straggler_is_who_the_others_waited_for():
    merged = gs.merge([of_rank(0, 10, 0), of_rank(1, 10, 300_000)])
    found = gs.analysis.ranks(merged)
    assert found.straggler.rank == 1
    first, second = found.ranks
    assert (first.waited_ns, first.held_up_ns) == (found.collectives * 300_000, 0)
    assert (second.waited_ns, second.held_up_ns) == (0, found.collectives * 300_000)
    assert second.last == found.collectives > 0
    assert first.exposed_ns - second.exposed_ns == first.waited_ns
    assert second.steps == first.steps == len(found.aligned)
    assert all(step[0].start_ns == step[1].start_ns for step in found.aligned)


def test_its_line_is_where_it_spends_more_time_than_others():
    slow = of_rank(1, 10, 300_000)
    starts = slow.array("start_ns").copy()
    is_call = [kind == "api" for kind in slow.texts("kind")]
    starts[is_call] += 1_000 * (starts[is_call] // STEP_NS) ** 2  # ever longer between two
    columns = {name: slow.spans.column(name).to_pylist() for name in slow.spans.column_names}
    columns |= {"start_ns": starts.tolist(), "end_ns": np.maximum(starts, slow.array("end_ns"))}
    edges = {name: slow.edges.column(name).to_pylist() for name in slow.edges.column_names}
    merged = gs.merge([of_rank(0, 10, 0), Trace.from_columns(columns, edges, slow.metadata)])
    found = gs.analysis.ranks(merged)
    assert found.straggler.line == "train.py:7 in prepare"
    assert found.straggler.slower_ns > 0
    assert found.ranks[0].line == ""


def test_one_rank_is_none():
    with pytest.raises(MissingEvidence, match="collective of two ranks"):
        gs.analysis.ranks(of_rank(0, 3, 0))
