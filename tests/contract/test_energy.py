"""Energy: a counter that advances while nothing runs, and rounds that are long enough for it."""

from __future__ import annotations

import pytest

import gpuscope as gs


@pytest.mark.gpu_alone("measures energy")
def test_a_round_draws_more_than_the_gpu_at_rest(gpu):
    if gpu.backend.energy_j() is None:
        pytest.skip("the driver of this GPU counts no energy")
    experiment = {
        "name": "energy",
        "energy": True,
        "alone_repeats": 0,
        "streams": {"s": {}},
        "workloads": {
            "w": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "s", "repeats": 100}
        },
    }
    run = gs.run(experiment, gpu)
    (facts,) = run["default"].metadata.energy
    assert facts.duration_ns >= 20 * gpu.backend.energy_step_ns
    assert 0 < facts.idle_w < facts.joules / (facts.duration_ns / 1e9)
    (row,) = run.comparison.to_pylist()
    calls = len(run["default"].where(kind="handle"))
    assert calls >= 100
    assert row["joules_per_call"] == pytest.approx(facts.joules / calls)
