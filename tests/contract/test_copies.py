"""Copies from and to host memory, pinned and pageable, on both devices."""

from __future__ import annotations

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.workloads.spin import Spin

ITEMS = 1 << 21


@pytest.fixture
def held(gpu):
    """A stream with 20 ms of work in it."""
    hold = Spin(gpu, duration_ns=20_000_000)
    hold.execute()  # its kernel is loaded
    with gpu.create_stream() as stream:
        hold.execute(stream=stream)
        yield stream
    hold.close()


def test_values_go_there_and_back(gpu):
    there, device, back = gpu.empty_pinned(ITEMS), gpu.empty(ITEMS), gpu.empty_pinned(ITEMS)
    there[...] = np.arange(ITEMS)
    with gpu.create_stream() as stream:
        stream.copy(device, there)
        stream.copy(back, device)
        stream.synchronize()
    assert np.array_equal(there, back)


@pytest.mark.parametrize("shape", [0, 1, (3, 5), ()])
def test_pinned_memory_is_an_array_of_any_shape(gpu, shape):
    array = gpu.empty_pinned(shape, "bfloat16")
    assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
    assert array.dtype.name == "bfloat16"
    array[...] = 2


@pytest.mark.gpu_alone("20 ms must outlast what takes memory")
def test_pinned_copies_return_at_once(gpu, held):
    up, down, device = gpu.empty_pinned(ITEMS), gpu.empty_pinned(ITEMS), gpu.empty(ITEMS)
    up[...] = 1
    held.copy(device, up)
    held.copy(down, device)
    assert not held.is_done
    held.synchronize()
    assert down[-1] == 1


def test_a_copy_to_pageable_memory_is_done_when_it_returns(gpu, held):
    device, down = gpu.asarray(np.full(ITEMS, 3, np.float32)), np.zeros(ITEMS, np.float32)
    held.copy(down, device)
    assert down[0] == down[-1] == 3


def test_pageable_memory_may_change_when_the_copy_returned(gpu, held):
    for size in (16, ITEMS):
        device, up = gpu.empty(size), np.full(size, 5, np.float32)
        held.copy(device, up)
        up[...] = 6
        held.synchronize()
        assert gpu.to_host(device)[-1] == 5


def test_the_legacy_stream_and_the_thread_s_own_wait_for_each_other(gpu):
    """Two-way: CUDA's per-thread default stream is a blocking one."""
    spin = Spin(gpu, duration_ns=3_000_000, max_in_flight=4)
    spin.execute()
    mine, legacy = gpu.default_stream(), gpu.wrap_stream(1)
    before = mine.record()
    spin.execute(stream=mine)
    spin.execute(stream=legacy)
    spin.execute(stream=mine)
    after = mine.record()
    gpu.synchronize()
    assert after.elapsed_ns(since=before) >= 9_000_000
    spin.close()


@pytest.mark.gpu_alone("20 ms must outlast a wait")
def test_streams_of_ours_know_no_barrier(gpu):
    spin = Spin(gpu, duration_ns=20_000_000)
    spin.execute()
    with gpu.create_stream() as stream:
        spin.execute(stream=stream)
        legacy = gpu.wrap_stream(1)
        event = legacy.record()
        event.synchronize()
        assert not stream.is_done
    spin.close()


@pytest.mark.gpu_alone("20 ms must outlast a wait")
@pytest.mark.parametrize("blocking", [False, True])
def test_a_wait_for_the_legacy_stream_is_one_for_blocking_streams(gpu, blocking):
    """Also where nothing was queued on the legacy stream itself."""
    spin = Spin(gpu, duration_ns=20_000_000)
    spin.execute()
    with gpu.create_stream(blocking=blocking) as stream:
        spin.execute(stream=stream)
        gpu.wrap_stream(1).synchronize()
        assert stream.is_done == blocking
    spin.close()


def test_a_blocking_stream_of_ours_knows_the_barrier(gpu):
    spin = Spin(gpu, duration_ns=3_000_000, max_in_flight=4)
    spin.execute()
    legacy = gpu.wrap_stream(1)
    with gpu.create_stream(blocking=True) as stream:
        assert stream.blocking
        before = stream.record()
        spin.execute(stream=stream)
        spin.execute(stream=legacy)
        spin.execute(stream=stream)
        after = stream.record()
        gpu.synchronize()
        assert after.elapsed_ns(since=before) >= 9_000_000
    spin.close()


def test_on_the_cpu_pinned_memory_is_memory():
    cpu = gs.open_device("cpu", quiet=True)
    array = cpu.empty_pinned((2, 3))
    assert (array.shape, array.dtype) == ((2, 3), np.float32)
