"""Forecasts of recorded traces with changes."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.errors import CapabilityError, InvalidArgument, InvalidPartition, MissingEvidence
from gpuscope.simulator.forecast.reading import read_program
from gpuscope.simulator.profiles.profile import GpuProfile
from gpuscope.trace import Trace
from gpuscope.trace.facts import DeviceFacts, PartitionFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.workloads import RecordedWork

MEASURED = Path(__file__).resolve().parents[2] / "data" / "what_if"
NSIGHT = Path(__file__).resolve().parents[2] / "data" / "nsight"
GREEN = {"green context 2": 32, "green context 3": 100}
LARGE, SMALL = "gemm 4096x4096x4096 float16", "gemm 1024x1024x1024 float16"


def record(split=(64, 68), *, waits=True, steps=4, syncs=True, graph=False):
    """Record two streams: each step a large product in a, then a small one in b."""
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    homes = dict.fromkeys("ab", gpu)
    if split:
        homes = gpu.carve(dict(zip("ab", split, strict=True)))
    streams = {name: homes[name].create_stream(name=name) for name in "ab"}
    large = gs.Gemm(gpu, m=4096, n=4096, k=4096, max_in_flight=64)
    small = gs.Gemm(gpu, m=1024, n=1024, k=1024, max_in_flight=64)
    for handle in (large, small):
        handle.operands()
    with gs.profile(gpu) as recording:
        for _ in range(steps):
            with gs.annotate("step"):
                if graph:
                    with streams["b"].capture() as captured:
                        for _ in range(3):
                            small.execute(stream=streams["b"])
                    captured.launch(stream=streams["b"])
                    continue
                large.execute(stream=streams["a"])
                if waits:
                    streams["b"].wait(streams["a"].record())
                small.execute(stream=streams["b"])
            if syncs:
                streams["b"].synchronize()
        gpu.synchronize()
    for stream in streams.values():
        stream.close()
    return recording.trace


def times(trace, kind="kernel"):
    mine = trace.where(kind=kind)
    order = np.argsort(mine.array("id"))
    return mine.array("start_ns")[order], mine.array("end_ns")[order]


def span_ns(trace):
    starts, ends = times(trace)
    return int(ends.max() - starts.min())


def assert_as_it_was(trace, **known):
    again = gs.what_if(trace, **known)["forecast"]
    for kind in ("kernel", "memcpy", "memset"):
        if trace.kind_counts().get(kind):
            for old, new in zip(times(trace, kind), times(again, kind), strict=True):
                assert np.abs(old - new).max() <= 0.01 * span_ns(trace)
    return again


@pytest.mark.parametrize("split", [(64, 68), (16, 116), None])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("syncs", [True, False])
def test_what_did_not_change_is_as_it_was(split, waits, syncs):
    trace = record(split, waits=waits, syncs=syncs)
    again = assert_as_it_was(trace)
    assert again.is_simulated
    assert again.metadata.forecast.startswith("forecast: all work ends after")
    assert "SIMULATED" in again.provenance
    kinds = {"kernel", "range", "handle", "sync"} & trace.kind_counts().keys()
    assert {kind: again.kind_counts()[kind] for kind in kinds} == {
        kind: trace.kind_counts()[kind] for kind in kinds
    }


@pytest.mark.parametrize("name", ["two_partitions", "graph_nodes"])
def test_what_nsight_systems_recorded_is_as_it_was(name, tmp_path):
    path = tmp_path / f"{name}.sqlite"
    path.write_bytes(lzma.decompress((NSIGHT / f"{name}.sqlite.xz").read_bytes()))
    trace = gs.load_trace(path)
    assert_as_it_was(trace, recorded_sms=GREEN)
    assert_as_it_was(trace)
    wider = gs.what_if(
        trace, recorded_sms=GREEN, partitions={"a": 16, "b": "rest"},
        streams={"15": {"partition": "a"}, "18": {"partition": "b"}},
    )["forecast"]  # fmt: skip
    name = "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"
    before, after = (np.subtract(*times(one.where(name=name))[::-1]) for one in (trace, wider))
    assert 1.5 < np.median(after / before) < 2.5  # from 32 to 16 SMs


@pytest.mark.parametrize("split", [(32, 100), (96, 36), (116, 16)])
def test_another_split_is_what_the_simulator_makes_of_it(split):
    truth = record(split)
    run = gs.what_if(record(), partitions=dict(zip("ab", split, strict=True)))
    assert span_ns(run["forecast"]) == pytest.approx(span_ns(truth), rel=0.05)
    assert span_ns(run["forecast, low"]) <= span_ns(run["forecast"])
    assert span_ns(run["forecast"]) <= span_ns(run["forecast, high"])
    facts = run["forecast"].metadata.partitions
    assert {name: facts[name].sm_count for name in "ab"} == dict(zip("ab", split, strict=True))
    assert set(run["forecast"].where(kind="kernel").texts("partition")) == {"a", "b"}


def test_a_split_of_what_shared_the_whole_gpu():
    run = gs.what_if(
        record(None), partitions={"a": 116, "b": 16},
        streams={"a": {"partition": "a"}, "b": {"partition": "b"}},
    )  # fmt: skip
    assert span_ns(run["forecast"]) == pytest.approx(span_ns(record((116, 16))), rel=0.05)


def test_waits_are_dropped_and_added():
    tied, free = record(syncs=False), record(waits=False, syncs=False)
    dropped = gs.what_if(tied, drop_waits="all")["forecast"]
    assert span_ns(dropped) == pytest.approx(span_ns(free), rel=0.15)  # the host's calls stay
    edges = [edge for edge in tied.edges.to_pylist() if edge["kind"] == "event wait"]
    pairs = [(edge["from"], edge["to"]) for edge in edges]
    one = gs.what_if(tied, drop_waits=pairs)["forecast"]
    assert times(one)[0].tolist() == times(dropped)[0].tolist()
    kernels = [free.where(kind="kernel", category=name).array("id") for name in (LARGE, SMALL)]
    added = gs.what_if(free, add_waits=[tuple(map(int, ids)) for ids in zip(*kernels, strict=True)])
    assert span_ns(added["forecast"]) == pytest.approx(span_ns(tied), rel=0.15)
    kinds = [edge["kind"] for edge in added["forecast"].edges.to_pylist()]
    assert kinds.count("event wait") == 4


def test_a_scaled_kernel_takes_as_many_times_as_long():
    trace = record(syncs=False)
    twice = gs.what_if(trace, scale={"gemm 4096*": 2})["forecast"]
    took = [np.subtract(*times(one.where(category=LARGE))[::-1]).sum() for one in (trace, twice)]
    assert took[1] == pytest.approx(2 * took[0], rel=0.05)
    small = [np.subtract(*times(one.where(category=SMALL))[::-1]).sum() for one in (trace, twice)]
    assert small[1] == pytest.approx(small[0], rel=0.2)  # beside more traffic


def test_a_faster_kernel_takes_a_share_of_its_time_in_as_many_blocks():
    trace = record(syncs=False)
    faster = gs.what_if(trace, faster={"gemm 4096*": 4})["forecast"]
    took = [np.subtract(*times(one.where(category=LARGE))[::-1]).sum() for one in (trace, faster)]
    assert took[1] == pytest.approx(took[0] / 4, rel=0.05)
    for wrong in (0, -1.0, 1e7):
        with pytest.raises(InvalidArgument, match="faster"):
            gs.what_if(trace, faster={"gemm 4096*": wrong})


def test_launches_made_a_graph_cost_one_call():
    trace = record((8, 124), waits=False, syncs=False)
    graphed = gs.what_if(trace, graphs=["step"])["forecast"]
    calls = [np.subtract(*times(one, "range")[::-1]) for one in (trace, graphed)]
    assert calls[1].max() < calls[0].min()


def test_short_launches_made_a_graph_run_as_that_graph_does():
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    small = gs.Gemm(gpu, m=512, n=512, k=512, max_in_flight=64)
    traces = []
    with gpu.create_stream(name="s") as stream:
        small.operands()
        with stream.capture() as graph:
            for _ in range(12):
                small.execute(stream=stream)
        for graphed in (False, True):
            with gs.profile(gpu) as recording:
                for _ in range(3):
                    with gs.annotate("step"):
                        if graphed:
                            graph.launch(stream=stream)
                            continue
                        for _ in range(12):  # each kernel ends before its launch returns
                            small.execute(stream=stream)
                gpu.synchronize()
            traces.append(recording.trace)
    launched, truth = traces
    forecast = gs.what_if(launched, graphs=["step"])["forecast"]
    assert span_ns(launched) > 5 * span_ns(truth)
    assert span_ns(forecast) == pytest.approx(span_ns(truth), rel=0.01)


def test_streams_get_priorities_and_kernels_other_streams():
    trace = record(None, waits=False, syncs=False)
    moved = gs.what_if(trace, move={"gemm 1024*": "a"})["forecast"]
    assert {*moved.where(kind="kernel").texts("intended_partition")} == {None}
    starts, ends = times(moved)
    order = np.argsort(starts)
    assert (starts[order][1:] >= ends[order][:-1]).all()  # one stream, one after the other
    first = gs.what_if(trace, streams={"b": {"priority": -5}})["forecast"]
    assert (
        first.metadata.streams[str(trace.where(category=SMALL).array("stream")[0])].priority == -5
    )
    fresh = gs.what_if(trace, move={"gemm 1024*": "new"})["forecast"]
    assert "new" in {facts.name for facts in fresh.metadata.streams.values()}


def test_a_polling_host_goes_on_when_the_work_is_done():
    experiment = {
        "name": "beside", "alone_repeats": 0, "streams": {"s": {}, "b": {}},
        "workloads": {
            "small": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "s", "repeats": 20},
            "load": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "b",
                     "background": True},
        },
        "settings": {
            "shared": {},
            "carved": {"partitions": {"p": 16, "q": "rest"},
                       "streams": {"s": {"partition": "p"}, "b": {"partition": "q"}}},
        },
    }  # fmt: skip
    run = gs.experiments.predict(experiment)
    assert_as_it_was(run["carved"])
    assert_as_it_was(run["shared"])
    forecast = gs.what_if(
        run["shared"], partitions={"p": 16, "q": "rest"},
        streams={"s": {"partition": "p"}, "b": {"partition": "q"}},
    )["forecast"]  # fmt: skip
    before, after = (gs.analysis.latency(one)["small"].p50_ns for one in (run["shared"], forecast))
    measured = gs.analysis.latency(run["carved"])["small"].p50_ns
    assert measured / 2 <= after < 2 * measured
    assert after < before


@pytest.mark.parametrize("rate_hz", [None, 1000])
def test_a_host_that_waits_less_calls_again_sooner_unless_calls_arrive_at_given_times(rate_hz):
    paced = {"arrival": "fixed", "rate_hz": rate_hz} if rate_hz else {}
    experiment = {
        "name": "again", "alone_repeats": 0, "streams": {"s": {"partition": "p"}},
        "workloads": {"w": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "s",
                            "repeats": 10, **paced}},
        "settings": {str(count): {"partitions": {"p": count}} for count in (24, 120)},
    }  # fmt: skip
    run = gs.experiments.predict(experiment, jitter=False)
    for before, after in (("24", "120"), ("120", "24")):
        forecast = gs.what_if(run[before], partitions={"p": int(after)})["forecast"]
        assert span_ns(forecast) == pytest.approx(span_ns(run[after]), rel=0.05)


def serving(*, load=None, **decode):
    """Requests in two rounds, on the whole GPU and on two splits."""
    split = {"prefill": {"partition": "prefill"}, "decode": {"partition": "decode"}}
    return gs.experiments.predict({
        "name": "serving", "alone_repeats": 0, "rounds": 2,
        "streams": {"prefill": {}, "decode": {}},
        "workloads": {
            "prefill": {"kind": "gemm", "m": 4096, "n": 8192, "k": 8192, "stream": "prefill"},
            "decode": {"kind": "gemm", "m": 16, "n": 16384, "k": 16384, "stream": "decode",
                       **decode},
            **({"load": load} if load else {}),
            "chat": {"kind": "requests", "prefill": "prefill", "decode": "decode", "repeats": 60,
                     "arrival": "poisson", "rate_hz": 400, "output_tokens": "geometric 16",
                     "slo": {"ttft_ms": 8, "tbt_ms": 0.4}},
        },
        "settings": {
            "shared": {},
            **{str(count): {"partitions": {"prefill": "rest", "decode": count}, "streams": split}
               for count in (24, 48, 80)},
        },
    })  # fmt: skip


def test_requests_are_served_anew_in_a_forecast(tmp_path):
    run = serving()
    split = {"prefill": {"partition": "prefill"}, "decode": {"partition": "decode"}}
    for before, after in (("48", "48"), ("48", "80"), ("80", "24"), ("shared", "48")):
        sizes = {"prefill": "rest", "decode": int(after)}
        again = gs.what_if(run[before], partitions=sizes, streams=split)
        there, middle, *band = (
            gs.analysis.requests(one)["chat"] for one in (run[after], *[*again.values()][1:4])
        )
        assert (middle.n, middle.tbt_n) == (there.n, there.tbt_n)
        for name in ("ttft_p50_ns", "tbt_p50_ns", "goodput_per_s"):
            assert getattr(middle, name) == pytest.approx(getattr(there, name), rel=0.1)
            low, high = sorted(getattr(one, name) for one in band)
            assert low <= getattr(middle, name) <= high
        kernels, calls = (len(again["forecast"].where(kind=one)) for one in ("kernel", "handle"))
        assert kernels == calls == pytest.approx(len(run[after].where(kind="handle")), rel=0.05)
        assert "requests served anew" in again["forecast"].metadata.forecast
    more = again["forecast"]
    assert len(more.where(kind="kernel")) > len(run["shared"].where(kind="kernel"))
    assert gs.telling.outcome(again)
    path = gs.export(more, tmp_path / "more.parquet")
    assert gs.analysis.requests(gs.load_trace(path))["chat"].n == 60


def test_a_forecast_says_why_it_has_no_requests():
    run = serving(max_queued=2)
    forecast = gs.what_if(run["48"], partitions={"prefill": "rest", "decode": 64})["forecast"]
    assert "no forecast of requests: their calls wait on others" in forecast.metadata.forecast
    load = {"kind": "spin", "duration_us": 50, "stream": "prefill", "background": True}
    beside = serving(load=load)["48"]
    forecast = gs.what_if(beside, partitions={"prefill": "rest", "decode": 64})["forecast"]
    assert "cannot be told, as beside a background" in forecast.metadata.forecast
    bare = run["48"].with_metadata(experiment=None)
    forecast = gs.what_if(bare, partitions={"prefill": "rest", "decode": 64})["forecast"]
    assert "does not describe their workloads" in forecast.metadata.forecast


def test_a_second_recording_says_what_it_took_there():
    run = gs.what_if(
        record((132 - 24, 24)), second=record((24, 108)), partitions={"a": 24, "b": "rest"}
    )
    truth = record((24, 108))
    took = [
        np.subtract(*times(one.where(category=LARGE))[::-1]) for one in (run["forecast"], truth)
    ]
    assert np.median(took[0]) == pytest.approx(np.median(took[1]), rel=0.001)
    assert "from two recordings" in run["forecast"].metadata.forecast


def test_the_nodes_of_a_graph_are_as_they_were():
    assert_as_it_was(record((64, 68), graph=True))


def test_a_run_of_forecasts_is_a_run_like_any_other(tmp_path):
    run = gs.what_if(record(), partitions={"a": 32, "b": "rest"})
    assert run.comparison.column("setting").to_pylist()[:2] == ["recorded", "recorded"]
    assert run.experiment["what_if"] == {"partitions": {"a": 32, "b": "rest"}}
    path = gs.export(run["forecast"], tmp_path / "forecast.parquet")
    again = gs.load_trace(path)
    assert again.is_simulated
    assert again.metadata.forecast == run["forecast"].metadata.forecast
    assert "(FORECAST)" in gs.figures.timeline(run["forecast"]).layout.title.text
    assert gs.compare(run["recorded"], run).names == ("recorded", "forecast")


def test_a_forecast_is_marked_as_one_with_its_band_wherever_it_is_seen(tmp_path):
    run = gs.what_if(record(), partitions={"a": 32, "b": "rest"})
    first_ns = times(run["recorded"])[0].min()
    ends = [(times(run[name])[1].max() - first_ns) / 1e6 for name in list(run)[1:]]
    line = "forecast: all work ends after {:,.4g} ms (band {:,.4g} to {:,.4g})".format(*ends)
    assert line in " ".join(str(run).split())
    assert gs.telling.outcome(run).startswith(line)
    page = gs.export(run, tmp_path / "report.html").read_text("utf-8")
    assert "FORECAST, not measured" in page
    assert line in page
    for name in ("f.json", "f.sqlite"):
        assert line.encode() in gs.export(run["forecast"], tmp_path / name).read_bytes()
    assert "FORECAST" not in gs.figures.timeline(run["recorded"]).layout.title.text


def test_kernels_and_graphs_without_a_launch_configuration_are_said(tmp_path):
    path = tmp_path / "two_partitions.sqlite"
    path.write_bytes(lzma.decompress((NSIGHT / "two_partitions.sqlite.xz").read_bytes()))
    trace = gs.load_trace(path)
    smaller = {"partitions": {"a": 16, "b": "rest"}, "streams": {
        "15": {"partition": "a"}, "18": {"partition": "b"}}}  # fmt: skip
    with pytest.raises(InvalidArgument, match=r"recorded_sms=\{'green context 2': …\}"):
        gs.what_if(trace, **smaller)
    forecast = gs.what_if(trace, recorded_sms=GREEN, **smaller)["forecast"]
    assert "10 kernels and graphs have no launch configuration" in forecast.metadata.forecast
    graphs = [np.subtract(*times(one, "graph")[::-1]) for one in (trace, forecast)]
    assert (graphs[1] < 0.95 * graphs[0]).all()  # from 100 to 116 SMs


def test_nothing_to_say_of_kernels_whose_launches_are_known():
    assert "launch configuration" not in gs.what_if(record())["forecast"].metadata.forecast


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"partitions": {"a": 13, "b": "rest"}}, InvalidPartition, "13"),
        ({"partitions": {"x": 64}}, InvalidArgument, "is in partition 'a', of which there is none"),
        ({"streams": {"c": {}}}, InvalidArgument, "no streams of the trace are called 'c'"),
        ({"streams": {"a": {"color": 1}}}, InvalidArgument, "takes partition and priority"),
        ({"scale": {"conv": 2}}, InvalidArgument, "no kernel's name or workload matches"),
        ({"scale": {LARGE: -1}}, InvalidArgument, "a factor above 0"),
        ({"recorded_sms": {"c": 8}}, InvalidArgument, r"recorded_sms\['c'\].*\['a', 'b'\]"),
        ({"recorded_sms": {"a": 0}}, InvalidArgument, "1 to 132 SMs"),
        ({"drop_waits": "some"}, InvalidArgument, "'all', or pairs of span ids"),
        ({"streams": {"a": "b"}}, InvalidArgument, r"streams\['a'\] is 'b'; a dict is needed"),
        ({"drop_waits": [(1, 2)]}, InvalidArgument, "is no finished GPU work"),
        ({"graphs": ["stride"]}, InvalidArgument, "no range and no handle called 'stride'"),
    ],
)
def test_bad_changes_say_what_is_there(changes, error, text):
    with pytest.raises(error, match=text):
        gs.what_if(record(), **changes)


def test_waits_in_a_circle_are_refused():
    trace = record(waits=False, syncs=False)
    large, small = (
        trace.where(kind="kernel", category=name).array("id") for name in (LARGE, SMALL)
    )
    pairs = [(int(large[1]), int(small[0])), (int(small[0]), int(large[0]))]
    with pytest.raises(InvalidArgument, match="the waits form a circle"):
        gs.what_if(trace, add_waits=pairs)


def test_a_trace_without_work_and_one_of_another_gpu_are_refused():
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording, gs.annotate("nothing"):
        pass
    with pytest.raises(MissingEvidence, match="no finished GPU work"):
        gs.what_if(recording.trace)
    other = record()
    devices = {"cuda:0": {"index": 0, "name": "A100", "sm_count": 108}}
    with pytest.raises(InvalidArgument, match="A100 with 108 SMs"):
        gs.what_if(Trace(other.spans, other.edges, TraceMetadata(devices=devices)))


# -- kind = "trace" ------------------------------------------------------------------------
def test_a_recorded_workload_runs_in_an_experiment(tmp_path):
    path = gs.export(record((64, 68), steps=2), tmp_path / "step.parquet")
    experiment = {
        "name": "recorded", "alone_repeats": 0, "partitions": {"p": 64, "q": "rest"},
        "streams": {"s": {"partition": "p"}, "t": {"partition": "q"}},
        "workloads": {
            "all": {"kind": "trace", "path": str(path), "stream": "s", "repeats": 3},
            "b": {"kind": "trace", "path": str(path), "second": str(path), "of_stream": "b",
                  "stream": "t", "repeats": 3},
        },
    }  # fmt: skip
    (trace,) = gs.experiments.predict(experiment).traces.values()
    kernels = trace.where(kind="kernel")
    assert len(kernels.where(category="all")) == 12
    mine = kernels.where(category="b")
    assert set(mine.texts("name")) == {"gemm_float16_1024x1024x1024"}
    recorded = record((64, 68)).where(kind="kernel", category=SMALL)
    took = [np.median(np.subtract(*times(one)[::-1])) for one in (mine, recorded)]
    assert took[0] == pytest.approx(took[1], rel=0.3)  # beside the other, not after it


def test_a_recording_runs_on_simulated_gpus_only():
    trace = record()
    with pytest.raises(CapabilityError, match="holds no code"):
        RecordedWork(gs.open_device("cpu", quiet=True), trace)
    gpu = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(MissingEvidence, match="no finished kernel in stream 'c'"):
        RecordedWork(gpu, trace, of_stream="c")


def test_what_pytorch_recorded_is_as_it_was_and_on_fewer_sms_its_wait_lasts_longer(tmp_path):
    events = []
    host_us, gpu_us = 1000.0, 1100.0
    for number in range(20):
        same = {"correlation": number + 1, "External id": number}
        events.append(_complete("cuda_runtime", "cudaLaunchKernel", host_us, 4, same))
        gpu_us = max(gpu_us + 1, host_us + 9)
        launch = {
            "device": 0, "stream": 7, "context": 1, "grid": [4096, 1, 1], "block": [256, 1, 1],
            "registers per thread": 32, "shared memory": 0,
        }  # fmt: skip
        events.append(_complete("kernel", "softmax", gpu_us, 20 + number % 3, same | launch, pid=0))
        gpu_us += 20 + number % 3
        host_us += 12
    last = {"correlation": 99}
    took_us = gpu_us + 6 - host_us
    events.append(_complete("cuda_runtime", "cudaDeviceSynchronize", host_us, took_us, last))
    last["device"] = 0
    events.append(_complete("cuda_sync", "Context Sync", host_us, took_us, last, pid=0))
    path = tmp_path / "pytorch.json"
    gpu = {"id": 0, "name": "NVIDIA H200", "numSms": 132}
    path.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": [gpu], "traceEvents": events})
    )
    trace = gs.load_trace(path)
    assert_as_it_was(trace)
    halved = gs.what_if(trace, partitions={"p": 64}, streams={"7": {"partition": "p"}})["forecast"]
    assert 1.7 < span_ns(halved) / span_ns(trace) < 2.3
    waited = [one.where(kind="sync").array("end_ns")[0] for one in (trace, halved)]
    ended = [times(one)[1].max() for one in (trace, halved)]
    assert waited[1] - ended[1] == waited[0] - ended[0]


def _complete(category, name, start_us, took_us, args, *, pid=1):
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": 7 if pid == 0 else 1,
        "ts": start_us, "dur": took_us, "args": args,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["again.json", "again.sqlite", "again.parquet"])
def test_what_was_exported_and_read_again_is_as_it_was(name, tmp_path):
    assert_as_it_was(gs.load_trace(gs.export(record(), tmp_path / name)))


def made(times_ns, sms, *, rounds=1, overlap_ns=0):
    """Make a recording of kernels that share a name and a launch, each in a stream of its own."""
    columns = {name: [] for name in ("id", "kind", "name", "start_ns", "end_ns", "stream",
                                     "partition", "device", "launch_config", "source")}  # fmt: skip
    now_ns = 0
    config = '{"grid": [4096, 1, 1], "block": [256, 1, 1], "registers": 32}'
    for number, took_ns in enumerate(times_ns * rounds):
        row = (number, "kernel", "k", now_ns, now_ns + took_ns, 1 + number % 2 * (overlap_ns > 0),
               "p", 0, config, "cupti")  # fmt: skip
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        now_ns += took_ns - overlap_ns + 1000 * (not overlap_ns)
    metadata = TraceMetadata(
        time_base="relative",
        devices={"cuda:0": DeviceFacts(index=0, sm_count=132)},
        partitions={"p": PartitionFacts(sm_count=sms)},
    )
    return Trace.from_columns(columns, metadata=metadata)


def test_kernels_of_one_name_are_told_apart_by_their_order():
    small = made([30_000, 90_000], 24)
    run = gs.what_if(made([10_000, 20_000], 128, rounds=3), second=small, partitions={"p": 24})
    starts, ends = times(run["forecast"])
    assert (ends - starts).tolist() == pytest.approx([30_000, 90_000] * 3, abs=64)


def test_what_began_first_had_the_sms_and_what_ran_beside_it_the_rest():
    apart, beside = made([100_000, 100_000], 128), made([100_000] * 2, 128, overlap_ns=90_000)
    profile = GpuProfile.load("h200")
    assert [work.beside for work in read_program(apart, profile, {}).works] == [False, False]
    works = read_program(beside, profile, {}).works
    assert [work.beside for work in works] == [True, True]
    assert [work.alone_ns for work in works] == [100_000, 10_000]
    assert_as_it_was(beside)
    one = gs.what_if(beside, add_waits=[(0, 1)])["forecast"]
    assert span_ns(one) == pytest.approx(span_ns(beside), rel=0.05)


def test_what_filled_a_partition_left_the_other_sms_to_what_had_all():
    rows = [("small", 1, "part", 0, 100_000), ("large", 2, None, 1_000, 90_000)]
    config = json.dumps({"grid": [4096, 1, 1], "block": [256, 1, 1]})
    names = ("name", "stream", "partition", "start_ns", "end_ns")
    columns = {
        name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    fixed = {"kind": "kernel", "device": 0, "launch_config": config, "source": "cupti"}
    columns |= {name: [value] * 2 for name, value in fixed.items()} | {"id": [0, 1]}
    facts = TraceMetadata(
        time_base="relative",
        devices={"cuda:0": DeviceFacts(index=0, name="NVIDIA H200", sm_count=132)},
        partitions={"part": PartitionFacts(sm_count=33)},
    )
    works = read_program(
        Trace.from_columns(columns, metadata=facts), GpuProfile.load("h200"), {}
    ).works
    assert works[1].alone_ns == pytest.approx(0.75 * 89_000)


def test_partitions_without_a_stream_are_refused_and_new_streams_can_be_in_one():
    trace = record(None)
    with pytest.raises(InvalidArgument, match="no stream is in 'x' or 'y': say which are"):
        gs.what_if(trace, partitions={"x": 32, "y": "rest"})
    there = gs.what_if(
        trace, move={SMALL: "side"}, partitions={"x": 32}, streams={"side": {"partition": "x"}}
    )["forecast"]
    assert set(there.where(category=SMALL).where(kind="kernel").texts("partition")) == {"x"}
    number = trace.array("stream", fill=-1).max()
    steps = gs.what_if(
        trace, partitions={"x": 32}, streams={int(number): {"partition": "x"}},
        graphs=["st*"], gpu_profile="sim:h200",
    )  # fmt: skip
    assert "x" in steps["forecast"].where(kind="kernel").texts("partition")


# -- recorded on an H200: three launches a step, the host well ahead ------------------------
@pytest.mark.parametrize("name", ["whole", "64_68", "16_116", "64_68_waits"])
def test_what_an_h200_did_is_as_it_was(name):
    assert_as_it_was(gs.load_trace(MEASURED / f"{name}.parquet"))


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("64_68", "16_116", {"partitions": {"a": 16, "b": 116}}),
        ("16_116", "64_68", {"partitions": {"a": 64, "b": 68}}),
        ("64_68_waits", "64_68", {"drop_waits": "all"}),
        (
            "whole",
            "64_68",
            {
                "partitions": {"a": 64, "b": 68},
                "streams": {"a": {"partition": "a"}, "b": {"partition": "b"}},
            },
        ),
    ],
)
def test_what_an_h200_did_after_a_change_is_forecast(before, after, changes):
    run = gs.what_if(gs.load_trace(MEASURED / f"{before}.parquet"), **changes)
    measured = gs.load_trace(MEASURED / f"{after}.parquet")
    assert span_ns(run["forecast"]) == pytest.approx(span_ns(measured), rel=0.1)
