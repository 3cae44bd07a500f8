"""Requests on the dashboard: their fields, what follows names, the preset and the card."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope.errors import InvalidExperiment
from gpuscope.experiments.experiment import Experiment
from gpuscope.widgets import results
from gpuscope.widgets.as_code import gpuscope_code
from gpuscope.widgets.compared import side_by_side
from gpuscope.widgets.presets import PRESETS

PRESET = PRESETS["requests: prefill | decode"]
SHORT = {**PRESET["workloads"]["chat"], "repeats": 20}


@pytest.fixture
def table():
    return gs.widgets.WorkloadTable(PRESET["workloads"], streams=["prefill", "decode"])


def test_a_table_keeps_all_that_requests_say(table):
    assert table.is_valid, table.said
    assert table.workloads == Experiment.from_dict(PRESET).workloads


def test_requests_have_no_controls_of_launches(table):
    shown = {field["name"]: field["when"] for field in table.fields}
    for name in ("stream", "background", "waits_on", "guard", "max_queued", "warmup"):
        assert "requests" not in shown[name]["kind"]
        assert "gemm" in shown[name]["kind"]
    for name in ("prefill", "decode", "batch", "output_tokens", "slo", "times_ms"):
        assert shown[name] == {"kind": ["requests"]}


def test_lines_say_what_runs_when(table):
    lines = [row["line"] for row in table.rows]
    assert lines[0].endswith("on prefill, as requests need it")
    assert lines[2].startswith("200 requests, poisson 400 Hz, prefilled by prefill, ")


def test_requests_follow_renamed_workloads(table):
    table.edit("decode", name="next token")
    assert table.is_valid, table.said
    assert table.workloads["chat"].decode == "next token"


def test_an_slo_is_edited_as_json(table):
    table.edit("chat", slo='{"ttft_ms": 3}', output_tokens="uniform 3 9")
    spec = table.workloads["chat"]
    assert (spec.slo, spec.output_tokens) == ({"ttft_ms": 3.0}, "uniform 3 9")
    table.edit("chat", slo="soon")
    assert not table.is_valid
    assert "slo" in table.rows[2]["problems"]


def test_requests_alone_say_what_is_missing():
    table = gs.widgets.WorkloadTable({"chat": SHORT}, streams=["s"])
    assert "prefill" in table.rows[0]["problems"]
    with pytest.raises(InvalidExperiment, match="no workload that launches"):
        _ = table.workloads


def test_a_card_judges_requests():
    workloads = {**PRESET["workloads"], "chat": SHORT}
    run = gs.experiments.predict({**PRESET, "workloads": workloads, "alone_repeats": 0})
    seen = gs.analysis.requests(run["default"])["chat"]
    now = results.summarise(run)
    shown = results.sections(now, {})
    assert "Requests" in shown
    assert f"<b>{100 * seen.met:.3g} %</b> meet the SLO" in shown
    assert f"(n = <b>{seen.tbt_n:,}</b>)" in shown
    assert "chat" not in results.numbers(now)  # its numbers are on the card
    assert "goodput/s" in side_by_side({"a": run, "b": run})


def test_code_judges_requests():
    code = gpuscope_code(Experiment.from_dict(PRESET), "sim:h200")
    assert "gs.analysis.requests(trace)" in code
    compile(code, "code", "exec")


def test_there_is_no_card_without_requests():
    spin = {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}
    run = gs.experiments.predict(
        {"name": "x", "alone_repeats": 0, "streams": {"s": {}}, "workloads": {"w": spin}}
    )
    assert "Requests" not in results.sections(results.summarise(run), {})
