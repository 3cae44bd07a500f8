"""What the simulated host and GPU have of real ones: jitter, power, what kernels do to others."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.simulator.engine.jitter import Jitter
from gpuscope.simulator.models.assumed import POWER_FOLLOWS_NS
from gpuscope.simulator.models.memory_model import latency
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.workloads.spin import Spin

H200 = GpuProfile.load("h200")


def experiment(**facts):
    """Describe a small product beside a large one, on partitions."""
    return {
        "name": "noise", "seed": 3, "alone_repeats": 0, "partitions": {"a": 16, "b": "rest"},
        "streams": {"s": {"partition": "a"}, "l": {"partition": "b"}},
        "workloads": {
            "small": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "s", "repeats": 300,
                      "max_queued": 1, "arrival": "poisson", "rate_hz": 2000},
            "load": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "l",
                     "background": True, "max_queued": 4},
        },
        **facts,
    }  # fmt: skip


def latencies(run):
    handles = run["default"].where(kind="handle", category="small")
    return handles.array("end_ns") - handles.array("start_ns")


# -- the host -----------------------------------------------------------------------------
def test_one_seed_gives_one_run_and_another_seed_another():
    first, again, other = (
        gs.experiments.predict(experiment(seed=seed))["default"] for seed in (3, 3, 4)
    )
    assert first.spans.equals(again.spans)
    assert first.edges.equals(again.edges)
    assert not first.spans.equals(other.spans)


def test_an_experiment_draws_anew_whatever_the_device_did_before():
    gpu = gs.open_device("sim:h200", quiet=True)
    fresh = latencies(gs.run(experiment(), gs.open_device("sim:h200", quiet=True)))
    with gpu.create_stream() as stream, gs.Gemm(gpu, m=64, n=64, k=64) as gemm:
        for _ in range(7):
            gemm.execute(stream=stream)
        gemm.wait()
    assert np.array_equal(latencies(gs.run(experiment(), gpu)), fresh)


def test_without_jitter_the_noise_is_gone_and_nothing_else():
    noisy = latencies(gs.experiments.predict(experiment()))
    still = latencies(gs.experiments.predict(experiment(), jitter=False))
    assert np.median(still) == pytest.approx(np.median(noisy), rel=0.15)
    assert np.max(still) < 1.02 * np.quantile(still, 0.9), "the same calls take the same"
    assert np.quantile(noisy, 0.99) > 1.3 * np.quantile(still, 0.99), "there is a tail"


def test_kernels_alone_do_not_vary():
    alone = experiment()
    del alone["workloads"]["load"]
    trace = gs.experiments.predict(alone)["default"].where(kind="kernel")
    assert len(set((trace.array("end_ns") - trace.array("start_ns")).tolist())) == 1


def test_jitter_has_the_quantiles_that_it_is_given():
    jitter = Jitter([(0, [(0, 0.5), (0.5, 1.0), (0.9, 2.0), (1, 4.0)])])
    drawn = []
    for _ in range(4000):
        jitter.draw(10)
        drawn.append(jitter(1000))
        assert jitter(2000) == pytest.approx(2 * drawn[-1], abs=1), "the same until the next launch"
    assert np.quantile(drawn, [0.25, 0.5, 0.9]) == pytest.approx([750, 1000, 2000], rel=0.05)
    assert 500 <= min(drawn) <= max(drawn) <= 4000
    jitter.seed(0)
    jitter.draw(10)
    assert jitter(1000) == drawn[0]
    none = Jitter([])
    none.draw(10)
    assert none(1234) == 1234


def test_a_launch_that_comes_later_takes_longer():
    speeds = [(0, [(0, 1.0), (1, 1.0)]), (100, [(0, 1.0), (0.5, 2.0), (1, 5.0)])]
    still, noisy = Jitter(speeds, noise=False), Jitter(speeds)
    for since_us, expected in ((0, 1000), (50, 1500), (100, 2000), (999, 2000), (0, 1000)):
        still.draw(since_us)
        assert still(1000) == expected
    drawn = []
    for _ in range(1000):
        noisy.draw(100)
        drawn.append(noisy(1000))
    assert np.quantile(drawn, [0, 0.5, 1]) == pytest.approx([1000, 2000, 5000], rel=0.1)


def test_a_launch_is_late_by_those_of_its_kind():
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    gemm, kernel = gs.Gemm(gpu, m=64, n=64, k=64, name="gemm"), gs.workloads.spin_kernel(gpu)
    gpu.backend._jitter = Jitter([(0, [(0, 1.0), (1, 1.0)]), (1000, [(0, 2.0), (1, 2.0)])])
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        gemm.execute(stream=stream)
        gemm.execute(stream=stream)
        gpu.backend.wait_until_ns(gpu.now_ns() + 2_000_000)
        stream.launch(kernel, 1_000, grid=1, block=32)
        gemm.execute(stream=stream)
    start_ns = recording.trace.where(kind="handle").array("start_ns")
    queued_ns = np.sort(recording.trace.where(kind="kernel").array("queued_ns"))[[0, 1, 3]]
    call_ns = gpu.backend.profile.constants["gemm_call_ns"]
    took_ns = (queued_ns - start_ns).tolist()
    assert took_ns[0] == took_ns[2] == 2 * call_ns, "another kind's launch was just before it"
    assert call_ns < took_ns[1] < 1.2 * call_ns


def test_a_host_that_asks_sees_what_is_over_as_late_as_one_that_waits():
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    constants, event = gpu.backend.profile.constants, gpu.create_event()
    with gpu.create_stream() as stream, Spin(gpu, duration_ns=100_000) as spin:
        for waits in (False, True):
            with gs.profile(gpu) as recording:
                spin.execute(stream=stream)
                stream.record(event)
                if waits:
                    event.synchronize()
                    seen_ns = gpu.now_ns()
                    assert event.is_done
                    assert stream.is_done
                while not event.is_done:
                    seen_ns = gpu.now_ns() + constants["query_call_ns"]
            late_ns = seen_ns - recording.trace.where(kind="kernel").array("end_ns")[0]
            assert 0 <= late_ns - constants["synchronize_return_ns"] <= constants["query_call_ns"]
        stream.record(event)
        assert event.is_done, "nothing was before it that took time"


def test_a_launch_costs_before_and_after_it():
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    constants, gpu.backend._jitter = gpu.backend.profile.constants, Jitter(())
    gemm = gs.Gemm(gpu, m=64, n=64, k=64)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        began_ns = gpu.now_ns()
        gemm.execute(stream=stream)
        took_ns = gpu.now_ns() - began_ns
        gemm.wait()
    (kernel,) = recording.trace.where(kind="kernel").spans.to_pylist()
    assert kernel["queued_ns"] - began_ns == constants["gemm_call_ns"]
    record_ns = constants["event_record_call_ns"]
    assert took_ns == constants["gemm_call_ns"] + constants["gemm_return_ns"] + record_ns


# -- the GPU ------------------------------------------------------------------------------
def durations_us(seconds, n=4096, sms=None, pause_ns=0):
    """Return start and duration of large products that are launched for so long."""
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    homes = gpu.carve({"part": sms}) if sms else {"part": gpu}
    with homes["part"].create_stream() as stream, gs.profile(gpu) as recording:
        gemm = gs.Gemm(gpu, m=n, n=n, k=n, max_in_flight=8)
        end_ns = gpu.now_ns() + int(seconds * 1e9)
        while gpu.now_ns() < end_ns:
            for _ in range(8):
                gemm.execute(stream=stream)
            gemm.wait()
            gpu.backend.wait_until_ns(gpu.now_ns() + pause_ns)
    trace = recording.trace.where(kind="kernel")
    start_ns, end = trace.array("start_ns"), trace.array("end_ns")
    return (start_ns - start_ns[0]) / 1e3, (end - start_ns) / 1e3


def test_large_products_slow_down_when_they_run_for_long():
    starts, took = durations_us(0.4)
    alone = H200.gemm_cost(4096, 4096, 4096, "float16", 132, 0).alone_ns(132) / 1e3
    assert took[starts < 0.5 * POWER_FOLLOWS_NS / 1e3] == pytest.approx(alone, rel=0.001)
    assert np.all(np.diff(took) > -1), "never much faster again"
    assert 1.06 < took[-1] / alone < 1.2


@pytest.mark.parametrize(
    "facts", [{"sms": 64}, {"pause_ns": 1_500_000}, {"n": 512}], ids=["small", "pauses", "light"]
)
def test_what_draws_little_power_is_not_slowed(facts):
    _, took = durations_us(0.3, **facts)
    assert took.max() == pytest.approx(took.min(), rel=0.01)


def beside(first, second, sms=(64, 68)):
    """Return how much longer a kernel takes while another runs than alone."""
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    kernels = [
        gpu.compile("", name, model=KernelModel(lambda *_, cost=cost: cost))
        for name, cost in (("first", first), ("second", second))
    ]
    with gpu.carve(dict(zip("ab", sms, strict=True))) as parts:
        one, two = (parts[name].create_stream() for name in "ab")
        with gs.profile(gpu) as recording:
            two.launch(kernels[1], grid=1, block=32)
            one.launch(kernels[0], grid=1, block=32)
            gpu.synchronize()
    (kernel,) = recording.trace.where(kind="kernel", name="first").spans.to_pylist()
    return (kernel["end_ns"] - kernel["start_ns"]) / first.alone_ns(sms[0])


BUSY_NS = 1_000_000
ALL_BYTES = H200.constants["device_copy_bytes_per_us"] * BUSY_NS // 1000


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 4.0])
def test_a_kernel_waits_by_what_others_move_in_memory_or_cache(share):
    waiting = KernelCost(64, 100_000, exposure=0.5, idle=1.0)
    moved = int(share * ALL_BYTES)
    by_traffic = KernelCost(68, BUSY_NS, traffic=moved, exposure=1.0, idle=1.0)
    expected = 1 + 0.5 * (latency(share) - 1)  # half of the SMs meet all of the latency
    assert beside(waiting, by_traffic, (64, 68)) == pytest.approx(expected, rel=0.03)
    by_bytes = KernelCost(68, BUSY_NS, nbytes=moved, exposure=1.0, idle=1.0)
    assert beside(waiting, by_bytes, (64, 68)) == pytest.approx(expected, rel=0.03)
    unmoved = KernelCost(64, 100_000)
    assert beside(unmoved, by_traffic) == pytest.approx(1, rel=0.001)


def test_products_wait_for_memory_by_what_bounds_them():
    cost = H200.gemm_cost
    large, vector = (
        cost(8192, 8192, 8192, "float16", 132, 0),
        cost(1, 8192, 8192, "float16", 132, 0),
    )
    exposure = H200.file.memory.exposure
    assert large.computing > 0.95, "it multiplies nearly all of the time"
    assert vector.computing < 0.25, "it moves bytes most of the time"
    for product, rel in ((large, 0.01), (vector, 0.1)):
        by_time = exposure.vector + product.computing * (
            exposure.products["float16"] - exposure.vector
        )
        assert product.exposure == pytest.approx(by_time, rel=rel)
    assert large.traffic > large.nbytes, "tiles load operands again and again"
    assert large.idle > 0.9 > vector.idle, "memory bounds the second"
    small = cost(512, 512, 512, "float16", 132, 0)
    assert 0 < small.power < large.power < 1
    assert small.nbytes == 0 < small.cold_nbytes, "the cache holds its operands"
