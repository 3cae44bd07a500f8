"""Requests on a GPU: served by two streams of partitions, and recorded by CUPTI."""

from __future__ import annotations

import pytest

import gpuscope as gs

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone("holds latencies to limits")]


@pytest.fixture
def gpu():
    return gs.open_device("cuda:0", quiet=True)


def test_requests_are_served_on_two_partitions_and_recorded_whole(gpu):
    gemm = {"kind": "gemm", "dtype": "float16"}
    run = gs.run(
        {
            "name": "requests",
            "alone_repeats": 0,
            "partitions": {"prefill": "rest", "decode": 32},
            "streams": {name: {"partition": name} for name in ("prefill", "decode")},
            "workloads": {
                "prefill": {**gemm, "m": 2048, "n": 4096, "k": 4096, "stream": "prefill"},
                "decode": {**gemm, "m": 16, "n": 4096, "k": 4096, "stream": "decode"},
                "served": {"kind": "requests", "prefill": "prefill", "decode": "decode",
                           "output_tokens": 8, "batch": 8, "repeats": 40, "arrival": "poisson",
                           "rate_hz": 500.0, "slo": {"ttft_ms": 1000, "tbt_ms": 1000}},
            },
        },
        gpu,
    )  # fmt: skip
    (trace,) = run.values()
    assert trace.metadata.complete, trace.metadata.notes
    judged = gs.analysis.confinement(trace)
    assert judged["prefill"].fraction == judged["decode"].fraction == 1
    (row,) = (row for row in run.comparison.to_pylist() if row["workload"] == "served")
    assert row["requests_n"] == 40
    assert 0 < row["ttft_p50_ms"] < 1000
    assert 0 < row["tbt_p50_ms"] < 1000
    assert row["goodput_per_s"] == pytest.approx(row["requests_per_s"])
    requests = [row for row in trace.where(kind="range").texts("name") if "request" in row]
    assert len(requests) == 40
