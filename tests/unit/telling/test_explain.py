"""Why a span started when it did: told in full on the simulator, honestly elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuscope as gs
from gpuscope._text import duration
from gpuscope.analysis import Part
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.workloads.spin import Spin

BIG = 4096


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


def work(trace, **equal):
    kinds = ("kernel", "memcpy", "host function")
    return sorted(
        trace.where(kind=kinds, **equal).spans.to_pylist(), key=lambda row: row["queued_ns"]
    )


def kinds(explanation):
    return [part.kind for part in explanation.parts]


def waits(explanation):
    """Return the kinds of parts between the launch call and running."""
    first, *between, last = kinds(explanation)
    assert (first, last) == ("launch call", "running")
    return between


def check(trace, row):
    """Check what must hold of the explanation of any simulated work; returns it."""
    found = gs.telling.explain(trace, row["id"])
    assert found.parts == gs.analysis.parts(trace, row["id"])
    by_id = {one["id"]: one for one in trace.spans.to_pylist()}
    call, *waited, running = found.parts
    assert call.kind == "launch call"
    assert call.start_ns == by_id[call.span]["start_ns"]
    assert call.end_ns == row["queued_ns"]
    at = call.end_ns
    for part in waited:
        assert part.start_ns == at, "parts follow one another"
        assert part.end_ns > at
        at = part.end_ns
    assert at == row["start_ns"] == found.at_ns
    assert (running.kind, running.start_ns, running.end_ns) == ("running", at, row["end_ns"])
    assert found.unexplained_ns == 0, str(found)
    assert found.doubts == ()
    for part in waited:
        cause = by_id[part.span]
        if part.kind == "on the way":
            assert part.span == call.span or cause["end_ns"] == part.start_ns
        elif part.kind in ("SMs held", "priority", "copy engine"):
            assert cause["start_ns"] < part.end_ns <= cause["end_ns"]
        else:
            assert cause["end_ns"] == part.end_ns
        if part.kind == "stream order":
            assert cause["stream"] == row["stream"]
        if part.kind in ("SMs held", "priority"):
            facts = trace.metadata.partitions
            names = (row["partition"], cause["partition"])
            sets = [set(facts[name].sm_ids) for name in names if name is not None]
            assert not sets or set.intersection(*sets), "it has SMs that the other needs"
    return found


# -- each part by itself ----------------------------------------------------------------


def test_an_event_then_the_sms_in_words(gpu):
    first = Spin(gpu, duration_ns=600_000, name="first")
    gemm = Spin(gpu, duration_ns=2_000_000, blocks=131, name="gemm")
    last = Spin(gpu, duration_ns=5_000_000, name="last")
    late = Spin(gpu, duration_ns=1000, blocks=2, name="late")
    with (
        gpu.create_stream(name="s0") as s0,
        gpu.create_stream(name="p0") as p0,
        gpu.create_stream(name="s1") as s1,
        gs.profile(gpu) as recording,
    ):
        first.execute(stream=s0)
        gemm.execute(stream=p0)
        gemm.execute(stream=p0)
        s1.wait(s0.record())
        last.execute(stream=s0)
        late.execute(stream=s1)
    trace = recording.trace
    (row,) = work(trace, category="late")
    found = check(trace, row)
    assert waits(found) == ["event wait", "on the way", "SMs held"]
    held = work(trace, category="gemm")[0]
    assert found.parts[3].span == held["id"]
    assert found.parts[3].end_ns == held["end_ns"]
    by_size = sorted(
        zip(found.parts, found.words, strict=True), key=lambda one: -one[0].duration_ns
    )
    told = ", ".join(f"{duration(part.duration_ns)} {words}" for part, words in by_size)
    total = duration(row["end_ns"] - found.parts[0].start_ns)
    assert str(found).splitlines()[0] == (
        f"kernel late, stream s1: {total} from its launch call to its end: {told}."
    )
    assert found.words[1] == "waiting for an event behind first in stream s0"
    assert found.words[3] == "waiting for SMs held by gemm on p0"


def test_an_idle_stream_leaves_launch_latency_alone(gpu):
    spin = Spin(gpu, duration_ns=10_000)
    with gpu.create_stream() as stream, gs.profile(gpu) as recording:
        spin.execute(stream=stream)
        stream.synchronize()
        spin.execute(stream=stream)
    constants = gpu.backend.profile.constants
    for row in work(recording.trace):
        found = check(recording.trace, row)
        assert waits(found) == ["on the way"]
        assert found.parts[1].duration_ns == constants["launch_latency_ns"]


def test_a_full_partition_holds_its_own_streams_and_no_others(gpu):
    with gpu.carve({"a": 16, "b": "rest"}) as parts:
        one, two = (parts["a"].create_stream(name=name) for name in ("one", "two"))
        other = parts["b"].create_stream(name="other")
        filling = [Spin(gpu, duration_ns=500_000, blocks=16, name=name) for name in "xyz"]
        with gs.profile(gpu) as recording:
            for spin, stream in zip(filling, (one, two, other), strict=True):
                spin.execute(stream=stream)
    found = [check(recording.trace, row) for row in work(recording.trace)]
    assert waits(found[0]) == waits(found[2]) == ["on the way"]
    assert waits(found[1]) == ["on the way", "SMs held"]
    assert "waiting for SMs held by x on one" in found[1].words


def test_copies_wait_for_their_engine(gpu):
    host = gpu.empty_pinned(1 << 20)  # from pageable memory a copy holds the host
    arrays = [gpu.empty(1 << 20) for _ in range(2)]
    with (
        gpu.create_stream(name="a") as a,
        gpu.create_stream(name="b") as b,
        gs.profile(gpu) as recording,
    ):
        a.copy(arrays[0], host)
        b.copy(arrays[1], host)
    first, second = work(recording.trace)
    assert waits(check(recording.trace, first)) == []
    found = check(recording.trace, second)
    assert waits(found) == ["copy engine"]
    assert found.parts[1].span == first["id"]


def test_a_host_function_holds_its_stream(gpu):
    def think():
        pass

    spin = Spin(gpu, duration_ns=1000)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        stream.host_call(think)
        spin.execute(stream=stream)
        stream.synchronize()
        spin.execute(stream=stream)
    row = work(recording.trace)[1]
    assert row["kind"] == "kernel"
    function = work(recording.trace)[0]
    assert function["kind"] == "host function"
    assert function["end_ns"] > function["start_ns"] == function["queued_ns"]
    check(recording.trace, row)


def test_an_event_recorded_on_a_stream_that_only_waited_orders_what_follows(gpu):
    spin = Spin(gpu, duration_ns=800_000, max_in_flight=2)
    with (
        gpu.create_stream(name="a") as a,
        gpu.create_stream(name="b") as b,
        gpu.create_stream(name="c") as c,
        gs.profile(gpu) as recording,
    ):
        spin.execute(stream=a)
        b.wait(a.record())
        c.wait(b.record())
        spin.execute(stream=c)
        b.synchronize()
    trace = recording.trace
    first, second = work(trace)
    found = check(trace, second)
    assert waits(found)[0] == "event wait"
    assert found.parts[1].span == first["id"]
    (sync,) = trace.where(kind="sync").spans.to_pylist()
    assert gs.analysis.parts(trace, sync["id"])[0].span == first["id"]


@pytest.mark.parametrize(("kind", "inside"), [("range", "in the range"), ("api", "in the call")])
def test_the_host_s_rows_do_not_run_and_begin_where_something_was(kind, inside):
    trace = Trace.from_columns(
        {
            "id": [1, 2, 3], "kind": ["kernel", kind, kind], "name": ["k", "first", "second"],
            "start_ns": [0, 20, 50], "end_ns": [10, 40, 60], "thread": [None, 1, 1],
            "stream": [7, None, None], "source": ["cupti"] * 3,
        }
    )  # fmt: skip
    first, second = (gs.telling.explain(trace, span) for span in (2, 3))
    assert first.words == ("in the host's program", inside)
    assert first.interval == "from the beginning of the trace to its end"
    assert second.words == ("in the host's program, after first returned", inside)
    assert second.interval == "from the call before to its end"


# -- what the host waited for -------------------------------------------------------------


def test_host_waits_and_handles_say_why_they_ended(gpu):
    big = gs.Gemm(gpu, m=BIG, n=BIG, k=BIG, name="big", max_in_flight=2)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        big.execute(stream=stream)
        big.execute(stream=stream)
        stream.synchronize()
        big.wait()
    trace = recording.trace
    first, last = work(trace)
    sync = next(row for row in trace.where(kind="sync").spans.to_pylist())
    calls = trace.where(kind="handle").spans.to_pylist()
    for row, kernel in ((sync, last), *zip(calls, (first, last), strict=True)):
        found = gs.telling.explain(trace, row["id"])
        assert found.parts[0].start_ns == row["start_ns"]
        assert found.parts[-1].end_ns == row["end_ns"] == found.at_ns
        for one, then in itertools.pairwise(found.parts):
            assert one.end_ns == then.start_ns
        *_, running, after = found.parts
        assert (running.kind, running.span, running.end_ns) == (
            "running", kernel["id"], kernel["end_ns"]
        )  # fmt: skip
        assert after.kind == "not looking"
    assert "stream order" in kinds(found)


def test_calls_and_ranges_say_what_the_host_did_before(gpu):
    spin = Spin(gpu, duration_ns=1000)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        spin.execute(stream=stream)
        stream.synchronize()
        gpu.backend.wait_until_ns(gpu.now_ns() + 3_000)
        with gs.annotate("step"):
            gpu.backend.wait_until_ns(gpu.now_ns() + 5_000)
    (row,) = recording.trace.where(kind="range").spans.to_pylist()
    found = gs.telling.explain(recording.trace, row["id"])
    assert kinds(found) == ["host", "running"]
    assert found.words[0] == "in the host's program, after stream.synchronize returned"
    assert (found.parts[1].start_ns, found.parts[1].end_ns) == (row["start_ns"], row["end_ns"])


# -- any program --------------------------------------------------------------------------

STREAMS, EVENTS = 5, 3
SOME_STREAM = st.integers(0, STREAMS - 1)
STEPS = st.one_of(
    st.tuples(st.just("spin"), SOME_STREAM, st.integers(1, 200), st.integers(1, 60)),
    st.tuples(st.just("gemm"), SOME_STREAM, st.sampled_from([64, 512, 2048])),
    st.tuples(st.just("copy"), SOME_STREAM, st.integers(0, 2)),
    st.tuples(st.just("host"), SOME_STREAM),
    st.tuples(st.just("record"), SOME_STREAM, st.integers(0, EVENTS - 1)),
    st.tuples(st.just("wait"), SOME_STREAM, st.integers(0, EVENTS - 1)),
    st.tuples(st.just("sync"), SOME_STREAM),
    st.tuples(st.just("idle"), st.integers(1, 100_000)),
)  # fmt: skip


class Program:
    """Runs steps on a simulated GPU and keeps what each piece of work must follow."""

    def __init__(self, gpu, streams, steps):
        self.gpu, self.streams, self.steps = gpu, streams, steps
        self.spins = [  # made now: making one waits for the device
            Spin(gpu, duration_ns=step[3] * 1000, blocks=step[2]) if step[0] == "spin" else None
            for step in steps
        ]
        self.gemms = {n: gs.Gemm(gpu, m=n, n=n, k=n, max_in_flight=64) for n in (64, 512, 2048)}
        self.host = np.zeros(100_000, np.float32)
        self.array, self.other = gpu.empty(100_000), gpu.empty(100_000)
        self.events = [gpu.create_event() for _ in range(EVENTS)]
        self.front = [set() for _ in streams]
        self.at_event = [set() for _ in range(EVENTS)]
        self.follows = []
        """For each piece of work, in launch order: the numbers of those that must end first."""

    def queued(self, index):
        self.follows.append(frozenset(self.front[index]))
        self.front[index] = {len(self.follows) - 1}

    def run(self):
        for spin, step in zip(self.spins, self.steps, strict=True):
            self.step(spin, *step)

    def step(self, spin, what, *more):
        if what == "idle":
            self.gpu.backend.wait_until_ns(self.gpu.now_ns() + more[0])
            return
        index = more[0] % len(self.streams)
        stream = self.streams[index]
        if what == "spin":
            spin.execute(stream=stream)
            self.queued(index)
        elif what == "gemm":
            self.gemms[more[1]].execute(stream=stream)
            self.queued(index)
        elif what == "copy":
            to, source = ((self.array, self.host), (self.host, self.array),
                          (self.array, self.other))[more[1]]  # fmt: skip
            stream.copy(to, source)
            self.queued(index)
        elif what == "host":
            stream.host_call(lambda: None)
            self.queued(index)
        elif what == "record":
            stream.record(self.events[more[1]])
            self.at_event[more[1]] = set(self.front[index])
        elif what == "wait":
            stream.wait(self.events[more[1]])
            self.front[index] |= self.at_event[more[1]]
        else:
            stream.synchronize()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=1, max_size=40))
def test_every_simulated_span_of_any_program_is_explained_in_full(steps):
    gpu = gs.open_device("sim:h200", quiet=True)
    latency, gap = gpu.info.launch_latency_ns, gpu.info.kernel_gap_ns
    with gpu.carve({"a": 16, "b": 24}) as parts:
        streams = [
            gpu.create_stream(name="whole"),
            gpu.create_stream(name="first", priority=-3),
            parts["a"].create_stream(name="a0"),
            parts["a"].create_stream(name="a1", priority=-1),
            parts["b"].create_stream(name="b0"),
        ]
        program = Program(gpu, streams, steps)
        with gs.profile(gpu) as recording:
            program.run()
        trace = recording.trace
        rows = sorted(work(trace), key=lambda row: row["id"])
        assert len(rows) == len(program.follows)
        for row, follows in zip(rows, program.follows, strict=True):
            found = check(trace, row)
            free = max((rows[number]["end_ns"] for number in follows), default=0)
            ordered = [r for r in found.parts if r.kind in ("event wait", "stream order")]
            called = row["queued_ns"]
            if row["kind"] == "kernel" and called + latency > free + gap:
                free = called  # before the launch had reached the GPU, all that was over
            assert max([called, *(r.end_ns for r in ordered)]) == max(called, free)
            if row["kind"] == "kernel":
                ready = max(row["queued_ns"] + latency, free + gap)
                waited = [r for r in found.parts if r.kind in ("SMs held", "priority")]
                assert bool(waited) == (row["start_ns"] > ready)
                if waited:
                    assert waited[0].start_ns == ready
        for stream in streams[:2]:
            stream.close()


def test_a_run_is_explained_in_full():
    experiment = {
        "name": "loaded", "rounds": 2, "alone_repeats": 2, "streams": {"s": {}, "l": {}},
        "workloads": {
            "small": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "s", "repeats": 20,
                      "arrival": "poisson", "rate_hz": 5000},
            "load": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "l",
                     "background": True, "max_queued": 6},
        },
        "settings": {
            "shared": {},
            "priority": {"streams": {"s": {"priority": -1}}},
            "16 | rest": {
                "partitions": {"a": 16, "b": "rest"},
                "streams": {"s": {"partition": "a"}, "l": {"partition": "b"}},
            },
        },
    }  # fmt: skip
    run = gs.run(experiment, "sim:h200")
    for trace in run.values():
        for row in work(trace):
            check(trace, row)
    held = [
        row for row in work(run["shared"], category="small")
        if "SMs held" in kinds(gs.telling.explain(run["shared"], row["id"]))
    ]  # fmt: skip
    assert held, "the load fills the GPU"
    for row in work(run["16 | rest"], category="small"):
        assert "SMs held" not in kinds(gs.telling.explain(run["16 | rest"], row["id"]))


# -- traces from elsewhere ----------------------------------------------------------------


def build(rows, edges=(), **metadata):
    columns = {
        name: [row.get(name) for row in rows] for name in dict.fromkeys(n for r in rows for n in r)
    }
    columns["id"] = list(range(len(rows)))
    ends = {
        "from": [edge[0] for edge in edges],
        "to": [edge[1] for edge in edges],
        "kind": [edge[2] for edge in edges],
    }
    return Trace.from_columns(columns, ends if edges else None, TraceMetadata(**metadata))


def kernel(name, start_ns, end_ns, stream=1, source="cupti", **facts):
    return {"kind": "kernel", "name": name, "start_ns": start_ns, "end_ns": end_ns, "device": 0,
            "stream": stream, "source": source, **facts}  # fmt: skip


def test_on_a_real_trace_candidates_are_called_candidates():
    trace = build(
        [
            kernel("a", 10_000, 20_000, queued_ns=6_000),
            kernel("b", 110_000, 200_000, queued_ns=106_000),
            kernel("c", 199_000, 210_000, stream=2, queued_ns=112_000),
        ]
    )
    found = gs.telling.explain(trace, 2)
    assert kinds(found) == ["on the way", "SMs held", "running"]
    assert found.parts[0].end_ns == 116_000, "what a launch took on the idle GPU"
    assert found.parts[1].span == 1
    assert "candidate, not proof" in str(found)


def test_what_nothing_accounts_for_is_unexplained():
    trace = build(
        [
            kernel("a", 10_000, 20_000, queued_ns=6_000),
            kernel("a", 30_000, 40_000, queued_ns=26_000),
            kernel("late", 90_000, 99_000, stream=2, queued_ns=50_000),
            kernel("then", 100_000, 110_000, stream=2, queued_ns=51_000),
        ],
        simulated=True,
    )
    found = gs.telling.explain(trace, 2)
    assert kinds(found) == ["on the way", "unexplained", "running"]
    assert found.unexplained_ns == 36_000
    assert str(found).splitlines()[0] == (
        "kernel late, stream 2: 49 µs from its launch call to its end: 36 µs waiting for something "
        "that this trace does not show, 9 µs running, 4 µs on the way to the GPU."
    )


def test_the_legacy_default_stream_stands_between_blocking_streams():
    trace = build(
        [
            kernel("a", 10_000, 50_000, stream=1, queued_ns=6_000),
            kernel("b", 54_000, 60_000, stream=0, queued_ns=7_000),
            kernel("c", 64_000, 70_000, stream=1, queued_ns=8_000),
            kernel("d", 13_000, 15_000, stream=2, queued_ns=9_000),
        ],
        streams={"0": {"name": "default", "legacy_default": True},
                 "1": {"name": "s1", "blocking": True}, "2": {"name": "s2"}},
        simulated=True,
    )  # fmt: skip
    assert "legacy default stream" in kinds(gs.telling.explain(trace, 1))
    assert [part.span for part in gs.analysis.parts(trace, 2)][:2] == [0, 1]
    assert "legacy default stream" not in kinds(gs.telling.explain(trace, 3))


def test_what_follows_a_graphs_launch_follows_its_last_node():
    trace = build(
        [
            kernel("a", 10_000, 20_000, queued_ns=6_000, graph=1, correlation=5),
            kernel("b", 21_000, 50_000, queued_ns=6_000, graph=1, correlation=5),
            kernel("c", 54_000, 60_000, stream=2, queued_ns=8_000),
            kernel("d", 64_000, 70_000, stream=3, queued_ns=9_000, graph=1, correlation=6),
            kernel("e", 71_000, 80_000, stream=3, queued_ns=9_000, graph=1, correlation=6),
            kernel("f", 1_000, 62_000, stream=4, queued_ns=500),
        ],
        [(0, 2, "event wait"), (0, 3, "graph"), (5, 3, "event wait")],
    )
    assert [part.span for part in gs.analysis.parts(trace, 2) if part.kind == "event wait"] == [1]
    for node in (3, 4):  # what the launch waited for, each of its nodes did
        found = {part.kind: part.span for part in gs.analysis.parts(trace, node)}
        assert found["graph order"] == 1
        assert found["event wait"] == 5


def test_what_follows_a_call_of_several_kernels_follows_the_last():
    trace = build(
        [
            kernel("product", 10_000, 20_000, queued_ns=6_000, external_correlation=4),
            kernel("reduce", 21_000, 25_000, queued_ns=6_000, external_correlation=4),
            kernel("after", 30_000, 40_000, stream=2, queued_ns=8_000, external_correlation=5),
        ],
        [(0, 2, "event wait")],
    )
    assert gs.analysis.parts(trace, 2)[0] == Part("event wait", 8_000, 25_000, 1)


def test_the_legacy_default_stream_is_one_and_the_per_thread_one_is_several():
    trace = build(
        [
            kernel("a", 10_000, 50_000, stream=1, queued_ns=6_000, thread=1),
            kernel("b", 54_000, 60_000, stream=2, queued_ns=7_000, thread=1),
            kernel("c", 70_000, 90_000, stream=3, queued_ns=61_000, thread=1),
            kernel("d", 91_000, 92_000, stream=3, queued_ns=62_000, thread=2),
            kernel("e", 93_000, 94_000, stream=3, queued_ns=63_000, thread=1),
        ],
        streams={**{str(one): {"name": "default", "legacy_default": True} for one in (1, 2)},
                 "3": {"name": "mine", "blocking": True, "per_thread": True}},
    )  # fmt: skip
    assert gs.analysis.parts(trace, 1)[0] == Part("stream order", 7_000, 50_000, 0)
    assert "stream order" not in kinds(gs.telling.explain(trace, 3))
    assert gs.analysis.parts(trace, 4)[0] == Part("stream order", 63_000, 90_000, 2)


def test_a_simulated_trace_without_its_constants_has_candidates_only():
    trace = build(
        [
            kernel("a", 10_000, 20_000, queued_ns=6_000, source="simulated"),
            kernel("b", 110_000, 200_000, queued_ns=106_000, source="simulated"),
            kernel("c", 200_000, 210_000, stream=2, queued_ns=112_000, source="simulated"),
        ],
        simulated=True,
    )
    found = gs.telling.explain(trace, 2)
    assert found.parts[-2].span == 1
    assert "candidate, not proof" in str(found)


def test_without_launch_ids_it_says_what_is_missing():
    trace = build([kernel("a", 10, 20), kernel("b", 25, 30)])
    with pytest.raises(gs.errors.MissingEvidence, match="launch ids"):
        gs.telling.explain(trace, 0)
    found = gs.telling.explain(trace, 1)
    assert found.parts == (Part("on the way", 20, 25, 0), Part("running", 25, 30, 1))
    assert any("When it was launched is not in the trace" in one for one in found.doubts)


def test_bracketing_events_and_clock_errors_are_doubts():
    trace = build(
        [
            kernel("a", 10_000, 30_000, source="events", queued_ns=9_000),
            kernel("b", 25_000, 50_000, source="events", queued_ns=26_000,
                   start_uncertainty_ns=4_000),
        ]
    )  # fmt: skip
    found = gs.telling.explain(trace, 1)
    said = " ".join(found.doubts)
    assert "started before its launch call returned" in said
    assert "up to 4 µs later" in said
    assert "Bracketing events" in said
    assert found.parts == (Part("running", 25_000, 50_000, 1),)


def test_rows_that_are_open_unlinked_or_gone_are_no_crash():
    handle = {"kind": "handle", "name": "g", "start_ns": 0, "end_ns": 9, "source": "host"}
    trace = build([handle, {**handle, "end_ns": None}, kernel("a", 5, None, queued_ns=2)])
    with pytest.raises(gs.errors.MissingEvidence, match="launch ids"):
        gs.telling.explain(trace, 0)
    with pytest.raises(gs.errors.MissingEvidence, match="not seen"):
        gs.telling.explain(trace, 1)
    assert gs.telling.explain(trace, 2).at_ns == 5
    dangling = build(
        [kernel("a", 5, 9, queued_ns=2), kernel("b", 20, 30, queued_ns=12)],
        edges=[(77, 1, "event wait"), (0, 88, "event wait")],
    )
    assert "event wait" not in kinds(gs.telling.explain(dangling, 1))


def test_rows_that_wait_for_nothing_and_rows_that_are_not_there():
    trace = build(
        [{"kind": "counter", "name": "power", "start_ns": 5, "source": "nsys", "value": 1.0}]
    )
    with pytest.raises(gs.errors.MissingEvidence, match="counter"):
        gs.telling.explain(trace, 0)
    with pytest.raises(gs.errors.MissingEvidence, match="no row 7"):
        gs.telling.explain(trace, 7)


def test_foreign_names_are_escaped_in_notebooks():
    trace = build([kernel("<script>", 10, 20, queued_ns=5), kernel("b", 30, 40, queued_ns=6)])
    html = gs.telling.explain(trace, 1)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_partitions_that_share_sms_hold_each_other_up():
    rows = [
        kernel("a", 4_000, 5_000, queued_ns=0, partition="x"),
        kernel("big", 14_000, 90_000, queued_ns=10_000, partition="x"),
        kernel("b", 90_000, 99_000, stream=2, queued_ns=20_000, partition="y"),
    ]
    for ids, kind in (([2, 3], "SMs held"), ([4, 5], "unexplained")):
        partitions = {"x": {"sm_ids": [0, 1, 2]}, "y": {"sm_ids": ids}}
        trace = build(rows, partitions=partitions, simulated=True)
        found = gs.telling.explain(trace, 2)
        assert kinds(found)[-2:] == [kind, "running"]


def test_the_host_s_program_is_told_by_the_functions_that_were_seen():
    line = '[["train.py", 7, "draw"], ["train.py", 9, "step"]]'
    spans = [
        {"id": 1, "kind": "api", "name": "cudaLaunchKernel", "start_ns": 0, "end_ns": 100},
        {"id": 2, "kind": "api", "name": "cudaLaunchKernel", "start_ns": 900, "end_ns": 1_000},
        {"id": 3, "kind": "stack", "name": "draw", "start_ns": 200, "end_ns": 800, "value": 6.0,
         "status": "holds Python's lock", "site": line, "payload": line},
    ]  # fmt: skip
    names = dict.fromkeys(name for span in spans for name in span)
    columns = {name: [span.get(name) for span in spans] for name in names}
    columns |= {"thread": [5] * 3, "process": [1] * 3, "source": ["host"] * 3}
    found = gs.telling.explain(Trace.from_columns(columns), 2)
    (function,) = found.functions
    assert (function.samples, function.share) == (6, pytest.approx(600 / 800))
    assert "draw" in str(function)
    assert "75 % by 6 samples" in str(found)
    alone = gs.telling.explain(Trace.from_columns(columns).where(kind="api"), 2)
    assert alone.functions == ()
