"""Conditions on the trace of a learner's program: met, and each of them not met."""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from contextlib import nullcontext, suppress
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupti import World

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope.errors import InvalidArgument
from gpuscope.trace.facts import HazardFacts
from gpuscope.workloads import Step
from gpuscope_lessons.attempt import Attempt, Unmet

MS = 1_000_000


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


@pytest.fixture
def lesson(gpu):
    return learn.Lesson(7, "A lesson", gpu)


def check(lesson, program, *conditions):
    """Check that a program meets conditions; each is a method's name and its arguments."""

    def test(_chance):
        attempt = lesson.watch(program)
        for name, *arguments in conditions:
            if name == "not_held_up":
                attempt.not_held_up(arguments[0], by=arguments[1])
            else:
                getattr(attempt, name)(*arguments)
        return True

    return lesson.check("it", "Do it", test, ["Think."], rule="The rule.")


@pytest.fixture
def steps(gpu):
    """Return two steps, the second of which reads what the first one writes."""
    write = Step(gpu, 2 * MS, name="write")
    return write, Step(gpu, 3 * MS, name="read", after=[write])


@pytest.fixture
def streams(gpu):
    with gpu.create_stream(name="s") as s, gpu.create_stream(name="t") as t:
        yield s, t


def test_what_a_trace_shows_is_the_reason_that_is_told(lesson, steps, streams):
    (write, read), (s, t) = steps, streams

    def program():
        write.execute(stream=s)
        t.wait(s.record())
        read.execute(stream=t)

    feedback = check(
        lesson, program, ("ran", write, read), ("order", "write", "read"), ("in_stream", "read", streams[1]),
        ("returned_before", "write"), ("nothing_races",),
    )  # fmt: skip
    assert feedback.result.verdict == "solved"
    for words in (
        "It ran write, read", "write → read", "read ran in t", "did not wait for write",
        "nothing races among 2 accesses", "each of 3 sets",
    ):  # fmt: skip
        assert words in feedback.found
    assert "The rule: The rule." in feedback.html()
    bars = [one for one in feedback.figure.data if one.type == "bar" and "kernel" in one.name]
    assert {text for bar in bars for text in bar.text} == {"write", "read"}, "names are on the bars"


def both(steps, streams, *, wait_ns=0):
    steps[0].execute(stream=streams[0])
    if wait_ns:
        streams[0].synchronize()
    steps[1].execute(stream=streams[1])


@pytest.mark.parametrize(
    ("conditions", "wait_ns", "words"),
    [
        ([("ran",)], 0, "It shall run nothing; it ran write, read."),
        ([("order", "write", "read")], 0, "read began before write had ended"),
        ([("order", "read", "write")], 1, "write began before read had ended"),
        ([("together", "write", "read")], 1, "did not run at the same time"),
        ([("in_stream", "read", "S")], 0, "read ran in t, not in s"),
        ([("in_partition", "read", "p")], 0, "read ran in no partition, not in p"),
        ([("returned_before", "write")], 1, "The host waited"),
        ([("returned_after", "read")], 0, "returned before read had ended"),
        ([("never_waited",)], 1, "The host waited for write"),
        ([("nothing_races",)], 0, r"read after write\): nothing orders write \(in s\) before read"),
        ([("order", "write", "other")], 1, "other did not run"),
    ],
)
def test_a_condition_that_is_not_met_is_told(lesson, steps, streams, conditions, wait_ns, words):
    given = {"S": streams[0]}
    conditions = [[given.get(each, each) for each in one] for one in conditions]
    feedback = check(lesson, lambda: both(steps, streams, wait_ns=wait_ns), *conditions)
    assert feedback.result.verdict == "not solved"
    assert feedback.figure is not None
    assert re.search(words, feedback.found), feedback.found


WAITS = {
    "the stream is waited for": lambda gpu, s, t: s.synchronize(),
    "an event is waited for": lambda gpu, s, t: s.record().synchronize(),
    "the device is waited for": lambda gpu, s, t: gpu.synchronize(),
    "it asks until the stream is done": lambda gpu, s, t: until(lambda: s.is_done),
    "it asks until an event is done": lambda gpu, s, t: asked(s.record()),
    "a thread waits, and is waited for": lambda gpu, s, t: in_thread(s.synchronize),
    "another stream waits, and is waited for": lambda gpu, s, t: (t.wait(s.record()), t.synchronize()),
    "a host function behind it is waited for": lambda gpu, s, t: (
        s.host_call(lambda: None), s.record().synchronize()
    ),
}  # fmt: skip
BY_CHANCE = {
    "it sleeps on the GPU's clock": lambda gpu, s, t: gpu.backend.wait_until_ns(gpu.now_ns() + 9 * MS),
    "it looks at the clock": lambda gpu, s, t: until(lambda: later(gpu)),
    "it waits for another stream": lambda gpu, s, t: (later(gpu), t.synchronize()),
    "it asks a stream that was idle": lambda gpu, s, t: (later(gpu), t.is_done),
    "it asks for an event recorded before": lambda gpu, s, t: (later(gpu), gpu.create_event().is_done),
    "it asks for the time up to an event": lambda gpu, s, t: measured(gpu, s.record(), s.record()),
    "a host function of another stream": lambda gpu, s, t: (
        t.host_call(lambda: None), later(gpu), t.synchronize()
    ),
}  # fmt: skip


def until(holds):
    while not holds():
        pass


def asked(event):
    until(lambda: event.is_done)


def later(gpu):
    gpu.backend.wait_until_ns(gpu.now_ns() + 9 * MS)
    return True


def in_thread(act):
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def measured(gpu, first, second):
    later(gpu)
    return second.elapsed_ns(since=first)


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_wait_is_what_orders(gpu, lesson, steps, streams, wait):
    def program():
        steps[0].execute(stream=streams[0])
        wait(gpu, *streams)
        steps[1].execute(stream=streams[1])

    feedback = check(lesson, program, ("order", "write", "read"), ("nothing_races",))
    assert feedback.result.verdict == "solved", feedback.found

    def ending():
        steps[0].execute(stream=streams[0])
        wait(gpu, *streams)

    feedback = check(lesson, ending, ("returned_after", "write"))
    assert feedback.result.verdict == "solved", feedback.found
    assert "waited for write" in check(lesson, ending, ("never_waited",)).found
    held_up = check(lesson, program, ("not_held_up", "read", "write"))
    assert held_up.found == "The host waited for write before it launched read."


def test_a_wait_of_ours_is_one_for_the_gpu_where_cupti_records(monkeypatch):
    world = World(monkeypatch)
    with world.device.create_stream() as stream, world.profile(hazards=True) as recording:
        stream.synchronize()
    with pytest.raises(Unmet, match="done already"):
        Attempt(recording, []).never_waited()


def test_a_wait_for_a_thread_is_none_for_the_gpu():
    device = gs.open_device("cpu", quiet=True)
    lesson = learn.Lesson(7, "A lesson", device)

    def joins():
        thread = threading.Thread(target=time.sleep, args=(0.02,))
        thread.start()
        thread.join()

    with device.create_stream() as stream:
        assert check(lesson, joins, ("never_waited",)).result.verdict == "solved"
        waited = check(lesson, stream.synchronize, ("never_waited",))
    assert waited.found == "The host waited for what was done already."


@pytest.mark.parametrize("wait", BY_CHANCE.values(), ids=BY_CHANCE)
def test_what_was_over_by_chance_was_not_waited_for(gpu, lesson, steps, streams, wait):
    def program():
        steps[0].execute(stream=streams[0])
        wait(gpu, *streams)
        steps[1].execute(stream=streams[1])

    assert "only by chance" in check(lesson, program, ("order", "write", "read")).found

    def ending():
        steps[0].execute(stream=streams[0])
        wait(gpu, *streams)

    assert "only by chance" in check(lesson, ending, ("returned_after", "write")).found


def test_values_come_from_who_wrote_them(gpu, lesson, streams):
    s, _ = streams
    x, y, z = (gpu.asarray(np.full(4, value, "float32")) for value in (1, 2, 3))
    page = gpu.empty_pinned(4)
    step = Step(gpu, MS, name="step", after=[SimpleNamespace(array=y)])

    def program():
        s.copy(y, x)
        step.execute(stream=s)
        s.copy(z, step.array)
        s.copy(page, z)

    for path, solved in (
        ("x → copy → y", True), ("x → copy → step → copy → page", True),
        ("x → copy → y → step → z", True), ("z → copy → page", False),
        ("x → copy → y → step → copy → z → copy → page", True), ("copy → step", True),
        ("step → copy → page", True), ("y → step → copy → page", False), ("x → page", False),
        ("step → copy → y", False), ("x → copy → page", False), ("copy → x", False),
    ):  # fmt: skip
        attempt = lesson.watch(program)
        with nullcontext() if solved else pytest.raises(Unmet, match="did not go this way"):
            attempt.came(path, x=x, y=y, z=z, page=page)
    assert [work.stream for work in attempt.work("copy", reads=z, writes=page)] == [s.id]
    assert attempt.work("copy", reads=page) == []


@pytest.mark.parametrize("value", [7, 7.0, np.float32(7), np.array(7.0), Fraction(7), Decimal(7)])
def test_numbers_of_any_kind_are_numbers(lesson, value):
    assert lesson.watch(lambda: value).number() == 7
    assert lesson.watch(lambda: (value, 7)).numbers() == [7, 7]


class Seven(float):
    __hash__ = None

    def __eq__(self, other):
        return True


@pytest.mark.parametrize(
    "value", [Seven(), "7", True, math.nan, math.inf, [7], np.zeros(1), 7 + 0j, np.float64("nan")]
)
def test_what_only_looks_like_a_number_is_none(lesson, value):
    with pytest.raises(Unmet, match="shall return a"):
        lesson.watch(lambda: value).number()
    with pytest.raises(Unmet, match="shall return a"):
        lesson.watch(lambda: [7, value]).numbers()


def test_a_graph_is_one_that_was_captured(lesson, steps, streams):
    with streams[0].capture() as graph:
        steps[0].execute(stream=streams[0])
    assert lesson.watch(lambda: graph).graph() is graph
    graph.launch = lambda stream: steps[0].execute(stream=stream)
    for value in (graph, None, SimpleNamespace(launch=graph.launch)):
        with pytest.raises(Unmet, match="shall return the graph"):
            lesson.watch(lambda value=value: value).graph()
    del graph.launch
    graph.close()


def test_host_synchronisation_is_an_order_that_races_nothing(lesson, steps, streams):
    feedback = check(lesson, lambda: both(steps, streams, wait_ns=1), ("nothing_races",))
    assert feedback.result.verdict == "solved"


def test_a_kernel_that_was_cut_short_or_repeated_is_not_the_one_that_was_given(
    gpu, lesson, streams
):
    meant, short = Step(gpu, 2 * MS, name="it"), Step(gpu, MS, name="it")
    feedback = check(lesson, lambda: short.execute(stream=streams[0]), ("ran", meant))
    assert "it took 1,000 µs instead of 2,000" in feedback.found
    feedback = check(lesson, lambda: both((meant, meant), streams), ("ran", meant))
    assert feedback.found == "It shall run it; it ran 2 times it."


def test_what_nobody_saw_is_not_taken_for_harmless(lesson, steps, streams, monkeypatch):
    facts = HazardFacts(accesses=1, unseen=1, unseen_names=("mystery",), found=())
    result = SimpleNamespace(facts=facts)
    monkeypatch.setattr("gpuscope_lessons.attempt.hazards", lambda _trace: result)
    feedback = check(lesson, lambda: both(steps, streams), ("nothing_races",))
    assert feedback.found.endswith("what mystery reads and writes is unknown.")


def test_a_copy_is_counted(gpu, lesson, streams):
    x, y = gpu.empty(4), gpu.empty(4)
    feedback = check(lesson, lambda: streams[0].copy(x, y), ("ran",))
    assert feedback.found == "It shall run nothing; it ran copy."


def test_a_program_without_an_end_is_stopped_and_told_so(lesson, steps, streams):
    lesson.patience_s = 0.3

    def forever():
        both(steps, streams)
        while True:
            with suppress(Exception):  # as learners write it
                time.sleep(0.01)

    before = signal.getsignal(signal.SIGALRM)
    feedback = check(lesson, forever)
    assert "did not end within 0.3 s" in feedback.found
    assert feedback.figure is not None, "what it did until then"
    assert signal.getsignal(signal.SIGALRM) is before


def that_polls(gpu, two_steps, told, tell, asks):
    """Return a program that has a host function behind each of two steps tell, and then asks."""
    streams = [gpu.create_stream(name=name) for name in "st"]
    beat = gpu.create_stream(name="beat")

    def program():
        for step, stream in zip(two_steps, streams, strict=True):
            step.execute(stream=stream)
            stream.host_call(lambda: tell(told))
        while not asks(told):
            beat.record()

    return program


def test_a_host_that_asks_for_what_host_functions_leave_waits(lesson, gpu):
    steps = [Step(gpu, ms * MS, name=name) for ms, name in ((2, "brief"), (5, "lengthy"))]
    program = that_polls(gpu, steps, [], lambda told: told.append(1), lambda told: len(told) == 2)
    seen = lesson.watch(program)
    seen.returned_after("brief")
    seen.returned_after("lengthy")


def test_a_host_function_that_leaves_nothing_is_no_wait(lesson, gpu):
    step, s = Step(gpu, 2 * MS, name="step"), gpu.create_stream(name="s")

    def program():
        step.execute(stream=s)
        s.host_call(lambda: None)
        while gpu.now_ns() < seen_ns[0]:
            s.record()

    seen_ns = [gpu.now_ns() + 10 * MS]
    seen = lesson.watch(program)
    with pytest.raises(Unmet, match="only by chance"):
        seen.returned_after("step")


def test_a_host_function_long_before_the_return_is_no_wait(lesson, gpu):
    steps = [Step(gpu, ms * MS, name=name) for ms, name in ((2, "brief"), (5, "lengthy"))]
    until_ns = gpu.now_ns() + 20 * MS
    program = that_polls(
        gpu, steps, [], lambda told: told.append(1), lambda _: gpu.now_ns() > until_ns
    )
    seen = lesson.watch(program)
    for name in ("brief", "lengthy"):
        with pytest.raises(Unmet, match="only by chance"):
            seen.returned_after(name)


def counted(ask, told):
    """Ask some times more than until it was told, in one loop."""
    times = 0
    while times < 400:
        ask()
        times += bool(told)


SPINS = {
    "it asks an idle stream": lambda idle, busy, told: until(lambda: (idle.is_done, told)[1]),
    "it asks a busy stream": lambda idle, busy, told: until(lambda: (busy.is_done, told)[1]),
    "it records": lambda idle, busy, told: until(lambda: (idle.record(), told)[1]),
    "it counts": lambda idle, busy, told: counted(lambda: idle.is_done, told),
    "it asks for new events": lambda idle, busy, told: counted(lambda: idle.record().is_done, told),
    "it stands still": lambda idle, busy, told: until(lambda: told),
}


@pytest.mark.parametrize("spin", SPINS.values(), ids=SPINS)
def test_who_spins_on_a_host_function_and_dawdles_then_has_waited(
    gpu, lesson, steps, streams, spin
):
    (write, read), (s, busy) = steps, streams
    idle, late = gpu.create_stream(name="idle"), Step(gpu, 9 * MS, name="late")

    def program():
        told = []
        late.execute(stream=busy)
        write.execute(stream=s)
        s.host_call(lambda: told.append(1))
        spin(idle, busy, told)
        for _ in range(400):
            assert idle.is_done
        read.execute(stream=s)

    with idle, pytest.raises(Unmet, match="waited for write before it launched read"):
        lesson.watch(program).not_held_up("read", by="write")


MEANWHILE = {
    "it waits for another stream": lambda other: other.synchronize(),
    "it waits for another event": lambda other: other.record().synchronize(),
    "it asks until another stream is done": lambda other: until(lambda: other.is_done),
    "it asks until another event is done": lambda other: asked(other.record()),
    "it only queues work": lambda other: None,
}


@pytest.mark.parametrize("wait", MEANWHILE.values(), ids=MEANWHILE)
def test_a_host_function_that_ran_meanwhile_was_not_waited_for(lesson, gpu, streams, wait):
    brief, lengthy, last = (Step(gpu, ms * MS, name=f"for_{ms}_ms") for ms in (2, 5, 1))

    def program():
        told, (s, t) = [], streams
        brief.execute(stream=s)
        s.host_call(lambda: told.append(1))
        lengthy.execute(stream=t)
        wait(t)
        last.execute(stream=t)
        s.synchronize()
        assert told

    lesson.watch(program).not_held_up("for_1_ms", by="for_2_ms")


def test_time_passes_while_a_program_waits_for_a_host_function_and_orders_what_it_reads(
    lesson, gpu
):
    step, over = Step(gpu, 3 * MS, name="step"), threading.Event()
    page = gpu.empty_pinned(4)
    page[:] = 0

    def program():
        with gpu.create_stream(name="s") as s:
            step.execute(stream=s)
            s.copy(page, step.array)
            s.host_call(over.set)
            over.wait()
            return float(page[0])

    seen = lesson.watch(program)
    seen.nothing_races()
    seen.returned_after("step")
    assert seen.value == 2


def test_who_asks_for_a_time_until_it_is_there_has_waited(lesson, gpu):
    step, s = Step(gpu, 3 * MS, name="step"), gpu.create_stream(name="s")

    def program():
        first = s.record()
        step.execute(stream=s)
        second = s.record()
        while True:
            with suppress(gs.errors.StreamError):
                return second.elapsed_ns(since=first)

    seen = lesson.watch(program)
    seen.returned_after("step")
    assert 3 * MS <= seen.number() < 3.1 * MS


def test_a_query_tells_what_the_work_raised(gpu):
    def fail():
        raise RuntimeError("no luck")

    for ask in (lambda stream: stream, lambda stream: stream.record()):
        with gpu.create_stream() as stream:
            stream.host_call(fail)
            asked = ask(stream)
            with pytest.raises(RuntimeError, match="no luck"):
                while not asked.is_done:
                    pass
            assert asked.is_done, "it is told once"


def test_a_thread_that_never_ends_is_not_waited_for(lesson):
    lesson.patience_s = 0.3
    forever = threading.Event()
    thread = threading.Thread(target=forever.wait)

    def program():
        thread.start()
        thread.join()

    assert "did not end within 0.3 s" in check(lesson, program).found
    forever.set()
    thread.join()


def test_an_alarm_that_somebody_set_before_still_rings(lesson):
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        check(lesson, lambda: None)
        while not rung:
            signal.pause()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_durations_differ_from_run_to_run_and_not_from_check_to_check(lesson):
    drawn = []
    for _ in range(2):
        lesson.check("it", "Do it", lambda chance: drawn.append(chance.random()) or True)
    assert len(set(drawn)) == 3
    assert drawn[:3] == drawn[3:]


@pytest.mark.parametrize("name", ["long", "two words", "2nd", "", "a;", "größe", "a\n"])
def test_a_name_that_no_kernel_can_have_is_refused_on_every_device(gpu, name):
    for make in (lambda: Step(gpu, MS, name=name), lambda: gs.workloads.spin_kernel(gpu, name)):
        with pytest.raises(InvalidArgument, match=r"^name is "):
            make()
    assert Step(gpu, MS, name="_2nd").name == "_2nd"
