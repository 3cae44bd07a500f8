"""Paths, gains and planted delays on a GPU: what is said of a program is what changing it does."""

from __future__ import annotations

import statistics

import pytest

import gpuscope as gs
from gpuscope.workloads.spin import Spin

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone("measures what delays do")]
LONG_NS, SHORT_NS = 4_000_000, 1_000_000


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


@pytest.fixture
def program(gpu):
    """A step of a long and a short stream, and what makes it with another long kernel."""
    with gpu.create_stream(name="long") as long, gpu.create_stream(name="short") as short:

        def made(long_ns=LONG_NS):
            slow = Spin(gpu, duration_ns=long_ns, name="slow")
            fast = Spin(gpu, duration_ns=SHORT_NS, name="fast")

            def step(plant=lambda: None):
                fast.execute(stream=short)
                slow.execute(stream=long)
                plant()
                short.wait(long.record())
                fast.execute(stream=short)
                short.synchronize()

            return step

        yield made, long, short


def took_ns(gpu, step):
    times = []
    for _ in range(30):
        begun_ns = gpu.now_ns()
        step()
        times.append(gpu.now_ns() - begun_ns)
    return statistics.median(times)


def test_delays_move_the_end_where_the_program_is_critical(gpu, program):
    made, long, short = program
    step = made()
    critical = gs.try_delay(step, gpu, behind=long, delays_us=[200, 800])
    assert critical.verdict == "all", critical
    beside = gs.try_delay(step, gpu, behind=short, delays_us=[200, 800])
    assert beside.verdict == "none", beside


def test_the_path_adds_up_and_a_faster_kernel_gains_what_was_said(gpu, program):
    made, *_ = program
    step = made()
    step()
    with gs.profile(gpu) as recording:
        step()
    trace = recording.trace
    path = gs.analysis.critical_path(trace)
    assert sum(part.duration_ns for part in path.parts) == path.end_ns - path.start_ns
    kernels = {span["name"]: span["id"] for span in trace.where(kind="kernel").spans.to_pylist()}
    assert path.by("kind")["running"] > 0.9 * (LONG_NS + SHORT_NS), kernels
    helps = gs.analysis.what_would_help(trace).changes
    gains = sorted((c.gain_ns for c in helps if "twice as fast" in c.change), reverse=True)
    whole, half = took_ns(gpu, step), took_ns(gpu, made(LONG_NS // 2))
    assert gains[0] == pytest.approx((LONG_NS + SHORT_NS) / 2, rel=0.1), helps
    assert whole - half == pytest.approx(LONG_NS / 2, rel=0.1)


def test_a_delay_behind_work_of_pytorch(gpu):
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()

    def step(plant):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(5_000_000)
            plant()
            torch.cuda._sleep(1_000_000)
        stream.synchronize()

    assert gs.try_delay(step, gpu, behind=stream, delays_us=[200, 800]).verdict == "all"
