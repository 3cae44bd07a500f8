"""Findings: what to act on comes first; the verdict on confinement is always there."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope import analysis
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata

EXPERIMENT = {
    "workloads": {
        "small": {"background": False, "stream": "s", "max_queued": 1},
        "load": {"background": True, "stream": "l", "max_queued": 2},
    }
}


def build(rows, **metadata):
    """Build a trace from dicts; ids are positions."""
    rows = [
        {"id": index, "source": "cupti", "kind": "kernel", "name": "k", **row}
        for index, row in enumerate(rows)
    ]
    names = {name for row in rows for name in row}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Trace.from_columns(columns, None, TraceMetadata(**metadata))


def span(start, end, **more):
    return {"start_ns": start, "end_ns": end, "stream": 1, **more}


def load(start, end, queued, **more):
    return span(start, end, stream=2, category="load", name="big", queued_ns=queued, **more)


def of_experiment(rows):
    streams = {"1": {"name": "s"}, "2": {"name": "l"}}
    return build(rows, experiment=EXPERIMENT, streams=streams)


def kinds(trace):
    return [finding.kind for finding in analysis.findings(trace).findings]


def given_to(partition, ran_in, start=0, end=100, **more):
    return span(start, end, intended_partition=partition, partition=ran_in, **more)


TWO = {"a": {"sm_count": 16}, "b": {"sm_count": 8}}


def test_confined_work_says_who_and_by_what_evidence():
    trace = build([given_to("a", "a"), given_to("b", "b")], partitions=TWO)
    verdict = analysis.confinement_verdict(trace)
    assert not verdict.is_problem
    assert verdict.text == (
        "Confined: all work given to a and b ran inside (by the green context of every kernel)."
    )


def test_a_partition_without_work_is_named():
    verdict = analysis.confinement_verdict(build([given_to("a", "a")], partitions=TWO))
    assert verdict.text.endswith("Nothing was given to b.")


def test_simulated_confinement_is_no_evidence():
    trace = build([given_to("a", "a", source="simulated")], partitions=TWO, simulated=True)
    assert "no evidence about a GPU" in analysis.confinement_verdict(trace).text


def test_an_escape_says_how_much_where_to_and_what_to_do():
    rows = [given_to("a", "a"), given_to("a", "b", 100, 200, name="norm")]
    verdict = analysis.confinement_verdict(build(rows, partitions=TWO))
    assert verdict.is_problem
    assert verdict.text == (
        "ESCAPED: 50 % of the time of the work given to a ran elsewhere: norm ×1 (all) → b, 100 ns."
    )
    assert "norm was launched on a stream of b: give it a stream of a." in verdict.advice


def test_work_outside_any_partition_was_launched_on_the_wrong_stream():
    verdict = analysis.confinement_verdict(build([given_to("a", None)], partitions=TWO))
    assert "launched outside any partition: give it a stream of a" in verdict.advice


def test_blocks_on_other_sms_are_no_matter_of_streams():
    partitions = {"a": {"sm_ids": [0, 1]}, "b": {"sm_ids": [2]}}
    block = span(0, 100, kind="block", parent=0, sm=2)
    verdict = analysis.confinement_verdict(
        build([given_to("a", "a"), block], partitions=partitions)
    )
    assert "SMs of b" in verdict.text
    assert "figures.sm_map" in verdict.advice


def test_without_an_escape_missing_rows_leave_it_open():
    trace = build([given_to("a", "a")], partitions=TWO, counts={"dropped": 5}, complete=False)
    assert trace.metadata.incomplete
    verdict = analysis.confinement_verdict(trace)
    assert verdict.text.startswith("No escape was recorded from a; incomplete: ")
    assert kinds(trace) == ["incomplete", "confinement"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "No kernel was recorded"), ([span(0, 9)], "Nothing was carved")],
)
def test_without_partitions_the_verdict_says_so(rows, words):
    verdict = analysis.confinement_verdict(build(rows))
    assert verdict.text.startswith(words)
    assert not verdict.is_problem


def test_partitions_without_work_given_to_them_cannot_be_judged():
    verdict = analysis.confinement_verdict(build([span(0, 9)], partitions=TWO))
    assert verdict.text.startswith("Confinement cannot be judged: none of 1 finished kernels")


def test_the_verdict_and_its_evidence_agree_on_a_lessons_case():
    trace = gs.learn.case("A").trace
    found = analysis.findings(trace)
    assert found.findings[0] is found.confinement
    assert found.confinement.kind == "escape"
    assert found.rows()[0]["what"] == "escape"


# -- queues and gaps ----------------------------------------------------------------------
def test_a_background_that_waits_for_launches_is_a_queue_that_ran_dry():
    # Busy 0–100 and 200–300; the second was launched at 190: 90 of 100 ns were the host's.
    trace = of_experiment([load(0, 100, 0), load(200, 300, 190)])
    (track,) = analysis.gaps(trace).tracks
    assert (track.total_ns, track.unlaunched_ns) == (100, 90)
    queue, verdict = analysis.findings(trace).findings
    assert (queue.kind, verdict.kind) == ("queue", "confinement")
    assert queue.text.startswith("load (whole GPU) waited for launches: idle for 33 % of the time")
    assert queue.advice.startswith("Raise max_queued (load has 2)")


def test_a_background_that_stood_still_with_work_launched_is_a_gap():
    trace = of_experiment([load(0, 100, 0), load(200, 300, 10)])
    (gap, _) = analysis.findings(trace).findings
    assert gap.kind == "gap"
    assert "100 ns, between two of big" in gap.text
    assert "with the next work launched already" in gap.text


def test_where_no_launch_is_known_the_gap_claims_no_cause():
    trace = of_experiment([load(0, 100, None), load(200, 300, None)])
    assert analysis.gaps(trace).tracks[0].unlaunched_ns is None
    (gap, _) = analysis.findings(trace).findings
    assert gap.kind == "gap"
    assert "launched" not in gap.text


def test_calls_timed_without_load_are_told():
    rows = [load(0, 100, 0), load(100, 200, 50)]
    calls = [
        span(start, start + 5, kind="handle", category="small", name="small")
        for start in (150, 250, 260)
    ]
    found = analysis.findings(of_experiment([*rows, *calls])).findings
    assert [finding.kind for finding in found] == ["queue", "confinement"]
    assert "2 of 3 calls of small were timed while nothing of load was queued" in found[0].text


def test_a_background_that_waits_for_sms_that_others_hold_is_no_gap():
    rows = [load(0, 100, 0), load(200, 300, 10), span(100, 200, category="small")]
    assert kinds(of_experiment(rows)) == ["confinement"]


def test_work_that_took_no_time_leaves_nothing_idle():
    assert kinds(build([span(5, 5)])) == kinds(build([span(5, 9)]))


def test_a_short_idle_time_is_no_news():
    assert kinds(of_experiment([load(0, 100, 0), load(104, 200, 0)])) == ["confinement"]


def test_a_timed_workload_may_pause():
    rows = [span(0, 10, category="small"), span(100, 110, category="small"), load(0, 110, 0)]
    assert kinds(of_experiment(rows)) == ["confinement"]


def test_without_an_experiment_devices_are_judged():
    rows = [
        span(0, 100, queued_ns=0, device=0),
        span(50, 120, queued_ns=0, stream=2, device=0),
        span(400, 500, queued_ns=390, device=0),
    ]
    (queue, _) = analysis.findings(build(rows)).findings
    assert queue.kind == "queue"
    assert "waited for launches: idle for 56 %" in queue.text
    assert "record the launches as a graph" in queue.advice


def test_an_escape_comes_before_all_else():
    rows = [given_to("a", "b", queued_ns=0), given_to("a", "b", 900, 950, queued_ns=890)]
    trace = build(rows, partitions=TWO, counts={"dropped": 1}, complete=False)
    assert kinds(trace) == ["escape", "incomplete", "queue"]
