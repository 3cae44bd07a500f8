"""Record a few of CUPTI's buffers as they are, for tests without a GPU.

    python scripts/make_cupti_bytes.py tests/data/cupti.npz

Runs kernels, copies, memsets, a graph, a green context and NVTX ranges with PyTorch, and
keeps the bytes, libcupti's version and the texts that the records point to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope.record.cupti import layout
from gpuscope.record.cupti.collector import get_collector
from gpuscope.record.cupti.library import text_at


def main() -> None:
    gpu = gs.open_device("cuda:0", quiet=True)  # before NVTX is used
    import nvtx  # noqa: PLC0415
    import torch  # noqa: PLC0415

    x = torch.randn(256, 256, device="cuda")
    torch.mm(x, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        y.add_(1)
    taken: list[Any] = []
    with gpu.carve({"a": 32, "b": "rest"}) as parts:
        stream = parts["a"].create_stream()
        small = gs.Gemm(gpu, m=64, n=64, k=64, dtype="float16")
        small.execute(stream=stream)
        small.wait()
        with gs.profile(gpu):
            collector = get_collector()
            collector.begin(1, taken.append, apis="launches", limit=2 << 30)
            with nvtx.annotate("step", domain="dom", color="red", category="cat", payload=7):
                for _ in range(60):
                    torch.mm(x, x)
            for _ in range(5):
                small.execute(stream=stream)
            graph.replay()
            x.cpu()
            y.zero_()
            torch.cuda.synchronize()
            collector.collect(forced=True)
            collector.end(1, taken_over=False)
    texts: dict[int, str] = {}
    raw = [np.array(one) for one in taken]
    for one in raw:
        records = layout.read_records(one, layout.find_records(one, collector.sizes))
        for columns in records.values():
            for name in ("name", "domain"):
                for address in np.unique(columns.get(name, np.zeros(0, np.uint64))).tolist():
                    texts[address] = text_at(address)
    facts = {"version": collector.library.version, "driver": gpu.info.driver,
             "texts": {str(address): text for address, text in texts.items()}}  # fmt: skip
    np.savez_compressed(
        Path(sys.argv[1]), facts=json.dumps(facts), **{f"b{n}": one for n, one in enumerate(raw)}
    )
    print(len(raw), "buffers", sum(len(one) for one in raw), "bytes", facts["version"])


if __name__ == "__main__":
    main()
