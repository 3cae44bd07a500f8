"""Thread blocks of traced kernels as rows: whose they are, where they ran, and when."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupti import World, rows

from gpuscope.device.calls import Call
from gpuscope.record import blocks
from gpuscope.record.blocks import BlockSource, globaltimer_fit
from gpuscope.record.clock import ClockFit, Sample
from gpuscope.record.rows import block_row, call_row, outside_row, range_row, work_row

START = 1_700_000_000_000_000_000


def device(index=0, key="cuda:0"):
    info = SimpleNamespace(key=key, index=index, uuid=f"GPU-{index}")
    return SimpleNamespace(info=info, backend=SimpleNamespace(to_host=np.asarray))


def stream(number, partition=None):
    home = SimpleNamespace(name=partition) if partition else None
    return SimpleNamespace(id=number, partition=home)


def call(correlation, records, *, name="k", on=None, intended=None, key="cuda:0"):
    """A launch whose kernel wrote these blocks: start, end, SM."""
    array = np.array(records, np.uint64).reshape(-1, 3)
    one = Call("launch", name, key, correlation, 1, START, on, intended, blocks=array)
    one.end_ns = START + 10
    return one


def read(*calls, devices=None, clocks=None):
    """Return rows of thread blocks."""
    source = BlockSource()
    for one in calls:
        source.take(one)
    devices = devices or {"cuda:0": device()}
    batches = source.read(devices, clocks or {})
    return [row for batch in batches for row in batch.spans.to_pylist()]


# -- rows ------------------------------------------------------------------------------------
def test_each_block_is_a_row_under_its_kernel_with_its_sm():
    found = read(
        call(7, [(START, START + 5, 3), (START + 1, START + 9, 131)], name="first", on=stream(4)),
        call(9, [(START + 20, START + 21, 0)], name="second", on=stream(5)),
    )
    assert [(row["name"], row["sm"], row["stream"]) for row in found] == [
        ("first", 3, 4), ("first", 131, 4), ("second", 0, 5),
    ]  # fmt: skip
    assert [row["parent"] for row in found] == [work_row(7), work_row(7), work_row(9)]
    assert [(row["start_ns"] - START, row["end_ns"] - START) for row in found] == [
        (0, 5), (1, 9), (20, 21),
    ]  # fmt: skip
    assert {row["kind"] for row in found} == {"block"}
    assert {row["source"] for row in found} == {"blocks"}
    assert {(row["device"], row["device_uuid"]) for row in found} == {(0, "GPU-0")}


def test_blocks_tell_where_they_ran_and_where_they_were_meant_to():
    found = read(
        call(1, [(1, 2, 0)], on=stream(1, "a"), intended=stream(2, "b")),
        call(2, [(1, 2, 0)], on=stream(3), intended=stream(1, "a")),
        call(3, [(1, 2, 0)], on=stream(1, "a")),
    )
    assert [(row["partition"], row["intended_partition"]) for row in found] == [
        ("a", "b"), (None, "a"), ("a", None),
    ]  # fmt: skip


def test_blocks_inside_a_handle_have_its_name():
    inside, outside = call(1, [(1, 2, 0)]), call(2, [(1, 2, 0)])
    inside.workload = "my gemm"
    assert [row["category"] for row in read(inside, outside)] == ["my gemm", None]


def test_the_clock_of_each_device_puts_its_blocks_on_unix_time():
    ahead, behind = ClockFit(), ClockFit()
    for second in range(3):
        unix = START + second * 10**9
        ahead.add(Sample(unix, 5_000 + second * 20_000, 50))
        behind.add(Sample(unix, -700, 50))
    found = read(
        call(1, [(START + 5_000, START + 10**9 + 25_000, 1)]),
        call(2, [(START - 700, START + 300, 1)], key="cuda:1"),
        devices={"cuda:0": device(), "cuda:1": device(1, "cuda:1")},
        clocks={"cuda:0": ahead, "cuda:1": behind},
    )
    assert [row["start_ns"] for row in found] == pytest.approx([START, START], abs=5)
    assert [row["end_ns"] for row in found] == pytest.approx([START + 10**9, START + 1000], abs=5)
    assert [row["device"] for row in found] == [0, 1]


def test_without_a_clock_times_are_the_timer_s_own():
    (row,) = read(call(1, [(START + 3, START + 4, 0)]))
    assert (row["start_ns"], row["end_ns"]) == (START + 3, START + 4)


def test_a_launch_without_blocks_leaves_no_row():
    assert read(call(1, [])) == []
    assert [row["parent"] for row in read(call(1, []), call(2, [(1, 2, 0)]), call(3, []))] == [
        work_row(2)
    ]


def test_ids_of_blocks_are_their_own_and_nobody_else_s():
    launches = [call(number, [(1, 2, 0)] * count) for number, count in enumerate((3, 1, 200), 1)]
    ids = [row["id"] for row in read(*launches)]
    assert len(set(ids)) == 204
    expected = [(number, place) for number, count in ((1, 3), (2, 1), (3, 200))
                for place in range(count)]  # fmt: skip
    assert ids == block_row(*np.array(expected).T).tolist(), "by launch and number in it"
    numbers = np.array([0, 1 << 40])
    highest = max(int(of(numbers).max()) for of in (call_row, work_row, outside_row, range_row))
    assert min(ids) > highest
    last = block_row(np.array([1]), np.array([(1 << 22) - 1]))
    assert last < block_row(np.array([2]), np.array([0]))


# -- in a recording --------------------------------------------------------------------------
@pytest.fixture
def world(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return World(monkeypatch)


def traced(world, stream, blocks=4):
    """Launch a traced kernel, which the fake GPU runs in a microsecond; returns its records."""
    array = world.device.empty((blocks, 3), "uint64")
    world.launch(stream, "traced", blocks=array)
    return array


def fill(world, array, start, end):
    """Write what the kernel would: the GPU's own timer."""
    ahead = world.gpu.globaltimer_ahead_ns
    for number, row in enumerate(array):
        row[:] = (start + ahead + number, end + ahead - number, number)


@pytest.mark.parametrize("ahead_ns", [0, -123_456, 2 * 10**9])
def test_blocks_lie_inside_their_kernel_on_cupti_s_clock(world, ahead_ns):
    world.gpu.globaltimer_ahead_ns = ahead_ns
    with world.device.carve({"a": 32, "b": "rest"}) as parts:
        stream = parts["a"].create_stream()
        recording = world.recording()
        recording.start()
        array = traced(world, stream)
        now = world.cupti.now_ns()
        fill(world, array, now - 900, now - 100)
        recording.stop()
    trace = recording.trace
    (kernel,) = rows(trace, "kernel")
    found = rows(trace, "block")
    assert len(found) == 4
    residual = trace.metadata.clocks["globaltimer cuda:0"].residual_ns
    for number, row in enumerate(found):
        assert row["parent"] == kernel["id"]
        assert abs(row["start_ns"] - (now - 900 + number)) <= residual + 1000
        assert (row["partition"], row["intended_partition"], row["sm"]) == ("a", "a", number)
    assert trace.metadata.complete


def test_stopped_without_waiting_blocks_are_not_read_and_that_is_said(world):
    with world.device.create_stream() as stream:
        recording = world.recording()
        recording.start()
        traced(world, stream)
        recording.stop(wait=False)
    assert rows(recording.trace, "block") == []
    assert any("thread blocks were not read" in note for note in recording.trace.metadata.notes)


def test_batches_while_it_records_hold_no_blocks_and_the_trace_has_them_once(world):
    with world.device.create_stream() as stream, world.profile() as recording:
        array = traced(world, stream)
        fill(world, array, world.cupti.now_ns(), world.cupti.now_ns())
        assert not any(
            "block" in batch.spans.column("kind").to_pylist() for batch in recording.batches()
        )
    assert len(rows(recording.trace, "block")) == 4


# -- without CUPTI ---------------------------------------------------------------------------
@pytest.mark.parametrize("ahead_ns", [0, 80_000, -(10**9)])
def test_brackets_around_a_tiny_kernel_tell_how_the_timer_stands(world, ahead_ns):
    world.gpu.globaltimer_ahead_ns = ahead_ns
    fit = globaltimer_fit(world.device)
    assert len(fit.samples) == 16
    assert world.gpu.open_streams == 0
    now = time.time_ns()
    for away_s in (0, -10):  # what was recorded ten seconds ago
        then = now + away_s * 10**9
        found = int(fit.to_unix(np.array([then + ahead_ns]))[0])
        assert abs(found - then) <= fit.residual_ns + 5_000


def test_the_timer_was_read_in_the_middle_of_its_bracket_as_far_as_is_known(monkeypatch):
    now = [START]

    def spend(*_):
        now[0] += 50_000

    def launch(stream, kernel, grid, block, args, correlation):
        spend()
        args[0][0] = now[0] + 7_000_000

    backend = SimpleNamespace(
        compile=lambda *_: None, empty=np.zeros, make_stream=lambda *_: (None, 0), launch=launch,
        sync_stream=spend, to_host=np.asarray, close_stream=lambda *_: None,
    )  # fmt: skip
    monkeypatch.setattr(blocks, "time", SimpleNamespace(time_ns=lambda: now[0]))
    fit = globaltimer_fit(SimpleNamespace(backend=backend))
    assert {(one.offset_ns, one.half_ns) for one in fit.samples} == {(7_000_000, 50_000)}
    assert fit.facts()["offset_ns"] == 7_000_000
    assert fit.residual_ns >= 50_000


def test_a_kernel_that_fails_leaves_no_stream_behind(world):
    world.gpu.launch = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        globaltimer_fit(world.device)
    assert world.gpu.open_streams == 0
