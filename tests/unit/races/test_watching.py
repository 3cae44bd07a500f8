"""A program that is watched is stopped in time, whatever it does, and nothing is left behind."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from types import SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope._text import clean
from gpuscope.races import Misbehaved, watching
from gpuscope.races.turns import ThreadTurns
from gpuscope.races.watching import Bounded, HostFunctions

CPU = gs.open_device("cpu", quiet=True)


def bounded(seconds):
    return Bounded(seconds, HostFunctions(CPU), ThreadTurns(CPU))


def test_a_loop_is_stopped_wherever_it_is():
    """Not in coverage's code, which takes a lock at each of the loop's calls."""
    for _ in range(300):
        with pytest.raises(Misbehaved, match="did not end"), bounded(0.001):
            while True:
                clean("a")


@pytest.mark.parametrize("late_s", [1_000.0, 0.0], ids=["it would wait", "it would raise"])
def test_a_tick_while_a_block_is_left_stops_nothing(monkeypatch, late_s):
    """What raised there left the ticks behind; what waited had one come when none was expected."""
    now_s, rearmed, ticked = [0.0], [], set()
    monkeypatch.setattr(watching, "_MOST_LATE_S", late_s)
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    before, set_before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)

    def tick(frame, event, function):
        stack = (inner.f_code for inner, _ in traceback.walk_stack(frame))
        if Bounded.__exit__.__code__ not in stack or event == "c_call":
            return
        ticked.add(frame.f_code.co_name)
        handler(signal.SIGALRM, frame)
        if function is signal.setitimer:
            rearmed.append(signal.getitimer(signal.ITIMER_REAL)[0])

    with bounded(60.0):
        handler, now_s[0] = signal.getsignal(signal.SIGALRM), 61.0
        sys.setprofile(tick)
    sys.setprofile(None)
    assert {"__exit__", "signal"} <= ticked, "the standard library's signal is Python, too"
    assert rearmed[0] == 0, "nothing comes when the handler is gone"
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == pytest.approx(set_before[0], abs=120)


def test_what_is_half_done_inside_of_gpuscope_is_ended_before_a_program_is_stopped(monkeypatch):
    monkeypatch.setattr(watching, "_MOST_LATE_S", 1_000.0)
    source = "def work():\n    time.sleep(0.2)\n    done.append(True)"
    names = {"__name__": "gpuscope.device.made_up", "time": time, "done": []}
    exec(source, names)  # noqa: S102 - so that it is of such a module
    with pytest.raises(Misbehaved, match="did not end"), bounded(0.01):
        names["work"]()
        time.sleep(1_000)
    assert names["done"] == [True]
