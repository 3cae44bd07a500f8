"""The parts of every span's time add up to it, to the ns: of any program, and of recordings."""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from parts_program import CHUNKS, SERVING, TOKENS, waits
from program_runner import Runner
from programs import programs
from span_parts import HOST, WORK, calls_of_requests, check_every_span, kinds_told

import gpuscope as gs
from gpuscope._text import duration
from gpuscope.analysis import Part
from gpuscope.errors import MissingEvidence
from gpuscope.trace import Trace
from gpuscope.trace.columns import is_open
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.schema import EDGE_KINDS
from gpuscope.workloads.spin import Spin

DATA = Path(__file__).parents[2] / "data"
RECORDINGS = sorted(
    path
    for folder in (
        DATA / "recordings", DATA / "what_if", Path(gs.__file__).parent / "learn" / "recordings",
        Path(gs.__file__).parent / "workloads" / "recordings",
    )
    for path in folder.glob("*.parquet")
)  # fmt: skip
"""Recordings, most of them of GPUs; `scripts/make_part_recordings.py` writes more."""


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_parts_add_up_on_every_span_of_any_program(program):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording:
        Runner(gpu, program).run()
    trace = recording.trace
    spans, _ = kinds_told(trace, check_every_span(trace))
    for kind, count in trace.kind_counts().items():
        assert spans[kind] == count, "every span has parts"


def test_parts_add_up_on_every_call_of_a_program_that_waits_in_every_way():
    trace = waits(gs.open_device("sim:h200", quiet=True))
    spans, parts = kinds_told(trace, check_every_span(trace))
    ended = trace.where(~is_open(trace)).kind_counts()
    for kind in ("handle", "kernel", "memcpy", "host function", "sync"):
        assert spans[kind] == ended[kind]
    missing = {"launch call", "on the way", "stream order", "event wait", "graph order", "SMs held",
               "copy engine", "legacy default stream", "running", "not looking", "host"}  # fmt: skip
    assert not missing - parts.keys()


@pytest.fixture(scope="module", params=[1, 2])
def served(request):
    """A trace of requests whose prompts are read by one call at a time, or two in flight."""
    experiment = copy.deepcopy(SERVING)
    experiment["workloads"]["prefill"]["max_queued"] = request.param
    (trace,) = gs.run(experiment, "sim:h200").values()
    return trace


def test_parts_of_requests_are_of_the_calls_that_served_them(served):
    told = check_every_span(served)
    _, parts = kinds_told(served, told)
    assert parts["request queue"] > 0
    assert "unexplained" not in parts
    calls = calls_of_requests(served, told)
    assert len(calls) == 40
    for number, made in enumerate(calls):
        assert made["prefill"] == CHUNKS[number % len(CHUNKS)]
        assert made["decode"] == TOKENS[number % len(TOKENS)] - 1


def test_parts_of_requests_of_a_forecast(served):
    forecast = gs.what_if(served, partitions={"p": 96, "d": "rest"})["forecast"]
    told = check_every_span(forecast)
    names = zip(forecast.array("id").tolist(), forecast.texts("name"), strict=True)
    requests = [told[span] for span, name in names if name.startswith("request ")]
    queued = served.metadata.experiment["workloads"]["prefill"]["max_queued"]
    assert len(requests) == (40 if queued == 1 else 0), "two in flight are not served anew"
    assert all(part.kind != "unexplained" for parts in requests for part in parts)


def test_parts_of_collectives_wait_for_the_rank_that_began_last():
    run = gs.run(
        {
            "name": "reduce", "devices": ["cuda:0", "cuda:1"], "alone_repeats": 0,
            "streams": {"c": {}, "g": {}},
            "workloads": {
                "reduce": {"kind": "all_reduce", "nbytes": "1 MiB", "stream": "c", "repeats": 30},
                "gemm": {"kind": "gemm", "m": 1024, "n": 1024, "k": 1024, "stream": "g",
                         "background": True, "max_queued": 4},
            },
        },
        "sim:h200",
    )  # fmt: skip
    (trace,) = run.values()
    told = check_every_span(trace)
    kinds = dict(zip(trace.array("id").tolist(), trace.texts("kind"), strict=True))
    waited = Counter(
        kinds[span] for span, parts in told.items() for part in parts if part.kind == "collective"
    )
    assert waited["kernel"] > 0
    assert waited["handle"] > 0


def test_the_launch_call_of_a_slow_call_is_a_part_of_it():
    gpu = gs.open_device("sim:h200", jitter=False, quiet=True)
    load = Spin(gpu, duration_ns=150_000, blocks=132, name="load")
    small = Spin(gpu, duration_ns=58_900, name="small")
    with (
        gpu.create_stream() as one, gpu.create_stream() as two, gs.profile(gpu) as recording,
    ):  # fmt: skip
        load.execute(stream=one)
        small.execute(stream=two)
        small.wait()
    trace = recording.trace
    call = gs.telling.find(trace, "small", kind="handle")
    kernel = gs.telling.find(trace, "small", kind="kernel")
    held = gs.telling.find(trace, "load", kind="kernel")
    found = gs.telling.explain(trace, call)
    assert [(part.kind, part.span) for part in found.parts if part.kind != "not looking"] == [
        ("launch call", trace.where(kind="api", category="small").array("id").tolist()[0]),
        ("on the way", found.parts[0].span), ("SMs held", held), ("running", kernel),
    ]  # fmt: skip
    (row,) = trace.where(kind="handle", category="small").spans.to_pylist()
    (work,) = trace.where(kind="kernel", category="small").spans.to_pylist()
    assert found.parts[0].duration_ns == work["queued_ns"] - row["start_ns"] > 0
    assert sum(part.duration_ns for part in found.parts) == row["end_ns"] - row["start_ns"]
    sizes = sorted((part.duration_ns for part in found.parts), reverse=True)
    told = [duration(size) for size in sizes]
    said = str(found)
    places = [said.index(f" {size} ", 40) for size in told]
    assert places == sorted(places), "the largest first"


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_parts_add_up_on_every_span_of_recordings(path):
    trace = gs.load_trace(path)
    told = check_every_span(trace)
    spans, _ = kinds_told(trace, told)
    assert spans["kernel"] > 0


def test_there_are_recordings_of_a_gpu():
    of_this = [path for path in RECORDINGS if path.parent.name == "recordings"]
    assert len(of_this) >= 3
    assert not any(gs.load_trace(path).is_simulated for path in of_this)


def test_a_part_of_a_call_that_waited_for_its_own_work_is_of_that_work():
    rows = [
        {"kind": "handle", "name": "h", "start_ns": 100, "end_ns": 2_000},
        {"kind": "api", "name": "a", "start_ns": 110, "end_ns": 150, "parent": 0},
        {"kind": "api", "name": "b", "start_ns": 150, "end_ns": 200, "parent": 0},
        {"kind": "kernel", "name": "k", "start_ns": 300, "end_ns": 900, "queued_ns": 150,
         "stream": 1, "device": 0},
        {"kind": "kernel", "name": "l", "start_ns": 910, "end_ns": 1_900, "queued_ns": 200,
         "stream": 1, "device": 0},
    ]  # fmt: skip
    trace = build(rows, {"from": [1, 2], "to": [3, 4], "kind": ["launch", "launch"]})
    assert gs.analysis.parts(trace, 0) == (
        Part("launch call", 100, 200, 2), Part("on the way", 200, 300, 1),
        Part("running", 300, 900, 3), Part("on the way", 900, 910, 3),
        Part("running", 910, 1_900, 4), Part("not looking", 1_900, 2_000),
    )  # fmt: skip


def build(rows, edges=None, **metadata):
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    columns |= {"id": list(range(len(rows))), "source": ["host"] * len(rows)}
    return Trace.from_columns(columns, edges, TraceMetadata(**metadata))


def test_spans_that_are_not_there_and_rows_that_contradict_themselves():
    request = {"kind": "range", "name": "request 0", "category": "chat", "start_ns": 100,
               "end_ns": 500, "payload": '{"tokens_ns":[300,50,9000]}'}  # fmt: skip
    calls = [
        {"kind": "handle", "name": name, "category": name, "start_ns": 90, "end_ns": 200,
         "parent": parent}
        for name, parent in (("p", 2), ("d", 1))
    ]  # fmt: skip
    served = {"workloads": {"chat": {"prefill": "p", "decode": "d"}}}
    trace = build([request, *calls], experiment=served)
    for span in (-1, 3):
        with pytest.raises(MissingEvidence, match="no row"):
            gs.analysis.parts(trace, span)
    with pytest.raises(MissingEvidence, match="launch ids"):
        gs.analysis.parts(trace, 0)
    with pytest.raises(MissingEvidence, match="which workloads served"):
        gs.analysis.parts(trace.with_metadata(experiment={"workloads": {}}), 0)
    parts = gs.analysis.parts(build([request], experiment=served), 0)
    assert parts == (Part("unexplained", 100, 150), Part("unexplained", 150, 400),
                     Part("unexplained", 400, 500))  # fmt: skip


@pytest.mark.parametrize("seed", range(300))
def test_parts_add_up_in_traces_that_contradict_themselves(seed):
    trace = drawn_by_chance(random.Random(seed))  # noqa: S311 - a trace, no secret
    for span in check_every_span(trace):
        gs.telling.explain(trace, span)._repr_html_()


def drawn_by_chance(draw):
    """Return a trace whose kinds, times, edges, parents and payloads have nothing in common."""
    count = draw.randint(1, 14)
    starts = [draw.randint(0, 30) for _ in range(count)]

    def some(values, share):
        return [draw.choice(values) if draw.random() < share else None for _ in range(count)]

    columns = {
        "id": draw.sample(range(40), count),
        "kind": [draw.choice((*WORK, *HOST, "block")) for _ in range(count)],
        "name": ["k"] * count,
        "source": [draw.choice(("simulated", "cupti", "events", "host")) for _ in range(count)],
        "start_ns": starts,
        "end_ns": [
            start + draw.randint(0, 15) if draw.random() < 0.85 else None for start in starts
        ],
        "queued_ns": some(range(40), 0.7),
        "stream": some(range(3), 0.7),
        "device": some([0], 0.8),
        "graph": some([1], 0.3),
        "correlation": some(range(3), 0.7),
        "external_correlation": some(range(3), 0.4),
        "parent": some(range(40), 0.5),
        "thread": some((1, 2), 0.7),
        "partition": some("xy", 0.5),
        "copy_kind": some(["HtoD"], 0.4),
        "category": some(["p", "d", "chat"], 0.6),
        "payload": some(['{"tokens_ns":[5,9]}', '{"tokens_ns":[9,1,7]}', "{}", "x"], 0.4),
    }
    ids = [*columns["id"], 99]
    edges = range(draw.randint(1, 20))
    ends = {name: [draw.choice(ids) for _ in edges] for name in ("from", "to")}
    ends["kind"] = [draw.choice(EDGE_KINDS) for _ in edges]
    known = {"k": {"index": 0, "launch_latency_ns": 2, "kernel_gap_ns": 1}}
    streams = {
        "0": {"name": "d", "legacy_default": True}, "1": {"name": "s", "blocking": True},
        "2": {"name": "t", "blocking": True, "per_thread": True},
    }  # fmt: skip
    metadata = TraceMetadata(
        simulated=draw.random() < 0.5, complete=False, notes=("drawn",), streams=streams,
        devices=known if draw.random() < 0.6 else {},
        partitions={"x": {"sm_ids": [0, 1]}, "y": {"sm_ids": [1, 2]}},
        experiment={"workloads": {"chat": {"prefill": "p", "decode": "d"}}},
    )  # fmt: skip
    return Trace.from_columns(columns, ends, metadata)
