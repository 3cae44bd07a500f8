"""What is near-linear in rows, streams and names says the same as the plain definitions."""

from __future__ import annotations

import html as html_text
import itertools
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import analysis, cli
from gpuscope.analysis.busy_analysis import MOST
from gpuscope.analysis.intervals import Groups, union
from gpuscope.analysis.result import SHOWN
from gpuscope.errors import MissingEvidence
from gpuscope.report import trace_report
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.store import save_trace

Row = tuple[str | None, str, int | None, str | None, int, int, int, int | None]
"""Category, name, stream, partition, start, length, uncertainty, operations."""

times = st.integers(0, 60)
rows = st.lists(
    st.tuples(
        st.sampled_from([None, "", "a", "b", "k"]), st.sampled_from(["k", "a", "other"]),
        st.sampled_from([None, 7, 8, 9, 10]), st.sampled_from([None, "p", "q", "whole GPU"]),
        times, st.integers(0, 20), st.integers(0, 5), st.sampled_from([None, 0, 10**12, 10**13]),
    ),
    min_size=1, max_size=40,
)  # fmt: skip
windows = st.lists(times, max_size=6, unique=True).map(
    lambda edges: [list(pair) for pair in itertools.pairwise(sorted(edges))]
)


def build(spans: list[Row], kind: str = "kernel", **metadata: Any) -> Trace:
    category, name, stream, partition, start, lasts, late, flops = zip(*spans, strict=True)
    columns = {
        "id": list(range(len(spans))), "kind": [kind] * len(spans),
        "name": list(name), "category": list(category), "stream": list(stream),
        "partition": list(partition), "start_ns": list(start), "flop_count": list(flops),
        "end_ns": [a + b for a, b in zip(start, lasts, strict=True)],
        "start_uncertainty_ns": list(late), "source": ["cupti"] * len(spans),
    }  # fmt: skip
    # Two streams share a name.
    streams = {"7": {"name": "s"}, "8": {"name": "s"}, "9": {"name": "t"}}
    return Trace.from_columns(columns, None, TraceMetadata(streams=streams, **metadata))


# -- the plain definitions ----------------------------------------------------------------
def length(intervals: Any) -> int:
    return int(np.diff(intervals).sum())


def intersection_ns(one: Any, other: Any) -> int:
    both = union(np.r_[one[:, 0], other[:, 0]], np.r_[one[:, 1], other[:, 1]])
    return length(one) + length(other) - length(both)


def labels_of(trace: Trace, by: str) -> list[str]:
    if by == "partition":
        return [name if name is not None else "whole GPU" for name in trace.texts("partition")]
    if by == "workload":
        pairs = zip(trace.texts("category"), trace.texts("name"), strict=True)
        return [category or str(name) for category, name in pairs]
    streams = trace.texts("stream")
    names = {stream: trace.stream_name(stream) for stream in streams}
    return [
        names[one] if list(names.values()).count(names[one]) == 1
        else f"{names[one]} (stream {one})"
        for one in streams
    ]  # fmt: skip


def masks(labels: list[Any]) -> dict[Any, Any]:
    found = np.empty(len(labels), object)
    found[:] = labels
    return {label: np.array([one == label for one in labels]) for label in dict.fromkeys(labels)}


def makespan(trace: Trace, starts: Any, ends: Any) -> int:
    pairs = trace.metadata.windows_ns or [[starts.min(), ends.max()]]
    covered: set[int] = set()
    for index, (low, high) in enumerate(pairs):
        touched = any(low <= high == other[0] for other in pairs[index + 1 :])
        inside = (starts >= low) & ((starts < high) if touched else (starts <= high))
        if inside.any():
            covered |= set(range(int(starts[inside].min()), int(ends[inside].max())))
    return len(covered)


BY = ("stream", "partition", "workload")


@pytest.mark.no_cover
@given(rows, windows, st.sampled_from(BY))
def test_overlap_is_that_of_every_pair(spans, low_high, by):
    trace = build(spans, windows_ns=low_high)
    starts, ends = trace.array("start_ns"), trace.array("end_ns")
    first = starts + trace.array("start_uncertainty_ns")
    last = np.maximum(first, ends)
    groups = masks(labels_of(trace, by))
    busy = {label: union(starts[mine], ends[mine]) for label, mine in groups.items()}
    tight = {label: union(first[mine], last[mine]) for label, mine in groups.items()}
    found = analysis.overlap(trace, by=by)
    assert [(one.a, one.b) for one in found.pairs] == [*itertools.combinations(sorted(busy), 2)]
    assert found.left_out == 0
    for one in found.pairs:
        a, b = busy[one.a], busy[one.b]
        assert (one.busy_a_ns, one.busy_b_ns) == (length(a), length(b))
        assert one.overlap_ns == intersection_ns(a, b)
        shorter = min(length(tight[one.a]), length(tight[one.b]))
        least = intersection_ns(tight[one.a], tight[one.b]) / shorter if shorter else 0.0
        assert one.tight_fraction == (least if (first > starts).any() else None)
    assert found.makespan_ns == makespan(trace, starts, ends)


@pytest.mark.no_cover
@given(rows, windows)
def test_gain_is_the_sum_of_all_solo_times_over_the_makespan(spans, low_high):
    solo = {label: {"kernel_ns": 3.5} for label in ("a", "b", "k", "other")}
    trace = build(spans, windows_ns=low_high, solo=solo)
    span_ns = makespan(trace, trace.array("start_ns"), trace.array("end_ns"))
    gain = analysis.overlap(trace).gain
    assert gain == (pytest.approx(3.5 * len(spans) / span_ns) if span_ns else None)
    one_less = build(spans, windows_ns=low_high, solo={"a": {"kernel_ns": 3.5}})
    if set(labels_of(trace, "workload")) - {"a"}:
        assert analysis.overlap(one_less).gain is None


@given(rows, st.sampled_from(BY))
def test_concurrency_is_the_time_at_each_number(spans, by):
    trace = build(spans)
    starts, ends = trace.array("start_ns"), trace.array("end_ns")
    busy = [
        {at for low, high in union(starts[mine], ends[mine]).tolist() for at in range(low, high)}
        for mine in masks(labels_of(trace, by)).values()
    ]
    level = [sum(at in one for one in busy) for at in range(100)]
    expected = {count: level.count(count) for count in sorted(set(level)) if count}
    found = analysis.concurrency(trace, by=by)
    assert found.time_ns == expected
    assert list(found.time_ns) == sorted(expected)


@given(rows, windows)
def test_summaries_are_of_each_partition_and_stream(spans, low_high):
    trace = build(spans, windows_ns=low_high)
    starts, ends = trace.array("start_ns"), trace.array("end_ns")
    flops = trace.array("flop_count", fill=-1)
    both = list(zip(labels_of(trace, "partition"), labels_of(trace, "stream"), strict=True))
    groups = masks(both)
    found = analysis.summary(trace).streams
    assert [(one.partition, one.stream) for one in found] == sorted(groups)
    for one in found:
        mine = groups[one.partition, one.stream]
        span_ns = makespan(trace, starts[mine], ends[mine])
        assert one.kernels == mine.sum()
        assert one.busy_ns == length(union(starts[mine], ends[mine]))
        assert one.median_ns == np.median((ends - starts)[mine])
        known = (flops[mine] >= 0).all() and span_ns > 0
        assert one.tflop_per_s == (float(flops[mine].sum()) / span_ns / 1e3 if known else None)


@given(rows, windows)
def test_a_comparison_is_of_each_workload(spans, low_high):
    trace = build(spans, windows_ns=low_high)
    starts, ends = trace.array("start_ns"), trace.array("end_ns")
    flops, partitions = trace.array("flop_count", fill=-1), trace.texts("partition")
    groups = masks(labels_of(trace, "workload"))
    pairs = analysis.overlap(trace, by="workload").pairs
    found = analysis.settings_table({"x": trace}).to_pylist()
    assert [row["workload"] for row in found] == list(groups)
    for row in found:
        mine = groups[row["workload"]]
        span_ns = makespan(trace, starts[mine], ends[mine])
        known = (flops[mine] >= 0).all() and span_ns > 0
        assert row["kernels"] == mine.sum()
        assert row["partition"] == partitions[np.flatnonzero(mine)[0]]
        assert row["kernel_median_us"] == np.median((ends - starts)[mine]) / 1e3
        assert row["tflop_per_s"] == (float(flops[mine].sum()) / span_ns / 1e3 if known else None)
        assert row["overlap"] == max((one.fraction for one in pairs), default=None)


@pytest.mark.no_cover
@given(rows, st.lists(st.booleans(), min_size=40, max_size=40))
def test_latencies_are_of_each_handle(spans, unseen):
    trace = build(spans, "handle")
    columns = trace.spans.to_pydict()
    columns["end_ns"] = [
        None if gone else end for end, gone in zip(columns["end_ns"], unseen, strict=False)
    ]
    trace = Trace.from_columns(columns)
    took = trace.array("end_ns", fill=-1000) - trace.array("start_ns")
    expected = {}
    for label, mine in masks(labels_of(trace, "workload")).items():
        seen = took[mine & (took >= 0)]
        if len(seen):
            quantiles = [float(one) for one in np.quantile(seen, [0.5, 0.9])]
            expected[label] = (len(seen), int(mine.sum()) - len(seen), *quantiles, seen.max())
    if not expected:
        with pytest.raises(MissingEvidence):
            analysis.latency(trace)
        return
    found = analysis.latency(trace).handles
    assert {one.name: (one.n, one.unseen, one.p50_ns, one.p90_ns, one.max_ns) for one in found} == (
        expected
    )


@given(
    st.lists(st.lists(st.integers(0, 10**12), min_size=1, max_size=20), min_size=1, max_size=6),
    st.floats(0, 1),
)
def test_quantiles_are_numpys_to_the_last_digit(values, share):
    code = np.concatenate([np.full(len(one), index) for index, one in enumerate(values)])
    groups = Groups(code, list(range(len(values))))
    found = groups.quantiles(np.concatenate(values), (share, 0.5, 0.9, 0.99))
    for row, one in zip(found, values, strict=True):
        assert row.tolist() == np.quantile(one, [share, 0.5, 0.9, 0.99]).tolist()


# -- more than can be shown ---------------------------------------------------------------
def crowd(streams: int) -> Trace:
    """A kernel on each stream, that of stream n busy for n + 1 ns from 0 on."""
    return build([(None, f"k{n}", n + 100, None, 0, n + 1, 0, None) for n in range(streams)])


def test_of_many_streams_the_busiest_are_paired_and_the_rest_can_be_asked_for():
    found = analysis.overlap(crowd(120))
    assert len(found.pairs) == MOST * (MOST - 1) // 2
    assert found.left_out == 120 * 119 // 2 - len(found.pairs)
    busiest = {f"stream {n + 100}" for n in range(120 - MOST, 120)}
    assert {name for one in found.pairs for name in (one.a, one.b)} == busiest
    rows, left_out = found.most()
    assert len(rows) == SHOWN
    assert left_out == (
        "100 of 1,225 rows, those with most overlap (ms); rows() of the result has all; "
        "5,915 pairs are left out, of others than the 50 streams that were busy longest; "
        "result['a', 'b'] has any"
    )
    least = min(row["overlap (ms)"] for row in rows)
    assert sum(row["overlap (ms)"] > least for row in found.rows()) < SHOWN
    busiest = {f"stream {n + 100}" for n in range(120 - MOST, 120)}
    assert {name for one in found.pairs for name in (one.a, one.b)} == busiest
    rows, left_out = found.most()
    assert len(rows) == SHOWN
    assert left_out == (
        "100 of 1,225 rows, those with most overlap (ms); rows() of the result has all; "
        "5,915 pairs are left out, of others than the 50 streams that were busy longest; "
        "result['a', 'b'] has any"
    )
    assert rows == sorted(found.rows(), key=lambda row: -row["overlap (ms)"])[:SHOWN][::1] or {
        row["overlap (ms)"] for row in rows
    } <= {row["overlap (ms)"] for row in found.rows()}
    assert found["stream 100", "stream 219"] == 1.0
    pair = found.pair("stream 104", "stream 102")
    assert (pair.a, pair.b) == ("stream 102", "stream 104")
    assert (pair.busy_a_ns, pair.busy_b_ns, pair.overlap_ns) == (3, 5, 3)
    for wrong in (("stream 100", "none"), ("stream 100", "stream 100")):
        with pytest.raises(KeyError, match=r"and 7,120 more"):
            found[wrong]
    few = analysis.overlap(crowd(3))
    assert few.left_out == 0
    assert few.most() == (few.rows(), "")


def test_tables_have_as_many_rows_as_can_be_read_and_say_how_many_there_are(tmp_path, capsys):
    trace = crowd(150)
    found = analysis.summary(trace)
    rows, told = found.most()
    assert [row["stream"] for row in rows] == sorted(f"stream {n + 100}" for n in range(50, 150))
    assert told == "100 of 150 rows, those with most busy (ms); rows() of the result has all"
    assert len(found.rows()) == len(found.streams) == 150
    html = found._repr_html_()
    assert (html.count("<tr>"), told in html) == (101, True)
    page = trace_report(trace, tmp_path / "report.html").read_text("utf-8")
    assert told in page
    assert html_text.unescape(page).count("pairs are left out") == 1
    body = page.partition("<body>")[2]
    assert body.count("<tr>") <= 101 * body.count("<table")
    with pytest.raises(SystemExit), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys,
            "argv",
            ["gpuscope", "summary", "--all", str(save_trace(trace, tmp_path / "t.parquet"))],
        )
        cli.main()
    said = " ".join(capsys.readouterr().out.split())
    assert f"Partitions and streams: {told}" in said
    assert "pairs are left out" in said
