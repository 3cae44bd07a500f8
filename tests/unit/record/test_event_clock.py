"""Contract D, rule 12: event times on the host's clock, over long spans, with a fake driver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpuscope.record.clock import REANCHOR_NS, EventClock

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
CALL_NS = 2000


class FakeGpu:
    """A GPU whose clock drifts, and that gives times between events as CUDA does."""

    def __init__(self, drift_ppm=0.0, delay_ns=0):
        self.host_ns = START
        self.drift = drift_ppm / 1e6
        self.delay_ns = delay_ns
        self.records = []
        self.asked = []
        self.streams = 0
        self.info = SimpleNamespace(key="fake:0")
        self.backend = self

    def now_ns(self):
        self.host_ns += CALL_NS
        return self.host_ns

    def device_ns(self):
        return (self.host_ns - START) * (1 + self.drift)

    def make_stream(self, partition, priority, *, blocking=False):
        self.streams += 1
        return "stream", 0x10

    def close_stream(self, raw, handle):
        self.streams -= 1

    def make_event(self, *, timing):
        assert timing
        return SimpleNamespace(device_ns=None)

    def close_event(self, raw):
        pass

    def record(self, event, stream, correlation):
        self.host_ns += CALL_NS
        event.device_ns = self.device_ns()
        self.records.append(event)

    def sync_event(self, event):
        self.host_ns += CALL_NS + self.delay_ns

    def elapsed_ns(self, start, end):
        """A float of milliseconds: 24 bits, so the longer the span the coarser."""
        self.asked.append((start, end))
        return round(float(np.float32((end.device_ns - start.device_ns) / 1e6)) * 1e6)

    def at(self, host_ns):
        """An event that is reached when the host's clock shows ``host_ns``."""
        self.host_ns = host_ns
        return SimpleNamespace(raw=SimpleNamespace(device_ns=self.device_ns()))


def test_streams_12_the_first_anchor_is_the_tightest_of_several_brackets():
    gpu = FakeGpu()
    delays = iter([9000, 5000, 100, 7000, 8000, 8000, 8000, 8000])
    plain = gpu.sync_event

    def sync(event):
        gpu.delay_ns = next(delays)
        plain(event)

    gpu.sync_event = sync
    clock = EventClock(gpu)
    (anchor,) = clock._anchors
    assert anchor[0].raw is gpu.records[2]
    assert clock.residual_ns == (3 * CALL_NS + 100) // 2
    true_ns = START + gpu.records[2].device_ns
    assert abs(anchor[1] - true_ns) <= clock.residual_ns


def test_streams_12_it_re_anchors_every_two_seconds_and_not_sooner():
    assert REANCHOR_NS == 2 * SECOND
    gpu = FakeGpu()
    clock = EventClock(gpu)
    first = clock._anchors[0][1]
    for step in range(1, 100):
        gpu.host_ns = first + step * SECOND // 10
        clock.keep_fresh(gpu.host_ns)
    spans = np.diff([anchor[1] for anchor in clock._anchors])
    assert len(spans) == 4, "9.9 s"
    assert (spans >= REANCHOR_NS).all()
    assert (spans < REANCHOR_NS + SECOND // 5).all()


def test_streams_12_anchors_are_chained_by_the_devices_own_clock():
    """Each is the one before it plus what the device measured: nothing jumps to the host's."""
    gpu = FakeGpu(drift_ppm=50)
    clock = EventClock(gpu)
    first = clock._anchors[0]
    for seconds in range(3, 31, 3):
        gpu.host_ns = first[1] + seconds * SECOND
        clock.keep_fresh(gpu.host_ns)
    assert len(clock._anchors) == 11
    pairs = zip(clock._anchors, clock._anchors[1:], strict=False)
    for before, after in pairs:
        assert after[1] == before[1] + gpu.elapsed_ns(before[0].raw, after[0].raw)
    measured = clock._anchors[-1][1] - first[1]
    device = clock._anchors[-1][0].raw.device_ns - first[0].raw.device_ns
    assert abs(measured - device) < 10 * 120, "0.12 µs for each of ten steps"


@pytest.mark.parametrize("after_s", [0.5, 2.5, 7.0, 19.99])
def test_streams_12_the_nearest_anchor_before_an_event_is_chosen(after_s):
    gpu = FakeGpu()
    clock = EventClock(gpu)
    first = clock._anchors[0][1]
    for seconds in range(2, 21, 2):
        gpu.host_ns = first + seconds * SECOND + 10_000
        clock.keep_fresh(gpu.host_ns)
    true_ns = first + int(after_s * SECOND)
    event = gpu.at(true_ns)
    gpu.asked.clear()
    found = clock.unix_ns(event, true_ns)
    ((start, _),) = gpu.asked
    before = [anchor for anchor in clock._anchors if anchor[1] <= true_ns]
    assert start is before[-1][0].raw
    assert abs(found - true_ns) <= clock.residual_ns + 12 * 120


def test_streams_12_an_event_before_the_first_anchor_uses_the_first():
    gpu = FakeGpu()
    early = gpu.at(START - 5000)
    clock = EventClock(gpu)
    assert abs(clock.unix_ns(early, START - 5000) - (START - 5000)) <= clock.residual_ns + 1


def test_streams_12_long_spans_stay_good_where_one_anchor_would_not():
    gpu = FakeGpu()
    clock = EventClock(gpu)
    first = clock._anchors[0][1]
    rng = np.random.default_rng(12)
    worst = worst_alone = 0
    for step in range(1, 301):  # ten minutes
        gpu.host_ns = true_ns = first + 2 * step * SECOND + int(rng.integers(SECOND))
        event = gpu.at(true_ns)
        worst = max(worst, abs(clock.unix_ns(event, true_ns) - true_ns))
        alone = clock._anchors[0][1] + gpu.elapsed_ns(clock._anchors[0][0].raw, event.raw)
        worst_alone = max(worst_alone, abs(alone - true_ns))
        clock.keep_fresh(true_ns)
    assert worst < clock.residual_ns + 5000
    assert worst_alone > 2 * worst


def test_streams_12_closing_tells_drift_and_residual_and_gives_the_stream_back():
    gpu = FakeGpu(drift_ppm=20)
    clock = EventClock(gpu)
    first = clock._anchors[0][1]
    for seconds in range(2, 61, 2):
        gpu.host_ns = first + seconds * SECOND
        clock.keep_fresh(gpu.host_ns)
    facts = clock.close()
    assert gpu.streams == 0
    assert facts["offset_ns"] == pytest.approx(first, abs=256)  # a float
    assert facts["over_ns"] == pytest.approx(60 * SECOND, abs=SECOND)
    # The host saw 60 s, the device 20 ppm more: the end lies 1.2 ms before what it says.
    assert facts["drift_ns"] == pytest.approx(-60 * SECOND * 20e-6, rel=0.01)
    assert facts["residual_ns"] >= CALL_NS
