"""Steps, idle causes and names of what PyTorch does on a GPU."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.trace.naming import kernel_name, stream_names, thread_names

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone("measures idle time")]
torch = pytest.importorskip("torch")
STEPS = 40


@pytest.fixture(scope="module")
def trace():
    """Record a training: batches that take 3 ms to come, then forward, backward and update."""
    gpu = gs.open_device("cuda:0", quiet=True)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(6))
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.rand(64, 512) for _ in range(STEPS)]
    with gs.profile(gpu) as recording:
        for batch in batches:
            begin = time.perf_counter()
            while time.perf_counter() < begin + 3e-3:
                pass
            loss = model(batch.cuda()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    return recording.trace


def test_each_batch_is_a_step(trace):
    result = gs.analysis.steps(trace)
    assert len(result.steps) == STEPS
    assert result.typical.length_ns >= 3_000_000
    assert result.basis.startswith("launches that begin anew with copy to the GPU at ")


def test_most_of_the_idle_time_is_between_two_calls_of_the_main_thread(trace):
    idle = gs.analysis.idle_causes(trace)
    assert idle.idle_ns == sum(cause.idle_ns for cause in idle.causes)
    first = idle.causes[0]
    assert (first.cause, first.thread) == ("between two CUDA calls", "main thread")
    line = int(first.line.split(":")[1].split()[0])
    assert "batch.cuda()" in Path(__file__).read_text().splitlines()[line - 1]
    assert first.idle_ns >= 0.8 * 3_000_000 * (STEPS - 3)


def test_threads_streams_and_kernels_have_names(trace):
    assert "PyTorch's default stream" in stream_names(trace).values()
    assert "main thread" in thread_names(trace).values()
    plain = {kernel_name(name) for name in trace.where(kind="kernel").texts("name")}
    assert any(name.startswith("GEMM ") for name in plain)
    assert not any("<" in name or "::" in name for name in plain)
