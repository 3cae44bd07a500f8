"""The dashboard on a GPU: what it measures, how soon Stop is, and that nothing is left."""

from __future__ import annotations

import threading
import time

import pytest

import gpuscope as gs
from gpuscope.widgets.carver import PartitionCarver
from gpuscope.widgets.dashboard import Dashboard

pytestmark = pytest.mark.gpu
PATIENCE_S = 120


@pytest.fixture
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    assert device.partitions == ()
    assert device.calls.observers == ()


@pytest.fixture
def dashboard(gpu):
    shown = Dashboard(gpu)
    yield shown
    shown.close()


def finish(dashboard: Dashboard) -> None:
    assert dashboard.wait(PATIENCE_S), "the run did not end"
    assert dashboard.bar.alarm == ""


def test_it_says_that_it_is_measured_and_judges_confinement(dashboard, gpu):
    assert not dashboard.devices.simulated
    dashboard.form.workloads.edit("small", kind="traced_gemm", repeats=1000)
    dashboard.form.workloads.edit("load", kind="traced_gemm", m=2048, n=2048, k=2048)
    dashboard.start()
    finish(dashboard)
    shown = dashboard.verdict.value + dashboard.results.value
    assert "SIMULATED" not in shown
    assert "resident" in shown
    (trace,) = dashboard.run.values()
    assert gs.telling.confinement_verdict(trace).rule == "confined"
    assert dashboard.timeline.sms, "thread blocks were seen: there is a map of the SMs"


def test_without_its_guard_the_work_is_seen_elsewhere(dashboard):
    dashboard.form.workloads.edit("small", guard=False, repeats=200)
    dashboard.start()
    finish(dashboard)
    assert "Escaped: " in dashboard.verdict.value
    (trace,) = dashboard.run.values()
    seen = gs.analysis.confinement(trace)
    assert seen["small"].fraction == 0
    assert seen["load"].fraction == 1


@pytest.mark.gpu_alone("measures how soon work ends")
def test_stop_means_soon_whatever_is_queued(dashboard, gpu):
    """Half a second and the longest kernel: 20 ms spins, 64 of them allowed in flight."""
    dashboard.form.workloads.edit("small", repeats=1_000_000)
    dashboard.form.workloads.edit("load", kind="spin")
    dashboard.form.workloads.edit("load", duration_us=20_000, max_queued=64)
    running = threading.Event()
    dashboard.bar.observe(
        lambda change: running.set() if "Running" in change["new"] else None, names="status"
    )
    dashboard.start()
    assert running.wait(PATIENCE_S)
    time.sleep(1)
    stopped_s = time.monotonic()
    dashboard.stop()
    while gpu.partitions:  # they are closed when all of their work is done
        assert time.monotonic() - stopped_s < PATIENCE_S
        time.sleep(0.005)
    took_s = time.monotonic() - stopped_s
    finish(dashboard)
    assert dashboard.run.stopped
    assert took_s <= 0.5 + 0.02


def test_a_carver_carves_what_it_shows_and_gives_it_back(gpu):
    carver = PartitionCarver(gpu, {"a": 64, "b": 64})
    shown = carver.proposal
    assert gpu.partitions == ()
    carver.apply()
    assert {part.name: part.sm_count for part in gpu.partitions} == shown
    assert carver.rows[0]["sm_ids"]
    carver.close()
    assert gpu.partitions == ()
