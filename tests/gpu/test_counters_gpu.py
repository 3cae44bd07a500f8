"""Hardware counters of a real GPU: what partitions used, and who may sample."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.analysis.sm_shares import shares
from gpuscope.record.counters import EVERY_NS, READY_S, CounterProcess
from gpuscope.trace.counters import BUSY, samples_of

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone("samples counters of the whole GPU")]
GRID, SPIN_NS = 9, 3_000_000


def sampler_of(gpu):
    process = CounterProcess(gpu.info.index, gpu.info.uuid, EVERY_NS)
    process.wait(time.monotonic() + READY_S)
    return process


@pytest.fixture(scope="module")
def gpu():
    gpu = gs.open_device("cuda:0", quiet=True)
    process = sampler_of(gpu)
    process.end()
    if process.refusal:
        pytest.skip(f"no counters here: {process.refusal}")
    return gpu


@pytest.fixture(scope="module")
def trace(gpu):
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        streams = {name: parts[name].create_stream() for name in "ab"}
        with gs.profile(gpu, counters=True) as recording:
            for name, grid in (("a", 16), ("b", GRID)):
                streams[name].launch(kernel, SPIN_NS, grid=grid, block=32)
                gpu.synchronize()
            for name, grid in (("a", 16), ("b", GRID)):
                streams[name].launch(kernel, SPIN_NS, grid=grid, block=32)
            gpu.synchronize()
    return recording.trace


def test_busy_sms_are_the_grids(trace):
    (divided,) = shares(trace)
    for number, name in enumerate(divided.partitions):
        busy = divided.busy[divided.ran[:, number] >= 0.999, number]
        expected = 16 if name == "a" else GRID
        assert len(busy) > SPIN_NS // EVERY_NS
        assert np.mean(np.abs(busy - expected) <= 0.5) >= 0.99


def test_work_stays_on_what_was_granted_by_counters_too(trace):
    used = {use.partition: use for use in gs.analysis.partition_use(trace).partitions}
    assert used["a"].busy_most <= used["a"].granted + 0.5
    assert used["b"].busy_most <= GRID + 0.5
    assert gs.analysis.confinement(trace)["a"].fraction == 1


def test_samples_follow_each_other(trace):
    (samples,) = samples_of(trace)
    assert len(samples.lost) == 0
    apart = samples.starts[1:] - samples.ends[:-1]
    assert apart.min() >= 0
    assert apart.max() <= 5_000
    assert np.isfinite(samples.values[BUSY]).all()


def test_a_second_sampler_is_told_that_the_first_has_the_counters(gpu):
    first = sampler_of(gpu)
    second = sampler_of(gpu)
    second.end()
    first.end()
    assert "samples this GPU" in second.refusal
    assert first.refusal == ""
    assert len(first.new()) > 0


def test_a_killed_sampler_leaves_the_gpu_to_the_next(gpu):
    process = sampler_of(gpu)
    os.kill(process._process.pid, signal.SIGKILL)
    process.end()
    again = sampler_of(gpu)
    again.end()
    assert again.refusal == ""


def test_a_recorded_program_has_counters(gpu, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import time\nimport gpuscope as gs\ngpu = gs.open_device('cuda:0', quiet=True)\n"
        "kernel = gs.workloads.spin_kernel(gpu)\n"
        "with gpu.create_stream() as stream:\n"
        "    until = time.monotonic() + 3\n"
        "    while time.monotonic() < until:\n"
        "        stream.launch(kernel, 20_000_000, grid=40, block=32)\n"
        "        stream.synchronize()\n"
    )
    out = tmp_path / "trace.parquet"
    command = [sys.executable, "-m", "gpuscope.cli", "record", "--counters", "100us"]
    command += ["--no-report", "--out", str(out), str(script)]
    subprocess.run(command, check=True, capture_output=True)
    (use,) = gs.analysis.partition_use(gs.load_trace(out)).partitions
    assert use.granted == gpu.info.sm_count
    assert abs(use.busy_p95 - 40) <= 0.5
