"""Forecast interference: what rank-one matrices must give, when there is none, how it is shown."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace

import pytest

from gpuscope import figures
from gpuscope.analysis.interference_analysis import Interference, InterferenceResult
from gpuscope.analysis.interference_forecast import forecast_cells
from gpuscope.telling.of_interference import interfered

SENSITIVITY = {"a": 0.5, "b": 1.0, "c": 2.0, "d": 1.5, "e": 0.25}
PRESSURE = {"a": 0.3, "b": 0.1, "c": 0.2, "d": 0.05, "e": 0.4}
RING = ("ab", "bc", "cd", "de", "ea")
CHORDS = ("ac", "bd", "ce")
PAIRS = [*itertools.permutations("abcde", 2)]


def cell(of, given, value):
    known = value is not None
    reason = None if known else "not measured"
    return Interference(
        of, given, value, value, value, 9 * known, 11.0 if known else None, 10.0, 9, 1.0, reason
    )


def cells(measured, value=None):
    """Return the cells of which those of the measured pairs have a value, and the others."""
    value = value or (lambda a, b: math.expm1(SENSITIVITY[a] * PRESSURE[b]))
    pairs = {frozenset(names) for names in measured}
    wanted = [each for each in PAIRS if frozenset(each) not in pairs]
    return [cell(a, b, None if (a, b) in wanted else value(a, b)) for a, b in PAIRS], wanted


def result(*made):
    return InterferenceResult(made, dict.fromkeys("abcde", "p"), stopped=False, provenance="x")


def test_products_of_sensitivity_and_pressure_are_found_again():
    measured, wanted = cells([*RING, *CHORDS])
    made = forecast_cells(measured, wanted)
    errors, means = [], []
    mean = sum(each.value for each in measured if each.value is not None) / 16
    for each in made:
        truth = math.expm1(SENSITIVITY[each.of] * PRESSURE[each.given])
        if (each.of, each.given) in wanted:
            assert each.value is each.low is each.high is None
            assert each.forecast_low <= truth <= each.forecast_high
            assert "forecast from the pairs" in each.reason
            errors.append(abs(each.forecast - truth))
            means.append(abs(mean - truth))
        else:
            assert each == cell(each.of, each.given, each.value), "what was measured stays so"
    assert max(errors) < 0.1
    assert sum(errors) < sum(means) / 3


def test_fewer_measured_cells_have_wider_intervals():
    widths = []
    for measured in (RING, [*RING, *CHORDS]):
        made = {(each.of, each.given): each for each in forecast_cells(*cells(measured))}
        widths.append(made["b", "e"].forecast_high - made["b", "e"].forecast_low)
    assert widths[0] > 1.5 * widths[1] > 0


def test_intervals_hold_where_both_directions_of_a_pair_err_alike():
    """As on GPUs: two that compete for what no other uses slow each other down."""
    held = []
    for seed in range(60):
        chance = random.Random(seed)  # noqa: S311
        sensitivity, pressure = ({name: chance.random() for name in "abcde"} for _ in range(2))
        pairs = [*itertools.combinations("abcde", 2)]
        rivalry = {frozenset(pair): abs(chance.gauss(0, 0.3)) for pair in pairs}
        logs = {(a, b): sensitivity[a] * pressure[b] + rivalry[frozenset((a, b))] for a, b in PAIRS}

        def value(a, b, logs=logs):
            return math.expm1(logs[a, b])

        measured = chance.sample(pairs, 8)
        held += [
            each.forecast_low <= value(each.of, each.given) <= each.forecast_high
            for each in forecast_cells(*cells(measured, value))
            if each.forecast is not None
        ]
    assert len(held) == 60 * 4
    assert sum(held) >= 0.8 * len(held)


def test_a_cell_without_its_mirror_weighs_as_much_as_a_pair():
    """An eighth of the pairs has one direction, which errs: 80 % of 9 pairs are more than 7."""
    made, wanted = cells([*RING, *CHORDS], lambda a, _b: 2.0 if a == "a" else 0.5)
    made = [replace(each, value=None) if each.of + each.given == "ba" else each for each in made]
    odd = [replace(each, value=9.0) if each.of + each.given == "ab" else each for each in made]
    held = [
        each.forecast_low <= 9.0 <= each.forecast_high
        for each in forecast_cells(odd, wanted)
        if each.of == "a" and each.forecast is not None
    ]
    assert held == [True]


def test_cells_that_are_zero_neither_divide_by_zero_nor_raise_others():
    made = forecast_cells(*cells(RING, lambda _a, _b: 0.0))
    forecast = [each for each in made if each.forecast is not None]
    assert len(forecast) == 10
    assert {(each.forecast, each.forecast_low, each.forecast_high) for each in forecast} == {
        (0.0, 0.0, 0.0)
    }
    # Nothing slows down e, whatever it is beside; what e does to others is another matter.
    made = forecast_cells(*cells([*RING, *CHORDS], lambda a, b: 0.0 if a == "e" else 0.5))
    by_pair = {(each.of, each.given): each.forecast for each in made}
    assert 0 <= by_pair["e", "b"] < 0.05
    assert by_pair["b", "e"] == pytest.approx(0.5, abs=0.05)


def test_no_forecast_speeds_up_what_nothing_speeds_up():
    made = forecast_cells(*cells(RING))
    assert min(each.forecast_low for each in made if each.forecast is not None) >= 0
    slower = forecast_cells(*cells(RING, lambda a, _b: -0.2 if a == "a" else 0.5))
    least = min(each.forecast_low for each in slower if each.forecast is not None)
    assert -0.2 - 1e-9 <= least < 0


@pytest.mark.parametrize(
    ("measured", "forecast"),
    [
        ((), 0),
        (("ab",), 0),
        # All of a, b and c; nothing of d and e.
        (("ab", "bc", "ca"), 0),
        # Nothing of e; d only beside b and c.
        (("ab", "bc", "ca", "ad"), 2 * 2),
        # A ring of four has all cells that it relates: those of every second workload.
        (("ab", "bc", "cd", "da"), 0),
        (("ab", "bc", "cd", "da", "ae"), 2),
        (RING, 2 * 5),
    ],
)
def test_only_cells_that_measured_pairs_relate_are_forecast(measured, forecast):
    made = forecast_cells(*cells(measured))
    assert sum(each.forecast is not None for each in made) == forecast
    untold = [each for each in made if each.value is each.forecast is None]
    assert len(untold) == 20 - 2 * len(measured) - forecast
    assert all("too few others" in each.reason for each in untold)


def test_a_measured_pair_without_a_value_keeps_its_reason():
    measured, wanted = cells([*RING, *CHORDS])
    measured[0] = cell("a", "b", None)
    made = forecast_cells(measured, wanted)
    assert (made[0].forecast, made[0].reason) == (None, "not measured")
    assert sum(each.forecast is not None for each in made) == 4


# -- shown --------------------------------------------------------------------------------
def shown(**ends):
    numbers = {"forecast": 0.353, "forecast_low": -0.002, "forecast_high": 0.55, **ends}
    guess = Interference(
        "b", "a", None, None, None, 0, None, 10.0, 9, 1.0, "not measured: forecast", **numbers
    )
    return result(cell("a", "b", 0.1), guess, cell("a", "c", None))


def test_forecasts_are_marked_in_tables_and_never_in_the_measured_column():
    made = shown()
    rows, left_out = made.readable()
    assert [row["given a"] for row in rows[:2]] == ["", "≈ +35 % (0 to 55)"]
    assert rows[0]["given b"] == "+10.0 %"
    assert left_out == "a given c: not measured"
    assert made["b", "a"] is None
    wide = made.rows()
    assert [row["interference"] for row in wide] == [0.1, None, None]
    assert [row["forecast"] for row in wide] == [None, 0.353, None]
    assert (wide[1]["forecast low"], wide[1]["forecast high"]) == (-0.002, 0.55)
    assert "forecast (1 of 3) from the 1 measured" in made.note
    assert "≈" not in result(cell("a", "b", 0.1)).note


def test_forecasts_are_hollow_in_the_figure():
    figure = figures.interference(shown())
    looks = {series.name: series for series in figure.data}
    assert list(looks["forecast"].x) == ["b beside a"]
    assert looks["forecast"].marker.symbol == "circle-open"
    assert looks["forecast"].y[0] == pytest.approx(35.3)
    assert looks["forecast"].error_y.array[0] == pytest.approx(55 - 35.3)
    assert list(looks["measured"].x) == ["a beside b", "a beside c"]
    assert "80% interval" in json.dumps(figure.layout.to_plotly_json())


def test_the_finding_names_the_greatest_measured_and_the_greatest_forecast():
    text = interfered(shown()).text
    assert "Kernels of a take 10 % longer while b runs, the most of 1 pairs" in text
    assert "1 more cannot be told" in text
    assert "1 more are forecast: those of b take ≈ 35.3 %" in text
    assert "forecast" not in interfered(result(cell("a", "b", 0.1))).text


def test_forecasts_alone_are_told_as_such():
    alone = [each for each in shown().cells if each.value is None]
    finding = interfered(result(*alone))
    assert (finding.rule, finding.subject) == ("interferes.forecast", {"other": "b", "beside": "a"})
    assert finding["forecast"].value == 1
    untold = [each for each in alone if each.forecast is None]
    assert interfered(result(*untold)).rule == "interferes.unknown"
