"""PyTorch's modules as workloads, on a GPU."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuscope as gs

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


@pytest.fixture
def gpu():
    return gs.open_device("cuda:0", quiet=True)


class Layer(torch.nn.Module):
    """Counts its calls on the GPU, and computes."""

    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size, bias=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.ran = 0

    def forward(self, x):
        self.ran += 1
        self.calls += 1
        return torch.nn.functional.gelu(self.linear(x)) + x


def layer(size=2048):
    return Layer(size).cuda().half().eval()


def test_a_module_is_captured_on_a_partition_and_confined(gpu):
    module, x = layer(), torch.randn(512, 2048, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        want = module(x).clone()
    torch.cuda.synchronize()
    with (
        gpu.carve({"small": 16, "rest": "rest"}) as parts,
        parts["small"].create_stream(name="s") as stream,
        gs.TorchModule(module, x) as handle,
    ):
        handle.execute(stream=stream)
        ran = module.ran
        with gs.profile(gpu) as recording:
            with gs.CallerStreamGuard(stream):
                for _ in range(20):
                    out = handle.execute()
            handle.wait()
        assert module.ran == ran, "its Python ran in a replay"
        assert torch.allclose(out, want, atol=1e-2)
        assert int(module.calls) == 22  # eager twice, replayed twenty times
        x.copy_(-x)
        torch.cuda.synchronize()
        handle.execute(stream=stream)
        handle.wait()
        with torch.no_grad():
            assert torch.allclose(out, module(x), atol=1e-2)
    trace = recording.trace
    kernels = trace.where(kind="kernel")
    assert len(kernels) >= 40
    assert set(kernels.texts("partition")) == {"small"}
    assert set(kernels.texts("category")) == {"Layer"}
    assert len(trace.where(kind="handle")) == 20
    assert gs.analysis.confinement(trace)["small"].fraction == 1
    assert trace.metadata.complete, trace.metadata.notes


def test_closing_frees_the_pool(gpu):
    module, x = layer(), torch.randn(4096, 2048, device="cuda", dtype=torch.float16)
    with gpu.create_stream() as stream:
        with gs.TorchModule(module, x, graph=False) as handle:  # makes cuBLAS's workspace
            handle.execute(stream=stream)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for _ in range(3):
            handle = gs.TorchModule(module, x)
            handle.execute(stream=stream)
            handle.execute(stream=stream)
            handle.wait()
            assert torch.cuda.memory_reserved() > before
            handle.close()
            gc.collect()
            assert torch.cuda.memory_reserved() == before


@pytest.mark.gpu_alone("measures overlap")
def test_modules_on_two_partitions_overlap(gpu):
    described = {
        "name": "two modules", "alone_repeats": 5,
        "partitions": {"a": 64, "b": "rest"},
        "streams": {"a": {"partition": "a"}, "b": {"partition": "b"}},
        "workloads": {
            # A thread keeps Python's lock for up to 5 ms: the other's calls have to be queued then.
            name: {"kind": f"python:{__name__}:make", "stream": name, "repeats": 500,
                   "max_queued": 4,
                   "args": {"rows": 4096}, "flops": 2 * 4096 * 2048 * 2048}
            for name in "ab"
        },
    }  # fmt: skip
    run = gs.run(described, gpu)
    trace = run["default"]
    # How much depends on when Python's lock is passed on: 0.2 to 0.6 were seen.
    assert gs.analysis.overlap(trace, by="workload").pairs[0].fraction > 0.1
    judged = gs.analysis.confinement(trace)
    assert judged["a"].fraction == judged["b"].fraction == 1
    assert np.all(np.array(run.comparison.column("calls_per_s").to_pylist()) > 0)
    assert all(run.comparison.column("tflop_per_s").to_pylist())


def make(device, rows):
    x = torch.randn(rows, 2048, device="cuda", dtype=torch.float16)
    return gs.TorchModule(layer(), x, owner=device)


def test_what_cannot_be_captured_says_so(gpu):
    x = torch.ones(4, device="cuda")
    with gpu.create_stream() as stream, gs.TorchModule(lambda x: x.sum().item(), x) as handle:
        with pytest.raises(gs.errors.StreamError, match=r"cannot be captured .*graph=False"):
            handle.execute(stream=stream)
        handle.drop_graph()
        assert handle.execute(stream=stream) == 4
