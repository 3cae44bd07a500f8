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

from gpuscope.learn.outcome import Feedback


@dataclass(frozen=True)
class Order:
    """What to run, and within which limits.

    Attributes
    ----------
    cells
        Id and source of each.
    descriptor
        Of an open file, which has no name that a notebook could reach: takes a line for each
        check, as soon as it is known.
    """

    cells: list[tuple[str, str]]
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
    """Run the cells of a notebook as Jupyter does, and write what its checks say."""
    import resource  # noqa: PLC0415 - Python in a browser has none, and grades nothing

    resource.setrlimit(resource.RLIMIT_DATA, (order.memory_bytes, order.memory_bytes))

    def too_long(_signal: int, _frame: object) -> NoReturn:
        raise TimeoutError(f"it took longer than {order.cell_seconds:g} s")

    signal.signal(signal.SIGALRM, too_long)
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    raised: list[str] = []
    with os.fdopen(order.descriptor, "wb", buffering=0) as out:
        for cell, source in order.cells:
            signal.setitimer(signal.ITIMER_REAL, order.cell_seconds)
            ran = shell.run_cell(source)  # type: ignore[no-untyped-call]  # IPython's
            signal.setitimer(signal.ITIMER_REAL, 0)
            error = ran.error_before_exec or ran.error_in_exec
            if error is not None:
                raised.append(f"cell {cell} raised {_told(error)}")
            if isinstance(ran.result, Feedback):
                # Lone surrogates cannot be written as UTF-8.
                reason = "; ".join([*raised, ran.result.found]).encode(errors="backslashreplace")
                check = Checked(ran.result.result.name, ran.result.result.verdict, reason.decode())
                out.write(msgspec.json.encode(check) + b"\n")
                raised.clear()


def _told(error: BaseException) -> str:
    """Name an error; its own text, which may be a learner's code, may fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - it may raise anything
        return type(error).__name__


if __name__ == "__main__":
    run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order))
