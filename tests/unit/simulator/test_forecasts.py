"""What forecasts give of recordings: what did not change, and what is known of kernels."""

from __future__ import annotations

import contextlib
import tomllib
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.simulator.forecast.reading import read_program
from gpuscope.simulator.models.known import Copied, Product, known_of
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.workloads import RecordedWork
from gpuscope.workloads.builtin import RECORDINGS
from gpuscope.workloads.copy import Copy
from gpuscope.workloads.softmax import Softmax

ROOT = Path(__file__).resolve().parents[3]
MEASURED = ROOT / "tests" / "data" / "what_if"
SPLIT = {"prefill": {"partition": "prefill"}, "decode": {"partition": "decode"}}


def recorded(make, sms=None, repeats=5):
    """Record calls of a handle on so many SMs, on the whole GPU if not given."""
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    parts = gpu.carve({"p": sms}) if sms else {"p": gpu}
    handle = make(gpu)
    with parts["p"].create_stream(name="s") as stream:
        handle.execute(stream=stream)
        stream.synchronize()
        with gs.profile(gpu) as recording:
            for _ in range(repeats):
                handle.execute(stream=stream)
                stream.synchronize()
    return recording.trace


def median_ns(trace):
    kernels = trace.where(kind="kernel")
    return float(np.median(kernels.array("end_ns") - kernels.array("start_ns")))


def test_rates_are_of_the_recorded_windows():
    experiment = {
        "name": "rounds", "alone_repeats": 0, "rounds": 3,
        "partitions": {"small": 16, "load": "rest"},
        "streams": {"a": {"partition": "small"}, "b": {"partition": "load"}},
        "workloads": {
            "small": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "a", "repeats": 30},
            "load": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "b",
                     "repeats": 12, "max_queued": 3},
        },
    }  # fmt: skip
    (trace,) = gs.experiments.predict(experiment).traces.values()
    forecast = gs.what_if(trace)["forecast"]
    assert len(forecast.metadata.windows_ns) == len(trace.metadata.windows_ns) == 3
    was, now = (gs.analysis.settings_table({"": one}).to_pylist() for one in (trace, forecast))
    for before, after in zip(was, now, strict=True):
        for name in ("calls_per_s", "tflop_per_s", "latency_p50_us", "kernel_median_us"):
            assert after[name] == pytest.approx(before[name], rel=0.01)


# -- what is known of kernels --------------------------------------------------------------
def test_kernels_of_recordings_keep_their_launch_configuration():
    experiment = tomllib.loads((ROOT / "examples" / "split.toml").read_text("utf-8"))
    experiment["workloads"]["chat"]["repeats"] = 3
    trace = gs.experiments.predict(experiment)["split"]
    kernels = trace.where(kind="kernel")
    assert set(kernels.texts("launch_config")) == {
        config
        for name in ("prefill_h200", "decode_h200")
        for config in gs.load_trace(RECORDINGS / f"{name}.parquet").texts("launch_config")
    }
    assert "launch configuration" not in gs.what_if(trace)["forecast"].metadata.forecast


@pytest.mark.no_cover
def test_another_split_of_recorded_models_is_forecast():
    experiment = tomllib.loads((ROOT / "examples" / "split.toml").read_text("utf-8"))
    experiment["workloads"]["chat"]["repeats"] = 30
    experiment["settings"]["64"] = {
        "partitions": {"prefill": "rest", "decode": 64}, "streams": SPLIT,
    }  # fmt: skip
    run = gs.experiments.predict(experiment)
    few = gs.load_trace(RECORDINGS / "prefill_h200_24.parquet")
    for before, decode, after in (("split", 64, "64"), ("shared", 48, "split")):
        forecasts = gs.what_if(
            run[before], partitions={"prefill": "rest", "decode": decode}, streams=SPLIT, second=few
        )
        truth, middle, *ends = (
            gs.analysis.requests(trace)["chat"].goodput_per_s
            for trace in (run[after], *[*forecasts.values()][1:])
        )
        assert middle == pytest.approx(truth, rel=0.05)
        assert min(ends) <= truth <= max(ends)


def test_a_recording_without_launch_configurations_does_not_get_any():
    trace = recorded(lambda gpu: gs.Gemm(gpu, m=512, n=512, k=512))
    again = recorded(lambda gpu: RecordedWork(gpu, trace))
    assert set(again.where(kind="kernel").texts("launch_config")) == {None}
    assert set(again.where(kind="kernel").array("flop_count").tolist()) == {2 * 512**3}


@pytest.mark.parametrize("after", [16, 48])
def test_a_copy_is_known_whatever_it_is_called(after):
    def make(gpu):
        return Copy(gpu, nbytes=128 << 20, name="load")

    forecast = gs.what_if(recorded(make, 96), partitions={"p": after})["forecast"]
    assert median_ns(forecast) == pytest.approx(median_ns(recorded(make, after)), rel=0.05)


@pytest.mark.parametrize(("before", "after"), [(None, 16), (96, 24), (24, 120)])
def test_a_softmax_is_known_whatever_it_is_called(before, after):
    def make(gpu):
        return Softmax(gpu, rows=2048, columns=4096, name="attention")

    changes = {"partitions": {"p": after}, "streams": {"s": {"partition": "p"}}}
    forecast = gs.what_if(recorded(make, before), **changes)["forecast"]
    assert median_ns(forecast) == pytest.approx(median_ns(recorded(make, after)), rel=0.01)


def test_a_second_recording_counts_for_copies_too():
    def make(gpu):
        return Copy(gpu, nbytes=8 << 20)

    run = gs.what_if(recorded(make, 96), second=recorded(make, 16), partitions={"p": 16})
    assert median_ns(run["forecast"]) == pytest.approx(median_ns(recorded(make, 16)), rel=0.001)
    assert "from two recordings" in run["forecast"].metadata.forecast


@pytest.mark.parametrize("target", [None, "auto", 24])
@pytest.mark.parametrize("before", [None, 64])
def test_products_are_told_in_a_forecast_what_they_were_told(target, before):
    def make(gpu):
        return gs.Gemm(gpu, m=512, n=512, k=512, sm_count_target=target, name="mine")

    changes = {"partitions": {"p": 16}, "streams": {"s": {"partition": "p"}}}
    forecast = gs.what_if(recorded(make, before), **changes)["forecast"]
    assert median_ns(forecast) == pytest.approx(median_ns(recorded(make, 16)), rel=0.01)


def test_what_a_kernel_computes_is_told_by_its_row_not_by_its_workload():
    assert known_of("copy_kernel", nbytes=2048) == Copied(1024)
    assert known_of("copy_kernel") is None
    assert known_of("gemm_float16_64x32x16") == Product(64, 32, 16, "float16")
    assert known_of("nvjet", "gemm_float32_64x32x16", flop_count=65536, target=0) == Product(
        64, 32, 16, "float32", 0
    )
    # the second kernel of a split product, and kernels that only have such a name
    assert known_of("splitk", "gemm_float32_64x32x16") is None
    assert known_of("gemm_float16_64x32x16", flop_count=7) is None
    assert known_of("gemm_float16_64x32x16_mine") is None
    measured = gs.load_trace(MEASURED / "64_68.parquet")
    works = read_program(measured, GpuProfile.load("h200"), {}).works
    products = [work.kernel.known for work in works if work.kernel and work.row["flop_count"]]
    assert Product(1024, 4096, 512, "float16") in products
    assert None not in products
    misnamed = recorded(lambda gpu: Copy(gpu, nbytes=4096, name="gemm 64x64x64 float16"))
    works = read_program(misnamed, GpuProfile.load("h200"), {}).works
    assert {work.kernel.known for work in works} == {Copied(4096)}


def test_latencies_of_calls_that_are_waited_for_are_those_of_the_split():
    """The host sees a call done when its wait returns, not as late after the kernel as it was."""

    def program(split):
        gpu = gs.open_device("sim:h200", quiet=True)
        small = gs.Gemm(gpu, m=64, n=4096, k=4096, name="small")
        large = gs.Gemm(gpu, m=4096, n=4096, k=4096, name="large")
        with contextlib.ExitStack() as stack:
            parts = split and stack.enter_context(gpu.carve({"small": split, "large": "rest"}))
            first, second = (
                (parts[name] if parts else gpu).create_stream(name=f"of {name}")
                for name in ("small", "large")
            )
            with gs.profile(gpu) as recording:
                for _ in range(60):
                    large.execute(stream=second)
                    small.execute(stream=first)
                    small.wait()
                    large.wait()
        return recording.trace

    recorded, truth = program(None), program(32)
    streams = {f"of {name}": {"partition": name} for name in ("small", "large")}
    forecast = gs.what_if(recorded, partitions={"small": 32, "large": "rest"}, streams=streams)
    for name in ("small", "large"):
        told, right = (
            np.median(calls.array("end_ns") - calls.array("start_ns"))
            for calls in (
                trace.where(kind="handle", category=name) for trace in (forecast["forecast"], truth)
            )
        )
        assert told == pytest.approx(right, rel=0.1), name
    launched = forecast["forecast"].where(kind="handle")
    returned = {}
    for row in forecast["forecast"].where(kind="api").spans.to_pylist():
        returned[row["parent"]] = max(returned.get(row["parent"], 0), row["end_ns"])
    for row in launched.spans.to_pylist():
        assert row["end_ns"] >= returned.get(row["id"], 0), "seen done before its launch returned"
