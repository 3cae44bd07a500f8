"""Gaps and launch latency, on hand-made traces whose answers are worked out beside them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import analysis
from gpuscope.errors import MissingEvidence
from gpuscope.trace import Trace
from gpuscope.trace.columns import codes
from gpuscope.trace.metadata import TraceMetadata


def build(rows, launches=(), **metadata):
    """Build a trace from dicts; ids are positions, ``launches`` are (call, work)."""
    rows = [{"id": index, "source": "cupti", "name": "k", **row} for index, row in enumerate(rows)]
    names = {name for row in rows for name in row}
    columns = {name: [row.get(name) for row in rows] for name in names}
    edges = {
        "from": [call for call, _ in launches],
        "to": [work for _, work in launches],
        "kind": ["launch"] * len(launches),
    }
    return Trace.from_columns(columns, edges if launches else None, TraceMetadata(**metadata))


def work(start, end, name="k", stream=1, kind="kernel", **more):
    return {
        "kind": kind, "name": name, "start_ns": start, "end_ns": end, "stream": stream, **more,
    }  # fmt: skip


# -- gaps ---------------------------------------------------------------------------------
def test_gaps_of_a_stream():
    # Busy 0–10, 15–25 (two that overlap), 65–70: gaps 10–15 and 25–65. Busy 10 + 10 + 5.
    rows = [work(0, 10, "a"), work(15, 20, "b"), work(18, 25, "c"), work(65, 70, "d")]
    (track,) = analysis.gaps(build(rows)).tracks
    assert (track.name, track.spans, track.busy_ns, track.number) == ("stream 1", 4, 25, 2)
    assert (track.total_ns, track.median_ns, track.max_ns) == (45, 22.5, 40)
    assert track.p90_ns == pytest.approx(36.5)  # linear between 5 and 40
    assert track.busy_fraction == pytest.approx(25 / 70)
    first, second = track.longest
    assert (first.start_ns, first.end_ns, first.length_ns) == (25, 65, 40)
    assert (first.before, first.after) == ("c", "d")
    assert (second.before, second.after) == ("a", "b")


def test_the_span_before_a_gap_is_the_one_that_ended_last():
    # "long" covers "short", which starts later and ends earlier.
    rows = [work(0, 50, "long"), work(10, 20, "short"), work(60, 70, "next")]
    (gap,) = analysis.gaps(build(rows)).tracks[0].longest
    assert (gap.before, gap.after) == ("long", "next")


def test_copies_and_memsets_are_busy_and_host_rows_are_not():
    rows = [
        work(0, 10, "k"), work(20, 30, "copy", kind="memcpy"), work(30, 40, "set", kind="memset"),
        work(12, 18, "call", kind="api"), work(41, 42, "range", kind="range"),
        work(43, 44, "block", kind="block"),
    ]  # fmt: skip
    (track,) = analysis.gaps(build(rows)).tracks
    assert (track.spans, track.number, track.total_ns) == (3, 1, 10)


def test_touching_spans_leave_no_gap():
    (track,) = analysis.gaps(build([work(0, 10), work(10, 20)])).tracks
    assert (track.number, track.total_ns, track.median_ns, track.max_ns) == (0, 0, None, None)
    assert track.busy_fraction == 1.0
    assert track.longest == ()


def test_tracks_are_streams_partitions_or_devices():
    rows = [
        work(0, 10, stream=1, partition="p", device=0),
        work(20, 30, stream=2, partition="p", device=0),
        work(40, 50, stream=10, device=0),
    ]  # fmt: skip
    trace = build(rows, devices={"cuda:0": {"index": 0}}, streams={"1": {"name": "s"}})
    # No stream has two spans, so none has a gap; p idles 10–20, the device also 30–40.
    by_stream = analysis.gaps(trace)
    assert [track.name for track in by_stream.tracks] == ["s", "stream 2", "stream 10"]
    assert [track.number for track in by_stream.tracks] == [0, 0, 0]
    by_partition = analysis.gaps(trace, by="partition")
    assert {track.name: track.total_ns for track in by_partition.tracks} == {
        "whole GPU": 0, "p": 10,
    }  # fmt: skip
    assert analysis.gaps(trace, by="device")["cuda:0"].total_ns == 20
    with pytest.raises(KeyError, match=r"no device 'cuda:9'.*cuda:0"):
        analysis.gaps(trace, by="device")["cuda:9"]


def test_tracks_of_one_name_stay_apart():
    rows = [work(0, 10, stream=1), work(20, 30, stream=2)]
    same = build(rows, streams={"1": {"name": "s"}, "2": {"name": "s"}})
    assert [one.name for one in analysis.gaps(same).tracks] == ["s (stream 1)", "s (stream 2)"]
    # A stream's number may be used on two devices.
    two = build([work(0, 10, device=0), work(20, 30, device=1)], devices={"cuda:1": {"index": 1}})
    assert [one.name for one in analysis.gaps(two).tracks] == [
        "stream 1 on device 0", "stream 1 on cuda:1",
    ]  # fmt: skip


def test_what_lies_between_windows_is_no_gap():
    # Gaps 10–20 and 130–140 are inside windows; 30–120 leads from one to the next.
    rows = [work(0, 10), work(20, 30), work(120, 130), work(140, 150)]
    (track,) = analysis.gaps(build(rows, windows_ns=[[0, 50], [110, 160]])).tracks
    assert (track.number, track.total_ns, track.busy_ns) == (2, 20, 40)
    assert track.busy_fraction == pytest.approx(40 / 60)
    # Windows that touch are one stretch, in any order.
    (track,) = analysis.gaps(build(rows, windows_ns=[[50, 160], [0, 50]])).tracks
    assert (track.number, track.total_ns) == (3, 110)


def test_gaps_below_min_ns_are_not_counted_but_idle():
    rows = [work(0, 10), work(11, 21), work(31, 41)]
    result = analysis.gaps(build(rows), min_ns=5)
    (track,) = result.tracks
    assert (track.number, track.total_ns, track.max_ns) == (1, 10, 10)
    assert track.busy_fraction == pytest.approx(30 / 41)
    assert "at least 5 ns" in result.note


def test_an_open_span_is_busy_until_the_window_ends():
    rows = [work(0, 10), work(20, None, stream=2), work(50, 60)]
    trace = build([{**row, "device": 0} for row in rows], windows_ns=[[0, 100]])
    assert analysis.gaps(trace, by="device").tracks[0].total_ns == 10
    assert [track.total_ns for track in analysis.gaps(trace).tracks] == [40, 0]


def test_only_the_longest_gaps_are_told_one_by_one():
    starts = np.cumsum(np.arange(50) + 10)
    (track,) = analysis.gaps(build([work(int(at), int(at) + 1) for at in starts])).tracks
    assert track.number == 49
    assert [gap.length_ns for gap in track.longest] == [58, 57, 56, 55, 54]


def test_gaps_show_themselves():
    result = analysis.gaps(build([work(0, 10, "<a>"), work(20, 30, "b")]))
    (row,) = result.rows()
    assert (row["gaps"], row["longest is between"]) == (1, "<a> and b")
    assert "&lt;a&gt; and b" in result._repr_html_()
    assert "measured" in result.note


@pytest.mark.parametrize("rows", [[], [work(0, 9, kind="api")]])
def test_gaps_need_gpu_work(rows):
    with pytest.raises(MissingEvidence, match="profile"):
        analysis.gaps(build(rows))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="'stream', 'partition' or 'device', not 'colour'"):
        analysis.gaps(build([work(0, 9)]), by="colour")
    with pytest.raises(ValueError, match="min_ns"):
        analysis.gaps(build([work(0, 9)]), min_ns=-1)


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 12), st.integers(0, 2)),
        min_size=1,
        max_size=15,
    ),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=2),
    st.integers(0, 4),
)
def test_gaps_are_what_counting_every_ns_finds(spans, windows, min_ns):
    trace = build(
        [
            work(start, start + length, f"k{number}", stream=stream)
            for number, (start, length, stream) in enumerate(spans)
        ],
        windows_ns=[[low, low + length] for low, length in windows],
    )
    recorded = np.zeros(200, bool)
    for low, length in windows or [(0, 199)]:
        recorded[low : low + length] = True
    tracks = analysis.gaps(trace, min_ns=min_ns).tracks
    assert [track.name for track in tracks] == [
        f"stream {stream}" for stream in sorted({stream for _, _, stream in spans})
    ]
    for track in tracks:
        stream = int(track.name.removeprefix("stream "))
        mine = [(start, start + length) for start, length, other in spans if other == stream]
        busy = np.zeros(200, bool)
        # An empty span splits a gap, so edges count as well as busy time.
        cuts = {edge for span in mine for edge in span}
        for start, end in mine:
            busy[start:end] = True
        low, high = min(cuts), max(cuts)
        found, begin = [], None
        for at in range(low, high + 1):
            idle = at < high and not busy[at]
            if begin is not None and (not idle or at in cuts):
                found.append((begin, at))
                begin = None
            if idle and begin is None:
                begin = at
        inside = [(start, end) for start, end in found if recorded[start:end].all()]
        idle = sum(end - start for start, end in inside)
        assert track.spans == len(mine)
        assert track.busy_ns == busy.sum()
        assert track.busy_fraction == (track.busy_ns / (track.busy_ns + idle) if idle else
                                       float(track.busy_ns > 0))  # fmt: skip
        inside = [(start, end) for start, end in inside if end - start >= min_ns]
        lengths = [end - start for start, end in inside]
        assert track.number == len(inside)
        assert track.total_ns == sum(lengths)
        assert track.max_ns == max(lengths, default=None)
        assert track.median_ns == (np.quantile(lengths, 0.5) if lengths else None)
        assert track.p90_ns == (np.quantile(lengths, 0.9) if lengths else None)
        in_order = sorted(
            (start, number, start + length)
            for number, (start, length, other) in enumerate(spans)
            if other == stream
        )
        told = []
        for low, high in sorted(inside, key=lambda one: one[0] - one[1])[:5]:
            before = [number for start, number, end in in_order if start < high and end == low]
            after = [number for start, number, _ in in_order if start == high]
            told.append((low, high, f"k{before[-1]}", f"k{after[0]}"))
        assert [
            (gap.start_ns, gap.end_ns, gap.before, gap.after) for gap in track.longest
        ] == told  # fmt: skip


def test_a_text_that_a_dictionary_holds_twice_is_one_value():
    column = pa.chunked_array([pa.DictionaryArray.from_arrays([0, 1, 2, None], ["a", "b", "a"])])
    found, values = codes(column)
    assert found.tolist() == [1, 2, 1, 0]
    assert values == [None, "a", "b"]


# -- launch latency -----------------------------------------------------------------------
def call(start, end, **more):
    return {"kind": "api", "name": "launch", "start_ns": start, "end_ns": end, **more}


def test_launch_latency_is_from_the_calls_start_and_queueing_from_its_end():
    # Calls 0–4 and 10–14; kernels start at 7 and 110: latency 7 and 100, queueing 3 and 96.
    rows = [call(0, 4), call(10, 14), work(7, 100, "a"), work(110, 120, "b")]
    result = analysis.launch_latency(build(rows, [(0, 2), (1, 3)]))
    (stream,) = result.streams
    assert (stream.name, stream.n, stream.p50_ns, stream.max_ns) == ("stream 1", 2, 53.5, 100)
    assert stream.p90_ns == pytest.approx(90.7)
    assert stream.p99_ns is None
    assert stream.queueing_p50_ns == 49.5
    assert stream.queueing_share == pytest.approx(99 / 107)
    assert {one.name: one.p50_ns for one in result.kernels} == {"a": 7, "b": 100}
    assert (result.unmatched, result.before_call) == (0, 0)
    assert [row["of"] for row in result.rows()] == ["stream", "kernel", "kernel"]


def test_a_kernel_that_starts_before_its_call_returned_did_not_queue():
    (one,) = analysis.launch_latency(build([call(0, 9), work(5, 6)], [(0, 1)])).streams
    assert (one.p50_ns, one.queueing_p50_ns, one.queueing_share) == (5, 0, 0)


def test_kernels_of_a_graph_share_a_call_and_copies_do_not_count():
    rows = [call(0, 4), work(10, 20), work(30, 40), work(5, 6, kind="memcpy")]
    (one,) = analysis.launch_latency(build(rows, [(0, 1), (0, 2), (0, 3)])).streams
    assert (one.n, one.p50_ns) == (2, 20)


def test_of_two_calls_the_innermost_counts():
    rows = [call(3, 4), call(0, 9), work(10, 11)]
    (one,) = analysis.launch_latency(build(rows, [(0, 2), (1, 2)])).streams
    assert one.max_ns == 7


def test_what_cannot_be_matched_or_is_off_is_said():
    # One kernel without a call, one whose edge leads nowhere, one 2 ns before its call.
    rows = [call(10, 12), work(8, 20), work(30, 40), work(50, 60)]
    result = analysis.launch_latency(build(rows, [(0, 1), (99, 2)]))
    assert (result.unmatched, result.before_call, result.streams[0].max_ns) == (2, 1, -2)
    assert "2 kernels have no known launch call" in result.note
    assert "1 seem to start before theirs" in result.note


def test_a_call_that_did_not_return_says_nothing_of_queueing():
    (one,) = analysis.launch_latency(build([call(0, None), work(7, 9)], [(0, 1)])).streams
    assert (one.p50_ns, one.queueing_p50_ns, one.queueing_share) == (7, None, None)


@pytest.mark.parametrize(("count", "stated"), [(999, False), (1000, True)])
def test_p99_needs_a_thousand_kernels(count, stated):
    rows = [call(0, 1), *(work(index, None) for index in range(count))]
    trace = build(rows, [(0, 1 + index) for index in range(count)])
    (one,) = analysis.launch_latency(trace).streams
    assert one.p99_ns == (pytest.approx(0.99 * (count - 1)) if stated else None)


def test_launch_latency_needs_kernels_and_launch_calls():
    with pytest.raises(MissingEvidence, match="no kernel"):
        analysis.launch_latency(build([call(0, 1)]))
    with pytest.raises(MissingEvidence, match=r"none of 1 rows.*profile\(launch_ids=True\)"):
        analysis.launch_latency(build([call(0, 1), work(2, 3)]))
    with pytest.raises(MissingEvidence, match="launch_ids"):
        analysis.launch_latency(build([work(2, 3)], [(77, 0)]))
