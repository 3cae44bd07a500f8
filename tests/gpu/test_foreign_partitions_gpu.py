"""Partitions of PyTorch's and cuda.core's have the names that they were given, on a GPU."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import gpuscope as gs

pytestmark = pytest.mark.gpu
SMS = 16


@pytest.fixture
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


def checked(trace, name):
    """Check that all kernels of the trace are in a partition of that name, with its SM count."""
    kernels = trace.where(kind="kernel")
    assert len(kernels)
    assert {*kernels.texts("partition")} == {name}
    facts = trace.metadata.partitions[name]
    assert facts.sm_count == SMS
    assert {*kernels.array("green_context").tolist()} == {facts.context}


def of_torch(torch):
    """Return a green context of any PyTorch that has them."""
    green_contexts = pytest.importorskip("torch.cuda.green_contexts")
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    create = getattr(green_contexts.GreenContext, "create", None)
    if create is not None:
        return create(SMS, 0)
    return green_contexts.GreenContext(num_sms=SMS, device_id=0)


def test_a_green_context_of_pytorch(gpu):
    torch = pytest.importorskip("torch")
    context = of_torch(torch)
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    if hasattr(context, "Stream"):
        gs.device.name_partition(context, "decode")
        used = torch.cuda.stream(context.Stream())
    else:
        used = contextlib.nullcontext()
        context.set_context()
        gs.device.name_partition(torch.cuda.current_stream(), "decode")
    with gs.profile(gpu) as recording, used:
        for _ in range(5):
            x.mul_(1.5)
        torch.cuda.synchronize()
    if not hasattr(context, "Stream"):
        context.pop_context()
    checked(recording.trace, "decode")


def test_a_green_context_of_cuda_core(gpu):
    core = pytest.importorskip("cuda.core")
    cupy = pytest.importorskip("cupy")
    device = core.Device(0)
    device.set_current()
    groups, _ = device.resources.sm.split(core.SMResourceOptions(count=[SMS]))
    context = device.create_context(core.ContextOptions(resources=[groups[0]]))
    gs.device.name_partition(context, "prefill")
    stream = context.create_stream()
    x = cupy.asarray(np.ones(1 << 20, np.float32))
    cupy.cuda.Device().synchronize()
    with gs.profile(gpu) as recording, cupy.cuda.ExternalStream(int(stream.handle)):
        for _ in range(5):
            x *= 1.5
        stream.sync()
    checked(recording.trace, "prefill")
    stream.close()
    context.close()
