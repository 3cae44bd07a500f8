"""Clocks, power and throttling of a real GPU, read while it is recorded."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.cuda.health import clocks_of, gpus_in_use
from gpuscope.trace.gpu_states import COUNTERS, POWER, REASONS, SM_CLOCK

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone("reads its clocks and power")]
LASTS_NS = 1_000_000_000
RUNS_BUSY = """
import time, torch
x = torch.ones(4096, 4096, device="cuda", dtype=torch.float16)
end = time.time() + 2
while time.time() < end:
    for _ in range(20):
        x @ x
    torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


@pytest.fixture(scope="module", params=["auto", "events"])
def trace(request, gpu):
    big = gs.Gemm(gpu, m=4096, n=4096, k=4096, dtype="float16")
    with gpu.create_stream() as stream, gs.profile(gpu, source=request.param) as recording:
        until = time.time_ns() + LASTS_NS
        while time.time_ns() < until:
            big.execute(stream=stream)
            big.wait()
    return recording.trace


def test_a_second_has_readings_inside_the_recording(trace):
    counters = trace.where(kind="counter", source="nvml")
    assert set(counters.texts("name")) == set(COUNTERS)
    clocks = counters.where(name=SM_CLOCK)
    assert len(clocks) >= 5
    (low, high), slack = trace.metadata.windows_ns[0], 1_000_000
    starts, ends = clocks.array("start_ns"), clocks.array("end_ns")
    assert low - slack <= starts.min()
    assert ends.max() <= high + slack
    order = np.argsort(ends)
    assert (starts[order][1:] == ends[order][:-1]).all()  # each since the one before
    assert np.median(np.diff(ends[order])) == pytest.approx(100e6, rel=0.2)
    assert set(clocks.array("device")) == {0}


def test_clocks_and_power_are_those_of_a_gpu_at_work(trace):
    counters = trace.where(kind="counter", source="nvml")
    clocks, power, reasons = (
        counters.where(name=name).array("value") for name in (SM_CLOCK, POWER, REASONS)
    )
    assert ((clocks > 200) & (clocks < 3500)).all()
    assert ((power > 10) & (power < 1500)).all()
    assert (reasons % 1 == 0).all()
    (state,) = trace.metadata.gpu_states
    assert state.lowest_mhz <= state.sm_clock_mhz <= state.highest_mhz
    assert state.readings == len(clocks)


def test_gpus_in_use_are_found_and_told_by_nvml(gpu):
    assert gpus_in_use()[gpu.info.index] == gpu.info.uuid
    assert clocks_of(gpu.info.uuid).keys() >= {"sm_clock_mhz", "power_w", "throttle_reasons"}


def test_each_round_of_a_run_has_its_state(gpu):
    one = {
        "name": "one", "alone_repeats": 0, "rounds": 3, "streams": {"s": {}},
        "workloads": {"w": {"kind": "spin", "duration_us": 1000, "stream": "s", "repeats": 60}},
    }  # fmt: skip
    run = gs.run(one, gpu)
    assert [state.round for state in run["default"].metadata.gpu_states] == [0, 1, 2]
    (row,) = run.comparison.to_pylist()
    assert row["sm_clock_mhz"] > 200
    assert row["power_w"] > 10


def test_a_program_that_opens_no_device_of_ours_has_readings(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "busy.py").write_text(RUNS_BUSY, "utf-8")
    line = [
        sys.executable,
        "-m",
        "gpuscope.cli",
        "record",
        "--no-report",
        "--out",
        "out",
        "busy.py",
    ]
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    (path,) = Path(tmp_path / "out").glob("*.parquet")
    trace = gs.load_trace(path)
    assert len(trace.where(kind="counter", name=SM_CLOCK)) >= 10
    (state,) = trace.metadata.gpu_states
    assert state.device in trace.metadata.devices
