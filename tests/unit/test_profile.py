"""The shipped GPU profile against the measurements in it."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.device.api import KernelCost
from gpuscope.device.carve import SmLayout
from gpuscope.device.sim.profile import Profile
from gpuscope.errors import DeviceUnavailable

H200 = Profile.load("h200")
DTYPES = ("float16", "bfloat16", "float32", "float64")
PER_DTYPE = {dtype: [row for row in H200.gemm if row[0] == dtype] for dtype in DTYPES}


def micros(cost: KernelCost, sm_count: int) -> float:
    """Time of a kernel alone on its SMs: waves times the time of one block."""
    return -(-cost.blocks // sm_count) * cost.block_ns / 1000


def test_the_layout_is_the_measured_one():
    assert H200.layout == SmLayout(quantum_sm_count=8, quanta=15, remainder_sm_count=12)
    assert H200.layout.sm_count == 132


def test_unknown_profile_names_those_there_are():
    with pytest.raises(DeviceUnavailable, match=r"'v100'.*sim:h200"):
        Profile.load("v100")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_measured_gemm_is_reproduced(dtype):
    rows = PER_DTYPE[dtype]
    assert len(rows) > 100
    wrong = []
    for _, m, n, k, timings in rows:
        for sm_count, measured_us, _ in timings:
            found_us = micros(H200.gemm_cost(m, n, k, dtype, sm_count, 0), sm_count)
            if not math.isclose(found_us, measured_us, rel_tol=0.01):
                wrong.append((m, n, k, sm_count, measured_us, found_us))
    assert wrong == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_measured_grids_are_kept(dtype):
    for _, m, n, k, timings in PER_DTYPE[dtype]:
        sm_count, _, blocks = timings[-1]
        assert H200.gemm_cost(m, n, k, dtype, sm_count, 0).blocks == pytest.approx(
            blocks, rel=0.01, abs=1
        )


sizes = st.one_of(st.integers(1, 300), st.integers(1, 2**15), st.sampled_from([2**14, 2**15]))
sm_counts = st.sampled_from(H200.layout.grantable())


@given(m=sizes, n=sizes, k=sizes, dtype=st.sampled_from(DTYPES), sm_count=sm_counts, data=st.data())
def test_a_cost_is_positive_finite_and_whole(m, n, k, dtype, sm_count, data):
    told = data.draw(st.sampled_from([0, sm_count, 132]))
    cost = H200.gemm_cost(m, n, k, dtype, sm_count, told)
    assert type(cost.blocks) is int
    assert type(cost.block_ns) is int
    assert cost.blocks >= 1
    assert cost.block_ns >= 1
    if told:
        assert cost.blocks <= told
    # Nothing beats the arithmetic by much, and nothing takes a minute per TFLOP.
    flops = 2 * m * n * k
    peak = {"float16": 990, "bfloat16": 990, "float32": 67, "float64": 67}[dtype]
    least_us = flops / (peak * sm_count / 132) / 1e6
    assert least_us * 0.5 <= micros(cost, sm_count) < 1e5 + 200 * least_us
    assert H200.gemm_cost(m, n, k, dtype, sm_count, told) == cost


@given(dtype=st.sampled_from(DTYPES), sm_count=sm_counts)
def test_empty_sums_still_cost_a_launch(dtype, sm_count):
    assert micros(H200.gemm_cost(64, 64, 0, dtype, sm_count, 0), sm_count) > 0


TARGETS = [
    (int(n), int(sms), default_us, told_us) for n, sms, default_us, told_us in H200.sm_count_target
]


@pytest.mark.parametrize(("n", "sm_count", "default_us", "told_us"), TARGETS)
def test_the_sm_count_target_does_what_was_measured(n, sm_count, default_us, told_us):
    for dtype in ("float16", "bfloat16"):
        untold = micros(H200.gemm_cost(n, n, n, dtype, sm_count, 0), sm_count)
        told = micros(H200.gemm_cost(n, n, n, dtype, sm_count, sm_count), sm_count)
        assert told / untold == pytest.approx(told_us / default_us, rel=0.01)
        assert told <= 1.05 * untold


@pytest.mark.parametrize(("n", "sm_count", "default_us", "told_us"), TARGETS)
def test_squares_are_near_the_separate_measurement(n, sm_count, default_us, told_us):
    # Another run than the profile's rows, which have no 8192³: that one is extrapolated.
    tolerance = 0.05 if n < 8192 else 0.2
    assert micros(H200.gemm_cost(n, n, n, "float16", sm_count, 0), sm_count) == pytest.approx(
        default_us, rel=tolerance
    )
    assert micros(
        H200.gemm_cost(n, n, n, "float16", sm_count, sm_count), sm_count
    ) == pytest.approx(told_us, rel=tolerance)


@given(n=st.integers(64, 8192), sm_count=sm_counts)
def test_a_told_square_is_never_much_worse(n, sm_count):
    untold = micros(H200.gemm_cost(n, n, n, "float16", sm_count, 0), sm_count)
    told = micros(H200.gemm_cost(n, n, n, "float16", sm_count, sm_count), sm_count)
    assert told <= 1.05 * untold


@given(m=sizes, n=sizes, dtype=st.sampled_from(["float32", "float64"]), sm_count=sm_counts)
def test_the_target_claims_nothing_where_nothing_was_measured(m, n, dtype, sm_count):
    untold = micros(H200.gemm_cost(m, n, 64, dtype, sm_count, 0), sm_count)
    told = micros(H200.gemm_cost(m, n, 64, dtype, sm_count, sm_count), sm_count)
    assert told == pytest.approx(untold, rel=0.01, abs=0.01)


def test_more_sms_are_never_much_slower_for_a_big_square():
    times = [
        micros(H200.gemm_cost(4096, 4096, 4096, "float16", sm_count, sm_count), sm_count)
        for sm_count in H200.layout.grantable()
    ]
    for narrow, wide in itertools.pairwise(times):
        assert wide <= 1.02 * narrow


def test_the_copy_kernel_is_reproduced_at_its_largest_size():
    largest = max(row[0] for row in H200.copy)
    for megabytes, sm_count, measured_us in H200.copy:
        found = micros(H200.copy_cost(int(megabytes) << 20, int(sm_count)), int(sm_count))
        tolerance = 0.01 if megabytes == largest else 0.05
        assert found == pytest.approx(measured_us, rel=tolerance)


@given(nbytes=st.integers(0, 2**38), sm_count=sm_counts)
def test_a_copy_is_positive_and_grows(nbytes, sm_count):
    smaller, larger = H200.copy_cost(nbytes, sm_count), H200.copy_cost(2 * nbytes, sm_count)
    assert smaller.blocks == sm_count
    assert 2000 <= smaller.block_ns <= larger.block_ns
