"""Calibration: another clock against Unix time, and steps of the system's clock."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.record import clock
from gpuscope.record.clock import STEP_NS, ClockFit, ClockWatch, Sample, read_together, steps

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


class Synthetic:
    """A clock that is ahead of Unix time and drifts, in exact arithmetic."""

    def __init__(self, ahead_ns=0, drift_ppb=0):
        self.ahead_ns = ahead_ns
        self.drift_ppb = drift_ppb

    def at(self, unix_ns):
        return unix_ns + self.ahead_ns + (unix_ns - START) * self.drift_ppb // 10**9

    def sample(self, unix_ns, half_ns, place):
        """Read it in a bracket; ``place`` from -1 to 1 tells where in it the reading was made."""
        middle = unix_ns - round(place * half_ns)
        return Sample(middle, self.at(unix_ns) - middle, half_ns)


def fit_of(samples):
    fit = ClockFit()
    for one in samples:
        fit.add(one)
    return fit


def worst(fit, truth, times):
    readings = np.array([truth.at(one) for one in times], np.int64)
    return int(np.abs(fit.to_unix(readings) - np.array(times, np.int64)).max())


# -- offset and drift ------------------------------------------------------------------------
def test_without_samples_times_are_left_as_they_are():
    fit = ClockFit()
    times = np.array([START, START + 1], np.int64)
    assert fit.to_unix(times).tolist() == times.tolist()
    assert fit.facts() == {"offset_ns": 0, "drift_ns": 0, "over_ns": 0, "residual_ns": 0}


def test_one_sample_gives_the_offset_and_its_bracket_is_the_residual():
    truth = Synthetic(ahead_ns=-5_000)
    fit = fit_of([truth.sample(START, 120, 0.5)])
    assert fit.residual_ns == 120
    assert worst(fit, truth, [START, START + SECOND]) <= 120


@pytest.mark.parametrize("ahead_ns", [0, 40, -3_000_000, 37 * SECOND, -START])
@pytest.mark.parametrize("drift_ppb", [0, 3_000, -80_000, 200_000])
def test_offset_and_drift_are_recovered_however_large_the_offset_is(ahead_ns, drift_ppb):
    truth = Synthetic(ahead_ns, drift_ppb)
    times = [START + second * SECOND for second in range(0, 61, 3)]
    fit = fit_of([truth.sample(one, 100, 0) for one in times])
    # A float has 53 bits: an offset of all of Unix time is good to a few hundred ns.
    allowed = 5 + abs(ahead_ns) // 2**50
    assert worst(fit, truth, range(START, START + 60 * SECOND, SECOND // 7)) <= allowed
    facts = fit.facts()
    assert facts["over_ns"] == 60 * SECOND
    assert facts["drift_ns"] == pytest.approx(60 * drift_ppb, abs=2 * allowed)
    assert facts["offset_ns"] == pytest.approx(truth.at(START) - START, abs=allowed)


# Brackets as reading gives them: mostly tight, some long; the reading is anywhere in them.
brackets = st.lists(st.tuples(st.integers(50, 400), st.floats(-1, 1)), min_size=2, max_size=30)


@given(
    brackets, st.integers(-(10**9), 10**9), st.integers(-200_000, 200_000),
    st.sampled_from([3 * SECOND, SECOND // 10]),
)  # fmt: skip
@settings(deadline=None)
def test_times_within_the_samples_are_right_within_the_stated_residual(
    found, ahead_ns, drift_ppb, apart
):
    truth = Synthetic(ahead_ns, drift_ppb)
    times = [START + number * apart for number in range(len(found))]
    fit = fit_of([
        truth.sample(one, half, place) for one, (half, place) in zip(times, found, strict=True)
    ])  # fmt: skip
    moments = np.linspace(times[0], times[-1], 50).astype(np.int64).tolist()
    assert worst(fit, truth, moments) <= fit.residual_ns + 2


def test_long_brackets_do_not_spoil_tight_ones():
    truth = Synthetic(1_000, 20_000)
    times = [START + second * SECOND for second in range(30)]
    samples = [truth.sample(one, 100, 0.2) for one in times]
    samples[7] = truth.sample(times[7], 3_000_000, 1)
    samples[0] = truth.sample(times[0], 50_000, -1)
    fit = fit_of(samples)
    assert worst(fit, truth, times) < 200
    assert fit.residual_ns < 500


def test_a_sample_that_contradicts_the_line_is_in_the_residual():
    truth = Synthetic()
    times = [START + second * SECOND for second in range(10)]
    samples = [truth.sample(one, 100, 0) for one in times]
    late = samples[5]
    samples[5] = Sample(late.unix_ns, late.offset_ns + 40_000, late.half_ns)
    assert fit_of(samples).residual_ns > 20_000


@pytest.mark.parametrize("half_ns", [0, 40, 500, 8_000])
@pytest.mark.parametrize("span_ns", [30_000, 200_000, 2_000_000])
def test_samples_close_together_tell_no_drift_that_would_mislead_far_from_them(half_ns, span_ns):
    """Jitter over a short span is no drift: ten seconds away it would be milliseconds."""
    rng = np.random.default_rng(half_ns + span_ns)
    truth = Synthetic(ahead_ns=70_000)
    for _ in range(20):
        times = sorted(START + rng.integers(0, span_ns, 16))
        fit = fit_of([truth.sample(int(t), half_ns, rng.uniform(-1, 1)) for t in times])
        far = [START - 10 * SECOND, START + 10 * SECOND]
        # Clocks of a machine stay together to 500 ppm; no more may be made up.
        assert worst(fit, truth, far) <= half_ns + 10 * SECOND * 500 // 10**6


def test_a_clock_that_ticks_coarsely_and_samples_without_a_bracket_tell_no_drift():
    """A 32 ns tick can make a bracket look empty: such a sample is not exact."""
    fit = fit_of([
        Sample(START, 64, 0), Sample(START + 20_000, 96, 0), Sample(START + 40_000, 70, 300),
        Sample(START + 5 * SECOND, 80, 280),
    ])  # fmt: skip
    found = fit.to_unix(np.array([START + 10 * SECOND], np.int64))
    assert abs(int(found[0]) - (START + 10 * SECOND)) < 1000


# -- reading two clocks at the same time -----------------------------------------------------
class FakeTime:
    """The module ``time``: readings cost what is said, sleeping costs nothing."""

    def __init__(self, costs=(100,)):
        self.unix_ns = START
        self.steady_ns = 5
        self.costs = list(costs)
        self.read = 0

    def pass_ns(self, ns):
        self.unix_ns += ns
        self.steady_ns += ns

    def time_ns(self):
        return self.unix_ns

    def monotonic_ns(self):
        return self.steady_ns

    def other(self):
        """Read another clock, 7 µs ahead, in the middle of the call."""
        cost = self.costs[self.read % len(self.costs)]
        self.read += 1
        self.pass_ns(cost // 2)
        seen = self.unix_ns + 7_000
        self.pass_ns(cost - cost // 2)
        return seen


def test_the_tightest_of_several_readings_counts(monkeypatch):
    fake = FakeTime(costs=[9000, 4000, 200, 800])
    monkeypatch.setattr(clock, "time", fake)
    sample = read_together(fake.other, tries=7)
    assert fake.read == 7
    assert (sample.half_ns, sample.offset_ns) == (100, 7_000)
    assert sample.unix_ns == START + 9000 + 4000 + 100


@given(st.lists(st.integers(2, 10**6), min_size=1, max_size=10), st.floats(0, 1))
@settings(deadline=None)
def test_the_offset_read_is_right_within_half_the_bracket(costs, place):
    fake = FakeTime()
    left = iter(costs)

    def other():
        cost = next(left)
        fake.pass_ns(int(cost * place))
        seen = fake.unix_ns - 12_345
        fake.pass_ns(cost - int(cost * place))
        return seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "time", fake)
        sample = read_together(other, tries=len(costs))
    assert sample.half_ns == min(costs) // 2
    assert abs(sample.offset_ns + 12_345) <= sample.half_ns + 1


def test_reading_this_machine_s_own_clock_finds_no_offset():
    sample = read_together(time.time_ns)
    assert abs(sample.offset_ns) <= sample.half_ns + 1000
    assert sample.half_ns < 1_000_000


# -- steps -----------------------------------------------------------------------------------
def readings(jumps, *, slew_ppm=0, apart=3 * SECOND):
    """Pairs of Unix and steady time, with a jump before each reading but the first."""
    unix, steady, found = START, 17, [(START, 17)]
    for jump in jumps:
        steady += apart
        unix += apart + apart * slew_ppm // 10**6 + jump
        found.append((unix, steady))
    return found


@given(
    st.lists(st.sampled_from([0, 0, 0, 5 * STEP_NS, -5 * STEP_NS, 10**9, -(10**9)]), max_size=30),
    st.integers(-500, 500),
)
@settings(deadline=None)
def test_every_step_is_found_with_its_sign_and_slewing_is_none(jumps, slew_ppm):
    found = steps(readings(jumps, slew_ppm=slew_ppm))
    real = [jump for jump in jumps if jump]
    assert len(found) == len(real)
    slewed = 3 * SECOND * abs(slew_ppm) // 10**6
    for (_, jump), true in zip(found, real, strict=True):
        assert abs(jump - true) <= slewed + 1


def test_a_step_is_told_with_the_time_after_it():
    told = readings([0, -5_000_000, 0])
    assert steps(told) == [(told[2][0], -5_000_000)]


@pytest.mark.parametrize("apart", [SECOND // 1000, SECOND, 3600 * SECOND])
@pytest.mark.parametrize("slew_ppm", [-500, 500])
def test_slewing_as_fast_as_adjtimex_does_is_no_step_over_any_span(apart, slew_ppm):
    assert steps(readings([0] * 20, slew_ppm=slew_ppm, apart=apart)) == []


def test_without_two_readings_there_is_no_step():
    assert steps([]) == steps([(START, 0)]) == []


# -- watching --------------------------------------------------------------------------------
def test_a_watch_compares_at_the_start_every_few_seconds_and_at_the_end(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(clock, "time", fake)
    monkeypatch.setattr(clock, "WATCH_EVERY_S", 0.002)
    looked = threading.Event()

    def other():
        if fake.read >= 5 * 32:
            looked.set()
        return fake.other()

    watch = ClockWatch({"other": other})
    assert len(watch.fits["other"].samples) >= 1
    assert looked.wait()
    assert watch.close() == []
    samples = watch.fits["other"].samples
    assert len(samples) >= 6
    assert {sample.offset_ns for sample in samples} == {7_000}
    before = len(samples)
    time.sleep(0.01)
    assert len(watch.fits["other"].samples) == before, "it has ended"
    assert watch.fits["other"].facts()["offset_ns"] == pytest.approx(7_000, abs=1)


def test_a_watch_notes_that_the_system_s_clock_was_set(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(clock, "time", fake)
    watch = ClockWatch({})
    fake.pass_ns(2 * SECOND)
    fake.unix_ns -= 250_000_000
    (note,) = watch.close()
    assert "-250.000 ms" in note
    assert f"{(START + 2 * SECOND - 250_000_000) / 1e9:.3f}" in note


def test_a_watch_compares_every_clock_it_is_given():
    clocks = {"one": lambda: time.time_ns() + 10**9, "two": time.time_ns}
    before = set(threading.enumerate())
    watch = ClockWatch(clocks)
    assert watch.close() == []
    assert {len(fit.samples) for fit in watch.fits.values()} == {2}
    assert watch.fits["one"].facts()["offset_ns"] == pytest.approx(10**9, abs=10**6)
    assert set(threading.enumerate()) <= before, "its thread has ended"
