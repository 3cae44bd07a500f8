"""KeyboardInterrupt at every line that a program executes, for tests that ask what it leaves."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

EVERY_EXECUTION = os.environ.get("GPUSCOPE_INTERRUPTS") == "all"
"""Whether each execution of a line is tried; else the first, the middle and the last one."""


@dataclass(frozen=True)
class Place:
    """One execution of a line: of which file, which line, and the how manieth, from 1."""

    file: str
    line: int
    number: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} (execution {self.number})"


class Lines:
    """Counts the lines of some modules that this thread executes; interrupts at one.

    The end of a with statement executes its first line once more. That is no place here: Python
    delivers no interrupt between the end of the block and ``__exit__``, and an exception that a
    trace function raises there keeps ``__exit__`` from being called at all (bpo-29988).

    Attributes
    ----------
    executed
        (file, line) → how often.
    interrupted
        Whether the interrupt was raised.
    """

    def __init__(self, modules: tuple[ModuleType, ...], at: Place | None = None) -> None:
        self.executed: Counter[tuple[str, int]] = Counter()
        self.interrupted = False
        self._at = at or Place("", 0, 0)
        self._files = {str(module.__file__) for module in modules}
        self._with_lines = {file: _with_lines(file) for file in self._files}

    def __enter__(self) -> Lines:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        del event
        file = frame.f_code.co_filename
        if file not in self._files:
            return None
        inside: set[int] = set()  # the with statements that this call is in
        starts = self._with_lines[file]

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                number = frame.f_lineno
                if number in inside:
                    inside.discard(number)
                    return line
                if number in starts:
                    inside.add(number)
                self._passed(file, number)
            return line

        return line

    def _passed(self, file: str, line: int) -> None:
        self.executed[file, line] += 1
        at = self._at
        if line != at.line or file != at.file or self.interrupted:
            return
        if self.executed[file, line] == at.number:
            self.interrupted = True
            raise KeyboardInterrupt


def _with_lines(file: str) -> set[int]:
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return {number for number, text in enumerate(lines, 1) if text.lstrip().startswith("with ")}


def places(program: Callable[[], Any], *modules: ModuleType) -> Iterator[Place]:
    """Yield where to interrupt ``program``: executions of the lines of ``modules``."""
    with Lines(modules) as lines:
        program()
    for (file, line), count in sorted(lines.executed.items()):
        chosen = range(1, count + 1) if EVERY_EXECUTION else sorted({1, (count + 1) // 2, count})
        for number in chosen:
            yield Place(file, line, number)
