"""The outcome of a run in one sentence, and what was run in words."""

from __future__ import annotations

import math
import random

import pytest

import gpuscope as gs
from gpuscope import analysis, telling
from gpuscope.telling.described import describe_settings, describe_workload
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.run import Run


def trace_of(*, latency_us, kernels=10, flop=10**9, partitions=None, alone=True, calls=1000):
    """Build a setting: ``small`` with one latency, ``load`` with a rate; 10 ms are recorded."""
    calls_rows = [
        {"kind": "handle", "name": "small", "category": "small", "start_ns": index * 10_000,
         "end_ns": index * 10_000 + latency_us * 1000, "stream": 1}
        for index in range(calls)
    ]  # fmt: skip
    each = 10_000_000 // kernels
    load_rows = [
        {"kind": "kernel", "name": "big", "category": "load", "start_ns": index * each,
         "end_ns": (index + 1) * each, "stream": 2, "flop_count": flop,
         "partition": "load" if partitions else None}
        for index in range(kernels)
    ]  # fmt: skip
    own = {"kind": "kernel", "name": "k", "category": "small", "start_ns": 0, "end_ns": 1000,
           "stream": 1, "partition": "small" if partitions else None}  # fmt: skip
    rows = [
        {"id": index, "source": "cupti", **row}
        for index, row in enumerate([*calls_rows, *load_rows, own])
    ]
    names = {name for row in rows for name in row}
    # 10 kernels of 10⁹ operations in 10 ms are 1 TFLOP/s.
    solo = {"load": {"kernel_ns": each, "whole_gpu_tflop_per_s": 2.0 if alone else None}}
    return Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names},
        None,
        TraceMetadata(partitions=partitions or {}, windows_ns=[[0, 10_000_000]], solo=solo),
    )


CARVED = {"small": {"asked": 16, "sm_count": 16}, "load": {"asked": "rest", "sm_count": 116}}
WORKLOADS = {
    "small": {"kind": "gemm", "background": False, "stream": "s"},
    "load": {"kind": "gemm", "background": True, "stream": "l"},
}


def run_of(traces, **more):
    experiment = {"name": "trial", "workloads": WORKLOADS, **more}
    return Run(traces, analysis.settings_table(traces), experiment)


def test_it_says_what_was_won_and_what_it_cost():
    run = run_of(
        {
            "shared": trace_of(latency_us=9),
            "16 | rest": trace_of(latency_us=3, flop=8 * 10**8, kernels=8, partitions=CARVED),
        }
    )
    won, cost = telling.compared(run)
    assert (won.rule, won.subject["workload"]) == ("change.better", "small")
    assert (won.subject["base"], won.subject["setting"]) == ("shared", "16 | rest")
    assert (won["before"].value, won["after"].value, won["after"].unit) == (9, 3, "µs")
    assert won["by"].value == pytest.approx(-2 / 3)
    assert (cost.rule, cost.subject["workload"]) == ("change.pays", "load")
    assert cost["cost"].value == pytest.approx(1 - 0.8 * 0.8)
    for shown, latency_us in zip(won.spans, (9, 3), strict=True):
        calls = run[shown.trace].where(kind="handle")
        took_ns = calls.array("end_ns") - calls.array("start_ns")
        assert took_ns[calls.array("id").tolist().index(shown.span)] == 1000 * latency_us
    assert telling.outcome(run) == f"{won.text} {cost.text}"


def test_of_equal_latencies_the_one_that_costs_less_counts():
    carved = {"partitions": CARVED}
    run = run_of(
        {
            "shared": trace_of(latency_us=9),
            "dear": trace_of(latency_us=3, flop=10**8, **carved),
            "cheap": trace_of(latency_us=3, flop=9 * 10**8, **carved),
        }
    )
    first, *_ = telling.compared(run)
    assert (first.subject["setting"], first.subject["base"]) == ("cheap", "shared")
    assert "“cheap” against “shared”" in first.text


@pytest.mark.parametrize("seed", range(8))
def test_the_setting_counts_that_has_the_clearest_difference(seed):
    source = random.Random(seed)  # noqa: S311 - test data
    latencies = [source.choice([10, 60, 360, 2160]) for _ in range(4)]
    run = run_of(
        {
            f"setting {number}": trace_of(
                latency_us=latency_us,
                partitions=CARVED if number else None,
            )
            for number, latency_us in enumerate(latencies)
        }
    )
    first, *_ = telling.compared(run)
    ratios = {
        f"setting {number}": latency_us / latencies[0]
        for number, latency_us in enumerate(latencies)
        if latency_us != latencies[0]
    }
    if not ratios:
        assert first.rule == "change.none"
        return
    farthest = max(abs(math.log(ratio)) for ratio in ratios.values())
    there = {name for name, ratio in ratios.items() if abs(math.log(ratio)) == farthest}
    assert first.subject["setting"] in there
    assert first.rule == f"change.{'better' if ratios[first.subject['setting']] < 1 else 'worse'}"


def test_the_worst_setting_is_told_and_the_best_one_beside_it():
    run = run_of(
        {
            "shared": trace_of(latency_us=40),
            "good": trace_of(latency_us=10, partitions=CARVED),
            "bad": trace_of(latency_us=400, partitions=CARVED),
        }
    )
    several = [each for each in telling.compared(run) if "setting" in each.subject]
    said = [(each.rule, each.subject["setting"]) for each in several]
    assert said == [("change.worse", "bad"), ("change.better", "good")]


def test_what_won_nothing_is_not_called_a_win():
    run = run_of(
        {"shared": trace_of(latency_us=9), "16": trace_of(latency_us=9, partitions=CARVED)}
    )
    (finding,) = telling.compared(run)
    assert (finding.rule, finding["by"].value) == ("change.open", 0)
    assert finding["by"].low < 0 < finding["by"].high


def test_where_latencies_do_not_differ_rates_tell():
    run = run_of(
        {
            "shared": trace_of(latency_us=9),
            "16": trace_of(latency_us=9, kernels=40, partitions=CARVED),
        }
    )
    (finding,) = telling.compared(run)
    assert (finding.rule, finding.subject["workload"]) == ("change.better", "load")
    assert finding["after"].value == pytest.approx(4 * finding["before"].value)


def test_few_calls_tell_nothing_from_noise():
    run = run_of(
        {
            "shared": trace_of(latency_us=9, calls=5, kernels=2),
            "16": trace_of(latency_us=3, calls=5, kernels=2, partitions=CARVED),
        }
    )
    assert [finding.rule for finding in telling.compared(run)] == ["change.unsure"]


def test_below_1000_calls_the_median_counts():
    run = run_of({"shared": trace_of(latency_us=9, calls=20)})
    assert telling.outcome(run).startswith("p50 of small is 9 µs on the whole GPU. load keeps 50 %")


def test_a_rate_above_that_alone_says_why():
    run = run_of({"shared": trace_of(latency_us=9, flop=21 * 10**8)})
    rules = [finding.rule for finding in telling.compared(run)]
    assert rules == ["latency", "load.share", "above-alone"]


def test_without_latencies_the_gain_is_told():
    run = run_of({"shared": trace_of(latency_us=9, calls=0)})
    (finding,) = telling.compared(run)
    (row, *_) = run.comparison.to_pylist()
    assert (finding.rule, row["gain"]) == ("together.unknown", None)
    assert finding["overlap"].value == row["overlap"]


def test_a_simulated_outcome_says_so():
    one = {
        "name": "one", "alone_repeats": 0, "streams": {"s": {}},
        "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    }  # fmt: skip
    gpu = gs.open_device("sim:h200", quiet=True)
    assert telling.outcome(gs.run(one, gpu)).startswith("Simulated: p50 of w is")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"kind": "copy", "nbytes": 1 << 28, "background": True, "max_queued": 4, "stream": "c"},
         "copy 256 MiB on c, in the background, up to 4 queued"),
        ({"kind": "spin", "duration_us": 50, "blocks": 64, "repeats": 5, "guard": False},
         "spin 50 µs blocks 64, 5 calls back to back, guard off: it escapes"),
        ({"kind": "traced_gemm", "m": 1, "n": 2, "k": 3, "repeats": 7, "rate_hz": 5,
          "arrival": "fixed"}, "traced gemm 1×2×3, 7 calls, fixed 5 Hz"),
        ({"kind": "x", "waits_on": 5}, "x, 100 calls back to back, waits on 5"),
        ({"kind": "requests", "times_ms": [0, 1], "repeats": 2, "output_tokens": [1, "a"],
          "prefill": "p", "decode": "d"},
         "2 requests at recorded times, prefilled by p, [1, 'a'] tokens each by d, up to 16 at a time"),
    ],
)  # fmt: skip
def test_a_workload_is_one_line(facts, words):
    assert describe_workload(facts) == words


def test_settings_say_who_had_which_sms_and_what_else_differs():
    carved = trace_of(latency_us=3, partitions=CARVED)
    on = {"s": {"partition": "small"}, "l": {"partition": "load"}}
    run = run_of(
        {"plain": trace_of(latency_us=9), "first": trace_of(latency_us=9), "16": carved,
         "bare": carved},
        streams={"s": {}, "l": {}},
        settings={
            "plain": {}, "first": {"streams": {"s": {"priority": -1}}}, "16": {"streams": on},
            "bare": {"streams": on, "sm_count_target": "off"},
        },
    )  # fmt: skip
    assert describe_settings(run) == {
        "plain": "small and load share the whole GPU",
        "first": "as “plain”, but blocks on stream s start before those of others that wait "
        "(priority -1)",
        "16": "small has 16 SMs, load has the remaining 116 SMs",
        "bare": "as “16”, but cuBLAS is not told how many SMs it has, so it plans for the whole "
        "GPU",
    }


def test_a_function_of_the_users_is_described_as_a_call():
    facts = {"kind": "python:my_model:make_step", "args": {"layers": 4, "mode": "eval"}}
    words = describe_workload({**facts, "stream": "s", "repeats": 10})
    assert words == "my_model:make_step(layers=4, mode='eval') on s, 10 calls back to back"
    assert describe_workload({**facts, "args": {}}).startswith("my_model:make_step(), ")
