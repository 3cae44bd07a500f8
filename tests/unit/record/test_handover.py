"""What Python's threads wait for from each other, as rows and edges of a recording."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import queue
import threading
import time
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope._compiled import fastpath
from gpuscope.record import facts, handover
from gpuscope.trace.sites import lines_of

METHODS = [(owner, name) for owner, name, _ in handover._METHODS]


@pytest.fixture(params=["compiled", "in Python"])
def cpu(request, monkeypatch):
    if request.param == "in Python":
        monkeypatch.setattr(handover, "_hands_over", handover._hands_over_in_python)
        monkeypatch.setattr(handover, "_handed_over", handover._handed_over_in_python)
    elif fastpath is None:
        pytest.skip("the launch path is not compiled")
    monkeypatch.setattr(handover, "_SHORT_NS", 0)  # no test is to sleep
    device = gs.open_device("cpu", quiet=True)
    gc.disable()  # a collection is noted, too
    yield device
    gc.enable()
    device.close()


def methods():
    return [vars(owner)[name] for owner, name in METHODS]


def once_it_waits(condition, act):
    """Run on a thread once somebody waits for a condition."""

    def run():
        while not condition._waiters:
            os.sched_yield()
        act()

    thread = threading.Thread(target=run, name="helper")
    thread.start()
    return thread


def told(trace):
    """Return kind of edge → pairs of (kind, name, thread's name) of its ends."""
    names = trace.metadata.thread_names
    of = {
        row["id"]: (row["kind"], row["name"], names.get(str(row["thread"])))
        for row in trace.spans.to_pylist()
    }
    found = {}
    for edge in trace.edges.to_pylist():
        found.setdefault(edge["kind"], []).append((of[edge["from"]], of[edge["to"]]))
    return found


def line_of(text):
    source = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)


def test_a_get_that_blocks_is_a_wait_at_its_line_handed_over_by_the_put(cpu):
    items = queue.Queue()
    with gs.profile(cpu) as recording:
        helper = once_it_waits(items.not_empty, lambda: items.put(7))
        assert items.get() == 7  # the get
        helper.join()
        items.put(8)
        assert items.get() == 8
    trace = recording.trace
    assert told(trace)["hand-over"] == [
        (("mark", "queue put", "helper"), ("sync", "queue get", "MainThread"))
    ]
    (get,) = trace.where(kind="sync", name="queue get").spans.to_pylist()
    assert get["thread"] == threading.get_native_id()
    assert get["start_ns"] < get["end_ns"]
    (put,) = trace.where(kind="mark", name="queue put").spans.to_pylist()
    assert get["start_ns"] <= put["start_ns"] <= get["end_ns"]
    if get["site"] is not None:  # where the launch path is compiled
        assert lines_of(get["site"])[0].line == line_of("# the get")


def test_waits_for_events_futures_and_conditions_are_told_by_their_names(cpu):
    event, condition = threading.Event(), threading.Condition()
    with gs.profile(cpu) as recording:
        once_it_waits(event._cond, event.set)
        event.wait()

        def notify():
            with condition:
                condition.notify_all()

        with condition:
            once_it_waits(condition, notify)
            condition.wait()
        future = concurrent.futures.Future()
        once_it_waits(future._condition, lambda: future.set_result(3))
        assert future.result() == 3
    pairs = [(one[1], other[1]) for one, other in told(recording.trace)["hand-over"]]
    assert pairs == [
        ("event set", "event wait"),
        ("condition notify", "condition wait"),
        ("future set_result", "future result"),
    ]


def test_a_started_thread_has_an_edge_from_its_start_and_a_name(cpu):
    with gs.profile(cpu) as recording:
        thread = threading.Thread(target=int, name="gone by the end")
        thread.start()
        thread.join()
    trace = recording.trace
    assert told(trace)["thread start"] == [
        (("mark", "thread start", "MainThread"), ("mark", "thread begins", "gone by the end"))
    ]


def test_a_wait_that_timed_out_is_handed_over_by_nobody(cpu):
    items = queue.Queue()
    with gs.profile(cpu) as recording:
        with pytest.raises(queue.Empty):
            items.get(timeout=1e-3)
        other = multiprocessing.Queue()
        with pytest.raises(queue.Empty):
            other.get(timeout=1e-3)
        other.close()
        other.join_thread()
    names = [row["name"] for row in recording.trace.where(kind="sync").spans.to_pylist()]
    assert names.count("queue get") == 2
    assert "hand-over" not in told(recording.trace)


def test_short_waits_and_gpuscope_s_own_threads_are_not_told(cpu, monkeypatch):
    monkeypatch.setattr(handover, "_SHORT_NS", 1 << 62)
    with gs.profile(cpu) as recording:
        threading.Event().wait(1e-6)
    assert recording.trace.kind_counts() == {}
    monkeypatch.setattr(handover, "_SHORT_NS", 0)
    with gs.profile(cpu) as recording:
        thread = threading.Thread(target=threading.Event().wait, args=(1e-6,), name="gpuscope own")
        thread.start()
        thread.join()
    assert [row["name"] for row in recording.trace.where(kind="sync").spans.to_pylist()] == [
        "thread join"
    ]


def test_every_method_is_put_back_when_the_last_recording_ends(cpu):
    before = methods()
    with gs.profile(cpu):
        with gs.profile(cpu):
            assert all(one is not other for one, other in zip(methods(), before, strict=True))
        assert all(one is not other for one, other in zip(methods(), before, strict=True))
    assert methods() == before
    assert handover._wake_ups == {}


def test_what_another_replaced_meanwhile_stays_and_notes_nothing(cpu, monkeypatch):
    join = threading.Thread.join
    with gs.profile(cpu):
        ours = threading.Thread.join
        monkeypatch.setattr(
            threading.Thread, "join", lambda self, timeout=None: ours(self, timeout)
        )
        theirs = threading.Thread.join
    assert threading.Thread.join is theirs
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    monkeypatch.undo()
    threading.Thread.join = join


def test_a_forked_child_notes_nothing(cpu):
    before = methods()
    with gs.profile(cpu):
        if (child := os.fork()) == 0:
            os._exit(0 if methods() == before and handover._logs == () else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_wait_is_handed_over_by_what_woke_that_one(cpu):
    """A wake-up belongs to one wait: who wakes a later one is not seen here."""
    condition = threading.Condition()
    with gs.profile(cpu) as recording, condition:
        helper = once_it_waits(condition, lambda: wake(condition))
        condition.wait()
        helper.join()
        plain = next(was for _, name, was, _ in handover._replaced if name == "notify")
        helper = once_it_waits(condition, lambda: wake(condition, plain))
        condition.wait()
        helper.join()
    trace = recording.trace
    waits = [row["id"] for row in trace.where(kind="sync", name="condition wait").spans.to_pylist()]
    ends = [edge["to"] for edge in trace.edges.to_pylist() if edge["kind"] == "hand-over"]
    assert len(waits) == 2
    assert ends == waits[:1]


def test_all_that_were_woken_at_once_are_handed_over_by_that(cpu):
    event = threading.Event()
    with gs.profile(cpu) as recording:
        threads = [threading.Thread(target=event.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(event._cond._waiters) < 3:
            os.sched_yield()
        event.set()
        for thread in threads:
            thread.join()
    pairs = [(one[1], other[1]) for one, other in told(recording.trace)["hand-over"]]
    assert pairs == [("event set", "event wait")] * 3
    assert handover._wake_ups == {}


def test_a_thread_whose_start_was_wrapped_before_waits_for_nothing(cpu, monkeypatch):
    start = threading.Thread.start

    def wrapped(self):
        return start(self)

    monkeypatch.setattr(threading.Thread, "start", wrapped)
    with gs.profile(cpu) as recording:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    names = {row["name"] for row in recording.trace.where(kind="sync").spans.to_pylist()}
    assert names <= {"thread join"}


def wake(condition, notify=None):
    with condition:
        (notify or threading.Condition.notify)(condition)


def test_errors_and_results_of_the_methods_are_the_same(cpu):
    condition = threading.Condition()
    with gs.profile(cpu):
        with pytest.raises(RuntimeError):
            condition.wait()
        with pytest.raises(RuntimeError):
            condition.notify()
        with condition:
            assert condition.wait(timeout=1e-6) is False
        thread = threading.Thread(target=int)
        with pytest.raises(RuntimeError):
            thread.join()
        thread.start()
        with pytest.raises(RuntimeError):
            thread.start()
        thread.join()
    assert threading.Condition.wait.__name__ == "wait"


def test_simulated_devices_have_no_such_rows():
    before = methods()
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu):
        assert methods() == before


# -- names -----------------------------------------------------------------------------------
def test_threads_that_python_does_not_know_have_the_system_s_names(monkeypatch, tmp_path):
    for number, name in ((os.getpid(), "python"), (77, "pt_autograd_0"), (78, "python")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    monkeypatch.setattr(facts, "Path", lambda _: tmp_path)
    system = facts.system_threads({})
    names = facts.thread_names({5: "Thread-3 (_pin_memory_loop)"}, system, alive=True)
    assert names["77"] == "pt_autograd_0"
    assert "78" not in names
    assert names["5"] == "pin-memory thread"
    assert names[str(threading.get_native_id())] == threading.current_thread().name
    (tmp_path / "77" / "comm").write_text("renamed")
    (tmp_path / "78" / "comm").unlink()
    (tmp_path / "78").rmdir()
    assert facts.system_threads(system) == {k: v for k, v in system.items() if k != "78"}
    assert facts.system_threads({})["77"] == "renamed"


def test_workers_of_a_data_loader_are_named_by_their_numbers(monkeypatch):
    from types import SimpleNamespace

    assert facts.process_name() == "python"
    worker = SimpleNamespace(_worker_info=SimpleNamespace(id=3))
    monkeypatch.setitem(facts.sys.modules, "torch.utils.data._utils.worker", worker)
    assert facts.process_name() == "DataLoader worker 3"


def test_time_is_the_recording_s(cpu):
    before = time.time_ns()
    with gs.profile(cpu) as recording:
        threading.Event().wait(1e-6)
    (row,) = recording.trace.where(kind="sync").spans.to_pylist()
    assert before <= row["start_ns"] <= row["end_ns"] <= time.time_ns()


def test_the_collector_is_noted_while_a_recording_asks(cpu):
    with gs.profile(cpu) as recording:
        gc.collect()
    assert handover._collecting not in gc.callbacks
    rows = recording.trace.where(name="garbage collection", kind="sync")
    main = [row for row in rows.spans.to_pylist() if row["thread"] == threading.get_native_id()]
    assert main
    assert all(row["end_ns"] >= row["start_ns"] for row in main)


def test_a_collection_that_began_before_is_none(cpu):
    """Where a recording begins meanwhile, its callback hears only of the end."""
    with gs.profile(cpu) as recording:
        handover._collecting("stop", {})
    assert not len(recording.trace.where(name="garbage collection"))
