"""What recording costs, as a process measures it of itself."""

from __future__ import annotations

import math
import threading

import pytest
from fake_cupti import World

import gpuscope as gs
from gpuscope.experiments import processes
from gpuscope.experiments.recorded import RecordingOrder
from gpuscope.record.cupti import collector as collecting
from gpuscope.record.cupti.cost import TimeAdded, paired, recording_cost, time_added
from gpuscope.trace.combining import ONE_CLOCK, RANKS, combined
from gpuscope.trace.facts import RecordingCost
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace


@pytest.fixture(params=[True, False], ids=["noted", "by CUPTI"])
def world(request, monkeypatch):
    world = World(monkeypatch, notes=request.param)
    monkeypatch.setattr("gpuscope.record.cupti.cost.get_collector", lambda: world.collector)
    monkeypatch.setattr("gpuscope.record.cupti.cost._LAUNCHES", 5)
    return world


def test_launches_are_compared_in_pairs_of_which_a_few_may_be_off():
    state, asked = {}, []

    def pause(paused):
        state["paused"] = paused
        asked.append(paused)

    def launch_ns():
        outlier = 10**6 * (len(asked) in (3, 4, 17))
        return len(asked) // 2 * 10 + (2000 if state["paused"] else 3500) + outlier

    found = paired(pause, launch_ns)
    assert asked[:4] == [True, False, False, True]
    assert found.ns == pytest.approx(1500, abs=10)
    assert found.within_ns <= 10


@pytest.mark.parametrize("detail", ["launches", "full"])
def test_it_is_measured_of_a_kernel_of_ours_when_nothing_is_recorded(world, detail):
    (gpu,) = world.devices
    with world.profile(detail=detail) as recording:
        world.gpu.foreign("theirs")
        assert time_added(gpu, detail, stacks=True) is None
    streams, done = world.gpu.open_streams, len(world.library.done)
    found = time_added(gpu, detail, stacks=True)
    assert found is not None
    switched = [
        what for what in world.library.done[done:] if what == ("disable", collecting.KINDS[0])
    ]
    assert len(switched) == 25  # once for each pair, and at the end
    assert world.cupti.at_rest
    assert world.gpu.open_streams == streams
    assert len(recording.trace.where(kind="kernel")) == 1
    with world.profile() as later:
        world.gpu.foreign("later")
    assert later.trace.metadata.complete
    assert [row["name"] for row in later.trace.where(kind="kernel").spans.to_pylist()] == ["later"]


def test_noting_counts_as_it_took_in_the_program(world, monkeypatch):
    monkeypatch.setattr(
        "gpuscope.record.cupti.cost.paired", lambda _pause, _launch: TimeAdded(900, 50)
    )
    world.cupti.noting_ns = [(700.0, 30.0), (300.0, 40.0)]
    found = time_added(world.device, "launches", stacks=True)
    assert found == (1300, pytest.approx(math.hypot(50, 1.96 * 30, 1.96 * 40)))
    assert time_added(world.device, "launches", stacks=True) == (900, 50)
    world.cupti.noting_ns = [(100.0, 0.0), (1500.0, 0.0)]
    assert time_added(world.device, "launches", stacks=True) == (0, 50)


def test_what_cupti_refuses_is_an_error_and_leaves_nothing(world):
    world.library.refusing.add("enable")
    with pytest.raises(gs.errors.CapabilityError):
        time_added(world.device, "launches", stacks=True)
    world.library.refusing.clear()
    assert not world.collector.is_recording
    assert world.cupti.at_rest
    assert world.gpu.open_streams == 0
    assert time_added(world.device, "launches", stacks=True) is not None


def test_a_recording_that_begins_meanwhile_waits(world, monkeypatch):
    begun, over = threading.Event(), []

    def record():
        begun.set()
        with world.profile() as recording:
            over.append("measured" in over)
            world.gpu.foreign("theirs")
        over.append(recording.trace)

    def slowly(_pause, _launch):
        thread.start()
        begun.wait()
        over.append("measured")
        return TimeAdded(900, 50)

    thread = threading.Thread(target=record)
    monkeypatch.setattr("gpuscope.record.cupti.cost.paired", slowly)
    assert time_added(world.device, "launches", stacks=False) is not None
    thread.join()
    assert over[:2] == ["measured", True]
    assert over[2].metadata.complete


@pytest.mark.parametrize("error", [KeyboardInterrupt, gs.errors.CapabilityError("no")])
def test_a_process_writes_its_trace_whatever_measuring_comes_to(
    world, monkeypatch, tmp_path, error
):
    recorder = processes._Recorder(RecordingOrder(str(tmp_path)))
    with world.profile() as recording:
        world.gpu.foreign("theirs")
        world.gpu.foreign("theirs")
    trace = recorder._with_cost(recording.trace, ())
    assert trace.metadata.recording_cost is None
    monkeypatch.setattr("gpuscope.record.cupti.cost._FEWEST", 1)
    monkeypatch.setattr("gpuscope.record.cupti.cost._SHORTEST_NS", 0)
    assert recorder._with_cost(recording.trace, world.devices).metadata.recording_cost
    monkeypatch.setattr("gpuscope.record.cupti.cost.paired", raising(error))
    assert recorder._with_cost(recording.trace, world.devices) is recording.trace
    assert "not measured" in recorder._facts.notes[0]
    assert not world.collector.is_recording
    recorder._is_terminated = True
    assert recorder._with_cost(recording.trace, world.devices) is recording.trace
    assert len(recorder._facts.notes) == 1


def raising(error):
    def raise_it(*_):
        raise error

    return raise_it


def calls(*of_thread):
    """Return a trace of threads that each make so many calls, one each so many ns, some of them waits."""
    table = [
        (1000 * thread + number, thread, number * each_ns, ("api", "sync")[number % 2])
        for thread, (count, each_ns) in enumerate(of_thread, 1)
        for number in range(count)
    ]
    names = ("id", "thread", "start_ns", "kind")
    columns = {name: [row[at] for row in table] for at, name in enumerate(names)}
    columns |= {"end_ns": columns["start_ns"], "name": ["call"] * len(table)}
    columns |= {"source": ["cupti"] * len(table)}
    return Trace.from_columns(columns, {}, metadata=TraceMetadata())


def test_the_share_is_of_the_thread_that_makes_most_calls():
    cost = recording_cost(calls((101, 1_000_000), (11, 1000)), TimeAdded(1000, 100))
    assert cost.share == pytest.approx(0.001)
    assert cost.within == pytest.approx(0.0001)
    assert (cost.call_ns, cost.call_within_ns) == (1000, 100)


@pytest.mark.parametrize("trace", [calls(), calls((99, 10_000_000)), calls((200, 1000))])
def test_of_few_calls_or_a_short_time_nothing_is_said(trace):
    assert recording_cost(trace, TimeAdded(1000, 100)) is None


@pytest.mark.parametrize("rules", [ONE_CLOCK, RANKS])
def test_of_several_traces_the_dearest_is_told(rules):
    costs = [None, RecordingCost(1, 0, 0.01, 0), RecordingCost(1, 0, 0.2, 0)]
    every = [TraceMetadata(recording_cost=cost) for cost in costs]
    assert combined(every, rules).recording_cost == costs[2]
    assert combined(every[:1], rules).recording_cost is None
