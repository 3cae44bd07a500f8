"""The critical path: what bound each end, parts that add up, and how much slack rows have."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import why_programs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from program_runner import Runner
from programs import programs

import gpuscope as gs
from gpuscope import _compiled as compiled
from gpuscope.analysis.causes import find_causes
from gpuscope.analysis.trace_parts import trace_parts
from gpuscope.analysis.work_causes import KINDS
from gpuscope.errors import InvalidArgument, MissingEvidence, NotFound
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata


def rows(*spans, edges=(), **metadata):
    """Build a trace from (id, kind, name, start, end, more) and (from, to, kind)."""
    names = {key for *_, more in spans for key in more}
    columns = {
        "id": [span[0] for span in spans], "kind": [span[1] for span in spans],
        "name": [span[2] for span in spans], "start_ns": [span[3] for span in spans],
        "end_ns": [span[4] for span in spans], "source": ["cupti"] * len(spans),
        **{name: [span[5].get(name) for span in spans] for name in names},
    }  # fmt: skip
    linked = {"from": [e[0] for e in edges], "to": [e[1] for e in edges],
              "kind": [e[2] for e in edges]}  # fmt: skip
    return Trace.from_columns(columns, linked if edges else None, TraceMetadata(**metadata))


def launch(span, thread, start, end, site=None):
    return (span, "api", "cudaLaunchKernel", start, end,
            {"thread": thread, "process": 1, "site": site})  # fmt: skip


def kernel(span, name, start, end, queued, stream=7):
    return (span, "kernel", name, start, end, {"stream": stream, "queued_ns": queued, "process": 1})


def wait(span, name, start, end, stream=None, thread=1):
    return (span, "api", name, start, end, {"thread": thread, "process": 1, "stream": stream})


def told(path):
    return [(part.kind, part.span, part.duration_ns) for part in path.parts]


@pytest.mark.skipif(compiled.fastpath is None, reason="it is not compiled")
@given(programs(), st.randoms(use_true_random=False))
def test_passes_are_the_same_compiled_and_in_python(program, random):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording:
        Runner(gpu, program).run()
    causes = find_causes(recording.trace)
    lag = np.array([random.randrange(int(ns) + 1) for ns in causes.lag], np.int64)
    kept = np.array([random.random() < 0.8 for _ in lag], bool)
    node = random.randrange(len(causes.times))
    told = []
    for module in (compiled.fastpath, None):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("gpuscope.analysis.causes.fastpath", module)
            told.append(
                [causes.forward(lag, kept).tolist(), causes.slack().tolist(),
                 causes.slack(node).tolist(), causes.back_from(node).tolist()]
            )  # fmt: skip
    assert told[0] == told[1]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_the_path_of_any_program_adds_up_and_its_causes_are_those_of_the_parts(program):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gs.profile(gpu) as recording:
        Runner(gpu, program).run()
    trace = recording.trace
    causes, parts = find_causes(trace), trace_parts(trace)
    assert (causes.forward(causes.lag, causes.lag >= 0) == causes.times).all()
    for work in np.flatnonzero(causes.rows.is_work).tolist():
        edge = int(causes.cause[2 * work])
        cause = KINDS[causes.kind[edge]], int(causes.rows.ids[causes.source[edge] // 2])
        before = [p for p in parts.parts(work) if p.end_ns <= causes.rows.starts[work]]
        last = next((p for p in reversed(before) if p.kind != "unexplained"), None)
        if last is not None:
            kind = {"launch call": "launch", "on the way": cause[0]}.get(last.kind, last.kind)
            assert cause == (kind, last.span)
    for to in (None, int(trace.array("id")[-1])):
        path = gs.analysis.critical_path(trace, to)
        assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(path.parts))
        assert all(part.duration_ns > 0 for part in path.parts)
        for by in ("kind", "line", "range", "kernel", "stream", "thread", "rank"):
            assert sum(path.by(by).values()) == path.end_ns - path.start_ns


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["streams", "graphs", "threads", "copies"]), st.integers(1000, 10**6))
@example("threads", 19604)  # a wait for a stream, right behind a stream's wait
@example("copies", 1959)  # two copies in a row share the memory: each end is a whole ns
def test_a_delay_moves_the_end_by_what_is_more_than_slack(family, seed):
    program = why_programs.draw(family, seed)
    ran = why_programs.run(program)
    path = gs.analysis.critical_path(ran.trace)
    for at, span in list(ran.rows.items())[:2]:
        delayed = why_programs.run(program.delayed(at, 150_000))
        moved = delayed.length_ns() - ran.length_ns()
        assert abs(moved - max(0, 150_000 - path.slack(span))) <= max(1, shared(delayed.trace))


def shared(trace):
    """Count the copies beside which others ran: the end of each was moved to a whole ns."""
    copies = trace.where(kind="memcpy")
    start_ns, end_ns = copies.array("start_ns"), copies.array("end_ns")
    beside = (start_ns[:, None] < end_ns) & (start_ns < end_ns[:, None])
    return int((beside.sum(axis=1) > 1).sum())


@pytest.mark.parametrize("seed", range(12))
def test_copies_that_make_the_host_wait_are_causes(seed):
    program = why_programs.draw("copies", seed)
    ran = why_programs.run(program)
    whole_ns, path = ran.length_ns(), gs.analysis.critical_path(ran.trace)
    for at, span in list(ran.rows.items())[:3]:
        moved = why_programs.run(program.delayed(at, 150_000)).length_ns() - whole_ns
        assert abs(moved - max(0, 150_000 - path.slack(span))) <= 1
    gains = {
        change.about: change
        for change in gs.analysis.what_would_help(ran.trace).changes
        if "twice as fast" in change.change
    }
    for name, change in gains.items():
        gained = whole_ns - why_programs.run(program.with_faster(name, 2.0)).length_ns()
        assert change.low_ns - 1 <= gained <= change.high_ns + 1, name
        assert change.low_ns == change.high_ns, "nothing competes"


def test_a_wait_leads_to_its_work_and_that_to_its_launch():
    trace = rows(
        launch(1, 1, 100, 110), kernel(2, "k", 120, 500, 110),
        wait(3, "cudaStreamSynchronize", 130, 530, stream=7), launch(4, 1, 600, 610),
        kernel(5, "k", 620, 700, 610), edges=[(1, 2, "launch"), (4, 5, "launch")],
    )  # fmt: skip
    path = gs.analysis.critical_path(trace)
    assert told(path) == [
        ("launch call", 1, 10), ("on the way", 2, 10), ("running", 2, 380), ("not looking", 3, 30),
        ("host", None, 70), ("launch call", 4, 10), ("on the way", 5, 10), ("running", 5, 80),
    ]  # fmt: skip
    assert path.inferred == ("host wait",)
    assert path.by("kernel") == {"k": 460, None: 140}


def test_a_wait_that_found_work_done_is_the_hosts_own_time():
    trace = rows(
        launch(1, 1, 100_000, 110_000), kernel(2, "k", 120_000, 150_000, 110_000),
        wait(3, "cudaDeviceSynchronize", 300_000, 303_000), edges=[(1, 2, "launch")],
    )  # fmt: skip
    path = gs.analysis.critical_path(trace)
    assert told(path) == [("launch call", 1, 10_000), ("host", None, 190_000), ("call", 3, 3_000)]
    assert 140_000 < path.slack(2) < 153_000, "it may end when the wait would still see it in time"


@pytest.mark.parametrize(("blocks", "held"), [(200, True), (60, False)])
def test_a_kernel_waits_for_sms_only_of_one_that_leaves_it_none(blocks, held):
    config = {"launch_config": f'{{"grid":[{blocks},1,1],"block":[128,1,1]}}', "device": 0}
    spans = [
        launch(1, 1, 0, 10_000), kernel(2, "long", 12_000, 900_000, 10_000),
        launch(3, 1, 10_000, 20_000), kernel(4, "late", 900_000, 950_000, 20_000, stream=8),
        launch(5, 1, 20_000, 30_000), kernel(6, "soon", 960_000, 970_000, 958_000, stream=9),
    ]  # fmt: skip
    for span in spans[1::2]:
        span[-1].update(config)
    trace = rows(
        *spans, edges=[(1, 2, "launch"), (3, 4, "launch")],
        devices={"cuda:0": {"index": 0, "sm_count": 132}},
    )  # fmt: skip
    path = gs.analysis.critical_path(trace, 4)
    ran = [part.span for part in path.parts if part.kind == "running"]
    assert ran == ([2, 4] if held else [4])
    assert (path.slack(2) == 0) is held
    assert ("SMs held" in path.inferred) is held


def test_slack_of_what_never_leads_to_an_end_is_none():
    trace = rows(
        launch(1, 1, 100, 110), kernel(2, "a", 120, 150, 110), launch(3, 1, 110, 120),
        kernel(4, "b", 130, 900, 120, stream=8), edges=[(1, 2, "launch"), (3, 4, "launch")],
    )  # fmt: skip
    assert gs.analysis.critical_path(trace).slack(2) == 750
    to_first = gs.analysis.critical_path(trace, 2)
    assert (to_first.slack(2), to_first.slack(1), to_first.slack(4)) == (0, None, None)
    with pytest.raises(MissingEvidence):
        to_first.slack(99)


def test_a_copy_that_blocks_its_call_is_on_the_path():
    trace = rows(
        wait(1, "cudaMemcpy", 0, 1_000),
        (2, "memcpy", "HtoD copy", 300, 900, {"stream": 7, "queued_ns": 300, "process": 1}),
        edges=[(1, 2, "launch")],
    )
    path = gs.analysis.critical_path(trace)
    assert told(path) == [("launch call", 1, 300), ("copy", 2, 600), ("not looking", 1, 100)]


def test_threads_that_take_turns_wait_for_each_other():
    spans, edges, at = [], [], 0
    for turn in range(6):
        for thread in (1, 2):
            for _ in range(20):
                number = len(spans) + 1
                spans.append(launch(number, thread, at, at + 5))
                at += 10
            at += 100 * (turn + 1)
    path = gs.analysis.critical_path(rows(*spans, edges=edges))
    assert path.inferred == ("turn",)
    assert set(path.by("thread")) == {1, 2}
    apart = rows(*(launch(n, n % 2, 10 * n, 10 * n + 5) for n in range(1, 100)))
    assert gs.analysis.critical_path(apart).inferred == ()


def test_a_thread_goes_on_when_it_was_started_and_when_something_was_handed_over():
    trace = rows(
        launch(1, 1, 0, 100), wait(2, "Thread.start", 100, 150), launch(3, 2, 200, 400),
        wait(4, "Queue.put", 400, 410, thread=2), wait(5, "Queue.get", 160, 430),
        launch(6, 1, 430, 450), edges=[(2, 3, "thread start"), (4, 5, "hand-over")],
    )  # fmt: skip
    assert told(gs.analysis.critical_path(trace)) == [
        ("call", 1, 100), ("call", 2, 50), ("thread start", 3, 50), ("call", 3, 200),
        ("call", 4, 10), ("hand-over", 5, 20), ("call", 6, 20),
    ]  # fmt: skip


def test_the_path_to_a_range_begins_with_it():
    gpu = gs.open_device("sim:h200", quiet=True)
    spin = gs.workloads.spin_kernel(gpu)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        stream.launch(spin, 100_000, grid=1, block=32)
        stream.synchronize()
        with gs.annotate("step"):
            stream.launch(spin, 200_000, grid=1, block=32)
            stream.synchronize()
        stream.launch(spin, 300_000, grid=1, block=32)
    (step,) = recording.trace.where(kind="range").spans.to_pylist()
    for to in ("step", step["id"], SimpleNamespace(**step)):
        path = gs.analysis.critical_path(recording.trace, to)
        assert (path.start_ns, path.end_ns) == (step["start_ns"], step["end_ns"])
        assert path.by("kernel")["spin"] == 200_000
        assert path.by("range") == {"step": path.end_ns - path.start_ns}
    for wrong, error in (("no step", NotFound), (1 << 60, MissingEvidence), (1.5, InvalidArgument)):
        with pytest.raises(error):
            gs.analysis.critical_path(recording.trace, wrong)


def test_lines_and_names_are_those_of_calls():
    site = '[["train.py", 7, "step"]]'
    trace = rows(
        launch(1, 1, 100, 110, site), kernel(2, "k", 120, 500, 110), edges=[(1, 2, "launch")],
    )  # fmt: skip
    assert gs.analysis.critical_path(trace).by("line") == {
        None: 390, "train.py:7 in step": 10
    }  # fmt: skip


def test_the_path_goes_across_ranks():
    spans, edges = [], [(1, 2, "launch"), (3, 4, "launch"), (4, 2, "collective")]
    for process, (call, work, start) in enumerate([(1, 2, 100), (3, 4, 700)]):
        more = {"thread": 1, "process": process}
        spans.append((call, "api", "cudaLaunchKernel", start - 20, start - 10, more))
        more = {"stream": 7 + process, "queued_ns": start - 10, "process": process}
        spans.append((work, "kernel", "ncclAllReduce", start, 900 + process, more))
    ranks = tuple({"rank": rank, "world_size": 2, "process": rank} for rank in range(2))
    path = gs.analysis.critical_path(rows(*spans, edges=edges, ranks=ranks), 2)
    assert [(part.kind, part.span, part.rank) for part in path.parts] == [
        ("start-up", None, 1), ("launch call", 3, 1), ("on the way", 4, 1), ("running", 2, 0),
    ]  # fmt: skip
    assert path.slack(4) is None


def test_a_trace_without_calls_has_no_path():
    with pytest.raises(MissingEvidence):
        gs.analysis.critical_path(rows())


def test_of_works_that_ended_together_path_and_parts_name_one():
    trace = rows(
        launch(1, 1, 0, 10), kernel(2, "a", 20, 1_020, 10), launch(3, 1, 10, 20),
        kernel(4, "b", 30, 1_020, 20, stream=8), launch(5, 1, 20, 30),
        kernel(6, "behind", 1_030, 1_130, 30, stream=9),
        edges=[(1, 2, "launch"), (3, 4, "launch"), (5, 6, "launch"),
               (2, 6, "event wait"), (4, 6, "event wait")],
    )  # fmt: skip
    waits = [part.span for part in gs.analysis.parts(trace, 6) if part.kind == "event wait"]
    spans = [
        part.span for part in gs.analysis.critical_path(trace, 6).parts if part.kind == "running"
    ]
    assert waits == [2]
    assert spans == [2, 6]
