"""A headline is the largest true difference of the rows, in its direction, with its size."""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from test_outcome import CARVED, WORKLOADS, run_of, trace_of

from gpuscope import telling
from gpuscope.analysis.headline import changes, headline
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.run import Run

OF_RATES = "share_of_alone_on_whole_gpu"


def random_trace(source, *, carved, calls):
    """Two timed workloads with latencies of their own, and a load with a rate of its own."""
    rows = []
    for stream, name in enumerate(("small", "other"), 1):
        typical_ns, width = source.choice([5_000, 40_000, 45_000, 200_000]), source.uniform(0, 0.4)
        for call in range(calls):
            took_ns = round(typical_ns * source.uniform(1, 1 + width))
            begin_ns = call * 1_000_000
            rows.append(
                {
                    "kind": "handle",
                    "name": name,
                    "category": name,
                    "stream": stream,
                    "start_ns": begin_ns,
                    "end_ns": begin_ns + took_ns,
                }
            )
    kernels, each_ns = source.choice([10, 11, 20, 80]), source.choice([10_000, 11_000, 40_000])
    load = {"kind": "kernel", "name": "k", "category": "load", "stream": 9, "flop_count": 10**9}
    load["partition"] = "load" if carved else None
    rows += [
        load | {"start_ns": index * each_ns, "end_ns": (index + 1) * each_ns}
        for index in range(kernels)
    ]
    names = {name for row in rows for name in row}
    columns = {name: [row.get(name) for row in rows] for name in names}
    columns |= {"id": [*range(len(rows))], "source": ["cupti"] * len(rows)}
    metadata = TraceMetadata(
        partitions=CARVED if carved else {},
        windows_ns=[[0, 10**9]],
        solo={"load": {"kernel_ns": each_ns, "whole_gpu_tflop_per_s": 200.0}},
    )
    return Trace.from_columns(columns, None, metadata)


def random_run(seed, settings=None):
    source = random.Random(seed)  # noqa: S311 - test data
    count = settings or source.randint(2, 5)
    calls = source.choice([20, 200, 1000])
    traces = {
        f"setting {number}": random_trace(source, carved=source.random() < 0.6, calls=calls)
        for number in range(count)
    }
    plans = {**WORKLOADS, "other": {"kind": "gemm", "background": False, "stream": "o"}}
    return run_of(traces, workloads=plans)


# -- the same from the rows, in plain Python -------------------------------------------------
def quantile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def half_width(values, share):
    values, count = sorted(values), len(values)
    reach = 1.96 * math.sqrt(count * share * (1 - share))
    low = max(math.floor(share * count - reach), 0)
    high = min(math.ceil(share * count + reach), count - 1)
    return (values[high] - values[low]) / 2 / quantile(values, share)


def numbers(run):
    """Return workload → setting → (number, half width of its interval), from all rows."""
    found = {}
    for setting, trace in run.traces.items():
        rows = trace.spans.to_pylist()
        for workload in ("small", "other"):
            took_us = [
                (row["end_ns"] - row["start_ns"]) / 1e3
                for row in rows
                if row["kind"] == "handle" and row["category"] == workload
            ]
            share = 0.99 if len(took_us) >= 1000 else 0.5
            value = quantile(took_us, share), half_width(took_us, share)
            found.setdefault(workload, {})[setting] = value
        load = [row for row in rows if row["category"] == "load"]
        span_ns = max(row["end_ns"] for row in load) - min(row["start_ns"] for row in load)
        rate = sum(row["flop_count"] for row in load) / span_ns / 1e3 / 200.0
        found.setdefault("load", {})[setting] = rate, 0.0
    return found


def differences(run):
    """Return (workload, setting) → (before, after, noise), each against the first uncarved one."""
    plain = [name for name, trace in run.traces.items() if not trace.metadata.partitions]
    base = [*plain, *run.traces][0]
    calls = len(next(iter(run.traces.values())).where(kind="handle", category="small"))
    least = {"load": 0.06}
    found = {}
    for workload, values in numbers(run).items():
        before, spread = values[base]
        for setting, (after, other_spread) in values.items():
            if setting != base:
                noise = max(
                    least.get(workload, 0.23 if calls >= 1000 else 0.07),
                    math.hypot(spread, other_spread),
                )
                found[workload, setting] = before, after, noise
    return base, found


def size(difference):
    before, after, _ = difference
    return abs(math.log(after / before))


def is_true(difference):
    return size(difference) > math.log(1 + difference[2])


@pytest.mark.parametrize("seed", range(20))
def test_every_change_is_that_of_the_rows(seed):
    run = random_run(seed)
    base, expected = differences(run)
    found = {(one.workload, one.setting): one for one in changes(run)}
    assert found.keys() == expected.keys()
    for key, (before, after, noise) in expected.items():
        change = found[key]
        assert change.base == base
        assert (change.before, change.after) == pytest.approx((before, after))
        assert change.noise == pytest.approx(noise)
        assert change.is_better == ((after > before) if key[0] == "load" else (after < before))
        assert change.within_noise == (not is_true((before, after, noise)))


@pytest.mark.parametrize("seed", range(30))
def test_of_two_settings_it_is_the_largest_true_difference_of_all(seed):
    run = random_run(seed, settings=2)
    _, expected = differences(run)
    true = {key: one for key, one in expected.items() if is_true(one)}
    about = headline(run)
    key = about.change.workload, about.change.setting
    if not true:
        assert about.change.within_noise
        return
    assert size(expected[key]) == pytest.approx(max(map(size, true.values())))
    assert not about.change.within_noise
    others = {(one.workload, one.setting) for one in about.beside}
    assert others == expected.keys() - {key}


@pytest.mark.parametrize("seed", range(30))
def test_of_several_settings_the_largest_true_difference_of_a_latency_tells_which(seed):
    run = random_run(seed)
    _, expected = differences(run)
    true = {key: one for key, one in expected.items() if is_true(one)}
    latencies = {key: one for key, one in true.items() if key[0] != "load"}
    about = headline(run)
    change = about.change
    if not true:
        assert change.within_noise
        return
    tells = latencies or true
    first = max(tells, key=lambda key: size(tells[key]))
    same = {first[1]}
    before, after, noise = tells[first]
    if first[0] != "load" and after < before:
        same |= {
            setting
            for (workload, setting), one in latencies.items()
            if workload == first[0]
            and one[1] < one[0]
            and size(tells[first]) - size(one) <= math.log(1 + max(noise, one[2]))
        }
        kept = {name: expected["load", name][1] / expected["load", name][0] for name in same}
        assert kept[change.setting] == pytest.approx(max(kept.values()))
    assert change.setting in same
    here = [one for (_, setting), one in true.items() if setting == change.setting]
    assert change.size == pytest.approx(max(map(size, here)))
    if latencies and after > before:
        better = [
            one
            for (workload, _), one in latencies.items()
            if workload == first[0] and one[1] < one[0]
        ]
        assert (about.best is None) == (not better)
        if better:
            assert about.best.size == pytest.approx(max(map(size, better)))


def test_a_run_that_is_worse_than_the_one_it_is_compared_with_says_so():
    run = run_of(
        {
            "Run 1: pinned": trace_of(latency_us=43, calls=30),
            "Run 2: shown": trace_of(latency_us=110, calls=30, partitions=CARVED),
        }
    )
    change = headline(run).change
    assert (change.workload, change.column) == ("small", "latency_p50_us")
    assert (change.base, change.setting) == ("Run 1: pinned", "Run 2: shown")
    assert (change.before, change.after) == (43, 110)
    assert not change.is_better
    assert not change.within_noise
    first, *_ = telling.compared(run)
    assert (first.rule, first.severity) == ("slower.number", "warning")
    assert (first["before"].value, first["after"].value, first["after"].unit) == (43, 110, "µs")
    low, high = first["by"].low, first["by"].high
    assert first["by"].value == pytest.approx(110 / 43 - 1)
    assert low < first["by"].value < high
    for shown, latency_us in zip(first.spans, (43, 110), strict=True):
        (call,) = (
            run[shown.trace]
            .where(kind="handle")
            .spans.filter(
                pc.equal(run[shown.trace].where(kind="handle").spans.column("id"), shown.span)
            )
            .to_pylist()
        )
        assert call["end_ns"] - call["start_ns"] == 1000 * latency_us
    assert "43 µs → 110 µs (+156 %) on 16 SMs" in telling.outcome(run)


def test_the_worst_setting_is_told_and_the_best_one_beside_it():
    run = run_of(
        {
            "shared": trace_of(latency_us=40),
            "good": trace_of(latency_us=20, partitions=CARVED),
            "bad": trace_of(latency_us=200, partitions=CARVED),
        }
    )
    about = headline(run)
    assert (about.change.setting, about.best.setting) == ("bad", "good")
    assert "best in “good”" in telling.outcome(run)


def test_a_load_that_stands_still_is_told_before_a_latency_that_hardly_differs():
    run = run_of(
        {
            "shared": trace_of(latency_us=9, flop=10**9),
            "16": trace_of(latency_us=9, flop=10**8, partitions=CARVED),
        }
    )
    change = headline(run).change
    assert (change.workload, change.column) == ("load", OF_RATES)
    assert change.after / change.before == pytest.approx(0.1)


def test_few_calls_tell_nothing_from_noise():
    run = run_of(
        {
            "shared": trace_of(latency_us=9, calls=5),
            "16": trace_of(latency_us=3, calls=5, partitions=CARVED),
        }
    )
    change = headline(run).change
    assert math.isinf(change.noise)
    assert change.within_noise
    assert "too few calls" in telling.outcome(run)


def test_a_number_that_becomes_nothing_is_a_difference_without_a_share():
    plan = {"chat": {"kind": "requests", "slo": {"ttft_ms": 8}}}
    rows = [
        {
            "setting": name,
            "workload": "chat",
            "partition": None,
            "latency_n": None,
            "latency_p99_us": None,
            "latency_p50_us": None,
            "share_of_alone_on_whole_gpu": None,
            "requests_n": 100,
            "requests_per_s": 10.0,
            "goodput_per_s": goodput,
            "ttft_p50_ms": 1.0,
            "tbt_p50_ms": 1.0,
        }
        for name, goodput in (("shared", 8.0), ("carved", 0.0))
    ]
    plain = trace_of(latency_us=9, calls=0)
    run = Run({"shared": plain, "carved": plain}, pa.Table.from_pylist(rows), {"workloads": plan})
    change = headline(run).change
    assert (change.before, change.after, change.is_better) == (8.0, 0.0, False)
    assert math.isinf(change.size)
    assert "8 requests/s → 0 requests/s" in telling.outcome(run)


def test_a_rate_above_that_alone_says_why():
    run = run_of(
        {
            "shared": trace_of(latency_us=9, flop=21 * 10**8),
            "16": trace_of(latency_us=3, partitions=CARVED),
        }
    )
    words = telling.outcome(run)
    assert "(105 % in “shared”)" in words
    assert "above 100 %: " in words
