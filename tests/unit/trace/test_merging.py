"""Traces of several ranks become one: clocks, numbers and names, metadata, collectives."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.analysis import Part
from gpuscope.errors import AlignmentError, InvalidArgument
from gpuscope.trace import Trace
from gpuscope.trace.clocks import RATE, Bound, aligned
from gpuscope.trace.facts import (
    CollectiveFacts,
    HazardFact,
    HazardFacts,
    KeptFacts,
    PartitionFacts,
    RankFacts,
    SoloFacts,
    StreamFacts,
)
from gpuscope.trace.metadata import TraceMetadata

DAY_NS = 86_400_000_000_000


def trace_of(
    rank: int,
    kernels: list[tuple[int, int]],
    *,
    world: int = 2,
    name: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)",
    names: list[str] | None = None,
    columns: dict[str, list[Any]] | None = None,
    **metadata: Any,
) -> Trace:
    """Return the trace of a rank whose kernels run at these times."""
    count = len(kernels)
    rows = {
        "id": list(range(1, count + 1)), "kind": ["kernel"] * count,
        "name": names or [name] * count, "start_ns": [start for start, _ in kernels],
        "end_ns": [end for _, end in kernels], "stream": [7] * count, "device": [0] * count,
        "source": ["cupti"] * count, **(columns or {}),
    }  # fmt: skip
    metadata.setdefault("ranks", (RankFacts(rank, world, process=100),))
    return Trace.from_columns(rows, None, TraceMetadata(**metadata))


def with_handles(rank: int, called: list[tuple[CollectiveFacts, int, int]], **more: Any) -> Trace:
    """Return the trace of a rank whose handles launched these collectives."""
    rows: dict[str, list[Any]] = {
        name: [] for name in ("id", "parent", "kind", "name", "start_ns", "end_ns", "payload",
                              "stream", "source")
    }  # fmt: skip
    launches = []
    for number, (facts, start, end) in enumerate(called):
        handle, call, kernel = (10 * number + one for one in (1, 2, 3))
        launches.append((call, kernel))
        for values in (
            (handle, None, "handle", "reduce", start - 50, end, facts.to_json(), 7, "host"),
            (call, handle, "api", "cuLaunchKernel", start - 40, start - 20, None, 7, "cupti"),
            (kernel, None, "kernel", "any name", start, end, None, 7, "cupti"),
        ):
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
    rows["queued_ns"] = [None, None, 0] * len(called)
    rows["queued_ns"][2::3] = [start - 20 for _, start, _ in called]
    edges = {
        "from": [call for call, _ in launches], "to": [kernel for _, kernel in launches],
        "kind": ["launch"] * len(launches),
    }  # fmt: skip
    more.setdefault("ranks", (RankFacts(rank, 2, process=100),))
    return Trace.from_columns(rows, edges, TraceMetadata(**more))


def reduce(sequence: int, **changes: Any) -> CollectiveFacts:
    return CollectiveFacts(
        **{"kind": "all_reduce", "sequence": sequence, "group": "g", "world_size": 2, **changes}
    )


# -- clocks: random collectives on clocks that stand and run differently -------------------------
@st.composite
def worlds(draw):
    """Return when kernels of ranks ran by their own clocks, and how these stand to the truth."""
    ranks = draw(st.integers(2, 4))
    clocks = [
        (draw(st.integers(-DAY_NS, DAY_NS)), draw(st.floats(-RATE / 2, RATE / 2)))
        for _ in range(ranks)
    ]
    at = 2 * DAY_NS
    kernels: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for _ in range(draw(st.integers(1, 12))):
        at += draw(st.integers(0, 10**10))
        begun = [at + draw(st.integers(0, 10**6)) for _ in range(ranks)]
        done = max(begun) + draw(st.integers(0, 10**5))
        for rank in range(ranks):
            kernels[rank].append((begun[rank], done + draw(st.integers(0, 10**4))))
        at = max(end for own in kernels for _, end in own)
    return clocks, kernels


def by_clock(time: int, clock: tuple[int, float]) -> int:
    offset, rate = clock
    return round(time + offset + rate * (time - 2 * DAY_NS))


def read_by(own: list[tuple[int, int]], clock: tuple[int, float]) -> list[tuple[int, int]]:
    return [(by_clock(start, clock), by_clock(end, clock)) for start, end in own]


def can_be_shifted(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    """Whether some line obeys all bounds where half of the kernels or more are taken in a shift."""
    least = -(-len(one) // 2)
    for shift in {*range(least - len(one), len(one) - least + 1)} - {0}:
        numbers = [number for number in range(len(one)) if 0 <= number + shift < len(one)]
        pairs = [(one[number + shift], other[number]) for number in numbers]
        bounds = [Bound({0: a, 1: b}, {0: x, 1: y}) for (a, x), (b, y) in pairs]
        reach = [(own[0][0], own[-1][1]) for own in (one, other)]
        with contextlib.suppress(AlignmentError):
            aligned(bounds, reach, ["one", "other"])
            return True
    return False


@pytest.mark.no_cover
@settings(max_examples=150, deadline=None)
@given(worlds())
def test_the_true_offset_is_within_the_stated_error(world):
    clocks, kernels = world
    count = len(clocks)
    traces = [
        trace_of(rank, read_by(own, clock), world=count)
        for rank, (own, clock) in enumerate(zip(kernels, clocks, strict=True))
    ]
    read = [read_by(own, clock) for own, clock in zip(kernels, clocks, strict=True)]
    if any(can_be_shifted(read[0], other) for other in read[1:]):
        with contextlib.suppress(AlignmentError):  # unless their ends tell
            gs.merge(traces)
        return
    merged = gs.merge(traces)
    assert [rank.rank for rank in merged.metadata.ranks] == list(range(count))
    errors = [rank.error_ns for rank in merged.metadata.ranks]
    starts = [own.array("start_ns") for own in of_ranks(merged)]
    truth = [
        np.array([by_clock(start, clocks[0]) for start, _ in own], np.int64) for own in kernels
    ]
    for one in range(count):
        for other in range(one):
            apart = (starts[one] - starts[other]) - (truth[one] - truth[other])
            assert np.abs(apart).max() <= min(errors[one], errors[other])
    assert merged.edges.num_rows == (count - 1) * len(kernels[0])
    assert starts[0].tolist() == traces[0].array("start_ns").tolist()  # the lowest rank's clock


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_groups_of_some_ranks_on_shared_hosts_are_within_the_error_too(data):
    count = data.draw(st.integers(3, 5))
    host_of = [data.draw(st.integers(0, 2)) for _ in range(count)]
    clocks = [
        (data.draw(st.integers(-DAY_NS, DAY_NS)), data.draw(st.floats(-RATE / 2, RATE / 2)))
        for _ in range(3)
    ]
    some = st.sets(st.integers(0, count - 1), min_size=2)
    groups = [*data.draw(st.lists(some, min_size=1, max_size=3))]
    at, truth = 2 * DAY_NS, [[] for _ in range(count)]
    called: list[list[tuple[CollectiveFacts, int, int]]] = [[] for _ in range(count)]
    for sequence in range(data.draw(st.integers(1, 4))):
        for number, members in enumerate(groups):
            begun = {rank: at + data.draw(st.integers(1000, 10**6)) for rank in sorted(members)}
            done = max(begun.values()) + data.draw(st.integers(0, 10**5))
            for rank, start in begun.items():
                clock = clocks[host_of[rank]]
                facts = reduce(sequence, group=f"g{number}", world_size=len(members))
                called[rank].append((facts, by_clock(start, clock), by_clock(done, clock)))
                truth[rank].append(start)
            at = done + data.draw(st.integers(100, 10**9))
    ranks = [rank for rank in range(count) if called[rank]]
    traces = [
        with_handles(
            rank, called[rank], ranks=(RankFacts(rank, count),), clock=f"host {host_of[rank]}"
        )
        for rank in ranks
    ]
    joined = {host_of[ranks[0]]}
    for _ in range(count):
        for members in groups:
            hosts = {host_of[rank] for rank in members}
            joined |= hosts if joined & hosts else set()
    if joined < {host_of[rank] for rank in ranks}:
        with pytest.raises(AlignmentError, match="nothing tells"):
            gs.merge(traces)
        return
    merged = gs.merge(traces)
    first = clocks[host_of[ranks[0]]]
    off = {
        facts.rank: own.where(kind="kernel").array("start_ns")
        - np.array([by_clock(start, first) for start in truth[facts.rank]], np.int64)
        for facts, own in zip(merged.metadata.ranks, of_ranks(merged), strict=True)
    }
    # The lowest rank's clock is the merged one, so that each error holds against it at any time.
    for rank in merged.metadata.ranks:
        assert np.abs(off[rank.rank]).max() <= rank.error_ns + 2  # times are whole ns


def of_ranks(merged: Trace) -> list[Trace]:
    return [merged.where(process=rank.process) for rank in merged.metadata.ranks]


@settings(max_examples=60, deadline=None)
@given(worlds(), st.data())
def test_what_contradicts_is_refused(world, data):
    clocks, kernels = world
    count = len(clocks)
    victim = data.draw(st.integers(1, count - 1))
    # One more collective that this rank's clock, set meanwhile, puts long after the others ended.
    at = max(end for own in kernels for _, end in own) + 10**6
    for rank, own in enumerate(kernels):
        late = 10**11 if rank == victim else 0
        own += [(at + late, at + 1000 + late), (at + 10**4, at + 10**4 + 1000)]
    kernels[victim][-1] = (at + 10**11 + 10**4, at + 10**11 + 10**4 + 1000)
    kernels[victim][:-2] = [(start - 10**9, end - 10**9) for start, end in kernels[victim][:-2]]
    read = [read_by(own, clock) for own, clock in zip(kernels, clocks, strict=True)]
    by_order = [trace_of(rank, own, world=count) for rank, own in enumerate(read)]
    with pytest.raises(AlignmentError, match=r"contradict|ambiguous"):
        gs.merge(by_order)
    numbered = [
        with_handles(
            rank, [(reduce(at, world_size=count), *times) for at, times in enumerate(own)],
            ranks=(RankFacts(rank, count),),
        )
        for rank, own in enumerate(read)
    ]  # fmt: skip
    with pytest.raises(AlignmentError, match="contradict"):
        gs.merge(numbered)


def test_an_offset_is_the_middle_of_what_the_collectives_allow():
    merged = gs.merge([trace_of(0, [(0, 1000)]), trace_of(1, [(5000, 5400)])])
    zero, one = merged.metadata.ranks
    # Rank 1's [5000, 5400] overlaps rank 0's [0, 1000] with −5400 … −4000 added.
    assert (zero.offset_ns, one.offset_ns) == (0, -4700)
    assert 700 <= zero.error_ns == one.error_ns <= 700 + 10
    assert one.evidence == "collectives: 1"
    assert merged.array("start_ns").tolist() == [0, 300]


def test_three_ranks_of_which_two_share_no_group_stand_by_the_third():
    def part(group, sequence, start, end):
        return reduce(sequence, group=group), start, end

    traces = [
        with_handles(0, [part("a", 0, 1000, 2000)], ranks=(RankFacts(0, 3),)),
        with_handles(
            1, [part("a", 0, 11_000, 12_000), part("b", 0, 13_000, 14_000)],
            ranks=(RankFacts(1, 3),),
        ),
        with_handles(2, [part("b", 0, 503_000, 504_000)], ranks=(RankFacts(2, 3),)),
    ]  # fmt: skip
    merged = gs.merge(traces)
    assert [rank.offset_ns for rank in merged.metadata.ranks] == [0, -10_000, -500_000]
    errors = [rank.error_ns for rank in merged.metadata.ranks]
    assert errors[0] == errors[2] >= 2000 > errors[1] >= 1000


def test_clocks_that_contradict_each_other_in_a_ring_are_two_of_them():
    """Each two agree, but 0 → 1 → 2 is 200 µs and 0 → 2 is none."""

    def between(one, other, ahead_ns, at_ns):
        begin = {one: at_ns, other: at_ns + ahead_ns}
        return Bound(begin, {clock: start + 2_000 for clock, start in begin.items()})

    pairs = ((0, 1, 100_000), (1, 2, 100_000), (0, 2, 0))
    bounds = [between(*pair, at_ns) for pair in pairs for at_ns in (10**6, 2 * 10**6)]
    names = ["rank 0", "rank 1", "rank 2"]
    with pytest.raises(AlignmentError, match=r"rank (\d) and rank (?!\1)\d contradict"):
        aligned(bounds, [(10**6, 3 * 10**6)] * 3, names)


# -- one host ------------------------------------------------------------------------------------
def on_host(rank: int, kernels: list[tuple[int, int]], residual: float = 0, **more: Any) -> Trace:
    clocks = {"cupti": {"residual_ns": residual}, "globaltimer cuda:0": {"residual_ns": 1e6}}
    return trace_of(rank, kernels, clock="boot", clocks=clocks, **more)


def test_times_of_one_clock_stay_and_the_residuals_are_the_error():
    merged = gs.merge([on_host(0, [(0, 1000)], 300.5), on_host(1, [(900, 2000)], 700)])
    assert merged.array("start_ns").tolist() == [0, 900]
    assert [rank.error_ns for rank in merged.metadata.ranks] == [1001, 1001]
    assert [rank.offset_ns for rank in merged.metadata.ranks] == [0, 0]
    assert {rank.evidence for rank in merged.metadata.ranks} == {"the same clock"}
    assert merged.metadata.clock == "boot"


def test_a_contradiction_beyond_the_error_is_refused_with_what_was_found():
    def called(rank, start, end, residual):
        clocks = {"cupti": {"residual_ns": residual}}
        return with_handles(rank, [(reduce(0), start, end)], clock="boot", clocks=clocks)

    first = called(0, 100, 1000, 300)
    assert gs.merge([first, called(1, 1900, 3000, 700)])  # 900 ns late: within 1,001
    with pytest.raises(
        AlignmentError, match=r"all_reduce 0 of 'g' ended on rank 0 .* began on rank 1"
    ):
        gs.merge([first, called(1, 2100, 3000, 700)])


def test_kernels_of_one_clock_that_never_met_are_unmatched():
    merged = gs.merge([on_host(0, [(0, 1000)], 300), on_host(1, [(2100, 3000)], 700)])
    assert merged.edges.num_rows == 0
    assert merged.metadata.counts["unmatched_collectives"] == 2


# -- recordings that begin at different collectives ----------------------------------------------
def steps(rng, count, jitter_ns):
    """Return when an all-reduce of each of so many steps ran on two ranks, by a true clock."""
    at, kernels = DAY_NS, ([], [])
    for _ in range(count):
        at += max(130_000, 195_000 + int(rng.normal(0, jitter_ns)))
        begun = [at + int(rng.integers(0, 40_000)) for _ in range(2)]
        done = max(begun) + 60_000
        for own, start in zip(kernels, begun, strict=True):
            own.append((start, done + int(rng.integers(0, 4_000))))
    return kernels


@pytest.mark.no_cover
@pytest.mark.parametrize("is_one_clock", [True, False])
def test_a_shift_is_found_or_refused_and_never_wrong(is_one_clock):
    rng = np.random.default_rng(5)
    found = 0
    for turn in range(200):
        count, shift = int(rng.integers(2, 60)), int(rng.integers(0, 3))
        one, other = steps(rng, count, (0, 2_000, 40_000, 300_000)[turn % 4])
        clock = 0 if is_one_clock else int(rng.integers(0, DAY_NS // 2))
        same = {"clock": "boot"} if is_one_clock else {}
        kept = [one[: count - shift or None], other[shift:]]
        kept[1] = [(start + clock, end + clock) for start, end in kept[1]]
        if not (kept[0] and kept[1]):
            continue
        traces = [trace_of(rank, own, **same) for rank, own in enumerate(kept)]
        with contextlib.suppress(AlignmentError):
            merged = gs.merge(traces)
            second = merged.metadata.ranks[1]
            is_first = len(kept[0]) == 1 and not is_one_clock  # one kernel each is taken for one
            assert abs(second.offset_ns + clock) <= second.error_ns or is_first, (turn, count)
            assert merged.edges.num_rows in {0, max(0, count - 2 * shift)} or is_first
            found += merged.edges.num_rows > 0
    assert found >= (195 if is_one_clock else 60)


def test_launch_configurations_tell_which_kernels_are_the_same():
    def configs(numbers):
        return {"launch_config": [f'{{"grid": [{number}, 1, 1]}}' for number in numbers]}

    times = [(1_000 * number, 1_000 * number + 500) for number in range(6)]
    grids = [1, 2, 4, 8, 16, 24]
    one = trace_of(0, times[:5], columns=configs(grids[:5]))
    other = trace_of(1, [(start + 10**9, end + 10**9) for start, end in times[1:]],
                     columns=configs(grids[1:]))  # fmt: skip
    merged = gs.merge([one, other])
    assert merged.edges.num_rows == 4
    assert abs(merged.metadata.ranks[1].offset_ns + 10**9) <= merged.metadata.ranks[1].error_ns


def test_a_rank_outside_its_world_is_refused():
    with pytest.raises(InvalidArgument, match=r"traces\[1\] is of rank 5 in a world of 2"):
        gs.merge([trace_of(0, [(0, 1)]), trace_of(5, [(0, 1)])])


def test_traces_of_one_clock_need_no_collective():
    merged = gs.merge([on_host(0, [(0, 10)], name="mm"), on_host(1, [(5, 8)], name="mm")])
    assert merged.array("start_ns").tolist() == [0, 5]
    assert merged.edges.num_rows == 0


def test_without_ranks_they_are_numbered_in_the_order_given():
    traces = [on_host(0, [(0, 10)], ranks=()), on_host(1, [(5, 8)], ranks=())]
    ranks = gs.merge(traces).metadata.ranks
    assert [(rank.rank, rank.world_size) for rank in ranks] == [(0, 2), (1, 2)]
    assert len({rank.process for rank in ranks}) == 2


def test_ranks_that_are_not_here_are_counted():
    merged = gs.merge([on_host(n, [(0, 1)], name="mm", world=4) for n in (1, 3)])
    assert "2 of 4 ranks are not here" in merged.metadata.notes
    assert [rank.rank for rank in merged.metadata.ranks] == [1, 3]


# -- what is refused -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("traces", "error", "message"),
    [
        ([], InvalidArgument, "there is no trace: give one of each rank"),
        ([trace_of(0, [(0, 1)])], InvalidArgument, "two or more"),
        ([trace_of(1, [(0, 1)]), trace_of(1, [(0, 1)])], InvalidArgument,
         r"rank 1 is there twice, as traces\[0\] and traces\[1\]"),
        ([trace_of(0, [(0, 1)]), trace_of(1, [(0, 1)], world=3)], InvalidArgument, "world of 3|of 3"),
        ([trace_of(0, [(0, 1)]), trace_of(1, [(0, 1)], ranks=())], InvalidArgument, r"traces\[1\]"),
        ([trace_of(0, [(0, 1)]), trace_of(1, [(0, 1)], name="mm")], AlignmentError, "rank 1 has none"),
        ([trace_of(0, [(0, 1)], name="mm"), trace_of(1, [(0, 1)], name="mm")], AlignmentError,
         "nothing tells how the clock of rank 1"),
        ([trace_of(0, [(0, 1)] * 3), trace_of(1, [(0, 1)] * 2)], AlignmentError,
         "ambiguous, as 4 ways"),
        ([trace_of(0, [(0, 1)], world=3), trace_of(1, [(0, 1)], world=3, columns={"stream": [9]}),
          trace_of(2, [], world=3)], AlignmentError, "rank 2 has none"),
        ([trace_of(0, [(0, 1)] * 2, columns={"stream": [1, 2]}),
          trace_of(1, [(0, 1)] * 2, columns={"stream": [1, 2]})], AlignmentError, "ambiguous"),
        ([with_handles(0, [(reduce(0), 60, 70)]),
          with_handles(1, [(reduce(0, kind="all_gather"), 60, 70)])], AlignmentError,
         "all_reduce.* on rank 0 but .*all_gather"),
        ([with_handles(0, [(reduce(n), 100 * n + 60, 100 * n + 70) for n in (1, 2, 3)]),
          with_handles(1, [(reduce(n), 100 * n + 60, 100 * n + 70) for n in (1, 3)])],
         AlignmentError, "rank 1 lacks collective 2 of group 'g'"),
        ([with_handles(0, [(reduce(0), 60, 70)] * 2), with_handles(1, [])], AlignmentError,
         "twice|ids"),
    ],
)  # fmt: skip
def test_what_cannot_be_aligned_is_refused(traces, error, message):
    with pytest.raises(error, match=message):
        gs.merge(traces)


def test_what_is_merged_is_not_merged_again():
    merged = gs.merge([on_host(0, [(0, 10)]), on_host(1, [(5, 8)])])
    with pytest.raises(InvalidArgument, match=r"traces\[1\] is of 2 ranks, merged already"):
        gs.merge([on_host(2, [(5, 8)]), merged])
    with pytest.raises(InvalidArgument, match=r"traces\[0\] is of 2 ranks, merged already"):
        gs.merge([merged])


def test_two_processes_in_one_trace_must_be_told_apart():
    both = trace_of(0, [(0, 1)] * 2, columns={"process": [1, 2]}, ranks=(RankFacts(0, 2),))
    with pytest.raises(InvalidArgument, match="2 processes"):
        gs.merge([both, trace_of(1, [(0, 1)] * 2)])


# -- collectives ---------------------------------------------------------------------------------
def test_collectives_of_handles_are_matched_by_group_and_number():
    one = with_handles(0, [(reduce(4), 1000, 1500), (reduce(5), 2000, 2500)], clock="boot")
    two = with_handles(1, [(reduce(5), 2200, 2500), (reduce(6), 3000, 3500)], clock="boot")
    merged = gs.merge([one, two])
    (edge,) = [row for row in merged.edges.to_pylist() if row["kind"] == "collective"]
    rows = {row["id"]: row for row in merged.spans.to_pylist()}
    assert (rows[edge["from"]]["start_ns"], rows[edge["to"]]["start_ns"]) == (2200, 2000)
    assert merged.metadata.counts["unmatched_collectives"] == 2


def test_a_gap_in_an_incomplete_trace_is_counted():
    rows = [(reduce(n), 1000 * n, 1000 * n + 500) for n in (1, 2, 3)]
    lost = with_handles(1, rows[::2], clock="boot", complete=False, notes=("one was lost",))
    merged = gs.merge([with_handles(0, rows, clock="boot"), lost])
    assert merged.metadata.counts["unmatched_collectives"] == 1
    assert not merged.metadata.complete
    assert "rank 1: one was lost" in merged.metadata.notes


def test_transfers_and_broadcasts_bound_no_clock():
    names = ["ncclDevKernel_SendRecv(x)", "ncclDevKernel_Broadcast_RING_LL(x)",
             "ncclDevKernel_AllGather_RING_LL(x)"]  # fmt: skip
    times = [(0, 10), (20, 30), (40, 50)]
    merged = gs.merge([on_host(0, times, names=names), on_host(1, times, names=names)])
    assert merged.edges.num_rows == 1
    assert merged.metadata.counts["unmatched_collectives"] == 4


def test_streams_of_two_communicators_are_told_apart_by_their_kernels():
    names = ["ncclDevKernel_AllReduce_Sum_f32(x)", "ncclDevKernel_AllGather_RING_LL(x)"]
    times = [(0, 10), (20, 30)]
    one = on_host(0, times, names=names, columns={"stream": [1, 2]})
    two = on_host(1, times[::-1], names=names[::-1], columns={"stream": [1, 2]})
    merged = gs.merge([one, two])
    names_of = {row["id"]: row["name"] for row in merged.spans.to_pylist()}
    edges = merged.edges.to_pylist()
    assert len(edges) == 2
    assert all(names_of[edge["from"]] == names_of[edge["to"]] for edge in edges)


def late(residual: float = 0) -> Trace:
    """Return two ranks' all-reduce, which rank 1 began 700 ns later than rank 0."""
    more = {"clock": "boot", "clocks": {"cupti": {"residual_ns": residual}}}
    return gs.merge([
        with_handles(0, [(reduce(0), 1000, 2000)], **more),
        with_handles(1, [(reduce(0), 1700, 2010)], ranks=(RankFacts(1, 2, process=200),), **more),
    ])  # fmt: skip


def test_a_kernel_that_waited_in_a_collective_says_for_whom():
    merged = late(residual=20)
    first, second = merged.where(kind="kernel").array("id").tolist()
    waited = Part("collective", 1000, 1700, second)
    for span in (first, merged.where(kind="handle").array("id").tolist()[0]):
        found = gs.telling.explain(merged, span)
        assert found.parts[-2:] == (waited, Part("running", 1700, 2000, first))
        assert found.words[-2] == (
            "waiting for rank 1 (clocks agree within 40 ns) to begin any name"
        )
    assert "collective" not in [part.kind for part in gs.analysis.parts(merged, second)]


def test_the_timeline_groups_by_rank_and_draws_who_was_waited_for():
    merged = late()
    figure = gs.figures.timeline(merged).to_dict()
    notes = [note["text"] for note in figure["layout"]["annotations"]]
    assert [note for note in notes if note.startswith("rank")] == ["rank 0", "rank 1"]
    (arrow,) = [one for one in figure["data"] if "collective" in one.get("name", "")]
    zero = merged.array("start_ns").min()
    # From the begin of rank 1's kernel up to the end of rank 0's.
    assert np.array(arrow["x"][:2]) * 1e3 + zero == pytest.approx([1700, 2000])
    assert arrow["y"][0] > arrow["y"][1]


# -- numbers and names ---------------------------------------------------------------------------
def test_numbers_and_names_of_ranks_do_not_meet():
    def rank(number: int, uuid: str) -> Trace:
        return on_host(
            number, [(0, 10), (20, 30)], name="mm", ranks=(RankFacts(number, 2, process=100,
                                                           device="cuda:0"),),
            columns={
                "id": [5, 6], "parent": [None, 5], "correlation": [1, 2], "thread": [7, 7],
                "process": [100, None], "context": [1, 1], "partition": ["prefill", None],
                "device_uuid": [uuid, uuid],
            },
            devices={"cuda:0": {"index": 0, "uuid": uuid}},
            partitions={"prefill": PartitionFacts(sm_count=8, context=1, shares_with=("own",)),
                        f"own{number}": PartitionFacts(sm_count=16)},
            streams={"7": StreamFacts("s", device="cuda:0", partition="prefill")},
            process_names={"100": f"python {number}"}, thread_names={"7": f"main {number}"},
        )  # fmt: skip

    merged = gs.merge([rank(0, "GPU-a"), rank(1, "GPU-b")])
    rows = merged.spans.to_pylist()
    for name in ("id", "correlation"):
        assert len({row[name] for row in rows}) == 4
    assert rows[3]["parent"] == rows[2]["id"]
    for name in ("process", "stream", "device", "context", "thread"):
        assert [row[name] for row in rows[:2]] != [row[name] for row in rows[2:]]
        assert len({row[name] for row in rows}) == 2
    facts = merged.metadata
    assert [one.process for one in facts.ranks] == [100, 101]
    assert [one.device for one in facts.ranks] == ["cuda:0", "cuda:1"]
    assert {key: (one.index, one.uuid) for key, one in facts.devices.items()} == {
        "cuda:0": (0, "GPU-a"), "cuda:1": (1, "GPU-b"),
    }  # fmt: skip
    assert set(facts.partitions) == {"prefill · rank 0", "prefill · rank 1", "own0", "own1"}
    assert facts.partitions["prefill · rank 1"].context == rows[2]["context"]
    assert [row["partition"] for row in rows] == ["prefill · rank 0", None,
                                                  "prefill · rank 1", None]  # fmt: skip
    stream = facts.stream(rows[2]["stream"])
    assert (stream.partition, stream.device) == ("prefill · rank 1", "cuda:1")
    assert facts.process_names == {"100": "python 0", "101": "python 1"}
    assert facts.thread_names == {"7": "main 0", str(rows[2]["thread"]): "main 1"}
    assert facts.rank(101).rank == 1


def test_a_gpu_that_two_processes_see_is_one():
    def rank(number: int, index: int) -> Trace:
        return on_host(
            number, [(0, 10)], name="mm", columns={"device": [index]},
            devices={f"cuda:{index}": {"index": index, "uuid": "GPU-a"}},
        )  # fmt: skip

    merged = gs.merge([rank(0, 0), rank(1, 3)])
    assert merged.array("device").tolist() == [0, 0]
    assert set(merged.metadata.devices) == {"cuda:0"}


# -- metadata ------------------------------------------------------------------------------------
def test_the_metadata_say_what_holds_of_all():
    fact = HazardFact(kind="read after write", first=1, second=None)
    one = on_host(
        0, [(100, 200)], name="mm", windows_ns=((0, 300),), solo={"a": SoloFacts(5.0), "b": SoloFacts(6.0)},
        hazards=HazardFacts(accesses=2, found=(fact,)), versions={"numpy": "2.1"}, counts={"dropped": 1},
        complete=False, notes=("lost",),
    )  # fmt: skip
    two = on_host(
        1, [(150, 250)], name="mm", windows_ns=((200, 400), (1000, 1100)), solo={"a": SoloFacts(5.0), "b": SoloFacts(7.0)},
        hazards=HazardFacts(accesses=3, found=(fact,)), versions={"numpy": "2.2"}, counts={"dropped": 2},
        kept=KeptFacts(keep_ns=10, since_ns=120, rows_left_out=4), notes=("only the last 10 ns",),
    )  # fmt: skip
    facts = gs.merge([one, two]).metadata
    assert facts.windows_ns == ((0, 400), (1000, 1100))
    assert facts.solo == {"a": SoloFacts(5.0)}
    assert facts.hazards.accesses == 5
    assert [found.first for found in facts.hazards.found] == [1, 3]
    assert facts.versions == {"numpy": "2.1, 2.2"}
    assert facts.counts == {"dropped": 3}
    assert facts.incomplete == "incomplete: 3 dropped; rank 0: lost; rank 1: only the last 10 ns"
    assert set(facts.clocks) == {
        "cupti of rank 0", "cupti of rank 1", "globaltimer cuda:0 of rank 0",
        "globaltimer cuda:0 of rank 1",
    }  # fmt: skip
    assert TraceMetadata.from_json(facts.to_json()) == facts


def test_an_empty_trace_is_a_rank_too():
    merged = gs.merge([on_host(0, [(0, 10)], name="mm"), on_host(1, [])])
    assert len(merged) == 1
    assert len(merged.metadata.ranks) == 2


def test_simulated_ranks_have_their_own_gpus():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    ranks = [
        recording.trace.with_metadata(ranks=(RankFacts(n, 2, process=None),), clock="run")
        for n in range(2)
    ]
    merged = gs.merge(ranks)
    assert [*merged.metadata.devices] == ["sim:h200", "sim:h200:1"]
    assert len(set(merged.array("device", fill=-1).tolist()) - {-1}) == 2
    assert math.isclose(len(merged), 2 * len(recording.trace))


def test_partitions_of_two_gpus_share_no_sms():
    traces = []
    for rank in range(2):
        gpu = gs.open_device("sim:h200", quiet=True)
        with (
            gpu.carve({"a": 64, "b": "rest"}) as parts,
            parts["a"].create_stream() as stream,
            gs.profile(gpu) as recording,
        ):
            gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
        traces.append(recording.trace.with_metadata(ranks=(RankFacts(rank, 2),), clock="run"))
    merged = gs.merge(traces)
    found = gs.analysis.confinement(merged).partitions
    assert [one.partition for one in found] == [
        f"{name} · rank {rank}" for rank in (0, 1) for name in ("a", "b")
    ]
    assert not any(one.shares_with for one in found)
    assert [one.fraction for one in found] == [1, None, 1, None]
