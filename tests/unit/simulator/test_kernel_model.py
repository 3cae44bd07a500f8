"""Times of recorded kernels on other numbers of SMs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gpuscope.simulator.models.kernel_model import RecordedKernel
from gpuscope.simulator.models.known import Copied, Product
from gpuscope.simulator.models.launch import Launch, packed
from gpuscope.simulator.profiles.profile import GpuProfile

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
MODELS = json.loads((BENCHMARKS / "data" / "models.json").read_text("utf-8"))["models"]
PROFILE = GpuProfile.load("h200")
COUNTS = (132, 116, 96, 64, 48, 32, 24, 16, 8)


def kernel(name="k", times_ns=None, *, scale=1.0, known=None, **launch):
    return RecordedKernel(
        name,
        Launch(**{"blocks": 4096, "threads": 256, **launch}),
        times_ns or {132: 100_000.0},
        PROFILE,
        known,
        scale=scale,
    )


@pytest.mark.parametrize(
    ("launch", "blocks"),
    [
        (Launch(1, 1024), 2),  # warps
        (Launch(1, 32), 32),  # blocks
        (Launch(1, 128, registers=128), 4),  # registers
        (Launch(1, 384, registers=168, shared_bytes=213_188), 1),  # shared memory
        (Launch(1, 1024, registers=255), 1),  # never none
    ],
)
def test_occupancy_is_what_an_sm_holds(launch, blocks):
    assert launch.occupancy == blocks


def test_a_launch_is_read_from_a_traces_text():
    text = '{"grid": [2, 66, 1], "block": [384, 1, 1], "registers": 168, "cluster": [2, 1, 1]}'
    assert Launch.parse(text) == Launch(132, 384, 168, 0, 2)
    for bad in (None, "", "[]", "{", '{"grid": [1]}', '{"grid": 1, "block": [1]}'):
        assert Launch.parse(bad) is None


@pytest.mark.parametrize("blocks", [100, 1000, 5000])
@pytest.mark.parametrize("name", ["k", "vectorized_elementwise_kernel", "flash_fwd"])
def test_a_recording_on_few_sms_says_the_same_as_one_on_all(name, blocks):
    whole = kernel(name, blocks=blocks)
    few = kernel(name, {16: whole.duration_ns(16)}, blocks=blocks)
    for count in COUNTS:
        assert few.duration_ns(count) == pytest.approx(whole.duration_ns(count), rel=0.001)


def test_what_was_recorded_is_returned_as_it_was():
    both = kernel(times_ns={132: 100_000.0, 24: 400_000.0})
    assert both.duration_ns(132) == 100_000
    assert both.duration_ns(24) == 400_000
    assert both.range_ns(24) == (400_000, 400_000)


@pytest.mark.parametrize("few", [None, 400_000.0, 700_000.0])
@pytest.mark.parametrize(
    "launch",
    [
        {"name": "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz", "blocks": 132, "threads": 384,
         "registers": 168, "shared_bytes": 213_188, "cluster": 2},
        {"name": "nvjet_sm90_hsh_128x16_64x11_4x1_v_bz", "blocks": 96, "threads": 384,
         "registers": 168, "shared_bytes": 213_188, "cluster": 4},
        {"name": "flash", "blocks": 512, "threads": 128, "shared_bytes": 86_336},
        {"name": "vectorized_elementwise_kernel"},
        {"blocks": 16, "threads": 128},
        {},
    ],
    ids=lambda launch: launch.get("name", str(launch)),
)  # fmt: skip
def test_fewer_sms_never_make_it_faster_by_more_than_clocks_do(launch, few):
    times_ns = {132: 100_000.0} if few is None else {132: 100_000.0, 24: few}
    one = kernel(times_ns=times_ns, **launch)
    times = [one.duration_ns(count) for count in COUNTS]
    assert all(later >= 0.9 * before for before, later in pairwise(times))
    for count in COUNTS:
        low, high = one.range_ns(count)
        assert low <= one.duration_ns(count) <= high


def test_a_kernel_of_few_blocks_needs_few_sms():
    assert kernel(blocks=16, threads=128).duration_ns(16) == pytest.approx(100_000)


def test_twice_the_work_of_many_blocks_takes_twice_as_long():
    assert kernel().scaled(2.0).duration_ns(132) == pytest.approx(200_000, rel=0.05)
    assert kernel(blocks=16, threads=128).scaled(2.0).duration_ns(132) == pytest.approx(100_000)


def test_a_product_scales_as_the_model_of_gemms_says():
    one = kernel(known=Product(4096, 4096, 4096, "float16"))
    modelled = [
        PROFILE.gemm_cost(4096, 4096, 4096, "float16", count, told).alone_ns(count)
        for count, told in ((64, 64), (132, 0))
    ]
    assert one.duration_ns(64) == pytest.approx(100_000 * modelled[0] / modelled[1])
    taller = PROFILE.gemm_cost(8192, 4096, 4096, "float16", 132, 0).alone_ns(132)
    assert one.scaled(2).duration_ns(132) == pytest.approx(100_000 * taller / modelled[1])


def test_a_copy_scales_as_an_h200_copies():
    measured = json.loads((BENCHMARKS / "data" / "h200_host.json").read_text("utf-8"))["copy"]
    for mb in (64, 512):
        took_us = {row["sms"]: row["us"] for row in measured if row["mb"] == mb}
        for here in (16, 64, 132):
            one = kernel(times_ns={here: 1000 * took_us[here]}, known=Copied(mb << 20))
            for count, us in took_us.items():
                assert one.duration_ns(count) / 1000 == pytest.approx(us, rel=0.08)


@pytest.mark.parametrize("count", COUNTS)
def test_what_the_engine_runs_takes_that_long_alone(count):
    for one in (
        kernel(),
        kernel(blocks=3, threads=32),
        kernel(known=Product(512, 512, 512, "float16")),
    ):
        cost = one.cost(count, gap_ns=7)
        waves = -(-max(cost.blocks, cost.tiles) // count)
        assert cost.alone_ns(count) == pytest.approx(one.duration_ns(count), abs=waves)
        assert cost.gap_ns == 7
        rate = PROFILE.constants["device_copy_bytes_per_us"] / 1000
        assert cost.nbytes <= 1.01 * rate * one.duration_ns(count) * count


def recorded(model, counts):
    places = {count: model["sms"].index(count) for count in counts}
    return [
        RecordedKernel(
            name, Launch.parse(json.dumps(config)),
            {count: times_ns[place] for count, place in places.items()}, PROFILE,
        )
        for name, config, times_ns in model["kernels"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "median", "p90"), [((132,), 0.12, 0.3), ((132, 24), 0.05, 0.12)]
)
def test_steps_of_models_are_as_long_as_they_were_measured(counts, median, p90):
    errors = []
    for model in MODELS.values():
        kernels = recorded(model, counts)
        for place, count in enumerate(model["sms"]):
            if count not in counts:
                took_ns = sum(one.duration_ns(count) for one in kernels)
                measured_ns = sum(times_ns[place] for _, _, times_ns in model["kernels"])
                errors.append(abs(took_ns / measured_ns - 1))
    assert np.median(errors) <= median
    assert np.quantile(errors, 0.9) <= p90


def test_blocks_spread_before_they_share_an_sm():
    assert packed(40, 8, 132) == (40, 1 / 8)  # one on each of 40 SMs
    assert packed(200, 8, 132) == (100, 2 / 8)
    assert packed(1000, 8, 132) == (125, 1.0)
    assert packed(5000, 2, 132) == (2500, 1.0)
    assert packed(7, 1, 4) == (7, 1.0)


def test_a_recorded_kernel_of_few_blocks_leaves_room_on_its_sms():
    launch = Launch(blocks=40, threads=256, registers=32)
    kernel = RecordedKernel("few", launch, {132: 9000.0}, PROFILE)
    cost = kernel.cost(132)
    assert launch.occupancy == 8
    assert (cost.blocks, cost.share) == (40, 1 / 8)
    assert cost.alone_ns(132) == 9000
    assert kernel.cost(16).share == 3 / 8, "40 blocks on 16 SMs: three an SM"
    assert cost.computing == pytest.approx(8 / kernel.scaling.saturating_warps, rel=0.2)
