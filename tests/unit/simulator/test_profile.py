"""The shipped GPU profile against the measurements it was fitted to, and the file's schema."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope.device.api import KernelCost
from gpuscope.device.carve import SmLayout
from gpuscope.errors import DeviceUnavailable, GpuscopeError, InvalidProfile
from gpuscope.simulator.calibration.errors import fold_of, share_errors, table
from gpuscope.simulator.calibration.kernels import kernel_of
from gpuscope.simulator.calibration.written import write_profile
from gpuscope.simulator.profiles.profile import GpuProfile, shipped
from gpuscope.simulator.profiles.schema import ProfileFile

ROOT = Path(__file__).resolve().parents[3]
H200 = GpuProfile.load("h200")
TEXT = (resources.files("gpuscope.simulator.profiles") / "h200.json").read_text("utf-8")
DATA = json.loads((ROOT / "benchmarks" / "data" / "h200.json").read_text("utf-8"))
DTYPES = ("float16", "bfloat16", "float32", "float64")
MEDIAN_GOAL, P90_GOAL = 0.12, 0.40


def micros(cost: KernelCost, sm_count: int) -> float:
    """Time of a kernel alone on its SMs: waves times the time of one block."""
    return cost.alone_ns(sm_count) / 1000


@functools.cache
def script() -> Any:
    spec = importlib.util.spec_from_file_location(
        "fit_profile", ROOT / "scripts" / "fit_profile.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_profile"] = module
    spec.loader.exec_module(module)
    return module


def test_the_layout_is_the_measured_one():
    assert H200.layout == SmLayout(quantum_sm_count=8, quanta=15, remainder_sm_count=12)
    assert H200.layout.sm_count == 132


def test_unknown_profile_names_those_there_are():
    with pytest.raises(DeviceUnavailable, match=r"'v100'.*sim:h200"):
        GpuProfile.load("v100")


# -- the fit ---------------------------------------------------------------------------


def within_the_goals(rows: dict[str, dict[str, float]]) -> None:
    for dtype, row in rows.items():
        assert row["median"] <= MEDIAN_GOAL, dtype
        assert row["p90"] <= P90_GOAL, dtype
        assert row["median"] <= 0.5 * row["share_median"], dtype
        assert row["p90"] <= 0.5 * row["share_p90"], dtype


def test_measured_times_are_met_within_the_goals():
    errors: dict[str, list[float]] = {}
    for row in DATA["gemm"]:
        for sms, measured_us in row["us"].items():
            cost = H200.gemm_cost(*row["shape"], row["dtype"], int(sms), 0)
            errors.setdefault(row["dtype"], []).append(
                abs(micros(cost, int(sms)) / measured_us - 1)
            )
    assert sum(map(len, errors.values())) == H200.file.measured.rows
    within_the_goals(table(errors, share_errors(DATA["gemm"], layout=H200.layout)))


def test_shapes_that_were_left_out_are_met_within_the_goals():
    (row,) = [
        row
        for row in json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text())["rows"]
        if "error" in row
    ]
    assert row["error"]["all"]["rows"] == H200.file.measured.rows
    within_the_goals(row["error"])


def test_a_fold_that_is_predicted_again_is_met_within_the_goals():
    rows = script().cross_validate(DATA["gemm"], range(1))
    within_the_goals({"all": rows["all"]})


def test_no_shape_is_in_two_folds_and_folds_are_even():
    shapes = {tuple(row["shape"]) for row in DATA["gemm"]}
    fold = fold_of(shapes)
    assert set(fold) == shapes
    sizes = [list(fold.values()).count(index) for index in range(5)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.no_cover
def test_the_shipped_profile_is_what_the_script_fits(tmp_path):
    write_profile(script().fit(DATA), tmp_path / "again.json")
    again = GpuProfile.load(str(tmp_path / "again.json"))
    for row in DATA["gemm"][::7]:
        for sms in row["us"]:
            arguments = (*row["shape"], row["dtype"], int(sms), 0)
            mine, theirs = H200.gemm_cost(*arguments), again.gemm_cost(*arguments)
            assert micros(mine, int(sms)) == pytest.approx(micros(theirs, int(sms)), rel=0.05)
    fitted = {"copy_kernel", "gemm"}
    mine, theirs = (one.file.model_dump(exclude=fitted) for one in (H200, again))
    assert mine == theirs
    assert again.file.copy_kernel.bytes_per_us == pytest.approx(
        H200.file.copy_kernel.bytes_per_us, rel=0.01
    )


def test_the_fit_holds_no_shapes():
    # A few dozen tiles and constants a kind of kernels, not thousands of rows.
    assert len(TEXT) < 16_000


def test_the_compact_copy_is_read_like_the_folder(tmp_path):
    solo = [
        {"dtype": "float32", "m": 64, "n": 128, "k": 256, "sms": sms, "us": us,
         "kernels": [["cutlass_80_simt_sgemm_64x64_8x5_nn_align1", 8, 128],
                     ["splitKreduce_kernel", 8, 512]]}
        for sms, us in ((8, 10.0), (132, 5.0))
    ]  # fmt: skip
    random = {"rows": [["float64", 64, 64, 64, 8, 3.0, 2.9, [["tilesize32x32x32_stage5", 4, 1]]]]}
    (tmp_path / "gemm_solo.json").write_text(json.dumps(solo))
    (tmp_path / "gemm_random_cal.json").write_text(json.dumps(random))
    (tmp_path / "sm_count_target.json").write_text(json.dumps([{"n": 1}]))
    (tmp_path / "copy.json").write_text(json.dumps({"copy": [{"mb": 1, "sms": 8, "us": 1.0}]}))
    folder = script().read(tmp_path)
    script().keep(folder, tmp_path / "kept" / "copy.json")
    assert script().read(tmp_path / "kept" / "copy.json") == folder
    assert [row["us"] for row in folder["gemm"]] == [{"8": 10.0, "132": 5.0}, {"8": 3.0}]
    kernel = kernel_of(folder["gemm"][0])
    assert (kernel.tile[:3], kernel.splits) == ((64, 64, 8), 4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_most_grids_are_those_that_cublas_chose(dtype):
    ratios = [
        H200.gemm_cost(*row["shape"], dtype, 132, 0).blocks / row["kernels"][0][1]
        for row in DATA["gemm"]
        if row["dtype"] == dtype and "nvjet" in row["kernels"][0][0]
    ]
    assert len(ratios) > 100
    assert np.mean([0.85 <= one <= 1.15 for one in ratios]) >= 0.7
    assert max(ratios) <= 6
    assert min(ratios) >= 1 / 6


# -- properties ------------------------------------------------------------------------

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
    if H200.library(m, n, k, dtype).kernels.times.persistent:
        assert cost.blocks <= (told or 132)
    # Nothing beats the arithmetic, and nothing takes a minute per TFLOP.
    flops = 2 * m * n * k
    peak = {"float16": 990, "bfloat16": 990, "float32": 67, "float64": 67}[dtype]
    least_us = flops / (peak * sm_count / 132) / 1e6
    assert least_us * 0.99 <= micros(cost, sm_count) < 1e5 + 200 * least_us
    assert H200.gemm_cost(m, n, k, dtype, sm_count, told) == cost


@given(dtype=st.sampled_from(DTYPES), sm_count=sm_counts)
def test_empty_sums_still_cost_a_launch(dtype, sm_count):
    assert micros(H200.gemm_cost(64, 64, 0, dtype, sm_count, 0), sm_count) > 0


@given(m=sizes, n=sizes, k=st.integers(1, 2**14), dtype=st.sampled_from(DTYPES))
def test_rows_that_are_not_aligned_take_other_kernels(m, n, k, dtype):
    item = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]
    found = H200.library(m, n, k, dtype).kernels
    assert n * item % found.alignment == 0
    assert k * item % found.alignment == 0
    aligned = n * item % 16 == 0 and k * item % 16 == 0
    assert (found.alignment == 16) == aligned
    assert found.times.persistent == (aligned and item == 2)


def test_odd_sizes_are_slower_than_the_next_aligned_ones():
    for dtype in DTYPES:
        odd = micros(H200.gemm_cost(2047, 2047, 2047, dtype, 132, 0), 132)
        even = micros(H200.gemm_cost(2048, 2048, 2048, dtype, 132, 0), 132)
        assert odd > even * (3 if dtype.endswith("16") else 0.95)


# -- the SM-count target ---------------------------------------------------------------

TARGETS = [
    (row["n"], row["sms"], row["default_us"], row["target_us"], row["grid_t"])
    for row in DATA["sm_count_target"]
]


@pytest.mark.parametrize(("n", "sm_count", "default_us", "told_us", "grid"), TARGETS)
def test_the_sm_count_target_does_what_was_measured(n, sm_count, default_us, told_us, grid):
    # These rows are not in the fit: no constant was learned from a GEMM that was told.
    for dtype in ("float16", "bfloat16"):
        untold = micros(H200.gemm_cost(n, n, n, dtype, sm_count, 0), sm_count)
        cost = H200.gemm_cost(n, n, n, dtype, sm_count, sm_count)
        told = micros(cost, sm_count)
        assert cost.blocks == pytest.approx(grid, rel=0.1)
        assert told / untold == pytest.approx(told_us / default_us, rel=0.15)
        assert told <= 1.05 * untold
    assert micros(H200.gemm_cost(n, n, n, "float16", sm_count, 0), sm_count) == pytest.approx(
        default_us, rel=0.15
    )
    assert micros(
        H200.gemm_cost(n, n, n, "float16", sm_count, sm_count), sm_count
    ) == pytest.approx(told_us, rel=0.1)


REMAINDER = [
    row
    for row in json.loads((ROOT / "benchmarks" / "results" / "remainder.json").read_text())["rows"]
    if "us" in row
]


def measured_us(sm_count: int, side: int, told: int) -> float:
    (row,) = (
        row
        for row in REMAINDER
        if (row["dtype"], row["sm_count"], row["side"], row["told"])
        == ("float16", sm_count, side, told)
    )
    return float(row["us"])


def test_telling_the_count_that_partitions_tell_never_costs_much():
    gpu = gs.open_device("sim:h200", quiet=True)
    for sm_count in (16, 20, 24, 28, 32, 36, 44, 60, 64, 76, 92, 96, 108, 116, 120, 124):
        with gpu.carve([sm_count]) as parts:
            told = parts[0].sm_count_target
        for side in (1024, 2048, 4096, 8192):
            best_us = min(
                row["us"]
                for row in REMAINDER
                if (row["dtype"], row["sm_count"], row["side"]) == ("float16", sm_count, side)
            )
            assert measured_us(sm_count, side, told) <= 1.2 * measured_us(sm_count, side, 0)
            assert measured_us(sm_count, side, told) <= 1.45 * best_us, (sm_count, side)


def test_products_that_were_told_of_sms_without_clusters_take_as_long_as_measured():
    errors = []
    for row in REMAINDER:
        if row["dtype"] == "float16" and row["sm_count"] % 8 and row["told"]:
            m = row["side"]
            cost = H200.gemm_cost(m, m, m, "float16", row["sm_count"], row["told"])
            errors.append(abs(micros(cost, row["sm_count"]) / row["us"] - 1))
    assert len(errors) == 160
    assert np.median(errors) <= 0.06
    assert np.quantile(errors, 0.9) <= 0.25


WHOLE_QUANTA = [count for count in H200.layout.grantable() if count % 8 == 0]


@given(n=st.integers(64, 8192), sm_count=st.sampled_from(WHOLE_QUANTA))
def test_a_told_square_is_never_much_worse(n, sm_count):
    untold = micros(H200.gemm_cost(n, n, n, "float16", sm_count, 0), sm_count)
    told = micros(H200.gemm_cost(n, n, n, "float16", sm_count, sm_count), sm_count)
    assert told <= 1.05 * untold


def test_telling_all_sms_is_telling_nothing():
    for dtype in DTYPES:
        untold = H200.gemm_cost(640, 384, 1152, dtype, 64, 0)
        assert H200.gemm_cost(640, 384, 1152, dtype, 64, 132) == untold
        assert H200.gemm_cost(640, 384, 1152, dtype, 64, 1000) == untold


def test_more_sms_are_never_much_slower_for_a_big_square():
    times = [
        micros(H200.gemm_cost(4096, 4096, 4096, "float16", sm_count, sm_count), sm_count)
        for sm_count in WHOLE_QUANTA
    ]
    for narrow, wide in itertools.pairwise(times):
        assert wide <= 1.02 * narrow


# -- copies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "nbytes", "us", "within"),
    [
        ("pinned_host_to_device", 4 << 10, 0.96, 0.1),
        ("pinned_host_to_device", 2 << 20, 40.5, 0.02),
        ("device_to_device", 2 << 20, 1.42, 0.05),
        ("memset", 1 << 20, 0.99, 0.05),
        ("pageable_host_to_device", 256 << 20, (256 << 20) / 10_100, 0.35),
    ],
)
def test_copies_take_as_long_as_in_nsight_captures(way, nbytes, us, within):
    assert H200.transfer_ns(way, nbytes) == pytest.approx(1000 * us, rel=within)


@pytest.mark.parametrize("way", H200.file.transfers.model_dump())
def test_the_time_of_a_copy_lies_between_those_of_measured_sizes(way):
    times = getattr(H200.file.transfers, way)
    for (smaller, first_us), (larger, second_us) in itertools.pairwise(times):
        least, most = sorted((first_us, second_us))
        middle_us = H200.transfer_ns(way, (smaller + larger) // 2) / 1000
        assert least - 0.001 <= middle_us <= most + 0.001
    nbytes, us = times[-1]
    assert H200.transfer_ns(way, 4 * nbytes) == pytest.approx(4000 * us, rel=1e-6)
    assert H200.transfer_ns(way, 0) == pytest.approx(1000 * times[0][1], rel=1e-6)


def test_the_copy_kernel_is_met():
    fitted = json.loads((ROOT / "benchmarks" / "data" / "h200_memory.json").read_text("utf-8"))
    other = json.loads((ROOT / "benchmarks" / "results" / "latencies.json").read_text("utf-8"))
    from_memory = [row for row in fitted["copy"] if row["mb"] >= 64]
    for rows, close in ((from_memory, 0.05), (other["calibrated"]["copy"], 0.07)):
        for row in rows:
            found = micros(H200.copy_cost(row["mb"] << 20, row["sms"]), row["sms"])
            assert found == pytest.approx(row["us"], rel=close)


@given(nbytes=st.integers(0, 2**38), sm_count=sm_counts)
def test_a_copy_is_positive_and_grows(nbytes, sm_count):
    smaller, larger = H200.copy_cost(nbytes, sm_count), H200.copy_cost(2 * nbytes, sm_count)
    assert smaller.blocks == sm_count
    assert 500 <= smaller.block_ns <= larger.block_ns


# -- the file --------------------------------------------------------------------------


def changed(*path: Any, to: Any) -> str:
    """Return the shipped profile with one field changed; without it if ``to`` is ``...``."""
    data = json.loads(TEXT)
    *parents, last = path
    place = data
    for one in parents:
        place = place[one]
    if to is ...:
        del place[last]
    else:
        place[last] = to
    return json.dumps(data)


FIRST = ("gemm", "float16", 0)


@pytest.mark.parametrize(
    ("path", "to", "told"),
    [
        (("copy", "launch_us"), ..., r"\n  copy\.launch_us: missing"),
        (("copy", "launch_us"), -1.5, r"\n  copy\.launch_us: should be greater than .*-1\.5"),
        (("copy", "lunch_us"), 2, r"\n  copy\.lunch_us: unknown field"),
        (("copy", "launch_us"), "2", r"\n  copy\.launch_us: should be a valid number.*'2'"),
        (("schema",), 1, r"\n  schema: should be 6.*1"),
        (("surplus",), 1, r"\n  surplus: unknown field"),
        (("device", "quanta"), 0, r"\n  device\.quanta: should be greater than 0"),
        (("device", "quanta"), 1.5, r"\n  device\.quanta: should be a valid integer"),
        (("constants", "kernel_gap_ns"), ..., r"\n  constants\.kernel_gap_ns: missing"),
        ((*FIRST, "times", "load_us"), 0, r"\n  gemm\.float16\.0\.times\.load_us: "),
        ((*FIRST, "times", "load_us"), float("nan"), "NaN is no number"),
        ((*FIRST, "times", "wave_rounding"), 1.1, r"\.times\.wave_rounding: .*less than or equal"),
        ((*FIRST, "tiles"), [], r"\n  gemm\.float16\.0\.tiles: .*at least 1 item"),
        ((*FIRST, "tiles", 3), [64, 64, 64], r"\n  gemm\.float16\.0\.tiles\.3"),
        ((*FIRST, "alignment"), 3, r"\n  gemm\.float16\.0\.alignment: should be 16, 8"),
        ((*FIRST, "alignment"), 2, r"\n  gemm: float16: alignments should fall"),
        (("gemm", "float32"), ..., r"\n  gemm: float32 is missing"),
        (("gemm", "int8"), [], r"\n  gemm\.int8: should be 'float16'"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(path, to, told):
    with pytest.raises(InvalidProfile, match="(?s)mine.json is not a GPU profile" + ".*" + told):
        ProfileFile.parse(changed(*path, to=to), "mine.json")


def test_every_wrong_field_is_named():
    data = json.loads(changed("copy", "launch_us", to=-1))
    del data["name"]
    with pytest.raises(InvalidProfile) as caught:
        ProfileFile.parse(json.dumps(data), "mine.json")
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("text", ["", "[]", "{", "null", b"\xff\xfe"])
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(InvalidProfile, match="mine"):
        ProfileFile.parse(text, "mine")


def test_a_profile_of_ones_own_is_opened_by_its_path(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(changed("device", "name", to="My GPU"))
    gpu = gs.open_device(f"sim:{path}", quiet=True)
    assert gpu.info.name == "My GPU (simulated)"
    path.write_text("{}")
    with pytest.raises(InvalidProfile, match="missing"):
        gs.open_device(f"sim:{path}", quiet=True)
    with pytest.raises(DeviceUnavailable, match="nowhere"):
        gs.open_device(f"sim:{tmp_path / 'nowhere.json'}", quiet=True)
    assert issubclass(InvalidProfile, GpuscopeError)


def test_the_h100_ships_with_the_error_that_is_stated():
    profile = GpuProfile.load("h100")
    assert shipped() == ["h100", "h200"]
    assert gs.open_device("sim:h100", quiet=True).info.name.startswith("NVIDIA H100")
    rows = json.loads((ROOT / "benchmarks" / "results" / "shapes_h100.json").read_text())["rows"]
    errors = {}
    for row in rows:
        for told, times in ((False, row["us"]), (True, row["told_us"])):
            for sms, us in times.items():
                heard = row["told"][sms] if told else 0
                cost = profile.gemm_cost(*row["shape"], row["dtype"], int(sms), heard)
                error = abs(micros(cost, int(sms)) / us - 1)
                errors.setdefault((row["family"], told), []).append(error)
    assert len(errors) == 6
    assert all(np.quantile(some, 0.9) <= 0.4 for some in errors.values())
    every = np.concatenate(list(errors.values()))
    assert np.median(every) <= 0.08
    text = (ROOT / "docs" / "simulator.md").read_text("utf-8")
    assert f"{100 * np.median(every):.1f} % at the median" in " ".join(text.split())


def test_what_a_library_prefers_says_which_tile_it_takes():
    # Told of few SMs, cuBLAS takes small tiles for large products with odd rows.
    told, not_told = (
        GpuProfile.load("h100").gemm_cost(2768, 2763, 112, "float16", 8, n) for n in (8, 0)
    )
    assert told.alone_ns(8) > 2 * not_told.alone_ns(8)
