"""A process that holds notebooks in a sandbox, as the one that grades sees it."""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, cast

import msgspec

from gpuscope.extending import python_command
from gpuscope.search import make_locks
from gpuscope_lessons.holding import HoldingOrder, Report

STOPPED = "grading was stopped"
_POLL_S = 0.2
_PATIENCE_S = 60.0
"""Beyond a notebook's time, until what should have ended it is ended."""


class Warden:
    """A process that has all imported, and starts notebooks one after the other.

    It ends with the thread that made it, and all notebooks with it.

    Parameters
    ----------
    gpu
        Whether notebooks use the GPU.
    cores
        The processors that it and its notebooks stay on; all, if not given.
    """

    def __init__(self, *, gpu: bool, cores: Sequence[int] = ()) -> None:
        self.cores = cores
        # What a notebook leaves there may be what nobody can remove, or still grow.
        self._folder = tempfile.TemporaryDirectory(
            prefix="gpuscope-grade-", ignore_cleanup_errors=True
        )
        environment = {
            **os.environ,
            "PLOTLY_RENDERER": "plotly_mimetype",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if gpu:
            make_locks()  # notebooks may write nothing where these are
        else:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        arguments = ["gpu" if gpu else "simulated", *map(str, cores)]
        self._process = subprocess.Popen(  # noqa: S603 - this Python, and a function of ours
            python_command("gpuscope_lessons.holding:serve", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
            start_new_session=True,
            env=environment,
            bufsize=0,
        )

    def __enter__(self) -> Warden:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def lives(self) -> bool:
        """Whether it can be asked for more."""
        return self._process.poll() is None

    def ask(self, order: HoldingOrder, stop: threading.Event | None) -> Report:
        """Have a notebook run; returns what came of it.

        Parameters
        ----------
        stop
            Once it is set, the notebook is ended, and so is this process.
        """
        channel = cast("IO[bytes]", self._process.stdout)  # it was made with pipes
        self._send(msgspec.json.encode(order) + b"\n")
        answer, end_s = bytearray(), time.monotonic() + order.seconds + _PATIENCE_S
        while not answer.endswith(b"\n"):
            if stop is not None and stop.is_set():
                self.close()
                return Report([], STOPPED)
            if time.monotonic() >= end_s:
                self._process.kill()
            if select.select([channel], [], [], _POLL_S)[0]:
                data = os.read(channel.fileno(), 1 << 20)
                if not data:
                    status = self._process.wait()
                    return Report([], f"what held the notebook ended with exit status {status}")
                answer += data
        return msgspec.json.decode(answer, type=Report)

    def _send(self, data: bytes) -> None:
        channel = cast("IO[bytes]", self._process.stdin)
        with suppress(BrokenPipeError):  # its answer ends, too
            while data:
                data = data[channel.write(data) or 0 :]

    def close(self) -> None:
        """End it, and with it whatever it runs."""
        self._process.kill()
        for channel in (self._process.stdin, self._process.stdout):
            if channel is not None:
                channel.close()
        self._process.wait()
        self._folder.cleanup()
