"""Forecasts of random programs: `forecast_programs` says what they are.

`benchmarks/what_if.py --bands` judges the bands on many more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from forecast_programs import experiment, furthest, requests_split, serving, waits_dropped

import gpuscope as gs

MEASURED = Path(__file__).resolve().parents[2] / "data" / "what_if"


@pytest.mark.parametrize("drawn", [experiment, serving])
def test_what_did_not_change_comes_back_in_every_column(drawn):
    for seed in range(20):
        (trace,) = gs.runs.predict(drawn(seed)).traces.values()
        off, where = furthest(trace, gs.what_if(trace)["forecast"])
        assert off <= 0.01, (seed, where)


@pytest.mark.parametrize("name", ["whole", "64_68", "16_116", "64_68_waits"])
def test_what_an_h200_did_comes_back_in_every_column(name):
    trace = gs.load_trace(MEASURED / f"{name}.parquet")
    off, where = furthest(trace, gs.what_if(trace)["forecast"])
    assert off <= 0.01, where


def test_the_truth_lies_in_as_many_bands_as_are_promised():
    figures = [figure for seed in range(500, 522) for figure in waits_dropped(seed)]
    figures += [figure for seed in range(500, 509) for figure in requests_split(seed)]
    assert len(figures) >= 35
    inside = sum(figure.is_inside for figure in figures)
    assert inside >= 0.9 * len(figures), [one for one in figures if not one.is_inside]
