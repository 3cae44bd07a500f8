"""The compiled launch path: it can be compiled, it is used or says why, and both ways agree."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope import _compiled
from gpuscope.device import caller, diagnose

ROOT = Path(__file__).parents[3]
COMPILE = ROOT / "scripts" / "compile_fastpath.py"
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("cc", "gcc", "clang")), reason="no C compiler is here"
)
needs_compiled = pytest.mark.skipif(_compiled.fastpath is None, reason=_compiled.why_not or "-")


@pytest.fixture
def compiling(monkeypatch):
    """The script as a module, in an environment that says nothing of compilers."""
    for name in ("CC", "GPUSCOPE_PURE"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("compile_fastpath", COMPILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_compiler
def test_it_compiles_without_a_warning(compiling, tmp_path, monkeypatch):
    flags = "-Wall -Wextra -Werror -Wno-cast-function-type -Wno-missing-field-initializers"
    monkeypatch.setenv("CC", f"{compiling.compiler()[0]} {flags}")
    assert compiling.compile_to(tmp_path) == ""
    assert all((tmp_path / target).exists() for target in compiling.MODULES)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("CC", "/nonexistent", "/nonexistent cannot be run"),
        ("CC", "false", "failed"),
        ("GPUSCOPE_PURE", "1", "GPUSCOPE_PURE is set"),
    ],
)
def test_it_says_why_it_was_not_compiled(compiling, tmp_path, monkeypatch, name, value, why):
    monkeypatch.setenv(name, value)
    assert why in compiling.compile_to(tmp_path)


def test_python_without_a_global_lock_goes_without_it(compiling, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling.sysconfig, "get_config_var", lambda name: name)
    why = "Python without a global lock is not supported"
    assert compiling.compile_to(tmp_path) == why


def test_without_any_compiler_it_says_so(compiling, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert compiling.compile_to(tmp_path) == "no C compiler was found"


@needs_compiled
def test_a_module_of_another_source_is_not_used(monkeypatch):
    monkeypatch.setattr(_compiled.fastpath, "source_crc", 0)
    assert _compiled._load() == (None, "it was compiled from other sources")


def test_pure_leaves_it_out(monkeypatch):
    monkeypatch.setenv("GPUSCOPE_PURE", "1")
    assert _compiled._load() == (None, "GPUSCOPE_PURE is set")


@pytest.mark.parametrize(
    ("module", "why", "check"),
    [
        (object(), "", (True, "compiled", "")),
        (None, "no such file", (False, "in Python: no such file", "install a C compiler")),
    ],
)
def test_doctor_says_whether_launches_are_compiled(monkeypatch, module, why, check):
    monkeypatch.delenv("GPUSCOPE_PURE", raising=False)
    monkeypatch.setattr(diagnose, "fastpath", module)
    monkeypatch.setattr(diagnose, "why_not", why)
    found = diagnose.check_launches()
    assert (found.ok, found.found) == check[:2]
    assert found.todo.startswith(check[2])


@needs_compiled
@pytest.mark.parametrize("tests", ["unit/device/test_guard.py", "unit/record/test_nvtx.py"])
def test_both_ways_pass_the_same_tests(tests):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not gpu"]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / tests)],
        cwd=ROOT,
        env={**os.environ, "GPUSCOPE_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# -- what C must not do wrong -----------------------------------------------------------------
class Stream:
    """Somebody else's stream."""

    def __cuda_stream__(self):
        return (0, 7)


def test_guards_and_ranges_that_were_never_made_are_refused():
    with pytest.raises(AttributeError):
        gs.CallerStreamGuard.__new__(gs.CallerStreamGuard).__exit__(None, None, None)
    with pytest.raises((AttributeError, RuntimeError)):
        gs.CallerStreamGuard.__new__(gs.CallerStreamGuard).__enter__()
    nameless = gs.annotate.__new__(gs.annotate)
    with pytest.raises(AttributeError):
        nameless._range  # noqa: B018 - nothing is there


def test_guards_keep_nothing_alive():
    stream = Stream()
    gone = weakref.ref(stream)
    with gs.CallerStreamGuard(stream), gs.CallerStreamGuard(stream):
        pass
    guard = gs.CallerStreamGuard(stream)
    with guard:
        pass
    del stream
    assert gone() is not None
    del guard
    assert gone() is None


def test_a_thread_that_ends_inside_a_guard_leaves_nothing_behind():
    stream = Stream()
    gone = weakref.ref(stream)
    thread = threading.Thread(target=gs.CallerStreamGuard(stream).__enter__)
    thread.start()
    thread.join()
    del stream, thread
    caller.guards_of_threads()
    assert gone() is None


@needs_compiled
def test_nothing_that_python_can_reach_crashes_it_or_keeps_references():
    command = [sys.executable, "-X", "faulthandler", str(ROOT / "tests" / "try_fastpath.py")]
    done = subprocess.run([*command, "0", "30"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- other interpreters -----------------------------------------------------------------------
BESIDE = """
{interpreters}
from gpuscope.device.caller import CallerStreamGuard, get_caller_stream

other = interpreters.create()
enter = '''
from gpuscope import _compiled
from gpuscope.device.caller import CallerStreamGuard, get_caller_stream

assert _compiled.fastpath is not None, _compiled.why_not
assert get_caller_stream() is None
guard = CallerStreamGuard(3)
guard.__enter__()
'''
leave = '''
assert get_caller_stream() == 3
guard.__exit__(None, None, None)
assert get_caller_stream() is None
'''
interpreters.run_string(other, enter)
assert get_caller_stream() is None
with CallerStreamGuard(5):
    assert get_caller_stream() == 5
    interpreters.run_string(other, leave)
    assert get_caller_stream() == 5
interpreters.destroy(other)
with CallerStreamGuard(6):
    assert get_caller_stream() == 6
assert get_caller_stream() is None
"""
INTERPRETERS = next(
    (
        name
        for name in ("_interpreters", "_xxsubinterpreters")
        if importlib.util.find_spec(name) is not None
    ),
    None,
)
needs_interpreters = pytest.mark.skipif(INTERPRETERS is None, reason="no other interpreters here")


def run_beside(program: str) -> None:
    text = program.format(interpreters=f"import {INTERPRETERS} as interpreters")
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@needs_compiled
@needs_interpreters
def test_guards_of_two_interpreters_leave_each_other_alone():
    run_beside(BESIDE)


@needs_compiled
@pytest.mark.skipif(sys.version_info < (3, 12), reason="all interpreters share one lock")
def test_it_loads_in_an_interpreter_with_a_lock_of_its_own():
    isolated = "" if sys.version_info >= (3, 13) else "isolated=True"
    load = "import gpuscope._fastpath as module; module.Workspace(1, 2, 3, 4)"
    run_beside(f"""
{{interpreters}}
other = interpreters.create({isolated})
assert interpreters.run_string(other, {load!r}) is None
interpreters.destroy(other)
""")


@needs_compiled
def test_each_load_of_the_module_has_a_state_of_its_own():
    def load():
        path = _compiled.fastpath.__file__
        spec = importlib.util.spec_from_file_location("gpuscope._fastpath", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    first, second = load(), load()
    assert first is not second
    assert first.Guard is not second.Guard is not _compiled.fastpath.Guard
    first.serve_guards(caller.process_slot(), lambda: None, lambda _: [], tuple)
    with pytest.raises(RuntimeError, match="not served yet"):
        second.Guard(5)
    with gs.CallerStreamGuard(5):
        assert gs.get_caller_stream() == 5
