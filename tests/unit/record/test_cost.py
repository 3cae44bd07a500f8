"""What recording costs, as a process measures it of itself."""

from __future__ import annotations

import pytest
from fake_cupti import World

import gpuscope as gs
from gpuscope.record.cupti import collector as collecting
from gpuscope.record.cupti.cost import TimeAdded, paired, recording_cost, time_added
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace


@pytest.fixture(params=[True, False], ids=["noted", "by CUPTI"])
def world(request, monkeypatch):
    world = World(monkeypatch, notes=request.param)
    monkeypatch.setattr("gpuscope.record.cupti.cost.get_collector", lambda: world.collector)
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
    world.cupti.noting_ns = [700.0, 300.0]
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
    world.cupti.noting_ns = [700.0, 300.0]
    assert time_added(world.devices[0], "launches", stacks=True) == (1300, 50)
    assert time_added(world.devices[0], "launches", stacks=True) == (900, 50)


def test_what_cupti_refuses_is_an_error_and_leaves_nothing(world):
    world.library.refusing.add("disable")
    with pytest.raises(gs.errors.CapabilityError):
        time_added(world.devices[0], "launches", stacks=True)
    world.library.refusing.clear()
    world.collector.end(0, taken_over=False)
    assert world.gpu.open_streams == 0


def calls(*of_thread):
    """Return a trace of threads that each make so many calls, one each so many ns."""
    table = [
        (1000 * thread + number, thread, number * each_ns)
        for thread, (count, each_ns) in enumerate(of_thread, 1)
        for number in range(count)
    ]
    ids, threads, starts = (
        (list(column) for column in zip(*table, strict=True)) if table else ([],) * 3
    )
    columns = {"id": ids, "thread": threads, "start_ns": starts, "end_ns": starts}
    columns |= {"kind": ["api"] * len(ids), "name": ["cudaLaunchKernel"] * len(ids)}
    columns |= {"source": ["cupti"] * len(ids)}
    return Trace.from_columns(columns, {}, metadata=TraceMetadata())


def test_the_share_is_of_the_thread_that_makes_most_calls():
    cost = recording_cost(calls((101, 10_000), (11, 1000)), TimeAdded(1000, 100))
    assert cost.share == pytest.approx(0.101)
    assert cost.within == pytest.approx(0.0101)
    assert (cost.call_ns, cost.call_within_ns) == (1000, 100)


@pytest.mark.parametrize("trace", [calls(), calls((1, 10))])
def test_without_calls_over_some_time_nothing_is_said(trace):
    assert recording_cost(trace, TimeAdded(1000, 100)) is None
