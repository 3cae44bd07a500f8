"""Live frames that another process makes of CUPTI's buffers."""

from __future__ import annotations

import errno
import os
import signal
import time

import fake_cupti
import pytest
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope.record.cupti.journal import JournalReader
from gpuscope.timeline.canvas.snapshot import WantedFrame
from gpuscope.widgets import live, painter
from gpuscope.widgets.live import FarPump


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
        journal = recording.journal()
        stream = world.device.create_stream(name="s")
        reader = JournalReader(journal.path)
        foreign(world, 5)
        world.launch(stream)
        recording.advance()
        parts = [reader.read_new()]
        foreign(world, 4)
        recording.advance()
        parts += [reader.read_new(), reader.read_new()]
    assert not journal.path.exists()
    columns = ("kind", "name", "start_ns", "end_ns", "stream", "thread", "source")
    there = [row for part in parts for row in part.spans.select(columns).to_pylist()]
    kernels = [row for row in there if row["kind"] == "kernel"]
    trace = recording.trace
    assert trace.metadata.complete
    wanted = trace.where(kind="kernel").spans.select(columns).to_pylist()
    by_start = lambda row: row["start_ns"]  # noqa: E731
    assert sorted(kernels, key=by_start) == sorted(wanted, key=by_start)
    assert len(kernels) == 10
    assert not len(parts[-1])


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
        assert not recording._reading.kept_batches.next, "rows are made when it has ended"
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
        reader = JournalReader(recording.journal().path)
        stream = parts["a"].create_stream(name="s")
        call_of_a_handle(world, stream)
        first = execution(world, stream, seen=False)
        recording.advance()
        told = reader.read_new().spans.to_pylist()
        execution(world, stream)
        world.device.calls.see(first)
        recording.batches()  # what becomes rows here is told before
        execution(world, stream)
        for _ in range(2):
            recording.advance()
            told += reader.read_new().spans.to_pylist()
    trace = recording.trace
    assert trace.metadata.complete
    rows = sorted((row["kind"], row["start_ns"], *(row[name] for name in columns)) for row in told
                  if row["kind"] in ("handle", "sync"))  # fmt: skip
    whole = trace.where(kind="handle").spans.to_pylist()
    assert len(whole) == 4
    wanted = sorted((row["kind"], row["start_ns"], *(row[name] for name in columns))
                    for row in whole)  # fmt: skip
    assert [row for row in rows if row[0] == "handle"] == wanted
    assert [row[3] for row in rows if row[0] == "sync"] == ["event.synchronize"] * 2


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
        assert isinstance(timeline._pump, FarPump)
        assert isinstance(other._pump, FarPump)
        foreign(world, 6)
        until(lambda: seen(timeline) >= 12, "one process shows none")
        until(lambda: seen(other) >= 12, "the other shows none")
        other.find("k1")
        until(lambda: len(other.state.tracks) >= 12, "the rows are not here")
        foreign(world, 6)
        until(lambda: seen(timeline) >= 24, "what was read here is not shown there")
    other.close()
    assert recording.trace.metadata.complete


def test_a_recording_that_was_read_is_read_here(world):
    with world.profile() as recording:
        foreign(world, 1)
        recording.batches()
        assert recording.journal() is None
    assert recording.journal() is None


def test_a_recording_that_has_no_room_for_a_journal_is_read_here(world, timeline, monkeypatch):
    def full(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", full)
    with world.profile() as recording:
        timeline.watch(recording)
        foreign(world, 5)
        until(lambda: len(timeline.state.tracks) >= 10, "nobody reads")
    assert recording.trace.metadata.complete


def test_a_recording_that_hears_no_ranges_is_read_here(monkeypatch, timeline):
    with fake_cupti.World(monkeypatch, ranges=False).profile() as recording:
        timeline.watch(recording)
        assert not isinstance(timeline._pump, FarPump)


def test_an_error_over_there_is_told(world, tmp_path):
    (tmp_path / "journal").write_bytes(bytes(range(1, 100)))
    process = painter.Painter()
    try:
        process.begin(tmp_path / "journal")
        wanted = WantedFrame(
            (0, 1), following=True, hidden=(), pixels=900, height=1.0, dark=False, paint=True
        )
        with pytest.raises(painter.PainterGone, match="there is no frame"):
            process.paint(wanted, lambda: False)
    finally:
        process.end()


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
