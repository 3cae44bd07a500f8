"""Products that C queues: through fakes of cuBLAS's functions, in a module instance of its own."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import shutil
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from gpuscope import _compiled
from gpuscope.device import caller, handles

pytestmark = pytest.mark.skipif(_compiled.fastpath is None, reason=_compiled.why_not or "-")

M, N, K = 4, 6, 5
INT, POINTER = ctypes.c_int, ctypes.c_void_p
SIGNATURES = {
    "set_stream": [POINTER, POINTER],
    "set_workspace": [POINTER, POINTER, ctypes.c_size_t],
    "set_sm_count": [POINTER, INT],
    "gemm": [
        POINTER, INT, INT, INT, INT, INT, POINTER, POINTER, INT, INT, POINTER, INT, INT, POINTER,
        POINTER, INT, INT, INT, INT,
    ],
    "current_context": [ctypes.POINTER(POINTER)],
}  # fmt: skip


class Array:
    """Stands for cupy.ndarray."""

    def __init__(self, shape, at, dtype="float16", device=0, memory=None):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.strides = np.empty(shape, dtype).strides
        self.data = SimpleNamespace(ptr=at, device_id=device, mem=memory)


class NumpyArray(np.ndarray):
    """The same, whose attributes are read as those of a type written in C."""

    data = None


class Memory:
    """Stands for arrays.DeviceMemory."""

    def __init__(self):
        self.tags = set()


class Stream:
    """Stands for gpuscope's."""

    def __init__(self, calls):
        self.lane, self.graph, self.closed, self.held = None, None, False, []
        self.tag, self.calls = object(), calls

    def hold(self, *arrays):
        self.held.append(arrays)
        for array in arrays:
            if array.data.mem is not None:
                array.data.mem.tags.add(self.tag)

    def __cuda_stream__(self):
        return (0, 7)


class Cublas:
    """What the fakes were called with, and what they answer."""

    def __init__(self, module, array_type=Array):
        self.calls, self.status, self.context, self.during = [], {}, 99, lambda: None
        self.functions = [
            ctypes.CFUNCTYPE(INT, *types)(self._function(name))
            for name, types in SIGNATURES.items()
        ]
        addresses = [ctypes.cast(function, POINTER).value for function in self.functions]
        self.module = module
        module.serve_products((array_type, SimpleNamespace, Memory, Stream), tuple(addresses))
        self.log = SimpleNamespace(observers=())
        self.local = threading.local()
        self.workspace = module.Workspace("memory", 0xA000, 64, 7)

    def _function(self, name):
        def called(*args):
            if name == "current_context":
                args[0][0] = self.context
                return 0
            self.calls.append((name, *args))
            if name == "gemm":
                self.during()
            return self.status.get(name, 0)

        return called

    def stream(self, sm_count=16):
        """A stream of ours on which products ran."""
        stream = Stream(self.log)
        stream.lane = self.module.Lane(
            self.workspace, self.log, self.local, stream.tag, 0, sm_count
        )
        if not hasattr(self.local, "native"):
            self.local.native = self.module.BlasHandle(0xB000)
        return stream

    def took(self):
        """The names of the calls since the last time."""
        names, self.calls[:] = [call[0] for call in self.calls], []
        return names


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The compiled module once more, with nothing of the process's in it."""
    # Loading it puts it there, whatever asked for it.
    monkeypatch.setitem(sys.modules, "gpuscope._fastpath", _compiled.fastpath)
    path = shutil.copy(_compiled.fastpath.__file__, tmp_path)
    spec = importlib.util.spec_from_file_location("gpuscope._fastpath", path)
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    return own


@pytest.fixture
def cublas(module):
    return Cublas(module)


@pytest.fixture
def product(module):
    item = 2
    extent = (M * N * item, M * K * item, K * N * item, 0, 0)
    return module.Product((False, False, M, N, K, K, N), (2, 68, 0x10, 0x20), extent)


def operands(memory=None, at=(0x1000, 0x2000, 0x3000), device=0):
    shapes = ((M, N), (M, K), (K, N))
    return [
        Array(shape, one, device=device, memory=memory)
        for shape, one in zip(shapes, at, strict=True)
    ]


QUEUED, RECORDED = 1, 2
ALL = ["set_stream", "set_workspace", "set_sm_count", "gemm"]


def test_cublas_gets_the_transposed_product(cublas, product):
    handle = cublas.module.BlasHandle(0xB000)
    status = cublas.module.multiply(handle, cublas.workspace, 16, product, (0x1000, 0x2000, 0x3000))
    assert status == 0
    assert cublas.calls == [
        ("set_stream", 0xB000, 7),
        ("set_workspace", 0xB000, 0xA000, 64),
        ("set_sm_count", 0xB000, 16),
        ("gemm", 0xB000, 0, 0, N, M, K, 0x10, 0x3000, 2, N, 0x2000, 2, K, 0x20, 0x1000, 2, N, 68, -1),
    ]  # fmt: skip


def test_what_is_set_already_is_not_set_again(cublas, product):
    def multiply(workspace, sm_count):
        status = cublas.module.multiply(handle, workspace, sm_count, product, (1, 2, 3))
        return status, cublas.took()

    handle = cublas.module.BlasHandle(1)
    again = cublas.module.Workspace("other", 0xA000, 64, 7)  # a stream that got the same handle
    assert multiply(cublas.workspace, 16) == (0, ALL)
    assert multiply(cublas.workspace, 16) == (0, ["gemm"])
    assert multiply(cublas.workspace, 8) == (0, ALL)
    assert multiply(again, 8) == (0, ALL)
    assert multiply(cublas.workspace, 8) == (0, ALL)


@pytest.mark.parametrize("failing", ALL)
def test_a_refusal_is_told_and_what_was_not_set_is_set_next_time(cublas, product, failing):
    handle = cublas.module.BlasHandle(1)
    cublas.status = {failing: 14}
    assert cublas.module.multiply(handle, cublas.workspace, 16, product, (1, 2, 3)) == 14
    assert cublas.took()[-1] == failing
    cublas.status = {}
    assert cublas.module.multiply(handle, cublas.workspace, 16, product, (1, 2, 3)) == 0
    assert cublas.took() == (["gemm"] if failing == "gemm" else ALL)


def test_the_workspace_is_locked_without_the_gil_and_again_by_its_thread(cublas, product):
    inside, rest, order = threading.Event(), threading.Event(), []

    def multiply(name):
        handle = cublas.module.BlasHandle(1)
        cublas.module.multiply(handle, cublas.workspace, 16, product, (1, 2, 3))
        order.append(name)

    def during():
        if inside.is_set():
            return
        inside.set()
        assert rest.wait(10)  # the other thread waits for the lock, and this one gets the GIL
        cublas.module.multiply(
            cublas.module.BlasHandle(2), cublas.workspace, 16, product, (1, 2, 3)
        )
        order.append("inner")

    cublas.during = during
    first = threading.Thread(target=multiply, args=("first",))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=multiply, args=("second",))
    second.start()
    rest.set()
    first.join(10)
    second.join(10)
    assert order.index("inner") < order.index("first")
    assert sorted(order) == ["first", "inner", "second"]


# -- by a stream and a plan --------------------------------------------------------------------
def test_a_plan_goes_to_the_streams_lane(cublas, product):
    stream, plan = cublas.stream(), SimpleNamespace(quick=product)
    assert cublas.module.multiply_on(stream, plan, (1, 2, 3), 8, 0) == QUEUED
    assert cublas.took() == ALL
    cublas.log.observers = (1,)  # who calls it told them
    assert cublas.module.multiply_on(stream, plan, (1, 2, 3), 8, 0) == QUEUED
    assert cublas.took() == ["gemm"]


def unready(name):
    """Ways in which a stream, a plan or a thread is not ready: what each changes."""
    return {
        "no lane": lambda cublas, stream, plan: setattr(stream, "lane", None),
        "captured": lambda cublas, stream, plan: setattr(stream, "graph", object()),
        "closed": lambda cublas, stream, plan: setattr(stream, "closed", True),
        "other context": lambda cublas, stream, plan: setattr(cublas, "context", 5),
        "no product": lambda cublas, stream, plan: setattr(plan, "quick", None),
        "no handle": lambda cublas, stream, plan: delattr(cublas.local, "native"),
        "refused": lambda cublas, stream, plan: cublas.status.update(gemm=14),
    }[name]


NOT_READY = ["no lane", "captured", "closed", "other context", "no product", "no handle", "refused"]


@pytest.mark.parametrize("name", NOT_READY)
def test_python_does_what_is_not_ready(cublas, product, name):
    stream, plan = cublas.stream(), SimpleNamespace(quick=product)
    unready(name)(cublas, stream, plan)
    assert cublas.module.multiply_on(stream, plan, (1, 2, 3), 8, 0) == 0
    assert cublas.took() == (ALL if name == "refused" else [])


@pytest.mark.parametrize("wrong", [(1, 2), (1, 2, "3"), None, [1, 2, 3]])
def test_operands_that_are_no_addresses_are_left_to_python(cublas, product, wrong):
    stream, plan = cublas.stream(), SimpleNamespace(quick=product)
    assert cublas.module.multiply_on(stream, plan, wrong, 8, 0) == 0
    assert cublas.module.multiply_on(object(), plan, (1, 2, 3), 8, 0) == 0


def test_an_event_is_recorded_behind_its_product_in_the_same_call(cublas, product):
    recorded, status = [], 0

    def record(event, stream):
        recorded.append((event, stream, cublas.took()))
        return status

    kept = ctypes.CFUNCTYPE(INT, POINTER, POINTER)(record)
    stream, plan = cublas.stream(), SimpleNamespace(quick=product)
    multiply = cublas.module.multiply_on
    assert multiply(stream, plan, (1, 2, 3), 8, 0x50) == QUEUED, "no event was served"
    assert cublas.took() == ALL
    cublas.module.serve_events(Raw, Raw, ctypes.cast(kept, POINTER).value)
    assert multiply(stream, plan, (1, 2, 3), 8, 0x50) == RECORDED
    assert recorded == [(0x50, 7, ["gemm"])]
    assert multiply(stream, plan, (1, 2, 3), 8, 0) == QUEUED
    status = 400
    assert multiply(stream, plan, (1, 2, 3), 8, 0x50) == QUEUED, "Python says what is wrong"
    cublas.status = {"gemm": 14}
    assert multiply(stream, plan, (1, 2, 3), 8, 0x50) == 0
    assert multiply(stream, plan, (1, 2, 3), 8, "0x50") == 0
    assert len(recorded) == 2


def test_each_thread_multiplies_with_its_own_handle(cublas, product):
    stream, plan = cublas.stream(), SimpleNamespace(quick=product)

    def multiply():
        done = cublas.module.multiply_on(stream, plan, (1, 2, 3), 8, 0)
        return done, {call[1] for call in cublas.calls if call[0] == "gemm"}

    found = []

    def other(raw):
        found.append(multiply())
        cublas.calls.clear()
        cublas.local.native = cublas.module.BlasHandle(raw)
        found.append(multiply())

    for raw in (0xC000, 0xD000, 0xC000):
        found.clear()
        cublas.calls.clear()
        assert multiply() == (QUEUED, {0xB000})
        cublas.calls.clear()
        thread = threading.Thread(target=other, args=(raw,))
        thread.start()
        thread.join(10)
        assert found == [(0, set()), (QUEUED, {raw})]


# -- by its operands ---------------------------------------------------------------------------
def test_known_operands_are_queued_where_they_are(cublas, product):
    stream, (out, a, b) = cublas.stream(), operands()
    assert cublas.module.mm_out(out, a, b, stream) is False
    cublas.module.know(out, a, b, product)
    assert cublas.module.mm_out(out, a, b, stream) is True
    assert cublas.calls[-1][7:13] == (0x10, 0x3000, 2, N, 0x2000, 2)
    moved = operands(at=(0x9000, 0xF000, 0x5000))
    assert cublas.module.mm_out(*moved, stream) is True
    assert (cublas.calls[-1][15], cublas.calls[-1][8]) == (0x9000, 0x5000)
    assert stream.held == []


def test_attributes_of_a_type_written_in_c_are_read_as_they_are(module, product):
    cublas = Cublas(module, NumpyArray)
    stream, arrays = cublas.stream(), []
    for at, like in enumerate(operands(), 1):
        array = np.empty(like.shape, like.dtype).view(NumpyArray)
        array.data = SimpleNamespace(ptr=at << 16, device_id=0, mem=Memory())
        arrays.append(array)
    out, a, b = arrays
    module.know(out, a, b, product)
    before = [sys.getrefcount(one) for one in (*arrays, out.dtype, stream.lane)]
    for _ in range(100):
        assert module.mm_out(out, a, b, stream) is True
    after = [sys.getrefcount(one) for one in (*arrays, out.dtype, stream.lane)]
    assert [y - x < 10 for x, y in zip(before, after, strict=True)] == [True] * 5
    assert cublas.calls[-1][8] == 3 << 16
    assert module.mm_out(out, a.T, b, stream) is False
    assert module.mm_out(out, a[:, ::-1], b, stream) is False


class Pointer:
    """Stands for cupy.cuda.MemoryPointer, which nobody can change."""

    def __init__(self, at, memory=None, device=0):
        self._all = at, device, memory

    ptr = property(lambda self: self._all[0])
    device_id = property(lambda self: self._all[1])
    mem = property(lambda self: self._all[2])


class FixedArray:
    """Stands for cupy.ndarray: its shape can be set in place, and nothing else."""

    reads = 0

    def __init__(self, shape, at, memory=None, device=0):
        self.shape, self._data = shape, Pointer(at, memory, device)

    dtype = property(lambda self: HALF)
    data = property(lambda self: self._data)

    @property
    def strides(self):
        FixedArray.reads += 1
        return np.empty(self.shape, HALF).strides


HALF = np.dtype("float16")


@pytest.fixture
def fixed(module, product):
    cublas = Cublas(module)
    addresses = [ctypes.cast(function, POINTER).value for function in cublas.functions]
    module.serve_products((FixedArray, Pointer, Memory, Stream), tuple(addresses))
    arrays = [
        FixedArray(shape, at, Memory())
        for shape, at in zip(((M, N), (M, K), (K, N)), (0x1000, 0x2000, 0x3000), strict=True)
    ]
    module.know(*arrays, product)
    return cublas, arrays


def test_arrays_that_cannot_change_are_read_once(fixed):
    cublas, arrays = fixed
    stream = cublas.stream()
    assert cublas.module.mm_out(*arrays, stream) is True
    reads = FixedArray.reads
    for _ in range(3):
        assert cublas.module.mm_out(*arrays, stream) is True
    assert FixedArray.reads == reads
    assert {call[7:] for call in cublas.calls if call[0] == "gemm"} == {
        (0x10, 0x3000, 2, N, 0x2000, 2, K, 0x20, 0x1000, 2, N, 68, -1)
    }
    other = cublas.stream()
    assert cublas.module.mm_out(*arrays, other) is True
    assert (stream.held, other.held) == ([tuple(arrays)], [tuple(arrays)])
    assert FixedArray.reads == reads


def test_arrays_are_not_taken_for_those_that_lay_where_they_lie(fixed, product):
    cublas, (out, a, b) = fixed
    stream = cublas.stream()
    for number in range(200):
        out = FixedArray((M, N), 0x100000 + 0x1000 * number)
        for _ in range(2):
            assert cublas.module.mm_out(out, a, b, stream) is True
            assert cublas.calls[-1][15] == out.data.ptr
        gone = weakref.ref(out)
        stream.held.clear()
        del out
        assert gone() is None


def test_a_shape_that_was_set_in_place_is_seen(fixed):
    cublas, (out, a, b) = fixed
    stream = cublas.stream()
    assert cublas.module.mm_out(out, a, b, stream) is True
    a.shape = (K, M)
    assert cublas.module.mm_out(out, a, b, stream) is False
    a.shape = (M, K)
    assert cublas.module.mm_out(out, a, b, stream) is True


def test_arrays_of_another_device_or_stream_are_left_to_python(fixed):
    cublas, arrays = fixed
    stream = cublas.stream()
    assert cublas.module.mm_out(*arrays, stream) is True
    stream.lane = cublas.module.Lane(cublas.workspace, cublas.log, cublas.local, stream.tag, 1, 16)
    assert cublas.module.mm_out(*arrays, stream) is False


def test_arrays_that_were_read_are_let_go_of(fixed):
    cublas, arrays = fixed
    stream = cublas.stream()
    memory = arrays[0].data.mem
    for _ in range(2):
        assert cublas.module.mm_out(*arrays, stream) is True
    gone = [weakref.ref(array) for array in arrays] + [weakref.ref(memory)]
    stream.held.clear()
    del arrays, memory
    fixed[1].clear()
    assert [one() for one in gone] == [None] * 4


def test_memory_is_held_by_a_stream_that_is_new_to_it(cublas, product):
    stream, arrays = cublas.stream(), operands(Memory())
    cublas.module.know(*arrays, product)
    for _ in range(3):
        assert cublas.module.mm_out(*arrays, stream) is True
    assert stream.held == [tuple(arrays)]
    stream.hold = None
    other = operands(Memory())
    with pytest.raises(TypeError):
        cublas.module.mm_out(*other, stream)


def changed(name, arrays):
    out, a, b = arrays
    return {
        "shape": lambda: setattr(a, "shape", (M, K + 1)),
        "strides": lambda: setattr(b, "strides", (2, 10)),
        "dtype": lambda: setattr(b, "dtype", np.dtype("float32")),
        "device": lambda: setattr(a.data, "device_id", 1),
        "type": lambda: arrays.__setitem__(1, np.empty((M, K), "float16")),
        "dimensions": lambda: setattr(a, "shape", (M, K, 1)),
        "no shape": lambda: delattr(a, "shape"),
        "no data": lambda: delattr(out, "data"),
        "no tags": lambda: setattr(out.data, "mem", Memory.__new__(Memory)),
        "odd size": lambda: setattr(a, "shape", (M, "5")),
        "overlap": lambda: setattr(a.data, "ptr", out.data.ptr + 1),
        "overlap below": lambda: setattr(b.data, "ptr", out.data.ptr - 2),
    }[name]()


CHANGES = [
    "shape", "strides", "dtype", "device", "type", "dimensions", "no shape", "no data", "no tags",
    "odd size", "overlap", "overlap below",
]  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_anything_else_is_left_to_python(cublas, product, name):
    stream, arrays = cublas.stream(), operands()
    cublas.module.know(*arrays, product)
    assert cublas.module.mm_out(*arrays, stream) is True
    cublas.took()
    changed(name, arrays)
    assert cublas.module.mm_out(*arrays, stream) is False
    assert cublas.took() == []


@pytest.mark.parametrize("name", [name for name in NOT_READY if name != "no product"])
def test_operands_are_left_to_python_where_the_stream_is_not_ready(cublas, product, name):
    stream, arrays = cublas.stream(), operands(Memory())
    cublas.module.know(*arrays, product)
    unready(name)(cublas, stream, None)
    assert cublas.module.mm_out(*arrays, stream) is False
    assert stream.held == []


def test_a_product_that_is_observed_is_left_to_python(cublas, product):
    stream, arrays = cublas.stream(), operands()
    cublas.module.know(*arrays, product)
    cublas.log.observers = (1,)
    assert cublas.module.mm_out(*arrays, stream) is False
    cublas.log.observers = ()
    assert cublas.module.mm_out(*arrays, stream) is True


def test_a_guard_selects_the_stream(cublas, product, module):
    import asyncio

    stream, arrays = cublas.stream(), operands()
    module.serve_guards(
        caller.process_slot(), asyncio._get_running_loop, handles.bind, handles.BoundLibrary
    )

    class Guard(module.Guard):
        def _check(self, stream):
            pass

    module.know(*arrays, product)
    assert module.mm_out(*arrays, None) is False
    with Guard(stream):
        assert module.mm_out(*arrays, None) is True

        async def in_a_loop():
            return module.mm_out(*arrays, None)

        assert asyncio.run(in_a_loop()) is False
    assert module.mm_out(*arrays, None) is False


def test_many_kinds_of_operands_are_known_at_once(cublas, module):
    stream, kinds = cublas.stream(), 4096
    for k in range(1, kinds):
        arrays = [Array((2, 3), 0x10000), Array((2, k), 0x2000000), Array((k, 3), 0x4000000)]
        made = module.Product(
            (False, False, 2, 3, k, k, 3), (2, 68, 1, 2), (12, 4 * k, 6 * k, 0, 0)
        )
        module.know(*arrays, made)
    known = 0
    for k in range(1, kinds):
        arrays = [Array((2, 3), 0x10000), Array((2, k), 0x2000000), Array((k, 3), 0x4000000)]
        if module.mm_out(*arrays, stream):
            known += 1
            assert cublas.calls[-1][6] == k
    assert known > 0.99 * kinds


def test_lanes_and_what_they_hold_go(cublas, product, module):
    stream, arrays = cublas.stream(), operands(Memory())
    module.know(*arrays, product)
    assert module.mm_out(*arrays, stream)
    stream.calls.me = stream  # as an observer may hold on to it
    gone = [weakref.ref(stream), weakref.ref(arrays[0])]
    del stream, arrays
    cublas.log.observers = ()
    cublas.log.__dict__.clear()
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_nothing_is_leaked_or_let_go_of_too_often(cublas, product, module):
    stream, arrays = cublas.stream(), operands(Memory())
    module.know(*arrays, product)
    others = operands(Memory())
    others[1].shape = (M, K + 1)
    watched = [
        stream, stream.tag, stream.lane, *arrays, *(array.dtype for array in arrays), product,
        cublas.log, cublas.local, cublas.local.native, cublas.workspace, arrays[0].data.mem.tags,
    ]  # fmt: skip
    module.mm_out(*arrays, stream)
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(200):
        module.mm_out(*arrays, stream)
        module.mm_out(*others, stream)
        module.know(*arrays, product)
        module.multiply_on(stream, SimpleNamespace(quick=product), (1, 2, 3), 8, 0)
        module.multiply(cublas.local.native, cublas.workspace, 8, product, (1, 2, 3))
        stream.lane = module.Lane(cublas.workspace, cublas.log, cublas.local, stream.tag, 0, 8)
    watched[2] = stream.lane
    after = [sys.getrefcount(one) for one in watched]
    assert [abs(x - y) < 10 for x, y in zip(before, after, strict=True)] == [True] * len(before)


# -- events --------------------------------------------------------------------------------------
class Raw:
    """Stands for cuda.core's Event and Stream."""

    def __init__(self, handle):
        self.handle = handle


def test_an_event_is_recorded_in_a_stream_that_knows_its_context(module):
    recorded, status = [], 0

    def take(event, stream):
        recorded.append((event, stream))
        return status

    kept = ctypes.CFUNCTYPE(INT, POINTER, POINTER)(take)
    assert module.record(Raw(1), Raw(5)) is False
    module.serve_events(Raw, Raw, ctypes.cast(kept, POINTER).value)
    assert module.record(Raw(0x10), Raw(5)) is True
    for event, stream in (
        (Raw(0x10), Raw(2)), (Raw(0x10), Raw(0)), (Raw(None), Raw(5)), (Raw(1), Raw("five")),
        (Raw(1), Raw(-5)), (object(), Raw(5)), (Raw(1), None),
    ):  # fmt: skip
        assert module.record(event, stream) is False
    assert recorded == [(0x10, 5)]
    status = 400
    assert module.record(Raw(0x10), Raw(5)) is False, "Python says what is wrong"
