"""Delays planted in a program: what moves its end, and what does not."""

from __future__ import annotations

import random

import pytest

import gpuscope as gs
from gpuscope.errors import InvalidArgument


@pytest.fixture
def program():
    """A step of two streams, of which the second is done first; where delays go, and the device."""
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    spin = gs.workloads.spin_kernel(gpu)
    long, short = gpu.create_stream(), gpu.create_stream()

    def step(plant):
        short.launch(spin, 400_000, grid=1, block=32)
        long.launch(spin, 2_000_000, grid=1, block=32)
        plant()
        short.launch(spin, 400_000, grid=1, block=32)

    return gpu, step, long, short


def test_only_what_is_critical_moves_the_end(program):
    gpu, step, long, short = program
    critical = gs.try_delay(step, gpu, behind=long, delays_us=[100, 400])
    assert critical.verdict == "all"
    assert critical.share == pytest.approx(1.0, abs=0.02)
    beside = gs.try_delay(step, gpu, behind=short, delays_us=[100, 400])
    assert (beside.verdict, beside.share) == ("none", pytest.approx(0.0, abs=0.01))
    assert gs.try_delay(step, gpu, delays_us=[100, 400]).verdict == "none", "the host has time"
    moved = [row["moved (µs)"] for row in critical.rows()]
    assert moved == pytest.approx([0, 100, 400], abs=5)


def test_a_delay_longer_than_slack_moves_a_part_of_it(program):
    gpu, step, _, short = program
    found = gs.try_delay(step, gpu, behind=short, delays_us=[1_000, 2_000])
    assert found.verdict == "part"
    assert 0.2 < found.share < 0.8
    assert found.delays_ns == (0, 1_000_000, 2_000_000)


def test_noise_hides_what_is_small_until_there_were_turns_enough(program):
    gpu, step, long, _ = program
    noise = random.Random(1)  # noqa: S311 - to repeat, not to hide

    def noisy(plant):
        gpu.backend.wait_until_ns(gpu.now_ns() + noise.randrange(3_000_000))
        step(plant)

    few = gs.try_delay(noisy, gpu, behind=long, delays_us=[1_000], turns=3)
    assert few.verdict == "undecided"
    many = gs.try_delay(noisy, gpu, behind=long, delays_us=[1_000], turns=40)
    assert len(many.steps_ns[0]) > 3
    assert many.low < 1 < many.high


def test_delays_follow_from_the_step_unless_said(program):
    gpu, step, long, _ = program
    found = gs.try_delay(step, gpu, behind=long)
    assert [ns // 1_000 for ns in found.delays_ns] == pytest.approx([0, 42, 105], rel=0.1)
    assert found.verdict == "all"


@pytest.mark.parametrize("delays_us", [[], [0], [-1.0], [1e-9]])
def test_a_delay_is_above_zero(program, delays_us):
    gpu, step, *_ = program
    with pytest.raises(InvalidArgument, match="delays_us"):
        gs.try_delay(step, gpu, delays_us=delays_us)


def test_a_step_without_a_place_for_the_delay_is_refused(program):
    gpu, *_ = program
    with pytest.raises(InvalidArgument, match="run"):
        gs.try_delay(lambda _plant: None, gpu)
