"""Requests: what is launched for them, what each token's time is, and what is refused."""

from __future__ import annotations

import copy
import json
import random
import sys
import threading

import numpy as np
import pytest

import gpuscope as gs
from gpuscope import cli
from gpuscope._text import format_value
from gpuscope.analysis.settings import driven_by_requests
from gpuscope.errors import GpuscopeError, InvalidArgument, InvalidExperiment, MissingEvidence
from gpuscope.experiments.execution import perform
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.serving import Serving
from gpuscope.report import html_report, trace_report
from gpuscope.telling.described import describe_workload
from gpuscope.trace import Trace
from gpuscope.workloads.builtin import RECORDINGS
from gpuscope.workloads.requests import RequestsSpec, draw

CHAT = {
    "kind": "requests", "prefill": "prefill", "decode": "decode", "repeats": 12, "batch": 3,
    "arrival": "poisson", "rate_hz": 800, "output_tokens": "uniform 1 9",
    "slo": {"ttft_ms": 2.5, "tbt_ms": 0.13},
}  # fmt: skip
PLAN = {
    "name": "serving",
    "seed": 5,
    "rounds": 2,
    "alone_repeats": 2,
    "partitions": {"p": 64, "d": "rest"},
    "streams": {"p": {"partition": "p"}, "d": {"partition": "d"}},
    "workloads": {
        "prefill": {"kind": "spin", "duration_us": 1000, "stream": "p"},
        "decode": {"kind": "spin", "duration_us": 100, "stream": "d"},
        "chat": CHAT,
    },
}


def plan(**changed):
    made = copy.deepcopy(PLAN)
    made["workloads"]["chat"].update(changed)
    for name in [name for name, value in made["workloads"]["chat"].items() if value is None]:
        del made["workloads"]["chat"][name]
    return made


def run_of(described):
    return gs.run(described, gs.open_device("sim:h200", quiet=True))


@pytest.fixture(scope="module")
def run():
    return run_of(PLAN)


def requests_of(trace):
    """Number → (arrival, times of tokens), ns."""
    rows = trace.where(kind="range", category="chat").spans.to_pylist()
    return {
        int(row["name"].removeprefix("request ")): (
            row["start_ns"],
            [row["start_ns"] + token for token in json.loads(row["payload"])["tokens_ns"]],
            row["end_ns"],
        )
        for row in rows
    }


def test_every_request_is_a_range_from_its_arrival_to_its_last_token(run):
    trace = run["default"]
    found = requests_of(trace)
    assert sorted(found) == list(range(12))
    starts = [found[number][0] for number in range(6)]
    assert starts == sorted(starts)
    low, high = trace.metadata.windows_ns[0]
    for arrival_ns, tokens, end_ns in found.values():
        assert tokens == sorted(tokens)
        assert 1 <= len(tokens) <= 9
        assert tokens[-1] == end_ns
        assert tokens[0] - arrival_ns >= 1_000_000  # its prefill
        assert all(np.diff(tokens) >= 100_000)  # a decode step each
    assert low <= found[0][0] < high < found[6][0]
    row = trace.where(kind="range", category="chat").spans.to_pylist()[0]
    assert (row["range_style"], row["domain"]) == ("start/end", "gpuscope")
    assert trace.metadata.thread_names[str(row["thread"])] == "requests"


def test_calls_are_those_that_requests_need(run):
    trace = run["default"]
    prefills = trace.where(kind="kernel", category="prefill")
    assert len(prefills) == 12
    decodes = trace.where(kind="kernel", category="decode")
    found = requests_of(trace)
    ends = decodes.array("end_ns")
    served = 0
    for end_ns in ends.tolist():
        # A token is seen soon after its step ended, and before the next one could.
        mine = sum(
            0 <= token - end_ns < 60_000 for _, tokens, _ in found.values() for token in tokens[1:]
        )
        assert 1 <= mine <= 3  # the batch
        served += mine
    assert served == sum(len(tokens) - 1 for _, tokens, _ in found.values())


def test_prefill_reads_prompts_in_the_order_of_their_arrival_one_at_a_time(run):
    first = sorted(
        (arrival, tokens[0]) for arrival, tokens, _ in requests_of(run["default"]).values()
    )
    assert [token for _, token in first] == sorted(token for _, token in first)
    assert all(np.diff([token for _, token in first]) >= 1_000_000)


def test_same_seed_same_bytes_another_seed_another_run():
    traces = [run_of(described)["default"] for described in (PLAN, PLAN, {**PLAN, "seed": 6})]
    assert traces[0].spans.equals(traces[1].spans)
    assert traces[0].metadata == traces[1].metadata
    assert requests_of(traces[0]) != requests_of(traces[2])


def test_results_follow_their_definitions(run):
    found = requests_of(run["default"])
    ttft = np.array([tokens[0] - arrival for arrival, tokens, _ in found.values()])
    between = [np.diff(tokens) for _, tokens, _ in found.values()]
    tbt = np.concatenate(between)
    meets = sum(
        first <= 2.5e6 and (not len(steps) or steps.mean() <= 0.13e6)
        for first, steps in zip(ttft, between, strict=True)
    )
    assert 0 < meets < 12
    seconds = sum(
        (max(found[n][2] for n in half) - min(found[n][0] for n in half)) / 1e9
        for half in (range(6), range(6, 12))
    )
    seen = gs.analysis.requests(run["default"])["chat"]
    assert (seen.n, seen.tbt_n) == (12, len(tbt))
    assert seen.ttft_p50_ns == np.median(ttft)
    assert seen.ttft_p90_ns == np.quantile(ttft, 0.9)
    assert seen.tbt_p50_ns == np.median(tbt)
    assert seen.ttft_p99_ns is seen.tbt_p99_ns is None  # too few
    assert seen.requests_per_s == pytest.approx(12 / seconds)
    assert seen.goodput_per_s == pytest.approx(meets / seconds)
    assert seen.met == pytest.approx(meets / 12)
    assert len(seen.rounds) == 2
    assert min(seen.rounds) <= seen.goodput_per_s <= max(seen.rounds)
    (row,) = (row for row in run.comparison.to_pylist() if row["workload"] == "chat")
    assert row["requests_n"] == 12
    assert row["tbt_n"] == len(tbt)
    assert row["ttft_p50_ms"] == pytest.approx(np.median(ttft) / 1e6)
    assert row["tbt_p90_ms"] == pytest.approx(np.quantile(tbt, 0.9) / 1e6)
    assert row["goodput_per_s"] == seen.goodput_per_s
    assert row["kernels"] is row["partition"] is row["latency_n"] is None


def test_an_slo_can_be_given_later(run):
    trace = run["default"]
    assert gs.analysis.requests(trace, {"ttft_ms": 1000})["chat"].met == 1
    assert gs.analysis.requests(trace, {"tbt_ms": 0.01, "ttft_ms": 1000})["chat"].met < 0.5
    with pytest.raises(InvalidArgument, match="slo states 'ttft'; it may state ttft_ms and tbt_ms"):
        gs.analysis.requests(trace, {"ttft": 3})


def test_without_an_slo_there_is_no_goodput():
    run = run_of(plan(slo=None))
    seen = gs.analysis.requests(run["default"])["chat"]
    assert seen.goodput_per_s is seen.met is None
    assert "goodput" not in str(run)
    assert "requests/s" in str(run)


def test_a_trace_without_requests_has_none():
    trace = Trace.from_columns(
        {"id": [1], "kind": ["range"], "name": ["request 3"], "start_ns": [0], "end_ns": [9],
         "payload": ['"tokens_ns"'], "source": ["nvtx"]}
    )  # fmt: skip
    with pytest.raises(MissingEvidence, match="no finished request: run an experiment"):
        gs.analysis.requests(trace)


def test_a_foreign_trace_may_say_anything():
    trace = Trace.from_columns(
        {"id": [1, 2], "kind": ["range"] * 2, "name": ["request 3"] * 2, "category": ["chat"] * 2,
         "start_ns": [5, 5], "end_ns": [5, 5], "source": ["host"] * 2,
         "payload": ['{"tokens_ns":[0]}', '{"tokens_ns":[]}']}
    )  # fmt: skip
    for slo in (3, {"ttft_ms": "soon"}, ["ttft_ms"], None):
        plan = {"kind": "requests", "prefill": ["p"], "slo": slo}
        described = trace.with_metadata(experiment={"workloads": {"chat": plan, "x": {}}})
        seen = gs.analysis.requests(described)["chat"]
        assert (seen.n, seen.ttft_p50_ns, seen.tbt_p50_ns, seen.met) == (1, 0, None, None)
        assert driven_by_requests({"chat": plan}) == {"['p']", "None"}


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".sqlite"])
def test_requests_survive_files(run, suffix, tmp_path):
    trace = run["default"]
    path = gs.export(trace, tmp_path / f"trace{suffix}")
    again = gs.load_trace(path)
    assert gs.analysis.requests(again)["chat"].ttft_p50_ns == pytest.approx(
        gs.analysis.requests(trace)["chat"].ttft_p50_ns, abs=1
    )
    assert len(again.where(kind="range", category="chat")) == 12


def test_recorded_arrivals_are_met_and_begin_anew():
    run = run_of({**plan(arrival=None, rate_hz=None, times_ms=[1, 4], repeats=5), "rounds": 1})
    found = requests_of(run["default"])
    starts = [found[number][0] for number in range(5)]
    assert np.diff(starts).tolist() == [3_000_000, 1_000_000, 3_000_000, 1_000_000]


def test_fixed_arrivals_and_listed_lengths():
    run = run_of({**plan(arrival="fixed", output_tokens=[3, 1], repeats=4), "rounds": 1})
    found = requests_of(run["default"])
    assert np.diff([found[number][0] for number in range(4)]).tolist() == [1_250_000] * 3
    assert [len(found[number][1]) for number in range(4)] == [3, 1, 3, 1]


def test_prompts_of_several_chunks_yield_a_token_after_the_last():
    run = run_of({**plan(prompt_chunks=3, repeats=4), "rounds": 1})
    assert len(run["default"].where(kind="kernel", category="prefill")) == 12
    found = requests_of(run["default"])
    assert all(tokens[0] - arrival >= 3_000_000 for arrival, tokens, _ in found.values())


@pytest.mark.parametrize(
    ("lengths", "mean", "least", "most"),
    [
        (7, 7, 7, 7),
        ([2, 4], 3, 2, 4),
        ("uniform 3 9", 6, 3, 9),
        ("geometric 20", 20, 1, 1000),
        ("geometric 1", 1, 1, 1),
    ],
)
def test_lengths_are_drawn_as_they_are_described(lengths, mean, least, most):
    rng = random.Random(1)  # noqa: S311 - lengths
    drawn = [draw(lengths, number, rng) for number in range(20_000)]
    assert least <= min(drawn)
    assert max(drawn) <= most
    assert np.mean(drawn) == pytest.approx(mean, rel=0.03)


@pytest.mark.parametrize(
    ("told", "kept"),
    [("64", 64), ("12, 80, 33", [12, 80, 33]), ("uniform  1 9", "uniform 1 9")],
)
def test_lengths_can_be_written_as_text(told, kept):
    described = Experiment.from_dict(plan(output_tokens=told))
    assert described.workloads["chat"].output_tokens == kept
    assert Experiment.from_toml(described.to_toml()) == described
    assert Experiment.from_dict(described.to_dict()) == described


REFUSED = [
    ({"output_tokens": 0}, "chat.output_tokens: should be a whole number from 1 on, a list"),
    ({"output_tokens": []}, "chat.output_tokens: should be a whole number"),
    ({"output_tokens": "uniform 9 1"}, "chat.output_tokens: should be a whole number"),
    ({"output_tokens": "zipf 3"}, "chat.output_tokens: should be a whole number"),
    ({"output_tokens": "geometric 0.5"}, "chat.output_tokens: should be a whole number"),
    ({"output_tokens": True}, "chat.output_tokens: should be a whole number"),
    ({"prompt_chunks": 1.5}, "chat.prompt_chunks: should be a whole number"),
    ({"prefill": "load"}, "chat.prefill: 'load' is no workload that launches; allowed: 'prefill'"),
    ({"decode": "chat"}, "chat.decode: 'chat' is no workload that launches"),
    ({"decode": "prefill"}, "chat.decode: 'prefill' serves 'chat' as prefill already"),
    ({"rate_hz": None, "arrival": None}, "say when requests arrive: by arrival = 'poisson'"),
    ({"times_ms": [1, 2]}, "say when requests arrive: by arrival = 'poisson'"),
    ({"rate_hz": None, "arrival": None, "times_ms": [2, 1]}, "should be in ascending order"),
    ({"stream": "p"}, "chat.stream: should be ''"),
    ({"guard": False}, "leave out guard, or state it of 'prefill' and 'decode'"),
    ({"max_queued": 2}, "leave out max_queued"),
    ({"slo": {"ttft": 1}}, "chat.slo"),
    ({"slo": {"ttft_ms": 0}}, "chat.slo.ttft_ms"),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_bad_requests_are_refused(changed, words):
    with pytest.raises(InvalidExperiment) as caught:
        Experiment.from_dict(plan(**changed))
    assert words in str(caught.value)


def test_what_requests_drive_does_not_run_by_itself():
    described = plan()
    described["workloads"]["decode"]["background"] = True
    with pytest.raises(InvalidExperiment, match="requests say when it runs: leave out background"):
        Experiment.from_dict(described)


def test_requests_alone_cannot_be_made_or_interfere():
    spec = Experiment.from_dict(PLAN).workloads["chat"]
    device = gs.open_device("sim:h200", quiet=True)
    with pytest.raises(InvalidExperiment, match="requests launch nothing themselves"):
        spec.make(device, name="chat", seed=0)
    with pytest.raises(GpuscopeError, match="leave 'chat' out"):
        gs.search.measure_interference(device, None, Experiment.from_dict(PLAN).workloads)


def test_progress_counts_requests():
    seen = []
    device = gs.open_device("sim:h200", quiet=True)
    gs.run(PLAN, device, viewer=lambda progress: seen.append((progress.done, progress.total)))
    assert seen[-1] == (12, 12)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_step_serves_who_was_prefilled_when_it_is_decided():
    spec = RequestsSpec(
        kind="requests", prefill="p", decode="d", batch=2, output_tokens=3, arrival="fixed",
        rate_hz=1,
    )  # fmt: skip
    done = []
    rng = random.Random(0)  # noqa: S311 - arrivals
    serving = Serving(spec, range(3), rng, done.append)
    serving.begin(0)
    assert serving.decode.due_ns is None
    assert not serving.decode.over
    for number in range(3):
        serving.prefill.take()
        serving.prefill.ended(number)
    assert serving.prefill.over
    assert serving.prefill.due_ns is None
    for step in range(4):
        assert serving.decode.due_ns == 0
        serving.decode.take()
        serving.decode.ended(10 + step)
    assert [request.number for request in done] == [0, 1, 2]
    assert done[0].tokens_ns == [0, 10, 11]
    assert done[2].tokens_ns == [2, 12, 13]  # it joined when there was room
    assert serving.decode.over
    assert serving.decode.due_ns is None


def test_a_forecast_serves_as_many_requests_and_tokens():
    trace = run_of({**PLAN, "rounds": 1})["default"]
    forecast = gs.what_if(trace, partitions={"p": 96, "d": "rest"})["forecast"]
    for before, after in zip(
        *(gs.analysis.requests(one).workloads for one in (trace, forecast)), strict=True
    ):
        assert (before.workload, before.n, before.tbt_n) == (after.workload, after.n, after.tbt_n)
    decode = forecast.where(kind="handle", category="decode")
    assert (decode.array("end_ns") - decode.array("start_ns")).min() >= 100_000


# -- what people read ----------------------------------------------------------------------
@pytest.fixture(scope="module")
def compared():
    return two_settings({"tbt_ms": 0.1})


def two_settings(slo):
    """Requests on a shared GPU, where prefill delays decode, and on partitions."""
    workloads = {
        "prefill": {"kind": "gemm", "m": 16384, "n": 4096, "k": 4096, "stream": "p"},
        "decode": {"kind": "gemm", "m": 16, "n": 8192, "k": 8192, "stream": "d"},
        "chat": {
            **CHAT,
            "repeats": 120,
            "rate_hz": 300,
            "output_tokens": 20,
            "slo": slo,
        },
    }
    partitioned = {"p": {"partition": "p"}, "d": {"partition": "d"}}
    settings = {
        "shared": {},
        "64 | 68": {"partitions": {"p": 64, "d": "rest"}, "streams": partitioned},
    }
    return run_of(
        {
            **PLAN,
            "rounds": 1,
            "partitions": {},
            "streams": {"p": {}, "d": {}},
            "workloads": workloads,
            "settings": settings,
        }
    )


def test_the_outcome_speaks_of_goodput(compared):
    shared, carved = (
        gs.analysis.requests(compared[name])["chat"] for name in ("shared", "64 | 68")
    )
    assert carved.goodput_per_s > 1.1 * shared.goodput_per_s
    result = gs.compare(compared["shared"], compared["64 | 68"])
    of = next(each for each in result.differences if each.column == "goodput_per_s")
    assert (of.before, of.after) == (shared.goodput_per_s, carved.goodput_per_s)
    assert of.low <= of.change <= of.high
    first, *_ = gs.telling.compared(compared)
    assert first == result.findings[0]
    assert (first.rule, first.subject["workload"]) == ("change.better", "chat")


def test_the_outcome_of_one_setting_and_without_an_slo(run):
    seen = gs.analysis.requests(run["default"])["chat"]
    (served,) = gs.telling.compared(run)
    assert served["goodput"].value == pytest.approx(seen.goodput_per_s)
    served, no_slo = gs.telling.compared(run_of(plan(slo=None)))
    assert (served.rule, no_slo.rule) == ("served", "no-slo")
    assert no_slo.mend.code.startswith("workloads.chat.slo = ")


def test_an_slo_that_is_stated_is_not_asked_for():
    first, *others = gs.telling.compared(two_settings({"ttft_ms": 10**6, "tbt_ms": 10**6}))
    assert first.subject["column"].startswith(("ttft", "tbt")), "all meet the SLO"
    assert "no-slo" not in [finding.rule for finding in others]


def test_the_report_shows_requests(compared, tmp_path):
    page = html_report(compared, tmp_path / "report.html").read_text("utf-8")
    assert "<h2>Requests</h2>" in page
    for words in ("TTFT p50 (ms)", "TBT p90 (ms)", "goodput/s", "chat: goodput/s", "TTFT, TBT"):
        assert words in page
    seen = gs.analysis.requests(compared["64 | 68"])["chat"]
    assert format_value(seen.goodput_per_s) in page


def test_requests_are_described_in_a_line():
    words = describe_workload(Experiment.from_dict(plan()).to_dict()["workloads"]["chat"])
    assert words == (
        "12 requests, poisson 800 Hz, prefilled by prefill, 1 to 9 tokens each by "
        "decode, up to 3 at a time, TTFT ≤ 2.5 ms, TBT ≤ 0.13 ms"
    )


# -- recordings that come along --------------------------------------------------------------
def recorded(name, **fields):
    return {
        "name": "step", "alone_repeats": 0, "streams": {"s": {}},
        "workloads": {
            "step": {"kind": "trace", "path": name, "stream": "s", "repeats": 2, **fields}
        },
    }  # fmt: skip


@pytest.mark.parametrize("name", ["decode_h200", "prefill_h200"])
def test_recordings_of_a_decoder_come_along(name):
    few = f"{name}_24"
    for path in (name, few):
        file = RECORDINGS / f"{path}.parquet"
        trace = gs.load_trace(file)
        assert file.stat().st_size < 100_000
        assert not trace.is_simulated
        assert trace.metadata.driver == "580.159"
        assert trace.metadata.notes[0].startswith("recorded on NVIDIA H200, 2026-11-22: ")
    kernels = gs.load_trace(RECORDINGS / f"{name}.parquet").where(kind="kernel")
    took_ns = int(kernels.array("end_ns").max() - kernels.array("start_ns").min())
    for graph in (False, True):
        (trace,) = gs.experiments.predict(recorded(name, second=few, graph=graph)).traces.values()
        again = trace.where(kind="kernel")
        assert again.texts("name")[: len(kernels)] == kernels.texts("name")
        assert trace.is_simulated
        step = again.where(np.arange(len(again)) < len(kernels))
        span_ns = int(step.array("end_ns").max() - step.array("start_ns").min())
        if graph:  # one launch, whose kernels follow each other as they did
            assert span_ns == pytest.approx(took_ns, rel=0.02)
            assert len(trace.where(kind="api")) <= 4
        else:
            assert span_ns > took_ns


def test_a_step_of_a_recording_is_captured_anew_on_another_partition():
    split = {**recorded("decode_h200", second="decode_h200_24", graph=True)}
    split["settings"] = {
        f"{count}": {"partitions": {"a": count}, "streams": {"s": {"partition": "a"}}}
        for count in (24, 96)
    }
    run = gs.experiments.predict(split)
    slow, fast = (run[name].where(kind="kernel") for name in ("24", "96"))
    assert {*slow.texts("partition")} == {*fast.texts("partition")} == {"a"}
    durations = [int((one.array("end_ns") - one.array("start_ns")).sum()) for one in (slow, fast)]
    assert durations[0] > 1.5 * durations[1]


def summary_of(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpuscope", "summary", str(path), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    return json.loads(capsys.readouterr().out)


def test_a_trace_alone_tells_of_requests(run, tmp_path, monkeypatch, capsys):
    path = gs.trace.save_trace(run["default"], tmp_path / "trace.parquet")
    page = trace_report(gs.load_trace(path), tmp_path / "trace.html").read_text("utf-8")
    assert "<h2>Requests</h2>" in page
    (row,) = summary_of(path, monkeypatch, capsys)["requests"]
    assert (row["workload"], row["requests"]) == ("chat", 12)


def test_other_traces_say_nothing_of_requests(run, tmp_path, monkeypatch, capsys):
    trace = run["default"].where(kind="kernel")
    page = trace_report(trace, tmp_path / "trace.html").read_text("utf-8")
    assert "<h2>Requests</h2>" not in page
    path = gs.trace.save_trace(trace, tmp_path / "trace.parquet")
    assert "requests" not in summary_of(path, monkeypatch, capsys)


# -- on real threads -------------------------------------------------------------------------
NAPS = """
import threading
import time
import gpuscope as gs

threads = {}

@gs.workloads.workload
def naps(ctx, ms):
    threads.setdefault(ctx.stream.name, set()).add(threading.current_thread().name)
    time.sleep(ms / 1e3)
"""


@pytest.fixture
def naps(tmp_path, monkeypatch):
    (tmp_path / "mine_naps.py").write_text(NAPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mine_naps", None)


def on_cpu(**changed):
    described = plan(**{"rate_hz": 2000, "slo": {"ttft_ms": 60_000, "tbt_ms": 60_000}, **changed})
    for name, ms in (("prefill", 2), ("decode", 1)):
        described["workloads"][name] = {
            "kind": "python:mine_naps:naps", "args": {"ms": ms}, "stream": name[0],
        }  # fmt: skip
    return {**described, "partitions": {}, "streams": {"p": {}, "d": {}}, "alone_repeats": 0}


def test_prefill_and_decode_launch_from_threads_of_their_own(naps):
    run = gs.run(on_cpu(), gs.open_device("cpu", quiet=True))
    from mine_naps import threads

    assert not threads["p"] & threads["d"]
    found = requests_of(run["default"])
    assert sorted(found) == list(range(12))
    assert all(tokens == sorted(tokens) for _, tokens, _ in found.values())
    served = sum(len(tokens) - 1 for _, tokens, _ in found.values())
    steps = len(run["default"].where(kind="handle", category="decode"))
    assert served / 3 <= steps <= served
    assert gs.analysis.requests(run["default"])["chat"].met == 1


def test_a_run_that_is_stopped_keeps_the_requests_that_were_served(naps):
    stop = threading.Event()

    def view(progress):
        if progress.done >= 2:
            stop.set()

    device = gs.open_device("cpu", quiet=True)
    run = gs.run(on_cpu(repeats=2000), device, viewer=view, stop=stop)
    assert run.stopped
    seen = gs.analysis.requests(run["default"])["chat"]
    assert 2 <= seen.n < 1000


def test_what_fails_ends_the_run(naps):
    described = on_cpu()
    described["workloads"]["decode"]["args"] = {"ms": "none"}
    with pytest.raises(TypeError):
        gs.run(described, gs.open_device("cpu", quiet=True))


def test_for_another_tool_nothing_is_recorded():
    perform(PLAN, gs.open_device("sim:h200", quiet=True))
