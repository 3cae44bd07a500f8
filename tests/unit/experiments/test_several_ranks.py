"""Experiments on several devices: a process for each, one result, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gpuscope as gs
from gpuscope._text import duration
from gpuscope.cli.commands import app
from gpuscope.errors import (
    AlignmentError,
    CapabilityError,
    GpuscopeError,
    InvalidExperiment,
    InvalidPartition,
    WorkerLost,
)
from gpuscope.report import html_report
from gpuscope.telling.described import describe_settings
from gpuscope.trace.merging import split

TWO = {
    "name": "two", "devices": ["sim:h200", "sim:h200"], "alone_repeats": 3,
    "partitions": {"comm": 16, "rest": "rest"},
    "streams": {"comm": {"partition": "comm"}, "gemm": {"partition": "rest"}},
    "workloads": {
        "sum": {"kind": "all_reduce", "nbytes": "8 MiB", "stream": "comm", "repeats": 6},
        "gemm": {
            "kind": "gemm", "m": 2048, "n": 2048, "k": 2048, "stream": "gemm",
            "background": True, "max_queued": 4,
        },
    },
}  # fmt: skip
WITH_PYTHON = {
    **TWO, "alone_repeats": 0, "streams": {"comm": {}},
    "partitions": {}, "workloads": {"sum": TWO["workloads"]["sum"]},
}  # fmt: skip


def with_python(kind, **args):
    odd = {"kind": f"python:tests.rank_workloads:{kind}", "stream": "comm", "args": args,
           "repeats": 2}  # fmt: skip
    return {**WITH_PYTHON, "workloads": {**WITH_PYTHON["workloads"], "odd": odd}}


def children() -> set[int]:
    """Return the processes that this one has started and not buried."""
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        found |= {int(number) for number in path.read_text("ascii").split()}
    return found


@pytest.fixture(scope="module")
def run():
    return gs.run(TWO)


def test_the_traces_are_merged_and_each_rank_did_the_same(run):
    trace = run["default"]
    assert [rank.rank for rank in trace.metadata.ranks] == [0, 1]
    assert trace.metadata.complete
    found = gs.analysis.collectives(trace)["sum"]
    assert (found.n, found.ranks, found.sm_count, found.nbytes) == (6, 2, 16, 8 << 20)
    assert found.time_ns > 10_000
    waits = [edge for edge in trace.edges.to_pylist() if edge["kind"] == "collective"]
    assert len(waits) == 6


def test_all_ranks_of_a_collective_end_at_the_same_virtual_time(run):
    kernels = run["default"].where(kind="kernel").where(category="sum").spans.to_pylist()
    ends: dict[int, int] = {}
    for row in kernels:
        ends[row["end_ns"]] = ends.get(row["end_ns"], 0) + 1
    assert set(ends.values()) == {2}


def test_the_comparison_names_ranks_and_has_the_collective(run):
    rows = run.comparison.to_pylist()
    assert [(row["rank"], row["workload"]) for row in rows] == [
        (0, "sum"), (0, "gemm"), (1, "sum"), (1, "gemm")
    ]  # fmt: skip
    of_sum = [row for row in rows if row["workload"] == "sum"]
    assert of_sum[0]["collective_us"] == of_sum[1]["collective_us"] > 10
    assert of_sum[0]["collective_us"] <= min(row["kernel_median_us"] for row in of_sum)
    assert all(row["share_of_alone_on_whole_gpu"] > 0 for row in rows)
    assert "bus GB/s" in run._repr_html_()


def test_the_report_says_on_which_sms_each_workload_ran(run):
    (words,) = describe_settings(run).values()
    assert words == "sum has 16 SMs, gemm has the remaining 116 SMs"


def test_one_setting_is_not_compared_with_itself_and_the_slowest_rank_counts(run, tmp_path):
    rows = [row for row in run.comparison.to_pylist() if row["workload"] == "sum"]
    slowest = duration(1e3 * max(row["latency_p50_us"] for row in rows))
    assert len({row["latency_p50_us"] for row in rows}) == 2
    assert gs.telling.outcome(run).startswith(f"Simulated: p50 of sum is {slowest} on 16 SMs")
    page = html_report(run, tmp_path / "two.html").read_text("utf-8")
    assert f"<b>{slowest}</b>" in page


def test_a_sweep_draws_the_slowest_rank():
    result = gs.search.sweep(TWO, {"partitions.comm": [8, 16]})
    rows = result.rows()
    figure = gs.figures.swept(result, "sum")
    slowest = {
        "sum: latency p50 (µs)": ("sum", "latency_p50_us", max, 1),
        "sum: collective (µs)": ("sum", "collective_us", max, 1),
        "sum: bus GB/s": ("sum", "bus_gb_per_s", min, 1),
        "gemm keeps of its rate alone (%)": ("gemm", "share_of_alone_on_whole_gpu", min, 100),
    }
    for at, title in enumerate(figure.layout.annotations, 1):
        workload, column, worst, scale = slowest[title.text[3:-4]]
        drawn = [mark for mark in figure.data if mark.yaxis == f"y{at if at > 1 else ''}"]
        pairs = {x: y for mark in drawn for x, y in zip(mark.x, mark.y, strict=True)}
        assert pairs == {
            sms: scale
            * worst(
                row[column]
                for row in rows
                if row["workload"] == workload and row["partitions.comm"] == int(sms)
            )
            for sms in ("8", "16")
        }
    assert "of several ranks: the slowest" in figure.layout.title.subtitle.text


def test_the_same_experiment_gives_the_same_run(run):
    again = gs.run(TWO)
    assert again.comparison.equals(run.comparison)
    assert again["default"].metadata.clock == run["default"].metadata.clock


def test_ranks_of_two_simulations_are_not_on_one_clock(run):
    other = gs.run({**TWO, "alone_repeats": 0, "seed": 1})["default"]
    (first, _), (_, second) = split(run["default"]), split(other)
    assert first.metadata.clock != second.metadata.clock
    with pytest.raises(AlignmentError, match="contradict each other"):
        gs.merge([first, second])


def test_four_ranks():
    found = gs.run({**TWO, "alone_repeats": 0, "devices": ["sim:h200"] * 4})
    sums = gs.analysis.collectives(found["default"])["sum"]
    assert (sums.ranks, sums.n) == (4, 6)
    assert sums.bus_gb_per_s == pytest.approx(1.5 * sums.algorithm_gb_per_s)


def test_predict_and_a_simulated_device_stand_in_for_gpus():
    on_gpus = {**WITH_PYTHON, "devices": ["cuda:0", "cuda:1"]}
    for found in (gs.experiments.predict(on_gpus, jitter=False), gs.run(on_gpus, "sim:h100")):
        assert len(found["default"].metadata.ranks) == 2
        assert found["default"].metadata.simulated


def test_a_rank_that_dies_ends_the_others():
    before = children()
    with pytest.raises(WorkerLost, match=r"rank 1 of 2 \(sim:h200\): its process died"):
        gs.run(with_python("dies", rank=1))
    assert children() <= before


def test_what_a_rank_raises_is_told_with_its_rank():
    before = children()
    with pytest.raises(GpuscopeError, match=r"rank 1 of 2 \(sim:h200\): .*no such luck"):
        gs.run(with_python("fails", rank=1))
    assert children() <= before


def test_what_all_ranks_raise_is_told_once():
    with pytest.raises(InvalidPartition) as raised:
        gs.run({**TWO, "partitions": {"comm": 17, "rest": "rest"}})
    assert "rank" not in str(raised.value)


def test_stop_ends_all_ranks_before_the_next_round():
    stop = threading.Event()
    found = gs.run({**WITH_PYTHON, "rounds": 3}, stop=stop, viewer=lambda _: stop.set())
    assert found.stopped
    assert gs.analysis.collectives(found["default"])["sum"].n < 6


@pytest.mark.parametrize("background", [True, False])
def test_stop_ends_the_only_round_of_collectives_with_the_same_calls_on_all_ranks(background):
    stop = threading.Event()
    many = {**TWO["workloads"]["sum"], "repeats": 20_000}
    gemm = {**TWO["workloads"]["gemm"], "background": background, "repeats": 20_000}
    plan = {**TWO, "workloads": {"sum": many, "gemm": gemm}}
    found = gs.run(plan, stop=stop, viewer=lambda _: stop.set())
    assert found.stopped
    calls = [len(part.where(kind="kernel", category="sum")) for part in split(found["default"])]
    assert calls[0] == calls[1]
    assert 0 < calls[0] < 20_000


def test_stop_ends_the_only_round_where_no_rank_waits_for_another():
    stop = threading.Event()
    gemm = {**TWO["workloads"]["gemm"], "background": False, "repeats": 50_000}
    plan = {**TWO, "workloads": {"gemm": gemm}, "alone_repeats": 0}
    found = gs.run(plan, stop=stop, viewer=lambda _: stop.set())
    assert found.stopped
    assert 0 < len(found["default"].where(kind="kernel")) < 100_000


def test_ranks_end_when_who_started_them_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\nimport gpuscope as gs\ngs.run(json.loads(sys.argv[1]))\n", "utf-8"
    )
    log = tmp_path / "log"
    with log.open("wb") as told:
        parent = subprocess.Popen(
            [sys.executable, program, json.dumps(with_python("sleeps"))], stderr=told,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
    until_s = time.monotonic() + 60
    while log.read_bytes().count(b"asleep") < 2:
        assert time.monotonic() < until_s, log.read_text("utf-8", "replace")
        time.sleep(0.05)
    ranks = [
        int(number)
        for path in Path(f"/proc/{parent.pid}/task").glob("*/children")
        for number in path.read_text("ascii").split()
    ]
    assert len(ranks) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(_runs(rank) for rank in ranks):
        assert time.monotonic() < until_s, "a rank outlived who started it"
        time.sleep(0.05)


def _runs(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text("ascii")
    except OSError:
        return False


@pytest.mark.parametrize("devices", [[], ["sim:h200"]])
def test_a_collective_of_one_device_is_refused(devices):
    with pytest.raises(CapabilityError, match=r"two ranks or more.*devices = \['cuda:0'"):
        gs.run({**WITH_PYTHON, "devices": devices}, None if devices else "sim:h200")


def test_a_collective_in_the_background_is_refused():
    workloads = {**TWO["workloads"], "sum": {**TWO["workloads"]["sum"], "background": True}}
    with pytest.raises(InvalidExperiment, match=r"workloads.sum.background: .*number of calls"):
        gs.experiments.Experiment.from_dict({**TWO, "workloads": workloads})


@pytest.mark.parametrize("place", ["comm", None])
def test_two_collectives_that_may_share_sms_are_refused(place):
    streams = {**TWO["streams"], "other": {"partition": place}}
    again = {**TWO["workloads"]["sum"], "stream": "other"}
    described = {**TWO, "streams": streams, "workloads": {**TWO["workloads"], "again": again}}
    with pytest.raises(InvalidExperiment, match=r"workloads.again.stream: 'sum' is a collective"):
        gs.experiments.Experiment.from_dict(described)


def test_collectives_on_partitions_of_their_own_do_not_wait_for_each_other():
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    shared = {**TWO["workloads"]["sum"], "nbytes": "64 KiB"}
    described = {
        **TWO, "alone_repeats": 0, "partitions": dict.fromkeys(kinds, 16),
        "streams": {kind: {"partition": kind} for kind in kinds},
        "workloads": {kind: {**shared, "kind": kind, "stream": kind} for kind in kinds},
    }  # fmt: skip
    found = gs.analysis.collectives(gs.run(described)["default"])
    assert {(one.group, one.n) for one in found.groups} == {(kind, 6) for kind in kinds}


def test_other_names_of_devices_are_refused():
    with pytest.raises(InvalidExperiment, match=r"devices.1: should be 'cuda:N'"):
        gs.experiments.Experiment.from_dict({**TWO, "devices": ["cuda:0", "gpu"]})


def test_the_command_line_runs_and_summarises_it(tmp_path):
    file = tmp_path / "two.json"
    file.write_text(json.dumps(WITH_PYTHON), "utf-8")
    ran = CliRunner().invoke(
        app, ["run", str(file), "--device", "sim:h200", "--out", str(tmp_path)]
    )
    assert ran.exit_code == 0, ran.output
    assert "Collectives" in (tmp_path / "report.html").read_text("utf-8")
    told = CliRunner().invoke(app, ["summary", str(tmp_path / "trace-default.parquet"), "--json"])
    (row,) = json.loads(told.stdout)["collectives"]
    assert (row["group"], row["ranks"], row["n"]) == ("sum", 2, 6)


def test_ranks_call_a_collective_equally_often_alone():
    """However many calls each rank may have in flight, by the pace that it learnt."""
    run = gs.run(
        {
            "name": "unequal", "devices": ["sim:h200", "sim:h200"], "seed": 4, "alone_repeats": 3,
            "streams": {"s": {}},
            "workloads": {
                "reduce": {
                    "kind": "all_reduce", "nbytes": "1 MiB", "stream": "s", "repeats": 4,
                    "max_queued": 8, "arrival": "fixed", "rate_hz": 20,
                },
            },
        }
    )  # fmt: skip
    assert not gs.analysis.collectives(run["default"]).unmatched
