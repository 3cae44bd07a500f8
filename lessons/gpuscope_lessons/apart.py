"""A lesson's own cells and a learner's, apart: in names of their own, exercises in processes."""

from __future__ import annotations

import ast
import builtins
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import NoReturn

import numpy as np
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from gpuscope.device import Device, handing_over
from gpuscope.extending import Untyped
from gpuscope_lessons.handed_in import Code
from gpuscope_lessons.lesson import Lesson

_POLL_S, _PAUSE_S = 0.02, 0.002
_GRACE_S = 1.0
"""Until a cell that does not end when it is told to is ended with its process."""
_TOLD = 77
"""The exit status of a process that told all: any other one is a cell's."""
_OWNERS = (type, Lesson, Device)
_CHANGES = {"object.__setattr__", "object.__delattr__"}
"""What Python tells of whoever changes a function's code or defaults, or a class."""


@dataclass
class Apart:
    """Runs cells as Jupyter does: a lesson's own, and a learner's with copies of their names.

    What a learner's cells define or replace is unknown to the lesson's, but for the exercises.

    Attributes
    ----------
    shell
        Runs the cells.
    exercises
        Names that a learner is to define.
    cell_seconds
        For a cell, which is interrupted by an error then.
    begun
        Is called with the number of each of the learner's cells as it begins, and with -1 as the
        lesson's does.
    written
        The learner's cells that were met so far, by their numbers in the notebook.
    failed
        Those of them that failed: they are not run for the next exercise.
    """

    shell: InteractiveShell
    exercises: AbstractSet[str]
    cell_seconds: float
    begun: Callable[[int], object]
    written: dict[int, Code] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        def too_long(_signal: int, _frame: object) -> NoReturn:
            raise TimeoutError(f"it took longer than {self.cell_seconds:g} s")

        signal.signal(signal.SIGALRM, too_long)

    def run(self, source: str) -> ExecutionResult:
        """Run a cell."""
        signal.setitimer(signal.ITIMER_REAL, self.cell_seconds)
        try:
            ran: ExecutionResult = self.shell.run_cell(source)  # type: ignore[no-untyped-call]
            return ran
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def check(self, code: Code, tell: Callable[[ExecutionResult, list[str]], object]) -> str:
        """Run the learner's cells, then one of the lesson's that judges them, in a process.

        What the latter defines stays. On a GPU, which no process shares with its parent, all is
        run in this one.

        Parameters
        ----------
        tell
            Is called with the cell's result and with what the learner's cells raised.

        Returns
        -------
        str
            How it ended, if not by itself.
        """
        ending = ""
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            ours, theirs = socket.socketpair()
            with handing_over():
                process = os.fork()
            if not process:
                with suppress(BaseException):
                    ours.close()
                    tell(*self._judged(code, partial(_told_above, theirs)))
                    os._exit(_TOLD)
                os._exit(1)
            theirs.close()
            with ours:
                ending = self._wait(process, ours)
        else:
            tell(*self._judged(code, self._note))
        last = ast.parse(code.source).body[-1]
        self.run("\n".join(code.source.splitlines()[: last.lineno - 1]))
        return ending

    def _note(self, number: int) -> None:
        """Note that a cell of the learner's begins, and then that it worked; -1: the lesson's."""
        if number >= 0:
            self.failed ^= {number}
        if number < 0 or number in self.failed:
            self.begun(number)

    def _judged(
        self, code: Code, note: Callable[[int], object]
    ) -> tuple[ExecutionResult, list[str]]:
        """Run cells; notes the number of each of the learner's before, and after if it worked."""
        shell, raised = self.shell, []
        lesson, learner = shell.user_module, ModuleType("__main__")
        names = vars(learner)
        names.update(vars(lesson))
        shell.user_module, shell.user_ns = learner, names
        for _ in _put_back(lesson):  # a loop goes on whatever a cell replaced
            for number, cell in self.written.items():
                if number in self.failed:
                    continue
                note(number)
                ran = self.run(cell.source)
                if (error := error_of(ran)) is None:
                    note(number)
                else:
                    raised.append(f"cell {cell.id} raised {told(error)}")
                vars(lesson).update({name: names[name] for name in self.exercises & names.keys()})
        vars(lesson).update({name: names[name] for name in self.exercises & names.keys()})
        shell.user_module, shell.user_ns = lesson, vars(lesson)
        note(-1)
        return self.run(code.source), raised

    def _wait(self, process: int, notes: socket.socket) -> str:
        """Take a process's notes until it ends; returns how, if not by itself.

        A cell that does not end when it is told to is ended with its process.
        """
        since_s, status = time.monotonic(), None
        while status is None:
            with suppress(OSError, ValueError):  # it may end, or a cell write there
                if select.select([notes], [], [], _POLL_S)[0] and (note := notes.recv(9)):
                    self._note(int(note))
                    notes.send(note)
                    since_s = time.monotonic()
                    continue
            ended, code = os.waitpid(process, os.WNOHANG)
            if ended:
                status = os.waitstatus_to_exitcode(code)
            elif time.monotonic() - since_s > self.cell_seconds + _GRACE_S:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return f"it took longer than {self.cell_seconds:g} s and had to be stopped"
            else:
                time.sleep(_PAUSE_S)
        return "" if status == _TOLD else f"its process ended with exit status {status}"


def _told_above(above: socket.socket, number: int) -> None:
    """Send a note to the process above, and go on when it answers; who killed it ends here."""
    above.sendall(b"%d" % number)
    if not above.recv(9):
        os._exit(1)


def error_of(ran: ExecutionResult) -> BaseException | None:
    """Return what a cell raised."""
    error: BaseException | None = ran.error_before_exec or ran.error_in_exec
    return error


def told(error: BaseException) -> str:
    """Name an error; its own text, which may be a learner's code, may fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - it may raise anything
        return type(error).__name__


def _put_back(lesson: ModuleType) -> Iterator[None]:
    """Note what judges, and put it back when the loop over this goes on.

    It is what modules and classes name, of gpuscope, the lesson, NumPy, random and builtins, and
    the code and defaults of their functions. New names go. Data that another module than the
    lesson names in lower case stays: it may change. What is called then, it has from before.
    """
    get, put, drop, key, kind, module = getattr, setattr, delattr, id, type, ModuleType
    ours = {name: imported for name, imported in sys.modules.items() if name.startswith("gpuscope")}
    owners: list[object] = [builtins, random, np, lesson, *ours.values()]
    ids = {id(holder) for owner in owners for holder in (owner, vars(owner))}
    whose = {*ours, "__main__"}
    for owner in owners:  # it grows
        for value in vars(owner).values():
            if isinstance(value, _OWNERS) and value.__module__ in whose and id(value) not in ids:
                ids.add(id(value))
                owners.append(value)
    names = [(owner, vars(owner), {**vars(owner)}) for owner in owners]
    changed: list[tuple[object, str, object]] = []

    def changes(event: str, what: tuple[Untyped, ...]) -> None:
        if event in _CHANGES and key(get(what[0], "__globals__", what[0])) in ids:
            changed.append((what[0], what[1], get(what[0], what[1])))

    sys.addaudithook(changes)
    yield
    ids.clear()
    for owner, name, value in changed[::-1]:
        put(owner, name, value)
    for owner, now, noted in names:
        has_data = kind(owner) is module and owner is not lesson
        for name in {*now} - {*noted}:
            if kind(now[name]) is not module:
                drop(owner, name)
        for name, value in noted.items():
            if now.get(name) is not value and not (
                has_data and name.islower() and get(value, "__name__", None) is None
            ):
                put(owner, name, value)
