"""Two ranks on one GPU: the collectives' way to NCCL, where there are not two GPUs.

No figure of bandwidth: both ranks share one memory. What it shows: a communicator of its own for
each handle, results, the streams and the SMs that NCCL's kernels ran on, NCCL's own numbers of
the operations against ours, and that one experiment with two ranks becomes one trace.

NCCL takes several ranks on one GPU from 2.30 on. To load another one than PyTorch's, as that of
PyPI's ``nvidia-nccl-cu13``, or one compressed by ``xz``::

    python3 benchmarks/ranks_on_one_gpu.py --nccl libnccl.so.2 [--mps] [--limit 60]
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from mps import mps

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NBYTES = 1 << 16
REPEATS = 3
EXPERIMENT = {
    "name": "two ranks on one GPU", "devices": ["cuda:0", "cuda:0"], "alone_repeats": 0,
    "partitions": {"comm": 16, "gemm": 32},
    "streams": {"comm": {"partition": "comm"}, "gemm": {"partition": "gemm"}},
    "workloads": {
        "reduce": {
            "kind": "all_reduce", "nbytes": NBYTES, "stream": "comm", "repeats": 10, "warmup": 1,
        },
        "gemm": {
            "kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "gemm", "repeats": 10,
        },
    },
}  # fmt: skip


def expected(kind: str, xs: list[np.ndarray], rank: int) -> np.ndarray:
    """Return what a collective leaves on a rank."""
    parts = [np.split(x, len(xs)) for x in xs]
    return {
        "all_reduce": lambda: np.sum(xs, axis=0),
        "all_gather": lambda: np.concatenate(xs),
        "reduce_scatter": lambda: np.sum([part[rank] for part in parts], axis=0),
        "all_to_all": lambda: np.concatenate([part[rank] for part in parts]),
    }[kind]()


def of_rank() -> None:
    """Do each collective as one rank, and print one row for each."""
    import gpuscope as gs

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = gs.open_device("cuda:0", quiet=True)
    with gpu.carve({"comm": 16}) as parts, parts["comm"].create_stream(name="comm") as stream:
        for kind in KINDS:
            with gs.workloads.Collective(gpu, kind, nbytes=NBYTES, seed=7) as handle:
                others = [
                    gpu.random(handle.x.size, "float32", seed=7 + other)
                    for other in range(world_size)
                ]
                xs = [gpu.to_host(x) for x in others]
                with gs.profile(gpu) as recording:
                    out = handle.execute(stream=stream)
                    handle.wait()
                    right = np.allclose(gpu.to_host(out), expected(kind, xs, rank), atol=1e-6)
                    for _ in range(REPEATS - 1):
                        handle.execute(stream=stream)
                    handle.wait()
                trace = recording.trace
                kernels = trace.where(kind="kernel").spans.to_pylist()
                nccl = [row for row in kernels if "nccl" in row["name"]]
                calls = trace.where(kind="handle").spans.to_pylist()
                calls.sort(key=lambda row: row["start_ns"])
                nccl.sort(key=lambda row: row["start_ns"])
                row = {
                    "rank": rank, "kind": kind, "result": bool(right), "kernels": len(nccl),
                    "name": nccl[0]["name"].partition("(")[0] if nccl else "",
                    "partitions": sorted({str(one["partition"]) for one in nccl}),
                    "workload": sorted({str(one["category"]) for one in nccl}),
                    "us": [round((one["end_ns"] - one["start_ns"]) / 1e3, 1) for one in nccl],
                    "sequence": [json.loads(call["payload"])["sequence"] for call in calls],
                    "stream": hex(stream.handle), "ranks": len(trace.metadata.ranks),
                    "incomplete": trace.metadata.incomplete,
                }  # fmt: skip
                print(json.dumps(row), flush=True)


def of_experiment() -> None:
    """Run an experiment of two ranks, and print its collectives."""
    import gpuscope as gs

    run = gs.run(EXPERIMENT)
    trace = run["default"]
    print(f"{len(trace.metadata.ranks)} ranks, {len(trace)} rows")
    print(gs.analysis.collectives(trace))
    print(run)


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def both_ranks(limit_s: float, logs: Path) -> None:
    """Run both ranks, and print what they did and how NCCL numbered it."""
    shared = {
        **os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL",
        "NCCL_DEBUG_FILE": str(logs / "nccl.%p"),
    }  # fmt: skip
    command = [sys.executable, __file__, "--as", "rank"]
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    until_s = time.monotonic() + limit_s
    try:
        for rank in ranks:
            rank.wait(max(0.1, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"ended after {limit_s:g} s")
    finally:
        for rank in ranks:
            rank.kill()
    print("exit status:", [rank.wait() for rank in ranks])
    for log in sorted(logs.glob("nccl.*")):
        text = log.read_text("utf-8", "replace")
        version = re.search(r"NCCL version \S+", text)
        print(log.name, version[0] if version else "", end=" ")
        found = re.findall(r"(\w+): opCount (\w+) .*?count (\d+) .*? stream (\w+)", text)
        print(found[:20])
        for line in re.findall(r".*WARN.*", text)[:10]:
            print("  ", line)


def main() -> None:
    """Run what is asked for, within its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nccl", type=Path, help="libnccl.so.2, or .xz of it")
    parser.add_argument("--mps", action="store_true", help="start CUDA's MPS around it")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each part")
    parser.add_argument("--as", dest="part", choices=("rank", "experiment"))
    asked = parser.parse_args()
    if asked.part:
        of_rank() if asked.part == "rank" else of_experiment()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        os.environ["NCCL_NVLS_ENABLE"] = "0"
        if asked.nccl is not None:
            library = folder / "libnccl.so.2"
            opened = lzma.open if asked.nccl.suffix == ".xz" else open
            with opened(asked.nccl, "rb") as source, library.open("wb") as target:
                shutil.copyfileobj(source, target)
            os.environ["LD_PRELOAD"] = str(library)
        print(f"--- two ranks, {'with' if asked.mps else 'without'} MPS", flush=True)
        with mps() if asked.mps else nullcontext():
            both_ranks(asked.limit, folder)
            print("--- an experiment of two ranks", flush=True)
            command = ["timeout", "-k", "5", str(asked.limit), sys.executable, __file__]
            ended = subprocess.run([*command, "--as", "experiment"], check=False)
            print("exit status:", ended.returncode)


if __name__ == "__main__":
    main()
