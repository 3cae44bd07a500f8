"""A pool of processes on this host: one that dies is replaced, and the others go on."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import IO, ParamSpec, TypeVar, cast

from gpuscope import _child

_END_S = 30.0
"""How long a process may take to end: under ``gpuscope record`` it writes its trace."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Processes(Executor):
    """Calls functions in ``count`` processes, each of which is started at its first call.

    A call whose process dies is made again in a new one, until ``attempts`` were made: then it
    raises ``BrokenExecutor``. A function must not raise: it ends its process. ``shutdown`` ends the
    processes.
    """

    def __init__(self, count: int, *, attempts: int = 1) -> None:
        self._attempts = attempts
        self._threads = ThreadPoolExecutor(count)
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._all: list[subprocess.Popen[bytes]] | None = []

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Queue a call; function and arguments are pickled."""
        return self._threads.submit(self._call, partial(fn, *args, **kwargs), self._attempts)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:  # noqa: FBT001, FBT002 - as Executor has it
        """Terminate the processes, and with them the calls that run."""
        with self._lock:
            ended, self._all = self._all or [], None
        for process in ended:
            process.terminate()
        end_s = time.monotonic() + _END_S
        for process in ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(end_s - time.monotonic(), 0))
            process.kill()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        for process in ended:
            with contextlib.suppress(OSError), process:  # closes its pipes and waits
                pass

    def _call(self, job: Callable[[], _T], attempts: int) -> _T:
        process: subprocess.Popen[bytes] | None = getattr(self._mine, "process", None)
        if process is None or process.poll() is not None:
            process = self._mine.process = self._started()
        to, back = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        try:
            to.write(pickle.dumps(job))
            to.flush()
            made: _T = pickle.load(back)  # noqa: S301 - of our own process
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            process.kill()
            status = process.wait()
            if attempts > 1:
                return self._call(job, attempts - 1)
            raise BrokenExecutor(f"its process ended with status {status}") from error
        return made

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._all is None:
                raise BrokenExecutor("the pool was shut down")
            process = subprocess.Popen(  # noqa: S603 - this Python, and a function of ours
                _child.python_command(f"{__name__}:serve"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for who started it
            )
            self._all.append(process)
        return process


def serve() -> None:
    """Do calls from standard input; what they print goes to standard error."""
    source, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is needed
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError):  # its parent is gone
        while True:
            made = pickle.load(source)()  # noqa: S301 - of our own parent
            results.write(pickle.dumps(made))
            results.flush()
