"""What a recording makes of CUPTI's records: rows with their launch, guard, partition and range."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupti import (
    CAPTURE,
    COPY,
    DRIVER_SYNC,
    GRAPH,
    LAUNCH,
    OTHER,
    SET,
    World,
    address,
    rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope import CallerStreamGuard, analysis
from gpuscope.device import foreign
from gpuscope.errors import CapabilityError
from gpuscope.record.cupti import layout, source
from gpuscope.record.cupti.places import FOREIGN_STREAM
from gpuscope.record.recorder import Recording
from gpuscope.record.rows import call_row, work_row
from gpuscope.record.source import Options
from gpuscope.timeline.tracks import Tracks


@pytest.fixture(params=[True, False], ids=["noted", "by CUPTI"])
def world(request, monkeypatch):
    """A process in which launches are noted, or recorded by CUPTI."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return World(monkeypatch, notes=request.param)


@pytest.fixture
def parts(world):
    with world.device.carve({"a": 32, "b": "rest"}) as parts:
        yield parts


def named(trace, kind="kernel"):
    """Return name → row; names are used once."""
    found = {row["name"]: row for row in rows(trace, kind)}
    assert len(found) == len(rows(trace, kind))
    return found


def launches(trace):
    """Return the launch edges, as pairs of ids."""
    return {
        (edge["from"], edge["to"]) for edge in trace.edges.to_pylist() if edge["kind"] == "launch"
    }


def calls_of(world, act):
    """Return the calls that a device makes meanwhile."""
    calls = []
    watcher = SimpleNamespace(
        call_begins=calls.append, call_ends=lambda call: None, activity=lambda activity: None
    )
    world.device.calls.observe(watcher)
    try:
        act()
    finally:
        world.device.calls.unobserve(watcher)
    return calls


def ours(world, stream, name="ours", **facts):
    """Launch a kernel of ours; returns the number of the call."""
    return calls_of(world, lambda: world.launch(stream, name, **facts))[0].correlation


def elsewhere(function):
    """Run on a thread of its own."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


# -- launches of other libraries -------------------------------------------------------------
def test_each_piece_of_work_has_an_edge_from_the_call_that_launched_it(world):
    with world.profile() as recording:
        for name in "abc":
            world.gpu.foreign(name)
        world.gpu.foreign_copy(64)
        number = world.gpu.call(SET)
        world.gpu._work(layout.MEMSET, correlation=number, bytes=8, context=1, device=0)
    trace = recording.trace
    apis = {row["id"]: row for row in rows(trace, "api")}
    work = [row for kind in ("kernel", "memcpy", "memset") for row in rows(trace, kind)]
    assert len(work) == len(apis) == len(launches(trace)) == 5
    for row in work:
        (launch,) = [apis[one] for one, other in launches(trace) if other == row["id"]]
        assert launch["correlation"] == row["correlation"]
        assert launch["thread"] == row["thread"] == threading.get_native_id()
        assert launch["process"] == row["process"]
        assert launch["start_ns"] < launch["end_ns"] == row["queued_ns"] <= row["start_ns"]
        assert row["source"] == launch["source"] == "cupti"
        assert row["external_correlation"] is None
    assert [row["name"] for row in apis.values()] == [
        *["cudaLaunchKernel_v7000"] * 3, "cudaMemcpyAsync_v3020", "cudaMemsetAsync_v3020",
    ]  # fmt: skip


def test_a_graph_s_nodes_share_the_call_that_launched_it(world):
    with world.profile() as recording:
        number = world.gpu.call(GRAPH)
        for node in (1, 2, 3):
            world.gpu.kernel(f"node {node}", number, graph=4, graph_node=node)
    trace = recording.trace
    (launch,) = rows(trace, "api")
    assert {one for one, _ in launches(trace)} == {launch["id"]}
    assert len(launches(trace)) == 3
    assert [(row["graph"], row["graph_node"]) for row in rows(trace, "kernel")] == [
        (4, 1), (4, 2), (4, 3),
    ]  # fmt: skip


def test_work_of_another_thread_names_that_thread(world):
    found = []

    def work():
        found.append(threading.get_native_id())
        world.gpu.foreign("theirs")

    with world.profile() as recording:
        elsewhere(work)
    (row,) = rows(recording.trace, "kernel")
    assert row["thread"] == found[0] != threading.get_native_id()


def test_calls_that_failed_say_so(world):
    with world.profile() as recording:
        world.cupti.write(layout.RUNTIME, callback=LAUNCH, start=1, end=2, correlation=1 << 20,
                          returned=700)  # fmt: skip
        world.gpu.foreign("k")
    assert sorted(str(row["status"]) for row in rows(recording.trace, "api")) == ["None", "failed"]


def test_calls_that_have_no_name_have_their_number(world):
    with world.profile(detail="full") as recording:
        world.gpu.call(1234)
    assert "call 1234" in named_apis(recording.trace)


def named_apis(trace):
    return [row["name"] for row in rows(trace, "api")]


def test_work_whose_call_left_no_record_is_there_without_one(world):
    with world.profile() as recording:
        world.gpu.kernel("orphan", world.cupti.next_correlation())
    (row,) = rows(recording.trace, "kernel")
    assert (row["name"], row["thread"], row["queued_ns"]) == ("orphan", None, None)
    assert launches(recording.trace) == set()


def test_work_that_runs_on_at_the_end_is_open(world):
    with world.profile() as recording:
        world.gpu.foreign("endless", end=0)
    (row,) = rows(recording.trace, "kernel")
    assert (row["end_ns"], row["status"]) == (None, "not finished")


def test_work_without_an_end_at_the_end_makes_the_trace_incomplete(world):
    with pytest.warns(UserWarning, match="have no end"), world.profile() as recording:
        world.gpu.foreign("endless", end=0)
        world.gpu.foreign("short")
    metadata = recording.trace.metadata
    assert not metadata.complete
    assert metadata.counts["unfinished"] == 1


def test_the_end_waits_for_each_stream_whose_handle_is_known(world, parts):
    class Foreign:
        def __cuda_stream__(self):
            return 0, 0x1234

    mine = parts["a"].create_stream()
    with world.profile(), gs.CallerStreamGuard(Foreign()), gs.CallerStreamGuard(0x7777):
        other = parts["b"].create_stream()
    assert {mine.handle, other.handle, 0x1234} <= world.gpu.waited_for
    assert 0x7777 not in world.gpu.waited_for, "a bare number may be a stream that is gone"


def test_the_end_waits_until_the_work_of_graphs_is_there(world, monkeypatch):
    number = None

    def nap(seconds):
        world.gpu.kernel("node", number, graph=4, graph_node=1)

    monkeypatch.setattr(source.time, "sleep", nap)
    with world.profile() as recording:
        number = world.gpu.call(GRAPH)
    assert [row["name"] for row in rows(recording.trace, "kernel")] == ["node"]
    assert recording.trace.metadata.complete


def test_work_that_cupti_could_not_time_begins_at_its_launch(world):
    with world.profile() as recording:
        world.gpu.foreign("untimed", start=0, end=0)
    (row,) = rows(recording.trace, "kernel")
    (launch,) = rows(recording.trace, "api")
    assert row["start_ns"] == launch["start_ns"]
    assert row["end_ns"] is None


# -- our own launches ------------------------------------------------------------------------
def test_our_launches_are_rows_with_our_numbers_and_cupti_s_times(world):
    with world.device.create_stream(name="mine") as stream, world.profile() as recording:
        numbers = [ours(world, stream, f"k{n}", flop_count=n, nbytes=10 * n) for n in range(4)]
    trace = recording.trace
    apis = {row["id"]: row for row in rows(trace, "api")}
    kernels = {row["id"]: row for row in rows(trace, "kernel")}
    for n, number in enumerate(numbers):
        call, work = apis[call_row(number)], kernels[work_row(number)]
        assert (call["id"], work["id"]) in launches(trace)
        assert call["external_correlation"] == work["external_correlation"] == number
        assert call["correlation"] == work["correlation"] != number
        assert call["source"] == work["source"] == "cupti"
        assert call["end_ns"] == work["queued_ns"]
        assert (work["flop_count"], work["nbytes"]) == (n, 10 * n)
        assert call["name"] == work["name"] == f"k{n}"
        assert work["stream"] == call["stream"] == stream.id
        assert trace.stream_name(work["stream"]) == "mine"
    assert len(apis) == len(kernels) == 4


def test_a_call_of_several_api_calls_is_one_row_and_its_amounts_count_once(world):
    plain = world.gpu.launch

    def split(stream, kernel, grid, block, args, correlation):
        plain(stream, kernel, grid, block, args, correlation)
        number = world.gpu.call(LAUNCH)
        world.gpu.kernel("reduce", number, context=stream.context, stream=stream.number)

    with world.device.create_stream() as stream, world.profile() as recording:
        world.gpu.launch = split
        number = ours(world, stream, "gemm", flop_count=1000, nbytes=50)
        world.gpu.launch = plain
    trace = recording.trace
    (call,) = rows(trace, "api")
    gemm, reduce = named(trace)["gemm"], named(trace)["reduce"]
    assert call["id"] == call_row(number)
    assert launches(trace) == {(call["id"], gemm["id"]), (call["id"], reduce["id"])}
    assert gemm["id"] == work_row(number) != reduce["id"], "the first that was launched"
    assert (gemm["flop_count"], reduce["flop_count"] or 0) == (1000, 0)
    assert (gemm["nbytes"], reduce["nbytes"] or 0) == (50, 0)
    assert gemm["external_correlation"] == reduce["external_correlation"] == number
    assert call["correlation"] == gemm["correlation"], "of the first call, though by the driver"
    assert call["start_ns"] < call["end_ns"] < gemm["start_ns"] < reduce["queued_ns"]


def test_a_kernel_states_the_amounts_though_something_was_cleared_before_it(world):
    plain = world.gpu.launch

    def cleared(stream, *arguments):
        number = world.gpu.call(SET)
        world.gpu._work(
            layout.MEMSET, correlation=number, bytes=8, device=0, context=stream.context,
            stream=stream.number,
        )  # fmt: skip
        plain(stream, *arguments)

    with world.device.create_stream() as stream, world.profile() as recording:
        world.gpu.launch = cleared
        number = ours(world, stream, "gemm", flop_count=1000)
        world.gpu.launch = plain
    (gemm,), (memset,) = rows(recording.trace, "kernel"), rows(recording.trace, "memset")
    assert (gemm["id"], gemm["flop_count"]) == (work_row(number), 1000)
    assert not memset["flop_count"]
    assert memset["external_correlation"] == number


def test_a_launch_on_another_thread_at_the_same_time_is_not_taken_for_ours(world):
    plain = world.gpu.launch

    def slow(*args):
        elsewhere(lambda: world.gpu.foreign("theirs"))
        plain(*args)

    with world.device.create_stream() as stream, world.profile() as recording:
        world.gpu.launch = slow
        ours(world, stream, "ours")
        world.gpu.launch = plain
    found = named(recording.trace)
    assert found["ours"]["external_correlation"] is not None
    assert found["theirs"]["external_correlation"] is None
    assert len(rows(recording.trace, "api")) == 2


def test_launches_inside_a_handle_have_its_name_and_it_as_parent(world):
    device = world.device
    with device.create_stream() as stream, world.profile() as recording:
        handle = device.calls.begin("handle", "my gemm", stream, stream)
        before = device.calls.enter_handle(handle)
        world.launch(stream, "inside")
        device.calls.enter_handle(before)
        device.calls.end(handle)
        world.launch(stream, "outside")
    found = named(recording.trace)
    assert (found["inside"]["category"], found["outside"]["category"]) == ("my gemm", None)
    call = named(recording.trace, "api")["inside"]
    assert call["parent"] == call_row(handle.correlation)
    assert call["category"] == "my gemm"


def test_amounts_of_our_launches_and_bytes_of_others_copies_are_told_side_by_side(world):
    with world.device.create_stream() as stream, world.profile() as recording:
        ours(world, stream, "ours", nbytes=10, flop_count=7)
        world.gpu.foreign_copy(64)
        ours(world, stream, "untold")
    (copy,) = rows(recording.trace, "memcpy")
    found = named(recording.trace)
    assert copy["nbytes"] == 64
    assert (found["ours"]["nbytes"], found["ours"]["flop_count"]) == (10, 7)
    assert (found["untold"]["nbytes"], found["untold"]["flop_count"]) == (None, None)


def test_filling_operands_is_told_as_ours_and_given_to_nobody(world, parts):
    with world.profile() as recording, CallerStreamGuard(parts["a"].create_stream()):
        world.device.asarray(np.zeros(16, np.float32))
    (copy,) = rows(recording.trace, "memcpy")
    (call,) = rows(recording.trace, "api")
    assert (call["name"], copy["nbytes"], copy["intended_partition"]) == ("asarray", 64, None)
    assert launches(recording.trace) == {(call["id"], copy["id"])}


def test_launches_into_somebodys_graph_lack_no_work(world):
    with world.device.create_stream() as stream, world.profile() as recording:
        world.cupti.write(
            layout.RUNTIME, callback=CAPTURE, correlation=world.cupti.next_correlation(),
            start=world.cupti.now_ns(), end=world.cupti.now_ns(), thread=1,
        )  # fmt: skip
        kernel = world.cupti.enabled.pop(layout.KERNEL)
        ours(world, stream, "captured")
        world.cupti.enabled[layout.KERNEL] = kernel
    assert recording.trace.metadata.complete
    assert [row["name"] for row in rows(recording.trace, "api")] == ["captured"]


def test_our_launches_without_a_record_are_counted(world):
    with (
        pytest.warns(UserWarning, match="2 of our launches have no record.*'lost'"),
        world.device.create_stream() as stream,
        world.profile() as recording,
    ):
        ours(world, stream, "seen")
        world.cupti.mute = True
        ours(world, stream, "lost")
        ours(world, stream, "lost")
        world.cupti.mute = False
    metadata = recording.trace.metadata
    assert metadata.counts["unmatched"] == 2
    assert not metadata.complete
    assert [row["name"] for row in rows(recording.trace, "api")].count("lost") == 2


def test_a_function_that_launches_nothing_lacks_no_record(world):
    calls = world.device.calls
    with world.device.create_stream() as stream, world.profile() as recording:
        for launches_one in (False, True):
            call = calls.begin("launch", f"function {launches_one}", stream, stream)
            before = calls.launch_around(call)
            if launches_one:
                world.gpu.foreign("kernel")
            calls.launch_around(before)
            calls.end(call)
    assert recording.trace.metadata.complete
    assert recording.trace.metadata.counts["unmatched"] == 0
    names = [row["name"] for row in rows(recording.trace, "api")]
    assert names == ["function False", "function True"]


def test_a_guard_s_stream_that_was_closed_stops_no_launch(world):
    with world.device.create_stream() as stream, world.profile() as recording:
        closed = world.device.create_stream()
        with CallerStreamGuard(closed):
            closed.close()
            world.launch(stream, "ours")
    assert list(named(recording.trace)) == ["ours"]


# -- ids -------------------------------------------------------------------------------------
def test_ids_are_unique_over_kinds_devices_and_batches(monkeypatch):
    world = World(monkeypatch, gpus=2)
    with world.profile(detail="full") as recording:
        streams = [device.create_stream() for device in world.devices]
        for turn in range(5):
            for gpu, device, stream in zip(world.gpus, world.devices, streams, strict=True):
                gpu.foreign(f"foreign {turn}")
                stream.launch(device.compile("", "ours"), grid=1, block=32)
                with gs.annotate("range"):
                    gpu.foreign_copy(1)
                gpu.call(OTHER)
                device.synchronize()
            recording.batches()
        for stream in streams:
            stream.close()
    trace = recording.trace
    ids = trace.array("id").tolist()
    assert len(ids) == len(set(ids)) > 60
    assert {edge["from"] for edge in trace.edges.to_pylist()} <= set(ids)
    assert {edge["to"] for edge in trace.edges.to_pylist()} <= set(ids)
    assert {row["device"] for row in rows(trace, "kernel")} == {0, 1}
    assert {row["device_uuid"] for row in rows(trace, "kernel")} == {"GPU-0", "GPU-1"}


# -- guards and partitions -------------------------------------------------------------------
def test_a_guard_gives_foreign_launches_to_its_partition(world, parts):
    one, two = parts["a"].create_stream(), parts["b"].create_stream()
    with world.profile() as recording:
        world.gpu.foreign("nobody's")
        with CallerStreamGuard(one):
            world.gpu.foreign("stays", on=one)
            world.gpu.foreign("escapes")
            with CallerStreamGuard(two):
                world.gpu.foreign("inner", on=two)
            world.gpu.foreign("crosses", on=two)
        with world.device.create_stream() as whole, CallerStreamGuard(whole):
            world.gpu.foreign("whole GPU")
    found = {
        name: (row["intended_partition"], row["partition"])
        for name, row in named(recording.trace).items()
    }
    assert found == {
        "nobody's": (None, None), "stays": ("a", "a"), "escapes": ("a", None),
        "inner": ("b", "b"), "crosses": ("a", "b"), "whole GPU": (None, None),
    }  # fmt: skip
    greens = {name: row["green_context"] for name, row in named(recording.trace).items()}
    assert greens["stays"] == parts["a"].raw.number
    assert greens["escapes"] is None


def test_our_launches_are_given_to_the_stream_that_was_meant(world, parts):
    one, two = parts["a"].create_stream(), parts["b"].create_stream()
    with world.profile() as recording:
        world.launch(one, "plain")
        with CallerStreamGuard(two):
            world.launch(one, "on another")
            world.launch(two, "as meant")
    found = {
        name: (row["intended_partition"], row["partition"])
        for name, row in named(recording.trace).items()
    }
    assert found == {"plain": ("a", "a"), "on another": ("b", "a"), "as meant": ("b", "b")}


def test_a_guard_may_hold_a_raw_handle_of_a_stream_of_ours(world, parts):
    stream = parts["a"].create_stream()
    with world.profile() as recording:
        world.launch(stream, "known")
        with CallerStreamGuard(stream.handle):
            world.gpu.foreign("by handle", on=stream)
        with CallerStreamGuard(0xDEAD):
            world.gpu.foreign("unknown handle")
    found = named(recording.trace)
    assert found["by handle"]["intended_partition"] == "a"
    assert found["unknown handle"]["intended_partition"] is None


def test_a_foreign_stream_that_is_gone_is_no_error(world):
    class Gone:
        def __cuda_stream__(self):
            raise RuntimeError

    with world.profile() as recording, CallerStreamGuard(Gone()):
        world.gpu.foreign("k")
    assert named(recording.trace)["k"]["intended_partition"] is None


def test_launches_of_interleaved_tasks_are_given_to_nobody_and_counted(world, parts):
    stream = parts["a"].create_stream()

    async def steady():
        with CallerStreamGuard(stream):
            world.gpu.foreign("steady", on=stream)

    async def napping(others):
        with CallerStreamGuard(stream):
            world.gpu.foreign("before the nap", on=stream)
            await others.wait()
            world.launch(stream, "ours")

    async def other(others):
        await asyncio.sleep(0)
        world.gpu.foreign("another task's")
        others.set()

    async def main():
        await steady()
        others = asyncio.Event()
        await asyncio.gather(napping(others), other(others))
        await steady_again()

    async def steady_again():
        with CallerStreamGuard(stream):
            world.gpu.foreign("steady again", on=stream)

    with world.profile() as recording:
        asyncio.run(main())
    found = {name: row["intended_partition"] for name, row in named(recording.trace).items()}
    assert found == {
        "steady": "a", "before the nap": None, "another task's": None, "steady again": "a",
        "ours": "a",
    }  # fmt: skip
    assert recording.trace.metadata.counts["in_shared_tasks"] == 2


def test_a_partition_carved_while_recording_is_known_by_a_guard_alone(world):
    """Its context is one that was closed: what ran there before had another name."""
    with world.device.carve({"old": 32, "rest": "rest"}) as parts:
        stream = parts["old"].create_stream()
        with world.profile() as recording:
            world.gpu.foreign("first", on=stream)
            parts.close()
            time.sleep(0.001)
            with world.device.carve({"new": 32, "others": "rest"}) as again:
                other = again["new"].create_stream(name="again")
                assert other.raw.context == stream.raw.context
                with CallerStreamGuard(other):
                    world.gpu.foreign("second", on=other)
    found = {
        name: (row["intended_partition"], row["partition"])
        for name, row in named(recording.trace).items()
    }
    assert found == {"first": (None, "old"), "second": ("new", "new")}
    assert recording.trace.stream_name(named(recording.trace)["second"]["stream"]) == "again"


def test_a_context_that_was_carved_again_has_the_name_of_its_time(world):
    with world.profile() as recording:
        for turn, name in enumerate(["one", "two", "three"]):
            with world.device.carve({name: 32, f"rest {turn}": "rest"}) as parts:
                stream = parts[name].create_stream()
                world.launch(stream, f"ours in {name}")
                world.gpu.foreign(f"foreign in {name}", on=stream)
            time.sleep(0.001)
    trace = recording.trace
    for name, row in named(trace).items():
        assert row["partition"] == name.rpartition(" ")[2], name
    assert len({row["green_context"] for row in rows(trace, "kernel")}) == 1


def test_carving_before_the_recording_leaves_no_name_behind(world):
    with world.device.carve({"old": 32, "rest": "rest"}):
        pass
    with (
        world.device.carve({"new": 32, "rest": "rest"}) as parts,
        parts["new"].create_stream() as stream,
        world.profile() as recording,
    ):
        world.gpu.foreign("k", on=stream)
    assert named(recording.trace)["k"]["partition"] == "new"
    assert recording.trace.metadata.partitions["new"].context == parts["new"].raw.number


def test_work_in_somebody_else_s_green_context_has_it_and_no_partition(world):
    world.cupti.contexts.append({"context": 55, "device": 0, "is_green": 1, "sm_count": 16})
    with world.profile() as recording:
        world.gpu.foreign("k", context=55)
        world.gpu.foreign("plain")
    found = named(recording.trace)
    assert (found["k"]["green_context"], found["k"]["partition"]) == (55, None)
    assert found["plain"]["green_context"] is None
    (stream,) = (
        facts.name for facts in recording.trace.metadata.streams.values() if "green" in facts.name
    )
    assert stream.endswith("of green context 55 (16 SMs)")


def test_somebody_else_s_partition_has_the_name_that_it_was_given(world, monkeypatch):
    handle = 0xC000 + 55  # its number is 55
    monkeypatch.setattr(foreign, "NAMED", {})
    world.cupti.contexts.append({"context": 55, "device": 0, "is_green": 1, "sm_count": 16})
    with world.profile() as recording:
        world.gpu.foreign("k", context=55)
        # While it is recorded, as a program does that makes its partitions late.
        foreign.NAMED[handle] = foreign.NamedPartition("decode", 16, handle)
        world.gpu.foreign("l", context=55)
        world.gpu.foreign("plain")
    trace = recording.trace
    found = named(trace)
    assert (found["k"]["partition"], found["l"]["partition"]) == ("decode", "decode")
    assert found["plain"]["partition"] is None
    facts = trace.metadata.partitions["decode"]
    assert (facts.sm_count, facts.context, facts.sm_ids) == (16, 55, ())
    (track,) = (track for track in Tracks.of(trace).tracks if track.partition == "decode")
    assert track.label.startswith("decode (16 SMs)")
    # And confinement judges by it, where the caller says what was given to whom.
    stream = found["k"]["stream"]
    result = analysis.confinement(trace, intended={stream: "decode"})["decode"]
    assert (result.fraction, result.kernels, result.sm_count) == (1, 2, 16)
    other = found["plain"]["stream"]
    intended = {stream: "decode", other: "decode"}
    (escape,) = analysis.confinement(trace, intended=intended)["decode"].escapes
    assert escape.kernel == "plain"


def test_a_partition_that_its_owner_closed_has_no_name(world, monkeypatch):
    monkeypatch.setattr(foreign, "NAMED", {0: foreign.NamedPartition("gone", 16, 0)})

    def refuse(_library, _handle):
        raise CapabilityError("CUPTI refuses get_context_id")

    monkeypatch.setattr(type(world.library), "context_id", refuse)
    with world.profile() as recording:
        world.gpu.foreign("k")
    assert "gone" not in recording.trace.metadata.partitions


# -- streams ---------------------------------------------------------------------------------
def test_streams_that_are_none_of_ours_have_cupti_s_number_and_a_name(world):
    with world.profile() as recording:
        world.gpu.foreign("k", stream=13)
        world.gpu.foreign("m")
    trace = recording.trace
    found = named(trace)
    assert min(found["k"]["stream"], found["m"]["stream"]) >= FOREIGN_STREAM
    assert trace.stream_name(found["k"]["stream"]) == "stream 13 of context 1"
    assert found["m"]["stream"] != found["k"]["stream"]


def test_records_of_streams_tell_which_wait_for_the_null_stream(world):
    flags = {7: 3, 13: 1, 14: 2}  # CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL, _DEFAULT, _NON_BLOCKING
    with world.profile() as recording:
        for stream, flag in flags.items():
            world.cupti.write(layout.STREAM, context=1, stream=stream, flag=flag)
        for stream in (*flags, 15):
            world.gpu.foreign(f"k{stream}", stream=stream)
    trace = recording.trace
    facts = {name: trace.metadata.streams[str(row["stream"])] for name, row in named(trace).items()}
    assert {name: (of.legacy_default, of.blocking) for name, of in facts.items()} == {
        "k7": (True, False), "k13": (False, True), "k14": (False, False), "k15": (False, False),
    }  # fmt: skip


def test_streams_of_two_contexts_are_two_streams_whatever_their_numbers(monkeypatch):
    world = World(monkeypatch, gpus=2)
    with world.profile() as recording:
        world.gpus[0].foreign("first")
        world.gpus[1].foreign("second")
        world.gpus[0].foreign("third")
    trace = recording.trace
    first, second, third = (row["stream"] for row in rows(trace, "kernel"))
    assert first == third != second
    assert trace.stream_name(first) == "stream 7 of context 1"
    assert trace.stream_name(second) == "stream 7 of context 101"


def test_a_foreign_stream_in_a_partition_names_it(world, parts):
    context = parts["a"].raw.number
    with world.profile() as recording:
        world.gpu.foreign("k", context=context, stream=99)
    row = named(recording.trace)["k"]
    assert row["partition"] == "a"
    facts = recording.trace.metadata.streams[str(row["stream"])]
    assert (facts.partition, facts.name) == ("a", f"stream 99 of context {context}")


def test_a_stream_of_ours_that_others_use_first_has_our_number_from_its_first_row(world, parts):
    stream = parts["a"].create_stream(name="mine")
    with world.device.create_stream(name="whole") as whole, world.profile() as recording:
        world.gpu.foreign("first", on=stream)
        world.gpu.foreign("first, too", on=whole)
        recording.batches()
        world.launch(stream, "ours")
        later = world.device.create_stream(name="later")
        with CallerStreamGuard(later):
            world.gpu.foreign("guarded", on=later)
        recording.batches()
        later.close()
    found = named(recording.trace)
    assert found["first"]["stream"] == found["ours"]["stream"] == stream.id
    assert found["first, too"]["stream"] == whole.id
    assert found["guarded"]["stream"] == later.id
    assert recording.trace.stream_name(stream.id) == "mine"
    assert recording.trace.stream_name(later.id) == "later"


# -- how much is recorded --------------------------------------------------------------------
def test_without_launch_ids_there_is_work_without_calls(world, parts):
    stream = parts["a"].create_stream()
    with world.profile(launch_ids=False) as recording, CallerStreamGuard(stream):
        world.gpu.foreign("foreign", on=stream)
        world.launch(stream, "ours")
        world.gpu.foreign_copy(9)
    trace = recording.trace
    assert set(named(trace)) == {"foreign", "ours"}
    for row in rows(trace, "kernel"):
        assert (row["thread"], row["queued_ns"], row["intended_partition"]) == (None, None, None)
        assert row["partition"] == "a"
    assert launches(trace) == set()
    assert trace.metadata.complete
    assert trace.metadata.counts["unmatched"] == 0
    (copy,) = rows(trace, "memcpy")
    assert copy["nbytes"] == 9


def test_runtime_launch_ids_leave_out_the_driver_s_calls_and_miss_none(world):
    with world.device.create_stream() as stream, world.profile(launch_ids="runtime") as recording:
        world.gpu.foreign("by the runtime")
        world.launch(stream, "by the driver")
    trace = recording.trace
    found = named(trace)
    assert found["by the runtime"]["thread"] == threading.get_native_id()
    assert found["by the driver"]["thread"] is None
    assert trace.metadata.complete
    assert trace.metadata.counts["unmatched"] == 0
    assert len(launches(trace)) == 1


def test_full_detail_tells_all_calls_and_synchronisations(world):
    with world.profile(detail="full") as recording:
        world.gpu.call(OTHER)
        world.gpu.call(DRIVER_SYNC, driver=True)
        recording.batches()
    (sync,) = rows(recording.trace, "sync")
    assert sync["name"] == "cuStreamSynchronize"
    assert sync["thread"] == threading.get_native_id()
    assert "cudaGetDevice_v3020" in named_apis(recording.trace)


# -- canaries --------------------------------------------------------------------------------
def test_what_was_launched_before_a_recording_is_not_its_own_though_it_ends_inside(world):
    with world.profile() as outer:
        number = world.gpu.call(LAUNCH)
        start = world.cupti.now_ns()
        late = {"callback": LAUNCH, "start": start, "end": start + 1, "correlation": 5, "thread": 9}
        with world.profile() as inner:
            world.gpu.kernel("launched before", number)
            world.cupti.write(layout.RUNTIME, **late)
            world.gpu.foreign("inside")
    assert set(named(inner.trace)) == {"inside"}
    assert len(rows(inner.trace, "api")) == 1
    assert set(named(outer.trace)) == {"launched before", "inside"}


def test_flights_of_nested_recordings_are_left_out_and_other_threads_work_is_not(world):
    """What a recording does itself lies between its first canary and its last, on its thread."""
    plain = world.gpu.sync_stream
    number = itertools.count()

    def sync(raw):
        plain(raw)
        elsewhere(lambda: world.gpu.foreign(f"theirs {next(number)}"))

    with world.profile() as outer:
        world.gpu.foreign("before")
        world.gpu.sync_stream = sync
        with world.profile():
            world.gpu.foreign("inside")
        world.gpu.sync_stream = plain
        world.gpu.foreign("after")
    theirs = [f"theirs {one}" for one in range(next(number))]
    assert len(theirs) == 14
    assert set(named(outer.trace)) == {"before", "inside", "after", *theirs}
    assert "memcpy" not in outer.trace.kind_counts()
    assert outer.trace.metadata.complete


@pytest.mark.parametrize("launch_ids", [True, False, "runtime"])
def test_flights_of_nested_recordings_are_left_out_whatever_is_recorded(world, launch_ids):
    with world.profile(launch_ids=launch_ids) as outer:
        for turn in range(3):
            with world.profile():
                world.gpu.foreign(f"inside {turn}")
            outer.batches()
    assert set(named(outer.trace)) == {"inside 0", "inside 1", "inside 2"}
    assert "memcpy" not in outer.trace.kind_counts()
    apis = {False: 0, "runtime": 3, True: 3}[launch_ids]
    assert outer.trace.kind_counts().get("api", 0) == apis


@pytest.mark.parametrize("hooked", ["sync_stream", "to_host"])
def test_batches_read_in_the_middle_of_a_nested_recording_s_canaries_hold_none_of_them(
    world, hooked
):
    plain = getattr(world.gpu, hooked)

    def read_then(*args):
        done = plain(*args)
        reader = threading.Thread(target=outer.batches, daemon=True)
        reader.start()
        reader.join(0.02)  # it may have to wait until the canaries are through
        readers.append(reader)
        return done

    readers = []
    with world.profile() as outer:
        setattr(world.gpu, hooked, read_then)
        with world.profile():
            world.gpu.foreign("inside")
        setattr(world.gpu, hooked, plain)
        for reader in readers:
            reader.join(20)
    assert set(named(outer.trace)) == {"inside"}
    assert "memcpy" not in outer.trace.kind_counts()
    assert outer.trace.kind_counts()["api"] == 1


def test_a_recording_that_begins_amid_another_s_canaries_misses_nothing(world):
    """It may see the end of their flight alone, and takes no later flight for the rest of it."""
    one, two = world.recording(), world.recording()
    plain, calls, starters = world.gpu.to_host, itertools.count(), []

    def begin():
        world.collector.collect(forced=True)  # as any recording does at its beginning and end
        two.start()

    def begin_then(array):
        if next(calls) == 3:
            starters.append(threading.Thread(target=begin, daemon=True))
            starters[0].start()
            starters[0].join(0.05)  # it may have to wait until the canaries are through
        return plain(array)

    world.gpu.to_host = begin_then
    one.start()
    world.gpu.to_host = plain
    starters[0].join(20)
    world.gpu.foreign("during")
    elsewhere(lambda: world.gpu.foreign("during, elsewhere"))
    one.stop()
    world.gpu.foreign("after")
    two.stop()
    assert set(named(one.trace)) == {"during", "during, elsewhere"}
    assert set(named(two.trace)) == {"during", "during, elsewhere", "after"}
    for recording in (one, two):
        assert "memcpy" not in recording.trace.kind_counts()
        assert recording.trace.metadata.complete


@pytest.mark.parametrize("ahead_ns", [0, -40_000, 3 * 10**9])
def test_canaries_tell_how_the_gpu_s_own_timer_stands(world, ahead_ns):
    world.gpu.globaltimer_ahead_ns = ahead_ns
    with world.profile() as recording:
        pass
    (cupti,) = recording.sources
    fit = cupti.globaltimer(world.device)
    assert len(fit.samples) == 12, "all of both flights but the last of each"
    now = time.time_ns()
    found = int(fit.to_unix(np.array([now + ahead_ns]))[0])
    assert abs(found - now) <= fit.residual_ns
    facts = recording.trace.metadata.clocks["globaltimer cuda:0"]
    assert facts.offset_ns == pytest.approx(ahead_ns, abs=5)
    assert recording.trace.metadata.clocks["cupti"].residual_ns < 10**6


# -- NVTX ranges -----------------------------------------------------------------------------
class Ranges:
    """Another library's NVTX ranges."""

    def __init__(self, cupti):
        self.cupti = cupti
        self.number = itertools.count(5000)

    def mark(self, flags, marker, name=None, *, thread=None, domain="dom"):
        self.cupti.write(
            layout.MARKER, flags=flags, marker=marker, time=self.cupti.now_ns(), process=9,
            thread=thread or threading.get_native_id(), name=address(name) if name else 0,
            domain=address(domain),
        )  # fmt: skip

    def push(self, name, **options):
        number = next(self.number)
        self.mark(2, number, name, **options)
        return number

    def pop(self, number, **options):
        self.mark(4, number, **options)


@pytest.fixture
def nvtx(world):
    return Ranges(world.cupti)


def test_ranges_nest_and_hold_the_calls_made_in_them(world, nvtx):
    with world.device.create_stream() as stream, world.profile() as recording:
        world.gpu.foreign("outside")
        outer = nvtx.push("outer")
        world.gpu.foreign("in outer")
        inner = nvtx.push("inner")
        world.gpu.foreign("in inner")
        ours(world, stream, "ours")
        elsewhere(lambda: world.gpu.foreign("elsewhere"))
        nvtx.pop(inner)
        nvtx.pop(outer)
    trace = recording.trace
    ranges = named(trace, "range")
    assert ranges["outer"]["parent"] is None
    assert ranges["inner"]["parent"] == ranges["outer"]["id"]
    parents = {row["correlation"]: row["parent"] for row in rows(trace, "api")}
    found = {name: parents[row["correlation"]] for name, row in named(trace).items()}
    assert found == {
        "outside": None, "in outer": ranges["outer"]["id"], "in inner": ranges["inner"]["id"],
        "ours": ranges["inner"]["id"], "elsewhere": None,
    }  # fmt: skip
    assert (ranges["outer"]["domain"], ranges["outer"]["source"]) == ("dom", "nvtx")
    assert ranges["outer"]["start_ns"] < ranges["inner"]["start_ns"] < ranges["inner"]["end_ns"]


def test_marks_have_a_moment_and_hold_nothing(world, nvtx):
    with world.profile() as recording:
        nvtx.mark(1, 77, "here")
        world.gpu.foreign("k")
    (mark,) = rows(recording.trace, "mark")
    assert (mark["name"], mark["start_ns"]) == ("here", mark["end_ns"])
    assert rows(recording.trace, "api")[0]["parent"] is None


def test_a_mark_just_before_a_range_is_not_around_it(world):
    with world.profile() as recording:
        now = world.cupti.now_ns()
        for flags, marker, at in ((1, 70, now), (2, 71, now + 1), (4, 71, now + 9)):
            world.cupti.write(layout.MARKER, flags=flags, marker=marker, time=at, thread=3,
                              name=address(f"marker {marker}"))  # fmt: skip
    (found,) = rows(recording.trace, "range")
    assert found["parent"] is None


def test_ranges_that_no_thread_was_in_are_rows_beside_those_of_nvtx(world, nvtx):
    with world.device.create_stream() as stream, world.profile() as recording:
        outer = nvtx.push("outer")
        ours(world, stream, "ours")
        nvtx.pop(outer)
        for number in range(3):
            recording.ranges.note(f"request {number}", number, number + 5, "served", "{}")
    ranges = named(recording.trace, "range")
    assert set(ranges) == {"outer", "request 0", "request 1", "request 2"}
    assert ranges["request 2"]["parent"] is None
    assert (ranges["request 2"]["start_ns"], ranges["request 2"]["end_ns"]) == (2, 7)


def test_a_range_left_open_is_open(world, nvtx):
    with world.profile() as recording:
        nvtx.push("open")
        world.gpu.foreign("k")
        recording.batches()
    (row,) = rows(recording.trace, "range")
    assert row["end_ns"] is None
    assert rows(recording.trace, "api")[0]["parent"] == row["id"]


def test_a_range_that_ends_on_another_thread_says_so_and_holds_no_calls(world, nvtx):
    with world.profile() as recording:
        number = nvtx.push("wanders")
        world.gpu.foreign("k")
        elsewhere(lambda: nvtx.pop(number))
    (row,) = rows(recording.trace, "range")
    assert row["thread"] == threading.get_native_id() != row["end_thread"]
    assert row["end_ns"] is not None
    assert rows(recording.trace, "api")[0]["parent"] is None


def test_a_range_whose_end_is_read_before_its_beginning_ends(world, nvtx):
    """Records of two threads may come in two buffers, the later one first."""
    with world.profile() as recording:
        begun_ns = world.cupti.now_ns()
        nvtx.mark(4, 4711, thread=5)
        recording.batches()
        world.cupti.write(layout.MARKER, flags=2, marker=4711, time=begun_ns,
                          thread=6, name=address("late"))  # fmt: skip
        recording.batches()
    (row,) = rows(recording.trace, "range")
    assert row["end_ns"] is not None


def test_ranges_carry_colour_category_and_payload(world, nvtx):
    with world.profile() as recording:
        one, two = nvtx.push("styled"), nvtx.push("plain")
        world.cupti.write(layout.MARKER_DATA, marker=one, color=0xFF0000, category=3,
                          payload_kind=4, payload=7)  # fmt: skip
        world.cupti.write(layout.MARKER_DATA, marker=two, payload_kind=1)
        nvtx.pop(two)
        nvtx.pop(one)
        three = nvtx.push("opaque")
        world.cupti.write(layout.MARKER_DATA, marker=three, color=0x80123456)
        nvtx.pop(three)
    found = named(recording.trace, "range")
    styled = found["styled"]
    assert (styled["color"], styled["category"], styled["payload"]) == (0xFFFF0000, "3", "7")
    assert (found["plain"]["color"], found["plain"]["category"]) == (None, None)
    assert found["plain"]["payload"] is None
    assert found["opaque"]["color"] == 0x80123456


def test_a_signed_payload_of_zero_is_one_also_where_it_is_alone(world, nvtx):
    with world.profile() as recording:
        one = nvtx.push("zero")
        world.cupti.write(layout.MARKER_DATA, marker=one, payload_kind=4, payload=0)
        nvtx.pop(one)
    (row,) = rows(recording.trace, "range")
    assert row["payload"] == "0"


def test_the_canary_range_of_no_recording_is_a_row(world, nvtx):
    with world.profile() as outer:
        with world.profile():
            number = nvtx.push("theirs")
            nvtx.pop(number)
        outer.batches()
    assert list(named(outer.trace, "range")) == ["theirs"]


def test_ranges_begun_before_the_recording_leave_no_row(world, nvtx):
    number = nvtx.push("before")
    with world.profile() as recording:
        nvtx.pop(number)
    assert rows(recording.trace, "range") == []


def test_host_calls_of_ours_without_a_parent_get_the_range_around_them(world, nvtx):
    with world.profile() as recording:
        number = nvtx.push("around")
        world.device.synchronize()
        nvtx.pop(number)
        world.device.synchronize()
    (around,) = rows(recording.trace, "range")
    assert [row["parent"] for row in rows(recording.trace, "sync")] == [around["id"], None]


# -- read while it runs ----------------------------------------------------------------------
IGNORED = ("id", "parent")


def comparable(trace):
    """Rows without their ids, which depend on batches, and edges and parents by place."""
    every = sorted(
        trace.spans.to_pylist(), key=lambda row: (row["start_ns"], row["kind"], row["name"])
    )
    places = {row["id"]: place for place, row in enumerate(every)}
    found = [{**row, "id": None, "parent": places.get(row["parent"])} for row in every]
    edges = sorted(
        (places[edge["from"]], places[edge["to"]], edge["kind"]) for edge in trace.edges.to_pylist()
    )
    return found, edges


def both(world, work, **options):
    """Record twice at the same time, once read live by ``work(live)``; returns both traces."""
    live, still = world.recording(**options), world.recording(**options)
    live.start()
    still.start()
    work(live)
    still.stop()
    live.stop()
    return live.trace, still.trace


def same(world, work, **options):
    live, still = both(world, work, **options)
    # The later one ends first: what it does itself at its end is not the other's.
    (live_rows, live_edges), (still_rows, still_edges) = comparable(live), comparable(still)
    for one, other in itertools.zip_longest(live_rows, still_rows):
        assert one == other
    assert live_edges == still_edges
    return live, still


def test_batches_read_live_join_to_the_same_rows_as_one_at_the_end(world, parts, nvtx):
    stream = parts["a"].create_stream()

    def work(live):
        for turn in range(4):
            number = nvtx.push(f"range {turn}")
            with CallerStreamGuard(stream):
                world.gpu.foreign(f"foreign {turn}", on=stream)
                live.batches()
            world.launch(stream, f"ours {turn}", nbytes=5)
            live.batches()
            world.gpu.foreign_copy(turn + 1)
            nvtx.pop(number)
            live.batches()

    live, _ = same(world, work)
    assert len(live) == 4 * 7


def test_our_kernel_that_ends_after_its_call_was_read_keeps_all_that_is_known_of_it(world, parts):
    stream = parts["a"].create_stream()

    def work(live):
        world.gpu.hold()
        world.launch(stream, "long", flop_count=7, nbytes=8)
        live.batches()
        world.gpu.release()
        live.batches()

    live, _ = same(world, work)
    (row,) = rows(live, "kernel")
    assert row["intended_partition"] == row["partition"] == "a"
    assert (row["flop_count"], row["nbytes"]) == (7, 8)
    assert row["id"] == work_row(row["external_correlation"])


def test_a_foreign_kernel_that_ends_after_its_call_was_read_keeps_its_launch(world, parts):
    stream = parts["a"].create_stream()

    def work(live):
        world.gpu.hold()
        with CallerStreamGuard(stream):
            world.gpu.foreign("long", on=stream)
        live.batches()
        world.gpu.release()
        live.batches()

    live, _ = same(world, work)
    (row,) = rows(live, "kernel")
    (launch,) = rows(live, "api")
    assert row["intended_partition"] == "a"
    assert launches(live) == {(launch["id"], row["id"])}


def test_a_call_whose_api_records_come_in_two_batches_stays_one_row(world):
    plain = world.gpu.launch
    late = []

    def split(stream, kernel, grid, block, args, correlation):
        plain(stream, kernel, grid, block, args, correlation)
        begun = world.gpu.now_ns()
        late.append({
            "callback": LAUNCH, "start": begun, "end": world.gpu.now_ns(), "process": 1,
            "thread": threading.get_native_id(), "correlation": world.cupti.next_correlation(),
        })  # fmt: skip

    with world.device.create_stream() as stream:

        def work(live):
            world.gpu.launch = split
            world.launch(stream, "gemm")
            world.gpu.launch = plain
            live.batches()
            world.cupti.write(layout.RUNTIME, **late[0])
            world.gpu.kernel("reduce", late[0]["correlation"], context=1, stream=stream.raw.number)
            live.batches()

        live, _ = same(world, work)
    assert len(rows(live, "api")) == 1
    assert len(launches(live)) == 2


@pytest.mark.parametrize("world", [False], indirect=True, ids=["by CUPTI"])
def test_a_call_whose_api_record_comes_after_it_was_read_is_told_when_it_comes(world):
    plain = world.gpu.launch

    def no_record(*args):
        enabled = world.cupti.enabled.pop(layout.DRIVER)
        plain(*args)
        world.cupti.enabled[layout.DRIVER] = enabled

    with world.device.create_stream() as stream:

        def work(live):
            world.gpu.hold()
            world.gpu.launch = no_record
            begun = world.gpu.now_ns()
            calls = calls_of(world, lambda: world.launch(stream, "ours"))
            world.gpu.launch = plain
            (kernel,) = [fields for _, fields in world.gpu._late]
            live.batches()
            assert rows(live.snapshot(), "api") == []
            (call,) = calls
            assert begun < call.start_ns
            world.cupti.write(
                layout.RUNTIME, callback=LAUNCH, start=call.start_ns, end=call.end_ns, process=1,
                thread=call.thread, correlation=kernel["correlation"],
            )  # fmt: skip
            live.batches()
            world.gpu.release()

        live, _ = same(world, work)
    (row,) = rows(live, "api")
    assert row["external_correlation"] is not None
    assert launches(live) == {(row["id"], rows(live, "kernel")[0]["id"])}


def test_a_call_that_has_not_returned_when_batches_are_read_is_told_later(world):
    plain = world.gpu.launch
    reader = []

    def read_inside(*args):
        plain(*args)
        reader[0].batches()

    with world.device.create_stream() as stream:

        def work(live):
            reader.append(live)
            world.gpu.launch = read_inside
            world.launch(stream, "ours")
            world.gpu.launch = plain
            live.batches()

        live, _ = same(world, work)
    (row,) = rows(live, "api")
    assert row["external_correlation"] is not None


steps = st.lists(
    st.sampled_from([
        "foreign", "ours", "copy", "driver", "graph", "enter", "leave", "push", "pop", "hold",
        "release", "read", "read", "flush", "other thread",
    ]),
    max_size=25,
)  # fmt: skip


@given(steps, st.sampled_from([True, True, False, "runtime"]))
@settings(deadline=None, max_examples=60)
def test_whatever_is_done_batches_read_live_join_to_the_same_rows(order, launch_ids):
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch)
        gpu, ranges = world.gpu, Ranges(world.cupti)
        names = (f"k{number}" for number in itertools.count())
        guards, pushed, held = [], [], [False]
        with world.device.carve({"a": 32, "b": "rest"}) as parts:
            streams = [parts[name].create_stream() for name in "ab"]

            def hold(on):
                if held[0] != on:
                    held[0] = on
                    (gpu.hold if on else gpu.release)()

            def graph():
                number = gpu.call(GRAPH)
                for node in (1, 2):
                    gpu.kernel(next(names), number, graph=1, graph_node=node)

            def enter():
                guards.append(CallerStreamGuard(streams[len(guards) % 2]))
                guards[-1].__enter__()

            def do(step, live):
                target = streams[len(guards) % 2]
                {
                    "foreign": lambda: gpu.foreign(next(names), on=target),
                    "ours": lambda: world.launch(target, next(names), nbytes=3, flop_count=4),
                    "copy": lambda: gpu.foreign_copy(9),
                    "driver": lambda: gpu.call(DRIVER_SYNC, driver=True),
                    "graph": graph,
                    "enter": enter,
                    "leave": lambda: guards and guards.pop().__exit__(None, None, None),
                    "push": lambda: pushed.append(ranges.push(next(names))),
                    "pop": lambda: pushed and ranges.pop(pushed.pop()),
                    "hold": lambda: hold(True),  # noqa: FBT003
                    "release": lambda: hold(False),  # noqa: FBT003
                    "read": live.batches,
                    "flush": world.cupti.flush,
                    "other thread": lambda: gpu.foreign(next(names), thread=4711),
                }[step]()

            def work(live):
                for step in order:
                    do(step, live)
                hold(False)  # noqa: FBT003
                while guards:
                    guards.pop().__exit__(None, None, None)

            live, _ = same(world, work, launch_ids=launch_ids)
        made = {"foreign": 1, "ours": 1, "graph": 2, "other thread": 1}
        assert len(rows(live, "kernel")) == sum(made.get(step, 0) for step in order)
        assert live.metadata.complete
        ids = live.array("id").tolist()
        assert len(ids) == len(set(ids))


def test_a_snapshot_while_it_runs_has_no_edge_to_nowhere(world):
    with world.profile() as recording:
        world.gpu.hold()
        world.gpu.foreign("long")
        world.gpu.foreign("longer")
        snapshot = recording.snapshot()
        world.gpu.release()
        later = recording.snapshot()
    assert launches(snapshot) == set()
    assert len(launches(later)) == 2
    assert launches(later) == launches(recording.trace)


def test_copies_of_ours_are_linked_like_launches(world):
    with world.device.create_stream() as stream, world.profile() as recording:
        stream.copy(np.zeros(4, np.int32), np.ones(4, np.int32))
    (copy,) = rows(recording.trace, "memcpy")
    assert (copy["nbytes"], copy["copy_kind"]) == (16, "DtoD")
    assert copy["id"] == work_row(copy["external_correlation"])
    assert COPY


# -- devices that are opened meanwhile -------------------------------------------------------
@pytest.mark.parametrize("is_known", [True, False])
def test_of_a_gpu_that_nobody_opened_the_driver_tells(world, is_known):
    recording = Recording((), Options(source="cupti"))
    recording.start()
    if not is_known:
        world.library.refusing.add("device_info")
    world.gpu.foreign("theirs")
    so_far = recording.snapshot()
    world.gpu.foreign("again")
    for trace in (so_far, recording.stop()):
        uuids = {row["device_uuid"] for row in named(trace).values()}
        if is_known:
            (facts,) = trace.metadata.devices.values()
            assert (facts.name, facts.sm_count, facts.uuid) == ("Fake GPU", 132, "GPU-0")
            assert list(trace.metadata.devices) == ["cuda:0"]
            assert trace.metadata.driver == "fake"
            assert uuids == {"GPU-0"}
        else:
            assert trace.metadata.devices == {}
            assert uuids == {None}
    assert [what for what in world.library.done if what[0] == "device_info"] == [("device_info", 0)]


def test_a_gpu_that_is_opened_meanwhile_joins_the_recording(world):
    recording = Recording((), Options(source="cupti"))
    recording.start()
    world.gpu.foreign("before")
    recording.add(world.device)
    with world.device.carve({"a": 32}) as parts, parts["a"].create_stream(name="s") as stream:
        world.launch(stream, "ours")
        world.gpu.foreign("after")
        trace = recording.stop()
    kernels = named(trace)
    assert set(kernels) == {"before", "ours", "after"}
    assert kernels["ours"]["partition"] == kernels["ours"]["intended_partition"] == "a"
    assert kernels["ours"]["device_uuid"] == kernels["before"]["device_uuid"] == "GPU-0"
    assert trace.metadata.streams[str(stream.id)].name == "s"
    assert list(trace.metadata.devices) == [world.device.info.key]
    assert trace.metadata.complete
    assert world.cupti.at_rest
