"""Times, skew and bandwidths of collectives, by traces whose answers are known."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope.errors import MissingEvidence
from gpuscope.trace.facts import CollectiveFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def of_rank(rank, times, facts=None, partition=None, world_size=2):
    """Return the trace of a rank; ``times`` are the starts and ends of its kernels in µs."""
    rows, edges = [], []
    for number, (start, end) in enumerate(times):
        first = 3 * number
        common = {"process": 100 + rank, "stream": 7, "device": rank, "source": "cupti"}
        if facts is not None:
            told = facts.__class__(
                facts.kind, number, facts.group, facts.world_size, facts.nbytes
            ).to_json()
            rows += [
                {**common, "id": first, "kind": "handle", "name": "sum", "start_ns": 0,
                 "end_ns": 10**9, "payload": told},
                {**common, "id": first + 1, "kind": "api", "name": "launch", "start_ns": 0,
                 "end_ns": 1, "parent": first},
            ]  # fmt: skip
            edges.append((first + 1, first + 2, "launch"))
        rows.append(
            {**common, "id": first + 2, "kind": "kernel", "name": KERNEL,
             "start_ns": 1000 * start, "end_ns": 1000 * end, "partition": partition}
        )  # fmt: skip
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    ends = {
        name: [edge[place] for edge in edges] for place, name in enumerate(("from", "to", "kind"))
    }
    return Trace.from_columns(
        columns, ends if edges else None,
        TraceMetadata(
            clock="one", ranks=({"rank": rank, "world_size": world_size, "process": 100 + rank},),
            devices={f"cuda:{rank}": {"index": rank, "sm_count": 132, "uuid": f"GPU-{rank}"}},
            partitions={partition: {"sm_count": 16}} if partition else {},
        ),
    )  # fmt: skip


def test_time_is_the_least_and_skew_stands_apart():
    facts = CollectiveFacts("all_reduce", 0, "comm", 2, 64_000_000)
    merged = gs.merge(
        [
            of_rank(0, [(100, 600), (1000, 1400), (2000, 2400)], facts, "part"),
            of_rank(1, [(300, 600), (1000, 1400), (1990, 2400)], facts, "part"),
        ]
    )
    found = gs.analysis.collectives(merged)
    one = found["comm"]
    assert (one.kind, one.nbytes, one.ranks, one.sm_count, one.n) == (
        "all_reduce", 64_000_000, 2, 16, 3
    )  # fmt: skip
    assert one.time_ns == 400_000
    assert (one.skew_ns, one.skew_max_ns) == (10_000, 200_000)
    assert (one.most_waited, one.waited_ns) == (0, pytest.approx(200_000 / 3))
    assert one.algorithm_gb_per_s == one.bus_gb_per_s == 160
    assert [each.time_ns for each in found.each] == [300_000, 400_000, 400_000]
    assert [each.waits_ns for each in found.each] == [
        {0: 200_000, 1: 0}, {0: 0, 1: 0}, {0: 0, 1: 10_000}
    ]  # fmt: skip
    assert "nccl-tests" in found.note


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75)],
)
def test_bus_bandwidths_of_four_ranks(kind, factor):
    facts = CollectiveFacts(kind, 0, "comm", 4, 1_000_000)
    merged = gs.merge([of_rank(rank, [(10, 20)], facts, world_size=4) for rank in range(4)])
    one = gs.analysis.collectives(merged)["comm"]
    assert one.algorithm_gb_per_s == 100
    assert one.bus_gb_per_s == pytest.approx(100 * factor)
    assert one.sm_count == 132


def test_kernels_of_other_programs_are_found_by_their_names_and_have_no_size():
    merged = gs.merge([of_rank(0, [(10, 30), (50, 60)]), of_rank(1, [(20, 30), (45, 60)])])
    (one,) = gs.analysis.collectives(merged).groups
    assert (one.group, one.n, one.nbytes, one.bus_gb_per_s) == (KERNEL, 2, None, None)
    assert one.time_ns == 10_000


def test_one_rank_alone_is_no_collective():
    with pytest.raises(MissingEvidence, match="several devices"):
        gs.analysis.collectives(of_rank(0, [(10, 30)]))
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording:
        pass
    with pytest.raises(MissingEvidence, match="merge the traces of all ranks"):
        gs.analysis.collectives(recording.trace)
