"""Live frames that another process makes of CUPTI's buffers."""

from __future__ import annotations

import os
import signal
import time

import fake_cupti
import numpy as np
import pytest
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope.record.calls import Ended
from gpuscope.record.cupti.afar import RemoteReader
from gpuscope.timeline.canvas.snapshot import WantedFrame
from gpuscope.trace.model import Trace
from gpuscope.widgets import live, painter
from gpuscope.widgets.live import FarPump

NO_CALLS = Ended(0, [], [])


@pytest.fixture
def world(monkeypatch):
    return fake_cupti.World(monkeypatch)


@pytest.fixture
def timeline(monkeypatch):
    """A timeline that shows all that a test did, and waits for its process, however long."""
    monkeypatch.setattr(painter, "PATIENCE_S", PATIENCE_S)
    made = gs.Timeline(followed_ns=10**9 * PATIENCE_S)
    yield made
    made.close()


def seen(timeline):
    """Return how many rows the other process has, 0 if it paints none."""
    return timeline._painted.rows if timeline._painted is not None else 0


def until(it_is_so, otherwise):
    end = time.monotonic() + PATIENCE_S
    while not it_is_so():
        assert time.monotonic() < end, otherwise
        time.sleep(0.01)


def foreign(world, times, first=0):
    for number in range(first, first + times):
        world.gpu.foreign(f"k{number % 3}")


@pytest.mark.parametrize("launch_ids", [True, False])
def test_another_process_reads_the_rows_that_the_trace_will_have(world, launch_ids):
    with world.profile(launch_ids=launch_ids) as recording:
        tap = recording.tap()
        stream = world.device.create_stream(name="s")
        reader = RemoteReader(tap.facts, tap.text)
        foreign(world, 5)
        world.launch(stream)
        first, places = tap.take(), tap.places()
        reader.learn(places)
        parts = [reader.rows(first, NO_CALLS, {})]
        foreign(world, 4)
        assert tap.places() is None, "nothing new was learned"
        parts.append(reader.rows(tap.take(), NO_CALLS, {}))
        tap.close()
    columns = ("kind", "name", "start_ns", "end_ns", "stream", "thread", "source")
    there = [row for part in parts for row in part.spans.select(columns).to_pylist()]
    kernels = [row for row in there if row["kind"] == "kernel"]
    trace = recording.trace
    assert trace.metadata.complete
    wanted = trace.where(kind="kernel").spans.select(columns).to_pylist()
    by_start = lambda row: row["start_ns"]  # noqa: E731
    assert sorted(kernels, key=by_start) == sorted(wanted, key=by_start)
    assert len(kernels) == 10


def test_frames_come_and_the_trace_is_whole(world, timeline):
    with world.profile() as recording:
        timeline.watch(recording)
        assert isinstance(timeline._pump, FarPump)
        foreign(world, 20)
        until(lambda: seen(timeline) >= 40, "no frame shows them")
        until(lambda: "40 spans in view" in timeline.bar.state["status"], "they are not drawn")
        foreign(world, 20)
        until(lambda: seen(timeline) >= 80, "later ones are not shown")
        assert timeline.follow
        assert timeline.window_ns[1] == timeline.state.extent_ns[1]
        low, high = timeline.window_ns
        timeline.zoom(0.5)
        foreign(world, 1)
        until(lambda: seen(timeline) >= 82, "the next is not shown")
        assert timeline.window_ns[1] - timeline.window_ns[0] < high - low
        assert len(timeline.state.tracks) == 0, "read here"
        assert not recording._reading.kept.next, "rows are made when it has ended"
    timeline.finish()
    assert timeline.wait(PATIENCE_S)
    assert recording.trace.metadata.complete
    assert len(recording.trace.where(kind="kernel")) == 41
    assert len(timeline.state.tracks) == len(recording.trace)
    assert not timeline.bar.state["live"]


def call_of_a_handle(world, stream, name="mine"):
    calls = world.device.calls
    handle = calls.begin("handle", name, stream, stream)
    before = calls.enter_handle(handle)
    world.launch(stream)
    calls.enter_handle(before)
    calls.end(handle)


def execution(world, stream, *, seen=True):
    calls = world.device.calls
    one = calls.begin_execution("quick", ("k", 1, 2), stream, None, None)
    world.gpu.launch(stream.raw, world.device.compile("", "k"), 1, 32, (), 0)
    calls.end(one)
    if seen:
        one.waited_ns, one.wait_thread = world.device.now_ns(), one.thread
        one.wait_number = calls.next_correlation()
        calls.see(one)
    return one


def test_each_call_that_ended_is_told_once(world):
    columns = ("kind", "name", "thread", "stream", "partition", "category")
    with world.device.carve({"a": 8}) as parts, world.profile() as recording:
        stream = parts["a"].create_stream(name="s")
        call_of_a_handle(world, stream)
        first = execution(world, stream, seen=False)
        ended, since = recording.ended(0)
        execution(world, stream)
        world.device.calls.see(first)
        more, since = recording.ended(since)
        nothing, _ = recording.ended(since)
        assert not nothing.rows(1, {})
        rows = [row for part in (ended, more) for row in part.rows(1, {stream.id: "a"})]
        recording.batches()
        execution(world, stream)
        assert recording.ended(since)[1] <= 3, "what became rows is not told again"
    trace = recording.trace
    assert trace.metadata.complete
    told = sorted((row["kind"], row["start_ns"], *(row[name] for name in columns)) for row in rows)
    whole = trace.where(kind="handle").spans.to_pylist()[:3]
    wanted = sorted((row["kind"], row["start_ns"], *(row[name] for name in columns))
                    for row in whole)  # fmt: skip
    assert [row for row in told if row[0] == "handle"] == wanted
    assert [row[3] for row in told if row[0] == "sync"] == ["event.synchronize"]


def test_calls_of_handles_are_shown_while_they_go_on(world, timeline):
    with world.device.carve({"a": 8}) as parts, world.profile() as recording:
        stream = parts["a"].create_stream(name="s")
        timeline.watch(recording)
        call_of_a_handle(world, stream)
        execution(world, stream)
        until(
            lambda: (
                {"handle mine", "handle quick"} <= {label for label, _ in timeline.state.labels}
            ),
            "there is no track of the handles",
        )
    timeline.finish()
    assert recording.trace.metadata.complete


def test_what_needs_the_rows_brings_the_reader_here(world, timeline):
    with world.profile() as recording:
        timeline.watch(recording)
        foreign(world, 9)
        until(lambda: seen(timeline) >= 18, "no frame shows them")
        assert timeline.find("k1") == 3
        assert not isinstance(timeline._pump, FarPump)
        assert timeline.next() is not None
        foreign(world, 9)
        until(lambda: timeline.find("k1") == 6, "later ones are not read")
    timeline.finish()
    assert recording.trace.metadata.complete


def test_a_click_hits_what_was_seen(world, timeline):
    with world.profile() as recording:
        timeline.watch(recording)
        foreign(world, 3)
        until(lambda: seen(timeline) >= 6, "no frame shows them")
        assert timeline.wait(PATIENCE_S)
        at = timeline._painted.window_ns
        timeline._clicked(0.5, 0.5)
        assert timeline.drawn.snapshot.window_ns == at or timeline.wait(PATIENCE_S)
        assert len(timeline.state.tracks) >= 6
    timeline.finish()
    assert recording.trace.metadata.complete


def test_without_the_other_process_it_goes_on_here(world, timeline):
    with world.profile() as recording:
        timeline.watch(recording)
        foreign(world, 5)
        until(lambda: seen(timeline) >= 10, "no frame shows them")
        os.kill(timeline._pump._painter._process.pid, signal.SIGKILL)
        world.cupti._last_ns += 10**9  # as on a busy machine
        foreign(world, 5)
        until(lambda: len(timeline.state.tracks) >= 20, "nobody reads")
        assert not isinstance(timeline._pump, FarPump)
        until(lambda: "20 spans in view" in timeline.bar.state["status"], "nobody draws")
    timeline.finish()
    assert recording.trace.metadata.complete
    assert len(timeline.state.tracks) == len(recording.trace)


@pytest.mark.parametrize("late_s", [0, 0.3])
def test_a_process_that_cannot_begin_is_done_without(world, timeline, monkeypatch, late_s):
    usual = live.start

    def start(thread):
        usual(thread)
        time.sleep(late_s)  # it fails before anybody knows of it

    monkeypatch.setattr(live, "start", start)
    monkeypatch.setattr(painter, "_spare", [])
    monkeypatch.setattr(painter.sys, "executable", "/nowhere")
    with world.profile() as recording:
        timeline.watch(recording)
        foreign(world, 5)
        until(lambda: len(timeline.state.tracks) >= 10, "nobody reads")
    assert recording.trace.metadata.complete


def test_the_process_is_used_again(world, timeline):
    numbers = set()
    for _ in range(2):
        with world.profile() as recording:
            timeline.watch(recording)
            foreign(world, 3)
            until(lambda: seen(timeline) == 6, "no frame shows them")
            numbers.add(timeline._pump._painter._process.pid)
        timeline.finish()
        assert recording.trace.metadata.complete
    assert len(numbers) == 1


def test_two_timelines_show_one_recording(world, timeline):
    other = gs.Timeline()
    with world.profile() as recording:
        timeline.watch(recording)
        other.watch(recording)
        assert not isinstance(other._pump, FarPump)
        foreign(world, 6)
        until(lambda: seen(timeline) >= 12, "one process shows none")
        until(lambda: len(other.state.tracks) >= 12, "the other shows none")
    other.close()
    assert recording.trace.metadata.complete


def test_a_recording_that_was_read_is_read_here(world):
    with world.profile() as recording:
        foreign(world, 1)
        recording.batches()
        assert recording.tap() is None
    assert recording.tap() is None


def test_a_recording_that_hears_no_ranges_is_read_here(monkeypatch):
    with fake_cupti.World(monkeypatch, ranges=False).profile() as recording:
        assert recording.tap() is None


def test_a_buffer_that_comes_again_is_taken_once(world):
    with world.profile() as recording:
        tap = recording.tap()
        tap.receive(1 << 40, np.zeros(8, np.uint8))
        tap.receive(1 << 40, np.zeros(8, np.uint8))
        assert [len(raw) for raw in tap.take()].count(8) == 1
        tap.close()


def test_an_error_over_there_is_told(world):
    with world.profile() as recording:
        tap = recording.tap()
        process = painter.Painter()
        try:
            process.begin(tap)
            wanted = WantedFrame(
                (0, 1), following=True, hidden=(), pixels=900, height=1.0, dark=False, paint=True
            )
            with pytest.raises(painter.PainterGone):
                process.paint(tap, NO_CALLS, "no metadata", wanted, lambda: False)
        finally:
            process.end()
            tap.close()
    assert isinstance(recording.trace, Trace)


def test_a_forked_child_leaves_the_process_to_its_parent():
    painter.give_back(painter.get_painter())
    child = os.fork()
    if child == 0:
        os._exit(len(painter._spare))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert painter._spare
    assert painter._spare[0].is_there


def test_a_process_that_ended_meanwhile_is_replaced():
    first = painter.get_painter()
    painter.give_back(first)
    first._process.kill()
    first._process.wait()
    second = painter.get_painter()
    assert second is not first
    assert second.is_there
    painter.give_back(second)
