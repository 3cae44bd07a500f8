"""Experiments and programs that are compared."""

from __future__ import annotations

import textwrap

ONE = {
    "name": "one",
    "seed": 1,
    "streams": {"s": {}, "t": {}},
    "workloads": {
        "w": {"kind": "spin", "duration_us": 100, "stream": "s", "repeats": 20, "max_queued": 1},
        "load": {"kind": "spin", "duration_us": 500, "stream": "t", "background": True},
    },
}
PROGRAM = textwrap.dedent("""
    import sys
    import gpuscope as gs

    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    longer = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with gpu.create_stream(name="s") as stream:
        for number in range(10):
            with gs.annotate(f"step {number}"):
                stream.launch(kernel, 200_000, grid=1, block=32)
                with gs.annotate("head"):
                    stream.launch(kernel, 50_000 + longer, grid=2, block=32)
                stream.synchronize()
""")


def changed(**fields):
    """Return the experiment with fields of its workload changed."""
    workloads = {**ONE["workloads"], "w": {**ONE["workloads"]["w"], **fields}}
    return {**ONE, "workloads": workloads}
