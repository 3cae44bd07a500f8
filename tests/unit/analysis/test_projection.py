"""Ranges projected on the GPU, on hand-made traces and against a plain count."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import analysis
from gpuscope.analysis import projection
from gpuscope.errors import MissingEvidence
from gpuscope.trace import Trace, schema
from gpuscope.trace.metadata import TraceMetadata


def build(rows, launches=()):
    """Build a trace from dicts; ids are positions, ``launches`` are (call, work)."""
    rows = [{"id": index, "source": "cupti", "name": "k", **row} for index, row in enumerate(rows)]
    names = {name for row in rows for name in row}
    edges = {
        "from": [call for call, _ in launches],
        "to": [work for _, work in launches],
        "kind": ["launch"] * len(launches),
    }
    return Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names},
        edges if launches else None,
        TraceMetadata(),
    )


def annotated(name, start, end, thread=1, **more):
    return {
        "kind": "range", "name": name, "start_ns": start, "end_ns": end, "thread": thread, **more,
    }  # fmt: skip


def launches(*each, ranges=()):
    """Build ranges, then a call and its work for each (call start, start, end[, thread])."""
    rows, edges = list(ranges), []
    for at, start, end, *more in each:
        thread = more[0] if more else 1
        kind = more[1] if len(more) > 1 else "kernel"
        edges.append((len(rows), len(rows) + 1))
        rows.append({"kind": "api", "start_ns": at, "end_ns": at + 1, "thread": thread})
        rows.append({"kind": kind, "start_ns": start, "end_ns": end})
    return build(rows, edges)


def projected(trace, **options):
    return analysis.range_projection(trace, **options).ranges.to_pylist()


def test_a_range_reaches_from_the_first_start_to_the_last_end_of_its_work():
    # Launched at 1, 2 and 8 in 0–9; they run 20–30, 25–40 and 60–65: 20 to 65, busy 20 + 5.
    trace = launches(
        (1, 20, 30), (2, 25, 40), (8, 60, 65, 1, "memcpy"), ranges=[annotated("r", 0, 9)]
    )
    (row,) = projected(trace)
    assert (row["gpu_start_ns"], row["gpu_end_ns"]) == (20, 65)
    assert (row["projected_ns"], row["busy_ns"], row["host_ns"]) == (45, 25, 9)
    assert (row["kernels"], row["copies"]) == (2, 1)
    one = analysis.range_projection(trace)["r"]
    assert (one.n, one.launched, one.projected_ns, one.busy_ns) == (1, 1, 45, 25)


def test_work_belongs_to_every_range_around_its_launch():
    # The inner range launched the second; the outer both; "after" none.
    ranges = [annotated("outer", 0, 100), annotated("inner", 40, 60), annotated("after", 100, 110)]
    outer, inner, after = projected(launches((10, 200, 210), (50, 300, 340), ranges=ranges))
    assert (outer["gpu_start_ns"], outer["gpu_end_ns"], outer["busy_ns"]) == (200, 340, 50)
    assert (inner["gpu_start_ns"], inner["gpu_end_ns"], inner["busy_ns"]) == (300, 340, 40)
    assert (after["gpu_start_ns"], after["projected_ns"], after["busy_ns"]) == (None, None, None)
    assert (after["kernels"], after["host_ns"]) == (0, 10)


def test_a_range_holds_its_start_and_not_its_end():
    # On a clock that does not advance between two ranges, a call belongs to the second.
    ranges = [annotated("first", 0, 10), annotated("second", 10, 20)]
    first, second = projected(launches((10, 30, 40), ranges=ranges))
    assert (first["kernels"], second["kernels"]) == (0, 1)


def test_only_what_the_ranges_thread_launched_is_its_work():
    ranges = [annotated("one", 0, 9, 1), annotated("two", 0, 9, 2), annotated("none", 0, 9, None)]
    one, two, none = projected(launches((1, 20, 30, 1), (2, 50, 70, 2), ranges=ranges))
    assert (one["busy_ns"], two["busy_ns"], none["busy_ns"]) == (10, 20, None)


def test_threads_of_one_number_in_two_processes_are_two():
    rows = [
        annotated("one", 0, 9, 1, process=1), annotated("two", 0, 9, 1, process=2),
        {"kind": "api", "start_ns": 1, "end_ns": 2, "thread": 1, "process": 2},
        {"kind": "kernel", "start_ns": 5, "end_ns": 8},
    ]  # fmt: skip
    assert [row["kernels"] for row in projected(build(rows, [(2, 3)]))] == [0, 1]
    # Where the calls do not say their process, the thread decides.
    del rows[2]["process"]
    assert [row["kernels"] for row in projected(build(rows, [(2, 3)]))] == [1, 1]


def test_a_start_end_range_has_what_its_starting_thread_launched_until_it_ended():
    rows = [annotated("r", 0, 50, 1, end_thread=2, range_style="start/end")]
    (row,) = projected(launches((10, 60, 70, 1), (20, 80, 90, 2), (60, 99, 100, 1), ranges=rows))
    assert (row["kernels"], row["gpu_start_ns"], row["gpu_end_ns"]) == (1, 60, 70)


def test_an_open_range_goes_on_and_has_no_host_time():
    trace = launches((10, 60, 70), ranges=[annotated("r", 0, None)])
    (row,) = projected(trace)
    assert (row["host_ns"], row["busy_ns"]) == (None, 10)
    one = analysis.range_projection(trace)["r"]
    assert (one.host_ns, one.host_median_ns, one.projected_median_ns) == (0, None, 10)


def test_work_without_an_end_or_a_launch_call_is_in_no_range():
    rows = [
        annotated("r", 0, 50),
        {"kind": "api", "start_ns": 1, "end_ns": 2, "thread": 1},
        {"kind": "kernel", "start_ns": 5, "end_ns": 8},
        {"kind": "kernel", "start_ns": 9, "end_ns": None},
        {"kind": "kernel", "start_ns": 20, "end_ns": 30},
    ]
    result = analysis.range_projection(build(rows, [(1, 2), (1, 3)]))
    assert result.ranges.column("gpu_end_ns").to_pylist() == [8]
    assert result.unmatched == 1
    assert "1 rows of GPU work without a known launch call" in result.note


def test_ranges_are_summed_by_name_and_domain():
    # "a" on the host 9, 9, 9; on the GPU 10, 20, nothing; median of two is their mean.
    ranges = [
        annotated("a", 0, 9, domain="d"), annotated("a", 10, 19, domain="d"),
        annotated("a", 20, 29, domain="d"), annotated("a", 30, 38), annotated("b", 40, 49),
    ]  # fmt: skip
    trace = launches((1, 100, 110), (11, 200, 220), (31, 300, 305), ranges=ranges)
    result = analysis.range_projection(trace)
    found = {(one.domain, one.name): one for one in result.names}
    assert set(found) == {("d", "a"), (None, "a"), (None, "b")}
    one = found["d", "a"]
    assert (one.n, one.launched, one.kernels) == (3, 2, 2)
    assert (one.host_ns, one.host_median_ns) == (27, 9)
    assert (one.projected_ns, one.projected_median_ns, one.busy_ns) == (30, 15, 30)
    assert (found[None, "b"].launched, found[None, "b"].projected_median_ns) == (0, None)
    rows = {(row["domain"], row["range"]): row for row in result.rows()}
    assert rows[None, "b"]["on GPU (ms)"] is None
    assert rows["d", "a"]["on GPU median (µs)"] == 0.015
    with pytest.raises(KeyError, match="no range 'z'"):
        result["z"]


def test_ranges_are_chosen_by_name_and_domain():
    ranges = [annotated("a", 0, 9, domain="d"), annotated("a", 0, 9), annotated("b", 0, 9)]
    trace = launches((1, 20, 30), ranges=ranges)
    assert len(projected(trace, name="a")) == 2
    assert len(projected(trace, name="a", domain="d")) == 1
    with pytest.raises(MissingEvidence, match=r"no range with name 'c'; there are \['a', 'b'\]"):
        analysis.range_projection(trace, name="c")


def test_projection_needs_ranges_work_and_launch_calls():
    with pytest.raises(MissingEvidence, match="annotate"):
        analysis.range_projection(launches((1, 2, 3)))
    with pytest.raises(MissingEvidence, match="no finished kernel"):
        analysis.range_projection(build([annotated("r", 0, 9)]))
    rows = [annotated("r", 0, 9), {"kind": "kernel", "start_ns": 1, "end_ns": 2}]
    with pytest.raises(MissingEvidence, match="launch_ids"):
        analysis.range_projection(build(rows))


def test_times_since_1970_are_exact():
    start = 1_700_000_000_000_000_001
    trace = launches((start, start + 3, start + 4), ranges=[annotated("r", start, start + 9)])
    (row,) = projected(trace)
    assert (row["gpu_start_ns"], row["busy_ns"]) == (start + 3, 1)


times = st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(1, 2))


@given(
    st.lists(times, min_size=1, max_size=8),
    st.lists(st.tuples(times, st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=12),
    st.sampled_from([1, 7, 4_000_000]),
)
def test_projection_is_what_a_plain_count_finds(ranges, work, at_once):
    trace = launches(
        *((at, at + late, at + late + long, thread) for (at, _, thread), late, long in work),
        ranges=[annotated(str(i), at, at + long, thread)
                for i, (at, long, thread) in enumerate(ranges)],
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projection, "_PAIRS_AT_ONCE", at_once)
        found = projected(trace)
    for row, (at, long, thread) in zip(found, ranges, strict=True):
        mine = [
            (call + late, call + late + length)
            for (call, _, other), late, length in work
            if other == thread and at <= call < at + long
        ]
        assert row["kernels"] == len(mine)
        if not mine:
            assert row["projected_ns"] is None
            continue
        assert row["gpu_start_ns"] == min(start for start, _ in mine)
        assert row["gpu_end_ns"] == max(end for _, end in mine)
        assert row["busy_ns"] == len({ns for start, end in mine for ns in range(start, end)})


def test_a_million_rows_take_about_a_second():
    # A range around every ten launches, one around every thousand, one around all.
    count = 300_000
    calls = np.arange(count, dtype=np.int64) * 100
    starts = np.concatenate([calls[::10], calls[::1000], calls[:1]])
    ends = np.concatenate([calls[::10] + 1000, calls[::1000] + 100_000, [count * 100]])
    parts = [calls, calls + 5000, starts]
    sizes = [len(part) for part in parts]
    kinds = pa.DictionaryArray.from_arrays(
        np.repeat(np.arange(3, dtype=np.int32), sizes), ["api", "kernel", "range"]
    )
    ids = np.arange(sum(sizes))
    columns = {
        "id": ids,
        "kind": kinds,
        "name": kinds,
        "source": kinds,
        "start_ns": np.concatenate(parts),
        "end_ns": np.concatenate([calls + 50, calls + 5080, ends]),
        "thread": np.ones(len(ids), np.int64),
    }
    spans = pa.table(
        [columns.get(name, pa.nulls(len(ids))) for name in schema.SPAN_TYPES],
        names=list(schema.SPAN_TYPES),
    )
    edges = pa.table(
        {"from": ids[:count], "to": ids[count : 2 * count], "kind": pa.array(["launch"] * count)}
    )
    edges = edges.set_column(2, "kind", edges.column("kind").dictionary_encode())
    began_s = time.process_time()
    result = analysis.range_projection(Trace(spans, edges, TraceMetadata()))
    assert time.process_time() - began_s < 10  # about 0.6 s; machines of CI are slow
    assert result["range"].kernels == 3 * count
    assert result["range"].busy_ns == 3 * 80 * count


def test_ranges_of_one_path_are_told_together():
    # Two steps with a forward and an inner layer each; the second "forward" stands alone.
    ranges = [
        annotated("step 1", 0, 50), annotated("forward", 5, 30), annotated("layer.0", 10, 20),
        annotated("step 2", 100, 150), annotated("forward", 105, 130),
        annotated("forward", 200, 230), annotated("forward", 210, 220, thread=2),
    ]  # fmt: skip
    trace = launches((12, 60, 70), (110, 160, 165), (112, 170, 180), (205, 240, 250), ranges=ranges)
    result = analysis.range_projection(trace)
    counts = {
        path.name: (path.n, path.launches, path.busy_ns, path.idle_ns) for path in result.paths
    }
    assert counts == {
        "step": (2, 3, 25, 5), "step › forward": (2, 3, 25, 5), "step › forward › layer": (1, 1, 10, 0),
        "forward": (2, 1, 10, 0),
    }  # fmt: skip
    assert result.ranges["path"].to_pylist()[:3] == [
        "step",
        "step › forward",
        "step › forward › layer",
    ]
    assert result["step › forward"].host_ns == 50
    assert result["step 1"].n == 1
    assert [row["range"] for row in result.rows()] == list(counts)
    with pytest.raises(TypeError, match="not iterable"):
        list(result)


def test_idle_inside_is_when_the_gpu_of_the_range_ran_nothing_at_all():
    rows = [
        annotated("r", 0, 10), {"kind": "api", "start_ns": 1, "end_ns": 2, "thread": 1},
        {"kind": "api", "start_ns": 3, "end_ns": 4, "thread": 1},
        {"kind": "kernel", "start_ns": 20, "end_ns": 30, "device": 0},
        {"kind": "kernel", "start_ns": 60, "end_ns": 70, "device": 0},
        {"kind": "kernel", "start_ns": 25, "end_ns": 45, "device": 0},  # of somebody else
        {"kind": "memcpy", "start_ns": 55, "end_ns": 90, "device": 0},
        {"kind": "kernel", "start_ns": 0, "end_ns": 99, "device": 1},
    ]  # fmt: skip
    (row,) = projected(build(rows, [(1, 3), (2, 4)]))
    assert (row["projected_ns"], row["busy_ns"], row["idle_ns"]) == (50, 20, 10)
    assert row["launches"] == 2


def test_a_graph_is_one_launch_of_many_works():
    rows = [
        annotated("r", 0, 10), {"kind": "api", "start_ns": 1, "end_ns": 2, "thread": 1},
        {"kind": "kernel", "start_ns": 20, "end_ns": 30},
        {"kind": "kernel", "start_ns": 30, "end_ns": 40},
    ]  # fmt: skip
    (row,) = projected(build(rows, [(1, 2), (1, 3)]))
    assert (row["kernels"], row["launches"]) == (2, 1)
