"""Who launches what; on the CPU, whose threads are real."""

from __future__ import annotations

import gc
import sys
import threading
import warnings

import numpy as np
import pytest
from interrupting import Interrupt, places

import gpuscope as gs

MODULE = """
import threading
import time
import gpuscope as gs

seen = {}
meet = threading.Barrier(2)
calls = []

@gs.workloads.workload
def naps(ctx, ms=1):
    seen.setdefault(ctx.stream.name, set()).add(threading.current_thread().name)
    time.sleep(ms / 1e3)

@gs.workloads.workload
def meets(ctx):
    meet.wait(30)  # two calls at once, or never

@gs.workloads.workload
def fails(ctx):
    calls.append(1)
    if len(calls) > 5:
        raise ZeroDivisionError("mine")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_driven.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("mine_driven", None)


@pytest.fixture
def cpu():
    return gs.open_device("cpu", quiet=True)


def described(a="naps", b="naps", **more):
    workloads = {
        name: {"kind": f"python:mine_driven:{function}", "stream": name, "repeats": 5, "warmup": 1}
        for name, function in (("a", a), ("b", b))
    }
    workloads["b"] |= more
    return {"name": "driven", "alone_repeats": 0, "streams": {"a": {}, "b": {}},
            "workloads": workloads}  # fmt: skip


def ours():
    return [one for one in threading.enumerate() if one.name.startswith("stream ")]


def test_a_workload_without_kernels_has_its_rate_and_what_of_it_is_left(mine):
    gpu = gs.open_device("sim:h200", quiet=True)
    run = gs.run({**described(b="naps"), "alone_repeats": 3}, gpu)
    for row in run.comparison.to_pylist():
        assert (row["kernels"], row["latency_n"]) == (0, 5)
        assert 0 < row["share_of_alone_on_whole_gpu"] < 1


def test_each_stream_has_a_thread_for_warming_up_and_launching(mine, cpu):
    run = gs.run({**described(), "rounds": 2}, cpu)
    from mine_driven import seen

    assert all(len(names) == 1 for names in seen.values())
    assert seen["a"] != seen["b"]
    calls = run["default"].where(kind="handle")
    threads = {
        name: set(calls.where(category=name).array("thread").tolist()) for name in ("a", "b")
    }
    assert not threads["a"] & threads["b"]
    assert len(calls) == 10
    ranges = run["default"].where(kind="range")
    assert sorted(ranges.texts("name")) == ["round 0", "round 0", "round 1", "round 1"]
    assert not ours()


def test_calls_of_two_streams_run_at_once(mine, cpu):
    """One thread for both would wait for itself."""
    two = described("meets", "meets")
    for workload in two["workloads"].values():
        workload["warmup"] = 0
    assert len(gs.run(two, cpu)["default"].where(kind="handle")) == 10


def test_workloads_of_one_stream_share_a_thread(mine, cpu):
    gs.run(described(stream="a"), cpu)
    from mine_driven import seen

    assert len(seen["a"]) == 1
    assert "b" not in seen


def test_a_background_runs_as_long_as_the_others(mine, cpu):
    run = gs.run(described(background=True, max_queued=4), cpu)
    calls = run["default"].where(kind="handle")
    assert len(calls.where(category="a")) == 5
    assert len(calls.where(category="b")) >= 1


def test_the_foreground_begins_when_the_queue_of_the_background_is_full(mine, cpu):
    calls = gs.run(described(background=True, max_queued=4), cpu)["default"].where(kind="handle")
    load = calls.where(category="b")
    assert calls.where(category="a").array("start_ns")[0] > np.sort(load.array("start_ns"))[3]


def test_what_runs_no_python_of_the_users_is_launched_by_one_thread(mine, cpu):
    square = {"kind": "gemm", "m": 64, "n": 64, "k": 64, "repeats": 5}
    three = described()
    three["streams"] |= {"c": {}, "d": {}}
    three["workloads"] |= {name: {**square, "stream": name} for name in ("c", "d")}
    calls = gs.run(three, cpu)["default"].where(kind="handle")
    threads = {
        name: set(calls.where(category=name).array("thread").tolist()) for name in ("a", "b", "c")
    }
    assert threads["c"] == set(calls.where(category="d").array("thread").tolist())
    assert len(set.union(*threads.values())) == 3
    del three["workloads"]["a"], three["workloads"]["b"]
    calls = gs.run(three, cpu)["default"].where(kind="handle")
    assert set(calls.array("thread").tolist()) == {threading.get_native_id()}


@pytest.mark.parametrize("arrival", ["fixed", "poisson"])
def test_arrivals_keep_their_times(mine, cpu, arrival):
    run = gs.run(described(arrival=arrival, rate_hz=200.0, max_queued=2), cpu)
    trace = run["default"]
    starts = trace.where(kind="handle", category="b").array("start_ns")
    assert len(starts) == 5
    if arrival == "fixed":
        assert starts[-1] - trace.metadata.windows_ns[0][0] >= 4 * 5_000_000


def test_an_error_of_one_ends_the_others_and_is_raised(mine, cpu):
    two = described(b="fails")
    two["workloads"]["a"]["repeats"] = 1_000_000
    before = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError, match="mine"):
        gs.run(two, cpu)
    assert not ours()
    assert sys.getswitchinterval() == before
    assert not cpu.calls.observers


def test_stop_ends_all_threads_and_keeps_what_was_recorded(mine, cpu):
    two = described()
    for workload in two["workloads"].values():
        workload["repeats"] = 1_000_000
    stop, told = threading.Event(), []

    def view(progress):
        told.append((progress.done, threading.current_thread()))
        if progress.done > 20:
            stop.set()

    run = gs.run(two, cpu, viewer=view, stop=stop)
    assert run.stopped
    assert len(run["default"].where(kind="handle")) > 20
    assert {thread for _, thread in told} == {threading.current_thread()}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert not ours()


def test_requests_are_served_by_two_threads(mine, cpu):
    two = described()
    two["workloads"] |= {
        "r": {"kind": "requests", "prefill": "a", "decode": "b", "output_tokens": 3, "repeats": 4,
              "arrival": "fixed", "rate_hz": 100.0}
    }  # fmt: skip
    run = gs.run(two, cpu)
    row = next(row for row in run.comparison.to_pylist() if row["workload"] == "r")
    assert row["requests_n"] == 4
    assert not ours()


@pytest.mark.no_cover
def test_interrupts_at_each_line_end_all_threads_and_keep_the_data(mine, cpu):
    rooms = ("experiments/driving.py", "experiments/runner.py")
    before = sys.getswitchinterval()

    def program():
        try:
            return gs.run(described(background=True), cpu)
        except gs.errors.NothingRecorded:
            return None

    program()
    wrong, tried = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in places(program, *rooms):
            tried += 1
            kept = None
            with Interrupt(*rooms, at=place):
                kept = program()
            left = ours(), cpu.calls.observers, gs.get_caller_stream()
            if left != ([], (), None) or not gc.isenabled():
                wrong.append(f"{place}: {left}")
            if sys.getswitchinterval() != before:
                wrong.append(f"{place}: the switch interval")
            if kept is not None and not kept.traces:
                wrong.append(f"{place}: nothing was kept")
    assert tried > 100
    assert not wrong, "\n".join(wrong[:20])
