"""Edges of what other libraries wait for: the host, polls, streams, and copies that block."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from fake_cupti import (
    BLOCKING_COPY,
    COPY,
    DEFAULT_STREAM,
    DEVICE_SYNC,
    EVENT_END,
    EVENT_POLL,
    EVENT_SYNC,
    GRAPH,
    LAUNCH,
    STREAM_POLL,
    STREAM_SYNC,
    STREAM_WAIT,
    World,
    rows,
)

from gpuscope.record.cupti import layout, waits

A, B, C = 21, 22, 23
"""Streams."""


@pytest.fixture(params=[True, False], ids=["noted", "by CUPTI"])
def world(request, monkeypatch):
    """A process in which calls are noted, or recorded by CUPTI."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return World(monkeypatch, notes=request.param)


@pytest.fixture
def noted(monkeypatch):
    """A process in which calls are noted: only these tell which event a poll is of."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return World(monkeypatch)


def kernel(world, name, stream=DEFAULT_STREAM, **facts):
    number = world.gpu.call(LAUNCH)
    world.gpu.kernel(name, number, stream=stream, **facts)


def edges(trace, kind):
    """Return pairs of names; of calls without CUPTI's version."""
    name = {
        row["id"]: row["name"].split("_v")[0].removeprefix("cuda")
        for row in trace.spans.to_pylist()
    }
    found = [
        (name[edge["from"]], name[edge["to"]])
        for edge in trace.edges.to_pylist()
        if edge["kind"] == kind
    ]
    return sorted(found)


# -- the host --------------------------------------------------------------------------------
def test_a_wait_for_a_stream_is_for_the_last_work_before_it(world):
    with world.profile() as recording:
        kernel(world, "one", A)
        kernel(world, "two", A)
        kernel(world, "other", B)
        world.gpu.wait(STREAM_SYNC, stream=A)
        kernel(world, "behind", A)
    trace = recording.trace
    assert edges(trace, "host wait") == [("two", "StreamSynchronize")]
    (wait,) = rows(trace, "sync")
    assert wait["thread"] == rows(trace, "kernel")[0]["thread"]
    assert wait["source"] == "cupti"


def test_a_wait_for_an_event_is_for_what_was_before_its_record(world):
    with world.profile() as recording:
        kernel(world, "before", A)
        world.gpu.record(5, A)
        kernel(world, "behind", A)
        world.gpu.wait(EVENT_SYNC, sync=5)
    assert edges(recording.trace, "host wait") == [("before", "EventSynchronize")]
    assert [row["kind"] for row in rows(recording.trace, "api", name="cudaEventRecord_v3020")]


def test_a_wait_for_the_device_is_for_the_last_work_of_every_stream(world):
    with world.profile() as recording:
        for stream in (A, B):
            kernel(world, f"first {stream}", stream)
            kernel(world, f"last {stream}", stream)
        kernel(world, "of another context", A, context=99)
        world.gpu.wait(DEVICE_SYNC)
        kernel(world, "more", B)
        world.gpu.wait(DEVICE_SYNC)
    assert edges(recording.trace, "host wait") == [
        (f"last {A}", "DeviceSynchronize"),
        (f"last {B}", "DeviceSynchronize"),
        ("more", "DeviceSynchronize"),
    ]


def test_a_wait_for_the_device_is_for_its_green_contexts_too(world):
    with world.device.carve({"a": 32, "b": "rest"}) as parts, world.profile() as recording:
        stream = parts["a"].create_stream()
        world.launch(stream, "ours")
        context = stream.raw.context
        world.gpu.kernel("theirs", world.gpu.call(LAUNCH), context=context, stream=77)
        kernel(world, "plain", A)
        world.gpu.wait(DEVICE_SYNC)
        stream.close()
    found = edges(recording.trace, "host wait")
    assert ("theirs", "DeviceSynchronize") in found
    assert ("plain", "DeviceSynchronize") in found
    assert ("ours", "DeviceSynchronize") in found


def test_polls_that_saw_it_done_are_waits(noted):
    with noted.profile() as recording:
        kernel(noted, "before", A)
        noted.gpu.record(5, A, handle=0xE0)
        kernel(noted, "behind", A)
        noted.gpu.call(EVENT_POLL, event=0xE0)
        noted.gpu.call(EVENT_POLL, event=0xE0)
        noted.gpu.call(EVENT_POLL, event=0xE1)
        noted.gpu.record(6, A, handle=0xE0)
        noted.gpu.call(EVENT_POLL, event=0xE0)
        noted.gpu.call(STREAM_POLL, handle=noted.gpu.context << 32 | A)
    trace = recording.trace
    assert edges(trace, "host wait") == [
        ("before", "EventQuery"),
        ("before", "EventQuery"),
        ("behind", "EventQuery"),
        ("behind", "StreamQuery"),
    ]
    polls = sorted(rows(trace, "sync"), key=lambda row: row["start_ns"])
    seen = {edge["to"] for edge in trace.edges.to_pylist() if edge["kind"] == "host wait"}
    assert [row["id"] in seen for row in polls] == [True, True, False, True, True]


UNSURE = 1 << 62
"""A stream that may be of another context than the current one."""


def test_waits_are_told_by_what_was_noted_of_their_calls_alone(noted):
    context, other = noted.gpu.context, noted.gpu.context + 7
    with noted.profile() as recording:
        kernel(noted, "one", A)
        noted.gpu.record(5, A, handle=0xE0)
        kernel(noted, "two", A)
        kernel(noted, "green", B, context=other)
        noted.gpu.call(EVENT_SYNC, event=0xE0)
        noted.gpu.call(STREAM_SYNC, handle=context << 32 | A)
        noted.gpu.call(STREAM_SYNC, handle=UNSURE | context << 32 | B)
        noted.gpu.call(STREAM_SYNC, handle=context << 32 | B)
        noted.gpu.call(DEVICE_SYNC, handle=context << 32 | 0xFFFFFFFF)
    trace = recording.trace
    assert edges(trace, "host wait") == [
        ("green", "StreamSynchronize"),
        ("one", "EventSynchronize"),
        ("two", "DeviceSynchronize"),
        ("two", "StreamSynchronize"),
    ]


def test_of_two_streams_of_a_number_none_is_guessed(noted):
    with noted.profile() as recording:
        for context in (50, 60):
            kernel(noted, f"in {context}", B, context=context)
        noted.gpu.call(STREAM_SYNC, handle=UNSURE | 70 << 32 | B)
        noted.gpu.call(STREAM_SYNC, handle=UNSURE | 60 << 32 | B)
    assert edges(recording.trace, "host wait") == [("in 60", "StreamSynchronize")]


@pytest.mark.parametrize(
    ("call", "src", "dst", "direction", "late", "waits"),
    [
        (BLOCKING_COPY, "pageable", "device", 1, 0, True),
        (BLOCKING_COPY, "device", "pinned", 2, 0, True),
        (BLOCKING_COPY, "device", "device", 8, 0, False),  # on the device nobody waits
        (BLOCKING_COPY, "pageable", "device", 1, 10**9, False),  # it returned before
        (COPY, "device", "pageable", 2, 0, True),
        (COPY, "device", "pinned", 2, 0, False),
        (COPY, "pinned", "device", 1, 0, False),
    ],
)
def test_a_copy_that_blocks_its_thread_is_what_its_call_waits_for(
    world, call, src, dst, direction, late, waits
):
    from gpuscope.trace.schema import MEMORY_KINDS

    with world.profile() as recording:
        start = world.cupti.now_ns()
        number = world.gpu.call(call)
        world.gpu._work(
            layout.MEMCPY, correlation=number, bytes=8, copy_kind=direction, start=start + 1,
            src_kind=MEMORY_KINDS.index(src), dst_kind=MEMORY_KINDS.index(dst),
            end=start + 2 + late, context=1, stream=A, device=0,
        )  # fmt: skip
    trace = recording.trace
    (api,), (copy,) = rows(trace, "api"), rows(trace, "memcpy")
    found = {
        (edge["from"], edge["to"])
        for edge in trace.edges.to_pylist()
        if edge["kind"] == "host wait"
    }
    assert found == ({(copy["id"], api["id"])} if waits else set())


def test_a_wait_behind_a_graph_is_for_its_last_node(world):
    with world.profile() as recording:
        kernel(world, "before", A)
        number, start = world.gpu.call(GRAPH), world.cupti.now_ns()
        for node, stream, end in (("x", A, 50), ("last", B, 90), ("y", A, 70)):
            world.gpu.kernel(
                node, number, stream=stream, graph=3, graph_node=9, start=start, end=start + end
            )
        world.gpu.wait(STREAM_SYNC, stream=A)
    assert edges(recording.trace, "host wait") == [("last", "StreamSynchronize")]
    assert len(edges(recording.trace, "launch")) == 4


def test_what_was_before_the_recording_is_waited_for_by_nothing(world):
    kernel(world, "before", A)
    world.gpu.record(5, A)
    with world.profile() as recording:
        world.gpu.wait(STREAM_SYNC, stream=A)
        world.gpu.wait(EVENT_SYNC, sync=5)
        world.gpu.wait(STREAM_WAIT, stream=B, sync=5)
        kernel(world, "after", B)
    trace = recording.trace
    assert edges(trace, "host wait") == edges(trace, "event wait") == []
    assert len(rows(trace, "sync")) == 2


# -- streams ---------------------------------------------------------------------------------
def test_a_stream_s_wait_leads_from_the_last_work_before_to_the_first_behind(world):
    with world.profile() as recording:
        kernel(world, "before", A)
        world.gpu.record(5, A)
        kernel(world, "not waited for", A)
        kernel(world, "earlier", B)
        world.gpu.wait(STREAM_WAIT, stream=B, sync=5)
        kernel(world, "first", B)
        kernel(world, "second", B)
    assert edges(recording.trace, "event wait") == [("before", "first")]


def test_an_event_that_another_context_made_is_of_the_stream_that_worked(world):
    with world.profile() as recording:
        for name, stream in (("before", A), ("other", B)):
            kernel(world, name, stream, context=7)
        world.gpu.record(5, A)  # told as of the device's own context, which made the event
        world.gpu.wait(STREAM_WAIT, stream=B, sync=5)
        kernel(world, "behind", B, context=7)
    assert edges(recording.trace, "event wait") == [("before", "behind")]


def test_waits_without_work_between_are_followed_back(world):
    with world.profile() as recording:
        kernel(world, "a", A)
        world.gpu.record(5, A)
        kernel(world, "c", C)
        world.gpu.wait(STREAM_WAIT, stream=C, sync=5)
        world.gpu.record(6, C)  # behind both
        world.gpu.wait(STREAM_WAIT, stream=B, sync=6)
        kernel(world, "b", B)
        world.gpu.wait(STREAM_SYNC, stream=C)
    trace = recording.trace
    assert edges(trace, "event wait") == [("a", "b"), ("c", "b")]
    assert edges(trace, "host wait") == [("a", "StreamSynchronize"), ("c", "StreamSynchronize")]


def test_a_wait_for_the_same_stream_orders_nothing_new(world):
    with world.profile() as recording:
        kernel(world, "one", A)
        world.gpu.record(5, A)
        world.gpu.wait(STREAM_WAIT, stream=A, sync=5)
        kernel(world, "two", A)
    assert edges(recording.trace, "event wait") == []


def test_an_event_recorded_again_is_waited_for_as_of_its_latest_record(world):
    with world.profile() as recording:
        for step in range(3):
            kernel(world, f"make {step}", A)
            world.gpu.record(5, A, sync=50 + step)
            world.gpu.wait(STREAM_WAIT, stream=B, sync=50 + step, handle=5)
            kernel(world, f"use {step}", B)
    assert edges(recording.trace, "event wait") == [
        (f"make {step}", f"use {step}") for step in range(3)
    ]


def test_an_event_that_ended_is_not_the_one_that_got_its_handle(noted):
    with noted.profile() as recording:
        kernel(noted, "before", A)
        noted.gpu.record(5, A, handle=0xE0)
        noted.gpu.wait(STREAM_WAIT, stream=C, handle=0xE0)
        noted.gpu.call(EVENT_END, event=0xE0)
        noted.gpu.wait(STREAM_WAIT, stream=B, handle=0xE0)
        kernel(noted, "not behind", B)
        kernel(noted, "behind", C)
        noted.gpu.call(EVENT_SYNC, event=0xE0)
    trace = recording.trace
    assert edges(trace, "event wait") == [("before", "behind")]
    assert edges(trace, "host wait") == []
    assert not [row for row in trace.spans.to_pylist() if "Destroy" in (row["name"] or "")]


@pytest.mark.parametrize("options", [{}, {"hazards": True}])
def test_waits_that_are_noted_are_told_once_whatever_cupti_records(noted, options):
    with noted.profile(**options) as recording:
        for number in range(12):
            kernel(noted, f"work {number:02}", 100 + number)
            noted.gpu.record(0xE0 + number, 100 + number, sync=500 + number)
        for number in range(12):
            noted.gpu.wait(STREAM_WAIT, stream=C, sync=500 + number, handle=0xE0 + number)
        noted.gpu.wait(STREAM_SYNC, stream=C)
    assert edges(recording.trace, "host wait") == [
        (f"work {number:02}", "StreamSynchronize") for number in range(12)
    ]


# -- ours ------------------------------------------------------------------------------------
def test_our_own_waits_are_told_once(world):
    with world.device.create_stream() as stream, world.profile() as recording:
        world.launch(stream, "ours")
        stream.synchronize()
        kernel(world, "theirs", A)
        world.gpu.wait(STREAM_SYNC, stream=A)
    trace = recording.trace
    assert sorted(row["name"] for row in rows(trace, "sync")) == [
        "cudaStreamSynchronize_v3020",
        "stream.synchronize",
    ]
    found = [edge for edge in trace.edges.to_pylist() if edge["kind"] == "host wait"]
    assert len(found) == 2


class OurGraph:
    """A graph of ours, as a call tells of it."""

    id, partition, is_empty = 3, None, False


class OurEvent:
    """An event of ours, as calls tell of it."""


def launch_graph(world, graph, stream, *nodes):
    """Launch a graph of ours: its nodes are names, with when they start and end."""
    with world.device.calls.observed("launch", "graph", stream, stream, graph=graph):
        number, start = world.gpu.call(GRAPH), world.cupti.now_ns()
        for name, after, end in nodes:
            world.gpu.kernel(
                name, number, context=stream.raw.context, stream=stream.raw.number, graph=graph.id,
                graph_node=9, start=start + after, end=start + end,
            )  # fmt: skip


@pytest.mark.parametrize("reads", [False, True])
def test_waits_behind_a_graph_of_ours_are_for_its_last_node(world, reads):
    graph, nodes = OurGraph(), [("x", 5, 10), ("last", 1, 90), ("y", 2, 20)]
    with (
        world.device.create_stream() as one,
        world.device.create_stream() as two,
        world.profile() as recording,
    ):
        for step in range(3):
            launch_graph(world, graph, one, *nodes)
            event = OurEvent()
            for kind, stream in (("record", one), ("wait", two)):
                with world.device.calls.observed(kind, kind, stream, stream, event=event):
                    pass
            world.launch(two, f"behind {step}")
            one.synchronize()
            launch_graph(world, graph, two, *nodes)
            if reads:
                recording.batches()
    trace = recording.trace
    waits_of_host = [("last", "stream.synchronize")] * 3
    assert edges(trace, "host wait") == waits_of_host
    assert edges(trace, "event wait") == [("last", f"behind {step}") for step in range(3)]
    assert edges(trace, "graph") == [("last", "x")] * 5


# -- read while it goes on -------------------------------------------------------------------
def program(world, step):
    kernel(world, f"make {step}", A)
    world.gpu.record(5, A, sync=100 + step, handle=0xE0)
    world.gpu.wait(STREAM_WAIT, stream=B, sync=100 + step, handle=0xE0)
    kernel(world, f"use {step}", B)
    world.gpu.call(EVENT_POLL, event=0xE0)
    if step % 3 == 0:
        world.gpu.wait(STREAM_SYNC, stream=B)
    if step % 7 == 0:
        world.gpu.wait(DEVICE_SYNC)


@pytest.mark.parametrize("late", [waits.LATE, 100])
def test_edges_are_the_same_however_often_it_is_read(monkeypatch, noted, late):
    monkeypatch.setattr(waits, "LATE", late)
    with noted.profile() as recording, noted.profile() as read_often:
        for step in range(60):
            program(noted, step)
            if step % 2:
                read_often.batches()
    for kind in ("launch", "host wait", "event wait"):
        assert edges(read_often.trace, kind) == edges(recording.trace, kind), kind
    assert len(edges(recording.trace, "event wait")) == 60
    assert recording.trace.metadata.edges == ("launch", "event wait", "host wait")


def test_edges_come_while_it_goes_on_and_little_is_held(monkeypatch, noted):
    monkeypatch.setattr(waits, "LATE", 20)
    with noted.profile() as recording:
        for step in range(50):
            program(noted, step)
            recording.batches()
        so_far = recording.snapshot()
        held = recording.sources[0]._records.waits
        sizes = [len(part["number"]) for part in (*held._calls, *held._records, *held._work)]
    assert len(edges(so_far, "event wait")) >= 48
    assert 0 < max(sizes) < 40


def test_work_that_is_still_to_come_keeps_edges_waiting(noted):
    with noted.profile() as recording:
        kernel(noted, "before", A)
        recording.batches()
        noted.gpu.hold()
        kernel(noted, "slow", A)
        noted.gpu.wait(STREAM_SYNC, stream=A)
        for _ in range(3):
            kernel_free = noted.gpu.call(LAUNCH)
            assert kernel_free
            recording.batches()
        noted.gpu.release()
    assert edges(recording.trace, "host wait") == [("slow", "StreamSynchronize")]


def test_full_detail_has_edges_to_synchronisations(world):
    with world.profile(detail="full") as recording:
        kernel(world, "one", A)
        world.gpu.record(5, A)
        world.gpu.wait(STREAM_SYNC, stream=A)
        world.gpu.wait(STREAM_WAIT, stream=B, sync=5)
        kernel(world, "two", B)
    trace = recording.trace
    assert edges(trace, "host wait") == [("one", "StreamSynchronize")]
    assert edges(trace, "event wait") == [("one", "two")]
    assert trace.metadata.edges == ("launch", "event wait")


def test_full_detail_tells_polls_that_saw_nothing_as_calls(world):
    with world.profile(detail="full") as recording:
        world.gpu.call(EVENT_POLL, returned=600)
        world.gpu.call(EVENT_POLL)
    trace = recording.trace
    assert [row["status"] for row in rows(trace, "api")] == ["failed"]
    assert [row["name"] for row in rows(trace, "sync")] == ["cudaEventQuery_v3020"]


def test_without_launch_ids_there_are_none(world):
    with world.profile(launch_ids=False) as recording:
        kernel(world, "one", A)
        world.gpu.wait(STREAM_SYNC, stream=A)
    assert recording.trace.edges.num_rows == 0
    assert recording.trace.metadata.edges == ()


def test_many_waits_of_a_stream_without_work_take_no_quadratic_time():
    """Each wait of a stream that runs nothing is followed back over a bounded number."""
    count = 20_000
    found = waits.Waits()
    number = np.arange(1, 2 * count + 1, dtype=np.uint32)
    some = {"context": np.ones(count, np.uint32), "event": np.ones(count, np.uint32)}
    event = {**some, "correlation": number[::2], "stream": np.full(count, A, np.uint32)}
    wait = {**some, "correlation": number[1::2], "stream": np.full(count, B, np.uint32)}
    sync = np.arange(1, count + 1, dtype=np.uint64)
    kinds = np.full(count, 2, np.uint32)
    found.take({layout.CUDA_EVENT: event | {"sync": sync}})
    found.take({layout.SYNCHRONIZATION: wait | {"sync": sync, "type": kinds}})
    work = {"correlation": np.array([2 * count + 5]), "device": np.array([0])}
    work |= {"context": np.array([1]), "stream": np.array([B])}
    found.add_work(work | {"start": np.array([5]), "end": np.array([6])}, np.array([17]))
    host, stream = found.edges(1 << 32, set(), over=True)
    assert len(host[0]) == len(stream[0]) == 0
