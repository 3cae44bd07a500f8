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
from gpuscope.device import diagnose

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
    assert all((tmp_path / target).exists() for target in compiling.MODULES.values())


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
    assert _compiled._load() == (None, "it was compiled from another _fastpath.c")


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
    gs.device.caller.guards_of_threads()
    assert gone() is None
