"""Contract D, rule 12: event times on the host's clock, over long spans, with a fake driver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpuscope.errors import GpuscopeError
from gpuscope.record.clock import REACHED_NS, REANCHOR_NS, EventClock

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

    def event_handle(self, event):
        return 0

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


def unix_ns(clock, event, near_ns):
    return int(clock.to_unix(np.array([clock.device_ns(event, near_ns)]))[0])


def test_streams_12_the_first_anchor_is_the_surest_of_several():
    gpu = FakeGpu()
    delays = iter([9000, 5000, 100, 7000, 8000, 8000, 8000, 8000])
    plain = gpu.record

    def record(*arguments):
        plain(*arguments)
        gpu.host_ns += next(delays)

    gpu.record = record
    clock = EventClock(gpu)
    (anchor,) = clock._anchors
    assert anchor[0].raw is gpu.records[2]
    assert clock.residual_ns == 2 * CALL_NS + 100 + REACHED_NS
    true_ns = START + gpu.records[2].device_ns
    assert abs(anchor[1] - true_ns) <= clock.residual_ns


def kept_fresh(clock, gpu, *, seconds, step_ns):
    """Launch now and then, as a recording that nobody reads does."""
    first = clock._anchors[0][1]
    for since in range(step_ns, seconds * SECOND, step_ns):
        gpu.host_ns = max(gpu.host_ns, first + since)
        clock.keep_fresh(gpu.host_ns)


def test_streams_12_it_re_anchors_every_two_seconds_and_not_sooner():
    assert REANCHOR_NS == 2 * SECOND
    gpu = FakeGpu()
    clock = EventClock(gpu)
    kept_fresh(clock, gpu, seconds=10, step_ns=SECOND // 10)
    assert len(gpu.records) == 8 + 4, "the first is the surest of eight"
    spans = np.diff([anchor[1] for anchor in clock._anchors])
    assert (spans >= REANCHOR_NS - 2 * REACHED_NS).all()
    assert (spans < REANCHOR_NS + SECOND // 5).all()


def test_streams_12_keeping_fresh_waits_for_nothing():
    """It is done while others launch, and perhaps capture."""
    gpu = FakeGpu()
    clock = EventClock(gpu)

    def forbidden(*_):
        raise AssertionError

    gpu.sync_event = gpu.event_done = forbidden
    kept_fresh(clock, gpu, seconds=10, step_ns=SECOND)
    assert len(clock._anchors) == 4


def test_streams_12_an_anchor_that_is_not_reached_is_left_out():
    gpu = FakeGpu()
    clock = EventClock(gpu)
    plain = gpu.elapsed_ns

    def not_ready(start, end):
        raise GpuscopeError("not ready")

    gpu.elapsed_ns = not_ready
    kept_fresh(clock, gpu, seconds=6, step_ns=SECOND)
    gpu.elapsed_ns = plain
    clock.look()
    assert len(clock._anchors) == 2


@pytest.mark.parametrize("drift_ppm", [-50, 0, 14, 50])
@pytest.mark.parametrize("read", [True, False])
def test_streams_12_the_device_s_drift_is_taken_out(drift_ppm, read):
    gpu = FakeGpu(drift_ppm=drift_ppm)
    clock = EventClock(gpu)
    for second in range(1, 30):
        gpu.host_ns = START + second * SECOND
        clock.keep_fresh(gpu.host_ns)
        if read:
            clock.look_again()
    true_ns = gpu.host_ns
    event = gpu.at(true_ns)
    clock.look()
    assert abs(unix_ns(clock, event, true_ns) - true_ns) <= clock.residual_ns
    assert clock.residual_ns < 20_000


def test_streams_12_who_reads_compares_the_clocks_ever_less_often():
    gpu = FakeGpu(drift_ppm=50)
    clock = EventClock(gpu)
    worst = 0
    for ms in range(1, 30_000, 10):
        gpu.host_ns = START + ms * 1_000_000
        clock.look_again()
        true_ns = gpu.host_ns
        found = unix_ns(clock, gpu.at(true_ns), true_ns)
        worst = max(worst, abs(found - true_ns))
    assert len(clock._anchors) < 30
    assert worst < 10_000


@pytest.mark.parametrize("after_s", [0.5, 2.5, 7.0, 19.99])
def test_streams_12_the_nearest_anchor_before_an_event_is_chosen(after_s):
    gpu = FakeGpu()
    clock = EventClock(gpu)
    first = clock._anchors[0][1]
    for seconds in range(2, 25, 2):
        gpu.host_ns = first + seconds * SECOND + 10_000
        clock.keep_fresh(gpu.host_ns)
    true_ns = first + int(after_s * SECOND)
    event = gpu.at(true_ns)
    gpu.asked.clear()
    found = clock.device_ns(event, true_ns)
    ((start, _),) = gpu.asked
    before = [anchor for anchor in clock._anchors if anchor[1] <= true_ns]
    assert start is before[-1][0].raw
    assert abs(found - true_ns) <= clock.residual_ns + 12 * 240


def test_streams_12_an_event_before_the_first_anchor_uses_the_first():
    gpu = FakeGpu()
    early = gpu.at(START - 5000)
    clock = EventClock(gpu)
    assert abs(unix_ns(clock, early, START - 5000) - (START - 5000)) <= clock.residual_ns


def test_streams_12_long_spans_stay_good_where_one_anchor_would_not():
    gpu = FakeGpu()
    clock = EventClock(gpu)
    first = clock._anchors[0][1]
    rng = np.random.default_rng(12)
    worst = worst_alone = 0
    for step in range(1, 301):  # ten minutes
        gpu.host_ns = true_ns = first + 2 * step * SECOND + int(rng.integers(SECOND))
        event = gpu.at(true_ns)
        worst = max(worst, abs(clock.device_ns(event, true_ns) - true_ns))
        alone = clock._anchors[0][1] + gpu.elapsed_ns(clock._anchors[0][0].raw, event.raw)
        worst_alone = max(worst_alone, abs(alone - true_ns))
        clock.keep_fresh(true_ns)
    assert worst < clock.residual_ns + 8000
    assert worst_alone > 2 * worst


def test_streams_12_closing_tells_drift_and_residual_and_gives_the_stream_back():
    gpu = FakeGpu(drift_ppm=20)
    clock = EventClock(gpu)
    first = clock._anchors[0][1]
    for seconds in range(2, 61, 2):
        gpu.host_ns = first + seconds * SECOND
        clock.keep_fresh(gpu.host_ns)
    clock.look()
    facts = clock.close()
    assert gpu.streams == 0
    assert facts["offset_ns"] == pytest.approx(first, abs=256)  # a float
    assert facts["over_ns"] == pytest.approx(60 * SECOND, abs=SECOND)
    # The device's clock gained 20 ppm in 60 s: what converts its times takes that out.
    assert facts["drift_ns"] == pytest.approx(60 * SECOND * 20e-6, rel=0.02)
    assert facts["residual_ns"] >= CALL_NS
