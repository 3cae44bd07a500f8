"""The collector runs inside calls of the simulated GPU: what it collects may be in use there."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

import gpuscope as gs

MS = 1_000_000


@pytest.fixture
def gpu():
    gc.collect()  # what other tests left
    return gs.open_device("sim:h200", quiet=True)


class Cycle:
    """Holds what only the collector finds."""

    def __init__(self, *held):
        self.held = (*held, self)


def dropped(gpu, what):
    """Queue work with something, and drop it; returns a weak reference."""
    step = gs.workloads.Step(gpu, 3 * MS, name="dropped")
    stream = gpu.create_stream(name="dropped")
    step.execute(stream=stream)
    if what == "graph":
        with stream.capture() as graph:
            step.execute(stream=stream)
        graph.launch(stream=stream)
        return weakref.ref(Cycle(graph, step, stream).held[0])
    if what == "partitions":
        parts = gpu.carve([16])
        other = parts[0].create_stream(name="in a partition")
        step.execute(stream=other)
        return weakref.ref(Cycle(parts, other, step, stream).held[0])
    return weakref.ref(Cycle(step, stream).held[0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("at", [*range(0, 40, 3), *range(40, 400, 19)])
@pytest.mark.parametrize("what", ["handle", "graph", "partitions"])
def test_what_is_collected_inside_of_a_call_is_finished_behind_it(gpu, caplog, what, at):
    steps = [gs.workloads.Step(gpu, ms * MS, name=name) for ms, name in ((2, "first"), (1, "last"))]
    handle, calls, collected = dropped(gpu, what), 0, False

    def collect(frame, event, _argument):
        nonlocal calls, collected
        if "simulator/engine" in frame.f_code.co_filename and gpu.backend.is_inside():
            calls += 1
            if calls > at and not collected and event in ("call", "c_return"):
                collected = True
                gc.collect()

    with (
        gpu.create_stream(name="s") as s,
        gpu.create_stream(name="t") as t,
        gs.profile(gpu) as recording,
    ):
        sys.setprofile(collect)
        try:
            steps[0].execute(stream=s)
            t.wait(s.record())
            steps[1].execute(stream=t)
            t.synchronize()
        finally:
            sys.setprofile(None)
    gc.collect()
    assert collected
    assert handle() is None
    assert [record.getMessage() for record in caplog.records] == []
    work = recording.trace.where(kind="kernel", category=("first", "last")).spans.to_pylist()
    times = {row["category"]: (row["start_ns"], row["end_ns"]) for row in work}
    assert times["first"][1] - times["first"][0] == 2 * MS
    assert times["first"][1] <= times["last"][0]
    assert times["last"][1] - times["last"][0] == 1 * MS
