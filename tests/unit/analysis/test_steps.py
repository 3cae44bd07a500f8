"""Steps: by ranges, by launches, with odd iterations; start-up and warm-up."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from gpuscope import analysis
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata


class Program:
    """Launches of one thread, one after the other, each with its kernel."""

    def __init__(self, thread=1, process=7):
        self.rows, self.edges, self.at = [], [], 0
        self.who = {"thread": thread, "process": process, "source": "cupti"}

    def add(self, **row):
        self.rows.append({"id": len(self.rows) + 1, **self.who, **row})

    def launch(self, name, pause=5, site=None):
        self.at += pause
        self.edges.append((len(self.rows) + 1, len(self.rows) + 2))
        self.add(kind="api", name="launch", start_ns=self.at, end_ns=self.at + 4, site=site)
        self.add(kind="kernel", name=name, stream=1, start_ns=self.at + 6, end_ns=self.at + 9,
                 site=site)  # fmt: skip
        self.at += 4

    def range(self, name, start, **more):
        self.add(kind="range", name=name, start_ns=start, end_ns=self.at, **more)

    def trace(self, *others, **metadata):
        rows, edges = [], []
        for program in (self, *others):
            offset = len(rows)
            rows += [{**row, "id": row["id"] + offset} for row in program.rows]
            edges += [(a + offset, b + offset) for a, b in program.edges]
        names = {name for row in rows for name in row}
        return Trace.from_columns(
            {name: [row.get(name) for row in rows] for name in names},
            {"from": [a for a, _ in edges], "to": [b for _, b in edges],
             "kind": ["launch"] * len(edges)},
            TraceMetadata(**metadata),
        )  # fmt: skip


def test_the_repeated_range_that_holds_most_launches_is_a_step():
    program = Program()
    program.launch("init")
    begin = program.at
    bounds = []
    for number in range(6):
        start = program.at
        for name in ("forward", "backward"):
            inner = program.at
            program.launch(name, pause=100 if not number else 5)
            program.range(name, inner)
        program.range(f"step {number}", start)
        bounds.append((start, program.at))
        program.launch("log")
    program.range("main", begin)
    result = analysis.steps(program.trace(windows_ns=((0, 2000),)))
    assert result.basis == "ranges 'step'"
    assert [(step.start_ns, step.end_ns) for step in result.steps] == bounds
    assert {(step.name, step.process, step.thread) for step in result.steps} == {("step", 7, 1)}
    assert result.start_up_ns == 5
    assert result.steady_ns == (bounds[1][0], bounds[-1][1] + 5)  # the last kernel's end
    assert result.warm_up_ns == bounds[1][0] - 5
    assert result.typical.length_ns == 18


def test_ranges_inside_one_of_their_name_are_no_steps_of_their_own():
    program = Program()
    for _ in range(4):
        start = program.at
        program.launch("a")
        inner = program.at
        program.launch("b")
        program.range("walk", inner)
        program.range("walk", start)
    assert len(analysis.steps(program.trace()).steps) == 4


LINES = [f'[["t.py", {line}, "f"]]' for line in range(9)]


@pytest.mark.parametrize("with_sites", [False, True])
def test_launches_that_come_again_are_steps_in_spite_of_odd_iterations(with_sites):
    program, begins = Program(), []
    for name in ("init", "init", "other"):
        program.launch(name)
    for number in range(40):
        program.add(kind="sync", name="queue get", start_ns=program.at + 1, end_ns=program.at + 49)
        program.at += 50  # the next batch
        begins.append(program.at + 5)
        program.launch("copy in", site=LINES[1] if with_sites else None)
        for _ in range(6):
            for name in ("gemm", "relu", "norm"):
                program.launch(name, site=LINES[2] if with_sites else None)
        if number % 10 == 9:
            for _ in range(4):
                program.launch("log", site=LINES[3] if with_sites else None)
        for name in ("loss", "grad", "grad2", "update"):
            program.launch(name, site=LINES[4] if with_sites else None)
    result = analysis.steps(program.trace())
    assert [step.start_ns for step in result.steps] == begins
    assert result.basis.startswith("launches that begin anew with copy in")
    assert ("at t.py:1 in f" in result.basis) == with_sites
    assert result.typical.length_ns == 50 + 23 * 9
    assert result.warm_up_ns == begins[0] - 5


def test_each_launch_of_a_graph_is_a_step_where_nothing_else_is_launched():
    program = Program()
    program.launch("init")
    for _ in range(20):
        program.launch("node")
        call, _ = program.edges[-1]
        program.edges.append((call, len(program.rows) + 1))
        program.add(kind="kernel", name="other", stream=1, start_ns=program.at + 5,
                    end_ns=program.at + 8)  # fmt: skip
    result = analysis.steps(program.trace())
    assert len(result.steps) == 20
    assert {step.length_ns for step in result.steps[:-1]} == {9}


@pytest.mark.parametrize("sampled", [None, 50])
@pytest.mark.parametrize("with_copy", [False, True])
def test_a_launch_of_a_graph_is_a_step_whether_recorded_whole_or_by_node(sampled, with_copy):
    program = Program()
    for number in range(200):
        program.launch("graph 7")
        program.rows[-1] |= {"kind": "graph", "graph": 7}
        if sampled and number % sampled == 0:
            call, _ = program.edges[-1]
            program.rows[-1] |= {"kind": "kernel", "name": "node"}
            program.edges.append((call, len(program.rows) + 1))
            program.add(kind="kernel", name="other", stream=1, start_ns=program.at + 5,
                        end_ns=program.at + 8, graph=7)  # fmt: skip
        if with_copy:
            program.launch("copy")
    result = analysis.steps(program.trace())
    assert len(result.steps) == 200
    assert {step.length_ns for step in result.steps[:-1]} == {18 if with_copy else 9}


def test_what_is_not_repeated_has_no_steps_and_is_steady_as_a_whole():
    program = Program()
    names = np.random.default_rng(1).permutation(200)
    for name in names:
        program.launch(f"kernel {name}")
    result = analysis.steps(program.trace(windows_ns=((0, 9000),)))
    assert (result.steps, result.typical) == ((), None)
    assert result.steady_ns == (5, program.at + 5)
    assert (result.start_up_ns, result.warm_up_ns) == (5, 0)
    assert "no steps" in result.basis
    nothing = analysis.steps(Trace.from_columns({}))
    assert (nothing.steps, nothing.warm_up_ns) == ((), 0)


def test_warm_up_ends_with_two_usual_steps_in_a_row():
    program, starts = Program(), []
    for number, pause in enumerate((900, 20, 700, 30, *[20, 21, 22] * 5)):
        starts.append(program.at)
        program.launch("tried" if pause == 700 else "k", pause=pause)
        program.range(f"step {number}", starts[-1])
    result = analysis.steps(program.trace())
    assert result.steady_ns[0] == starts[4]
    assert result.typical.length_ns == 25


@pytest.mark.parametrize(("pauses", "is_warm_up"), [((20, 900), True), ((90,) * 12, False)])
def test_few_long_pauses_of_a_first_step_are_warm_up_and_many_are_none(pauses, is_warm_up):
    program, starts = Program(), []
    program.launch("k", pause=20)
    for number, of_step in enumerate((pauses, *[(20,), (21,), (22,)] * 6)):
        starts.append(program.at)
        for pause in of_step:
            program.launch("k", pause=pause)
        program.range(f"step {number}", starts[-1])
    assert analysis.steps(program.trace()).steady_ns[0] == starts[is_warm_up]


@pytest.mark.parametrize(("last", "is_teardown"), [(300, True), (22, False), (90, False)])
def test_what_a_program_does_in_the_end_is_no_steady_time(last, is_teardown):
    program, starts = Program(), []
    for number, pause in enumerate((*[20, 21, 22] * 3, 90, *[20, 21, 22] * 3, last)):
        starts.append(program.at)
        program.launch("k", pause=pause)
        program.range(f"step {number}", starts[-1])
    end = analysis.steps(program.trace()).steady_ns[1]
    assert (end < program.at - 200) == is_teardown
    assert end >= starts[-1]


def test_each_launch_is_a_step_where_one_kernel_is_launched_again_and_again():
    program = Program()
    for number in range(40):
        program.launch("heat", pause=900 if number == 0 else 20)
    program.launch("sum")
    result = analysis.steps(program.trace())
    assert len(result.steps) == 40
    assert result.typical.length_ns == 24


def test_what_a_backward_pass_sets_up_is_new_too():
    program, starts, rest = Program(), [], []
    for number in range(18):
        starts.append(program.at)
        program.launch("k", pause=200 if number == 0 else 20)
        if number == 1:  # a thread without Python sets up its library
            program.at += 900
            rest.append({**program.who, "thread": 2, "kind": "api", "name": "set up",
                         "start_ns": program.at - 2, "end_ns": program.at})  # fmt: skip
        program.range(f"step {number}", starts[-1])
    for row in rest:
        program.add(**row)
    assert analysis.steps(program.trace()).steady_ns[0] == starts[2]


@pytest.mark.parametrize("more", [(), (900, 20, 700)])
def test_long_steps_that_nothing_new_explains_are_no_warm_up(more):
    program, starts = Program(), []
    for number, pause in enumerate((5, *more, *[20, 21, 22] * 5)):
        starts.append(program.at)
        for at in range(4):
            program.launch(f"k{at}", pause=pause)
        program.range(f"step {number}", starts[-1])
    assert analysis.steps(program.trace()).steady_ns[0] in starts[:2]


def test_short_steps_that_are_longer_than_usual_are_warm_up_whatever_they_do():
    program, starts = Program(), []
    for number, pause in enumerate((20, 60, *[20, 21, 22] * 50)):
        starts.append(program.at)
        program.launch("k", pause=pause)
        program.range(f"step {number}", starts[-1])
    assert analysis.steps(program.trace()).steady_ns[0] == starts[2]


def test_each_process_has_its_own_steps():
    one, two = Program(), Program(thread=2, process=8)
    for program, pause in ((one, 5), (two, 9)):
        for _ in range(5):
            start = program.at
            program.launch("k", pause=pause)
            program.range("step", start)
    result = analysis.steps(one.trace(two))
    assert {(step.process, step.thread) for step in result.steps} == {(7, 1), (8, 2)}
    assert len(result.steps) == 10
    starts = [step.start_ns for step in result.steps]
    assert starts == sorted(starts)
    assert result.rows()[1]["steady"] == 5


def slow_start():
    """Return a program whose first step takes long, and whose GPU idles before it."""
    program = Program()
    for number in range(8):
        start = program.at
        program.launch("k", pause=1000 if not number else 6)
        program.at += 10  # its kernel is done
        program.range(f"step {number}", start)
    return program


def test_start_up_and_warm_up_count_in_no_share_unless_asked():
    trace = slow_start().trace()
    track = analysis.gaps(trace).tracks[0]
    whole = analysis.gaps(trace, whole=True).tracks[0]
    assert (track.spans, track.number) == (7, 6)
    assert (whole.spans, whole.number) == (8, 7)
    assert track.busy_fraction == 7 * 3 / (7 * 3 + 6 * 17)
    assert "warm-up" in analysis.gaps(trace).definition
    assert "warm-up" not in analysis.gaps(trace, whole=True).definition
    assert analysis.summary(trace).streams[0].kernels == 7
    assert analysis.summary(trace, whole=True).streams[0].kernels == 8
    low, high = analysis.steps(trace).steady_ns
    assert analysis.idle_causes(trace).window_ns == (low, high)


def test_experiments_count_as_a_whole():
    trace = slow_start().trace(experiment={"name": "e"})
    assert analysis.gaps(trace).tracks[0].spans == 8
    assert analysis.summary(trace).streams[0].kernels == 8


def test_steps_of_a_recorded_program():
    trace = gs.load_trace(
        Path(__file__).parents[2] / "data" / "recordings" / "requests_h100.parquet"
    )
    result = analysis.steps(trace)
    assert result.basis
    for a, b in itertools.pairwise(result.steps):
        assert a.end_ns <= b.start_ns


def test_steps_of_a_host_that_runs_ahead_are_those_of_their_work():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        for _ in range(12):
            with gs.annotate("step"):
                stream.launch(kernel, 2_000_000, grid=1, block=32)
        stream.synchronize()
    found = gs.analysis.steps(recording.trace)
    assert found.basis.endswith("as their work ran: the host runs ahead")
    assert 2_000_000 <= found.typical.length_ns < 2_100_000
    assert len(found.steps) == 12
