"""Collectives of two ranks by NCCL, each on a GPU of its own, from an experiment.

With NCCL 2.30 or newer and ``NCCL_MULTI_RANK_GPU_ENABLE=1`` two ranks share the first GPU.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

import gpuscope as gs
from gpuscope.device.cuda import driver

pytestmark = pytest.mark.gpu

COUNT = {"all_reduce": 1, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.5}


@pytest.fixture(scope="module")
def devices():
    pytest.importorskip("torch")
    if len(driver.gpus()) >= 2:
        return ["cuda:0", "cuda:1"]
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        return ["cuda:0", "cuda:0"]
    pytest.skip("two GPUs are needed")
    return []


@pytest.fixture(scope="module")
def run(devices):
    kinds = {
        kind: {"kind": kind, "nbytes": 1 << 16, "stream": kind, "repeats": 5, "warmup": 1}
        for kind in COUNT
    }
    gemm = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "gemm", "repeats": 5}
    return gs.run(
        {
            "name": "two ranks", "devices": devices, "alone_repeats": 0,
            "partitions": {**dict.fromkeys(COUNT, 16), "gemm": 32},
            "streams": {name: {"partition": name} for name in (*COUNT, "gemm")},
            "workloads": {**kinds, "gemm": gemm},
        }
    )  # fmt: skip


def test_kernels_of_nccl_ran_on_the_partition_and_are_matched(run):
    trace = run["default"]
    assert [rank.rank for rank in trace.metadata.ranks] == [0, 1]
    assert trace.metadata.complete, trace.metadata.notes
    found = gs.analysis.collectives(trace)
    for kind, factor in COUNT.items():
        one = found[kind]
        assert (one.kind, one.ranks, one.n, one.sm_count) == (kind, 2, 5, 16)
        assert one.bus_gb_per_s == pytest.approx(factor * one.algorithm_gb_per_s)
    assert not found.unmatched


def test_no_kernel_left_its_partition(run):
    for row in gs.analysis.confinement(run["default"]).partitions:
        assert row.fraction == 1, row


def test_a_rank_launches_collectives_and_kernels_from_one_thread(run):
    """Two threads that launch would wait for the interpreter in turns, and leave gaps."""
    launched = run["default"].where(kind="handle").spans
    processes, threads = (launched.column(name).to_pylist() for name in ("process", "thread"))
    assert len({*zip(processes, threads, strict=True)}) == 2


FAILING = """
import os, gpuscope as gs
rank = int(os.environ["RANK"])
gpu = gs.open_device(f"cuda:{rank}", quiet=True)
with gpu.create_stream() as stream, gs.workloads.Collective(gpu, nbytes=4096) as reduce:
    reduce.execute(stream=stream)
    reduce.wait()
    if rank == 1:
        raise ZeroDivisionError("of rank 1")
    reduce.execute(stream=stream)
    reduce.wait()
"""


def test_a_rank_that_fails_says_so_and_ends_while_the_other_waits(devices):
    if len({*devices}) < 2:
        pytest.skip("the ranks find their GPUs by number")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    waiting, failing = (
        subprocess.Popen(
            [sys.executable, "-c", FAILING], env={**shared, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in "01"
    )  # fmt: skip
    try:
        _, told = failing.communicate(timeout=90)
        assert failing.returncode == 1
        assert "ZeroDivisionError: of rank 1" in told
    finally:
        waiting.kill()
        failing.kill()
        waiting.communicate()
