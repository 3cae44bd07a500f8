"""The process that runs one notebook for :mod:`gpuscope.learn.grading`."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from gpuscope.learn.attempt import Attempt
from gpuscope.learn.handed_in import Code
from gpuscope.learn.lesson import Lesson
from gpuscope.learn.outcome import Feedback, Result

_JUDGES = {
    judge: {name: method for name, method in vars(judge).items() if callable(method)}
    for judge in (Lesson, Attempt, Feedback, Result)
}
"""Class → its methods, as they are before a notebook runs."""


@dataclass(frozen=True)
class Order:
    """What to run, and within which limits.

    Attributes
    ----------
    cells
        In their order.
    exercises
        Names that a learner is to define: the only ones of the lesson's that are not restored.
    descriptor
        Of an open file, which has no name that a notebook could reach: takes a line for each
        check, as soon as it is known.
    """

    cells: list[Code]
    exercises: set[str]
    cell_seconds: float
    memory_bytes: int
    descriptor: int


@dataclass(frozen=True)
class Checked:
    """What a check of an exercise said."""

    name: str
    verdict: str
    reason: str


def run(order: Order) -> None:
    """Run the cells of a notebook as Jupyter does, and write what its checks say.

    Only the lesson's own cells tell of checks, each of those that it asks. Before each of them, the
    names that such cells defined, and the classes that judge, are as these left them.
    """
    import resource  # noqa: PLC0415 - Python in a browser has none, and grades nothing

    resource.setrlimit(resource.RLIMIT_DATA, (order.memory_bytes, order.memory_bytes))

    def too_long(_signal: int, _frame: object) -> NoReturn:
        raise TimeoutError(f"it took longer than {order.cell_seconds:g} s")

    signal.signal(signal.SIGALRM, too_long)
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    raised: list[str] = []
    kept: dict[str, object] = {}
    with os.fdopen(order.descriptor, "wb", buffering=0) as out:
        for code in order.cells:
            if code.asks is not None:
                _restore(shell.user_ns, kept)
                before = dict(shell.user_ns)
            signal.setitimer(signal.ITIMER_REAL, order.cell_seconds)
            ran = shell.run_cell(code.source)  # type: ignore[no-untyped-call]  # IPython's
            signal.setitimer(signal.ITIMER_REAL, 0)
            error = ran.error_before_exec or ran.error_in_exec
            if error is not None:
                raised.append(f"cell {code.id} raised {_told(error)}")
            if code.asks is None:
                continue
            for name, value in shell.user_ns.items():
                is_set = not name.startswith("_") and value is not before.get(name, before)
                if is_set and name not in order.exercises and name not in ("In", "Out"):
                    kept[name] = value
            if type(ran.result) is Feedback and ran.result.result.name in code.asks:
                # Lone surrogates cannot be written as UTF-8.
                reason = "; ".join([*raised, ran.result.found]).encode(errors="backslashreplace")
                check = Checked(ran.result.result.name, ran.result.result.verdict, reason.decode())
                out.write(msgspec.json.encode(check) + b"\n")
                raised.clear()


def _restore(names: dict[str, object], kept: dict[str, object]) -> None:
    """Give the lesson's names their values back, and the classes that judge their methods."""
    names.update(kept)
    for judge, methods in _JUDGES.items():
        for name, method in methods.items():
            if vars(judge).get(name) is not method:
                setattr(judge, name, method)
    for value in kept.values():
        for name in _JUDGES[Lesson] if isinstance(value, Lesson) else ():
            vars(value).pop(name, None)


def _told(error: BaseException) -> str:
    """Name an error; its own text, which may be a learner's code, may fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - it may raise anything
        return type(error).__name__


if __name__ == "__main__":
    run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order))
