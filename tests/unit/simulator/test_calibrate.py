"""Calibrating: what is measured, what kernels' names say, and that the fit finds what was there.

The simulated GPU stands in for a real one: its virtual times are measured by the same code, its
kernels are given names by what its profile chooses, and the fitted profile has to predict what
the first one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.device.carve import SmLayout
from gpuscope.errors import (
    CapabilityError,
    DeviceUnavailable,
    GpuscopeError,
    InvalidPartition,
    MissingDependency,
    MissingEvidence,
)
from gpuscope.experiments.profiling import profile
from gpuscope.search.scale_out import Team
from gpuscope.simulator import calibrate
from gpuscope.simulator.calibration import calibrator as calibration
from gpuscope.simulator.calibration import contention, gemms, host
from gpuscope.simulator.calibration.design import shapes, sm_counts
from gpuscope.simulator.calibration.kernels import (
    KINDS,
    MeasuredShapes,
    kernel_of,
    kind,
    tiles_by_grid,
    unreadable,
)
from gpuscope.simulator.calibration.memory import Pair, slowdown
from gpuscope.simulator.calibration.this_host import measure_host
from gpuscope.simulator.engine.jitter import Jitter
from gpuscope.simulator.models.gemm_model import ITEM_BYTES
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.simulator.profiles.schema import ProfileFile

H200 = GpuProfile.load("h200")
TEXT = (resources.files("gpuscope.simulator.profiles") / "h200.json").read_text("utf-8")
FEW = 48
COPY_RATE = "device_copy_bytes_per_us"
PAIRS = [
    Pair(watched, other, sms, 132 - sms, 1.0, 1.0, 200.0)
    for watched in contention.WATCHED
    for other in contention.BESIDE
    for sms in (24, 64)
]
"""Kernels beside others, on SM counts that no calibration measures them on."""


def micros(profile: GpuProfile, row: dict, sms: int, told: int = 0) -> float:
    cost = profile.gemm_cost(*row["shape"], row["dtype"], sms, told)
    return cost.alone_ns(sms) / 1000


def named(rows: list[dict], profile: GpuProfile) -> list[dict]:
    """Give rows the kernels that the profile chooses, with names as a library's."""
    for row in rows:
        m, n, k = row["shape"]
        library = profile.library(m, n, k, row["dtype"])
        kernel = library.choose((m, n, k), profile.layout.sm_count)
        high, wide, depth, splits = (
            int(getattr(kernel, name)[0]) for name in ("rows", "columns", "depth", "splits")
        )
        start = "nvjet_sm90_hsh" if library.kernels.times.persistent else "cutlass_80_gemm"
        name = f"{start}_{wide}x{high}_{depth}x3_" + "splitK_" * (splits > 1)
        row["kernels"] = [[name, -(-m // high) * -(-n // wide) * splits, 256]]
    return rows


def measured(gpu, count=FEW, **options):
    found = calibration.measure(
        gpu, "auto", budget_s=1e6, progress=lambda *_: None, shape_count=count, **options
    )
    named(found.gemm, gpu.backend.profile)
    return found


@pytest.fixture(scope="module")
def h200_measured():
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    gpu.backend._jitter = Jitter(())  # calls take as long whenever they come
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contention, "_REPEATS", 15)  # without jitter few tell as much
        return measured(gpu)


@pytest.fixture(scope="module")
def calibrated(h200_measured, tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "mine.json"
    return calibration.fit(h200_measured, path, measured_s=1.0)


@pytest.fixture
def gemms_above_all(monkeypatch):
    """Take the times of copies from the profile, and the host's of one sample: both take long."""
    transfers = {way: list(times) for way, times in H200.file.transfers}
    monkeypatch.setattr(host, "transfers", lambda *_args: transfers)
    rate = {COPY_RATE: H200.constants[COPY_RATE]}
    monkeypatch.setattr(host, "copy_rate", lambda *_args: rate)
    monkeypatch.setattr(host, "launches", functools.cache(host.launches))


@pytest.fixture
def pairs_as_measured(monkeypatch, h200_measured):
    """Take the times of kernels beside others from the one whole calibration: most of its time."""
    monkeypatch.setattr(contention, "pairs", lambda _device: [*h200_measured.pairs])


# -- the whole way -----------------------------------------------------------------------


def hosts_ns(profile, name: str, since_us: float) -> float:
    """Return what a call costs that comes so long after the last launch of its kind."""
    since, ratios = zip(
        *((speed.since_us, dict(speed.quantiles)[0.5]) for speed in profile.jitter), strict=True
    )
    return getattr(profile.constants, name) * float(np.interp(since_us, since, ratios))


def require_found_again(found, known) -> None:
    """Require the costs of calls: of launches, after times that experiments have between them."""
    constants = found.constants.model_dump()
    for name, value in known.constants.model_dump().items():
        if name.startswith(("launch_call", "launch_return", "gemm_")):
            for since_us in (100, 600, 1400):
                assert hosts_ns(found, name, since_us) == pytest.approx(
                    hosts_ns(known, name, since_us), rel=0.05
                ), (name, since_us)
        elif name.endswith("_call_ns"):  # made between launches, as quick as those
            ratios = [dict(speed.quantiles)[0.5] for speed in known.jitter]
            assert 0.99 * min(ratios) < constants[name] / value < 1.01 * max(ratios), name
        elif name != COPY_RATE:
            assert constants[name] == pytest.approx(value, rel=0.001), name


def test_host_costs_are_found_again(calibrated):
    found = calibrated.profile.constants.model_dump()
    for name, value in H200.constants.items():
        # A large copy goes at the rate of the largest one that was measured.
        # Launches of kernels are measured while the host mostly sleeps, and then scaled.
        within = 0.02 if name == COPY_RATE or name.startswith("launch_") else 0.001
        assert found[name] == pytest.approx(value, rel=within), name


def test_the_times_of_copies_are_found_again(calibrated):
    for way, times in H200.file.transfers:
        assert getattr(calibrated.profile.transfers, way) == times, way


def test_the_layout_and_the_copy_kernel_are_found_again(calibrated):
    again = GpuProfile.read(calibrated.path)
    assert again.layout == H200.layout
    assert again.file.device.compute_capability == (9, 0)
    for sms in (8, 32, 100, 132):
        for nbytes in (1 << 25, 1 << 30):
            cost, before = again.copy_cost(nbytes, sms), H200.copy_cost(nbytes, sms)
            assert cost.block_ns == pytest.approx(before.block_ns, rel=0.02)


@pytest.mark.parametrize("told", [False, True])
def test_products_of_a_vector_from_memory_are_found_again(calibrated, told):
    again = GpuProfile.read(calibrated.path)  # on many SMs a tail runs beside the next kernel
    for sms in (8, 24, 64, 112):
        heard = sms if told else 0
        cost, before = (
            profile.gemm_cost(1, 16384, 16384, "float16", sms, heard) for profile in (again, H200)
        )
        assert cost.alone_ns(sms) == pytest.approx(before.alone_ns(sms), rel=0.08)


@pytest.mark.parametrize("told", [False, True])
def test_the_fit_predicts_what_was_measured(calibrated, told):
    # Shapes that the fit never saw, on SM counts of which half were measured.
    again, errors = GpuProfile.read(calibrated.path), []
    for shape in shapes(60, seed=7):
        for dtype in ITEM_BYTES:
            row = {"shape": shape, "dtype": dtype}
            for sms in (8, 24, 64, 112, 120, 132):
                heard = sms if told else 0
                before = micros(H200, row, sms, heard)
                errors.append(abs(micros(again, row, sms, heard) / before - 1))
    assert np.median(errors) <= 0.03
    assert np.quantile(errors, 0.75) <= 0.12


def test_the_errors_that_are_told_are_those_there_are(calibrated, h200_measured):
    again, errors = GpuProfile.read(calibrated.path), []
    for row in h200_measured.gemm:
        errors += [abs(micros(again, row, int(s)) / us - 1) for s, us in row["us"].items()]
    assert calibrated.errors["all"]["rows"] == len(errors)
    assert calibrated.errors["all"]["median"] == pytest.approx(np.median(errors), abs=0.002)
    assert calibrated.errors["all"]["median"] <= 0.02
    assert calibrated.errors["all"]["p90"] <= 0.1
    assert set(calibrated.errors) == {*ITEM_BYTES, "all"} == set(calibrated.held_out)
    assert 0 < calibrated.held_out["all"]["rows"] < len(errors) / 3
    assert calibrated.errors["all"]["median"] <= calibrated.held_out["all"]["median"] <= 0.06
    told = sum(len(row["us"]) for row in h200_measured.told)
    assert 0 < calibrated.told_errors["rows"] < told / 3
    assert calibrated.told_errors["median"] <= 0.08


def test_the_file_says_where_its_figures_come_from(calibrated, h200_measured):
    facts = calibrated.profile.measured
    assert facts.shapes == FEW
    assert facts.rows == sum(len(row["us"]) for row in h200_measured.gemm)
    assert "virtual times" in facts.source
    assert f"gpuscope {gs.__version__}" in facts.software
    assert calibrated.profile.name == "mine"


def test_the_profile_opens_as_a_simulated_gpu(calibrated):
    gpu = gs.open_device(f"sim:{calibrated.path}", quiet=True)
    with (
        gpu.carve({"a": 16, "b": "rest"}) as parts,
        parts["a"].create_stream() as stream,
        gs.profile(gpu) as recording,
    ):
        gs.Gemm(gpu, m=512, n=512, k=512).execute(stream=stream)
    assert len(recording.trace.where(kind="kernel")) == 1


def test_told_rows_say_what_was_told(h200_measured):
    for row in h200_measured.told:
        assert set(row["us"]) == set(row["told"]) <= {"8", "16", "32", "64", "96", "116", "120"}
        assert row["told"]["116"] == 104  # the remainder holds no clusters
        assert row["told"]["64"] == 64
    assert len(h200_measured.told) == len(h200_measured.gemm)


def test_every_kind_is_measured_on_every_sm_count(h200_measured):
    assert {kind(row) for row in h200_measured.gemm} == set(KINDS)
    counts = [len(row["us"]) for row in h200_measured.gemm]
    assert max(counts) == len(sm_counts(H200.layout))
    assert sum(counts) + h200_measured.skipped == FEW * 4 * max(counts)


# -- GPUs that lack something ------------------------------------------------------------


def other_gpu(tmp_path, **device):
    data = json.loads(TEXT)
    data["device"] |= device
    path = tmp_path / "other.json"
    path.write_text(json.dumps(data))
    return gs.open_device(f"sim:{path}", quiet=True)


@pytest.mark.no_cover
@pytest.mark.usefixtures("gemms_above_all")
def test_without_green_contexts_everything_is_measured_on_all_sms(tmp_path):
    whole = {"quantum_sm_count": 72, "quanta": 1, "remainder_sm_count": 0}
    gpu = other_gpu(tmp_path, **whole)
    gpu.capabilities = dataclasses.replace(
        gpu.capabilities, partitions=False, reasons={"partitions": "CUDA 12.4 would be required"}
    )
    found = measured(gpu, 40)
    assert {count for row in found.gemm for count in row["us"]} == {"72"}
    assert not found.told
    result = calibration.fit(found, tmp_path / "small.json", measured_s=1.0)
    assert "all SMs only: CUDA 12.4 would be required" in result.profile.measured.source
    assert result.told_errors == {}
    assert result.errors["all"]["median"] <= 0.03
    assert (
        result.profile.constants.create_partition_call_ns
        == H200.constants["create_partition_call_ns"]
    )
    simulated = gs.open_device(f"sim:{result.path}", quiet=True)
    assert simulated.sm_count == 72
    with pytest.raises(InvalidPartition):
        simulated.carve([8])


@pytest.mark.no_cover
@pytest.mark.usefixtures("gemms_above_all", "pairs_as_measured")
def test_without_bfloat16_the_times_of_float16_stand_in(tmp_path):
    found = measured(other_gpu(tmp_path, compute_capability=[7, 5]), 40)
    assert any("no bfloat16" in note for note in found.notes)
    times = {
        dtype: {tuple(row["shape"]): row["us"] for row in found.gemm if row["dtype"] == dtype}
        for dtype in ("float16", "bfloat16")
    }
    assert times["float16"] == times["bfloat16"] != {}


@pytest.mark.no_cover
@pytest.mark.usefixtures("gemms_above_all")
def test_a_small_gpu_is_measured_with_small_shapes(tmp_path, monkeypatch):
    monkeypatch.setattr(contention, "_REPEATS", 2)  # whether they fit is asked, not their times
    memory_bytes = 2 << 30
    found = measured(other_gpu(tmp_path, memory_bytes=memory_bytes), 40)
    largest = max(max(m * n, m * k, k * n) for m, n, k in (row["shape"] for row in found.gemm))
    assert 3 * 16 * largest <= memory_bytes / 2
    assert {kind(row) for row in found.gemm} == set(KINDS)


@pytest.mark.no_cover
@pytest.mark.usefixtures("gemms_above_all", "pairs_as_measured")
def test_time_that_is_up_ends_the_measurement_and_too_little_is_refused(tmp_path):
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    done = []
    found = gemms.measure(
        gpu, shapes(), list(ITEM_BYTES), "auto", until_ns=gpu.now_ns() + 10_000_000,
        step=done.append,
    )  # fmt: skip
    assert done == [gemms.AT_ONCE]
    assert len({tuple(row["shape"]) for row in found.rows}) == gemms.AT_ONCE
    few = measured(gpu, gemms.AT_ONCE)
    with pytest.raises(GpuscopeError, match=r"only 8 shapes.*at least 40.*raise budget_s"):
        calibration.fit(few, tmp_path / "few.json", measured_s=1.0)
    assert list(tmp_path.iterdir()) == []
    no_doubles = dataclasses.replace(
        few, gemm=[row for row in few.gemm if row["dtype"] != "float64"]
    )
    with pytest.raises(GpuscopeError, match="none was float64 aligned to 16 bytes"):
        calibration.fit(no_doubles, tmp_path / "few.json", measured_s=1.0)


def test_a_team_measures_the_same_gemms():
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    few, dtypes = shapes()[:20], ["float32"]
    expected = gemms.measure(gpu, few, dtypes, "auto", until_ns=gpu.now_ns() + 10**12)
    done = []
    with ThreadPoolExecutor(1) as own:
        found = gemms.measure(
            gpu, few, dtypes, "auto", until_ns=gpu.now_ns() + 10**12, step=done.append,
            team=Team(own, "sim:h200"),
        )  # fmt: skip
        late = gemms.measure(
            gpu, few, dtypes, "auto", until_ns=gpu.now_ns(), team=Team(own, "sim:h200")
        )
    assert [row["shape"] for row in found.rows] == [row["shape"] for row in expected.rows]
    assert [row["us"] for row in found.rows] == [row["us"] for row in expected.rows]
    assert found.told == expected.told
    assert done == [8, 16, 20]
    assert len(late.rows) == gemms.AT_ONCE, "what was under way when the time was up"


def gemms_of_one_shape(gpu, source):
    return gemms.measure(
        gpu, [(256, 256, 256)], ["float32"], source, until_ns=gpu.now_ns() + 10**12
    )


@pytest.mark.parametrize(
    "measure",
    [host.overheads, host.transfers, host.copy_rate, contention.copy_kernels, gemms_of_one_shape],
)
def test_an_incomplete_recording_is_refused(monkeypatch, measure):
    @contextlib.contextmanager
    def lossy(device, **options):
        with profile(device, **options) as recording:
            lost = SimpleNamespace()
            yield lost
        lost.trace = recording.trace.with_metadata(complete=False, counts={"dropped": 3})

    for module in (host, gemms, contention):
        monkeypatch.setattr(module, "profile", lossy)
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    with pytest.raises(MissingEvidence, match=r"measure again: .* incomplete: 3 dropped"):
        measure(gpu, "auto")


# -- the call ----------------------------------------------------------------------------


@pytest.fixture
def as_cuda(monkeypatch, gemms_above_all, pairs_as_measured):
    """Return a simulated GPU that passes for a CUDA device with CUPTI; few shapes."""
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    was, gpu.info = gpu.info, dataclasses.replace(gpu.info, kind="cuda")
    measure = calibration.measure

    def simulated(device, source, *, budget_s, progress):
        assert source == "cupti"
        device.info = was  # what records must know what it really is
        assert budget_s < calibration.BUDGET_S
        found = measure(device, "auto", budget_s=1e6, progress=progress, shape_count=40)
        named(found.gemm, H200)
        return found

    monkeypatch.setattr(calibration, "measure", simulated)
    monkeypatch.setattr(calibration, "library_path", lambda: Path("libcupti.so"))
    return gpu


@pytest.mark.no_cover
def test_calibrate_measures_fits_and_writes(as_cuda, tmp_path):
    told = []
    path = tmp_path / "mine.json"
    found = calibrate(as_cuda, path, progress=lambda share, what: told.append((share, what)))
    assert [one.name for one in tmp_path.iterdir()] == ["mine.json"]
    assert GpuProfile.read(path).file == found.profile
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert found.measured_s > 0
    assert found.fitted_s > 0
    assert as_cuda.partitions == as_cuda.calls.observers == ()


@pytest.mark.no_cover
@pytest.mark.parametrize("phase", ["launches", "matrix products", "the fit"])
def test_an_interrupt_leaves_the_file_as_it_was(
    as_cuda, h200_measured, tmp_path, monkeypatch, phase
):
    if phase == "the fit":
        monkeypatch.setattr(calibration, "measure", lambda *_, **__: h200_measured)
    path = tmp_path / "mine.json"
    path.write_text("before")

    def interrupt(_share, what):
        if what == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(as_cuda, path, progress=interrupt)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["mine.json"]
    assert as_cuda.partitions == ()
    with as_cuda.create_stream() as stream:  # nothing records any more
        gs.Gemm(as_cuda, m=64, n=64, k=64).execute(stream=stream)
    assert as_cuda.calls.observers == ()


def test_what_is_no_gpu_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    with pytest.raises(DeviceUnavailable, match=r"a real GPU, and sim:h200 is simulated: name"):
        calibrate("sim:h200", path)
    with pytest.raises(DeviceUnavailable, match="a real GPU, and cpu is no GPU"):
        calibrate(gs.open_device("cpu", quiet=True), path)
    assert list(tmp_path.iterdir()) == []


def test_live_partitions_are_in_the_way_and_named(as_cuda, tmp_path):
    with as_cuda.carve({"mine": 16}), pytest.raises(InvalidPartition, match="'mine' hold"):
        calibrate(as_cuda, tmp_path / "mine.json")
    assert list(tmp_path.iterdir()) == []


def test_a_unified_stream_is_refused(tmp_path):
    gpu = gs.open_device("sim:h200", quiet=True, unified_stream=True)
    gpu.info = dataclasses.replace(gpu.info, kind="cuda")
    with pytest.raises(CapabilityError, match="unified_stream=True"):
        calibrate(gpu, tmp_path / "mine.json")


def test_without_cupti_nothing_is_measured(as_cuda, monkeypatch, tmp_path):
    def missing():
        raise MissingDependency("recording with CUPTI needs the package cupti-python")

    monkeypatch.setattr(calibration, "library_path", missing)
    monkeypatch.setattr(calibration, "measure", None)
    with pytest.raises(MissingDependency, match="cupti-python"):
        calibrate(as_cuda, tmp_path / "mine.json")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("mine.toml", r"ends in \.json, which 'mine\.toml' does not"),
        ("nowhere/mine.json", r"cannot write 'mine\.json': No such file"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_anything_is_measured(
    as_cuda, monkeypatch, tmp_path, path, told
):
    monkeypatch.setattr(calibration, "measure", None)
    with pytest.raises(GpuscopeError, match=told):
        calibrate(as_cuda, tmp_path / path)


def test_a_budget_below_the_fit_is_refused(as_cuda, tmp_path):
    with pytest.raises(GpuscopeError, match="budget_s is 5; more than 85 s"):
        calibrate(as_cuda, tmp_path / "mine.json", budget_s=5)


# -- the design --------------------------------------------------------------------------


def test_the_sm_counts_of_an_h200():
    assert sm_counts(SmLayout(8, 15, 12)) == [132, 120, 116, 96, 64, 32, 16, 8]


@given(st.integers(1, 16), st.integers(1, 40), st.integers(0, 16))
def test_sm_counts_can_be_granted_and_fall_from_the_whole_gpu(quantum, quanta, remainder):
    layout = SmLayout(quantum, quanta, remainder)
    counts = sm_counts(layout)
    assert counts[0] == layout.sm_count
    assert counts == sorted(set(counts), reverse=True)
    assert set(counts) <= set(layout.grantable())
    assert len(counts) <= 8


def test_every_beginning_of_the_design_is_a_fair_sample():
    every = shapes()
    assert len(set(every)) == len(every)
    assert every == shapes()
    begun = {kind({"shape": shape, "dtype": dtype}) for shape in every[:8] for dtype in ITEM_BYTES}
    assert begun == set(KINDS)
    for part in (every[:40], every[:80], every):
        odd = np.mean([any(side % 2 for side in shape) for shape in part])
        assert 0.1 <= odd <= 0.4
    assert min(min(shape) for shape in every[16:]) >= 16
    assert max(max(shape) for shape in every) <= 8193


def test_other_seeds_give_other_shapes():
    assert not set(shapes()) & set(shapes(60, seed=1))


# -- kernels -----------------------------------------------------------------------------

NAMES = [
    # name, dtype, rows, columns, depth, persistent
    ("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "float16", 128, 256, 64, True),
    ("nvjet_hsh_64x8_64x16_1x2_h_bz_NNT", "float16", 8, 64, 64, True),
    ("nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNT", "bfloat16", 256, 128, 64, True),
    ("nvjet_sm120_tst_mma_64x32x64_8_16x32x64_tmaAB_bz_TNNN", "bfloat16", 32, 64, 64, False),
    ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_nn", "float16", 64, 128, 64, False),
    ("ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x5_tn", "bfloat16",
     64, 64, 64, False),
    ("turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn", "float16", 128, 256, 32, False),
    ("volta_h884gemm_256x128_ldg8_nn", "float16", 128, 256, 32, False),
    ("volta_dgemm_128x64_nn", "float64", 64, 128, 32, False),
    ("ampere_sgemm_64x32_sliced1x4_nn", "float32", 32, 64, 32, False),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>",
     "bfloat16", 128, 256, 32, False),
    ("_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_128x64_8x5_nn_align1EEvNT_6ParamsE", "float32",
     64, 128, 8, False),
    ("sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize96x64x32_stage3_warpsize2x2x1_tensor16x8x16",
     "float16", 96, 64, 32, False),
    ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1_execute",
     "float16", 128, 64, 64, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "rows", "columns", "depth", "persistent"), NAMES)
def test_a_tile_is_read_from_the_names_of_many_architectures(
    name, dtype, rows, columns, depth, persistent
):
    blocks = -(-2000 // rows) * -(-3000 // columns)
    row = {"dtype": dtype, "shape": [2000, 3000, 512], "kernels": [[name, blocks, 256]], "us": {}}
    kernel = kernel_of(row)
    assert kernel.tile[:3] == (rows, columns, depth)
    assert kernel.known
    assert kernel.persistent == persistent
    assert kernel.splits == 1
    assert kernel.tile[3] >= 1


def test_a_grid_smaller_than_its_tiles_loops():
    name = "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
    row = {"dtype": "float16", "shape": [4096, 4096, 64], "kernels": [[name, 132, 384]]}
    assert kernel_of(row).persistent


def with_grids(name: str, tile: tuple[int, int], sizes: list[tuple[int, int]]) -> list[dict]:
    return [
        {"dtype": "float32", "shape": [m, n, 64], "us": {"8": 9.0, "132": 2.0},
         "kernels": [[name, -(-m // tile[0]) * -(-n // tile[1]), 128]]}
        for m, n in sizes
    ]  # fmt: skip


def test_a_name_that_tells_no_tile_is_inferred_from_its_grids():
    rows = with_grids("mystery", (32, 128), [(1000, 1000), (70, 3000), (4000, 130)])
    assert tiles_by_grid(rows) == {"mystery": (32, 128)}
    assert kernel_of(rows[0], tiles_by_grid(rows)).tile[:2] == (32, 128)
    assert unreadable(rows) == []


def test_what_no_tile_explains_is_dropped_and_named():
    rows = with_grids("one grid", (64, 64), [(640, 640)])
    rows += with_grids("no tile", (48, 80), [(1000, 1000), (77, 3001), (4001, 130)])
    rows += with_grids("gemv", (1, 64), [(1, 4096)])
    assert unreadable(rows) == ["no tile", "one grid"]
    found = MeasuredShapes.of(rows)
    assert found.readable.tolist() == [False] * 8 + [True] * 2
    assert found.vector
    assert len(found.us) == 10


def test_gemms_that_would_take_too_long_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(gemms, "_LONGEST_NS", 50_000)
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    found = gemms.measure(
        gpu, [(1024, 1024, 1024), (2048, 2048, 2048)], ["float32"], "auto",
        until_ns=gpu.now_ns() + 10**12,
    )  # fmt: skip
    first = found.rows[0]["us"]
    assert "132" in first  # before it, nothing says how fast the GPU is
    assert "8" not in first
    assert [row["shape"] for row in found.rows] == [[1024, 1024, 1024]]
    assert found.skipped == 16 - len(first)


def test_the_host_alone_is_found_again_whose_calls_take_as_long_whenever_they_come():
    gpu = gs.open_device("sim:h100", jitter=False, quiet=True)
    gpu.backend._jitter = Jitter(())
    constants, speeds, _ = measure_host(gpu, "auto", progress=lambda _share, _what: None)
    known = gpu.backend.profile.constants
    assert {*known} - {*constants} == {COPY_RATE}
    for name, value in constants.items():
        assert value == pytest.approx(known[name], rel=0.03), name
    assert not speeds


def test_the_host_alone_is_found_again():
    gpu = gs.open_device("sim:h100", jitter=False, quiet=True)
    known = gpu.backend.profile.file
    constants, speeds, _ = measure_host(gpu, "auto", progress=lambda _share, _what: None)
    assert {*known.constants.model_dump()} - {*constants} == {COPY_RATE}
    found = known.model_dump(mode="json", by_alias=True)
    found["constants"] |= constants
    found["jitter"] = [{"since_us": us, "quantiles": shares} for us, shares in speeds]
    require_found_again(ProfileFile.parse(json.dumps(found), "found"), known)


def test_a_host_that_is_slow_for_a_while_is_not_taken_for_all_of_it():
    random = np.random.default_rng(0)

    def sample(slow):
        since_us = np.concatenate([random.uniform(5, 14, 200), random.uniform(500, 900, 200)])
        before_ns = slow * np.where(since_us < 15, 20_000, 30_000) * random.uniform(0.9, 1.1, 400)
        return since_us, before_ns, 2 * before_ns

    samples = [(sample(slow),) * 3 for slow in (1, 1, 1, 1, 10)]
    calls = {"event_record_call_ns": 2_000, "query_call_ns": 1_000}
    costs, speeds = host.experiment_costs(samples, calls)
    assert costs["gemm_call_ns"] == pytest.approx(20_000, rel=0.02)
    assert [us for us, _ in speeds] == pytest.approx([0, 9.5, 700], rel=0.05)
    assert [dict(shares)[0.5] for _, shares in speeds] == pytest.approx([1, 1, 1.5], rel=0.03)
    assert max(ratio for _, shares in speeds for _, ratio in shares) < 2


def test_how_kernels_wait_for_memory_is_found_again(calibrated):
    again = GpuProfile.read(calibrated.path)
    errors = np.abs([slowdown(again, pair) / slowdown(H200, pair) - 1 for pair in PAIRS])
    assert np.median(errors) <= 0.05
    assert np.mean(errors <= 0.2) >= 0.85
