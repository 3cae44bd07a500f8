"""The simulated softmax takes as long as the measured one, on partitions of any size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.workloads import Softmax

MEASURED = json.loads(
    (Path(__file__).parents[3] / "benchmarks" / "results" / "softmax.json").read_text("utf-8")
)


H100 = GpuProfile.load("h100")


def duration_us(rows: int, columns: int, sm_count: int) -> float:
    return H100.softmax_cost(rows, columns, sm_count).alone_ns(sm_count) / 1e3


def _ratio(row) -> float:
    return duration_us(row["rows"], row["columns"], row["sm_count"]) / row["us"]


def test_sizes_that_nothing_was_fitted_to_are_near():
    errors = np.abs([_ratio(row) - 1 for row in [*MEASURED["rows"], *MEASURED["held_out"]]])
    assert np.median(errors) <= 0.06
    assert np.quantile(errors, 0.9) <= 0.25


@pytest.mark.parametrize(("rows", "columns", "us"), [(2048, 4096, 108.2), (512, 4096, 24.3)])
def test_a_kernel_on_few_sms_takes_as_long_as_on_an_h100(rows, columns, us):
    gpu = gs.open_device("sim:h100", quiet=True, jitter=False)
    with gpu.carve([40]) as parts, parts[0].create_stream() as stream:
        softmax = Softmax(gpu, rows=rows, columns=columns)
        with gs.profile(gpu) as recording:
            softmax.execute(stream=stream)
            softmax.wait()
    kernels = recording.trace.where(kind="kernel")
    took_us = (kernels.array("end_ns") - kernels.array("start_ns")) / 1e3
    np.testing.assert_allclose(took_us, [us], rtol=0.1)


@pytest.mark.parametrize("factors", [(2, 1), (4, 1), (8, 1)])
def test_time_grows_with_the_rows(factors):
    more_rows, more_columns = factors
    last = duration_us(64 * 132, 1 << 12, 132)
    beyond = duration_us(64 * 132 * more_rows, more_columns << 12, 132)
    np.testing.assert_allclose(beyond / last, more_rows * more_columns, rtol=0.05)


@pytest.mark.parametrize("sm_count", [1, 8, 12, 132, 4096])
def test_one_row_takes_a_time_on_any_number_of_sms(sm_count):
    assert 1 < duration_us(1, 1, sm_count) < 4
