"""CUPTI is one per process: who may record, who took over, and what is put back afterwards."""

from __future__ import annotations

import sys
import threading
import warnings
from types import SimpleNamespace

import fake_cupti
import numpy as np
import pytest
from fake_cupti import BUFFER_BYTES, OTHER, UNNAMED, FakeLibrary, OtherClient, World, rows

from gpuscope.device import caller
from gpuscope.errors import CapabilityError, GpuscopeError, RecorderBusy
from gpuscope.record.cupti import collector as collector_module
from gpuscope.record.cupti import layout, source
from gpuscope.record.cupti.collector import KINDS

ALWAYS = dict.fromkeys(KINDS, "all")
WITH = {
    "none": ALWAYS,
    "runtime": ALWAYS | {layout.RUNTIME: "launches"},
    "launches": ALWAYS | {layout.RUNTIME: "launches", layout.DRIVER: "launches"},
    "all": ALWAYS | {layout.RUNTIME: "all", layout.DRIVER: "all"},
}
WAITS = {layout.SYNCHRONIZATION: "all", layout.CUDA_EVENT: "all"}
"""Where calls are not noted."""

NOTED = pytest.mark.parametrize("world", [True], indirect=True, ids=["noted"])
BY_CUPTI = pytest.mark.parametrize("world", [False], indirect=True, ids=["by CUPTI"])


@pytest.fixture(params=[True, False], ids=["noted", "by CUPTI"])
def world(request, monkeypatch):
    """A process in which launches are noted, or recorded by CUPTI."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    world = World(monkeypatch, notes=request.param)
    yield world
    assert world.gpu.open_streams == 0, "canaries left a stream behind"
    assert caller.watchers() == (), "a recording watches on"
    assert not world.cupti.wrote_to_freed_memory
    assert world.cupti.buffer_is_alive, "CUPTI has a buffer whose memory was freed"


def names(trace, kind="kernel"):
    return [row["name"] for row in rows(trace, kind)]


def waits_of(notes):
    """Return what is enabled to tell of waits, where calls are noted or not."""
    return {} if notes else WAITS


def torch(*, records):
    profiler = SimpleNamespace(_profiler_enabled=lambda: records)
    return SimpleNamespace(autograd=profiler)


# -- records arrive --------------------------------------------------------------------------
def test_what_runs_while_it_records_is_there_and_nothing_else(world):
    world.gpu.foreign("before")
    with world.profile() as recording:
        world.gpu.foreign("during")
        world.gpu.foreign_copy(77)
    world.gpu.foreign("after")
    trace = recording.trace
    assert trace.metadata.complete
    assert trace.metadata.notes == ()
    assert names(trace) == ["during"]
    (copy,) = rows(trace, "memcpy")
    assert copy["nbytes"] == 77
    assert trace.metadata.counts["dropped"] == trace.metadata.counts["unread_bytes"] == 0


def test_the_canaries_are_nobody_s_work(world):
    with world.profile() as recording:
        pass
    trace = recording.trace
    assert trace.kind_counts() == {}
    assert trace.metadata.counts["received"] > 0
    assert trace.metadata.complete


def test_everything_of_cupti_is_put_back(world):
    before = world.cupti.thread_ids = 2
    with world.profile():
        assert (world.cupti.thread_ids, world.cupti.zeroed) == (1, True)
        assert world.cupti.holder == "gpuscope"
        assert world.cupti.collects == WITH["launches"] | waits_of(world.cupti.notes)
    assert world.cupti.thread_ids == before
    world.cupti.thread_ids = 0
    assert world.cupti.at_rest


def test_everything_is_put_back_and_kept_after_an_exception(world):
    recording = world.recording()
    with pytest.raises(ZeroDivisionError):
        recording.start()
        try:
            world.gpu.foreign("during")
            raise ZeroDivisionError
        finally:
            recording.stop()
    assert names(recording.trace) == ["during"]
    assert world.cupti.at_rest


def test_records_of_many_buffers_arrive_in_order_and_buffers_are_used_again(world):
    with world.profile() as recording:
        for number in range(500):
            world.gpu.foreign(f"k{number}")
            if number % 100 == 99:
                recording.batches()
    assert names(recording.trace) == [f"k{number}" for number in range(500)]
    assert world.cupti.asked > 5
    assert world.collector._arrays == {}


def test_buffers_are_kept_as_long_as_their_bytes_are_needed(world):
    """Records of a buffer more than half full are read where they lie."""
    taken = []
    world.collector.begin(1, lambda _, records: taken.append(records), apis="none", limit=1 << 20)
    for _ in range(60):
        world.gpu.foreign("one")
    world.collector.collect(forced=True)
    copies = [np.array(one) for one in taken]
    for _ in range(200):
        world.gpu.foreign("two")
    world.collector.collect(forced=True)
    assert any(len(one) > BUFFER_BYTES // 2 for one in copies)
    for one, copy in zip(taken, copies, strict=False):
        assert np.array_equal(one, copy)
    world.collector.end(1, taken_over=False)


@pytest.mark.parametrize("version", [28, 130001, 130401])
def test_every_version_s_records_arrive(monkeypatch, version):
    world = World(monkeypatch, version=version)
    with world.profile() as recording:
        world.gpu.foreign("during")
    assert names(recording.trace) == ["during"]
    assert recording.trace.metadata.complete


def test_a_record_of_an_unknown_kind_is_counted_and_told(world):
    with (
        pytest.warns(UserWarning, match="kind 60.*not read"),
        world.profile() as recording,
    ):
        world.gpu.foreign("before")
        world.cupti.sizes[60] = 16
        world.cupti.enabled[60] = "all"
        world.cupti.write(60)
        world.gpu.foreign("behind")
        del world.cupti.enabled[60]
        recording.batches()
        world.gpu.foreign("in the next buffer")
    metadata = recording.trace.metadata
    assert not metadata.complete
    assert metadata.counts["unread_bytes"] > 16
    assert names(recording.trace) == ["before", "in the next buffer"]


def test_nothing_is_recorded_and_nothing_held_when_nobody_records(world):
    world.gpu.foreign("nobody's")
    world.collector.collect(forced=True)
    assert world.library.done == []


# -- another client is there first -----------------------------------------------------------
def test_a_named_holder_of_the_subscription_is_named(world):
    world.cupti.holder = "Nsight Systems"
    with pytest.raises(RecorderBusy, match=r"Nsight Systems.*source='events'"):
        world.recording().start()
    assert world.cupti.holder == "Nsight Systems"
    assert world.cupti.callbacks is None, "nothing was taken from it"
    assert (world.cupti.enabled, world.cupti.zeroed, world.cupti.thread_ids) == ({}, False, 0)
    assert world.device.calls.observers == ()


@pytest.mark.parametrize("holder", [UNNAMED, ""], ids=["unnamed", "an older libcupti"])
def test_an_unnamed_holder_is_another_tool_where_there_is_no_torch(world, holder):
    world.cupti.holder = holder
    with pytest.raises(RecorderBusy, match=": another tool"):
        world.recording().start()


@pytest.mark.parametrize("holder", [UNNAMED, ""], ids=["unnamed", "an older libcupti"])
def test_pytorch_s_profiler_is_named_while_it_records(world, monkeypatch, holder):
    world.cupti.holder = holder
    monkeypatch.setitem(sys.modules, "torch", torch(records=True))
    with pytest.raises(RecorderBusy, match="PyTorch's profiler"):
        world.recording().start()
    assert world.cupti.callbacks is None


@pytest.mark.parametrize("holder", [UNNAMED, ""], ids=["unnamed", "an older libcupti"])
def test_pytorch_s_profiler_that_has_finished_is_in_nobody_s_way(world, monkeypatch, holder):
    world.cupti.holder = holder
    monkeypatch.setitem(sys.modules, "torch", torch(records=False))
    for _ in range(2):
        with world.profile() as recording:
            world.gpu.foreign("during")
        metadata = recording.trace.metadata
        assert metadata.complete
        assert any("PyTorch's profiler was used before" in note for note in metadata.notes)
        assert names(recording.trace) == ["during"]
    assert world.cupti.holder == holder, "it is theirs"
    assert ("unsubscribe",) not in world.library.done


def test_a_named_holder_is_no_pytorch_even_where_torch_is_imported(world, monkeypatch):
    world.cupti.holder = "Nsight Compute"
    monkeypatch.setitem(sys.modules, "torch", torch(records=False))
    with pytest.raises(RecorderBusy, match="Nsight Compute"):
        world.recording().start()


def test_an_unnamed_tool_that_set_nvtx_s_variable_is_no_finished_profiler(world, monkeypatch):
    """Nsight Systems gives CUPTI no name; taking its buffers would spoil its report."""
    world.cupti.holder = UNNAMED
    monkeypatch.setitem(sys.modules, "torch", torch(records=False))
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/tool/injection.so")
    with pytest.raises(RecorderBusy, match=r"/opt/tool/injection\.so"):
        world.recording().start()


def test_a_torch_that_cannot_be_asked_counts_as_recording(world, monkeypatch):
    world.cupti.holder = UNNAMED
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    with pytest.raises(RecorderBusy, match="PyTorch's profiler"):
        world.recording().start()


def test_a_note_of_one_recording_is_not_repeated_in_the_next(world, monkeypatch):
    world.cupti.holder = UNNAMED
    monkeypatch.setitem(sys.modules, "torch", torch(records=False))
    with world.profile():
        pass
    world.cupti.holder = None
    with world.profile() as recording:
        pass
    assert recording.trace.metadata.notes == ()


def test_records_of_the_first_canaries_that_do_not_arrive_refuse_the_recording(world):
    world.gpu.canaries_arrive = False
    with pytest.raises(RecorderBusy, match=r"first kernel did not arrive.*source='events'"):
        world.recording().start()
    assert world.cupti.holder is None
    assert (world.cupti.zeroed, world.cupti.thread_ids) == (False, 0)
    assert world.device.calls.observers == ()
    world.gpu.canaries_arrive = True
    with world.profile() as recording:
        world.gpu.foreign("during")
    assert names(recording.trace) == ["during"]


def test_who_takes_over_while_a_recording_begins_keeps_what_it_enabled(world):
    other, launch = OtherClient(world.cupti), world.gpu.launch

    def taken(*args):
        if world.cupti.callbacks[0] is not other._requested:
            other.take_over()
        launch(*args)

    world.gpu.launch = taken
    with pytest.raises(RecorderBusy, match="did not arrive"):
        world.recording().start()
    assert set(world.cupti.enabled) >= set(KINDS)
    assert world.cupti.callbacks[0] is other._requested
    assert world.cupti.holder is None


def test_a_buffer_that_another_client_left_with_cupti_is_not_taken_for_ours(world):
    other, flush = OtherClient(world.cupti), world.library.flush
    other.take_over()
    world.gpu.foreign("theirs")

    def flush_ours(*, forced):
        if world.cupti.callbacks[0] is other._requested:
            raise CapabilityError("it cannot be handed back before we register")
        flush(forced=forced)

    world.library.flush = flush_ours
    with world.profile() as recording:
        world.gpu.foreign("during")
    assert names(recording.trace) == ["during"]
    assert recording.trace.metadata.complete


# -- another client takes over ---------------------------------------------------------------
def taken_over(world, **options):
    """Record, and let another client take over meanwhile; returns the recording and the client."""
    other = OtherClient(world.cupti)
    with (
        pytest.warns(UserWarning, match="incomplete.*took the recording over"),
        world.profile(**options) as recording,
    ):
        world.gpu.foreign("seen")
        recording.batches()
        world.gpu.foreign("may be lost")
        other.take_over()
        world.gpu.foreign("theirs")
    return recording, other


def test_a_take_over_is_found_told_and_warned_of(world):
    recording, _ = taken_over(world)
    metadata = recording.trace.metadata
    assert not metadata.complete
    assert any("took the recording over" in note for note in metadata.notes)
    assert "seen" in names(recording.trace)
    assert "theirs" not in names(recording.trace)


def test_who_took_over_keeps_what_it_enabled_and_gets_its_records(world):
    _, other = taken_over(world)
    assert set(world.cupti.enabled) >= set(KINDS)
    assert not [what for what in world.library.done if what[0] == "disable"]
    assert world.cupti.callbacks[0] is other._requested
    world.gpu.foreign("theirs")
    world.cupti.flush()
    assert [used for at, used in other.got if at in other.buffers]
    assert (world.cupti.holder, world.cupti.zeroed, world.cupti.thread_ids) == (None, False, 0)


def test_the_memory_of_buffers_that_were_out_when_it_was_taken_over_stays(world):
    """CUPTI may still write to them, and hands them to the other client."""
    _, other = taken_over(world)
    ours = [at for at, _ in other.got if at not in other.buffers]
    kept = set(world.collector._arrays)
    assert ours
    assert set(ours) <= kept


def test_the_recording_after_a_take_over_works(world):
    _, other = taken_over(world)
    world.gpu.foreign("theirs")  # leaves a buffer of theirs half full, which comes back to us
    for options in ({}, {"launch_ids": False}):
        with world.profile(**options) as recording:
            world.gpu.foreign("during")
        assert recording.trace.metadata.complete, recording.trace.metadata.notes
        assert names(recording.trace) == ["during"]
    assert world.cupti.at_rest
    assert other.got


def test_a_take_over_before_the_first_launch_is_found_too(world):
    other = OtherClient(world.cupti)
    with pytest.warns(UserWarning, match="took the recording over"), world.profile() as recording:
        other.take_over()
    assert not recording.trace.metadata.complete


def test_records_lost_without_waiting_are_not_verified_and_that_is_said(world):
    recording = world.recording()
    recording.start()
    OtherClient(world.cupti).take_over()
    recording.stop(wait=False)
    assert any("not verified" in note for note in recording.trace.metadata.notes)


def test_nested_recordings_both_know_of_a_take_over(world):
    other = OtherClient(world.cupti)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with world.profile() as outer:
            with world.profile() as inner:
                world.gpu.foreign("seen")
                inner.batches()
                other.take_over()
            assert set(world.cupti.enabled) >= set(KINDS)
    assert not inner.trace.metadata.complete
    assert not outer.trace.metadata.complete
    assert [*names(inner.trace), *names(outer.trace)] == ["seen", "seen"]


def test_a_recording_begun_after_the_take_over_of_another_is_refused(world):
    other = OtherClient(world.cupti)
    with pytest.warns(UserWarning, match="took the recording over"), world.profile() as outer:
        other.take_over()
        with pytest.raises(RecorderBusy, match="did not arrive"):
            world.recording().start()
    assert not outer.trace.metadata.complete


# -- the memory limit ------------------------------------------------------------------------
def limited(world, launches, **options):
    with world.profile(memory_limit=3 * BUFFER_BYTES, **options) as recording:
        for number in range(launches):
            world.gpu.foreign(f"k{number}")
    return recording.trace


def test_what_the_memory_limit_leaves_out_is_counted_and_no_take_over(world):
    with pytest.warns(UserWarning, match="incomplete.*memory limit"):
        trace = limited(world, 1000, launch_ids=False)
    metadata = trace.metadata
    kernels = names(trace)
    assert not metadata.complete
    assert 0 < len(kernels) < 1000
    assert kernels == [f"k{number}" for number in range(len(kernels))], "the first are there"
    assert metadata.counts["dropped"] >= 1000 - len(kernels)
    (note,) = metadata.notes
    assert "memory limit" in note
    assert f"{metadata.counts['dropped']} records were dropped" in note
    assert world.cupti.at_rest, "not called a take-over: kinds are disabled"


def test_within_the_memory_limit_nothing_is_dropped(world):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = limited(world, 100, launch_ids=False)
    assert trace.metadata.complete
    assert len(names(trace)) == 100


def test_reading_batches_makes_room_again(world):
    with world.profile(memory_limit=3 * BUFFER_BYTES) as recording:
        for number in range(1000):
            world.gpu.foreign("k")
            if number % 50 == 0:
                recording.batches()
    assert recording.trace.metadata.complete
    assert len(names(recording.trace)) == 1000


def test_a_recording_after_one_that_reached_its_limit_begins_afresh(world):
    with pytest.warns(UserWarning, match="memory limit"):
        limited(world, 1000)
    with world.profile() as recording:
        world.gpu.foreign("k")
    assert recording.trace.metadata.complete
    assert recording.trace.metadata.counts["dropped"] == 0


def test_records_that_cupti_itself_drops_are_told(world):
    with pytest.warns(UserWarning, match="CUPTI dropped 3 records"), world.profile() as recording:
        world.cupti.lost += 3
    assert not recording.trace.metadata.complete
    assert recording.trace.metadata.counts["dropped"] == 3


def test_records_dropped_before_are_nobody_s(world):
    world.cupti.lost = 5
    with world.profile() as recording:
        pass
    assert recording.trace.metadata.complete


def test_records_dropped_while_two_record_are_told_by_both(world):
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with world.profile() as outer:
            with world.profile() as inner:
                world.cupti.lost += 3
            world.cupti.lost += 1
    assert inner.trace.metadata.counts["dropped"] == 3
    assert not inner.trace.metadata.complete
    assert outer.trace.metadata.counts["dropped"] == 4
    assert not outer.trace.metadata.complete


def test_what_was_dropped_before_a_recording_began_is_not_its_own(world):
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with world.profile(memory_limit=3 * BUFFER_BYTES, launch_ids=False) as outer:
            for _ in range(1000):
                world.gpu.foreign("k")
            outer.batches()
            with world.profile(memory_limit=3 * BUFFER_BYTES, launch_ids=False) as inner:
                world.gpu.foreign("inside")
    assert names(inner.trace) == ["inside"]
    assert inner.trace.metadata.complete, inner.trace.metadata.notes
    assert not outer.trace.metadata.complete
    assert outer.trace.metadata.counts["dropped"] > 0


def test_a_recording_begins_though_another_s_buffers_are_full(world):
    """Its canaries must not be lost for want of room, and taken for a take-over."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with world.profile(memory_limit=3 * BUFFER_BYTES, launch_ids=False) as outer:
            for _ in range(1000):
                world.gpu.foreign("k")
            with world.profile(memory_limit=3 * BUFFER_BYTES, launch_ids=False) as inner:
                world.gpu.foreign("inside")
    assert names(inner.trace) == ["inside"]
    assert inner.trace.metadata.complete, inner.trace.metadata.notes
    assert not outer.trace.metadata.complete


# -- several recordings ----------------------------------------------------------------------
def test_nested_recordings_each_get_their_own(world):
    with world.profile() as outer:
        world.gpu.foreign("one")
        with world.profile(launch_ids=False) as inner:
            world.gpu.foreign("two")
        world.gpu.foreign("three")
    assert names(inner.trace) == ["two"]
    assert names(outer.trace) == ["one", "two", "three"]
    assert "api" not in inner.trace.kind_counts()
    assert outer.trace.kind_counts()["api"] == 3
    assert "memcpy" not in outer.trace.kind_counts()
    assert inner.trace.metadata.complete
    assert outer.trace.metadata.complete
    assert world.cupti.at_rest


def start_timer(finish):
    timer = threading.Timer(0.05, finish)
    timer.start()
    return timer


@pytest.mark.parametrize("when", ["it begins", "it ends", "it is stopped"])
def test_work_that_runs_while_a_nested_recording_begins_or_ends_keeps_its_end(world, when):
    with world.profile() as outer:
        inner = world.recording()
        if when == "it begins":
            work = start_timer(world.gpu.running("long"))
        inner.start()
        world.gpu.foreign("inside")
        if when != "it begins":
            work = start_timer(world.gpu.running("long"))
        inner.stop(wait=when != "it is stopped")
        work.join()
    (long,) = [row for row in outer.trace.spans.to_pylist() if row["name"] == "long"]
    assert long["end_ns"] is not None
    assert outer.trace.metadata.complete, outer.trace.metadata.notes
    if when == "it begins":
        assert names(inner.trace) == ["inside"]
        assert inner.trace.metadata.complete, inner.trace.metadata.notes


def test_work_without_end_does_not_keep_a_nested_recording_from_beginning(world, monkeypatch):
    monkeypatch.setattr(source, "_PATIENCE_S", 0.05)
    with world.profile() as outer:
        world.gpu.running("endless")
        with world.profile() as inner:
            world.gpu.foreign("inside")
    assert names(inner.trace) == ["inside"]
    assert "1 pieces of work have no end" in outer.trace.metadata.incomplete


def test_recordings_that_overlap_each_get_their_own(world):
    one, two = world.recording(), world.recording()
    one.start()
    world.gpu.foreign("a")
    two.start()
    world.gpu.foreign("b")
    one.stop()
    world.gpu.foreign("c")
    two.stop()
    assert names(one.trace) == ["a", "b"]
    assert names(two.trace) == ["b", "c"]
    assert world.cupti.at_rest


def test_one_subscription_serves_all_and_goes_with_the_last(world):
    with world.profile():
        with world.profile():
            pass
        assert world.cupti.holder == "gpuscope"
        assert world.cupti.collects == WITH["launches"] | waits_of(world.cupti.notes)
    assert world.library.done.count(("subscribe",)) == 1
    assert world.library.done.count(("unsubscribe",)) == 1
    assert world.library.done.count(("register",)) == 1
    order = [what[0] for what in world.library.done]
    assert order.index("unsubscribe") > max(
        place for place, what in enumerate(order) if what in ("disable", "flush")
    ), "others may come in when everything is off"


@pytest.mark.parametrize(
    ("launch_ids", "detail", "apis"),
    [(False, "launches", "none"), ("runtime", "launches", "runtime"),
     (True, "launches", "launches"), (True, "full", "all"), (False, "full", "all")],
)  # fmt: skip
def test_api_calls_are_recorded_as_far_as_asked(world, launch_ids, detail, apis):
    recording = world.recording(launch_ids=launch_ids, detail=detail)
    recording.start()
    enabled = dict(world.cupti.collects)
    waits = waits_of(world.cupti.notes and apis != "all") if apis in ("launches", "all") else {}
    assert enabled == WITH[apis] | waits
    recording.stop()
    assert world.cupti.at_rest


@pytest.mark.parametrize("first", list(WITH))
@pytest.mark.parametrize("second", list(WITH))
def test_of_recordings_at_the_same_time_the_one_that_wants_most_decides(world, first, second):
    collector, more = world.collector, max(first, second, key=list(WITH).index)
    for one, other in ((1, 2), (2, 1)):
        collector.begin(one, lambda *_: None, apis=first, limit=1 << 20)
        assert world.cupti.collects == WITH[first]
        collector.begin(other, lambda *_: None, apis=second, limit=1 << 20)
        assert world.cupti.collects == WITH[more]
        collector.end(one, taken_over=False)
        assert world.cupti.collects == WITH[second]
        collector.end(other, taken_over=False)
        assert world.cupti.at_rest


def test_a_recording_of_launches_has_no_other_calls_though_another_wants_all(world):
    with world.profile() as outer:
        world.gpu.foreign("one")
        with world.profile(detail="full") as inner:
            world.gpu.call(OTHER)
    assert "cudaGetDevice_v3020" in names(inner.trace, "api")
    assert names(outer.trace, "api") == ["cudaLaunchKernel_v7000"]
    assert rows(outer.trace, "sync") == []


@pytest.mark.parametrize("limits", [(2, 100), (100, 2)])
def test_the_largest_memory_limit_of_recordings_at_the_same_time_counts(world, limits):
    with (
        world.profile(memory_limit=limits[0] * BUFFER_BYTES) as outer,
        world.profile(memory_limit=limits[1] * BUFFER_BYTES) as inner,
    ):
        for _ in range(500):
            world.gpu.foreign("k")
    assert inner.trace.metadata.complete
    assert outer.trace.metadata.complete


def test_recordings_on_threads_come_and_go(world):
    found, failed = [], []

    def work(number):
        try:
            for turn in range(3):
                with world.profile() as recording:
                    world.gpu.foreign(f"{number}.{turn}")
                found.append((f"{number}.{turn}", recording.trace))
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for name, trace in found:
        assert names(trace).count(name) == 1
        assert trace.metadata.complete, trace.metadata.notes
        assert not any(one.startswith("gpuscope") for one in names(trace))
    assert len(found) == 12
    assert world.cupti.at_rest


def test_a_recording_without_devices_begins_beside_the_canaries_of_another(world):
    """Their records may be all that there is so far."""
    other = world.recording()
    begin = world.collector.begin

    def begin_and_send(owner, sink, **options):
        begin(owner, sink, **options)
        world.collector.begin = begin
        world.gpu.launch(
            SimpleNamespace(context=1, number=3), world.device.compile("", "gpuscope_canary"), 99,
            32, (np.zeros(2, np.uint64),), 0,
        )  # fmt: skip

    world.collector.begin = begin_and_send
    recording = world.recording(devices=(), launch_ids=False)
    recording.start()
    world.gpu.foreign("during")
    recording.stop()
    assert names(recording.trace) == ["during"]
    del other


def test_without_devices_of_ours_what_runs_is_recorded(world):
    world.gpu.foreign("before")
    with world.profile(devices=()) as recording:
        world.gpu.foreign("during")
    assert names(recording.trace) == ["during"]
    assert recording.trace.metadata.complete
    (row,) = rows(recording.trace, "kernel")
    assert row["device"] == 0
    assert row["device_uuid"] == "GPU-0"


# -- failures --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "call",
    [
        "subscribe", "use_system_thread_ids", ("promise_zeroed_buffers", True), "dropped",
        "register", ("enable", KINDS[0]), ("enable", KINDS[-1]), "flush",
    ],
    ids=str,
)  # fmt: skip
def test_a_start_that_fails_leaves_nothing_behind_and_the_next_works(world, call):
    fails_to_start(world, call)


@BY_CUPTI
@pytest.mark.parametrize(
    "call",
    [("enable", layout.RUNTIME), ("enable", layout.DRIVER), ("only_launches", layout.DRIVER)],
    ids=str,
)
def test_a_start_that_cannot_record_api_calls_leaves_nothing_behind(world, call):
    fails_to_start(world, call)


@NOTED
@pytest.mark.parametrize("call", ["note_launches", "take_launches"])
def test_a_start_that_cannot_note_launches_leaves_nothing_behind(world, call):
    fails_to_start(world, call)


def fails_to_start(world, call):
    world.library.refusing = {call}
    with pytest.raises(CapabilityError, match="999"):
        world.recording().start()
    assert world.cupti.at_rest, (world.cupti.enabled, world.cupti.holder)
    assert world.device.calls.observers == ()
    world.library.refusing = set()
    with world.profile() as recording:
        world.gpu.foreign("during")
    assert names(recording.trace) == ["during"]
    assert world.cupti.at_rest


@BY_CUPTI
@pytest.mark.parametrize("call", [("enable", layout.DRIVER), "flush"], ids=str)
def test_a_nested_start_that_fails_leaves_the_outer_recording_as_it_was(world, call):
    with world.profile(launch_ids=False) as outer:
        world.gpu.foreign("one")
        world.library.refusing = {call}
        with pytest.raises(CapabilityError, match="999"):
            world.recording().start()
        world.library.refusing = set()
        assert world.cupti.collects == WITH["none"]
        world.gpu.foreign("two")
    assert names(outer.trace) == ["one", "two"]
    assert outer.trace.metadata.complete
    assert world.cupti.at_rest


@pytest.mark.parametrize(
    "call", [("disable", layout.KERNEL), ("disable", layout.RUNTIME), "dropped", "flush"], ids=str
)
def test_an_end_that_fails_gives_the_subscription_back_all_the_same(world, call):
    recording = world.recording()
    recording.start()
    world.library.refusing = {call}
    with pytest.raises(CapabilityError, match="999"):
        recording.stop()
    assert (world.cupti.holder, world.cupti.zeroed, world.cupti.thread_ids) == (None, False, 0)
    world.library.refusing = set()
    recording.stop()
    assert recording.trace is not None, "what there is can still be had"
    with world.profile() as recording:
        world.gpu.foreign("during")
    assert names(recording.trace) == ["during"]


def test_where_nothing_insists_on_cupti_a_failing_start_is_a_note(world, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    world.library.refusing = {"register"}
    recording = fake_cupti.Recording(())
    recording.start()
    recording.stop()
    assert any("CUPTI is not used" in note for note in recording.trace.metadata.notes)
    assert world.cupti.at_rest


def test_a_forked_process_is_told(world):
    world.collector._process += 1
    with pytest.raises(GpuscopeError, match=r"forked.*spawn"):
        world.recording().start()
    assert world.library.done == []
    world.collector.collect(forced=True)
    assert world.library.done == [], "nothing of CUPTI is touched in a child"


def test_ending_what_never_began_or_ended_does_nothing(world):
    world.collector.end(5, taken_over=False)
    assert world.library.done == []
    with world.profile() as recording:
        pass
    done = len(world.library.done)
    recording.stop()
    assert len(world.library.done) == done


def test_a_start_that_fails_at_its_canaries_frees_no_memory_that_cupti_has(world, monkeypatch):
    def compile_nothing(source, name, model):
        world.gpu.foreign("another thread's")
        raise CapabilityError("no compiler")

    with monkeypatch.context() as patch:
        patch.setattr(world.gpu, "compile", compile_nothing)
        with pytest.raises(CapabilityError, match="no compiler"):
            world.recording().start()
    assert world.cupti.buffer_is_alive
    with world.profile() as recording:
        world.gpu.foreign("during")
    assert names(recording.trace) == ["during"]


def test_work_on_other_threads_while_it_ends_gets_no_memory_that_is_freed(world, monkeypatch):
    """Behind the last flush and before kinds are disabled CUPTI may ask for one more buffer."""
    disable = world.library.disable

    def disable_late(kind):
        world.gpu.foreign("another thread's")
        disable(kind)

    monkeypatch.setattr(world.library, "disable", disable_late)
    for _ in range(3):
        with world.profile() as recording:
            world.gpu.foreign("during")
        assert names(recording.trace) == ["during"]
        assert world.cupti.buffer_is_alive
    assert world.cupti.at_rest
    kept = sum(array.nbytes for array in world.collector._arrays.values())
    assert kept == 0, "nothing had to be kept for ever"


# -- the interpreter's end -------------------------------------------------------------------
def test_at_exit_cupti_is_asked_for_what_it_has_and_forgets_us(world):
    recording = world.recording()
    recording.start()
    world.gpu.foreign("during")
    with world.profile():
        pass
    world.library.done.clear()
    world.collector._at_exit()
    assert ("flush", True) in world.library.done
    assert world.cupti.at_rest
    world.collector._at_exit()
    with warnings.catch_warnings(record=True):  # nobody stops it behind the interpreter's end
        recording.stop()
    assert names(recording.trace) == ["during"]


def test_at_exit_of_a_forked_child_nothing_is_touched(world):
    recording = world.recording()
    recording.start()
    world.collector._process += 1
    done = len(world.library.done)
    world.collector._at_exit()
    assert len(world.library.done) == done
    world.collector._process -= 1
    recording.stop()


def test_at_exit_a_failing_library_is_no_error(world):
    recording = world.recording()
    recording.start()
    world.library.refusing = {"flush"}
    world.collector._at_exit()
    world.library.refusing = set()
    recording.stop()


# -- one per process -------------------------------------------------------------------------
def test_a_process_has_one_collector(monkeypatch):
    made = []

    def library():
        made.append(1)
        return FakeLibrary(fake_cupti.FakeCupti())

    monkeypatch.setattr(collector_module, "Library", library)
    monkeypatch.setattr(collector_module, "_collector", None)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(collector_module.get_collector()))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len({id(one) for one in found}) == 1


# -- launches that are noted ------------------------------------------------------------------
@NOTED
def test_launches_are_noted_beside_a_recording_of_all_api_calls(world):
    with world.profile() as launches:
        world.gpu.foreign("one")
        with world.profile(detail="full") as full:
            assert world.cupti.noting, "the outer one goes on"
            world.gpu.foreign("two")
            world.cupti.write(
                layout.RUNTIME, callback=OTHER, correlation=world.cupti.next_correlation(),
                start=world.cupti.now_ns(), end=world.cupti.now_ns(), thread=1,
            )  # fmt: skip
        world.gpu.foreign("three")
        assert layout.RUNTIME not in world.cupti.enabled
    found = [row["name"] for row in rows(launches.trace, "api")]
    assert found == ["cudaLaunchKernel_v7000"] * 3
    assert names(full.trace) == ["two"]
    assert "cudaGetDevice_v3020" in [row["name"] for row in rows(full.trace, "api")]
    assert launches.trace.metadata.complete
    assert full.trace.metadata.complete


@NOTED
def test_launches_that_could_not_be_noted_are_told(world):
    with pytest.warns(UserWarning, match="memory limit"), world.profile() as recording:
        world.cupti.room = 100
        for _ in range(5):
            world.gpu.foreign("during")
    assert recording.trace.metadata.counts["dropped"] > 0
    assert not recording.trace.metadata.complete


@NOTED
def test_where_the_subscription_is_held_cupti_records_the_calls(world, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch(records=False))
    world.cupti.holder = UNNAMED
    with world.profile() as recording:
        assert world.cupti.noting == ()
        assert world.cupti.enabled == WITH["launches"] | WAITS
        world.gpu.foreign("during")
    assert names(recording.trace) == ["during"]
    assert len(rows(recording.trace, "api")) == 1
    world.cupti.holder = None


@NOTED
def test_what_a_sink_did_not_take_comes_again_with_its_number(world):
    taken = []

    def sink(number, records):
        if records[:4].view("u4")[0] == layout.NOTED_RUNTIME:
            taken.append((number, records.tobytes()))
            if len(taken) == 1:
                raise KeyboardInterrupt

    world.collector.begin(1, sink, apis="launches", limit=1 << 30)
    world.gpu.foreign("during")
    with pytest.raises(KeyboardInterrupt):
        world.collector.collect(forced=True)
    world.collector.collect(forced=True)
    world.collector.end(1, taken_over=False)
    assert len(taken) == 2
    assert taken[0] == taken[1]


# -- graphs ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("graphs", "period_ns"), [("launch", 0), ("sampled", 1_000_000_000)])
def test_launches_of_graphs_are_rows_where_they_are_recorded_whole(world, graphs, period_ns):
    with world.profile(graphs=graphs) as recording:
        world.gpu.foreign("alone")
        world.gpu.foreign_graph(17)
        world.gpu.foreign_graph(18)
    trace = recording.trace
    assert trace.metadata.complete
    if not world.cupti.notes:  # a graph that was instantiated before could not be told
        assert len(trace.where(kind="kernel")) == 7
        assert not len(trace.where(kind="graph"))
        return
    assert world.cupti.graph_period_ns == period_ns
    assert names(trace) == ["alone"]
    whole = rows(trace, "graph")
    assert [(row["name"], row["graph"]) for row in whole] == [("graph 17", 17), ("graph 18", 18)]
    assert all(row["graph_node"] is row["nbytes"] is row["launch_config"] is None for row in whole)
    assert all(row["end_ns"] > row["start_ns"] for row in whole)
    calls = {row["id"]: row["name"] for row in rows(trace, "api")}
    launched_by = {edge["to"]: edge["from"] for edge in trace.edges.to_pylist()}
    assert {calls[launched_by[row["id"]]] for row in whole} == {"cudaGraphLaunch_v10000"}
    assert world.cupti.at_rest


def graph_note(trace):
    (note,) = (note for note in trace.metadata.notes if "graphs" in note)
    return note


def test_of_recordings_at_the_same_time_one_that_wants_nodes_gets_them(world):
    with world.profile(graphs="launch") as outer:
        world.gpu.foreign_graph(1)
        with world.profile() as inner:
            world.gpu.foreign_graph(2)
        world.gpu.foreign_graph(3)  # of which nothing is known any more
    assert len(inner.trace.where(kind="kernel")) == 3
    assert [row["graph"] for row in rows(outer.trace, "graph")] == [1] * world.cupti.notes
    assert "another recording" in graph_note(outer.trace)
    assert not any("graphs" in note for note in inner.trace.metadata.notes)
    with world.profile(graphs="launch") as later:
        world.gpu.foreign_graph(4)
    assert len(later.trace.where(kind="graph")) == world.cupti.notes
    assert world.cupti.at_rest


def test_of_recordings_that_want_graphs_whole_the_one_that_wants_samples_gets_them(world):
    with world.profile(graphs="launch"), world.profile(graphs="sampled"):
        period_ns = world.cupti.graph_period_ns
    assert period_ns == (1_000_000_000 if world.cupti.notes else None)


def test_graphs_that_are_not_recorded_whole_after_all_are_told(world):
    with world.profile(graphs="launch") as recording:
        world.gpu.foreign("k")
        world.cupti.met_unknown_graph = world.cupti.notes
    why = "instantiated before" if world.cupti.notes else "cannot note"
    assert why in graph_note(recording.trace)
    world.cupti.met_unknown_graph = False
    with world.profile(graphs="sampled") as recording:
        world.gpu.foreign("k")
    assert ("first launch" in graph_note(recording.trace)) == world.cupti.notes


def test_whole_graphs_end_with_a_recording_that_was_taken_over(world):
    taken_over(world, graphs="launch")
    assert layout.GRAPH not in world.cupti.enabled
    assert ("record_graphs", -1) in world.library.done


@pytest.mark.parametrize("other", [{"detail": "full"}, {"launch_ids": False}])
def test_whole_graphs_need_the_calls_that_launch_them(world, other):
    with pytest.raises(GpuscopeError, match="graphs='launch'"):
        world.recording(graphs="launch", **other)
