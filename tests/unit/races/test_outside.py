"""Rows of other libraries' work: found by thread and time."""

from __future__ import annotations

import threading

import pytest

import gpuscope as gs
from gpuscope.races.outside import OutsideCalls
from gpuscope.record.rows import node_of, node_row
from gpuscope.trace import Trace
from gpuscope.trace.facts import HazardFact, HazardFacts


def trace(*rows):
    """Return a trace of kernels: (id, name, thread, queued, our call's number)."""
    ids, names, threads, queued, numbers = zip(*rows, strict=True)
    return Trace.from_columns(
        {
            "id": ids,
            "kind": ["kernel"] * len(rows),
            "name": names,
            "thread": threads,
            "queued_ns": queued,
            "external_correlation": numbers,
            "start_ns": [100] * len(rows),
            "end_ns": [200] * len(rows),
            "correlation": [100 + number for number in ids],
            "stream": [3] * len(rows),
            "source": ["cupti"] * len(rows),
        }
    )


def test_work_is_found_by_the_thread_and_time_of_its_call():
    calls, me = OutsideCalls(), threading.get_native_id()
    first, second, without = calls.add(10, 20), calls.add(30, 40), calls.add(50, 60)
    told = trace(
        (7, "other thread", me + 1, 35, None),
        (8, "a", me, 15, None),
        (9, "b", me, 33, None),
        (10, "b2", me, 38, None),
        (11, "outside", me, 45, None),
        (12, "outside", me, 46, None),
        (13, "ours", me, 47, 5),
        (14, "no call known", None, None, None),
    )
    facts = HazardFacts(
        unseen=2,
        unseen_names=("c10d::allreduce_",),
        found=(
            HazardFact(kind="read after write", first=first, second=second),
            HazardFact(kind="read after write", first=3, second=without),
            HazardFact(kind="host access too early", first=second),
        ),
    )
    placed = calls.placed(facts, told)
    assert [(fact.first, fact.second) for fact in placed.found] == [(8, 9), (3, None), (9, None)]
    assert placed.unseen == 2 + 3
    assert placed.unseen_names == ("c10d::allreduce_", "other thread", "outside")


def test_a_trace_without_work_places_nothing():
    calls = OutsideCalls()
    fact = HazardFact(kind="read after write", first=calls.add(1, 2), second=4)
    placed = calls.placed(HazardFacts(found=(fact,)), trace((1, "k", None, None, None)))
    assert [(one.first, one.second) for one in placed.found] == [(None, 4)]
    assert placed.unseen == 0


@pytest.mark.parametrize(
    ("answer", "left", "undecided"), [(True, 0, 0), (None, 0, 1), (False, 1, 0)]
)
def test_pairs_with_an_order_that_only_cupti_saw_are_left_out(answer, left, undecided):
    asked = []

    def ordered(first, second):
        asked.append((first, second))
        return answer

    told = trace((7, "a", 1, 5, 1), (8, "b", 1, 6, 2))
    facts = HazardFacts(found=(HazardFact(kind="read after write", first=7, second=8),))
    placed = OutsideCalls().placed(facts, told, ordered)
    assert (len(placed.found), placed.undecided) == (left, undecided)
    assert asked == [((107, 3), (108, 3))]


def test_what_the_host_did_is_not_asked_of():
    fact = HazardFact(kind="host access too early", first=7)
    placed = OutsideCalls().placed(
        HazardFacts(found=(fact,)), trace((7, "a", 1, 5, 1)), lambda *_: True
    )
    assert placed.found == (fact,)


@pytest.mark.parametrize(
    ("node", "name", "row"),
    [(0, "a", 21), (1, "b", 22), (3, "a", 24), (9, "b", 22), (2, "copy", 23), (9, "copy", None)],
)
def test_a_node_is_found_among_the_work_of_its_launch(node, name, row):
    """By its number, or by its name alone, where nodes without work come before it."""
    told = Trace.from_columns(
        {
            "id": [23, 24, 21, 22, 30],
            "kind": ["memcpy", *["kernel"] * 4],
            "name": ["DtoD copy", "a", "a", "b", "b"],
            "external_correlation": [5, 5, 5, 5, 6],
            "graph_node": [12, 13, 10, 11, 10],
            "start_ns": [100] * 5,
            "source": ["cupti"] * 5,
        }
    )
    number = node_row(5, node)
    fact = HazardFact(kind="read after write", first=1, second=number, second_name=name)
    (placed,) = OutsideCalls().placed(HazardFacts(found=(fact,)), told).found
    assert placed.second == (row or number)


def test_nodes_of_a_graph_are_in_the_rows_that_cupti_gave_them():
    """As what happened tells them: without this, a node but the first has no row of the trace."""
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream() as stream, gs.profile(gpu, hazards=True) as recording:
        gpu.calls.tell("mark", "began")
        with stream.capture() as graph:
            stream.launch(kernel, 1_000, grid=1, block=32)
            stream.launch(kernel, 1_000, grid=1, block=32)
        graph.launch(stream=stream)
        graph.close()
    (observer,) = recording.observers
    simulated = [piece.row for piece in observer.happened() if not piece.is_mark]
    launch, node = node_of(simulated[1])
    assert node == 1
    told = Trace.from_columns(
        {
            "id": [simulated[0], 42],
            "kind": ["kernel", "kernel"],
            "name": ["spin", "spin"],
            "external_correlation": [launch, launch],
            "graph_node": [10, 11],
            "start_ns": [100, 200],
            "source": ["cupti"] * 2,
        }
    )
    observer.placed(told)
    assert [piece.row for piece in observer.happened()] == [None, simulated[0], 42]
