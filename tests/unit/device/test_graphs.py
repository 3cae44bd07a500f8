"""Graphs where there are none."""

from __future__ import annotations

import threading

import pytest

import gpuscope as gs
from gpuscope.device.graph import when_allowed


def test_a_device_without_graphs_says_so_and_captures_nothing():
    device = gs.open_device("cpu", quiet=True)
    with device.create_stream() as stream:
        refused = pytest.raises(
            gs.errors.CapabilityError, match="capturing a stream is not possible"
        )
        with refused, stream.capture():
            pass
        assert not stream.capturing
        gs.Gemm(device, m=8, n=8, k=8).execute(stream=stream)


def test_a_simulated_graph_is_recorded_node_by_node_each_in_its_partition():
    gpu = gs.open_device("sim:h200", quiet=True)
    operands = [gpu.random((512, 512), "float16") for _ in range(3)]
    with gpu.carve({"a": 16, "b": 32}) as parts, gpu.create_stream() as whole:
        one, two = parts["a"].create_stream(), parts["b"].create_stream()
        with one.capture(name="step") as graph:
            two.wait(one.record())
            gs.mm_out(*operands, stream=two)
            one.wait(two.record())
            one.copy(operands[1], operands[0])
            gs.mm_out(*operands, stream=one)
        with gs.profile(gpu) as recording:
            for _ in range(2):
                graph.launch(stream=whole)
                whole.synchronize()
    trace = recording.trace
    rows = sorted(
        trace.where(kind=("kernel", "memcpy")).spans.to_pylist(), key=lambda row: row["start_ns"]
    )
    seen = [(row["kind"], row["graph_node"], row["partition"]) for row in rows]
    assert seen == 2 * [("kernel", 0, "b"), ("memcpy", 1, "a"), ("kernel", 2, "a")]
    assert {(row["graph"], row["stream"]) for row in rows} == {(graph.id, whole.id)}
    assert all(row["name"].startswith(("gemm", "copy")) for row in rows)
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == 6
    launched = [edge for edge in trace.edges.to_pylist() if edge["kind"] == "launch"]
    assert sorted(edge["to"] for edge in launched) == sorted(ids)
    assert len({edge["from"] for edge in launched}) == 2


def test_batches_while_a_graph_runs_are_the_trace_too():
    gpu = gs.open_device("sim:h200", quiet=True)
    operands = [gpu.random((2048, 2048), "float16") for _ in range(3)]
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            for _ in range(3):
                gs.mm_out(*operands, stream=stream)
        with gs.profile(gpu) as recording:
            graph.launch(stream=stream)
            while not stream.is_done:
                recording.batches()
        graph.close()
    rows = recording.trace.where(kind="kernel").spans.to_pylist()
    assert [row["graph_node"] for row in rows] == [0, 1, 2]
    assert len({row["id"] for row in rows}) == 3


def test_rows_of_a_simulated_graph_are_what_it_contains():
    gpu = gs.open_device("sim:h200", quiet=True)
    array, other, host = gpu.empty(1000), gpu.empty(1000), gpu.empty_pinned(1000)

    def think():
        pass

    with gpu.create_stream() as stream:
        with stream.capture() as calls:
            stream.host_call(think)
        with stream.capture() as nothing:
            pass
        with stream.capture() as copies:
            stream.copy(array, host)
            stream.copy(other, array)
        with gs.profile(gpu) as recording:
            for graph in (calls, nothing, copies):
                graph.launch(stream=stream)
        for graph in (calls, nothing, copies):
            graph.close()
    trace = recording.trace
    rows = trace.where(kind=("kernel", "memcpy", "host function", "graph")).spans.to_pylist()
    names = ("kind", "copy_kind", "nbytes", "graph", "graph_node")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("host function", None, None, calls.id, 0),
        ("memcpy", "HtoD", 4000, copies.id, 0),
        ("memcpy", "DtoD", 4000, copies.id, 1),
    ]
    assert [row["name"] for row in rows] == ["think", "copy host to device", "copy device"]
    assert "kernel" not in trace.kind_counts(), "nothing of it keeps SMs busy"
    edges = [(edge["from"], edge["to"], edge["kind"]) for edge in trace.edges.to_pylist()]
    assert (rows[1]["id"], rows[2]["id"], "graph") in edges


def test_a_node_keeps_its_partition_if_that_is_closed_before_the_recording_ends():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gs.profile(gpu) as recording, gpu.carve({"a": 16}) as parts:
        stream = parts["a"].create_stream()
        with stream.capture() as graph:
            stream.launch(kernel, 5_000, grid=1, block=32)
        graph.launch(stream=stream)
    trace = recording.trace
    assert trace.where(kind="kernel").texts("partition") == ["a"]


def test_what_is_put_off_inside_of_a_call_is_not_done_there_for_another_gpu(monkeypatch):
    one, other = (gs.open_device("sim:h200", quiet=True) for _ in range(2))
    done: list[str] = []
    with monkeypatch.context() as inside:
        inside.setattr(one.backend, "is_inside", lambda: True)
        when_allowed(one, lambda: done.append("one"))
        when_allowed(other, lambda: done.append("other"))
        assert done == ["other"]
    when_allowed(other, lambda: done.append("again"))
    assert done == ["other", "one", "again"]


def test_a_capture_that_another_thread_ends_puts_nothing_off_afterwards():
    device = gs.open_device("sim:h200", quiet=True)
    done: list[str] = []
    with device.create_stream() as stream:
        capture = stream.capture()
        thread = threading.Thread(target=capture.__enter__)
        thread.start()
        thread.join()
        capture.__exit__(None, None, None)
        when_allowed(device, lambda: done.append("here"))
        assert done == ["here"]
        with stream.capture():
            when_allowed(device, lambda: done.append("later"))
            assert done == ["here"]
        assert done == ["here", "later"]
