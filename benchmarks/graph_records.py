"""What CUPTI records of graphs when its records of whole graphs are switched on and off.

    python benchmarks/graph_records.py [--out benchmarks/results/graph_records.json]

Each order of steps has a process of its own: an order may crash it. Steps: ``I`` a graph of 100
kernels is instantiated, ``L`` every graph is launched 200 times, ``k+`` and ``g+`` enable records
of kernels and of whole graphs, ``k-`` and ``g-`` disable them; with ``c-`` a callback disables
those of whole graphs when a graph is launched, with ``c+`` one enables them when one is
instantiated. Told of each ``L``: kernel records and records of graphs for a launch of a graph, and
how long that takes on the GPU. Needs a CUDA GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from facts import BESIDE, row, write
from recorded_work import BareCupti

KERNELS, LAUNCHES = 100, 200
ORDERS = (
    "I L L",
    "k+ I L L",
    "k+ g+ I L g- L g+ L g- L",
    "k+ I L g+ L g- L",
    "I L k+ L g+ L",
    "I L k+ g+ L",
    "I L g+ L",
    "I k+ g+ k- g- I L k+ L g+ L",
    "k+ g+ I L g- I L g+ L g- L",
    "g+ I L k+ L g- L",
    "k+ g+ g- I L g+ L g- L",
    "I k+ g+ c- L L g+ L",
    "k+ g+ g- c+ I L g- L g+ L",
    "k+ g+ I L g- L c+ I L g- L g+ L",
)


def child(order: str, out: Path) -> None:
    """Take the steps; what is known is written after each."""
    import torch

    from gpuscope.record.cupti import layout

    x = torch.randn(64, 64, device="cuda")
    y = torch.empty_like(x)
    torch.mm(x, x, out=y)
    torch.cuda.synchronize()
    cupti = KeptCupti()
    graphs: list[Any] = []
    found: list[dict[str, float]] = []
    kinds = {"k": layout.KERNEL, "g": layout.GRAPH}
    for step in order.split():
        if step == "I":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(KERNELS):
                    torch.mm(x, x, out=y)
            graph.replay()
            torch.cuda.synchronize()
            graphs.append(graph)
        elif step == "L":
            cupti.counts()
            began_s = time.perf_counter()
            for _ in range(LAUNCHES):
                for graph in graphs:
                    graph.replay()
            torch.cuda.synchronize()
            launches = LAUNCHES * len(graphs)
            took_us = (time.perf_counter() - began_s) / launches * 1e6
            of_kind = cupti.counts()
            found.append(
                {
                    "kernels": of_kind.get(layout.KERNEL, 0) / launches,
                    "graphs": of_kind.get(layout.GRAPH, 0) / launches,
                    "us": took_us,
                }
            )
        elif step[0] == "c":
            cupti.switch_in_callback(on=step[1] == "+")
        else:
            cupti.switch(kinds[step[0]], on=step[1] == "+")
        out.write_text(json.dumps(found), "utf-8")


class KeptCupti(BareCupti):
    """CUPTI whose buffers are kept until they are counted."""

    def __init__(self) -> None:
        from gpuscope.record.cupti import layout

        super().__init__(apis=False)
        self._sizes = layout.record_sizes(self.version)
        self._full: list[tuple[Any, int]] = []
        self._c.cuptiActivityRegisterCallbacks(*self._callbacks)

    def _complete(self, _context: Any, _stream: int, buffer: int, _size: int, used: int) -> None:
        self._full.append((self._used.pop(buffer), used))

    def switch(self, kind: int, *, on: bool) -> None:
        change = self._c.cuptiActivityEnable if on else self._c.cuptiActivityDisable
        if status := change(kind):
            raise RuntimeError(f"CUPTI says {status}")

    def switch_in_callback(self, *, on: bool) -> None:
        """Switch records of whole graphs when a graph is instantiated, or else launched."""
        from gpuscope.record.cupti import layout
        from gpuscope.record.cupti import library as api

        wanted = "GraphInstantiate" if on else "GraphLaunch"
        kind = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int)
        )

        def called(_user: Any, _domain: int, _number: int, data: Any) -> None:
            if data[0] == 0:  # it begins
                self.switch(layout.GRAPH, on=on)

        self._callback = kind(called)
        subscription = ctypes.c_void_p()
        if self._c.cuptiSubscribe(ctypes.byref(subscription), self._callback, None):
            raise RuntimeError("CUPTI takes no subscriber")
        library = api.Library()
        for domain in (api.RUNTIME_API, api.DRIVER_API):
            for number in range(1, api.LAST_CALLBACK):
                if wanted in library.callback_name(domain, number):
                    self._c.cuptiEnableCallback(1, subscription, domain, number)

    def counts(self) -> dict[int, int]:
        """Return kind → records that came since the last time."""
        from gpuscope.record.cupti import layout

        self._c.cuptiActivityFlushAll(1)
        found: dict[int, int] = {}
        for memory, used in self._full:
            records = layout.find_records(np.frombuffer(memory, np.uint8, used), self._sizes)
            for kind, offsets in records.offsets.items():
                found[kind] = found.get(kind, 0) + len(offsets)
        self._full.clear()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/graph_records.json"))
    asked = parser.parse_args()
    rows = []
    for order in ORDERS:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            done = subprocess.run(
                [sys.executable, __file__, "child", order, str(out)],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            found = json.loads(out.read_text("utf-8")) if out.exists() else []
        of_launch = "; ".join(
            f"{one['kernels']:g} kernels, {one['graphs']:g} graphs, {one['us']:.0f} µs"
            for one in found
        )
        rows.append(row(order, BESIDE, done.returncode, "exit status", met=True, launches=found))
        print(f"{order:32} {done.returncode:4}  {of_launch}", flush=True)
        if done.returncode > 0:
            print(done.stderr[-600:])
    import gpuscope as gs

    gpu = gs.open_device("cuda:0", quiet=True)
    command = "python benchmarks/graph_records.py"
    write(asked.out, command, gpu.info.name, rows, driver=gpu.info.driver)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
