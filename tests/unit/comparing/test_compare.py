"""Two runs compared: pairs, noise, parts and findings, against what is computed by hand."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest

import gpuscope as gs
from gpuscope.analysis.certainty import (
    ends_of,
    quantile_interval,
    rate_spread,
    share_interval,
    student_t,
)
from gpuscope.analysis.part import PartKind
from gpuscope.comparing.compare import check
from gpuscope.comparing.pairing import paired_calls
from gpuscope.errors import GpuscopeError, InvalidArgument, MissingEvidence, NotFound
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.run import Run

CARVED = {
    "name": "compared",
    "seed": 1,
    "alone_repeats": 5,
    "partitions": {"small": 16, "load": "rest"},
    "streams": {"small": {"partition": "small"}, "load": {"partition": "load"}},
    "workloads": {
        "small": {
            "kind": "gemm",
            "m": 512,
            "n": 512,
            "k": 512,
            "stream": "small",
            "repeats": 1000,
            "arrival": "poisson",
            "rate_hz": 1000,
        },
        "load": {
            "kind": "gemm",
            "m": 4096,
            "n": 4096,
            "k": 4096,
            "stream": "load",
            "background": True,
            "max_queued": 6,
        },
    },
}
SHARED = {**CARVED, "partitions": {}, "streams": {"small": {}, "load": {}}}


def ran(experiment):
    """Run an experiment on a simulated GPU of its own."""
    return gs.run(experiment, gs.open_device("sim:h200", quiet=True))


@pytest.fixture(scope="module")
def shared():
    return ran(SHARED)


@pytest.fixture(scope="module")
def carved():
    return ran(CARVED)


@pytest.fixture(scope="module")
def result(shared, carved):
    return gs.compare(shared, carved)


# -- pairs --------------------------------------------------------------------------------
def calls_at(random, lost):
    """A trace of calls in three rounds of two processes; some have no end, the last are lost."""
    rows, where = [], {}
    for process, (turn, low_ns) in itertools.product((31, 47), enumerate((100, 5_000, 90_000))):
        starts = sorted(random.choice(4_000, size=20, replace=False).tolist())
        for index, start in enumerate(starts[: 20 - int(random.integers(lost + 1))]):
            span, took = len(rows) + 1, int(random.integers(1, 900))
            ended = random.random() > 0.1
            where[process, turn, index] = (span, took) if ended else None
            begin_ns = low_ns + start
            rows.append((span, process, begin_ns, begin_ns + took if ended else None))
    random.shuffle(rows)
    spans, processes, starts, ends = zip(*rows, strict=True)
    count = len(rows)
    columns = {"id": spans, "process": processes, "start_ns": starts, "end_ns": ends}
    columns |= {"kind": ["handle"] * count, "name": ["w"] * count, "source": ["cupti"] * count}
    windows = [[100, 4_900], [5_000, 9_800], [90_000, 99_000]]
    metadata = TraceMetadata(windows_ns=windows)
    return Trace.from_columns({k: [*v] for k, v in columns.items()}, None, metadata), where


def test_calls_pair_by_rank_round_and_index():
    random = np.random.default_rng(5)
    for _ in range(20):
        (first, of_first), (second, of_second) = calls_at(random, 3), calls_at(random, 3)
        pairs = paired_calls((first, second))["w"]
        expected = {
            (*of_first[place], *of_second[place])
            for place in of_first
            if of_first[place] and of_second.get(place)
        }
        columns = (pairs.first, pairs.first_ns, pairs.second, pairs.second_ns)
        assert set(zip(*(each.tolist() for each in columns), strict=True)) == expected
        assert len(pairs.first) == len(expected)
        assert pairs.unpaired == len(of_first) + len(of_second) - 2 * len(expected)


# -- noise --------------------------------------------------------------------------------
def test_the_interval_of_a_quantile_is_between_order_statistics():
    values = np.random.default_rng(1).permutation(np.arange(1, 1001))
    assert quantile_interval(values, 0.99) == (983, 997)  # 990 ± 1.96 √(1000 · 0.99 · 0.01)
    assert quantile_interval(values, 0.5) == (469, 531)
    assert quantile_interval(values[:5], 0.5)[0] == -math.inf
    assert quantile_interval(values[:100], 0.99)[1] == math.inf


def test_the_interval_of_a_share_is_wilsons():
    assert share_interval(10, 0.5) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    low, high = share_interval(20, 1.0)
    assert (low, high) == pytest.approx((0.8389, 1.0), abs=1e-4)


def test_rows_say_how_sure_they_are(carved):
    small, load = carved.comparison.to_pylist()
    trace = carved["default"]
    calls = trace.where(kind="handle", category="small")
    took_us = (calls.array("end_ns") - calls.array("start_ns")) / 1e3
    ends = quantile_interval(took_us, 0.5)
    assert small["interval_of"] == "latency_p50_us"
    assert [small["latency_p50_us"] * (1 + small[end]) for end in ("low", "high")] == (
        pytest.approx(ends)
    )
    assert [small["sms"], load["sms"]] == [16, 116]
    spread, freedom = rate_spread(trace, ends_of(trace, "load"))
    wide = math.exp(student_t(freedom, 0.025) * spread)
    assert (load["low"], load["high"]) == pytest.approx((1 / wide - 1, wide - 1))


# -- what it comes to ---------------------------------------------------------------------
def test_identical_runs_show_no_difference(shared):
    again = gs.compare(shared, ran(SHARED))
    timed = [each for each in again.differences if each.workload == "small"]
    assert [each.change for each in timed] == [0.0] * 3
    assert all(-0.3 < each.low < 0 < each.high < 0.3 for each in timed), "as repeats differ"
    assert not any(each.is_seen for each in again.differences)
    assert not again.changes
    finding, calls = again.findings
    assert (finding.rule, finding.severity) == ("change.open", "note")
    assert finding["by"].value == 0
    assert finding["by"].low < 0 < finding["by"].high
    assert (calls["calls"].value, calls["faster"].value, calls["slower"].value) == (1000, 0, 0)


def test_settings_that_are_the_same_do_not_differ():
    for seed in range(3):
        run = gs.run(
            {**SHARED, "name": f"same {seed}", "seed": seed, "settings": {"a": {}, "b": {}}},
            gs.open_device("sim:h200", quiet=True),
        )
        assert gs.compare(run["a"], run["b"]).findings[0].rule == "change.open"


def test_numbers_are_those_of_the_runs(result, shared, carved):
    tables = [
        {row["workload"]: row for row in run.comparison.to_pylist()} for run in (shared, carved)
    ]
    assert len(result.differences) == 4
    for each in result.differences:
        values = [table[each.workload][each.column] for table in tables]
        assert [each.before, each.after] == pytest.approx(values, rel=1e-12)
        assert each.low <= each.change <= each.high


def test_the_headline_is_about_the_clearest_figure(result):
    first, cost, calls = result.findings
    assert (first.rule, first.severity, first.subject["workload"]) == (
        *("change.better", "note", "small"),
    )
    clearest = max(
        (each for each in result.differences if each.workload == "small" and not each.is_tail),
        key=lambda each: each.clarity,
    )
    assert first.subject["column"] == clearest.column
    assert (first["before"].value, first["after"].value) == (clearest.before, clearest.after)
    assert first["by"].high < 0
    assert first.subject["change"] == "On 16 SMs of its own"
    assert first["cause_before"].value > 0 == first["cause_after"].value
    load = next(each for each in result.differences if each.workload == "load")
    assert (cost.rule, cost.subject["workload"]) == ("change.pays", "load")
    assert cost["cost"].value == pytest.approx(1 - load.after / load.before)
    pairs = result.pairs["small"]
    assert calls["faster"].value == (pairs.second_ns < pairs.first_ns).sum()
    assert calls["slower"].value == (pairs.second_ns > pairs.first_ns).sum()


def test_the_other_way_round_it_is_worse(shared, carved):
    first, *_ = gs.compare(carved, shared).findings
    assert (first.rule, first.severity) == ("change.worse", "warning")
    assert first.subject["change"] == "On the whole GPU"
    assert "load" in first.subject["cause"]


def test_the_headline_shows_each_runs_call_at_its_p99(result, shared, carved):
    spans, pairs = result.findings[0].spans, result.pairs["small"]
    assert [shown.trace for shown in spans] == list(result.names)
    p99_us = result.differences[2]
    sides = zip(
        spans,
        (shared, carved),
        (p99_us.before, p99_us.after),
        (pairs.first_ns, pairs.second_ns),
        strict=True,
    )
    for shown, run, p99, every_ns in sides:
        (trace,) = run.values()
        calls = trace.where(kind="handle", category="small")
        at = calls.array("id").tolist().index(shown.span)
        took_ns = int(calls.array("end_ns")[at] - calls.array("start_ns")[at])
        assert abs(took_ns - 1e3 * p99) == np.abs(every_ns - 1e3 * p99).min()


def test_the_slow_call_of_an_equal_run_is_as_slow(shared):
    pairs = gs.compare(shared, ran({**SHARED, "seed": 2})).pairs["small"]
    _, (first, second) = pairs.slow
    assert pairs.second_ns[second] == pytest.approx(pairs.first_ns[first], rel=0.25)


def test_parts_come_in_the_order_in_which_calls_have_them(shared, carved):
    for pair in ((shared, carved), (carved, shared)):
        kinds = [part.kind for part in gs.compare(*pair).parts("small")]
        assert kinds == sorted(kinds, key=get_args(PartKind).index)
        assert {"SMs held", "running", "not looking"} <= {*kinds}


def test_parts_of_what_does_not_pair_name_what_does(result):
    with pytest.raises(NotFound, match="small"):
        result.parts("typo")


def test_parts_of_the_paired_calls_sum_to_their_lengths(result):
    pairs, parts = result.pairs["small"], result.parts("small")
    assert sum(part.first_ns for part in parts) == pairs.first_ns.sum()
    assert sum(part.second_ns for part in parts) == pairs.second_ns.sum()
    held = next(part for part in parts if part.kind == "SMs held")
    assert (held.holder, held.second_ns) == ("load", 0)
    by_hand = 0
    for trace, ids in zip(result.traces, (pairs.first, ()), strict=True):
        for span in ids:
            of = gs.analysis.parts(trace, int(span))
            by_hand += sum(part.duration_ns for part in of if part.kind == "SMs held")
    assert held.first_ns == by_hand


def test_what_was_changed_is_said_field_by_field(result, carved):
    assert result.changes[:2] == ("partitions.small: – → 16", "partitions.load: – → rest")
    streams = {**CARVED["streams"], "small": {"partition": "small", "priority": -5}}
    other = gs.compare(carved, ran({**CARVED, "streams": streams}))
    assert other.changes == ("streams.small.priority: 0 → -5",)


def test_settings_of_one_run_are_compared_by_their_names():
    spin = {"kind": "spin", "duration_us": 50, "stream": "s", "repeats": 20}
    run = ran(
        {
            "name": "two",
            "alone_repeats": 0,
            "streams": {"s": {}},
            "workloads": {"w": spin},
            "rounds": 3,
            "settings": {"plain": {}, "first": {"streams": {"s": {"priority": -1}}}},
        }
    )
    result = gs.compare(run["plain"], run["first"])
    assert result.names == ("plain", "first")
    assert result.changes == ("streams.s.priority: 0 → -1",)
    assert (len(result.pairs["w"].first), result.pairs["w"].unpaired) == (20, 0)
    with pytest.raises(InvalidArgument, match="first has 2 settings"):
        gs.compare(run, run)


def test_requests_are_compared_by_goodput_and_tokens():
    from gpuscope.widgets.presets import PRESETS

    plan = PRESETS["requests: prefill | decode"]
    slower = {**plan, "partitions": {"prefill": "rest", "decode": 8}}
    result = gs.compare(ran(plan), ran(slower))
    columns = [each.column for each in result.differences]
    assert columns == ["goodput_per_s", "ttft_p50_ms", "ttft_p90_ms", "tbt_p50_ms"]
    assert all(each.low <= each.change <= each.high for each in result.differences)
    assert result.findings[0].subject["workload"] == "chat"
    pairs, parts = result.pairs["chat"], result.parts("chat")
    assert sum(part.first_ns for part in parts) == pairs.first_ns.sum()
    assert isinstance(result.figure(), go.Figure)


def test_traces_are_read_from_files_and_folders(result, shared, carved, tmp_path):
    from gpuscope.cli.experiments import write_run
    from gpuscope.trace.store import save_trace

    write_run(shared, tmp_path / "shared")
    save_trace(carved["default"], tmp_path / "carved.parquet")
    read = gs.compare(tmp_path / "shared", str(tmp_path / "carved.parquet"))
    assert read.differences == result.differences
    assert read.findings == result.findings
    with pytest.raises(GpuscopeError, match="no traces of a run"):
        gs.compare(tmp_path, tmp_path)


def test_without_anything_in_common_it_says_so(shared):
    spin = {"kind": "spin", "duration_us": 50, "stream": "s", "repeats": 2}
    other = {"name": "o", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"w": spin}}
    with pytest.raises(MissingEvidence, match="no workload in common"):
        gs.compare(shared, ran(other))
    with pytest.raises(InvalidArgument, match="two that differ"):
        gs.compare(shared, shared, names=("a", "a"))


def test_few_calls_tell_no_difference():
    spin = {
        "kind": "spin",
        "duration_us": 50,
        "stream": "s",
        "repeats": 3,
        "arrival": "poisson",
        "rate_hz": 1000,
    }
    plan = {"name": "o", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"w": spin}}
    result = gs.compare(ran(plan), ran({**plan, "seed": 2}))
    assert result.findings[0].rule == "change.unsure"
    assert {(each.low, each.high) for each in result.differences} == {(-math.inf, math.inf)}
    assert {row["low (%)"] for row in result.rows()} == {None}


# -- forecasts ----------------------------------------------------------------------------
def number_of(trace, workload, column):
    rows = gs.analysis.settings_table({"": trace}).to_pylist()
    return next(row[column] for row in rows if row["workload"] == workload)


@pytest.fixture(scope="module")
def forecast(shared):
    changes = {"streams": CARVED["streams"], "partitions": CARVED["partitions"]}
    return gs.what_if(shared["default"], **changes)


def slower(trace, factor):
    """A trace in which all takes so many times as long."""
    times = {
        name: pa.array(factor * trace.array(name, fill=-1), mask=trace.array(name, fill=-1) < 0)
        for name in ("start_ns", "end_ns")
    }
    table = trace.spans
    for name, column in {**times, "queued_ns": pa.nulls(len(trace), pa.int64())}.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    windows = [(factor * low, factor * high) for low, high in trace.metadata.windows_ns]
    return Trace(table, trace.edges, trace.metadata).with_metadata(windows_ns=windows)


def counted(forecast, each):
    """What is forecast of a number, by hand: counted against a forecast of no change."""
    recorded, *ends, unchanged = (
        number_of(trace, each.workload, each.column) for trace in forecast.values()
    )
    return [recorded * end / unchanged for end in ends]


def test_a_forecast_is_counted_against_one_of_no_change_and_has_a_band(forecast):
    result = gs.compare(forecast["recorded"], forecast)
    assert result.names == ("recorded", "forecast")
    for each in result.differences:
        by_hand = counted(forecast, each)
        recorded = number_of(forecast["recorded"], each.workload, each.column)
        assert (each.before, each.after) == pytest.approx((recorded, by_hand[0]))
        ends = [recorded * (1 + end) for end in (each.low, each.high)]
        assert ends == pytest.approx([min(by_hand), max(by_hand)])
    clearest = result.findings[0]
    first = max(result.differences, key=lambda each: each.clarity)
    assert clearest.rule == "forecast.number"
    assert clearest.subject["column"] == first.column
    assert gs.telling.compared(forecast)[1] == clearest


def test_what_a_model_has_wrong_of_everything_cancels(forecast):
    """Forecasts in which all takes twice as long, that of no change too, forecast the same."""
    recorded, *others = forecast.traces
    biased = {name: slower(forecast[name], 2) for name in others}
    biased = Run({recorded: forecast[recorded], **biased}, forecast.comparison, {})
    results = [gs.compare(forecast[recorded], run) for run in (forecast, biased)]
    for told, same in zip(*(result.differences for result in results), strict=True):
        assert (same.before, same.after) == pytest.approx((told.before, told.after))


def test_a_forecast_is_checked_where_it_was_run(forecast, carved):
    result = gs.compare(forecast, carved)
    assert result.names == ("forecast", "run")
    assert len(result.findings) == len(result.differences) == 4
    assert result.findings[0].subject["column"] == "latency_p99_us"
    numbers = {(each.workload, each.column): each for each in result.differences}
    for finding in result.findings:
        each = numbers[finding.subject["workload"], finding.subject["column"]]
        by_hand, said = counted(forecast, each), finding["forecast"]
        assert (said.low, said.value, said.high) == pytest.approx(
            (min(by_hand), by_hand[0], max(by_hand))
        )
        assert each.before == said.value
        assert finding["other"].value == each.after
        is_inside = min(by_hand) <= each.after <= max(by_hand)
        assert finding.rule == f"checked.{'inside' if is_inside else 'outside'}"
    assert {finding.rule for finding in result.findings} == {"checked.inside", "checked.outside"}


def test_the_picture_of_a_forecast_has_the_band_and_what_was_recorded(forecast, carved):
    for result, dashed in (
        (gs.compare(forecast["recorded"], forecast), "forecast"),
        (gs.compare(forecast, carved), "forecast"),
    ):
        curves = [one for one in result.figure().data if one.xaxis == "x3"]
        (band,) = (one for one in curves if one.fill)
        assert [one.name for one in curves if one.line.dash == "dash"] == [dashed]
        (middle,) = (one for one in curves if one.name == dashed)
        edge = curves[curves.index(band) - 1]
        shares = list(middle.y)
        assert shares == list(band.y) == list(edge.y)
        pairs = zip(edge.x, middle.x, band.x, strict=True)
        assert all(low <= at <= high for low, at, high in pairs)
        p99 = next(each for each in result.differences if each.column == "latency_p99_us")
        told = p99.before if result.names[0] == "forecast" else p99.after
        below, above = (middle.x[shares.index(share)] for share in (0.012, 0.01))
        assert below <= told <= above
        assert any(one.name == "recorded" for one in curves)


def test_a_prediction_is_checked_within_noise_setting_by_setting(shared, carved):
    (result,) = check(shared, {name: slower(trace, 1) for name, trace in shared.items()}).values()
    assert {finding.rule for finding in result.findings} == {"checked.inside"}
    (result,) = check(shared, {name: slower(trace, 2) for name, trace in shared.items()}).values()
    assert {finding.rule for finding in result.findings} == {"checked.outside"}
    for each in result.differences:
        low, high = result.bands[each.workload, each.column]
        assert low <= each.before <= high
        assert (low <= each.after <= high) != each.is_seen
    with pytest.raises(MissingEvidence, match="different experiments"):
        check(shared, carved)
    with pytest.raises(MissingEvidence, match="no setting in common"):
        check(shared, {"other": carved["default"]})


def test_a_forecast_states_no_cause(shared):
    forecast = gs.what_if(shared["default"], scale={"small": 16.0})
    first, *_ = gs.compare(forecast["recorded"], forecast["forecast"]).findings
    assert (first.rule, first.subject["cause"]) == ("change.worse", "")


# -- the picture --------------------------------------------------------------------------
def test_the_picture_aligns_the_call_and_draws_its_parts(result):
    figure = result.figure()
    outlined = [bar for bar in figure.data if bar.type == "bar" and bar.marker.line.width > 1.5]
    spans = result.findings[0].spans
    for shown, trace, name in zip(spans, result.traces, result.names, strict=True):
        lanes = [
            value
            for value, text in zip(
                figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True
            )
            if text == f"{name}: calls of small"
        ]
        drawn = sorted(
            (base, x)
            for bar in outlined
            for base, x, y in zip(bar.base, bar.x, bar.y, strict=True)
            if y in lanes
        )
        parts = gs.analysis.parts(trace, shown.span)
        assert drawn[0][0] == 0
        assert [1e3 * x for _, x in drawn] == pytest.approx([part.duration_ns for part in parts])


def test_the_picture_says_what_differs_by_shape_and_colour(result, shared):
    def dots(figure):
        return [(one.marker.symbol, one.marker.color) for one in figure.data if one.xaxis == "x4"]

    seen = dots(result.figure())
    assert [symbol for symbol, _ in seen] == ["square", *["triangle-up"] * 3]
    same = dots(gs.compare(shared, shared).figure())
    assert {symbol for symbol, _ in same} == {"circle"}
    assert not {colour for _, colour in same} & {colour for _, colour in seen}
