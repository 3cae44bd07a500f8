"""Which stream was selected when: guards on threads, nested, in tasks, and before a recording."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpuscope as gs
from gpuscope import CallerStreamGuard, get_caller_stream
from gpuscope.device import caller
from gpuscope.record.guards import NOTHING, UNSURE, SelectionLog

A, B, C = 0xA0, 0xB0, 0xC0
"""Streams: a guard takes any handle."""


@pytest.fixture
def log():
    log = SelectionLog()
    log.open()
    yield log
    log.close()
    assert caller.watchers() == (), "a test left a watcher behind"


@pytest.fixture
def sim():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


class Launches:
    """Moments on this thread, as launches have them, with what should be known of each."""

    def __init__(self):
        self.made = []

    def launch(self, *expected):
        """Launch; any of ``expected`` may be known of it."""
        time.sleep(1e-6)
        self.made.append((threading.get_native_id(), time.time_ns(), expected))
        time.sleep(1e-6)

    def known(self, log):
        numbers = log.selected(
            np.array([thread for thread, _, _ in self.made], np.uint32),
            np.array([when for _, when, _ in self.made], np.int64),
        )
        return [log.streams[one] if one >= 0 else one for one in numbers.tolist()]

    def check(self, log):
        for known, (_, _, expected) in zip(self.known(log), self.made, strict=True):
            assert known in expected


@pytest.fixture
def made():
    return Launches()


# -- one thread ------------------------------------------------------------------------------
def test_what_a_guard_selects_is_known_from_its_entry_to_its_exit(log, made):
    made.launch(NOTHING)
    with CallerStreamGuard(A):
        made.launch(A)
    made.launch(NOTHING)
    made.check(log)


def test_the_innermost_guard_counts_and_exits_restore(log, made):
    with CallerStreamGuard(A):
        made.launch(A)
        with CallerStreamGuard(B):
            made.launch(B)
            with CallerStreamGuard(A):
                made.launch(A)
            made.launch(B)
        made.launch(A)
        with contextlib.suppress(ZeroDivisionError), CallerStreamGuard(C):
            made.launch(C)
            raise ZeroDivisionError
        made.launch(A)
    made.launch(NOTHING)
    made.check(log)


def test_the_null_stream_is_a_selection(log, made):
    with CallerStreamGuard(0):
        made.launch(0)
    made.check(log)
    assert log.streams == [0]


def test_each_stream_has_one_number_however_often_it_is_selected(log):
    streams = [object.__new__(type("S", (), {"__cuda_stream__": lambda self: (0, 1)}))] * 2
    streams.append(object.__new__(type(streams[0])))
    for _ in range(3):
        for stream in streams:
            with CallerStreamGuard(stream):
                pass
    assert [id(one) for one in log.streams] == [id(streams[0]), id(streams[2])]


def test_a_guard_entered_before_the_recording_counts_and_its_exit_is_noted(made):
    log = SelectionLog()
    made.launch(NOTHING)
    with CallerStreamGuard(A):
        log.open()
        made.launch(A)
        with CallerStreamGuard(B):
            made.launch(B)
        made.launch(A)
    made.launch(NOTHING)
    log.close()
    made.check(log)


def test_what_guards_do_after_the_recording_is_not_noted(made):
    log = SelectionLog()
    log.open()
    with CallerStreamGuard(A):
        log.close()
        made.launch(A)
    with CallerStreamGuard(B):
        pass
    assert log.streams == [A]
    assert caller.watchers() == ()
    made.check(log)


def test_recordings_at_the_same_time_note_each_for_itself(made):
    one, two = SelectionLog(), SelectionLog()
    one.open()
    with CallerStreamGuard(A):
        two.open()
        made.launch(A)
        one.close()
    with CallerStreamGuard(B):
        made.launch(B)
    two.close()
    made.check(two)
    assert one.streams == [A]
    assert made.known(one)[0] == A


# -- threads ---------------------------------------------------------------------------------
def test_threads_have_selections_of_their_own(log, made):
    inside, over = threading.Barrier(4), threading.Barrier(4)

    def work(stream):
        made.launch(NOTHING)
        with CallerStreamGuard(stream):
            inside.wait()
            made.launch(stream)
            over.wait()
        made.launch(NOTHING)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in (A, B, C)]
    with CallerStreamGuard(B):
        for thread in threads:
            thread.start()
        inside.wait()
        made.launch(B)
        over.wait()
        for thread in threads:
            thread.join()
        made.launch(B)
    made.check(log)
    assert len(made.made) == 11


def test_many_threads_enter_at_once_and_nothing_is_mixed_up(log, made):
    def work(number):
        for turn in range(50):
            stream = 0x1000 * (1 + number) + turn % 3
            with CallerStreamGuard(stream):
                made.made.append((threading.get_native_id(), time.time_ns(), (stream,)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.check(log)


def test_a_thread_that_entered_no_guard_has_nothing_selected(log):
    with CallerStreamGuard(A):
        pass
    found = log.selected(np.array([1, 2], np.uint32), np.array([time.time_ns()] * 2, np.int64))
    assert found.tolist() == [NOTHING, NOTHING]


def test_what_was_selected_is_asked_of_no_launches_at_all(log):
    with CallerStreamGuard(A):
        pass
    assert log.selected(np.zeros(0, np.uint32), np.zeros(0, np.int64)).tolist() == []


def test_a_guard_that_another_thread_entered_before_the_recording_counts(made):
    """A worker may hold one guard for all its life."""
    log, inside, began = SelectionLog(), threading.Event(), threading.Event()

    def work():
        with CallerStreamGuard(A):
            inside.set()
            assert began.wait()
            made.launch(A)
            with CallerStreamGuard(B):
                made.launch(B)
            made.launch(A)
        made.launch(NOTHING)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait()
    log.open()
    began.set()
    thread.join()
    log.close()
    made.check(log)


def test_a_thread_that_ended_leaves_neither_its_guard_nor_its_current_stream_behind(sim):
    """What lets recordings look at other threads must not keep what those had."""
    left = []

    def work():
        left.append(weakref.ref(caller.get_current_stream(sim)))
        CallerStreamGuard(A).__enter__()  # never left: it goes when somebody asks for guards

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert left[0]() is None
    log = SelectionLog()
    log.open()
    log.close()
    assert log.streams == []


# -- tasks -----------------------------------------------------------------------------------
def run(main):
    asyncio.run(main)
    assert get_caller_stream() is None


def test_a_guard_in_a_task_counts_where_no_other_task_could_run(log, made):
    async def steady():
        made.launch(NOTHING)
        with CallerStreamGuard(A):
            made.launch(A)
            with CallerStreamGuard(B):
                made.launch(B)
            made.launch(A)
        made.launch(NOTHING)

    async def main():
        await asyncio.gather(steady(), steady())

    run(main())
    made.check(log)


def test_a_guard_held_over_an_await_counts_for_nobody(log, made):
    async def napping(others):
        with CallerStreamGuard(A):
            made.launch(UNSURE)
            await others.wait()
            made.launch(UNSURE)
        made.launch(NOTHING)

    async def other(others):
        made.launch(UNSURE)
        await asyncio.sleep(0)
        made.launch(UNSURE)
        others.set()

    async def main():
        others = asyncio.Event()
        await asyncio.gather(napping(others), other(others))

    run(main())
    made.check(log)


def test_one_that_awaits_does_not_spoil_those_before_and_after_it(log, made):
    async def main():
        with CallerStreamGuard(A):
            made.launch(A)
        with CallerStreamGuard(B):
            await asyncio.sleep(0)
            made.launch(UNSURE)
        with CallerStreamGuard(C):
            made.launch(C)

    run(main())
    made.check(log)


def test_to_be_asked_again_and_again_changes_nothing(log, made):
    async def held():
        with CallerStreamGuard(B):
            made.launch(B, UNSURE)
            assert made.known(log)[-1] == B  # asked while nobody else can have run …
            await asyncio.sleep(0)

    for _ in range(3):
        with CallerStreamGuard(A):
            made.launch(A)
            made.check(log)
        asyncio.run(held())
        assert made.known(log)[-1] == UNSURE  # … and when others may have
        made.check(log)
        made.launch(NOTHING)


def test_guards_of_tasks_that_interleave_count_for_nobody(log, made):
    async def task(stream, turns):
        with CallerStreamGuard(stream):
            for _ in range(turns):
                made.launch(UNSURE)
                await asyncio.sleep(0)
            made.launch(UNSURE)
            with CallerStreamGuard(C):
                made.launch(UNSURE)

    async def main():
        await asyncio.gather(task(A, 1), task(B, 4), task(A, 2))

    run(main())
    made.check(log)


def test_an_await_in_an_inner_guard_spoils_the_outer_one_too(log, made):
    async def main():
        with CallerStreamGuard(A):
            made.launch(UNSURE)
            with CallerStreamGuard(B):
                made.launch(UNSURE)
                await asyncio.sleep(0)
                made.launch(UNSURE)
            made.launch(UNSURE)

    run(main())
    made.check(log)


def test_while_it_runs_a_guard_held_over_an_await_already_counts_for_nobody(log, made):
    """Rows that are read live must not claim what is unsure already."""
    known = []

    async def napping(others):
        with CallerStreamGuard(A):
            await others.wait()

    async def other(others):
        await asyncio.sleep(0)
        made.launch(UNSURE)
        known.extend(made.known(log))
        others.set()

    async def main():
        others = asyncio.Event()
        await asyncio.gather(napping(others), other(others))

    run(main())
    assert known == [UNSURE]
    made.check(log)


def test_a_recording_begun_inside_a_task_s_guard_knows_that_others_may_run(made):
    log = SelectionLog()

    async def napping():
        with CallerStreamGuard(A):
            log.open()
            await asyncio.sleep(0.002)
            made.launch(A, UNSURE)
        made.launch(NOTHING)

    async def other():
        await asyncio.sleep(0.001)
        made.launch(NOTHING, UNSURE)

    async def main():
        await asyncio.gather(napping(), other())

    run(main())
    log.close()
    made.check(log)


def test_a_recording_begun_inside_a_guard_of_a_task_that_awaits_nothing_knows_it(made):
    log = SelectionLog()

    async def main():
        with CallerStreamGuard(A):
            log.open()
            made.launch(A)
        made.launch(NOTHING)

    run(main())
    log.close()
    made.check(log)


def test_launches_behind_tasks_inside_a_thread_s_guard_are_not_given_to_nobody_for_sure(log, made):
    """Nothing tells when the loop ends: in its tasks nothing is selected, behind it A is."""

    async def main():
        with CallerStreamGuard(B):
            made.launch(B)

    with CallerStreamGuard(A):
        made.launch(A)
        asyncio.run(main())
        made.launch(A, UNSURE)
        with CallerStreamGuard(C):
            made.launch(C)
        made.launch(A)
    made.launch(NOTHING)
    made.check(log)


def test_guards_that_a_loop_on_another_thread_holds_do_not_spoil_this_one_s(log, made):
    stop = threading.Event()

    async def elsewhere():
        while not stop.is_set():
            with CallerStreamGuard(B):
                await asyncio.sleep(0.0005)

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    for _ in range(20):
        with CallerStreamGuard(A):
            made.launch(A)
            time.sleep(0.0005)
    stop.set()
    thread.join()
    made.check(log)


def test_an_outer_guard_left_while_another_task_s_is_held_is_not_given_its_launches(log, made):
    """A is left first; what B's task launches then must not count as given to nobody surely."""
    first_left = asyncio.Event()

    async def first():
        with CallerStreamGuard(A):
            await asyncio.sleep(0.001)
        first_left.set()

    async def second():
        with CallerStreamGuard(B):
            await first_left.wait()
            made.launch(B, UNSURE)
        made.launch(NOTHING, UNSURE)

    async def main():
        await asyncio.gather(first(), second())

    run(main())
    made.launch(NOTHING)
    made.check(log)


def test_nothing_is_left_of_a_guard_once_it_was_left(log):
    async def main():
        for _ in range(10):
            with CallerStreamGuard(A):
                await asyncio.sleep(0)

    run(main())
    assert log._in_tasks == {}


def test_logs_opened_and_closed_at_once_are_all_forgotten():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def watch():
        for _ in range(200):
            log = SelectionLog()
            log.open()
            assert log in caller.watchers()
            log.close()

    try:
        with ThreadPoolExecutor(4) as pool:
            for answer in [pool.submit(watch) for _ in range(4)]:
                answer.result()
    finally:
        sys.setswitchinterval(before)
        left = caller.watchers()
    assert left == ()
