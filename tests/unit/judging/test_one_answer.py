"""Report, ``compare``, ``diff``, ``check`` and ``sweep`` say the same of the same two traces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging_programs import ONE, changed

import gpuscope as gs
from gpuscope.comparing.choice import choices
from gpuscope.comparing.effects import change_of
from gpuscope.comparing.of_run import compared
from gpuscope.comparing.pair import CompareResult, of_pair
from gpuscope.judging import check
from gpuscope.trace.run import Run

RELATIVE = '[baseline]\nfile = "base.json"\n"w.latency_p50_us" = "5 %"\n"load.calls_per_s" = "5 %"'


def ran(experiment, rounds):
    device = gs.open_device("sim:h200", quiet=True)
    return gs.run({**experiment, "rounds": rounds, "alone_repeats": 0}, device)


@pytest.mark.parametrize(
    ("rounds", "duration_us", "verdict"),
    [
        (3, 150, "slower"),
        (3, 100, "equal"),
        (1, 150, "slower"),
        (1, 101, "cannot tell"),
    ],
)
def test_of_two_traces_all_say_the_same(tmp_path, rounds, duration_us, verdict):
    before, after = ran(ONE, rounds), ran(changed(duration_us=duration_us), rounds)
    result = gs.compare(before, after)
    assert isinstance(result, CompareResult)
    numbers = {(each.workload, each.column): each for each in result.differences}
    assert numbers["w", "latency_p50_us"].verdict == verdict

    diffed = gs.diff(before, after)
    assert diffed.effects == result.differences
    assert diffed.verdict == result.verdict == verdict
    assert diffed.rows() == result.rows()

    budget = tmp_path / "b.toml"
    budget.write_text(RELATIVE, "utf-8")
    check(before, budget, save_baseline=tmp_path / "base.json")
    for others in ("", '[limits]\nescapes = 0\n"w.latency_p50_us" = "<= 1000"\n'):
        budget.write_text(others + RELATIVE, "utf-8")
        kept = [each for each in check(after, budget).limits if each.effect is not None]
        assert len(kept) == 2
        assert [each.effect for each in kept] == [
            numbers[each.limit.workload, each.limit.column] for each in kept
        ]

    both = Run(
        {"a": before["default"], "b": after["default"]}, before.comparison, before.experiment
    )
    told = compared(both)[0]
    assert (told.rule, told["by"]) == (of_pair(result)[0].rule, of_pair(result)[0]["by"])


@pytest.mark.parametrize(("rounds", "verdict"), [(5, "faster"), (1, "cannot tell")])
def test_a_sweep_says_the_same_of_two_of_its_points(rounds, verdict):
    """Which of them to take follows from the effect that compare and the report tell."""
    gemm = {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "background": True, "max_queued": 4}
    small = {"s": {"partition": "small"}, "t": {"partition": "large"}}
    experiment = {
        **changed(duration_us=20 if verdict == "faster" else 2000),
        "rounds": rounds,
        "partitions": {"small": 8, "large": "rest"},
        "settings": {"plain": {"partitions": {}}, "carved": {"streams": small}},
    }
    experiment["workloads"] = {**experiment["workloads"], "load": {**gemm, "stream": "t"}}
    before = ran(experiment, rounds)
    result = gs.compare(before["plain"], before["carved"])
    device = gs.open_device("sim:h200", quiet=True)
    described = {**experiment, "alone_repeats": 0}
    (choice,) = choices(gs.search.sweep(described, {"partitions.small": [8]}, device))
    plain, carved = choice.options
    of_points = choice.differences(plain, carved)
    for swept, found in zip(of_points, result.differences, strict=True):
        numbers = "before", "after", "low", "high", "smallest"
        expected = [getattr(found, number) for number in numbers]
        assert [getattr(swept, number) for number in numbers] == pytest.approx(expected)
        same = replace(swept, **{number: getattr(found, number) for number in numbers})
        assert same == found
    judged = choice.difference(plain, carved)
    assert judged == of_points[0]
    assert judged.verdict == verdict
    assert (choice.taken is carved) == (verdict == "faster")
    told = compared(before)[0]
    assert told["by"] in map(change_of, result.differences)


def test_what_others_lose_stands_beside_what_is_won():
    faster = {**changed(duration_us=50)}
    faster["workloads"] = {
        **faster["workloads"],
        "load": {**ONE["workloads"]["load"], "duration_us": 700},
    }
    result = gs.compare(ran(ONE, 3), ran(faster, 3))
    rules = {finding.rule: finding for finding in result.findings}
    assert result.findings[0].rule == "change.better"
    assert rules["change.pays"].subject["workload"] == "load"
    assert rules["change.pays"].text in result.headline
