"""Contract B8 without a GPU: which device is current, through a fake of the CUDA libraries.

The current device is switched only when it differs, and restored on every way out.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

import gpuscope as gs
import gpuscope.device.cuda as package
from gpuscope.device.api import DeviceInfo
from gpuscope.device.cuda import backend as cuda
from gpuscope.device.cuda import context, driver
from gpuscope.device.device import Device

OURS, THEIRS = 0, 1


class DriverFault(Exception):
    """What a CUDA library raises."""


class Array:
    """Stands for cupy.ndarray."""

    addresses = iter(range(1 << 20, 1 << 40, 1 << 20))

    def __init__(self, shape, dtype=np.float32, device=OURS):
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)
        self.size = int(np.prod(shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.strides = np.empty(shape, dtype).strides
        self.data = SimpleNamespace(ptr=next(self.addresses), device_id=device, mem=None)
        self.flags = SimpleNamespace(c_contiguous=True)

    def __setitem__(self, key, value):
        if isinstance(value, Array):
            self.met("copy kernel")

    def set(self, values):
        self.met("set")

    def met(self, name):
        """Tell the machine; the fixture says which."""


class Memory:
    """Stands for arrays.DeviceMemory."""

    def __init__(self, block, nbytes, index):
        self.block, self.ptr = block, 1 << 20

    def array(self, shape, dtype):
        return Array(shape, dtype)


class Machine:
    """Two devices: which one is current on each thread, and where the driver was called.

    Attributes
    ----------
    switches
        Devices made current, in order.
    calls
        (name of a call, device that was current) in order.
    failing
        Names of calls that raise.
    """

    def __init__(self):
        self._local = threading.local()
        self.switches, self.calls, self.failing = [], [], set()

    @property
    def current(self):
        return getattr(self._local, "device", 0)

    def make_current(self, index):
        self.met("set_current")
        self.switches.append(index)
        self._local.device = index

    def met(self, name):
        if name != "set_current":
            self.calls.append((name, self.current))
        if name in self.failing:
            raise DriverFault(name)

    def function(self, name, result=None):
        def call(*args, **kwargs):
            self.met(name)
            return result() if callable(result) else result

        return call

    def stream(self):
        return SimpleNamespace(
            handle=0x77, sync=self.function("stream.sync"), wait=self.function("stream.wait"),
            record=self.function("event.record"), close=lambda: None,
        )  # fmt: skip

    def event(self):
        return SimpleNamespace(handle=0x70, is_done=True, sync=lambda: None, close=lambda: None)

    def device(self, index):
        return SimpleNamespace(
            set_current=lambda: self.make_current(index),
            create_stream=self.function("create_stream", self.stream),
            create_event=self.function("create_event", self.event),
            properties=SimpleNamespace(memory_pools_supported=True),
            resources=SimpleNamespace(sm=SimpleNamespace()), arch="90",
        )  # fmt: skip

    def core(self):
        program = SimpleNamespace(
            compile=self.function("compile", lambda: SimpleNamespace(get_kernel=lambda _: "cubin"))
        )
        return SimpleNamespace(
            Device=self.device, EventOptions=SimpleNamespace, StreamOptions=SimpleNamespace,
            ProgramOptions=SimpleNamespace, LaunchConfig=SimpleNamespace,
            Program=lambda *_: program, launch=self.function("launch"),
            PER_THREAD_DEFAULT_STREAM=self.stream(),
        )  # fmt: skip

    def cupy(self):
        cupy = MagicMock()
        cupy.ndarray = Array
        cupy.cuda.MemoryPool = lambda: SimpleNamespace(malloc=self.function("malloc"))
        cupy.asnumpy = self.function("asnumpy", lambda: np.zeros(1))
        cupy.random.default_rng = self.function("random", MagicMock)
        runtime = cupy.cuda.runtime
        runtime.getDevice = lambda: self.current
        runtime.deviceSynchronize = self.function("deviceSynchronize")
        runtime.memcpyAsync = self.function("memcpyAsync")
        runtime.streamBeginCapture = self.function("streamBeginCapture")
        runtime.streamEndCapture = self.function("streamEndCapture", "graph")
        runtime.graphInstantiate = self.function("graphInstantiate", "exec")
        runtime.streamQuery = self.function("streamQuery", 0)
        runtime.streamIsCapturing = lambda _: False
        runtime.launchHostFunc = self.function("launchHostFunc")
        runtime.graphLaunch = self.function("graphLaunch")
        runtime.graphExecDestroy = self.function("graphExecDestroy")
        return cupy


@pytest.fixture
def machine(monkeypatch):
    """Put fakes where CudaBackend looks for CuPy, cuda.core and its own modules."""
    machine = Machine()
    monkeypatch.setattr(driver, "relaxed_capture", contextlib.nullcontext)
    info = DeviceInfo("cuda:0", "cuda", OURS, "Fake", "GPU-0", 132, (9, 0), 1 << 37, "driver")
    monkeypatch.setattr(driver, "info_of", machine.function("info", info))
    monkeypatch.setattr(Array, "met", lambda _, name: machine.met(name))
    monkeypatch.setattr(context, "_load", lambda _: (13010, machine.cupy(), machine.core()))
    contexts = SimpleNamespace(
        make=machine.function("make_contexts", list), close=machine.function("close_context"),
        clear=machine.function("clear_contexts"),
    )  # fmt: skip
    blas = SimpleNamespace(
        matmul=machine.function("gemm"), queued=lambda *_: False, expect=lambda *_: None, forget_stream=lambda _: None,
        prepare=lambda: None,
    )  # fmt: skip
    splitter = SimpleNamespace(layout=None, check=lambda _: None)
    fakes = {
        "arrays": SimpleNamespace(
            adopt=lambda value, write=False: value if isinstance(value, Array) else None,
            host_array=lambda value: value,
            stream_of=lambda _: None,
            DeviceMemory=Memory,
            block_of=lambda value: None,
        ),
        "blas": SimpleNamespace(Blas=lambda *_: blas),
        "partition": SimpleNamespace(
            splitter_of=lambda _core, _resource, can: (machine.function("split", splitter)(), can),
            GreenContexts=lambda *_: contexts,
        ),
        "probe": SimpleNamespace(SmProbe=machine.function("probe")),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, f"gpuscope.device.cuda.{name}", fake)
        monkeypatch.setattr(package, name, fake, raising=False)
    return machine


@pytest.fixture
def backend(machine):
    made = cuda.CudaBackend(OURS)
    machine.switches.clear()
    machine.calls.clear()
    return made


def our_stream(machine):
    """What the backend takes where it takes a Stream."""
    return SimpleNamespace(handle=0x77, raw=machine.stream())


PLAN = SimpleNamespace(bytes_out=1)
KERNEL = SimpleNamespace(raw=1, name="k", holds_sms=False)
MEMORY = SimpleNamespace(raw=SimpleNamespace(close=lambda _: None), nbytes=4)
CALLS = {
    "create_stream": lambda b, m: b.make_stream(None, 0),
    "stream.sync": lambda b, m: b.sync_stream(m.stream()),
    "deviceSynchronize": lambda b, m: b.synchronize(),
    "create_event": lambda b, m: b.make_event(timing=False),
    "event.record": lambda b, m: b.record(m.event(), m.stream(), 0),
    "stream.wait": lambda b, m: b.wait(m.stream(), m.event()),
    "malloc": lambda b, m: b.empty((4, 4), np.dtype(np.float32)),
    "set": lambda b, m: b.asarray(np.zeros((4, 4), np.float32)),
    "random": lambda b, m: b.fill_random(Array((4, 4)), 0),
    "asnumpy": lambda b, m: b.to_host(Array((4, 4))),
    "memcpyAsync": lambda b, m: b.copy(m.stream(), Array((4, 4)), Array((4, 4)), 0),
    "compile": lambda b, m: b.compile("source", "name", None),
    "launch": lambda b, m: b.launch(m.stream(), KERNEL, 1, 1, (), 0),
    "gemm": lambda b, m: b.matmul(our_stream(m), PLAN, (1, 2, 3), 0, 0),
    "copy kernel": lambda b, m: b.rearrange(our_stream(m), Array((4, 4)), Array((4, 4)), 0),
    "make_contexts": lambda b, m: b.make_partitions([]),
    "close_context": lambda b, m: b.close_partition(None),
    "clear_contexts": lambda b, m: b.close(),
    "streamBeginCapture": lambda b, m: b.begin_capture(our_stream(m)),
    "graphInstantiate": lambda b, m: b.end_capture(our_stream(m)),
    "graphLaunch": lambda b, m: b.launch_graph(("exec", m.event()), m.stream(), 0),
    "graphExecDestroy": lambda b, m: b.close_graph(("exec", m.event())),
    "streamQuery": lambda b, m: b.stream_done(m.stream()),
    "launchHostFunc": lambda b, m: b.host_call(m.stream(), lambda: None, 0, None),
}


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
@pytest.mark.parametrize("name", CALLS)
def test_handle_08_switched_only_when_it_differs_and_restored(machine, backend, name, fails):
    for before, switches in ((OURS, []), (THEIRS, [OURS, THEIRS])):
        machine.make_current(before)
        machine.switches.clear()
        machine.calls.clear()
        machine.failing = {name} if fails else set()
        backend._kernels.clear()
        if fails:
            with pytest.raises(Exception, match=name):
                CALLS[name](backend, machine)
        else:
            CALLS[name](backend, machine)
        assert (name, OURS) in machine.calls
        assert {device for _, device in machine.calls} == {OURS}
        assert machine.switches == switches
        assert machine.current == before


def test_handle_08_a_device_that_cannot_be_made_current_changes_nothing(machine, backend):
    machine.make_current(THEIRS)
    machine.failing = {"set_current"}
    machine.switches.clear()
    for call in CALLS.values():
        with pytest.raises(Exception, match="set_current"):
            call(backend, machine)
    assert machine.current == THEIRS
    assert machine.switches == []
    assert machine.calls == []


@pytest.mark.parametrize("before", [OURS, THEIRS])
@pytest.mark.parametrize("fails", [None, "info", "split"])
def test_handle_08_opening_a_device_restores(machine, before, fails):
    machine.make_current(before)
    machine.failing = {fails}
    if fails:
        with pytest.raises(DriverFault):
            cuda.CudaBackend(OURS)
    else:
        cuda.CudaBackend(OURS)
    assert machine.current == before
    assert {device for _, device in machine.calls} == {OURS}


def test_handle_08_a_thread_makes_the_device_current_once(machine, backend):
    """CUDA wants a context on each thread; where it is ours already that is no switch."""

    def work():
        for _ in range(3):
            backend.synchronize()
        assert machine.current == OURS

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert machine.switches == [OURS]


def test_handle_08_nested_switches_restore_in_order(machine, backend):
    machine.make_current(THEIRS)
    machine.switches.clear()
    with backend.current():
        with backend.current():
            assert machine.current == OURS
        assert machine.current == OURS
        backend.synchronize()
    assert machine.switches == [OURS, THEIRS]


@pytest.mark.parametrize("before", [OURS, THEIRS])
def test_handle_08_the_whole_life_of_a_handle(machine, backend, before):
    device = Device(backend)
    machine.make_current(before)

    def check():
        assert machine.current == before
        assert {one for _, one in machine.calls} == {OURS}
        machine.calls.clear()

    stream = device.create_stream()
    check()
    for leave in ("close", "with", "collect"):
        handle = gs.Gemm(device, m=4, n=4, k=4, dtype="float32")
        handle.operands()
        check()
        for _ in range(3):
            handle.execute(stream=stream)
            check()
        handle.execute(np.zeros((4, 4), np.float32), stream=stream)
        check()
        for name in ("gemm", "event.record"):
            for way in ("common path", "after a failure"):
                machine.failing = {name}
                with pytest.raises((DriverFault, gs.errors.GpuscopeError), match=name):
                    handle.execute(stream=stream)
                machine.failing = set()
                assert machine.current == before, way
        machine.failing = {"memcpyAsync"}
        with pytest.raises(gs.errors.GpuscopeError, match="memcpyAsync"):
            handle.execute(out=np.zeros((4, 4), np.float32), stream=stream)
        machine.failing = set()
        check()
        handle.execute(stream=stream)
        if leave == "close":
            handle.close()
        elif leave == "with":
            with handle:
                pass
        del handle
        gc.collect()
        check()
    machine.switches.clear()
    stream.close()
    check()
    assert machine.switches == ([] if before == OURS else [OURS, THEIRS])


def test_handle_08_the_common_path_switches_nothing(machine, backend):
    device = Device(backend)
    machine.make_current(OURS)
    handle = gs.Gemm(device, m=4, n=4, k=4, dtype="float32")
    with device.create_stream() as stream:
        handle.execute(stream=stream)
        machine.switches.clear()
        machine.calls.clear()
        for _ in range(3):
            handle.execute(stream=stream)
        assert machine.switches == []
        assert [name for name, _ in machine.calls] == ["gemm", "event.record"] * 3
