"""Modules as workloads: on the simulated GPU, with what of PyTorch they need faked."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope.device import handles
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.errors import (
    CapabilityError,
    ClosedError,
    GpuscopeError,
    InvalidExperiment,
    InvalidOperand,
    MissingDependency,
    StreamError,
)
from gpuscope.workloads.torch_module import TorchModule

MODEL = KernelModel(lambda _profile, grid, args, _sms: KernelCost(grid, args[0]))


class Layer:
    """Three kernels, and state of its own: how often its Python ran."""

    def __init__(self, gpu, block_ns=20_000):
        self.kernel = gpu.compile("", "layer", model=MODEL)
        self.block_ns = block_ns
        self.ran = 0

    def __call__(self, x, scale=1):
        self.ran += 1
        stream = gs.device.caller.get_caller_stream()
        for _ in range(3):
            stream.launch(self.kernel, self.block_ns * scale, grid=8, block=32)
        return x


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


def test_a_module_is_warmed_up_captured_and_replayed_in_its_partition(gpu):
    layer = Layer(gpu)
    with gpu.carve({"small": 16, "rest": "rest"}) as parts:
        with parts["small"].create_stream(name="s") as stream, gs.profile(gpu) as recording:
            handle = TorchModule(layer, ("x",), owner=gpu)
            for _ in range(5):
                assert handle.execute(stream=stream) == "x"
            handle.wait()
        assert layer.ran == 2  # once to warm up, once to capture
        trace = recording.trace
        kernels = trace.where(kind="kernel")
        assert len(kernels) == 15
        assert set(kernels.texts("partition")) == {"small"}
        assert set(kernels.texts("category")) == {"Layer"}
        assert len(trace.where(kind="handle")) == 5
        assert "confined" in str(gs.telling.findings(trace)).lower()
        with parts["rest"].create_stream() as elsewhere, gs.profile(gpu) as recording:
            with gs.CallerStreamGuard(elsewhere):  # which other graphs refuse
                handle.execute()
                handle.execute()
            handle.wait()
        assert layer.ran == 4
        assert set(recording.trace.where(kind="kernel").texts("partition")) == {"rest"}
        handle.close()
        with pytest.raises(ClosedError):
            handle.execute()


def test_eager_runs_the_module_each_time(gpu):
    layer = Layer(gpu)
    inputs = {"x": 1, "scale": 2}
    handle = TorchModule(layer, inputs, graph=False, owner=gpu, name="mine", flop_count=6)
    with handle, gpu.create_stream() as stream, gs.profile(gpu) as recording:
        for _ in range(3):
            handle.execute(stream=stream)
        handle.wait()
    assert layer.ran == 3
    calls = recording.trace.where(kind="handle")
    assert calls.texts("name") == ["mine"] * 3
    assert calls.array("flop_count").tolist() == [6] * 3


def test_one_argument_and_the_device_of_the_inputs(gpu):
    a = gpu.random((4, 4))
    with gpu.create_stream() as stream, TorchModule(lambda x: x, a) as handle:
        assert handle.device is gpu
        assert handle.execute(stream=stream) is a


def test_what_cannot_be_a_module_is_refused(gpu):
    with pytest.raises(InvalidOperand, match=r"torch\.nn\.Module is needed"):
        TorchModule(3, owner=gpu)
    with pytest.raises(InvalidOperand, match="owner="):
        TorchModule(len, "abc")
    cpu = gs.open_device("cpu", quiet=True)
    with pytest.raises(CapabilityError, match="cpu has no graphs: give graph=False"):
        TorchModule(len, "abc", owner=cpu)
    with TorchModule(len, "abc", owner=cpu, graph=False) as handle:
        assert handle.execute() == 3


def test_what_cannot_be_captured_says_so_and_leaves_the_handle_usable(gpu):
    def waits(stream):
        stream.synchronize()

    with (
        gpu.create_stream() as stream,
        TorchModule(lambda: waits(stream), owner=gpu, name="waits") as handle,
    ):
        with pytest.raises(StreamError, match=r"'waits' cannot be captured .*graph=False"):
            handle.execute(stream=stream)
        assert not stream.capturing
        handle.drop_graph()
        handle.execute(stream=stream)
        handle.wait()


# -- PyTorch itself ------------------------------------------------------------------------
class FakeTorch(ModuleType):
    """What a TorchModule takes of PyTorch."""

    def __init__(self):
        super().__init__("torch")
        self.log: list[str] = []
        self._pools: weakref.WeakSet[object] = weakref.WeakSet()
        self.__version__ = "2.11.0"
        self.nn = SimpleNamespace(Module=type("Module", (), {}))
        self.cuda = SimpleNamespace(
            MemPool=self._pool,
            use_mem_pool=self._use,
            empty_cache=lambda: self.log.append("empty_cache"),
        )

    def _pool(self):
        self.log.append("pool")
        pool = type("MemPool", (), {})()
        self._pools.add(pool)
        return pool

    def pools(self):
        gc.collect()
        return len(self._pools)

    @contextlib.contextmanager
    def _use(self, pool, device):
        self.log.append(f"into the pool of device {device}")
        yield
        self.log.append("out")

    @contextlib.contextmanager
    def no_grad(self):
        self.log.append("no_grad")
        yield


@pytest.fixture
def torch(monkeypatch):
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def as_if_cuda(gpu, monkeypatch):
    """Let a simulated GPU say that it is real: only who asks for its kind sees that."""
    monkeypatch.setattr(gpu, "info", dataclasses.replace(gpu.info, kind="cuda"))


def test_without_pytorch_it_says_what_to_install(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    as_if_cuda(gpu, monkeypatch)
    with pytest.raises(MissingDependency, match="pip install torch"):
        TorchModule(len, "abc", owner=gpu)


def test_a_capture_has_a_pool_of_its_own_which_closing_frees(gpu, torch, monkeypatch):
    monkeypatch.setattr(handles, "bind", lambda _stream: [])
    with gpu.carve({"a": 16, "b": 16}) as parts:
        as_if_cuda(gpu, monkeypatch)
        layer = Layer(gpu)
        with parts["a"].create_stream() as one, parts["b"].create_stream() as two:
            handle = TorchModule(layer, "x", owner=gpu)
            captured = ["no_grad", "pool", "into the pool of device 0", "no_grad", "out"]
            for stream in (one, one, two, two):
                handle.execute(stream=stream)
                handle.wait()
            assert torch.log == 2 * captured
            assert torch.pools() == 1, "the first partition's went with its graph"
            handle.close()
            assert torch.pools() == 0
            assert torch.log[-1] == "empty_cache"


def test_an_old_pytorch_is_refused(gpu, torch, monkeypatch):
    as_if_cuda(gpu, monkeypatch)
    del torch.cuda.use_mem_pool
    with pytest.raises(MissingDependency, match=r"2\.8 or newer, and 2\.11\.0"):
        TorchModule(len, "abc", owner=gpu)


def test_a_simulated_gpu_runs_no_pytorch(gpu, torch):
    module = type("Mine", (torch.nn.Module,), {"__call__": lambda self: None})()
    with pytest.raises(CapabilityError, match="'trace'"):
        TorchModule(module, owner=gpu)


# -- in experiments ------------------------------------------------------------------------
MODULE = """
import gpuscope as gs
from gpuscope.device import handles
from gpuscope.device.api import KernelCost, KernelModel

MODEL = KernelModel(lambda _profile, grid, args, _sms: KernelCost(grid, args[0]))
made = []

def decode(device, us=50, name="", seed=0):
    kernel = device.compile("", "decode", model=MODEL)
    state = {"calls": 0}

    def step():
        state["calls"] += 1
        gs.get_caller_stream().launch(kernel, us * 1000, grid=8, block=32)

    made.append((name, seed, state))
    return gs.TorchModule(step, owner=device, nbytes=1000)

@gs.workloads.workload(flop_count=10**9, nbytes=5)
def counted(ctx):
    ctx.stream.launch(ctx.device.compile("", "counted", model=MODEL), 1000, grid=1, block=32)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mine_models", None)


def described(**workload):
    return {
        "name": "models", "alone_repeats": 3, "seed": 4, "partitions": {"a": 16, "b": "rest"},
        "streams": {"a": {"partition": "a"}, "b": {"partition": "b"}},
        "workloads": {
            name: {"kind": "python:mine_models:decode", "stream": name, "repeats": 4, **workload}
            for name in "ab"
        },
    }  # fmt: skip


def test_a_function_that_returns_a_handle_is_a_workload_with_state_of_its_own(mine, gpu):
    run = gs.run(described(args={"us": 70}, flops=12), gpu)
    assert run.comparison.column("kernel_median_us").to_pylist() == [70.0, 70.0]
    from mine_models import made

    assert [(name, seed) for name, seed, _ in made] == [("a", 4), ("b", 4)]
    assert made[0][2] is not made[1][2]
    calls = run["default"].where(kind="handle")
    assert set(calls.array("flop_count")) == {12}
    assert set(calls.array("nbytes")) == {1000}


def test_a_decorated_function_may_state_its_work(mine, gpu):
    run = gs.run(described(kind="python:mine_models:counted", bytes=7), gpu)
    calls = run["default"].where(kind="handle")
    assert set(calls.array("flop_count")) == {10**9}
    assert set(calls.array("nbytes")) == {7}  # the experiment's word counts


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", 2**62])
def test_a_stated_amount_is_a_count(value, mine, gpu):
    with pytest.raises(InvalidExperiment, match=r"workloads\.a\.flops"):
        gs.run(described(flops=value), gpu)
    with pytest.raises(GpuscopeError, match="flop_count"):
        gs.workloads.workload(flop_count=-1)
