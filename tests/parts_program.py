"""A program that waits in every way, and requests: what parts of time are checked on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.trace import Trace
from gpuscope.workloads.spin import Spin

SERVING: dict[str, Any] = {
    "name": "serving", "rounds": 2, "alone_repeats": 0,
    "partitions": {"p": "rest", "d": 32},
    "streams": {"p": {"partition": "p"}, "d": {"partition": "d"}},
    "workloads": {
        "prefill": {"kind": "gemm", "m": 2048, "n": 2048, "k": 2048, "stream": "p"},
        "decode": {"kind": "gemm", "m": 64, "n": 2048, "k": 2048, "stream": "d"},
        "chat": {"kind": "requests", "prefill": "prefill", "decode": "decode", "batch": 4,
                 "repeats": 40, "arrival": "poisson", "rate_hz": 2000.0, "prompt_chunks": [1, 3],
                 "output_tokens": [1, 6, 9]},
    },
}  # fmt: skip
CHUNKS, TOKENS = (1, 3), (1, 6, 9)
"""Calls of prefill, and tokens, of requests 0, 1, 2, …; both begin anew."""


def waits(gpu: Device) -> Trace:
    """Record handles on partitions, graphs, copies, ``mm_out`` and a host that polls events."""
    spin = Spin(gpu, duration_ns=300_000, blocks=132, name="spin", max_in_flight=4)
    gemm = gs.Gemm(gpu, m=512, n=512, k=512, name="gemm", max_in_flight=4)
    pinned, pageable = gpu.empty_pinned(1 << 20), gpu.to_host(gpu.empty(1 << 18))
    arrays, small = [gpu.empty(1 << 20) for _ in range(2)], gpu.empty(1 << 18)
    out, left, right = gpu.empty((64, 64)), gpu.random((128, 128)), gpu.random((64, 64))
    with (
        gpu.carve({"a": 16, "b": 24}) as partitions,
        partitions["a"].create_stream(name="a") as a,
        partitions["b"].create_stream(name="b") as b,
        gpu.create_stream(name="whole", priority=-1) as whole,
        gpu.create_stream(name="blocking", blocking=True) as blocking,
    ):
        default = gpu.wrap_stream(0, name="default")
        with whole.capture() as graph:
            gs.mm_out(out, left[::2, ::2], right, stream=whole)
            whole.host_call(lambda: None)
        with gs.profile(gpu) as recording:
            for _ in range(4):
                for stream, array in zip((whole, a), arrays, strict=True):
                    stream.copy(array, pinned)
                for stream in (whole, a, b):
                    gemm.execute(stream=stream)
                    spin.execute(stream=stream)
                graph.launch(stream=whole)
                b.wait(whole.record())
                gs.mm_out(out, left[::2, ::2], right, stream=b)
                b.copy(small, pageable)
                spin.execute(stream=blocking)
                gs.mm_out(out, right, right, stream=default)
                event = b.record()
                while not event.is_done:
                    if gpu.is_simulated:
                        gpu.backend.wait_until_ns(gpu.now_ns() + 700)
                with gs.annotate("products"), gs.CallerStreamGuard(a):
                    for _ in range(3):
                        gs.mm_out(out, right, right)
                a.synchronize()
                gpu.synchronize()
                spin.execute(stream=whole)
                blocking.wait(whole.record())  # it has nothing else to wait for
                gs.mm_out(out, right, right, stream=blocking)
                gpu.synchronize()
            gemm.wait()
            spin.wait()
        for handle in (gemm, spin, graph):
            handle.close()
    return recording.trace


def serving(gpu: Device) -> Trace:
    """Record requests that are served on two partitions."""
    (trace,) = gs.run(SERVING, gpu).values()
    return trace


def pytorch(gpu: Device) -> Trace:
    """Record a module of PyTorch on a partition, as its ops and as a handle."""
    import torch

    x = torch.randn(256, 512, device="cuda", dtype=torch.float16)
    module = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).cuda().half().eval()
    with (
        torch.no_grad(),
        gpu.carve({"small": 32}) as partitions,
        partitions["small"].create_stream(name="s") as stream,
        gs.TorchModule(module, x) as handle,
        gs.profile(gpu) as recording,
    ):
        with gs.CallerStreamGuard(stream):
            for _ in range(10):
                y = module(x)
                (y @ y.T).sum().item()
        for _ in range(10):
            handle.execute(stream=stream)
        handle.wait()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.empty_like(y, device="cpu").pin_memory().copy_(y, non_blocking=True)
        torch.cuda.synchronize()
    return recording.trace


def programs(gpu: Device) -> dict[str, Callable[[Device], Trace]]:
    """Return what a device can record, by name."""
    has_torch = not gpu.is_simulated and importlib.util.find_spec("torch") is not None
    return {"waits": waits, "requests": serving, **({"pytorch": pytorch} if has_torch else {})}
