"""Registries that several threads use: nothing is lost, refused wrongly or made twice."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import gpuscope as gs
from gpuscope.device import caller, select
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition
from gpuscope.errors import ClosedError, InvalidPartition


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def gpu() -> Iterator[Device]:
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


def together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run each on a thread of its own, all from one moment on; raises what one raises."""
    barrier = threading.Barrier(len(jobs))

    def begin(job: Callable[[], Any]) -> Any:
        barrier.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [answer.result() for answer in [pool.submit(begin, job) for job in jobs]]


def test_streams_are_listed_while_others_make_and_close_them(gpu):
    done = threading.Event()

    def make() -> None:
        for _ in range(150):
            streams = [gpu.create_stream() for _ in range(8)]
            for stream in streams:
                stream.close()

    def making() -> None:
        try:
            together(make, make)
        finally:
            done.set()

    def listing() -> int:
        listed = 0
        while not done.is_set():
            listed += len(gpu.streams)
            gpu.find_stream(0x1000)
            gpu.default_stream()
        return listed

    together(making, listing, listing)
    assert {stream.name for stream in gpu.streams} <= {"per-thread default"}


def test_plans_are_made_while_others_carve(gpu):
    done = threading.Event()

    def carve() -> None:
        try:
            for _ in range(150):
                gpu.carve({"a": 8, "b": 8, "c": 8}).close()
        finally:
            done.set()

    def plan() -> None:
        while not done.is_set():
            gpu.plan_carve({"p": 8})
            gpu.registry.held_parts()
            assert len(gpu.partitions) <= 3

    together(carve, plan, plan)
    assert gpu.registry.held_parts() == {}


def test_threads_that_carve_at_once_get_parts_of_their_own(gpu):
    def carve(name: str) -> None:
        for _ in range(60):
            with gpu.carve({name: 24}) as parts, parts[name].create_stream() as stream:
                assert stream.partition is parts[name]
                held = [part for part in gpu.partitions if part.name != name]
                assert not any(set(part.sm_ids) & set(parts[name].sm_ids) for part in held)

    together(*(lambda name=name: carve(name) for name in "abcde"))
    assert gpu.partitions == ()


def test_what_a_carving_left_over_is_made_once(gpu):
    for _ in range(60):
        with gpu.carve({"a": 16}) as parts:
            first, *others = together(*[lambda parts=parts: parts.remainder] * 4)
            assert isinstance(first, Partition)
            assert all(other is first for other in others)


def test_a_partition_closed_by_several_threads_goes_back_once(gpu, monkeypatch):
    returned: list[Any] = []
    real = gpu.backend.close_partition
    monkeypatch.setattr(
        gpu.backend, "close_partition", lambda raw: (returned.append(raw.context), real(raw))
    )
    for _ in range(100):
        parts = gpu.carve({"a": 16, "b": 16})
        together(*[parts["a"].close] * 3, parts.close)
    assert len(returned) == len(set(returned)) == 200


def test_a_stream_closed_by_several_threads_is_destroyed_once(gpu, monkeypatch):
    destroyed: list[int] = []
    real = gpu.backend.close_stream
    monkeypatch.setattr(
        gpu.backend, "close_stream", lambda raw, at: (destroyed.append(at), real(raw, at))
    )
    for _ in range(150):
        together(*[gpu.create_stream().close] * 4)
    assert len(destroyed) == len(set(destroyed)) == 150


def test_no_stream_outlives_the_partition_it_was_made_in(gpu):
    for _ in range(100):
        parts = gpu.carve({"a": 16})
        made: list[Any] = []

        def make(part: Partition = parts["a"], made: list[Any] = made) -> None:
            try:
                while True:
                    made.append(part.create_stream())
            except ClosedError:
                pass

        together(make, make, parts.close)
        assert all(stream.closed for stream in made)
    assert gpu.streams == ()


def test_completion_events_are_handed_out_once(gpu):
    handles = [gs.Gemm(gpu, m=8, n=8, k=8, name=str(number)) for number in range(4)]
    for handle in handles:
        handle.operands()

    def run(handle: gs.Gemm) -> None:
        with gpu.create_stream() as stream:
            for _ in range(100):
                handle.execute(stream=stream)
                assert handle.completion is not None
                handle.wait()
        handle.close()

    together(*(lambda handle=handle: run(handle) for handle in handles))
    gc.collect()
    spare = [id(event) for event in gpu.registry.spare_events]
    assert len(spare) == len(set(spare))


def test_recordings_that_begin_and_end_at_once_leave_no_observer(gpu):
    class Observer:
        def call_begins(self, call: Any) -> None: ...
        def call_ends(self, call: Any) -> None: ...
        def activity(self, activity: Any) -> None: ...

    def watch() -> None:
        for _ in range(300):
            observer = Observer()
            gpu.calls.observe(observer)
            assert observer in gpu.calls.observers
            gpu.calls.unobserve(observer)

    together(*[watch] * 4)
    assert gpu.calls.observers == ()


def test_devices_opened_at_once_are_one_where_there_is_one(monkeypatch):
    for _ in range(30):
        monkeypatch.setattr(select, "_cpu", {})
        first, *others = together(*[lambda: gs.open_device("cpu", quiet=True)] * 4)
        assert all(other is first for other in others)


def test_open_devices_are_listed_while_others_open_them():
    done = threading.Event()

    def opening() -> None:
        try:
            for _ in range(12):
                gs.open_device("sim:h200", quiet=True)
        finally:
            done.set()

    def listing() -> None:
        while not done.is_set():
            assert all(isinstance(device, Device) for device in select.open_devices())

    together(opening, listing, listing)


def test_a_guard_of_a_thread_that_begins_now_is_not_forgotten():
    done = threading.Event()

    def asking() -> None:
        while not done.is_set():
            caller.guards_of_threads()

    def guarded(number: int) -> bool:
        with gs.CallerStreamGuard(number):
            return caller.guards_of_threads()[threading.get_native_id()].stream == number

    def starting() -> None:
        try:
            for number in range(300):
                with ThreadPoolExecutor(1) as pool:
                    assert pool.submit(guarded, number).result()
        finally:
            done.set()

    together(starting, asking)


def test_a_carving_that_is_too_large_is_still_refused(gpu):
    with gpu.carve({"a": 120}), pytest.raises(InvalidPartition, match="hold the others"):
        gpu.carve({"b": 24})
