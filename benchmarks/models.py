"""Two decoder layers on a GPU that they share: what SMs cost them, and what launching beside costs.

    python benchmarks/models.py [--out benchmarks/results/models.json]

Decode: time of a step on n SMs over that on the whole GPU. Launching: the idle gap of a stream
between two calls of its workload, each launched when the one before was done or with four queued,
where that workload runs alone, beside another that a thread of its own launches, and beside one
that the same thread launches; as CUDA graphs and eagerly. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from facts import BESIDE, row, spread, write

import gpuscope as gs
from gpuscope.experiments import driving
from gpuscope.trace import Trace

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

PUBLISHED = {32: 1.33, 48: 1.21, 64: 1.09, 80: 1.08, 96: 1.06}
"""SMs → time of a decode step of batch 16 over that on the whole H200 (sglang-omni, PR 1934)."""
ROUNDS = 3
CALLS = 400


def decode_on(gpu: gs.device.Device, layers: int) -> list[dict]:
    """Return the times of a decode step by SMs, from runs that alternate."""
    sizes = {"whole": {}} | {
        str(count): {
            "partitions": {"p": count}, "streams": {"s": {"partition": "p"}},
        }
        for count in PUBLISHED
    }  # fmt: skip
    run = gs.run(
        {
            "name": "decode", "rounds": ROUNDS, "alone_repeats": 0, "streams": {"s": {}},
            "settings": sizes,
            "workloads": {
                "decode": {
                    "kind": "python:decoder:decode", "stream": "s", "repeats": 100 * ROUNDS,
                    "max_queued": 8, "args": {"hidden": 4096, "batch": 16, "layers": layers},
                }
            },
        },
        gpu,
    )  # fmt: skip
    took = {name: np.median(np.subtract(*_bounds(trace)[::-1])) for name, trace in run.items()}
    rows = []
    for count, published in PUBLISHED.items():
        ratio = float(took[str(count)] / took["whole"])
        near = abs(ratio / published - 1) <= 0.1
        rows.append(
            row(f"decode of {layers} layer{'s' * (layers > 1)} on {count} SMs over the whole GPU",
                f"within 10 % of {published}" if count == 64 else BESIDE, round(ratio, 3), "",
                met=bool(near) or count != 64, whole_us=float(took["whole"]) / 1e3)
        )  # fmt: skip
    return rows


def _bounds(trace: Trace, workload: str = "decode") -> tuple[np.ndarray, np.ndarray]:
    """Return when the work of each call started and ended."""
    parents = dict(zip(*(trace.spans.column(name).to_pylist() for name in ("id", "parent")),
                       strict=True))  # fmt: skip
    calls = set(trace.where(kind="handle", category=workload).array("id").tolist())
    launches = defaultdict(list)
    ends = {
        edge["to"]: edge["from"] for edge in trace.edges.to_pylist() if edge["kind"] == "launch"
    }
    for span in trace.where(kind=("kernel", "graph", "memcpy", "memset")).spans.to_pylist():
        number = ends.get(span["id"])
        while number is not None and number not in calls:
            number = parents.get(number)
        if number is not None and span["end_ns"] is not None:
            launches[number].append((span["start_ns"], span["end_ns"]))
    found = sorted((min(s for s, _ in own), max(e for _, e in own)) for own in launches.values())
    starts, ended = np.array(found).T
    return starts, ended


def gaps(
    gpu: gs.device.Device, *, graph: bool, both: bool, threads: bool, queued: int
) -> dict[str, float]:
    """Return the idle gaps of one workload's stream, in µs: quartiles and mean."""
    args = {"hidden": 4096, "batch": 16, "graph": graph}
    described = {
        "name": "launching", "alone_repeats": 0, "partitions": {"a": 64, "b": "rest"},
        "streams": {"a": {"partition": "a"}, "b": {"partition": "b"}},
        "workloads": {
            name: {"kind": "python:decoder:decode", "stream": name, "repeats": CALLS, "args": args,
                   "max_queued": queued}
            for name in ("a", "b")[: 1 + both]
        },
    }  # fmt: skip
    as_usual = driving._runs_python
    driving._runs_python = lambda _worker: threads
    try:
        trace = gs.run(described, gpu)["default"]
    finally:
        driving._runs_python = as_usual
    starts, ended = _bounds(trace, "a")
    if both:  # only while the other runs, too
        other = _bounds(trace, "b")
        inside = (starts >= other[0][0]) & (ended <= other[1][-1])
        starts, ended = starts[inside], ended[inside]
    idle = (starts[1:] - ended[:-1]) / 1e3
    low, median, high = np.quantile(idle, (0.25, 0.5, 0.75))
    return {"q25": low, "median": median, "q75": high, "mean": float(idle.mean()),
            "call_us": float(np.median(ended - starts)) / 1e3}  # fmt: skip


def launching(gpu: gs.device.Device, *, graph: bool, queued: int) -> list[dict]:
    """Return how much a second workload widens the gaps of the first; conditions take turns."""
    ways = {"alone": (False, True), "two threads": (True, True), "one thread": (True, False)}
    seen = defaultdict(list)
    for _ in range(ROUNDS):
        for way, (both, threads) in ways.items():
            seen[way].append(gaps(gpu, graph=graph, both=both, threads=threads, queued=queued))
    kind = f"{'graph' if graph else 'eager'}, {queued} queued"
    rows = []
    medians = {way: [one["median"] for one in found] for way, found in seen.items()}
    for way, values in medians.items():
        grown = 100 * (np.median(values) / np.median(medians["alone"]) - 1)
        owed = graph and way == "two threads"
        rows.append(
            row(f"idle gap between calls, {kind}, {way}",
                "at most 5 % longer than alone" if owed else BESIDE,
                round(float(np.median(values)), 2), "µs", met=bool(grown <= 5) or not owed,
                grown_percent=round(float(grown), 1), **spread(values),
                mean=float(np.median([one["mean"] for one in seen[way]])),
                q75=float(np.median([one["q75"] for one in seen[way]])),
                call_us=float(np.median([one["call_us"] for one in seen[way]])))
        )  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/models.json"))
    args = parser.parse_args()
    import torch

    gpu = gs.open_device("cuda", quiet=True)
    rows = [*launching(gpu, graph=True, queued=1), *launching(gpu, graph=True, queued=4)]
    rows += launching(gpu, graph=False, queued=1)
    rows += [*decode_on(gpu, 1), *decode_on(gpu, 2)]
    for one in rows:
        more = (
            f" (+{one['grown_percent']} %, mean {one['mean']:.2f}, q75 {one['q75']:.2f}, a call "
            f"{one['call_us']:.0f} µs)"
            if "grown_percent" in one
            else ""
        )
        print(f"{'ok ' if one['met'] else 'BAD'} {one['what']}: {one['value']} {one['unit']}{more}"
              f"  [{one['goal']}]")  # fmt: skip
    write(args.out, "python benchmarks/models.py", gpu.info.name, rows, driver=gpu.info.driver,
          torch=torch.__version__)  # fmt: skip
    return int(not all(one["met"] for one in rows))


if __name__ == "__main__":
    sys.exit(main())
