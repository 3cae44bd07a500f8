"""Findings: what to act on comes first; the verdict on confinement is always there."""

from __future__ import annotations

import json

import pytest
from escaping import escaped

import gpuscope as gs
from gpuscope import analysis, telling
from gpuscope.analysis.confinement_analysis import PartitionConfinement
from gpuscope.telling.of_setting import of_partition
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


def rules(trace):
    found = telling.findings(trace).findings
    return [finding.rule for finding in found if finding.family != "program"]


def values(finding):
    return {quantity.name: quantity.value for quantity in finding.values}


def shown(finding):
    return [span.span for span in finding.spans]


def given_to(partition, ran_in, start=0, end=100, **more):
    return span(start, end, intended_partition=partition, partition=ran_in, **more)


TWO = {"a": {"sm_count": 16}, "b": {"sm_count": 8}}


def test_confined_work_says_who_and_by_what_evidence():
    trace = build([given_to("a", "a"), given_to("b", "b")], partitions=TWO)
    verdict = telling.confinement_verdict(trace)
    assert (verdict.rule, verdict.is_problem) == ("confined", False)
    assert verdict.subject["partitions"] == ["a", "b"]
    assert verdict.subject["evidence"] == ["allocated"]
    assert verdict.text == (
        "Confined: all work given to a and b ran inside (by the green context of every kernel)."
    )


def test_a_partition_without_work_is_named():
    verdict = telling.confinement_verdict(build([given_to("a", "a")], partitions=TWO))
    assert verdict.subject["unused"] == ["b"]
    assert verdict.text.endswith("Nothing was given to b.")


def test_simulated_confinement_is_no_evidence():
    trace = build([given_to("a", "a", source="simulated")], partitions=TWO, simulated=True)
    verdict = telling.confinement_verdict(trace)
    assert verdict.subject["evidence"] == ["simulated"]
    assert "no evidence about a GPU" in verdict.text


def test_an_escape_says_how_much_where_to_and_what_to_do():
    rows = [given_to("a", "a"), given_to("a", "b", 100, 200, name="norm")]
    trace = build(rows, partitions=TWO, setting="16 | 8")
    verdict = telling.confinement_verdict(trace)
    assert (verdict.rule, verdict.severity) == ("escape.partition", "error")
    assert verdict.subject == {"kernel": "norm", "partition": "a", "where": "b"}
    assert values(verdict) == {"kernels": 1, "given": 1, "time": 100, "share": 0.5}
    assert verdict.spans == (telling.Shown("16 | 8", 1),)
    assert "a_stream" in verdict.mend.code
    assert verdict.text.startswith("ESCAPED: 1 of 1 kernels norm, given to a, ran in b: 100 ns")
    assert verdict.advice.startswith("norm was launched on a stream of b: give it a stream of a")


def test_work_outside_any_partition_was_launched_on_the_wrong_stream():
    verdict = telling.confinement_verdict(build([given_to("a", None)], partitions=TWO))
    assert verdict.rule == "escape.outside"
    assert "launched outside any partition: give it a stream of a" in verdict.advice


def test_blocks_on_other_sms_are_no_matter_of_streams():
    partitions = {"a": {"sm_ids": [0, 1]}, "b": {"sm_ids": [2]}}
    block = span(0, 100, kind="block", parent=0, sm=2)
    verdict = telling.confinement_verdict(build([given_to("a", "a"), block], partitions=partitions))
    assert (verdict.rule, verdict.subject["where"]) == ("escape.sms", "SMs of b")
    assert (shown(verdict), verdict.mend) == ([0], None)
    assert "figures.sm_map" in verdict.advice


def test_each_escape_is_a_finding_the_longest_first_and_the_rest_is_counted():
    rows = [given_to("a", "b", 0, 100 - at, name=f"k{at}") for at in range(5)]
    rows += [given_to("a", "b", 0, 100, name="k0"), given_to("b", "a", 0, 10, name="back")]
    result = telling.findings(build(rows, partitions=TWO))
    first, *others = result.confinement
    assert (first.subject["kernel"], values(first)["kernels"], shown(first)) == ("k0", 2, [0, 5])
    assert [finding.subject.get("kernel") for finding in others] == ["k1", "k2", "back", None]
    assert (others[-1].rule, values(others[-1])) == ("escape.more", {"more": 2})


def test_without_an_escape_missing_rows_leave_it_open():
    trace = build([given_to("a", "a")], partitions=TWO, counts={"dropped": 5}, complete=False)
    assert rules(trace) == ["incomplete", "confined.open"]
    verdict = telling.confinement_verdict(trace)
    assert verdict.subject["missing"] == trace.metadata.missing == "5 dropped"


@pytest.mark.parametrize(
    ("rows", "rule"), [([], "confined.no-kernel"), ([span(0, 9)], "confined.uncarved")]
)
def test_without_partitions_the_verdict_says_so(rows, rule):
    verdict = telling.confinement_verdict(build(rows))
    assert (verdict.rule, verdict.is_problem) == (rule, False)


def test_partitions_without_work_given_to_them_cannot_be_judged():
    verdict = telling.confinement_verdict(build([span(0, 9)], partitions=TWO))
    assert verdict.rule == "confined.unknown"
    assert verdict.subject["reason"].startswith("none of 1 finished kernels")


def test_the_verdict_and_its_evidence_agree_on_a_lessons_case():
    trace = escaped()
    result = telling.findings(trace)
    assert result.findings[0] is result.confinement[0]
    escape = analysis.confinement(trace)["decode"].escapes[0]
    first = result.findings[0]
    assert values(first)["time"] == escape.time_ns
    names = dict(zip(trace.array("id").tolist(), trace.texts("name"), strict=True))
    assert {names[span] for span in shown(first)} == {escape.kernel}
    assert result.rows()[0]["rule"] == first.rule


# -- queues and gaps ----------------------------------------------------------------------
def test_a_background_that_waits_for_launches_is_a_queue_that_ran_dry():
    # Busy 0–100 and 200–300; the second was launched at 190: 90 of 100 ns were the host's.
    trace = of_experiment([load(0, 100, 0), load(200, 300, 190)])
    (track,) = analysis.gaps(trace).tracks
    assert (track.total_ns, track.unlaunched_ns) == (100, 90)
    queue, verdict = telling.findings(trace).findings
    assert (queue.rule, verdict.family) == ("dry-queue.load", "confined")
    assert queue.subject["load"] == ["load"]
    assert values(queue)["idle"] == pytest.approx(1 / 3)
    assert shown(queue) == [0, 1]
    assert queue.mend == telling.Mend("workloads.load.max_queued = 4", "experiment")
    assert queue.text.startswith("load (whole GPU) waited for launches: idle for 33.3 % of")
    assert queue.mend.code in queue.advice


def test_a_background_that_stood_still_with_work_launched_is_a_gap():
    trace = of_experiment([load(0, 100, 0), load(200, 300, 10)])
    (gap, _) = telling.findings(trace).findings
    assert gap.rule == "gap.launched"
    assert (gap.subject["both"], values(gap)["longest"]) == ("big", 100)
    assert "100 ns, between two of big" in gap.text
    assert gap.mend.code == "telling.explain(trace, 1)"


def test_where_no_launch_is_known_the_gap_claims_no_cause():
    trace = of_experiment([load(0, 100, None), load(200, 300, None)])
    assert analysis.gaps(trace).tracks[0].unlaunched_ns is None
    (gap, _) = telling.findings(trace).findings
    assert gap.rule == "gap"
    assert "launched" not in gap.text


def test_calls_timed_without_load_are_findings():
    rows = [load(0, 100, 0), load(100, 200, 50)]
    calls = [
        span(start, start + 5, kind="handle", category="small", name="small")
        for start in (150, 250, 260)
    ]
    calls_idle, verdict = telling.findings(of_experiment([*rows, *calls])).findings
    assert (calls_idle.rule, verdict.family) == ("dry-queue.calls", "confined")
    assert calls_idle.subject == {"workload": "small", "load": "load"}
    assert values(calls_idle) == {"idle": 2, "calls": 3, "queued": 2}
    assert shown(calls_idle) == [3, 4]


def test_a_background_that_waits_for_sms_that_others_hold_is_no_gap():
    rows = [load(0, 100, 0), load(200, 300, 10), span(100, 200, category="small")]
    assert rules(of_experiment(rows)) == ["confined.uncarved"]


def test_work_that_took_no_time_leaves_nothing_idle():
    assert rules(build([span(5, 5)])) == rules(build([span(5, 9)]))


def test_a_short_idle_time_is_no_news():
    trace = of_experiment([load(0, 100, 0), load(104, 200, 0)])
    assert rules(trace) == ["confined.uncarved"]


def test_a_timed_workload_may_pause():
    rows = [span(0, 10, category="small"), span(100, 110, category="small"), load(0, 110, 0)]
    assert rules(of_experiment(rows)) == ["confined.uncarved"]


def test_of_a_program_it_is_said_what_its_gpu_waited_for():
    rows = [
        span(0, 100, queued_ns=0, device=0),
        span(50, 120, queued_ns=0, stream=2, device=0),
        span(400, 500, queued_ns=390, device=0),
    ]
    found = telling.findings(build(rows))
    idle = next(finding for finding in found.findings if finding.rule == "program.idle")
    assert values(idle)["idle"] == pytest.approx(0.56)
    assert values(idle)["time"] == 500
    (title, causes), *_ = found.sections
    assert title == "What the GPU waited for"
    assert causes.idle_ns == sum(cause.idle_ns for cause in causes.causes) == 280


def test_an_escape_comes_before_all_else():
    rows = [given_to("a", "b", queued_ns=0), given_to("a", "b", 900, 950, queued_ns=890)]
    trace = build(rows, partitions=TWO, counts={"dropped": 1}, complete=False)
    assert rules(trace) == ["escape.partition", "incomplete"]


# -- several settings ----------------------------------------------------------------------
def test_what_several_settings_share_is_said_once_with_their_names():
    escaped = [given_to("a", "b", name="norm")]
    traces = {name: build(escaped, partitions=TWO, setting=name) for name in ("one", "two")}
    traces["plain"] = build([span(0, 9)])
    (about, finding), *rest = telling.findings_by_setting(traces)
    assert {finding.family for _, finding in rest} == {"program"}
    assert (about, finding.rule) == ("“one” and “two”", "escape.partition")
    assert all(not about for about, _ in telling.findings_by_setting({"plain": traces["plain"]}))


# -- words and media -----------------------------------------------------------------------
def test_each_finding_has_words_in_every_medium():
    hostile = "<b>[{mend}]\n`$x$"
    rows = [given_to("a", "b", name=hostile)]
    finding = telling.confinement_verdict(build(rows, partitions=TWO))
    text, advice = telling.to_text(finding, "“s”").splitlines()
    assert text.startswith("“s”: ESCAPED: 1 of 1 kernels <b>[{mend}] `$x$, given to a")
    assert advice.startswith("→ <b>[{mend}]")
    page = telling.to_html([("“s”", finding)])
    assert '<li class="escape error"><b>“s”:</b> ESCAPED' in page
    assert "&lt;b&gt;" in page
    assert "<b>[" not in page
    note = telling.to_markdown([("", finding)])
    assert note.startswith("- **error** ESCAPED")
    assert r"\<b\>\[{mend}\] \`$x$" in note  # brackets would begin a link
    facts = json.loads(json.dumps(telling.to_json(finding)))
    assert (facts["rule"], facts["severity"]) == ("escape.partition", "error")
    assert facts["subject"]["kernel"] == hostile
    assert facts["spans"] == [{"trace": "", "span": 0}]
    assert {value["name"]: value["unit"] for value in facts["values"]}["time"] == "ns"
    assert facts["text"] == finding.text


def test_a_rule_that_nobody_words_still_says_its_facts():
    finding = telling.Finding(
        "mine.hot", "warning", {"sm": "7"}, (telling.Quantity("heat", 0.5, "%", high=0.7, low=0.4),)
    )
    assert finding.text == "mine.hot: sm 7, heat 50 % (40 % to 70 %)."
    assert finding.is_problem
    assert finding["heat"].high == 0.7
    with pytest.raises(gs.errors.NotFound, match="heat"):
        finding["cold"]


@pytest.mark.parametrize("name", ["findings", "explain", "outcome"])
def test_a_name_that_moved_says_where_it_is(name):
    with pytest.raises(AttributeError, match=f"gs.telling.{name}"):
        getattr(analysis, name)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "0 %"), (5e-9, "below 0.01 %"), (1e-4, "0.01 %"), (0.5, "50 %"), (0.9994, "99.9 %"),
     (0.99999, "just under 100 %"), (1, "100 %")],
)  # fmt: skip
def test_almost_all_is_not_all_and_almost_none_not_none(share, words):
    assert str(gs.telling.Quantity("share", share, "%")) == words


def test_notes_of_a_partition_end_once():
    finding = of_partition(
        PartitionConfinement(
            "p", 0.5, (), (), (), 8, sm_ids_known=True, shares_with=(), notes=("one", "two")
        ),
        missing="",
    )
    assert finding.names["notes"] == "one. two"
    assert finding.text.endswith("one. two.")
