"""Predicting an experiment, and setting the prediction beside what was measured."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.analysis.prediction_analysis import MAKESPAN
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run

EXPERIMENT = {
    "name": "two",
    "alone_repeats": 0,
    "streams": {"s": {}, "l": {}},
    "workloads": {
        "small": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "s", "repeats": 20},
        "load": {"kind": "spin", "duration_us": 50, "blocks": 4, "stream": "l", "repeats": 10},
    },
    "settings": {
        "shared": {},
        "16 | rest": {
            "partitions": {"a": 16, "b": "rest"},
            "streams": {"s": {"partition": "a"}, "l": {"partition": "b"}},
        },
    },
}


@pytest.fixture(scope="module")
def predicted():
    return gs.experiments.predict(EXPERIMENT)


def slowed(run, factor):
    """Return a run as a GPU might have measured it: all its times ``factor`` as long."""
    traces = {}
    for setting, trace in run.items():
        spans = trace.spans.to_pydict()
        for name in ("start_ns", "end_ns"):
            origin = trace.metadata.windows_ns[0][0]
            spans[name] = [
                None if at is None else origin + round((at - origin) * factor)
                for at in spans[name]
            ]  # fmt: skip
        windows = [[low, low + round((high - low) * factor)]
                   for low, high in trace.metadata.windows_ns]  # fmt: skip
        made = Trace.from_columns(spans, trace.edges.to_pydict(), trace.metadata)
        traces[setting] = made.with_metadata(simulated=False, windows_ns=windows)
    return Run(traces, run.comparison, run.experiment)


def test_a_prediction_is_a_run_that_says_it_is_simulated(predicted):
    assert list(predicted) == ["shared", "16 | rest"]
    assert all(trace.is_simulated for trace in predicted.values())
    with pytest.raises(gs.errors.DeviceUnavailable, match="nope"):
        gs.experiments.predict(EXPERIMENT, "nope")


def test_the_same_experiment_predicted_twice_has_no_error(predicted):
    result = gs.analysis.prediction(predicted, gs.experiments.predict(predicted.experiment))
    assert {one.error for one in result.times} == {0.0}
    assert [(one.setting, one.of) for one in result.times] == [
        ("shared", "small"), ("shared", "load"), ("shared", MAKESPAN),
        ("16 | rest", "small"), ("16 | rest", "load"), ("16 | rest", MAKESPAN),
    ]  # fmt: skip
    assert result.median_error == 0


def test_errors_are_predicted_over_measured(predicted):
    result = gs.analysis.prediction(predicted, slowed(predicted, 1.25))
    for one in result.times:
        assert one.error == pytest.approx(-0.2, abs=1e-3)
    one = result["shared", "load"]
    assert (one.predicted_n, one.measured_n) == (10, 10)
    assert one.predicted_ns == 50_000
    assert one.measured_ns == pytest.approx(62_500, abs=2)
    assert result["shared", MAKESPAN].measured_n == 1
    assert "SIMULATED" in result.predicted
    assert result.measured.startswith("measured on")
    assert "median without sign 20.0%" in result.note


def test_two_traces_are_compared_as_two_runs_are(predicted):
    measured = slowed(predicted, 2.0)
    result = gs.analysis.prediction(predicted["shared"], measured["shared"])
    assert result["", "small"].error == pytest.approx(-0.5, abs=1e-3)
    with pytest.raises(gs.errors.MissingEvidence, match=r"setting 'shared'.*'16 \| rest'"):
        gs.analysis.prediction(predicted["shared"], measured["16 | rest"])


def called(kernels, how, *, simulated=False):
    """A trace of one handle's calls: of each its kernels' starts and ends.

    They are linked by edges and parents as recorders write them, by our number of the launch, or
    as a graph's launch without a row.
    """
    rows, edges = [], {"from": [], "to": [], "kind": []}
    spread = [[(a + 100, None if b is None else b + 100) for a, b in one] for one in kernels]
    for call, spans in enumerate(spread):
        first, last = min(span[0] for span in spans), max(span[1] or 0 for span in spans)
        handle = len(rows)
        if how != "graph":
            rows.append({"kind": "handle", "start_ns": first - 5, "end_ns": last + 5})
        if how == "graph":
            number = {"correlation": call}
        for index, (start, end) in enumerate(spans):
            if how != "graph":
                number = {"external_correlation": 10 * call + index}
                launch = {"kind": "api", "start_ns": start - 4, "end_ns": start - 2}
                rows.append({**launch, **number, "parent": handle})
            if how == "edges":
                edges["from"].append(len(rows) - 1)
                edges["to"].append(len(rows))
                edges["kind"].append("launch")
                number = {}
            rows.append({"kind": "kernel", "start_ns": start, "end_ns": end, **number})
    rows = [{"id": at, "name": "k", "category": "g", "source": "cupti", **row}
            for at, row in enumerate(rows)]  # fmt: skip
    names = {name for row in rows for name in row}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Trace.from_columns(columns, edges, TraceMetadata(simulated=simulated))


@pytest.mark.parametrize("how", ["edges", "numbers", "graph"])
def test_kernels_count_with_the_call_that_launched_them_in_whatever_order_they_ran(how):
    """A library may launch two kernels where the simulator has one; calls may overlap."""
    one = called([[(start, start + 12_000)] for start in (0, 20_000, 40_000)], how, simulated=True)
    three = called(
        [[(0, 3_000), (9_000, 18_000)], [(1_000, 8_000), (8_000, 13_000)],
         [(2_000, 12_000), (12_500, 14_500)]],
        how,
    )  # fmt: skip
    found = gs.analysis.prediction(one, three)["", "g"]
    assert (found.predicted_n, found.measured_n) == (3, 3)
    assert found.measured_range_ns == (12_000, 12_000)
    assert found.error == 0


def test_a_call_of_which_a_kernel_has_not_ended_is_left_out():
    one = called([[(0, 10)], [(20, 30)]], "edges", simulated=True)
    other = called([[(0, 4), (4, 10)], [(20, 25), (25, None)]], "edges")
    found = gs.analysis.prediction(one, other)["", "g"]
    assert (found.measured_n, found.measured_ns) == (1, 10)


@pytest.mark.parametrize(
    ("spans", "windows", "makespan"),
    [
        # The second begins where the windows touch: 0–4 and 10–14.
        ([(0, 4), (10, 14)], [[0, 10], [10, 20]], 8),
        # The first runs on into the second window, in which 12–14 is its time already.
        ([(0, 13), (12, 14)], [[0, 10], [10, 20]], 14),
        # Windows that overlap are one.
        ([(0, 4), (10, 14)], [[0, 12], [8, 20]], 14),
        # 25–30 lies in no window.
        ([(0, 4), (10, 14), (25, 30)], [[0, 10], [11, 20]], 14),
        ([(0, 4), (10, 14)], [], 14),
    ],
)
def test_a_makespan_counts_no_time_twice(spans, windows, makespan):
    trace = called([[span] for span in spans], "edges", simulated=True)
    shifted = [[low + 100, high + 100] for low, high in windows]
    trace = trace.with_metadata(windows_ns=shifted)
    assert gs.analysis.prediction(trace, trace)["", MAKESPAN].measured_ns == makespan
    assert gs.analysis.overlap(trace).makespan_ns == makespan


# -- what does not match ------------------------------------------------------------------


def test_another_experiment_is_refused_and_what_differs_is_said(predicted):
    other = copy.deepcopy(EXPERIMENT)
    other["workloads"]["small"]["m"] = 64
    with pytest.raises(
        gs.errors.MissingEvidence, match=r"workloads\.small\.m: 512 was predicted, 64 me"
    ):
        gs.analysis.prediction(predicted, slowed(gs.experiments.predict(other), 1.0))


def test_settings_that_only_one_has_are_named(predicted):
    measured = slowed(predicted, 1.0)
    part = Run({"shared": measured["shared"]}, measured.comparison, measured.experiment)
    result = gs.analysis.prediction(predicted, part)
    assert {one.setting for one in result.times} == {"shared"}
    assert result.left_out == ("setting '16 | rest' was not measured",)
    none = Run({"else": measured["shared"]}, measured.comparison, measured.experiment)
    with pytest.raises(gs.errors.MissingEvidence, match="no setting in common"):
        gs.analysis.prediction(predicted, none)


def test_workloads_that_only_one_has_are_named_and_leave_no_makespan(predicted):
    trace = slowed(predicted, 1.0)["shared"]
    only = trace.where(category="small")
    result = gs.analysis.prediction(predicted["shared"], only)
    assert [one.of for one in result.times] == ["small"]
    assert "'load' was not measured" in result.left_out
    with pytest.raises(gs.errors.MissingEvidence, match="no workload in common"):
        gs.analysis.prediction(predicted["shared"].where(category="load"), only)


def test_a_stopped_run_has_no_makespan(predicted):
    measured = slowed(predicted, 1.0)
    cut = Run(measured.traces, measured.comparison, measured.experiment, stopped=True)
    result = gs.analysis.prediction(predicted, cut)
    assert MAKESPAN not in {one.of for one in result.times}
    assert "the measured run was stopped" in result.note


def test_the_order_and_the_kinds_of_the_arguments(predicted):
    measured = slowed(predicted, 1.0)
    with pytest.raises(ValueError, match="no prediction"):
        gs.analysis.prediction(measured, predicted)
    with pytest.raises(ValueError, match="not one of each"):
        gs.analysis.prediction(predicted, measured["shared"])


# -- the picture --------------------------------------------------------------------------


def test_the_figure_shows_both_and_the_error_of_each(predicted):
    drawn = gs.figures.prediction(predicted, slowed(predicted, 1.25))
    measured = next(one for one in drawn.data if one.name == "measured")
    seen = next(one for one in drawn.data if one.name == "predicted")
    assert len(measured.x) == len(seen.x) == 6
    ratios = np.array(seen.x) / np.array(measured.x)
    assert ratios == pytest.approx(np.full(6, 0.8), rel=1e-3)
    texts = [note.text for note in drawn.layout.annotations]
    assert texts.count("<b>-20.0%</b>") == 6
    assert "<b>shared</b>" in texts
    subtitle = drawn.layout.title.subtitle.text
    assert "predicted: <b>SIMULATED, not measured,</b> on NVIDIA H200" in subtitle
    assert "measured: measured on" in subtitle


def test_foreign_names_are_escaped(predicted):
    spans = {
        "id": [0], "kind": ["kernel"], "name": ["<b onclick=x>"], "start_ns": [0], "end_ns": [9],
        "source": ["cupti"],
    }  # fmt: skip
    pair = [Trace.from_columns(spans, None, TraceMetadata(simulated=one)) for one in (True, False)]
    assert "<b onclick" not in gs.figures.prediction(*pair).to_json().replace("\\u003c", "<")
