"""Clocks, power and throttling of GPUs, read while a recording runs."""

from __future__ import annotations

import itertools
import threading

import pytest
from fake_cupti import World
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope.device.cuda import health
from gpuscope.record.rows import Rows
from gpuscope.record.sampler import ClockSampler
from gpuscope.trace.gpu_states import COUNTERS, POWER, REASONS, SM_CLOCK, mask_of, reasons_of

CLOCKS = (1980, 1980, 1740, 1755)


@pytest.fixture
def nvml(monkeypatch):
    """NVML, whose GPUs are ever slower; ``read`` is set once a reading was made."""

    class Nvml:
        def __init__(self):
            self.clocks, self.uuids, self.read = itertools.cycle(CLOCKS), [], threading.Event()

        def clocks_of(self, uuid):
            self.uuids.append(uuid)
            clock = next(self.clocks)
            self.read.set()
            slowed = ("sw_power_cap",) if clock < 1980 else ("gpu_idle",)
            return {"sm_clock_mhz": clock, "power_w": 0.4 * clock, "throttle_reasons": slowed}

    fake = Nvml()
    monkeypatch.setattr(health, "clocks_of", fake.clocks_of)
    return fake


def sampled(opened, clock, times):
    """Sample without waiting, so often, and return the sampler."""
    sampler = ClockSampler(opened, clock)
    left = iter(range(times - 2))
    sampler._over.wait = lambda _: next(left, None) is None and sampler._over.set()
    sampler._loop()
    return sampler


def drained(sampler):
    rows = Rows()
    sampler.begin_reading()
    sampler.drain(rows)
    return rows.spans


def test_a_reading_stands_for_the_time_since_the_one_before(nvml):
    sampler = sampled(lambda: {0: "a"}, itertools.count(1000, 100).__next__, 4)
    rows = drained(sampler)
    by_name = {name: [row for row in rows if row["name"] == name] for name in COUNTERS}
    assert [row["value"] for row in by_name[SM_CLOCK]] == [*CLOCKS]
    times = [(1000, 1000), (1000, 1100), (1100, 1200), (1200, 1300)]
    for part in by_name.values():
        assert [(row["start_ns"], row["end_ns"]) for row in part] == times
    reasons = [reasons_of(int(row["value"])) for row in by_name[REASONS]]
    assert reasons == [("gpu_idle",)] * 2 + [("sw_power_cap",)] * 2
    assert [row["value"] for row in by_name[POWER]] == pytest.approx([0.4 * mhz for mhz in CLOCKS])
    assert len({row["id"] for row in rows}) == len(rows)
    assert nvml.uuids == ["a"] * 4
    assert drained(sampler) == []


def test_a_state_is_weighted_by_time(nvml):
    times = iter([0, 300, 400, 500])
    (state,) = sampled(lambda: {1: "b"}, times.__next__, 4).facts()
    assert (state.device, state.readings) == ("cuda:1", 4)
    assert (state.sm_clock_mhz, state.lowest_mhz, state.highest_mhz) == (1980, 1740, 1980)
    assert state.power_w == round(0.4 * 1980)
    assert state.throttled == ("power cap",)


def test_what_held_the_clock_down_before_does_not_count(nvml):
    nvml.clocks = iter([1740, 1980])
    (state,) = sampled(lambda: {0: "a"}, itertools.count().__next__, 2).facts()
    assert (state.throttled, state.lowest_mhz) == ((), 1740)
    nvml.clocks = iter([1740, 1980])
    sampler = ClockSampler(lambda: {0: "a"}, itertools.count().__next__)
    sampler.close()
    sampler._loop()
    assert sampler.facts()[0].throttled == ("power cap",)


def test_a_reading_that_was_undone_is_read_again(nvml):
    sampler = sampled(lambda: {0: "a"}, itertools.count().__next__, 2)
    undo = sampler.begin_reading()
    sampler.drain(Rows())
    undo()
    assert len(drained(sampler)) == 2 * len(COUNTERS)


def test_where_no_gpu_is_open_those_in_use_are_read(nvml, monkeypatch):
    in_use = iter([{}, {}, {3: "c"}])
    monkeypatch.setattr(health, "gpus_in_use", lambda: next(in_use))
    sampler = sampled(dict, itertools.count().__next__, 6)
    assert [state.device for state in sampler.facts()] == ["cuda:3"]
    assert nvml.uuids == ["c"] * 4


def test_where_nobody_tells_nothing_is_asked_again(monkeypatch):
    asked = []
    monkeypatch.setattr(health, "clocks_of", lambda uuid: asked.append(uuid) or {})
    sampler = sampled(lambda: {0: "a"}, itertools.count().__next__, 9)
    assert (asked, drained(sampler), sampler.facts()) == (["a"], [], ())


def test_a_recording_has_the_readings_of_its_time(nvml, monkeypatch, tmp_path):
    world = World(monkeypatch)
    with world.device.create_stream() as stream, world.profile() as recording:
        assert nvml.read.wait(PATIENCE_S)
        world.launch(stream)
    trace = recording.trace
    (low, high), counters = trace.metadata.windows_ns[0], trace.where(kind="counter")
    assert low <= counters.array("start_ns").min() <= counters.array("end_ns").max() <= high
    assert set(counters.texts("name")) == set(COUNTERS)
    assert set(counters.array("device")) == {0}
    (state,) = trace.metadata.gpu_states
    assert state.readings == len(counters.where(name=SM_CLOCK)) >= 2
    assert "1,980 MHz" in trace.provenance
    assert trace.metadata.complete
    both = gs.trace.Trace.concat([trace, trace.where(kind="kernel")])
    assert [state.round for state in both.metadata.gpu_states] == [0, 1]
    for name in ("trace.parquet", "trace.json"):
        gs.export(trace, tmp_path / name)
        read = gs.load_trace(tmp_path / name)
        assert read.metadata.gpu_states == trace.metadata.gpu_states
        columns = ["id", "name", "start_ns", "end_ns", "device", "value", "source"]
        rows = [part.where(kind="counter").spans.select(columns) for part in (read, trace)]
        first, second = (sorted(table.to_pylist(), key=lambda row: row["id"]) for table in rows)
        assert first == second


def test_a_simulated_gpu_has_no_readings(nvml):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording, gpu.create_stream() as stream:
        gs.workloads.spin_kernel(gpu)
        stream.synchronize()
    assert recording.trace.metadata.gpu_states == ()
    assert not nvml.uuids


def test_masks_and_names_of_reasons_are_the_same():
    names = ("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown")
    assert mask_of((*names, "one of tomorrow")) == 0x4 | 0x8 | 0x40  # as in nvml.h
    assert reasons_of(0x4 | 0x8 | 0x40) == names
