"""Exceptions and interrupts at every line of the package, in turn; what they must leave usable."""

from __future__ import annotations

import _thread
import contextlib
import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import gpuscope as gs
from gpuscope import _interrupts

_PACKAGE = Path(gs.__file__).parent
EVERY_EXECUTION = os.environ.get("GPUSCOPE_INTERRUPTS") == "all"
"""Whether each execution of a line is tried; else the first one."""


@dataclass(frozen=True)
class Place:
    """One execution of a line: of which file, which line, and which execution, from 1."""

    file: str
    line: int
    number: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} (execution {self.number})"


class Interrupt:
    """Counts the lines of the package that this thread executes, and interrupts at one of them.

    An interrupt meets the line as Ctrl-C does: code that defers it raises it at its next checkpoint.
    Any other error is raised at the line itself.

    The end of a with statement executes its first line once more. That is no place here: Python
    delivers no interrupt between the end of the block and ``__exit__``, and an exception that a
    trace function raises there keeps ``__exit__`` from being called at all (bpo-29988). Nor is a
    line that only says ``try:`` a place: Python looks for interrupts at calls and at jumps back,
    and what is raised at that line skips the handlers of the block around it.

    Parameters
    ----------
    rooms
        Paths under the package, such as ``"record"`` or ``"simulator/engine/engine.py"``.
    at
        Where to raise: a place, or n for the n-th line that is executed for the first time.
    error
        What to raise, a `KeyboardInterrupt` if not given; it does not leave the ``with`` block.

    Attributes
    ----------
    executed
        (file, line) → how often, until it raises; at a place, of the functions with that line.
    raised
        Whether the place was met.
    is_late
        Whether an interrupt was deferred beyond the end of the block: the signal is sent again then.
    waited
        How many functions of the package were called before it was raised.
    """

    def __init__(
        self, *rooms: str, at: Place | int | None = None, error: BaseException | None = None
    ) -> None:
        self.executed: dict[tuple[str, int], int] = {}
        self.raised = False
        self.is_late = False
        self.waited = 0
        self._error = error or KeyboardInterrupt()
        self._at = at
        self._before: Any = None
        self._rooms = tuple(str(_PACKAGE / room) for room in rooms)

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        sys.settrace(self._before)  # coverage's, which counts on
        self.is_late, _interrupts.pending = _interrupts.pending, False
        return error is self._error or (
            self.raised and isinstance(error, KeyboardInterrupt) and self._is_interrupt
        )

    @property
    def _is_interrupt(self) -> bool:
        return isinstance(self._error, KeyboardInterrupt)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if self.raised:
            self.waited += _interrupts.pending and code.co_filename.startswith(str(_PACKAGE))
            return None
        if not code.co_filename.startswith(self._rooms) or not _may_execute(code, self._at):
            return None
        inside: set[int] = set()  # the with statements that this call is in
        file = code.co_filename
        withs, skipped = _lines(file, "with "), _lines(file, "try:")

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                number = frame.f_lineno
                if number in inside:
                    inside.discard(number)
                elif number not in skipped:
                    if number in withs:
                        inside.add(number)
                    self._passed(frame, file, number)
            return line

        return line

    def _passed(self, frame: FrameType, file: str, line: int) -> None:
        if self.raised:
            return
        count = self.executed.get((file, line), 0)
        if isinstance(self._at, int):
            if count:
                return
            here = len(self.executed) + 1 == self._at
        else:
            here = self._at is not None and self._at == Place(file, line, count + 1)
        self.executed[file, line] = count + 1
        if here:
            self.raised = True
            if not self._is_interrupt:
                sys.settrace(None)
                raise self._error
            _interrupts.note(frame)


@cache
def _may_execute(code: CodeType, at: Place | int | None) -> bool:
    """Whether a function has the place: to follow the others costs most of the time."""
    if not isinstance(at, Place):
        return True
    return code.co_filename == at.file and any(line == at.line for *_, line in code.co_lines())


@cache
def _lines(file: str, beginning: str) -> frozenset[int]:
    """Return the numbers of a file's lines that begin so, indented or not."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return frozenset(n for n, text in enumerate(lines, 1) if text.lstrip().startswith(beginning))


def places(program: Callable[[], Any], *rooms: str) -> Iterator[Place]:
    """Yield where to interrupt ``program``: executions of the lines of ``rooms``.

    Meanwhile the collector leaves alone what was there before: a run that is interrupted collects,
    which takes half a second where many tests ran in this process.
    """
    with Interrupt(*rooms) as lines:
        program()
    gc.collect()
    gc.freeze()
    try:
        for (file, line), count in sorted(lines.executed.items()):
            for number in range(1, (count if EVERY_EXECUTION else 1) + 1):
                yield Place(file, line, number)
    finally:
        gc.unfreeze()


class Moment:
    """Sends this process Ctrl-C at one of the moments at which Python looks for it.

    These are the starts of Python's functions and the returns of C's. At the other events of a
    profile function it looks for none, and what is raised there skips the frame's handlers.

    Attributes
    ----------
    passed
        How many there were.
    """

    def __init__(self, number: int = -1) -> None:
        self.passed = 0
        self._number = number

    def __enter__(self) -> Moment:
        # Who starts a program in the background may have it ignore Ctrl-C.
        self._handler = signal.signal(signal.SIGINT, _interrupts.on_interrupt)
        sys.setprofile(self._pass)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        try:
            time.sleep(0)  # a Ctrl-C that is on its way arrives here at the latest
            _interrupts.deliver()
        finally:
            signal.signal(signal.SIGINT, self._handler)

    def _pass(self, _: object, event: str, __: object) -> None:
        if event not in ("call", "c_return"):
            return
        self.passed += 1
        if self.passed == self._number:
            sys.setprofile(None)
            _thread.interrupt_main()


def at_every_moment(act: Callable[[], Any]) -> Iterator[None]:
    """Interrupt ``act`` at one moment after another, until it has no more; yields after each."""
    act()
    for number in itertools.count(1):
        with contextlib.suppress(KeyboardInterrupt), Moment(number) as moment:
            act()
        yield
        if moment.passed < number:
            assert number > 20
            return


# -- runs that are interrupted ---------------------------------------------------------------
CARVED: dict[str, Any] = {
    "partitions": {"a": 16, "b": "rest"},
    "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
}


def experiment(load: dict[str, Any], small: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an experiment: a background on one stream, a workload on another, in two settings."""
    return {
        "name": "interrupted", "rounds": 1, "streams": {"s": {}, "t": {}},
        "settings": {"carved": CARVED, "whole": {}},
        "workloads": {
            "load": {**load, "stream": "t", "background": True},
            "small": {**small, "stream": "s"},
        },
        **more,
    }  # fmt: skip


def gemm(size: int, **more: Any) -> dict[str, Any]:
    """Return a product of square matrices."""
    return {"kind": "gemm", "m": size, "n": size, "k": size, **more}


def kernels_of(run: gs.experiments.Run) -> int:
    """Return how many kernels a run kept."""
    return sum(trace.kind_counts().get("kernel", 0) for trace in run.values())


def left_behind(gpu: Any) -> str | None:
    """Return what an interrupted run left on a device, if anything."""
    partitions, recordings = len(gpu.partitions), len(gpu.calls.observers)
    if partitions or recordings:
        return f"left behind: {partitions} partitions, {recordings} recordings"
    return None


def wrong_product(gpu: Any) -> str | None:
    """Return what is wrong with a small product in a new partition, if anything."""
    a = gpu.asarray(np.arange(16).reshape(4, 4), "float32")
    with gpu.carve([16]) as parts, parts[0].create_stream() as stream:
        product = gs.mm_out(gpu.empty((4, 4)), a, a, stream=stream)
        stream.synchronize()
        right = np.arange(16).reshape(4, 4) @ np.arange(16).reshape(4, 4)
        return None if np.array_equal(gpu.to_host(product), right) else "a product is wrong"
