"""Stacks of Python's threads, read by C without Python's lock: the lines that Python tells itself."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import pytest

from gpuscope import _stacks
from gpuscope._compiled import fastpath
from gpuscope.errors import CapabilityError

pytestmark = pytest.mark.skipif(bool(_stacks.missing()), reason=_stacks.missing() or "-")
READ, SLEEP = (63, 115) if platform.machine() == "aarch64" else (0, 230)
"""Linux's numbers of system calls."""


def expected(depth):
    """Return what the lines of the caller are."""
    frame, lines = sys._getframe(depth), []
    while frame is not None:
        lines.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return lines


def look(seen):
    """Look at all threads; note what is told of this one, and what is true."""
    assert fastpath.look_once() == 0
    true = expected(2)
    (run,) = (
        run for run in _stacks.runs(_stacks.take()) if run.thread == threading.get_native_id()
    )
    seen.append((run, _stacks.lines(run.stack), true))


def told(seen):
    """Return the innermost function of each look, which was told as it was."""
    for run, (lines, inner), true in seen:
        assert lines[0].function == "look"
        rest = [*map(tuple, lines[1:])]
        if inner == len(lines):
            assert rest == true
        else:
            assert rest[: inner - 1] == true[: inner - 1]
            assert rest[inner - 1 :] == true[-8:]
        assert run.samples == 1
        assert run.state & _stacks.HOLDS
    return [lines[1].function.rpartition(".")[2] for _, (lines, _), _ in seen]


def generator(seen):
    look(seen)
    yield look(seen)


def recursion(seen, depth):
    return recursion(seen, depth - 1) if depth else look(seen)


async def leaf(seen):
    await asyncio.sleep(0)
    look(seen)


async def gathered(seen):
    await asyncio.gather(leaf(seen), leaf(seen))


class Looks:
    def __init__(self, seen):
        self.seen = seen
        look(seen)

    def __enter__(self):
        look(self.seen)

    def __exit__(self, *_):
        look(self.seen)

    def __lt__(self, _other):
        look(self.seen)
        return False

    def __getattr__(self, name):
        look(self.seen)
        return name

    @property
    def value(self):
        look(self.seen)

    def __del__(self):
        look(self.seen)


def test_a_loop_and_calls_through_c_are_told_line_by_line():
    seen = []
    for _ in range(2):
        look(seen)
        look(seen)
    [look(seen) for _ in range(2)]
    list(map(look, [seen]))
    (lambda: look(seen))()  # noqa: PLC3002 - a function without a name
    exec("def made(seen):\n\n    look(seen)\nmade(seen)", {"look": look, "seen": seen})  # noqa: S102
    eval("look(seen)")  # noqa: S307 - as programs may
    own = "test_a_loop_and_calls_through_c_are_told_line_by_line"
    names = told(seen)
    assert names[:4] == [own] * 4
    assert names[-4:-1] == [own, "<lambda>", "made"]


def test_generators_and_coroutines_are_told_with_who_resumed_them():
    seen = []
    list(generator(seen))
    asyncio.run(gathered(seen))
    assert told(seen) == ["generator"] * 2 + ["leaf"] * 2


def test_methods_that_python_calls_are_told_where_they_were_caused():
    seen = []
    one = Looks(seen)
    with one:
        pass
    sorted([one, one])
    assert one.other == "other"
    assert one.value is None
    cycle = [one]
    cycle.append(cycle)
    del one, cycle
    gc.collect()
    try:
        raise ValueError  # noqa: TRY301 - what is looked at
    except ValueError:
        look(seen)
    names = told(seen)
    assert names[:6] == ["__init__", "__enter__", "__exit__", "__lt__", "__getattr__", "value"]
    assert "__del__" in names


def test_of_a_deep_stack_both_ends_are_told():
    for depth in (10, 23, 40, 150):
        seen = []
        recursion(seen, depth)
        ((run, (lines, inner), _),) = seen
        told(seen)
        is_cut = len(expected(1)) + depth + 2 > 32
        assert (inner, len(lines)) == ((24, 32) if is_cut else (len(lines),) * 2)
        assert bool(run.state & _stacks.CUT) == is_cut


def test_a_code_at_the_address_of_one_that_is_gone_is_told_as_itself():
    seen, addresses = [], []
    for number in range(300):
        names = {"look": look, "seen": seen}
        exec(f"def made_{number}(seen):\n" + "\n" * (number % 7) + "    look(seen)", names)  # noqa: S102
        addresses.append(id(names[f"made_{number}"].__code__))
        names[f"made_{number}"](seen)
        del names
    assert len(set(addresses)) < 300, "no address came again"
    assert told(seen) == [f"made_{number}" for number in range(300)]


def waiting(number, until):
    os.read(number, 1)
    until.wait()


def test_other_threads_are_told_where_they_wait_and_in_which_call():
    reader, writer = os.pipe()
    until, there = threading.Event(), threading.Event()
    spin = [True]

    def spinning():
        there.set()
        while spin[0]:
            pass

    threads = [threading.Thread(target=waiting, args=(reader, until), name="reads")]
    threads += [threading.Thread(target=spinning)]
    for thread in threads:
        thread.start()
    there.wait()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        fastpath.look_once()
        runs = {run.thread: run for run in _stacks.runs(_stacks.take())}
        reads, spins = (runs[thread.native_id] for thread in threads)
        if reads.call == READ and spins.state & _stacks.WAITS:
            break
        time.sleep(0.001)
    assert reads.call == READ
    assert not reads.state & (_stacks.HOLDS | _stacks.WAITS)
    assert _stacks.lines(reads.stack)[0][0].function == "waiting"
    assert spins.state & _stacks.WAITS, "this thread has the lock"
    assert _stacks.lines(spins.stack)[0][0].function.endswith("spinning")
    os.write(writer, b".")
    until.set()
    spin.clear()
    spin.append(False)
    for thread in threads:
        thread.join()
    os.close(reader)
    os.close(writer)


def test_samples_of_a_thread_that_waits_are_one_run():
    until = threading.Event()
    thread = threading.Thread(target=until.wait)
    thread.start()
    before = _stacks.counts()
    _stacks.begin(100_000)
    with pytest.raises(CapabilityError):
        _stacks.begin(100_000)
    while _stacks.counts().ticks < before.ticks + 50:
        time.sleep(0.001)
    _stacks.end()
    _stacks.end()
    until.set()
    thread.join()
    runs = _stacks.runs(_stacks.take())
    waits = [run for run in runs if run.thread == thread.native_id]
    after = _stacks.counts()
    assert sum(run.samples for run in waits) >= 49
    assert max(run.samples for run in waits) > 10
    assert all(run.first_ns <= run.last_ns for run in runs)
    assert (
        sum(run.samples for run in runs) + after.lost - before.lost
        <= after.samples - before.samples
    )
    assert after.steady > before.steady
    assert after.cpu_ns > before.cpu_ns


def test_sampling_begins_and_ends_again_and_again_while_threads_come_and_go():
    for _ in range(40):
        _stacks.begin(0)
        threads = [threading.Thread(target=sum, args=(range(1000),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _stacks.end()
    assert {run.thread for run in _stacks.runs(_stacks.take())} >= {threading.get_native_id()}


def test_a_forked_child_samples_only_if_it_asks():
    reader, writer = os.pipe()
    _stacks.begin(0)
    if (child := os.fork()) == 0:
        before = _stacks.counts().ticks
        time.sleep(0.02)
        answer = [_stacks.counts().ticks - before, len(_stacks.runs(_stacks.take()))]
        signal.alarm(60)
        _stacks.begin(0)
        runs = []
        while SLEEP not in {run.call for run in runs}:
            time.sleep(0.001)
            runs += _stacks.runs(_stacks.take())
        _stacks.end()
        answer.append({run.thread for run in runs} == {os.getpid()})
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    _stacks.end()
    assert json.loads(os.read(reader, 99)) == [0, 0, True]
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("ends", ["pass", "import os; os._exit(0)", "raise SystemExit(0)"])
def test_a_program_may_end_while_it_is_sampled(ends):
    text = (
        "import threading, time\n"
        "from gpuscope import _stacks\n"
        "_stacks.begin(0)\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        f"{ends}\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", text], timeout=60, check=False)
        assert done.returncode == 0
