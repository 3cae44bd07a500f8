"""Contract A, rule 11: native code reads the caller stream; the C code is docs/native.md's."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.device import caller, native

PAGE = Path(__file__).resolve().parents[3] / "docs" / "native.md"
OWN = 0xABC
UNTOUCHED = 0x123

# A thread that Python has never seen asks, too.
ON_A_THREAD = r"""
#include <pthread.h>
struct question { uint64_t own, chosen; int answer; };
static void *ask(void *argument) {
  struct question *question = argument;
  question->answer = backend_choose_stream(question->own, &question->chosen);
  return NULL;
}
int choose_on_a_new_thread(uint64_t own, uint64_t *chosen) {
  struct question question = {own, *chosen, -2};
  pthread_t thread;
  if (pthread_create(&thread, NULL, ask, &question)) return -3;
  pthread_join(thread, NULL);
  *chosen = question.chosen;
  return question.answer;
}
"""


def block(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    return code


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The page's C code and the thread above, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: cc, gcc or clang")
    folder = tmp_path_factory.mktemp("native")
    (folder / "backend.c").write_text(block("c") + ON_A_THREAD)
    target = folder / "backend.so"
    done = subprocess.run(
        [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread",
         "-o", target, folder / "backend.c"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


class Backend:
    """The library as Python calls it."""

    def __init__(self, loaded) -> None:
        self.loaded = loaded
        for function in (loaded.backend_choose_stream, loaded.choose_on_a_new_thread):
            function.argtypes = [ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]

    def _call(self, function):
        chosen = ctypes.c_uint64(UNTOUCHED)
        return function(OWN, ctypes.byref(chosen)), chosen.value

    def choose(self):
        return self._call(self.loaded.backend_choose_stream)

    def choose_on_a_new_thread(self):
        return self._call(self.loaded.choose_on_a_new_thread)


@pytest.fixture
def backend(library):
    """Give the library the getter, as the page's Python code does."""
    loaded = ctypes.CDLL(str(library))
    exec(block("python"), {"backend": loaded})  # noqa: S102 - the documented code itself
    return Backend(loaded)


def test_guard_11_a_library_that_was_given_no_getter(library):
    loaded = ctypes.CDLL(str(library))
    loaded.backend_set_getter(None)
    assert Backend(loaded).choose() == (0, OWN)


def test_guard_11_without_a_guard_it_uses_its_own(backend):
    assert backend.choose() == (0, OWN)


def test_guard_11_on_the_guarded_thread_and_nested(backend):
    with gs.CallerStreamGuard(5):
        assert backend.choose() == (0, 5)
        with gs.CallerStreamGuard(0):
            assert backend.choose() == (0, 0), "the null stream is a selection"
            with gs.CallerStreamGuard(2**64 - 1):
                assert backend.choose() == (0, 2**64 - 1)
        assert backend.choose() == (0, 5)
    assert backend.choose() == (0, OWN)


def test_guard_11_a_stream_of_ours(backend):
    gpu = gs.open_device("sim:h200", quiet=True)
    with gpu.create_stream() as stream, gs.CallerStreamGuard(stream):
        assert backend.choose() == (0, stream.handle)


def test_guard_11_a_closed_stream_is_an_error_not_the_default(backend):
    gpu = gs.open_device("sim:h200", quiet=True)
    stream = gpu.create_stream()
    with gs.CallerStreamGuard(stream):
        stream.close()
        assert backend.choose() == (-1, UNTOUCHED)


def test_guard_11_on_other_threads(backend):
    answers = []

    def child():
        answers.append(backend.choose())
        with gs.CallerStreamGuard(6):
            answers.append(backend.choose())

    with gs.CallerStreamGuard(5):
        thread = threading.Thread(target=child)
        thread.start()
        thread.join()
        assert answers == [(0, OWN), (0, 6)]
        assert backend.choose_on_a_new_thread() == (0, OWN)
        assert backend.choose() == (0, 5)


def test_guard_11_in_tasks(backend):
    async def child():
        before = backend.choose()
        with gs.CallerStreamGuard(6):
            await asyncio.sleep(0)
            return before, backend.choose()

    async def main():
        with gs.CallerStreamGuard(5):
            assert await asyncio.create_task(child()) == ((0, OWN), (0, 6))
            assert backend.choose() == (0, 5)

    asyncio.run(main())


def test_guard_11_with_and_without_pythons_lock_held(backend, library):
    holding = ctypes.PyDLL(str(library))
    exec(block("python"), {"backend": holding})  # noqa: S102 - the documented code itself
    with gs.CallerStreamGuard(5):
        assert Backend(holding).choose() == (0, 5)
        assert backend.choose() == (0, 5)


def test_guard_11_many_threads_at_once(backend):
    wrong = []

    def work(handle):
        for _ in range(500):
            with gs.CallerStreamGuard(handle):
                if backend.choose() != (0, handle):
                    wrong.append(handle)

    threads = [threading.Thread(target=work, args=(handle,)) for handle in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_guard_11_the_pointer_outlives_capsules_and_reloads(backend):
    before = dict(vars(caller))
    try:
        importlib.reload(caller)
        gc.collect()
        with gs.CallerStreamGuard(5):
            assert backend.choose() == (0, 5)
    finally:
        vars(caller).update(before)  # the module that everybody else imported


def test_guard_11_the_capsule_is_named():
    check = ctypes.pythonapi.PyCapsule_IsValid
    check.restype, check.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    capsule = native.caller_stream_capsule()
    assert check(capsule, native.CAPSULE_NAME) == 1
    assert check(capsule, b"gpuscope.caller_stream.v2") == 0
    assert native.CAPSULE_NAME.decode() in PAGE.read_text("utf-8")


def test_guard_11_the_docstring_says_that_it_takes_the_lock():
    assert "takes the GIL" in native.caller_stream_capsule.__doc__
