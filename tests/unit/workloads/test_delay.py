"""Delays that are planted last as long as they should, in streams, graphs and on the host."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope.workloads.delay import Delay

LENGTH_NS = 3_000_000


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", jitter=False, quiet=True)


def durations(recording):
    kernels = recording.trace.where(kind="kernel")
    return (kernels.array("end_ns") - kernels.array("start_ns")).tolist()


def test_a_delay_in_a_stream_spins_each_time_that_it_is_planted(gpu):
    delay, none = Delay(gpu, LENGTH_NS), Delay(gpu, 0)
    with gs.profile(gpu) as recording, gpu.create_stream() as stream:
        delay.in_stream(stream)
        delay.in_stream(stream)
        none.in_stream(stream)
    first, second, least = durations(recording)
    assert first == second == pytest.approx(LENGTH_NS, rel=0.01)
    assert least < LENGTH_NS / 100


def test_a_stream_that_is_captured_takes_one(gpu):
    with gpu.create_stream() as stream:
        with stream.capture() as graph:
            Delay(gpu, LENGTH_NS).in_stream(stream)
        with gs.profile(gpu) as recording:
            graph.launch(stream=stream)
    assert durations(recording) == [pytest.approx(LENGTH_NS, rel=0.01)]


def waited_ns(gpu, delay, until=None):
    begun_ns = gpu.now_ns()
    delay.of_host(until)
    return gpu.now_ns() - begun_ns


def test_the_host_waits_as_long_or_until_an_event_is_done(gpu):
    delay = Delay(gpu, LENGTH_NS)
    assert waited_ns(gpu, delay) == pytest.approx(LENGTH_NS, rel=0.01)
    assert waited_ns(gpu, Delay(gpu, 0)) == pytest.approx(0, abs=1_000)
    with gpu.create_stream() as stream:
        for length_ns in (LENGTH_NS // 3, 3 * LENGTH_NS):
            Delay(gpu, length_ns).in_stream(stream)
            waited = waited_ns(gpu, delay, stream.record())
            assert waited == pytest.approx(min(length_ns, LENGTH_NS), rel=0.2)
