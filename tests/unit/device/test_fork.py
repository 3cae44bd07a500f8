"""A forked child is told that its parent's device is not its own; it never hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.errors import DeviceUnavailable
from gpuscope.record import ranges

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def in_a_child(act: Callable[[], None]) -> None:
    """Call ``act`` in a forked child; fails if it raises, or never ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are running: that is meant
        child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        except BaseException:  # noqa: BLE001 - what a test would print
            traceback.print_exc()
        finally:
            os._exit(status)
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, "the child failed: see what it printed"
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child never ended")


def refuses(act: Callable[[], Any]) -> None:
    with pytest.raises(DeviceUnavailable, match="forked from"):
        act()


def test_a_child_is_refused_its_parents_device_while_threads_launch():
    gpu = gs.open_device("sim:h200", quiet=True)
    kernel = gs.workloads.spin_kernel(gpu)
    parts = gpu.carve({"a": 16})
    stream, other = parts["a"].create_stream(), gpu.create_stream()
    handles = [gs.Gemm(gpu, m=64, n=64, k=64) for _ in range(2)]
    array = gpu.empty((4, 4))
    for handle in handles:
        handle.execute(stream=other)  # from now on there is a call to wait for
    over = threading.Event()

    def launch() -> None:
        while not over.is_set():
            for handle in handles:
                handle.execute(stream=other)
            other.launch(kernel, 1_000, grid=1, block=32)
            gpu.create_stream().close()

    def child() -> None:
        for handle in handles:
            refuses(lambda handle=handle: handle.execute(stream=stream))
            refuses(handle.wait)
        refuses(gpu.synchronize)
        refuses(lambda: gpu.to_host(array))
        refuses(lambda: gpu.carve({"b": 16}))
        refuses(gpu.create_stream)
        refuses(lambda: stream.launch(kernel, 1_000, grid=1, block=32))
        refuses(lambda: array.__setitem__(..., 1.0))
        refuses(lambda: gs.run({"name": "n"} | RUN, gpu))
        with gs.annotate("of the child"):
            pass
        assert not ranges.running
        own = gs.open_device("sim:h200", quiet=True)
        a = own.asarray(np.eye(2), "float32")
        assert own.to_host(gs.mm_out(own.empty((2, 2)), a, a)).tolist() == [[1, 0], [0, 1]]
        gs.open_device("cpu", quiet=True).synchronize()

    gs.open_device("cpu", quiet=True)
    threads = [threading.Thread(target=launch) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with gs.profile(gpu):
            for _ in range(20):
                in_a_child(child)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    gpu.synchronize()
    gpu.close()


RUN: dict[str, Any] = {
    "alone_repeats": 0,
    "streams": {"s": {}},
    "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
}
