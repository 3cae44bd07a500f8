"""Edges of an ordinary PyTorch program on a GPU: what host, streams and threads waited for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.trace.sites import lines_of

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

CLOCKS_NS = 5_000
"""So much may CUPTI's time of the GPU be off against the host's."""


class Told:
    """What a trace tells of its edges."""

    def __init__(self, trace):
        self.trace = trace
        self.row = {row["id"]: row for row in trace.spans.to_pylist()}
        self.edges = trace.edges.to_pylist()

    def pairs(self, kind):
        return [
            (self.row[edge["from"]], self.row[edge["to"]])
            for edge in self.edges
            if edge["kind"] == kind
        ]

    def at(self, kind, text):
        """Return the pairs whose second row is at the line with a text."""
        return [pair for pair in self.pairs(kind) if line_at(pair[1]) == line_of(text)]


def line_of(text):
    source = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)


def line_at(row):
    lines = lines_of(row["site"])
    return lines[0].line if lines else 0


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    x = torch.randn(2048, 2048, device="cuda")
    torch.mm(x, x).sum().item()
    yield device
    device.close()


def test_every_wait_ends_behind_the_work_that_it_was_for(gpu):
    x, side = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    event, polled = torch.cuda.Event(), torch.cuda.Event()
    far = torch.randn(1 << 22)
    torch.cuda.synchronize()
    with gs.profile(gpu) as recording:
        y = torch.mm(x, x)
        total = y.sum().item()  # item
        torch.mm(x, x)
        event.record()
        with torch.cuda.stream(side):
            side.wait_event(event)  # stream wait
            torch.mul(x, 2)
            polled.record()
        while not polled.query():  # poll
            pass
        torch.mm(x, x)
        event.record()
        event.synchronize()  # event wait
        torch.mm(x, x)
        torch.cuda.synchronize()  # device wait
        near = far.to("cuda")  # to the GPU
        near.cpu()  # from the GPU
    told = Told(recording.trace)
    assert recording.trace.metadata.complete
    assert recording.trace.metadata.edges == ("launch", "event wait", "host wait")
    assert isinstance(total, float)
    for text in ("# item", "# poll", "# event wait", "# device wait", "# from the GPU"):
        assert told.at("host wait", text), text
    assert [other["name"].split("_")[0] for _, other in told.at("host wait", "# poll")] == [
        "cudaEventQuery"
    ]
    for work, call in told.pairs("host wait"):
        assert call["kind"] in ("sync", "api")
        assert work["end_ns"] <= call["end_ns"] + CLOCKS_NS, (work["name"], call["name"])
    ((before, behind),) = told.pairs("event wait")
    assert before["stream"] != behind["stream"]
    assert "mul" in behind["name"] or "elementwise" in behind["name"]
    assert before["end_ns"] <= behind["start_ns"] + CLOCKS_NS
    (seen,) = [work for work, _ in told.at("host wait", "# poll")]
    assert seen["id"] == behind["id"]


def test_a_pageable_copy_from_the_gpu_is_what_its_own_call_waited_for(gpu):
    cupy = pytest.importorskip("cupy")
    near = cupy.ones(1 << 22, cupy.float32)
    near.get()
    with gs.profile(gpu) as recording:
        near.get()  # blocking
    told = Told(recording.trace)
    copies = [pair for pair in told.pairs("host wait") if pair[0]["kind"] == "memcpy"]
    launched = {(call["id"], work["id"]) for call, work in told.pairs("launch")}
    assert copies
    assert any((call["id"], work["id"]) in launched for work, call in copies) or all(
        call["kind"] == "sync" for _, call in copies
    )


def test_a_wait_behind_a_graph_is_for_its_last_node(gpu):
    x = torch.randn(256, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(5):
            y = torch.relu(y @ x)
    graph.replay()
    torch.cuda.synchronize()
    with gs.profile(gpu) as recording:
        for _ in range(3):
            graph.replay()
        torch.cuda.current_stream().synchronize()  # graph wait
    told = Told(recording.trace)
    nodes = [work for _, work in told.pairs("launch")]
    assert len(nodes) == len([row for row in told.row.values() if row["graph"] is not None]) >= 30
    (waited,) = [work for work, _ in told.at("host wait", "# graph wait")]
    assert waited["end_ns"] == max(row["end_ns"] for row in nodes)


def test_our_own_waits_are_told_once_and_other_libraries_work_is_in_them(gpu):
    x = torch.randn(512, 512, device="cuda")
    with gpu.create_stream() as stream:
        with gs.CallerStreamGuard(stream, bind=True):
            torch.mm(x, x)
        stream.synchronize()
        with gs.profile(gpu) as recording:
            with gs.CallerStreamGuard(stream, bind=True):
                torch.mm(x, x)
            stream.synchronize()
    told = Told(recording.trace)
    (wait,) = [row for row in told.row.values() if row["kind"] == "sync"]
    assert wait["name"] == "stream.synchronize"
    assert [call["id"] for _, call in told.pairs("host wait")] == [wait["id"]]


def test_waits_in_partitions_streams_are_found(gpu):
    x = torch.randn(512, 512, device="cuda")
    with gpu.carve({"a": 32, "b": "rest"}) as parts:
        one, two = (parts[name].create_stream() for name in "ab")
        streams = [torch.cuda.ExternalStream(stream.handle) for stream in (one, two)]
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.mm(x, x)
        torch.cuda.synchronize()
        with gs.profile(gpu) as recording:
            with torch.cuda.stream(streams[0]):
                torch.mm(x, x)
            streams[1].wait_stream(streams[0])
            with torch.cuda.stream(streams[1]):
                torch.mm(x, x)
            streams[1].synchronize()  # partition wait
        one.close()
        two.close()
    told = Told(recording.trace)
    assert {
        (work["partition"], other["partition"]) for work, other in told.pairs("event wait")
    } == {("a", "b")}
    assert {work["partition"] for work, _ in told.at("host wait", "# partition wait")} == {"b"}


def test_records_and_waits_that_are_captured_order_nothing_there(gpu):
    x, graph = torch.randn(256, 256, device="cuda"), torch.cuda.CUDAGraph()
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (main, side):
        with torch.cuda.stream(stream):
            torch.mm(x, x)
    torch.cuda.synchronize()
    with gs.profile(gpu) as recording:
        with torch.cuda.stream(main):
            torch.relu(x)  # what side would wait for, were its captured wait one
        with torch.cuda.graph(graph, stream=main, capture_error_mode="thread_local"):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = torch.mm(x, x)
            torch.cuda.current_stream().wait_stream(side)
            torch.relu(y)
        with torch.cuda.stream(side):
            torch.mul(x, 2)
        torch.cuda.synchronize()
    told = Told(recording.trace)
    assert told.pairs("host wait")
    assert told.pairs("event wait") == []


def test_waits_are_told_in_the_default_streams_and_in_created_ones(gpu):
    cupy = pytest.importorskip("cupy")
    x, side = cupy.ones(1 << 20, cupy.float32), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Stream.ptds.use()
    x * 2
    cupy.cuda.Stream.null.use()
    cupy.cuda.Device().synchronize()
    event = cupy.cuda.Event()
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream.ptds, cupy.cuda.Stream()):
        with gs.profile(gpu) as recording:
            with stream:
                x * 2
                event.record(stream)
            side.wait_event(event)
            with side:
                x * 3
            stream.synchronize()
            side.synchronize()
        told = Told(recording.trace)
        assert len(told.pairs("event wait")) == 1, stream
        waited = {
            (work["id"], call["name"].split("_")[0]) for work, call in told.pairs("host wait")
        }
        works = [row["id"] for row in told.row.values() if row["kind"] == "kernel"]
        assert waited == {(work, "cudaStreamSynchronize") for work in works}, stream


class Slow(torch.utils.data.Dataset):
    """Takes a while for each item."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        total = torch.zeros(())
        for _ in range(2000):
            total += torch.rand(100).sum()
        return total + index


def test_a_program_that_waits_for_its_data_is_seen_to_at_its_line(gpu):
    loader = torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=1, pin_memory=True)
    with gs.profile(gpu) as recording:
        for batch in loader:  # the loader
            batch.to("cuda", non_blocking=True)
    told = Told(recording.trace)
    main = threading.get_native_id()
    gets = [
        row
        for row in told.row.values()
        if (row["name"], row["thread"], row["kind"]) == ("queue get", main, "sync")
    ]
    assert gets
    assert {line_at(row) for row in gets} == {line_of("# the loader")}
    names = recording.trace.metadata.thread_names
    assert "pin-memory thread" in names.values()
    handed = [work for work, get in told.pairs("hand-over") if get in gets]
    assert {names[str(put["thread"])] for put in handed} == {"pin-memory thread"}


def test_autograd_s_thread_has_a_name(gpu):
    with gs.profile(gpu) as recording:
        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        (x @ x).sum().backward()
    names = recording.trace.metadata.thread_names
    assert any("autograd" in name for name in names.values()), names
