"""Ctrl-C at checkpoints: code that keeps invariants is not interrupted, but asks for interrupts.

Python raises `KeyboardInterrupt` wherever the main thread happens to be, which no invariant
survives. So, as in Trio (``trio/_core/_ki.py``), one signal handler looks at the stack: within the
modules of `_DEFERRING` it only sets `pending`, and the interrupt is raised

- at the next checkpoint: where a launch, a record or a wait begins, and in each step of a wait;
- or, at the latest some milliseconds after such code returned, by sending the signal again.

Entering and leaving such code costs nothing, and a checkpoint costs a look at `pending`.
The handler takes the place of Python's own and of no other. Other threads are never interrupted.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_DEFERRING = (
    "gpuscope.device",
    "gpuscope.races.hazard_log",
    "gpuscope.record",
    "gpuscope.simulator.engine",
    "gpuscope.workloads",
    "gpuscope.experiments.driving",
    "gpuscope.experiments.profiling",
    "gpuscope.experiments.runner",
    "gpuscope.experiments.serving",
    "gpuscope.experiments.workers",
)
"""Modules, and packages, in whose functions an interrupt waits for a checkpoint."""
_REMIND_S = 0.005

pending = False
"""Whether an interrupt waits for a checkpoint. Only the main thread may be interrupted."""
_interruptible: set[CodeType] = set()
_reminding = False


class _OfThread(threading.local):
    shields = 0


_of_thread = _OfThread()


def interruptible(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let interrupts strike anywhere in a function and in what it calls, up to deferring code."""
    _interruptible.add(function.__code__)
    return function


@interruptible
def let_in(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function of the user's, which may be interrupted wherever it is."""
    return function(*args, **kwargs)


@interruptible
def sleep(seconds: float) -> None:
    """Sleep; an interrupt ends it at once."""
    time.sleep(seconds)


def deliver() -> None:
    """Raise the interrupt that waits, if one does; where speed counts, look at `pending` first."""
    global pending  # noqa: PLW0603 - one process has one main thread
    is_main = threading.get_ident() == threading.main_thread().ident
    if pending and is_main and not _of_thread.shields:
        pending = False
        raise KeyboardInterrupt


class no_interrupt:  # noqa: N801 - used as a statement: with no_interrupt():
    """Defer interrupts to behind a block, whatever checkpoints are in it: for destructors."""

    __slots__ = ()

    def __enter__(self) -> None:
        _of_thread.shields += 1

    def __exit__(self, *_: object) -> None:
        _of_thread.shields -= 1


_OWN_CODE = (no_interrupt.__enter__.__code__, no_interrupt.__exit__.__code__)


def is_deferred(frame: FrameType | None) -> bool:
    """Whether an interrupt that meets this frame of the main thread waits for a checkpoint.

    The innermost frame of code that is known decides. `contextlib` between two statements of a
    ``with`` defers, too: what it has entered is not yet known to the block.
    """
    if _of_thread.shields or (frame and frame.f_globals.get("__name__") == "contextlib"):
        return True
    while frame is not None:
        code = frame.f_code
        if code in _interruptible:
            return False
        name = str(frame.f_globals.get("__name__", ""))
        if code in _OWN_CODE or (name.startswith(_DEFERRING) and not name.endswith("__main__")):
            return True
        frame = frame.f_back
    return False


def note(frame: FrameType | None) -> None:
    """Take an interrupt that meets ``frame``: raise it, or note it for the next checkpoint."""
    global pending  # noqa: PLW0603 - one process has one main thread
    pending = is_deferred(frame)
    if not pending:
        raise KeyboardInterrupt


def on_interrupt(_number: int, frame: FrameType | None) -> None:
    """Handle the signal."""
    global _reminding  # noqa: PLW0603 - one thread reminds
    note(frame)
    if not _reminding:
        _reminding = True
        try:
            _thread.start_new_thread(_remind, ())
        except RuntimeError:  # no threads: the next checkpoint has it
            _reminding = False


def _remind() -> None:
    """Send the signal again until it is taken: deferring code may have returned by then."""
    global _reminding  # noqa: PLW0603 - one thread reminds
    main = threading.main_thread().ident
    while True:
        time.sleep(_REMIND_S)
        if main is None or signal.getsignal(signal.SIGINT) is not on_interrupt:
            _reminding = False
            return
        if pending:
            signal.pthread_kill(main, signal.SIGINT)
            continue
        _reminding = False
        if not pending:  # else it came this very moment, and saw that somebody reminds
            return
        _reminding = True


def install() -> None:
    """Defer interrupts from now on, where Python's own handler raises them; from any thread.

    A notebook's kernel sets Python's handler anew for each cell: then it is replaced again.
    """
    global pending, _watched_shell  # noqa: PLW0603 - one process has one main thread
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return
    signal.signal(signal.SIGINT, on_interrupt)
    pending = False
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    shell = get_shell()
    if shell is not None and shell is not _watched_shell:
        _watched_shell = shell
        shell.events.register("pre_run_cell", lambda _cell: install())


_watched_shell: object = None


def _forget_reminder() -> None:
    """In a forked child: the thread is its parent's."""
    global _reminding  # noqa: PLW0603 - one thread reminds
    _reminding = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_reminder)
