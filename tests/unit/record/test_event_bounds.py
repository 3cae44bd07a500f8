"""What two events and three host times say of a launch: bounds that hold if the assumptions do.

The assumptions, as docs/recording.md states them: work begins behind the opening event and not in
the share SUBMITTED_AFTER of its launch call, and does not end in the share DONE_AFTER; where no
other stream of ours is busy it begins within LATENCY_NS of that call's return or QUEUED_NS of the
opening event; it ends within CLOSING_NS of a closing event that the GPU reached BEHIND_NS or more
after the host recorded it, else anywhere before it; and it takes as long as the shortest run of its
kind, or longer.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuscope.device.api import Kernel
from gpuscope.device.calls import Call
from gpuscope.errors import GpuscopeError
from gpuscope.record import events
from gpuscope.record.events import (
    BEHIND_NS,
    CLOSING_NS,
    DONE_AFTER,
    LATENCY_NS,
    QUEUED_NS,
    SUBMITTED_AFTER,
    Bracketed,
    EventSource,
    bounds,
)
from gpuscope.record.rows import Rows


def launch(opened=0, closed=10_000, launching=0, launched=3_000, recorded=4_000, key="k", stream=0):
    return Bracketed(opened, closed, launching, launched, recorded, key, stream)


def holds(found, start, end):
    """Whether a true start and end are within the bounds."""
    return (
        found["start_ns"] <= start <= found["start_ns"] + found["start_uncertainty_ns"]
        and found["end_ns"] - found["end_uncertainty_ns"] <= end <= found["end_ns"]
    )


# -- a simulated truth -----------------------------------------------------------------------
def overlaps(one, others):
    return any(
        other.stream != one.stream and other.opened <= one.closed and other.closed > one.opened
        for other in others
    )


@st.composite
def timelines(draw):
    """Draw launches on a few streams, each with its true start and end."""
    durations = draw(st.lists(st.integers(0, 300_000), min_size=1, max_size=3))
    truths = []
    for stream in range(draw(st.integers(1, 3))):
        host = draw(st.integers(0, 100_000))
        gpu = 0  # when the stream's work so far is done
        for _ in range(draw(st.integers(0, 8))):
            kind = draw(st.integers(0, len(durations) - 1))
            host += draw(st.integers(0, 60_000))
            launching = host + draw(st.integers(200, 1_000))
            opened = max(gpu, launching + draw(st.integers(-900, 3_000)))
            launched = launching + draw(st.integers(900, 40_000))
            recorded = launched + draw(st.integers(200, 3_000))
            submitted, done = (
                launching + int(share * (launched - launching))
                for share in (SUBMITTED_AFTER, DONE_AFTER)
            )
            ready = max(opened, draw(st.integers(submitted, launched)))
            start = draw(st.integers(ready, max(launched + LATENCY_NS, opened + QUEUED_NS)))
            start = max(start, done - durations[kind])
            waits = draw(st.sampled_from([0, 0, 0, 100_000]))  # for SMs that others hold
            start += waits
            end = start + durations[kind]
            reached = recorded + draw(st.integers(-100, BEHIND_NS))
            closed = max(end + draw(st.integers(0, CLOSING_NS)), reached)
            one = Bracketed(opened, closed, launching, launched, recorded, kind, stream)
            truths.append((one, start, end, waits))
            host, gpu = recorded, closed
    while any(waits and not overlaps(one, [other for other, *_ in truths])
              for one, *_, waits in truths):  # fmt: skip
        truths = [  # it waited for something that no stream of ours did
            truth for truth in truths
            if not truth[-1] or overlaps(truth[0], [other for other, *_ in truths])
        ]  # fmt: skip
    return durations, draw(st.permutations(truths))


@given(timelines(), st.none() | st.integers(0, 20_000))
@settings(deadline=None)
def test_bounds_hold_for_every_truth_that_meets_the_assumptions(timeline, slack):
    """Whether nothing is known of a kind yet, or a shorter run of it was seen before."""
    durations, truths = timeline
    seen = {kind: max(0, took - (slack or 0)) for kind, took in enumerate(durations)}
    shortest = {} if slack is None else seen
    found = bounds([one for one, *_ in truths], shortest)
    for (one, start, end, _), bound in zip(truths, found, strict=True):
        assert holds(bound, start, end), (one, start, end)
    for kind, took in shortest.items():
        assert took <= durations[kind], "no run is taken to be longer than it was"


@given(timelines())
@settings(deadline=None)
def test_bounds_are_ordered_and_inside_the_bracket(timeline):
    launches = [one for one, *_ in timeline[1]]
    for one, bound in zip(launches, bounds(launches, {}), strict=True):
        assert one.opened <= bound["start_ns"] <= one.closed == bound["end_ns"]
        assert 0 <= bound["start_uncertainty_ns"] <= one.closed - bound["start_ns"]
        assert 0 <= bound["end_uncertainty_ns"] <= one.closed - bound["start_ns"]


@given(timelines())
@settings(deadline=None)
def test_the_shortest_run_of_a_kind_only_gets_shorter_and_no_uncertainty_larger(timeline):
    launches = [one for one, *_ in timeline[1]]
    shortest, seen = {}, []
    for one in launches:
        bounds([one], shortest)
        seen.append(dict(shortest))
    for before, after in itertools.pairwise(seen):
        assert all(after[key] <= value for key, value in before.items())
    assert set(shortest) <= {one.key for one in launches}
    assert all(value >= 0 for value in shortest.values())
    fresh, again = (bounds(launches, dict(shortest)) for _ in range(2))
    assert fresh == again


@given(timelines())
@settings(deadline=None)
def test_work_on_other_streams_is_found_as_by_looking_at_every_pair(timeline):
    launches = [one for one, *_ in timeline[1]]
    assert events._contended(launches) == [overlaps(one, launches) for one in launches]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 2)), max_size=12))
@example([(0, 10, 0), (10, 20, 1)])
@settings(deadline=None)
def test_brackets_that_touch_or_are_empty_are_found_as_by_looking_at_every_pair(brackets):
    launches = [
        launch(opened=at, closed=at + length, stream=stream) for at, length, stream in brackets
    ]
    assert events._contended(launches) == [overlaps(one, launches) for one in launches]


# -- single rules ----------------------------------------------------------------------------
def test_work_neither_begins_before_the_opening_event_nor_early_in_its_call():
    early, late = bounds(
        [launch(opened=100, launching=0, launched=30_000, closed=90_000, recorded=31_000),
         launch(opened=20_000, launching=0, launched=30_000, closed=90_000, recorded=31_000)],
        {"k": 1_000},
    )  # fmt: skip
    assert early["start_ns"] == SUBMITTED_AFTER * 30_000
    assert late["start_ns"] == 20_000


def test_work_alone_on_the_gpu_begins_soon_after_its_call():
    (alone,) = bounds([launch(closed=500_000, recorded=1)], {"k": 0})
    assert alone["start_ns"] + alone["start_uncertainty_ns"] == 3_000 + LATENCY_NS


def test_work_beside_another_stream_s_may_begin_as_late_as_its_length_allows():
    both = [launch(closed=500_000), launch(closed=400_000, stream=1, key="other")]
    found = bounds(both, {"k": 100_000, "other": 0})
    assert found[0]["start_ns"] + found[0]["start_uncertainty_ns"] == 400_000
    assert found[1]["start_ns"] + found[1]["start_uncertainty_ns"] == 400_000


def test_work_of_the_same_stream_is_no_contention():
    both = [launch(closed=500_000), launch(opened=400_000, closed=900_000)]
    assert events._contended(both) == [False, False]


def test_an_event_reached_long_after_it_was_recorded_is_close_to_the_work_s_end():
    behind, prompt = bounds(
        [launch(closed=4_001 + BEHIND_NS), launch(opened=20_000, closed=20_000 + BEHIND_NS,
                recorded=20_000, launching=20_000, launched=21_000)],
        {"k": 0},
    )  # fmt: skip
    assert behind["end_uncertainty_ns"] == CLOSING_NS
    assert prompt["end_uncertainty_ns"] > CLOSING_NS


def test_work_that_takes_as_long_as_its_bracket_is_bounded_tightly():
    (one,) = bounds([launch(opened=0, closed=1_003_000, recorded=4_000)], {"k": 1_000_000})
    assert one["start_uncertainty_ns"] <= 6_000
    assert one["end_uncertainty_ns"] <= CLOSING_NS


def test_a_queue_of_launches_costs_its_events_alone():
    """Launched before the GPU was ready for it: from one event to the other there is no host."""
    shortest = {}
    bounds([launch(opened=100_000, closed=150_000)], shortest)
    queued = 50_000 - QUEUED_NS - CLOSING_NS
    assert shortest["k"] == queued
    ends = 1_000 + events.LATENCY_NS + events.CLOSING_NS
    bounds([launch(opened=0, closed=queued + ends + 1, launched=1_000)], shortest)
    assert shortest["k"] == queued, "that one is longer"
    bounds([launch(opened=0, closed=queued + ends - 1, launched=1_000)], shortest)
    assert shortest["k"] == queued - 1


def test_a_run_whose_ends_are_not_known_well_tells_no_shortest():
    """Its launch call may have taken long, and other work may have held it up."""
    shortest = {}
    idle = launch(opened=0, closed=90_000, launched=85_000, recorded=88_000)
    (one,) = bounds([idle], shortest)
    assert one["end_uncertainty_ns"] == one["end_ns"] - int(DONE_AFTER * 85_000)
    bounds([launch(closed=50_000), launch(closed=60_000, stream=1)], shortest)
    assert shortest == {}


def test_work_shorter_than_the_events_cost_has_no_negative_length():
    shortest = {}
    (one,) = bounds([launch(opened=0, closed=2_000, launched=1_000)], shortest)
    assert shortest == {}
    assert one["start_ns"] + one["start_uncertainty_ns"] <= one["end_ns"]


def test_a_kernel_of_unknown_arguments_is_not_taken_to_be_as_long_as_another_of_its_name():
    """It runs 490 µs; with other arguments then 10, at the end of a bracket of 300."""
    shortest = {}
    bounds([launch(opened=5_000, closed=500_000, launched=4_000, key=None)], shortest)
    beside = launch(opened=0, closed=900_000, key="other", stream=1)
    found, _ = bounds([launch(opened=5_000, closed=305_000, key=None), beside], shortest)
    assert holds(found, 293_000, 303_000)


@pytest.mark.parametrize(
    ("facts", "known"),
    [({}, True), ({"launch_config": '{"grid":[1,1,1],"block":[32,1,1]}'}, False)],
)
def test_only_work_whose_length_its_call_tells_has_a_kind(facts, known):
    call = Call("launch", "k", "cuda:0", 1, 1, 0, None, None, **facts)
    assert (events._Bracket(call, None).kind is not None) is known
    copy = Call("copy", "copy", "cuda:0", 2, 1, 0, None, None)
    assert events._Bracket(copy, None).kind is None


def test_no_launches_have_no_bounds():
    assert bounds([], {}) == []


# -- the source ------------------------------------------------------------------------------
class Gpu:
    """A device whose events are reached when the test says."""

    def __init__(self):
        self.host_ns = 1_000_000
        self.info = SimpleNamespace(key="cuda:0", index=0, uuid="GPU-0", kind="cuda")
        self.backend = self
        self.next = itertools.count(1).__next__
        self.made = 0
        self.closed = []
        self.threads_that_may_ask = set()

    def now_ns(self):
        self.host_ns += 100
        return self.host_ns

    def make_stream(self, partition, priority, *, blocking=False):
        return SimpleNamespace(pending=None), 0

    def close_stream(self, raw, handle):
        pass

    def event_handle(self, event):
        return 0

    def make_event(self, *, timing):
        self.made += 1
        return SimpleNamespace(at=None)

    def close_event(self, raw):
        assert raw not in self.closed
        self.closed.append(raw)

    def record(self, event, stream, correlation):
        event.at = self.now_ns() if getattr(stream, "later", None) is None else stream.later

    def sync_event(self, event):
        self.host_ns += 2_000

    def event_done(self, event):
        assert threading.get_ident() in self.threads_that_may_ask, "it spoils captures"
        return event.at <= self.host_ns

    def elapsed_ns(self, start, end):
        if max(start.at, end.at) > self.host_ns:
            raise GpuscopeError("not ready")
        return end.at - start.at

    @contextlib.contextmanager
    def among_captures(self):
        self.threads_that_may_ask.add(threading.get_ident())
        yield
        self.threads_that_may_ask.discard(threading.get_ident())

    def compile(self, source, name, model):
        return Kernel(name, source, model)

    def launch(self, stream, kernel, grid, block, args, correlation):
        self.host_ns += 3_000

    def work(self, source, stream, number, *, opened, closed, name="k"):
        """Launch something whose events the GPU reaches at these times."""
        call = Call(
            "launch", name, "cuda:0", self.next(), threading.get_native_id(), self.now_ns(),
            SimpleNamespace(id=number, raw=stream, sm_count_target=0, partition=None), None,
        )  # fmt: skip
        stream.later = opened
        source.before(call)
        self.host_ns += 3_000
        call.end_ns = self.now_ns()
        stream.later = closed
        source.after(call)
        return call


@pytest.fixture
def gpu():
    return Gpu()


def started(gpu):
    source = EventSource(gpu)
    source.start()
    return source


@pytest.fixture
def source(gpu):
    return started(gpu)


def drained(source):
    rows = Rows()
    source.begin_reading()
    source.drain(rows)
    source.settle()
    return {row["correlation"]: row for row in rows.spans}


def test_brackets_become_rows_when_their_closing_event_is_reached(gpu, source):
    stream = SimpleNamespace()
    now = gpu.host_ns
    first = gpu.work(source, stream, 1, opened=now + 1_000, closed=now + 50_000)
    second = gpu.work(source, stream, 1, opened=now + 50_000, closed=now + 90_000)
    assert drained(source) == {}
    gpu.host_ns = now + 60_000
    assert list(drained(source)) == [first.correlation]
    gpu.host_ns = now + 100_000
    (row,) = drained(source).values()
    assert row["correlation"] == second.correlation
    assert (row["source"], row["kind"]) == ("events", "kernel")
    assert row["end_ns"] == pytest.approx(now + 90_000, abs=source._clock.residual_ns)


def test_a_call_whose_work_is_told_by_launches_inside_it_leaves_no_row(gpu, source):
    stream = SimpleNamespace(later=None)
    on = SimpleNamespace(id=1, raw=stream, sm_count_target=0, partition=None)
    call = Call("launch", "outer", "cuda:0", 77, 1, gpu.now_ns(), on, None)
    source.before(call)
    call.superseded, call.end_ns = True, gpu.now_ns()
    source.after(call)
    assert drained(source) == {}


def test_events_are_used_again_and_destroyed_at_the_end(gpu, source):
    stream = SimpleNamespace()
    for _ in range(50):
        now = gpu.host_ns
        gpu.work(source, stream, 1, opened=now + 10, closed=now + 20)
        drained(source)
    assert gpu.made < 20
    facts = source.close()["cuda:0"]
    assert len(gpu.closed) >= 2
    assert facts["empty_bracket_ns"] <= facts["empty_kernel_bracket_ns"]


def test_calls_that_nobody_reads_need_no_new_events_where_the_gpu_is_done(gpu, source):
    stream = SimpleNamespace()
    calls, times = [], []
    for _ in range(50):
        now = gpu.host_ns
        calls.append(gpu.work(source, stream, 1, opened=now + 10, closed=now + 20))
        times.append(now)
        if len(calls) == 2:
            made = gpu.made
    assert gpu.made - made <= 4
    rows = drained(source)
    residual = source._clock.residual_ns
    for call, now in zip(calls, times, strict=True):
        assert rows[call.correlation]["end_ns"] == pytest.approx(now + 20, abs=2 * residual)


def test_events_are_not_used_again_before_the_gpu_has_reached_them(gpu, source):
    stream = SimpleNamespace()
    late = gpu.host_ns + 10_000_000
    calls = [gpu.work(source, stream, 1, opened=late + n, closed=late + n + 5) for n in range(9)]
    assert drained(source) == {}
    gpu.host_ns = late + 100
    rows = drained(source)
    ends = [rows[call.correlation]["end_ns"] for call in calls]
    assert [end - ends[0] for end in ends] == list(range(9))


def test_no_event_is_two_brackets_while_one_thread_reads_and_others_launch(gpu, source):
    stream = SimpleNamespace()
    over, rows, most = threading.Event(), {}, 400

    def read():
        while not over.is_set():
            rows.update(drained(source))

    def launch():
        for _ in range(most):
            now = gpu.host_ns
            gpu.work(source, stream, 1, opened=now + 10, closed=now + 20)

    reader = threading.Thread(target=read)
    launching = [threading.Thread(target=launch) for _ in range(3)]
    for thread in (reader, *launching):
        thread.start()
    for thread in launching:
        thread.join()
    over.set()
    reader.join()
    gpu.host_ns += 1_000_000
    rows.update(drained(source))
    assert len(rows) == 3 * most
    spare = [event.raw for event in source._spare]
    assert len(spare) == len({id(raw) for raw in spare}), "given back once"


def contention(gpu, source, *, live):
    """A short kernel waits on one stream for a long one on another; read at the end, or often."""
    long, short = SimpleNamespace(), SimpleNamespace()
    base = gpu.host_ns
    for number in range(3):  # how long the short one takes is known
        at = base + 100_000 * number
        gpu.host_ns = at
        gpu.work(source, short, 2, opened=at + 1_000, closed=at + 14_000, name="short")
    gpu.host_ns = base + 400_000
    if live:
        drained(source)
    first = gpu.work(source, long, 1, opened=base + 401_000, closed=base + 2_401_000, name="long")
    waited = gpu.work(source, short, 2, opened=base + 405_000, closed=base + 1_400_000,
                      name="short")  # fmt: skip
    gpu.host_ns = base + 1_500_000
    found = drained(source) if live else {}
    gpu.host_ns = base + 3_000_000
    found |= drained(source)
    return found[first.correlation], found[waited.correlation]


def test_a_kernel_that_waited_for_another_stream_may_have_begun_late(gpu, source):
    _, waited = contention(gpu, source, live=False)
    assert waited["start_ns"] + waited["start_uncertainty_ns"] > waited["end_ns"] - 20_000


def test_rows_read_live_have_the_bounds_of_rows_read_at_the_end(gpu):
    """Also where the other stream's work is still on the GPU when a row is read."""
    at_end = contention(gpu, started(gpu), live=False)
    other = Gpu()
    live = contention(other, started(other), live=True)
    keys = ("start_uncertainty_ns", "end_uncertainty_ns")
    assert [[row[key] for key in keys] for row in live] == [
        [row[key] for key in keys] for row in at_end
    ]


def test_a_kernel_read_after_the_one_it_waited_for_may_have_begun_late(gpu, source):
    long, short = SimpleNamespace(), SimpleNamespace()
    base = gpu.host_ns
    gpu.work(source, short, 2, opened=base + 1_000, closed=base + 14_000, name="short")
    gpu.host_ns = base + 100_000
    gpu.work(source, long, 1, opened=base + 101_000, closed=base + 900_000, name="long")
    waited = gpu.work(source, short, 2, opened=base + 105_000, closed=base + 910_000, name="short")
    gpu.host_ns = base + 905_000
    assert len(drained(source)) == 2
    gpu.host_ns = base + 950_000
    row = drained(source)[waited.correlation]
    assert row["start_ns"] + row["start_uncertainty_ns"] > row["end_ns"] - 20_000
