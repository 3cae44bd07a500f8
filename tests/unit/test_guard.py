"""The caller stream: contract A, one test (or more) per rule."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import gpuscope
from gpuscope import CallerStreamGuard, get_caller_stream
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
    both_inside = threading.Barrier(2, timeout=30)
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


def test_guard_06_leaving_out_of_order():
    outer, inner = CallerStreamGuard(1), CallerStreamGuard(2)
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="innermost first"):
        outer.__exit__(None, None, None)
    assert get_caller_stream() == 2
    inner.__exit__(None, None, None)
    assert get_caller_stream() == 1
    outer.__exit__(None, None, None)
    assert get_caller_stream() is None


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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
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
