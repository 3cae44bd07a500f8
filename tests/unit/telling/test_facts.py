"""Each sentence asks for the fact that it states, not for one beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_findings import TWO, build, given_to, load, of_experiment, span, values

import gpuscope as gs
from gpuscope import telling
from gpuscope.analysis import calls_analysis
from gpuscope.analysis.calls_analysis import calls_of
from gpuscope.analysis.confinement_analysis import confinement
from gpuscope.analysis.settings import has_own_sms, settings_table
from gpuscope.comparing.effects import judged_effect
from gpuscope.comparing.pair import PartSum, headline, of_pair
from gpuscope.comparing.split import SplitPart
from gpuscope.telling import verdict as verdicts
from gpuscope.telling.of_setting import of_partition
from gpuscope.telling.of_waits import holding
from gpuscope.trace.run import Run
from gpuscope.widgets import results

CALLS = 40
APART = {"s": {"partition": "a"}, "l": {"partition": "b"}}


def ran(*, partitions, streams, repeats=CALLS, blocks=1):
    """Run a small timed workload beside one in the background, small unless it has many blocks."""
    kind = {"kind": "spin", "duration_us": 10, "blocks": 1}
    experiment = {
        "name": "facts", "alone_repeats": 0, "partitions": partitions, "streams": streams,
        "workloads": {
            "small": {**kind, "stream": "s", "repeats": repeats},
            "load": {**kind, "blocks": blocks, "stream": "l", "background": True},
        },
    }  # fmt: skip
    return gs.run(experiment, gs.open_device("sim:h200", quiet=True))


def judged(run):
    (trace,) = run.values()
    return results.judge(trace, run.comparison.to_pylist()).verdict


@pytest.fixture(scope="module")
def shared():
    """Both in one partition, where there is room for both."""
    streams = {"s": {"partition": "a"}, "l": {"partition": "a"}}
    return ran(partitions={"a": 64}, streams=streams)


@pytest.fixture(scope="module")
def apart():
    return ran(partitions={"a": 64, "b": "rest"}, streams=APART)


# -- who has SMs of its own ---------------------------------------------------------------
def test_kept_apart_is_what_shares_no_partition(shared, apart):
    for run, rule in ((shared, "verdict.shared"), (apart, "verdict.apart")):
        verdict = judged(run)
        assert verdict.waited["waited"].value == 0
        assert verdict.headline.rule == rule
        assert verdict.stayed.rule == "answer.stayed"


@pytest.mark.parametrize(
    ("homes", "partitions", "is_own"),
    [
        (("a", "b"), TWO, True),
        (("a", "a"), TWO, False),
        (("a", None), TWO, False),
        ((None, "a"), TWO, False),
        (("a",), TWO, True),
        ((None,), TWO, False),
        (("a", "b"), {"a": {"shares_with": ["b"]}, "b": {}}, False),
        (("a", "b"), {"a": {}, "b": {"shares_with": ["a"]}}, False),
        (("a", "b"), {"a": {"sm_ids": [0, 1]}, "b": {"sm_ids": [1, 2]}}, False),
        (("a", "b"), {"a": {"sm_ids": [0, 1]}, "b": {"sm_ids": [2]}}, True),
    ],
)
def test_own_sms_are_those_that_no_other_work_ran_on(homes, partitions, is_own):
    names = ("small", "load")
    rows = [given_to(home, home, category=name) for home, name in zip(homes, names, strict=False)]
    assert has_own_sms(build(rows, partitions=partitions), "small") is is_own
    assert not has_own_sms(build(rows, partitions=partitions), "nobody")


def test_sms_of_its_own_are_said_to_be_if_they_are(shared, apart):
    free = ran(partitions={}, streams={"s": {}, "l": {}})
    for run, words in ((shared, "On 64 SMs"), (apart, "On 64 SMs of its own")):
        result = gs.compare(free, run)
        about = next(each for each in result.differences if each.workload == "small")
        assert headline(result, about).subject["change"] == words


# -- of how many calls --------------------------------------------------------------------
def test_of_many_calls_it_is_said_how_many_were_looked_at(monkeypatch, apart):
    verdict = judged(apart)
    assert {"judged", "n"}.isdisjoint(values(verdict.headline))
    monkeypatch.setattr(calls_analysis, "_MOST", 10)
    verdict = judged(apart)
    assert values(verdict.headline) | {"judged": 10, "n": CALLS} == values(verdict.headline)
    assert f"in 10 of its {CALLS} calls" in verdict.headline.text
    assert values(verdict.waited) == {"waited": 0, "judged": 10, "n": CALLS}


def test_of_many_calls_that_wait_it_is_said_how_many_were_looked_at(monkeypatch):
    monkeypatch.setattr(calls_analysis, "_MOST", 10)
    streams = {"s": {"partition": "a"}, "l": {"partition": "a"}}
    (trace,) = ran(partitions={"a": 8}, streams=streams, blocks=10_000).values()
    (waits,) = (found for found in telling.findings(trace).findings if found.rule == "waits")
    assert values(waits) | {"judged": 10, "n": CALLS} == values(waits)
    assert f"mean of 10 of its {CALLS} calls" in waits.text


def test_the_slowest_calls_are_all_taken_apart(monkeypatch, apart):
    monkeypatch.setattr(calls_analysis, "_MOST", 1)
    (trace,) = apart.values()
    calls = calls_of(trace, "small")
    rows = trace.where(kind="handle", category="small")
    took = sorted((rows.array("end_ns") - rows.array("start_ns")).tolist())
    assert calls.slowest == CALLS - int(0.99 * (CALLS - 1))
    assert sum(calls.slowest_ns.values()) == sum(took[-calls.slowest :])
    (tail,) = (note for note in judged(apart).notes if note.rule == "tail")
    assert values(tail) | {"slowest": calls.slowest, "n": CALLS} == values(tail)


def test_what_a_p50_consists_of_is_told_of_the_call_at_it(apart):
    (trace,) = apart.values()
    told, calls = judged(apart).headline, calls_of(trace, "small")
    assert "p50" in values(told)
    groups = {}
    for part in calls.typical:
        group = verdicts._LARGEST.get(part.kind, "waiting")
        groups[group] = groups.get(group, 0) + part.duration_ns
    assert told["part"].value == groups[told.subject["largest"]] / sum(groups.values())
    assert groups[told.subject["largest"]] == max(groups.values())


def test_calls_that_cannot_be_taken_apart_were_timed(monkeypatch, apart):
    monkeypatch.setattr(verdicts, "calls_of", lambda *_: None)
    assert judged(apart).waited.rule == "answer.untold"


@pytest.mark.parametrize(
    ("holders", "said"),
    [
        ([], {}),
        ([""], {}),
        (["load"], {"holder": "load"}),
        (["load", "x"], {"holders": "load and x"}),
        (["load", ""], {"holders": "load and others"}),
        ([*"abcde"], {"holders": "a, b, c and 2 more"}),
    ],
)
def test_all_who_hold_sms_are_named(holders, said):
    assert holding(holders) == said


# -- what escaped -------------------------------------------------------------------------
def test_an_escape_counts_its_own_workload_and_place():
    rows = [
        *(given_to("a", "b", at, at + 100, category="one", name=f"k{at % 2}") for at in range(4)),
        given_to("a", None, 0, 10, category="one"),
        given_to("a", "b", 0, 10, category="two"),
        given_to("a", "a", 0, 10, category="one"),
    ]
    verdict = results.judge(build(rows, partitions=TWO), []).verdict
    assert verdict.headline.rule == "verdict.escape-partition"
    assert verdict.headline.subject["workload"] == "one"
    assert values(verdict.headline) == {"n": 4, "given": 6, "sms": 16}
    assert values(verdict.stayed) == {"inside": 1, "given": 7}


def test_of_several_partitions_the_one_that_lost_most_is_told():
    rows = [given_to("a", "b", 0, 10), given_to("b", "a", 0, 100), given_to("b", "b", 0, 100)]
    verdict = results.judge(build(rows, partitions=TWO), []).verdict
    assert verdict.stayed.subject["partition"] == verdict.headline.subject["partition"] == "b"
    assert values(verdict.stayed) == {"inside": 1, "given": 2}
    assert "given to b" in verdict.stayed.text


def test_a_kernel_in_several_places_strayed_once():
    partitions = {"a": {"sm_ids": [0]}, "b": {"sm_ids": [1]}, "c": {"sm_ids": [2]}}
    blocks = [span(0, 100, kind="block", parent=0, sm=sm) for sm in (1, 2)]
    trace = build([given_to("a", "a"), given_to("a", "a"), *blocks], partitions=partitions)
    (part, *_) = confinement(trace).partitions
    assert (part.kernels, part.strays, len(part.escapes)) == (2, 1, 2)


def test_blocks_on_other_sms_were_not_launched_elsewhere():
    partitions = {"a": {"sm_ids": [0, 1]}, "b": {"sm_ids": [2]}}
    block = span(0, 100, kind="block", parent=0, sm=2)
    verdict = results.judge(build([given_to("a", "a"), block], partitions=partitions), []).verdict
    assert verdict.headline.rule == "verdict.escape-sms"
    assert "misplaced" not in [note.rule for note in verdict.notes]


def test_work_that_did_not_end_was_given():
    rows = [given_to("a", "a"), given_to("b", "b", 0, None)]
    trace = build(rows, partitions=TWO)
    finding = telling.confinement_verdict(trace)
    assert finding.subject["unused"] == []
    assert values(finding) == {"unfinished": 1}
    stayed = results.judge(trace, []).verdict.stayed
    assert values(stayed) == {"inside": 1, "given": 1, "unfinished": 1}
    rules = [of_partition(part, "").rule for part in confinement(trace).partitions]
    assert rules == ["inside", "unjudged"]


def test_all_is_of_what_was_recorded():
    trace = build([given_to("a", "a")], partitions=TWO, counts={"dropped": 5}, complete=False)
    assert "recorded" in results.judge(trace, []).verdict.stayed.text
    whole = results.judge(build([given_to("a", "a")], partitions=TWO), []).verdict
    assert "recorded" not in whole.stayed.text


def test_work_in_a_partition_shows_that_something_was_carved():
    verdict = telling.confinement_verdict(build([span(0, 9, partition="p")]))
    assert verdict.rule == "confined.unknown"


# -- queues and gaps ----------------------------------------------------------------------
def test_a_gap_before_work_of_unknown_launch_claims_no_cause():
    rows = [load(0, 100, 0), load(200, 300, None), load(310, 400, 300)]
    first, *_ = telling.findings(of_experiment(rows)).findings
    assert first.rule == "gap", "of 110 ns, 10 are known to be after the launch"
    first, *_ = telling.findings(of_experiment([load(0, 100, 0), load(200, 300, 40)])).findings
    assert first.rule == "gap.launched"


def test_where_a_workload_ran_is_said_if_all_of_it_ran_there():
    for ran_in, words in ((["a", "a"], "on 16 SMs"), (["a", "b"], "")):
        rows = [
            row
            for at, home in enumerate(ran_in)
            for row in (
                given_to("a", home, 100 * at, 100 * at + 50, category="w"),
                span(100 * at, 100 * at + 60, kind="handle", name="w", category="w"),
            )
        ]
        plan = {"workloads": {"w": {"stream": "s"}}}
        traces = {"one": build(rows, partitions=TWO, experiment=plan)}
        first, *_ = telling.compared(Run(traces, settings_table(traces), plan, stopped=False))
        assert (first.rule, first.subject["where"]) == ("latency", words)


# -- comparisons --------------------------------------------------------------------------
def test_a_cause_says_of_how_many_calls_and_is_gone_if_nothing_is_left(monkeypatch, apart):
    free = ran(partitions={}, streams={"s": {}, "l": {}})
    result = gs.compare(free, apart)
    about = result.differences[0]
    calls = len(result.pairs["small"].first)
    for second_ns, looked_at, words in (
        (0, calls, "it no longer waits for SMs that load and x hold"),
        (1, calls, "it waits for SMs that load and x hold "),
        (0, 10, f"it no longer waits for SMs that load and x hold (of 10 of {calls} calls)"),
    ):
        part = PartSum("SMs held", looked_at, 10**6, second_ns, "load", ("load", "x"))
        way = 1 if about.about.better * about.change < 0 else -1
        if way > 0:
            part = part._replace(first_ns=second_ns, second_ns=10**6)
        monkeypatch.setattr(type(result), "parts", lambda _, __, part=part: (part,))
        cause = headline(result, about).subject["cause"]
        if way < 0:
            assert cause.startswith(words)
        assert ("of 10 of" in cause) is (looked_at == 10)


def test_calls_without_another_are_counted(apart):
    longer = ran(partitions={"a": 64, "b": "rest"}, streams=APART, repeats=CALLS + 5)
    *_, calls = of_pair(gs.compare(apart, longer))
    assert calls.rule == "change.calls"
    assert values(calls) | {"calls": CALLS, "unpaired": 5} == values(calls)
    *_, calls = of_pair(gs.compare(apart, apart))
    assert "unpaired" not in values(calls)


def test_only_rates_are_kept_or_paid(apart):
    result = gs.compare(ran(partitions={}, streams={"s": {}, "l": {}}), apart)
    rate = next(each for each in result.differences if each.workload == "load")
    seen = [each for each in result.differences if each.workload == "small"]
    seen += [
        judged_effect(replace(rate, low=-0.2, high=-0.1)),
        judged_effect(replace(rate, column="power_w", low=1, high=2)),
    ]
    found = of_pair(replace(result, differences=tuple(seen)))
    assert sum(each.rule in ("change.pays", "change.gains") for each in found) == 1


def test_what_comes_more_often_and_takes_less_time_is_not_longer():
    part = SplitPart("kernels", "k", None, None, None, 100.0, 50.0, 1.0, 2.0)
    assert part.change == "faster"
    part = SplitPart("kernels", "k", None, None, None, 100.0, 200.0, 1.0, 2.0)
    assert part.change == "more"
