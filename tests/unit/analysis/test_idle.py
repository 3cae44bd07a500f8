"""What GPUs waited for: on hand-made traces, and ns by ns against a plain count."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope import analysis
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata


def build(rows, edges=(), **metadata):
    """Build a trace from dicts with ids; edges are (from, to, kind)."""
    rows = [{"source": "cupti", "process": 9, "name": "k", **row} for row in rows]
    columns = {name: [row.get(name) for row in rows] for name in {n for row in rows for n in row}}
    ends = {key: [edge[at] for edge in edges] for at, key in enumerate(("from", "to", "kind"))}
    return Trace.from_columns(columns, ends if edges else None, TraceMetadata(**metadata))


def call(number, start, end, name="cudaLaunchKernel_v7000", **more):
    return {"id": number, "kind": "api", "name": name, "thread": 1, "start_ns": start,
            "end_ns": end, **more}  # fmt: skip


def work(number, start, end, kind="kernel", **more):
    return {"id": number, "kind": kind, "device": 0, "start_ns": start, "end_ns": end, **more}


def span(number, name, start, end, thread=1):
    return {"id": number, "kind": "range", "name": name, "thread": thread, "start_ns": start,
            "end_ns": end}  # fmt: skip


def causes(trace, *window):
    result = analysis.idle_causes(trace, window or None)
    assert sum(cause.idle_ns for cause in result.causes) == result.idle_ns
    return {(cause.cause, cause.range): cause.idle_ns for cause in result.causes}


SITE = '[["train.py", 7, "step"], ["train.py", 20, "main"]]'
WAIT = '[["train.py", 9, "wait"]]'


def test_a_gap_is_cut_where_its_thread_entered_or_left_calls_and_ranges():
    rows = [
        call(1, 5, 10), work(2, 10, 100),
        call(3, 90, 130, "cudaStreamSynchronize_v3020", site=WAIT),  # idle in it from 100 to 130
        call(4, 150, 170, "cudaMalloc"),
        span(5, "step 3", 140, 260),
        call(6, 175, 180, "cuModuleLoad"),
        call(7, 200, 220, site=SITE), work(8, 250, 300, site=SITE),
    ]  # fmt: skip
    trace = build(rows, [(1, 2, "launch"), (7, 8, "launch")])
    assert causes(trace, 10, 300) == {
        ("in a host wait (cudaStreamSynchronize)", None): 30,
        ("outside CUDA and any range", None): 10,
        ("between two CUDA calls", "step"): 10 + 5 + 20,
        ("memory allocation", "step"): 20,
        ("in another call (cuModuleLoad)", "step"): 5,
        ("in the launch call", "step"): 20,
        ("launch on its way to the GPU", "step"): 30,
    }
    result = analysis.idle_causes(trace, (10, 300))
    lines = {cause.cause: cause.line for cause in result.causes}
    assert lines["in a host wait (cudaStreamSynchronize)"] == "train.py:9 in wait"
    assert lines["in the launch call"] == "train.py:7 in step"
    assert {cause.thread for cause in result.causes} == {"thread 1 of 1"}
    assert {cause.spans for cause in result.causes} == {(8,)}
    assert result.idle_ns == 150


def test_what_was_launched_before_the_gap_waited_for_its_event_or_for_its_turn():
    rows = [
        call(1, 0, 5), call(2, 5, 10), call(3, 10, 15), work(4, 10, 50), work(5, 53, 60),
        work(6, 90, 95), work(7, 20, 80, device=1),
    ]  # fmt: skip
    edges = [(1, 4, "launch"), (2, 5, "launch"), (3, 6, "launch"), (7, 6, "event wait")]
    assert causes(build(rows, edges), 10, 95) == {
        ("between two works on the GPU", None): 3,
        ("waiting for an event", None): 30,
        ("launch call unknown", None): 10,
        ("after the last work", None): 15,
    }


def test_copies_data_and_the_start_have_causes_of_their_own():
    rows = [
        call(1, 100, 120, "queue get"), call(7, 122, 127, "event wait"), call(2, 130, 170, "cudaMemcpyAsync_v3020"),
        work(3, 165, 200, "memcpy"), call(4, 198, 230, "cudaMemcpy_v3020"),
        call(5, 230, 240), work(6, 240, 250),
    ]  # fmt: skip
    trace = build(rows, [(2, 3, "launch"), (5, 6, "launch")], windows_ns=((0, 260),))
    assert causes(trace, 0, 260) == {
        ("start of program", None): 100,
        ("waiting for data", None): 20,
        ("waiting for another thread", None): 5,
        ("between two CUDA calls", None): 5,
        ("in a copy call", None): 35 + 30,
        ("in the launch call", None): 10,
        ("after the last work", None): 10,
    }


def test_idle_time_outside_of_recordings_does_not_count():
    rows = [call(1, 0, 5), work(2, 5, 10), call(3, 90, 95), work(4, 95, 100)]
    trace = build(rows, [(1, 2, "launch"), (3, 4, "launch")], windows_ns=((0, 20), (80, 100)))
    assert causes(trace, 5, 100) == {
        ("between two CUDA calls", None): 10 + 10, ("in the launch call", None): 5,
    }  # fmt: skip


def test_what_cannot_be_asked_is_refused():
    trace = build([work(1, 5, 10)])
    for window in ((), (10, 5), (1.5, 9), (1, 2, 3)):
        with pytest.raises(InvalidArgument):
            analysis.idle_causes(trace, window)
    with pytest.raises(MissingEvidence):
        analysis.idle_causes(build([call(1, 0, 1)]))


@st.composite
def programs(draw):
    """Draw calls of two threads, ranges around them, and work on two GPUs."""
    rows, edges, number = [], [], 0
    names = ("cudaLaunchKernel", "cudaMalloc", "cudaEventSynchronize", "cudaMemcpy", "x")
    for thread in (1, 2):
        at = draw(st.integers(0, 20))
        for _ in range(draw(st.integers(0, 6))):
            number += 1
            length, name = draw(st.integers(0, 9)), draw(st.sampled_from(names))
            rows.append(call(number, at, at + length, name, thread=thread))
            for _ in range(draw(st.integers(0, 2))):
                number += 1
                start = at + draw(st.integers(-3, 30))
                kind = draw(st.sampled_from(("kernel", "memcpy", "memset")))
                more = {"device": draw(st.integers(0, 1))}
                end = draw(st.one_of(st.none(), st.integers(0, 25)))
                end = None if end is None else max(start, 0) + end
                rows.append(work(number, max(start, 0), end, kind, **more))
                edges += [(number - 1, number, "launch")] * (rows[-2]["kind"] == "api")
            at += length + draw(st.integers(0, 9))
        low, high = sorted(draw(st.tuples(st.integers(0, 90), st.integers(0, 90))))
        number += 1
        rows.append(span(number, "r", low, high, thread))
        if draw(st.booleans()) and high - low > 2:
            number += 1
            rows.append(span(number, "inner", low + 1, high - 1, thread))
    number += 1
    rows.append(work(number, draw(st.integers(0, 60)), None if draw(st.booleans()) else 70))
    works = [row["id"] for row in rows if "device" in row]
    for _ in range(draw(st.integers(0, 2))):
        edges.append((draw(st.sampled_from(works)), draw(st.sampled_from(works)), "event wait"))
    cuts = sorted(draw(st.sets(st.integers(0, 130), min_size=4, max_size=4)))
    windows = ((), ((cuts[0], cuts[1]), (cuts[2], cuts[3])))[draw(st.booleans())]
    return build(rows, edges, windows_ns=windows)


def counted(trace, low, high):
    """Count idle ns one by one, and those in which some call of a thread explains nothing else."""
    works = [
        row for row in trace.spans.to_pylist() if row["kind"] in ("kernel", "memcpy", "memset")
    ]
    devices = {row["device"] for row in works}
    windows = trace.metadata.windows_ns or ((low, high),)
    launched_by = {
        edge["to"]: edge["from"] for edge in trace.edges.to_pylist() if edge["kind"] == "launch"
    }
    rows = {row["id"]: row for row in trace.spans.to_pylist()}
    idle = launching = 0
    for device in devices:
        own = sorted((row for row in works if row["device"] == device), key=lambda r: r["start_ns"])
        for ns in range(low, high):
            busy = any(
                row["start_ns"] <= ns and (row["end_ns"] is None or ns < row["end_ns"])
                for row in own
            )
            if busy or not any(first <= ns < last for first, last in windows):
                continue
            idle += 1
            ended = next((row for row in own if row["start_ns"] > ns), None)
            by = rows.get(launched_by.get(ended["id"])) if ended else None
            launching += by is not None and by["start_ns"] <= ns < by["end_ns"]
    return idle, launching


@settings(deadline=None, max_examples=150)
@given(programs(), st.integers(0, 60), st.integers(1, 80))
def test_parts_add_up_to_the_idle_time(trace, low, length):
    result = analysis.idle_causes(trace, (low, low + length))
    sums = Counter()
    for cause in result.causes:
        sums[cause.cause] += cause.idle_ns
    idle, launching = counted(trace, low, low + length)
    assert result.idle_ns == sum(sums.values()) == idle
    assert all(cause.idle_ns > 0 and cause.gaps > 0 for cause in result.causes)
    ties = [row["start_ns"] for row in trace.spans.to_pylist() if "device" in row]
    if len(set(ties)) == len(ties):
        assert sums["in the launch call"] + sums["in a copy call"] >= launching
    steady = analysis.idle_causes(trace)
    assert steady.idle_ns == sum(cause.idle_ns for cause in steady.causes)
