"""Forecasts of random programs: `forecast_programs` says what they are.

`benchmarks/what_if.py --bands` judges the bands on many more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from forecast_programs import (
    end_ns,
    experiment,
    furthest,
    requests_split,
    serving,
    tied,
    waits_dropped,
)

import gpuscope as gs

MEASURED = Path(__file__).resolve().parents[2] / "data" / "what_if"


@pytest.mark.no_cover
@pytest.mark.parametrize("drawn", [experiment, serving])
def test_what_did_not_change_comes_back_in_every_column(drawn):
    for seed in range(20):
        (trace,) = gs.experiments.predict(drawn(seed)).traces.values()
        off, where = furthest(trace, gs.what_if(trace)["forecast"])
        assert off <= 0.01, (seed, where)


@pytest.mark.parametrize("name", ["whole", "64_68", "16_116", "64_68_waits"])
def test_what_an_h200_did_comes_back_in_every_column(name):
    trace = gs.load_trace(MEASURED / f"{name}.parquet")
    off, where = furthest(trace, gs.what_if(trace)["forecast"])
    assert off <= 0.01, where


@pytest.mark.parametrize("pairs", [False, True])
def test_dropped_waits_take_the_hosts_time_for_them_with_them(pairs):
    for seed in range(6):
        recorded, truth = (tied(seed, seed, waits=waits) for waits in (True, False))
        edges = [edge for edge in recorded.edges.to_pylist() if edge["kind"] == "event wait"]
        if not edges:
            continue
        drop = [(edge["from"], edge["to"]) for edge in edges] if pairs else "all"
        forecast = gs.what_if(recorded, drop_waits=drop)["forecast"]
        # A launch that comes sooner is quicker, too, which no recording tells.
        assert end_ns(forecast) == pytest.approx(end_ns(truth), rel=0.01 + 0.03 * pairs), seed


@pytest.mark.no_cover
def test_the_truth_lies_in_as_many_bands_as_are_promised():
    figures = [figure for seed in range(500, 522) for figure in waits_dropped(seed)]
    figures += [figure for seed in range(500, 509) for figure in requests_split(seed)]
    assert len(figures) >= 35
    inside = sum(figure.is_inside for figure in figures)
    assert inside >= 0.9 * len(figures), [one for one in figures if not one.is_inside]
