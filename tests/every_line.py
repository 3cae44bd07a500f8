"""KeyboardInterrupt at every line that a program executes, for tests that ask what it leaves."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

EVERY_EXECUTION = os.environ.get("GPUSCOPE_INTERRUPTS") == "all"
"""Whether each execution of a line is tried; else the first one."""


@dataclass(frozen=True)
class Place:
    """One execution of a line: of which file, which line, and the how manieth, from 1."""

    file: str
    line: int
    number: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} (execution {self.number})"


class Lines:
    """Counts the lines of some modules that this thread executes; or interrupts at one.

    The end of a with statement executes its first line once more. That is no place here: Python
    delivers no interrupt between the end of the block and ``__exit__``, and an exception that a
    trace function raises there keeps ``__exit__`` from being called at all (bpo-29988). Nor is a
    line that only says ``try:`` a place: Python looks for interrupts at calls and at jumps back,
    and what is raised at that line skips the handlers of the block around it.

    Attributes
    ----------
    executed
        (file, line) → how often; where it interrupts, of the functions alone that have the line.
    interrupted
        Whether the interrupt was raised.
    """

    def __init__(self, modules: tuple[ModuleType, ...], at: Place | None = None) -> None:
        self.executed: Counter[tuple[str, int]] = Counter()
        self.interrupted = False
        self._at = at
        self._files = {str(module.__file__) for module in modules}
        self._with_lines = {file: _lines(file, "with ") for file in self._files}
        self._try_lines = {file: _lines(file, "try:") for file in self._files}

    def __enter__(self) -> Lines:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        del event
        file = frame.f_code.co_filename
        if file not in self._files or not _may_execute(frame.f_code, self._at):
            return None
        inside: set[int] = set()  # the with statements that this call is in
        starts, skipped = self._with_lines[file], self._try_lines[file]

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                number = frame.f_lineno
                if number in inside:
                    inside.discard(number)
                    return line
                if number in starts:
                    inside.add(number)
                if number not in skipped:
                    self._passed(file, number)
            return line

        return line

    def _passed(self, file: str, line: int) -> None:
        self.executed[file, line] += 1
        at = self._at
        if at is None or line != at.line or file != at.file or self.interrupted:
            return
        if self.executed[file, line] == at.number:
            self.interrupted = True
            raise KeyboardInterrupt


@cache
def _may_execute(code: CodeType, at: Place | None) -> bool:
    """Whether a function has the line: to follow the others costs most of the time."""
    if at is None:
        return True
    return code.co_filename == at.file and any(line == at.line for *_, line in code.co_lines())


@cache
def _lines(file: str, beginning: str) -> frozenset[int]:
    """Return the numbers of a file's lines that begin so, indented or not."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return frozenset(n for n, text in enumerate(lines, 1) if text.lstrip().startswith(beginning))


def places(program: Callable[[], Any], *modules: ModuleType) -> Iterator[Place]:
    """Yield where to interrupt ``program``: executions of the lines of ``modules``."""
    with Lines(modules) as lines:
        program()
    for (file, line), count in sorted(lines.executed.items()):
        for number in range(1, (count if EVERY_EXECUTION else 1) + 1):
            yield Place(file, line, number)
