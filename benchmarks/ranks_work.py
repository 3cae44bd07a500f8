"""What each rank does for ranks_gpu.py, on a GPU of its own or on a simulated one.

    RANK=0 WORLD_SIZE=2 … python benchmarks/ranks_work.py JOB FOLDER [OPTIONS as JSON]

A job records itself, and leaves a trace for each of its recordings and ranks in the folder.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import gpuscope as gs
from gpuscope.device.device import Device
from gpuscope.device.ranks import Meeting, NoMeeting, Ranks
from gpuscope.workloads import workload

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES_MIB = {1: 5, 8: 3, 32: 2, 128: 1}
"""Size → calls for each one of the largest."""
WHOLE = "whole GPU"
SMS = (WHOLE, 64, 48, 32, 24, 16, 8)
"""The fewest, on which the most kernels run in waves, last."""
HOW = ("host", "GPU")
_LATE_NS = 1_000_000
_GEMM = 4096
_GEMMS = 30
"""Alone on the whole GPU: what those beside collectives are compared with."""


def collectives(
    gpu: Device, ranks: Ranks | None, folder: Path, *, calls: int, sms: list[int | str]
) -> None:
    """Launch all kinds and sizes on partitions of all sizes, alone and beside GEMMs."""
    rank, _ = _numbers(ranks)
    took_ns: dict[Any, int] = {}
    with ExitStack() as stack:
        handles = {
            (kind, mib): stack.enter_context(
                gs.workloads.Collective(
                    gpu, kind, nbytes=mib << 20, dtype="bfloat16", name=f"{kind} {mib} MiB",
                    ranks=ranks,
                )
            )
            for kind in KINDS
            for mib in SIZES_MIB
        }  # fmt: skip
        gemm = stack.enter_context(gs.Gemm(gpu, m=_GEMM, n=_GEMM, k=_GEMM, name="gemm"))
        for count in sms:
            with ExitStack() as setting:
                homes: Any = (gpu, gpu)
                if count != WHOLE:
                    carved = setting.enter_context(gpu.carve({"comm": count, "rest": "rest"}))
                    homes = carved["comm"], carved["rest"]
                comm, beside = (
                    setting.enter_context(home.create_stream(name=name))
                    for home, name in zip(homes, ("comm", "gemm"), strict=True)
                )
                for handle in handles.values():
                    handle.execute(stream=comm)
                _launch(gemm, beside, 3)
                gpu.synchronize()
                for with_gemm in (False, True):
                    what = "beside" if with_gemm else "alone"
                    with gs.profile(gpu) as recording:
                        _meet(folder, f"{count}-{what}", ranks)
                        if not with_gemm:
                            start_ns = gpu.now_ns()
                            _launch(gemm, beside, _GEMMS)
                            gpu.synchronize()
                            took_ns.setdefault("gemm", (gpu.now_ns() - start_ns) // _GEMMS)
                        for (kind, mib), handle in handles.items():
                            n = calls * SIZES_MIB[mib]
                            gemms = 0.0
                            if with_gemm:  # enough for twice the time that it took alone
                                gemms = 2 * took_ns[count, kind, mib] / took_ns["gemm"] / n
                                _launch(gemm, beside, 4)
                            due, start_ns = 0.0, gpu.now_ns()
                            for _ in range(n):
                                handle.execute(stream=comm)
                                due += gemms
                                _launch(gemm, beside, int(due))
                                due -= int(due)
                            comm.synchronize()
                            if not with_gemm:
                                took_ns[count, kind, mib] = gpu.now_ns() - start_ns
                            gpu.synchronize()
                    gs.export(recording.trace, folder / f"{count}-{what}-{rank}.parquet")


def _launch(handle: Any, stream: Any, count: int) -> None:
    for _ in range(count):
        handle.execute(stream=stream)


def steps(gpu: Device, ranks: Ranks | None, folder: Path, *, slow: list[int], count: int) -> None:
    """Do steps of products and an all-reduce, of which one rank's are slow: each in turn."""
    rank, _ = _numbers(ranks)
    with (
        gpu.create_stream(name="train") as stream,
        gs.workloads.Collective(gpu, nbytes=8 << 20, name="gradients", ranks=ranks) as reduce,
        gs.Gemm(gpu, m=_GEMM, n=_GEMM, k=_GEMM, name="gemm") as gemm,
    ):
        _launch(gemm, stream, 3)
        for late in slow:
            for how in HOW:
                is_late = rank == late
                with gs.profile(gpu) as recording:
                    _meet(folder, f"{late}-{how}", ranks)
                    for _ in range(count):
                        if is_late and how == "host":
                            _prepare(gpu)
                        _launch(gemm, stream, 6 if is_late and how == "GPU" else 2)
                        reduce.execute(stream=stream)
                        reduce.wait()
                gs.export(recording.trace, folder / f"{late}-{how}-{rank}.parquet")


def _prepare(gpu: Device) -> None:
    """Keep the host busy for 1 ms."""
    until_ns = gpu.now_ns() + _LATE_NS
    if gpu.is_simulated:
        gpu.backend.wait_until_ns(until_ns)
    while gpu.now_ns() < until_ns:
        pass


def _numbers(ranks: Ranks | None) -> tuple[int, int]:
    """Return which rank this is, and how many there are."""
    if ranks is None:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return ranks.rank, ranks.world_size


def _meet(folder: Path, name: str, ranks: Ranks | None) -> None:
    """Wait until all ranks are here: their recordings begin at different times."""
    rank, count = _numbers(ranks)
    (folder / f"{name}-{rank}.here").touch()
    while not all((folder / f"{name}-{other}.here").exists() for other in range(count)):
        time.sleep(0.001)


@workload
def point(ctx: Any, *, folder: str, number: int, pause_s: float) -> None:
    """Note that this process has begun a point; the host waits as for a GPU."""
    del ctx
    (Path(folder) / f"{number}-{os.getpid()}").touch()
    time.sleep(pause_s)


JOBS: dict[str, Callable[..., None]] = {"collectives": collectives, "steps": steps}


def on_simulated(name: str, job: str, count: int, folder: Path, options: dict[str, Any]) -> None:
    """Do a job as ``count`` simulated ranks, each a thread of this process."""
    meeting, raised = Meeting(count), []

    def be(rank: int) -> None:
        try:
            gpu = gs.open_device(name, jitter=False, quiet=True)
            JOBS[job](gpu, Ranks(rank, count, meeting), folder, **options)
        except Exception as error:  # noqa: BLE001 - raised below
            raised.append(error)
        with suppress(NoMeeting):
            meeting.leave(rank, "has ended")

    threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise min(raised, key=lambda error: isinstance(error, NoMeeting))


def main() -> None:
    """Be one rank on a GPU."""
    import torch

    job, folder, *options = sys.argv[1:]
    number = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(number)
    gpu = gs.open_device(f"cuda:{number}", quiet=True)
    JOBS[job](gpu, None, Path(folder), **json.loads(options[0] if options else "{}"))
    facts = {
        "gpu": gpu.info.name, "driver": gpu.info.driver, "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }  # fmt: skip
    (Path(folder) / f"{number}.json").write_text(json.dumps(facts), "utf-8")


if __name__ == "__main__":
    main()
