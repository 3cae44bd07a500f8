"""The verdict on one setting: which headline, what stands beside it, and the three answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.analysis.calls_analysis import FOR_SMS, calls_of, waits_of
from gpuscope.telling.finding import Finding
from gpuscope.telling.of_trace import by_setting, ranked
from gpuscope.telling.verdict import RunVerdict
from gpuscope.widgets import results
from gpuscope.widgets.presets import PRESETS

RECORDINGS = Path(__file__).resolve().parents[2] / "data" / "recordings"
CALLS = 120


def ran(preset: str, **changes: object) -> gs.trace.Run:
    plan = PRESETS[preset]
    (first, timed), *others = plan["workloads"].items()
    workloads = {first: {**timed, "repeats": CALLS, **changes}, **dict(others)}
    gpu = gs.open_device("sim:h200", quiet=True)
    return gs.run({**plan, "workloads": workloads}, gpu)


@pytest.fixture(scope="module")
def apart():
    return ran("small beside load, partitions")


def judged(run: gs.trace.Run, so_far: tuple[int, int] | None = None) -> RunVerdict:
    (trace,) = run.values()
    return results.judge(trace, run.comparison.to_pylist(), so_far).verdict


def rules(verdict: RunVerdict) -> list[str]:
    return [note.rule for note in verdict.notes]


def test_what_never_waited_is_kept_apart(apart):
    verdict = judged(apart)
    assert verdict.headline.rule == "verdict.apart"
    assert verdict.headline.subject == {"workload": "small", "largest": "host"}
    assert verdict.headline["p50"].unit == "µs"  # of so few calls there is no p99
    assert rules(verdict) == ["tail", "load.share"]
    assert verdict.overlapped["overlap"].value > 0.9
    assert (verdict.waited["waited"].value, verdict.waited["judged"].value) == (0, CALLS)
    kernels = sum(row["kernels"] for row in apart.comparison.to_pylist())
    assert verdict.stayed.rule == "answer.stayed"
    assert verdict.stayed["inside"].value == verdict.stayed["given"].value == kernels
    assert verdict.stayed.subject["evidence"] == ["simulated"]


def test_without_partitions_it_waits_for_sms_that_the_load_holds():
    run = ran("small beside load, no partitions")
    verdict = judged(run)
    (trace,) = run.values()
    calls = trace.where(kind="handle", category="small").array("id").tolist()
    parts = [part for call in calls for part in gs.analysis.parts(trace, call)]
    held = [part for part in parts if part.kind in FOR_SMS]
    assert verdict.headline.rule == "verdict.waits"
    assert verdict.headline.subject["holder"] == "load"
    each_ns = sum(part.duration_ns for part in held) / CALLS
    assert verdict.headline["each"].value == pytest.approx(each_ns)
    assert verdict.waited["waited"].value > CALLS / 2
    assert verdict.stayed.rule == "confined.uncarved"
    waits, carved = gs.findings(trace).findings
    assert (waits.rule, waits.severity, carved.rule) == ("waits", "warning", "confined.uncarved")
    assert waits.subject == {"workload": "small", "holder": "load"}
    told = {value.name: value.value for value in waits.values}
    took_ns = sum(part.duration_ns for part in parts)
    assert told == {
        "each": pytest.approx(each_ns),
        "share": pytest.approx(each_ns * CALLS / took_ns),
        "waited": verdict.waited["waited"].value,
        "judged": CALLS,
    }
    waited_ns = [
        sum(part.duration_ns for part in gs.analysis.parts(trace, call) if part.kind in FOR_SMS)
        for call in calls
    ]
    shown_ns = [waited_ns[calls.index(each.span)] for each in waits.spans]
    assert shown_ns == sorted(waited_ns, reverse=True)[: len(shown_ns)]
    assert [title for title, _ in gs.findings(trace).sections] == ["Latency"]


def test_calls_on_sms_of_their_own_wait_for_none(apart):
    (trace,) = apart.values()
    assert waits_of(trace, "small").for_others == 0
    assert [finding.rule for finding in gs.findings(trace).findings] == ["confined"]


def test_waits_for_ones_own_kernels_are_no_waits_for_others():
    trace = gs.load_trace(RECORDINGS / "pytorch_h100.parquet")
    waits = waits_of(trace, "Sequential")
    assert (waits.waited, [*waits.holders], waits.for_others) == (1, ["Sequential"], 0)
    assert "waits" not in {finding.rule for finding in gs.findings(trace).findings}
    mixed = replace(waits, holders={"load": 30, "Sequential": 20}, judged_ns=100)
    assert (mixed.waited_ns, mixed.for_others) == (50, 0.3)


def test_of_several_settings_waits_are_told_where_none_does_without(apart):
    (trace,) = apart.values()
    small, other = (Finding("waits", "note", {"workload": name}) for name in ("small", "other"))
    results = {"one": ranked(trace, [small, other]), "two": ranked(trace, [small])}
    assert by_setting(results) == [("", small)]
    assert by_setting({"one": results["one"]}) == [("", small), ("", other)]


def test_an_escape_comes_first_and_has_its_mend():
    verdict = judged(ran("escape: a guard left out"))
    assert verdict.headline.rule == "verdict.escape-outside"
    assert verdict.headline.severity == "error"
    assert verdict.headline["all"].value == CALLS
    assert verdict.headline["sms"].value == 16
    assert verdict.notes[0].mend == gs.telling.Mend("workloads.small.guard = true", "experiment")
    assert verdict.stayed.rule == "answer.strayed"
    assert (verdict.stayed["inside"].value, verdict.stayed["given"].value) == (0, CALLS)


def test_requests_are_judged_by_what_was_served():
    verdict = judged(ran("requests: prefill | decode"))
    assert verdict.headline.rule == "served"
    assert "tail" not in rules(verdict)


@pytest.mark.parametrize(
    ("preset", "changes", "rule"),
    [
        ("small beside load, partitions", {}, "so-far.apart"),
        ("small beside load, no partitions", {}, "so-far.waits"),
        ("escape: a guard left out", {}, "so-far.escape"),
        ("requests: prefill | decode", {}, "so-far.other"),
        ("small beside load, no partitions", {"m": 16, "n": 16, "k": 16}, None),
    ],
)
def test_so_far_it_is_provisional(preset, changes, rule):
    verdict = judged(ran(preset, **changes), (CALLS, 2_000))
    assert verdict.headline.rule == (rule or verdict.headline.rule)
    assert verdict.headline.family == "so-far"
    assert verdict.headline["total"].value == 2_000
    assert verdict.headline.text.startswith("So far, ")
    assert rules(verdict)[-2:] == ["provisional", "live"]


def test_the_calls_at_the_marks_are_as_explained(apart):
    (trace,) = apart.values()
    calls = calls_of(trace, "small")
    rows = trace.where(kind="handle", category="small")
    took = rows.array("end_ns") - rows.array("start_ns")
    order = took.argsort(kind="stable")
    for share, parts in ((0.5, calls.typical), (0.99, calls.slow)):
        row = order[int(share * (CALLS - 1))]
        assert parts == gs.analysis.parts(trace, int(rows.array("id")[row]))
        assert sum(part.duration_ns for part in parts) == took[row]
    assert sum(calls.slowest_ns.values()) == took[took >= took[order[int(0.99 * 119)]]].sum()
    assert calls_of(trace, "nobody") is None
