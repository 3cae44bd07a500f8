"""Analyses on hand-made traces whose answers are worked out beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpuscope import analysis
from gpuscope.analysis.intervals import union
from gpuscope.errors import MissingEvidence
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata

Row = tuple[str, int, int | None]
"""Workload, start, end."""


def trace(rows: list[Row], **metadata: Any) -> Trace:
    """Kernels; each workload has the stream and the partition of its name."""
    labels = [row[0] for row in rows]
    numbers = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    return Trace.from_columns(
        {
            "id": list(range(len(rows))),
            "kind": ["kernel"] * len(rows),
            "name": [f"gemm {label}" for label in labels],
            "category": list(labels),
            "start_ns": [row[1] for row in rows],
            "end_ns": [row[2] for row in rows],
            "stream": [numbers[label] for label in labels],
            "partition": list(labels),
            "source": ["simulated"] * len(rows),
        },
        None,
        TraceMetadata(
            streams={str(number): {"name": label} for label, number in numbers.items()}, **metadata
        ),
    )


def handles(rows: list[Row]) -> Trace:
    return Trace.from_columns(
        {
            "id": list(range(len(rows))),
            "kind": ["handle"] * len(rows),
            "name": [row[0] for row in rows],
            "start_ns": [row[1] for row in rows],
            "end_ns": [row[2] for row in rows],
            "source": ["host"] * len(rows),
        }
    )


def test_union_merges_spans_that_touch_or_overlap():
    starts, ends = np.array([20, 0, 10, 5, 40]), np.array([30, 10, 20, 7, 40])
    # 0–10, 10–20 and 20–30 touch; 5–7 is inside; 40–40 is empty and stays apart.
    assert union(starts, ends).tolist() == [[0, 30], [40, 40]]
    assert union(np.zeros(0, np.int64), np.zeros(0, np.int64)).shape == (0, 2)


# -- overlap ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "busy_a", "busy_b", "both", "fraction"),
    [
        # Disjoint: 0–10 and 20–30 share nothing.
        ([("a", 0, 10), ("b", 20, 30)], 10, 10, 0, 0.0),
        # Touching at 10: no time in common.
        ([("a", 0, 10), ("b", 10, 30)], 10, 20, 0, 0.0),
        # Half: 5–10 in both, of min(10, 10).
        ([("a", 0, 10), ("b", 5, 15)], 10, 10, 5, 0.5),
        # b nested in a: 20–25 in both, of min(100, 5): all of the shorter.
        ([("a", 0, 100), ("b", 20, 25)], 100, 5, 5, 1.0),
        # The same span.
        ([("a", 3, 9), ("b", 3, 9)], 6, 6, 6, 1.0),
        # Several: a is busy 0–10, 20–30, 40–50 (30 ns), b 5–25 and 45–100 (75 ns);
        # in both: 5–10, 20–25, 45–50 = 15 ns of min(30, 75).
        (
            [("a", 0, 10), ("a", 20, 30), ("a", 40, 50), ("b", 5, 25), ("b", 45, 100)],
            30, 75, 15, 0.5,
        ),
        # a's kernels overlap each other: the union 0–30 counts once; both: 10–30 of min(30, 40).
        ([("a", 0, 20), ("a", 10, 30), ("a", 12, 18), ("b", 10, 50)], 30, 40, 20, 20 / 30),
        # An empty kernel: nothing to share, no division by zero.
        ([("a", 5, 5), ("b", 0, 10)], 0, 10, 0, 0.0),
        # Rows in any order: a is busy 0–10 and 30–40, b 5–35: 5–10 and 30–35 of min(20, 30).
        ([("a", 30, 40), ("b", 5, 35), ("a", 0, 10)], 20, 30, 10, 0.5),
        # An open kernel of a (no end) is not counted: as "half".
        ([("a", 0, 10), ("b", 5, 15), ("a", 6, None)], 10, 10, 5, 0.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["workload", "stream", "partition"])
def test_overlap(rows, busy_a, busy_b, both, fraction, by):
    result = analysis.overlap(trace(rows), by=by)
    (pair,) = result.pairs
    assert (pair.a, pair.b) == ("a", "b")
    assert (pair.busy_a_ns, pair.busy_b_ns, pair.overlap_ns) == (busy_a, busy_b, both)
    assert pair.fraction == pytest.approx(fraction)
    assert result["a", "b"] == result["b", "a"] == pair.fraction
    assert result.by == by


def test_overlap_of_three_groups_has_three_pairs():
    # a 0–10, b 5–15, c 12–20: a∩b 5 of 10, a∩c nothing, b∩c 12–15 of min(10, 8).
    result = analysis.overlap(trace([("a", 0, 10), ("b", 5, 15), ("c", 12, 20)]), by="workload")
    assert [(pair.a, pair.b) for pair in result.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert result["a", "b"] == 0.5
    assert result["a", "c"] == 0.0
    assert result["c", "b"] == pytest.approx(3 / 8)
    with pytest.raises(KeyError, match="no pair"):
        result["a", "z"]


def test_overlap_at_unix_times_is_exact():
    # ns since 1970 exceed what a float holds: 1 ns of overlap must not be lost.
    start = 1_700_000_000_000_000_001
    result = analysis.overlap(trace([("a", start, start + 3), ("b", start + 2, start + 6)]))
    assert result.pairs[0].overlap_ns == 1


def test_one_group_has_no_pairs():
    result = analysis.overlap(trace([("a", 0, 10)]))
    assert result.pairs == ()
    assert result.makespan_ns == 10


def test_streams_of_one_name_stay_apart():
    # Streams 1 and 2 are both named "s"; merged into one group they would have no overlap.
    both = trace([("a", 0, 10), ("b", 5, 15)], ).with_metadata(
        streams={"0": {"name": "s"}, "1": {"name": "s"}}
    )  # fmt: skip
    (pair,) = analysis.overlap(both, by="stream").pairs
    assert (pair.a, pair.b) == ("s (stream 0)", "s (stream 1)")
    assert pair.overlap_ns == 5


def test_rows_without_a_partition_are_the_whole_gpu():
    rows = trace([("a", 0, 10), ("b", 5, 15)])
    columns = rows.spans.to_pydict()
    columns["partition"] = ["p", None]
    (pair,) = analysis.overlap(Trace.from_columns(columns), by="partition").pairs
    assert (pair.a, pair.b) == ("p", "whole GPU")


def test_overlap_by_something_else():
    with pytest.raises(ValueError, match="'partition', 'stream' or 'workload', not 'colour'"):
        analysis.overlap(trace([("a", 0, 10)]), by="colour")


# -- gain ---------------------------------------------------------------------------------
def test_gain_of_two_that_slow_each_other_down_by_two_is_one():
    # DESIGN's example. Alone each takes 50; together both run 0–100.
    # overlap = 100 / 100; gain = (50 + 50) / 100.
    solo = {"a": {"kernel_ns": 50, "n": 9}, "b": {"kernel_ns": 50, "n": 9}}
    result = analysis.overlap(trace([("a", 0, 100), ("b", 0, 100)], solo=solo))
    assert result["a", "b"] == 1.0
    assert result.gain == 1.0


def test_gain_of_two_that_do_not_slow_each_other_down_is_two():
    # Alone 100 each, together 0–100 both: (100 + 100) / 100.
    solo = {"a": {"kernel_ns": 100}, "b": {"kernel_ns": 100}}
    assert analysis.overlap(trace([("a", 0, 100), ("b", 0, 100)], solo=solo)).gain == 2.0


def test_gain_counts_every_kernel_and_the_idle_time():
    # a: 3 kernels of 10 alone, b: 1 of 40 alone; 0 to 140 with idle time in between:
    # (3·10 + 40) / 140 = 0.5.
    rows = [("a", 0, 20), ("a", 30, 50), ("a", 120, 140), ("b", 0, 60)]
    solo = {"a": {"kernel_ns": 10}, "b": {"kernel_ns": 40}}
    for by in ("workload", "stream", "partition"):
        assert analysis.overlap(trace(rows, solo=solo), by=by).gain == 0.5


@pytest.mark.parametrize(
    "solo", [{}, {"a": {"kernel_ns": 50}}, {"a": {"kernel_ns": 50}, "b": {"n": 0}}]
)
def test_gain_is_unknown_without_every_solo_time(solo):
    result = analysis.overlap(trace([("a", 0, 100), ("b", 0, 100)], solo=solo))
    assert result.gain is None
    assert "unknown" in result.note
    assert result.rows()[0]["gain"] is None


def test_makespan_leaves_out_the_time_between_windows():
    # Windows 0–100 and 1000–1100. First: 10 to 60. Second: 1020 to 1050. 50 + 30 = 80.
    rows = [("a", 10, 30), ("b", 20, 60), ("a", 1020, 1040), ("b", 1030, 1050)]
    windows = [[0, 100], [1000, 1100]]
    solo = {"a": {"kernel_ns": 20}, "b": {"kernel_ns": 20}}
    result = analysis.overlap(trace(rows, windows_ns=windows, solo=solo))
    assert result.makespan_ns == 80
    assert result.gain == 1.0  # 4 · 20 / 80
    # Without windows it is one stretch: 10 to 1050.
    assert analysis.overlap(trace(rows)).makespan_ns == 1040


def test_makespan_of_a_window_without_kernels_and_of_one_that_ends_early():
    # The kernel that started in the window 0–15 ended after it: 5 to 40 counts whole.
    rows = [("a", 5, 40), ("b", 10, 20)]
    result = analysis.overlap(trace(rows, windows_ns=[[0, 15], [500, 600]]))
    assert result.makespan_ns == 35


# -- concurrency --------------------------------------------------------------------------
def test_concurrency_is_a_time_average_over_busy_time():
    # a 0–10, b 5–15, c 30–40. One busy: 0–5, 10–15, 30–40 = 20; two: 5–10 = 5; idle 15–30
    # does not count. Mean (1·20 + 2·5) / 25 = 1.2.
    result = analysis.concurrency(trace([("a", 0, 10), ("b", 5, 15), ("c", 30, 40)]))
    assert result.time_ns == {1: 20, 2: 5}
    assert result.mean == pytest.approx(1.2)


def test_concurrency_counts_groups_not_kernels():
    # Two kernels of one stream at once are one busy stream: 0–10 alone, 10–20 with b.
    result = analysis.concurrency(trace([("a", 0, 15), ("a", 5, 20), ("b", 10, 20)]))
    assert result.time_ns == {1: 10, 2: 10}
    assert result.mean == 1.5


def test_concurrency_of_touching_spans_never_dips_or_peaks():
    # b begins where a ends, and a again where b ends.
    result = analysis.concurrency(trace([("a", 0, 10), ("b", 10, 20), ("a", 20, 30)]))
    assert result.time_ns == {1: 30}
    assert result.mean == 1.0


def test_concurrency_of_many():
    # Four at once for 10 ns.
    result = analysis.concurrency(trace([(name, 0, 10) for name in "abcd"]))
    assert result.time_ns == {4: 10}
    assert result.mean == 4.0
    assert result.rows() == [{"busy streams": 4, "ms": 1e-5, "share of busy time": 1.0}]


def test_concurrency_shares_add_up():
    rows = analysis.concurrency(trace([("a", 0, 30), ("b", 0, 10)])).rows()
    assert [row["share of busy time"] for row in rows] == pytest.approx([2 / 3, 1 / 3])


def test_concurrency_of_kernels_without_length():
    result = analysis.concurrency(trace([("a", 5, 5)]))
    assert (result.mean, result.time_ns) == (0.0, {})


# -- latency ------------------------------------------------------------------------------
def test_latency_quantiles():
    # Durations 0, 10, …, 100: linear quantiles of 11 values are at 50, 90 and 100.
    found = analysis.latency(handles([("g", 7, 7 + 10 * index) for index in range(11)]))["g"]
    assert (found.n, found.unseen) == (11, 0)
    assert (found.p50_ns, found.p90_ns, found.max_ns) == (50.0, 90.0, 100)
    assert found.p99_ns is None


@pytest.mark.parametrize(("count", "stated"), [(999, False), (1000, True), (1001, True)])
def test_p99_needs_a_thousand_samples(count, stated):
    rows = [("g", 5 * index, 5 * index + index) for index in range(count)]
    found = analysis.latency(handles(rows))["g"]
    assert found.n == count
    if stated:
        # Durations 0…n−1: the linear 0.99-quantile is 0.99·(n − 1).
        assert found.p99_ns == pytest.approx(0.99 * (count - 1))
    else:
        assert found.p99_ns is None


def test_unseen_calls_are_left_out_and_counted():
    # 10 and 20 were seen; the two open ones must not count as long, short, or samples.
    rows = [("g", 0, 10), ("g", 5, None), ("g", 30, 50), ("g", 90, None)]
    found = analysis.latency(handles(rows))["g"]
    assert (found.n, found.unseen) == (2, 2)
    assert (found.p50_ns, found.max_ns) == (15.0, 20)


def test_unseen_calls_do_not_make_a_p99():
    rows: list[Row] = [("g", index, index + 5) for index in range(999)]
    found = analysis.latency(handles([*rows, ("g", 2000, None)]))["g"]
    assert (found.n, found.unseen, found.p99_ns) == (999, 1, None)


def test_latency_keeps_handles_apart_and_prefers_the_category():
    rows = handles([("x", 0, 10), ("y", 0, 30), ("x", 50, 70)])
    assert analysis.latency(rows)["x"].p50_ns == 15.0
    assert analysis.latency(rows)["y"].p50_ns == 30.0
    columns = rows.spans.to_pydict()
    columns["category"] = ["small", "small", None]
    found = analysis.latency(Trace.from_columns(columns))
    assert [(handle.name, handle.n) for handle in found.handles] == [("small", 2), ("x", 1)]
    with pytest.raises(KeyError, match=r"no handle 'y'.*small"):
        found["y"]


def test_latency_needs_a_completion():
    with pytest.raises(MissingEvidence, match="completion"):
        analysis.latency(handles([("g", 0, None)]))


# -- queue depth --------------------------------------------------------------------------
def load_and_samples(load: list[tuple[int, int | None]], samples: list[int]) -> Trace:
    """Kernels of 'load' (queued, ended) and calls of 'small' (entered)."""
    count = len(load) + len(samples)
    return Trace.from_columns(
        {
            "id": list(range(count)),
            "kind": ["kernel"] * len(load) + ["handle"] * len(samples),
            "name": ["k"] * count,
            "category": ["load"] * len(load) + ["small"] * len(samples),
            "queued_ns": [row[0] for row in load] + [None] * len(samples),
            "start_ns": [row[0] + 1 for row in load] + samples,
            "end_ns": [row[1] for row in load] + [at + 1 for at in samples],
            "source": ["simulated"] * count,
        }
    )


def test_queue_depth():
    # Kernels live 0–100, 10–200, 20–300 and 250–never. At 5: one. At 50: three. At 150: two.
    # At 260: the third and fourth. At 400: only the open one.
    load: list[tuple[int, int | None]] = [(0, 100), (10, 200), (20, 300), (250, None)]
    found = analysis.queue_depth(
        load_and_samples(load, [5, 50, 150, 260, 400]), of="load", at="small"
    )
    assert found.depths == (1, 3, 2, 2, 1)
    assert found.minimum == 1
    assert found.rows()[0]["median"] == 2.0
    assert found.rows()[0]["n"] == 5


def test_queue_depth_keeps_the_samples_in_order_and_ends_are_exclusive():
    # At 110 the first has ended and the second, queued at 110, is in: one. Before all: none.
    found = analysis.queue_depth(
        load_and_samples([(10, 110), (110, 210)], [110, 60, 9]), of="load", at="small"
    )
    assert found.depths == (1, 1, 0)


def test_queue_depth_of_a_kernel_that_ended_before_its_call_returned_is_never_negative():
    columns = load_and_samples([(40, 50)], [45, 50, 55, 60, 65]).spans.to_pydict()
    columns["queued_ns"] = [60 if kind == "kernel" else None for kind in columns["kind"]]
    found = analysis.queue_depth(Trace.from_columns(columns), of="load", at="small")
    assert found.depths == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(("of", "at"), [("nobody", "small"), ("load", "nobody")])
def test_queue_depth_without_rows(of, at):
    with pytest.raises(MissingEvidence, match="'nobody'"):
        analysis.queue_depth(load_and_samples([(0, 9)], [1]), of=of, at=at)


def test_queue_depth_without_launch_times():
    unknown = trace([("load", 0, 10)])
    columns = Trace.concat([unknown, load_and_samples([], [5])]).spans.to_pydict()
    with pytest.raises(MissingEvidence, match="queued_ns"):
        analysis.queue_depth(Trace.from_columns(columns), of="load", at="small")


# -- summary ------------------------------------------------------------------------------
def with_flops(rows: Trace, flops: list[int | None]) -> Trace:
    columns = rows.spans.to_pydict()
    columns["flop_count"] = flops
    return Trace.from_columns(columns, None, rows.metadata)


def test_summary():
    # a: 0–10 and 5–25 → busy 25, durations 10 and 20 → median 15, 25 ns from first to last;
    # 2·10⁶ operations in 25 ns = 80 000 op/ns = 80 TFLOP/s.
    # b: 30–40 → 10⁵ operations in 10 ns = 10 000 op/ns = 10 TFLOP/s.
    rows = trace([("a", 0, 10), ("a", 5, 25), ("b", 30, 40)])
    a, b = analysis.summary(with_flops(rows, [10**6, 10**6, 10**5])).streams
    assert (a.partition, a.stream, a.kernels, a.busy_ns, a.median_ns) == ("a", "a", 2, 25, 15.0)
    assert (b.partition, b.stream, b.kernels, b.busy_ns, b.median_ns) == ("b", "b", 1, 10, 10.0)
    assert a.tflop_per_s == pytest.approx(80.0)
    assert b.tflop_per_s == pytest.approx(10.0)
    assert a.p99_ns is b.p99_ns is None


def test_summary_knows_no_rate_unless_every_kernel_states_its_operations():
    rows = trace([("a", 0, 10), ("a", 10, 20), ("b", 0, 10)])
    a, b = analysis.summary(with_flops(rows, [10**6, None, 10**5])).streams
    assert a.tflop_per_s is None
    assert b.tflop_per_s == pytest.approx(10.0)
    assert [row.tflop_per_s for row in analysis.summary(rows).streams] == [None, None]


def test_summary_rate_over_windows():
    # 10 ns busy in each of two windows: 2·10⁵ operations in 20 ns = 10 TFLOP/s.
    rows = trace([("a", 0, 10), ("a", 1000, 1010)], windows_ns=[[0, 50], [990, 1050]])
    (a,) = analysis.summary(with_flops(rows, [10**5, 10**5])).streams
    assert a.tflop_per_s == pytest.approx(10.0)


def test_summary_p99_needs_a_thousand_kernels():
    # Durations 1…1000: the 0.99-quantile is 1 + 0.99·999 = 990.01.
    rows: list[Row] = [("a", 2000 * index, 2000 * index + index + 1) for index in range(1000)]
    (a,) = analysis.summary(trace(rows)).streams
    assert a.p99_ns == pytest.approx(990.01)
    (a,) = analysis.summary(trace(rows[:-1])).streams
    assert a.p99_ns is None


def test_summary_keeps_streams_of_one_name_apart():
    columns = trace([("a", 0, 10), ("b", 5, 15)]).spans.to_pydict()
    columns["partition"] = ["p", "p"]
    metadata = TraceMetadata(streams={"0": {"name": "s"}, "1": {"name": "s"}})
    found = analysis.summary(Trace.from_columns(columns, None, metadata)).streams
    assert [(row.stream, row.kernels) for row in found] == [
        ("s (stream 0)", 1),
        ("s (stream 1)", 1),
    ]


def test_summary_shows_itself_escaped():
    rows = trace([("<b>", 0, 10)])
    html = analysis.summary(rows)._repr_html_()
    assert "<b>" not in html.replace("<th>", "")
    assert "&lt;b&gt;" in html


# -- compare ------------------------------------------------------------------------------
def setting(slow: int, *, solo: dict[str, Any] | None = None) -> Trace:
    """Workload a, one kernel of ``slow`` ns; b beside it; 1,000 calls of a, 2·slow each."""
    kernels = with_flops(trace([("a", 0, slow), ("b", 0, 100)]), [10**5, None])
    calls = handles([("a", 10_000 * index, 10_000 * index + 2 * slow) for index in range(1000)])
    return Trace.concat([kernels, calls]).with_metadata(solo=solo or {})


def test_compare():
    solo = {"a": {"kernel_ns": 50, "whole_gpu_tflop_per_s": 4.0}, "b": {"kernel_ns": 50}}
    table = analysis.settings_table({"shared": setting(100, solo=solo), "carved": setting(50)})
    assert table.column_names == [
        "setting", "rank", "workload", "partition", "sms", "kernels", "kernel_median_us", "latency_n",
        "latency_p50_us", "latency_p90_us", "latency_p99_us", "collective_us",
        "collective_skew_us", "bus_gb_per_s", "requests_n", "ttft_p50_ms", "ttft_p90_ms",
        "ttft_p99_ms", "tbt_n", "tbt_p50_ms", "tbt_p90_ms", "tbt_p99_ms", "requests_per_s", "goodput_per_s", "calls_per_s", "tflop_per_s", "gb_per_s",
        "share_of_alone_on_whole_gpu", "joules_per_call", "dynamic_joules_per_call", "idle_w",
        "overlap", "overlap_tight", "gain", "low", "high", "interval_of",
        "busy_sms", "busy_sms_p95", "tensor_share", "dram_gb_per_s", "dram_share", "sm_clock_mhz", "power_w", "throttled", "incomplete",
    ]  # fmt: skip
    rows = {(row["setting"], row["workload"]): row for row in table.to_pylist()}
    assert list(rows) == [("shared", "a"), ("shared", "b"), ("carved", "a"), ("carved", "b")]
    a = rows["shared", "a"]
    assert (a["partition"], a["kernels"], a["latency_n"]) == ("a", 1, 1000)
    assert a["calls_per_s"] == pytest.approx(1000 / 100e-9)
    assert rows["shared", "b"]["calls_per_s"] is None
    assert a["kernel_median_us"] == pytest.approx(0.1)
    assert a["latency_p50_us"] == a["latency_p90_us"] == pytest.approx(0.2)
    assert a["latency_p99_us"] == pytest.approx(0.2)
    # 10⁵ operations in 100 ns = 1000 op/ns = 1 TFLOP/s, a quarter of 4 alone.
    assert a["tflop_per_s"] == pytest.approx(1.0)
    assert a["share_of_alone_on_whole_gpu"] == pytest.approx(0.25)
    # 0–100 both: overlap 1; gain (50 + 50) / 100.
    assert (a["overlap"], a["gain"]) == (1.0, 1.0)
    b = rows["shared", "b"]
    assert b["latency_n"] is b["latency_p50_us"] is b["latency_p99_us"] is None
    carved = rows["carved", "a"]
    assert carved["kernel_median_us"] == pytest.approx(0.05)
    assert carved["tflop_per_s"] == pytest.approx(2.0)
    assert carved["share_of_alone_on_whole_gpu"] is None
    assert (carved["overlap"], carved["gain"]) == (1.0, None)


def test_compare_states_no_rate_for_kernels_without_operations():
    (_, b) = analysis.settings_table({"x": setting(100)}).to_pylist()
    assert b["workload"] == "b"
    assert b["tflop_per_s"] is None


def test_compare_of_nothing():
    assert analysis.settings_table({}).num_rows == 0
    assert analysis.settings_table({"x": Trace.from_columns({})}).num_rows == 0
    (row,) = analysis.settings_table({"x": trace([("a", 0, 10)])}).to_pylist()
    assert row["overlap"] is None
    assert row["latency_n"] is None


# -- nothing to judge ---------------------------------------------------------------------
@pytest.mark.parametrize(
    "nothing",
    [Trace.from_columns({}), trace([("a", 0, None)]), handles([("g", 0, 10)])],
    ids=["empty", "only open kernels", "no kernels"],
)
@pytest.mark.parametrize("judge", [analysis.overlap, analysis.concurrency, analysis.summary])
def test_no_finished_kernel(judge, nothing):
    with pytest.raises(MissingEvidence, match="no finished kernel"):
        judge(nothing)


def test_no_handle():
    for nothing in (Trace.from_columns({}), trace([("a", 0, 10)])):
        with pytest.raises(MissingEvidence, match="completion"):
            analysis.latency(nothing)


def test_analyses_leave_the_trace_alone():
    rows = trace([("a", 0, 10), ("b", 5, 15)])
    before = rows.spans.to_pydict()
    for judge in (analysis.overlap, analysis.concurrency, analysis.summary):
        judge(rows)
    assert rows.spans.to_pydict() == before


def test_overlap_tight_shrinks_spans_by_their_uncertainty():
    # a runs 0–100 for certain; b's bracket is 20–80, but b may have begun as late as 70
    # and ended as early as 75: it overlapped a for 5 to 60 ns, in full either way.
    trace = Trace.from_columns(
        {
            "id": [1, 2],
            "kind": ["kernel", "kernel"],
            "name": ["a", "b"],
            "category": ["a", "b"],
            "start_ns": [0, 20],
            "end_ns": [100, 80],
            "start_uncertainty_ns": [0, 50],
            "end_uncertainty_ns": [90, 5],  # a may have ended at 10
            "source": ["events", "events"],
        }
    )
    (pair,) = analysis.overlap(trace, by="workload").pairs
    assert pair.fraction == 1.0
    # shrunk: a is 0–10, b is 70–75: nothing overlapped
    assert pair.tight_fraction == 0.0


def test_overlap_tight_is_unknown_without_uncertainties():
    trace = Trace.from_columns(
        {
            "id": [1, 2],
            "kind": ["kernel", "kernel"],
            "name": ["a", "b"],
            "start_ns": [0, 20],
            "end_ns": [100, 80],
            "source": ["simulated", "simulated"],
        }
    )
    (pair,) = analysis.overlap(trace, by="workload").pairs
    assert pair.tight_fraction is None


def test_rates_of_what_is_not_a_gemm():
    """Calls a second, bytes and the share of alone need no kernel that states operations."""
    kernels = trace([("a", 0, 100), ("a", 100, 200), ("b", 0, 50)])
    calls = handles([("a", 0, 110), ("a", 100, 210), ("copies", 0, 400)])
    table = calls.spans
    table = table.set_column(
        table.column_names.index("nbytes"), "nbytes", pa.array([50, 50, None], pa.int64())
    )
    calls = Trace(table, calls.edges, calls.metadata)
    solo = {"a": {"kernel_ns": 50, "whole_gpu_calls_per_s": 4e7}}
    seen = Trace.concat([kernels, calls]).with_metadata(solo=solo)
    rows = {row["workload"]: row for row in analysis.settings_table({"x": seen}).to_pylist()}
    assert rows["a"]["calls_per_s"] == pytest.approx(1e7)
    assert rows["a"]["gb_per_s"] == pytest.approx(0.5)
    assert rows["a"]["tflop_per_s"] is None
    assert rows["a"]["share_of_alone_on_whole_gpu"] == pytest.approx(0.25)
    assert (rows["copies"]["kernels"], rows["copies"]["kernel_median_us"]) == (0, None)
    assert rows["copies"]["calls_per_s"] == pytest.approx(1 / 400e-9)
    assert rows["b"]["calls_per_s"] is None
