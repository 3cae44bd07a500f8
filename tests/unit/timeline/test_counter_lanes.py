"""Lanes of counters: what is drawn of samples is the samples, in every picture."""

from __future__ import annotations

import io

import numpy as np
import pytest
from counted_traces import STEP_NS, ZERO_NS, random_trace, traced
from PIL import Image

import gpuscope as gs
from gpuscope import figures
from gpuscope.analysis.sm_shares import shares
from gpuscope.timeline import style
from gpuscope.timeline.columns import edges_of
from gpuscope.timeline.counter_lanes import counter_lanes
from gpuscope.timeline.labels import LANE_MARGIN
from gpuscope.timeline.raster import png
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.tracks import Tracks
from gpuscope.trace import Trace
from gpuscope.trace.counters import BUSY, LOST, MOVED, READ, WRITTEN


def windows_of(trace, seed=1, count=60):
    """Return random windows and numbers of columns."""
    rng = np.random.default_rng(seed)
    low, high = int(trace.array("start_ns").min()), int(trace.array("end_ns").max())
    for _ in range(count):
        length = int((high - low) * 10 ** rng.uniform(-4, 0.2))
        start = int(rng.integers(low - length // 3, high - length // 3))
        yield (start, start + length), int(rng.integers(1, 1200))


def integral(lane, window, values):
    """Return the sum of values times time of a lane's samples in a window, sample by sample."""
    total = 0.0
    for low, high, value in zip(lane.starts.tolist(), lane.ends.tolist(), values, strict=True):
        total += value * max(0, min(high, window[1]) - max(low, window[0]))
    return total


@pytest.mark.parametrize("seed", range(3))
def test_columns_of_any_window_are_its_samples(seed):
    trace = random_trace(seed)
    lanes = counter_lanes(trace)
    assert {lane.facts.partition for lane in lanes} == {"a", "b", "c", None}
    for window, pixels in windows_of(trace):
        for lane in lanes:
            columns = lane.columns(edges_of(window, pixels))
            sampled_ns = integral(lane, window, np.ones(len(lane.starts)))
            assert columns.sums[0].sum() == pytest.approx(sampled_ns, abs=1)
            assert (columns.sums[0] <= columns.column_ns + 1e-6).all()
            for at, values in enumerate(lane.values[1:]):
                drawn = (columns.means[at] * columns.sums[0]).sum()
                a_pixel = lane.facts.reach / lane.facts.px * max(sampled_ns, 1)
                assert abs(drawn - integral(lane, window, values)) < 1e-6 * a_pixel


def test_columns_are_those_of_the_rows():
    trace = random_trace()
    (divided,) = shares(trace)
    window = int(divided.samples.starts[0]), int(divided.samples.ends[-1])
    for number, lane in enumerate(counter_lanes(trace)[:3]):
        columns = lane.columns(np.array(window))
        busy = divided.busy[:, number]
        at_least = np.where(np.isnan(busy), divided.low[:, number], busy)
        wanted = (at_least * divided.samples.lengths).sum() / divided.samples.lengths.sum()
        assert columns.means[:2].sum() == pytest.approx(wanted)


def test_what_is_narrower_than_a_sample_is_its_flat_step():
    lane = counter_lanes(random_trace())[0]
    at = len(lane.starts) // 3
    edges = np.linspace(lane.starts[at] + 1, lane.ends[at] - 1, 700).astype(np.int64)
    means = lane.columns(edges).means
    assert np.allclose(means, lane.values[1:, at : at + 1], atol=1e-6)


def lone(samples, **more):
    """Return the lanes of one kernel that runs from 0 to 100 µs on 16 SMs, beside nothing."""
    return counter_lanes(traced([("a", "k", 0, 100_000)], samples, {"a": 16}, **more))


def test_what_is_lost_is_blank_and_no_idle_time():
    samples = [(BUSY, at * 10_000, at * 10_000 + 10_000, 8.0) for at in range(10) if not 2 < at < 7]
    samples.append((LOST, 30_000, 70_000, None))
    (lane,) = lone(samples)
    columns = lane.columns(ZERO_NS + np.arange(0, 100_001, 5_000))
    assert columns.is_there.tolist() == [True] * 6 + [False] * 8 + [True] * 6
    assert np.allclose(columns.means[0], np.where(columns.is_there, 8, 0))
    assert np.allclose(columns.means[3], np.where(columns.is_there, 8, 0)), "of 16 granted"
    (half,) = lane.columns(ZERO_NS + np.array([20_000, 40_000])).means[0]
    assert half == pytest.approx(8)
    assert lane.columns(ZERO_NS + np.array([20_000, 40_000])).words() == [
        "8 of 16 SMs, told<br>of 10 µs sampled<br>one scale: areas compare"
    ]


def test_unused_is_what_was_granted_while_it_ran():
    samples = [
        (BUSY, at * 50_000, at * 50_000 + 50_000, value) for at, value in enumerate((12, 4, 0))
    ]
    kernels = [("a", "k", 0, 75_000)]
    (lane,) = counter_lanes(traced(kernels, samples, {"a": 16}))
    columns = lane.columns(ZERO_NS + np.arange(0, 150_001, 50_000))
    assert columns.means[0].tolist() == [12, 4, 0]
    assert columns.means[3].tolist() == [4, 16 * 0.5 - 4, 0]
    assert [text.partition("<br>")[0] for text in columns.words()] == [
        "12 of 16 SMs, told", "4 of 16 SMs, told", "0 of 16 SMs: nothing ran",
    ]  # fmt: skip


def test_more_than_granted_is_drawn_and_said():
    (lane,) = lone([(BUSY, 0, 50_000, 20.0), (BUSY, 50_000, 100_000, 16.4)])
    columns = lane.columns(ZERO_NS + np.arange(0, 100_001, 50_000))
    assert columns.means[0].tolist() == [20, 16.4]
    assert (columns.tops[0] > lane.facts.px).all()
    assert [text.partition("<br>")[0] for text in columns.words()] == [
        "20 of 16 SMs, told, more than granted", "16.4 of 16 SMs, told",
    ]  # fmt: skip


def two_at_once(*, level_known: bool) -> Trace:
    """Two kernels beside each other in the second of three samples, in the first one alone each."""
    kernels = [
        ("a", "k", 0, 50_000),
        ("a", "k", 100_000, 150_000),
        ("b", "other", 100_000, 150_000),
    ]
    samples = [
        (BUSY, 0, 50_000, 14.0),
        (BUSY, 50_000, 100_000, 28.0),
        (BUSY, 100_000, 150_000, 40.0),
    ]
    if level_known:
        kernels.append(("b", "other", 50_000, 100_000))
    return traced(kernels, samples, {"a": 16, "b": 32})


def test_estimates_and_bounds_are_layers_of_their_own():
    at = ZERO_NS + np.array([100_000, 150_000])
    a, b = (lane.columns(at) for lane in counter_lanes(two_at_once(level_known=True)))
    assert a.is_drawn == [False, True, False, True]
    assert (a.means[1] + b.means[1]).tolist() == pytest.approx([40])
    assert a.words()[0].startswith("≈ 13.3 of 16 SMs, between 8 and 16")
    a, b = (lane.columns(at) for lane in counter_lanes(two_at_once(level_known=False)))
    assert a.means[:3, 0].tolist() == pytest.approx([0, 8, 8])
    assert b.means[:4, 0].tolist() == pytest.approx([0, 24, 8, 0])
    assert a.words()[0].startswith("between 8 and 16 of 16 SMs")


def test_lanes_have_one_scale_where_the_lowest_is_high_enough():
    lanes = counter_lanes(random_trace())[:3]
    assert {lane.facts.partition: lane.facts.px for lane in lanes} == {"a": 24, "b": 48, "c": 126}
    assert {lane.facts.scale for lane in lanes} == {"one scale: areas compare"}
    kernels = [("a", "k", 0, 50_000), ("b", "k", 50_000, 100_000)]
    samples = [(BUSY, 0, 50_000, 2.0), (BUSY, 50_000, 100_000, 100.0)]
    lanes = counter_lanes(traced(kernels, samples, {"a": 2, "b": 130}))
    assert len({lane.facts.px for lane in lanes}) == 1
    assert {lane.facts.scale for lane in lanes} == {"each lane to its own grant"}


def test_memory_is_told_in_its_unit():
    samples = [(BUSY, 0, 50_000, 2.0), (READ, 0, 50_000, 220.0), (WRITTEN, 0, 50_000, 110.0)]
    lane = lone(samples)[-1]
    assert lane.facts.top == "0.5 TB/s"
    assert lane.columns(ZERO_NS + np.array([0, 40_000])).words() == [
        "read 0.22 + written 0.11 TB/s"
    ]
    lane = lone([(BUSY, 0, 50_000, 2.0), (MOVED, 0, 50_000, 3.0)])[-1]
    assert lane.facts.top == "5 GB/s"
    assert lane.columns(ZERO_NS + np.array([0, 40_000])).words() == ["read and written 3.00 GB/s"]


@pytest.fixture(scope="module")
def modelled():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        streams = {name: parts[name].create_stream(name=name) for name in "ab"}
        kernel = gs.workloads.spin_kernel(gpu)
        with gs.profile(gpu, counters=True) as recording:
            for name, grid in (("a", 8), ("b", 60)):
                streams[name].launch(kernel, 500_000, grid=grid, block=32)
                streams[name].synchronize()
    return recording.trace


def test_simulated_samples_are_by_model(modelled):
    lanes = counter_lanes(modelled)
    assert all(lane.facts.label.endswith(", by model") for lane in lanes)
    ends = lanes[0].ends[[0, -1]]
    words = lanes[0].columns(np.array([lanes[0].starts[0], *ends])).words()
    assert not any("told" in text for text in words)
    assert any("by model" in text for text in words)
    names = [trace.name for trace in figures.timeline(modelled).data if trace.name]
    assert "SMs busy, by model" in names
    assert not any("told" in name for name in names)


# -- where they are ------------------------------------------------------------------------
def test_a_lane_is_below_the_first_row_of_its_partition():
    trace = random_trace()
    tracks = Tracks.of(trace)
    places = tracks.placed(tracks.tracks, [1] * len(tracks.tracks))
    of_partition = {track.partition: at for at, track in reversed([*enumerate(places.tracks)])}
    assert len(places.counters) == 4
    for place in places.counters:
        at = (
            of_partition[place.facts.partition] if place.facts.partition else len(places.tracks) - 1
        )
        ends = places.tops[at] + places.heights[at]
        below = places.tops[at + 1] if at + 1 < len(places.tops) else places.bottom
        assert ends + LANE_MARGIN <= place.top < place.bottom <= below - LANE_MARGIN
    hidden = [track for track in tracks.tracks if track.partition != "b"]
    placed = tracks.placed(hidden, [1] * len(hidden)).counters
    assert [place.facts.partition for place in placed] == ["a", "c", None]


def test_a_lane_within_so_many_steps_has_the_same_means():
    trace = random_trace()
    for lane in counter_lanes(trace):
        merged = lane.within(100)
        assert len(merged.starts) == 100
        assert lane.within(len(lane.starts)) is lane
        edges = np.r_[merged.starts[::10], merged.ends[-1]]
        assert np.allclose(merged.columns(edges).sums, lane.columns(edges).sums, atol=1)


def test_rows_that_still_come_have_no_lanes():
    trace = random_trace()
    tracks = Tracks.of(trace)
    assert not tracks.extended(trace.spans, trace.edges, trace.metadata).counters


def test_a_trace_without_counters_has_none(monkeypatch):
    monkeypatch.setattr("gpuscope.timeline.tracks.counter_lanes", None)
    trace = random_trace()
    without = trace.where(trace.spans.column("kind").to_numpy(zero_copy_only=False) == "kernel")
    tracks = Tracks.of(without)
    scene = Scene.of(tracks, (ZERO_NS, ZERO_NS + 10**7))
    assert not tracks.counters
    assert not scene.counters
    assert not tracks.placed(scene.shown, scene.depth).counters


# -- in pictures ---------------------------------------------------------------------------
def test_a_figure_draws_the_columns():
    trace = random_trace()
    window = ZERO_NS, ZERO_NS + 12 * 10**6
    figure = figures.timeline(trace, window_ns=window)
    scene = Scene.of(Tracks.of(trace), window)
    places = scene.tracks.placed(scene.shown, scene.depth)
    layers = [data for data in figure.data if data.hoverinfo == "text" and data.fill == "tonexty"]
    columns = [scene.counters[place.number] for place in places.counters]
    wanted = [
        (place.bottom - tops, [text for text, below in zip(of.words(), under, strict=True)])
        for place, of in zip(places.counters, columns, strict=True)
        for tops, under, is_drawn in zip(of.tops, of.tops, of.is_drawn, strict=True)
        if is_drawn
    ]
    assert len(layers) == len(wanted)
    for data, (y, words) in zip(layers, wanted, strict=True):
        assert np.allclose(data.y[:-1], y, atol=0.01)
        assert {*data.text} <= {"", *words}
    lines = [shape.y0 for shape in figure.layout.shapes if shape.type == "line"]
    assert {place.top - 1 for place in places.counters} <= {*lines}
    labels = [*figure.layout.yaxis.ticktext]
    assert [label for label in labels if label.startswith(("SMs", "DRAM"))] == [
        "SMs busy of 16", "SMs busy of 32", "SMs busy of 84", "DRAM read + written",
    ]  # fmt: skip
    assert "counter" not in figure.layout.title.subtitle.text


def test_a_png_draws_the_columns_within_a_pixel():
    samples = [
        (name, at * STEP_NS, at * STEP_NS + STEP_NS, value)
        for at in range(40)
        if at not in (10, 11, 12)
        for name, value in ((BUSY, float(at % 17)), (READ, 100.0), (WRITTEN, 50.0))
    ]
    trace = traced([("a", "k", 0, 40 * STEP_NS)], samples, {"a": 16})
    figure = figures.timeline(trace)
    picture = np.asarray(Image.open(io.BytesIO(png(figure))).convert("RGB")).astype(int)
    (place, lane), _ = figure._picture.panels[0].counters()
    top = figure.layout.margin.t
    part = picture[top + place.top : top + place.bottom]
    colours = style.partition_colours([trace], ["a"])["a"], style.HOST_COLOUR
    busy, unused = (
        (np.abs(part - np.array(style.rgb(colour))).max(axis=-1) <= 4).sum(axis=0)
        for colour in colours
    )
    bar = picture[top + int(figure._picture.panels[0].places.tops[0]) + 5]
    is_bar = np.abs(bar - np.array(style.rgb(style.darker(colours[0])))).max(axis=-1) <= 4
    left, right = np.flatnonzero(is_bar)[[0, -1]]  # the kernel lasts as long as the samples
    right -= 1
    columns = lane.resampled(right + 1 - left)
    px = columns.means[0] * place.facts.px / place.facts.reach
    drawn, near = busy[left : right + 1], np.stack([px[:-2], px[1:-1], px[2:]])
    assert (drawn[1:-1] >= near.min(axis=0) - 1).all(), "but for where a step falls in a column"
    assert (drawn[1:-1] <= near.max(axis=0) + 1).all()
    assert abs(drawn.mean() - px.mean()) < 1
    lost = np.flatnonzero(columns.sums[0] == 0)
    assert len(lost)
    assert (busy + unused)[left + lost[2:-2]].max() == 0
