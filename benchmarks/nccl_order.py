"""A merged trace of two ranks against what NCCL itself says of its operations, and their results.

    python benchmarks/nccl_order.py [--calls 200] [--out FILE]
    python benchmarks/nccl_order.py --nccl libnccl.so.2 [--mps]

Each rank has a GPU; on one GPU they share it, which NCCL takes from 2.30 on (``--nccl`` loads
another one than PyTorch's, such as that of PyPI's ``nvidia-nccl-cu13``, or one compressed by xz).
Both launch the same collectives in an order drawn by chance, one after the other: handles of all
kinds, each with a communicator of its own, and all-reduces of the program's own. NCCL logs each
operation with its communicator (``NCCL_DEBUG=INFO``), in the order in which it takes them. What the
trace takes for one collective has to be the operation of one number in one communicator on both
ranks.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from facts import BESIDE, row, write
from mps import mps

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
OWN = "the program's own"
RANKS = 2
NBYTES = 1 << 16
_CALL = re.compile(r"NCCL INFO (\w+): opCount \w+ .*? comm (\w+) ")
"""NCCL 2.28 gives 0 as every operation's count: it is counted here."""
_COMMUNICATOR = re.compile(r" comm (\w+) rank \d+ nRanks \d+ .*?commId (\w+)", re.IGNORECASE)
_NAMES = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
          "AlltoAll": "all_to_all", "AllToAll": "all_to_all"}  # fmt: skip


def expected(kind: str, xs: list[np.ndarray], rank: int) -> np.ndarray:
    """Return what a collective leaves on a rank."""
    parts = [np.split(x, len(xs)) for x in xs]
    return {
        "all_reduce": lambda: np.sum(xs, axis=0),
        "all_gather": lambda: np.concatenate(xs),
        "reduce_scatter": lambda: np.sum([part[rank] for part in parts], axis=0),
        "all_to_all": lambda: np.concatenate([part[rank] for part in parts]),
    }[kind]()


def take_part(folder: Path, calls: int) -> None:
    """Do the collectives as one rank; save its trace and which results were right."""
    import torch

    import gpuscope as gs
    from gpuscope.device.cuda import driver

    rank, count = int(os.environ["RANK"]), len(driver.gpus())
    torch.cuda.set_device(rank % count)
    gpu = gs.open_device(f"cuda:{rank % count}", quiet=True)
    right = {}
    with ExitStack() as stack:
        comm = stack.enter_context(gpu.carve({"comm": 16}))["comm"]
        handles, streams = {}, {}
        for name in (*KINDS, OWN):
            streams[name] = stack.enter_context(comm.create_stream(name=name))
        for kind in KINDS:
            handle = gs.workloads.Collective(gpu, kind, nbytes=NBYTES, seed=7)
            handles[kind] = stack.enter_context(handle)
            size = handle.x.size
            drawn = [gpu.random(size, "float32", seed=7 + other) for other in range(RANKS)]
            xs = [gpu.to_host(x) for x in drawn]
            out = handle.execute(stream=streams[kind])
            handle.wait()
            right[kind] = bool(np.allclose(gpu.to_host(out), expected(kind, xs, rank), atol=1e-6))
        own = torch.ones(NBYTES // 4, device="cuda")

        def launch(name: str) -> None:
            if name in handles:
                handles[name].execute(stream=streams[name])
                return
            with gs.CallerStreamGuard(streams[name], bind=True):
                torch.distributed.all_reduce(own)

        launch(OWN)
        gpu.synchronize()
        chance = random.Random(5)  # noqa: S311 - the same on all ranks
        with gs.profile(gpu) as recording:
            before = None
            for _ in range(calls):
                name = chance.choice((*KINDS, OWN))
                if before is not None:  # communicators at once could wait for each other
                    streams[name].wait(before.record())
                launch(name)
                before = streams[name]
            gpu.synchronize()
        trace = recording.trace
    gs.export(trace, folder / f"{rank}.parquet")
    facts = {"right": right, "name": gpu.info.name, "driver": gpu.info.driver,
             "gpus": min(count, RANKS), "nccl": ".".join(map(str, torch.cuda.nccl.version())),
             "torch": torch.__version__}  # fmt: skip
    (folder / f"{rank}.json").write_text(json.dumps(facts), "utf-8")


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def both_ranks(folder: Path, calls: int, limit_s: float) -> list[Path]:
    """Run both ranks; returns each one's log of NCCL."""
    shared = {
        **os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%p"), "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
    }  # fmt: skip
    command = [sys.executable, __file__, "--folder", str(folder), "--calls", str(calls)]
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(RANKS)
    ]
    until_s = time.monotonic() + limit_s
    try:
        for rank in ranks:
            rank.wait(max(0.1, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"ended after {limit_s:g} s", file=sys.stderr)
    finally:
        for rank in ranks:
            rank.kill()
    logs = [folder / f"nccl.{rank.pid}" for rank in ranks]
    if any(rank.wait() for rank in ranks):
        for log in logs:
            warnings = re.findall(r".*WARN.*", log.read_text("utf-8", "replace"))
            print(*warnings[:10], sep="\n", file=sys.stderr)
        raise SystemExit(f"exit status of the ranks: {[rank.returncode for rank in ranks]}")
    return logs


def operations(text: str) -> list[tuple[str, str, int]]:
    """Return the kind, the communicator and the number there of each operation in NCCL's log.

    An all-to-all may be logged as its transfers: one to each rank, and one from each.
    """
    known = dict(_COMMUNICATOR.findall(text))
    found: list[tuple[str, str, int]] = []
    counts: Counter[str] = Counter()
    transfers = 0
    for name, pointer in _CALL.findall(text):
        if name in ("Send", "Recv"):
            transfers += 1
            if transfers % (2 * RANKS) != 1:
                continue
        kind = _NAMES.get(name, "all_to_all" if name in ("Send", "Recv") else name)
        communicator = known.get(pointer, pointer)
        found.append((kind, communicator, counts[communicator]))
        counts[communicator] += 1
    return found


def judged(folder: Path, logs: list[Path], calls: int) -> list[dict[str, Any]]:
    """Return what NCCL's logs say of the collectives of the merged trace."""
    import gpuscope as gs
    from gpuscope.trace.collectives import matched, parts

    merged = gs.merge([gs.load_trace(folder / f"{rank}.parquet") for rank in range(RANKS)])
    of_process = {one.process: one.rank for one in merged.metadata.ranks}
    by_rank: dict[int, list[Any]] = {rank: [] for rank in range(RANKS)}
    for part in parts(merged)[0]:
        by_rank[of_process[part.process]].append(part)
    kernels = merged.where(kind="kernel")
    launched = dict(zip(kernels.array("id"), kernels.array("correlation"), strict=True))
    told, unlike = {}, 0
    for rank, log in enumerate(logs):
        own = sorted(by_rank[rank], key=lambda part: launched[part.kernel])
        logged = operations(log.read_text("utf-8", "replace"))[-len(own) :]
        if len(logged) != len(own):
            raise SystemExit(f"NCCL logged {len(logged)} operations of rank {rank}, not {len(own)}")
        unlike += sum(part.facts.kind != one[0] for part, one in zip(own, logged, strict=True))
        told |= {(rank, part.kernel): one for part, one in zip(own, logged, strict=True)}
    clocks = {one.rank: (0, -(-(one.error_ns or 0) // 2)) for one in merged.metadata.ranks}
    matching = matched(by_rank, dict.fromkeys(by_rank, True), clocks)
    differ = sum(
        len({told[rank, part.kernel] for rank, part in one.items()}) > 1 for one in matching.sets
    )
    error_us = max(one.error_ns or 0 for one in merged.metadata.ranks) / 1e3
    right = [json.loads((folder / f"{rank}.json").read_text("utf-8"))["right"]
             for rank in range(RANKS)]  # fmt: skip
    wrong = sum(not ok for one in right for ok in one.values())
    away = sum(one.fraction != 1 for one in gs.analysis.confinement(merged).partitions)
    matches, left = len(matching.sets), matching.unmatched
    operations_of = len({one[1] for one in told.values()})
    return [
        row("collectives matched", str(calls), matches, "", met=matches == calls),
        row("kernels that are in none", "0", left, "", met=left == 0),
        row("collectives that NCCL numbers differently on the ranks", "0", differ, "",
            met=differ == 0),
        row("kernels of another kind than NCCL logged", "0", unlike, "", met=unlike == 0),
        row("communicators", BESIDE, operations_of, "", met=True),
        row("wrong results of handles", "0", wrong, "", met=wrong == 0),
        row("partitions with kernels elsewhere", "0", away, "", met=away == 0),
        row("stated error of the merged clocks", "≤ 5 µs", error_us, "µs", met=error_us <= 5),
    ]  # fmt: skip


def main() -> int:
    """Run both ranks, compare, print a table and write the rows."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--nccl", type=Path, help="libnccl.so.2, or .xz of it")
    parser.add_argument("--mps", action="store_true", help="start CUDA's MPS around it")
    parser.add_argument("--limit", type=float, default=120, help="seconds for the ranks")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/nccl_order.json"))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        take_part(asked.folder, asked.calls)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.nccl is not None:
            library = folder / "libnccl.so.2"
            opened = lzma.open if asked.nccl.suffix == ".xz" else open
            with opened(asked.nccl, "rb") as source, library.open("wb") as target:
                shutil.copyfileobj(source, target)
            os.environ["LD_PRELOAD"] = str(library)
        with mps() if asked.mps else nullcontext():
            logs = both_ranks(folder, asked.calls, asked.limit)
        rows = judged(folder, logs, asked.calls)
        facts = json.loads((folder / "0.json").read_text("utf-8"))
    facts.pop("right")
    command = f"python benchmarks/nccl_order.py --calls {asked.calls}" + " --mps" * asked.mps
    write(asked.out, command, facts.pop("name"), rows, **facts)
    for one in rows:
        print(f"{one['what']:56} {one['value']:>10,.3f} {one['unit']} ({one['goal']})")
    return 0 if all(one["met"] for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
