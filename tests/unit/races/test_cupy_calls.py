"""CuPy's kernels as hazards see them, on a stand-in that runs nothing: who is accused, who is not."""

from __future__ import annotations

import re
import sys

import pytest
import stand_in_cupy
from stand_in_cupy import PROTOCOL, Device, ElementwiseKernel, RawKernel, ReductionKernel, Stream

from gpuscope.device.calls import calling_for_us
from gpuscope.device.captured import Captured
from gpuscope.races.hazard_log import HazardLog
from gpuscope.races.hazard_notes import Queue
from gpuscope.races.observer import watching_libraries
from gpuscope.races.wrapped import replaced

A, B = Stream(0x10), Stream(0x20)
SCALE = RawKernel(
    'extern "C" __global__ void scale(float* out, const float* in, int n) { out[0] = in[0]; }',
    "scale",
)
ADD = ElementwiseKernel("cupy_add", nin=2)
NORM = ReductionKernel("norm")


@pytest.fixture
def cupy(monkeypatch):
    module = stand_in_cupy.module()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield module
    assert not hasattr(module.ndarray, PROTOCOL)
    for owner in (RawKernel, ReductionKernel):
        assert "told" not in owner.__call__.__qualname__
    assert {"sum", "get"}.isdisjoint(vars(module.ndarray))


@pytest.fixture
def log(cupy):
    log = HazardLog()
    with watching_libraries(log):
        yield log


def found(log):
    log.read()
    return [(fact.kind, fact.first_name, fact.second_name) for fact in log.facts().found]


WRITES = {
    "a universal function": (lambda x, y: ADD(y, y, x), "cupy_add"),
    "out=": (lambda x, y: ADD(y, 1, out=x), "cupy_add"),
    "in place": (lambda x, y: ADD(x, y, x), "cupy_add"),
    "a reduction": (lambda x, y: NORM(y, x), "norm"),
    "a method": (lambda x, y: y.cumsum(out=x), "cupy_sum"),
    "a raw kernel": (lambda x, y: SCALE((1,), (32,), (x, y, 100)), "scale"),
}
READS = {
    "a universal function": (lambda x: ADD(x, 1), "cupy_add"),
    "where=": (lambda x: ADD(1, x[::2]), "cupy_add"),
    "a reduction": (NORM, "norm"),
    "a method": (lambda x: x.sum(), "cupy_sum"),
    "a raw kernel": (lambda x: SCALE((1,), (32,), args=(type(x)(), x, 100)), "scale"),
    "get": (lambda x: x.get(), "get"),
}


def event(_log):
    B.wait_event(A.record())


ORDERS = {
    "event": event,
    "its own record": lambda _: ((done := stand_in_cupy.Event()).record(A), B.wait_event(done)),
    "stream": lambda _: A.synchronize(),
    "event of the host": lambda _: A.record().synchronize(),
    "device": lambda _: Device().synchronize(),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", WRITES)
def test_a_read_after_a_write(cupy, log, write, read, ordered):
    x, y = cupy.ndarray(), cupy.ndarray()
    (first, first_name), (second, second_name) = WRITES[write], READS[read]
    with A:
        first(x, y)
    if ordered:
        event(log)
    with B:
        second(x)
    assert found(log) == ([] if ordered else [("read after write", first_name, second_name)])


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_that_cupy_makes(cupy, log, order):
    x, y = cupy.ndarray(), cupy.ndarray()
    with A:
        ADD(y, y, x)
    ORDERS[order](log)
    with B:
        ADD(x, x, y)
    assert not found(log)


def test_a_result_that_was_fetched_is_done(cupy, log):
    x, y = cupy.ndarray(), cupy.ndarray()
    with A:
        ADD(y, y, x)
        x.get()
    with B:
        ADD(x, 1, x)
    assert not found(log)
    with A:
        x.get(blocking=False)
    assert found(log) == [("read after write", "cupy_add", "get")]


def test_readers_and_other_bytes_are_not_accused(cupy, log):
    x, y, z = (cupy.ndarray() for _ in range(3))
    for stream, part in ((A, slice(0, 100, 2)), (B, slice(1, 100, 2))):
        with stream:
            ADD(x, 1, y[part])
            NORM(x)
            x.sum()
            SCALE((1,), (32,), (z[part], x, 100))
    assert not found(log)


def test_a_kernel_is_called_once_and_what_it_calls_is_part_of_it(cupy, log):
    x = cupy.ndarray()
    add = ElementwiseKernel("add", nin=2)
    result = add(x, x)
    assert isinstance(result, cupy.ndarray)
    assert add.calls == 1
    log.read()
    assert log.facts().accesses == 1


def test_a_stream_that_is_given(cupy, log):
    x, y = cupy.ndarray(), cupy.ndarray()
    ADD(y, y, x, stream=A)
    SCALE((1,), (1,), (y, x, 1), stream=B)
    assert ("read after write", "cupy_add", "scale") in found(log)


def test_a_pointer_given_as_a_number_is_not_told(cupy, log):
    x = cupy.ndarray()
    SCALE((1,), (1,), (x.data.ptr, x, 1))
    SCALE((1,), (1,), (x.data, x, 1))
    log.read()
    assert log.facts().accesses == 0  # CUPTI tells of the launches: they count as unseen


def test_a_capture_of_cupys_own_counts_as_unseen(cupy, log):
    x = cupy.ndarray()
    stream = Stream(0x30)
    stream.capturing = True
    with stream:
        ADD(x, x, x)
    log.read()
    assert (log.facts().unseen, log.facts().accesses) == (1, 0)


def test_work_in_a_graph_of_another_library_is_a_node_of_it(cupy, log):
    """Of which two streams are captured: in order, and later not."""
    x, y, captured = cupy.ndarray(), cupy.ndarray(), Captured()
    log.captures[Queue("cuda:0", A.ptr)] = captured
    with A:
        ADD(1, 1, x)
    B.wait_event(A.record())
    with B:
        ADD(x, 1, y)
    with A:
        ADD(y, 1, x)
    captured.end()
    assert [node.after for node in captured.nodes] == [(), (0,), (0,)]
    log.read()
    assert log.facts().accesses == 0


def test_recordings_in_recordings_are_all_told(cupy, log):
    x, inner = cupy.ndarray(), HazardLog()
    with watching_libraries(inner):
        ADD(x, x, x)
        NORM(x)
    ADD(x, x, x)
    counts = []
    for one in (log, inner):
        one.read()
        counts.append(one.facts().accesses)
    assert counts == [3, 2]


def test_an_error_is_the_callers_and_did_nothing(cupy, log, monkeypatch):
    def fails(*_):
        raise ValueError("mine")

    monkeypatch.setattr(ElementwiseKernel, "launch", fails)
    with pytest.raises(ValueError, match="mine"):
        ADD(cupy.ndarray(), 1)
    monkeypatch.undo()
    ADD(cupy.ndarray(), 1)
    log.read()
    assert log.facts().accesses == 1


def test_what_a_call_of_ours_does_by_cupy_is_told_once(cupy, log):
    x = cupy.ndarray()
    with calling_for_us():
        ADD(x, x, x)
        x.sum()
        x.get()
    log.read()
    assert log.facts().accesses == 0


def test_fresh_memory_has_no_past(cupy, log):
    x = cupy.ndarray()
    with A:
        ADD(1, 1, x)
    (hook,) = stand_in_cupy.of_thread.hooks.values()
    hook.alloc_postprocess(device_id=0, mem_size=4096, mem_ptr=x.data.ptr)
    with B:
        ADD(1, 1, x)
    assert not found(log)


def test_a_class_that_refuses_to_be_changed_is_changed_for_the_block_alone():
    """As Cython's classes refuse."""
    owner, calls = re.Pattern, []
    assert owner.__flags__ >> 8 & 1

    def instead(method, this, args, kwargs):
        calls.append(this)
        return method(this, *args, **kwargs)

    before, pattern = owner.fullmatch, re.compile("a+")
    with replaced(owner, "fullmatch", instead):
        assert pattern.fullmatch("aa")
        assert owner.fullmatch is not before
    assert pattern.fullmatch("aa")
    assert calls == [pattern]
    assert (owner.fullmatch, owner.__flags__ >> 8 & 1) == (before, 1)
    with pytest.raises(TypeError):
        owner.fullmatch = before
