"""A program whose library leaves the partition that it is called for."""

from __future__ import annotations

import gpuscope as gs
from gpuscope.trace import Trace


def escaped() -> Trace:
    """Return its recording: decode calls the library, which launches norm in a stream of its own."""
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    attention, norm = (gs.workloads.spin_kernel(gpu, name) for name in ("attention", "norm"))
    load = gs.workloads.Spin(gpu, duration_ns=400_000, name="prefill")
    library = gpu.create_stream(name="library")
    with gpu.carve({"decode": 16, "prefill": "rest"}) as parts, library:
        decode, prefill = (parts[name].create_stream(name=name) for name in ("decode", "prefill"))
        with gs.profile(gpu) as recording:
            for _ in range(6):
                load.execute(stream=prefill)
                with gs.CallerStreamGuard(decode):
                    decode.launch(attention, 90_000, grid=16, block=32)
                    library.launch(norm, 90_000, grid=16, block=32)
    return recording.trace
