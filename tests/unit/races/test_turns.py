"""Threads of a watched program take turns: who counts as standing still, and Ctrl-C in a wait."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from patience import PATIENCE_S

import gpuscope as gs
from gpuscope import _interrupts
from gpuscope.experiments.profiling import profile
from gpuscope.races import turns, watch
from gpuscope.races.turns import State, ThreadTurns
from gpuscope.workloads import Step

MS = 1_000_000
ME = threading.get_native_id()
WAITS, WAITS_TOO = -1, -2
"""Threads that wait, while this one is looked at."""
MANY = 200
"""So many looks are more than are ever needed."""
FEW = 15

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing tells what threads do")


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


class Told:
    """What the system tells of this thread; all others have ended."""

    def __init__(self, monkeypatch):
        self.sleeps, self.slept_between, self.letters = 0, 1, itertools.repeat("S")
        monkeypatch.setattr(turns, "state", self.state)
        monkeypatch.setattr(turns, "time", SimpleNamespace(sleep=lambda _: None))

    def state(self, task):
        if task != ME:
            return None
        self.sleeps += self.slept_between
        return State(next(self.letters), self.sleeps, 0.0)


@pytest.fixture
def told(monkeypatch):
    assert threading.get_native_id() == ME
    return Told(monkeypatch)


@pytest.fixture
def taking_turns(gpu, told):
    with ThreadTurns(gpu) as taking:
        yield taking


def looks_until_it_stands(taking, act=lambda: None):
    """Return after how many looks this thread counts as standing; ``None``: never."""
    for count in range(1, MANY):
        if taking.others_stand(WAITS):
            return count
        act()
    return None


def test_a_thread_that_asks_with_short_sleeps_counts_as_standing_after_some_looks(taking_turns):
    needed = looks_until_it_stands(taking_turns)
    assert needed is not None
    assert needed > FEW, "a thread that is about to launch sleeps now and then, too"


def test_so_it_does_whatever_it_is_doing_at_the_moment(taking_turns, told):
    assert looks_until_it_stands(taking_turns)
    told.letters = itertools.repeat("R")
    assert taking_turns.others_stand(WAITS)


CALLS = {
    "launches": lambda stream, step, gemm: step.execute(stream=stream),
    "launches a product": lambda stream, step, gemm: gemm.execute(stream=stream),
    "records an event": lambda stream, step, gemm: stream.record(),
    "asks": lambda stream, step, gemm: stream.is_done,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_thread_that_calls_the_device_between_its_sleeps_never_stands(gpu, taking_turns, call):
    step = Step(gpu, MS, name="step")
    with (
        profile(gpu),
        gpu.create_stream() as stream,
        gs.Gemm(gpu, m=6, n=5, k=4, dtype="float32") as gemm,
    ):
        assert looks_until_it_stands(taking_turns, lambda: call(stream, step, gemm)) is None
        assert looks_until_it_stands(taking_turns), "until it makes no more calls"
        call(stream, step, gemm)
        needed = looks_until_it_stands(taking_turns)
    assert needed is not None
    assert needed > FEW, "from its last call on"


def test_a_look_counts_only_if_the_thread_went_to_sleep_again(taking_turns, told):
    """Else it may be about to launch, and the machine be too busy to let it."""
    told.letters = itertools.cycle("SR")
    assert looks_until_it_stands(taking_turns) is None


def test_looks_of_several_threads_at_the_same_time_count_once(taking_turns, told, monkeypatch):
    naps = []

    def nap(_seconds):
        naps.append(1)
        if len(naps) % 2:  # the second look begins and ends within the first one
            taking_turns.others_stand(WAITS_TOO)

    monkeypatch.setattr(turns, "time", SimpleNamespace(sleep=nap))
    needed = looks_until_it_stands(taking_turns)
    assert needed is not None
    assert needed > FEW


def test_after_time_has_passed_who_asks_is_looked_at_again_but_not_as_often(taking_turns):
    first = looks_until_it_stands(taking_turns)
    taking_turns.wait(WAITS_TOO, lambda: True)
    again = looks_until_it_stands(taking_turns)
    assert 1 < again < first


def test_a_thread_that_stands_is_known_at_once(taking_turns, told):
    told.slept_between = 0
    assert looks_until_it_stands(taking_turns) == 1


def test_a_program_may_ask_with_short_sleeps_for_what_follows_a_wait(gpu):
    found = []

    def program():
        flags = []

        def ask():
            while not flags:
                time.sleep(0.002)
            found.append(gpu.now_ns())

        asking, step = threading.Thread(target=ask), Step(gpu, 3 * MS, name="step")
        asking.start()
        try:
            with gpu.create_stream() as stream:
                for _ in range(3):
                    step.execute(stream=stream)
                    stream.synchronize()
        finally:
            flags.append(True)
            asking.join()

    with watch(gpu, PATIENCE_S / 10):
        program()
    assert found


WAIT = {
    "a wait": lambda taking: taking.wait(WAITS, lambda: False),
    "many questions": lambda taking: [taking.ask(WAITS, "work", lambda: False) for _ in range(99)],
}


@pytest.mark.parametrize("wait", WAIT.values(), ids=WAIT)
@pytest.mark.parametrize("letter", ["R", "S"])
def test_ctrl_c_is_raised_in_a_wait_and_nothing_of_it_is_left(
    taking_turns, told, monkeypatch, wait, letter
):
    looks = []

    def state(task):
        looks.append(task)
        assert len(looks) < 10_000, "it waits on and on"
        if taking_turns.is_waited_for or letter == "R":
            monkeypatch.setattr(_interrupts, "pending", True)
        return told.state(task)

    told.letters = itertools.repeat(letter)
    monkeypatch.setattr(turns, "state", state)
    with pytest.raises(KeyboardInterrupt):
        wait(taking_turns)
    assert not _interrupts.pending
    assert not taking_turns.is_waited_for
    monkeypatch.setattr(turns, "state", lambda _: None)
    taking_turns.wait(WAITS_TOO, lambda: True)
