"""Hazards among PyTorch's calls: its operators run on the host here, its CUDA side is faked.

Where PyTorch is not installed, `stand_in_torch` stands in for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import threading

import numpy as np
import pytest
import stand_in_torch
from stand_in_torch import Operator, torch

import gpuscope as gs
from gpuscope.device.accesses import operand_of
from gpuscope.device.graph import _Capture
from gpuscope.device.pinned import PinnedArray
from gpuscope.races import observer, operators
from gpuscope.races.hazard_log import HazardLog, Streams
from gpuscope.races.hazard_notes import Queue, Work
from gpuscope.races.pytorch import PyTorch
from gpuscope.races.wrapped import wrapped
from gpuscope.record.recorder import Recording
from gpuscope.record.source import Options


class Cuda:
    """PyTorch's CUDA side as far as it is asked: streams and events are numbers."""

    def __init__(self):
        self.log = HazardLog()
        self.stream = 0
        self.on_host = set()
        self.on_second = set()
        self.trace = importlib.import_module("torch.cuda._gpu_trace")

    @contextlib.contextmanager
    def on(self, stream):
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def record(self, event, stream=None):
        self.trace.EventRecordCallbacks.fire_callbacks(
            event, self.stream if stream is None else stream
        )

    def wait(self, event, stream=None):
        self.trace.EventWaitCallbacks.fire_callbacks(
            event, self.stream if stream is None else stream
        )

    def wait_stream(self, stream, other):
        self.record(99, other)
        self.wait(99, stream)

    def synchronize(self):
        self.trace.DeviceSynchronizationCallbacks.fire_callbacks()

    def synchronize_stream(self, stream):
        self.trace.StreamSynchronizationCallbacks.fire_callbacks(stream)

    def synchronize_event(self, event):
        self.trace.EventSynchronizationCallbacks.fire_callbacks(event)

    def allocate(self, tensor):
        self.trace.MemoryAllocationCallbacks.fire_callbacks(tensor.data_ptr())

    def free(self, tensor):
        self.trace.MemoryDeallocationCallbacks.fire_callbacks(tensor.data_ptr())

    def pinned(self, *shape):
        tensor = torch.empty(*shape)
        self.on_host.add(tensor.untyped_storage().data_ptr())
        return tensor


class Graph:
    """In place of ``torch.cuda.CUDAGraph``."""

    fails = ""

    def capture_begin(self):
        self._does("capture_begin")

    def capture_end(self):
        self._does("capture_end")

    def replay(self):
        self._does("replay")

    def _does(self, step):
        if self.fails == step:
            raise RuntimeError(step)


class Event:
    """In place of ``torch.cuda.Event``."""

    def __init__(self, handle, done):
        self.cuda_event, self.done = handle, done

    def query(self):
        return self.done


@pytest.fixture
def cuda(monkeypatch):
    stand_in_torch.install(monkeypatch)
    cuda = Cuda()

    def gpu_of(tensor):
        address = tensor.untyped_storage().data_ptr()
        return None if address in cuda.on_host else int(address in cuda.on_second)

    monkeypatch.setattr(operators, "gpu_of", gpu_of)
    monkeypatch.setattr(operators, "is_pinned", lambda storage: storage.data_ptr() in cuda.on_host)
    monkeypatch.setattr(operators, "current_stream", lambda _torch, gpu: cuda.stream + 100 * gpu)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0)
    monkeypatch.setattr(torch._C, "_activate_gpu_trace", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    with PyTorch(torch, cuda.log, Streams()).watching():
        yield cuda
    for callbacks in vars(cuda.trace).values():
        assert not getattr(callbacks, "callback_list", ())
    assert "told" not in Graph.replay.__qualname__


A, B = 1, 2


@pytest.fixture
def x(cuda):
    with cuda.on(A):
        x = torch.zeros(64)
        cuda.allocate(x)
    cuda.synchronize()
    return x


def found(cuda):
    cuda.log.read()
    return cuda.log.facts().found


def pairs(cuda):
    """The names of each pair, without their namespace."""
    names = [(fact.first_name[6:], fact.second_name[6:]) for fact in found(cuda)]
    return [name for name, fact in zip(names, found(cuda), strict=True) for _ in range(fact.count)]


# -- the ordering cases: work in streams A and B on one tensor -----------------------------
def write(cuda, x, stream):
    with cuda.on(stream):
        x.add_(1)


def read(cuda, x, stream):
    with cuda.on(stream):
        return x.sum()


def test_a_read_after_an_unordered_write(cuda, x):
    write(cuda, x, A)
    read(cuda, x, B)
    assert pairs(cuda) == [("add_", "sum")]


def test_the_mend_is_pytorchs(cuda, x):
    write(cuda, x, A)
    read(cuda, x, B)
    (fact,) = found(cuda)
    assert fact.mend == "stream_0x2.wait_stream(stream_0x1)  # before 'aten::sum'"


def test_a_write_after_an_unordered_read(cuda, x):
    read(cuda, x, A)
    write(cuda, x, B)
    assert pairs(cuda) == [("sum", "add_")]


def test_reads_need_no_order(cuda, x):
    read(cuda, x, A)
    read(cuda, x, B)
    assert not pairs(cuda)


@pytest.mark.parametrize("first", [read, write])
def test_an_event_orders(cuda, x, first):
    first(cuda, x, A)
    cuda.record(7, A)
    cuda.wait(7, B)
    write(cuda, x, B)
    assert not pairs(cuda)


def test_an_event_recorded_too_early_does_not(cuda, x):
    cuda.record(7, A)
    write(cuda, x, A)
    cuda.wait(7, B)
    read(cuda, x, B)
    assert pairs(cuda) == [("add_", "sum")]


def test_an_event_recorded_again_is_another(cuda, x):
    write(cuda, x, A)
    cuda.record(7, A)
    cuda.record(7, B)
    cuda.wait(7, 3)
    read(cuda, x, 3)
    assert pairs(cuda) == [("add_", "sum")]


def test_a_wait_keeps_the_record_that_it_met(cuda, x):
    write(cuda, x, A)
    cuda.record(7, A)
    cuda.wait(7, B)
    cuda.record(7, 3)
    read(cuda, x, B)
    assert not pairs(cuda)


def test_a_deleted_event_leaves_no_order_to_the_next_with_its_handle(cuda, x):
    write(cuda, x, A)
    cuda.record(7, A)
    cuda.trace.EventDeletionCallbacks.fire_callbacks(7)
    cuda.wait(7, B)
    read(cuda, x, B)
    assert pairs(cuda) == [("add_", "sum")]


def test_order_passes_through_a_third_stream(cuda, x):
    write(cuda, x, A)
    cuda.wait_stream(3, A)
    cuda.wait_stream(B, 3)
    read(cuda, x, B)
    assert not pairs(cuda)


def test_two_readers_must_both_be_waited_for(cuda, x):
    read(cuda, x, A)
    read(cuda, x, 3)
    cuda.wait_stream(B, A)
    write(cuda, x, B)
    assert pairs(cuda) == [("sum", "add_")]


def test_every_pair_is_found(cuda, x):
    y = torch.zeros(8)
    cuda.synchronize()
    write(cuda, x, A)
    write(cuda, y, A)
    with cuda.on(B):
        torch.add(x[:8], y)
    assert len(pairs(cuda)) == 2


@pytest.mark.parametrize(
    "wait",
    [
        lambda cuda: cuda.synchronize(),
        lambda cuda: cuda.synchronize_stream(A),
        lambda cuda: (cuda.record(7, A), cuda.synchronize_event(7)),
        lambda cuda: (cuda.record(7, A), torch.cuda.Event(7, done=True).query()),
    ],
)
def test_the_host_waits(cuda, x, wait):
    write(cuda, x, A)
    wait(cuda)
    read(cuda, x, B)
    assert not pairs(cuda)


@pytest.mark.parametrize(
    "wait",
    [
        lambda cuda: cuda.synchronize_stream(B),
        lambda cuda: (cuda.record(7, A), torch.cuda.Event(7, done=False).query()),
    ],
)
def test_the_host_waits_for_something_else(cuda, x, wait):
    write(cuda, x, A)
    wait(cuda)
    read(cuda, x, B)
    assert pairs(cuda) == [("add_", "sum")]


def test_a_wait_before_the_work_does_not_count(cuda, x):
    cuda.synchronize()
    write(cuda, x, A)
    read(cuda, x, B)
    assert len(pairs(cuda)) == 1


# -- memory --------------------------------------------------------------------------------
def test_views_of_other_bytes_do_not_meet(cuda, x):
    write(cuda, x[:32], A)
    write(cuda, x[32:], B)
    assert not pairs(cuda)
    read(cuda, x[16:48], B)
    assert pairs(cuda) == [("add_", "sum")]


def test_making_a_view_is_no_access(cuda, x):
    write(cuda, x, A)
    with cuda.on(B):
        x.view(8, 8).t()[1:]
        torch.empty_like(x)
    assert not pairs(cuda)


def test_memory_that_was_freed_and_is_used_anew(cuda, x):
    read(cuda, x, B)
    cuda.free(x)
    write(cuda, x, A)  # another tensor at its address
    assert [fact.kind for fact in found(cuda)] == ["reuse of freed memory"]


@pytest.fixture
def record_stream(cuda, monkeypatch):
    class Stream:
        def __init__(self, stream_id, device_index, device_type):
            self.cuda_stream = stream_id

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    operator = type("Operator", (), {"__call__": lambda *_: None, "__name__": "record_stream"})()
    operator._schema = type("Schema", (), {"name": "aten::record_stream"})

    def record(tensor, stream):
        stream = type("S", (), {"stream_id": stream, "device_index": 0, "device_type": 1})()
        PyTorch._dispatch(_source_of(cuda), operator, (tensor, stream), {})

    return record


def test_record_stream_makes_the_allocator_wait(cuda, x, record_stream):
    read(cuda, x, B)
    record_stream(x, B)
    cuda.free(x)
    write(cuda, x, A)
    assert not pairs(cuda)


@pytest.mark.parametrize("kept", [(B,), (B, 3)])
def test_record_stream_holds_for_memory_from_before(cuda, record_stream, kept):
    x = torch.zeros(64)
    cuda.synchronize()
    read(cuda, x, B)
    read(cuda, x, 3)
    for stream in kept:
        record_stream(x, stream)
    cuda.free(x)
    write(cuda, x, A)
    assert pairs(cuda) == [("sum", "add_")] * (2 - len(kept))


def test_record_stream_of_what_has_no_memory_of_its_own(cuda, record_stream):
    class Sparse:
        def untyped_storage(self):
            raise NotImplementedError

    record_stream(Sparse(), B)
    assert not pairs(cuda)


def _source_of(cuda):
    (callback,) = cuda.trace.MemoryDeallocationCallbacks.callback_list
    return callback.__self__


# -- copies --------------------------------------------------------------------------------
def test_a_copy_to_pinned_memory_is_read_too_early(cuda, x):
    host = cuda.pinned(64)
    with cuda.on(A):
        host.copy_(x, non_blocking=True)
    host.add(1)
    assert pairs(cuda) == [("copy_", "add")]


def test_a_copy_to_pinned_memory_was_waited_for(cuda, x):
    host = cuda.pinned(64)
    with cuda.on(A):
        host.copy_(x, non_blocking=True)
    cuda.synchronize_stream(A)
    host.add(1)
    assert not pairs(cuda)


def test_pinned_memory_is_written_while_it_is_copied(cuda, x):
    host = cuda.pinned(64)
    with cuda.on(A):
        x.copy_(host, non_blocking=True)
    host.fill_(1)
    assert pairs(cuda) == [("copy_", "fill_")]


def test_a_copy_that_waits_is_over(cuda, x, monkeypatch):
    host = cuda.pinned(64)
    with cuda.on(A):
        host.copy_(x, non_blocking=True)  # from now on it is known
        cuda.synchronize_stream(A)
        host.copy_(x)
        cuda.synchronize_stream(A)  # which the operator does itself
    host.add(1)
    assert not pairs(cuda)


def test_pinned_memory_that_was_given_out_anew_is_not_accused(cuda, x, monkeypatch):
    host = cuda.pinned(64)
    with cuda.on(A):
        x.copy_(host, non_blocking=True)
    (weak,) = _source_of(cuda)._pinned.values()
    monkeypatch.setattr(type(weak), "expired", lambda _self: True)
    host.fill_(1)
    assert not pairs(cuda)


def test_a_copy_to_other_host_memory_returns_at_its_end(cuda, x, monkeypatch):
    monkeypatch.setattr(operators, "is_pinned", lambda _storage: False)
    host = cuda.pinned(64)
    with cuda.on(A):
        x.add_(1)
        host.copy_(x, non_blocking=True)
    read(cuda, x, B)
    assert not pairs(cuda)


HOST_READS = {
    "numpy": lambda host: host.numpy().sum(),
    "a view made before": lambda host, view=None: view.sum(),
    "part of a view": lambda host: host.numpy()[3:4].copy(),
    "item of a view": lambda host: host.numpy()[3].item(),
    "item": lambda host: host[3].item(),
    "tolist": lambda host: host.tolist(),
    "cpu": lambda host: host.cpu().numpy().max(),
    "cpu and an operator": lambda host: host.cpu().add(1),
    "repr": repr,
    "write": lambda host: host.numpy().fill(2),
}


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("read", HOST_READS)
def test_what_the_host_does_without_an_operator(cuda, x, read, waits):
    host = cuda.pinned(64)
    more = {"view": host.numpy()} if read == "a view made before" else {}
    with cuda.on(A):
        host.copy_(x, non_blocking=True)
    if waits:
        cuda.synchronize_stream(A)
    HOST_READS[read](host, **more)
    kinds = {fact.kind for fact in found(cuda)}
    assert kinds == (set() if waits else {"host access too early"})
    assert not cuda.log.facts().unseen


def test_a_view_that_is_made_too_early_and_read_in_time(cuda, x):
    host = cuda.pinned(64)
    with cuda.on(A):
        host.copy_(x, non_blocking=True)
    view = host.numpy()[::2]
    same = host.cpu().numpy().astype(view.dtype, copy=False)
    cuda.synchronize_stream(A)
    assert view.sum() * 2 == same.sum()
    assert not found(cuda)


def test_a_view_lives_on(cuda, x):
    """It is told of in each recording, and in none is it as any other array."""
    host = cuda.pinned(64)
    view, log = host.numpy(), HazardLog()
    with PyTorch(torch, log, Streams()).watching():
        view.sum()
    log.read()
    cuda.log.read()
    assert (log.facts().accesses, cuda.log.facts().accesses) == (1, 2)  # one made it
    assert torch.Tensor.numpy(host).base is not None


@pytest.mark.parametrize("share", [np.asarray, lambda host: host.__dlpack__()])
def test_memory_that_is_given_away_counts_as_unseen(cuda, x, share):
    host = cuda.pinned(64)
    with cuda.on(A):
        host.copy_(x, non_blocking=True)
    shared = share(host)
    assert type(shared) is not PinnedArray
    cuda.log.read()
    assert (cuda.log.facts().unseen, found(cuda)) == (1, ())


def test_pageable_memory_is_left_alone(cuda, x, monkeypatch):
    monkeypatch.setattr(operators, "is_pinned", lambda _storage: False)
    host = cuda.pinned(64)
    assert type(host.numpy()) is np.ndarray
    assert type(np.asarray(host)) is np.ndarray
    host.tolist()
    cuda.log.read()
    assert (cuda.log.facts().unseen, cuda.log.facts().accesses) == (0, 1)  # that made x


def test_a_copy_between_gpus_is_in_order_with_both(cuda, x):
    y = torch.zeros(64)
    cuda.on_second.add(y.untyped_storage().data_ptr())
    cuda.synchronize()
    with cuda.on(A):
        y.add_(1)
        y.copy_(x)
        y.add_(1)
        x.add_(1)
    assert not pairs(cuda)
    with cuda.on(B):
        y.add_(1)
    assert pairs(cuda) == [("add_", "add_")]


# -- graphs --------------------------------------------------------------------------------
def captured(cuda, x, stream=5):
    graph = torch.cuda.CUDAGraph()
    with cuda.on(stream):
        graph.capture_begin()
        x.add_(1)
        graph.capture_end()
    return graph


def test_a_capture_does_nothing_yet(cuda, x):
    captured(cuda, x)
    read(cuda, x, B)
    assert not pairs(cuda)


def test_a_launch_of_a_graph_is_its_work(cuda, x):
    graph = captured(cuda, x)
    with cuda.on(A):
        graph.replay()
    read(cuda, x, A)
    assert not pairs(cuda)
    read(cuda, x, B)
    assert pairs(cuda) == [("add_", "sum")]


def test_a_graph_follows_its_stream(cuda, x):
    graph = captured(cuda, x)
    write(cuda, x, B)
    cuda.wait_stream(A, B)
    with cuda.on(A):
        graph.replay()
        graph.replay()
    assert not pairs(cuda)
    write(cuda, x, B)
    assert pairs(cuda)


@pytest.mark.parametrize("joins", [True, False])
def test_branches_inside_a_graph(cuda, x, joins):
    graph = torch.cuda.CUDAGraph()
    with cuda.on(5):
        graph.capture_begin()
        cuda.wait_stream(6, 5)
        if joins:
            write(cuda, x, 6)
            cuda.wait_stream(5, 6)
            write(cuda, x, 5)
        else:
            write(cuda, x, 6)
            write(cuda, x, 5)
            cuda.wait_stream(5, 6)
        graph.capture_end()
    assert not pairs(cuda)
    for _ in range(2):
        with cuda.on(A):
            graph.replay()
    assert len(pairs(cuda)) == (0 if joins else 2)
    read(cuda, x, A)
    assert len(pairs(cuda)) == (0 if joins else 2)


@pytest.mark.parametrize("step", ["capture_begin", "capture_end"])
def test_a_capture_that_fails_is_over(cuda, x, step):
    graph = torch.cuda.CUDAGraph()
    graph.fails = step
    with cuda.on(A), pytest.raises(RuntimeError, match=step):
        graph.capture_begin()
        graph.capture_end()
    write(cuda, x, A)
    read(cuda, x, B)
    assert pairs(cuda) == [("add_", "sum")]


def test_a_launch_that_fails_does_nothing(cuda, x):
    graph = captured(cuda, x)
    graph.fails = "replay"
    with cuda.on(A), pytest.raises(RuntimeError, match="replay"):
        graph.replay()
    read(cuda, x, B)
    assert not pairs(cuda)


@pytest.mark.parametrize("was_captured", [True, False])
def test_a_graph_without_known_work_is_not_seen(cuda, was_captured):
    graph = torch.cuda.CUDAGraph()
    if was_captured:  # kernels that no operator launched
        graph.capture_begin()
        graph.capture_end()
    graph.replay()
    cuda.log.read()
    assert cuda.log.facts().unseen == 1


# -- captures of gpuscope's and of PyTorch's ------------------------------------------------
@pytest.fixture
def gpu(cuda, x, monkeypatch):
    """A device of ours that counts as PyTorch's GPU."""
    gpu = gs.open_device("sim:h200", quiet=True)
    monkeypatch.setattr(gpu, "info", dataclasses.replace(gpu.info, key="cuda:0"))
    watcher = _Capture()  # passes over all but notes
    watcher.take_note = cuda.log.note
    gpu.calls.observe(watcher)
    return gpu


@pytest.fixture
def streams(gpu):
    with gpu.create_stream() as a, gpu.create_stream() as b, gpu.create_stream() as c:
        yield a, b, c


def test_operators_are_work_of_a_graph_of_ours(cuda, x, gpu, streams):
    a, b, _ = streams
    y = gpu.empty(4)
    with a.capture() as graph, cuda.on(a.handle):
        x.add_(1)
        a.copy(y, gpu.empty(4))
        x.add_(1)
    assert [node.after for node in graph.captured.nodes] == [(), (0,), (1,)]
    read(cuda, x, b.handle)
    assert not pairs(cuda)
    b.synchronize()
    graph.launch(stream=a)
    read(cuda, x, a.handle)
    assert not pairs(cuda)
    read(cuda, x, b.handle)
    assert pairs(cuda) == [("add_", "sum")]


@pytest.mark.parametrize("joins", [True, False])
def test_streams_of_pytorch_join_a_capture_of_ours(cuda, x, gpu, streams, joins):
    a, b, _ = (stream.handle for stream in streams)
    with streams[0].capture() as graph:
        cuda.wait_stream(b, a)
        write(cuda, x, b)
        if joins:
            cuda.wait_stream(a, b)
        write(cuda, x, a)
    assert not pairs(cuda)
    graph.launch(stream=streams[0])
    assert len(pairs(cuda)) == (0 if joins else 1)
    write(cuda, x, b)  # it is captured no more
    assert len(pairs(cuda)) == (1 if joins else 3)
    y = gpu.empty(4)
    streams[1].copy(y, gpu.empty(4))
    streams[2].copy(y, gpu.empty(4))
    assert len(pairs(cuda)) == (2 if joins else 4)


def test_our_work_is_work_of_a_graph_of_pytorchs(cuda, gpu, streams):
    a, b, c = streams
    x, y, z = gpu.empty(4), gpu.empty(4), gpu.empty(4)
    kernel = gs.workloads.spin_kernel(gpu)
    a.synchronize()
    graph = torch.cuda.CUDAGraph()
    with cuda.on(a.handle):
        graph.capture_begin()
        b.wait(a.record())
        b.copy(x, y)
        a.wait(b.record())
        a.copy(x, z)
        a.launch(kernel, 1_000, grid=1, block=32)
        graph.capture_end()
    c.copy(x, y)
    assert not pairs(cuda)
    c.synchronize()
    with cuda.on(a.handle):
        graph.replay()
    c.copy(gpu.empty(4), x)
    (fact,) = found(cuda)
    assert (fact.first_name, fact.first_stream, fact.second_name) == ("copy", a.name, "copy")


# -- what is not seen, threads, errors -----------------------------------------------------
@pytest.mark.skipif(not stand_in_torch.IS_REAL, reason="needs PyTorch")
def test_the_backward_pass_and_its_stream(cuda):
    with cuda.on(A):
        x = torch.ones(4, requires_grad=True)
        loss = (x * 2).sum()
    cuda.synchronize()
    with cuda.on(B):
        loss.backward()
    assert not pairs(cuda)
    with cuda.on(A):
        x.grad.add_(1)
    assert pairs(cuda) == [("mul", "add_")]


def test_an_operator_that_fails_did_nothing(cuda, x):
    with cuda.on(A), pytest.raises(RuntimeError):
        x.add_(torch.zeros(5))
    read(cuda, x, B)
    assert not pairs(cuda)


def test_an_operator_on_what_has_no_memory_of_its_own_is_not_seen(cuda, x, monkeypatch):
    class Wrapper:
        device, shape = x.device, (4,)

        def untyped_storage(self):
            raise NotImplementedError

        data_ptr = untyped_storage

    operator = Operator("aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor")
    monkeypatch.setattr(operators, "gpu_of", lambda _tensor: 0)
    _source_of(cuda)._work(
        operators.operator_of(operator),
        [operators.Use(Wrapper(), reads=True, writes=False)],
        0,
        at_once=False,
    )
    cuda.log.read()
    facts = cuda.log.facts()
    assert (facts.unseen, facts.unseen_names) == (1, ("aten::sum",))


def test_no_elements_are_no_access(cuda, x):
    write(cuda, x[:0], A)
    write(cuda, x[:0], B)
    assert not pairs(cuda)


def test_wrappers_end_in_any_order():
    class Owner:
        def method(self):
            return 1

    told = []
    first, second = (
        wrapped(Owner, "method", lambda *_, name=name: told.append(name)) for name in "ab"
    )
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert Owner().method() == 1
    assert told == ["b"]
    second.__exit__(None, None, None)
    assert Owner().method() == 1
    assert told == ["b"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_an_operator_waits_for_comes_after_its_work(cuda, x, fails):
    class Item:
        def __call__(self, tensor):
            cuda.synchronize_stream(A)
            if fails:
                raise KeyError
            return 1.0

    operator = Item()
    operator._schema = stand_in_torch.OPERATORS["_local_scalar_dense.default"]._schema
    write(cuda, x, A)
    with cuda.on(A), pytest.raises(KeyError) if fails else contextlib.nullcontext():
        PyTorch._dispatch(_source_of(cuda), operator, (x,), {})
    write(cuda, x, B)
    assert not pairs(cuda)


def test_threads_do_not_mix_their_steps(cuda, x):
    write(cuda, x, A)
    thread = threading.Thread(target=cuda.wait_stream, args=(B, A))
    thread.start()
    thread.join()
    read(cuda, x, B)
    assert not pairs(cuda)


# -- operands of gpuscope's own work ----------------------------------------------------------
def test_a_tensor_is_the_same_bytes_to_a_launch_of_ours(cuda, x):
    half = x[16:48].requires_grad_()
    (access,) = operand_of(half, reads=False, writes=True).accesses()
    assert access[:4] == (x.data_ptr() + 64, x.data_ptr() + 192, False, True)
    write(cuda, x, A)
    cuda.log.note(Work(Queue("cuda:0", B), "gpuscope's", (access,)))
    assert [fact.second_name for fact in found(cuda)] == ["gpuscope's"]


def test_a_recording_tells_what_was_found(cuda, x, monkeypatch):
    monkeypatch.setattr(observer, "pytorch", lambda: torch)
    recording = Recording((), Options("events", hazards=True))
    recording.start()
    write(cuda, x, A)
    read(cuda, x, B)
    facts = recording.stop().metadata.hazards
    assert [(fact.first_name, fact.second_name) for fact in facts.found] == [
        ("aten::add_", "aten::sum")
    ]
    assert facts.found[0].first is None  # no CUPTI, no row
    write(cuda, x, A)
    assert recording.trace.metadata.hazards.accesses == 2


@pytest.mark.parametrize("waits", [True, False])
def test_streams_and_gpus_as_pytorch_has_them(monkeypatch, waits):
    stand_in_torch.install(monkeypatch)
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    log, a, b = HazardLog(), torch.cuda.Stream(), torch.cuda.Stream()
    host = torch.empty(64, pin_memory=True)
    torch.cuda.synchronize()
    with observer.watching_libraries(log):
        with torch.cuda.stream(a):
            x = torch.zeros(64, device="cuda")
            host.copy_(x, non_blocking=True)
        if waits:
            event = torch.cuda.Event()
            event.record(a)
            event.synchronize()
            b.wait_stream(a)
        with torch.cuda.stream(b):
            x.add_(1)
            x.record_stream(b)
        host.fill_(1)
        if waits:
            assert b.query()
        del x
        torch.cuda.synchronize()
    log.read()
    kinds = {fact.kind for fact in log.facts().found}
    assert kinds == (
        set() if waits else {"use before a copy ended", "read after write", "host access too early"}
    )
