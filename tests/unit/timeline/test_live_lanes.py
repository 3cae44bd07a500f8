"""Lanes of counters while rows still come: what they show is what the whole trace will tell."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from counted_traces import GRANTED, STEP_NS, ZERO_NS, random_trace, traced

import gpuscope as gs
from gpuscope.timeline import live_lanes
from gpuscope.timeline.counter_lanes import counter_lanes
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace import Trace
from gpuscope.trace.counters import BUSY

LATE_NS = 40 * STEP_NS


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(live_lanes, "LATE_NS", LATE_NS)
    monkeypatch.setattr(live_lanes, "_AT_ONCE_NS", 10 * STEP_NS)


def rows_are(trace, kind):
    return trace.spans.column("kind").to_numpy(zero_copy_only=False) == kind


def live(trace, batches, late_ns=0):
    """Return the tracks after each batch of rows, which come when they end, kernels later."""
    comes = trace.array("end_ns") + late_ns * rows_are(trace, "kernel")
    tracks = Tracks.of(Trace.from_columns({}, metadata=trace.metadata))
    edges = np.linspace(comes.min(), comes.max() + 1, batches + 1)
    for low, high in itertools.pairwise(edges):
        more = trace.where((comes >= low) & (comes < high))
        tracks = tracks.extended(more.spans, more.edges, trace.metadata)
        yield tracks


def by_key(lanes):
    return {(lane.facts.partition, lane.facts.is_memory): lane for lane in lanes}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("batches", [7, 60])
def test_what_is_shown_is_what_the_whole_trace_tells(seed, batches):
    trace = random_trace(seed)
    whole = by_key(counter_lanes(trace))
    *_, tracks = live(trace, batches, late_ns=20 * STEP_NS)
    shown = by_key(tracks.counters)
    assert shown.keys() == whole.keys()
    for key, lane in shown.items():
        every = dict(zip(whole[key].starts.tolist(), whole[key].values.T, strict=True))
        for start_ns, values in zip(lane.starts.tolist(), lane.values.T, strict=True):
            ends = slice(-2, None) if key[1] is False else slice(1, None)
            assert values[ends] == pytest.approx(every[start_ns][ends])  # bounds, or traffic
        assert len(lane.starts) > 0.5 * len(whole[key].starts)
        assert lane.facts.px == whole[key].facts.px


def test_a_sample_waits_for_the_records_of_its_work():
    kernels = [("a", "k", 0, 5 * STEP_NS), ("a", "k", 200 * STEP_NS, 201 * STEP_NS)]
    samples = [
        (BUSY, at * STEP_NS, (at + 1) * STEP_NS, 16.0 if at < 5 or at == 200 else 0.0)
        for at in range(260)
    ]
    for tracks in live(traced(kernels, samples), 50, late_ns=20 * STEP_NS):
        for lane in tracks.counters:
            certain = lane.values[1]
            is_busy = lane.starts < ZERO_NS + 5 * STEP_NS
            is_busy |= lane.starts == ZERO_NS + 200 * STEP_NS
            assert (certain[is_busy] == 16).all()
            assert (certain[~is_busy] == 0).all()


def test_what_is_recorded_too_late_stays_blank():
    """A kernel that lasts for long has no record while samples of it are divided."""
    kernels = [("a", "k", 0, STEP_NS), ("b", "long", 0, 300 * STEP_NS)]
    samples = [(BUSY, at * STEP_NS, (at + 1) * STEP_NS, 32.0) for at in range(299)]
    *_, tracks = live(traced(kernels, samples), 100)
    lanes = [lane for lane in tracks.counters if not lane.facts.is_memory]
    assert not any(len(lane.starts) for lane in lanes)


def test_a_long_recording_keeps_so_many_steps(monkeypatch):
    monkeypatch.setattr(live_lanes, "_MOST", 50)
    trace = random_trace()
    whole = by_key(counter_lanes(trace))
    *_, tracks = live(trace, 40)
    for key, lane in by_key(tracks.counters).items():
        assert 50 <= len(lane.starts) <= 100
        window = np.array([lane.starts[0], lane.ends[-1]])
        low, high = (lane.columns(window).means[at] for at in (-2, -1))
        assert low[0] == pytest.approx(whole[key].columns(window).means[-2][0], rel=0.05, abs=0.1)
        assert high[0] == pytest.approx(whole[key].columns(window).means[-1][0], rel=0.05, abs=0.1)


def test_a_simulated_gpu_is_shown_as_it_goes_and_ends_as_without():
    def recorded(looks):
        gpu = gs.open_device("sim:h200", quiet=True)
        with gpu.carve(GRANTED) as parts:
            streams = [parts[name].create_stream() for name in GRANTED]
            product = gs.Gemm(gpu, m=1024, n=1024, k=1024)
            with gs.profile(gpu, counters=True) as recording:
                tracks, seen = Tracks.of(Trace.from_columns({})), 0
                for _ in range(6):
                    for stream in streams:
                        product.execute(stream=stream)
                    streams[0].synchronize()
                    if looks:
                        batches = recording.batches(seen)
                        seen = batches[-1].number + 1
                        for batch in batches:
                            tracks = tracks.extended(batch.spans, batch.edges, recording.known())
        return recording.trace, tracks.counters

    (plain, _), (watched, lanes) = recorded(looks=False), recorded(looks=True)
    assert {lane.facts.partition for lane in lanes if not lane.facts.is_memory} == {*GRANTED}
    whole, shown = by_key(counter_lanes(watched)), by_key(lanes)
    for key, lane in by_key(counter_lanes(plain)).items():
        window = np.array([lane.starts[0], lane.ends[-1]])
        assert whole[key].columns(window).means == pytest.approx(lane.columns(window).means)
        seen_until = np.array([lane.starts[0], shown[key].ends[-1]])
        first = shown[key].columns(seen_until).means, whole[key].columns(seen_until).means
        assert first[0] == pytest.approx(first[1], abs=1e-6)
