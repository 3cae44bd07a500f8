"""Readings of GPUs on a timeline: one bar each, marked where the GPU was throttled."""

from __future__ import annotations

import json

import pytest

import gpuscope as gs
from gpuscope.timeline.extent import default_window_ns
from gpuscope.timeline.labels import folded
from gpuscope.timeline.readings import CLOCK, THROTTLED, as_bars
from gpuscope.timeline.scene import Scene
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.words import hovers, shares_of, statement
from gpuscope.trace import Trace
from gpuscope.trace.gpu_states import POWER, REASONS, SM_CLOCK, mask_of
from gpuscope.trace.tracks import Group

READ = [(0, 100, 1980, 400, ()), (100, 200, 1755, 690.4, ("sw_power_cap",)),
        (200, 300, 1500, 300, ("hw_thermal_slowdown", "sw_power_cap"))]  # fmt: skip


def rows(devices=(0,)):
    """A kernel in each GPU's readings, whose counters come in another order each time."""
    for device in devices:
        yield {"kind": "kernel", "name": "k", "start_ns": 120, "end_ns": 180, "device": device,
               "stream": 7, "source": "cupti"}  # fmt: skip
        for start, end, clock, power, reasons in READ:
            read = [(SM_CLOCK, clock), (POWER, power), (REASONS, mask_of(reasons))]
            for name, value in read[start // 100 :] + read[: start // 100]:
                yield {"kind": "counter", "name": name, "start_ns": start, "end_ns": end,
                       "device": device, "value": float(value), "source": "nvml"}  # fmt: skip


@pytest.fixture
def trace():
    return made(rows())


def made(several):
    several = [{"id": number, **row} for number, row in enumerate(several)]
    names = dict.fromkeys(name for row in several for name in row)
    return Trace.from_columns({name: [row.get(name) for row in several] for name in names})


def test_each_reading_is_one_bar_with_all_that_was_read(trace):
    tracks = Tracks.of(trace)
    scene = Scene.of(tracks, (0, 300), host=True)
    (track,) = (track for track in scene.shown if track.group == Group.COUNTER)
    at = scene.shown.index(track)
    bars = sorted(
        (start, end, tracks.coded["name"].values[tracks.coded["name"].codes[row]], kind.kind)
        for start, end, row, place, kind in zip(
            scene.start_ns.tolist(), scene.end_ns.tolist(), scene.rows.tolist(),
            scene.place.tolist(), [scene.classed[0][n] for n in scene.classed[1]], strict=True,
        ) if place == at
    )  # fmt: skip
    assert bars == [
        (0, 100, "1980 MHz, 400 W", CLOCK),
        (100, 200, "1755 MHz, 690 W, power cap", THROTTLED),
        (200, 300, "1500 MHz, 300 W, power cap, temperature", THROTTLED),
    ]
    assert any("power cap, temperature" in text for text in hovers(scene))
    assert "counter" not in statement(scene)
    assert shares_of(tracks, scene.shown, (0, 300))[at] == []


def test_readings_are_rows_of_their_gpu_and_no_host():
    tracks = Tracks.of(made(rows((0, 1))))
    labels = [track.label for track in tracks.tracks if track.group == Group.COUNTER]
    assert len(labels) == 2
    assert all(label.startswith(f"GPU {gpu} ") for gpu, label in enumerate(labels))
    assert len(folded(tracks.tracks)) == len(tracks.tracks)


def test_the_first_view_is_of_the_work(trace):
    assert default_window_ns(trace) == (120, 180)
    assert default_window_ns(trace.where(kind="counter")) == (0, 300)


def test_other_counters_and_traces_without_any_stay_as_they_are(trace):
    plain = trace.where(kind="kernel")
    assert as_bars(plain.spans) is plain.spans
    foreign = made(
        [{"kind": "counter", "name": "c", "start_ns": 0, "value": 1.0, "source": "nsys"}]
    )
    assert as_bars(foreign.spans).equals(foreign.spans)
    assert Tracks.of(foreign).elsewhere() == {"counter": 1}


def test_perfetto_draws_curves_of_numbers_alone(trace, tmp_path):
    told = json.loads(gs.export(trace, tmp_path / "run.json").read_text("utf-8"))["traceEvents"]
    samples = [event for event in told if event["ph"] == "C"]
    assert len(samples) == 3 * len(READ)
    assert all(event["args"].keys() == {"value"} for event in samples)
    clocks = [event["args"]["value"] for event in samples if event["name"] == SM_CLOCK]
    assert clocks == [clock for _, _, clock, _, _ in READ]
