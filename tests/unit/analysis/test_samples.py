"""Sampled stacks: which functions ran in stretches of time, ns by ns against a plain count."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope import analysis
from gpuscope.analysis.samples_analysis import Stretches, compilations, functions_in
from gpuscope.errors import MissingEvidence
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.schema import HOLDS_LOCK, IN_CALL, RUNS, WAITS_FOR_LOCK

STATES = (HOLDS_LOCK, WAITS_FOR_LOCK, RUNS, f"{IN_CALL}read")
NAMES = {"1": "main", "2": "loader", "3": "scorer"}
LENGTH = 60


def build(stacks, kernels=()):
    """Build a trace: a stack is (thread, begin, end, function, state, has a line, samples)."""
    rows = [
        {
            "id": number,
            "kind": "stack",
            "name": function,
            "thread": thread,
            "start_ns": begin,
            "end_ns": end,
            "status": state,
            "value": float(samples),
            "site": json.dumps([["a.py", begin + 1, function], ["a.py", 9, "main"]])
            if has_line
            else None,
            "payload": json.dumps([["a.py", begin + 1, function], ["a.py", 9, "main"]]),
            "source": "host",
        }
        for number, (thread, begin, end, function, state, has_line, samples) in enumerate(stacks)
    ]
    rows += [
        {"id": 1000 + number, "kind": "kernel", "name": "k", "device": 0, "start_ns": begin,
         "end_ns": end, "source": "cupti"}
        for number, (begin, end) in enumerate(kernels)
    ]  # fmt: skip
    columns = {name: [row.get(name) for row in rows] for name in {n for row in rows for n in row}}
    return Trace.from_columns(columns, None, TraceMetadata(thread_names=NAMES))


@st.composite
def traces(draw):
    stacks = []
    for thread in (1, 2, 3):
        at = 0
        while at < LENGTH and draw(st.integers(0, 5)):
            at += draw(st.integers(0, 8))
            end = at + draw(st.integers(1, 15))
            stacks.append((thread, at, end, draw(st.sampled_from("fgh")),
                           draw(st.sampled_from(STATES)), draw(st.booleans()),
                           draw(st.integers(1, 4))))  # fmt: skip
            at = end
    return stacks


STRETCHES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, LENGTH), st.integers(0, 30), st.integers(0, 1)),
    max_size=6,
)


def seen_at(stacks, thread, ns):
    return next((s for s in stacks if s[0] == thread and s[1] <= ns < s[2]), None)


def key(stack):
    thread, _, _, function, state, has_line, _ = stack
    return NAMES[str(thread)], state, function, ("main",) if has_line else ()


@settings(deadline=None)
@given(traces(), STRETCHES)
def test_each_ns_counts_once_and_that_of_who_held_the_lock_beside_it(stacks, stretches):
    found = [Counter(), Counter()]
    for thread, begin, lasts, group in stretches:
        for ns in range(begin, begin + lasts):
            stack = seen_at(stacks, thread, ns)
            if stack is None:
                continue
            found[group][key(stack)] += 1
            if stack[4] == WAITS_FOR_LOCK:
                others = (seen_at(stacks, other, ns) for other in (1, 2, 3) if other != thread)
                for other in others:
                    if other is not None and other[4] == HOLDS_LOCK:
                        found[group][key(other)] += 1
    thread, begin, lasts, group = (
        np.array([s[at] for s in stretches], np.int64) for at in range(4)
    )
    told = functions_in(build(stacks), Stretches(thread, begin, begin + lasts, group), 2)
    for number, functions in enumerate(told):
        whole = max(int(lasts[group == number].sum()), 1)
        expected = sorted(found[number].values(), reverse=True)[:5]
        assert [round(function.share * whole) for function in functions] == expected
        for function in functions:
            name = function.function.rpartition(" in ")[2]
            one = (function.thread, function.state, name, function.callers)
            assert round(function.share * whole) == found[number][one]


def test_a_sample_that_lies_half_in_the_time_counts_half():
    stacks = [(1, 0, 20, "f", RUNS, True, 4), (1, 20, 40, "f", RUNS, True, 6)]
    stretch = Stretches(*(np.array([value]) for value in (1, 10, 30, 0)))
    ((function,),) = functions_in(build(stacks), stretch, 1)
    assert (function.samples, function.share) == (5, 1)
    assert function.function == "a.py:1 in f"  # lines of a function are one, with the first line


@settings(deadline=None)
@given(traces(), st.lists(st.tuples(st.integers(0, LENGTH), st.integers(1, 9)), min_size=1))
def test_times_while_the_gpu_waited_and_while_it_worked(stacks, kernels):
    kernels = [(begin, begin + lasts) for begin, lasts in kernels]
    trace, window = build(stacks, kernels), (5, LENGTH)
    busy = {ns for begin, end in kernels for ns in range(begin, end)}
    waited, worked = Counter(), Counter()
    for ns in range(*window):
        for thread in (1, 2, 3):
            stack = seen_at(stacks, thread, ns)
            if stack and (stack[5] or not stack[4].startswith(IN_CALL)):
                words = f"{stack[3]} (a.py)" if stack[5] else stack[3]
                (worked if ns in busy else waited)[words, NAMES[str(thread)]] += 1
    if not any(s[5] or not s[4].startswith(IN_CALL) for s in stacks):
        with pytest.raises(MissingEvidence):
            analysis.host_times(trace, window)
        return
    result = analysis.host_times(trace, window)
    assert {(t.function, t.thread): t.waited_ns for t in result.times if t.waited_ns} == waited
    assert {(t.function, t.thread): t.worked_ns for t in result.times if t.worked_ns} == worked
    assert sum(stack.waited_ns for stack in result.stacks) == sum(waited.values())
    figure = gs.figures.host_times(result)
    for graph, times in zip(figure.data, (waited, worked), strict=True):
        of_threads = [
            ns for ns, parent in zip(graph["values"], graph.parents, strict=True) if not parent
        ]
        assert sum(of_threads) == sum(times.values())


def test_an_idle_cause_names_who_held_the_lock():
    stacks = [(1, 10, 40, "f", WAITS_FOR_LOCK, True, 3), (3, 0, 60, "words", HOLDS_LOCK, True, 6)]
    rows = build(stacks, [(0, 10), (50, 60)]).spans.to_pylist()
    call = {"id": 500, "kind": "api", "name": "cudaLaunchKernel", "thread": 1, "start_ns": 40,
            "end_ns": 42, "source": "cupti"}  # fmt: skip
    columns = {name: [row[name] for row in rows] + [call.get(name)] for name in rows[0]}
    edges = {"from": [500], "to": [1001], "kind": ["launch"]}
    trace = Trace.from_columns(columns, edges, TraceMetadata(thread_names=NAMES))
    first, *rest = analysis.idle_causes(trace, (0, 60)).causes
    assert (first.idle_ns, first.busiest.thread, first.busiest.share) == (30, "scorer", 1)
    assert first.meanwhile is not None
    assert [function.thread for function in first.functions] == ["main", "scorer"]
    assert all(cause.functions == () for cause in rest)  # the launch is on its way
    (finding,) = [f for f in gs.findings(trace).findings if f.rule == "program.idle"]
    assert finding.subject["who"] == "scorer"
    assert json.loads(json.dumps(gs.telling.to_json(finding)))["rule"] == "program.idle"


@pytest.mark.parametrize(("inner", "most", "share"), [(24, "unique", 0.4), (15, "forward", 1)])
def test_the_deepest_function_of_a_third_of_the_time_is_named(inner, most, share):
    stacks = [(1, 0, 40, "f", HOLDS_LOCK, True, 4), (1, 40, 60, "f", HOLDS_LOCK, True, 2)]
    columns = build(stacks).spans.to_pydict()
    site = json.dumps([["a.py", 1, "f"], ["a.py", 9, "main"]])
    frames = [["m.py", 5, "forward"], *json.loads(site)]
    columns["site"] = [site, site]
    columns["start_ns"] = [0, inner]
    columns["end_ns"] = [inner, 60]
    columns["payload"] = [json.dumps([["n.py", 3, "unique"], *frames]), json.dumps(frames)]
    trace = Trace.from_columns(columns, None, TraceMetadata(thread_names=NAMES))
    stretch = Stretches(*(np.array([value]) for value in (1, 0, 60, 0)))
    ((function,),) = functions_in(trace, stretch, 1)
    assert (function.inner, function.share, function.callers) == (most, 1, ("main",))
    assert function.inner_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("frame", "compiles"),
    [
        (["_src/compiler.py", 3, "backend_compile_and_load"], True),
        (["cuda/compiler.py", 3, "_NVRTCProgram.compile"], True),
        (["core/dispatcher.py", 3, "CUDADispatcher._compile_for_args"], True),
        (["re/__init__.py", 3, "compile"], False),
        (["_dynamo/eval_frame.py", 3, "_TorchDynamoContext.__call__.<locals>.compile_wrapper"],
         False),
        (["<frozen importlib._bootstrap_external>", 3, "_compile_bytecode"], False),
        (["m.py", 3, "compiled_step"], False),
    ],
)  # fmt: skip
def test_when_a_thread_compiles_is_told_by_its_frames(frame, compiles):
    stacks = [(1, 0, 10, "f", RUNS, True, 1), (1, 10, 30, "f", RUNS, True, 2),
              (1, 30, 40, "f", RUNS, True, 1)]  # fmt: skip
    columns = build(stacks).spans.to_pydict()
    columns["payload"][1] = json.dumps([["x.py", 1, "leaf"], frame, ["a.py", 11, "f"]])
    trace = Trace.from_columns(columns, None, TraceMetadata(thread_names=NAMES))
    asked = np.array([5, 10, 29, 30, 50])
    number, lines = compilations(trace, np.array([1, 1, 1, 1, 1]), asked)
    assert number.tolist() == [-1, *([0, 0] if compiles else [-1, -1]), -1, -1]
    assert lines == ["a.py:11 in f"] * compiles
    assert (compilations(trace, asked * 0 + 2, asked)[0] == -1).all()
