"""The energy of rounds: between steps of a counter, with the power at rest told apart."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope.experiments.energy import Meter

STEP_NS = 100_000_000
GEMM = {"kind": "gemm", "m": 1024, "n": 1024, "k": 1024}


class Counting:
    """A device with a clock of its own and a counter that advances in steps, as NVML's does."""

    energy_step_ns = STEP_NS

    def __init__(self, *, idle_w=100.0, counts=True):
        self.time_ns, self.idle_w, self.counts = 17, idle_w, counts
        self.busy = []  # of (start, end, watts)
        self.backend, self.info = self, SimpleNamespace(name="a GPU")

    def now_ns(self):
        return self.time_ns

    def wait_until_ns(self, time_ns):
        self.time_ns = max(self.time_ns, time_ns)

    def energy_j(self):
        until_ns = self.time_ns // STEP_NS * STEP_NS if self.counts else 0
        drawn = self.idle_w * until_ns
        for start_ns, end_ns, watts in self.busy:
            drawn += (watts - self.idle_w) * max(0, min(until_ns, end_ns) - start_ns)
        return drawn / 1e9

    def work(self, duration_ns, watts):
        self.busy.append((self.time_ns, self.time_ns + duration_ns, watts))
        self.time_ns += duration_ns


def test_a_round_between_steps_is_exact_and_its_idle_power_is_apart():
    device = Counting()
    meter = Meter(device)
    meter.rest()
    device.time_ns += 33_000_000  # until the recording has begun
    meter.begin(device.now_ns())
    device.work(2_345_000_000, 500.0)
    meter.end("a", device.now_ns())
    (facts,) = meter.of["a"]
    assert facts.joules == pytest.approx(500 * 2.345, rel=0.001)
    assert facts.idle_w == pytest.approx(100, rel=0.01)
    assert facts.dynamic_joules == pytest.approx(400 * 2.345, rel=0.005)


def test_a_workload_goes_on_beyond_its_calls_until_it_is_long_enough():
    device = Counting()
    meter = Meter(device)
    meter.begin(device.now_ns())
    assert not meter.is_enough(meter.more)
    device.work(20 * STEP_NS, 300.0)
    assert not meter.is_enough(meter.more + 1), "one of those planned is left"
    assert meter.is_enough(meter.more)


def test_a_round_that_was_too_short_says_how_many_more_calls_it_takes():
    device = Counting()
    meter = Meter(device)
    meter.rest()
    meter.begin(device.now_ns())
    device.work(600_000_000, 500.0)
    with pytest.raises(gs.errors.InvalidExperiment, match="repeats 4 times as many"):
        meter.end("a", device.now_ns())


def test_a_counter_that_stands_still_is_refused():
    with pytest.raises(gs.errors.GpuscopeError, match="stands still"):
        Meter(Counting(counts=False)).rest()


def experiment(**facts):
    return {
        "name": "energy",
        "rounds": 2,
        "energy": True,
        "alone_repeats": 0,
        "streams": {"s": {}, "t": {}},
        "workloads": {
            "w": {**GEMM, "stream": "s", "repeats": 40},
            "load": {**GEMM, "stream": "t", "background": True, "max_queued": 2},
        },
        **facts,
    }


def test_each_round_of_a_run_has_its_energy_and_each_workload_that_of_the_gpu_a_call():
    run = gs.run(experiment(), gs.open_device("sim:h200", quiet=True))
    rounds = run["default"].metadata.energy
    assert len(rounds) == 2
    drawn, dynamic = (
        sum(getattr(r, name) for r in rounds) for name in ("joules", "dynamic_joules")
    )
    for row in run.comparison.to_pylist():
        calls = len(run["default"].where(kind="handle", category=row["workload"]))
        assert row["joules_per_call"] == pytest.approx(drawn / calls)
        assert row["dynamic_joules_per_call"] == pytest.approx(dynamic / calls)
        assert row["idle_w"] == pytest.approx(118)
    assert 0 < dynamic < drawn
    again = gs.run(experiment(), gs.open_device("sim:h200", quiet=True))
    assert again["default"].metadata.energy == rounds


def test_a_run_that_was_not_asked_has_none():
    run = gs.run(experiment(energy=False), gs.open_device("sim:h200", quiet=True))
    assert run["default"].metadata.energy == ()
    assert set(run.comparison["joules_per_call"].to_pylist()) == {None}


def test_a_short_round_is_lengthened_and_its_progress_is_that_of_the_plan(monkeypatch):
    device = gs.open_device("sim:h200", quiet=True)
    monkeypatch.setattr(type(device.backend), "energy_step_ns", 1_000_000)
    seen = []
    run = gs.run(experiment(rounds=1), device, viewer=seen.append)
    (facts,) = run["default"].metadata.energy
    assert facts.duration_ns >= 20_000_000
    assert len(run["default"].where(kind="handle", category="w")) > 40
    assert max(progress.done for progress in seen) == seen[0].total == 40


def test_a_device_that_tells_none_is_refused():
    with pytest.raises(gs.errors.CapabilityError, match="does not tell the energy"):
        gs.run(
            experiment(workloads={"w": {**GEMM, "m": 32, "stream": "s", "repeats": 2}}),
            gs.open_device("cpu", quiet=True),
        )
