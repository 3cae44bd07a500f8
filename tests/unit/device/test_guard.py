"""The caller stream: contract A, one test (or more) per rule."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import ctypes
import gc
import importlib
import pickle
import re
import shutil
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope import CallerStreamGuard, get_caller_stream
from gpuscope.device import caller, native
from gpuscope.device.api import KernelModel
from gpuscope.device.handles import raw_handle
from gpuscope.device.stream import Stream
from gpuscope.errors import GpuscopeError, StreamError


class Foreign:
    """Somebody else's stream."""

    def __init__(self, handle: int = 0x70) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


class Falsy(Foreign):
    """A stream that is false: truthiness must not be asked."""

    def __bool__(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def _nothing_selected():
    assert get_caller_stream() is None
    yield
    assert get_caller_stream() is None, "a guard leaked"


def in_thread(function: Callable[[], Any]) -> Any:
    """Run ``function`` on a thread of its own; returns what it returns or raises."""
    answers: list[Any] = []

    def target() -> None:
        try:
            answers.append((function(), None))
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            answers.append((None, error))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    value, error = answers[0]
    if error is not None:
        raise error
    return value


def pointer_in(capsule: Any) -> int:
    """Return the address that the capsule of the native getter holds."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, native.CAPSULE_NAME)


def call_getter(pointer: int) -> tuple[int, int]:
    """Call the native getter; returns its answer and what it wrote."""
    written = ctypes.c_uint64(123)
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))(pointer)
    return function(ctypes.byref(written)), written.value


# -- 1, 2, 3, 4 ---------------------------------------------------------------------------
def test_guard_01_no_guard_is_none():
    assert get_caller_stream() is None


def test_guard_02_enter_selects_exit_restores():
    stream = Foreign()
    with CallerStreamGuard(stream):
        assert get_caller_stream() is stream
    assert get_caller_stream() is None


def test_guard_02_restores_on_an_exception():
    with CallerStreamGuard(1):
        with pytest.raises(KeyError, match="mine"), CallerStreamGuard(2):
            raise KeyError("mine")
        assert get_caller_stream() == 1
    assert get_caller_stream() is None


def test_guard_02_making_a_guard_selects_nothing():
    CallerStreamGuard(5)
    assert get_caller_stream() is None


def test_guard_03_nesting():
    outer, middle, inner = Foreign(1), Foreign(2), Foreign(3)
    with CallerStreamGuard(outer):
        with CallerStreamGuard(middle):
            with CallerStreamGuard(inner):
                assert get_caller_stream() is inner
            assert get_caller_stream() is middle
            with CallerStreamGuard(inner):
                assert get_caller_stream() is inner
            assert get_caller_stream() is middle
        assert get_caller_stream() is outer
    assert get_caller_stream() is None


def test_guard_03_the_same_stream_twice_in_two_guards():
    with CallerStreamGuard(7):
        with CallerStreamGuard(7):
            assert get_caller_stream() == 7
        assert get_caller_stream() == 7


@pytest.mark.parametrize("stream", [0, 2, Falsy(0)], ids=["null", "per-thread", "falsy"])
def test_guard_04_null_is_a_selection(stream):
    with CallerStreamGuard(9):
        with CallerStreamGuard(stream):
            assert get_caller_stream() is stream
            assert get_caller_stream() is not None
        assert get_caller_stream() == 9
    with CallerStreamGuard(stream), CallerStreamGuard(9):
        pass
    assert get_caller_stream() is None


def test_guard_04_null_is_restored_as_a_selection():
    with CallerStreamGuard(0):
        with CallerStreamGuard(5):
            pass
        assert get_caller_stream() == 0
        assert get_caller_stream() is not None


# -- 5 ------------------------------------------------------------------------------------
def test_guard_05_a_thread_starts_with_none():
    with CallerStreamGuard(5):
        assert in_thread(get_caller_stream) is None
        assert get_caller_stream() == 5


def test_guard_05_a_thread_with_a_copied_context_starts_with_none():
    with CallerStreamGuard(5):
        context = contextvars.copy_context()
        assert in_thread(lambda: context.run(get_caller_stream)) is None


def test_guard_05_a_threads_guard_is_its_own():
    def child() -> Any:
        with CallerStreamGuard(6):
            return get_caller_stream()

    with CallerStreamGuard(5):
        assert in_thread(child) == 6
        assert get_caller_stream() == 5


def test_guard_05_two_threads_do_not_see_each_other():
    both_inside = threading.Barrier(2)
    seen: dict[int, Any] = {}

    def work(handle: int) -> None:
        with CallerStreamGuard(handle):
            both_inside.wait()
            seen[handle] = get_caller_stream()
            both_inside.wait()

    threads = [threading.Thread(target=work, args=(handle,)) for handle in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1: 1, 2: 2}


def test_guard_05_to_thread_starts_with_none():
    async def main() -> None:
        with CallerStreamGuard(5):
            assert await asyncio.to_thread(get_caller_stream) is None
            assert get_caller_stream() == 5

    asyncio.run(main())


def test_guard_05_a_guard_in_to_thread_is_its_own():
    def work() -> Any:
        with CallerStreamGuard(6):
            return get_caller_stream()

    async def main() -> None:
        with CallerStreamGuard(5):
            assert await asyncio.to_thread(work) == 6
            assert get_caller_stream() == 5

    asyncio.run(main())


def test_guard_05_a_task_made_inside_a_guard_starts_with_none():
    async def child() -> Any:
        found = get_caller_stream()
        with CallerStreamGuard(6):
            assert get_caller_stream() == 6
        return found, get_caller_stream()

    async def main() -> None:
        with CallerStreamGuard(5):
            assert await asyncio.create_task(child()) == (None, None)
            assert await asyncio.gather(child(), child()) == [(None, None)] * 2
            assert get_caller_stream() == 5
            # Awaited without a task of its own, it is the same task.
            assert (await child())[0] == 5

    asyncio.run(main())


def test_guard_05_a_loop_run_inside_a_guard_starts_with_none():
    async def main() -> Any:
        return get_caller_stream()

    with CallerStreamGuard(5):
        assert asyncio.run(main()) is None
        assert get_caller_stream() == 5


def test_guard_05_two_tasks_on_one_loop():
    async def work(handle: int, mine: asyncio.Event, other: asyncio.Event) -> list[Any]:
        seen = [get_caller_stream()]
        with CallerStreamGuard(handle):
            mine.set()
            await other.wait()  # both are inside their guards now
            seen.append(get_caller_stream())
        seen.append(get_caller_stream())
        return seen

    async def main() -> None:
        a, b = asyncio.Event(), asyncio.Event()
        found = await asyncio.gather(work(1, a, b), work(2, b, a))
        assert found == [[None, 1, None], [None, 2, None]]

    asyncio.run(main())


def test_guard_05_survives_an_await_and_overlapping_exits():
    async def first(entered: asyncio.Event, may_leave: asyncio.Event) -> Any:
        with CallerStreamGuard(1):
            entered.set()
            await may_leave.wait()
            return get_caller_stream()

    async def main() -> None:
        entered, may_leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(first(entered, may_leave))
        with CallerStreamGuard(2):
            await entered.wait()
            may_leave.set()
            assert await task == 1  # it left while this one is inside
            assert get_caller_stream() == 2
        assert get_caller_stream() is None

    asyncio.run(main())


# -- 6 ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, *(
        (lambda guard, protocol=protocol: pickle.dumps(guard, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    )],
)  # fmt: skip
@pytest.mark.parametrize("entered", [False, True])
def test_guard_06_no_copies(duplicate, entered):
    guard = CallerStreamGuard(5)
    if not entered:
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            duplicate(guard)
        return
    with guard:
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            duplicate(guard)
        assert get_caller_stream() == 5


def test_guard_06_entering_twice():
    guard = CallerStreamGuard(5)
    with guard:
        with pytest.raises(RuntimeError, match="entered already"):
            guard.__enter__()
        assert get_caller_stream() == 5
        with CallerStreamGuard(6), pytest.raises(RuntimeError):
            guard.__enter__()
        assert get_caller_stream() == 5
    assert get_caller_stream() is None


def test_guard_06_entering_again_after_leaving():
    guard = CallerStreamGuard(5)
    with guard:
        pass
    with pytest.raises(RuntimeError, match="entered already"), guard:
        pass
    assert get_caller_stream() is None


def test_guard_06_leaving_twice():
    guard = CallerStreamGuard(5)
    with CallerStreamGuard(4):
        with guard:
            pass
        with pytest.raises(RuntimeError, match="left already"):
            guard.__exit__(None, None, None)
        assert get_caller_stream() == 4


def test_guard_06_leaving_without_entering():
    with CallerStreamGuard(4):
        with pytest.raises(RuntimeError, match="never entered"):
            CallerStreamGuard(5).__exit__(None, None, None)
        assert get_caller_stream() == 4


def test_guard_06_leaving_on_another_thread():
    guard = CallerStreamGuard(5)
    with guard:
        context = contextvars.copy_context()
        for leave in (
            lambda: guard.__exit__(None, None, None),
            lambda: context.run(guard.__exit__, None, None, None),
        ):
            with pytest.raises(RuntimeError, match="nothing was changed"):
                in_thread(leave)
            assert get_caller_stream() == 5
    assert get_caller_stream() is None  # and it could still be left where it was entered


def test_guard_06_a_thread_keeps_its_own_when_it_may_not_leave_another():
    guard = CallerStreamGuard(5)

    def child() -> Any:
        with CallerStreamGuard(6):
            with pytest.raises(RuntimeError):
                guard.__exit__(None, None, None)
            return get_caller_stream()

    with guard:
        assert in_thread(child) == 6


def test_guard_06_leaving_in_another_task():
    async def leave(guard: CallerStreamGuard) -> None:
        guard.__exit__(None, None, None)

    async def main() -> None:
        guard = CallerStreamGuard(5)
        with guard:
            with pytest.raises(RuntimeError, match="nothing was changed"):
                await asyncio.create_task(leave(guard))
            assert get_caller_stream() == 5

    asyncio.run(main())


def test_guard_06_leaving_in_a_copied_context():
    async def main():
        guard = CallerStreamGuard(5)
        with guard:
            with pytest.raises(RuntimeError, match="nothing was changed"):
                contextvars.copy_context().run(guard.__exit__, None, None, None)
            assert get_caller_stream() == 5
        assert get_caller_stream() is None

    asyncio.run(main())


def test_guard_06_outside_tasks_a_selection_belongs_to_the_thread_whatever_the_context():
    inner = CallerStreamGuard(6)
    with CallerStreamGuard(5):
        assert contextvars.copy_context().run(get_caller_stream) == 5
        contextvars.copy_context().run(inner.__enter__)
        assert get_caller_stream() == 6
        contextvars.copy_context().run(inner.__exit__, None, None, None)
        assert get_caller_stream() == 5
    assert get_caller_stream() is None


def test_guard_06_one_context_on_two_threads():
    # The context variable itself would allow this: the guard must not.
    guard, context = CallerStreamGuard(5), contextvars.copy_context()
    context.run(guard.__enter__)
    with pytest.raises(RuntimeError, match="nothing was changed"):
        in_thread(lambda: context.run(guard.__exit__, None, None, None))
    assert context.run(get_caller_stream) == 5
    context.run(guard.__exit__, None, None, None)
    assert context.run(get_caller_stream) is None


def test_guard_06_one_context_in_two_tasks():
    guard, context = CallerStreamGuard(5), contextvars.copy_context()

    async def enter() -> None:
        guard.__enter__()

    async def leave() -> Any:
        assert get_caller_stream() is None
        with pytest.raises(RuntimeError, match="nothing was changed"):
            guard.__exit__(None, None, None)

    async def main() -> None:
        await asyncio.create_task(enter(), context=context)
        await asyncio.create_task(leave(), context=context)

    asyncio.run(main())


def selecting(stream: Any, **options: Any) -> Any:
    """A generator that selects a stream for as long as it is suspended."""
    with CallerStreamGuard(stream, **options):
        yield


def test_guard_03_one_left_out_of_order_is_taken_out():
    guards = [CallerStreamGuard(handle) for handle in range(4)]
    for guard in guards:
        guard.__enter__()
    guards[1].__exit__(None, None, None)
    guards[2].__exit__(None, None, None)
    assert get_caller_stream() == 3, "the innermost wins"
    with pytest.raises(RuntimeError, match="left already"):
        guards[1].__exit__(None, None, None)
    guards[3].__exit__(None, None, None)
    assert get_caller_stream() == 0, "those that were left are not selected again"
    guards[0].__exit__(None, None, None)
    assert get_caller_stream() is None


def test_guard_03_a_generator_closed_early_leaves_nothing_selected():
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0), (0, 2, 1)):
        generators = [selecting(handle) for handle in (1, 2, 3)]
        for generator in generators:
            next(generator)
        live = [1, 2, 3]
        for position in order:
            generators[position].close()
            live.remove(position + 1)
            assert get_caller_stream() == (live[-1] if live else None)


def test_guard_03_out_of_order_in_a_task():
    async def main() -> None:
        with CallerStreamGuard(0):
            first, second = selecting(1), selecting(2)
            next(first)
            next(second)
            with CallerStreamGuard(3):
                first.close()
                await asyncio.sleep(0)
                assert get_caller_stream() == 3
                second.close()
                assert get_caller_stream() == 3
            assert get_caller_stream() == 0
        assert get_caller_stream() is None

    asyncio.run(main())


def test_guard_06_out_of_order_in_a_copied_context_is_refused():
    async def main() -> None:
        outer, inner = CallerStreamGuard(1), CallerStreamGuard(2)

        def leave() -> None:
            with inner, pytest.raises(RuntimeError, match="nothing was changed"):
                outer.__exit__(None, None, None)

        with outer:
            contextvars.copy_context().run(leave)
            assert get_caller_stream() == 1
        assert get_caller_stream() is None

    asyncio.run(main())


def test_guard_06_of_threads_that_enter_one_at_once_one_succeeds(cupy, monkeypatch):
    # CuPy is given the stream in the middle of an entry: there the second thread comes in.
    guard = CallerStreamGuard(5, bind=True)
    refused: list[BaseException] = []

    def second() -> None:
        try:
            with guard:
                pass
        except StreamError as error:
            refused.append(error)
        assert get_caller_stream() is None

    def use(stream: Any, real: Any = cupy.Stream.use) -> None:
        monkeypatch.setattr(cupy.Stream, "use", real)
        in_thread(second)
        real(stream)

    monkeypatch.setattr(cupy.Stream, "use", use)
    with guard:
        assert get_caller_stream() == 5
    assert [str(error)[:41] for error in refused] == ["this CallerStreamGuard was entered alread"]


def test_guard_06_threads_that_race_for_one_guard(monkeypatch):
    rounds, threads = 400, 4
    guards = [CallerStreamGuard(number) for number in range(rounds)]
    barrier = threading.Barrier(threads)
    entered: list[int] = []
    broken: list[Any] = []

    def race() -> None:
        for guard in guards:
            barrier.wait()
            try:
                guard.__enter__()
            except StreamError:
                continue
            entered.append(guard.stream)
            broken.extend([get_caller_stream()] if get_caller_stream() != guard.stream else [])
            guard.__exit__(None, None, None)
        if get_caller_stream() is not None:
            broken.append(get_caller_stream())

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for answer in [pool.submit(race) for _ in range(threads)]:
                answer.result()
    finally:
        sys.setswitchinterval(before)
    assert sorted(entered) == list(range(rounds))
    assert broken == []


def test_guard_06_errors_are_ours_too():
    with pytest.raises(GpuscopeError) as caught:
        CallerStreamGuard(1).__exit__(None, None, None)
    assert type(caught.value) is StreamError


# -- 7 ------------------------------------------------------------------------------------
class Untouchable:
    """Fails if anything asks it for its handle."""

    def __cuda_stream__(self) -> tuple[int, int]:
        raise AssertionError("a guard touched the stream")


def test_guard_07_touches_no_stream():
    with CallerStreamGuard(Untouchable()):
        assert isinstance(get_caller_stream(), Untouchable)


def test_guard_07_opaque_ints_work():
    with CallerStreamGuard(0xDEAD_BEEF_0000):
        assert get_caller_stream() == 0xDEAD_BEEF_0000


def test_guard_07_costs_the_device_nothing_and_destroys_nothing():
    device = gpuscope.open_device("sim:h200", quiet=True)
    with device.create_stream() as stream:
        before = device.now_ns()
        with CallerStreamGuard(stream):
            pass
        assert device.now_ns() == before
        assert not stream.closed


def test_guard_07_loads_no_cuda_library():
    code = (
        "import sys\n"
        "from gpuscope import CallerStreamGuard, get_caller_stream\n"
        "with CallerStreamGuard(3): assert get_caller_stream() == 3\n"
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('cupy', 'torch', 'cuda', 'nvmath', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- 9 ------------------------------------------------------------------------------------
def test_guard_09_returns_the_very_object():
    device = gpuscope.open_device("sim:h200", quiet=True)
    with device.create_stream() as ours:
        for stream in (ours, Foreign(), 0, 10**12):
            with CallerStreamGuard(stream) as entered:
                assert entered is stream
                assert get_caller_stream() is stream


@pytest.mark.parametrize("wrong", [None, "5", 5.0, True, object(), [5]])
def test_guard_09_refuses_what_is_no_stream(wrong):
    with pytest.raises(TypeError, match=type(wrong).__name__):
        CallerStreamGuard(wrong)
    assert get_caller_stream() is None


# -- 5: every way to start something inside a guard ----------------------------------------
class Ours:
    """Enters a guard of its own and says what it saw before, inside and after."""

    def __init__(self, handle: int = 6) -> None:
        self.handle = handle

    def __call__(self) -> tuple[Any, Any, Any]:
        before = get_caller_stream()
        with CallerStreamGuard(self.handle):
            inside = get_caller_stream()
        return before, inside, get_caller_stream()

    async def later(self) -> tuple[Any, Any, Any]:
        before = get_caller_stream()
        with CallerStreamGuard(self.handle):
            await asyncio.sleep(0)
            inside = get_caller_stream()
        await asyncio.sleep(0)
        return before, inside, get_caller_stream()


def test_guard_05_executors_with_and_without_a_copied_context():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as pool, CallerStreamGuard(5):
            for executor in (None, pool):
                assert await loop.run_in_executor(executor, Ours()) == (None, 6, None)
                context = contextvars.copy_context()
                found = await loop.run_in_executor(executor, context.run, Ours())
                assert found == (None, 6, None)
            assert get_caller_stream() == 5

    asyncio.run(main())


def test_guard_05_a_pool_outside_any_loop():
    with ThreadPoolExecutor(2) as pool, CallerStreamGuard(5):
        context = contextvars.copy_context()
        assert pool.submit(Ours()).result() == (None, 6, None)
        assert pool.submit(context.run, Ours()).result() == (None, 6, None)
        # A worker that ran a guard of its own is used again by the next one.
        assert list(pool.map(lambda _: get_caller_stream(), range(20))) == [None] * 20
        assert get_caller_stream() == 5


def test_guard_05_timers_and_threads_started_by_threads():
    seen: list[Any] = []

    def grandchild() -> None:
        with CallerStreamGuard(7):
            seen.append(in_thread(get_caller_stream))

    with CallerStreamGuard(5):
        timer = threading.Timer(0, lambda: seen.append(get_caller_stream()))
        timer.start()
        timer.join()
        in_thread(grandchild)
        assert seen == [None, None]


def test_guard_05_a_task_group():
    async def main() -> None:
        with CallerStreamGuard(5):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(Ours(handle).later()) for handle in (1, 2, 3)]
                assert get_caller_stream() == 5
            assert get_caller_stream() == 5
        found = [task.result() for task in tasks]
        assert found == [(None, handle, None) for handle in (1, 2, 3)]

    asyncio.run(main())


def test_guard_05_a_task_with_the_context_of_the_guard_itself():
    async def main() -> None:
        with CallerStreamGuard(5):
            context = contextvars.copy_context()
            assert await asyncio.create_task(Ours().later(), context=context) == (None, 6, None)
            assert get_caller_stream() == 5

    asyncio.run(main())


def test_guard_05_a_task_that_outlives_the_guard_it_was_made_in():
    async def child(left: asyncio.Event) -> list[Any]:
        seen = [get_caller_stream()]
        await left.wait()
        return [*seen, get_caller_stream(), *await Ours().later()]

    async def main() -> None:
        left = asyncio.Event()
        with CallerStreamGuard(5):
            task = asyncio.create_task(child(left))
            await asyncio.sleep(0)
        left.set()
        assert await task == [None, None, None, 6, None]

    asyncio.run(main())


def test_guard_05_a_context_copied_inside_does_not_keep_what_was_left():
    async def main() -> None:
        with CallerStreamGuard(5):
            context = contextvars.copy_context()
            assert context.run(get_caller_stream) == 5
        assert get_caller_stream() is None
        assert context.run(get_caller_stream) is None

    asyncio.run(main())


def test_guard_05_tasks_made_one_inside_another_do_not_hold_on_to_each_other():
    """A copied context holds the guard, and a guard names its task: not when it was left."""
    alive: list[weakref.ref[Any]] = []

    async def link(depth: int) -> None:
        alive.append(weakref.ref(asyncio.current_task()))
        with CallerStreamGuard(depth):
            following = asyncio.create_task(link(depth - 1)) if depth else None
        if following is not None:
            tasks.append(following)

    tasks: list[Any] = []

    async def main() -> None:
        await asyncio.create_task(link(50))
        while tasks:
            await tasks.pop()
        gc.collect()
        assert sum(one() is not None for one in alive) <= 2

    asyncio.run(main())


def test_guard_05_callbacks_of_a_loop_see_none_of_a_tasks():
    async def main() -> None:
        loop, seen = asyncio.get_running_loop(), []
        done = asyncio.Event()

        def callback() -> None:
            seen.append(get_caller_stream())
            with CallerStreamGuard(6):
                seen.append(get_caller_stream())
            done.set()

        with CallerStreamGuard(5):
            loop.call_soon(callback)
            await done.wait()
            assert seen == [None, 6]
            assert get_caller_stream() == 5

    asyncio.run(main())


def test_guard_05_an_asynchronous_generator_runs_in_the_task_that_asks():
    async def stream() -> Any:
        while True:
            yield get_caller_stream()

    async def main() -> None:
        values = stream()
        assert await anext(values) is None
        with CallerStreamGuard(5):
            assert await anext(values) == 5
        assert await anext(values) is None
        await values.aclose()

    asyncio.run(main())


def test_guard_05_two_loops_on_two_threads():
    def run(handle: int) -> Any:
        return asyncio.run(Ours(handle).later())

    with CallerStreamGuard(5), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, (1, 2))) == [(None, 1, None), (None, 2, None)]


def test_guard_05_many_threads_and_tasks_do_not_mix():
    async def task(handle: int) -> bool:
        good = True
        for _ in range(50):
            with CallerStreamGuard(handle):
                await asyncio.sleep(0)
                good &= get_caller_stream() == handle
            good &= get_caller_stream() is None
        return good

    async def tasks(first: int) -> bool:
        return all(await asyncio.gather(*(task(first + index) for index in range(8))))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda index: asyncio.run(tasks(100 * index)), range(1, 9)))


# -- 8 ------------------------------------------------------------------------------------
@pytest.fixture
def reload():
    """Reload the module; afterwards it is again the one that everybody else imported."""
    before = dict(vars(caller))
    yield lambda: importlib.reload(caller)
    vars(caller).update(before)


def test_guard_08_survives_a_reload_in_the_middle_of_everything(reload):
    made_before = CallerStreamGuard(7)
    old = caller.get_caller_stream
    capsule = pointer_in(native.caller_stream_capsule())
    with CallerStreamGuard(5):
        fresh = reload()
        assert fresh.get_caller_stream is not old
        assert fresh.get_caller_stream() == old() == 5
        with fresh.CallerStreamGuard(6) as entered:
            assert entered == old() == fresh.get_caller_stream() == 6
            with made_before:
                assert old() == fresh.get_caller_stream() == 7
            with CallerStreamGuard(8):
                assert fresh.get_caller_stream() == 8
            assert old() == 6
        assert old() == 5
        assert reload().get_caller_stream() == 5
        assert call_getter(capsule) == (1, 5), "native code keeps the pointer it was given"
        assert pointer_in(native.caller_stream_capsule()) == capsule
    assert old() is None
    with pytest.raises(RuntimeError, match="entered already"), made_before:
        pass


def test_guard_08_survives_a_reload_in_a_task(reload):
    async def main() -> None:
        with CallerStreamGuard(5):
            fresh = reload()
            assert fresh.get_caller_stream() == 5
            assert await asyncio.create_task(Ours().later()) == (None, 6, None)
            with fresh.CallerStreamGuard(6):
                await asyncio.sleep(0)
                assert get_caller_stream() == 6
        assert get_caller_stream() is None

    asyncio.run(main())


def test_guard_08_current_streams_survive_a_reload(reload):
    caller.set_current_stream("test:0", "mine")
    try:
        assert reload().peek_current_stream("test:0") == "mine"
    finally:
        caller.clear_current_stream("test:0")


@pytest.fixture(params=["as it is", "under its own name throughout"])
def other(request, tmp_path, monkeypatch):
    """A second copy of the package, as when somebody ships it inside their own."""
    home = Path(gpuscope.__file__).parent
    target = tmp_path / "othername"
    shutil.copytree(home, target, ignore=shutil.ignore_patterns("__pycache__"))
    if request.param != "as it is":
        for file in target.rglob("*.py"):
            text = re.sub(
                r"(?m)^(\s*(?:from|import)) gpuscope\b", r"\1 othername", file.read_text()
            )
            file.write_text(re.sub(r"(['\"])gpuscope\.", r"\1othername.", text))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("othername.device.caller")
    for name in [name for name in sys.modules if name.split(".")[0] == "othername"]:
        del sys.modules[name]


def test_guard_08_a_second_copy_reads_and_writes_the_same_slot(other):
    assert other.CallerStreamGuard is not CallerStreamGuard
    assert other.__file__ != caller.__file__
    stream = Foreign()
    with CallerStreamGuard(stream):
        assert other.get_caller_stream() is stream
        with other.CallerStreamGuard(6):
            assert get_caller_stream() == other.get_caller_stream() == 6
            with CallerStreamGuard(7):
                assert get_caller_stream() == other.get_caller_stream() == 7
            assert get_caller_stream() == other.get_caller_stream() == 6
        assert other.get_caller_stream() is stream
    assert other.get_caller_stream() is None
    with other.CallerStreamGuard(stream):
        assert get_caller_stream() is stream
        with CallerStreamGuard(6):
            assert other.get_caller_stream() == 6
        assert get_caller_stream() is stream
    assert get_caller_stream() is None


def test_guard_08_a_second_copy_keeps_threads_and_tasks_apart(other):
    async def child() -> Any:
        with other.CallerStreamGuard(6):
            await asyncio.sleep(0)
            return get_caller_stream(), other.get_caller_stream()

    async def main() -> None:
        with CallerStreamGuard(5):
            assert other.get_caller_stream() == 5
            assert await asyncio.to_thread(other.get_caller_stream) is None
            assert await asyncio.create_task(child()) == (6, 6)
            with other.CallerStreamGuard(7):
                assert await asyncio.create_task(Ours().later()) == (None, 6, None)
                await asyncio.sleep(0)
                assert get_caller_stream() == 7
            assert get_caller_stream() == other.get_caller_stream() == 5

    asyncio.run(main())


def test_guard_08_a_second_copy_refuses_and_takes_out_what_the_first_would(other):
    inner, generator = other.CallerStreamGuard(3), selecting(2)
    with CallerStreamGuard(1):
        next(generator)
        with inner:
            generator.close()
            assert get_caller_stream() == other.get_caller_stream() == 3
        assert other.get_caller_stream() == 1
        with pytest.raises(RuntimeError, match="left already"):
            inner.__exit__(None, None, None)
    assert other.get_caller_stream() is None


def test_guard_08_a_second_copy_shares_current_streams_and_the_getter(other):
    other.set_current_stream("test:0", "theirs")
    try:
        assert caller.peek_current_stream("test:0") == "theirs"
    finally:
        caller.clear_current_stream("test:0")
    assert other.peek_current_stream("test:0") is None
    with other.CallerStreamGuard(9):
        assert call_getter(pointer_in(native.caller_stream_capsule())) == (1, 9)


# -- 10, with stand-ins for CuPy and PyTorch -----------------------------------------------
class FakeCupy(types.ModuleType):
    """CuPy's current stream: one a thread and device."""

    def __init__(self) -> None:
        super().__init__("cupy")
        local = threading.local()
        fake = self

        class Stream:
            def __init__(self, ptr: int, device_id: int = -1) -> None:
                self.ptr, self.device_id = ptr, device_id

            @classmethod
            def from_external(cls, owner: Any) -> Any:
                fake.made += 1
                return cls(owner.__cuda_stream__()[1])

            def use(self) -> None:
                if self.device_id not in (-1, 0):
                    raise RuntimeError(f"stream on device {self.device_id}, current is 0")
                local.stream = self

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Stream) and self.ptr == other.ptr

            __hash__ = None

        self.made = 0
        self.null = Stream(0)
        self.Stream = Stream
        module = types.SimpleNamespace(
            Stream=Stream, get_current_stream=lambda: getattr(local, "stream", self.null)
        )
        self.cuda = types.SimpleNamespace(stream=module)

    @property
    def current(self) -> Any:
        return self.cuda.stream.get_current_stream()


class FakeTorch(types.ModuleType):
    """PyTorch's current streams: one a thread and device, and a current device.

    ``inner``: with the functions of ``torch._C``, too.
    """

    def __init__(self, *, available: bool = True, inner: bool = True) -> None:
        super().__init__("torch")
        self.local = local = threading.local()
        self.fail = False
        self.initialized = False

        class ExternalStream:
            device_type = 1

            def __init__(self, ptr: int, device: int | None = None) -> None:
                self.cuda_stream = self.stream_id = ptr
                self.device = self.device_index = current_device() if device is None else device

            def __eq__(self, other: object) -> bool:
                return (self.cuda_stream, self.device) == (other.cuda_stream, other.device)

            __hash__ = None

        def current_device() -> int:
            return getattr(local, "device", 0)

        def current_stream(device: int | None = None) -> Any:
            device = current_device() if device is None else device
            streams = local.__dict__.setdefault("streams", {})
            return streams.setdefault(device, ExternalStream(0, device))

        def set_stream(stream: Any) -> None:
            if self.fail:
                raise RuntimeError("no such stream")
            current_stream()
            local.device = stream.device
            local.streams[stream.device] = stream

        def init() -> None:
            self.initialized = True

        def key(device: int) -> tuple[int, int, int]:
            assert self.initialized
            return current_stream(device).cuda_stream, device, 1

        self.cuda = types.SimpleNamespace(
            is_available=lambda: available, ExternalStream=ExternalStream,
            current_stream=current_stream, set_stream=set_stream, current_device=current_device,
            is_initialized=lambda: self.initialized, init=init,
        )  # fmt: skip
        if inner:
            self._C = types.SimpleNamespace(
                _cuda_getDevice=current_device, _cuda_getCurrentStream=key,
                _cuda_setStream=lambda ptr, index, _: set_stream(ExternalStream(ptr, index)),
            )  # fmt: skip

    @property
    def current(self) -> int:
        return self.cuda.current_stream().cuda_stream


@pytest.fixture
def cupy(monkeypatch):
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return fake


@pytest.fixture(params=[True, False], ids=["torch._C", "torch.cuda"])
def torch(cupy, monkeypatch, request):
    fake = FakeTorch(inner=request.param)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


class OnCuda(Foreign):
    """What a bound guard looks at in a stream of ours."""

    def __init__(self, handle: int = 0x70, kind: str = "cuda", index: int = 0) -> None:
        super().__init__(handle)
        info = types.SimpleNamespace(kind=kind, index=index)
        self.device = types.SimpleNamespace(info=info)
        self.cupy_stream = self.torch_stream = None


@pytest.mark.parametrize(
    "make", [lambda: 0x50, lambda: 0, lambda: Foreign(0x60), lambda: OnCuda(0x70)],
    ids=["handle", "legacy", "foreign", "on CUDA"],
)  # fmt: skip
def test_guard_10_both_libraries_are_given_the_stream_and_restored(cupy, torch, make):
    stream = make()
    handle = raw_handle(stream)
    theirs = cupy.Stream(0x99)
    theirs.use()
    before = torch.cuda.current_stream()
    with CallerStreamGuard(stream, bind=True) as entered:
        assert entered is stream
        assert get_caller_stream() is stream
        assert cupy.current.ptr == torch.current == handle
    assert cupy.current is theirs
    assert torch.cuda.current_stream() == before
    assert get_caller_stream() is None


def test_guard_10_a_stream_that_cupy_knows_already(cupy):
    stream, theirs = OnCuda(0x70), cupy.Stream(0x99)
    theirs.use()
    for _ in range(3):
        with CallerStreamGuard(stream, bind=True), CallerStreamGuard(OnCuda(0x71), bind=True):
            assert cupy.current.ptr == 0x71
        assert cupy.current is theirs
    assert cupy.made == 4, "ours was made once"
    guard = CallerStreamGuard(stream, bind=True)
    assert guard.__enter__() is stream
    theirs.use()
    with pytest.raises(StreamError, match="CuPy or PyTorch have another current"):
        guard.__exit__(None, None, None)
    assert get_caller_stream() is stream
    stream.cupy_stream.use()
    guard.__exit__(None, None, None)
    assert cupy.current is theirs
    stream.cupy_stream.device_id = 1
    with pytest.raises(StreamError, match="make the stream's device current first"):
        CallerStreamGuard(stream, bind=True).__enter__()
    assert cupy.current is theirs


def test_guard_10_watchers_are_told_of_bound_guards(cupy, torch):
    told = []
    watcher = types.SimpleNamespace(
        entered=lambda guard: told.append(("entered", guard.stream, cupy.current.ptr)),
        left=lambda guard, selected: told.append(("left", guard.stream, selected)),
    )
    caller.watch(watcher)
    try:
        for bind in (False, True):
            with CallerStreamGuard(5, bind=bind):
                pass
    finally:
        caller.unwatch(watcher)
    assert told == [("entered", 5, 0), ("left", 5, None), ("entered", 5, 5), ("left", 5, None)]


@pytest.mark.parametrize("failing", [0, 1])
def test_guard_10_one_that_refuses_to_be_restored_spoils_not_the_other(cupy, torch, failing):
    guard = CallerStreamGuard(5, bind=True)
    guard.__enter__()
    bound = guard._bound

    def refuse() -> None:
        raise KeyError("refused")

    bound[failing] = bound[failing]._replace(restore=refuse)
    with pytest.raises(KeyError, match="refused"):
        guard.__exit__(None, None, None)
    assert (cupy.current.ptr, torch.current) == ((5, 0) if failing == 0 else (0, 5))
    assert get_caller_stream() is None


def test_guard_10_restores_on_an_exception_and_when_nested(cupy, torch):
    with CallerStreamGuard(1, bind=True):
        with pytest.raises(KeyError), CallerStreamGuard(2, bind=True):
            assert cupy.current.ptr == torch.current == 2
            raise KeyError
        assert cupy.current.ptr == torch.current == 1
        with CallerStreamGuard(3):  # not bound: only ours
            assert cupy.current.ptr == torch.current == 1
    assert cupy.current is cupy.null
    assert torch.current == 0


def test_guard_10_without_bind_they_are_left_alone(cupy, torch):
    with CallerStreamGuard(5):
        assert cupy.current is cupy.null
        assert torch.current == 0
    assert cupy.made == 0


def test_guard_10_one_of_them_alone(cupy, monkeypatch):
    with CallerStreamGuard(5, bind=True):
        assert cupy.current.ptr == 5
    torch = FakeTorch()
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.setitem(sys.modules, "torch", torch)
    with CallerStreamGuard(6, bind=True):
        assert torch.current == 6
    assert torch.current == 0


def test_guard_10_pytorch_without_a_gpu_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(available=False))
    with CallerStreamGuard(5, bind=True):
        assert get_caller_stream() == 5


def test_guard_10_never_imports_them(monkeypatch):
    for name in ("cupy", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(sys.modules)
    with CallerStreamGuard(5, bind=True):
        assert get_caller_stream() == 5
    assert set(sys.modules) == before


def test_guard_10_a_library_that_is_being_imported_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with CallerStreamGuard(5, bind=True):
        assert get_caller_stream() == 5


def test_guard_10_out_of_order_across_awaits_raises_and_touches_nothing(cupy, torch):
    async def first(entered: asyncio.Event, overlapped: asyncio.Event) -> None:
        guard = CallerStreamGuard(1, bind=True)
        guard.__enter__()
        entered.set()
        await overlapped.wait()
        with pytest.raises(RuntimeError, match="do not await inside a bound one"):
            guard.__exit__(None, None, None)
        assert cupy.current.ptr == torch.current == 2
        assert get_caller_stream() == 1, "nothing was changed, the selection included"

    async def main() -> None:
        entered, overlapped = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(first(entered, overlapped))
        await entered.wait()
        with CallerStreamGuard(2, bind=True):
            overlapped.set()
            await task
            assert cupy.current.ptr == torch.current == 2

    asyncio.run(main())


@pytest.mark.parametrize("bind", [True, False], ids=["bound", "not bound"])
def test_guard_10_out_of_order_on_one_thread(cupy, torch, bind):
    generator = selecting(1, bind=True)
    next(generator)
    with CallerStreamGuard(2, bind=bind), CallerStreamGuard(3):
        with pytest.raises(RuntimeError, match="innermost first"):
            generator.close()
        assert cupy.current.ptr == torch.current == (2 if bind else 1), "left as they were"
        assert get_caller_stream() == 3
    assert get_caller_stream() is None
    assert cupy.current is cupy.null
    assert torch.current == 0


def test_guard_10_out_of_order_where_only_one_library_was_there(cupy, monkeypatch):
    generator = selecting(1, bind=True)
    next(generator)
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    with CallerStreamGuard(2, bind=True):
        with pytest.raises(RuntimeError, match="innermost first"):
            generator.close()
        assert cupy.current.ptr == torch.current == 2
    assert cupy.current is cupy.null
    assert torch.current == 0


def test_guard_10_one_that_cannot_be_bound_can_be_entered_again(cupy):
    guard = CallerStreamGuard(OnCuda(1, index=1), bind=True)
    with pytest.raises(StreamError, match="CuPy cannot make the stream current"):
        guard.__enter__()
    del sys.modules["cupy"]
    with guard as stream:
        assert get_caller_stream() is stream


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_guard_10_somebody_else_changed_one_of_them(cupy, torch, library):
    guard = CallerStreamGuard(1, bind=True)
    guard.__enter__()
    if library == "cupy":
        cupy.Stream(9).use()
    else:
        torch.cuda.set_stream(torch.cuda.ExternalStream(9))
    found = cupy.current.ptr, torch.current
    with pytest.raises(StreamError, match="another current stream"):
        guard.__exit__(None, None, None)
    assert (cupy.current.ptr, torch.current) == found
    assert get_caller_stream() == 1
    cupy.Stream(1).use()
    torch.cuda.set_stream(torch.cuda.ExternalStream(1))
    guard.__exit__(None, None, None)  # put right, it can be left
    assert (cupy.current.ptr, torch.current) == (0, 0)


def test_guard_10_if_one_refuses_the_other_is_given_back(cupy, torch):
    torch.fail = True
    guard = CallerStreamGuard(1, bind=True)
    with pytest.raises(RuntimeError, match="no such stream"):
        guard.__enter__()
    assert cupy.current is cupy.null
    assert get_caller_stream() is None
    torch.fail = False
    with guard:  # it was never entered
        assert cupy.current.ptr == torch.current == 1


def test_guard_10_if_one_cannot_be_restored_the_other_is(cupy, torch):
    guard = CallerStreamGuard(1, bind=True)
    cupy.current.use = lambda: (_ for _ in ()).throw(RuntimeError("gone"))
    guard.__enter__()
    with pytest.raises(RuntimeError, match="gone"):
        guard.__exit__(None, None, None)
    assert torch.current == 0
    assert get_caller_stream() is None


def test_guard_10_threads_have_their_own(cupy, torch):
    with CallerStreamGuard(1, bind=True):
        assert in_thread(lambda: (cupy.current.ptr, torch.current)) == (0, 0)


def test_guard_10_cupys_object_for_a_stream_of_ours_is_made_once(cupy):
    stream = OnCuda(0x70)
    for _ in range(3):
        with CallerStreamGuard(stream, bind=True):
            pass
    assert cupy.made == 1
    assert stream.cupy_stream.device_id == 0


def test_guard_10_a_stream_of_another_device(cupy, torch):
    stream = OnCuda(0x70, index=1)
    with pytest.raises(StreamError, match="make the stream's device current"):
        CallerStreamGuard(stream, bind=True).__enter__()
    assert cupy.current is cupy.null
    assert torch.current == 0
    del sys.modules["cupy"]
    with CallerStreamGuard(stream, bind=True):
        assert torch.cuda.current_device() == 1
        assert torch.current == 0x70
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1).cuda_stream == 0


def test_guard_10_a_simulated_stream_is_none_of_theirs(cupy, torch):
    device = gpuscope.open_device("sim:h200", quiet=True)
    with device.create_stream() as stream, CallerStreamGuard(stream, bind=True):
        assert get_caller_stream() is stream
        assert cupy.current is cupy.null
        assert torch.current == 0


def test_guard_10_a_closed_stream_is_not_given_to_anybody(cupy):
    device = gpuscope.open_device("sim:h200", quiet=True)
    stream = device.create_stream()
    stream.cupy_stream = cupy.Stream(stream.handle)  # as if it had been bound before
    stream.close()
    assert stream.cupy_stream is None
    with CallerStreamGuard(stream, bind=True):  # simulated: nobody's
        assert cupy.current is cupy.null


# -- 12, 13 -------------------------------------------------------------------------------
@pytest.fixture(params=["sim:h200", "cpu"])
def device(request):
    found = gpuscope.open_device(request.param, quiet=True)
    yield found
    caller.clear_current_stream(found.identity)
    found.close()


def test_guard_12_peek_set_peek_clear_leaves_no_trace(device):
    key = device.identity
    with device.create_stream() as stream:
        assert caller.peek_current_stream(key) is None
        caller.set_current_stream(key, stream)
        assert caller.peek_current_stream(key) is stream
        assert caller.get_current_stream(device) is stream
        caller.clear_current_stream(key)
        assert caller.peek_current_stream(key) is None
        caller.clear_current_stream(key)  # again does nothing
    assert key not in caller.current_streams()


def test_guard_12_peek_never_creates_and_get_does_once(device):
    key = device.identity
    assert caller.peek_current_stream(key) is None
    made = caller.get_current_stream(device)
    assert isinstance(made, Stream)
    assert made.device is device
    assert caller.peek_current_stream(key) is made
    assert caller.get_current_stream(device) is made
    assert device.choose_stream() == (made, True), "a handle without a guard runs there"


def test_guard_12_a_created_one_goes_quietly(device):
    key = device.identity
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = weakref.ref(caller.get_current_stream(device))
        caller.clear_current_stream(key)
        gc.collect()
        assert made() is None
        first = caller.get_current_stream(device)
        first.close()
        assert caller.peek_current_stream(key) is None, "closed, it is nobody's current stream"
        assert caller.get_current_stream(device) is not first


def test_guard_12_closing_the_device_closes_it_and_the_next_is_new(device):
    first = caller.get_current_stream(device)
    device.close()
    assert first.closed
    assert caller.peek_current_stream(device.identity) is None
    assert not caller.get_current_stream(device).closed


def test_guard_12_one_a_thread_and_device(device):
    mine = caller.get_current_stream(device)
    other = gpuscope.open_device("sim:h200", quiet=True)

    def child() -> Any:
        assert caller.peek_current_stream(device.identity) is None
        return caller.get_current_stream(device)

    theirs = in_thread(child)
    assert theirs is not mine
    assert caller.peek_current_stream(device.identity) is mine
    caller.set_current_stream("test:1", 5)
    assert caller.peek_current_stream("test:1") == 5
    caller.clear_current_stream("test:1")
    assert caller.peek_current_stream(device.identity) is mine
    if other.info.key == device.info.key:  # simulated GPUs share a name, not streams
        assert caller.get_current_stream(other).device is other


def test_guard_12_the_caller_stream_is_another_thing(device):
    with device.create_stream() as stream:
        caller.set_current_stream(device.identity, stream)
        assert get_caller_stream() is None
        with CallerStreamGuard(5):
            assert caller.peek_current_stream(device.identity) is stream
        caller.clear_current_stream(device.identity)


def test_guard_13_a_backend_that_fails_leaves_no_current_stream():
    device = gpuscope.open_device("sim:h200", quiet=True)
    key = device.identity
    kernel = device.compile("", "none", model=KernelModel(lambda *_: 1 / 0))
    seen = []
    with device.create_stream() as stream, device.create_stream() as before:
        for previous in (None, before):
            if previous is not None:
                caller.set_current_stream(key, previous)
            with pytest.raises(ZeroDivisionError), CallerStreamGuard(stream):
                seen.append(caller.peek_current_stream(key))
                stream.launch(kernel, grid=1, block=1)
            assert caller.peek_current_stream(key) is previous
        caller.clear_current_stream(key)
    assert seen == [None, before]
