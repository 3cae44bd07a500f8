"""Interrupts are deferred inside the package's own code, and raised at checkpoints."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest

import gpuscope as gs
from gpuscope import _interrupts
from gpuscope.device.unique import call_all
from gpuscope.errors import GpuscopeError
from gpuscope.races.hazard_log import HazardLog
from gpuscope.races.hazard_notes import Queue, Work


@pytest.fixture
def handler():
    """Let interrupts come to the package's handler; sends one."""
    before = signal.signal(signal.SIGINT, _interrupts.on_interrupt)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    _interrupts.pending = False
    signal.signal(signal.SIGINT, before)


def test_outside_the_package_an_interrupt_strikes_at_once(handler):
    with pytest.raises(KeyboardInterrupt):
        handler()
    assert not _interrupts.pending


def test_a_function_of_the_users_may_be_interrupted(handler):
    gpu = gs.open_device("sim:h200", quiet=True)
    came = []

    @gs.workloads.workload
    def interrupted(context):
        came.append(context.stream)
        handler()
        came.append(None)

    with interrupted(gpu) as handle, gpu.create_stream() as stream:
        with pytest.raises(KeyboardInterrupt):
            handle.execute(stream=stream)
        assert came == [stream]
        assert gs.get_caller_stream() is None


def test_a_host_function_is_run_to_its_end_and_the_wait_for_it_interrupted(handler):
    gpu = gs.open_device("sim:h200", quiet=True)
    came = []

    def function():
        handler()
        came.append(_interrupts.pending)

    with gpu.create_stream() as stream:
        stream.host_call(function)
        with pytest.raises(KeyboardInterrupt):
            stream.synchronize()
    assert came == [True]


def test_a_destructor_raises_nothing_and_the_next_launch_does(handler):
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    _interrupts.pending = True
    with gpu.create_stream() as stream:
        with _interrupts.no_interrupt():
            stream.launch(kernel, 1_000, grid=1, block=32)
            stream.synchronize()
        with pytest.raises(KeyboardInterrupt):
            stream.launch(kernel, 1_000, grid=1, block=32)


def test_other_threads_are_not_interrupted(handler):
    gpu = gs.open_device("sim:h200", quiet=True)
    _interrupts.pending = True
    waited = []
    thread = threading.Thread(target=lambda: waited.append(gpu.synchronize()))
    thread.start()
    thread.join()
    assert waited == [None]
    with pytest.raises(KeyboardInterrupt):
        gpu.synchronize()


def test_between_two_statements_of_a_with_of_contextlib_s_nothing_strikes(handler):
    @contextlib.contextmanager
    def entering():
        yield

    frames = []

    def trace(frame, event, argument):
        if frame.f_globals["__name__"] == "contextlib":
            frames.append(_interrupts.is_deferred(frame))

    sys.setprofile(trace)
    with entering():
        pass
    sys.setprofile(None)
    assert frames
    assert all(frames)


@pytest.mark.parametrize(
    "wait",
    [
        "while True: stream.launch(kernel, 1_000, grid=1, block=32)",
        "while True: gpu.registry.find_stream(1)",
        "stream.launch(kernel, 10**12, grid=1, block=32); gpu.synchronize()",
        "import time; time.sleep(100)",
    ],
)
def test_a_program_that_launches_waits_or_sleeps_is_interrupted(wait):
    program = f"""
import os, signal, threading, gpuscope as gs
from gpuscope import _interrupts
gpu = gs.open_device("sim:h200", pace="real", quiet=True)
kernel = gs.workloads.spin_kernel(gpu)
assert signal.getsignal(signal.SIGINT) is _interrupts.on_interrupt
stream = gpu.create_stream()
try:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "interrupted\n", ran.stderr


def test_a_handler_of_the_program_s_own_stays():
    def of_program(*_):
        """Do nothing."""

    before = signal.signal(signal.SIGINT, of_program)
    try:
        handler = signal.getsignal(signal.SIGINT)
        _interrupts.install()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_reads_notes_of_another_library_reads_each_once():
    work = [Work(Queue("cuda:0", number), "w", (), (number,)) for number in range(1, 4)]
    log, struck = HazardLog(), []

    def look(frame, _event, _argument):
        if "/races/haz" in frame.f_code.co_filename and not _interrupts.is_deferred(frame):
            struck.append((frame.f_code.co_name, frame.f_lineno))
        return look

    sys.settrace(look)
    try:
        for note in work:
            log.note(note)
        log.read()
    finally:
        sys.settrace(None)
    assert not struck


def test_an_interrupt_while_many_are_closed_is_raised_and_all_are_closed():
    def fail(error):
        closed.append(error)
        raise error

    closed = []
    acts = [partial(fail, GpuscopeError("first")), partial(fail, KeyboardInterrupt()),
            partial(fail, GpuscopeError("last"))]  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        call_all(acts)
    assert len(closed) == 3
