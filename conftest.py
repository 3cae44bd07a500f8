"""What all tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import example_plugin
import pytest
from hypothesis import settings

pytest_plugins = ["lab_fixtures"]

# Correctness is tested, not speed, and the same of the same code: make fuzz draws new examples.
settings.register_profile("repeated", deadline=None, derandomize=True)
settings.load_profile("repeated")

_install = signal.signal


@dataclass(frozen=True)
class _OutsideCoverage:
    """A handler that is put off while coverage's own code runs.

    coverage takes a lock, in Python, at each call of a function. An exception that a handler
    raises there leaves the lock taken, and every thread then waits for it for ever.
    """

    handler: Callable[[int, FrameType | None], Any]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if any(map(_is_of_coverage, traceback.walk_stack(frame))):
            threading.Timer(0.001, os.kill, (os.getpid(), number)).start()
        else:
            self.handler(number, frame)


def _is_of_coverage(place: tuple[FrameType, int]) -> bool:
    return Path(place[0].f_code.co_filename).parent.name == "coverage"


def _signal(number: int, handler: Any) -> Any:
    is_plain = not callable(handler) or isinstance(handler, _OutsideCoverage)
    return _install(number, handler if is_plain else _OutsideCoverage(handler))


signal.signal = _signal


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Hold coverage's lock while a process forks: a child would wait for ever for a thread's.

    Called when coverage has begun, and before anything of gpuscope is imported. Registered are
    built-in functions, which coverage does not follow.
    """
    with contextlib.suppress(ImportError):
        from coverage.collector import Collector

        for collector in Collector._collectors:
            if (lock := collector.data_lock) is not None:
                os.register_at_fork(
                    before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
                )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Have the collector leave alone what pytest collected, and what tests left.

    It is 600,000 objects, and to look through them takes 0.8 s: a recording that finds devices
    which were let go of collects, and so do many tests.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Do so again behind each file, when its fixtures are gone: modules and caches grow."""
    if nextitem is not None and nextitem.path != item.path:
        pytest_collection_finish()


@pytest.fixture
def anew():
    """Look for other packages anew before the test and behind it."""
    example_plugin.forget()
    yield
    example_plugin.forget()


@pytest.fixture
def plugin(tmp_path, monkeypatch, anew):
    """Make the example's package visible."""
    for entry in example_plugin.make_visible(tmp_path / "installed"):
        monkeypatch.syspath_prepend(entry)
    yield
    for name in [name for name in sys.modules if name.startswith("gpuscope_example")]:
        del sys.modules[name]


@pytest.fixture
def other_package(tmp_path, monkeypatch, anew):
    """Make a package of one module visible that names what is in it in a group of entry points."""

    def declare(name: str, group: str, entries: str, module: str, text: str) -> list[str]:
        package = tmp_path / name
        package.mkdir()
        (package / "pyproject.toml").write_text(
            f'[project]\nname = "{name}-package"\nversion = "1"\n'
            f'[project.entry-points."{group}"]\n{entries}'
        )
        (package / f"{module}.py").write_text(text)
        paths = example_plugin.make_visible(tmp_path / "installed", package)
        for path in paths:
            monkeypatch.syspath_prepend(path)
        monkeypatch.delitem(sys.modules, module, raising=False)
        return paths

    return declare
