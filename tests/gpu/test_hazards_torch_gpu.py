"""Hazards between PyTorch's streams, and between PyTorch and gpuscope, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


@pytest.fixture
def gpu():
    return gs.open_device("cuda:0", quiet=True)


def found(gpu, program, *args):
    torch.cuda.synchronize()
    with gs.profile(gpu, hazards=True) as recording:
        program(*args)
        torch.cuda.synchronize()
    return gs.analysis.hazards(recording.trace)


@pytest.fixture
def x():
    return torch.zeros(1 << 20, device="cuda")


@pytest.fixture
def streams():
    return torch.cuda.Stream(), torch.cuda.Stream()


def pair(x, streams, waits):
    a, b = streams
    with torch.cuda.stream(a):
        x.add_(1)
    if waits:
        b.wait_stream(a)
    with torch.cuda.stream(b):
        x.sum()


@pytest.mark.parametrize("waits", [True, False])
def test_two_streams(gpu, x, streams, waits):
    result = found(gpu, pair, x, streams, waits)
    assert [fact.kind for fact in result.found] == ([] if waits else ["read after write"])
    for fact in result.found:
        assert fact.first is not None
        assert fact.second is not None


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_to_the_host(gpu, x, streams, waits):
    host = torch.empty(1 << 20, pin_memory=True)

    def program():
        with torch.cuda.stream(streams[0]):
            host.copy_(x, non_blocking=True)
        if waits:
            streams[0].synchronize()
        host.add(1)

    kinds = [fact.kind for fact in found(gpu, program).found]
    assert kinds == ([] if waits else ["host access too early"])


HOST_READS = {
    "numpy": lambda host: host.numpy().sum(),
    "part of a view": lambda host: host.numpy()[3:4].copy(),
    "item": lambda host: host[3].item(),
    "item of a view": lambda host: host.numpy()[3].item(),
    "tolist": lambda host: host[:8].tolist(),
    "cpu": lambda host: host.cpu().numpy().max(),
    "cpu and an operator": lambda host: host.cpu().add(1),
    "repr": repr,
    "write": lambda host: host.numpy().fill(2),
}


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("read", HOST_READS)
def test_what_the_host_does_with_page_locked_memory(gpu, x, streams, read, waits):
    host = torch.empty(1 << 20, pin_memory=True)

    def program():
        with torch.cuda.stream(streams[0]):
            host.copy_(x, non_blocking=True)
        if waits:
            streams[0].synchronize()
        HOST_READS[read](host)

    result = found(gpu, program)
    assert {fact.kind for fact in result.found} == (set() if waits else {"host access too early"})
    assert result.facts.unseen == 0, result.facts.unseen_names


@pytest.mark.parametrize("waits", [True, False])
def test_a_result_that_comes_back_at_once(gpu, x, streams, waits):
    def program():
        with torch.cuda.stream(streams[0]):
            host = x.to("cpu", non_blocking=True)  # page-locked
        if waits:
            streams[0].synchronize()
        host.numpy().sum()

    kinds = {fact.kind for fact in found(gpu, program).found}
    assert kinds == (set() if waits else {"host access too early"})


def test_a_view_that_is_made_too_early_and_read_in_time(gpu, x, streams):
    host = torch.empty(1 << 20, pin_memory=True)

    def program():
        with torch.cuda.stream(streams[0]):
            host.copy_(x, non_blocking=True)
        view = host.numpy()
        streams[0].synchronize()
        view.sum()

    assert not found(gpu, program).found


def test_memory_that_numpy_takes_counts_as_unseen(gpu, x, streams):
    host = torch.empty(1 << 20, pin_memory=True)

    def program():
        with torch.cuda.stream(streams[0]):
            host.copy_(x, non_blocking=True)
        np.asarray(host).sum()

    facts = found(gpu, program).facts
    assert (facts.found, facts.unseen) == ((), 1), facts.unseen_names


def test_copies_that_wait_are_not_accused(gpu, streams):
    def program():
        with torch.cuda.stream(streams[0]):
            y = torch.ones(1 << 20).pin_memory().cuda()
        with torch.cuda.stream(streams[1]):
            assert y.sum().item() == 1 << 20
            host = y.cpu()
        assert host.sum() == 1 << 20

    assert not found(gpu, program).found


@pytest.mark.parametrize("kept", [True, False])
def test_memory_that_is_given_out_again(gpu, streams, kept):
    a, b = streams

    def program():
        with torch.cuda.stream(a):
            y = torch.zeros(1 << 20, device="cuda")
        b.wait_stream(a)
        with torch.cuda.stream(b):
            y.sum()
        if kept:
            y.record_stream(b)
        del y
        with torch.cuda.stream(a):
            torch.ones(1 << 20, device="cuda")

    kinds = [fact.kind for fact in found(gpu, program).found]
    assert kinds == ([] if kept else ["reuse of freed memory"])


@pytest.mark.parametrize("waits", [True, False])
def test_a_graph(gpu, x, streams, waits):
    graph = torch.cuda.CUDAGraph()
    a, b = streams

    def program():
        with torch.cuda.graph(graph, stream=a):
            x.add_(1)
        with torch.cuda.stream(a):
            graph.replay()
        if waits:
            b.wait_stream(a)
        with torch.cuda.stream(b):
            x.sum()

    kinds = [fact.kind for fact in found(gpu, program).found]
    assert kinds == ([] if waits else ["read after write"])


SIZE = 1 << 20


def wait_a_while(gpu):
    gpu.backend.wait_until_ns(gpu.now_ns() + 3_000_000)


def a_graph_first(gpu, *, ordered):
    """A graph writes what an operator reads on another stream."""
    data, seen = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    a, b, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        data.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(a):
        graph.replay()
    if ordered:
        b.wait_stream(a)
    wait_a_while(gpu)
    with torch.cuda.stream(b):
        seen.copy_(data)
    torch.cuda.synchronize()
    return seen


def a_graph_second(gpu, *, ordered):
    """A graph reads what an operator writes on another stream."""
    data, seen = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    a, b, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        seen.copy_(data)
    torch.cuda.synchronize()
    with torch.cuda.stream(b):
        data.fill_(1)
    if ordered:
        a.wait_stream(b)
    wait_a_while(gpu)
    with torch.cuda.stream(a):
        graph.replay()
    torch.cuda.synchronize()
    return seen


def branches_of_a_graph(_gpu, *, ordered):
    """One of two branches reads what the other one writes."""
    data, seen = torch.zeros(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    a, b, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    other = torch.zeros(1 << 26, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=a):
        b.wait_stream(a)
        data.fill_(1)
        if ordered:
            b.wait_stream(a)
        with torch.cuda.stream(b):
            other.add_(1)
            seen.copy_(data)
        a.wait_stream(b)
    graph.replay()
    torch.cuda.synchronize()
    return seen


@pytest.mark.gpu_alone("delays of ms must show")
@pytest.mark.parametrize("race", [a_graph_first, a_graph_second, branches_of_a_graph])
def test_a_race_through_a_graph_is_confirmed(gpu, race):
    race(gpu, ordered=False)  # what is captured must be loaded
    hazards = found(gpu, lambda: race(gpu, ordered=False)).found
    assert hazards
    assert "confirmed" in [
        gs.confirm(hazard, lambda: race(gpu, ordered=False), gpu).status for hazard in hazards
    ]
    assert not found(gpu, lambda: race(gpu, ordered=True)).found
    for hazard in hazards:
        twin = gs.confirm(hazard, lambda: race(gpu, ordered=True), gpu)
        assert twin.status.startswith("could not be tried: the program shows no")


@pytest.mark.parametrize("waits", [True, False])
def test_gpuscope_and_pytorch(gpu, streams, waits):
    a, b, c = (torch.zeros(512, 512, device="cuda") for _ in range(3))

    def program():
        with torch.cuda.stream(streams[0]):
            a.add_(1)
        if waits:
            streams[1].wait_stream(streams[0])
        with gs.CallerStreamGuard(streams[1]):
            gs.mm_out(c, a, b)

    kinds = [fact.kind for fact in found(gpu, program).found]
    assert kinds == ([] if waits else ["read after write"])


def test_backward_is_in_order(gpu):
    layer = torch.nn.Linear(256, 256).cuda()
    side = torch.cuda.Stream()

    def program():
        x = torch.randn(64, 256, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = layer(x).sum()
        torch.cuda.current_stream().wait_stream(side)
        loss.backward()
        for parameter in layer.parameters():
            parameter.grad.zero_()

    assert not found(gpu, program).found


@pytest.mark.parametrize("waits", [True, False])
def test_waits_of_cupy_are_known_by_cupti_alone(gpu, waits):
    cupy = pytest.importorskip("cupy")
    x, y, z = gpu.random((1 << 20,)), gpu.empty(1 << 20), gpu.empty(1 << 20)
    a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    mine = [gpu.wrap_stream(stream.ptr) for stream in (a, b)]

    def program():
        mine[0].copy(y, x)
        if waits:
            b.wait_event(a.record())
        mine[1].copy(z, y)

    kinds = [fact.kind for fact in found(gpu, program).found]
    assert kinds == ([] if waits else ["use before a copy ended"])


def test_the_legacy_stream_is_warned_of():
    x = torch.zeros(4, device="cuda")
    with pytest.warns(RuntimeWarning, match="aten::add_"), gs.no_default_stream():
        x.add_(1)
