"""Edges of waits in other tools' traces: Kineto's synchronisations, and Nsight's."""

from __future__ import annotations

import json
import sqlite3

import nsight_files as nsight
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.trace import waits
from gpuscope.trace.waits import CONTEXT_SYNC, EVENT_SYNC, STREAM_SYNC, STREAM_WAIT

A, B = 7, 20


def edges(trace, kind):
    name = {row["id"]: row["name"] for row in trace.spans.to_pylist()}
    return sorted(
        (name[edge["from"]], name[edge["to"]])
        for edge in trace.edges.to_pylist()
        if edge["kind"] == kind
    )


# -- Kineto ----------------------------------------------------------------------------------
class Kineto:
    """A trace of PyTorch's profiler with enable_cuda_sync_events."""

    def __init__(self):
        self.events, self._next = [], 100

    def _event(self, category, name, *, correlation, dur=5, tid=1, pid=458, **arguments):
        arguments = {"correlation": correlation, **arguments}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "ts": self._next * 10, "dur": dur,
             "pid": pid, "tid": tid, "args": arguments}
        )  # fmt: skip

    def kernel(self, name, stream):
        self._next += 1
        self._event("cuda_runtime", "cudaLaunchKernel", correlation=self._next)
        place = {"tid": stream, "stream": stream, "device": 0, "context": 1, "pid": 0}
        self._event("kernel", name, correlation=self._next, **place)

    def record(self):
        self._next += 1
        self._event("cuda_runtime", "cudaEventRecord", correlation=self._next)
        return self._next

    def sync(self, name, stream, **arguments):
        self._next += 1
        self._event("cuda_runtime", f"call {name}", correlation=self._next)
        place = {"tid": stream, "stream": stream, "device": 0, "context": 1, "pid": 0}
        self._event("cuda_sync", name, correlation=self._next, **place, **arguments)

    def load(self, path):
        base = {"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
        path.write_text(json.dumps({**base, "traceEvents": self.events}))
        return gs.load_trace(path)


def test_kineto_s_synchronisations_become_edges(tmp_path):
    told = Kineto()
    told.kernel("a", A)
    record = told.record()
    told.kernel("later", A)
    of = {"wait_on_stream": A, "wait_on_cuda_event_record_corr_id": record}
    told.sync("Stream Wait Event", B, **of, wait_on_cuda_event_id=3)
    told.kernel("b", B)
    told.sync("Event Sync", -1, **of)
    told.sync("Stream Sync", B)
    told.kernel("last", A)
    told.sync("Context Sync", -1)
    trace = told.load(tmp_path / "kineto.json")
    assert edges(trace, "event wait") == [("a", "b")]
    assert edges(trace, "host wait") == [
        ("a", "Event Sync"),
        ("b", "Context Sync"),
        ("b", "Stream Sync"),
        ("last", "Context Sync"),
    ]
    assert trace.metadata.edges == ("launch", "event wait")


def test_a_kineto_trace_without_synchronisations_tells_launches_only(tmp_path):
    told = Kineto()
    told.kernel("a", A)
    assert told.load(tmp_path / "kineto.json").metadata.edges == ("launch",)
    told.events = [event for event in told.events if event["cat"] == "kernel"]
    assert told.load(tmp_path / "kineto.json").metadata.edges == ()


def test_a_record_before_the_trace_is_waited_for_by_nothing(tmp_path):
    told = Kineto()
    told.sync("Stream Wait Event", B, wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1)
    told.sync("Event Sync", -1, wait_on_stream=A, wait_on_cuda_event_record_corr_id=5)
    told.kernel("b", B)
    trace = told.load(tmp_path / "kineto.json")
    assert edges(trace, "event wait") == edges(trace, "host wait") == []


# -- Nsight Systems --------------------------------------------------------------------------
def test_nsight_s_waits_of_the_host_become_edges(tmp_path):
    path = nsight.capture("two_partitions", tmp_path)
    with sqlite3.connect(path) as file:
        names = "SELECT {} FROM CUPTI_ACTIVITY_KIND_{} ORDER BY start"
        columns = "correlationId, end, globalPid, contextId, greenContextId, streamId, deviceId"
        work = file.execute(names.format(columns, "KERNEL")).fetchall()
        before = [row for row in work if row[5] == 15][:10][-1]
        number, end, pid, context, green, _, device = before
        record = file.execute(
            "SELECT correlationId, eventId, eventSyncId FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT"
            " ORDER BY correlationId"
        ).fetchone()
        rows = [
            (end, end + 9, pid, device, context, green, 15, STREAM_SYNC, number + 1, -1, -1),
            (end, end + 9, pid, device, context, 0, -1, CONTEXT_SYNC, number + 2, -1, -1),
            (end, end + 9, pid, device, context, 0, -1, EVENT_SYNC, number + 3, *record[1:]),
        ]
        file.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, globalPid, deviceId, "
            "contextId, greenContextId, streamId, syncType, correlationId, eventId, eventSyncId) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
    trace = gs.load_trace(path)
    by_id = {row["id"]: row for row in trace.spans.to_pylist()}
    pairs = [
        (by_id[edge["from"]], by_id[edge["to"]]["name"])
        for edge in trace.edges.to_pylist()
        if edge["kind"] == "host wait"
    ]
    of = {name: [row for row, other in pairs if other == name] for _, name in pairs}
    assert [row["correlation"] for row in of["stream synchronize"]] == [number]
    assert number in [row["correlation"] for row in of["context synchronize"]]
    assert len({row["stream"] for row in of["context synchronize"]}) == len(
        of["context synchronize"]
    )
    (waited,) = of["event synchronize"]
    assert (waited["stream"], waited["correlation"] < record[0]) == (15, True)
    assert trace.metadata.edges == ("launch", "event wait")


# -- whatever a file holds -------------------------------------------------------------------
numbers = st.lists(st.integers(0, 40), min_size=0, max_size=30)


def front(work, waits_, stream, number, depth=0):
    """The work behind a moment, as CUDA's rules have it: one after the other."""
    before = [row for row, (of, at) in enumerate(work) if of == stream and at < number]
    last = max(before, key=lambda row: work[row][1], default=None)
    since = -1 if last is None else work[last][1]
    rows = set() if last is None else {last}
    for kind, of, at, of_stream, of_at in waits_:
        inside = kind == STREAM_WAIT and of == stream and since < at < number
        if inside and of_stream not in (None, stream) and depth < 12:
            rows |= front(work, waits_, of_stream, of_at, depth + 1)
    return rows


@given(st.data())
def test_edges_are_those_that_following_every_wait_finds(data):
    """Against one wait after the other, on few streams with many waits."""
    kinds = data.draw(
        st.lists(st.sampled_from(["work", "record", "wait", "sync", "event"]), max_size=40)
    )
    work, made, events = [], [], []
    for number, kind in enumerate(kinds, 1):
        stream = data.draw(st.integers(1, 3))
        if kind == "work":
            work.append((stream, number))
        elif kind == "record":
            events.append((stream, number))
        elif kind == "sync":
            made.append((STREAM_SYNC, stream, number, stream, number))
        else:
            of = data.draw(st.sampled_from(events)) if events else (None, None)
            what = STREAM_WAIT if kind == "wait" else EVENT_SYNC
            made.append((what, stream, number, *of))
    expected = set()
    for row, (kind, stream, number, of_stream, of_number) in enumerate(made):
        if of_stream is None or (kind == STREAM_WAIT and of_stream == stream):
            continue
        target = 1000 + row
        if kind == STREAM_WAIT:
            behind = [at for at, (of, n) in enumerate(work) if of == stream and n > number]
            if not behind:
                continue
            target = behind[0]
        expected |= {(one, target) for one in front(work, made, of_stream, of_number)}
    count = np.arange(len(work))
    table = {"number": [n for _, n in work], "key": [of for of, _ in work], "first": count}
    table |= {"last": count, "launch": [n for _, n in work], "device": count * 0}
    table |= {"start": count, "end": count + 1}
    columns = dict(
        zip(("what", "key", "number", "of_key", "of_number"), zip(*made, strict=True), strict=False)
    )
    columns = {name: [-1 if one is None else one for one in values] for name, values in
               columns.items()}  # fmt: skip
    names = ("what", "key", "number", "of_key", "of_number")
    columns = {name: np.array(columns.get(name, []), np.int64) for name in names}
    columns |= {"row": 1000 + np.arange(len(made)), "is_done": np.zeros(len(made), np.int64)}
    table = {name: np.array(values, np.int64) for name, values in table.items()}
    _, source, target = waits.wait_edges(waits.by_stream(table), columns)
    assert {*zip(source.tolist(), target.tolist(), strict=True)} == expected
