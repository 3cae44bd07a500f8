"""Calibrating a real GPU: in time, and well enough to forecast shapes that it never measured."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.simulator import calibrate
from gpuscope.simulator.calibration import gemms
from gpuscope.simulator.calibration.design import shapes
from gpuscope.simulator.models.gemm_model import ITEM_BYTES
from gpuscope.simulator.profiles.profile import GpuProfile

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone("calibrates it"), pytest.mark.timeout(400)]

FRESH, SEED = 20, 20261121


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


@pytest.fixture(scope="module")
def calibrated(gpu, tmp_path_factory):
    start_s = time.monotonic()
    found = calibrate(gpu, tmp_path_factory.mktemp("profile") / "mine.json")
    return found, time.monotonic() - start_s


def test_it_takes_less_than_three_minutes(calibrated):
    assert calibrated[1] < 180


def test_the_profile_is_of_this_gpu(gpu, calibrated):
    profile = GpuProfile.read(calibrated[0].path)
    assert profile.layout == gpu.backend.layout
    assert profile.file.measured.driver == gpu.info.driver
    simulated = gs.open_device(f"sim:{calibrated[0].path}", quiet=True)
    assert simulated.sm_count == gpu.sm_count
    assert simulated.info.name == f"{gpu.info.name} (simulated)"


def test_the_costs_are_those_of_a_working_gpu(calibrated):
    costs = calibrated[0].profile.constants.model_dump()
    for name in ("launch_call_ns", "gemm_call_ns", "event_record_call_ns", "stream_wait_call_ns"):
        assert 50 <= costs[name] <= 100_000, name
    assert 100 <= costs["launch_latency_ns"] + costs["synchronize_return_ns"] <= 100_000
    assert costs["device_copy_bytes_per_us"] > 1_000_000
    transfers = calibrated[0].profile.transfers
    for up, down in (
        (transfers.pinned_host_to_device, transfers.pinned_device_to_host),
        (transfers.pageable_host_to_device, transfers.pageable_device_to_host),
    ):
        for times in (up, down):
            nbytes, us = times[-1]
            assert 1_000 < nbytes / us < costs["device_copy_bytes_per_us"]
            assert 0.1 < times[0][1] < 100


def test_it_forecasts_shapes_that_it_never_measured(gpu, calibrated):
    profile = GpuProfile.read(calibrated[0].path)
    found = gemms.measure(
        gpu, shapes(FRESH, seed=SEED), list(ITEM_BYTES), "cupti", until_ns=gpu.now_ns() + 60 * 10**9
    )
    assert len({tuple(row["shape"]) for row in found.rows}) == FRESH
    errors = []
    for row in found.rows:
        for sms, us in row["us"].items():
            cost = profile.gemm_cost(*row["shape"], row["dtype"], int(sms), 0)
            errors.append(abs(-(-cost.blocks // int(sms)) * cost.block_ns / 1e3 / us - 1))
    assert len(errors) > FRESH * len(ITEM_BYTES)
    assert np.median(errors) <= 0.15
    assert np.median(errors) <= 2 * calibrated[0].held_out["all"]["median"] + 0.02
